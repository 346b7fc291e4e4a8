"""Extrapolation along the four axes, on runs made from known coefficients."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.accuracy.regressions import extrapolation_score, split_beyond
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.regression.end_to_end import RegressionOptions
from lightning_predict.regression.runs import PastRun, RunSetting, Variable


def run(seconds: Callable[[RunSetting], float], **setting: float) -> PastRun:
    given = RunSetting(**({"iterations": 100, "batch_size": 32, "flops_per_second": 8e12} | setting))  # type: ignore[arg-type]
    return PastRun(model="net", setting=given, seconds=seconds(given) * 100)


def power(setting: RunSetting) -> float:
    return setting.value("flops_per_second") or 0.0


def in_batch_size(setting: RunSetting) -> float:
    return 0.02 + 0.004 * setting.batch_size


def in_gpus(setting: RunSetting) -> float:
    """A ring's all-reduce: (n - 1) / n of the gradients, twice."""
    return 0.1 + 0.03 * (1 - 1 / setting.num_gpus)


def in_power(setting: RunSetting) -> float:
    return 0.01 + 5e11 / power(setting)


def in_depth(setting: RunSetting) -> float:
    """A stem, and inner modules, each for every sample."""
    return 0.001 * setting.batch_size + 0.0005 * setting.batch_size * (setting.inner_modules or 0)


SWEEPS: dict[Variable, tuple[list[PastRun], float]] = {
    "batch_size": ([run(in_batch_size, batch_size=size) for size in (4, 8, 16, 32, 64, 128, 256)], 32),
    "num_gpus": ([run(in_gpus, num_gpus=count) for count in (1, 2, 3, 4, 5, 6, 8, 16)], 6),
    "flops_per_second": ([run(in_power, flops_per_second=t * 1e12) for t in (4, 6, 8, 10, 14, 20, 60)], 10e12),
    "inner_modules": (
        [
            run(in_depth, inner_modules=depth, batch_size=size)
            for depth, size in product((1, 2, 3, 4, 6, 8, 16), (8, 32))
        ],
        4,
    ),
}


@pytest.mark.parametrize("variable", SWEEPS)
def test_each_axis_is_extrapolated_where_the_terms_hold(variable: Variable) -> None:
    runs, limit = SWEEPS[variable]
    score = extrapolation_score(runs, variable, limit=limit)
    assert score.fitted == sum((one.setting.value(variable) or 0) <= limit for one in runs)
    assert score.fitted + len(score.errors) == len(runs)
    assert score.mean_error == pytest.approx(0, abs=1e-6)


@settings(max_examples=25)
@given(constant=st.floats(1e-3, 1e3), slope=st.floats(1e-3, 1e3), largest=st.integers(65, 10_000))
def test_a_line_is_extrapolated_exactly(constant: float, slope: float, largest: int) -> None:
    runs = [
        run(lambda one: constant + slope * one.batch_size, batch_size=size) for size in (4, 8, 16, 24, 32, 64, largest)
    ]
    assert extrapolation_score(runs, "batch_size", limit=64).mean_error < 1e-6


def test_errors_are_those_of_the_line_by_hand() -> None:
    # Through t = b² at 1, 2 and 3 the least-squares line is -10/3 + 4b: 12.667 where 16 was measured at b = 4.
    runs = [run(lambda setting: setting.batch_size**2, batch_size=size) for size in (1, 2, 3, 4)]
    options = RegressionOptions(inverses=False, relative=False, p_enter=0.5, p_remove=0.5, costs_add_up=False)
    score = extrapolation_score(runs, "batch_size", limit=3, options=options)
    assert score.errors == pytest.approx(((-10 / 3 + 16) / 16 - 1,))
    assert score.mean_error == pytest.approx(1 - (16 - 10 / 3) / 16)
    several = replace(score, errors=(0.1, -0.2, 0.9))
    assert several.mean_error == pytest.approx(0.4)
    assert several.median_error == 0.2


def test_a_regression_without_a_time_misses_all_of_it() -> None:
    runs = [run(lambda setting: max(1 - 0.1 * setting.batch_size, 0.1), batch_size=size) for size in (1, 2, 3, 4, 20)]
    score = extrapolation_score(
        runs, "batch_size", limit=4, options=RegressionOptions(inverses=False, costs_add_up=False)
    )
    assert score.errors == (-1.0,)
    assert score.inside is None


def test_sweeps_that_cannot_be_split() -> None:
    runs = SWEEPS["batch_size"][0]
    words = "2 runs have a batch size of up to 8 and 5 a larger one; expected at least 3 to fit and 1 to predict."
    with pytest.raises(InvalidArgumentError, match=f"^{re.escape(words)}$"):
        split_beyond(runs, "batch_size", 8)
    with pytest.raises(InvalidArgumentError, match=r"^7 runs have a batch size of up to 512 and 0 a larger one"):
        split_beyond(runs, "batch_size", 512)
    with pytest.raises(InvalidArgumentError, match=r"^7 of 7 runs do not say their inner modules \(inner_modules\)\.$"):
        split_beyond(runs, "inner_modules", 2)
