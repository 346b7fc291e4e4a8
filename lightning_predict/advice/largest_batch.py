"""Largest batch size that fits in GPU memory: scales a recorded step, and simulates torch's allocator for each size.

Reserved memory is almost linear in the number of samples, except for the allocator's rounding, so a bisection needs
only a few scaled steps. The batch must fit with a probability of 90 %. If a layout has several GPUs, the GPU that needs
the most memory counts. Example::

    for found in largest_batches(lp.capture(step_of(16), samples_per_step=16), ["T4", "8xH100-SXM-80GB"]):
        print(found.gpu, found.batch_size, found.samples_per_second, found.usd_per_million_samples)
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Final

from lightning_predict.advice.batch_size import BatchSizes, why_no_other_batch, with_samples
from lightning_predict.assumptions import Assumptions, fill_in_assumptions
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.interval import CONFIDENCE
from lightning_predict.base.units import MEGA, seconds_to_hours
from lightning_predict.cost.offers import Offer
from lightning_predict.cost.prediction import UserPrice
from lightning_predict.cost.priced_gpus import ALL, layouts_to_predict
from lightning_predict.hardware.layouts import Layout
from lightning_predict.hardware.records import Gpu
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.memory.step_memory import MemoryNeed, StepMemory, step_memory, usable_bytes
from lightning_predict.prediction import predict_workload, remaining_steps, shown_layouts
from lightning_predict.record.trace import Trace
from lightning_predict.reports.format import significant, usd
from lightning_predict.step_predictor import memory_need_of
from lightning_predict.weights.source import AnyWeights

PRECISION: Final = 64  # Relative precision of the search: 1 / 64. The memory of a sample is not known any better.
LARGEST: Final = 2**40  # Number of samples above which the search fails, because memory does not grow with the batch


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestBatch:
    """Largest batch per GPU of a layout, with its speed and cost."""

    gpu: str
    batch_size: int | None  # Largest number of samples that fits with a probability of 90 %; None if not even 1 fits
    fit_probability: float | None  # Probability that `batch_size` fits; None without a batch size
    memory_bytes: float | None  # Memory that torch reserves on the GPU that needs the most; None without a batch size
    batch_size_at_50_percent: int | None  # As `batch_size`, with a probability of 50 %
    step_seconds: float | None = None  # Seconds of a step with this batch size; None without one, or if not predicted
    samples_per_second: float | None = None  # Throughput; None if `step_seconds` is None
    usd_per_hour: float | None = None  # Price of the GPU or layout; None if unknown
    offer: str | None = None  # Source and date of the price; None if unknown
    usd_per_million_samples: float | None = None  # Cost of training on a million samples; None if unknown

    @property
    def sentence(self) -> str:
        """Sentence that states the largest batch, with its speed and cost if known."""
        on, even = f"Largest batch on the {self.gpu}", self.batch_size_at_50_percent
        if even is None:
            return f"{on}: not even one sample fits with a chance of {CONFIDENCE:.0%}."
        at_best = "1 has" if even == 1 else f"{even:,} have"
        if self.batch_size is None or self.fit_probability is None:
            return f"{on}: none fits with a chance of {CONFIDENCE:.0%}; {at_best} an even chance."
        samples = "1 sample" if self.batch_size == 1 else f"{self.batch_size:,} samples"
        cost = "" if self.usd_per_million_samples is None else f", {usd(self.usd_per_million_samples)} for a million"
        cost += f" ({self.offer})" if self.offer and cost else ""
        rate = "" if self.samples_per_second is None else f": {significant(self.samples_per_second)} samples/s{cost}"
        return f"{on}: {samples} ({self.fit_probability:.0%}){rate}; {at_best} an even chance."


@fill_in_assumptions
def largest_batches(  # noqa: D417
    trace: Trace,
    gpus: str | Sequence[str] = ALL,
    *,
    offers: Sequence[Offer] | None = None,
    usd_per_hour: UserPrice = None,
    weights: AnyWeights = None,
) -> tuple[LargestBatch, ...]:
    """Return the largest batch that fits on each GPU with a probability of 90 %, with throughput and cost.

    Args:
        trace: A step with a known number of samples, recorded with data flow (on the meta device or the CPU).
        gpus: Names of GPUs, or of layouts such as `8xL4`. The batch size is per GPU.
        The other arguments are fields of `Assumptions`.

    Returns:
        One batch per GPU, in the given order.

    Raises:
        InvalidArgumentError: The step cannot be scaled, or its memory cannot be derived.
        LightningPredictError: `predict` failed.
    """
    assumptions = Assumptions(offers=offers, usd_per_hour=usd_per_hour, weights=weights)
    layouts = layouts_to_predict(gpus, offers=offers, usd_per_hour=usd_per_hour)
    scaled = ScaledMemory(trace)
    shown = shown_layouts(trace, layouts, None, assumptions)
    return tuple(_with_speed(scaled, layout, assumptions) for layout in shown)


def _with_speed(scaled: ScaledMemory, layout: Layout, assumptions: Assumptions) -> LargestBatch:
    """Return the largest batch on a layout, with the predicted step at this batch size."""
    largest = largest_batch(scaled, layout, assumptions.strategy)
    trace = scaled.trace if largest.batch_size is None else with_samples(scaled.trace, largest.batch_size)
    step = predict_workload(trace, [layout], remaining_steps(trace, None), assumptions).items_in_order[0]
    price = step.usd_per_hour
    if largest.batch_size is None or trace.samples is None:
        return replace(largest, usd_per_hour=price)
    rate = trace.samples * assumptions.strategy.replicas(layout) / step.iteration_seconds
    return replace(
        largest,
        step_seconds=step.iteration_seconds,
        samples_per_second=rate,
        usd_per_hour=price,
        offer=step.offer,
        usd_per_million_samples=None if price is None else seconds_to_hours(MEGA / rate) * price,
    )


class ScaledMemory:
    """Memory of a step at other batch sizes. Each size is simulated once.

    Args:
        trace: A step as for `largest_batches`. A measured peak corrects the memory at all batch sizes.
        derived: Derived memory of the recorded step, if known and not measured.
    """

    def __init__(self, trace: Trace, derived: StepMemory | None = None) -> None:
        why_not = why_no_other_batch(trace)
        if why_not is None and trace.memory.parameter_bytes is None:
            why_not = "the recorder saw no model; capture a step that holds one, or with `module`"
        if why_not is not None:
            raise InvalidArgumentError(f"The memory of other batches cannot be told: {why_not}.")
        self.trace = trace
        self.recorded = trace.samples_per_batch
        self._kinds = [BatchSizes(kind.trace) for kind in trace.kinds]
        self._known: dict[int, list[tuple[Trace, StepMemory]]] = {}
        if derived is not None and len(self._kinds) == 1:
            self._known[self.recorded] = [(trace, derived)]
        is_measured = trace.memory.peak_bytes is not None or trace.memory.reserved_bytes is not None
        measured = step_memory(trace) if is_measured else None
        self._correction = 1.0
        if measured is not None:
            self._correction = measured.relative.middle * _total(measured) / _total(self._derived(self.recorded))

    def at(self, samples: int) -> list[tuple[Trace, StepMemory]]:
        """Return each kind of step with `samples` samples per batch, with its memory."""
        if samples not in self._known:
            scaled = [kind.of(samples) for kind in self._kinds]
            needs = [(kind, step_memory(kind)) for kind in scaled]
            self._known[samples] = [(kind, self._corrected(need)) for kind, need in needs if need is not None]
        return self._known[samples]

    @property
    def simulated_sizes(self) -> list[int]:
        """Batch sizes that were simulated so far, ascending, including the recorded batch size."""
        return sorted({self.recorded, *self._known})

    def need(self, samples: int, layout: Layout, strategy: Strategy) -> MemoryNeed:
        """Return the memory need of a batch size on a layout."""
        return memory_need_of(self.at(samples), layout, strategy, correction=self._correction)

    def derived_bytes(self, samples: int, gpu: Gpu) -> float:
        """Return the derived memory of the first kind of step on one GPU, without the correction by a measured peak."""
        return float(self._derived(samples).bytes_on(gpu))

    def _derived(self, samples: int) -> StepMemory:
        need = step_memory(self._kinds[0].of(samples))
        assert need is not None  # the step has data flow and a known model
        return need

    def _corrected(self, derived: StepMemory) -> StepMemory:
        if self._correction == 1:
            return derived
        more = round((self._correction - 1) * _total(derived))
        return replace(derived, slack_bytes=derived.slack_bytes + more)


def _total(need: StepMemory) -> int:
    return need.persistent_bytes + need.temporary_bytes + need.slack_bytes


def largest_batch(scaled: ScaledMemory, layout: Layout, strategy: Strategy) -> LargestBatch:
    """Return the largest batch on a layout, without its speed. Each replica has its own batch."""
    need = cache(partial(scaled.need, layout=layout, strategy=strategy))

    def spare_bytes(samples: int) -> float:
        if layout.count > 1 or strategy.accumulate > 1:
            return need(samples).memory_free_bytes or 0.0
        # Without releasable memory, which needs more simulations
        reserved = max((memory.bytes_on(layout.gpu) for _, memory in scaled.at(samples)), default=0)
        return usable_bytes(layout.gpu) - reserved

    search = partial(_bisected, spare_bytes=spare_bytes, layout=layout.name)
    even = search(lambda samples: need(samples).fits is True, tried=scaled.simulated_sizes)
    tried = scaled.simulated_sizes
    safe = None if even is None else search(lambda samples: need(samples).memory_fit == "fits", tried=tried)
    at_safe = None if safe is None else need(safe)
    return LargestBatch(
        gpu=layout.name,
        batch_size=safe,
        fit_probability=None if at_safe is None else at_safe.fit_probability,
        memory_bytes=None if at_safe is None else at_safe.memory_bytes,
        batch_size_at_50_percent=even,
    )


def _bisected(
    fits: Callable[[int], bool], *, spare_bytes: Callable[[int], float], tried: Sequence[int], layout: str
) -> int | None:
    """Return the largest batch size that fits, within the precision; None if not even 1 sample fits."""
    count = bisect_left(tried, True, key=lambda samples: not fits(samples))
    low = tried[count - 1] if count else tried[0]
    high = tried[count] if count < len(tried) else low
    while fits(high):
        low, high = high, 2 * high if high == low else max(_extrapolated(low, high, spare_bytes), high + 1)
        if high > LARGEST:
            raise InvalidArgumentError(
                f"{low:,} samples would fit {layout}, which is implausible: the recording does not show which "
                "tensors hold samples. The first dimension of the data must be the samples."
            )
    while not fits(low):
        if low == 1:
            return None
        low, high = max(low // 2, 1), low
    while high - low > max(1, low // PRECISION):
        middle = _interpolated(low, high, spare_bytes)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _extrapolated(low: int, high: int, spare_bytes: Callable[[int], float]) -> int:
    """Extrapolate linearly to a batch size that does not fit: with a margin, and at most 64 times `high`."""
    left, right = spare_bytes(low), spare_bytes(high)
    if right >= left or high <= low:
        return PRECISION * high
    reached = high + right / (left - right) * (high - low)
    return min(math.ceil(reached * (1 + 1 / PRECISION)), PRECISION * high)


def _interpolated(low: int, high: int, spare_bytes: Callable[[int], float]) -> int:
    """Interpolate linearly to the batch size without free memory, but keep a distance from both ends."""
    left, right = spare_bytes(low), spare_bytes(high)
    share = 0.5 if left <= 0 or right >= 0 else min(max(left / (left - right), 1 / 8), 7 / 8)
    return min(max(low + round(share * (high - low)), low + 1), high - 1)
