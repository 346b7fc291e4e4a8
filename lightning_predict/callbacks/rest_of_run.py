"""Compute what is left of a fit, in batches and in seconds on the machine in use, once for both callbacks.

Example::

    rest = rest_of_run(trainer, clock, pace=Pace(), batches_per_window=1)
    rest.forecast      # Interval(low=48.0, middle=52.0, high=60.0); None if no step was timed, or without an end
    rest.workload      # the same batches, for other GPUs
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, final

from lightning_predict.callbacks.recorders import Pace
from lightning_predict.callbacks.remaining import Moment, Remaining, checkpoints_left, remaining, workload
from lightning_predict.callbacks.run_clock import RunClock, Tempo
from lightning_predict.callbacks.trainer_state import (
    has_workers,
    loader_of,
    position_of,
    savings_of,
    seconds_left,
    starts_workers,
    workers_of,
)
from lightning_predict.interval import Interval
from lightning_predict.run.workload import Loader, Run, Workload, run_of
from lightning_predict.timeline.iteration import Iteration
from lightning_predict.tracing.trace import Memory

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

FORWARD_SHARE: Final = 1 / 3
"""Part of a training batch that its forward pass takes: the backward pass computes twice as much."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """The rest of a fit: counted, and timed on the machine in use.

    Attributes:
        left: Batches, windows and validation still to come.
        workload: The same for a prediction of any GPU.
        tempo: What a batch takes on the machine in use; None before a step was timed.
        run: The rest on the machine in use; None before a step was timed.
        forecast: Seconds of its total, from the fastest to the slowest part of the run so far; None for a run without
            an end.
    """

    left: Remaining
    workload: Workload
    tempo: Tempo | None
    run: Run | None
    forecast: Interval[float] | None


def rest_of_run(
    trainer: Trainer,
    clock: RunClock,
    *,
    pace: Pace,
    moment: Moment = "batch end",
    batches_per_window: int | None = None,
    samples: int | None = None,
    batches_per_epoch: int | None = None,
) -> Rest:
    """Count what is left of a fit, and time it by what the machine in use has shown so far.

    Args:
        trainer: The Trainer that is fitting.
        clock: What it took so far.
        pace: How windows go by.
        moment: The hook that asks.
        batches_per_window: Batches of the recorded step; None: as the Trainer accumulates.
        samples: Samples of that step; None if unknown.
        batches_per_epoch: What the user says, for a loader without a length.
    """
    position = position_of(
        trainer,
        batches_done=trainer.fit_loop.batch_idx + (moment != "batch start"),
        pace=pace,
        moment=moment,
        batches_per_epoch=batches_per_epoch,
    )
    left = remaining(position)
    size = batches_per_window or position.batches_per_window
    overlaps = has_workers(trainer)
    tempo = clock.tempo(batches_per_window=size, overlaps=overlaps)
    validation = clock.validation_tempo()
    between = (left.epochs or 0) * clock.epoch_seconds(starts_workers=starts_workers(trainer))
    if validation is not None:
        between += (left.validation_runs or 0) * validation.start_seconds
    limit = seconds_left(trainer)
    work = replace(
        workload(left, position, batches_per_window=size, samples=samples),
        loader=Loader() if tempo is None else loader_of(trainer, tempo.wait_seconds, batch_seconds=tempo.step_seconds),
        loader_workers=workers_of(trainer),
        checkpoints=checkpoints_left(
            savings_of(trainer), position, seconds=clock.checkpoints.seconds, memory=clock.memory or Memory()
        ),
        validation_wait_seconds=0.0 if validation is None else validation.wait_seconds,
        between_seconds=between,
        time_limit_seconds=limit,
    )
    if tempo is None:
        return Rest(left=left, workload=work, tempo=None, run=None, forecast=None)
    check = None if validation is None else validation.batch_seconds
    # Of a validation that nobody timed, the low end counts nothing: a guess alone ends no run.
    low, run, high = (
        _run_here(work, tempo, size, batch, share * batch if check is None else check)
        for batch, share in ((tempo.step.low, 0.0), (tempo.step.middle, FORWARD_SHARE), (tempo.step.high, 1.0))
    )
    forecast = None
    if low.total_seconds is not None and run.total_seconds is not None and high.total_seconds is not None:
        forecast = Interval(low.total_seconds, run.total_seconds, high.total_seconds)
        if limit is not None:
            forecast = forecast.at_most(limit)
    return Rest(left=left, workload=work, tempo=tempo, run=run, forecast=forecast)


def end_seconds(trainer: Trainer, clock: RunClock, tempo: Tempo | None) -> float:
    """Estimate the seconds that a run takes once it is told to stop: Lightning validates once more."""
    batches = sum(trainer.num_val_batches) if trainer.enable_validation and trainer.num_val_batches else 0
    if not 0 < batches < math.inf:
        return 0.0
    measured = clock.validation_tempo()
    if measured is not None and measured.batch_seconds is not None:
        return measured.start_seconds + batches * (measured.batch_seconds + measured.wait_seconds)
    return 0.0 if tempo is None else batches * FORWARD_SHARE * tempo.step_seconds


def _run_here(work: Workload, tempo: Tempo, size: int, batch_seconds: float, validation_seconds: float) -> Run:
    """Return the rest on the machine in use, whose waits were measured and add up whether they overlap or not."""
    here = replace(work, loader=Loader(seconds_per_batch=tempo.wait_seconds))
    return run_of(_measured(batch_seconds * size), here, _measured(validation_seconds), batches=size)


def _measured(seconds: float) -> Iteration:
    return Iteration(
        gpu="this machine",
        interval=Interval(seconds, seconds, seconds),
        device_seconds=seconds,
        host_seconds=0.0,
        coverage={},
    )
