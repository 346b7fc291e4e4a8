"""Whole steps: the mean of kinds that take turns, and what the measured step on the GPU in use says of other GPUs.

Steps of several kinds take turns in a GAN whose generator steps every fifth batch. Each kind is predicted by itself; a
mean of their Iterations, weighted by how often each occurs, is the step that totals are made of.

In the same-GPU check, the GPU in use is predicted as if it were another one, and held against its measured step. It
shows the error on the user's own model before the other GPUs' rows are trusted. Part of that error goes with the model
to any GPU (kernels that no table knows, work that no trace holds), so it corrects the others, by as much as held-out
data shows that it helps. Example::

    kinds, weights = weighted_kinds(trace)
    mean_step([critic_on_t4, both_on_t4], weights).seconds     # 4/5 of the one and 1/5 of the other

    >>> check = SameGpuCheck(gpu="T4", measured_seconds=0.060, predicted_seconds=0.050, bound_by="device")
    >>> f"{check.error:+.0%}", round(check.device_factor, 3)
    ('-17%', 1.147)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, final

from lightning_predict.gpus.records import Gpu
from lightning_predict.interval import Interval
from lightning_predict.kernels.choice import TimedWork, timed_work
from lightning_predict.kernels.timing import KernelModels
from lightning_predict.note import Note
from lightning_predict.timeline.host import UNKNOWN_HOST, Host, recorded_host
from lightning_predict.timeline.iteration import Iteration, iterations
from lightning_predict.timeline.verdict import Verdict
from lightning_predict.tracing.trace import Trace

# --- The same-GPU check

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


# --- The mean of kinds


def weighted_kinds(trace: Trace) -> tuple[tuple[Trace, ...], tuple[float, ...]]:
    """Return the kinds of a trace and their weights in a mean step of as many batches as the trace's own kind has.

    Without gradient accumulation that differs between optimizers, the weights are the shares. Where the kinds hold
    different numbers of batches, the mean keeps the time of a batch right: with `batches = trace.batches`,

        weight = share * batches / sum(share * batches of the kind, over all kinds)
    """
    traces = tuple(kind.trace for kind in trace.kinds)
    batches = sum(kind.share * kind.trace.batches for kind in trace.kinds)
    return traces, tuple(kind.share * trace.batches / batches for kind in trace.kinds)


def measured_seconds(trace: Trace) -> float | None:
    """Return the seconds of the mean step as measured without a recorder; None if a kind was not timed."""
    kinds, weights = weighted_kinds(trace)
    if not all(kind.measured_steps for kind in kinds):
        return None
    return sum(weight * statistics.median(kind.measured_steps) for kind, weight in zip(kinds, weights, strict=True))


def mean_step(steps: Sequence[Iteration], weights: Sequence[float]) -> Iteration:
    """Average the kinds of step on one GPU or layout; the ends of the interval, too, as errors go together."""
    if len(steps) == 1:
        return steps[0]

    def mean(values: Sequence[float]) -> float:
        return sum(weight * value for weight, value in zip(weights, values, strict=True))

    coverage = _mean_shares(
        [step.coverage for step in steps],
        [weight * step.device_seconds for weight, step in zip(weights, steps, strict=True)],
    )
    return Iteration(
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
    """Average the check of the GPU in use; None if a kind has none."""
    known = [check for check in checks if check is not None]
    if len(known) < len(checks):
        return None
    if len(known) == 1:
        return known[0]
    longest = max(zip(known, weights, strict=True), key=lambda one: one[1] * one[0].predicted_seconds)[0]
    return SameGpuCheck(
        gpu=longest.gpu,
        measured_seconds=sum(weight * one.measured_seconds for one, weight in zip(known, weights, strict=True)),
        predicted_seconds=sum(weight * one.predicted_seconds for one, weight in zip(known, weights, strict=True)),
        bound_by=longest.bound_by,
    )


def kinds_note(trace: Trace) -> tuple[str, ...]:
    """Say that the step is a mean, and of what; nothing for steps that are all alike."""
    if not trace.other_steps:
        return ()
    shares = " and ".join(f"{100 * kind.share:.0f} %" for kind in trace.kinds)
    return (f"Iteration: the mean of {len(trace.kinds)} kinds of step that take turns, {shares} of all steps.",)


def _mean_verdict(steps: Sequence[Iteration], weights: Sequence[float]) -> Verdict | None:
    """Return the verdict's shares, each step by its time; it is bound by what bounds most of its time."""
    found = [
        (step.verdict, weight * step.seconds)
        for step, weight in zip(steps, weights, strict=True)
        if step.verdict is not None
    ]
    if len(found) < len(steps):
        return None
    total = sum(seconds for _, seconds in found)
    if total <= 0:
        return found[0][0]
    by_host = sum(seconds for verdict, seconds in found if verdict.bound_by == "host")
    doubtful = sum(seconds for verdict, seconds in found if verdict.is_doubtful)
    parts = _mean_shares([verdict.critical_path for verdict, _ in found], [seconds for _, seconds in found])
    return Verdict(
        bound_by="host" if by_host > total / 2 else "device",
        idle_share=sum(seconds * verdict.idle_share for verdict, seconds in found) / total,
        gain=sum(seconds * verdict.gain for verdict, seconds in found) / total,
        critical_path=dict(sorted(parts.items(), key=lambda part: -part[1])),
        is_doubtful=doubtful > total / 2,
    )


def _mean_shares(shares: Sequence[Mapping[str, float]], weights: Sequence[float]) -> dict[str, float]:
    """Average shares that add up to 1 by name; a kind of weight 0 counts as nothing."""
    total = sum(weights)
    if total <= 0:
        return dict(shares[0])
    names = dict.fromkeys(name for one in shares for name in one)
    return {
        name: sum(weight * one.get(name, 0.0) for one, weight in zip(shares, weights, strict=True)) / total
        for name in names
    }
