"""Same-GPU check, which corrects the predictions for other GPUs, and the mean step over kinds of steps.

Steps of several kinds can alternate, for example in a GAN whose generator is trained on every fifth batch. Each kind is
predicted separately. Totals use the mean over kinds, weighted by their frequency.

The same-GPU check predicts the step on the GPU in use as if this GPU were unmeasured, and compares the prediction with
the measured step. The difference shows users how accurate predictions are for their model. Part of the error depends on
the model and not on the GPU: kernels for which there is no measured table, and work that the trace does not contain.
Predictions for other GPUs are corrected by this part only. Its share of the error (`RATIO_EXPONENTS`) was estimated
on held-out data. Example::

    kinds, weights = weighted_kinds(trace)
    mean_step([critic_on_t4, both_on_t4], weights).seconds     # 4/5 of the first and 1/5 of the second

    >>> check = SameGpuCheck(gpu="T4", measured_seconds=0.060, predicted_seconds=0.050, bound_by="device")
    >>> f"{check.error:+.0%}", round(check.device_factor, 3)
    ('-17%', 1.147)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lightning_predict.base.interval import Interval
from lightning_predict.base.note import Note
from lightning_predict.base.ties import clearly_less, greatest, ordered
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.measured_scaling import RATIO_EXPONENTS, WorkTimes, predict_work_times
from lightning_predict.kernels.timing import KernelModels
from lightning_predict.record.trace import Trace
from lightning_predict.timeline.host import TABLE_HOST, UNKNOWN_HOST, Host, recorded_host
from lightning_predict.timeline.step_prediction import StepPrediction, predict_steps
from lightning_predict.timeline.verdict import Verdict

# --- The same-GPU check


@dataclass(frozen=True, slots=True, kw_only=True)
class SameGpuCheck:
    """Measured and predicted step on the GPU in use."""

    gpu: str
    measured_seconds: float
    predicted_seconds: float
    bound_by: Literal["device", "host"]
    python_seconds: float = 0.0

    @property
    def error(self) -> float:
        """Relative error of the prediction: predicted / measured - 1."""
        return self.predicted_seconds / self.measured_seconds - 1

    @property
    def device_factor(self) -> float:
        """Factor on the device time of other GPUs; 1 if the step is not device-bound."""
        measured, predicted = (own - self.python_seconds for own in (self.measured_seconds, self.predicted_seconds))
        if self.bound_by == "host" or min(measured, predicted) <= 0:
            return 1.0
        return float((measured / predicted) ** RATIO_EXPONENTS["same units"])

    @property
    def host_factor(self) -> float:
        """Factor on the host time in predictions for other GPUs; 1 if the step is not host-bound."""
        return self.measured_seconds / self.predicted_seconds if self.bound_by == "host" else 1.0

    @property
    def note(self) -> str:
        """Description of the correction for the user."""
        factor = self.device_factor if self.bound_by == "device" else self.host_factor
        return (
            f"Other GPUs: the {self.bound_by}'s time is corrected by a factor of {factor:.2f}, as the step takes "
            f"{self.measured_seconds / self.predicted_seconds:.2f} times as long on {self.gpu} as predicted."
        )


def same_gpu_check(trace: Trace, origin: Gpu | None, models: KernelModels | None) -> SameGpuCheck | None:
    """Return the same-GPU check; None if the GPU is unknown, the step was not timed, or the code is compiled."""
    if origin is None or not trace.measured_steps or trace.compiled:
        return None
    shapes = replace(
        trace.untimed(),
        profiled_seconds=trace.profiled_seconds,
        host_seconds_unprofiled=trace.host_seconds_unprofiled,
        operations=tuple(replace(operation, kernels=()) for operation in trace.operations),
    )
    timed = predict_work_times(shapes, [origin], origin=None, models=models)
    (step,) = predict_steps(shapes, timed, [origin], host=TABLE_HOST)
    return SameGpuCheck(
        gpu=origin.name,
        measured_seconds=statistics.median(trace.measured_steps),
        predicted_seconds=step.seconds,
        bound_by=step.bound_by,
        python_seconds=math.fsum(recorded_host(shapes).python_seconds),
    )


def corrected_iterations(
    trace: Trace,
    timed: WorkTimes,
    gpus: Sequence[Gpu],
    *,
    origin: Gpu | None,
    check: SameGpuCheck | None,
    host: Host = UNKNOWN_HOST,
) -> tuple[StepPrediction, ...]:
    """Return one StepPrediction per GPU; the check corrects steps without measured kernels, which are more accurate."""
    work, factor = corrected_work(trace, timed, check)
    is_corrected = check is not None and not trace.has_measured_kernels
    steps = predict_steps(
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


def corrected_work(trace: Trace, timed: WorkTimes, check: SameGpuCheck | None) -> tuple[WorkTimes, float]:
    """Return the corrected work and the factor on the host time. Without a correction: unchanged work, and 1."""
    if check is None or trace.has_measured_kernels:
        return timed, 1.0
    return replace(timed, interval=timed.interval.scaled(check.device_factor)), check.host_factor


# --- Mean over kinds of steps


def mean_step(steps: Sequence[StepPrediction], weights: Sequence[float]) -> StepPrediction:
    """Average the kinds of steps on one GPU or layout; ends like middles, because the errors are correlated."""
    if len(steps) == 1:
        return steps[0]

    def mean(values: Sequence[float]) -> float:
        return sum(weight * value for weight, value in zip(weights, values, strict=True))

    coverage = _mean_shares(
        [step.coverage for step in steps],
        [weight * step.device_seconds for weight, step in zip(weights, steps, strict=True)],
    )
    return StepPrediction(
        gpu=steps[0].gpu,
        interval=Interval(
            low=mean([step.low_seconds for step in steps]),
            middle=mean([step.seconds for step in steps]),
            high=mean([step.high_seconds for step in steps]),
        ),
        device_seconds=mean([step.device_seconds for step in steps]),
        host_seconds=mean([step.host_seconds for step in steps]),
        coverage=coverage,
        forward_seconds=mean([step.forward_seconds for step in steps]),
        optimizer_seconds=mean([step.optimizer_seconds for step in steps]),
        verdict=_mean_verdict(steps, weights),
        communication_seconds=mean([step.communication_seconds for step in steps]),
        added_seconds=mean([step.added_seconds for step in steps]),
        notes=tuple(dict.fromkeys(note for step in steps for note in step.notes)),
    )


def mean_check(checks: Sequence[SameGpuCheck | None], weights: Sequence[float]) -> SameGpuCheck | None:
    """Average the checks of all kinds; None if any check is missing."""
    known = [check for check in checks if check is not None]
    if len(known) < len(checks):
        return None
    if len(known) == 1:
        return known[0]
    longest, _ = greatest(zip(known, weights, strict=True), lambda pair: pair[1] * pair[0].predicted_seconds)
    return SameGpuCheck(
        gpu=longest.gpu,
        measured_seconds=sum(weight * check.measured_seconds for check, weight in zip(known, weights, strict=True)),
        predicted_seconds=sum(weight * check.predicted_seconds for check, weight in zip(known, weights, strict=True)),
        bound_by=longest.bound_by,
    )


def kinds_note(trace: Trace) -> tuple[str, ...]:
    """Return a note that the step is a mean over kinds; empty if there is only one kind."""
    if not trace.other_steps:
        return ()
    shares = " and ".join(f"{100 * kind.share:.0f} %" for kind in trace.kinds)
    return (f"Iteration: the mean of {len(trace.kinds)} kinds of step that take turns, {shares} of all steps.",)


def _mean_verdict(steps: Sequence[StepPrediction], weights: Sequence[float]) -> Verdict | None:
    """Average verdicts, weighted by step time. The bottleneck is the one with the larger total time."""
    verdicts = [
        (step.verdict, weight * step.seconds)
        for step, weight in zip(steps, weights, strict=True)
        if step.verdict is not None
    ]
    if len(verdicts) < len(steps):
        return None
    total = sum(seconds for _, seconds in verdicts)
    if total <= 0:
        return verdicts[0][0]
    by_host = sum(seconds for verdict, seconds in verdicts if verdict.bound_by == "host")
    doubtful = sum(seconds for verdict, seconds in verdicts if verdict.is_doubtful)
    parts = _mean_shares([verdict.critical_path for verdict, _ in verdicts], [seconds for _, seconds in verdicts])
    return Verdict(
        bound_by="host" if clearly_less(total / 2, by_host) else "device",
        idle_share=sum(seconds * verdict.idle_share for verdict, seconds in verdicts) / total,
        gain=sum(seconds * verdict.gain for verdict, seconds in verdicts) / total,
        critical_path=dict(ordered(parts.items(), lambda part: part[1], reverse=True)),
        is_doubtful=clearly_less(total / 2, doubtful),
    )


def _mean_shares(shares: Sequence[Mapping[str, float]], weights: Sequence[float]) -> dict[str, float]:
    """Average shares by name over kinds, by weight. The shares of a kind add up to 1; a kind of weight 0 is ignored."""
    total = sum(weights)
    if total <= 0:
        return dict(shares[0])
    names = dict.fromkeys(name for share in shares for name in share)
    return {
        name: sum(weight * share.get(name, 0.0) for share, weight in zip(shares, weights, strict=True)) / total
        for name in names
    }
