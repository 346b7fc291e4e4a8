"""What a budget asks of a running fit, and when it asks no more than it must."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lightning_predict.callbacks.bases import LightningPredictWarning
from lightning_predict.callbacks.cost_budget import judge_first_forecast, judge_later_use
from lightning_predict.callbacks.remaining import Remaining
from lightning_predict.callbacks.rest_of_run import Rest
from lightning_predict.run.workload import Workload
from tests.callbacks.test_budget_watch import Run, seconds


def trainer(*, stops_early: bool = False) -> Any:
    """The part of a Trainer that is asked; it has no loggers and no time limit."""
    return SimpleNamespace(
        callbacks=[],
        loggers=[],
        is_global_zero=True,
        global_step=7,
        early_stopping_callbacks=[object()] if stops_early else [],
    )


def never() -> Rest:
    """Counting what is left costs time, so nobody may ask before it matters."""
    raise AssertionError("what is left was counted")


def rest(batches: int) -> Rest:
    """So many batches of a second each."""
    left = Remaining(
        batches=batches,
        windows=batches,
        full_windows=batches,
        windows_per_epoch=None,
        validation_batches=0,
        at_most=False,
    )
    return Rest(left=left, workload=Workload(), tempo=None, run=None, forecast=seconds(float(batches)))


def after(batches: int, *, hours: float = 1.0) -> Run:
    run = Run(hours=hours)
    for _ in range(batches):
        run.batch()
    return run


def test_what_is_left_is_not_counted_before_a_forecast_is_due() -> None:
    assert judge_later_use(trainer(), after(5).watch, never, set()).action == "go on"


def test_what_is_used_up_ends_the_run_without_a_forecast() -> None:
    run = after(70, hours=60 / 3600)
    assert judge_later_use(trainer(), run.watch, never, set()).action == "stop"


def test_a_later_forecast_that_breaks_the_budget_is_said_once_and_does_not_end_the_run() -> None:
    run, warned = after(70, hours=100 / 3600), set[str]()
    with pytest.warns(LightningPredictWarning, match="forecast to need 1 min 50 s .* the run goes on until the budget"):
        verdict = judge_later_use(trainer(), run.watch, lambda: rest(40), warned)  # 70 s + 40 batches of a second
    assert verdict.action == "go on"
    assert warned == {"refresh"}
    for _ in range(61):
        run.batch()
    assert judge_later_use(trainer(), run.watch, lambda: rest(40), warned).action == "stop"  # 131 of 100 s


@pytest.mark.parametrize(("stops_early", "action"), [(False, "stop"), (True, "warn")])
def test_where_early_stopping_may_end_it_a_forecast_alone_does_not(stops_early: bool, action: str) -> None:
    run = after(2, hours=10 / 3600)
    assert judge_first_forecast(trainer(stops_early=stops_early), run.watch, rest(100)).action == action
