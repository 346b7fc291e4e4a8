from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_predict.timeline.overheads import PROFILER_EVENT_SECONDS, SHARED_OVERHEADS, HostModel, host_model
from lightning_predict.tracing.records import Kernel, Operation, Trace

EVENT = PROFILER_EVENT_SECONDS * 1e6


def kernel(launched: float, length: float) -> Kernel:
    """A kernel whose launch call begins at `launched` and takes `length` microseconds."""
    return Kernel(
        name="k",
        seconds=1e-6,
        grid=(1, 1, 1),
        block=(32, 1, 1),
        registers_per_thread=0,
        shared_memory_bytes=0,
        stream=7,
        start_seconds=0,
        launch_start_seconds=launched * 1e-6,
        launch_seconds=length * 1e-6,
    )


def operation(start: float, length: float, *kernels: Kernel) -> Operation:
    return Operation(
        name="aten::mm",
        phase="forward",
        kernels=kernels,
        host_start_seconds=start * 1e-6,
        host_seconds=length * 1e-6,
    )


# An operation from 100 to 140: launches at 112 (6 long) and 130 (6 long); the next begins at 150.
TWO = operation(100, 40, kernel(112, 6), kernel(130, 6))
TRACE = Trace(operations=(TWO, operation(150, 40, kernel(162, 6), kernel(180, 6))), device="cuda", recorder="profiler")


def test_the_five_kinds_by_hand_less_the_profilers_own_time() -> None:
    own = host_model(TRACE).of("aten::mm", "forward")
    assert own.between_operations * 1e6 == pytest.approx(10 - EVENT)  # 140 to 150
    assert own.before_first_launch * 1e6 == pytest.approx(12 - EVENT)  # 100 to 112
    assert own.launch * 1e6 == pytest.approx(6 - EVENT)
    assert own.between_launches * 1e6 == pytest.approx(12 - EVENT)  # 118 to 130
    assert own.after_last_launch * 1e6 == pytest.approx(4 - EVENT)  # 136 to 140
    assert host_model(TRACE).is_measured


def test_an_operation_without_a_launch_counts_whole() -> None:
    view = replace(operation(200, 9), name="aten::view")
    trace = replace(TRACE, operations=(*TRACE.operations, view))
    assert host_model(trace).of("aten::view", "forward").without_launch * 1e6 == pytest.approx(9 - EVENT)


def test_an_operation_that_was_not_seen_takes_the_mean_of_its_phase() -> None:
    model = host_model(TRACE)
    assert model.of("aten::other", "forward") == model.by_phase["forward"]
    assert model.of("aten::other", "backward") == SHARED_OVERHEADS["backward"]


def test_gaps_that_are_waits_do_not_count() -> None:
    late = operation(5000, 40, kernel(5012, 6), kernel(5030, 6))
    model = host_model(replace(TRACE, operations=(TWO, late)))
    assert model.of("aten::mm", "forward").between_operations == SHARED_OVERHEADS["forward"].between_operations


def test_outliers_do_not_count() -> None:
    usual = [operation(100.0 * i, 20, kernel(100.0 * i + 8, 6)) for i in range(20)]
    slow = operation(5000, 500, kernel(5480, 6))  # compiled something on the way
    model = host_model(replace(TRACE, operations=(*usual, slow)))
    assert model.of("aten::mm", "forward").before_first_launch * 1e6 == pytest.approx(8 - EVENT)


def test_without_a_cuda_profile_the_shared_table_serves() -> None:
    model = host_model(replace(TRACE, device="cpu"))
    assert not model.is_measured
    assert model.of("aten::mm", "optimizer") == SHARED_OVERHEADS["optimizer"]


def test_the_hosts_factor_scales_all_five() -> None:
    single, double = HostModel(), HostModel(factor=2.0)
    for launches in (0, 1, 3):
        one = single.of("aten::mm", "forward").seconds(launches=launches)
        assert double.of("aten::mm", "forward").seconds(launches=launches) == pytest.approx(2 * one)


def test_marks_around_modules_are_the_recorders_own_time() -> None:
    # 140 to 150 between two modules: one mark ends there and another begins, beside the event of the operation.
    first, second = (replace(one, module=name) for one, name in zip(TRACE.operations, ("a", "b"), strict=True))
    own = host_model(replace(TRACE, operations=(first, second))).of("aten::mm", "forward")
    assert own.between_operations * 1e6 == pytest.approx(10 - 3 * EVENT)
