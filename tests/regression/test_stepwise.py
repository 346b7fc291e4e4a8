"""Stepwise selection: known coefficients, scikit-learn's own checks, and the two thresholds."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.kernels.operations import Array
from lightning_predict.regression.stepwise import StepwiseRegression


def example(rows: int, noise: float, seed: int = 0) -> tuple[Array, Array]:
    """Targets 5 + 2 x1 - 3 x4, with features that have nothing to do with it."""
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(rows, 8))
    return features, 5 + 2 * features[:, 1] - 3 * features[:, 4] + noise * draw.normal(size=rows)


def test_without_noise_the_coefficients_are_found_exactly() -> None:
    features, target = example(40, 0.0)
    found = StepwiseRegression().fit(features, target)
    assert found.selected_.tolist() == [4, 1]  # the one that explains more enters first
    assert found.coef_ == pytest.approx([0, 2, 0, 0, -3, 0, 0, 0], abs=1e-12)
    assert found.intercept_ == pytest.approx(5)
    assert found.n_iter_ == 3  # two enter, and a third round changes nothing
    assert found.predict(features) == pytest.approx(target)


def test_the_coefficients_are_those_of_least_squares_on_the_selected_features() -> None:
    features, target = example(60, 0.5)
    found = StepwiseRegression().fit(features, target)
    plain = LinearRegression().fit(features[:, found.selected_], target)
    assert {1, 4} <= set(found.selected_.tolist())
    assert found.coef_[found.selected_] == pytest.approx(plain.coef_)
    assert found.intercept_ == pytest.approx(plain.intercept_)


def test_a_single_feature_enters_by_the_t_test_of_its_correlation() -> None:
    # With one feature the t-test of the slope equals the t-test of the correlation, which SciPy computes.
    draw = np.random.default_rng(3)
    feature, target = draw.normal(size=20), draw.normal(size=20)
    p_value = stats.pearsonr(feature, target).pvalue
    for p_enter, enters in ((p_value * 1.001, True), (p_value * 0.999, False)):
        found = StepwiseRegression(p_enter=p_enter, p_remove=max(0.9, p_enter)).fit(feature[:, None], target)
        assert (len(found.selected_) == 1) is enters


def test_a_feature_that_later_ones_make_needless_leaves() -> None:
    # s = a + b + a little explains y = a + b best at first; with a and b in the model it explains nothing more.
    draw = np.random.default_rng(0)
    a, b, error = draw.normal(size=(3, 100))
    target = a + b + 0.01 * draw.normal(size=100)
    features = np.column_stack([a + b + 0.3 * error, a, b])
    assert StepwiseRegression(max_rounds=1).fit(features, target).selected_.tolist() == [0]
    assert sorted(StepwiseRegression().fit(features, target).selected_.tolist()) == [1, 2]


def test_collinear_and_constant_features_do_not_enter() -> None:
    features, target = example(40, 0.1)
    doubled = np.column_stack([features, 3 * features[:, 1] + 7, np.full(40, 2.0)])
    found = StepwiseRegression().fit(doubled, target)
    assert len({1, 8} & set(found.selected_.tolist())) == 1
    assert 9 not in found.selected_


def test_noise_selects_about_as_often_as_the_threshold_says() -> None:
    # One feature, no relation: it enters in 5 % of the tables; 400 tables, four standard deviations of 1.1 %.
    draw = np.random.default_rng(0)
    entered = [
        len(StepwiseRegression().fit(draw.normal(size=(30, 1)), draw.normal(size=30)).selected_) for _ in range(400)
    ]
    assert np.mean(entered) == pytest.approx(0.05, abs=0.044)


def test_weights_decide_whose_errors_count() -> None:
    features, target = example(40, 0.0)
    target[0] += 100.0
    weights = np.ones(40)
    weights[0] = 0.0
    found = StepwiseRegression().fit(features, target, sample_weight=weights)
    assert found.coef_ == pytest.approx([0, 2, 0, 0, -3, 0, 0, 0], abs=1e-12)
    assert found.degrees_of_freedom_ == 39 - 3


@settings(max_examples=30)
@given(scale=st.floats(1e-6, 1e6), shift=st.floats(-10, 10), factor=st.floats(1e-3, 1e3))
def test_units_do_not_change_what_is_selected(scale: float, shift: float, factor: float) -> None:
    features, target = example(60, 0.5)
    one = StepwiseRegression().fit(features, target)
    other = StepwiseRegression().fit(features * scale, (target + shift) * factor)
    assert other.selected_.tolist() == one.selected_.tolist()
    assert other.coef_ * scale / factor == pytest.approx(one.coef_)


def test_no_more_features_than_asked() -> None:
    features, target = example(40, 0.0)
    for limit, selected in ((0, []), (1, [4]), (2, [4, 1])):
        assert StepwiseRegression(max_features=limit).fit(features, target).selected_.tolist() == selected


def test_features_that_must_not_be_negative_do_not_enter_below_0() -> None:
    features, target = example(40, 0.0)  # 5 + 2 x1 - 3 x4
    found = StepwiseRegression(non_negative=range(8)).fit(features, target)
    assert found.coef_[4] == 0
    assert (found.coef_ >= 0).all()
    assert 1 in found.selected_
    assert StepwiseRegression(non_negative=[1]).fit(features, target).selected_.tolist() == [4, 1]


def test_a_feature_whose_coefficient_turns_negative_leaves_for_good() -> None:
    # The first is nearly the sum of the others, and enters; next to both of them its coefficient is -1.
    draw = np.random.default_rng(0)
    a, b, error = draw.normal(size=(3, 200))
    total = a + b + 0.3 * error
    features = np.column_stack([total, a, b])
    target = 2 * a + 2 * b - total + 5 * a
    assert StepwiseRegression(max_rounds=1).fit(features, a + b).selected_.tolist() == [0]
    found = StepwiseRegression(non_negative=[0]).fit(features, target)
    assert 0 not in found.selected_
    assert StepwiseRegression().fit(features, target).coef_ == pytest.approx([-1, 7, 2])


def test_a_negative_intercept_can_be_refused() -> None:
    # Through (1, 1), (2, 4), (3, 9) the line is -10/3 + 4x; through the origin it has slope (1 + 8 + 27) / 14.
    x, y = [[1.0], [2.0], [3.0]], [1.0, 4.0, 9.0]
    assert StepwiseRegression(p_enter=0.5, p_remove=0.5).fit(x, y).intercept_ == pytest.approx(-10 / 3)
    found = StepwiseRegression(p_enter=0.5, p_remove=0.5, non_negative_intercept=True).fit(x, y)
    assert (found.intercept_, found.coef_.tolist()) == (0.0, [pytest.approx(36 / 14)])
    assert found.unscaled_covariance_ == pytest.approx(np.array([[0, 0], [0, 1 / 14]]))


def test_rows_too_few_for_a_t_test_give_the_mean() -> None:
    found = StepwiseRegression().fit([[1.0], [2.0]], [1.0, 3.0])
    assert found.selected_.tolist() == []
    assert found.intercept_ == pytest.approx(2.0)


def test_it_passes_the_checks_of_scikit_learn() -> None:
    failed = [
        result["check_name"]
        for result in check_estimator(StepwiseRegression(), on_fail=None, on_skip=None)
        if result["status"] == "failed"
    ]
    # Weights say how exact a row is, not how often it was seen: a row of weight 2 is not two rows for a t-test.
    assert failed == ["check_sample_weight_equivalence_on_dense_data"]


def test_it_works_in_a_pipeline_and_can_be_cloned() -> None:
    features, target = example(40, 0.1)
    pipeline = make_pipeline(StandardScaler(), StepwiseRegression(p_enter=0.01))
    assert pipeline.fit(features, target).score(features, target) > 0.99
    assert clone(pipeline)[-1].p_enter == 0.01


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"p_enter": 0.2, "p_remove": 0.1}, "p_enter=0.2 and p_remove=0.1; expected 0 < p_enter <= p_remove < 1"),
        ({"p_enter": 0.0}, "p_enter=0.0 and p_remove=0.1; expected 0 < p_enter <= p_remove < 1"),
        ({"max_rounds": 0}, "max_rounds=0; expected at least 1."),
        ({"max_features": -1}, "max_features=-1; expected at least 0."),
    ],
)
def test_options_that_cannot_be(options: dict[str, float], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{re.escape(words)}"):
        StepwiseRegression(**options).fit([[1.0], [2.0]], [1.0, 2.0])  # type: ignore[arg-type]


def test_weights_that_cannot_be() -> None:
    for weights in ([1.0], [1.0, -1.0], [1.0, float("nan")]):
        with pytest.raises(ValueError, match="expected 2 numbers of at least 0"):
            StepwiseRegression().fit([[1.0], [2.0]], [1.0, 2.0], sample_weight=weights)


@pytest.mark.parametrize("package", ["sklearn", "scipy"])
def test_without_the_extra_the_error_names_it(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None\nimport lightning_predict.regression.stepwise"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "lightning_predict.base.errors.MissingDependencyError: Regressions on past runs need scikit-learn and SciPy, "
        "which are not installed: pip install lightning-predict[fitting]"
    )
