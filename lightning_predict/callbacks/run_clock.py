"""`RunClock`: how a fit goes by on the machine in use, from two clock readings per batch.

It is told of the hooks of a fit, by one callback or by several, and sums up what batches take, waits between them,
validation, and what lies between epochs. Right after the capture it knows a few early steps; later, the whole run.
Within `clock_of_fits` the callbacks read a clock that a test shows. Example::

    clock = run_clock_of(trainer, clock=perf_counter)
    clock.batch_starts()
    # ... the batch is trained ...
    clock.batch_ends()
    clock.tempo(batches_per_window=1)   # None before any step was timed
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Final, final
from weakref import WeakKeyDictionary

import torch

from lightning_predict.callbacks.remaining import CheckpointClock
from lightning_predict.interval import Interval
from lightning_predict.tracing.trace import Memory
from lightning_predict.tracing.waiting import wait_for

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


_Clock = Callable[[], float]

_SHOWN: Final[ContextVar[tuple[_Clock, _Clock] | None]] = ContextVar("clocks of the host and the device", default=None)


@contextmanager
def clock_of_fits(clock: Callable[[], float], *, device: Callable[[], float] | None = None) -> Iterator[None]:
    """Let all callbacks that are made and fits that begin inside read one clock.

    Args:
        clock: Monotonic clock, in seconds.
        device: What is read where the device is waited for; None reads the same clock.
    """
    token = _SHOWN.set((clock, device or clock))
    try:
        yield
    finally:
        _SHOWN.reset(token)


def host_clock() -> Callable[[], float]:
    """Return a clock in seconds that does not wait for the device."""
    shown = _SHOWN.get()
    return perf_counter if shown is None else shown[0]


def ledger_clock() -> Callable[[], float]:
    """Return the clock by which money is counted."""
    shown = _SHOWN.get()
    return monotonic if shown is None else shown[0]


def device_clock(device: torch.device) -> Callable[[], float]:
    """Return a clock in seconds that waits for the device, so that what it times is done and not just queued."""
    shown = _SHOWN.get()
    if shown is not None:
        return shown[1]
    wait = wait_for(device)
    if wait is None:
        return perf_counter

    def synchronized() -> float:
        wait()
        return perf_counter()

    return synchronized


STEPS_THAT_SETTLE: Final = 8
"""Steps after the warm-up from which on their mean counts, and not the few early ones."""

SETTLING_SHARE: Final = 0.25
"""Share of the steps, the first ones, that the mean leaves out: allocators, caches and clocks settle in them."""

BLOCKS: Final = 1024
"""Sums of equally many batches that are kept at most; beyond it, two become one."""

CHUNKS: Final = 8
"""Parts of a run whose fastest and slowest are the ends of a forecast."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tempo:
    """Seconds of a batch on the machine in use.

    Attributes:
        step: Seconds from its beginning to its end, in the mean, the fastest and the slowest part of the run; an
            optimizer update counts by its share.
        wait_seconds: From its end to the next beginning: the loader, logging and other callbacks.
    """

    step: Interval[float]
    wait_seconds: float

    @property
    def step_seconds(self) -> float:
        """Seconds of a batch from its beginning to its end, in the mean."""
        return self.step.middle


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationTempo:
    """Seconds of a validation run on the machine in use.

    Attributes:
        start_seconds: From the last training batch to the first of validation: workers that start.
        wait_seconds: Before each further batch.
        batch_seconds: Seconds of a batch; None if none was timed.
    """

    start_seconds: float
    wait_seconds: float
    batch_seconds: float | None


@final
class Blocks:
    """Values in the order in which they came, at most so many numbers whatever their count."""

    def __init__(self) -> None:
        self.count = 0
        self._size = 1
        self._sum, self._summed = 0.0, 0
        self._means: list[float] = []

    def add(self, value: float) -> None:
        """Add one."""
        self.count += 1
        self._sum += value
        self._summed += 1
        if self._summed == self._size:
            self._means.append(self._sum / self._size)
            self._sum, self._summed = 0.0, 0
            if len(self._means) == BLOCKS:
                pairs = zip(self._means[::2], self._means[1::2], strict=True)
                self._means = [(one + other) / 2 for one, other in pairs]
                self._size *= 2

    def settled(self) -> list[float]:
        """Return the means of equally many, without those in which a run settles."""
        return self._means[int(SETTLING_SHARE * len(self._means)) :]


def mean_without_accident(values: Sequence[float]) -> float:
    """Average of values, the largest of which counts as the second largest.

    A mean is what sums up to a total, with what happens every so many steps in it; but one long step of a few is taken
    for an accident until it comes again.

    Args:
        values: At least one.
    """
    ordered = sorted(values)
    return statistics.mean([*ordered[:-1], ordered[-2]]) if len(ordered) > 1 else ordered[0]


@final
class _ValidationRun:
    """One run under way.

    Attributes:
        before: When the last training batch had ended.
        is_check: It is the sanity check.
    """

    def __init__(self, before: float, *, is_check: bool) -> None:
        self.before, self.is_check = before, is_check
        self.start_seconds: float | None = None
        self.wait_seconds = 0.0
        self.batch_start: float | None = None
        self.last_end = before
        self.is_recorded = False
        self.batch_seconds: list[tuple[float, bool]] = []


@final
class RunClock:
    """Times one fit. Every event may be told by more than one callback; the first to tell it counts.

    Args:
        clock: Monotonic clock, in seconds.
        device_clock: The same once the device has done its work; read at the steps after which a prediction is made
            again.

    Attributes:
        batches: Training batches that have ended.
        checkpoints: Times checkpoint files.
        memory: Sizes of what a checkpoint holds; None before a step was recorded.
        first_waits: The waits before anything was predicted.
    """

    def __init__(
        self, clock: Callable[[], float] = perf_counter, device_clock: Callable[[], float] | None = None
    ) -> None:
        self.batches = 0
        self.checkpoints = CheckpointClock()
        self.memory: Memory | None = None
        self.first_waits: list[float] = []
        self.has_begun = False
        self._clock = clock
        self._device_clock = device_clock or clock
        self._marks: list[int] = []
        self._is_asynchronous = False
        self._batch_start: float | None = None
        self._batch_end: float | None = None
        self._paused_from: float | None = None
        self._is_new_epoch = False
        self._is_settled = False
        self._early_seconds: tuple[float, ...] = ()
        self._buffered = self._waits_to_skip = 0
        self._steps, self._waits = Blocks(), Blocks()
        self._first_epoch_seconds: float | None = None
        self._epoch_seconds: list[float] = []
        self._validation: _ValidationRun | None = None
        self._check: _ValidationRun | None = None
        self._validated_runs = self._validated_batches = 0
        self._validation_start_seconds = self._validation_wait_seconds = self._validation_batch_seconds = 0.0

    def now(self) -> float:
        """Return the seconds on the plain clock."""
        return self._clock()

    @property
    def is_settled(self) -> bool:
        """True once enough steps were timed for their mean to count without the early ones."""
        return self._is_settled

    def settle(
        self,
        step_seconds: Sequence[float],
        *,
        batches_per_window: int,
        buffered: int = 0,
        is_asynchronous: bool = False,
        marks: Sequence[int] = (),
    ) -> None:
        """Take the early steps as they were timed, and begin to time all that follow.

        Args:
            step_seconds: Seconds of windows, in their order, each once the device was done.
            batches_per_window: Batches of each.
            buffered: Batches that the loader's workers have ready after a break.
            is_asynchronous: Batches end for the host before they do for the device.
            marks: Steps after which a prediction is made again.
        """
        self._early_seconds = tuple(seconds / batches_per_window for seconds in step_seconds)
        self._buffered, self._is_asynchronous = buffered, is_asynchronous
        self._marks = [mark * batches_per_window for mark in marks if mark * batches_per_window > self.batches]
        self._is_settled = True
        self._steps, self._waits = Blocks(), Blocks()
        self.interrupt()

    def interrupt(self) -> None:
        """Note that something happens before the next batch that will not happen again: a prediction."""
        self._batch_end = self._paused_from = None
        self._is_new_epoch = False
        self._waits_to_skip = self._buffered

    # Events of training.

    def batch_starts(self) -> bool:
        """Note that a batch was fetched and its training begins.

        Returns:
            It is the first of a new epoch, and what the end of the last one took is known.
        """
        self.has_begun = True
        if self._batch_start is not None:
            return False
        now = self._batch_start = self._clock()
        if self._paused_from is not None:
            return self._resumes(now)
        if self._batch_end is not None:
            wait = now - self._batch_end
            if self.checkpoints.is_pending:
                self.checkpoints.hook_begins(now, waited_seconds=min(wait, self.wait_seconds()))
            elif self._waits_to_skip:
                self._waits_to_skip -= 1
            elif self._is_settled:
                self._waits.add(wait)
            else:
                self.first_waits.append(wait)
        return False

    def batch_ends(self) -> bool:
        """Note that a batch was trained.

        Returns:
            So many steps are done that a prediction should be made again.
        """
        start = self._batch_start
        if start is None:
            return False
        self._batch_start = None
        self.batches += 1
        if not self._marks or self.batches != self._marks[0]:
            now = self._batch_end = self._clock()
            if self._is_settled:
                self._steps.add(now - start)
            return False
        del self._marks[0]
        self._device_clock()
        now = self._batch_end = self._clock()
        self._steps.add(now - start)
        return True

    def epoch_starts(self) -> None:
        """Note that an epoch begins; its loader may start workers."""
        self._pauses()
        self._is_new_epoch = True

    def epoch_ends(self) -> None:
        """Note that an epoch has ended."""
        self._pauses()

    def checkpoint_is_collected(self, caller: object) -> None:
        """Note that a checkpoint's state is being collected; writing it follows."""
        self.checkpoints.is_collected(self._clock(), caller)

    # Events of validation.

    def sanity_check_starts(self) -> None:
        """Note that the sanity check is about to start its loader's workers."""
        self.has_begun = True
        self._paused_from = self._clock()

    def validation_starts(self, *, is_check: bool) -> None:
        """Note that a validation run, or the sanity check, begins."""
        self.has_begun = True
        if self._validation is not None:
            return
        now = self._clock()
        before = self._batch_end if self._batch_end is not None else self._paused_from
        if self.checkpoints.is_pending:  # Written after the last batch; what validation starts is short.
            self.checkpoints.hook_begins(now)
            before = now
        self._batch_start = self._batch_end = None
        self._validation = _ValidationRun(now if before is None else before, is_check=is_check)

    def validation_batch_starts(self) -> None:
        """Note that a batch is about to be validated."""
        run = self._validation
        if run is None or run.batch_start is not None:
            return
        run.batch_start = now = self._clock()
        if run.start_seconds is None:
            run.start_seconds = now - run.before
        else:
            run.wait_seconds += now - run.last_end

    def validation_batch_is_recorded(self) -> None:
        """Note that the batch under way takes longer than others, as it is recorded."""
        if self._validation is not None:
            self._validation.is_recorded = True

    def validation_batch_ends(self) -> None:
        """Note that a batch was validated."""
        run = self._validation
        if run is None or run.batch_start is None:
            return
        run.last_end = self._clock()
        run.batch_seconds.append((run.last_end - run.batch_start, run.is_recorded))
        run.batch_start, run.is_recorded = None, False

    def validation_ends(self) -> None:
        """Note that the validation run has ended."""
        run, self._validation = self._validation, None
        if run is None:
            return
        self._paused_from = now = self._clock()
        if run.is_check:
            self._check = run
        elif run.batch_seconds:
            start = run.start_seconds or 0.0
            recorded = sum(seconds for seconds, is_recorded in run.batch_seconds if is_recorded)
            plain = [seconds for seconds, is_recorded in run.batch_seconds if not is_recorded]
            computing = now - run.before - start - run.wait_seconds - recorded
            self._validated_runs += 1
            self._validated_batches += len(run.batch_seconds)
            self._validation_start_seconds += start
            self._validation_wait_seconds += run.wait_seconds
            self._validation_batch_seconds += computing * len(run.batch_seconds) / len(plain) if plain else recorded

    # What is known.

    def wait_seconds(self, *, overlaps: bool = False) -> float:
        """Wait for a batch, and what else lies between two.

        Args:
            overlaps: Workers make the batches. At first they hand over what they made while they started, so of the
                early waits the later ones count.
        """
        if self._waits.count >= STEPS_THAT_SETTLE:
            return mean_without_accident(self._waits.settled())
        early = self.first_waits[len(self.first_waits) // 2 :] if overlaps else self.first_waits
        return statistics.mean(early) if early else 0.0

    def tempo(self, *, batches_per_window: int, overlaps: bool = False) -> Tempo | None:
        """Find what a batch takes; None before any step was timed.

        Of a few early steps the first is left out and the lower median counts, as they are rather too slow than too
        fast: allocators grow, and workers start meanwhile.
        """
        wait = self.wait_seconds(overlaps=overlaps)
        if self._steps.count < STEPS_THAT_SETTLE * batches_per_window:
            if not self._early_seconds:
                return None
            later = self._early_seconds[1:] or self._early_seconds
            early = Interval(min(self._early_seconds), statistics.median_low(later), max(later))
            return Tempo(step=early, wait_seconds=wait)
        steps = self._steps.settled()
        step = mean_without_accident(steps)
        size = -(-len(steps) // CHUNKS)
        chunks = [statistics.mean(steps[start : start + size]) for start in range(0, len(steps), size)]
        if self._is_asynchronous and self._early_seconds:
            # The host waits for the loader while the device still computes: what it waited is not all of it idle time.
            whole = step + wait
            later = self._early_seconds[1:] or self._early_seconds
            longer = max(step, min(statistics.median_low(later), whole))
            wait, step, chunks = whole - longer, longer, [chunk + longer - step for chunk in chunks]
        return Tempo(step=Interval(min(*chunks, step), step, max(*chunks, step)), wait_seconds=wait)

    def validation_tempo(self) -> ValidationTempo | None:
        """Find what validation takes, from the runs so far or else from the sanity check; None if there was none."""
        if self._validated_batches:
            return ValidationTempo(
                start_seconds=self._validation_start_seconds / self._validated_runs,
                wait_seconds=self._validation_wait_seconds / self._validated_batches,
                batch_seconds=self._validation_batch_seconds / self._validated_batches,
            )
        check = self._check
        if check is None or not check.batch_seconds:
            return None
        steady = [seconds for seconds, is_recorded in check.batch_seconds[1:] if not is_recorded]
        return ValidationTempo(
            start_seconds=check.start_seconds or 0.0,
            wait_seconds=check.wait_seconds / (len(check.batch_seconds) - 1) if len(check.batch_seconds) > 1 else 0.0,
            batch_seconds=min(steady or [seconds for seconds, _ in check.batch_seconds]),
        )

    def epoch_seconds(self, *, starts_workers: bool) -> float:
        """Find what lies between two epochs, apart from validation, checkpoints and the wait for a batch.

        Args:
            starts_workers: Each epoch restarts the loader's workers; the first epoch then stands for the others.
        """
        found = self._epoch_seconds
        if not found and starts_workers and self._first_epoch_seconds is not None:
            found = [self._first_epoch_seconds]
        return max(0.0, statistics.mean(found) - self.wait_seconds(overlaps=starts_workers)) if found else 0.0

    def _pauses(self) -> None:
        """Note that something other than a wait for a batch begins."""
        self.has_begun = True
        now = self._clock()
        if self.checkpoints.is_pending:
            self.checkpoints.hook_begins(now)
            self._paused_from = now
        if self._paused_from is None:
            self._paused_from = now if self._batch_end is None else self._batch_end
        self._batch_start = self._batch_end = None

    def _resumes(self, now: float) -> bool:
        """Sum up the pause that ends with this batch."""
        before, is_new = self._paused_from, self._is_new_epoch
        self._paused_from, self._is_new_epoch = None, False
        if self.checkpoints.is_pending:
            self.checkpoints.hook_begins(now, waited_seconds=self.wait_seconds())
            return is_new
        if not is_new or before is None:
            return False
        if self.batches == 0:
            self._first_epoch_seconds = now - before
            return False
        self._epoch_seconds.append(now - before)
        return True


_CLOCKS: WeakKeyDictionary[Trainer, RunClock] = WeakKeyDictionary()


def run_clock_of(trainer: Trainer, *, device_clock: Callable[[], float]) -> RunClock:
    """Return the clock of the fit that begins, one for all callbacks of the Trainer; to be asked for in `setup`."""
    found = _CLOCKS.get(trainer)
    if found is None or found.has_begun:
        found = _CLOCKS[trainer] = RunClock(host_clock(), device_clock)
    return found
