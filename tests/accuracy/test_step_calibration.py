"""Factors, effects and spreads of whole steps that were made up, so that the truth is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.accuracy.step_calibration import (
    StepCase,
    corrected,
    corrected_left_out,
    fit_spread,
    fit_steps,
    spread_left_out,
    spread_out,
)
from lightning_predict.base.interval import Interval
from lightning_predict.uncertainty import StepSpread

GPUS, SOURCES, MODELS = (tuple(f"{name}{number}" for number in range(12)) for name in ("gpu", "source", "model"))


def case(gpu: str, source: str, model: str, *, log_ratio: float, products: float, width: float = 1.0) -> StepCase:
    return StepCase(
        table="made up",
        source=source,
        gpu=gpu,
        model=model,
        measured_seconds=math.exp(log_ratio),
        predicted=Interval(1 / width, 1.0, width),
        shares={"products": products, "memory": 1 - products},
    )


def cases(*, products: float, memory: float, gpu: float, rest: float) -> list[StepCase]:
    """Each GPU with an effect of its own, each model with another share of products; two sources."""
    random = np.random.default_rng(0)
    effects = dict(zip(GPUS, gpu * random.standard_normal(len(GPUS)), strict=True))
    found = []
    for name in GPUS:
        for number, model in enumerate(MODELS):
            share = number / (len(MODELS) - 1)
            truth = share * math.log(products) + (1 - share) * math.log(memory) + effects[name]
            ratio = truth + rest * float(random.standard_normal())
            found.append(case(name, SOURCES[number % 2], model, log_ratio=ratio, products=share))
    return found


def median_error(found: Sequence[StepCase]) -> float:
    return float(np.median([abs(one.log_ratio) for one in found]))


def test_a_factor_of_one_kind_of_work_is_found_and_the_gpus_effects_are_not_taken_for_it() -> None:
    made = cases(products=1.3, memory=1.0, gpu=0.1, rest=0.03)
    fit = fit_steps(made)
    # The prior draws factors towards 1, and a model's effect may stand for a part of its share.
    assert 1.15 < fit.factors["products"] / fit.factors["memory"] < 1.35
    assert fit.deviations["gpu"] == pytest.approx(0.1, rel=0.5)
    assert fit.deviations["rest"] == pytest.approx(0.03, rel=0.3)
    for left in (lambda one: one.gpu, lambda one: one.source):
        assert median_error(corrected_left_out(made, left)) < median_error(made)


def test_without_evidence_factors_stay_at_one() -> None:
    fit = fit_steps(cases(products=1.0, memory=1.0, gpu=0.0, rest=0.05))
    assert all(factor == pytest.approx(1, abs=0.03) for factor in fit.factors.values())
    one = case("gpu0", "source0", "model0", log_ratio=0.0, products=0.5)
    assert corrected(one, fit).predicted.middle == pytest.approx(1, abs=0.03)


def test_the_spread_holds_nine_in_ten_and_keeps_what_a_gpu_has_in_common() -> None:
    random = np.random.default_rng(1)
    made = [
        case(f"gpu{n % 20}", f"source{n % 7}", f"model{n % 11}", log_ratio=error, products=1.0, width=width)
        for n in range(200)
        for width in (math.exp(0.1), math.exp(0.4))
        for error in (math.log(width) * float(random.standard_normal()),)  # 1.645 deviations hold nine in ten
    ]
    spread = fit_spread(made)
    assert sum(spread_out(one, spread).is_inside for one in made) / len(made) == pytest.approx(0.9, abs=0.01)
    assert spread.operations_factor == pytest.approx(1.645, rel=0.15)
    assert 0.02 < spread.new_source < 0.15
    held = [one.is_inside for one in spread_left_out(made, lambda one: one.gpu)]
    assert sum(held) / len(held) == pytest.approx(0.9, abs=0.03)


def test_a_table_whose_rows_were_tuned_on_makes_no_interval_narrower() -> None:
    made = [replace(one, predicted=Interval(0.9, 1.0, 1.1)) for one in cases(products=1, memory=1, gpu=0.1, rest=0.03)]
    tuned = [
        replace(one, table="tuned on", source="its own", measured_seconds=1.0 + 0.01 * (n % 3))
        for n, one in enumerate(5 * made)
    ]
    found = fit_steps(made).deviations
    expected = 1.645 * math.hypot(found["gpu"], found["source"])  # of those that are left without the other table
    assert fit_spread(made).new_source == pytest.approx(expected)
    assert fit_spread([*made, *tuned]).new_source == pytest.approx(expected)
    both = fit_steps([*made, *tuned]).deviations
    assert math.hypot(both["gpu"], both["source"]) < 0.9 * expected / 1.645


def test_a_wider_interval_stays_the_wider_one() -> None:
    spread = StepSpread(operations_factor=0.5, new_source=0.3)
    narrow, wide = (case("a", "b", "c", log_ratio=0.0, products=1.0, width=width) for width in (1.1, 2.0))
    assert spread_out(narrow, spread).width < spread_out(wide, spread).width
    # sqrt((0.5 ln 2)² + 0.3²) = 0.4584
    assert spread_out(wide, spread).predicted.high == pytest.approx(math.exp(0.4584), rel=1e-4)
