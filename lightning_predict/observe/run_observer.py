"""`RunObserver`: times one run from its events, and answers how long a step takes and what is left.

An adapter (the two callbacks, Fabric, Hugging Face, `lp.watch`) reports the events: a batch starts, a batch ends, an
epoch or an interruption (no wait for a batch), validation, and a checkpoint. Two callbacks of one Trainer share one
observer. Both report the same events, and the first report counts. Example::

    observer = observer_of(trainer, device=device)
    observer.on_batch_start()
    # ... the batch is trained ...
    observer.on_batch_end()
    observer.batch_times(batches_per_window=1).step   # seconds per batch, with their interval
    observer.rest(inputs).forecast                    # remaining seconds, with their interval
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from lightning_predict.base.interval import NOTHING, Interval
from lightning_predict.observe.clock import host_clock
from lightning_predict.observe.device_pace import DevicePace
from lightning_predict.observe.forecast import (
    BatchTimes,
    ForecastInputs,
    RestOfRun,
    RunTimes,
    TimedForecast,
    for_full_batches,
    forecast_rest,
    seconds_of_workers,
)
from lightning_predict.observe.optimizer_steps import StepCounter
from lightning_predict.observe.remaining import CheckpointTimer, remaining
from lightning_predict.observe.steady_state import TimingSamples
from lightning_predict.observe.validation_timer import FIRST_EPOCH_COLD, UNSEEN_LONGER, ValidationTimer
from lightning_predict.record.running_loop import BLOCK_BATCHES
from lightning_predict.record.trace import Memory, Trace, measured_seconds

if TYPE_CHECKING:
    import torch


WARM_WAITS: Final = 32  # Number of waits in later epochs after which the first epoch no longer adds uncertainty
MIN_WAITS_PER_WORKER: Final = 2  # Number of waits per worker up to which a later wait may be as long as the first one


class RunObserver:
    """Observer of one run. Several callbacks may report the same event; the first report counts.

    Args:
        clock: Returns seconds of a monotonic clock.
        is_asynchronous: Whether the host finishes a batch before the device does.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter, *, is_asynchronous: bool = False) -> None:
        # Number of batches of the last complete epoch; None before an epoch was complete
        self.batches_per_epoch: int | None = None
        self.windows = StepCounter()  # Counter of the finished training batches and optimizer steps
        self.checkpoints = CheckpointTimer()
        self.memory: Memory | None = None  # Sizes of a checkpoint's contents; None before a step was recorded
        self.buffered = 0  # Number of batches that the loader's workers have loaded at the end of a pause
        self.began: float | None = None  # Start time of the first batch; None before the first batch
        self.device = DevicePace()  # Cycles of a host that runs ahead of its device; not used on a CPU
        self.latest: TimedForecast | None = None  # The last forecast of the rest of the run; None before
        self.has_begun = False
        self._clock = clock
        self._is_asynchronous = is_asynchronous
        self.batch_start: float | None = None  # Time at which the current batch began; None between batches
        # Whether the current batch is the first after the first validation, or after the number of epochs has doubled
        self.is_milestone = False
        self._has_first_validation = False
        # The gap before the next batch: its start, whether it is more than a wait, and whether an epoch begins in it.
        self._gap: float | None = None
        self._is_pause = self._is_new_epoch = False
        self.ended = 0.0  # Time at which the last batch ended; 0 before
        self._is_recorded = False
        self._first_waits: int | None = None
        self._epochs = 0
        self._epoch_began_at: int | None = None
        self._waits_to_skip = 0
        self._steps, self._waits = TimingSamples(), TimingSamples()
        self._pauses, self._closings = TimingSamples(), TimingSamples()
        self._last_step = 0.0
        self._first_pause: float | None = None
        self.validation = ValidationTimer(clock)  # Timer of validation runs, which also gets their batch events

    @property
    def batches(self) -> int:
        """Number of finished training batches."""
        return self.windows.batches

    @property
    def seen(self) -> tuple[bool, bool]:
        """Whether an epoch has ended, and whether a validation has."""
        return self._epochs > 0, self.validation.has_run

    def now(self) -> float:
        """Return the seconds of the clock, without waiting for the device."""
        return self._clock()

    @property
    def training_seconds(self) -> float:
        """Seconds from the start of the first batch to the end of the last one."""
        return 0.0 if self.began is None else max(0.0, self.ended - self.began)

    def time_at(self, training_seconds: float) -> float:
        """Return the time of the clock after this many seconds of training."""
        return (self._clock() if self.began is None else self.began) + training_seconds

    # --- Events: a step starts and ends

    def on_batch_start(self) -> None:
        """Record that a batch was fetched, and that its training begins."""
        if self.batch_start is not None:
            return
        now = self.batch_start = self._clock()
        gap, self.is_milestone = self._gap, False
        if self.began is None or self._is_pause:
            self._resumes(now)
            return
        if gap is None:
            return
        wait = now - gap
        if self.checkpoints.is_pending:
            self.device.drain()
            self.checkpoints.hook_begins(now, waited_seconds=min(wait, self._wait_so_far()))
        elif self._waits_to_skip:  # prefetched during the interruption, until a wait shows that none is left
            self._waits_to_skip = self._waits_to_skip - 1 if wait <= self._last_step else 0
        else:
            self._waits.add(wait)
            if self._is_asynchronous:
                self.device.add(self._last_step + wait)

    def batch_is_recorded(self) -> None:
        """Mark the current batch as recorded, because recording slows the batch."""
        self._is_recorded = True

    def on_batch_end(self, optimizer_steps_done: Callable[[], int] = lambda: 0) -> None:
        """Record that the training of a batch has ended.

        Args:
            optimizer_steps_done: Returns the trainer's number of optimizer steps. The function is called only if
                accumulation windows are counted.
        """
        start, windows = self.batch_start, self.windows
        if start is None:
            return
        self.batch_start = None
        if windows.is_followed:
            windows.on_batch_end(optimizer_steps_done())
        else:
            windows.batches += 1
        now = self.ended = self._clock()
        if self._is_recorded:
            self._is_recorded, self._gap = False, None
            return
        self._gap, self._last_step = now, now - start
        if not self._is_asynchronous:
            self._steps.add(now - start)

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

    # --- Events: the time until the next batch is no wait for it

    def exclude_interruption(self) -> None:
        """Exclude a single interruption before the next batch, such as a prediction."""
        self._gap, self._is_pause, self._is_new_epoch = None, False, False
        self.device.drain()
        self._waits_to_skip = max(0, self.buffered - 1)  # the first batch after the interruption is a buffered batch

    def on_epoch_start(self) -> None:
        """Record that an epoch begins. Its loader may start workers."""
        gap, now = self._pauses_at()
        if self._epoch_began_at is None and self.batches:
            self._closings.add(max(0.0, now - gap))
        self._is_new_epoch, self._epoch_began_at = True, self.batches

    def on_epoch_end(self) -> None:
        """Record that an epoch has ended."""
        self._pauses_at()
        began, self._epoch_began_at = self._epoch_began_at, None
        if began is not None and self.batches > began:  # None for an epoch that was resumed in the middle
            self.batches_per_epoch = self.batches - began

    def on_checkpoint(self, caller: object) -> None:
        """Record that the state of a checkpoint is collected. Its file is written next."""
        self.checkpoints.is_collected(self._clock(), caller)

    # --- Events: validation

    def on_sanity_check_start(self) -> None:
        """Record that the sanity check is about to start its loader's workers."""
        self.has_begun = self._is_pause = True
        self._gap, self._is_new_epoch = self._clock(), False

    def on_validation_start(self, *, is_check: bool) -> None:
        """Record that a validation run or the sanity check begins."""
        self.has_begun = True
        if self.validation.is_under_way:
            return
        now, gap = self._clock(), self._gap
        before = (now if gap is None else gap) + self.device.drain()
        if self.checkpoints.is_pending:  # the checkpoint is written after the last batch; starting validation is short
            self.checkpoints.hook_begins(now)
            before = now
        self.batch_start = None
        if not self._is_pause:
            self._gap, self._is_new_epoch = None, False
        self.validation.starts(before=before, is_check=is_check)

    def on_validation_end(self) -> None:
        """Record that the validation run has ended."""
        had_run = self.validation.has_run
        now = self.validation.ends()
        self._has_first_validation = self.validation.has_run and not had_run
        if now is not None:
            self._gap, self._is_pause = now, True

    # --- Answers

    def rest(
        self, inputs: ForecastInputs, *, batches_per_window: int | None = None, samples: int | None = None
    ) -> RestOfRun:
        """Return the rest of the run: its counts, its seconds and their interval. See `forecast_rest`."""
        counts, position = remaining(inputs.position), inputs.position
        batch_times = self.batch_times(
            batches_per_window=batches_per_window or position.batches_per_window,
            workers=inputs.workers or 1 if inputs.has_workers else 0,
            remaining=math.inf if counts.batches is None else counts.batches,
        )
        runs = math.inf if counts.validation_runs is None else counts.validation_runs
        validation = self.validation.times(remaining=runs)
        if batch_times is not None:
            batch_times = for_full_batches(batch_times, position)
            validation = self.validation.times(
                batch_seconds=batch_times.step.middle,
                wait=seconds_of_workers(batch_times) if inputs.validation_has_workers else batch_times.wait,
                has_workers=inputs.validation_has_workers,
                remaining=runs,
            )
        times = RunTimes(
            batch=batch_times,
            validation=validation,
            pause=self.pause(starts_workers=inputs.starts_workers, remaining=counts.epochs or 0),
            closing=self.closing(),
            checkpoint_seconds=self.checkpoints.seconds,
            memory=self.memory or Memory(),
        )
        return forecast_rest(inputs, times, batches_per_window=batches_per_window, samples=samples)

    @property
    def remaining(self) -> Interval[float] | None:
        """Remaining seconds of the run on this machine, with their interval; None before a forecast, or if unknown."""
        left = None if self.latest is None else self.latest.left(self._clock())
        return None if left is None else left.clamp_min(0.0)

    def at_best(self, batches_per_window: int = 1) -> RunObserver:
        """Return a copy in which everything takes as long as at its best so far, for a second forecast."""
        best = copy(self)
        best._steps, best._waits = self._steps.at_best(batches_per_window), self._waits.at_best()
        best._pauses, best._closings = self._pauses.at_best(), self._closings.at_best()
        best.device, best.validation = self.device.at_best(batches_per_window), self.validation.at_best()
        best.checkpoints = self.checkpoints.at_best()
        return best

    def batch_times(
        self, *, batches_per_window: int, workers: int = 0, remaining: float = math.inf
    ) -> BatchTimes | None:
        """Return the times of a batch; None before any step was timed.

        Args:
            batches_per_window: Number of batches per optimizer step. Batches at different positions take different
                times.
            workers: Number of loader workers; 0 without workers. All workers start together, so one long wait loads a
                batch per worker.
            remaining: Number of remaining batches.
        """
        waits = self._waits.estimate(group_size=max(1, workers), min_groups=1, remaining=remaining)
        wait = NOTHING if waits is None else waits.mean
        if self._waits.count < MIN_WAITS_PER_WORKER * workers:  # only later batches show the speed of the workers
            wait = Interval(wait.low, wait.middle, max(wait.high, (self._first_pause or 0.0) / workers))
        # On a GPU, the host waits for the loader while the device computes, so only the sum of both times is known.
        steps = (
            self.device.estimate(group_size=max(batches_per_window, workers), remaining=remaining)
            if self._is_asynchronous
            else self._steps.estimate(group_size=batches_per_window, remaining=remaining)
        )
        if steps is None:
            return None
        step = steps.mean
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
        )

    def _warm(self, wait: Interval[float]) -> Interval[float]:
        """Return the wait in later epochs. The first epoch may fill caches, so the low end allows for shorter waits."""
        since = 0 if self._first_waits is None else self._waits.count - self._first_waits
        doubt = max(0.0, 1 - since / WARM_WAITS)
        return Interval(wait.low - doubt * (wait.low - wait.low / FIRST_EPOCH_COLD), wait.middle, wait.high)

    def pause(self, *, starts_workers: bool, remaining: float = math.inf) -> Interval[float]:
        """Return the gap between two epochs, without validation, checkpoints and the wait for a batch.

        Args:
            starts_workers: Whether each epoch restarts the loader's workers. If so, the first epoch is representative.
            remaining: Number of remaining epochs.
        """
        wait = self._wait_so_far()
        pauses = self._pauses.estimate(remaining=remaining)
        if pauses is not None:
            return pauses.mean.added(-wait).clamp_min(0.0)
        first = max(0.0, (self._first_pause or 0.0) - wait)  # without workers, most of it is a cold start
        return Interval(0.0, first if starts_workers else min(first, wait), UNSEEN_LONGER * first)

    def closing(self) -> Interval[float]:
        """Return the time from the end of an epoch to the start of the next. The last epoch has this time, too."""
        closings = self._closings.estimate(remaining=1)
        return NOTHING if closings is None else closings.mean

    def _wait_so_far(self) -> float:
        waits = self._waits.estimate()
        return 0.0 if waits is None else waits.mean.middle

    def _pauses_at(self) -> tuple[float, float]:
        """Start a pause that is not a wait for a batch. Return its start, and the time."""
        self.has_begun, self.batch_start = True, None
        now = self._clock()
        gap = now if self._gap is None else self._gap
        if self.checkpoints.is_pending:
            self.checkpoints.hook_begins(now)
            gap = now
        # The device still computes queued work, and the pause begins when this work is done.
        self._gap, self._is_pause = gap + self.device.drain(), True
        return self._gap, now

    def _resumes(self, now: float) -> None:
        """Store the gap that ends with this batch."""
        gap, is_new = self._gap, self._is_new_epoch
        self._gap, self._is_pause, self._is_new_epoch = None, False, False
        is_first, self.began, self.has_begun = self.began is None, self.began or now, True
        self.is_milestone, self._has_first_validation = self._has_first_validation, False
        if is_new and not is_first:
            self._first_waits = self._waits.count if self._first_waits is None else self._first_waits
            self._epochs += 1
            self.is_milestone |= self._epochs.bit_count() == 1
        if self.checkpoints.is_pending:
            self.checkpoints.hook_begins(now, waited_seconds=self._wait_so_far())
        elif gap is None or not is_new:
            return
        elif is_first:
            self._first_pause = max(0.0, now - gap)
        else:
            self._pauses.add(max(0.0, now - gap))


_OBSERVERS: WeakKeyDictionary[Any, RunObserver] = WeakKeyDictionary()


def observer_of(trainer: object, *, device: torch.device) -> RunObserver:
    """Return the observer of the fit that begins, which all callbacks of the Trainer share. Call this in `setup`."""
    observer = _OBSERVERS.get(trainer)
    if observer is None or observer.has_begun:
        observer = _OBSERVERS[trainer] = RunObserver(host_clock(), is_asynchronous=device.type != "cpu")
    return observer
