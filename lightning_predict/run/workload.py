"""The remaining work of a run (`Workload`), and the time that it takes (`Run`, from `predict_run`).

**Data parallelism.** Each replica processes its own samples. With n replicas, a step has n times the samples, so n
times fewer steps process the same samples. The user must choose a suitable learning rate.

**CPU cores shared by loaders.** A loader worker needs a fixed CPU time per batch. If every worker has a core, the
loader of each GPU is as fast as on a machine with one GPU. If there are more workers than cores, all workers slow down
equally. The cores then limit the batches per second, even with faster GPUs. Example::

    >>> from lightning_predict.timeline.step_prediction import StepPrediction
    >>> step = StepPrediction(gpu="T4", interval=Interval(0.4, 0.5, 0.6), device_seconds=0.5, host_seconds=0.1,
    ...                  coverage={"roofline": 1.0}, forward_seconds=0.2)
    >>> predict_run(step, Workload(training_iterations=100, validation_iterations=10)).total_seconds  # 50 + 10 x 0.2
    52.0
    >>> Loader(seconds_per_batch=0.3, overlaps=True).with_loading(0.2, batches=1)
    0.3
    >>> run = Workload(training_iterations=1000, validation_iterations=50)
    >>> workload_per_replica(run, replicas=8).training_iterations
    125
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from lightning_predict.base.interval import NOTHING, Interval, around

if TYPE_CHECKING:
    from lightning_predict.timeline.step_prediction import StepPrediction

# --- Remaining work, and how long it takes

ESTIMATED_WRITING: Final = 4.0  # Factor of the interval of a checkpoint's time that is estimated from its size


STEPS_SHOWN: Final = 1000  # Steps for whose samples times and costs are shown if the length of a run is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """Waiting time for batches from the data loader. It is the same on every GPU, because the host loads the data.

    A Trainer shows only the wait between the end of a batch and the start of the next batch. Without workers, this wait
    is the loader's full time, and adds to each step. With workers, batches are loaded during the step. If there is a
    wait, the loader is slower than the step, and loading a batch takes the step time plus the wait. If there is no
    wait, the loader's speed is unknown, and a much faster GPU may have to wait for the loader.
    """

    seconds_per_batch: float = 0.0  # Wait for a batch. If `overlaps`, the time in which the workers load a batch.
    overlaps: bool = False  # Whether batches load during the step, which then takes the longer time, not the sum
    spread: tuple[float, float] = (1.0, 1.0)  # Ends of the interval of `seconds_per_batch`, as factors
    is_reliable: bool = True  # Whether enough waits were measured to call the loader a bottleneck

    def with_loading(self, seconds: float, *, batches: float) -> float:
        """Return the time of `batches` batches including the wait for the loader.

        Args:
            seconds: Time to compute the batches.
            batches: Number of batches.
        """
        loading = self.seconds_per_batch * batches
        return max(seconds, loading) if self.overlaps else seconds + loading


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Numbers of training batches and optimizer steps, including shorter ones at the end of an epoch."""

    optimizer_steps: int  # Number of optimizer steps. An epoch may end with a shorter gradient accumulation window.
    batches: int  # Number of batches, including partial batches
    partial_batches: int = 0  # Number of batches with fewer samples, at the ends of epochs
    partial_share: float = 1.0  # Samples of a partial batch, relative to a full batch

    @property
    def full_batches(self) -> float:
        """Number of full batches that contain the same total number of samples."""
        return self.batches - self.partial_batches * (1.0 - self.partial_share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Remaining checkpoints. Their time does not depend on the GPU, because the host writes them."""

    count: int | None = 0  # Number of checkpoint files; None if unknown
    seconds: float | None = None  # Time to write one file; None if unknown
    is_estimated: bool = True  # Whether `seconds` is estimated from the state's size, as no checkpoint was timed

    @property
    def total(self) -> Interval[float] | None:
        """Seconds of all checkpoints; None if unknown."""
        if self.count is None or (self.seconds is None and self.count):
            return None
        seconds = self.count * (self.seconds or 0.0)
        return Interval.from_factor(seconds, ESTIMATED_WRITING if self.is_estimated else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Remaining work of a run."""

    training_iterations: int | None = None  # Number of remaining training steps (optimizer steps); None if unknown
    training: Batches | None = None  # Remaining batches and steps, including short ones; None if all are full
    epoch: Batches | None = None  # Batches and optimizer steps of one epoch; None if unknown
    validation_iterations: int | None = 0  # Number of remaining validation batches; None if unknown
    samples_per_iteration: int | None = None  # Number of samples of one training step on one GPU; None if unknown
    loader: Loader = Loader()  # Waiting time for batches
    loader_workers: int | None = None  # Number of workers of each GPU's loader; None if unknown
    checkpoints: Checkpoints = Checkpoints()
    validation_wait: Interval[float] = NOTHING  # Seconds of the wait for a validation batch, the same on every GPU
    # Remaining seconds between epochs and around validation, for example to start workers; the same on every GPU
    between: Interval[float] = NOTHING
    finished_iterations: int = 0  # Number of training steps before these
    at_most: bool = False  # Whether the run may end earlier (early stopping, a time limit)
    time_limit_seconds: float | None = None  # Seconds until the Trainer's time limit ends the run; None without a limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Predicted time of the rest of a run on one GPU."""

    gpu: str
    training_seconds: float | None  # Seconds of all remaining training steps, with loader waits; None if unknown
    validation_seconds: float | None  # Seconds of all remaining validation batches, with waits; None if unknown
    total: Interval[float] | None  # Known seconds of the rest of the run; None if the number of steps is unknown
    cycle_seconds: float  # Time of a step, including the wait for the loader
    beside: Interval[float] = NOTHING  # Seconds of checkpoints, pauses and validation waits, equal on every GPU
    iterations: int | None = None  # Number of remaining training steps; None if unknown
    samples_per_iteration: int | None = None  # Number of samples of one training step on all GPUs; None if unknown
    epoch_seconds: float | None = None  # Training time of one epoch; None if the length of an epoch is unknown
    epoch_iterations: int | None = None  # Number of training steps of one epoch; None if unknown
    loader_seconds: float = 0.0  # Time in which the loader loads a step's batches; hidden if they load during the step
    loader_is_reliable: bool = True  # Whether enough waits were measured to call the loader a bottleneck
    checkpoint_seconds: float | None = 0.0  # Seconds of all remaining checkpoints; None if unknown
    checkpoint_is_estimated: bool = False  # Whether the checkpoint time is estimated, because no checkpoint was timed
    validation_is_estimated: bool = False  # Whether the validation time is estimated from the forward pass
    finished_iterations: int = 0  # Number of training steps before the rest of the run
    at_most: bool = False  # Whether the run may end earlier
    is_cut_off: bool = False  # Whether the Trainer's time limit ends the run. The totals then end at the limit.
    flops: float | None = None  # FLOPs of matmuls, convolutions and attention of a step on all GPUs; None if unknown
    flops_dtype: str | None = None  # dtype of most of the FLOPs; None if unknown
    tokens_per_iteration: int | None = None  # Tokens of a training step on all GPUs; None if unknown
    shown_iterations: int = STEPS_SHOWN  # Number of training steps with the samples of `STEPS_SHOWN` recorded steps

    @property
    def total_seconds(self) -> float | None:
        """Predicted seconds of the rest of the run; None if unknown."""
        return None if self.total is None else self.total.middle

    @property
    def whole(self) -> Interval[float] | None:
        """Seconds of the whole run on the GPU, with the finished steps at the pace of the rest; None if unknown."""
        if self.total is None or not self.total.middle:
            return self.total
        return self.total.scaled(1 + self.finished_iterations * self.pace / self.total.middle)

    @property
    def pace(self) -> float:
        """Seconds of a step with its share of everything else."""
        if self.total is None or not self.iterations or self.is_cut_off:
            return self.cycle_seconds
        return self.total.middle / self.iterations

    def scaled(self, factor: float, spread: float = 1.0) -> Run:
        """Multiply the training, validation and total time by a factor, and widen the interval by `spread`."""
        training, validation = (
            None if seconds is None else seconds * factor
            for seconds in (self.training_seconds, self.validation_seconds)
        )
        total = None if self.total is None else self.total.scaled(factor).widened(spread)
        return replace(self, training_seconds=training, validation_seconds=validation, total=total)

    def cut_off(self, time_limit_seconds: float | None) -> Run:
        """End the run at the Trainer's time limit. A run of unknown length then lasts until the limit.

        Args:
            time_limit_seconds: Seconds left until the limit; None without a limit.
        """
        limit, total = time_limit_seconds, self.total
        if limit is None or (total is not None and total.high <= limit):
            return self
        return replace(
            self,
            total=Interval(limit, limit, limit) if total is None else total.clamp_max(limit),
            is_cut_off=total is None or total.middle > limit,
        )


def predict_run(
    step: StepPrediction,
    workload: Workload,
    validation: StepPrediction | None = None,
    *,
    batches: int = 1,
    replicas: int = 1,
) -> Run:
    """Predict the time of the rest of a run on the GPU of the step.

    The interval of the step applies to training and validation. Host times (waits, checkpoints, ends of epochs) are the
    same on every GPU, and their intervals are independent of it. Without `validation`, a validation batch takes the
    forward part of a training batch.
    """
    samples, loader = workload.samples_per_iteration, workload.loader
    low, high = (step.low_seconds / step.seconds, step.high_seconds / step.seconds) if step.seconds > 0 else (1.0, 1.0)
    count = workload.validation_iterations
    per_batch = step.forward_seconds / batches if validation is None else validation.seconds
    validating = None if count is None else count * per_batch
    waiting = workload.validation_wait.scaled(workload.validation_iterations or 0)
    writing = workload.checkpoints.total
    added = (waiting, workload.between, writing or NOTHING)
    beside = around(sum(part.middle for part in added), added)
    training = _training(workload, batches)

    # Validation runs the same kernels, so its relative error is assumed to equal the step's error.
    total = None
    if training is not None:
        sides = zip((low, 1.0, high), (loader.spread[0], 1.0, loader.spread[1]), strict=True)
        ends = [
            _paced(step, training, workload, batches, ratio, loader_ratio) + (validating or 0.0) * ratio
            for ratio, loader_ratio in sides
        ]
        computing = Interval(*ends)
        total = around(computing.middle + beside.middle, (computing, beside))
    return Run(
        gpu=step.gpu,
        iterations=workload.training_iterations,
        samples_per_iteration=None if samples is None else replicas * samples,
        training_seconds=None if training is None else _paced(step, training, workload, batches),
        validation_seconds=None if training is None or validating is None else validating + waiting.middle,
        total=total,
        beside=beside,
        cycle_seconds=workload.loader.with_loading(step.seconds, batches=batches),
        epoch_seconds=None if workload.epoch is None else _paced(step, workload.epoch, workload, batches),
        epoch_iterations=None if workload.epoch is None else workload.epoch.optimizer_steps,
        loader_seconds=workload.loader.seconds_per_batch * batches,
        loader_is_reliable=workload.loader.is_reliable,
        checkpoint_seconds=None if writing is None else writing.middle,
        checkpoint_is_estimated=workload.checkpoints.is_estimated and writing is not None and writing.middle > 0,
        validation_is_estimated=validation is None and workload.validation_iterations != 0,
        finished_iterations=workload.finished_iterations,
        at_most=workload.at_most,
    )


def training_seconds(step: StepPrediction, work: Batches, *, batches_per_step: int) -> float:
    """Return the compute time of training batches.

    An optimizer step takes as long after a short accumulation window as after a full window. All other time scales with
    the number of batches. A partial batch takes its share of the time, but at least the host's launch time.
    """
    update = step.seconds * min(1.0, step.optimizer_seconds / step.device_seconds) if step.device_seconds > 0 else 0.0
    batch = (step.seconds - update) / batches_per_step
    launching = min(batch, step.host_seconds / batches_per_step)
    uneven = max(batch * work.partial_share, launching)
    return work.optimizer_steps * update + (work.batches - work.partial_batches) * batch + work.partial_batches * uneven


def _paced(
    step: StepPrediction, work: Batches, workload: Workload, batches: int, ratio: float = 1.0, loader_ratio: float = 1.0
) -> float:
    computing = training_seconds(step, work, batches_per_step=batches) * ratio
    return workload.loader.with_loading(computing, batches=work.full_batches * loader_ratio)


def _training(workload: Workload, batches: int) -> Batches | None:
    """Return the remaining batches. If only the number of steps is known, all steps are assumed to be full."""
    if workload.training is not None or workload.training_iterations is None:
        return workload.training
    return Batches(optimizer_steps=workload.training_iterations, batches=workload.training_iterations * batches)


# --- Sharing the work among replicas, the GPUs of a node, and larger accumulation windows


def workload_per_replica(workload: Workload, *, replicas: int, recorded: int = 1, accumulate: int = 1) -> Workload:
    """Return one replica's share of the remaining work. A partial last step counts as a full step.

    Args:
        workload: Remaining work of each GPU of the recorded run.
        replicas: Number of replicas.
        recorded: Number of replicas of the recorded run.
        accumulate: Number of recorded steps whose batches one optimizer step accumulates.
    """
    if replicas == recorded and accumulate == 1:
        return workload

    def part(count: int, accumulated: int = 1) -> int:
        return math.ceil(math.ceil(count * recorded / replicas) / accumulated)

    def parts(batches: Batches | None) -> Batches | None:
        if batches is None:
            return None
        return replace(
            batches,
            optimizer_steps=part(batches.optimizer_steps, accumulate),
            batches=part(batches.batches),
            partial_batches=part(batches.partial_batches),
        )

    steps, validation = workload.training_iterations, workload.validation_iterations
    return replace(
        workload,
        training_iterations=None if steps is None else part(steps, accumulate),
        validation_iterations=None if validation is None else part(validation),
        finished_iterations=part(workload.finished_iterations, accumulate),
        training=parts(workload.training),
        epoch=parts(workload.epoch),
    )


def workload_with_shared_cores(
    workload: Workload, *, gpus_per_node: int, recorded: int, cores_per_node: int | None
) -> Workload:
    """Return the work with loaders that share the CPU cores of one machine.

    Processes that launch kernels also need cores. A loader without a measured wait (0 seconds) stays at 0, because its
    speed is unknown.

    Args:
        workload: Remaining work of each GPU.
        gpus_per_node: Number of GPUs of a machine.
        recorded: Number of GPUs of the recorded machine. If it is not 1, the loader is unchanged.
        cores_per_node: Number of CPU cores of a machine; None if unknown, in which case the loader is unchanged.
    """
    workers, loader = workload.loader_workers, workload.loader
    if cores_per_node is None or workers is None or recorded != 1:
        return workload
    # Slowdown of each worker, relative to a worker that has a core of its own. Without workers, the training process
    # loads the batches.
    crowded, alone = (max(1.0, gpus * max(1, workers) / cores_per_node) for gpus in (gpus_per_node, 1))
    slower = replace(loader, seconds_per_batch=loader.seconds_per_batch * (crowded / alone))
    return replace(workload, loader=slower)
