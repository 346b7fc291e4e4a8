"""Time of a whole run from the time of a step, by hand, and each replica's share of the work."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.interval import Interval
from lightning_predict.run.workload import (
    Batches,
    Checkpoints,
    Loader,
    Run,
    Workload,
    predict_run,
    training_seconds,
    workload_per_replica,
    workload_with_shared_cores,
)
from lightning_predict.timeline.step_prediction import StepPrediction
from tests.known import known

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


WITH_LOADER = Workload(training_iterations=10, loader=Loader(seconds_per_batch=0.25))
UNEVEN = Batches(optimizer_steps=2, batches=2, partial_batches=1, partial_share=0.5)


@pytest.mark.parametrize(
    ("workload", "validation", "batches", "totals", "is_estimated"),
    [
        # (training, validation, total) seconds
        (Workload(training_iterations=100, validation_iterations=20), taking(0.1), 1, (50, 2, 52), False),
        # Without a recorded validation batch: the forward part of a batch.
        (Workload(training_iterations=100, validation_iterations=20), None, 4, (50, 20 * 0.2 / 4, 51), True),
        (Workload(training_iterations=100, validation_iterations=20), None, 1, (50, 20 * 0.2, 54), True),
        (Workload(training_iterations=1), None, 1, (0.5, 0, 0.5), False),
        (Workload(training_iterations=None), None, 1, (None, None, None), False),
        (Workload(training_iterations=10, validation_iterations=None), None, 1, (5.0, None, 5.0), True),
        # Waits for a loader without workers add to every step; shorter batches wait for their share.
        (WITH_LOADER, None, 2, (10 * 1.0, 0, 10 * 1.0), False),
        (
            Workload(training_iterations=2, training=UNEVEN, loader=Loader(seconds_per_batch=1.0)),
            None,
            1,
            (0.5 + 0.25 + 1.5, 0, 0.5 + 0.25 + 1.5),
            False,
        ),
    ],
)
def test_totals_by_hand(
    workload: Workload,
    validation: StepPrediction | None,
    batches: int,
    totals: tuple[float | None, ...],
    is_estimated: bool,
) -> None:
    run = predict_run(STEP, workload, validation, batches=batches)
    assert (run.training_seconds, run.validation_seconds, run.total_seconds) == totals
    assert run.validation_is_estimated == is_estimated


@pytest.mark.parametrize(
    ("step", "workload", "total"),
    [
        (
            STEP,
            Workload(training_iterations=100, validation_iterations=10),
            Interval(52 * 0.4 / 0.5, 52, 52 * 0.75 / 0.5),
        ),
        # Waits are measured: only the step has an interval.
        (STEP, WITH_LOADER, Interval(4.0 + 2.5, 5.0 + 2.5, 7.5 + 2.5)),
        # Ten steps of 5 s, and ten waits of 0.5 s, each may be half or twice as long.
        (
            taking(5.0),
            Workload(training_iterations=10, loader=Loader(seconds_per_batch=0.5, spread=(0.5, 2.0))),
            Interval(50 + 2.5, 50 + 5, 50 + 10),
        ),
        (
            STEP,
            # Three files of 2 s each were timed: only the step has an interval.
            Workload(training_iterations=10, checkpoints=Checkpoints(count=3, seconds=2.0, is_estimated=False)),
            Interval(4.0 + 6.0, 5.0 + 6.0, 7.5 + 6.0),
        ),
        (
            STEP,
            # Estimated from their size, they take a quarter of 6 s to four times as long, whatever the step takes.
            Workload(training_iterations=10, checkpoints=Checkpoints(count=3, seconds=2.0, is_estimated=True)),
            Interval(11 - math.hypot(1, 4.5), 11.0, 11 + math.hypot(2.5, 18)),
        ),
        (
            STEP,
            Workload(training_iterations=10, between=Interval(0.0, 1.0, 8.0)),
            Interval(6 - math.hypot(1, 1), 6.0, 6 + math.hypot(2.5, 7)),
        ),
        # An unknown number of checkpoints is left out.
        (STEP, Workload(training_iterations=10, checkpoints=Checkpoints(count=None, seconds=2.0)), Interval(4, 5, 7.5)),
    ],
)
def test_interval_of_total_by_hand(step: StepPrediction, workload: Workload, total: Interval[float]) -> None:
    seconds = known(predict_run(step, workload).total)
    assert (seconds.low, seconds.middle, seconds.high) == pytest.approx((total.low, total.middle, total.high))


def test_whole_run_counts_finished_steps_at_the_pace_of_the_rest() -> None:
    # 100 of 500 steps are left, and 10 of 50 validation batches: 52 s of 260 s.
    run = predict_run(STEP, Workload(training_iterations=100, validation_iterations=10, finished_iterations=400))
    assert run.total_seconds == 52.0
    assert known(run.whole).middle == pytest.approx(260.0)
    # Two replicas share the finished steps, too.
    shared = workload_per_replica(Workload(training_iterations=100, finished_iterations=400), replicas=2)
    assert shared.finished_iterations == 200


def test_run_keeps_facts_of_its_workload() -> None:
    workload = Workload(
        training_iterations=100, samples_per_iteration=32, loader=Loader(seconds_per_batch=0.25), at_most=True
    )
    run = predict_run(STEP, workload, batches=2)
    assert (run.loader_seconds, run.cycle_seconds, run.samples_per_iteration) == (0.5, 1.0, 32)
    assert run.at_most
    assert predict_run(STEP, workload, replicas=4).samples_per_iteration == 4 * 32
    epoch = predict_run(STEP, Workload(epoch=Batches(optimizer_steps=100, batches=100)))
    assert (epoch.total_seconds, epoch.epoch_seconds) == (None, 50.0)


@pytest.mark.parametrize(
    ("checkpoints", "seconds", "is_estimated"),
    [
        (Checkpoints(), 0.0, False),
        (Checkpoints(count=3, seconds=2.0, is_estimated=False), 6.0, False),
        (Checkpoints(count=3, seconds=2.0), 6.0, True),
        (Checkpoints(count=None, seconds=2.0), None, False),
    ],
)
def test_time_of_checkpoints(checkpoints: Checkpoints, seconds: float | None, is_estimated: bool) -> None:
    run = predict_run(STEP, Workload(training_iterations=10, checkpoints=checkpoints))
    assert (run.checkpoint_seconds, run.checkpoint_is_estimated) == (seconds, is_estimated)


@pytest.mark.parametrize(
    ("step", "work", "batches_per_step", "seconds"),
    [
        # Two epochs of 4 batches in windows of 3 and of 1: 8 batches of 1 s and 4 updates of 0.5 s, and not 4 x 3.5 s.
        (
            taking(3.5, device_seconds=3.5, optimizer_seconds=0.5),
            Batches(optimizer_steps=4, batches=8),
            3,
            8 * 1.0 + 4 * 0.5,
        ),
        # A partial batch takes its share of 0.5 s, but at least the host's 0.2 s.
        (
            replace(STEP, host_seconds=0.2),
            Batches(optimizer_steps=3, batches=3, partial_batches=1, partial_share=0.5),
            1,
            2 * 0.5 + 0.25,
        ),
        (
            replace(STEP, host_seconds=0.2),
            Batches(optimizer_steps=3, batches=3, partial_batches=1, partial_share=0.1),
            1,
            2 * 0.5 + 0.2,
        ),
        # The device works for 1 s of the 4, half of it on the update: so half of the 4 s are the update's.
        (
            taking(4.0, host_seconds=4.0, device_seconds=1.0, optimizer_seconds=0.5),
            Batches(optimizer_steps=2, batches=2),
            2,
            2 * 2 + 2 * 1,
        ),
    ],
)
def test_time_of_short_windows_and_partial_batches(
    step: StepPrediction, work: Batches, batches_per_step: int, seconds: float
) -> None:
    assert training_seconds(step, work, batches_per_step=batches_per_step) == pytest.approx(seconds)


@given(
    windows=st.integers(0, 10**6),
    per_window=st.integers(1, 64),
    seconds=st.floats(1e-6, 1e3),
    optimizer_share=st.floats(0, 1),
)
def test_whole_windows_take_whole_steps(windows: int, per_window: int, seconds: float, optimizer_share: float) -> None:
    step = taking(seconds, device_seconds=seconds, optimizer_seconds=optimizer_share * seconds)
    work = Batches(optimizer_steps=windows, batches=windows * per_window)
    assert training_seconds(step, work, batches_per_step=per_window) == pytest.approx(windows * seconds)


@pytest.mark.parametrize(("step_seconds", "total"), [(0.5, 10 * 0.7), (0.7, 10 * 0.7), (2.0, 10 * 2.0)])
def test_slow_loader_bounds_fast_gpu(step_seconds: float, total: float) -> None:
    workload = Workload(training_iterations=10, loader=Loader(seconds_per_batch=0.7, overlaps=True))
    assert predict_run(taking(step_seconds), workload).total_seconds == pytest.approx(total)


@pytest.mark.parametrize(
    ("limit", "total", "is_cut_off"),
    [
        (None, Interval(10.0, 20.0, 30.0), False),
        (40.0, Interval(10.0, 20.0, 30.0), False),
        (25.0, Interval(10.0, 20.0, 25.0), False),
        (15.0, Interval(10.0, 15.0, 15.0), True),
    ],
)
def test_time_limit_ends_the_run(limit: float | None, total: Interval[float], is_cut_off: bool) -> None:
    run = Run(
        gpu="T4", training_seconds=20.0, validation_seconds=0.0, total=Interval(10.0, 20.0, 30.0), cycle_seconds=1.0
    ).cut_off(limit)
    assert (run.total, run.is_cut_off) == (total, is_cut_off)
    endless = predict_run(STEP, Workload()).cut_off(60.0)
    assert (endless.total, endless.is_cut_off) == (Interval(60.0, 60.0, 60.0), True)


# --- Work of a replica

ALONE = Workload(
    training_iterations=1000,
    validation_iterations=50,
    training=Batches(optimizer_steps=1000, batches=2000, partial_batches=2, partial_share=0.5),
    epoch=Batches(optimizer_steps=100, batches=200, partial_batches=1, partial_share=0.5),
    samples_per_iteration=32,
)


def test_eight_replicas_take_an_eighth_of_the_steps() -> None:
    shared = workload_per_replica(ALONE, replicas=8)
    assert (shared.training_iterations, shared.validation_iterations) == (125, 7)
    assert shared.training == Batches(optimizer_steps=125, batches=250, partial_batches=1, partial_share=0.5)
    assert shared.epoch == Batches(optimizer_steps=13, batches=25, partial_batches=1, partial_share=0.5)
    assert shared.samples_per_iteration == 32
    accumulated = workload_per_replica(ALONE, replicas=8, accumulate=2)
    assert (accumulated.training_iterations, accumulated.validation_iterations) == (63, 7)
    assert accumulated.training == Batches(optimizer_steps=63, batches=250, partial_batches=1, partial_share=0.5)


@pytest.mark.parametrize(
    ("iterations", "replicas", "recorded", "expected"), [(10, 1, 2, 20), (None, 4, 1, None), (7, 4, 4, 7)]
)
def test_steps_follow_number_of_replicas(
    iterations: int | None, replicas: int, recorded: int, expected: int | None
) -> None:
    workload = Workload(training_iterations=iterations)
    assert workload_per_replica(workload, replicas=replicas, recorded=recorded).training_iterations == expected


@given(st.integers(0, 10**6), st.integers(1, 64))
def test_replicas_process_all_samples_with_at_most_one_short_step(steps: int, replicas: int) -> None:
    shared = workload_per_replica(Workload(training_iterations=steps), replicas=replicas).training_iterations
    assert steps <= known(shared) * replicas < steps + replicas


counts = st.integers(1, 64)


def shared(loader: Loader, *, gpus: int, workers: int, cores: int | None, recorded: int = 1) -> Loader:
    alone = Workload(loader=loader, loader_workers=workers)
    return workload_with_shared_cores(alone, gpus_per_node=gpus, recorded=recorded, cores_per_node=cores).loader


@pytest.mark.parametrize(
    ("gpus", "workers", "cores", "recorded", "slowdown"),
    [
        (4, 8, 32, 1, 1),  # 32 workers on as many cores
        (8, 8, 32, 1, 2),  # 64 workers share 32 cores
        (2, 8, 4, 1, 2),  # 8 workers on 4 cores were twice too many, as measured; 16 are four times too many
        (8, 0, 32, 1, 1),  # the training processes load
        (8, 0, 4, 1, 2),
        (8, 4, None, 1, 1),
        (8, 4, 16, 2, 1),
    ],
)
def test_more_workers_than_cores_slow_each_loader(
    gpus: int, workers: int, cores: int | None, recorded: int, slowdown: float
) -> None:
    loader = shared(Loader(seconds_per_batch=0.1), gpus=gpus, workers=workers, cores=cores, recorded=recorded)
    assert loader.seconds_per_batch == pytest.approx(0.1 * slowdown)


@pytest.mark.parametrize(("overlaps", "step", "total"), [(True, 0.05, 0.2), (True, 0.5, 0.5), (False, 0.5, 0.7)])
def test_loading_overlaps_or_adds_to_the_step(overlaps: bool, step: float, total: float) -> None:
    assert Loader(seconds_per_batch=0.2, overlaps=overlaps).with_loading(step, batches=1) == pytest.approx(total)


@given(seconds=st.floats(0, 100), workers=st.integers(0, 64), cores=counts, fewer=counts, more=counts)
def test_loader_of_one_gpu_is_as_measured_and_never_faster_with_more_gpus(
    seconds: float, workers: int, cores: int, fewer: int, more: int
) -> None:
    measured = Loader(seconds_per_batch=seconds, overlaps=workers > 0)
    alone, few, many = (
        shared(measured, gpus=gpus, workers=workers, cores=cores) for gpus in (1, *sorted((fewer, more)))
    )
    assert alone == measured
    assert few.seconds_per_batch <= many.seconds_per_batch


@given(seconds=st.floats(0.001, 100), workers=counts, cores=counts, gpus=counts)
def test_machine_loads_at_most_as_many_batches_as_its_cores(
    seconds: float, workers: int, cores: int, gpus: int
) -> None:
    # A worker with its own core loads a batch in `seconds`. On one GPU, as many workers as cores load at once.
    alone = Loader(seconds_per_batch=seconds / min(workers, cores), overlaps=True)
    crowded = shared(alone, gpus=gpus, workers=workers, cores=cores)
    assert gpus / crowded.seconds_per_batch <= cores / seconds * (1 + 1e-9)
