"""Recorded hosts by hand (all numbers in microseconds)."""

from dataclasses import replace

import pytest

from lightning_predict.record.trace import HostWait, Kernel, Operation, Trace
from lightning_predict.timeline.host import (
    BLOCKED_LAUNCH_SECONDS,
    PROFILER_SLOWDOWN,
    PYTHON_SECONDS,
    Overheads,
    recorded_host,
)

SLOWER = PROFILER_SLOWDOWN


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
        name=name, phase="forward", kernels=kernels, host_start_seconds=start * 1e-6, host_seconds=length * 1e-6
    )


def launching(start: float, *, length: float = 20, name: str = "aten::mm") -> Operation:
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
    measured = recorded_host(recorded)
    overheads = [own for own in measured.overheads if own is not None]
    assert len(overheads) == len(recorded.operations)
    return overheads, [seconds * 1e6 for seconds in measured.python_seconds], list(measured.waits)


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


def test_profiler_slows_each_of_five_overheads() -> None:
    (first, own), python, waits = host(trace(TWO, NEXT))
    assert first.between_operations * 1e6 == pytest.approx(100 / SLOWER)  # from the start of the step
    assert own.between_operations * 1e6 == pytest.approx(10 / SLOWER)  # 140 to 150
    assert own.before_first_launch * 1e6 == pytest.approx(12 / SLOWER)  # 150 to 162
    assert own.launch * 1e6 == pytest.approx(6 / SLOWER)
    assert own.between_launches * 1e6 == pytest.approx(12 / SLOWER)  # 168 to 180
    assert own.after_last_launch * 1e6 == pytest.approx(4 / SLOWER)  # 186 to 190
    assert (python, waits) == ([0, 0], [False, False])


def test_short_pauses_are_framework_time_and_each_operation_has_its_own() -> None:
    overheads = host(trace(launching(0), launching(30), launching(60, length=500), operation(570, 9)))[0]
    assert overheads[1].after_last_launch * 1e6 == pytest.approx(6 / SLOWER)
    assert overheads[2].after_last_launch * 1e6 == pytest.approx(486 / SLOWER)
    assert overheads[3].without_launch * 1e6 == pytest.approx(9 / SLOWER)
    (_, own), python, _ = host(trace(launching(0), launching(20 + 0.9 * PYTHON_SECONDS * 1e6)))
    assert python == [0, 0]
    assert own.between_operations * 1e6 == pytest.approx(0.9 * PYTHON_SECONDS * 1e6 / SLOWER)


def test_python_work_counts_and_synchronizations_are_waits() -> None:
    # 3,000 before the first operation, 20,000 between the two, and 4,000 after the second, when the device is done.
    recorded = trace(launching(3_000), launching(23_020), window=27_040)
    overheads, python, waits = host(recorded)
    assert python == pytest.approx([3_000, 20_000])
    assert overheads[1].after_last_launch * 1e6 == pytest.approx(6 / SLOWER + 4_000)
    assert waits == [False, False]
    # Two operations of 20, in addition to the Python work.
    assert seconds_of(recorded) == pytest.approx(27_000 + 40 / SLOWER)
    # After the first of three operations, from 30 to 2,030. The loader's wait from 2,060 to 2,560 is not of the device.
    recorded = trace(
        launching(0), launching(2_040), launching(2_580), waits=(wait(30, 2_000), wait(2_062, 500, "loader"))
    )
    overheads, python, waits = host(recorded)
    assert (python, waits) == ([0, 0, 0], [True, False, False])
    for own in overheads[1:]:
        assert own.between_operations * 1e6 == pytest.approx(20 / SLOWER)
    # Inside an operation: from 14, when its launch ends, to 1,014.
    (own, _), _, waits = host(trace(launching(0, length=1_020), launching(1_030), waits=(wait(14, 1_000),)))
    assert own.after_last_launch * 1e6 == pytest.approx(6 / SLOWER)
    assert waits == [True, False]
    # The copy ends at 900; its launch has ended at 44.
    read = kernel(38, 6, start=899, seconds=1, name="Memcpy DtoH (Device -> Pinned)")
    recorded = trace(launching(0), operation(30, 890, read, name="aten::_local_scalar_dense"))
    assert host(recorded)[2] == [False, True]
    assert seconds_of(recorded) < 100
    # Launched at 14, the kernel runs from 40 to 70; of the 86 until the operation ends at 100, 56 are the device's.
    (overhead,) = host(trace(operation(0, 100, kernel(8, 6, start=40, seconds=30), name="aten::item")))[0]
    assert overhead.after_last_launch == pytest.approx((86 - 56) / SLOWER * 1e-6)
    on_cpu = trace(launching(0), operation(30, 5, name="aten::_local_scalar_dense"))
    assert host(on_cpu)[2] == [False, False]


def test_wait_of_recorder_at_end_of_step_does_not_count() -> None:
    # The device is busy until 5,000; the rest of the recorder's window until then is a wait.
    busy = operation(0, 20, kernel(8, 6, start=16, seconds=4_984))
    assert seconds_of(trace(busy, window=5_010)) == pytest.approx(20 / SLOWER + 10)
    around = trace(launching(510), waits=(wait(5, 500), wait(540, 300)), window=850)
    assert host(around)[2] == [False]
    assert seconds_of(around) == pytest.approx(30 / SLOWER + 20)


USUAL = [launching(30 * number) for number in range(9)]


@pytest.mark.parametrize(
    ("length", "launch", "counted"),
    [
        (5_014, 5_000, 6),  # blocked by a full queue
        (100, 0.9 * BLOCKED_LAUNCH_SECONDS * 1e6, 0.9 * BLOCKED_LAUNCH_SECONDS * 1e6),  # a slow host
    ],
)
def test_launch_into_full_queue_counts_as_usual_launch(length: float, launch: float, counted: float) -> None:
    overheads, _, waits = host(trace(*USUAL, operation(270, length, kernel(278, launch))))
    assert overheads[-1].launch * 1e6 == pytest.approx(counted / SLOWER)
    assert not any(waits)


@pytest.mark.parametrize(
    ("name", "length", "launch", "waits"),
    [
        ("Memcpy DtoH (Device -> Pageable)", 129_750, 129_700, True),  # behind kernels until 130,000
        ("Memcpy HtoD (Pageable -> Device)", 3_640, 3_616, True),
        ("Memcpy HtoD (Pageable -> Device)", 30, 8, False),  # a small copy is staged
    ],
)
def test_copy_of_pageable_memory_blocks_host(name: str, length: float, launch: float, waits: bool) -> None:
    copied = kernel(278, launch, start=278 + launch - 1, seconds=0.95 * launch, name=name)
    recorded = trace(*USUAL, operation(270, length, copied, name="aten::_to_copy"))
    assert host(recorded)[2] == [False] * 9 + [waits]
    assert seconds_of(recorded) < 400


def test_kernels_without_recorded_launches_take_no_host_time() -> None:
    stray = Operation(name="unattributed", phase="other", kernels=(replace(kernel(0, 0), launch_seconds=None),))
    assert seconds_of(trace(launching(0), stray)) == pytest.approx(seconds_of(trace(launching(0))))
    # CUPTI was not permitted: operations from 0 to 10 and from 30,010 to 30,020.
    measured = recorded_host(trace(operation(0, 10), operation(30_010, 10)))
    assert set(measured.overheads) == {None}
    assert [seconds * 1e6 for seconds in measured.python_seconds] == pytest.approx([0, 30_000])
    assert measured.waits == (True, False)  # it is unknown whether it waits: an environment needs the action


@pytest.mark.parametrize(("busy", "waits"), [(1, [True, False, False]), (0, [False, False, True])])
def test_dispatch_recorder_has_python_work_alone(busy: int, waits: list[bool]) -> None:
    steps = [Operation(name="aten::mm", phase="forward", python_seconds=0.03 * (index == busy)) for index in range(3)]
    measured = recorded_host(Trace(operations=tuple(steps), device="cpu", recorder="dispatch"))
    assert not any(measured.overheads)
    assert list(measured.python_seconds) == [step.python_seconds for step in steps]
    assert list(measured.waits) == waits  # work before the first operation follows the previous step
