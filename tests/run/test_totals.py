from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.interval import Interval
from lightning_predict.run.workload import Batches, Checkpoints, Loader, Run, Workload, predict_run, training_seconds
from lightning_predict.timeline.step_prediction import StepPrediction

STEP = StepPrediction(
    gpu="T4",
    interval=Interval(0.4, 0.5, 0.75),
    device_seconds=0.5,
    host_seconds=0.1,
    coverage={"mlp": 1.0},
    forward_seconds=0.2,
)


def taking(seconds: float, **values: float) -> StepPrediction:
    """The step with other times."""
    return replace(STEP, interval=Interval(seconds, seconds, seconds), **values)  # type: ignore[arg-type]


VALIDATION = taking(0.1)


def test_training_and_captured_validation_add_up() -> None:
    run = predict_run(STEP, Workload(training_iterations=100, validation_iterations=20), VALIDATION)
    assert (run.training_seconds, run.validation_seconds, run.total_seconds) == (50.0, 2.0, 52.0)
    assert run.total == Interval(52 * 0.4 / 0.5, 52, 52 * 0.75 / 0.5)
    assert not run.validation_is_estimated


def test_validation_without_a_capture_is_the_forward_share_of_one_batch() -> None:
    run = predict_run(STEP, Workload(training_iterations=100, validation_iterations=20), batches=4)
    assert run.validation_seconds == 20 * 0.2 / 4
    assert run.validation_is_estimated


def test_a_step_is_one_batch_where_nothing_else_is_said() -> None:
    workload = Workload(
        training_iterations=100,
        validation_iterations=20,
        samples_per_iteration=32,
        loader=Loader(seconds_per_batch=0.25),
    )
    run = predict_run(STEP, workload)
    assert run.validation_seconds == 20 * 0.2
    assert run.loader_seconds == 0.25
    assert run.samples_per_iteration == 32  # of one replica
    assert predict_run(STEP, workload, replicas=4).samples_per_iteration == 4 * 32


def test_no_validation_is_not_an_estimate() -> None:
    run = predict_run(STEP, Workload(training_iterations=1, validation_iterations=0))
    assert run.validation_seconds == 0
    assert not run.validation_is_estimated


def test_an_unknown_length_has_no_total() -> None:
    run = predict_run(STEP, Workload(training_iterations=None))
    assert run.total_seconds is None
    assert run.total is None
    assert run.training_seconds is None


def test_an_unknown_number_of_validation_batches_leaves_the_known_part() -> None:
    run = predict_run(STEP, Workload(training_iterations=10, validation_iterations=None, at_most=True))
    assert run.validation_seconds is None
    assert run.total_seconds == 5.0
    assert run.at_most


STEP_OF_THREE = taking(3.5, device_seconds=3.5, optimizer_seconds=0.5)
"""A window of three batches of a second each, and half a second for the update."""


def test_a_short_window_takes_its_batches_and_a_whole_update() -> None:
    # Two epochs of 4 batches in windows of 3 and of 1: 8 batches of 1 s and 4 updates of 0.5 s, and not 4 x 3.5 s.
    work = Batches(optimizer_steps=4, batches=8)
    assert training_seconds(STEP_OF_THREE, work, batches_per_step=3) == pytest.approx(8 * 1.0 + 4 * 0.5)
    run = predict_run(STEP_OF_THREE, Workload(training_iterations=4, training=work), batches=3)
    assert run.total_seconds == pytest.approx(10.0)


def test_an_uneven_batch_takes_its_share_but_no_less_than_its_launches() -> None:
    step = replace(STEP, host_seconds=0.2)  # 0.5 s a batch
    half, tenth = (
        Batches(optimizer_steps=3, batches=3, partial_batches=1, partial_share=share) for share in (0.5, 0.1)
    )
    assert training_seconds(step, half, batches_per_step=1) == pytest.approx(2 * 0.5 + 0.25)
    assert training_seconds(step, tenth, batches_per_step=1) == pytest.approx(2 * 0.5 + 0.2)


def test_a_step_that_the_host_bounds_splits_as_the_device_does() -> None:
    # The device works for 1 s of the 4, half of it on the update: so half of the 4 s are the update's.
    step = taking(4.0, host_seconds=4.0, device_seconds=1.0, optimizer_seconds=0.5)
    assert training_seconds(step, Batches(optimizer_steps=2, batches=2), batches_per_step=2) == pytest.approx(
        2 * 2 + 2 * 1
    )


@given(
    windows=st.integers(0, 10**6),
    per_window=st.integers(1, 64),
    seconds=st.floats(1e-6, 1e3),
    optimizer_share=st.floats(0, 1),
)
def test_whole_windows_are_whole_steps(windows: int, per_window: int, seconds: float, optimizer_share: float) -> None:
    step = taking(seconds, device_seconds=seconds, optimizer_seconds=optimizer_share * seconds)
    work = Batches(optimizer_steps=windows, batches=windows * per_window)
    assert training_seconds(step, work, batches_per_step=per_window) == pytest.approx(windows * seconds)


def test_waits_for_a_loader_without_workers_add_to_every_step() -> None:
    run = predict_run(STEP, Workload(training_iterations=10, loader=Loader(seconds_per_batch=0.25)), batches=2)
    assert run.total_seconds == 10 * (0.5 + 2 * 0.25)
    assert (run.cycle_seconds, run.loader_seconds) == (1.0, 0.5)
    # The loader's part is measured: only the step has an interval.
    assert run.total is not None
    assert run.total.low == pytest.approx(10 * (0.4 + 0.5))


def test_the_ends_of_a_wait_are_those_of_the_total() -> None:
    # Ten steps of 5 s, and ten waits of 0.5 s, each may be half or twice as long.
    run = predict_run(
        taking(5.0), Workload(training_iterations=10, loader=Loader(seconds_per_batch=0.5, spread=(0.5, 2.0)))
    )
    assert run.total == Interval(50 + 2.5, 50 + 5, 50 + 10)


@pytest.mark.parametrize(("step_seconds", "total"), [(0.5, 10 * 0.7), (0.7, 10 * 0.7), (2.0, 10 * 2.0)])
def test_workers_that_are_too_slow_bound_a_faster_gpu(step_seconds: float, total: float) -> None:
    step = taking(step_seconds)
    loader = Loader(seconds_per_batch=0.7, overlaps=True)
    assert predict_run(step, Workload(training_iterations=10, loader=loader)).total_seconds == pytest.approx(total)


def test_an_uneven_batch_keeps_the_loader_for_its_share() -> None:
    work = Batches(optimizer_steps=2, batches=2, partial_batches=1, partial_share=0.5)
    run = predict_run(STEP, Workload(training_iterations=2, training=work, loader=Loader(seconds_per_batch=1.0)))
    assert run.total_seconds == pytest.approx(0.5 + 0.25 + 1.5 * 1.0)


def test_checkpoints_take_the_same_on_every_gpu() -> None:
    checkpoints = Checkpoints(count=3, seconds=2.0, is_estimated=False)
    run = predict_run(STEP, Workload(training_iterations=10, checkpoints=checkpoints))
    assert run.checkpoint_seconds == 6.0
    assert run.total == Interval(4.0 + 6, 5.0 + 6, 7.5 + 6)
    assert not run.checkpoint_is_estimated


def test_no_checkpoint_is_no_estimate_and_an_unknown_number_is_left_out() -> None:
    assert not predict_run(STEP, Workload(training_iterations=10)).checkpoint_is_estimated
    run = predict_run(STEP, Workload(training_iterations=10, checkpoints=Checkpoints(count=None, seconds=2.0)))
    assert run.checkpoint_seconds is None
    assert run.total_seconds == 5.0


def test_a_run_of_unknown_length_has_the_time_of_an_epoch() -> None:
    run = predict_run(
        STEP, Workload(epoch=Batches(optimizer_steps=100, batches=100), loader=Loader(seconds_per_batch=0.1))
    )
    assert run.total_seconds is None
    assert run.cycle_seconds == pytest.approx(0.6)
    assert run.epoch_seconds == pytest.approx(60.0)


@pytest.mark.parametrize(
    ("limit", "total", "high", "is_cut_off"),
    [(None, 20.0, 30.0, False), (40.0, 20.0, 30.0, False), (25.0, 20.0, 25.0, False), (15.0, 15.0, 15.0, True)],
)
def test_a_time_limit_cuts_the_total_and_its_interval_off(
    limit: float | None, total: float, high: float, is_cut_off: bool
) -> None:
    run = Run(
        gpu="T4",
        training_seconds=20.0,
        validation_seconds=0.0,
        total=Interval(10.0, 20.0, 30.0),
        cycle_seconds=1.0,
    ).cut_off(limit)
    assert run.total == Interval(10.0, total, high)
    assert run.is_cut_off == is_cut_off


def test_a_run_without_an_end_of_its_own_lasts_until_the_limit() -> None:
    run = predict_run(STEP, Workload()).cut_off(60.0)
    assert run.total == Interval(60.0, 60.0, 60.0)
    assert run.is_cut_off
