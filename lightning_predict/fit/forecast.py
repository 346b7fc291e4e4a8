"""What is left of a run, in batches and in seconds on the machine in use: one computation for all who ask.

Example::

    rest = rest_of(facts, clock)
    rest.forecast      # Interval(low=48.0, middle=52.0, high=60.0); None if no step was timed, or without an end
    rest.workload      # the same batches, for other GPUs
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from lightning_predict.fit.clock import NOTHING, BatchTimes, RunClock, ValidationTimes
from lightning_predict.fit.remaining import (
    CountsToCome,
    Position,
    Saving,
    batches_so_far,
    checkpoints_left,
    remaining,
    workload,
)
from lightning_predict.interval import Interval
from lightning_predict.reports.format import duration_interval, significant
from lightning_predict.run.workload import Loader, Run, Workload, run_of
from lightning_predict.timeline.iteration import Iteration
from lightning_predict.tracing.trace import Memory
from lightning_predict.units import hours_to_seconds

FORWARD_SHARE: Final = 1 / 3
"""Part of a training batch that its forward pass takes: the backward pass computes twice as much."""

STALL_SHARE: Final = 0.1
"""Wait for a batch that workers make, over the time of a batch, from which on the workers are taken to be too slow;
below it, a wait is the hand-over of a batch that was ready."""

WAITS_BELIEVED: Final = 16
"""Waits from which on the loader is called the limit."""

STEPS_SAID: Final = 1000
"""Steps whose time is said where the length of the run is not known."""

STEPS_BELIEVED: Final = 16
"""Steps from which on a forecast advises and stops."""

SECONDS_BELIEVED: Final = 3.0
"""Seconds of training that they should span, too: a busy machine changes within one."""

SECONDS_ENOUGH: Final = 30.0
"""Seconds of training after which a forecast advises and stops, whatever the number of steps."""

SHARE_ENOUGH: Final = 0.5
"""Share of the run after which it does."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a trainer tells of a run at one moment.

    Attributes:
        position: Where it stands, and what limits it.
        savings: When checkpoints are written.
        workers: Workers of the loaders; None if unknown.
        has_workers: They make the batches while it trains.
        validation_has_workers: Workers make the batches of validation.
        starts_workers: Each epoch restarts the workers.
        validation_batches: Batches of the validation that follows the end of training; 0 if none does.
        time_limit_seconds: Until a time limit ends the run; None without one.
    """

    position: Position
    savings: Sequence[Saving] = ()
    workers: int | None = None
    has_workers: bool = False
    validation_has_workers: bool = False
    starts_workers: bool = False
    validation_batches: int = 0
    time_limit_seconds: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RestOfRun:
    """The rest of a run: counted, and timed on the machine in use.

    Attributes:
        counts: Batches, windows and validation still to come.
        workload: The same for a prediction of any GPU.
        batch_times: What a batch takes on the machine in use; None before a step was timed.
        run: The rest on the machine in use; None before a step was timed.
        forecast: Seconds of its total; None for a run without an end.
        end_seconds: Seconds that the run takes once it is told to stop: a validation.
        steps: Steps that the forecast rests on.
        step: Seconds from a step to the next; None before one was timed.
    """

    counts: CountsToCome
    workload: Workload
    batch_times: BatchTimes | None
    run: Run | None
    forecast: Interval[float] | None
    end_seconds: float = 0.0
    steps: int = 0
    step: Interval[float] | None = None

    @property
    def pace_in_words(self) -> str | None:
        """How fast steps go by, for a run whose length is not known; None before one was timed."""
        if self.step is None or not self.step.middle:
            return None
        thousand, an_hour = duration_interval(self.step.scaled(STEPS_SAID)), hours_to_seconds(1.0) / self.step.middle
        return f"{STEPS_SAID:,} steps take {thousand} on this machine, and an hour holds {significant(an_hour)}"


@final
@dataclass(frozen=True, slots=True)
class Outlook:
    """The rest of a run as it was found, when the clock showed so many seconds."""

    rest: RestOfRun
    at: float

    def left(self, now: float) -> Interval[float] | None:
        """Seconds that it leaves now; None where its end is not known."""
        forecast = self.rest.forecast
        return None if forecast is None else forecast.added(self.at - now)

    def holds(self, rest: RestOfRun, now: float) -> bool:
        """Return whether the run will end, or where no end is known go on, within its interval by what is found now."""
        left, step = self.left(now), self.rest.step
        if left is None and rest.forecast is None and step is not None and rest.step is not None:
            return step.holds(rest.step.middle)
        if left is None or rest.forecast is None:
            return left is rest.forecast
        return left.holds(rest.forecast.middle)


def rest_of(
    facts: Facts, clock: RunClock, *, batches_per_window: int | None = None, samples: int | None = None
) -> RestOfRun:
    """Count what is left of a run, and time it by what the machine in use has shown so far.

    Args:
        facts: What the trainer tells.
        clock: What the run took so far.
        batches_per_window: Batches of the recorded step; None: as the trainer accumulates.
        samples: Samples of that step; None if unknown.
    """
    counts, position = remaining(facts.position), facts.position
    size = batches_per_window or position.batches_per_window
    batch_times = clock.batch_times(
        batches_per_window=size,
        workers=facts.workers or 1 if facts.has_workers else 0,
        ahead=_or_many(counts.batches),
    )
    ahead = _or_many(counts.validation_runs)
    validation = clock.validation.times(ahead=ahead)
    if batch_times is not None:
        batch_times = _of_whole_batches(batch_times, position)
        validation = clock.validation.times(
            batch_seconds=batch_times.step.middle,
            made_in=_made_in(batch_times) if facts.validation_has_workers else NOTHING,
            ahead=ahead,
        )
    epochs = counts.epochs or 0
    pauses = clock.pause(starts_workers=facts.starts_workers, ahead=epochs).scaled(epochs)
    closing = clock.closing().scaled(1 if counts.batches else 0)
    around = NOTHING if validation is None else validation.around.scaled(counts.validation_runs or 0)
    work = replace(
        workload(counts, position, batches_per_window=size, samples=samples),
        loader=Loader() if batch_times is None else _loader(facts, counts, batch_times),
        loader_workers=facts.workers,
        checkpoints=checkpoints_left(
            facts.savings, position, seconds=clock.checkpoints.seconds, memory=clock.memory or Memory()
        ),
        validation_wait_seconds=0.0 if validation is None else validation.wait.middle,
        between_seconds=pauses.middle + closing.middle + around.middle,
        time_limit_seconds=facts.time_limit_seconds,
    )
    if batch_times is None:
        return RestOfRun(counts=counts, workload=work, batch_times=None, run=None, forecast=None)
    check = _validation_batch(batch_times, validation)
    here = replace(work, loader=Loader(seconds_per_batch=_wait(facts, counts, batch_times).middle))
    run = run_of(_measured(batch_times.step.middle * size), here, _measured(check.middle), batches=size)
    parts = (
        batch_times.step.scaled(0.0 if work.training is None else work.training.whole),
        _waits(facts, counts, batch_times),
        check.scaled(counts.validation_batches or 0),
        (NOTHING if validation is None else validation.wait).scaled(counts.validation_batches or 0),
        pauses,
        closing,
        around,
    )
    forecast, limit = None if run.total_seconds is None else _around(run.total_seconds, parts), facts.time_limit_seconds
    if limit is not None:
        # Without a length, the loader may end the last epoch at any time before the limit does.
        unknown = Interval(limit if position.max_epochs is None else 0.0, limit, limit)
        forecast = unknown if forecast is None else forecast.at_most(limit)
    return RestOfRun(
        counts=counts,
        workload=work,
        batch_times=batch_times,
        run=run,
        forecast=forecast,
        end_seconds=end_seconds(facts.validation_batches, batch_times, validation),
        steps=max(1, batch_times.values // size),
        step=batch_times.step.added(batch_times.wait).scaled(size),
    )


@final
class Moments:
    """The batches after which a run is worth asking about: once what was seen is believed, then whenever it doubled.

    Args:
        batches_per_window: Batches of a step.
        batches: Batches of the run; None if unknown.

    Attributes:
        has_come: What was seen is enough to advise and to stop by; before, it is enough to count by.
    """

    def __init__(self, *, batches_per_window: int = 1, batches: int | None = None) -> None:
        self.has_come = False
        self._enough = STEPS_BELIEVED * batches_per_window
        self._half = math.inf if batches is None else SHARE_ENOUGH * batches
        self._next = 2

    def is_due(self, batches: int, seconds: float) -> bool:
        """Return whether a moment has come.

        Args:
            batches: Batches that were trained.
            seconds: Seconds since the first of them began.
        """
        if self.has_come and batches < self._next:  # after each batch
            return False
        has_come = self.has_come or (
            batches > 1
            and (
                seconds >= SECONDS_ENOUGH
                or batches >= self._half
                or (batches >= self._enough and seconds >= SECONDS_BELIEVED)
            )
        )
        if batches < self._next and has_come == self.has_come:
            return False
        self.has_come, self._next = has_come, 2 * batches
        return True


def rough_note(rest: RestOfRun, *, is_rough: bool) -> tuple[str, ...]:
    """Say that the machine in use is known from few steps."""
    if not is_rough or rest.batch_times is None:
        return ()
    steps = f"{rest.steps} step{'' if rest.steps == 1 else 's'}"
    return (f"This machine's time is rough, from {steps}; what to rent is said once more were seen.",)


def _or_many(count: int | None) -> float:
    """Return a count of what is to come; what is not known is many."""
    return math.inf if count is None else count


def _of_whole_batches(batch_times: BatchTimes, position: Position) -> BatchTimes:
    """Scale what a batch takes, a mean over all of them, to one that is not the smaller last one of an epoch."""
    batches, per_epoch = batches_so_far(position), position.batches_per_epoch
    if not per_epoch or position.last_batch_share == 1.0 or batches < per_epoch:
        return batch_times
    missing = (1 - position.last_batch_share) * (batches // per_epoch) / batches
    return replace(batch_times, step=batch_times.step.scaled(1 / (1 - missing)))


def _made_in(batch_times: BatchTimes) -> Interval[float]:
    """Return what workers take for a batch, as far as training shows: never longer than from one batch to the next."""
    longest = batch_times.step.middle + batch_times.wait.middle
    waits_for_them = batch_times.wait.middle > STALL_SHARE * batch_times.step.middle
    return Interval(0.0, longest if waits_for_them else 0.0, longest)


def _around(middle: float, parts: Sequence[Interval[float]]) -> Interval[float]:
    """Return the interval of a sum whose parts err on their own."""
    down = math.hypot(*(part.middle - part.low for part in parts))
    up = math.hypot(*(part.high - part.middle for part in parts))
    return Interval(max(0.0, middle - down), middle, middle + up)


def _waits(facts: Facts, counts: CountsToCome, batch_times: BatchTimes) -> Interval[float]:
    """Return the waits for all batches still to come: of this epoch, and of later ones."""
    batches, position = counts.batches or 0, facts.position
    here = batches
    if position.batches_per_epoch is not None:
        here = min(batches, max(0, position.batches_per_epoch - position.batches_done))
    return batch_times.wait.scaled(here).added(batch_times.later_wait.scaled(batches - here))


def _wait(facts: Facts, counts: CountsToCome, batch_times: BatchTimes) -> Interval[float]:
    """Return the wait for one of the batches still to come."""
    return _waits(facts, counts, batch_times).scaled(1 / counts.batches) if counts.batches else batch_times.wait


def _loader(facts: Facts, counts: CountsToCome, batch_times: BatchTimes) -> Loader:
    """Tell how the loader would keep any GPU waiting from how it does on this machine."""
    wait, step = _wait(facts, counts, batch_times), batch_times.step.middle
    if facts.has_workers and wait.middle > STALL_SHARE * step:
        loader = Loader(seconds_per_batch=step + wait.middle, overlaps=True)
    else:
        loader = Loader(seconds_per_batch=wait.middle)
    if not loader.seconds_per_batch:
        return loader
    down, up = wait.middle - wait.low, wait.high - wait.middle
    spread = (1 - down / loader.seconds_per_batch, 1 + up / loader.seconds_per_batch)
    return replace(loader, spread=spread, is_believed=batch_times.waits >= WAITS_BELIEVED)


def _validation_batch(batch_times: BatchTimes, validation: ValidationTimes | None) -> Interval[float]:
    """Return the time of a validation batch: as it was seen, else the forward part of a training batch at a guess."""
    if validation is not None and validation.batch is not None:
        return validation.batch
    return Interval(0.0, FORWARD_SHARE * batch_times.step.middle, batch_times.step.high)


def end_seconds(batches: int, batch_times: BatchTimes | None, validation: ValidationTimes | None) -> float:
    """Return the seconds that a run takes once it is told to stop.

    Args:
        batches: Batches of the validation that follows; 0 if none does.
        batch_times: What a training batch takes; None before one was timed.
        validation: What validation takes; None before any.
    """
    if batches and validation is not None and validation.batch is not None:
        return validation.around.middle + batches * (validation.batch.middle + validation.wait.middle)
    return 0.0 if batch_times is None else batches * FORWARD_SHARE * batch_times.step.middle


def _measured(seconds: float) -> Iteration:
    return Iteration(
        gpu="this machine",
        interval=Interval(seconds, seconds, seconds),
        device_seconds=seconds,
        host_seconds=0.0,
        coverage={},
    )
