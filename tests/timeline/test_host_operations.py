"""Schedules of launches by hand (all numbers in microseconds), and host timelines of these schedules."""

from dataclasses import replace

import numpy as np
import pytest

from lightning_predict.timeline.host import SHARED_OVERHEADS, HostModel
from lightning_predict.timeline.simulation import START_SECONDS, HostOperation, host_timeline, launch_schedule
from lightning_predict.uncertainty import FASTEST_HOST, SLOWEST_HOST
from tests.timeline.example_host import ALONE, HOST, OVERHEADS, START, T1, T2, T3, T4, T5

USUAL = T1 + T2 + T4 + T3  # Host time of an operation with one launch


def launching(
    kernels: int, *, name: str = "op", calls: tuple[int, ...] | None = None, waits: bool = False
) -> HostOperation:
    """An operation with the given kernels, each of which takes its number."""
    seconds = np.arange(1.0, kernels + 1)[None, :]
    return HostOperation(name=name, phase="forward", seconds=seconds, streams=(0,) * kernels, calls=calls, waits=waits)


def test_schedule_lists_kernels_by_operation_launch_and_kind() -> None:
    schedule = launch_schedule([launching(2), launching(0), launching(1, waits=True), launching(1)], gpus=1)
    assert schedule.seconds.tolist() == [[1, 2, 1, 1]]
    assert schedule.owners.tolist() == [0, 0, 2, 3]
    assert schedule.calls.tolist() == [0, 1, 0, 0]
    assert schedule.waits == ((3, 3),)  # after three operations and three kernels
    assert launch_schedule([], gpus=3).seconds.shape == (3, 0)
    schedule = launch_schedule([launching(1), launching(1), launching(2), launching(1, name="other")], gpus=1)
    assert schedule.kinds == ((None, "forward", 1, 0.0), (None, "forward", 2, 0.0))
    assert schedule.kind.tolist() == [0, 0, 1, 0]
    graph = launch_schedule([launching(3, calls=(0, 0, 1))], gpus=1)
    assert graph.kinds == ((None, "forward", 2, 0.0),)  # kernels of one call are one launch
    assert graph.calls.tolist() == [0, 0, 1]


def test_host_timeline_adds_five_overheads_scaled_by_the_host() -> None:
    timeline = host_timeline(launch_schedule([launching(2), launching(0), launching(1, waits=True)], gpus=1), HOST)
    first = T1 + T2 + T4 + T5 + T4 + T3
    second = first + T1 + ALONE
    assert timeline.begins * 1e6 == pytest.approx([T1, first + T1, second + T1])
    calls = np.array([T1 + T2 + T4, T1 + T2 + T4 + T5 + T4, second + T1 + T2 + T4])
    assert timeline.launched * 1e6 == pytest.approx(calls + START)
    assert timeline.seconds * 1e6 == pytest.approx(second + USUAL)
    ((operations, kernels, moment),) = timeline.waits
    assert (operations, kernels) == (3, 3)
    assert moment == pytest.approx(timeline.seconds)
    assert host_timeline(launch_schedule([], gpus=3), HOST).seconds == 0
    schedule = launch_schedule([launching(2), replace(launching(1), python_seconds=100e-6)], gpus=1)
    own, slow = host_timeline(schedule, HOST), host_timeline(schedule, replace(HOST, factor=2.0))
    np.testing.assert_allclose(slow.launched - START_SECONDS, 2 * (own.launched - START_SECONDS))
    assert slow.seconds == pytest.approx(2 * own.seconds)
    recorded, busy = replace(launching(1), recorded=OVERHEADS.scaled(3)), replace(launching(1), python_seconds=100e-6)
    timeline = host_timeline(launch_schedule([launching(1), recorded, busy], gpus=1), HOST)
    assert timeline.launched[1] * 1e6 == pytest.approx(USUAL + 3 * (T1 + T2 + T4) + START)
    assert timeline.begins[2] * 1e6 == pytest.approx(4 * USUAL + 100 + T1)
    assert timeline.seconds * 1e6 == pytest.approx(5 * USUAL + 100)


def test_host_model_prefers_recorded_overheads_and_scales_them() -> None:
    assert HostModel().overheads("optimizer") == SHARED_OVERHEADS["optimizer"]
    assert HostModel(factor=3.0).overheads("optimizer", OVERHEADS) == OVERHEADS.scaled(3)
    usual, product = HostModel().overheads("forward"), HostModel(factor=2.0).overheads("forward", None, 1e-5)
    assert product.total_seconds(launches=1) == pytest.approx(2 * (usual.total_seconds(launches=1) + 1e-5))
    assert product.before_first_launch == pytest.approx(2 * (usual.before_first_launch + 1e-5))
    assert HostModel().overheads("forward", OVERHEADS, 1e-5) == OVERHEADS  # includes library time
    for launches in (0, 1, 3):
        doubled = HostModel(factor=2.0).overheads("forward").total_seconds(launches=launches)
        assert doubled == pytest.approx(2 * usual.total_seconds(launches=launches))


@pytest.mark.parametrize("measured", [12e-6, 25e-6, 28e-6])
def test_measured_hosts_are_within_the_interval(measured: float) -> None:
    # Machines of KernelBench that wait for the launches of a ReLU (one launch, 2 us until it starts, its kernel of some
    # 3 us, a module's call). The tabled median is 13.3 + 5 and a module's call.
    ratio = measured / (HostModel().overheads("forward").total_seconds(launches=1) + 10e-6)
    assert FASTEST_HOST < ratio < SLOWEST_HOST
