"""How good the models are on problems that no fit saw, beside simpler predictors on the same rows.

Example::

    scores = score_groups(models, groups, gpus, seed=0)
    print(score_table(scores))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from rich import box
from rich.table import Table

from lightning_predict.fitting.baselines import BASELINES, BaselineError, baseline_errors
from lightning_predict.fitting.raw_network import RawNetwork
from lightning_predict.fitting.recipes import RECIPES, Recipe
from lightning_predict.fitting.splits import split_rows
from lightning_predict.fitting.tables import Group
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.operations import Array
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
        called: Mean error of whole calls, where a launch was taken off them (`launches.py`): prediction and launch over
            what was timed, of calls from the same length on; None where none was taken off.
        baselines: Errors of simpler predictors on the same rows, by name; absent where one says nothing.
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
    called: float | None
    baselines: Mapping[str, BaselineError]


def score_groups(
    models: UtilisationModels,
    groups: Sequence[Group],
    gpus: Mapping[str, Gpu],
    *,
    seed: int,
    raw_networks: Mapping[tuple[str, str], RawNetwork] | None = None,
) -> tuple[Score, ...]:
    """Scores of all groups that a model serves, in order of operation, dtype and GPU.

    Args:
        models: What is scored.
        groups: Measurements; only the held-out ones that are long enough to show the device count.
        gpus: GPUs by name; groups of others are left out.
        seed: Seed of the split.
        raw_networks: Networks on raw latency by (operation, dtype), to compare with.
    """
    held_out: dict[tuple[str, str], dict[str, list[Group]]] = {}
    calls: dict[tuple[str, str, str], list[Array]] = {}
    for recipe, group in _taken(groups, gpus):
        operation, dtype = group.batch.operation, group.batch.dtype
        if not models.supports(operation, dtype):
            continue
        unseen = group.take(split_rows(group.batch.columns, seed=seed).held_out)
        scored = _long_enough(recipe, unseen)
        if len(scored.seconds):
            held_out.setdefault((operation, dtype), {}).setdefault(group.gpu, []).append(scored)
        if unseen.taken_off_seconds is not None:
            error = _called(models, recipe, unseen, unseen.taken_off_seconds, gpus[group.gpu])
            calls.setdefault((operation, dtype, group.gpu), []).append(error)
    scores = []
    for (operation, dtype), by_gpu in sorted(held_out.items()):
        everywhere = [group for parts in by_gpu.values() for group in parts]
        network = (raw_networks or {}).get((operation, dtype))
        for name, parts in sorted(by_gpu.items()):
            if sum(len(part.seconds) for part in parts) >= FEWEST_SCORED:
                beside = baseline_errors(parts, everywhere, gpus, network)
                scores.append(_score(models, parts, gpus[name], beside, calls.get((operation, dtype, name), [])))
    return tuple(scores)


def scored_groups(groups: Iterable[Group], gpus: Mapping[str, Gpu]) -> Iterator[Group]:
    """The groups that a recipe takes on known GPUs, without rows too short to show the device."""
    for recipe, group in _taken(groups, gpus):
        yield _long_enough(recipe, group)


def _taken(groups: Iterable[Group], gpus: Mapping[str, Gpu]) -> Iterator[tuple[Recipe, Group]]:
    for group in groups:
        family = family_of(group.batch.operation, group.batch.dtype)
        if family is not None and group.gpu in gpus and RECIPES[family.name].serves(group):
            yield RECIPES[family.name], group


def _long_enough(recipe: Recipe, group: Group) -> Group:
    return group.take(group.seconds >= recipe.scored_from(group))


def _called(models: UtilisationModels, recipe: Recipe, group: Group, launch: Array, gpu: Gpu) -> Array:
    """Errors of whole calls: the launch that was taken off is put back on both sides."""
    called = group.seconds + launch
    error: Array = np.abs((models.estimate(group.batch, [gpu]).seconds[0] + launch) / called - 1)
    return error[called >= recipe.scored_from(group)]


def _score(
    models: UtilisationModels,
    groups: Sequence[Group],
    gpu: Gpu,
    baselines: Mapping[str, BaselineError],
    calls: Sequence[Array],
) -> Score:
    """Score of the rows of one operation and dtype on one GPU."""
    operation, dtype = groups[0].batch.operation, groups[0].batch.dtype
    error, inside = np.concatenate([_compare(models, group, gpu) for group in groups], axis=1)
    return Score(
        operation=operation,
        dtype=dtype,
        gpu=gpu.name,
        own_weights=models.has_own_weights(gpu.name, operation, dtype),
        rows=len(error),
        mean=float(np.abs(error).mean()),
        median=float(np.median(np.abs(error))),
        ninetieth=float(np.quantile(np.abs(error), 0.9)),
        bias=float(error.mean()),
        coverage=float(inside.mean()),
        called=float(np.concatenate(calls).mean()) if calls else None,
        baselines=baselines,
    )


def _compare(models: UtilisationModels, group: Group, gpu: Gpu) -> Array:
    """Relative error, and 1 inside the interval; shape (2, rows)."""
    estimate = models.estimate(group.batch, [gpu])
    inside = (estimate.low_seconds[0] <= group.seconds) & (group.seconds <= estimate.high_seconds[0])
    return np.stack([estimate.seconds[0] / group.seconds - 1, inside.astype(np.float64)])


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
    "calls: mean %",
    *BASELINES,
)


def score_cells(score: Score) -> tuple[str, ...]:
    """One row of the table, in the order of `HEADINGS`."""
    shares = (
        score.median,
        score.mean,
        score.ninetieth,
        score.bias,
        score.coverage,
    )
    weights = "own" if score.own_weights else "base"
    beside = (score.baselines.get(name) for name in BASELINES)
    return (
        score.operation,
        score.dtype,
        score.gpu,
        weights,
        str(score.rows),
        *(f"{100 * share:.1f}" for share in shares),
        "" if score.called is None else f"{100 * score.called:.1f}",
        *("" if error is None else f"{100 * error.median:.1f} / {100 * error.mean:.1f}" for error in beside),
    )


BESIDE = (
    "Calls: where a launch was taken off the times, the error of prediction and launch over the whole calls. "
    "Beside them, simpler predictors on the same rows: median / mean %. The ratios take the time of the same problem "
    "on another GPU, times the ratio of peak FLOP/s or of memory bandwidth, over all such pairs; empty where no other "
    "GPU measured it. The raw network maps shapes to latency, as Habitat's do, but is smaller; empty where none is."
)
"""What the last columns are."""


def score_table(scores: Sequence[Score]) -> Table:
    """The scores for the terminal."""
    table = Table(title="Errors on held-out problems", caption=BESIDE, box=box.SIMPLE)
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
