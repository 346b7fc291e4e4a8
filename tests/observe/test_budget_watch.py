"""Checks and decisions of a budget for a running fit, with batches at given times."""

from __future__ import annotations

import pytest

from lightning_predict.base.interval import NOTHING, Interval
from lightning_predict.observe.budget import BudgetVerdict, BudgetWatch, DueCheck
from lightning_predict.observe.forecast import BatchTimes, ForecastSchedule, RestOfRun
from lightning_predict.observe.meters import Ledger, RentedMachine, Terms
from lightning_predict.observe.remaining import RemainingCounts
from lightning_predict.run.workload import Workload
from tests.observe.scenarios import SCENARIOS, family
from tests.observe.simulating import stopped


class Run:
    """A watch over batches of one second each, and no wait between them."""

    def __init__(self, *, seconds: float = 3600.0, batches: int | None = None, warmup_steps: int = 1) -> None:
        self.seconds = 0.0
        self.batches = 0
        ledger = Ledger(lambda: self.seconds)
        ledger.open(forget=True)
        limits = Terms.checked(hours=seconds / 3600).start(RentedMachine("cpu"), ledger).meters
        self.watch = BudgetWatch(limits, ledger, schedule=ForecastSchedule(batches=batches), warmup_steps=warmup_steps)

    def batch(self, seconds: float = 1.0) -> DueCheck | None:
        self.seconds += seconds
        self.batches += 1
        return self.watch.due_check(self.batches, self.seconds, elapsed=self.seconds)

    def check(
        self, rest: RestOfRun | None, best: RestOfRun | None = None, *, may_end_earlier: bool = False
    ) -> BudgetVerdict:
        """Judge, with a forecast at the best pace, which by default is the same."""

        def at_best() -> RestOfRun:
            forecast = best or rest
            assert forecast is not None
            return forecast

        return self.watch.check(rest, at_best=at_best, may_end_earlier=may_end_earlier)


def rest(low: float, middle: float, *, end_seconds: float = 0.0) -> RestOfRun:
    """A rest of the given number of seconds."""
    counts = RemainingCounts(
        batches=9, windows=9, full_windows=9, windows_per_epoch=None, validation_batches=0, at_most=False
    )
    batch_times = BatchTimes(step=NOTHING, wait=NOTHING, later_wait=NOTHING, values=16, waits=0)
    forecast = Interval(low, middle, 2 * middle)
    return RestOfRun(
        counts=counts,
        workload=Workload(),
        batch_times=batch_times,
        run=None,
        forecast=forecast,
        end_seconds=end_seconds,
        steps=16,
    )


def test_forecasts_are_due_after_doubled_steps_three_seconds_or_half_a_minute() -> None:
    run = Run()
    assert [number for number in range(1, 70) if run.batch() == "forecast"] == [16, 32, 64]
    run = Run()
    assert [number for number in range(1, 70) if run.batch(0.1) == "forecast"] == [30, 60]
    run = Run()
    assert [number for number in range(1, 10) if run.batch(10.0) == "forecast"] == [3, 6]
    run = Run(batches=20)
    assert [number for number in range(1, 20) if run.batch() == "forecast"] == [10]
    run = Run(warmup_steps=12, batches=20)
    assert [number for number in range(1, 20) if run.batch() == "forecast"] == [12]


def test_use_is_judged_from_the_first_batch_warns_once_and_reserves_the_last_validation() -> None:
    run = Run(seconds=0.5)
    assert run.batch() is not None
    assert run.check(None).reason == "1.00 s of 500 ms (hours) are used"
    run = Run(seconds=10.0)
    asked = [(number, run.check(None).action) for number in range(1, 12) if run.batch() is not None]
    assert [answer for answer in asked if answer[1] != "go on"] == [(8, "warn"), (10, "stop"), (11, "stop")]
    run = Run(seconds=10.0)
    run.watch.set_end_seconds(4.0)
    assert [run.batch() for _ in range(6)][-1] is not None
    verdict = run.check(None)
    assert verdict.action == "stop"
    assert "the final validation takes 4.00 s" in verdict.reason
    run = Run(seconds=2.0)
    run.batch(1.0)
    unknown = RestOfRun(counts=rest(1, 1).counts, workload=Workload(), batch_times=None, run=None, forecast=None)
    assert run.check(unknown).action == "go on"
    assert run.watch.forecast is None


def test_forecast_is_due_each_minute_and_each_fiftieth_of_a_limit_from_79_percent_on() -> None:
    run, due = Run(), []
    for number in range(1, 130):
        if run.batch() == "forecast":
            due.append(number)
            run.check(rest(1.0, 1.0))
    assert due == [16, 32, 64, 124, 128]
    run, due = Run(seconds=99.9), []
    for number in range(1, 86):
        if run.batch() == "forecast":
            due.append(number)
            run.check(rest(1.0, 1.0))
    assert due == [16, 32, 64, 79, 81, 83, 85]


@pytest.mark.parametrize(
    ("used", "low", "best", "may_end_earlier", "actions"),
    [
        (61, 34.0, 34.0, False, ["go on", "go on"]),  # 61 + 34 + 5 = 100
        (61, 35.0, 35.0, False, ["warn", "go on"]),  # the middle exceeds the budget
        (78, 100.0, 100.0, False, ["warn", "go on"]),  # 79 % must be used
        (79, 24.0, 24.0, False, ["stop", "stop"]),
        (79, 24.0, 23.0, False, ["warn", "go on"]),  # 10 % faster than at its best pace, the rest fits
        (79, 900.0, 23.0, False, ["warn", "go on"]),
        (79, 24.0, 24.0, True, ["warn", "go on"]),
    ],
)
def test_forecast_stops_a_late_run_that_exceeds_its_budget_even_at_its_best_pace(
    used: int, low: float, best: float, may_end_earlier: bool, actions: list[str]
) -> None:
    run = Run(seconds=100.0)
    for _ in range(used):
        run.batch()
    now = rest(low, low + 5.0)
    verdicts = [run.check(now, rest(best, best), may_end_earlier=may_end_earlier) for _ in range(2)]
    assert [verdict.action for verdict in verdicts] == actions
    assert not may_end_earlier or "Early stopping may end the run sooner" in verdicts[0].reason


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("share", [1.05, 1.2, 1.5])
def test_no_run_within_its_budget_is_stopped(name: str, share: float) -> None:
    assert stopped(SCENARIOS[name], share)[1] == SCENARIOS[name].steps


def test_of_random_runs_within_their_budget_nearly_none_is_stopped() -> None:
    false = [seed for seed in range(1, 120, 2) if stopped(family(seed), 1.05)[1] < family(seed).steps]
    assert len(false) <= 2, false
