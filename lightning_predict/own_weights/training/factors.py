"""Correction factors for operations without a tuned network: measured over predicted time, per operation and dtype.

About a dozen shapes show whether predictions (a formula, a related operation, a roofline) are too high or too low on a
GPU, but are too few to train a network. The factor is the weighted median ratio, shrunk towards 1 if there are few
rows. A factor is used only if it lowers the errors of rows that it was not computed from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from lightning_predict.base.interval import CONFIDENCE
from lightning_predict.base.units import MICROSECOND
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.operations import Array, OperationShape
from lightning_predict.kernels.timing import KernelModels, predict_operation_times
from lightning_predict.own_weights.training.tables import Group, split_rows
from lightning_predict.uncertainty import MEASURED_SPREAD
from lightning_predict.weights.records import MeasuredFactor

MIN_FACTOR_ROWS: Final = 6  # Minimum number of rows for a factor, without held-out rows
LONG_SECONDS: Final = 50 * MICROSECOND  # Shorter rows have a smaller weight, in proportion: they show latency
MIN_GAIN: Final = 0.1  # A factor must lower the mean error of rows that it was not computed from by at least this share


def measured_factors(
    groups: Iterable[Group], gpu: Gpu, models: KernelModels | None, *, seed: int
) -> dict[str, MeasuredFactor]:
    """Return the factors of groups with enough rows, by "operation/dtype"."""
    factors = {}
    for group in groups:
        if is_enough_for_a_factor(group, seed=seed):
            used = group.take(~split_rows(group.batch.columns, seed=seed).held_out)
            residuals = log_residuals(used, gpu, models)
            if _holds_in_cross_validation(residuals, used):
                factors[f"{group.batch.operation}/{group.batch.dtype}"] = factor_of(residuals, used)
    return factors


def _holds_in_cross_validation(residuals: Array, group: Group) -> bool:
    """Return whether a factor from all other rows lowers the mean error of a row by `MIN_GAIN` (cross-validation)."""
    rows = np.arange(len(residuals))
    errors = [
        math.log(factor_of(residuals[rows != row], group.take(rows != row)).factor) - residuals[row] for row in rows
    ]
    weights = row_weights(group)
    return bool((weights * np.abs(errors)).sum() < (1 - MIN_GAIN) * (weights * np.abs(residuals)).sum())


def row_weights(group: Group) -> Array:
    """Return the weights of rows in errors: short rows count in proportion to their time."""
    weights: Array = np.minimum(group.seconds / LONG_SECONDS, 1.0)
    return weights


def is_enough_for_a_factor(group: Group, *, seed: int) -> bool:
    """Return whether a group has enough rows for a factor, without held-out rows."""
    return int((~split_rows(group.batch.columns, seed=seed).held_out).sum()) >= MIN_FACTOR_ROWS


def log_residuals(group: Group, gpu: Gpu, models: KernelModels | None) -> Array:
    """Return log(measured / predicted) of every row, shape (rows,)."""
    columns = np.stack(list(group.batch.columns.values()), axis=1)  # (rows, words)
    shapes = [OperationShape(group.batch.operation, group.batch.dtype, tuple(row)) for row in columns.tolist()]
    residuals: Array = np.log(group.seconds) - np.log(predict_operation_times(shapes, [gpu], models).seconds[0])
    return residuals


def factor_of(residuals: Array, group: Group) -> MeasuredFactor:
    """Return the factor for the residuals of a group's rows."""
    weights = row_weights(group)
    count = len(residuals)
    median = (_weighted_quantile(residuals, weights, 0.5) - _weighted_quantile(-residuals, weights, 0.5)) / 2
    middle = median * count / (count + 1)  # as with one more row without an error
    half_width = conformal_quantile(np.abs(residuals - middle), weights)
    return MeasuredFactor(factor=math.exp(middle), half_width=max(half_width, math.log(MEASURED_SPREAD)), rows=count)


def conformal_quantile(errors: Array, weights: Array) -> float:
    """Return the half width of an interval that holds `CONFIDENCE` of weighted errors.

    The split-conformal correction assumes one additional row with an infinite error.
    """
    return _weighted_quantile(errors, weights, min(CONFIDENCE * (1 + 1 / len(errors)), 1.0))


def _weighted_quantile(values: Array, weights: Array, level: float) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    reached = int(np.searchsorted(total, level * total[-1] * (1 - 1e-9)))
    return float(values[order][min(reached, len(values) - 1)])
