"""From one step to the rest of the run: training, validation, waits for the loader and checkpoints still to come.

Example::

    >>> from lightning_predict.interval import Interval
    >>> from lightning_predict.run.workload import Workload
    >>> from lightning_predict.timeline.iteration import Iteration
    >>> step = Iteration(gpu="T4", interval=Interval(0.4, 0.5, 0.6), device_seconds=0.5, host_seconds=0.1,
    ...                  coverage={"roofline": 1.0}, forward_seconds=0.2)
    >>> run_of(step, Workload(training_iterations=100, validation_iterations=10)).total_seconds  # 50 + 10 x 0.2
    52.0
"""

from __future__ import annotations

from lightning_predict.interval import Interval
from lightning_predict.run.workload import Batches, Run, Workload
from lightning_predict.timeline.iteration import Iteration


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
    samples = workload.samples_per_iteration
    low, high = (step.low_seconds / step.seconds, step.high_seconds / step.seconds) if step.seconds > 0 else (1.0, 1.0)
    validating = _validation_seconds(step, workload, validation, batches)
    waiting = (workload.validation_iterations or 0) * workload.validation_wait_seconds
    writing = workload.checkpoints.total_seconds
    added = waiting + workload.between_seconds + (writing or 0.0)
    training = _training(workload, batches)

    # Validation runs the same kernels: its relative error is taken to be that of the step.
    total = None
    if training is not None:
        ends = [_paced(step, training, workload, batches, ratio) for ratio in (low, 1.0, high)]
        computing = (end + (validating or 0.0) * ratio for end, ratio in zip(ends, (low, 1.0, high), strict=True))
        total = Interval(*computing).added(added)
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
        checkpoint_seconds=writing,
        checkpoint_is_estimated=workload.checkpoints.is_estimated and bool(writing),
        validation_is_estimated=validation is None and workload.validation_iterations != 0,
        at_most=workload.at_most,
    )


def training_seconds(step: Iteration, work: Batches, *, batches_per_step: int) -> float:
    """Return the time that the batches compute.

    An update takes its share of a step whatever the window holds; the rest of a step goes by batches. A batch with
    fewer samples takes its share of the device's time, but no less than the host needs to launch it.

    Args:
        step: One whole step.
        work: The batches.
        batches_per_step: Batches of that step.
    """
    update = step.seconds * min(1.0, step.optimizer_seconds / step.device_seconds) if step.device_seconds > 0 else 0.0
    batch = (step.seconds - update) / batches_per_step
    launching = min(batch, step.host_seconds / batches_per_step)
    uneven = max(batch * work.uneven_share, launching)
    return work.windows * update + (work.batches - work.uneven) * batch + work.uneven * uneven


def _paced(step: Iteration, work: Batches, workload: Workload, batches: int, ratio: float = 1.0) -> float:
    computing = training_seconds(step, work, batches_per_step=batches) * ratio
    return workload.loader.paced(computing, batches=work.whole)


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
