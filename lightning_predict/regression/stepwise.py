"""Stepwise selection of features for a linear regression: forward and backward, after Draper and Smith.

In each round, the feature with the highest partial correlation with the target enters the model, if its t-test is
significant. Then the least significant feature leaves the model, if its t-test is not significant any more (Draper and
Smith, Applied Regression Analysis, chapter 15). `StepwiseRegression` is a scikit-learn estimator. Example::

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(50, 3))
    >>> y = 2 * x[:, 1] + 5 + 0.01 * np.random.default_rng(1).normal(size=50)
    >>> StepwiseRegression().fit(x, y).selected_.tolist()
    [1]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from lightning_predict.base.errors import InvalidArgumentError, MissingDependencyError
from lightning_predict.kernels.operations import Array, IndexArray

try:
    from scipy import stats
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise MissingDependencyError(
        "Regressions on past runs need scikit-learn and SciPy, which are not installed: "
        "pip install lightning-predict[fitting]"
    ) from error


COLLINEAR: Final = 1e-10
"""A feature is collinear with other features if they leave less than this share of its sum of squares unexplained."""

EXACT: Final = 1e-20
"""The fit counts as exact if the residual sum of squares is below this share of the target's sum of squares."""


class StepwiseRegression(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Linear regression with an intercept, on features that t-tests select.

    Args:
        p_enter: A feature enters if the p-value of its t-test is below this value.
        p_remove: A feature leaves if the p-value of its t-test is above this value; at least `p_enter`.
        max_rounds: Maximum number of rounds.
        max_features: Maximum number of features; None for no limit.
        non_negative: Indices of features whose coefficient must be positive; otherwise, the feature leaves for good.
        non_negative_intercept: Whether to fit without an intercept if the intercept would be negative.

    Attributes:
        selected_: Indices of the features in the model, in the order in which they entered, shape (selected,).
        residual_variance_: Weighted residual sum of squares over the degrees of freedom; NaN without any.
        unscaled_covariance_: Inverse of XᵀWX, where the columns of X are a constant and the selected features.
    """

    def __init__(
        self,
        *,
        p_enter: float = 0.05,
        p_remove: float = 0.1,
        max_rounds: int = 100,
        max_features: int | None = None,
        non_negative: Sequence[int] = (),
        non_negative_intercept: bool = False,
    ) -> None:
        self.p_enter = p_enter
        self.p_remove = p_remove
        self.max_rounds = max_rounds
        self.max_features = max_features
        self.non_negative = non_negative
        self.non_negative_intercept = non_negative_intercept

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> StepwiseRegression:  # noqa: N803  # scikit-learn's name
        """Select features, and fit their coefficients. A weight multiplies a row's squared residual.

        Raises:
            InvalidArgumentError: The probabilities or the number of rounds are impossible.
            ValueError: scikit-learn rejects the shapes or values.
        """
        self._check_options()
        features, target = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        root = np.sqrt(_weights(sample_weight, len(features)))  # (rows,)
        kept = root > 0
        design = np.column_stack([np.ones(len(features)), features])[kept] * root[kept, None]
        weighted = np.asarray(target, dtype=np.float64)[kept] * root[kept]
        selected: list[int] = []
        barred: set[int] = set()
        rounds = 0
        for rounds in range(1, self.max_rounds + 1):  # noqa: B007  # kept as n_iter_
            before = list(selected)
            is_full = self.max_features is not None and len(selected) >= self.max_features
            if not is_full:
                selected += _entering(design, weighted, selected, barred, self.non_negative, self.p_enter)
            wrong = _of_wrong_sign(design, weighted, selected, self.non_negative)
            barred |= set(wrong)
            leaving = wrong or _leaving(design, weighted, selected, self.p_remove)
            selected = [index for index in selected if index not in leaving]
            if selected == before:
                break
        self.n_iter_ = rounds
        return self._finish(design, weighted, selected)

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return predicted targets, shape (rows,)."""
        check_is_fitted(self)
        features = validate_data(self, X, dtype=np.float64, reset=False)
        predicted: Array = features @ self.coef_ + self.intercept_
        return predicted

    def _finish(self, design: Array, target: Array, selected: list[int]) -> StepwiseRegression:
        used = design[:, [0, *(index + 1 for index in selected)]]
        solution, residual, inverse = _least_squares(used, target)
        if self.non_negative_intercept and solution[0] < 0 and selected:
            through_origin = _least_squares(used[:, 1:], target)
            solution = np.concatenate([[0.0], through_origin[0]])
            residual, inverse = through_origin[1], np.pad(through_origin[2], ((1, 0), (1, 0)))
        self.selected_: IndexArray = np.array(selected, dtype=np.intp)
        self.coef_: Array = np.zeros(design.shape[1] - 1)
        self.coef_[self.selected_] = solution[1:]
        self.intercept_ = float(solution[0])
        self.degrees_of_freedom_ = len(target) - used.shape[1]
        left = float(residual @ residual)
        self.residual_variance_ = left / self.degrees_of_freedom_ if self.degrees_of_freedom_ > 0 else float("nan")
        self.unscaled_covariance_: Array = inverse
        return self

    def _check_options(self) -> None:
        if not 0 < self.p_enter <= self.p_remove < 1:
            raise InvalidArgumentError(
                f"p_enter={self.p_enter!r} and p_remove={self.p_remove!r}; expected 0 < p_enter <= p_remove < 1, as "
                "what enters could leave at once otherwise, and enter again."
            )
        if self.max_rounds < 1:
            raise InvalidArgumentError(f"max_rounds={self.max_rounds!r}; expected at least 1.")
        if self.max_features is not None and self.max_features < 0:
            raise InvalidArgumentError(f"max_features={self.max_features!r}; expected at least 0.")


def _weights(given: Any, rows: int) -> Array:
    weights = np.ones(rows) if given is None else np.asarray(given, dtype=np.float64)
    weights = np.full(rows, float(weights)) if weights.ndim == 0 else weights
    if weights.shape != (rows,) or not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(f"sample_weight has shape {weights.shape}; expected {rows} numbers of at least 0.")
    if not weights.any():
        raise ValueError("All of sample_weight is zero; expected at least one above 0.")
    return weights


def _entering(
    design: Array, target: Array, selected: list[int], barred: set[int], non_negative: Sequence[int], p_enter: float
) -> list[int]:
    """Return the feature with the highest partial correlation with the target, if significant; otherwise no feature.

    Let z be the part of a feature that is orthogonal to the model, and r the residuals. Adding z reduces the residual
    sum of squares by (z·r)² / z·z, and the coefficient has the sign of z·r.
    """
    basis, _ = np.linalg.qr(design[:, [0, *(index + 1 for index in selected)]])  # (rows, selected + 1)
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
    solution, _, _ = _least_squares(design[:, [0, *(index + 1 for index in selected)]], target)
    return [index for index, value in zip(selected, solution[1:], strict=True) if index in bound and value <= 0]


def _leaving(design: Array, target: Array, selected: list[int], p_remove: float) -> list[int]:
    """Return the least significant feature of the model, if it is not significant; otherwise no feature."""
    freedom = len(target) - len(selected) - 1
    if not selected or freedom < 1:
        return []
    solution, residual, inverse = _least_squares(design[:, [0, *(index + 1 for index in selected)]], target)
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
