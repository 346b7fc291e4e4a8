"""Stepwise selection: known coefficients, the two thresholds, signs and weights."""

import re
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.kernels.operations import Array
from lightning_predict.regression.stepwise import fit_stepwise


def example(rows: int, noise: float, seed: int = 0) -> tuple[Array, Array]:
    """Targets 5 + 2 x1 - 3 x4, with six features that have no effect."""
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(rows, 8))
    return features, 5 + 2 * features[:, 1] - 3 * features[:, 4] + noise * draw.normal(size=rows)


def test_coefficients_are_exact_without_noise_and_ignore_rows_of_weight_zero() -> None:
    features, target = example(40, 0.0)
    fit = fit_stepwise(features, target)
    assert fit.selected == (4, 1)  # the one that explains more enters first
    assert fit.coefficients == pytest.approx([-3, 2])
    assert fit.intercept == pytest.approx(5)
    assert fit.predict(features) == pytest.approx(target)
    target[0] += 100.0
    weights = np.ones(40)
    weights[0] = 0.0
    fit = fit_stepwise(features, target, weights)
    assert fit.coefficients == pytest.approx([-3, 2])
    assert fit.degrees_of_freedom == 39 - 3


def test_coefficients_equal_least_squares_on_selected_features() -> None:
    features, target = example(60, 0.5)
    fit = fit_stepwise(features, target)
    assert {1, 4} <= set(fit.selected)
    design = np.column_stack([np.ones(60), features[:, list(fit.selected)]])
    plain, *_ = np.linalg.lstsq(design, target, rcond=None)
    assert [fit.intercept, *fit.coefficients] == pytest.approx(plain)


def test_single_feature_enters_by_the_t_test_of_its_correlation() -> None:
    # With one feature the t-test of the slope equals the t-test of the correlation, which SciPy computes.
    draw = np.random.default_rng(3)
    feature, target = draw.normal(size=20), draw.normal(size=20)
    p_value = stats.pearsonr(feature, target).pvalue
    for p_enter, enters in ((p_value * 1.001, True), (p_value * 0.999, False)):
        fit = fit_stepwise(feature[:, None], target, p_enter=p_enter, p_remove=max(0.9, p_enter))
        assert (len(fit.selected) == 1) is enters


def test_collinear_features_stay_out_and_explained_ones_leave() -> None:
    # s = a + b + a little explains y = a + b best at first; with a and b in the model it explains nothing more.
    draw = np.random.default_rng(0)
    a, b, error = draw.normal(size=(3, 100))
    target = a + b + 0.01 * draw.normal(size=100)
    features = np.column_stack([a + b + 0.3 * error, a, b])
    assert fit_stepwise(features, target, max_features=1).selected == (0,)
    assert sorted(fit_stepwise(features, target).selected) == [1, 2]
    features, target = example(40, 0.1)
    doubled = np.column_stack([features, 3 * features[:, 1] + 7, np.full(40, 2.0)])
    selected = fit_stepwise(doubled, target).selected
    assert len({1, 8} & set(selected)) == 1
    assert 9 not in selected


def test_features_that_enter_are_limited_in_number_and_by_sign() -> None:
    features, target = example(40, 0.0)  # 5 + 2 x1 - 3 x4
    for limit, selected in ((0, ()), (1, (4,)), (2, (4, 1))):
        assert fit_stepwise(features, target, max_features=limit).selected == selected
    fit = fit_stepwise(features, target, non_negative=range(8))
    assert 1 in fit.selected
    assert 4 not in fit.selected
    assert (fit.coefficients >= 0).all()
    assert fit_stepwise(features, target, non_negative=[1]).selected == (4, 1)


def test_non_negative_feature_that_turns_negative_leaves() -> None:
    # The first is nearly the sum of the others, and enters; next to both of them its coefficient is -1.
    a, b, error = np.random.default_rng(0).normal(size=(3, 200))
    total = a + b + 0.3 * error
    features = np.column_stack([total, a, b])
    target = 2 * a + 2 * b - total + 5 * a
    assert 0 not in fit_stepwise(features, target, non_negative=[0]).selected
    free = fit_stepwise(features, target)
    assert dict(zip(free.selected, free.coefficients, strict=True)) == pytest.approx({0: -1, 1: 7, 2: 2})


def test_negative_intercept_can_be_excluded_and_few_rows_give_the_mean() -> None:
    # Through (1, 1), (2, 4), (3, 9) the line is -10/3 + 4x; through the origin it has slope (1 + 8 + 27) / 14.
    x, y = np.array([[1.0], [2.0], [3.0]]), np.array([1.0, 4.0, 9.0])
    assert fit_stepwise(x, y, p_enter=0.5, p_remove=0.5).intercept == pytest.approx(-10 / 3)
    fit = fit_stepwise(x, y, p_enter=0.5, p_remove=0.5, non_negative_intercept=True)
    assert (fit.intercept, fit.coefficients.tolist()) == (0.0, [pytest.approx(36 / 14)])
    assert fit.covariance == pytest.approx(np.array([[0, 0], [0, 1 / 14]]))
    fit = fit_stepwise(np.array([[1.0], [2.0]]), np.array([1.0, 3.0]))
    assert fit.selected == ()
    assert fit.intercept == pytest.approx(2.0)


@pytest.mark.parametrize(("p_enter", "p_remove"), [(0.2, 0.1), (0.0, 0.1)])
def test_impossible_probabilities_are_refused(p_enter: float, p_remove: float) -> None:
    message = f"p_enter={p_enter} and p_remove={p_remove}; expected 0 < p_enter <= p_remove < 1"
    with pytest.raises(InvalidArgumentError, match=f"^{re.escape(message)}"):
        fit_stepwise(np.array([[1.0], [2.0]]), np.array([1.0, 2.0]), p_enter=p_enter, p_remove=p_remove)


def test_missing_scipy_error_names_the_extra() -> None:
    code = "import sys; sys.modules['scipy'] = None\nimport lightning_predict.regression.stepwise"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "lightning_predict.base.errors.MissingDependencyError: Regressions on past runs need SciPy, which is not "
        "installed: pip install lightning-predict[fitting]"
    )
