"""How wide the intervals must be: split-conformal half widths in log(seconds).

The half width is the 90 % quantile of |log(predicted / measured)| on the calibration rows, which no fit saw, so that
90 % of new problems of the same kind fall inside (Vovk et al., Algorithmic Learning in a Random World, 2005).
Example::

    widths = interval_of({"T4": (network, groups)}, recipe, gpus, seed=0)
    widths["linear/float32"], widths["*"]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lightning_predict.fitting.recipes import Recipe
from lightning_predict.fitting.splits import split_rows
from lightning_predict.fitting.tables import Group
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.features import Family, reference_seconds
from lightning_predict.kernels.operations import Array
from lightning_predict.kernels.utilisation import log_utilisation_of
from lightning_predict.weights.records import NetworkWeights

INTERVAL_SHARE: Final = 0.9
"""Share of new problems that the interval must hold."""

UNMEASURED_HALF_WIDTH: Final = math.log(3.0)
"""Half width where nothing was held out: "within a factor of three", an assumption."""

FEWEST_INTERVAL_ROWS: Final = 60
"""Calibration rows below which an operation's own 90 % quantile would rest on six of them."""

FEWEST_GROUP_ROWS: Final = 5
"""Calibration rows below which a group is left out."""


def interval_of(
    tested: Mapping[str, tuple[NetworkWeights, Sequence[Group]]], recipe: Recipe, gpus: Mapping[str, Gpu], seed: int
) -> Mapping[str, float]:
    """Half widths in log(seconds), by "operation/dtype" and "*" for the widest of them; every GPU counts the same.

    An operation with few calibration rows takes the width of the whole family where that is wider.
    """
    errors: dict[str, list[Array]] = {}
    weights: dict[str, list[Array]] = {}
    for network, groups in tested.values():
        for group in groups:
            mask = split_rows(group.batch.columns, seed=seed).calibration
            mask &= group.seconds >= recipe.scored_from(group)
            if mask.sum() < FEWEST_GROUP_ROWS:
                continue
            key = f"{group.batch.operation}/{group.batch.dtype}"
            error = np.abs(log_errors(recipe.family, network, group.take(mask), gpus[group.gpu]))
            errors.setdefault(key, []).append(error)
            weights.setdefault(key, []).append(np.full(len(error), 1 / len(error)))
    if not errors:
        return {"*": UNMEASURED_HALF_WIDTH}
    pooled = weighted_quantile(
        np.concatenate([error for parts in errors.values() for error in parts]),
        np.concatenate([weight for parts in weights.values() for weight in parts]),
    )
    widths = {
        key: weighted_quantile(np.concatenate(parts), np.concatenate(weights[key])) for key, parts in errors.items()
    }
    few = [key for key, parts in errors.items() if sum(map(len, parts)) < FEWEST_INTERVAL_ROWS]
    widths |= {key: max(widths[key], pooled) for key in few}
    return {**widths, "*": max(widths.values())}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenError:
    """Errors on held-out rows of one (operation, dtype, GPU) by a base that never saw the GPU nor its like."""

    operation: str
    dtype: str
    gpu: str
    rows: int
    median: float
    mean: float


def unseen_errors(
    tested: Mapping[str, tuple[NetworkWeights, Sequence[Group]]], recipe: Recipe, gpus: Mapping[str, Gpu], seed: int
) -> tuple[UnseenError, ...]:
    """Errors of each network on the held-out rows of the GPU that it is tested on; |predicted / measured - 1|."""
    found: dict[tuple[str, str, str], list[Array]] = {}
    for network, groups in tested.values():
        for group in groups:
            mask = split_rows(group.batch.columns, seed=seed).held_out
            mask &= group.seconds >= recipe.scored_from(group)
            if mask.any():
                error = np.abs(np.expm1(log_errors(recipe.family, network, group.take(mask), gpus[group.gpu])))
                found.setdefault((group.batch.operation, group.batch.dtype, group.gpu), []).append(error)
    joined = {key: np.concatenate(parts) for key, parts in sorted(found.items())}
    return tuple(
        UnseenError(
            operation=operation,
            dtype=dtype,
            gpu=gpu,
            rows=len(error),
            median=float(np.median(error)),
            mean=float(error.mean()),
        )
        for (operation, dtype, gpu), error in joined.items()
    )


def weighted_quantile(errors: Array, weights: Array) -> float:
    """The conformal quantile of weighted errors, at least 0.001."""
    order = np.argsort(errors)
    total = np.cumsum(weights[order])
    # The split-conformal correction: one more row, at infinity, counts as an error.
    level = min(INTERVAL_SHARE * (1 + 1 / len(errors)), 1.0) * total[-1]
    reached = np.searchsorted(total, level * (1 - 1e-9))  # rounding must not move it one row on
    return float(max(errors[order][min(reached, len(errors) - 1)], 1e-3))


def log_errors(family: Family, network: NetworkWeights, group: Group, gpu: Gpu) -> Array:
    """log(predicted / measured) of every row of a group."""
    log_utilisation = log_utilisation_of(network, family.feature_matrix(group.batch, [gpu]))[0]
    error: Array = np.log(reference_seconds(group.batch, [gpu])[0]) - log_utilisation - np.log(group.seconds)
    return error
