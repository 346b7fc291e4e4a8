"""`RunClock`: times a fit on the machine in use (steps, data loader waits, validation), with two clock reads per batch.

One or several callbacks report the hooks of a fit. The clock adds up the times of batches, waits between batches,
validation, and the gaps between epochs. Directly after the capture, it knows only a few early steps; later, it knows
the whole run so far. Tests replace the real clock with `clock_of_fits`. Example::

    clock = run_clock_of(trainer, device=device)
    clock.on_batch_start()
    # ... the batch is trained ...
    clock.on_batch_end()
    clock.batch_times(batches_per_window=1)   # None before any step was timed
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, Final, final
from weakref import WeakKeyDictionary

from lightning_predict.constants import constants_of
from lightning_predict.interval import Interval
from lightning_predict.observe.device_pace import DevicePace
from lightning_predict.observe.optimizer_steps import StepCounter
from lightning_predict.observe.remaining import CheckpointTimer
from lightning_predict.observe.steady_state import STALLS, TimingSamples
from lightning_predict.tracing.running_loop import BLOCK_BATCHES
from lightning_predict.tracing.trace import Memory, Trace, measured_seconds
from lightning_predict.tracing.waiting import wait_for

if TYPE_CHECKING:
    import torch

_OF: Final = constants_of(__name__)


_Clock = Callable[[], float]

_SHOWN: Final[ContextVar[tuple[_Clock, _Clock] | None]] = ContextVar("clocks of the host and the device", default=None)


@contextmanager
def clock_of_fits(clock: Callable[[], float], *, device: Callable[[], float] | None = None) -> Iterator[None]:
    """Replace the clock of all callbacks that are created, and all fits that start, within this context.

    Args:
        clock: Returns seconds of a monotonic clock.
        device: Returns seconds after waiting for the device; None uses `clock`.
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
    """Return the clock of the budget. If the system supports it, time in which the machine sleeps counts."""
    shown = _SHOWN.get()
    if shown is not None:
        return shown[0]
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return monotonic if boot is None else partial(time.clock_gettime, boot)  # it must be picklable


def device_clock(device: torch.device) -> Callable[[], float]:
    """Return a clock in seconds that first waits for the device, so that queued work is included."""
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


FIRST_EPOCH_COLD: Final = _OF.number("FIRST_EPOCH_COLD", "factor")

FIRST_EPOCH_DISCOUNT: Final = _OF.number("FIRST_EPOCH_DISCOUNT", "factor")

WARM_WAITS: Final = _OF.count("WARM_WAITS", "waits")

MIN_WAITS_PER_WORKER: Final = _OF.count("MIN_WAITS_PER_WORKER", "waits")

UNSEEN_LONGER: Final = _OF.number("UNSEEN_LONGER", "factor")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimes:
    """Seconds of a batch on the machine in use.

    Attributes:
        step: Seconds from the start of a batch to its end. An optimizer update counts in proportion.
        wait: Seconds from the end of a batch to the start of the next: data loader, logging and other callbacks.
        later_wait: Seconds from the end of a batch to the start of the next, in epochs that have not begun.
        values: Number of measured batches on which `step` is based.
        waits: Number of measured waits on which `wait` is based.
        is_settled: Whether steps no longer get faster, so that the warm-up is over.
    """

    step: Interval[float]
    wait: Interval[float]
    later_wait: Interval[float]
    values: int
    waits: int
    is_settled: bool

    @property
    def step_seconds(self) -> float:
        """Seconds of a batch from its start to its end."""
        return self.step.middle

    @property
    def wait_seconds(self) -> float:
        """Seconds between two batches."""
        return self.wait.middle


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationTimes:
    """Times of a validation run on the machine in use, in seconds.

    Attributes:
        overhead: Time before the first batch and after the last batch: starting workers, computing metrics.
        wait: Wait before each batch except the first.
        batch: Time of a batch; None if no batch was timed.
    """

    overhead: Interval[float]
    wait: Interval[float]
    batch: Interval[float] | None


NOTHING: Final = Interval(0.0, 0.0, 0.0)


@final
class _ValidationRun:
    """A validation run in progress.

    Attributes:
        before: Time at which the last training batch ended.
        is_check: Whether the run is the sanity check.
    """

    def __init__(self, before: float, *, is_check: bool) -> None:
        self.before, self.is_check = before, is_check
        self.start_seconds: float | None = None
        self.waited = 0.0
        self.batch_start: float | None = None
        self.last_end = before
        self.is_recorded = False
        self.batch_seconds: list[tuple[float, bool]] = []

    @property
    def every(self) -> list[float]:
        return [seconds for seconds, _ in self.batch_seconds]

    def plain(self, start: int = 0) -> list[float]:
        """Return the seconds of batches that were not recorded, from batch `start` on."""
        return [seconds for seconds, is_recorded in self.batch_seconds[start:] if not is_recorded]


@final
class ValidationTimer:
    """Timer of the validation runs of a fit. The sanity check is timed separately.

    Args:
        clock: Returns seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._run: _ValidationRun | None = None
        self._check: _ValidationRun | None = None
        self._batches, self._waits, self._around = TimingSamples(), TimingSamples(), TimingSamples()
        self._calm_batches = TimingSamples()
        self._batches_per_run = 1

    @property
    def is_under_way(self) -> bool:
        """Whether a validation run is in progress."""
        return self._run is not None

    def starts(self, *, before: float, is_check: bool) -> None:
        """Start a validation run. The last training batch ended at the time `before`."""
        self._run = _ValidationRun(before, is_check=is_check)

    def on_batch_start(self) -> None:
        """Start timing a batch."""
        run = self._run
        if run is None or run.batch_start is not None:
            return
        run.batch_start = now = self._clock()
        if run.start_seconds is None:
            run.start_seconds = max(0.0, now - run.before)
        else:
            run.waited += now - run.last_end

    def batch_is_recorded(self) -> None:
        """Mark the current batch as recorded, because recording slows the batch."""
        if self._run is not None:
            self._run.is_recorded = True

    def on_batch_end(self) -> None:
        """Stop timing a batch."""
        run = self._run
        if run is None or run.batch_start is None:
            return
        run.last_end = self._clock()
        run.batch_seconds.append((run.last_end - run.batch_start, run.is_recorded))
        run.batch_start, run.is_recorded = None, False

    def ends(self) -> float | None:
        """End the validation run and return the time of its end; None if no run was in progress."""
        run, self._run = self._run, None
        if run is None:
            return None
        now = self._clock()
        every = run.every
        if run.is_check:
            self._check = run
        elif every:
            plain = run.plain() or every
            self._around.add(max(0.0, now - run.before - run.waited - sum(every)))
            # Use the mean over the run: in every run, the first batches are slow (cold) and the last batch is
            # small.
            self._batches.add(statistics.fmean(plain))
            self._calm_batches.add(statistics.fmean(sorted(plain)[:-STALLS] or [min(plain)]))
            self._batches_per_run = len(plain)
            if len(every) > 1:
                self._waits.add(run.waited / len(every))
        return now

    def without_stalls(self) -> ValidationTimer:
        """Return a copy without the longest waits and batches, in each run and of all runs."""
        calm = copy(self)
        calm._batches = self._calm_batches.without_stalls() if self._batches.count > 1 else self._calm_batches
        calm._waits, calm._around = self._waits.without_stalls(), self._around.without_stalls()
        return calm

    def times(
        self, *, batch_seconds: float | None = None, made_in: Interval[float] = NOTHING, ahead: float = math.inf
    ) -> ValidationTimes | None:
        """Return the times of validation, from the runs so far or else from the sanity check; None without either.

        Args:
            batch_seconds: Seconds of a training batch. A longer batch of the sanity check was either cold or is really
                slow, so the result is the geometric mean of both times.
            made_in: Interval of the workers' seconds per validation batch, from the training workers. The sanity check
                does not show this time: its few batches were loaded before they were requested.
            ahead: Number of remaining validation runs.
        """
        around = self._around.estimate(ahead=ahead)
        found = self._batches.estimate(of_each=self._batches_per_run, ahead=ahead)
        if found is not None and around is not None:
            waits = self._waits.estimate(ahead=ahead)
            return ValidationTimes(
                overhead=around.mean, wait=NOTHING if waits is None else waits.mean, batch=found.mean
            )
        check = self._check
        if check is None or not check.batch_seconds:
            return None
        seconds = min(check.plain(1) or check.every)
        least = seconds if batch_seconds is None else min(seconds, batch_seconds)
        middle = math.sqrt(least * seconds)
        waited = check.waited / (len(check.batch_seconds) - 1) if len(check.batch_seconds) > 1 else 0.0
        start = check.start_seconds or 0.0
        return ValidationTimes(
            overhead=Interval(0.0, start, UNSEEN_LONGER * start),
            wait=Interval(0.0, waited, UNSEEN_LONGER * waited).map(max, made_in.added(-middle)),
            batch=Interval(least / FIRST_EPOCH_COLD, middle, UNSEEN_LONGER * seconds),
        )


@final
@dataclass(frozen=True, slots=True)
class _Gap:
    """Gap between two batches: its start, whether it is more than a wait, and whether an epoch begins in it."""

    since: float
    is_pause: bool = False
    is_new_epoch: bool = False


@final
class RunClock:
    """Clock of one fit. Several callbacks may report the same event; the first report counts.

    Args:
        clock: Returns seconds of a monotonic clock.
        is_asynchronous: Whether the host finishes a batch before the device does.

    Attributes:
        batches_per_epoch: Number of batches of the last complete epoch; None before an epoch was complete.
        windows: Counter of the finished training batches and optimizer steps.
        checkpoints: Timer of checkpoint files.
        validation: Timer of validation runs, which also gets their batch events.
        memory: Sizes of a checkpoint's contents; None before a step was recorded.
        buffered: Number of batches that the loader's workers have loaded at the end of a pause.
        began: Start time of the first batch; None before the first batch.
        device: Cycles of a host that runs ahead of its device; not used on a CPU.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter, *, is_asynchronous: bool = False) -> None:
        self.batches_per_epoch: int | None = None
        self.windows = StepCounter()
        self.checkpoints = CheckpointTimer()
        self.memory: Memory | None = None
        self.buffered = 0
        self.began: float | None = None
        self.device = DevicePace()
        self.has_begun = False
        self._clock = clock
        self._is_asynchronous = is_asynchronous
        self._batch_start: float | None = None
        self._gap: _Gap | None = None
        self._ended = 0.0
        self._is_recorded = False
        self._first_waits: int | None = None
        self._epochs = 0
        self._epoch_began_at: int | None = None
        self._waits_to_skip = 0
        self._steps, self._waits = TimingSamples(), TimingSamples()
        self._pauses, self._closings = TimingSamples(), TimingSamples()
        self._last_step = 0.0
        self._first_pause: float | None = None
        self.validation = ValidationTimer(clock)

    @property
    def batches(self) -> int:
        """Number of finished training batches."""
        return self.windows.batches

    def now(self) -> float:
        """Return the seconds of the clock, without waiting for the device."""
        return self._clock()

    @property
    def training_seconds(self) -> float:
        """Seconds from the start of the first batch to the end of the last one."""
        return 0.0 if self.began is None else max(0.0, self._ended - self.began)

    def exclude_interruption(self) -> None:
        """Exclude a single interruption before the next batch, such as a prediction."""
        self._gap = None
        self.device.drain()
        self._waits_to_skip = max(0, self.buffered - 1)  # the first batch after the interruption is a buffered batch

    def step_is_measured(self, trace: Trace) -> None:
        """Set the device time of a batch from a recorded step, if the step was timed."""
        seconds = measured_seconds(trace)
        if seconds is None:
            self.device.measured(None)
            return
        starts = {
            id(kernel) if kernel.launch_start_seconds is None else kernel.launch_start_seconds
            for kernel in trace.kernels
        }
        launches = len(starts) or len(trace.operations)  # without a profile, assume about one launch per operation
        timed = BLOCK_BATCHES if trace.running_step_seconds is not None else len(trace.step_seconds) * trace.batches
        self.device.measured(
            seconds / trace.batches, launches=max(1, math.ceil(launches / trace.batches)), batches=max(1, timed)
        )

    # --- Events of training

    def on_batch_start(self) -> bool:
        """Record that a batch was fetched, and that its training begins.

        Returns:
            Whether this batch is the first of a new epoch, and the number of finished epochs has doubled.
        """
        if self._batch_start is not None:
            return False
        now = self._batch_start = self._clock()
        gap = self._gap
        if self.began is None or (gap is not None and gap.is_pause):
            self._gap = None
            return self._resumes(now, gap)
        if gap is not None:
            wait = now - gap.since
            if self.checkpoints.is_pending:
                self.device.drain()
                self.checkpoints.hook_begins(now, waited_seconds=min(wait, self._wait_so_far()))
            elif self._waits_to_skip:  # prefetched during the interruption, until a wait shows that none is left
                self._waits_to_skip = self._waits_to_skip - 1 if wait <= self._last_step else 0
            else:
                self._waits.add(wait)
                if self._is_asynchronous:
                    self.device.add(self._last_step + wait)
        return False

    def batch_is_recorded(self) -> None:
        """Mark the current batch as recorded, because recording slows the batch."""
        self._is_recorded = True

    def on_batch_end(self, optimizer_steps_done: Callable[[], int] = lambda: 0) -> None:
        """Record that the training of a batch has ended.

        Args:
            optimizer_steps_done: Returns the trainer's number of optimizer steps. The function is called only if
                accumulation windows are counted.
        """
        start, windows = self._batch_start, self.windows
        if start is None:
            return
        self._batch_start = None
        if windows.is_followed:
            windows.on_batch_end(optimizer_steps_done())
        else:
            windows.batches += 1
        now = self._ended = self._clock()
        if self._is_recorded:
            self._is_recorded, self._gap = False, None
            return
        self._gap, self._last_step = _Gap(now), now - start
        if not self._is_asynchronous:
            self._steps.add(now - start)

    def on_epoch_start(self) -> None:
        """Record that an epoch begins. Its loader may start workers."""
        gap, now = self._breaks()
        if self._epoch_began_at is None and self.batches:
            self._closings.add(max(0.0, now - gap.since))
        self._gap, self._epoch_began_at = replace(gap, is_new_epoch=True), self.batches

    def on_epoch_end(self) -> None:
        """Record that an epoch has ended."""
        self._gap, _ = self._breaks()
        began, self._epoch_began_at = self._epoch_began_at, None
        if began is not None and self.batches > began:  # None for an epoch that was resumed in the middle
            self.batches_per_epoch = self.batches - began

    def checkpoint_is_collected(self, caller: object) -> None:
        """Record that the state of a checkpoint is collected. Its file is written next."""
        self.checkpoints.is_collected(self._clock(), caller)

    # --- Events of validation

    def on_sanity_check_start(self) -> None:
        """Record that the sanity check is about to start its loader's workers."""
        self.has_begun = True
        self._gap = _Gap(self._clock(), is_pause=True)

    def on_validation_start(self, *, is_check: bool) -> None:
        """Record that a validation run or the sanity check begins."""
        self.has_begun = True
        if self.validation.is_under_way:
            return
        now, gap = self._clock(), self._gap
        before = (now if gap is None else gap.since) + self.device.drain()
        if self.checkpoints.is_pending:  # the checkpoint is written after the last batch; starting validation is short
            self.checkpoints.hook_begins(now)
            before = now
        self._batch_start = None
        self._gap = gap if gap is not None and gap.is_pause else None
        self.validation.starts(before=before, is_check=is_check)

    def on_validation_end(self) -> None:
        """Record that the validation run has ended."""
        now = self.validation.ends()
        if now is not None:
            self._gap = _Gap(now, is_pause=True, is_new_epoch=self._gap is not None and self._gap.is_new_epoch)

    # --- Results

    def without_stalls(self) -> RunClock:
        """Return a copy in which typical times replace the longest times of each kind, for a second forecast."""
        calm = copy(self)
        calm._steps, calm._waits = self._steps.without_stalls(), self._waits.without_stalls()
        calm._pauses, calm._closings = self._pauses.without_stalls(), self._closings.without_stalls()
        calm.device, calm.validation = self.device.without_stalls(), self.validation.without_stalls()
        calm.checkpoints = self.checkpoints.without_stalls()
        return calm

    def batch_times(self, *, batches_per_window: int, workers: int = 0, ahead: float = math.inf) -> BatchTimes | None:
        """Return the times of a batch; None before any step was timed.

        Args:
            batches_per_window: Number of batches per optimizer step. Batches at different positions take different
                times.
            workers: Number of loader workers; 0 without workers. All workers start together, so one long wait loads a
                batch per worker.
            ahead: Number of remaining batches.
        """
        waits = self._waits.estimate(together=max(1, workers), turns=1, ahead=ahead)
        wait = NOTHING if waits is None else waits.mean
        if self._waits.count < MIN_WAITS_PER_WORKER * workers:  # only later batches show the speed of the workers
            wait = Interval(wait.low, wait.middle, max(wait.high, (self._first_pause or 0.0) / workers))
        # On a GPU, the host waits for the loader while the device computes, so only the sum of both times is known.
        found = (
            self.device.estimate(together=max(batches_per_window, workers), ahead=ahead)
            if self._is_asynchronous
            else self._steps.estimate(together=batches_per_window, ahead=ahead)
        )
        if found is None:
            return None
        step = found.mean
        if self._is_asynchronous:
            seconds = step.middle if self.device.seconds is None else min(self.device.seconds, step.middle)
            wait = NOTHING.added(step.middle - seconds)
            step = step.added(seconds - step.middle).clamp_min(0.0)
        later = wait
        if waits is not None:
            later = self._warm(wait)
            wait = wait if self._first_waits is None else later
        return BatchTimes(
            step=step,
            wait=wait,
            later_wait=later,
            values=(self.device if self._is_asynchronous else self._steps).count,
            waits=self._waits.count,
            is_settled=found.is_settled,
        )

    def _warm(self, wait: Interval[float]) -> Interval[float]:
        """Return the wait in later epochs.

        The first epoch fills caches, which matters while few later waits are known.
        """
        since = 0 if self._first_waits is None else self._waits.count - self._first_waits
        doubt = max(0.0, 1 - since / WARM_WAITS)
        less = max(0.5, 1 - FIRST_EPOCH_DISCOUNT / self._waits.count)
        low, middle = wait.low / FIRST_EPOCH_COLD, wait.middle * less
        return Interval(wait.low - doubt * (wait.low - low), wait.middle - doubt * (wait.middle - middle), wait.high)

    def pause(self, *, starts_workers: bool, ahead: float = math.inf) -> Interval[float]:
        """Return the gap between two epochs, without validation, checkpoints and the wait for a batch.

        Args:
            starts_workers: Whether each epoch restarts the loader's workers. If so, the first epoch is representative.
            ahead: Number of remaining epochs.
        """
        wait = self._wait_so_far()
        pauses = self._pauses.estimate(ahead=ahead)
        if pauses is not None:
            return pauses.mean.added(-wait).clamp_min(0.0)
        first = max(0.0, (self._first_pause or 0.0) - wait)
        return Interval(0.0, first if starts_workers else first / 2, UNSEEN_LONGER * first)

    def closing(self) -> Interval[float]:
        """Return the time from the end of an epoch to the start of the next. The last epoch has this time, too."""
        closings = self._closings.estimate(ahead=1)
        return NOTHING if closings is None else closings.mean

    def _wait_so_far(self) -> float:
        waits = self._waits.estimate()
        return 0.0 if waits is None else waits.mean.middle

    def _breaks(self) -> tuple[_Gap, float]:
        """Start a pause that is not a wait for a batch. Return the gap between the batches and the current time."""
        self.has_begun, self._batch_start = True, None
        now = self._clock()
        gap = self._gap or _Gap(now)
        if self.checkpoints.is_pending:
            self.checkpoints.hook_begins(now)
            gap = replace(gap, since=now)
        # The device still computes queued work, and the pause begins when this work is done.
        return replace(gap, since=gap.since + self.device.drain(), is_pause=True), now

    def _resumes(self, now: float, gap: _Gap | None) -> bool:
        """Store the gap that ends with this batch."""
        is_new = gap is not None and gap.is_new_epoch
        is_first, self.began, self.has_begun = self.began is None, self.began or now, True
        has_doubled = False
        if is_new and not is_first:
            self._first_waits = self._waits.count if self._first_waits is None else self._first_waits
            self._epochs += 1
            has_doubled = self._epochs.bit_count() == 1
        if self.checkpoints.is_pending:
            self.checkpoints.hook_begins(now, waited_seconds=self._wait_so_far())
            return has_doubled
        if gap is None or not is_new:
            return False
        if is_first:
            self._first_pause = max(0.0, now - gap.since)
            return False
        self._pauses.add(max(0.0, now - gap.since))
        return has_doubled


_CLOCKS: WeakKeyDictionary[Any, RunClock] = WeakKeyDictionary()


def run_clock_of(trainer: object, *, device: torch.device) -> RunClock:
    """Return the clock of the fit that begins, shared by all callbacks of the Trainer. Call this in `setup`."""
    found = _CLOCKS.get(trainer)
    if found is None or found.has_begun:
        found = _CLOCKS[trainer] = RunClock(host_clock(), is_asynchronous=device.type != "cpu")
    return found
