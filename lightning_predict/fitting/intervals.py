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
"""Rows below which a 90 % quantile would rest on six of them: nothing is learnt from so few alone."""

FEWEST_GROUP_ROWS: Final = 5
"""Calibration rows of an operation on a GPU below which they are left out."""


def interval_of(
    tested: Mapping[str, tuple[NetworkWeights, Sequence[Group]]], recipe: Recipe, gpus: Mapping[str, Gpu], seed: int
) -> Mapping[str, float]:
    """Half widths in log(seconds), by "operation/dtype" and "*" for the widest of them; every GPU counts the same.

    An operation is not known better on new problems than on those that were fitted to, and those are ten times as
    many: where few rows calibrate it and happen to be easy ones, the width of the fitted rows stands.

    Args:
        tested: By GPU, the network and the measurements there.
        recipe: The family's recipe.
        gpus: GPUs by name.
        seed: Seed of the split.
    """
    calibration: dict[str, list[Array]] = {}
    fitted: dict[str, list[Array]] = {}
    for network, groups in tested.values():
        for key, (calibrating, fitting) in _errors_by_operation(network, groups, recipe, gpus, seed).items():
            if len(calibrating) >= FEWEST_GROUP_ROWS:
                calibration.setdefault(key, []).append(calibrating)
                fitted.setdefault(key, []).append(fitting)
    if not calibration:
        return {"*": UNMEASURED_HALF_WIDTH}
    widths = {key: max(_half_width(parts), _half_width(fitted[key])) for key, parts in calibration.items()}
    return {**widths, "*": max(widths.values())}


def _errors_by_operation(
    network: NetworkWeights, groups: Sequence[Group], recipe: Recipe, gpus: Mapping[str, Gpu], seed: int
) -> Mapping[str, tuple[Array, Array]]:
    """|log(predicted / measured)| of calibration rows and of fitted rows, by "operation/dtype"."""
    found: dict[str, list[tuple[Array, Array]]] = {}
    for group in groups:
        split = split_rows(group.batch.columns, seed=seed)
        error = np.abs(log_errors(recipe.family, network, group, gpus[group.gpu]))
        shows_device = group.seconds >= recipe.scored_from(group)
        parts = error[split.calibration & shows_device], error[split.fitted & shows_device]
        found.setdefault(f"{group.batch.operation}/{group.batch.dtype}", []).append(parts)
    return {
        key: (np.concatenate([one for one, _ in parts]), np.concatenate([other for _, other in parts]))
        for key, parts in found.items()
    }


def _half_width(errors: Sequence[Array]) -> float:
    """The conformal quantile of one array a GPU, each of the same weight in all; 0 for no errors."""
    joined = np.concatenate(errors)
    if not len(joined):
        return 0.0
    return weighted_quantile(joined, np.concatenate([np.full(len(part), 1 / max(len(part), 1)) for part in errors]))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenError:
    """Errors on held-out rows of one (operation, dtype, GPU) by a base that never saw the GPU nor its like.

    Attributes:
        operation: Operation.
        dtype: dtype.
        gpu: GPU.
        rows: Held-out rows.
        median: Median of |predicted / measured - 1|.
        mean: Its mean.
        coverage: Share of the rows inside the base's interval.
    """

    operation: str
    dtype: str
    gpu: str
    rows: int
    median: float
    mean: float
    coverage: float


def unseen_errors(
    tested: Mapping[str, tuple[NetworkWeights, Sequence[Group]]],
    recipe: Recipe,
    gpus: Mapping[str, Gpu],
    seed: int,
    interval: Mapping[str, float],
) -> tuple[UnseenError, ...]:
    """Errors of each network on the held-out rows of the GPU that it is tested on.

    Args:
        tested: By GPU, a network that never saw it and the measurements there.
        recipe: The family's recipe.
        gpus: GPUs by name.
        seed: Seed of the split.
        interval: Half widths of the base, by "operation/dtype" and "*".
    """
    found: dict[tuple[str, str, str], list[Array]] = {}
    for network, groups in tested.values():
        for group in groups:
            mask = split_rows(group.batch.columns, seed=seed).held_out
            mask &= group.seconds >= recipe.scored_from(group)
            if mask.any():
                error = log_errors(recipe.family, network, group.take(mask), gpus[group.gpu])
                found.setdefault((group.batch.operation, group.batch.dtype, group.gpu), []).append(error)
    joined = {key: np.concatenate(parts) for key, parts in sorted(found.items())}
    return tuple(_unseen_error(key, error, interval) for key, error in joined.items())


def _unseen_error(key: tuple[str, str, str], log_error: Array, interval: Mapping[str, float]) -> UnseenError:
    operation, dtype, gpu = key
    error = np.abs(np.expm1(log_error))
    width = interval.get(f"{operation}/{dtype}", interval["*"])
    return UnseenError(
        operation=operation,
        dtype=dtype,
        gpu=gpu,
        rows=len(error),
        median=float(np.median(error)),
        mean=float(error.mean()),
        coverage=float((np.abs(log_error) <= width).mean()),
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
