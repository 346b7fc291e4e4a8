"""From one step to the rest of the run: training steps and validation batches still to come.

Example::

    >>> from lightning_predict.scaling.records import Workload
    >>> from lightning_predict.timeline.records import Iteration
    >>> step = Iteration(gpu="T4", seconds=0.5, low_seconds=0.4, high_seconds=0.6, device_seconds=0.5,
    ...                  host_seconds=0.1, coverage={"roofline": 1.0}, forward_seconds=0.2)
    >>> run_of(step, Workload(training_iterations=100, validation_iterations=10)).total_seconds  # 50 + 10 x 0.2
    52.0
"""

from __future__ import annotations

from lightning_predict.scaling.records import Run, Workload
from lightning_predict.timeline.records import Iteration


def run_of(step: Iteration, workload: Workload, validation: Iteration | None = None, *, batches: int = 1) -> Run:
    """Time of the run still to come on the step's GPU.

    Args:
        step: One training step.
        workload: Steps still to come.
        validation: One validation batch; None takes the forward share of one training batch instead.
        batches: Batches of one training step, so that the forward share is that of one batch.
    """
    count = workload.validation_iterations
    one_validation = step.forward_seconds / batches if validation is None else validation.seconds
    if workload.training_iterations is None:
        return Run(
            gpu=step.gpu,
            training_seconds=None,
            validation_seconds=None,
            total_seconds=None,
            total_low_seconds=None,
            total_high_seconds=None,
            validation_is_estimated=validation is None and count != 0,
            at_most=workload.at_most,
        )
    training = workload.training_iterations * step.seconds
    validating = None if count is None else count * one_validation
    total = training + (validating or 0.0)
    return Run(
        gpu=step.gpu,
        training_seconds=training,
        validation_seconds=validating,
        total_seconds=total,
        # Validation runs the same kernels: its relative error is taken to be that of the step.
        total_low_seconds=total * step.low_seconds / step.seconds,
        total_high_seconds=total * step.high_seconds / step.seconds,
        validation_is_estimated=validation is None and count != 0,
        at_most=workload.at_most,
    )
