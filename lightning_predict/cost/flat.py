"""All that is known of one GPU or layout, flattened into the record that users get.

Example::

    prediction_of(step, run, quote, workload=workload, layout=layout_of("T4")).cost_usd
"""

from __future__ import annotations

from lightning_predict.cost.records import Prediction, Quote
from lightning_predict.gpus.layouts import Layout
from lightning_predict.scaling.records import Run, Workload
from lightning_predict.timeline.records import Iteration
from lightning_predict.timeline.same_gpu import SameGpuCheck


def prediction_of(
    step: Iteration,
    run: Run,
    quote: Quote,
    *,
    workload: Workload,
    layout: Layout,
    replicas: int = 1,
    measured_seconds: float | None = None,
    same_gpu: SameGpuCheck | None = None,
) -> Prediction:
    """The prediction of a layout.

    Args:
        step: Its step.
        run: The rest of the run on it.
        quote: The run at a price.
        workload: What one replica has still to do.
        layout: The GPUs.
        replicas: Groups of them that work through samples of their own.
        measured_seconds: The step as measured, where this is what is in use.
        same_gpu: How the step would have been predicted without that; likewise.
    """
    samples = workload.samples_per_iteration
    return Prediction(
        gpu=step.gpu,
        num_gpus=layout.count,
        iteration_seconds=step.seconds,
        iteration_seconds_low=step.low_seconds,
        iteration_seconds_high=step.high_seconds,
        device_seconds=step.device_seconds,
        host_seconds=step.host_seconds,
        communication_seconds=step.communication_seconds,
        added_seconds=step.added_seconds,
        measured_seconds=measured_seconds,
        unmeasured_seconds=None if same_gpu is None else same_gpu.predicted_seconds,
        iterations=workload.training_iterations,
        total_seconds=run.total_seconds,
        total_seconds_low=run.total_low_seconds,
        total_seconds_high=run.total_high_seconds,
        validation_seconds=run.validation_seconds,
        validation_is_estimated=run.validation_is_estimated,
        cycle_seconds=run.cycle_seconds,
        epoch_seconds=run.epoch_seconds,
        loader_seconds=run.loader_seconds,
        checkpoint_seconds=run.checkpoint_seconds,
        checkpoint_is_estimated=run.checkpoint_is_estimated,
        at_most=run.at_most,
        is_cut_off=run.is_cut_off,
        samples_per_second=None if samples is None else replicas * samples / step.seconds,
        usd_per_hour=quote.usd_per_hour,
        cost_usd=quote.cost_usd,
        offer=None if quote.offer is None else quote.offer.label,
        memory_bytes=quote.memory_bytes,
        fits=quote.fits,
        memory_fit=quote.memory_fit,
        memory_free_bytes=quote.memory_free_bytes,
        coverage=dict(step.coverage),
        base_share=step.base_share,
        verdict=step.verdict,
        notes=step.notes,
    )
