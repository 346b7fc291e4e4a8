"""Run torch's allocator through training: the parameters, then step after step, every storage at its time.

What a step finds lies there already when it begins: parameters and buffers, the optimizer's state from the first update
on, gradients of the step before (until the forward pass is done under Lightning, which is also assumed where the
recorder did not see it; else until the step begins), and what variables of the loop still hold. Three steps show what
fragments stay. Example::

    simulated_step(trace).reserved_bytes     # what torch.cuda.max_memory_reserved would say, without workspaces
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from lightning_predict.memory.allocator import Block, CachingAllocator
from lightning_predict.memory.storages import Storage, batch_bytes, written_storages
from lightning_predict.tracing.trace import TensorInfo, Trace

STEPS: Final = 3
"""The second step finds the state that the first one made; a third finds the fragments of a whole one."""


@final
@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """The allocator's peaks.

    Attributes:
        allocated_bytes: Most that was handed out at a time.
        reserved_bytes: Most that was taken of the GPU.
    """

    allocated_bytes: int
    reserved_bytes: int


@final
@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a training step and their times.

    Attributes:
        lasting: Parameters and buffers.
        state: State of the optimizers, made by the first update.
        batch: What the loader gives, anew in each step.
        storages: What the step writes, in the order of birth.
        update: What the optimizer writes in passing on CUDA, all at once.
        count: Number of operations.
        update_at: Index of the first operation of the optimizer; `count` without one.
        drops_gradients_at: Index of the operation after which the gradients of the step before are freed; -1 where the
            step begins without them.
        workspaces: For an operation, what it takes while it runs.
    """

    lasting: tuple[int, ...]
    state: tuple[int, ...]
    batch: tuple[int, ...]
    storages: tuple[Storage, ...]
    update: tuple[int, ...]
    count: int
    update_at: int
    drops_gradients_at: int
    workspaces: tuple[tuple[int, int], ...] = ()


def blocks_of(trace: Trace) -> Blocks:
    """Find the blocks of a step."""
    operations, memory = trace.operations, trace.memory
    storages = written_storages(trace)
    phases = [operation.phase for operation in operations]
    backward_at = phases.index("backward") if "backward" in phases else len(operations)
    keeps = memory.forward_gradient_bytes is None or 2 * memory.forward_gradient_bytes > (memory.gradient_bytes or 0)
    sizes = [TensorInfo(parameter.shape, parameter.dtype).size_bytes for parameter in trace.parameters]
    trained = [size for size, parameter in zip(sizes, trace.parameters, strict=True) if parameter.requires_grad]
    rest = (memory.parameter_bytes or 0) - sum(sizes)
    written = sum(one.size_bytes for one in storages if one.cause == "update")
    at_once = any(operation.name.startswith(("aten::_foreach_", "aten::_fused_")) for operation in operations)
    gradients = memory.parameter_bytes if memory.gradient_bytes is None else memory.gradient_bytes
    return Blocks(
        lasting=(*sizes, *([rest] if rest > 0 else [])),
        state=_copies(memory.optimizer_state_bytes or 0, trained),
        batch=batch_bytes(operations, trace.parameters),
        storages=tuple(one for one in storages if at_once or one.cause != "update"),
        update=() if at_once else _copies(min(gradients or 0, written), trained),
        count=len(operations),
        update_at=phases.index("optimizer") if "optimizer" in phases else len(operations),
        drops_gradients_at=backward_at - 1 if keeps else -1,
    )


def _copies(total: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Divide bytes into whole copies of these blocks, and a rest."""
    whole = sum(sizes)
    if not whole:
        return (total,) if total else ()
    copies, rest = divmod(total, whole)
    return (*(tuple(sizes) * copies), *([rest] if rest else []))


def simulated_step(trace: Trace, *, expandable_segments: bool = False) -> SimulatedStep:
    """Simulate the allocator on a step."""
    return simulated(blocks_of(trace), expandable_segments=expandable_segments)


def simulated(blocks: Blocks, *, expandable_segments: bool = False, steps: int = STEPS) -> SimulatedStep:
    """Simulate the allocator on the blocks of a step."""
    allocator = CachingAllocator(expandable_segments=expandable_segments)
    allocate, free = allocator.allocate, allocator.free
    for size in blocks.lasting:
        _allocate_all(allocator, (size,))
    storages = blocks.storages
    freed: list[list[int]] = [[] for _ in range(blocks.count + 1)]
    born: list[list[int]] = [[] for _ in range(blocks.count + 1)]
    for number, one in enumerate(storages):
        if one.size_bytes:
            born[one.birth].append(number)
            if one.death is not None:
                freed[one.death].append(number)
    workspaces: list[list[int]] = [[] for _ in range(blocks.count + 1)]
    for index, size in blocks.workspaces:
        workspaces[index].append(size)
    held: dict[int, Block] = {}
    batch: list[Block] = []
    old_gradients: list[Block] = []
    old_variables: dict[int, Block] = {}
    for step in range(steps):
        fresh = _allocate_all(allocator, blocks.batch)
        _free_all(allocator, batch)
        batch = fresh
        for number, one in enumerate(storages):
            if one.death is None and number in held:
                if one.cause == "gradient":
                    old_gradients.append(held.pop(number))
                else:
                    old_variables[number] = held.pop(number)
        if blocks.drops_gradients_at < 0:
            _free_all(allocator, old_gradients)
        for index in range(blocks.count):
            for number in born[index]:
                held[number] = allocate(storages[number].size_bytes)
                if number in old_variables:
                    free(old_variables.pop(number))
            for size in workspaces[index]:
                free(allocate(size))
            if index == blocks.update_at:
                if step == 0:
                    _allocate_all(allocator, blocks.state)
                _free_all(allocator, _allocate_all(allocator, blocks.update))
            for number in freed[index]:
                free(held.pop(number))
            if index == blocks.drops_gradients_at:
                _free_all(allocator, old_gradients)
    return SimulatedStep(allocator.peak_allocated_bytes, allocator.peak_reserved_bytes)


def _allocate_all(allocator: CachingAllocator, sizes: Sequence[int]) -> list[Block]:
    return [allocator.allocate(size) for size in sizes if size]


def _free_all(allocator: CachingAllocator, blocks: list[Block]) -> None:
    for block in blocks:
        allocator.free(block)
    blocks.clear()
