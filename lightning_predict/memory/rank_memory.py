"""Memory of a GPU that shares a step with other GPUs, simulated on the storages of its rank.

The recorded storages become storages of one rank:

- model parallelism, micro-batches and recomputation divide, drop or repeat storages (`StageStorages`).
- under FSDP, each rank holds a shard of every unit. A unit is gathered when the previous unit begins, and freed after
  its own operations. The root unit stays gathered to the end of the backward pass. A pipeline keeps all units gathered.
- gradients of a unit are whole until the next unit's operations end; then the rank keeps its shard (ZeRO 2, FSDP).
- optimizer state, its copies and its temporary tensors are shards.

torch gathers units in a stream of their own, so their memory and the memory of other tensors are separate pools. If a
recording has no tensors, `even_bytes` divides all memory evenly.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from lightning_predict.base.fields import defer
from lightning_predict.base.units import mebibytes_to_bytes
from lightning_predict.hardware.layouts import Layout
from lightning_predict.layouts.gradients import ROOT, parameter_bytes, unit_bytes, unit_of
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.memory.simulation import (
    Blocks,
    blocks_of,
    copies_of,
    copy_bytes,
    gradient_bytes,
    live_bytes,
    tensor_levels,
)
from lightning_predict.memory.stage_memory import ModelPart, RankStep, StageStorages, compiles_whole_passes
from lightning_predict.memory.step_memory import DERIVED, StepMemory, derived_memory, step_memory
from lightning_predict.memory.storages import Storage
from lightning_predict.record.trace import DTYPE_BYTES, Parameter, Trace, backward_ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Shares of the bytes of a part of the model that one of its replicas holds throughout a step."""

    parameters: float
    gradients: float
    state: float  # Share of the optimizer state, and of its copies, on the GPU
    update: float  # Share of the optimizer's temporary tensors
    buckets: float  # Bytes of the buffers in which whole gradients are reduced
    is_replaced: bool  # Whether the buffers take the place of the gradients, because their dtype differs

    @staticmethod
    def of(part: ModelPart, layout: Layout, strategy: Strategy) -> Held:
        """Return the shares of a rank."""
        split, dtype, count = strategy.split, strategy.reduce_dtype, strategy.sharded_count(layout)
        share = strategy.sharded_share(count, part.experts / max(part.trained, 1))
        has_buckets = not split.gradients and (dtype is not None or split.state or count > 1)
        buckets = part.trained if dtype is None else part.elements * DTYPE_BYTES[dtype]
        of_state = share if split.state else 1.0
        return Held(
            parameters=share if split.parameters else 1.0,
            gradients=share if split.gradients else 1.0,
            state=of_state if strategy.offload == "none" else 0.0,
            update=of_state,
            buckets=buckets if has_buckets else 0,
            is_replaced=has_buckets and dtype is not None,
        )

    def lasting_bytes(self, parameters: float, state: float) -> float:
        """Return the bytes that a rank holds apart from gradients, for the bytes of the part."""
        return parameters * self.parameters + state * self.state + self.buckets

    def gradient_bytes(self, gradients: float) -> float:
        """Return the bytes of gradients that a rank holds outside of buckets, for the bytes of the part."""
        return 0.0 if self.is_replaced else gradients * self.gradients


GATHERED_UNITS: Final = 3  # Number of FSDP units that are gathered at once: the root, the current and the next


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
    memory, parts = trace.memory, strategy.model_parallel
    model = ModelPart.of(trace.parameters)
    experts = model.experts / model.trained if model.trained else 0.0
    known = (memory.parameter_bytes or 0, memory.gradient_bytes, memory.optimizer_state_bytes or 0)
    sizes = [(known[0] if size is None else size) / parts for size in known]
    micro_batches = strategy.micro_batches or 1
    passing = max(single_bytes / parts - sum(sizes), 0.0)
    passing *= min(strategy.pipeline, micro_batches) / micro_batches / strategy.context
    own = 1 - experts + experts / strategy.expert  # with expert parallelism, a GPU holds a part of the experts
    trained, elements = (own * size / parts for size in (model.trained, model.elements))
    part = replace(model, trained=trained, elements=elements, experts=model.experts / strategy.expert / parts)
    held = Held.of(part, layout, strategy)
    parameters, gradients, state = (own * size for size in sizes)
    gathered = 0.0
    if strategy.split.parameters:
        units = sorted(unit_bytes(trace.parameters, strategy.param_dtype).values(), reverse=True)
        gathered = sum(units if strategy.pipeline > 1 else units[:GATHERED_UNITS]) / parts
    return held.lasting_bytes(parameters, state) + held.gradient_bytes(gradients) + gathered + passing


@dataclass(frozen=True, slots=True)
class _Segment:
    """Operations of one unit in one pass, as indices of the first and the last operation."""

    unit: str
    phase: str
    first: int
    last: int


class RankMemory:
    """Memory of the ranks of a recorded step, under any strategy, simulated if the recording has tensors."""

    def __init__(self, trace: Trace) -> None:
        memory = replace(trace.memory, peak_bytes=None, reserved_bytes=None)
        self._is_simulated = memory.parameter_bytes is not None and any(
            tensor.id is not None for operation in trace.operations for tensor in operation.outputs
        )
        if not self._is_simulated:
            memory = trace.memory
        self._trace = trace if memory == trace.memory else replace(trace, memory=memory)
        self._copies = copy_bytes(self._trace)
        self._gradients = gradient_bytes(self._trace)
        self._model = ModelPart.of(trace.parameters)

    @cached_property
    def alone(self) -> StepMemory:
        """Memory need on one GPU, simulated although it was measured."""
        if self._is_simulated:
            return derived_memory(self._trace, self._whole.blocks)
        single = step_memory(self._trace)
        assert single is not None  # a step whose need is unknown has no ranks
        return single

    def most_filled(self, layout: Layout, strategy: Strategy) -> StepMemory:
        """Return the memory need of the rank whose tensors need the most memory."""
        if self._is_simulated:
            return self._simulated(self._fullest(layout, strategy))
        gpu, single = layout.gpu, self.alone
        reserved, allocated = (
            math.ceil(even_bytes(size, self._trace, layout, strategy))
            for size in (single.bytes_on(gpu), single.allocated_on(gpu))
        )
        slack = max(single.bytes_on(gpu) - single.allocated_on(gpu), 1)
        releasable = min(single.releasable_bytes * (reserved - allocated) // slack, reserved - allocated)
        return StepMemory(
            persistent_bytes=allocated, slack_bytes=reserved - allocated, releasable_bytes=releasable, relative=DERIVED
        )

    def least_filled(self, layout: Layout, strategy: Strategy) -> StepMemory | None:
        """Return the memory need of the rank whose tensors need the least memory; None if all ranks hold the same.

        Experts of this rank get the tokens that the busiest experts leave.
        """
        if not self._is_simulated or (strategy.pipeline == 1 and 1 in (strategy.expert, strategy.capacity)):
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
        if not self._is_simulated:
            return [even_bytes(self.alone.bytes_on(layout.gpu), self._trace, layout, strategy)]
        bounds = list[float]()
        state = (self._trace.memory.optimizer_state_bytes or 0) + self._copies
        is_added_up = strategy.is_accumulating or strategy.micro_batches is None
        for part, kept in zip(self._stages.parts(strategy), self._stages.kept_bytes(strategy), strict=True):
            held, of_all = Held.of(part, layout, strategy), part.trained_share(self._model)
            gradients = held.gradient_bytes(self._gradients * of_all)
            lasting = held.lasting_bytes(part.held, state * of_all)
            bounds.append(lasting + max(kept + gradients * is_added_up, gradients))
        return bounds

    @cached_property
    def _stages(self) -> StageStorages:
        """Storages of strategies that divide the model or a batch."""
        return StageStorages(self._trace, self._model)

    @cached_property
    def _whole(self) -> RankStep:
        """The recorded step."""
        trace = self._trace
        operations = [(operation.phase, operation.module) for operation in trace.operations]
        returns_at = backward_ends(trace.operations) - 1 if compiles_whole_passes(trace) else 0
        return RankStep(self._model, blocks_of(trace), operations, returns_at=returns_at)

    def rank(self, layout: Layout, strategy: Strategy, stage: int = 0, load: float = 1.0) -> Rank:
        """Return a rank of a stage, whose experts get `load` times the tokens of balanced routing."""
        strategy.replicas(layout)
        is_divided = strategy.batch_parallel > 1 or strategy.expert > 1 or strategy.recompute != "none"
        if not is_divided and strategy.micro_batches in (None, 1):
            step = replace(self._whole, is_added_up=strategy.is_accumulating)
        else:
            step = self._stages.rank(strategy, stage, load)
        return self._sharded(step, layout, strategy)

    def _sharded(self, step: RankStep, layout: Layout, strategy: Strategy) -> Rank:
        """Return the rank's memory blocks after sharding among replicas, and its gathered units."""
        part, whole, held = step.part, step.blocks, Held.of(step.part, layout, strategy)
        is_sharded = strategy.split.gradients
        segments = _segments(part.parameters, step.operations) if is_sharded else []
        causes = defaultdict[str, list[Storage]](list)
        end = max(
            (storage.allocated_at for storage in whole.storages if storage.cause in ("gradient", "backward")), default=0
        )
        for stored in whole.storages:
            is_copy = stored.cause == "activation" and stored.freed_at is None and stored.allocated_at > end
            causes["copied gradient" if is_copy else stored.cause].append(stored)
        gradients = causes["gradient"]
        # Without synchronisation and in a pipeline, sums of sharded gradients are whole until the last batch, in the
        # dtype of their reduction.
        is_whole = step.is_added_up and is_sharded and (strategy.no_sync or strategy.pipeline > 1)
        of_sums = 1.0 if is_whole else held.gradients
        sums, unseen = list[int](), 0.0 if held.is_replaced else whole.unseen * of_sums
        if is_whole and strategy.reduce_dtype is not None:
            trained = [parameter for parameter in part.parameters if parameter.requires_grad]
            sums, unseen = [parameter_bytes(parameter, strategy.reduce_dtype) for parameter in trained], 0.0
        elif step.is_added_up and not held.is_replaced:
            sums = [_part(gradient.size_bytes, of_sums) for gradient in gradients]
        if is_sharded:
            gradients = _sharded_gradients(gradients, segments, held.gradients)
        if step.is_added_up or held.is_replaced:  # added to a sum or copied to a bucket, and freed
            gradients = [
                replace(one, cause="backward", freed_at=max(one.allocated_at, 0 if is_sharded else step.returns_at))
                for one in gradients
                if one.cause != "gradient" or not is_sharded
            ]
        # A script's own master copies have gradients of their own, for which each rank has its part of the buffers.
        of_update = [*causes["update"], *(() if held.is_replaced else causes["copied gradient"])]
        memory, model = self._trace.memory, self._model
        of_all = part.trained_share(model)
        others = (
            max((memory.parameter_bytes or 0) - model.held, 0) * part.held / max(model.held, 1),
            unseen * of_all,
            self._copies * of_all * held.state,
            memory.resident_bytes or 0,
        )
        blocks = replace(
            whole,
            lasting=(
                *(_part(parameter_bytes(parameter), held.parameters) for parameter in part.parameters),
                *(math.ceil(size) for size in others if size > 0),
                *copies_of(int(held.buckets), [int(mebibytes_to_bytes(strategy.bucket_cap_mb))]),
            ),
            kept=(*(_part(size, held.gradients) for size in whole.kept), *sums),
            state=tuple(_part(size, held.state) for size in whole.state),
            storages=_in_order(
                [
                    *causes["activation"],
                    *causes["backward"],
                    *gradients,
                    *(replace(storage, size_bytes=_part(storage.size_bytes, held.update)) for storage in of_update),
                ]
            ),
            update=tuple(_part(size, held.update) for size in whole.update),
        )
        gathered = _gathered(part.parameters, step.operations, segments, strategy) if strategy.split.parameters else ()
        return Rank(blocks, tuple(gathered))

    def _simulated(self, rank: Rank) -> StepMemory:
        blocks, gathered = rank.blocks, rank.gathered
        alone = derived_memory(self._trace, blocks)
        if not gathered:
            return alone
        need = derived_memory(self._trace, rank.together)
        beside, tensors = max(live_bytes(gathered, blocks.count), default=0), need.tensor_bytes
        reserved = alone.tensor_bytes + alone.slack_bytes + beside
        need = replace(need, slack_bytes=max(reserved - tensors, need.workspace_bytes))
        # Segments of gathered units are free, and can be released, at the peak of the other tensors, or the other way.
        apart = max(beside + alone.tensor_bytes - tensors, 0)
        return defer(need, lambda: replace(need, releasable_bytes=alone.releasable_bytes + apart), "releasable_bytes")


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


def _in_order(storages: Iterable[Storage]) -> tuple[Storage, ...]:
    return tuple(sorted(storages, key=lambda storage: storage.allocated_at))


def _part(size: int, share: float) -> int:
    return math.ceil(size * share)


def _segments(parameters: Iterable[Parameter], operations: Sequence[tuple[str, str | None]]) -> list[_Segment]:
    """Return the units in the order in which the passes use them.

    An operation without a module, or of the root unit, belongs to the same unit as the previous operation. Before the
    first unit of a pass, such operations belong to this unit.
    """
    units = {unit_of(parameter.name.rpartition(".")[0]) for parameter in parameters} - {ROOT}
    segments: list[_Segment] = []
    begins = 0
    for index, (phase, module) in enumerate(operations):
        if phase not in ("forward", "backward"):
            continue
        last = segments[-1] if segments and segments[-1].phase == phase else None
        if last is None and (index == 0 or operations[index - 1][0] != phase):
            begins = index
        unit = ROOT if not units else None if module is None else unit_of(module)
        if last is not None and (unit not in units or last.unit == unit):
            segments[-1] = replace(last, last=index)
        elif unit is not None and (unit in units or not units):
            segments.append(_Segment(unit, phase, index if last else begins, index))
    return segments


def _sharded_gradients(gradients: Sequence[Storage], segments: Sequence[_Segment], share: float) -> list[Storage]:
    """Return whole gradients, which are freed after the next unit, and the rank's shards."""
    storages = []
    backward = [segment for segment in segments if segment.phase == "backward"]
    ends = [segment.last for segment in backward]
    for one in gradients:
        if not backward:
            storages.append(replace(one, size_bytes=_part(one.size_bytes, share)))
            continue
        place = min(bisect_left(ends, one.allocated_at), len(ends) - 1)
        freed = max(ends[min(place + 1, len(ends) - 1)], one.allocated_at)
        storages.append(replace(one, cause="backward", freed_at=freed))
        end = max(ends[place], one.allocated_at)
        until = None if one.freed_at is None else max(one.freed_at, end)
        storages.append(replace(one, size_bytes=_part(one.size_bytes, share), allocated_at=end, freed_at=until))
    return storages


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
    storages = [Storage(sizes[ROOT], "activation", 0, last, ROOT)] if sizes.get(ROOT) else []
    for at, segment in enumerate(segments):
        if segment.unit == ROOT:
            continue
        ahead = segments[max(at - 1, 0) : at + 1]
        start = min(neighbour.first for neighbour in ahead if neighbour.phase == segment.phase)
        storages.append(Storage(sizes[segment.unit], "activation", start, segment.last, segment.unit))
    return storages
