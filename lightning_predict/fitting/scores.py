"""How good the models are on problems that no fit saw, beside the roofline on the same rows.

Example::

    scores = score_groups(models, groups, gpus, seed=0)
    print(score_table(scores))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from rich import box
from rich.table import Table

from lightning_predict.fitting.recipes import RECIPES
from lightning_predict.fitting.splits import split_rows
from lightning_predict.fitting.tables import Group
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.operations import Array
from lightning_predict.kernels.roofline import roofline_seconds
from lightning_predict.kernels.utilisation import UtilisationModels, family_of

FEWEST_SCORED: int = 10
"""Held-out rows below which a score says nothing."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors of one (operation, dtype, GPU) on held-out rows; |predicted / measured - 1|.

    Attributes:
        operation: Operation.
        dtype: dtype.
        gpu: GPU.
        own_weights: The GPU has weights of its own for it.
        rows: Held-out rows.
        mean: Mean error.
        median: Median error.
        ninetieth: 90th percentile of the error.
        bias: Mean of predicted / measured - 1.
        coverage: Share of the rows inside the 90 % interval.
        roofline_mean: Mean error of the roofline on the same rows.
        roofline_median: Median error of the roofline on the same rows.
    """

    operation: str
    dtype: str
    gpu: str
    own_weights: bool
    rows: int
    mean: float
    median: float
    ninetieth: float
    bias: float
    coverage: float
    roofline_mean: float
    roofline_median: float


def score_groups(
    models: UtilisationModels, groups: Sequence[Group], gpus: Mapping[str, Gpu], *, seed: int
) -> tuple[Score, ...]:
    """Scores of all groups that a model serves, in order of operation, dtype and GPU."""
    rows: dict[tuple[str, str, str], list[Array]] = {}
    for group in groups:
        operation, dtype = group.batch.operation, group.batch.dtype
        family = family_of(operation, dtype)
        if family is None or group.gpu not in gpus or not models.supports(operation, dtype):
            continue
        mask = split_rows(group.batch.columns, seed=seed).held_out
        mask &= group.seconds >= RECIPES[family.name].scored_from(group)
        if mask.any():
            compared = _compare(models, group.take(mask), gpus[group.gpu])
            rows.setdefault((operation, dtype, group.gpu), []).append(compared)
    return tuple(
        _score(key, np.concatenate(parts, axis=1), models)
        for key, parts in sorted(rows.items())
        if sum(part.shape[1] for part in parts) >= FEWEST_SCORED
    )


def _compare(models: UtilisationModels, group: Group, gpu: Gpu) -> Array:
    """Relative error, roofline's relative error, inside the interval; shape (3, rows)."""
    estimate = models.estimate(group.batch, [gpu])
    inside = (estimate.low_seconds[0] <= group.seconds) & (group.seconds <= estimate.high_seconds[0])
    bound = roofline_seconds(group.batch, [gpu])[0]
    return np.stack([estimate.seconds[0] / group.seconds - 1, bound / group.seconds - 1, inside.astype(np.float64)])


def _score(key: tuple[str, str, str], compared: Array, models: UtilisationModels) -> Score:
    operation, dtype, gpu = key
    error, roofline, inside = compared
    return Score(
        operation=operation,
        dtype=dtype,
        gpu=gpu,
        own_weights=models.has_own_weights(gpu, operation, dtype),
        rows=len(error),
        mean=float(np.abs(error).mean()),
        median=float(np.median(np.abs(error))),
        ninetieth=float(np.quantile(np.abs(error), 0.9)),
        bias=float(error.mean()),
        coverage=float(inside.mean()),
        roofline_mean=float(np.abs(roofline).mean()),
        roofline_median=float(np.median(np.abs(roofline))),
    )


HEADINGS = (
    "operation",
    "dtype",
    "GPU",
    "weights",
    "rows",
    "median %",
    "mean %",
    "90th %",
    "bias %",
    "in interval %",
    "roofline median %",
    "roofline mean %",
)


def score_cells(score: Score) -> tuple[str, ...]:
    """One row of the table, in the order of `HEADINGS`."""
    shares = (
        score.median,
        score.mean,
        score.ninetieth,
        score.bias,
        score.coverage,
        score.roofline_median,
        score.roofline_mean,
    )
    weights = "own" if score.own_weights else "base"
    return (
        score.operation,
        score.dtype,
        score.gpu,
        weights,
        str(score.rows),
        *(f"{100 * share:.1f}" for share in shares),
    )


def score_table(scores: Sequence[Score]) -> Table:
    """The scores for the terminal."""
    table = Table(title="Errors on held-out problems", box=box.SIMPLE)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in HEADINGS[:4] else "right", no_wrap=True)
    for score in scores:
        table.add_row(*score_cells(score))
    return table


def score_markdown(scores: Sequence[Score]) -> str:
    """The scores as a Markdown table."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(score_cells(score)) + " |" for score in scores]
    return "\n".join(lines)
