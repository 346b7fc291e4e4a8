"""Memory of a GPU under ZeRO and FSDP, simulated on the storages of its rank.

The recorded storages become storages of one rank:

- under FSDP, each rank holds a shard of every unit. A unit is gathered `GATHERED_UNITS` - 1 units before its
  operations, and freed after them. The root unit stays gathered to the end of the backward pass.
- gradients of a unit are whole until the next unit's operations end; then the rank keeps its shard (ZeRO 2, FSDP).
- optimizer state, its copies and its temporary tensors are shards.

torch gathers units in a stream of their own, so their memory and the memory of other tensors are separate pools.
Example::

    rank_memory(trace, layout_of("2xA100-SXM-80GB"), Strategy(data="fsdp")).allocated_on(gpu("A100-SXM-80GB"))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import final

from lightning_predict.cost.fields import defer
from lightning_predict.cost.memory import StepMemory, derived_memory
from lightning_predict.distributed.gradients import ROOT, parameter_bytes, unit_of
from lightning_predict.distributed.memory import GATHERED_UNITS
from lightning_predict.distributed.strategy import Strategy
from lightning_predict.gpus.layouts import Layout
from lightning_predict.memory.simulation import Blocks, blocks_of, copy_bytes, gradient_bytes
from lightning_predict.memory.storages import Storage
from lightning_predict.tracing.trace import DTYPE_BYTES, Parameter, Trace
from lightning_predict.units import mebibytes_to_bytes


@final
@dataclass(frozen=True, slots=True)
class _Segment:
    """Operations of one unit in one pass, as indices of the first and the last operation."""

    unit: str
    phase: str
    first: int
    last: int


def can_simulate(trace: Trace, strategy: Strategy) -> bool:
    """Return whether `rank_memory` covers a strategy and a recording."""
    has_ids = any(tensor.id is not None for operation in trace.operations for tensor in operation.outputs)
    is_measured = trace.memory.peak_bytes is not None or trace.memory.reserved_bytes is not None
    runs_whole_model = replace(strategy, accumulate=1).runs_whole_model
    return strategy.split.state and runs_whole_model and has_ids and not is_measured


def rank_memory(trace: Trace, layout: Layout, strategy: Strategy) -> StepMemory:
    """Return the memory need of each rank of a layout.

    Args:
        trace: The recorded step of one GPU.
        layout: The GPUs.
        strategy: ZeRO, FSDP or hybrid sharding, for which `can_simulate` is true.
    """
    blocks, gathered = rank_blocks(trace, strategy.sharded_count(layout), strategy)
    written = sum(one.size_bytes for one in blocks.storages if one.cause == "gradient")
    lasting = sum(map(sum, (blocks.lasting, blocks.kept, blocks.state, blocks.batch))) + written
    alone = derived_memory(trace, blocks, lasting)
    if not gathered:
        return alone
    need = derived_memory(trace, replace(blocks, storages=_in_order([*blocks.storages, *gathered])), lasting)
    reserved = _reserved_bytes(alone) + gathered_peak_bytes(gathered, blocks.count)
    tensors = lasting + max(need.temporary_bytes, need.update_bytes)
    need = replace(need, slack_bytes=max(reserved - tensors, need.workspace_bytes))
    return defer(need, lambda: replace(need, releasable_bytes=alone.releasable_bytes), "releasable_bytes")


def _reserved_bytes(memory: StepMemory) -> int:
    return memory.persistent_bytes + memory.slack_bytes + max(memory.temporary_bytes, memory.update_bytes)


def rank_blocks(trace: Trace, count: int, strategy: Strategy) -> tuple[Blocks, tuple[Storage, ...]]:
    """Return the memory blocks of a rank, and its gathered units.

    Args:
        trace: The recorded step of one GPU.
        count: Number of ranks that share the state.
        strategy: ZeRO, FSDP or hybrid sharding.
    """
    whole, split = blocks_of(trace), strategy.split
    segments = _segments(trace) if split.gradients else []
    update = [replace(one, size_bytes=_part(one.size_bytes, count)) for one in whole.storages if one.cause == "update"]
    passes = [one for one in whole.storages if one.cause not in ("update", "gradient")]
    gradients = [one for one in whole.storages if one.cause == "gradient"]
    unseen = gradient_bytes(trace) - sum(one.size_bytes for one in gradients)
    kept = tuple(_part(size, count) if split.gradients else size for size in whole.kept)
    if split.gradients:
        gradients = _sharded(gradients, segments, count)
    if strategy.is_accumulating or (strategy.reduce_dtype is not None and not split.gradients):
        kept = (*kept, *_sums(gradients, trace, strategy, count))
        gradients = [_passing(one) for one in gradients if one.cause != "gradient" or not split.gradients]
    sizes, others = whole.lasting[: len(trace.parameters)], whole.lasting[len(trace.parameters) :]
    if split.parameters:
        sizes = tuple(_part(size, count) for size in sizes)
    for size in (copy_bytes(trace), unseen if split.gradients else 0):
        others = _with_shard(others, size, count)
    buckets = () if split.gradients else _buckets(trace, strategy)
    blocks = replace(
        whole,
        lasting=(*sizes, *others, *buckets),
        kept=kept,
        state=tuple(_part(size, count) for size in whole.state),
        storages=_in_order([*passes, *gradients, *update]),
        update=tuple(_part(size, count) for size in whole.update),
    )
    return blocks, tuple(_gathered(trace, segments, strategy)) if split.parameters else ()


def gathered_peak_bytes(gathered: Iterable[Storage], count: int) -> int:
    """Return the most bytes of gathered units at a time, in a step of `count` operations."""
    changes = [0] * (count + 1)
    for one in gathered:
        changes[one.allocated_at] += one.size_bytes
        changes[count if one.freed_at is None else one.freed_at + 1] -= one.size_bytes
    return max(accumulate(changes), default=0)


def _in_order(storages: Iterable[Storage]) -> tuple[Storage, ...]:
    return tuple(sorted(storages, key=lambda one: one.allocated_at))


def _part(size: int, count: int) -> int:
    return math.ceil(size / count)


def _with_shard(sizes: tuple[int, ...], whole: int, count: int) -> tuple[int, ...]:
    """Return sizes of which one, `whole`, is sharded; the same sizes if there is no such size."""
    if whole <= 0 or whole not in sizes:
        return sizes
    at = sizes.index(whole)
    return (*sizes[:at], _part(whole, count), *sizes[at + 1 :])


def _buckets(trace: Trace, strategy: Strategy) -> tuple[int, ...]:
    """Return the buckets in which whole gradients are reduced."""
    item_bytes = None if strategy.reduce_dtype is None else DTYPE_BYTES[strategy.reduce_dtype]
    total = sum(_bytes_of(one, item_bytes) for one in trace.parameters if one.requires_grad)
    cap = int(mebibytes_to_bytes(strategy.bucket_cap_mb))
    return (*[cap] * (total // cap), *([total % cap] if total % cap else []))


def _bytes_of(parameter: Parameter, item_bytes: int | None) -> int:
    return parameter_bytes(parameter) if item_bytes is None else math.prod(parameter.shape) * item_bytes


def _segments(trace: Trace) -> list[_Segment]:
    """Return the units in the order in which the passes use them.

    An operation without a module, or of the root unit, belongs to the same unit as the previous operation. Before the
    first unit of a pass, such operations belong to this unit.
    """
    units = {unit_of(parameter.name.rpartition(".")[0]) for parameter in trace.parameters} - {ROOT}
    found: list[_Segment] = []
    starts: dict[str, int] = {}
    for index, operation in enumerate(trace.operations):
        if operation.phase not in ("forward", "backward"):
            continue
        first = starts.setdefault(operation.phase, index)
        unit = None if operation.module is None else unit_of(operation.module)
        last = found[-1] if found and found[-1].phase == operation.phase else None
        if last is not None and (unit not in units or last.unit == unit):
            found[-1] = replace(last, last=index)
        elif unit in units:
            found.append(_Segment(unit, operation.phase, index if last else first, index))
    return found


def _passing(gradient: Storage) -> Storage:
    """Return a gradient that is added to a sum of gradients, and then freed."""
    is_freed = gradient.freed_at is not None
    return gradient if is_freed else replace(gradient, cause="backward", freed_at=gradient.allocated_at)


def _sums(gradients: Iterable[Storage], trace: Trace, strategy: Strategy, count: int) -> list[int]:
    """Return the sizes of the sums of gradients of several batches, on a rank.

    With `reduce_dtype`, whole sums are DDP's buckets. Without synchronisation, sums are whole in this dtype.
    """
    dtype = strategy.reduce_dtype
    if dtype is not None and not strategy.split.gradients:
        return []
    if dtype is not None and strategy.no_sync:
        return [_bytes_of(one, DTYPE_BYTES[dtype]) for one in trace.parameters if one.requires_grad]
    return [one.size_bytes * (count if strategy.no_sync else 1) for one in gradients if one.cause == "gradient"]


def _sharded(gradients: Sequence[Storage], segments: Sequence[_Segment], count: int) -> list[Storage]:
    """Return whole gradients, which are freed after the next unit, and the rank's shards."""
    found = []
    backward = [one for one in segments if one.phase == "backward"]
    for one in gradients:
        place = next((at for at, segment in enumerate(backward) if one.allocated_at <= segment.last), len(backward) - 1)
        if not backward:
            found.append(replace(one, size_bytes=_part(one.size_bytes, count)))
            continue
        freed = max(backward[min(place + 1, len(backward) - 1)].last, one.allocated_at)
        found.append(replace(one, cause="backward", freed_at=freed))
        end = max(backward[place].last, one.allocated_at)
        found.append(replace(one, size_bytes=_part(one.size_bytes, count), allocated_at=end))
    return found


def _gathered(trace: Trace, segments: Sequence[_Segment], strategy: Strategy) -> list[Storage]:
    """Return the gathered units with their lifetimes, in `param_dtype`."""
    item_bytes = None if strategy.param_dtype is None else DTYPE_BYTES[strategy.param_dtype]
    sizes: dict[str, int] = {}
    for parameter in trace.parameters:
        unit = unit_of(parameter.name.rpartition(".")[0])
        sizes[unit] = sizes.get(unit, 0) + _bytes_of(parameter, item_bytes)
    last = max((index for index, one in enumerate(trace.operations) if one.phase in ("forward", "backward")), default=0)
    found = [Storage(sizes[ROOT], "activation", 0, last, ROOT)] if sizes.get(ROOT) else []
    for at, segment in enumerate(segments):
        ahead = segments[max(at - GATHERED_UNITS + 1, 0) : at + 1]
        start = min(one.first for one in ahead if one.phase == segment.phase)
        found.append(Storage(sizes[segment.unit], "activation", start, segment.last, segment.unit))
    return found
