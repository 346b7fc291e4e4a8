"""Recorded hosts by hand (all numbers in microseconds)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_predict.record.trace import HostWait, Kernel, Operation, Trace
from lightning_predict.timeline.host import (
    BLOCKED_LAUNCH_SECONDS,
    PROFILER_EVENT_SECONDS,
    PYTHON_SECONDS,
    Overheads,
    recorded_host,
)

EVENT = PROFILER_EVENT_SECONDS * 1e6


def kernel(launched: float, length: float, *, start: float = 0, seconds: float = 1, name: str = "k") -> Kernel:
    """A kernel whose launch call begins at `launched` and takes `length`."""
    return Kernel(
        name=name,
        seconds=seconds * 1e-6,
        grid=(1, 1, 1),
        block=(32, 1, 1),
        registers_per_thread=0,
        shared_memory_bytes=0,
        stream=7,
        start_seconds=start * 1e-6,
        launch_start_seconds=launched * 1e-6,
        launch_seconds=length * 1e-6,
    )


def operation(start: float, length: float, *kernels: Kernel, name: str = "aten::mm") -> Operation:
    return Operation(
        name=name,
        phase="forward",
        kernels=kernels,
        host_start_seconds=start * 1e-6,
        host_seconds=length * 1e-6,
    )


def one(start: float, *, length: float = 20, name: str = "aten::mm") -> Operation:
    """An operation with a launch of 6 that begins 8 after it."""
    return operation(start, length, kernel(start + 8, 6, start=start + 16), name=name)


def trace(*operations: Operation, waits: tuple[HostWait, ...] = (), window: float | None = None) -> Trace:
    return Trace(
        operations=operations,
        device="cuda",
        recorder="profiler",
        waits=waits,
        profiled_seconds=None if window is None else window * 1e-6,
    )


def wait(start: float, length: float, cause: str = "device") -> HostWait:
    return HostWait(start * 1e-6, length * 1e-6, cause)  # type: ignore[arg-type]


def host(recorded: Trace) -> tuple[list[Overheads], list[float], list[bool]]:
    """Overheads, Python work in microseconds, and waits."""
    found = recorded_host(recorded)
    overheads = [own for own in found.overheads if own is not None]
    assert len(overheads) == len(recorded.operations)
    return overheads, [seconds * 1e6 for seconds in found.python_seconds], list(found.waits)


def seconds_of(recorded: Trace) -> float:
    """The whole host in microseconds."""
    overheads, python, _ = host(recorded)
    own = sum(
        own.total_seconds(launches=len(one.kernels)) for own, one in zip(overheads, recorded.operations, strict=True)
    )
    return own * 1e6 + sum(python)


# An operation from 100 to 140: launches at 112 (6 long) and 130 (6 long); the next begins at 150.
TWO = operation(100, 40, kernel(112, 6), kernel(130, 6))
NEXT = operation(150, 40, kernel(162, 6), kernel(180, 6))


def test_the_five_kinds_by_hand_less_the_profilers_own_time() -> None:
    (first, own), python, waits = host(trace(TWO, NEXT))
    assert first.between_operations * 1e6 == pytest.approx(100 - EVENT)  # from the start of the step
    assert own.between_operations * 1e6 == pytest.approx(10 - EVENT)  # 140 to 150
    assert own.before_first_launch * 1e6 == pytest.approx(12 - EVENT)  # 150 to 162
    assert own.launch * 1e6 == pytest.approx(6 - EVENT)
    assert own.between_launches * 1e6 == pytest.approx(12 - EVENT)  # 168 to 180
    assert own.after_last_launch * 1e6 == pytest.approx(4 - EVENT)  # 186 to 190
    assert python == [0, 0]
    assert waits == [False, False]


def test_each_operation_keeps_its_own_time() -> None:
    _, short, long = host(trace(one(0), one(30), one(60, length=500)))[0]
    assert short.after_last_launch * 1e6 == pytest.approx(6 - EVENT)
    assert long.after_last_launch * 1e6 == pytest.approx(486 - EVENT)


def test_an_operation_without_a_launch_counts_whole() -> None:
    _, view = host(trace(one(0), operation(30, 9, name="aten::view")))[0]
    assert view.without_launch * 1e6 == pytest.approx(9 - EVENT)


def test_marks_around_modules_are_the_recorders_own_time() -> None:
    # 140 to 150 between two modules: one mark ends there and another begins, in addition to the event of the operation.
    first, second = (replace(own, module=name) for own, name in zip((TWO, NEXT), ("a", "b"), strict=True))
    _, own = host(trace(first, second))[0]
    assert own.between_operations * 1e6 == pytest.approx(10 - 3 * EVENT)


def test_python_work_before_between_and_after_operations_counts() -> None:
    # 3,000 before the first operation, 20,000 between the two, and 4,000 after the second, when the device is done.
    recorded = trace(one(3_000), one(23_020), window=27_040)
    overheads, python, waits = host(recorded)
    assert python == pytest.approx([3_000 - EVENT, 20_000 - EVENT])
    assert overheads[1].after_last_launch * 1e6 == pytest.approx(6 - EVENT + 4_000)
    assert waits == [False, False]
    # All but eight events, two of T1, T2, T3 and T4.
    assert seconds_of(recorded) == pytest.approx(27_040 - 8 * EVENT)


def test_a_pause_of_the_framework_is_no_python_work() -> None:
    (_, own), python, _ = host(trace(one(0), one(20 + 0.9 * PYTHON_SECONDS * 1e6)))
    assert python == [0, 0]
    assert own.between_operations * 1e6 == pytest.approx(0.9 * PYTHON_SECONDS * 1e6 - EVENT)


def test_a_step_that_ends_with_the_recorders_wait_for_the_device_ends_with_its_operations() -> None:
    # The device is busy until 5,000; the rest of the recorder's window until then is a wait.
    busy = operation(0, 20, kernel(8, 6, start=16, seconds=4_984))
    assert seconds_of(trace(busy, window=5_010)) == pytest.approx(20 - 3 * EVENT + 10)


def test_a_synchronization_is_a_wait_and_no_time_of_the_host() -> None:
    # In the pause behind the first of three operations, from 30 to 2,030; the loader's, from 2,060 to 2,560, waits for
    # no device.
    recorded = trace(one(0), one(2_040), one(2_580), waits=(wait(30, 2_000), wait(2_062, 500, "loader")))
    overheads, python, waits = host(recorded)
    assert python == [0, 0, 0]
    assert overheads[1].between_operations * 1e6 == pytest.approx(20 - EVENT)
    assert overheads[2].between_operations * 1e6 == pytest.approx(20 - EVENT)
    assert waits == [True, False, False]


def test_a_synchronization_within_an_operation_is_one_after_it() -> None:
    # From 14, where its launch ends, to 1,014.
    (own, _), _, waits = host(trace(one(0, length=1_020), one(1_030), waits=(wait(14, 1_000),)))
    assert own.after_last_launch * 1e6 == pytest.approx(6 - EVENT)
    assert waits == [True, False]


def test_waits_before_the_first_and_behind_the_last_operation_are_the_recorders() -> None:
    recorded = trace(one(510), waits=(wait(5, 500), wait(540, 300)), window=850)
    assert host(recorded)[2] == [False]
    assert seconds_of(recorded) == pytest.approx(850 - 800 - 4 * EVENT)


def test_a_launch_into_a_full_queue_is_a_wait_for_a_place_in_it() -> None:
    usual = [one(30 * number) for number in range(9)]
    blocked = operation(270, 5_014, kernel(278, 5_000))
    overheads, _, waits = host(trace(*usual, blocked))
    assert overheads[-1].launch * 1e6 == pytest.approx(6 - EVENT)
    assert overheads[-1].after_last_launch * 1e6 == pytest.approx(6 - EVENT)
    assert not any(waits)


def test_the_first_launches_of_a_slow_host_are_not_blocked() -> None:
    just = 0.9 * BLOCKED_LAUNCH_SECONDS * 1e6
    overheads, _, _ = host(trace(*(one(30 * number) for number in range(9)), operation(270, 100, kernel(278, just))))
    assert overheads[-1].launch * 1e6 == pytest.approx(just - EVENT)


def test_a_copy_to_pageable_memory_waits_for_the_device() -> None:
    # Behind kernels until 130,000, as facebook/timesformer's logits are in a published recording.
    copy = kernel(288, 129_700, start=129_980, seconds=3, name="Memcpy DtoH (Device -> Pageable)")
    copying = operation(270, 129_750, copy, name="aten::_to_copy")
    recorded = trace(*(one(30 * number) for number in range(9)), copying)
    _, _, waits = host(recorded)
    assert waits == [False] * 9 + [True]
    assert seconds_of(recorded) < 400


def test_a_large_copy_from_pageable_memory_waits_and_a_small_one_is_staged() -> None:
    usual = [one(30 * number) for number in range(9)]
    large = kernel(278, 3_616, start=290, seconds=3_461, name="Memcpy HtoD (Pageable -> Device)")
    small = kernel(278, 8, start=290, seconds=1, name="Memcpy HtoD (Pageable -> Device)")
    assert host(trace(*usual, operation(270, 3_640, large)))[2][-1]
    assert not host(trace(*usual, operation(270, 30, small)))[2][-1]


def test_a_number_that_the_host_reads_waits_where_the_driver_showed_no_call_for_it() -> None:
    # The copy ends at 900; its launch has ended at 44.
    read = kernel(38, 6, start=899, seconds=1, name="Memcpy DtoH (Device -> Pinned)")
    recorded = trace(one(0), operation(30, 890, read, name="aten::_local_scalar_dense"))
    _, _, waits = host(recorded)
    assert waits == [False, True]
    assert seconds_of(recorded) < 100


def test_a_number_of_a_tensor_on_the_cpu_waits_for_nothing() -> None:
    assert host(trace(one(0), operation(30, 5, name="aten::_local_scalar_dense")))[2] == [False, False]


def test_device_work_whose_call_was_not_seen_takes_no_time_of_the_host() -> None:
    stray = Operation(name="unattributed", phase="other", kernels=(replace(kernel(0, 0), launch_seconds=None),))
    assert seconds_of(trace(one(0), stray)) == pytest.approx(seconds_of(trace(one(0))))


def test_without_launches_the_table_serves_and_python_work_still_counts() -> None:
    # CUPTI was not permitted: operations from 0 to 10 and from 30,010 to 30,020.
    found = recorded_host(trace(operation(0, 10), operation(30_010, 10)))
    assert set(found.overheads) == {None}
    assert [seconds * 1e6 for seconds in found.python_seconds] == pytest.approx([0, 30_000 - EVENT])
    assert found.waits == (True, False)  # it is unknown whether it waits: an environment needs the action


def test_a_recorder_on_the_cpu_says_what_it_timed() -> None:
    step = Operation(name="aten::mm", phase="forward")
    later = replace(step, python_seconds=0.03)
    found = recorded_host(Trace(operations=(step, later, step), device="cpu", recorder="dispatch"))
    assert not any(found.overheads)
    assert list(found.python_seconds) == [0, 0.03, 0]
    assert list(found.waits) == [True, False, False]


def test_work_before_the_first_operation_follows_the_step_before() -> None:
    step = Operation(name="aten::mm", phase="forward")
    found = recorded_host(
        Trace(operations=(replace(step, python_seconds=0.03), step), device="cpu", recorder="dispatch")
    )
    assert found.waits == (False, True)


def test_what_a_result_is_waited_for_is_until_its_kernel_ends() -> None:
    # Launched at 14, the kernel runs from 40 to 70; of the 86 until the operation ends at 100, 56 are the device's.
    found = recorded_host(trace(operation(0, 100, kernel(8, 6, start=40, seconds=30), name="aten::item"))).overheads[0]
    assert found is not None
    assert found.after_last_launch == pytest.approx((86 - 56 - EVENT) * 1e-6)
