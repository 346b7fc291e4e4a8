"""Widths of whole steps' intervals, fitted to made-up cases."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from benchmarks.training.step_spread import StepCase, effect_deviations, fit_spread
from lightning_predict.base.interval import Interval

GPUS = ("T4", "L4", "A40", "L40S", "RTX-3090", "V100-SXM2-16GB", "A100-SXM-40GB", "H100-SXM-80GB")


def normal(count: int) -> list[float]:
    """Values of a standard normal distribution, one in the middle of each of so many equal parts."""
    return [NormalDist().inv_cdf((number + 0.5) / count) for number in range(count)]


def cases(*, of_gpus: float, of_rest: float, table: str = "pages") -> list[StepCase]:
    """Steps whose log(measured / predicted) is an effect of the GPU and a remainder."""
    effects, rest = normal(len(GPUS)), normal(20)
    return [
        StepCase(
            table=table,
            source="a page",
            gpu=gpu,
            model="all",
            measured_seconds=math.exp(of_gpus * effect + of_rest * other),
            predicted=Interval(0.9, 1.0, 1 / 0.9),
            shares={"products/16-bit": 1.0},
        )
        for gpu, effect in zip(GPUS, effects, strict=True)
        for other in rest
    ]


def test_deviations_of_gpus_and_rest_are_recovered() -> None:
    found = effect_deviations(cases(of_gpus=0.1, of_rest=0.05))
    assert found["gpu"] == pytest.approx(0.1, rel=0.15)  # eight GPUs have a deviation of 0.094 of 0.1
    assert found["rest"] == pytest.approx(0.05, rel=0.1)


def test_spread_holds_nine_of_ten_cases() -> None:
    made = cases(of_gpus=0.02, of_rest=0.1)
    spread = fit_spread(made)
    low, high = spread.widened(0.9, 1 / 0.9)
    held = sum(low <= case.measured_seconds <= high for case in made) / len(made)
    assert 0.89 <= held <= 0.95
