"""Orders of launches by hand (all numbers in microseconds), and hosts that walk through them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lightning_predict.timeline.host import HostModel
from lightning_predict.timeline.simulation import START_SECONDS, HostOperation, host_timeline, launch_schedule
from tests.timeline.example_host import ALONE, HOST, OVERHEADS, START, T1, T2, T3, T4, T5


def launching(
    kernels: int, *, name: str = "op", calls: tuple[int, ...] | None = None, waits: bool = False
) -> HostOperation:
    """An operation with the given kernels, each of which takes its number."""
    seconds = np.arange(1.0, kernels + 1)[None, :]
    return HostOperation(name=name, phase="forward", seconds=seconds, streams=(0,) * kernels, calls=calls, waits=waits)


def test_kernels_keep_their_operation_and_their_place() -> None:
    order = launch_schedule([launching(2), launching(0), launching(1, waits=True), launching(1)], gpus=1)
    assert order.seconds.tolist() == [[1, 2, 1, 1]]
    assert order.owners.tolist() == [0, 0, 2, 3]
    assert order.calls.tolist() == [0, 1, 0, 0]
    assert order.waits == ((3, 3),)  # after three operations and three kernels


def test_operations_of_equal_phase_and_launches_are_of_one_kind() -> None:
    order = launch_schedule([launching(1), launching(1), launching(2), launching(1, name="other")], gpus=1)
    assert order.kinds == ((None, "forward", 1, 0.0), (None, "forward", 2, 0.0))
    assert order.kind.tolist() == [0, 0, 1, 0]


def test_kernels_of_one_call_are_one_launch() -> None:
    order = launch_schedule([launching(3, calls=(0, 0, 1))], gpus=1)
    assert order.kinds == ((None, "forward", 2, 0.0),)
    assert order.calls.tolist() == [0, 0, 1]


def test_a_host_walks_by_its_five_overheads() -> None:
    walk = host_timeline(launch_schedule([launching(2), launching(0), launching(1, waits=True)], gpus=1), HOST)
    first = T1 + T2 + T4 + T5 + T4 + T3
    second = first + T1 + ALONE
    assert walk.begins * 1e6 == pytest.approx([T1, first + T1, second + T1])
    calls = np.array([T1 + T2 + T4, T1 + T2 + T4 + T5 + T4, second + T1 + T2 + T4])
    assert walk.launched * 1e6 == pytest.approx(calls + START)
    assert walk.seconds * 1e6 == pytest.approx(second + T1 + T2 + T4 + T3)
    ((operations, kernels, moment),) = walk.waits
    assert (operations, kernels) == (3, 3)
    assert moment == pytest.approx(walk.seconds)


def test_a_host_twice_as_slow_is_twice_as_late() -> None:
    order = launch_schedule([launching(2), launching(1)], gpus=1)
    own, slow = host_timeline(order, HOST), host_timeline(order, HostModel(by_phase=HOST.by_phase, factor=2.0))
    np.testing.assert_allclose(slow.launched - START_SECONDS, 2 * (own.launched - START_SECONDS))
    assert slow.seconds == pytest.approx(2 * own.seconds)


def test_an_operation_that_was_timed_takes_its_own_time() -> None:
    own = replace(launching(1), recorded=OVERHEADS.scaled(3))
    walk = host_timeline(launch_schedule([launching(1), own], gpus=1), HOST)
    usual = T1 + T2 + T4 + T3
    assert walk.seconds * 1e6 == pytest.approx(usual + 3 * usual)
    assert walk.launched[1] * 1e6 == pytest.approx(usual + 3 * (T1 + T2 + T4) + START)


def test_work_outside_of_operations_comes_before_its_operation() -> None:
    busy = replace(launching(1), python_seconds=100e-6)
    walk = host_timeline(launch_schedule([launching(1), busy], gpus=1), HOST)
    usual = T1 + T2 + T4 + T3
    assert walk.begins[1] * 1e6 == pytest.approx(usual + 100 + T1)
    assert walk.seconds * 1e6 == pytest.approx(2 * usual + 100)
    slow = host_timeline(launch_schedule([busy], gpus=1), replace(HOST, factor=2.0))
    assert slow.seconds * 1e6 == pytest.approx(2 * (usual + 100))


def test_nothing_is_walked_through_at_once() -> None:
    walk = host_timeline(launch_schedule([], gpus=3), HOST)
    assert walk.seconds == 0
    assert launch_schedule([], gpus=3).seconds.shape == (3, 0)
