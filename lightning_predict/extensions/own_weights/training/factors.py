"""Factors of operations that no network learns: measured over predicted time, one number per operation and dtype.

About a dozen problems tell whether a prediction (a formula, a related operation, a roofline) is too long or too short
on a GPU, but are too few for a network. The factor is the weighted median, shrunk towards 1 by the number of rows. It
is left out unless it lowers the errors of rows that it was not taken from.
Example::

    found = measured_factors(groups, find_gpu("H200-SXM-141GB"), models, seed=0)
    found["gelu_backward/bfloat16"].factor
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from lightning_predict.extensions.own_weights.training.tables import Group, split_rows
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.operations import Array, OperationShape
from lightning_predict.kernels.timing import KernelModels, predict_operation_times
from lightning_predict.units import MICROSECOND
from lightning_predict.weights.records import MeasuredFactor

FACTOR_PROBLEMS: Final = 12
"""Number of problems to measure for a factor."""

MIN_FACTOR_ROWS: Final = 6
"""Minimum number of rows for a factor, without those that are held out."""

SHRINK_ROWS: Final = 1.0
"""The log factor of n rows is multiplied by n / (n + this)."""

LONG_SECONDS: Final = 50 * MICROSECOND
"""Shorter rows count less, in proportion: they measure the latency of a kernel, and steps spend little time in them."""

MIN_GAIN: Final = 0.1
"""Minimum share of the error that a factor has to remove from rows that it was not taken from."""

INTERVAL_SHARE: Final = 0.9
"""Share of the measurements inside an interval."""

MIN_HALF_WIDTH: Final = 0.02
"""Minimum half width of the interval in log(seconds): repeated timings scatter as much."""


def measured_factors(
    groups: Iterable[Group], gpu: Gpu, models: KernelModels | None, *, seed: int
) -> dict[str, MeasuredFactor]:
    """Return the factors of groups with enough rows, by "operation/dtype".

    Args:
        groups: Measurements on this GPU, one group per operation and dtype.
        gpu: The GPU.
        models: Models that predict without the factors.
        seed: Seed of the split; held-out rows are not used.
    """
    found = {}
    for group in groups:
        if is_enough_for_a_factor(group, seed=seed):
            used = group.take(~split_rows(group.batch.columns, seed=seed).held_out)
            residuals = log_residuals(used, gpu, models)
            if _recurs(residuals, used):
                found[f"{group.batch.operation}/{group.batch.dtype}"] = factor_of(residuals, used)
    return found


def _recurs(residuals: Array, group: Group) -> bool:
    """Return whether a factor from all other rows lowers the mean error of a row by `MIN_GAIN`."""
    rows = np.arange(len(residuals))
    errors = [
        math.log(factor_of(residuals[rows != row], group.take(rows != row)).factor) - residuals[row] for row in rows
    ]
    weights = _weights(group)
    return bool((weights * np.abs(errors)).sum() < (1 - MIN_GAIN) * (weights * np.abs(residuals)).sum())


def _weights(group: Group) -> Array:
    weights: Array = np.minimum(group.seconds / LONG_SECONDS, 1.0)
    return weights


def is_enough_for_a_factor(group: Group, *, seed: int) -> bool:
    """Return whether a group has enough rows without those that are held out."""
    return int((~split_rows(group.batch.columns, seed=seed).held_out).sum()) >= MIN_FACTOR_ROWS


def log_residuals(group: Group, gpu: Gpu, models: KernelModels | None) -> Array:
    """Return log(measured / predicted) of every row, shape (rows,)."""
    columns = np.stack(list(group.batch.columns.values()), axis=1)  # (rows, words)
    problems = [OperationShape(group.batch.operation, group.batch.dtype, tuple(row)) for row in columns.tolist()]
    residuals: Array = np.log(group.seconds) - np.log(predict_operation_times(problems, [gpu], models).seconds[0])
    return residuals


def factor_of(residuals: Array, group: Group) -> MeasuredFactor:
    """Return the factor from the residuals of a group's rows."""
    weights = _weights(group)
    count = len(residuals)
    median = (_weighted_quantile(residuals, weights, 0.5) - _weighted_quantile(-residuals, weights, 0.5)) / 2
    middle = median * count / (count + SHRINK_ROWS)
    level = min(INTERVAL_SHARE * (1 + 1 / count), 1.0)  # split-conformal: a further row at infinity is an error
    half_width = _weighted_quantile(np.abs(residuals - middle), weights, level)
    return MeasuredFactor(factor=math.exp(middle), half_width=max(half_width, MIN_HALF_WIDTH), rows=count)


def _weighted_quantile(values: Array, weights: Array, level: float) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    reached = int(np.searchsorted(total, level * total[-1] * (1 - 1e-9)))
    return float(values[order][min(reached, len(values) - 1)])
