"""Largest batch size that fits in GPU memory: scales a recorded step, and simulates torch's allocator for each size.

Reserved memory is almost linear in the number of samples, except for the allocator's rounding, so a bisection needs
only a few scaled steps. The batch must fit with a probability of 97 %. If a layout has several GPUs, the GPU that needs
the most memory counts. Example::

    found = largest_batches(trace, layouts_of(["L4", "8xH100-SXM-80GB"]))
    found[0].batch_size, found[0].fit_probability, found[0].batch_size_at_50_percent
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from typing import Final, final

from lightning_predict.advice.batch_size import BatchSizes, why_no_other_batch
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware.layouts import Layout
from lightning_predict.hardware.records import Gpu
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.memory.libraries import convolved_share
from lightning_predict.memory.simulation import Blocks, blocks_of
from lightning_predict.memory.step_memory import (
    FITS_FROM,
    MemoryNeed,
    StepMemory,
    derived_memory,
    lasting_bytes,
    step_memory,
    usable_bytes,
)
from lightning_predict.memory.storages import Storage
from lightning_predict.record.trace import Trace
from lightning_predict.run.batch_size import samples_per_batch
from lightning_predict.step_predictor import memory_need_of

PRECISION: Final = 64
"""The search stops at a relative precision of 1 / 64. The memory of a sample is not known more precisely."""

LARGEST: Final = 2**40
"""Number of samples above which the search fails, because memory does not grow with the batch."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LargestBatch:
    """Largest batch per GPU of a layout.

    Attributes:
        layout: Name of the layout.
        batch_size: Largest number of samples that fits with a probability of 97 %; None if not even 1 sample fits.
        fit_probability: Probability that `batch_size` fits; None without a batch size.
        memory_bytes: Memory that torch's allocator reserves on the GPU that needs the most; None without a batch size.
        batch_size_at_50_percent: Largest number of samples that fits with a probability of 50 %; None if not even 1
            sample fits.
    """

    layout: str
    batch_size: int | None
    fit_probability: float | None
    memory_bytes: float | None
    batch_size_at_50_percent: int | None

    @property
    def sentence(self) -> str:
        """Sentence that states the largest batch."""
        if self.batch_size is None or self.fit_probability is None:
            even = (
                ""
                if self.batch_size_at_50_percent is None
                else f", though {self.batch_size_at_50_percent:,} fit as predicted"
            )
            return (
                f"Largest batch on the {self.layout}: not even one sample fits with a chance of {FITS_FROM:.0%}{even}."
            )
        even = f"{self.batch_size_at_50_percent:,} have an even chance"
        return f"Largest batch on the {self.layout}: {self.batch_size:,} samples ({self.fit_probability:.0%}); {even}."


def largest_batches(
    trace: Trace, layouts: Sequence[Layout], strategy: Strategy | None = None
) -> tuple[LargestBatch, ...]:
    """Return the largest batch on each layout.

    Args:
        trace: A step with a known number of samples, recorded with data flow (on the meta device or the CPU).
        layouts: The GPUs. Each replica has its own batch.
        strategy: How several GPUs share the work; None for DDP.

    Raises:
        InvalidArgumentError: The step cannot be scaled, or its memory cannot be derived.
    """
    scaled = ScaledMemory(trace)
    return tuple(largest_batch(scaled, layout, strategy or Strategy()) for layout in layouts)


@final
@dataclass(frozen=True, slots=True)
class AffineMemory:
    """Memory blocks of a step whose sizes are affine functions of the samples per batch.

    Attributes:
        trace: The recorded step, which has `samples` samples per batch.
        samples: Samples per batch of `blocks`.
        blocks: Memory blocks of the recorded step.
        slopes: Bytes of one more sample, in the order of `_sizes`.
        lasting: Memory of the recorded step that is allocated throughout the step.
    """

    trace: Trace
    samples: int
    blocks: Blocks
    slopes: tuple[int, ...]
    lasting: int

    @classmethod
    def of(cls, kind: BatchSizes, samples: int) -> AffineMemory | None:
        """Compare a step with the step of twice its samples; None if their blocks differ in more than sizes."""
        one, two = kind.of(samples), kind.of(2 * samples)
        if convolved_share(one) or not any(operation.outputs for operation in one.operations):
            return None
        blocks, others = blocks_of(one), blocks_of(two)
        if _without_sizes(blocks) != _without_sizes(others):
            return None
        steps = [(more - size) / samples for size, more in zip(_sizes(blocks), _sizes(others), strict=True)]
        if not all(step.is_integer() for step in steps):
            return None
        return cls(one, samples, blocks, tuple(map(int, steps)), lasting_bytes(one, blocks))

    def memory(self, samples: int) -> StepMemory:
        """Return the memory of the step with another batch size."""
        more = samples - self.samples
        blocks = _with_sizes(
            self.blocks, [size + more * slope for size, slope in zip(_sizes(self.blocks), self.slopes, strict=True)]
        )
        return derived_memory(self.trace, blocks, self.lasting + sum(blocks.batch) - sum(self.blocks.batch))


def _sizes(blocks: Blocks) -> list[int]:
    pairs = (*blocks.workspaces, *blocks.trials)
    lists = (blocks.lasting, blocks.kept, blocks.state, blocks.batch, blocks.update)
    return [*chain(*lists), *(one.size_bytes for one in blocks.storages), *(size for _, size in pairs)]


def _with_sizes(blocks: Blocks, sizes: Sequence[int]) -> Blocks:
    """Return the blocks with other sizes, in the order of `_sizes`."""
    rest = iter(sizes)

    def some(like: Sequence[object]) -> tuple[int, ...]:
        return tuple(islice(rest, len(like)))

    lasting, kept, state, batch, update = map(
        some, (blocks.lasting, blocks.kept, blocks.state, blocks.batch, blocks.update)
    )
    storages = tuple(
        Storage(size, one.cause, one.allocated_at, one.freed_at, one.module)
        for one, size in zip(blocks.storages, some(blocks.storages), strict=True)
    )
    workspaces, trials = (
        tuple((index, size) for (index, _), size in zip(pairs, some(pairs), strict=True))
        for pairs in (blocks.workspaces, blocks.trials)
    )
    return replace(
        blocks,
        lasting=lasting,
        kept=kept,
        state=state,
        batch=batch,
        update=update,
        storages=storages,
        workspaces=workspaces,
        trials=trials,
    )


def _without_sizes(blocks: Blocks) -> Blocks:
    return _with_sizes(blocks, [0] * len(_sizes(blocks)))


@final
class ScaledMemory:
    """Memory of a step at other batch sizes. Each size is simulated once.

    Args:
        trace: A step as for `largest_batches`. A measured peak corrects the memory at all batch sizes.
        derived: Derived memory of the recorded step, if known and not measured.

    Raises:
        InvalidArgumentError: The step cannot be scaled, or its memory cannot be derived.
    """

    def __init__(self, trace: Trace, derived: StepMemory | None = None) -> None:
        why_not = why_no_other_batch(trace)
        if why_not is None and trace.memory.parameter_bytes is None:
            why_not = "the recorder saw no model; capture a step that holds one, or with `module`"
        if why_not is not None:
            raise InvalidArgumentError(f"The memory of other batches cannot be told: {why_not}.")
        self.recorded = samples_per_batch(trace)
        self._kinds = [BatchSizes(kind.trace) for kind in trace.kinds]
        self._known: dict[int, list[tuple[Trace, StepMemory]]] = {}
        self._known_alone: dict[int, list[tuple[Trace, StepMemory]]] = {}
        if derived is not None and len(self._kinds) == 1:
            self._known_alone[self.recorded] = [(trace, derived)]
        self._correction = 1.0
        measured = trace.memory.reserved_bytes
        if measured is not None:
            derived = step_memory(self._kinds[0].of(self.recorded))
            assert derived is not None  # the step has data flow and a known model
            own = derived.persistent_bytes + derived.temporary_bytes + derived.slack_bytes
            self._correction = measured / own

    def at(self, samples: int) -> list[tuple[Trace, StepMemory]]:
        """Return each kind of step with `samples` samples per batch, with its memory."""
        if samples not in self._known:
            scaled = [kind.of(samples) for kind in self._kinds]
            found = [(kind, step_memory(kind)) for kind in scaled]
            self._known[samples] = [(kind, self._corrected(one)) for kind, one in found if one is not None]
        return self._known[samples]

    def alone(self, samples: int) -> list[tuple[Trace, StepMemory]]:
        """Return each kind of step as recorded, with its memory with `samples` samples per batch on one GPU.

        Without convolutions, the size of each block is an affine function of the samples, so no step is scaled.
        """
        if samples not in self._known_alone:
            found = [None if one is None else one.memory(samples) for one in self._affine]
            is_affine = None not in found
            self._known_alone[samples] = (
                [
                    (one.trace, self._corrected(need))
                    for one, need in zip(self._affine, found, strict=True)
                    if one and need
                ]
                if is_affine
                else self.at(samples)
            )
        return self._known_alone[samples]

    @cached_property
    def _affine(self) -> list[AffineMemory | None]:
        return [AffineMemory.of(kind, self.recorded) for kind in self._kinds]

    @property
    def derived(self) -> list[int]:
        """Batch sizes that were simulated so far, ascending, including the recorded batch size."""
        return sorted({self.recorded, *self._known, *self._known_alone})

    def need(self, samples: int, layout: Layout, strategy: Strategy) -> MemoryNeed:
        """Return the memory need of a batch size on a layout."""
        memory = self.alone(samples) if layout.count == 1 else self.at(samples)
        return memory_need_of(memory, layout, strategy, correction=self._correction)

    def derived_bytes(self, samples: int, gpu: Gpu) -> float:
        """Return the derived memory of the first kind of step on one GPU, without the correction by a measured peak."""
        one = self._affine[0]
        found = step_memory(self._kinds[0].of(samples)) if one is None else one.memory(samples)
        assert found is not None  # as for the recorded batch size
        return float(found.bytes_on(gpu))

    def _corrected(self, derived: StepMemory) -> StepMemory:
        if self._correction == 1:
            return derived
        total = derived.persistent_bytes + derived.temporary_bytes + derived.slack_bytes
        return replace(derived, slack_bytes=derived.slack_bytes + round((self._correction - 1) * total))


def largest_batch(scaled: ScaledMemory, layout: Layout, strategy: Strategy) -> LargestBatch:
    """Return the largest batch on a layout; see `largest_batches`."""
    needs: dict[int, MemoryNeed] = {}

    def need(samples: int) -> MemoryNeed:
        if samples not in needs:
            needs[samples] = scaled.need(samples, layout, strategy)
        return needs[samples]

    def is_likely(samples: int) -> bool:
        return need(samples).fits is True

    def is_safe(samples: int) -> bool:
        return need(samples).memory_fit == "fits"

    def spare_bytes(samples: int) -> float:
        if layout.count > 1:
            return need(samples).memory_free_bytes or 0.0
        # Without releasable memory, which needs more simulations
        reserved = max((one.bytes_on(layout.gpu) for _, one in scaled.alone(samples)), default=0)
        return usable_bytes(layout.gpu) - reserved

    even = _bisected(is_likely, spare_bytes, scaled.derived, layout.name)
    safe = None if even is None else _bisected(is_safe, spare_bytes, scaled.derived, layout.name)
    found = None if safe is None else need(safe)
    return LargestBatch(
        layout=layout.name,
        batch_size=safe,
        fit_probability=None if found is None else found.fit_probability,
        memory_bytes=None if found is None else found.memory_bytes,
        batch_size_at_50_percent=even,
    )


def _bisected(
    fits: Callable[[int], bool], spare_bytes: Callable[[int], float], tried: Sequence[int], layout: str
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
