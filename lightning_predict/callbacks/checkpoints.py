"""Checkpoints: how many are still to be written, and how long one takes.

Nothing tells a callback that a file is written; `CheckpointClock` times from the moment in which a checkpoint is
collected to the next hook. Until one was timed, its time follows from the size of its state. Example::

    >>> clock = CheckpointClock()
    >>> clock.is_collected(10.0)
    >>> clock.hook_begins(10.5)
    >>> clock.seconds
    0.5
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from lightning_predict.callbacks.remaining import (
    Position,
    batches_at_end,
    batches_so_far,
    validations_done,
    windows_done,
)
from lightning_predict.scaling.records import Checkpoints
from lightning_predict.tracing.records import Memory
from lightning_predict.units import gigabytes_to_bytes

WRITING_BYTES_PER_SECOND: Final = gigabytes_to_bytes(0.5)
"""Rate at which a checkpoint is assumed to be written before one was timed: that of a SATA SSD; network drives are
slower, NVMe drives faster."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """When a ModelCheckpoint writes.

    Attributes:
        every_steps: Optimizer steps from one checkpoint to the next; 0 where steps do not matter.
        every_epochs: Epochs from one to the next; 0 where epochs do not matter.
        at_validation: It writes after validation instead of at the end of an epoch.
        by_the_clock: It writes after an interval of time.
        files: Files that it writes each time at most.
    """

    every_steps: int = 0
    every_epochs: int = 0
    at_validation: bool = False
    by_the_clock: bool = False
    files: int = 1


def files_left(savings: Sequence[Saving], position: Position) -> int | None:
    """Checkpoint files that are still to be written, at most: with a monitor only the best are; None where unknown.

    Args:
        savings: What writes them.
        position: Where the fit stands.
    """
    counts = [0 if saving.files == 0 else _times_left(saving, position) for saving in savings]
    known = [count * saving.files for count, saving in zip(counts, savings, strict=True) if count is not None]
    return sum(known) if len(known) == len(counts) else None


def checkpoints_left(
    savings: Sequence[Saving], position: Position, *, seconds: float | None, memory: Memory
) -> Checkpoints:
    """The same with the time of one: as timed, else from the parameters and the optimizer's state.

    Args:
        savings: What writes them.
        position: Where the fit stands.
        seconds: Of one file as timed; None where none was.
        memory: Sizes of what a checkpoint holds.
    """
    estimate = None
    if memory.parameter_bytes is not None:
        estimate = (memory.parameter_bytes + (memory.optimizer_state_bytes or 0)) / WRITING_BYTES_PER_SECOND
    return Checkpoints(
        count=files_left(savings, position),
        seconds=estimate if seconds is None else seconds,
        is_estimated=seconds is None,
    )


def _times_left(saving: Saving, position: Position) -> int | None:
    end = batches_at_end(position)
    if saving.by_the_clock or end is None:
        return None
    now = batches_so_far(position)
    if saving.every_steps:
        # Two optimizers of a batch count two steps, of which only the last can be a multiple.
        stride = math.lcm(saving.every_steps, max(1, round(position.steps_per_window)))
        done = position.optimizer_steps_done
        last = done + round((windows_done(position, end) - windows_done(position, now)) * position.steps_per_window)
        # One that is due at this very step is written after the callbacks that are asking.
        return last // stride - max(0, done - (position.moment == "batch end")) // stride
    if not saving.every_epochs:
        return 0
    if saving.at_validation:
        return _validations_left(saving, position, now, end)
    per_epoch = position.batches_per_epoch
    if per_epoch is None:
        return None
    # The epoch under way ends after `now`, even where `now` is its last batch; the last may be cut short by max_steps.
    return math.ceil(end / per_epoch) // saving.every_epochs - position.epoch // saving.every_epochs


def _validations_left(saving: Saving, position: Position, now: int, end: int) -> int | None:
    validation = position.validation
    if validation is None:
        return 0
    if validation.every_batches is None or math.isinf(validation.every_batches):
        return None
    already = now - 1 if position.moment != "batch start" and now > 0 else now
    runs = validations_done(position, validation, end) - validations_done(position, validation, already)
    return math.ceil(runs / saving.every_epochs)


@final
class CheckpointClock:
    """Times checkpoint files from the hook in which one is collected to the next hook of any kind."""

    def __init__(self) -> None:
        self._start: float | None = None
        self._caller: object = None
        self._files = 0
        self._seconds = 0.0
        self._files_timed = 0

    @property
    def seconds(self) -> float | None:
        """Of one file on average; None before one was timed."""
        return self._seconds / self._files_timed if self._files_timed else None

    @property
    def is_pending(self) -> bool:
        """One was collected, and no hook was called since."""
        return self._start is not None

    def is_collected(self, now: float, caller: object = None) -> None:
        """Note that a checkpoint's state is being collected; writing it follows.

        Args:
            now: Seconds on any monotonic clock.
            caller: Who tells; each file is told by every callback and counts once.
        """
        if self._start is None:
            self._start, self._caller = now, caller
        if caller is self._caller:
            self._files += 1

    def hook_begins(self, now: float, *, waited_seconds: float = 0.0) -> None:
        """Some hook is called, so the file is written.

        Args:
            now: Seconds on the same clock.
            waited_seconds: Time that passed since then for another reason: a wait for a batch.
        """
        if self._start is not None:
            self._seconds += max(0.0, now - self._start - waited_seconds)
            self._files_timed += self._files
            self._start, self._caller, self._files = None, None, 0
