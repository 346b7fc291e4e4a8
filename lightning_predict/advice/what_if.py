"""`what_if`: predicts a recorded step with a change, without running it. `gain`: throughput after over before.

Both steps are simulated from shapes, or both are recordings (the second one is the recording with the change applied,
see `run/carried_measurements.py`). Errors of operations that both steps share cancel out, so a gain is more accurate
than a step time::

    gain = (seconds per sample before) / (seconds per sample after)

Example::

    what_if("bf16-mixed", trace, ["L4"])["L4"].iteration_seconds
    what_if("compile", profile, ["L4"], followed=captured)["L4"].iteration_seconds
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from lightning_predict.advice.changes import Change, change_named
from lightning_predict.assumptions import Assumptions, fill_in_assumptions
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.cost.prediction import Prediction, UserPrice
from lightning_predict.cost.priced_gpus import ALL, layouts_to_predict
from lightning_predict.hardware.layouts import Layout
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.prediction import predict_workload, remaining_steps
from lightning_predict.record.data_flow import with_data_flow
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.trace import Trace, measured_seconds
from lightning_predict.reports.predictions import Predictions
from lightning_predict.step_predictor import StepPredictor, layout_in_use
from lightning_predict.weights.source import AnyWeights


@fill_in_assumptions
def what_if(  # noqa: D417
    change: str,
    trace: Trace,
    gpus: str | Sequence[str] = ALL,
    *,
    iterations: int | None = None,
    followed: Trace | None = None,
    usd_per_hour: UserPrice = None,
    weights: AnyWeights = None,
) -> Predictions:
    """Predict a step with a change to the training. Measurements in the trace are used.

    Args:
        change: Name of the change, as in `lp.advise`: `bf16-mixed`, `compile`, `batch_size` ...
        trace: The recorded step.
        gpus: Names of GPUs, or a group, as for `predict`.
        iterations: Number of remaining steps; None predicts only the step.
        followed: The same step captured on the meta device or the CPU, if `trace` is a profile of a GPU. Profiles lack
            the data flow between operations, which `compile` needs.
        The other arguments are fields of `Assumptions`.

    Raises:
        InvalidArgumentError: The change is unknown, or does not apply to the step.
        LightningPredictError: `predict` failed.
    """
    step = trace if followed is None else with_data_flow(trace, followed)
    asked = change_named(change)
    why_not = asked.why_not(step, None)
    if why_not is not None:
        raise InvalidArgumentError(f"{asked.words} cannot be told for this step: {why_not}.")
    assumptions = Assumptions(usd_per_hour=usd_per_hour, weights=weights).of_step(step)
    layouts = layouts_to_predict(gpus, usd_per_hour=usd_per_hour)
    return predicted_with((asked,), step, layouts, iterations, assumptions)[1]


def predicted_with(
    changes: tuple[Change, ...],
    trace: Trace,
    layouts: Sequence[Layout],
    iterations: int | None,
    assumptions: Assumptions,
) -> tuple[Trace, Predictions]:
    """Return the changed step and its predictions.

    Args:
        changes: Changes in the order in which they are applied; empty for the unchanged step.
        trace: The recorded step.
        layouts: Layouts to predict.
        iterations: Number of remaining steps of the recorded size. With more samples per step, fewer steps remain.
        assumptions: The assumptions.
    """
    samples, strategy = trace.samples, assumptions.strategy
    for change in changes:
        trace, assumptions = change.apply(trace, assumptions)
    if assumptions.strategy != strategy:
        trace = _shared_otherwise(trace, strategy, assumptions)
    if iterations is not None and samples and trace.samples and trace.samples != samples:
        iterations = max(round(iterations * samples / trace.samples), 1)
    return trace, predict_workload(
        trace, layouts, remaining_steps(trace, iterations), assumptions, adapts_precision=False
    )


def _shared_otherwise(trace: Trace, before: Strategy, assumptions: Assumptions) -> Trace:
    """Scale a step that was measured on several GPUs to another strategy, by the ratio of two predictions."""
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
    """Return throughput with the change relative to throughput without, including waits for the loader."""
    one, other = (each.run.samples_per_iteration or 1 for each in (before, after))
    return (before.cycle_seconds / one) / (after.cycle_seconds / other)
