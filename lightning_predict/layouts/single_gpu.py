"""Predicts the recorded step on a single GPU of each model. Steps on layouts are derived from these steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.measured_scaling import WorkTimes, predict_work_times
from lightning_predict.kernels.timing import KernelModels
from lightning_predict.record.trace import Trace
from lightning_predict.timeline.host import Host
from lightning_predict.timeline.step_prediction import StepPrediction, predict_steps

if TYPE_CHECKING:
    from lightning_predict.kernels.interconnect import Interconnect
    from lightning_predict.timeline.same_gpu_check import SameGpuCheck


@dataclass(frozen=True, slots=True)
class PredictionContext:
    """GPUs, models and assumptions that all steps of one prediction share."""

    gpus: tuple[Gpu, ...]  # The GPU models, without duplicates
    origin: Gpu | None  # GPU on which the steps were recorded; None without CUDA, or if the catalogue lacks the GPU
    models: KernelModels | None  # Trained kernel models; None uses rooflines
    host: Host  # Assumptions about the CPU
    links: Interconnect | None = None  # Known properties of the links between GPUs; None without any

    @property
    def interconnect(self) -> Interconnect:
        """The links between GPUs: the user's figures, otherwise the catalogue's."""
        from lightning_predict.kernels.interconnect import CATALOGUE

        return self.links or CATALOGUE


@dataclass(frozen=True, slots=True)
class SingleGpuSteps:
    """A recorded step, with predictions for a single GPU of each model."""

    recorded: Trace
    trace: Trace  # The step without communication between processes
    timed: WorkTimes  # Work of the step with device seconds, corrected by `check`; one row per GPU of the context
    host: Host  # Assumptions about the CPU, corrected by `check`
    steps: tuple[StepPrediction, ...]  # One StepPrediction per GPU of the `PredictionContext`
    check: SameGpuCheck | None  # Comparison with measurements on the GPU in use; None without measurements


def step_of_one_process(trace: Trace) -> Trace:
    """Remove the communication between processes, and step times that include it."""
    if trace.world_size == 1:
        return trace
    from lightning_predict.record.collectives import without_collectives

    return without_collectives(trace)


def single_steps(trace: Trace, context: PredictionContext) -> SingleGpuSteps:
    """Predict the step on a single GPU of each model."""
    alone = step_of_one_process(trace)
    timed = predict_work_times(alone, context.gpus, origin=context.origin, models=context.models)
    if context.origin is None or not alone.measured_steps:
        steps = predict_steps(alone, timed, context.gpus, origin=context.origin, host=context.host)
        return SingleGpuSteps(trace, alone, timed, context.host, steps, None)
    from lightning_predict.timeline.same_gpu_check import corrected_iterations, corrected_work, same_gpu_check

    check = same_gpu_check(alone, context.origin, context.models)
    steps = corrected_iterations(alone, timed, context.gpus, origin=context.origin, check=check, host=context.host)
    work, factor = corrected_work(alone, timed, check)
    return SingleGpuSteps(trace, alone, work, context.host.scaled(factor), steps, check)
