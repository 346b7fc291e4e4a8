"""`gain`: throughput after a change over before, on one GPU, from two steps predicted in the same way.

Both sides use the same kind of information: two simulations from shapes, or a recording and the same recording with the
change (`measured.py`). Model errors of the shared operations are in numerator and denominator, so a gain is more
accurate than either step::

    gain = (seconds per sample before) / (seconds per sample after)
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from lightning_predict.assumptions import Assumptions
from lightning_predict.cost.prediction import Prediction
from lightning_predict.distributed.strategy import Strategy
from lightning_predict.extensions.advice.change import Change
from lightning_predict.gpus.layouts import Layout
from lightning_predict.prediction import predict_workload, remaining_steps
from lightning_predict.reports.predictions import Predictions
from lightning_predict.step_predictor import StepPredictor, layout_in_use
from lightning_predict.tracing.recorded_on import gpu_in_use
from lightning_predict.tracing.trace import Trace, measured_seconds


def predicted_with(
    changes: tuple[Change, ...],
    trace: Trace,
    layouts: Sequence[Layout],
    iterations: int | None,
    assumptions: Assumptions,
) -> tuple[Trace, Predictions]:
    """Return the changed step and its predictions.

    Args:
        changes: In the order of application; empty predicts the step as it is.
        trace: The recorded step.
        layouts: Layouts to predict.
        iterations: Remaining steps of the recorded size; a step with more samples needs fewer.
        assumptions: The assumptions.
    """
    samples, strategy = trace.samples, assumptions.strategy
    for change in changes:
        trace, assumptions = change.apply(trace, assumptions)
    if assumptions.strategy != strategy:
        trace = _shared_otherwise(trace, strategy, assumptions)
    if iterations is not None and samples and trace.samples and trace.samples != samples:
        iterations = max(round(iterations * samples / trace.samples), 1)
    return trace, predict_workload(trace, layouts, remaining_steps(trace, iterations), assumptions)


def _shared_otherwise(trace: Trace, before: Strategy, assumptions: Assumptions) -> Trace:
    """Scale a step measured on several GPUs to another strategy, by the ratio of two predictions.

    Args:
        trace: The step.
        before: The strategy in the recording.
        assumptions: The assumptions, with the new strategy.
    """
    origin, measured = gpu_in_use(trace), measured_seconds(trace)
    if origin is None or measured is None or trace.world_size == 1:
        return trace
    layout = layout_in_use(trace, origin)
    step = StepPredictor(trace.changed(Trace.untimed), [origin], assumptions)
    one, other = (step.iteration(layout, each).seconds for each in (before, assumptions.strategy))
    ratio = other / one

    def scaled(kind: Trace) -> Trace:
        return replace(kind, running_step_seconds=ratio * statistics.median(kind.measured_steps))

    return trace.changed(scaled)


def gain(before: Prediction, after: Prediction) -> float:
    """Return throughput after over before, including the waits for the loader."""
    one, other = (each.run.samples_per_iteration or 1 for each in (before, after))
    return (before.cycle_seconds / one) / (after.cycle_seconds / other)
