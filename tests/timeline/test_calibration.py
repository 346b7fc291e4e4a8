"""Recorded steps compared with measured ones: which part of a difference applies to other GPUs."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_predict.base.note import is_decisive
from lightning_predict.base.ties import NOTICEABLE
from lightning_predict.record.trace import HostWait, Kernel, Operation, TensorInfo, Trace
from lightning_predict.timeline.calibration import (
    GAP_SECONDS,
    RecordedSimulation,
    StepCalibration,
    calibrate_step,
    recorded_gap,
)
from lightning_predict.timeline.host import PROFILER_SLOWDOWN, Host, HostModel
from lightning_predict.timeline.simulation import START_SECONDS, main_queue
from lightning_predict.timeline.step_prediction import StepPrediction, predict_steps
from lightning_predict.uncertainty import ASSUMED_SPREAD, FORMULA_SPREAD, SURROGATE_SPREAD
from tests.example_gpu import BIG, OLD, SMALL
from tests.kernels.example_models import half_speed
from tests.known import known
from tests.timeline.example_host import work_by_ratio

DATA = TensorInfo((1024, 1024), "float32")
MODELS = half_speed("linear/float32")
LAUNCH, START, GAP, SLOWER = 6e-6, START_SECONDS, GAP_SECONDS, PROFILER_SLOWDOWN
LIKE_SMALL = replace(SMALL, name="LIKE-SMALL", reported_names=())


def recorded(
    products: int,
    kernel_seconds: float,
    *,
    steps: tuple[float, ...] = (),
    every: float = 12e-6,
    python: float = 0.0,
    has_launches: bool = True,
    gap: float = GAP,
) -> Trace:
    """A step of products on SMALL as a profiler sees it: a launch every so often, a queue that runs them in order.

    `every` is the host's time for an operation without the profiler, which slows it. `python` is the host work before
    the first of them. BIG takes half as long for each.
    """
    operations = []
    free = 0.0
    for number in range(products):
        begins = python + number * every * SLOWER
        launched = begins + 4e-6 * SLOWER
        start = max(launched + LAUNCH * SLOWER + START, free + gap if number else 0.0)
        free = start + kernel_seconds
        kernel = Kernel(
            name="gemm",
            seconds=kernel_seconds,
            grid=(10_000, 1, 1),
            block=(256, 1, 1),
            registers_per_thread=64,
            shared_memory_bytes=0,
            stream=7,
            start_seconds=start,
            launch_start_seconds=launched if has_launches else None,
            launch_seconds=LAUNCH * SLOWER if has_launches else None,
        )
        operations.append(
            Operation(
                name="aten::mm",
                phase="forward",
                inputs=(DATA, DATA),
                outputs=(DATA,),
                kernels=(kernel,),
                host_start_seconds=begins if has_launches else None,
                host_seconds=every * SLOWER if has_launches else None,
            )
        )
    return Trace(
        operations=tuple(operations),
        device="cuda",
        recorder="profiler",
        step_seconds=steps,
        profiled_seconds=max(free, python + products * every * SLOWER) if has_launches else None,
    )


def predicted(trace: Trace, *, host_factor: float = 1.0) -> dict[str, StepPrediction]:
    """The step on each of four GPUs: SMALL is in use, OLD like it, BIG twice as fast for a product."""
    gpus = [SMALL, LIKE_SMALL, OLD, BIG]
    work = work_by_ratio(trace, gpus, origin=SMALL, models=MODELS)
    steps = predict_steps(trace, work, gpus, origin=SMALL, host=Host(host_factor))
    return {step.gpu: step for step in steps}


def calibrated(trace: Trace) -> StepCalibration:
    return calibrate_step(trace, work_by_ratio(trace, [SMALL], origin=SMALL, models=MODELS), SMALL, Host())


OTHERS = ("LIKE-SMALL", "OLD", "BIG")


def wait_to_end(python: float) -> HostWait:
    """A wait for the device after the launches of 400 products of 70 us."""
    return HostWait(python + (399 * 12e-6 + 9e-6) * SLOWER, 0.0175, "device")


# Without launches a median host takes (13.3 + 10) us for each of 400 products, for which a GPU twice as fast as BIG
# waits: 1 - 9.32 / 14.06 = 0.337.
@pytest.mark.parametrize(("has_launches", "least_gain"), [(True, 0.45), (False, 0.33)])
def test_step_slightly_longer_than_its_kernels_stays_device_bound(has_launches: bool, least_gain: float) -> None:
    # 400 products of 70 us are 28 ms; the measured step is 0.2 % longer. BIG takes 14 ms, and those 0.056 ms.
    step = predicted(recorded(400, 70e-6, steps=(0.028 * 1.002,), has_launches=has_launches))["BIG"]
    assert step.seconds == pytest.approx(0.014 + 0.002 * 0.028, rel=1e-3)
    assert step.bound_by == "device"
    assert known(step.verdict).gain > least_gain
    assert step.low_seconds < step.seconds < step.high_seconds


@pytest.mark.parametrize("has_launches", [True, False])
def test_predictions_grow_continuously_with_measured_step(has_launches: bool) -> None:
    device = 400 * 70e-6
    measured = [device * (1 + gap / 1000) for gap in range(-20, 201, 10)]
    steps = [predicted(recorded(400, 70e-6, steps=(own,), has_launches=has_launches)) for own in measured]
    for gpu in OTHERS:
        for (shorter, longer), (before, after) in zip(pairwise(measured), pairwise(steps), strict=True):
            grown = after[gpu].seconds - before[gpu].seconds
            assert -1e-12 <= grown <= 1.05 * (longer - shorter), (gpu, longer)


@settings(max_examples=40)
@given(
    products=st.integers(1, 60),
    kernel=st.floats(2e-6, 3e-4),
    every=st.floats(11e-6, 1e-4),
    python=st.sampled_from([0.0, 5e-4, 0.03]),
    shares=st.lists(st.floats(0.3, 3.0), min_size=2, max_size=2),
    has_launches=st.booleans(),
    stacks=st.booleans(),
)
def test_longer_measured_step_is_never_a_shorter_prediction(
    products: int, kernel: float, every: float, python: float, shares: list[float], has_launches: bool, stacks: bool
) -> None:
    trace = recorded(products, kernel, every=every, python=python, has_launches=has_launches)
    trace = replace(trace, has_python_stacks=stacks)
    base = python + products * max(kernel, every)
    without = predicted(trace)
    short, long = (predicted(replace(trace, step_seconds=(share * base,))) for share in sorted(shares))
    for step in (without["SMALL"], *(steps[gpu] for steps in (without, short, long) for gpu in OTHERS)):
        assert step.low_seconds < step.seconds < step.high_seconds
    for gpu in OTHERS:
        assert short[gpu].seconds <= long[gpu].seconds * (1 + 1e-4)  # as far as the host's factor is solved for


def test_python_and_untimed_host_work_count_on_every_gpu() -> None:
    # An environment steps for 30 ms, then 400 products take 28 ms and their gaps 0.4; the host waits for them.
    trace = recorded(400, 70e-6, python=0.03, steps=(0.0584,))
    steps = predicted(replace(trace, waits=(wait_to_end(0.03),)))
    assert steps["SMALL"].seconds == 0.0584
    assert steps["LIKE-SMALL"].seconds == pytest.approx(0.0584, rel=1e-3)
    assert steps["BIG"].seconds == pytest.approx(0.03 + 0.014 + 400 * GAP, rel=1e-2)
    for step in steps.values():
        assert step.host_seconds > 0.03
        assert step.notes == (
            "The measured step has 30 ms (51%) outside operations (Python work, data, waits). This counts as host time "
            "on every GPU.",
        )
        assert step.low_seconds > 0.03 / SURROGATE_SPREAD  # a profiler without stacks does not slow Python code
    assert predicted(recorded(400, 70e-6, steps=(0.0284,)))["BIG"].notes == ()
    # Hooks of 20 ms that no operation accounts for: the device, of 28.4 ms, hides them, and BIG's, of 14.4, does not.
    trace = in_a_loop(recorded(400, 70e-6), host=1.0)
    (host,), (isolated,) = trace.host_seconds_unprofiled, trace.step_seconds
    longer = replace(trace, host_seconds_unprofiled=(host + 0.02,), step_seconds=(isolated + 0.02,))
    steps = predicted(longer)
    # The host may first be as slow as under the profiler: 400 operations of 12 us at 2.2 instead of 1.
    added = 0.02 - 400 * 12e-6 * (SLOWER - 1)
    assert calibrated(longer).added_host_seconds * SLOWER == pytest.approx(added)
    assert steps["LIKE-SMALL"].seconds == pytest.approx(predicted(trace)["LIKE-SMALL"].seconds)
    assert steps["BIG"].seconds == pytest.approx(host + 0.02)
    assert steps["BIG"].bound_by == "host"


@pytest.mark.parametrize("gpu", ["BIG", "LIKE-SMALL"])
def test_unexplained_time_widens_interval_upwards(gpu: str) -> None:
    # 28.4 ms of kernels and gaps in a step of 34: 5.6 ms are added, between nothing and twice as much on half the GPU.
    plain, longer = (predicted(recorded(400, 70e-6, steps=(own,)))[gpu] for own in (0.0284, 0.034))
    assert longer.seconds - plain.seconds == pytest.approx(0.0056, rel=0.01)
    assert longer.low_seconds == pytest.approx(plain.low_seconds, rel=0.01)
    assert longer.high_seconds - plain.high_seconds == pytest.approx(0.0056, rel=0.02)


def test_measured_step_corrects_host_that_profiler_slowed() -> None:
    # A launch every 50 us for kernels of 10: late, all of them. 100 would take 5 ms without the profiler, by its usual
    # slowdown, and take 2.5.
    trace = recorded(100, 10e-6, every=50e-6, steps=(2.5e-3,))
    steps = predicted(trace)
    assert calibrated(trace).residual_seconds == 0
    for step in (steps["LIKE-SMALL"], steps["BIG"]):
        assert step.bound_by == "host"
        assert step.seconds == pytest.approx(2.5e-3, rel=0.01)
        assert step.high_seconds / step.seconds == pytest.approx(SURROGATE_SPREAD, rel=0.02)
        assert step.notes == ()
    assert predicted(trace, host_factor=0.5)["BIG"].seconds == pytest.approx(1.25e-3, rel=0.02)


@pytest.mark.parametrize("shorter", [1.0, 0.9])
def test_host_is_no_faster_than_device_bound_step_shows(shorter: float) -> None:
    # 100 kernels of 10 us with their gaps take 1.1 ms. The host needs 50 us for each. Within 2 % of 1.1 ms nothing is
    # seen of it any more.
    device = 100 * (10e-6 + GAP)
    own = calibrated(recorded(100, 10e-6, every=50e-6, steps=(shorter * device,)))
    assert own.host.factor == pytest.approx((1 + NOTICEABLE) * device / (100 * 50e-6), rel=1e-3)
    assert own.device_factor == pytest.approx(shorter / (1 + NOTICEABLE), rel=1e-3)


def test_device_bound_step_leaves_host_and_shortens_gaps() -> None:
    # 28 ms of kernels without a gap between them, measured 1 % shorter: the device was faster, the host may be as slow.
    own = calibrated(recorded(400, 70e-6, gap=0.0, steps=(0.99 * 0.028,)))
    assert (own.host.factor, own.gap_seconds, own.residual_seconds) == (1, 0, 0)
    assert own.device_factor == pytest.approx(0.99, rel=1e-3)
    # 400 gaps in 0.2 ms: half a microsecond each.
    own = calibrated(replace(recorded(400, 70e-6), running_step_seconds=0.028 + 400 * 0.5e-6))
    assert own.gap_seconds == pytest.approx(0.5e-6, rel=0.05)
    assert own.device_factor == pytest.approx(1)


@pytest.mark.parametrize(
    ("trace", "gap"),
    [
        (recorded(100, 70e-6, gap=1.3e-6), 1.3e-6),
        (recorded(100, 70e-6, gap=-0.5e-6), 0),  # kernels overlap
        (recorded(100, 10e-6, every=50e-6), GAP_SECONDS),  # each launch is late
        (recorded(100, 70e-6, has_launches=False), GAP_SECONDS),
    ],
)
def test_gap_is_the_recorded_one_or_a_default(trace: Trace, gap: float) -> None:
    assert recorded_gap(trace) == pytest.approx(gap)


def test_profiled_host_is_faster_by_the_slowdown_of_profilers() -> None:
    trace = recorded(100, 10e-6, every=50e-6)
    plain, stacks = (predicted(replace(trace, has_python_stacks=has_stacks))["BIG"] for has_stacks in (False, True))
    assert plain.seconds == stacks.seconds
    # So fast a host may be done before the device, which then decides.
    assert plain.seconds == pytest.approx(5e-3, rel=0.02)
    assert plain.low_seconds == pytest.approx(plain.seconds / FORMULA_SPREAD, rel=0.1)
    assert stacks.low_seconds == pytest.approx(plain.seconds / ASSUMED_SPREAD, rel=0.1)
    assert not known(plain.verdict).is_doubtful  # 0.6 ms of kernels
    slows = "which slows it about 2.2 times. Without it the CPU needs 5 ms"
    ends = "for a step. `capture` measures this time."
    assert plain.notes == (f"The CPU was timed under a profiler, {slows} (3.33 to 7.5 ms) {ends}",)
    assert stacks.notes == (f"The CPU was timed under a profiler with Python stacks, {slows} (2.5 to 10 ms) {ends}",)
    assert is_decisive(plain.notes[0])
    assert is_decisive(stacks.notes[0])  # shown before other notes
    assert predicted(replace(recorded(100, 70e-6), has_python_stacks=True))["LIKE-SMALL"].notes == ()  # device-bound


def test_unprofiled_or_assumed_host_applies_without_kernels() -> None:
    trace = Trace(operations=(), device="cpu", recorder="dispatch", step_seconds=(1.0,))
    timed = work_by_ratio(trace, [SMALL], origin=None, models=MODELS)
    assert calibrate_step(trace, timed, None, Host(2.0)).host.factor == 2
    assert calibrated(trace).residual_seconds == 0
    trace = recorded(100, 10e-6)
    shapes = tuple(replace(operation, kernels=(), host_start_seconds=None) for operation in trace.operations)
    without = replace(trace, operations=shapes)
    median = predicted(without)["BIG"].host_seconds
    read = predicted(replace(without, host_seconds_unprofiled=(median / 2,)))["BIG"]
    assert read.host_seconds == pytest.approx(median / 2)
    assert not any("Host assumed" in note for note in read.notes)


def in_a_loop(trace: Trace, *, host: float) -> Trace:
    """The trace with clock readings of a host that is faster by a factor without the profiler."""
    timed = work_by_ratio(trace, [SMALL], origin=SMALL, models=MODELS)
    replay = RecordedSimulation(trace, timed, HostModel(), GAP)
    return replace(
        trace,
        step_seconds=(replay.seconds(host_factor=host, steps=1),),
        host_seconds_unprofiled=(replay.host_seconds(host),),
        running_step_seconds=replay.seconds(host_factor=host),
        running_steps=8,
    )


# The host bounds the step; the device does; both take about as long, so that waits at the ends count most.
@pytest.mark.parametrize("kernel_seconds", [10e-6, 70e-6, 40e-6])
@pytest.mark.parametrize("host", [1.0, 1 / 2.9, 1 / 3.9])
def test_times_of_a_running_loop_predict_like_its_simulation(kernel_seconds: float, host: float) -> None:
    trace = recorded(400, kernel_seconds, every=40e-6, python=2e-3)
    truth = predicted(trace, host_factor=host)
    live = in_a_loop(trace, host=host)
    assert calibrated(live).host.factor == pytest.approx(host, rel=1e-3)
    for seen in (live, replace(live, running_step_seconds=None)):
        steps = predicted(seen)
        for gpu in OTHERS:
            assert steps[gpu].seconds == pytest.approx(truth[gpu].seconds, rel=2e-3)
            assert steps[gpu].host_seconds == pytest.approx(truth[gpu].host_seconds, rel=1e-3)
            assert not any("profiler" in note for note in steps[gpu].notes)


@pytest.mark.parametrize("kernel_seconds", [10e-6, 70e-6, 40e-6])
def test_step_between_isolated_and_running_time_agrees_with_recording(kernel_seconds: float) -> None:
    trace = recorded(400, kernel_seconds, every=40e-6, python=2e-3)
    truth = predicted(trace)
    live = in_a_loop(trace, host=1.0)
    isolated, running = live.step_seconds[0], live.running_step_seconds
    assert running is not None
    for step in (isolated, running, (isolated + running) / 2):
        steps = predicted(replace(trace, step_seconds=(step,)))
        for gpu in OTHERS:
            assert steps[gpu].seconds == pytest.approx(truth[gpu].seconds, rel=1e-6)


def test_gpu_in_use_has_time_of_running_loop() -> None:
    # 5 ms of Python, then 400 products of 70 us: one after the other in a step that waits, overlapping in a loop.
    live = in_a_loop(recorded(400, 70e-6, python=5e-3), host=1.0)
    (isolated,), running = live.step_seconds, live.running_step_seconds
    assert isolated == pytest.approx(5e-3 + 400 * (70e-6 + GAP), rel=2e-3)
    assert running == pytest.approx(400 * (70e-6 + GAP))
    measured = predicted(live)["SMALL"]
    assert measured.seconds == running
    assert not any("synchronization" in note for note in measured.notes)
    derived = predicted(replace(live, host_seconds_unprofiled=(), running_step_seconds=None))["SMALL"]
    assert derived.seconds == pytest.approx(running)
    assert derived.notes[-1] == (
        "Steps were timed with a synchronization after each: 33.4 ms. A training loop takes 28.4 ms, by the recorded "
        "launches and kernels."
    )
    # If the isolated step takes 3 ms longer than its simulation, the running step does, too.
    longer = replace(live, step_seconds=(isolated + 3e-3,), running_step_seconds=None)
    assert calibrated(longer).residual_seconds == pytest.approx(3e-3, rel=1e-4)
    assert predicted(longer)["SMALL"].seconds == pytest.approx(running + 3e-3)


def test_short_wait_is_kept_and_a_host_that_waits_to_the_end_is_not_calibrated() -> None:
    # 0.3 ms of Python before 28.4 ms of kernels: a running step would be 1 % shorter, less than two clocks differ by.
    live = in_a_loop(recorded(400, 70e-6, python=3e-4), host=1.0)
    (isolated,), running = live.step_seconds, live.running_step_seconds
    assert (1 - NOTICEABLE) * isolated < known(running) < isolated
    shown = predicted(replace(live, running_step_seconds=None))["SMALL"]
    assert shown.seconds == isolated
    assert not any("synchronization" in note for note in shown.notes)
    trace = recorded(400, 70e-6)
    trace = replace(trace, waits=(wait_to_end(0.0),), step_seconds=(0.0284,), host_seconds_unprofiled=(0.0284,))
    assert calibrated(trace).host.factor == 1
    assert calibrated(trace).added_host_seconds == pytest.approx(0, abs=2e-5)


def test_note_if_step_is_far_shorter_than_its_kernels() -> None:
    # 400 products of 70 us and their gaps are 28.4 ms; 6.31 is 4.5 times less, without the gaps 4.44 times.
    steps = predicted(recorded(400, 70e-6, steps=(0.0284 / 4.5,)))
    assert steps["BIG"].notes[-1:] == (
        "The measured step of 6.31 ms is 4.4 times shorter than its recorded kernels (28.4 ms). Times are scaled to "
        "the measured step. Record again: the recording may contain another step or process.",
    )
    assert predicted(recorded(400, 70e-6, steps=(0.0284 * 0.9,)))["BIG"].notes == ()


def test_streams_of_two_gpus_with_the_same_number_are_two_queues() -> None:
    trace = recorded(400, 70e-6)
    operations = [
        replace(operation, kernels=tuple(replace(kernel, device=number % 2) for kernel in operation.kernels))
        for number, operation in enumerate(trace.operations)
    ]
    assert main_queue(trace) == (0, 7)
    one_gpu, two_gpus = (
        predicted(each)["LIKE-SMALL"].seconds for each in (trace, replace(trace, operations=tuple(operations)))
    )
    assert one_gpu == pytest.approx(400 * (70e-6 + GAP))
    # Each kernel of the second GPU begins once the earlier output of the first is there.
    assert two_gpus == pytest.approx(200 * (70e-6 + GAP), rel=0.05)
