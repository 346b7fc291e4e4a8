"""Simulated steps whose times follow from T1 to T5 and START, to the microsecond (all numbers in microseconds)."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.record.trace import Operation, TensorInfo, Trace
from lightning_predict.timeline.simulation import (
    COMPUTE_STREAM,
    HostOperation,
    SimulatedTimeline,
    _number,
    host_operations,
    launch_schedule,
    simulate_timeline,
)
from tests.example_gpu import SMALL
from tests.kernels.example_models import half_speed
from tests.timeline.example_host import HOST, START, T1, T2, T3, T4


def work(*kernels: float, streams: tuple[int, ...] | None = None, waits: bool = False) -> HostOperation:
    """An operation with these kernels, in microseconds."""
    return HostOperation(
        name="op",
        phase="forward",
        seconds=np.array([kernels]).reshape(1, -1) * 1e-6,
        streams=(0,) * len(kernels) if streams is None else streams,
        waits=waits,
    )


def run(*operations: HostOperation, steps: int = 1, gap: float = 0.0) -> SimulatedTimeline:
    return simulate_timeline(launch_schedule(operations, gpus=1, gap_seconds=gap * 1e-6), HOST, steps=steps)


def microseconds(result: SimulatedTimeline) -> float:
    return float(result.seconds[0]) * 1e6


@pytest.mark.parametrize(
    ("operations", "steps", "expected"),
    [
        # T1 + T2 + T4 = 8, START = 2, then 100; the host is done at 10.
        ([work(100)], 1, 10 + 100),
        # The first of three ends at 10.5, when the host is at the second operation's launches.
        ([work(0.5), work(), work()], 1, T1 + T2 + T4 + T3 + 2 * 8),
        # A second kernel waits for the first, or for its launch at 8 + T5 + T4 = 17.
        ([work(100, 50)], 1, 10 + 150),
        ([work(1, 50)], 1, 17 + START + 50),
        # An operation without a kernel takes T1 + 7 = 8 of the host; then the launch at 8 + 8.
        ([work(), work(100)], 1, 16 + START + 100),
        # Two operations overlap with the device: the second is launched at 18, and runs from 110 to 140.
        ([work(100), work(30)], 1, 140),
        # A waiting operation holds the host until the device is done at 110; then T1 + T2 + T4 + START = 10, and 30.
        ([work(100, waits=True), work(30)], 1, 110 + 10 + 30),
        # A copy on another stream follows its input (110 to 170); the next kernel runs from 110 to 150.
        ([work(100), work(60, streams=(1,)), work(40)], 1, 170),
        # A copy on another stream waits for its launch at 8 + 8.
        ([work(), work(60, streams=(1,))], 1, 16 + START + 60),
        # A loop hides launches behind the device, or the device behind launches; with a wait, each step pays both.
        ([work(100), work(30)], 3, 130),
        ([work(1), work(1)], 3, 20),
        ([work(100, waits=True)], 3, 110),
        ([], 1, 0),
    ],
)
def test_step_time_by_hand(operations: list[HostOperation], steps: int, expected: float) -> None:
    assert microseconds(run(*operations, steps=steps)) == pytest.approx(expected)


def test_waits_do_not_count_kernels_have_gaps_and_speed_shortens_them() -> None:
    overlapping = run(work(100), work(30))
    assert float(overlapping.active_seconds[0]) * 1e6 == pytest.approx(130)
    assert overlapping.host_seconds * 1e6 == pytest.approx(20)
    with_copy = run(work(100), work(60, streams=(1,)), work(40))
    assert float(with_copy.active_seconds[0]) * 1e6 == pytest.approx(140)  # of the compute stream
    # The first kernel waits 10 for its launch and ends at 11; the second starts at 10 + 8 + 2 = 20.
    result = run(work(1), work(50))
    np.testing.assert_allclose(result.waiting[0] * 1e6, [10, 9])
    np.testing.assert_allclose(result.busy[0] * 1e6, [1, 50])
    # Starts at 10; 100, a gap of 1, 30 and a gap of 1 for each.
    result = run(work(100), work(30), gap=1)
    assert microseconds(result) == pytest.approx(10 + 100 + 1 + 30 + 1)
    np.testing.assert_allclose(result.kernel_starts[0] * 1e6, [10, 111])
    np.testing.assert_allclose(result.kernel_seconds[0] * 1e6, [100, 30])
    assert float(result.active_seconds[0]) * 1e6 == pytest.approx(130)
    assert float(result.active_with_gaps_seconds[0]) * 1e6 == pytest.approx(132)
    late = [run(work(1), work(1), steps=3, gap=gap) for gap in (0, 1)]  # late launches leave no queue
    assert microseconds(late[0]) == pytest.approx(microseconds(late[1]))
    fast, short = simulate_timeline(launch_schedule([work(100, 30)], gpus=1), HOST, steps=1, speed=2), run(work(50, 15))
    assert microseconds(fast) == microseconds(short) == pytest.approx(10 + 65)
    np.testing.assert_array_equal(fast.kernel_seconds, short.kernel_seconds)


def test_gpus_and_streams_are_simulated_separately() -> None:
    both = HostOperation(name="op", phase="forward", seconds=np.array([[100e-6], [1e-6]]), streams=(0,))
    result = simulate_timeline(launch_schedule([both], gpus=2), HOST, steps=3)
    np.testing.assert_allclose(result.seconds * 1e6, [100, 10])
    main = (1, 7)
    queues = [(gpu, stream) for gpu in (0, 1, 2) for stream in (0, 7, 20) if (gpu, stream) != main]
    assert len({_number(queue, main) for queue in queues} | {COMPUTE_STREAM}) == len(queues) + 1


KERNELS = st.lists(st.floats(0.1, 500), max_size=3)


@given(st.lists(st.tuples(KERNELS, st.booleans()), min_size=1, max_size=20), st.integers(1, 3))
def test_step_is_between_longer_queue_and_sum_of_queues(steps: list[tuple[list[float], bool]], repeats: int) -> None:
    result = run(*(work(*kernels, waits=waits) for kernels, waits in steps), steps=repeats)
    seconds, device, host = result.seconds[0], result.active_seconds[0], result.host_seconds
    idle_starts = (1 + sum(waits for _, waits in steps)) * START * 1e-6
    assert max(device, host) * (1 - 1e-9) <= seconds <= (device + host + idle_starts) * (1 + 1e-9)


@given(st.lists(KERNELS, min_size=1, max_size=20), st.floats(1, 3))
def test_slower_device_never_shortens_step(operations: list[list[float]], slower: float) -> None:
    fast = run(*(work(*kernels) for kernels in operations), steps=3)
    slow = run(*(work(*(kernel * slower for kernel in kernels)) for kernels in operations), steps=3)
    assert slow.seconds[0] >= fast.seconds[0] * (1 - 1e-9)


@pytest.mark.parametrize(("name", "launches", "kernels"), [("aten::mm", 3, 3), ("aten::view", 1, 0)])
def test_operation_time_is_divided_among_its_launches(name: str, launches: int, kernels: int) -> None:
    data = TensorInfo((64, 64), "float32")
    operation = Operation(name=name, phase="forward", inputs=(data, data), outputs=(data,))
    trace = Trace(operations=(operation,), device="cpu", recorder="dispatch")
    timed = predict_work_times(trace, [SMALL], origin=None, models=half_speed("linear/float32"))
    timed = replace(timed, items=tuple(replace(item, launches=launches) for item in timed.items))
    (launched,) = host_operations(trace, timed, np.array([[6e-6], [9e-6]])[:, : len(timed.items)])
    assert launched.seconds == pytest.approx(np.array([[2e-6] * kernels, [3e-6] * kernels]).reshape(2, kernels))
    assert launched.streams == (COMPUTE_STREAM,) * kernels
