"""Forecasts of runs on a virtual clock, at five moments of each, and the budgets' decisions."""

from typing import Final

from lightning_predict.base.interval import Interval
from lightning_predict.observe.budget import check_forecast, check_use
from lightning_predict.observe.meters import QUANTITIES, Meter
from lightning_predict.observe.remaining import Position, Validation, remaining, workload
from lightning_predict.observe.steady_state import estimate_mean, warmup_end
from tests.kept import Kept, ends, numbers, overall
from tests.observe.scenarios import SCENARIOS, Scenario, family, family_of_workers, moments
from tests.observe.simulating import forecasts

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


def forecast(scenario: Scenario) -> list[float]:
    """Return the time of a run, and its forecast at the middle moment."""
    made, end = forecasts(scenario, set(moments(scenario)))
    _, rest = list(made.values())[len(made) // 2]
    return [end, *([] if rest.forecast is None else ends(rest.forecast))]


def test_named_runs(kept: Kept) -> None:
    kept("named runs", {name: forecast(scenario) for name, scenario in SCENARIOS.items()})


def test_drawn_runs(kept: Kept) -> None:
    """Means over drawn runs, which any of them moves."""
    by_name = {}
    for word, draw in (("loaders", family), ("loaders with workers", family_of_workers)):
        runs = [forecast(draw(seed)) for seed in range(1000, 1012)]
        by_name[word] = [overall(column) for column in zip(*runs, strict=True)]
    kept("drawn runs", by_name)


def test_evidence(kept: Kept) -> None:
    by_name = {}
    for name, values in VALUES.items():
        belief = estimate_mean(values, remaining=1000)
        by_name[name] = [*numbers(warmup_end(values)), *([] if belief is None else ends(belief.mean))]
    kept("evidence", by_name)


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


def test_counts(kept: Kept) -> None:
    by_name: dict[str, object] = {}
    for name, position in POSITIONS.items():
        work = workload(remaining(position), position, batches_per_window=4, samples=12)
        by_name[name] = [work.training_iterations, work.validation_iterations, work.samples_per_iteration]
    kept("counts", by_name)


def test_budgets(kept: Kept) -> None:
    limits = [
        Meter(name=name, limit=limit, rate=rate, words=QUANTITIES[name].words, before=before)
        for name, limit, rate, before in (
            ("usd", 10.0, 0.01, 1.0),
            ("hours", 0.4, 1 / 3600, 100.0),
            ("kg_co2", 0.3, 0.0001, 0.01),
        )
    ]
    forecasts_made = [Interval(middle * 0.8, middle, middle * 1.4) for middle in (300.0, 800.0, 1500.0, 4000.0)]
    by_name: dict[str, object] = {}
    for limit in limits:
        for word, elapsed in (("early", 100.0), ("late", 790.0)):
            use = check_use([limit], elapsed, end_seconds=50.0)
            forecasts = [check_forecast([limit], elapsed, forecast) for forecast in forecasts_made]
            words = [part for part in numbers([use, forecasts]) if part in ("warn", "stop", None)]
            by_name[f"{limit.name}, {word}"] = [limit.used(elapsed), limit.reached_seconds(0.8), *words]
    kept("budgets", by_name)
