from dataclasses import replace

import pytest

from lightning_predict.base.interval import Interval
from lightning_predict.observe.run_session import host_time_changed
from lightning_predict.reports.predictions import Predictions
from lightning_predict.run.workload import Batches, Checkpoints, Loader, Workload
from tests.reports.example import H100, MINIMAL, T4, with_total

WORK = Workload(training_iterations=100, training=Batches(optimizer_steps=100, batches=100))


PREDICTED = Predictions((T4, H100))  # 11,520 s on the T4 and 1,440 s on the H100, 5 % of it are 72 s


def with_files(seconds: float) -> Workload:
    return replace(WORK, checkpoints=Checkpoints(count=100, seconds=seconds))


@pytest.mark.parametrize(("estimated", "timed", "noticed"), [(1.0, 1.5, False), (1.0, 1.8, True), (1.0, 0.2, True)])
def test_a_change_of_a_minute_and_five_percent_is_noticed(estimated: float, timed: float, noticed: bool) -> None:
    assert host_time_changed(PREDICTED, with_files(estimated), with_files(timed)) is noticed


@pytest.mark.parametrize(
    "change",
    [
        {"loader": Loader(seconds_per_batch=0.8)},
        {"between": Interval(80.0, 80.0, 80.0)},
        {"validation_iterations": 40, "validation_wait": Interval(2.0, 2.0, 2.0)},
    ],
)
def test_each_part_of_the_host_time_counts(change: dict[str, object]) -> None:
    assert host_time_changed(PREDICTED, WORK, replace(WORK, **change))  # type: ignore[arg-type]


def test_finished_batches_short_runs_and_unknown_totals_are_no_change() -> None:
    # Half of the batches are done, and half of the 200 s of waiting.
    before = replace(WORK, loader=Loader(seconds_per_batch=2.0))
    later = replace(before, training=Batches(optimizer_steps=50, batches=50))
    assert not host_time_changed(PREDICTED, before, later)
    brief = Predictions((with_total(H100, 10.0),))
    assert not host_time_changed(brief, with_files(0.1), with_files(0.5))  # 40 s more than 10
    assert host_time_changed(brief, with_files(0.1), with_files(0.8))
    assert not host_time_changed(Predictions((MINIMAL,)), WORK, with_files(1e6))
