"""Forecast of the rest of a run on the machine in use, in batches and in seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from lightning_predict.base.interval import NOTHING, Interval, around
from lightning_predict.base.units import hours_to_seconds
from lightning_predict.observe.remaining import (
    CheckpointSchedule,
    Position,
    RemainingCounts,
    batches_so_far,
    checkpoints_left,
    remaining,
    workload,
)
from lightning_predict.observe.validation_timer import ValidationTimes
from lightning_predict.record.trace import Memory
from lightning_predict.reports.format import duration_interval, significant
from lightning_predict.run.workload import Loader, Run, Workload, predict_run

if TYPE_CHECKING:
    from lightning_predict.timeline.step_prediction import StepPrediction

FORWARD_SHARE: Final = 0.333333333333  # Share of the forward pass in the time of a training batch
STALL_SHARE: Final = 0.1  # The loader workers count as too slow if the wait exceeds this share of the batch time
MIN_WAITS: Final = 16  # Minimum number of waits before the loader can be called the bottleneck
PRINTED_STEPS: Final = 1000  # Number of steps whose time is printed if the length of the run is unknown
MIN_STEPS: Final = 16  # Minimum number of steps for a forecast that gives a recommendation or stops the run
MIN_SECONDS: Final = 3.0  # Minimum time in seconds that the steps of such a forecast must span

SECONDS_ENOUGH: Final = 30.0
"""Seconds of training that are always enough for a forecast that gives a recommendation or stops the run."""

SHARE_ENOUGH: Final = 0.5  # Share of the run that is always enough for a forecast that recommends or stops the run


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastInputs:
    """Facts about a run at one moment, as a trainer reports them."""

    position: Position  # Progress and limits of the fit
    checkpoint_schedules: Sequence[CheckpointSchedule] = ()
    workers: int | None = None  # Number of loader workers; None if unknown
    has_workers: bool = False  # Whether workers load the training batches
    validation_has_workers: bool = False
    starts_workers: bool = False
    validation_batches: int = 0  # Number of batches of the final validation; 0 without a final validation
    time_limit_seconds: float | None = None  # Seconds until a time limit ends the run; None without a time limit


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimes:
    """Seconds of a batch on the machine in use."""

    step: Interval[float]  # Seconds from the start of a batch to its end. An optimizer update counts in proportion.
    wait: Interval[float]  # Seconds from the end of a batch to the next start: data loader, logging, other callbacks
    later_wait: Interval[float]  # Seconds from the end of a batch to the next start, in epochs that have not begun
    values: int  # Number of measured batches on which `step` is based
    waits: int  # Number of measured waits on which `wait` is based

    @property
    def step_seconds(self) -> float:
        """Seconds of a batch from its start to its end."""
        return self.step.middle

    @property
    def wait_seconds(self) -> float:
        """Seconds between two batches."""
        return self.wait.middle


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """Times of a run so far on the machine in use, from which the rest is forecast."""

    batch: BatchTimes | None = None  # Times of a full-size training batch; None before a step was timed
    validation: ValidationTimes | None = None  # Times of validation; None before a validation or a sanity check
    pause: Interval[float] = NOTHING  # Seconds between two epochs
    closing: Interval[float] = NOTHING  # Seconds from the end of the last epoch to the end of training
    checkpoint_seconds: float | None = None  # Seconds of a checkpoint file; None before a file was timed
    memory: Memory = field(default_factory=Memory)  # Sizes of a checkpoint's contents


@dataclass(frozen=True, slots=True, kw_only=True)
class RestOfRun:
    """The rest of a run: its counts, and its times on the machine in use."""

    counts: RemainingCounts  # Remaining batches, accumulation windows and validation
    workload: Workload  # Remaining work, for predictions on any GPU
    batch_times: BatchTimes | None  # Times of a batch on the machine in use; None before a step was timed
    run: Run | None  # Times of the rest of the run on the machine in use; None before a step was timed
    forecast: Interval[float] | None  # Total remaining seconds; None for a run without an end
    end_seconds: float = 0.0  # Duration of the final validation, which runs after a stop
    steps: int = 0
    step: Interval[float] | None = None  # Seconds from the start of a step to the next; None before a step was timed

    @property
    def pace_in_words(self) -> str | None:
        """Speed of the steps as text, for a run of unknown length; None before a step was timed."""
        if self.step is None or not self.step.middle:
            return None
        thousand, an_hour = duration_interval(self.step.scaled(PRINTED_STEPS)), hours_to_seconds(1.0) / self.step.middle
        return f"{PRINTED_STEPS:,} steps take {thousand} on this machine ({significant(an_hour)} steps per hour)"


@dataclass(frozen=True, slots=True)
class TimedForecast:
    """Rest of a run, with the clock time at which the forecast was computed."""

    rest: RestOfRun
    at: float

    def left(self, now: float) -> Interval[float] | None:
        """Return the seconds that remain now; None if the end is unknown."""
        forecast = self.rest.forecast
        return None if forecast is None else forecast.added(self.at - now)

    def holds(self, rest: RestOfRun, now: float) -> bool:
        """Return whether this forecast's interval contains the new one; of a run without end, the steps' times."""
        left, step = self.left(now), self.rest.step
        if left is None and rest.forecast is None and step is not None and rest.step is not None:
            return step.contains(rest.step.middle)
        if left is None or rest.forecast is None:
            return left is rest.forecast
        return left.contains(rest.forecast.middle)


def forecast_rest(
    inputs: ForecastInputs, times: RunTimes, *, batches_per_window: int | None = None, samples: int | None = None
) -> RestOfRun:
    """Compute the rest of a run, from its counts and the times on the machine in use so far.

    Without `batches_per_window`, the trainer's gradient accumulation counts.
    """
    counts, position = remaining(inputs.position), inputs.position
    size = batches_per_window or position.batches_per_window
    batch_times, validation = times.batch, times.validation
    pauses = times.pause.scaled(counts.epochs or 0)
    closing = times.closing.scaled(1 if counts.batches else 0)
    checks = NOTHING if validation is None else validation.overhead.scaled(counts.validation_runs or 0)
    work = replace(
        workload(counts, position, batches_per_window=size, samples=samples),
        loader=Loader() if batch_times is None else _loader(inputs, counts, batch_times),
        loader_workers=inputs.workers,
        checkpoints=checkpoints_left(
            inputs.checkpoint_schedules, position, seconds=times.checkpoint_seconds, memory=times.memory
        ),
        validation_wait=NOTHING if validation is None else validation.wait,
        between=around(pauses.middle + closing.middle + checks.middle, (pauses, closing, checks)),
        time_limit_seconds=inputs.time_limit_seconds,
    )
    if batch_times is None:
        return RestOfRun(counts=counts, workload=work, batch_times=None, run=None, forecast=None)
    check = _validation_batch(batch_times, validation)
    here = replace(work, loader=Loader(seconds_per_batch=_wait(inputs, counts, batch_times).middle))
    run = predict_run(_measured(batch_times.step.middle * size), here, _measured(check.middle), batches=size)
    parts = (
        batch_times.step.scaled(0.0 if work.training is None else work.training.full_batches),
        _waits(inputs, counts, batch_times),
        check.scaled(counts.validation_batches or 0),
        work.validation_wait.scaled(counts.validation_batches or 0),
        work.between,
        work.checkpoints.total or NOTHING,
    )
    forecast, limit = (
        None if run.total_seconds is None else around(run.total_seconds, parts),
        inputs.time_limit_seconds,
    )
    if limit is not None:
        # If the length is unknown, the loader may end the last epoch at any time before the limit.
        unknown = Interval(limit if position.max_epochs is None else 0.0, limit, limit)
        forecast = unknown if forecast is None else forecast.clamp_max(limit)
    return RestOfRun(
        counts=counts,
        workload=work,
        batch_times=batch_times,
        run=run,
        forecast=forecast,
        end_seconds=end_seconds(inputs.validation_batches, batch_times, validation),
        steps=max(1, batch_times.values // size),
        step=batch_times.step.added(batch_times.wait).scaled(size),
    )


class ForecastSchedule:
    """Decides after which batches to forecast: after enough steps, and each time the number of steps has doubled.

    Args:
        batches_per_window: Number of batches of a step.
        batches: Number of batches of the run; None if unknown.
    """

    def __init__(self, *, batches_per_window: int = 1, batches: int | None = None) -> None:
        # Whether the run has enough steps for a recommendation or a stop. Earlier forecasts are only rough.
        self.has_started = False
        self._enough = MIN_STEPS * batches_per_window
        self._half = math.inf if batches is None else SHARE_ENOUGH * batches
        self._next = 2

    def nothing_until(self, batches: int) -> tuple[float, float]:
        """Return the number of batches and the seconds of training before which no forecast is due.

        Args:
            batches: Number of finished batches.
        """
        if self.has_started:
            return self._next, math.inf
        is_enough = batches >= self._enough
        steps = math.inf if is_enough else self._enough
        return min(self._next, max(2, self._half), steps), MIN_SECONDS if is_enough else SECONDS_ENOUGH

    def is_due(self, batches: int, seconds: float) -> bool:
        """Return whether a forecast is due.

        Args:
            batches: Number of finished batches.
            seconds: Seconds since the start of the first batch.
        """
        if self.has_started and batches < self._next:  # called per batch
            return False
        has_started = self.has_started or (
            batches > 1
            and (
                seconds >= SECONDS_ENOUGH
                or batches >= self._half
                or (batches >= self._enough and seconds >= MIN_SECONDS)
            )
        )
        if batches < self._next and has_started == self.has_started:
            return False
        self.has_started, self._next = has_started, 2 * batches
        return True


def for_full_batches(batch_times: BatchTimes, position: Position) -> BatchTimes:
    """Scale the mean batch time to a full-size batch, because the last batches of epochs are smaller."""
    batches, per_epoch = batches_so_far(position), position.batches_per_epoch
    if not per_epoch or position.last_batch_share == 1.0 or batches < per_epoch:
        return batch_times
    missing = (1 - position.last_batch_share) * (batches // per_epoch) / batches
    return replace(batch_times, step=batch_times.step.scaled(1 / (1 - missing)))


def seconds_of_workers(batch_times: BatchTimes) -> Interval[float]:
    """Return the workers' time per batch, which is at most the time from one training batch to the next."""
    longest = batch_times.step.middle + batch_times.wait.middle
    waits_for_them = batch_times.wait.middle > STALL_SHARE * batch_times.step.middle
    return Interval(0.0, longest if waits_for_them else 0.0, longest)


def _waits(inputs: ForecastInputs, counts: RemainingCounts, batch_times: BatchTimes) -> Interval[float]:
    """Return the total of all remaining waits, in this epoch and in later ones."""
    batches, position = counts.batches or 0, inputs.position
    here = batches
    if position.batches_per_epoch is not None:
        here = min(batches, max(0, position.batches_per_epoch - position.batches_done))
    return batch_times.wait.scaled(here).added(batch_times.later_wait.scaled(batches - here))


def _wait(inputs: ForecastInputs, counts: RemainingCounts, batch_times: BatchTimes) -> Interval[float]:
    """Return the mean of the remaining waits for a batch."""
    return _waits(inputs, counts, batch_times).scaled(1 / counts.batches) if counts.batches else batch_times.wait


def _loader(inputs: ForecastInputs, counts: RemainingCounts, batch_times: BatchTimes) -> Loader:
    """Estimate the loader's time per batch on any GPU, from the waits on this machine."""
    wait, step = _wait(inputs, counts, batch_times), batch_times.step.middle
    if inputs.has_workers and wait.middle > STALL_SHARE * step:
        loader = Loader(seconds_per_batch=step + wait.middle, overlaps=True)
    else:
        loader = Loader(seconds_per_batch=wait.middle)
    if not loader.seconds_per_batch:
        return loader
    down, up = wait.middle - wait.low, wait.high - wait.middle
    spread = (1 - down / loader.seconds_per_batch, 1 + up / loader.seconds_per_batch)
    return replace(loader, spread=spread, is_reliable=batch_times.waits >= MIN_WAITS)


def _validation_batch(batch_times: BatchTimes, validation: ValidationTimes | None) -> Interval[float]:
    """Return the time of a validation batch: the measured time, or else the forward share of a training batch."""
    if validation is not None and validation.batch is not None:
        return validation.batch
    return Interval(0.0, FORWARD_SHARE * batch_times.step.middle, batch_times.step.high)


def end_seconds(batches: int, batch_times: BatchTimes | None, validation: ValidationTimes | None) -> float:
    """Return the duration of the final validation, which runs after a stop.

    Args:
        batches: Number of batches of the final validation; 0 without a final validation.
        batch_times: Times of a training batch; None before a batch was timed.
        validation: Times of validation; None before a validation was timed.
    """
    if batches and validation is not None and validation.batch is not None:
        return validation.overhead.middle + batches * (validation.batch.middle + validation.wait.middle)
    return 0.0 if batch_times is None else batches * FORWARD_SHARE * batch_times.step.middle


def _measured(seconds: float) -> StepPrediction:
    from lightning_predict.timeline.step_prediction import StepPrediction

    return StepPrediction(
        gpu="this machine",
        interval=Interval(seconds, seconds, seconds),
        device_seconds=seconds,
        host_seconds=0.0,
        coverage={},
    )
