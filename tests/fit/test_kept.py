"""What is believed of runs on a virtual clock, at five moments of each, and what budgets make of it."""

from __future__ import annotations

from typing import Final

import pytest

from lightning_predict.fit.budget import co2_limit, hours_limit, judge_forecast, judge_use, usd_limit
from lightning_predict.fit.evidence import believe, settles_at
from lightning_predict.fit.remaining import (
    Position,
    Validation,
    remaining,
    workload,
)
from lightning_predict.interval import Interval
from tests.fit.scenarios import SCENARIOS, Scenario, family, family_of_workers, moments
from tests.fit.simulating import forecasts
from tests.kept import Kept, numbers

VALUES: Final = {
    "constant": [1.0] * 40,
    "falling": [3.0 / (1 + number) + 1.0 for number in range(60)],
    "periodic": [5.0 if number % 7 == 3 else 1.0 + number % 3 / 100 for number in range(90)],
    "rising": [1.0 + number / 300 for number in range(50)],
    "few": [2.0, 1.1],
    "one stall": [1.0 + number % 5 / 50 for number in range(30)]
    + [9.0]
    + [1.0 + number % 5 / 50 for number in range(30)],
}


def believed(scenario: Scenario) -> list[object]:
    found, end = forecasts(scenario, set(moments(scenario)))
    return [
        end,
        *(
            part
            for now, rest in found.values()
            for part in (now, *numbers([rest.forecast, rest.workload.loader, rest.workload.between_seconds]))
        ),
    ]


def test_named_runs(kept: Kept) -> None:
    kept("named runs", {name: believed(scenario) for name, scenario in SCENARIOS.items()})


def test_drawn_runs(kept: Kept) -> None:
    kept("drawn runs", {str(seed): believed(family(seed)) for seed in range(1000, 1020)})


def test_drawn_runs_with_workers(kept: Kept) -> None:
    kept("runs with workers", {str(seed): believed(family_of_workers(seed)) for seed in range(1000, 1012)})


def test_evidence(kept: Kept) -> None:
    found = {}
    for name, values in VALUES.items():
        for ahead in (5, 1000):
            found[f"{name}, {ahead} ahead"] = numbers(
                [believe(values, ahead=ahead), believe(values, of_each=4, ahead=ahead)]
            )
        found[f"{name} settles"] = numbers(settles_at(values))
    kept("evidence", found)


POSITIONS: Final = {
    "an epoch": Position(epoch=0, batches_done=16, batches_per_epoch=101, max_epochs=3, accumulation={0: 1}),
    "accumulated": Position(epoch=1, batches_done=7, batches_per_epoch=50, max_epochs=4, accumulation={0: 4, 2: 8}),
    "few steps": Position(
        epoch=0, batches_done=9, batches_per_epoch=40, max_epochs=-1, max_steps=333, accumulation={0: 2}
    ),
    "validated": Position(
        epoch=2,
        batches_done=30,
        batches_per_epoch=64,
        max_epochs=5,
        last_batch_share=0.4,
        accumulation={0: 1},
        validation=Validation(batches=11, every_batches=25),
    ),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_counts(kept: Kept, name: str) -> None:
    position = POSITIONS[name]
    counts = remaining(position)
    kept(f"counts, {name}", {"all": numbers([counts, workload(counts, position, batches_per_window=4, samples=12)])})


def test_budgets(kept: Kept) -> None:
    limits = [
        usd_limit(10.0, per_second=0.01, before=1.0),
        hours_limit("hours", 0.4, before=100.0),
        co2_limit(0.3, per_second=0.0001, before=0.01),
    ]
    forecasts_made = [Interval(middle * 0.8, middle, middle * 1.4) for middle in (300.0, 800.0, 1500.0, 4000.0)]
    found: dict[str, object] = {}
    for limit in limits:
        for elapsed in (100.0, 790.0, 1100.0, 3000.0):
            found[f"{limit.name} after {elapsed:g}"] = numbers(
                [
                    limit.used(elapsed),
                    limit.reached_seconds(0.8),
                    judge_use([limit], elapsed, end_seconds=50.0),
                    [judge_forecast([limit], elapsed, forecast) for forecast in forecasts_made],
                ]
            )
    kept("budgets", found)
