"""What-if predictions from existing traces, without running code: other batch size, half precision, `torch.compile`.

Example::

    for option in batch_size_what_if({16: lp.capture(step_of(16), samples_per_step=16)}, ["T4", "A100-SXM-80GB"]):
        print(option.gpu, option.batch_size, option.samples_per_second, option.usd_per_million_samples)
    precision_what_if(trace, ["L4"], "bfloat16")["L4"].iteration_seconds
    compile_what_if(trace, ["L4"])["L4"].iteration_seconds
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from lightning_predict.advice.batch_size import BatchSizes, why_no_other_batch, with_samples
from lightning_predict.advice.gains import predicted_with
from lightning_predict.advice.largest_batch import LargestBatch, largest_batches
from lightning_predict.advice.table import change_named
from lightning_predict.assumptions import Assumptions, fill_in_assumptions
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import MEGA, seconds_to_hours
from lightning_predict.cost.offers import Offer
from lightning_predict.cost.prediction import Prediction, UserPrice
from lightning_predict.cost.priced_gpus import ALL, layouts_to_predict
from lightning_predict.hardware import Gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.memory.step_memory import StepMemory, safe_bytes, step_memory
from lightning_predict.prediction import predict_workload, remaining_steps, shown_layouts
from lightning_predict.record.data_flow import with_data_flow
from lightning_predict.record.precision import PRECISIONS
from lightning_predict.record.trace import Trace
from lightning_predict.reports.format import duration, gibibytes, significant, usd
from lightning_predict.reports.predictions import Predictions
from lightning_predict.run.batch_size import BatchSizeOption, StraightLine, largest_power_of_two, line_through
from lightning_predict.weights.source import AnyWeights


@fill_in_assumptions
def batch_size_what_if(
    traces: Mapping[int, Trace],
    gpus: str | Sequence[str] = ALL,
    *,
    method: str = "auto",
    offers: Sequence[Offer] | None = None,
    usd_per_hour: UserPrice = None,
    weights: AnyWeights = None,
) -> tuple[BatchSizeOption, ...]:
    """Return the largest batch that fits on each GPU with a probability of 97 %, with throughput and cost.

    If a trace has data flow (captured on the meta device or the CPU), the step is scaled to other batch sizes, and
    memory is simulated for each size (`largest_batch.py`). Otherwise, or if two captures contradict the scaling, lines
    are fitted through the captures, and the largest power of two that fits is returned.

    Args:
        traces: Steps by number of samples: one step with data flow (best captured on the meta device), or two steps
            without.
        gpus: Names of GPUs, or of layouts such as `8xL4`. The batch size is per GPU.
        method: See `Assumptions`.
        offers: See `Assumptions`.
        usd_per_hour: See `Assumptions`.
        weights: See `Assumptions`.

    Returns:
        One option per GPU, in the given order.

    Raises:
        InvalidArgumentError: There are too few batch sizes, or the traces have too little information to derive memory.
        LightningPredictError: `predict` failed.
    """
    assumptions = Assumptions(method=method, offers=offers, usd_per_hour=usd_per_hour, weights=weights)
    return batch_sizes_that_fit(traces, layouts_to_predict(gpus, offers=offers, usd_per_hour=usd_per_hour), assumptions)


def batch_sizes_that_fit(
    traces: Mapping[int, Trace], layouts: Sequence[Layout], assumptions: Assumptions
) -> tuple[BatchSizeOption, ...]:
    """Return the same as `batch_size_what_if`, for parsed layouts and assumptions.

    Raises:
        LightningPredictError: See `batch_size_what_if`.
    """
    if traces:
        layouts = shown_layouts(traces[min(traces)], layouts, None, assumptions)
    scaled = _scalable(traces)
    if scaled is not None:
        largest = largest_batches(scaled, layouts, assumptions.strategy)
        return tuple(
            _scaled_option(scaled, found, layout, max(traces), assumptions)
            for found, layout in zip(largest, layouts, strict=True)
        )
    by_size = {
        size: predict_workload(trace, layouts, remaining_steps(trace, None), assumptions)
        for size, trace in sorted(traces.items())
    }
    if not by_size:
        line_through({})  # raises the error about missing batch sizes
    first = next(iter(by_size.values()))
    return tuple(
        _option(
            {size: predictions[name] for size, predictions in by_size.items()}, *_memory_lines(traces, one.layout.gpu)
        )
        for name, one in first.items()
    )


@fill_in_assumptions
def precision_what_if(
    trace: Trace,
    gpus: str | Sequence[str] = ALL,
    dtype: str = "bfloat16",
    *,
    iterations: int | None = None,
    usd_per_hour: UserPrice = None,
    weights: AnyWeights = None,
) -> Predictions:
    """Predict a float32 step under autocast. Measurements in the trace are used.

    Args:
        trace: A step in float32.
        gpus: Names of GPUs, or a group, as for `predict`.
        dtype: `bfloat16` or `float16`.
        iterations: Number of remaining steps; None predicts only the step.
        usd_per_hour: See `Assumptions`.
        weights: See `Assumptions`.

    Raises:
        InvalidArgumentError: The dtype is not supported, or the trace was recorded under autocast.
        LightningPredictError: `predict` failed.
    """
    if dtype not in PRECISIONS:
        raise InvalidArgumentError(f"dtype={dtype!r} is not an autocast precision; expected {' or '.join(PRECISIONS)}.")
    assumptions = Assumptions(usd_per_hour=usd_per_hour, weights=weights)
    return _with("bf16-mixed" if dtype == "bfloat16" else "16-mixed", trace, gpus, iterations, assumptions)


@fill_in_assumptions
def compile_what_if(
    trace: Trace,
    gpus: str | Sequence[str] = ALL,
    *,
    iterations: int | None = None,
    followed: Trace | None = None,
    usd_per_hour: UserPrice = None,
    weights: AnyWeights = None,
) -> Predictions:
    """Predict an eager step under `torch.compile`: matmuls stay, and pointwise operations between them are fused.

    Args:
        trace: An eager step.
        gpus: Names of GPUs, or a group, as for `predict`.
        iterations: Number of remaining steps; None predicts only the step.
        followed: The same step captured on the meta device or the CPU, if `trace` is a profile of a GPU. Profiles lack
            the data flow between operations.
        usd_per_hour: See `Assumptions`.
        weights: See `Assumptions`.

    Raises:
        InvalidArgumentError: The step is already compiled, or was recorded without data flow.
        LightningPredictError: `predict` failed.
    """
    step = trace if followed is None else with_data_flow(trace, followed)
    return _with("compile", step, gpus, iterations, Assumptions(usd_per_hour=usd_per_hour, weights=weights))


def _with(
    name: str, trace: Trace, gpus: str | Sequence[str], iterations: int | None, assumptions: Assumptions
) -> Predictions:
    """Predict a step with a change."""
    change = change_named(name)
    why_not = change.why_not(trace, None)
    if why_not is not None:
        raise InvalidArgumentError(f"{change.words} cannot be told for this step: {why_not}.")
    layouts = layouts_to_predict(gpus, usd_per_hour=assumptions.usd_per_hour)
    return predicted_with((change,), trace, layouts, iterations, assumptions)[1]


def batch_size_lines(options: Sequence[BatchSizeOption]) -> tuple[str, ...]:
    """Return the options as lines for a terminal."""
    width = max((len(option.gpu) for option in options), default=0)
    return tuple(f"{option.gpu:<{width}}  {_in_words(option)}" for option in options)


def _in_words(option: BatchSizeOption) -> str:
    if option.batch_size is None or option.step_seconds is None or option.samples_per_second is None:
        return "not even one sample fits"
    cost = ""
    if option.usd_per_million_samples is not None:
        cost = f", {usd(option.usd_per_million_samples)} for a million" + (f" ({option.offer})" if option.offer else "")
    chance = "" if option.fit_probability is None else f" (fits with a chance of {option.fit_probability:.0%})"
    memory = "" if option.memory_bytes is None else f", {gibibytes(option.memory_bytes)} GiB{chance}"
    return (
        f"batch size {option.batch_size:,}: {duration(option.step_seconds)} a step{memory}, "
        f"{significant(option.samples_per_second)} samples/s{cost}"
    )


AGREEMENT: Final = 0.05
"""Maximum relative difference in memory between a scaled step and a step that was captured at this size."""


def _scalable(traces: Mapping[int, Trace]) -> Trace | None:
    """Return the largest step whose scaling to other batch sizes agrees with the other captures; otherwise None."""
    memory = {size: step_memory(trace) for size, trace in traces.items()}
    for size in sorted(traces, reverse=True):
        one = traces[size] if traces[size].samples is not None else replace(traces[size], samples=size)
        if why_no_other_batch(one) is not None or memory[size] is None or one.has_measured_kernels:
            continue
        batches = BatchSizes(one)
        if all(_agree(step_memory(batches.of(max(own // one.batches, 1))), memory[own]) for own in traces):
            return one
    return None


def _agree(one: StepMemory | None, other: StepMemory | None) -> bool:
    if one is None or other is None:
        return False
    first, second = (need.persistent_bytes + need.temporary_bytes + need.slack_bytes for need in (one, other))
    return abs(first / second - 1) <= AGREEMENT


def _scaled_option(
    trace: Trace, found: LargestBatch, layout: Layout, captured: int, assumptions: Assumptions
) -> BatchSizeOption:
    """Predict the step at the largest batch size."""
    size = trace.samples if found.batch_size is None else found.batch_size * trace.batches
    at = trace if found.batch_size is None else with_samples(trace, found.batch_size)
    one = predict_workload(at, [layout], remaining_steps(at, None), assumptions).items_in_order[0]
    price = one.usd_per_hour
    if found.batch_size is None or size is None:
        return BatchSizeOption(gpu=found.layout, batch_size=None, usd_per_hour=price)
    rate = size * assumptions.strategy.replicas(layout) / one.iteration_seconds
    return BatchSizeOption(
        gpu=found.layout,
        batch_size=found.batch_size,
        step_seconds=one.iteration_seconds,
        memory_bytes=found.memory_bytes,
        samples_per_second=rate,
        usd_per_hour=price,
        offer=one.offer,
        usd_per_million_samples=None if price is None else seconds_to_hours(MEGA / rate) * price,
        is_extrapolated=size > captured,
        fit_probability=found.fit_probability,
    )


def _option(
    by_size: Mapping[int, Prediction], memory: Sequence[StraightLine], relative: Interval[float]
) -> BatchSizeOption:
    first = next(iter(by_size.values()))
    device = line_through({size: one.device_seconds for size, one in by_size.items()})
    available = safe_bytes(first.layout.gpu, relative)
    sizes = [size for line in memory if (size := largest_power_of_two(line, available)) is not None]
    if len(sizes) < len(memory):
        return BatchSizeOption(gpu=first.gpu, batch_size=None, usd_per_hour=first.usd_per_hour)
    size = min(sizes)
    # The number of launches does not depend on the batch size, so host time is the same for all sizes.
    seconds = max(device.at(size), statistics.median(one.host_seconds for one in by_size.values()))
    rate, price = size / seconds, first.usd_per_hour
    return BatchSizeOption(
        gpu=first.gpu,
        batch_size=size,
        step_seconds=seconds,
        memory_bytes=max(line.at(size) for line in memory),
        samples_per_second=rate,
        usd_per_hour=price,
        offer=first.offer,
        usd_per_million_samples=None if price is None else seconds_to_hours(MEGA / rate) * price,
        is_extrapolated=size > max(by_size),
    )


def _memory_lines(traces: Mapping[int, Trace], gpu: Gpu) -> tuple[tuple[StraightLine, ...], Interval[float]]:
    """Fit lines through the memory at the peaks of forward and backward, and of the optimizer step.

    The relative interval is also returned. The allocator's rounding varies irregularly with the batch size, so the
    largest value is used instead of a slope.
    """
    memory = {size: one for size, trace in traces.items() if (one := step_memory(trace)) is not None}
    if len(memory) < len(traces):
        raise InvalidArgumentError(
            "The memory of a step is not known for every batch size; capture steps whose model the recorder sees."
        )
    slack = max(one.slack_bytes for one in memory.values())
    moments = {size: replace(one, slack_bytes=slack).moments_on(gpu) for size, one in memory.items()}
    lines = tuple(line_through({size: both[part] for size, both in moments.items()}) for part in (0, 1))
    return lines, next(iter(memory.values())).relative
