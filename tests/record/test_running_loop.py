"""The step of a running loop, found from steps that wait for the device and one block of steps that does not."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.record import recording, waiting
from lightning_predict.record.running_loop import (
    BLOCK_BATCHES,
    BLOCKS_OF_A_RUN,
    BlockTimer,
    StepBlock,
    block_steps,
    running_step_seconds,
    with_running_loop,
)
from lightning_predict.record.trace import Trace


class Queue:
    """A host that launches a batch in `host` seconds and a device that works on it for `device`, half of it later."""

    def __init__(self, host: float, device: float) -> None:
        self.host, self.device = host, device
        self.now = self.free = 0.0

    def batch(self) -> None:
        launched = self.now + self.host / 2
        self.now += self.host
        self.free = max(self.free, launched) + self.device

    def wait(self) -> None:
        self.now = max(self.now, self.free)


def measured(host: float, device: float, *, batches: int = 1, steps: int = 8) -> tuple[float, float, StepBlock]:
    """One step that waits after each batch, its host's part, and a block of steps."""
    queue = Queue(host, device)
    done_by_host = 0.0
    for _ in range(batches):
        began = queue.now
        queue.batch()
        done_by_host += queue.now - began
        queue.wait()
    standing, began = queue.now, queue.now
    for _ in range(steps * batches):
        queue.batch()
    queue.wait()
    block = StepBlock(seconds=queue.now - began, waited_seconds=0.0, steps=steps, batches=batches)
    return standing, done_by_host, block


@given(
    host=st.floats(1e-3, 1.0),
    device=st.floats(1e-3, 1.0),
    batches=st.sampled_from([1, 2, 8, 64]),
    steps=st.integers(3, 12),
)
def test_a_running_step_takes_as_long_as_the_slower_of_host_and_device(
    host: float, device: float, batches: int, steps: int
) -> None:
    standing, of_host, block = measured(host, device, batches=batches, steps=steps)
    assert of_host == pytest.approx(batches * host)
    assert standing == pytest.approx(batches * max(host, host / 2 + device))
    found = running_step_seconds(block, standing=standing, host=of_host)
    # The device is ahead of the host by half of its launches at most, which the wait at the end shows once.
    assert found == pytest.approx(batches * max(host, device), rel=0.5 / (steps * batches))


def test_the_example_of_a_block() -> None:
    block = StepBlock(seconds=0.86, waited_seconds=0.0, steps=8)
    assert running_step_seconds(block, standing=0.12, host=0.03) == pytest.approx((0.86 - 0.12) / 7)


def test_waits_that_a_busy_device_works_through_discard_no_block() -> None:
    # 8 steps of 30 ms on the device, 10 ms on the host and 5 ms between two: the host is ahead of the device all along.
    block = StepBlock(seconds=8 * 0.030 + 0.005, waited_seconds=7 * 0.005, steps=8)
    assert running_step_seconds(block, standing=0.035, host=0.010) == pytest.approx(0.030, rel=0.01)
    slow = StepBlock(seconds=8 * 0.030 + 0.005, waited_seconds=7 * 0.025, steps=8)  # the device may run dry
    assert running_step_seconds(slow, standing=0.035, host=0.010) is None


def test_a_block_that_waited_for_its_loader_says_nothing() -> None:
    assert running_step_seconds(StepBlock(seconds=1.0, waited_seconds=0.03, steps=8), standing=0.13, host=0.12) is None
    assert running_step_seconds(StepBlock(seconds=1.0, waited_seconds=0.0, steps=2), standing=0.5, host=0.1) is None


def test_what_a_host_waited_for_batches_is_taken_out_where_the_step_follows_the_host() -> None:
    block = StepBlock(seconds=1.01, waited_seconds=0.01, steps=10)
    assert running_step_seconds(block, standing=0.1, host=0.1) == pytest.approx(0.1)
    # A device that is done 0.06 after its host used the wait.
    assert running_step_seconds(block, standing=0.11, host=0.05) == pytest.approx((1.01 - 0.11) / 9)


def test_a_running_step_is_neither_half_of_a_standing_one_nor_longer_than_the_block_shows() -> None:
    assert running_step_seconds(StepBlock(seconds=1.0, waited_seconds=0.0, steps=8), standing=0.9, host=0.1) == 1.0 / 8
    block = StepBlock(seconds=4.0, waited_seconds=0.0, steps=8)
    assert running_step_seconds(block, standing=0.9, host=0.1) == pytest.approx(0.45)
    assert running_step_seconds(block, standing=0.1, host=0.1) == 0.5


@pytest.mark.parametrize(
    ("batches", "after", "steps"),
    [
        (1, None, BLOCK_BATCHES),
        (4, None, 2),
        (64, None, 1),
        (1, BLOCKS_OF_A_RUN * BLOCK_BATCHES, BLOCK_BATCHES),
        (1, BLOCKS_OF_A_RUN * BLOCK_BATCHES - 1, 0),
    ],
)
def test_a_block_is_as_long_as_the_run_allows(batches: int, after: int | None, steps: int) -> None:
    assert block_steps(batches=batches, steps_after=after) == steps


def test_a_block_is_tried_twice() -> None:
    timer = BlockTimer()
    for _ in range(2):
        assert timer.may_begin
        timer.begins(1.0, steps=3, batches=1)
        timer.on_step_end(2.0)
        timer.breaks()
    assert not timer.may_begin
    assert timer.block is None


def test_a_trace_holds_what_was_read() -> None:
    plain = Trace(operations=(), device="cuda", recorder="profiler", step_seconds=(0.12, 0.14, 0.12))
    block = StepBlock(seconds=0.86, waited_seconds=0.0, steps=8)
    found = with_running_loop(plain, hosts=(0.03, 0.03, 0.03), block=block)
    assert found.running_step_seconds == pytest.approx((0.86 - 0.12) / 7)
    assert found.running_steps == 8
    assert found.measured_steps == pytest.approx([0.74 / 7, 0.74 / 7 * 0.14 / 0.12, 0.74 / 7])
    assert found.untimed().measured_steps == ()
    assert plain.measured_steps == plain.step_seconds
    assert with_running_loop(plain, hosts=(), block=block) == plain
    of_two = StepBlock(seconds=0.86, waited_seconds=0.0, steps=4, batches=2)
    assert with_running_loop(plain, hosts=(0.03,) * 3, block=of_two).running_step_seconds is None


def test_the_file_keeps_the_readings(tmp_path: object) -> None:
    path = f"{tmp_path}/step.json"
    trace = Trace(
        operations=(),
        device="cuda",
        recorder="profiler",
        step_seconds=(0.12,),
        host_seconds_unprofiled=(0.03,),
        running_step_seconds=0.1,
        running_steps=8,
    )
    trace.save(path)
    assert Trace.load(path) == trace


def test_capture_times_steps_alone_and_then_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(0.03, 0.1)
    monkeypatch.setattr(recording, "_wait_in_use", lambda: queue.wait)
    monkeypatch.setattr(time, "perf_counter", lambda: queue.now)
    seconds, hosts, block = recording._warmed_up(queue.batch, 6)
    assert seconds == pytest.approx([0.115, 0.115])
    assert hosts == pytest.approx([0.03, 0.03])
    assert block is not None
    assert block.steps == 3
    assert block.seconds == pytest.approx(0.015 + 0.3)
    assert running_step_seconds(block, standing=0.115, host=0.03) == pytest.approx(0.1)
    assert recording._warmed_up(queue.batch, 5)[2] is None
    monkeypatch.setattr(recording, "_wait_in_use", lambda: None)
    seconds, hosts, block = recording._warmed_up(queue.batch, 9)
    assert (len(seconds), hosts, block) == (8, [], None)


class _Accelerator:
    """`torch.accelerator` as it is on a machine with one kind of device."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.waited: list[torch.device] = []

    def current_accelerator(self) -> torch.device:
        return torch.device(self.kind)

    def synchronize(self, device: torch.device) -> None:
        self.waited.append(device)


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_a_clock_waits_for_every_kind_of_device(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = _Accelerator(kind)
    monkeypatch.setattr(torch, "accelerator", accelerator)
    wait = waiting.wait_for(torch.device(kind, 0))
    assert wait is not None
    wait()
    assert accelerator.waited == [torch.device(kind, 0)]


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_an_older_torch_waits_by_the_device_s_own_module(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "accelerator")
    monkeypatch.setattr(getattr(torch, kind), "synchronize", lambda: kind)
    wait = waiting.wait_for(torch.device(kind, 0))
    assert wait is not None
    assert wait() == kind


def test_nothing_is_waited_for_on_the_cpu() -> None:
    assert waiting.wait_for(torch.device("cpu")) is None
    assert waiting.wait_for(torch.device("meta")) is None
    assert waiting.wait_for(torch.device("xla", 0)) is None  # torch_xla is not imported
