"""Hand-made steps whose times follow from T1 to T5 and START, to the microsecond (all numbers in microseconds)."""

from __future__ import annotations

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


def run(*operations: HostOperation, steps: int = 1) -> SimulatedTimeline:
    return simulate_timeline(launch_schedule(operations, gpus=1), HOST, steps=steps)


def microseconds(result: SimulatedTimeline) -> float:
    return float(result.seconds[0]) * 1e6


def test_one_kernel_starts_after_its_launch() -> None:
    # T1 + T2 + T4 = 8, START = 2, then 100; the host is done at 10.
    assert microseconds(run(work(100))) == pytest.approx(10 + 100)


def test_a_short_kernel_ends_before_the_host() -> None:
    # The first of three ends at 10.5, when the host is at the second operation's launches.
    assert microseconds(run(work(0.5), work(), work())) == pytest.approx(T1 + T2 + T4 + T3 + 2 * 8)


def test_a_second_kernel_waits_for_the_first() -> None:
    assert microseconds(run(work(100, 50))) == pytest.approx(10 + 150)


def test_a_second_kernel_waits_for_its_launch() -> None:
    # Launched at 8 and at 8 + T5 + T4 = 17.
    assert microseconds(run(work(1, 50))) == pytest.approx(17 + START + 50)


def test_an_operation_without_a_kernel_takes_the_hosts_time() -> None:
    # T1 + 7 = 8, then the launch at 8 + 8.
    assert microseconds(run(work(), work(100))) == pytest.approx(16 + START + 100)


def test_two_operations_overlap_with_the_device() -> None:
    # First: launch at 8, host done at 10, device until 110. Second: launched at 18, runs 110 to 140.
    result = run(work(100), work(30))
    assert microseconds(result) == pytest.approx(140)
    assert float(result.active_seconds[0]) * 1e6 == pytest.approx(130)
    assert result.host_seconds * 1e6 == pytest.approx(20)


def test_a_waiting_operation_holds_the_host_until_the_device_is_done() -> None:
    # Device until 110; then T1 + T2 + T4 + START = 10 and 30.
    assert microseconds(run(work(100, waits=True), work(30))) == pytest.approx(110 + 10 + 30)


def test_a_copy_beside_the_compute_stream_overlaps_what_follows() -> None:
    # Compute 100 (10 to 110), the copy follows its result (110 to 170), the next kernel runs at the same time (110 to
    # 150).
    result = run(work(100), work(60, streams=(1,)), work(40))
    assert microseconds(result) == pytest.approx(170)
    assert float(result.active_seconds[0]) * 1e6 == pytest.approx(140)


def test_a_copy_beside_the_compute_stream_waits_for_its_launch() -> None:
    # As a kernel of the compute stream does: launched at 8 + 8, behind an operation without one.
    assert microseconds(run(work(), work(60, streams=(1,)))) == pytest.approx(16 + START + 60)


def test_a_running_loop_hides_the_launches_behind_the_device() -> None:
    assert microseconds(run(work(100), work(30), steps=3)) == pytest.approx(130)


def test_a_running_loop_of_short_kernels_takes_the_hosts_time() -> None:
    assert microseconds(run(work(1), work(1), steps=3)) == pytest.approx(20)


def test_a_running_loop_that_waits_pays_both() -> None:
    # Every step: start at 10, device to 110, host goes on from there.
    assert microseconds(run(work(100, waits=True), steps=3)) == pytest.approx(110)


def test_waiting_and_busy_time_are_attributed_to_operations() -> None:
    result = run(work(1), work(50))
    # The first kernel waits 10 for its launch and ends at 11; the second starts at 10 + 8 + 2 = 20.
    np.testing.assert_allclose(result.waiting[0] * 1e6, [10, 9])
    np.testing.assert_allclose(result.busy[0] * 1e6, [1, 50])


def test_gpus_are_simulated_apart() -> None:
    both = HostOperation(name="op", phase="forward", seconds=np.array([[100e-6], [1e-6]]), streams=(0,))
    result = simulate_timeline(launch_schedule([both], gpus=2), HOST, steps=3)
    np.testing.assert_allclose(result.seconds * 1e6, [100, 10])


def test_faster_kernels_are_what_shorter_ones_are() -> None:
    fast, short = simulate_timeline(launch_schedule([work(100, 30)], gpus=1), HOST, steps=1, speed=2), run(work(50, 15))
    assert microseconds(fast) == microseconds(short) == pytest.approx(10 + 65)
    np.testing.assert_array_equal(fast.kernel_seconds, short.kernel_seconds)


def test_nothing_takes_no_time() -> None:
    assert microseconds(run()) == 0


KERNELS = st.lists(st.floats(0.1, 500), max_size=3)


@given(st.lists(st.tuples(KERNELS, st.booleans()), min_size=1, max_size=20), st.integers(1, 3))
def test_a_step_is_between_the_later_queue_and_both_in_turn(
    steps: list[tuple[list[float], bool]], repeats: int
) -> None:
    result = run(*(work(*kernels, waits=waits) for kernels, waits in steps), steps=repeats)
    seconds, device, host = result.seconds[0], result.active_seconds[0], result.host_seconds
    idle_starts = (1 + sum(waits for _, waits in steps)) * START * 1e-6
    assert max(device, host) * (1 - 1e-9) <= seconds <= (device + host + idle_starts) * (1 + 1e-9)


def test_a_stream_leaves_a_gap_between_kernels_that_wait_in_it() -> None:
    # Starts at 10; 100, a gap of 1, 30 and a gap of 1 for each.
    result = simulate_timeline(launch_schedule([work(100), work(30)], gpus=1, gap_seconds=1e-6), HOST, steps=1)
    assert microseconds(result) == pytest.approx(10 + 100 + 1 + 30 + 1)
    np.testing.assert_allclose(result.kernel_starts[0] * 1e6, [10, 111])
    np.testing.assert_allclose(result.kernel_seconds[0] * 1e6, [100, 30])
    assert float(result.active_seconds[0]) * 1e6 == pytest.approx(130)
    assert float(result.active_with_gaps_seconds[0]) * 1e6 == pytest.approx(132)


def test_a_gap_makes_no_difference_where_launches_come_late() -> None:
    order = launch_schedule([work(1), work(1)], gpus=1, gap_seconds=1e-6)
    assert microseconds(simulate_timeline(order, HOST)) == pytest.approx(microseconds(run(work(1), work(1), steps=3)))


@given(st.lists(KERNELS, min_size=1, max_size=20), st.floats(1, 3))
def test_a_slower_device_never_makes_a_shorter_step(operations: list[list[float]], slower: float) -> None:
    fast = run(*(work(*kernels) for kernels in operations), steps=3)
    slow = run(*(work(*(kernel * slower for kernel in kernels)) for kernels in operations), steps=3)
    assert slow.seconds[0] >= fast.seconds[0] * (1 - 1e-9)


def test_streams_of_the_gpus_on_both_sides_of_the_main_one_are_two_queues() -> None:
    main = (1, 7)
    queues = [(gpu, stream) for gpu in (0, 1, 2) for stream in (0, 7, 20) if (gpu, stream) != main]
    assert len({_number(queue, main) for queue in queues} | {COMPUTE_STREAM}) == len(queues) + 1


def test_an_operation_of_three_kernels_that_were_not_measured_has_a_third_of_its_time_for_each() -> None:
    data = TensorInfo((64, 64), "float32")
    operation = Operation(name="aten::mm", phase="forward", inputs=(data, data), outputs=(data,))
    trace = Trace(operations=(operation,), device="cpu", recorder="dispatch")
    timed = predict_work_times(trace, [SMALL], origin=None, models=half_speed("linear/float32"))
    timed = replace(timed, items=tuple(replace(item, launches=3) for item in timed.items))
    (found,) = host_operations(trace, timed, np.array([[6e-6], [9e-6]]))
    assert found.seconds == pytest.approx(np.array([[2e-6] * 3, [3e-6] * 3]))
    assert found.streams == (COMPUTE_STREAM,) * 3


def test_an_operation_that_starts_nothing_has_no_device_time() -> None:
    data = TensorInfo((64, 64), "float32")
    view = Operation(name="aten::view", phase="forward", inputs=(data,), outputs=(data,))
    trace = Trace(operations=(view,), device="cpu", recorder="dispatch")
    timed = predict_work_times(trace, [SMALL], origin=None, models=half_speed("linear/float32"))
    (found,) = host_operations(trace, timed, np.zeros((2, 0)))
    assert found.seconds.shape == (2, 0)
    assert found.streams == ()
