"""`Workload`: what is still to be done; `Run`: how long that takes, from one step on one GPU (`run_of`).

**Shared among replicas.** Every replica works through samples of its own, so that n replicas do the same samples in n
times fewer steps, each of which holds n times as many (the learning rate that suits them is the user's concern).

**Loaders that share cores.** A worker makes a batch in so many seconds of processor time. As long as every worker has
its cores, each GPU's loader is as fast as on a node with one GPU; beyond that, all workers slow down alike, and however
fast the GPUs are, the node takes no more batches than its cores make. Example::

    >>> step = Iteration(gpu="T4", interval=Interval(0.4, 0.5, 0.6), device_seconds=0.5, host_seconds=0.1,
    ...                  coverage={"roofline": 1.0}, forward_seconds=0.2)
    >>> run_of(step, Workload(training_iterations=100, validation_iterations=10)).total_seconds  # 50 + 10 x 0.2
    52.0
    >>> Loader(seconds_per_batch=0.3, overlaps=True).paced(0.2, batches=1)
    0.3
    >>> shared_workload(Workload(training_iterations=1000, validation_iterations=50), replicas=8).training_iterations
    125
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

from lightning_predict.interval import Interval
from lightning_predict.timeline.iteration import Iteration

# --- What is to come, and how long it takes


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """The wait for a batch; the same on every GPU, as the host fetches it.

    What can be measured from a Trainer is the wait between the end of a batch and the beginning of the next. Without
    workers that wait is the whole work of the loader, and adds to every step. With workers a batch is made while the
    step runs: a wait means that the loader is the slower of the two, and then it makes one batch in the time of a step
    and its wait. Where there is no wait, the rate of the workers is hidden behind the step and stays unknown, so that a
    much faster GPU may turn out to wait for them all the same.

    Attributes:
        seconds_per_batch: Wait for a batch; where `overlaps`, the time in which the workers make one.
        overlaps: Batches are made while the step runs, so that the longer of both counts, and not their sum.
        spread: Ends of its interval over it.
        is_believed: Enough waits were seen to call it a limit.
    """

    seconds_per_batch: float = 0.0
    overlaps: bool = False
    spread: tuple[float, float] = (1.0, 1.0)
    is_believed: bool = True

    def paced(self, seconds: float, *, batches: float) -> float:
        """Return the time of some batches that compute for `seconds`, the loader included."""
        loading = self.seconds_per_batch * batches
        return max(seconds, loading) if self.overlaps else seconds + loading


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Training batches and the optimizer updates among them, where not every batch and not every window is whole.

    Attributes:
        windows: Optimizer updates (accumulation windows), the short ones at the ends of epochs included.
        batches: Batches; the uneven ones included.
        uneven: Batches at the ends of epochs that hold fewer samples.
        uneven_share: Samples of such a batch over those of a whole one.
    """

    windows: int
    batches: int
    uneven: int = 0
    uneven_share: float = 1.0

    @property
    def whole(self) -> float:
        """Count the whole batches that hold as many samples."""
        return self.batches - self.uneven * (1.0 - self.uneven_share)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Checkpoint files that are still to be written; the host writes them, so they take as long on every GPU.

    Attributes:
        count: Files; None if unknown.
        seconds: Time of one; None if unknown.
        is_estimated: `seconds` follows from the size of the state, and none was timed.
    """

    count: int | None = 0
    seconds: float | None = None
    is_estimated: bool = True

    @property
    def total_seconds(self) -> float | None:
        """Time of all; None if unknown."""
        if self.count == 0:
            return 0.0
        return None if self.count is None or self.seconds is None else self.count * self.seconds


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Steps still to come.

    Attributes:
        training_iterations: Training steps (accumulation windows) still to come; None if the length is unknown.
        training: The same in batches, where short windows and uneven batches are known; None: all steps are whole.
        epoch: One epoch in batches; None if unknown.
        validation_iterations: Validation batches still to come; None if unknown.
        samples_per_iteration: Samples of one training step on one GPU; None if unknown.
        loader: Waits for batches.
        loader_workers: Workers of each GPU's loader; None if unknown.
        checkpoints: Checkpoints still to be written.
        validation_wait_seconds: Wait for a validation batch; the same on every GPU, as the host fetches it.
        between_seconds: Seconds between the epochs and before the validation runs still to come, such as the start of
            workers; the same on every GPU.
        at_most: The run may end earlier (early stopping, a time limit).
        time_limit_seconds: Until the Trainer's time limit ends the run; None without one.
    """

    training_iterations: int | None = None
    training: Batches | None = None
    epoch: Batches | None = None
    validation_iterations: int | None = 0
    samples_per_iteration: int | None = None
    loader: Loader = Loader()
    loader_workers: int | None = None
    checkpoints: Checkpoints = Checkpoints()
    validation_wait_seconds: float = 0.0
    between_seconds: float = 0.0
    at_most: bool = False
    time_limit_seconds: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The rest of a run on one GPU.

    Attributes:
        gpu: Name of the GPU.
        iterations: Training steps still to come; None if their number is unknown.
        samples_per_iteration: Samples of one training step on all GPUs; None if unknown.
        training_seconds: Seconds of all training steps still to come, waits for the loader included; None if their
            number is unknown.
        validation_seconds: Seconds of all validation batches still to come, waits for them included; None if their
            number or time is unknown.
        total: Seconds of all together, the known part of it; None if the number of training steps is unknown.
        cycle_seconds: From the beginning of a step to the beginning of the next: the step and its wait for the loader.
        epoch_seconds: Training of one epoch; None if its length is unknown.
        loader_seconds: What the loader takes for the batches of one step; hidden behind the step where it overlaps.
        loader_is_believed: Enough waits were seen to call the loader a limit.
        checkpoint_seconds: Seconds of all checkpoints still to come; None if unknown.
        checkpoint_is_estimated: No checkpoint was timed.
        validation_is_estimated: The time of a validation batch comes from the forward share of a training step.
        at_most: The run may end earlier.
        is_cut_off: The Trainer's time limit ends it; the totals are what is left until then.
    """

    gpu: str
    training_seconds: float | None
    validation_seconds: float | None
    total: Interval[float] | None
    cycle_seconds: float
    iterations: int | None = None
    samples_per_iteration: int | None = None
    epoch_seconds: float | None = None
    loader_seconds: float = 0.0
    loader_is_believed: bool = True
    checkpoint_seconds: float | None = 0.0
    checkpoint_is_estimated: bool = False
    validation_is_estimated: bool = False
    at_most: bool = False
    is_cut_off: bool = False

    @property
    def total_seconds(self) -> float | None:
        """Seconds of all together, as predicted; None if unknown."""
        return None if self.total is None else self.total.middle

    def scaled(self, factor: float) -> Run:
        """Multiply the time of training, of validation and of all together by a factor."""
        training, validation = (
            None if seconds is None else seconds * factor
            for seconds in (self.training_seconds, self.validation_seconds)
        )
        total = None if self.total is None else self.total.scaled(factor)
        return replace(self, training_seconds=training, validation_seconds=validation, total=total)

    def cut_off(self, time_limit_seconds: float | None) -> Run:
        """End the run at a time limit of the Trainer; without a known end of its own it lasts until then.

        Args:
            time_limit_seconds: What is left; None means no limit.
        """
        limit, total = time_limit_seconds, self.total
        if limit is None or (total is not None and total.high <= limit):
            return self
        return replace(
            self,
            total=Interval(limit, limit, limit) if total is None else total.at_most(limit),
            is_cut_off=total is None or total.middle > limit,
        )


def run_of(
    step: Iteration,
    workload: Workload,
    validation: Iteration | None = None,
    *,
    batches: int = 1,
    replicas: int = 1,
) -> Run:
    """Predict the time of the run still to come on the GPU of the step.

    The step's own interval scales training and validation; what the host does (loader, checkpoints, ends of epochs) was
    measured, or is the same on every GPU, and is added as it is.

    Args:
        step: One training step.
        workload: What is still to come.
        validation: One validation batch; None takes the forward share of one training batch instead.
        batches: Batches of one training step.
        replicas: Groups of GPUs that work through samples of their own.
    """
    samples, loader = workload.samples_per_iteration, workload.loader
    low, high = (step.low_seconds / step.seconds, step.high_seconds / step.seconds) if step.seconds > 0 else (1.0, 1.0)
    validating = _validation_seconds(step, workload, validation, batches)
    waiting = (workload.validation_iterations or 0) * workload.validation_wait_seconds
    writing = workload.checkpoints.total_seconds
    added = waiting + workload.between_seconds + (writing or 0.0)
    training = _training(workload, batches)

    # Validation runs the same kernels: its relative error is taken to be that of the step.
    total = None
    if training is not None:
        sides = zip((low, 1.0, high), (loader.spread[0], 1.0, loader.spread[1]), strict=True)
        ends = [
            _paced(step, training, workload, batches, ratio, loader_ratio) + (validating or 0.0) * ratio
            for ratio, loader_ratio in sides
        ]
        total = Interval(*ends).added(added)
    return Run(
        gpu=step.gpu,
        iterations=workload.training_iterations,
        samples_per_iteration=None if samples is None else replicas * samples,
        training_seconds=None if training is None else _paced(step, training, workload, batches),
        validation_seconds=None if training is None or validating is None else validating + waiting,
        total=total,
        cycle_seconds=workload.loader.paced(step.seconds, batches=batches),
        epoch_seconds=None if workload.epoch is None else _paced(step, workload.epoch, workload, batches),
        loader_seconds=workload.loader.seconds_per_batch * batches,
        loader_is_believed=workload.loader.is_believed,
        checkpoint_seconds=writing,
        checkpoint_is_estimated=workload.checkpoints.is_estimated and bool(writing),
        validation_is_estimated=validation is None and workload.validation_iterations != 0,
        at_most=workload.at_most,
    )


def training_seconds(step: Iteration, work: Batches, *, batches_per_step: int) -> float:
    """Return the time that the batches compute.

    An update takes its share of a step whatever the window holds; the rest of a step goes by batches. A batch with
    fewer samples takes its share of the device's time, but no less than the host needs to launch it.
    """
    update = step.seconds * min(1.0, step.optimizer_seconds / step.device_seconds) if step.device_seconds > 0 else 0.0
    batch = (step.seconds - update) / batches_per_step
    launching = min(batch, step.host_seconds / batches_per_step)
    uneven = max(batch * work.uneven_share, launching)
    return work.windows * update + (work.batches - work.uneven) * batch + work.uneven * uneven


def _paced(
    step: Iteration, work: Batches, workload: Workload, batches: int, ratio: float = 1.0, loader_ratio: float = 1.0
) -> float:
    computing = training_seconds(step, work, batches_per_step=batches) * ratio
    return workload.loader.paced(computing, batches=work.whole * loader_ratio)


def _training(workload: Workload, batches: int) -> Batches | None:
    """Return the batches still to come; whole windows where nothing else is known."""
    if workload.training is not None or workload.training_iterations is None:
        return workload.training
    return Batches(windows=workload.training_iterations, batches=workload.training_iterations * batches)


def _validation_seconds(
    step: Iteration, workload: Workload, validation: Iteration | None, batches: int
) -> float | None:
    count = workload.validation_iterations
    one = step.forward_seconds / batches if validation is None else validation.seconds
    return None if count is None else count * one


# --- Shared among replicas, GPUs of a node and larger updates


def shared_workload(workload: Workload, *, replicas: int, recorded: int = 1) -> Workload:
    """Take one replica's part of what is still to come; the last step may be short, and counts."""
    if replicas == recorded:
        return workload

    def part(count: int) -> int:
        return math.ceil(count * recorded / replicas)

    def parts(batches: Batches) -> Batches:
        return replace(
            batches, windows=part(batches.windows), batches=part(batches.batches), uneven=part(batches.uneven)
        )

    return replace(
        workload,
        training_iterations=None if workload.training_iterations is None else part(workload.training_iterations),
        validation_iterations=None if workload.validation_iterations is None else part(workload.validation_iterations),
        training=None if workload.training is None else parts(workload.training),
        epoch=None if workload.epoch is None else parts(workload.epoch),
    )


def accumulated_workload(workload: Workload, times: int) -> Workload:
    """Let so many times as many batches share an update: fewer steps, and as many batches and validations as before."""
    if times == 1:
        return workload

    def fewer(batches: Batches | None) -> Batches | None:
        return None if batches is None else replace(batches, windows=math.ceil(batches.windows / times))

    steps = workload.training_iterations
    return replace(
        workload,
        training_iterations=None if steps is None else math.ceil(steps / times),
        training=fewer(workload.training),
        epoch=fewer(workload.epoch),
    )


def crowded_workload(workload: Workload, *, gpus_per_node: int, recorded: int, cores_per_node: int | None) -> Workload:
    """Put the loaders of a machine's GPUs on one set of cores, which they share.

    Args:
        workload: What each GPU has still to do.
        gpus_per_node: GPUs of a machine.
        recorded: GPUs of the machine that was recorded. Unless it is one, the loader is taken as it was seen.
        cores_per_node: Processor cores of a machine; None if not said: each loader then has cores enough.
    """
    if cores_per_node is None or workload.loader_workers is None or recorded != 1:
        return workload
    return replace(
        workload,
        loader=crowded_loader(
            workload.loader, gpus_per_node=gpus_per_node, cores=cores_per_node, workers_per_gpu=workload.loader_workers
        ),
    )


def crowded_loader(loader: Loader, *, gpus_per_node: int, cores: int, workers_per_gpu: int) -> Loader:
    """Slow the loader of each GPU on a node with several, from the loader on such a node with one GPU in use.

    On one GPU it is the loader itself, whether its workers had cores enough or not. A loader that never kept training
    waiting (0 seconds) stays so: how much faster than the step it was is unknown.

    Args:
        loader: As measured with one GPU in use and `workers_per_gpu` workers.
        gpus_per_node: GPUs that now share the cores.
        cores: Processor cores of the node that loaders can use; the processes that launch kernels take some, too.
        workers_per_gpu: Workers of each GPU's loader; 0: the training process makes the batches.
    """

    def slowdown(gpus: int) -> float:
        """Return the factor by which each worker is slower than with a core of its own."""
        return max(1.0, gpus * max(1, workers_per_gpu) / cores)

    return replace(loader, seconds_per_batch=loader.seconds_per_batch * (slowdown(gpus_per_node) / slowdown(1)))
