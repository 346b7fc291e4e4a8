"""Stepwise selection of features for a linear regression: forward and backward, after Draper and Smith.

In each round, the feature with the highest partial correlation with the target enters the model, if its t-test is
significant. Then the least significant feature leaves the model, if its t-test is not significant any more (Draper and
Smith, Applied Regression Analysis, chapter 15). Example::

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(50, 3))
    >>> y = 2 * x[:, 1] + 5 + 0.01 * np.random.default_rng(1).normal(size=50)
    >>> fit_stepwise(x, y).selected
    (1,)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lightning_predict.base.errors import InvalidArgumentError, MissingDependencyError
from lightning_predict.kernels.operations import Array

try:
    from scipy import stats
except ImportError as error:
    raise MissingDependencyError(
        "Regressions on past runs need SciPy, which is not installed: pip install lightning-predict[fitting]"
    ) from error


COLLINEAR: Final = 1e-10  # A feature is collinear if others leave less than this share of its sum of squares
EXACT: Final = 1e-20  # The fit is exact if the residual sum of squares is below this share of the target's

MAX_ROUNDS: Final = 100


@dataclass(frozen=True, slots=True, eq=False)
class StepwiseFit:
    """Linear regression on the selected features."""

    selected: tuple[int, ...]  # Indices of the features in the model, in the order in which they entered
    intercept: float
    coefficients: Array  # Coefficients of the selected features, (selected,)
    degrees_of_freedom: int  # Number of rows minus number of coefficients and intercept
    residual_variance: float  # Weighted residual sum of squares over the degrees of freedom; NaN without any
    covariance: Array  # Inverse of XᵀWX, where the columns of X are a constant and the selected features

    def predict(self, features: Array) -> Array:
        """Return predicted targets, shape (rows,)."""
        predicted: Array = features[:, list(self.selected)] @ self.coefficients + self.intercept
        return predicted


def fit_stepwise(
    features: Array,
    target: Array,
    weights: Array | None = None,
    *,
    p_enter: float = 0.05,
    p_remove: float = 0.1,
    max_features: int | None = None,
    non_negative: Sequence[int] = (),
    non_negative_intercept: bool = False,
) -> StepwiseFit:
    """Select features, and fit their coefficients.

    Args:
        features: Features, (rows, features).
        target: Target of each row, (rows,).
        weights: Weights of the squared residuals, (rows,); None for equal weights.
        p_enter: A feature enters if the p-value of its t-test is below this value.
        p_remove: A feature leaves if the p-value of its t-test is above this value; at least `p_enter`.
        max_features: Maximum number of features; None for no limit.
        non_negative: Indices of features whose coefficient must be positive; otherwise, the feature leaves for good.
        non_negative_intercept: Whether to fit without an intercept if the intercept would be negative.
    """
    if not 0 < p_enter <= p_remove < 1:
        raise InvalidArgumentError(
            f"p_enter={p_enter!r} and p_remove={p_remove!r}; expected 0 < p_enter <= p_remove < 1, because features "
            "that enter could otherwise leave at once."
        )
    root = np.sqrt(np.ones(len(target)) if weights is None else weights)  # (rows,)
    kept = root > 0
    design = np.column_stack([np.ones(len(target)), features])[kept] * root[kept, None]
    weighted = target[kept] * root[kept]
    selected: list[int] = []
    barred: set[int] = set()
    for _ in range(MAX_ROUNDS):
        before = list(selected)
        if max_features is None or len(selected) < max_features:
            selected += _entering(design, weighted, selected, barred, non_negative, p_enter)
        wrong = _of_wrong_sign(design, weighted, selected, non_negative)
        barred |= set(wrong)
        leaving = wrong or _leaving(design, weighted, selected, p_remove)
        selected = [index for index in selected if index not in leaving]
        if selected == before:
            break
    used = _columns(design, selected)
    solution, residual, covariance = _least_squares(used, weighted)
    if non_negative_intercept and solution[0] < 0 and selected:
        slopes, residual, inverse = _least_squares(used[:, 1:], weighted)
        solution, covariance = np.concatenate([[0.0], slopes]), np.pad(inverse, ((1, 0), (1, 0)))
    freedom = len(weighted) - used.shape[1]
    variance = float(residual @ residual) / freedom if freedom > 0 else float("nan")
    return StepwiseFit(tuple(selected), float(solution[0]), solution[1:], freedom, variance, covariance)


def _columns(design: Array, selected: Sequence[int]) -> Array:
    """Return the constant and the selected features, (rows, selected + 1)."""
    return design[:, [0, *(index + 1 for index in selected)]]


def _entering(
    design: Array, target: Array, selected: list[int], barred: set[int], non_negative: Sequence[int], p_enter: float
) -> list[int]:
    """Return the feature with the highest partial correlation with the target, if significant; otherwise no feature.

    Let z be the part of a feature that is orthogonal to the model, and r the residuals. Adding z reduces the residual
    sum of squares by (z·r)² / z·z, and the coefficient has the sign of z·r.
    """
    basis, _ = np.linalg.qr(_columns(design, selected))  # (rows, selected + 1)
    residual = target - basis @ (basis.T @ target)
    parts = design[:, 1:] - basis @ (basis.T @ design[:, 1:])
    squares, whole, along = (parts**2).sum(axis=0), (design[:, 1:] ** 2).sum(axis=0), parts.T @ residual
    usable = squares > COLLINEAR * whole
    usable[[*selected, *barred]] = False
    usable[[index for index in non_negative if along[index] <= 0]] = False
    freedom = len(target) - len(selected) - 2
    left = float(residual @ residual)
    if freedom < 1 or not usable.any() or left <= EXACT * float(target @ target):
        return []
    explained = np.where(usable, along**2 / np.where(usable, squares, 1.0), -1.0)  # (features,)
    best = int(explained.argmax())
    remaining = max(left - explained[best], 0.0)
    t_value = np.inf if remaining == 0 else np.sqrt(explained[best] * freedom / remaining)
    return [best] if 2 * stats.t.sf(t_value, freedom) < p_enter else []


def _of_wrong_sign(design: Array, target: Array, selected: list[int], non_negative: Sequence[int]) -> list[int]:
    """Return the features of the model whose coefficient must be positive, but is not."""
    bound = set(selected) & set(non_negative)
    if not bound:
        return []
    solution, _, _ = _least_squares(_columns(design, selected), target)
    return [index for index, value in zip(selected, solution[1:], strict=True) if index in bound and value <= 0]


def _leaving(design: Array, target: Array, selected: list[int], p_remove: float) -> list[int]:
    """Return the least significant feature of the model, if it is not significant; otherwise no feature."""
    freedom = len(target) - len(selected) - 1
    if not selected or freedom < 1:
        return []
    solution, residual, inverse = _least_squares(_columns(design, selected), target)
    left = float(residual @ residual)
    if left <= EXACT * float(target @ target):
        return []
    errors = np.sqrt(left / freedom * np.diag(inverse)[1:])  # (selected,)
    t_values = np.abs(solution[1:]) / errors
    worst = int(t_values.argmin())
    return [selected[worst]] if 2 * stats.t.sf(t_values[worst], freedom) > p_remove else []


def _least_squares(design: Array, target: Array) -> tuple[Array, Array, Array]:
    """Return coefficients, residuals and the inverse of XᵀX, by QR decomposition."""
    basis, triangle = np.linalg.qr(design)
    inverse = np.linalg.inv(triangle)
    solution: Array = inverse @ (basis.T @ target)
    return solution, target - design @ solution, inverse @ inverse.T
