"""`ValidationTimer`: times the validation runs of a fit, and the sanity check separately."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Final

from lightning_predict.base.interval import NOTHING, Interval
from lightning_predict.observe.steady_state import TimingSamples

FIRST_EPOCH_COLD: Final = 3.0
"""Maximum factor by which the loader is faster from the second epoch on, when its caches are full."""

UNSEEN_LONGER: Final = 1.5
"""Factor by which a time that was measured only at the start (a sanity check, the first fetch) may increase later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationTimes:
    """Times of a validation run on the machine in use, in seconds."""

    overhead: Interval[float]  # Time before the first and after the last batch: starting workers, computing metrics
    wait: Interval[float]  # Wait before each batch except the first
    batch: Interval[float] | None  # Time of a batch; None if no batch was timed


class _ValidationRun:
    """A validation run in progress."""

    def __init__(self, before: float, *, is_check: bool) -> None:
        self.before, self.is_check = before, is_check
        self.start_seconds: float | None = None
        self.closing_seconds = 0.0
        self.waits: list[float] = []
        self.recording_seconds = 0.0
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


class ValidationTimer:
    """Timer of the validation runs of a fit. The sanity check is timed separately."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._run: _ValidationRun | None = None
        self._check: _ValidationRun | None = None
        self._batches, self._waits, self._around = TimingSamples(), TimingSamples(), TimingSamples()
        self._batches_per_run = 1

    @property
    def is_under_way(self) -> bool:
        """Whether a validation run is in progress."""
        return self._run is not None

    @property
    def has_run(self) -> bool:
        """Whether a validation run has ended, besides the sanity check."""
        return self._batches.count > 0

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
            run.waits.append(now - run.last_end)

    def batch_is_recorded(self) -> None:
        """Mark the current batch as recorded, because recording slows the batch, and delays the next one."""
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

    def recording_has_ended(self) -> None:
        """Exclude the time since the end of the last batch, in which its recording was stopped."""
        run = self._run
        if run is not None and run.batch_start is None and run.batch_seconds and run.batch_seconds[-1][1]:
            now = self._clock()
            run.recording_seconds, run.last_end = run.recording_seconds + now - run.last_end, now

    def ends(self) -> float | None:
        """End the validation run and return the time of its end; None if no run was in progress."""
        run, self._run = self._run, None
        if run is None:
            return None
        now = self._clock()
        every = run.every
        if every:
            run.closing_seconds = now - run.last_end
        if run.is_check:
            self._check = run
        elif every:
            plain, waited = run.plain() or every, sum(run.waits)
            self._around.add(max(0.0, now - run.before - waited - run.recording_seconds - sum(every)))
            # Use the mean over the run: in every run, the first batches are slow (cold) and the last batch is
            # small.
            self._batches.add(statistics.fmean(plain))
            self._batches_per_run = len(plain)
            if run.waits:
                self._waits.add(waited / len(run.waits) * (len(every) - 1) / len(every))
        return now

    def at_best(self) -> ValidationTimer:
        """Return a copy in which every run takes as long as at its best. A single run may be slow as a whole."""
        best = copy(self)
        best._batches, best._waits, best._around = (
            samples.at_best() if self._batches.count > 1 else TimingSamples()
            for samples in (self._batches, self._waits, self._around)
        )
        return best

    def times(
        self,
        *,
        batch_seconds: float | None = None,
        wait: Interval[float] = NOTHING,
        has_workers: bool = False,
        remaining: float = math.inf,
    ) -> ValidationTimes | None:
        """Return the times of validation, from the runs so far or else from the sanity check; None without either.

        Args:
            batch_seconds: Seconds of a training batch. A longer batch of the sanity check was either cold or is really
                slow, so the result is the geometric mean of both times.
            wait: Interval of the wait for a training batch, or of the workers' seconds per batch. The sanity check does
                not show the workers' time: its few batches were loaded before they were requested.
            has_workers: Whether each validation run starts workers.
            remaining: Number of remaining validation runs.
        """
        overhead = self._around.estimate(remaining=remaining)
        batches = self._batches.estimate(measurements_per_value=self._batches_per_run, remaining=remaining)
        if batches is not None and overhead is not None:
            waits = self._waits.estimate(remaining=remaining)
            return ValidationTimes(
                overhead=overhead.mean, wait=NOTHING if waits is None else waits.mean, batch=batches.mean
            )
        check = self._check
        if check is None or not check.batch_seconds:
            return None
        seconds = min(check.plain(1) or check.every)
        least = seconds if batch_seconds is None else min(seconds, batch_seconds)
        middle = math.sqrt(least * seconds)
        return ValidationTimes(
            overhead=_overhead(check, wait, has_workers=has_workers),
            wait=wait.added(-middle).clamp_min(0.0) if has_workers else _wait(check, wait),
            batch=Interval(least / FIRST_EPOCH_COLD, middle, UNSEEN_LONGER * seconds),
        )


def _overhead(check: _ValidationRun, wait: Interval[float], *, has_workers: bool) -> Interval[float]:
    """Estimate what surrounds a validation run. Without workers, most of the sanity check's start is a cold start."""
    start = check.start_seconds or 0.0
    middle = start if has_workers else min(start, wait.middle)
    return Interval(0.0, middle + check.closing_seconds, UNSEEN_LONGER * (start + check.closing_seconds))


def _wait(check: _ValidationRun, wait: Interval[float]) -> Interval[float]:
    """Estimate the wait for a validation batch, from the waits of the sanity check and of the training."""
    cold = max(check.waits, default=wait.middle)
    least = min(cold, wait.middle)
    return Interval(least / FIRST_EPOCH_COLD, math.sqrt(least * cold), max(UNSEEN_LONGER * cold, wait.high))
