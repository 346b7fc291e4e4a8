"""The step of a running loop, found from steps that wait for the device and one block of steps that does not."""

import time
from types import SimpleNamespace

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
def test_running_step_takes_as_long_as_the_slower_of_host_and_device(
    host: float, device: float, batches: int, steps: int
) -> None:
    standing, of_host, block = measured(host, device, batches=batches, steps=steps)
    assert of_host == pytest.approx(batches * host)
    assert standing == pytest.approx(batches * max(host, host / 2 + device))
    seconds = running_step_seconds(block, standing=standing, host=of_host)
    # The device is ahead of the host by half of its launches at most, which the wait at the end shows once.
    assert seconds == pytest.approx(batches * max(host, device), rel=0.5 / (steps * batches))


@pytest.mark.parametrize(
    ("seconds", "waited", "steps", "standing", "host", "expected"),
    [
        (0.86, 0.0, 8, 0.12, 0.03, (0.86 - 0.12) / 7),
        # 8 steps of 30 ms on the device and 10 on the host, 5 ms between two: the host is ahead of the device.
        (8 * 0.030 + 0.005, 7 * 0.005, 8, 0.035, 0.010, 0.030),
        (8 * 0.030 + 0.005, 7 * 0.025, 8, 0.035, 0.010, None),  # the device may run dry
        (1.0, 0.03, 8, 0.13, 0.12, None),  # waited for its loader
        (1.0, 0.0, 2, 0.5, 0.1, None),  # too few steps
        (1.01, 0.01, 10, 0.1, 0.1, 0.1),  # the step follows its host: the wait is excluded
        (1.01, 0.01, 10, 0.11, 0.05, (1.01 - 0.11) / 9),  # the device, done 0.06 after its host, used the wait
        (1.0, 0.0, 8, 0.9, 0.1, 1.0 / 8),  # no longer than the block shows
        (4.0, 0.0, 8, 0.9, 0.1, 0.45),  # at least half of an isolated step
        (4.0, 0.0, 8, 0.1, 0.1, 0.5),
    ],
)
def test_running_step_follows_from_a_block(
    seconds: float, waited: float, steps: int, standing: float, host: float, expected: float | None
) -> None:
    predicted = running_step_seconds(
        StepBlock(seconds=seconds, waited_seconds=waited, steps=steps), standing=standing, host=host
    )
    assert predicted == (None if expected is None else pytest.approx(expected, rel=0.01))


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
def test_block_length_depends_on_batches_and_rest_of_run(batches: int, after: int | None, steps: int) -> None:
    assert block_steps(batches=batches, steps_after=after) == steps


def test_block_is_tried_twice_and_its_times_are_in_the_trace() -> None:
    timer = BlockTimer()
    for _ in range(2):
        assert timer.may_begin
        timer.begins(1.0, steps=3, batches=1)
        timer.on_step_end(2.0)
        timer.breaks()
    assert not timer.may_begin
    assert timer.block is None
    plain = Trace(operations=(), device="cuda", recorder="profiler", step_seconds=(0.12, 0.14, 0.12))
    block = StepBlock(seconds=0.86, waited_seconds=0.0, steps=8)
    timed = with_running_loop(plain, hosts=(0.03, 0.03, 0.03), block=block)
    assert timed.running_step_seconds == pytest.approx((0.86 - 0.12) / 7)
    assert timed.running_steps == 8
    assert timed.measured_steps == pytest.approx([0.74 / 7, 0.74 / 7 * 0.14 / 0.12, 0.74 / 7])
    assert timed.untimed().measured_steps == ()
    assert plain.measured_steps == plain.step_seconds
    assert with_running_loop(plain, hosts=(), block=block) == plain
    of_two = StepBlock(seconds=0.86, waited_seconds=0.0, steps=4, batches=2)
    assert with_running_loop(plain, hosts=(0.03,) * 3, block=of_two).running_step_seconds is None


def test_capture_times_isolated_steps_and_then_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(0.03, 0.1)
    monkeypatch.setattr(recording, "_wait_in_use", lambda: queue.wait)
    monkeypatch.setattr(time, "perf_counter", lambda: queue.now)
    seconds, hosts, block = recording._warmed_up(queue.batch, 6, [])
    assert seconds == pytest.approx([0.115, 0.115])
    assert hosts == pytest.approx([0.03, 0.03])
    assert block is not None
    assert block.steps == 3
    assert block.seconds == pytest.approx(0.015 + 0.3)
    assert running_step_seconds(block, standing=0.115, host=0.03) == pytest.approx(0.1)
    assert recording._warmed_up(queue.batch, 5, [])[2] is None
    monkeypatch.setattr(recording, "_wait_in_use", lambda: None)
    seconds, hosts, block = recording._warmed_up(queue.batch, 9, [])
    assert (len(seconds), hosts, block) == (8, [], None)


@pytest.mark.parametrize(("device", "timed"), [("cuda", 3), ("cpu", 0)])
def test_capture_times_three_plain_steps_on_a_gpu_by_default(
    device: str, timed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(0.03, 0.1)
    monkeypatch.setattr(recording, "_wait_in_use", lambda: queue.wait)
    monkeypatch.setattr(recording, "_device_in_use", lambda _: torch.device(device))
    monkeypatch.setattr(time, "perf_counter", lambda: queue.now)
    seconds, hosts, block = recording._warmed_up(queue.batch, None, [])
    assert seconds == pytest.approx([0.115] * timed)
    assert hosts == pytest.approx([0.03] * timed)
    assert block is None


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_clock_waits_for_every_kind_of_device(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    accelerator = SimpleNamespace(current_accelerator=lambda: torch.device(kind), synchronize=waited.append)
    monkeypatch.setattr(torch, "accelerator", accelerator)
    wait = waiting.wait_for(torch.device(kind, 0))
    assert wait is not None
    wait()
    assert waited == [torch.device(kind, 0)]
    monkeypatch.delattr(torch, "accelerator")  # older releases have a module of each kind
    monkeypatch.setattr(getattr(torch, kind), "synchronize", lambda: kind)
    older = waiting.wait_for(torch.device(kind, 0))
    assert older is not None
    assert older() == kind


@pytest.mark.parametrize("kind", ["cpu", "meta", "xla"])
def test_clock_does_not_wait_without_a_device(kind: str) -> None:
    assert waiting.wait_for(torch.device(kind)) is None  # torch_xla is not imported
