"""Counts the remaining batches, optimizer steps (windows), validation runs and checkpoints of a fit.

Batches are numbered over the whole run, across epochs. Windows and validation runs are counted from the beginning of
the run up to a batch number. The remaining number is the difference of two such counts.

Lightning does not tell callbacks when a checkpoint file is written. `CheckpointTimer` measures from the hook that
collects the state of a checkpoint to the next hook. Before the first measurement, the time is estimated from the size
of the state. Example::

    >>> counts = remaining(Position(epoch=0, batches_done=3, batches_per_epoch=4, max_epochs=3, accumulation={0: 1}))
    >>> counts.batches, counts.windows
    (9, 9)
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Final, Literal

from lightning_predict.record.trace import Memory
from lightning_predict.run.workload import Batches, Checkpoints, Workload

HookMoment = Literal["batch end", "validation end", "batch start"]  # Hook in which the remaining numbers are requested


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Schedule and length of validation runs."""

    batches: int | None  # Batches per validation run; None if unknown
    # Training batches between two validation runs within an epoch, or over the whole fit if `every_epochs` is None.
    # `math.inf` stands for the end of an epoch of unknown length. None if validation is scheduled by time.
    every_batches: float | None
    every_epochs: int | None = 1  # Epochs between two epochs with validation; None if the schedule ignores epochs
    is_due: bool = True  # Whether a validation run that is scheduled after the last finished batch has not run yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Progress of a fit, and its limits."""

    epoch: int  # Number of the current epoch, counted from 0
    batches_done: int  # Number of batches trained in the current epoch
    batches_per_epoch: int | None  # Number of batches per epoch; None if the loader has no length
    max_epochs: int | None = None  # Maximum number of epochs; None without a limit
    optimizer_steps_done: int = 0  # Number of optimizer steps, as counted by `trainer.global_step`
    max_steps: int | None = None  # Maximum number of optimizer steps; None without a limit
    # Batches per window, by the first epoch to which the value applies; always with an entry for epoch 0
    accumulation: Mapping[int, int]
    steps_per_window: float = 1.0  # Number of optimizer steps per window
    validation: Validation | None = None  # Schedule of validation; None without validation
    last_batch_share: float = 1.0  # Samples of the last batch of an epoch, relative to the other batches
    # Current hook between two batches. Validation and checkpoints of the last batch may still follow.
    moment: HookMoment = "batch end"
    may_end_earlier: bool = False  # Whether early stopping or a time limit is set

    @property
    def batches_per_window(self) -> int:
        """Number of batches of a full window in the current epoch."""
        size = _accumulation_in(self, self.epoch)
        return size if self.batches_per_epoch is None else min(size, self.batches_per_epoch)

    @property
    def next_window_is_short(self) -> bool:
        """Whether the next window is the shorter window at the end of the epoch, or ends with a smaller batch."""
        if self.batches_per_epoch is None:
            return False
        return full_size_batches(self.batches_per_epoch, self.batches_per_window, self) - self.batches_done < (
            self.batches_per_window
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingCounts:
    """Remaining numbers of a fit; None if unknown."""

    batches: int | None
    windows: int | None  # Number of accumulation windows, including short ones at the ends of epochs
    full_windows: int | None  # Number of windows of full length with full-size batches
    uneven_batches: int = 0  # Number of smaller batches (last batches of epochs) among `batches`
    windows_per_epoch: int | None
    validation_batches: int | None
    validation_runs: int | None = 0  # Number of validation runs that contain these validation batches
    epochs: int | None = 0
    at_most: bool  # Whether the run may end earlier


def remaining(position: Position) -> RemainingCounts:
    """Compute the remaining counts of the run after its finished batches."""
    now, end = batches_so_far(position), batches_at_end(position)
    per_epoch = position.batches_per_epoch
    uneven = 0
    if end is None:
        batches = windows = full_windows = None
    else:
        if per_epoch is not None and position.last_batch_share < 1:
            uneven = end // per_epoch - now // per_epoch
        batches = end - now
        windows = windows_done(position, end) - windows_done(position, now)
        full_windows = windows_done(position, end, full=True) - windows_done(position, now, full=True)
    epochs_also_limit = per_epoch is None and position.max_epochs is not None
    size = _accumulation_in(position, position.epoch)
    runs = _validation_runs(position, now, end)
    per_run = 0 if position.validation is None else position.validation.batches
    return RemainingCounts(
        batches=batches,
        windows=windows,
        full_windows=full_windows,
        uneven_batches=uneven,
        windows_per_epoch=None if per_epoch is None else math.ceil(per_epoch / size),
        validation_batches=None if runs is None or per_run is None else runs * per_run,
        validation_runs=runs,
        epochs=None if end is None or per_epoch is None else max(0, math.ceil(end / per_epoch) - position.epoch - 1),
        at_most=position.may_end_earlier or epochs_also_limit,
    )


def workload(counts: RemainingCounts, position: Position, *, batches_per_window: int, samples: int | None) -> Workload:
    """Describe the rest of the run for the predictor, in windows of the recorded length.

    If gradient accumulation changes between epochs, windows differ in length. The remaining batches are then divided
    into windows of the recorded length.
    """
    windows, share, per_epoch = counts.windows, position.last_batch_share, position.batches_per_epoch
    if counts.batches is not None and len(set(position.accumulation.values())) > 1:
        windows = math.ceil(counts.batches / batches_per_window)
    training = epoch = None
    if counts.batches is not None and windows is not None:
        training = Batches(
            optimizer_steps=windows, batches=counts.batches, partial_batches=counts.uneven_batches, partial_share=share
        )
    if per_epoch is not None and counts.windows_per_epoch is not None:
        epoch = Batches(
            optimizer_steps=counts.windows_per_epoch,
            batches=per_epoch,
            partial_batches=int(share < 1),
            partial_share=share,
        )
    return Workload(
        training_iterations=windows,
        training=training,
        epoch=epoch,
        validation_iterations=counts.validation_batches,
        samples_per_iteration=samples,
        finished_iterations=round(position.optimizer_steps_done / position.steps_per_window),
        at_most=counts.at_most,
    )


def full_size_batches(per_epoch: int, size: int, position: Position) -> int:
    """Count the full-size batches of an epoch.

    A smaller last batch counts, too, if no full window fits before it.
    """
    return per_epoch - 1 if position.last_batch_share < 1 and per_epoch > size else per_epoch


def batches_so_far(position: Position) -> int:
    """Return the number of finished batches of the run (of the current epoch if epochs have no length)."""
    return position.epoch * (position.batches_per_epoch or 0) + position.batches_done


def batches_at_end(position: Position) -> int | None:
    """Return the number of finished batches at the end of the fit, by the earliest limit; None if no limit is known."""
    now = batches_so_far(position)
    ends = []
    if position.max_epochs is not None and position.batches_per_epoch is not None:
        ends.append(position.max_epochs * position.batches_per_epoch)
    if position.max_steps is not None:
        steps_left = max(0, position.max_steps - position.optimizer_steps_done)
        windows_left = math.ceil(steps_left / position.steps_per_window)
        farthest = now + windows_left * max(position.accumulation.values())
        # Find by bisection the first batch after which enough further windows have ended (windows_done never
        # decreases).
        target = windows_done(position, now) + windows_left
        ends.append(now + bisect_left(range(now, farthest), target, key=lambda batch: windows_done(position, batch)))
    return max(now, min(ends)) if ends else None


def _accumulation_in(position: Position, epoch: int) -> int:
    return position.accumulation[max(start for start in position.accumulation if start <= epoch)]


def windows_done(position: Position, batch: int, *, full: bool = False) -> int:
    """Count the windows that have ended after `batch` batches of the run; with `full`, only full-length windows."""
    per_epoch = position.batches_per_epoch
    if per_epoch is None:
        return batch // _accumulation_in(position, position.epoch)

    def of_epoch(epoch: int) -> int:
        size = min(_accumulation_in(position, epoch), per_epoch)
        return full_size_batches(per_epoch, size, position) // size if full else math.ceil(per_epoch / size)

    epochs, rest = divmod(batch, per_epoch)
    starts = [start for start in sorted(position.accumulation) if start < epochs]
    spans = zip(starts, [*starts[1:], epochs], strict=True) if starts else ()
    in_full_epochs = sum((stop - start) * of_epoch(start) for start, stop in spans)
    return in_full_epochs + rest // min(_accumulation_in(position, epochs), per_epoch)


def _validation_runs(position: Position, now: int, end: int | None) -> int | None:
    validation = position.validation
    if validation is None:
        return 0
    if validation.every_batches is None or end is None:
        return None
    if position.batches_per_epoch is None and (validation.every_epochs or 1) > 1:
        return None  # the epoch of a future batch is unknown
    if math.isinf(validation.every_batches) and position.batches_per_epoch is None:
        return None
    already = now - 1 if validation.is_due and now > 0 else now
    return validations_done(position, validation, end) - validations_done(position, validation, already)


def validations_done(position: Position, validation: Validation, batch: int) -> int:
    """Count the validation runs that have ended after `batch` batches of the run."""
    per_epoch = position.batches_per_epoch
    if validation.every_batches is None:
        return 0
    if per_epoch is None or validation.every_epochs is None:
        return int(batch // validation.every_batches)
    interval = min(validation.every_batches, per_epoch)
    epochs, rest = divmod(batch, per_epoch)
    in_full_epochs = epochs // validation.every_epochs * int(per_epoch // interval)
    is_validated = (epochs + 1) % validation.every_epochs == 0
    return in_full_epochs + (int(rest // interval) if is_validated else 0)


WRITING_BYTES_PER_SECOND: Final = 500_000_000.0
"""Assumed write rate for checkpoints before a checkpoint is timed: the rate of a SATA SSD."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSchedule:
    """Schedule of a ModelCheckpoint callback."""

    every_steps: int = 0  # Optimizer steps between two checkpoints; 0 if the schedule ignores steps
    every_epochs: int = 0  # Epochs between two checkpoints; 0 if the schedule ignores epochs
    at_validation: bool = False  # Whether checkpoints are written after validation instead of at the end of an epoch
    by_time: bool = False  # Whether checkpoints are written after a time interval
    files: int = 1  # Maximum number of files per checkpoint


def files_left(savings: Sequence[CheckpointSchedule], position: Position) -> int | None:
    """Return an upper bound on the remaining checkpoint files; None if unknown.

    With a monitor, fewer files are written: only the best checkpoints.
    """
    counts = [0 if saving.files == 0 else _times_left(saving, position) for saving in savings]
    known = [count * saving.files for count, saving in zip(counts, savings, strict=True) if count is not None]
    return sum(known) if len(known) == len(counts) else None


def checkpoints_left(
    savings: Sequence[CheckpointSchedule], position: Position, *, seconds: float | None, memory: Memory
) -> Checkpoints:
    """Count the remaining checkpoints, with the time of a checkpoint: measured, or estimated from sizes."""
    estimate = None
    if memory.parameter_bytes is not None:
        estimate = (memory.parameter_bytes + (memory.optimizer_state_bytes or 0)) / WRITING_BYTES_PER_SECOND
    return Checkpoints(
        count=files_left(savings, position),
        seconds=estimate if seconds is None else seconds,
        is_estimated=seconds is None,
    )


def _times_left(saving: CheckpointSchedule, position: Position) -> int | None:
    end = batches_at_end(position)
    if saving.by_time or end is None:
        return None
    now = batches_so_far(position)
    if saving.every_steps:
        # With two optimizers per batch, steps come in pairs, and only the second step of a pair can trigger a
        # checkpoint.
        stride = math.lcm(saving.every_steps, max(1, round(position.steps_per_window)))
        done = position.optimizer_steps_done
        last = done + round((windows_done(position, end) - windows_done(position, now)) * position.steps_per_window)
        # A checkpoint that is due at this step is written after the callbacks that call this function.
        return last // stride - max(0, done - (position.moment == "batch end")) // stride
    if not saving.every_epochs:
        return 0
    if saving.at_validation:
        return _validations_left(saving, position, now, end)
    per_epoch = position.batches_per_epoch
    if per_epoch is None:
        return None
    # The current epoch ends after `now`, even if `now` is its last batch. max_steps may end the last epoch early.
    return math.ceil(end / per_epoch) // saving.every_epochs - position.epoch // saving.every_epochs


def _validations_left(saving: CheckpointSchedule, position: Position, now: int, end: int) -> int | None:
    validation = position.validation
    if validation is None:
        return 0
    if validation.every_batches is None or math.isinf(validation.every_batches):
        return None
    already = now - 1 if position.moment != "batch start" and now > 0 else now
    runs = validations_done(position, validation, end) - validations_done(position, validation, already)
    return math.ceil(runs / saving.every_epochs)


class CheckpointTimer:
    """Timer of checkpoint files, from the hook that collects a checkpoint's state to the next hook of any kind."""

    def __init__(self) -> None:
        self.is_pending = False  # Whether a checkpoint's state was collected, and no hook was called since
        self._start: float | None = None
        self._caller: object = None
        self._files = 0
        self._seconds = 0.0
        self._files_timed = 0
        self._slowest = (0.0, 0)

    @property
    def seconds(self) -> float | None:
        """Mean seconds per checkpoint file; None before a file was timed."""
        return self._seconds / self._files_timed if self._files_timed else None

    def at_best(self) -> CheckpointTimer:
        """Return a copy without the slowest file."""
        calm = copy(self)
        seconds, files = self._slowest
        calm._seconds, calm._files_timed = self._seconds - seconds, self._files_timed - files
        return calm

    def is_collected(self, now: float, caller: object = None) -> None:
        """Record that the state of a checkpoint is collected. Its file is written next.

        Args:
            now: Seconds of any monotonic clock.
            caller: Callback that reports the checkpoint. Every callback reports each file, but only the reports of the
                first caller count.
        """
        if self._start is None:
            self._start, self._caller, self.is_pending = now, caller, True
        if caller is self._caller:
            self._files += 1

    def hook_begins(self, now: float, *, waited_seconds: float = 0.0) -> None:
        """Record that a hook was called, which shows that the file has been written.

        Args:
            now: Seconds of the same clock as in `is_collected`.
            waited_seconds: Part of the elapsed time that was a wait for a batch.
        """
        if self._start is not None:
            seconds = max(0.0, now - self._start - waited_seconds)
            self._seconds += seconds
            self._files_timed += self._files
            self._slowest = max(self._slowest, (seconds, self._files))
            self._start, self._caller, self._files, self.is_pending = None, None, 0, False
