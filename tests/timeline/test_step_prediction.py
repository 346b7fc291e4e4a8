import math
from dataclasses import replace

import numpy as np
import pytest

from lightning_predict.base.interval import Interval
from lightning_predict.kernels.measured_scaling import WorkTimes, predict_work_times
from lightning_predict.kernels.operations import Array, operation_shape
from lightning_predict.kernels.translation import WorkItem
from lightning_predict.record.trace import HostWait, Kernel, Operation, TensorInfo, Trace
from lightning_predict.timeline.calibration import GAP_SECONDS
from lightning_predict.timeline.host import LIBRARY_SECONDS, PROFILER_SLOWDOWN, Host, HostModel
from lightning_predict.timeline.simulation import START_SECONDS
from lightning_predict.timeline.step_prediction import StepPrediction, predict_steps
from lightning_predict.uncertainty import MEASURED_SPREAD, SLOWEST_HOST, interval_of_sum, wait_elsewhere
from tests.example_gpu import BIG, OLD, SMALL
from tests.kernels.example_models import half_speed
from tests.timeline.example_host import work_by_ratio

LARGE, TINY = TensorInfo((4096, 4096), "float32"), TensorInfo((4, 4), "float32")
MODELS = half_speed("linear/float32")

LAUNCH_SECONDS = HostModel().overheads("forward", None, LIBRARY_SECONDS["aten::mm"]).total_seconds(launches=1)
"""Of a product on a median host: 13.3 us and 10 for the library."""


def product(data: TensorInfo, phase: str = "forward") -> Operation:
    return Operation(name="aten::mm", phase=phase, inputs=(data, data), outputs=(data,))  # type: ignore[arg-type]


def cpu_trace(*operations: Operation) -> Trace:
    return Trace(operations=operations, device="cpu", recorder="dispatch")


def timed(*families: str, seconds: list[float], low: list[float], high: list[float]) -> WorkTimes:
    return WorkTimes(
        items=tuple(WorkItem((i,), (), 1) for i in range(len(families))),
        families=families,
        phases=tuple("forward" for _ in families),
        interval=Interval(np.array([low]), np.array([seconds]), np.array([high])),
        shares={"mlp": np.ones((1, len(families)))},
    )


def test_large_operations_are_device_bound_and_tiny_ones_host_bound() -> None:
    trace = cpu_trace(product(LARGE))
    (step,) = predict_steps(trace, predict_work_times(trace, [SMALL], origin=None, models=MODELS), [SMALL])
    assert math.isclose(step.seconds, 2 * 2 * 4096**3 / 1e12)  # the model's time holds the gap between kernels
    assert step.bound_by == "device"
    assert step.seconds <= step.device_seconds
    assert step.coverage == {"mlp": 1.0}
    trace = cpu_trace(*[product(TINY)] * 100)
    steps = predict_steps(trace, predict_work_times(trace, [SMALL, BIG], origin=None, models=MODELS), [SMALL, BIG])
    for step in steps:
        assert math.isclose(step.seconds, 100 * LAUNCH_SECONDS)
        assert step.bound_by == "host"
        assert math.isclose(step.high_seconds, SLOWEST_HOST * step.seconds)
        assert step.seconds > step.device_seconds
    trace = cpu_trace(product(LARGE), product(LARGE, "backward"), product(LARGE, "backward"))
    (step,) = predict_steps(trace, predict_work_times(trace, [SMALL], origin=None, models=MODELS), [SMALL])
    assert math.isclose(step.forward_seconds, step.device_seconds / 3)


def summands(work: WorkTimes) -> tuple[Interval[Array], tuple[str, ...], list[object]]:
    return work.interval, work.families, [item.shapes for item in work.items]


def test_errors_of_a_sum_are_common_by_shape_and_network() -> None:
    together = timed("linear", "linear", seconds=[1, 1], low=[0.7, 0.6], high=[1.3, 1.4])
    low, high = interval_of_sum(*summands(together))
    assert [float(low[0]), float(high[0])] == pytest.approx([2 - 0.7, 2 + 0.7])
    work = timed("linear", "linear", seconds=[1, 1], low=[0.7, 0.6], high=[1.3, 1.4])
    other = replace(work.items[1], shapes=(operation_shape("linear", "float32", b=1, m=2, n=2, k=2),))
    low, high = interval_of_sum(*summands(replace(work, items=(work.items[0], other))))
    half = math.sqrt(0.37)  # half of 0.3² + 0.4² = 0.25 and half of (0.3 + 0.4)² = 0.49
    assert [float(low[0]), float(high[0])] == pytest.approx([2 - half, 2 + half])
    apart = timed("linear", "add", seconds=[1, 1], low=[0.7, 0.6], high=[1.3, 1.4])
    low, high = interval_of_sum(*summands(apart))
    half = math.sqrt(0.75 * 0.25 + 0.25 * 0.49)
    assert [float(low[0]), float(high[0])] == pytest.approx([2 - half, 2 + half])


def measured_trace(step_seconds: float, *, kernels: int = 1, kernel_seconds: float = 0.5) -> Trace:
    kernel = Kernel(
        name="gemm",
        seconds=kernel_seconds,
        grid=(10_000, 1, 1),
        block=(256, 1, 1),
        registers_per_thread=64,
        shared_memory_bytes=0,
        stream=7,
        start_seconds=0,
    )
    operation = replace(product(LARGE), kernels=(kernel,))
    return Trace(
        operations=(operation,) * kernels,
        device="cuda",
        recorder="profiler",
        step_seconds=(step_seconds * 0.98, step_seconds, step_seconds * 1.03),
    )


def test_gpu_in_use_has_measured_step() -> None:
    trace = measured_trace(0.51)
    work = work_by_ratio(trace, [SMALL, BIG], origin=SMALL, models=MODELS)
    own, other = predict_steps(trace, work, [SMALL, BIG], origin=SMALL)
    assert own.seconds == 0.51
    # Three steps at 0.98, 1 and 1.03 of the middle; repeated runs differ by 5 %, their median by its root of 3.
    assert own.low_seconds == pytest.approx(0.51 / MEASURED_SPREAD ** (1 / math.sqrt(3)))
    assert own.high_seconds == 0.51 * 1.03
    # Half of the measured kernel, and the 10 ms that it does not explain.
    # In a running loop the first launch, of 23.9 us, is made while the GPU still works.
    assert other.seconds == pytest.approx(0.25 + 0.01 - 23.9e-6)


def test_time_outside_operations_is_added_on_every_gpu() -> None:
    # 100 kernels of 30 us and gaps of 1 us, the first 23.9 us after the start: 3,123.9 us of a step of 5 ms.
    trace = measured_trace(5e-3, kernels=100, kernel_seconds=30e-6)
    work = work_by_ratio(trace, [BIG], origin=SMALL, models=MODELS)
    beyond = 5000 - (23.9 + 100 * (30 + 1))
    (other,) = predict_steps(trace, work, [BIG], origin=SMALL)
    # BIG takes 15 us for a kernel, and waits for 100 launches, of 23.3 us each.
    assert other.seconds * 1e6 == pytest.approx(100 * 23.3 + beyond)
    assert other.bound_by == "host"
    assert other.device_seconds * 1e6 == pytest.approx(100 * 15)
    assumed, said = other.notes
    assert assumed.startswith("Host assumed: ")
    assert said == (
        "The measured step has 1.88 ms (38%) outside operations (Python work, data, waits). This counts as host time "
        "on every GPU."
    )
    # A host twice as fast launches each within 11.65 us, so that the device bounds the step.
    (half,) = predict_steps(trace, work, [BIG], origin=SMALL, host=Host(0.5))
    assert half.seconds * 1e6 == pytest.approx(100 * (15 + 1) + beyond)


def test_note_and_doubt_if_assumed_host_may_be_bottleneck() -> None:
    # A median host takes 23.3 us for each of 100 products, nine in ten 1/2 to 3/2 times that: 1.16 to 3.49 ms.
    trace = cpu_trace(*[product(LARGE)] * 100)
    work = predict_work_times(trace, [SMALL], origin=None, models=MODELS)

    def step(device: float) -> StepPrediction:
        each = np.full((1, 100), device / 100)
        (prediction,) = predict_steps(trace, replace(work, interval=Interval.from_factor(each, 1.0)), [SMALL])
        return prediction

    said = (
        "Host assumed: the CPU was not measured. A median CPU needs 2.33 ms (1.16 to 3.49 ms) to launch the step, "
        "possibly more than the GPU.",
    )
    short, similar, longer, long = (step(device) for device in (1e-3, 2e-3, 3e-3, 6e-3))
    verdicts = [prediction.verdict for prediction in (short, similar, longer, long) if prediction.verdict is not None]
    assert [(verdict.bound_by, verdict.is_doubtful) for verdict in verdicts] == [
        ("host", False),
        ("host", True),
        ("device", True),
        ("device", False),
    ]
    assert verdicts[1].sentence.startswith("perhaps bound by the host: ")
    assert short.notes == similar.notes == longer.notes == said
    assert long.notes == ()
    assert 3.49e-3 < longer.high_seconds < 1.1 * 3.49e-3  # the time of a slow host, or of a slow device


def test_note_on_emulated_dtype_and_missing_float8_units() -> None:
    trace = cpu_trace(product(TensorInfo((4096, 4096), "bfloat16")))
    old, new = predict_steps(trace, predict_work_times(trace, [OLD, SMALL], origin=None, models=None), [OLD, SMALL])
    assert old.notes == ("No bfloat16 hardware: emulation is assumed.",)
    assert new.notes == ()
    trace = cpu_trace(
        Operation(name="aten::_scaled_mm", phase="forward", inputs=(TensorInfo((4096, 4096), "float8_e4m3fn"),) * 2)
    )
    (step,) = predict_steps(trace, predict_work_times(trace, [OLD], origin=None, models=None), [OLD])
    assert step.notes == ("No float8 hardware: torch cannot run this step here. Predicted with float32 products.",)


def test_note_on_kernels_without_time() -> None:
    fused = Operation(name="triton::fused", phase="forward", kernels=(measured_trace(1.0).kernels[0],))
    trace = Trace(operations=(product(LARGE), fused), device="cuda", recorder="profiler")
    (step,) = predict_steps(trace, predict_work_times(trace, [SMALL], origin=None, models=MODELS), [SMALL])
    assert step.notes == ("1 operations could not be timed and count as zero: triton::fused.",)
    counter = TensorInfo((), "float32", device="cpu")  # of the steps of an optimizer, to which the CPU adds one
    counting = Operation(name="aten::_foreach_add_", phase="optimizer", inputs=(counter,) * 2)
    trace = replace(trace, operations=(product(LARGE), counting))
    (step,) = predict_steps(trace, predict_work_times(trace, [SMALL], origin=None, models=MODELS), [SMALL])
    assert step.notes == ()


SLOWER, START, GAP = PROFILER_SLOWDOWN, START_SECONDS * 1e6, GAP_SECONDS * 1e6
T1, T2, T3, T4, T5 = 5.0, 6.0, 2.0, 4.0, 3.0  # Microseconds without the profiler, which slows each by the same factor

RECORDED = [value * SLOWER for value in (T1, T2, T4, T5, T4, T3)]


def profiled(number: int, kernel_microseconds: float) -> Operation:
    """Operation `number` of a row, each of two kernels, as a profiler records it."""
    gap, *inside = RECORDED
    start = (number * (gap + sum(inside)) + gap) * 1e-6
    launched = (start + inside[0] * 1e-6, start + sum(inside[:3]) * 1e-6)
    kernels = tuple(
        replace(
            measured_trace(1.0).kernels[0],
            seconds=kernel_microseconds * 1e-6,
            launch_start_seconds=moment,
            launch_seconds=T4 * SLOWER * 1e-6,
        )
        for moment in launched
    )
    return replace(product(LARGE), kernels=kernels, host_start_seconds=start, host_seconds=sum(inside) * 1e-6)


def microseconds(*operations: Operation, waits: tuple[HostWait, ...] = ()) -> float:
    """A step recorded on SMALL, predicted on BIG, which takes half as long for a product."""
    trace = Trace(operations=operations, device="cuda", recorder="profiler", waits=waits)
    work = work_by_ratio(trace, [BIG], origin=SMALL, models=half_speed("linear/float32"))
    (step,) = predict_steps(trace, work, [BIG], origin=SMALL)
    return step.seconds * 1e6


def test_recorded_overheads_and_waits_give_step_time() -> None:
    # T1 + T2 + T4 + T5 + T4 + T3 = 24 for each of three operations, whose kernels of 1 are done long before.
    assert microseconds(*(profiled(n, 2) for n in range(3))) == pytest.approx(3 * (T1 + T2 + T4 + T5 + T4 + T3))
    # Six kernels of 50, launched well ahead, and a gap behind each.
    assert microseconds(*(profiled(n, 100) for n in range(3))) == pytest.approx(6 * (50 + GAP))
    # Launched at T1 + T2 + T4 = 15, two kernels of 50 run from 17 until 119. Reading the result is a call of 9 that
    # synchronizes: the host is done with it at 24 + T1 + 9 = 38, and then waits until 119, where the next step begins.
    read = Operation(
        name="aten::_local_scalar_dense",
        phase="forward",
        inputs=(TensorInfo((), "float32"),),
        host_start_seconds=(sum(RECORDED) + RECORDED[0]) * 1e-6,
        host_seconds=(1000 + 9 * SLOWER) * 1e-6,
    )
    waits = (HostWait((sum(RECORDED) + RECORDED[0] + 3) * 1e-6, 1000e-6, "device"),)
    expected = T1 + T2 + T4 + START + 2 * (50 + GAP)
    assert microseconds(profiled(0, 100), read, waits=waits) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("steps", "is_most", "longest"),
    [
        ((), False, 0.02 * MEASURED_SPREAD),
        ((0.1, 0.15, 0.12), False, 0.03),  # in other steps, it may be longer by as much as these differ
        ((0.03,), False, 0.02 * MEASURED_SPREAD),
        ((0.03,), True, 0.03),  # the measured step may be nothing but its wait
    ],
)
def test_wait_may_be_longer_than_recorded(steps: tuple[float, ...], is_most: bool, longest: float) -> None:
    wait = wait_elsewhere(0.02, steps, is_most=is_most)
    assert (wait.low, wait.middle) == (0, 0.02)
    assert wait.high == pytest.approx(longest)
