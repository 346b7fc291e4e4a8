"""Memory of a GPU that shares a step with other GPUs, simulated on the storages of its rank.

The recorded storages become storages of one rank:

- model parallelism, micro-batches and recomputation divide, drop or repeat storages (`StageStorages`).
- under FSDP, each rank holds a shard of every unit. A unit is gathered when the previous unit begins, and freed after
  its own operations. The root unit stays gathered to the end of the backward pass. A pipeline keeps all units gathered.
- gradients of a unit are whole until the next unit's operations end; then the rank keeps its shard (ZeRO 2, FSDP).
- optimizer state, its copies and its temporary tensors are shards.

torch gathers units in a stream of their own, so their memory and the memory of other tensors are separate pools. For
recordings without tensors, `even_bytes` divides all memory evenly.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, final

from lightning_predict.base.fields import defer
from lightning_predict.base.units import mebibytes_to_bytes
from lightning_predict.hardware.layouts import Layout
from lightning_predict.layouts.gradients import ROOT, is_of_expert, parameter_bytes, unit_bytes, unit_of
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.memory.simulation import (
    Blocks,
    blocks_of,
    copy_bytes,
    gradient_bytes,
    live_bytes,
    tensor_levels,
)
from lightning_predict.memory.stage_memory import RankStep, StageStorages
from lightning_predict.memory.step_memory import StepMemory, derived_memory
from lightning_predict.memory.storages import Storage
from lightning_predict.record.trace import DTYPE_BYTES, Parameter, Trace

GATHERED_UNITS: Final = 3
"""Number of FSDP units that are gathered at the same time: the root, the current and the next unit."""


def even_bytes(single_bytes: float, trace: Trace, layout: Layout, strategy: Strategy) -> float:
    """Estimate the peak memory of each GPU of a layout, for a recording without tensors.

    - DDP adds buckets of the size of all gradients. If gradients are reduced in another dtype, a buffer of that dtype
      replaces them.
    - ZeRO 1 shards the optimizer state, ZeRO 2 also the gradients, and FSDP also the parameters (Rajbhandari et al., SC
      2020). FSDP gathers three units at a time, in `param_dtype`.
    - Model parallelism, context parallelism and micro-batches divide the remaining memory evenly.
    """
    if layout.count == 1:
        return single_bytes
    strategy.replicas(layout)
    memory, split, parts = trace.memory, strategy.split, strategy.model_parallel
    trained = _Sizes.of(trace.parameters)
    experts = trained.experts / trained.trained if trained.trained else 0.0
    known = (memory.parameter_bytes or 0, memory.gradient_bytes, memory.optimizer_state_bytes or 0)
    sizes = [(known[0] if size is None else size) / parts for size in known]
    micro_batches = strategy.micro_batches or 1
    passing = max(single_bytes / parts - sum(sizes), 0.0)
    passing *= min(strategy.pipeline, micro_batches) / micro_batches / strategy.context
    own = 1 - experts + experts / strategy.expert  # with expert parallelism, a GPU holds a part of the experts
    parameters, gradients, state = (own * size for size in sizes)
    share = strategy.sharded_share(strategy.sharded_count(layout), experts / strategy.expert / own)
    buckets = own * trained.in_buckets(strategy) / parts if _has_buckets(layout, strategy) else 0.0
    if split.gradients:
        gradients *= share
    elif strategy.reduce_dtype is not None:
        gradients = 0.0
    if split.state:
        state *= share if strategy.offload == "none" else 0.0
    if split.parameters:
        units = sorted(unit_bytes(trace.parameters, strategy.param_dtype).values(), reverse=True)
        gathered = units if strategy.pipeline > 1 else units[:GATHERED_UNITS]
        parameters = parameters * share + sum(gathered) / parts
    return parameters + gradients + buckets + state + passing


@final
@dataclass(frozen=True, slots=True)
class _Segment:
    """Operations of one unit in one pass, as indices of the first and the last operation."""

    unit: str
    phase: str
    first: int
    last: int


def can_simulate(trace: Trace) -> bool:
    """Return whether `RankMemory` covers a recording: its operations need tensors."""
    return trace.memory.parameter_bytes is not None and any(
        tensor.id is not None for operation in trace.operations for tensor in operation.outputs
    )


@final
class RankMemory:
    """Memory of the ranks of a recorded step, under any strategy."""

    def __init__(self, trace: Trace) -> None:
        memory = replace(trace.memory, peak_bytes=None, reserved_bytes=None)
        self._trace = trace if memory == trace.memory else replace(trace, memory=memory)
        self._copies = copy_bytes(self._trace)
        self._gradients = gradient_bytes(self._trace)
        self._sizes: dict[int, _Sizes] = {}

    @cached_property
    def alone(self) -> StepMemory:
        """Simulated memory need on one GPU, also if the memory was measured."""
        return derived_memory(self._trace, self._whole.blocks)

    def most_filled(self, layout: Layout, strategy: Strategy) -> StepMemory:
        """Return the memory need of the rank whose tensors need the most memory."""
        return self._simulated(self._fullest(layout, strategy))

    def least_filled(self, layout: Layout, strategy: Strategy) -> StepMemory | None:
        """Return the memory need of the rank whose tensors need the least memory; None if all ranks hold the same.

        Experts of this rank get the tokens that the busiest experts leave.
        """
        if strategy.pipeline == 1 and (strategy.expert == 1 or strategy.capacity == 1):
            return None
        bounds = self.lower_bounds(layout, strategy)
        load = strategy.capacity
        if strategy.expert > 1:
            load = max((strategy.expert - load) / (strategy.expert - 1), 0.0)
        return self._simulated(self.rank(layout, strategy, bounds.index(min(bounds)), load))

    def tensor_bytes(self, layout: Layout, strategy: Strategy) -> int:
        """Return the peak of the tensors of the most filled rank, without workspaces and free blocks."""
        return self._fullest(layout, strategy).tensor_bytes()

    def _fullest(self, layout: Layout, strategy: Strategy) -> Rank:
        """Return the rank whose tensors need the most memory, of the stage with the highest bound or the last stage."""
        if strategy.pipeline == 1:
            return self.rank(layout, strategy, 0, strategy.capacity)
        bounds = self.lower_bounds(layout, strategy)
        stages = {bounds.index(max(bounds)), strategy.pipeline - 1}  # the last stage has the loss
        ranks = [self.rank(layout, strategy, stage, strategy.capacity) for stage in sorted(stages)]
        return max(ranks, key=Rank.tensor_bytes)

    def lower_bounds(self, layout: Layout, strategy: Strategy) -> list[float]:
        """Return a lower bound of each stage's peak without a simulation: lasting tensors and kept activations."""
        found = list[float]()
        everything = _Sizes.of(self._trace.parameters).trained
        for parameters, kept in zip(self._stages.parameters(strategy), self._stages.kept_bytes(strategy), strict=True):
            if id(parameters) not in self._sizes:
                self._sizes[id(parameters)] = _Sizes.of(parameters)
            own, split, buckets = self._sizes[id(parameters)], strategy.split, 0.0
            of_all = own.trained / everything if everything else 1.0
            share = own.share(layout, strategy)
            state = ((self._trace.memory.optimizer_state_bytes or 0) + self._copies) * of_all
            state *= (share if split.state else 1.0) if strategy.offload == "none" else 0.0
            gradients = self._gradients * of_all * (share if split.gradients else 1.0)
            if _has_buckets(layout, strategy):
                buckets = float(own.in_buckets(strategy))
                gradients *= strategy.reduce_dtype is None
            held = own.held * (share if split.parameters else 1.0)
            is_added_up = strategy.is_accumulating or strategy.micro_batches is None
            found.append(held + state + buckets + max(kept + gradients * is_added_up, gradients))
        return found

    @cached_property
    def _stages(self) -> StageStorages:
        """Storages of strategies that divide the model or a batch."""
        return StageStorages(self._trace)

    @cached_property
    def _whole(self) -> RankStep:
        """The recorded step."""
        trace = self._trace
        operations = [(operation.phase, operation.module) for operation in trace.operations]
        return RankStep(trace.parameters, blocks_of(trace), operations, is_added_up=False)

    def rank(self, layout: Layout, strategy: Strategy, stage: int = 0, load: float = 1.0) -> Rank:
        """Return a rank of a stage, whose experts get `load` times the tokens of balanced routing."""
        strategy.replicas(layout)
        if _runs_whole_model(strategy):
            step = replace(self._whole, is_added_up=strategy.is_accumulating)
        else:
            step = self._stages.rank(strategy, stage, load)
        return self._sharded(step, layout, strategy)

    def _sharded(self, step: RankStep, layout: Layout, strategy: Strategy) -> Rank:
        """Return the rank's memory blocks after sharding among replicas, and its gathered units."""
        split, parameters, whole = strategy.split, step.parameters, step.blocks
        share = _Sizes.of(parameters).share(layout, strategy)
        of_state, of_gradients = (share if one else 1.0 for one in (split.state, split.gradients))
        segments = _segments(parameters, step.operations) if split.gradients else []
        causes = defaultdict[str, list[Storage]](list)
        end = max(
            (storage.allocated_at for storage in whole.storages if storage.cause in ("gradient", "backward")), default=0
        )
        for one in whole.storages:
            is_copy = one.cause == "activation" and one.freed_at is None and one.allocated_at > end
            causes["copied gradient" if is_copy else one.cause].append(one)
        gradients = causes["gradient"]
        is_whole = step.is_added_up and _adds_whole(strategy)
        is_counted = is_whole and strategy.reduce_dtype is not None  # `_sums` counts all gradients
        is_replaced = strategy.reduce_dtype is not None and not split.gradients  # buffers take the gradients
        kept = tuple(_part(size, of_gradients) for size in whole.kept)
        if step.is_added_up and not is_replaced:
            kept = (*kept, *_sums(gradients, parameters, strategy, of_gradients))
        if split.gradients:
            gradients = _sharded_gradients(gradients, segments, share)
        if step.is_added_up or is_replaced:
            gradients = [
                _passing(gradient) for gradient in gradients if gradient.cause != "gradient" or not split.gradients
            ]
        # A script's own master copies have gradients of their own, for which each rank has its part of the buffers.
        of_update = [*causes["update"], *(() if is_replaced else causes["copied gradient"])]
        memory, is_offloaded = self._trace.memory, strategy.offload == "optimizer"
        buffers = (memory.parameter_bytes or 0) - sum(map(parameter_bytes, self._trace.parameters))
        others = (
            max(buffers, 0) * step.held_share,
            whole.unseen
            * step.trained_share
            * (1.0 if is_whole else of_gradients)
            * (not is_replaced and not is_counted),
            self._copies * step.trained_share * of_state * (not is_offloaded),
            memory.resident_bytes or 0,
        )
        blocks = replace(
            whole,
            lasting=(
                *(_part(parameter_bytes(parameter), share if split.parameters else 1.0) for parameter in parameters),
                *(math.ceil(size) for size in others if size > 0),
                *(_buckets(parameters, strategy) if _has_buckets(layout, strategy) else ()),
            ),
            kept=kept,
            state=() if is_offloaded else tuple(_part(size, of_state) for size in whole.state),
            storages=_in_order(
                [
                    *causes["activation"],
                    *causes["backward"],
                    *gradients,
                    *(replace(one, size_bytes=_part(one.size_bytes, of_state)) for one in of_update),
                ]
            ),
            update=tuple(_part(size, of_state) for size in whole.update),
        )
        gathered = _gathered(parameters, step.operations, segments, strategy) if split.parameters else ()
        return Rank(blocks, tuple(gathered))

    def _simulated(self, rank: Rank) -> StepMemory:
        blocks, gathered = rank.blocks, rank.gathered
        alone = derived_memory(self._trace, blocks)
        if not gathered:
            return alone
        need = derived_memory(self._trace, rank.together)
        reserved = _reserved_bytes(alone) + max(live_bytes(gathered, blocks.count), default=0)
        tensors = _tensor_bytes(need)
        need = replace(need, slack_bytes=max(reserved - tensors, need.workspace_bytes))
        # Segments of gathered units are free, and can be released, at the peak of the other tensors, or the other way.
        apart = max(reserved - _reserved_bytes(alone) + _tensor_bytes(alone) - tensors, 0)
        return defer(need, lambda: replace(need, releasable_bytes=alone.releasable_bytes + apart), "releasable_bytes")


@final
@dataclass(frozen=True)
class Rank:
    """Memory blocks of a rank, and its gathered units."""

    blocks: Blocks
    gathered: tuple[Storage, ...]

    @property
    def together(self) -> Blocks:
        """Memory blocks with the gathered units."""
        if not self.gathered:
            return self.blocks
        return replace(self.blocks, storages=_in_order([*self.blocks.storages, *self.gathered]))

    def tensor_bytes(self) -> int:
        """Return the peak of the tensors."""
        return max(tensor_levels(self.together), default=0)


def _runs_whole_model(strategy: Strategy) -> bool:
    """Return whether each rank holds the recorded storages of a whole batch."""
    is_divided = strategy.batch_parallel > 1 or strategy.expert > 1 or strategy.recompute != "none"
    return not is_divided and strategy.micro_batches in (None, 1)


def _tensor_bytes(memory: StepMemory) -> int:
    return memory.persistent_bytes + max(memory.temporary_bytes, memory.update_bytes)


def _reserved_bytes(memory: StepMemory) -> int:
    return _tensor_bytes(memory) + memory.slack_bytes


def _in_order(storages: Iterable[Storage]) -> tuple[Storage, ...]:
    return tuple(sorted(storages, key=lambda storage: storage.allocated_at))


def _part(size: int, share: float) -> int:
    return math.ceil(size * share)


@final
@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes of the parameters of a rank: all, trainable and of experts in bytes, and trainable elements."""

    held: int
    trained: int
    experts: int
    elements: int

    @staticmethod
    def of(parameters: Iterable[Parameter]) -> _Sizes:
        held = trained = experts = elements = 0
        for parameter in parameters:
            count = math.prod(parameter.shape)
            size = count * DTYPE_BYTES.get(parameter.dtype, 4)
            held += size
            if parameter.requires_grad:
                trained, elements = trained + size, elements + count
                experts += size if is_of_expert(parameter) else 0
        return _Sizes(held, trained, experts, elements)

    def share(self, layout: Layout, strategy: Strategy) -> float:
        """Return the share of sharded state that a rank holds."""
        return strategy.sharded_share(strategy.sharded_count(layout), self.experts / max(self.trained, 1))

    def in_buckets(self, strategy: Strategy) -> int:
        """Return the size of all gradients in the dtype of their reduction."""
        dtype = strategy.reduce_dtype
        return self.trained if dtype is None else self.elements * DTYPE_BYTES[dtype]


def _has_buckets(layout: Layout, strategy: Strategy) -> bool:
    is_reduced = strategy.reduce_dtype is not None or strategy.split.state or strategy.sharded_count(layout) > 1
    return not strategy.split.gradients and is_reduced


def _buckets(parameters: Iterable[Parameter], strategy: Strategy) -> tuple[int, ...]:
    """Return the buckets in which whole gradients are reduced."""
    total = _Sizes.of(parameters).in_buckets(strategy)
    cap = int(mebibytes_to_bytes(strategy.bucket_cap_mb))
    return (*[cap] * (total // cap), *([total % cap] if total % cap else []))


def _segments(parameters: Iterable[Parameter], operations: Sequence[tuple[str, str | None]]) -> list[_Segment]:
    """Return the units in the order in which the passes use them.

    An operation without a module, or of the root unit, belongs to the same unit as the previous operation. Before the
    first unit of a pass, such operations belong to this unit.
    """
    units = {unit_of(parameter.name.rpartition(".")[0]) for parameter in parameters} - {ROOT}
    found: list[_Segment] = []
    begins = 0
    for index, (phase, module) in enumerate(operations):
        if phase not in ("forward", "backward"):
            continue
        last = found[-1] if found and found[-1].phase == phase else None
        if last is None and (index == 0 or operations[index - 1][0] != phase):
            begins = index
        unit = ROOT if not units else None if module is None else unit_of(module)
        if last is not None and (unit not in units or last.unit == unit):
            found[-1] = replace(last, last=index)
        elif unit is not None and (unit in units or not units):
            found.append(_Segment(unit, phase, index if last else begins, index))
    return found


def _passing(gradient: Storage) -> Storage:
    """Return a gradient that is added to a sum of gradients, and then freed."""
    return replace(gradient, cause="backward", freed_at=gradient.allocated_at)


def _adds_whole(strategy: Strategy) -> bool:
    """Return whether sharded gradients are whole until the last batch."""
    return strategy.split.gradients and (strategy.no_sync or strategy.pipeline > 1)


def _sums(
    gradients: Iterable[Storage], parameters: Iterable[Parameter], strategy: Strategy, share: float
) -> Sequence[int]:
    """Return the sizes of the sums of gradients of several batches, on a rank.

    Without synchronisation and in a pipeline, sums of sharded gradients are whole until the last batch, in the dtype of
    their reduction.
    """
    is_whole = _adds_whole(strategy)
    if strategy.reduce_dtype is not None and is_whole:
        return [
            parameter_bytes(parameter, strategy.reduce_dtype) for parameter in parameters if parameter.requires_grad
        ]
    return [_part(gradient.size_bytes, 1.0 if is_whole else share) for gradient in gradients]


def _sharded_gradients(gradients: Sequence[Storage], segments: Sequence[_Segment], share: float) -> list[Storage]:
    """Return whole gradients, which are freed after the next unit, and the rank's shards."""
    found = []
    backward = [segment for segment in segments if segment.phase == "backward"]
    ends = [one.last for one in backward]
    for one in gradients:
        if not backward:
            found.append(replace(one, size_bytes=_part(one.size_bytes, share)))
            continue
        place = min(bisect_left(ends, one.allocated_at), len(ends) - 1)
        freed = max(ends[min(place + 1, len(ends) - 1)], one.allocated_at)
        found.append(replace(one, cause="backward", freed_at=freed))
        end = max(ends[place], one.allocated_at)
        until = None if one.freed_at is None else max(one.freed_at, end)
        found.append(replace(one, size_bytes=_part(one.size_bytes, share), allocated_at=end, freed_at=until))
    return found


def _gathered(
    parameters: Iterable[Parameter],
    operations: Sequence[tuple[str, str | None]],
    segments: Sequence[_Segment],
    strategy: Strategy,
) -> list[Storage]:
    """Return the gathered units with their lifetimes, in `param_dtype`."""
    sizes = unit_bytes(parameters, strategy.param_dtype)
    last = max((index for index, (phase, _) in enumerate(operations) if phase in ("forward", "backward")), default=0)
    if strategy.pipeline > 1:
        return [Storage(size, "activation", 0, last, unit) for unit, size in sizes.items()]
    found = [Storage(sizes[ROOT], "activation", 0, last, ROOT)] if sizes.get(ROOT) else []
    for at, segment in enumerate(segments):
        if segment.unit == ROOT:
            continue
        ahead = segments[max(at - 1, 0) : at + 1]
        start = min(one.first for one in ahead if one.phase == segment.phase)
        found.append(Storage(sizes[segment.unit], "activation", start, segment.last, segment.unit))
    return found
