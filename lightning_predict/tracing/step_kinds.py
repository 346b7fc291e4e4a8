"""Kinds of steps of a trace: their weights in a mean step, and its measured time."""

from __future__ import annotations

import statistics

from lightning_predict.tracing.trace import Trace


def weighted_kinds(trace: Trace) -> tuple[tuple[Trace, ...], tuple[float, ...]]:
    """Return the kinds of a trace and their weights in a mean step with as many batches as the trace's own kind.

    The weights are the shares, unless kinds have different numbers of batches (gradient accumulation that differs
    between optimizers). The mean then preserves the time per batch: with `batches = trace.batches`,

        weight = share * batches / sum(share * batches of the kind, over all kinds)
    """
    traces = tuple(kind.trace for kind in trace.kinds)
    batches = sum(kind.share * kind.trace.batches for kind in trace.kinds)
    return traces, tuple(kind.share * trace.batches / batches for kind in trace.kinds)


def measured_seconds(trace: Trace) -> float | None:
    """Return the measured time of the mean step, without a recorder; None if a kind was not timed."""
    kinds, weights = weighted_kinds(trace)
    if not all(kind.measured_steps for kind in kinds):
        return None
    return sum(weight * statistics.median(kind.measured_steps) for kind, weight in zip(kinds, weights, strict=True))
