"""The mean of steps of several kinds that take turns, as those of a GAN whose generator steps every fifth batch.

Each kind is predicted by itself; a mean of their Iterations, weighted by how often each occurs, is the step that totals
are made of. Example::

    kinds, weights = weighted_kinds(trace)
    mean_step([critic_on_t4, both_on_t4], weights).seconds     # 4/5 of the one and 1/5 of the other
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from lightning_predict.interval import Interval
from lightning_predict.timeline.iteration import Iteration
from lightning_predict.timeline.same_gpu import SameGpuCheck
from lightning_predict.timeline.verdict import Verdict
from lightning_predict.tracing.trace import Trace


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
