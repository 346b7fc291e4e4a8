"""The same-GPU check: the GPU in use is predicted as if it were another one, and held against its measured step.

It shows the error on the user's own model before the other GPUs' rows are trusted. Part of that error goes with the
model to any GPU (kernels that no table knows, work that no trace holds), so it corrects the others, by as much as
held-out data shows that it helps. Example::

    >>> check = SameGpuCheck(gpu="T4", measured_seconds=0.060, predicted_seconds=0.050, bound_by="device")
    >>> f"{check.error:+.0%}", round(check.device_factor, 3)
    ('-17%', 1.147)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, final

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.choice import TimedWork, timed_work
from lightning_predict.kernels.timing import KernelModels
from lightning_predict.note import Note
from lightning_predict.timeline.host import UNKNOWN_HOST, Host, recorded_host
from lightning_predict.timeline.iteration import Iteration, iterations
from lightning_predict.tracing.trace import Trace

CORRECTION_EXPONENT: Final = 0.75
"""Power of (measured / predicted) on the GPU in use by which the device's time on the others is multiplied.

Chosen on 876 pairs of GPUs that ran one of NVIDIA's training benchmarks in one container, each family of models left
out in turn: all choose 0.75. Median error of the pairs that were left out 9.2 %; uncorrected (power 0) 13.2 %, fully
corrected (power 1) 9.9 %. `python -m benchmarks.accuracy FOLDER` prints the study."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SameGpuCheck:
    """The step on the GPU in use.

    Attributes:
        gpu: Its name.
        measured_seconds: Median of the steps that were timed.
        predicted_seconds: Prediction from the step's shapes alone, without any measurement.
        bound_by: What bounds the predicted step.
        python_seconds: Time of the host outside of operations, a part of both.
    """

    gpu: str
    measured_seconds: float
    predicted_seconds: float
    bound_by: Literal["device", "host"]
    python_seconds: float = 0.0

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_seconds / self.measured_seconds - 1

    @property
    def device_factor(self) -> float:
        """Factor on the device's time on other GPUs; 1 if the step says nothing of the device."""
        measured, predicted = (own - self.python_seconds for own in (self.measured_seconds, self.predicted_seconds))
        if self.bound_by == "host" or min(measured, predicted) <= 0:
            return 1.0
        return float((measured / predicted) ** CORRECTION_EXPONENT)

    @property
    def host_factor(self) -> float:
        """Factor on the host's time with other GPUs; 1 if the step says nothing of the host."""
        return self.measured_seconds / self.predicted_seconds if self.bound_by == "host" else 1.0

    @property
    def note(self) -> str:
        """The correction in words."""
        factor = self.device_factor if self.bound_by == "device" else self.host_factor
        return (
            f"Other GPUs: the {self.bound_by}'s time is corrected by a factor of {factor:.2f}, as the step takes "
            f"{self.measured_seconds / self.predicted_seconds:.2f} times as long on {self.gpu} as predicted."
        )


def same_gpu_check(trace: Trace, origin: Gpu | None, models: KernelModels | None) -> SameGpuCheck | None:
    """Return the check; None if the GPU is unknown, its step was not timed, or compiled code hides what it computes."""
    if origin is None or not trace.measured_steps or trace.compiled:
        return None
    shapes = replace(
        trace.untimed(),
        profiled_seconds=trace.profiled_seconds,
        host_seconds_unprofiled=trace.host_seconds_unprofiled,
        operations=tuple(replace(operation, kernels=()) for operation in trace.operations),
    )
    (step,) = iterations(shapes, timed_work(shapes, [origin], origin=None, models=models), [origin])
    return SameGpuCheck(
        gpu=origin.name,
        measured_seconds=statistics.median(trace.measured_steps),
        predicted_seconds=step.seconds,
        bound_by=step.bound_by,
        python_seconds=math.fsum(recorded_host(shapes).python_seconds),
    )


def corrected_iterations(
    trace: Trace,
    timed: TimedWork,
    gpus: Sequence[Gpu],
    *,
    origin: Gpu | None,
    check: SameGpuCheck | None,
    host: Host = UNKNOWN_HOST,
) -> tuple[Iteration, ...]:
    """Return one Iteration a GPU, with the check's correction where nothing better is known.

    Measured kernels are better: each is scaled from its own measurement, and the host is anchored at the step.
    """
    work, factor = corrected_work(trace, timed, check)
    is_corrected = check is not None and not trace.has_measured_kernels
    steps = iterations(
        trace,
        work,
        gpus,
        origin=origin,
        host=host.scaled(factor),
        is_host_measured=check is not None and is_corrected and check.bound_by == "host",
    )
    if check is None or not is_corrected:
        return steps
    return tuple(
        step if step.gpu == check.gpu else replace(step, notes=(*step.notes, Note(check.note, is_detail=True)))
        for step in steps
    )


def corrected_work(trace: Trace, timed: TimedWork, check: SameGpuCheck | None) -> tuple[TimedWork, float]:
    """Correct the work, and give the factor of the host's time; both as they are without a correction."""
    if check is None or trace.has_measured_kernels:
        return timed, 1.0
    return replace(timed, interval=timed.interval.scaled(check.device_factor)), check.host_factor
