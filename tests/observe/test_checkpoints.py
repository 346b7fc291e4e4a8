from dataclasses import replace

import pytest

from lightning_predict.observe.remaining import (
    CheckpointSchedule,
    CheckpointTimer,
    Position,
    checkpoints_left,
    files_left,
)
from lightning_predict.record.trace import Memory
from lightning_predict.run.workload import Checkpoints

START = Position(
    epoch=0, batches_done=1, batches_per_epoch=4, max_epochs=3, optimizer_steps_done=1, accumulation={0: 1}
)


def test_clock_of_files_runs_from_the_collection_to_the_next_hook_without_waits() -> None:
    clock = CheckpointTimer()
    clock.hook_begins(1.0)
    assert (clock.seconds, clock.is_pending) == (None, False)
    clock.is_collected(10.0)
    assert clock.is_pending
    clock.hook_begins(12.5, waited_seconds=0.5)
    assert (clock.seconds, clock.is_pending) == (2.0, False)
    clock = CheckpointTimer()
    clock.is_collected(0.0)
    clock.is_collected(2.0)
    clock.hook_begins(3.0)
    assert clock.seconds == 1.5
    clock = CheckpointTimer()
    clock.is_collected(0.0)
    clock.hook_begins(1.0, waited_seconds=9.0)
    assert clock.seconds == 0.0


def test_checkpoints_left_add_up_with_the_measured_or_estimated_time() -> None:
    memory = Memory(parameter_bytes=10**9, optimizer_state_bytes=2 * 10**9)
    left = checkpoints_left([CheckpointSchedule(every_epochs=1)], START, seconds=None, memory=memory)
    assert left == Checkpoints(count=3, seconds=6.0, is_estimated=True)  # 3 GB at 0.5 GB/s
    left = checkpoints_left([CheckpointSchedule(every_epochs=1)], START, seconds=7.0, memory=memory)
    assert left == Checkpoints(count=3, seconds=7.0, is_estimated=False)
    epochs, steps = CheckpointSchedule(every_epochs=1), CheckpointSchedule(every_steps=5, files=2)
    assert files_left([epochs, steps], START) == 3 + 2 * 2  # steps 5 and 10 of 12
    assert files_left([epochs, CheckpointSchedule(by_time=True)], START) is None
    assert files_left([CheckpointSchedule(by_time=True, files=0)], START) == 0


@pytest.mark.parametrize(("steps_per_window", "every_steps", "files"), [(2.0, 4, 6), (2.0, 3, 4), (1.0, 3, 4)])
def test_two_optimizers_count_two_steps_a_batch(steps_per_window: float, every_steps: int, files: int) -> None:
    # 12 batches are 24 steps ranks can agree after every second step: 4, 8, ... 24; or 6, 12, 18, 24. With one: 3, 6,
    # 9, 12.
    position = replace(START, batches_done=0, optimizer_steps_done=0, steps_per_window=steps_per_window)
    assert files_left([CheckpointSchedule(every_steps=every_steps)], position) == files
