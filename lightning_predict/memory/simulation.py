"""Simulates torch's caching allocator over several training steps, with the lifetime of every storage.

At the start of a step, these storages are already allocated:

- parameters and buffers, and after the first optimizer step also the optimizer state;
- gradients of the previous step. By default, as in Lightning, they are freed after the forward pass; otherwise, they
  are freed at the start of the step;
- tensors that variables of the training loop still hold.

Several steps are simulated, because fragmentation builds up over steps.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Final

from lightning_predict.memory.allocator import AllocationError, CachingAllocator, MemoryBlock
from lightning_predict.memory.libraries import trial_bytes, workspace_bytes
from lightning_predict.memory.storages import ATTENTIONS, Storage, attention_bytes, storages_and_batch
from lightning_predict.record.torch_releases import MULTI_TENSOR, frees_gradients, updates_one_by_one
from lightning_predict.record.trace import TensorInfo, Trace, backward_ends

STEPS: Final = 3
"""Number of simulated steps. The second step starts with the optimizer state, and the third step starts with the
fragmentation that a complete step leaves."""


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """Memory peaks of the allocator over the simulated steps."""

    allocated_bytes: int
    reserved_bytes: int
    growth: tuple[tuple[int, int], ...] = ()  # New maximums of reserved memory, with the unused segments

    def exceeds(self, capacity_bytes: int) -> bool:
        """Whether a GPU with this capacity is too small as soon as the allocator first fills the GPU.

        Until then, the allocator does the same as on a GPU without a limit.
        """
        for reserved, unused in self.growth:
            if reserved > capacity_bytes:
                return reserved - unused > capacity_bytes
        return False


@dataclass(slots=True)
class _Event:
    """Allocations and frees during one operation; storages by their position in `Blocks.storages`, with the sizes."""

    born: list[tuple[int, int]] = field(default_factory=list)
    trials: list[int] = field(default_factory=list)
    workspace: int = 0
    updates: bool = False
    freed: list[int] = field(default_factory=list)
    drops_gradients: bool = False


@dataclass(frozen=True)
class Blocks:
    """Sizes and lifetimes of the memory blocks of a training step."""

    lasting: tuple[int, ...]  # Sizes of parameters, buffers, their copies, and gradients that no operation writes
    kept: tuple[int, ...]  # Sizes of gradients that persist from step to step
    state: tuple[int, ...]  # Sizes of the optimizer state, which the first optimizer step allocates
    batch: tuple[int, ...]  # Sizes of the tensors of a batch; each step has a new batch
    storages: tuple[Storage, ...]  # Storages that the step writes, in order of allocation
    update: tuple[int, ...]  # Sizes of temporary tensors of the optimizer on CUDA, which all exist at the same time
    unseen: int  # Part of `lasting`: bytes of gradients of all steps, which the recorded step did not write
    count: int
    update_at: int  # Index of the first operation of the largest optimizer update; `count` if there is none
    # Index of the operation after which the previous step's gradients are freed; -1 if they are freed before the step
    drops_gradients_at: int
    workspaces: tuple[tuple[int, int], ...] = ()  # Temporary memory inside operations, as (operation's index, bytes)
    # Workspaces of cuDNN benchmarks in the first step, as (index of the operation, bytes). The cache is emptied after
    # each benchmark.
    trials: tuple[tuple[int, int], ...] = ()

    @cached_property
    def lasting_bytes(self) -> int:
        """Memory that is allocated throughout a step, with the gradients that exist at the same time."""
        written = live_bytes([storage for storage in self.storages if storage.cause == "gradient"], self.count)
        return sum(map(sum, (self.lasting, self.kept, self.state, self.batch))) + max(written, default=0)

    @cached_property
    def events(self) -> list[_Event]:
        """Operations that allocate or free memory, in order."""
        events: dict[int, _Event] = defaultdict(_Event)
        for number, storage in enumerate(self.storages):
            if storage.size_bytes:
                events[storage.allocated_at].born.append((number, storage.size_bytes))
                if storage.freed_at is not None:
                    events[storage.freed_at].freed.append(number)
        for index, size in self.trials:
            events[index].trials.append(size)
        for index, size in self.workspaces:
            events[index].workspace = size
        events[self.update_at].updates = True
        events[self.drops_gradients_at].drops_gradients = True
        return [events[index] for index in sorted(events) if 0 <= index < self.count]


def blocks_of(trace: Trace) -> Blocks:
    """Return the memory blocks of a step, with their sizes and lifetimes."""
    operations, memory = trace.operations, trace.memory
    storages, batch = storages_and_batch(trace)
    phases = [operation.phase for operation in operations]
    backward_at = phases.index("backward") if "backward" in phases else len(operations)
    keeps = memory.forward_gradient_bytes is None or 2 * memory.forward_gradient_bytes > (memory.gradient_bytes or 0)
    sizes = [TensorInfo(parameter.shape, parameter.dtype).size_bytes for parameter in trace.parameters]
    trained = [size for size, parameter in zip(sizes, trace.parameters, strict=True) if parameter.requires_grad]
    rest = (memory.parameter_bytes or 0) - sum(sizes)
    # Otherwise, the recorded update did not run CUDA's default, which updates all parameters at once.
    names = {operation.name for operation in operations}
    at_once = trace.flags.foreach is not None or any(name.startswith(MULTI_TENSOR) for name in names)
    update_at, passing = _largest_update(trace, storages)
    update = () if at_once else copies_of(passing, trained)
    kept = [storage.size_bytes for storage in storages if storage.cause == "gradient"]
    unseen = _unseen_gradient_bytes(trace, storages)
    if frees_gradients(trace):
        kept = []
    else:  # gradients persist: new ones are temporary, and added to them
        storages = tuple(
            replace(one, cause="backward", freed_at=one.allocated_at) if one.cause == "gradient" else one
            for one in storages
        )
    if trace.flags.foreach is None and updates_one_by_one(trace):
        storages = tuple(storage for storage in storages if storage.cause != "update")
        update = (max(trained, default=0),) if passing else ()
    return Blocks(
        lasting=(*sizes, *(size for size in (rest, unseen, copy_bytes(trace), memory.resident_bytes or 0) if size > 0)),
        kept=tuple(kept),
        state=copies_of(memory.optimizer_state_bytes or 0, trained),
        batch=batch,
        storages=tuple([storage for storage in storages if at_once or storage.cause != "update"]),
        update=update,
        unseen=unseen,
        count=len(operations),
        update_at=update_at,
        drops_gradients_at=backward_at - 1 if keeps else -1,
        workspaces=(*workspace_bytes(trace), *_passing_in_attention(trace)),
        trials=tuple(trial_bytes(trace)) if trace.flags.cudnn_benchmark else (),
    )


def _largest_update(trace: Trace, storages: Sequence[Storage]) -> tuple[int, int]:
    """Return the start of the optimizer update with the most temporary bytes, and these bytes on CUDA.

    By default, CUDA updates all parameters of an optimizer at once, through a copy of their gradients. A step has
    several updates if each layer has its own optimizer (which frees each gradient in the backward pass), or in a GAN.
    """
    gradients = {
        storage.tensor.id: storage.size_bytes for storage in storages if storage.cause == "gradient" and storage.tensor
    }
    begins, read = list[int](), list[int]()
    is_open = False
    for index, operation in enumerate(trace.operations):
        if operation.phase in ("forward", "backward"):
            is_open = False
        elif operation.phase == "optimizer":
            if not is_open:
                is_open, begins, read = True, [*begins, index], [*read, 0]
            read[-1] += sum([gradients.pop(tensor.id, 0) for tensor in operation.inputs])
    written = [0] * len(begins)
    for stored in storages:
        if stored.cause == "update":
            written[bisect_right(begins, stored.allocated_at) - 1] += stored.size_bytes
    read = read if len(read) > 1 and all(read) else [gradient_bytes(trace)] * len(read)
    passing = [min(size, most) for size, most in zip(read, written, strict=True)]
    largest = max(passing, default=0)
    return (begins[passing.index(largest)] if begins else len(trace.operations)), largest


def _unseen_gradient_bytes(trace: Trace, storages: Sequence[Storage]) -> int:
    """Return the size of the gradients that exist in all steps, although the recorded step did not write them.

    With recorded lifetimes, these are gradients of the previous step that do not survive from this step's writes, for
    example gradients that are added to. Without, they are the gradients that the trace lacks.
    """
    known, is_observed = trace.memory.forward_gradient_bytes, trace.held is not None
    written = [storage for storage in storages if storage.cause == "gradient"]
    if known is None or not is_observed:
        return max(gradient_bytes(trace) - sum(storage.size_bytes for storage in written), 0)
    return max(known - sum(storage.size_bytes for storage in written if storage.freed_at is None), 0)


def waiting_gradient_bytes(trace: Trace) -> int:
    """Return the size of the gradients that a recorded step lacks, because their optimizer updates in other steps."""
    if trace.memory.forward_gradient_bytes is None or trace.held is None:
        return 0  # `_unseen_gradient_bytes` counts them
    storages, _ = storages_and_batch(trace)
    written = sum(storage.size_bytes for storage in storages if storage.cause == "gradient")
    return max(gradient_bytes(trace) - written - _unseen_gradient_bytes(trace, storages), 0)


def _passing_in_attention(trace: Trace) -> Iterator[tuple[int, int]]:
    """Yield temporary tensors of unfused attention: scores, or in the backward pass two gradients."""
    for index, operation in enumerate(trace.operations):
        size = attention_bytes(operation) if operation.name in ATTENTIONS else 0
        if size:
            yield index, size if operation.phase == "forward" else 2 * size


def gradient_bytes(trace: Trace) -> int:
    """Return the size of all gradients. Gradients that were not recorded count with the size of their parameters."""
    memory = trace.memory
    if memory.gradient_bytes is None and any(operation.phase == "backward" for operation in trace.operations):
        return memory.parameter_bytes or 0
    return memory.gradient_bytes or 0


def copy_bytes(trace: Trace) -> int:
    """Return the bytes of persistent tensors that only the optimizer step uses, in addition to the optimizer state.

    Examples are an EMA's copy of the parameters, or master copies outside the optimizer state.
    """
    memory = trace.memory
    if memory.peak_bytes is not None:
        return 0
    end = backward_ends(trace.operations)
    met, given = set[int](), 0
    for index, operation in enumerate(trace.operations):
        for tensors, is_given in ((operation.inputs, True), (operation.outputs, False)):
            for tensor in tensors:
                if tensor.id is not None and tensor.id not in met:
                    met.add(tensor.id)
                    given += tensor.size_bytes if is_given and index >= end else 0
    copies = given - (memory.optimizer_state_bytes or 0)
    # Copies have at least one byte per parameter. Smaller tensors are scalars and step counters.
    return copies if copies >= sum(math.prod(parameter.shape) for parameter in trace.parameters) else 0


def copies_of(total: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Split `total` bytes into whole copies of blocks with these sizes, and a remainder."""
    whole = sum(sizes)
    if not whole:
        return (total,) if total else ()
    copies, rest = divmod(total, whole)
    return (*(tuple(sizes) * copies), *([rest] if rest else []))


HALVINGS: Final = 4  # Number of bisection steps in the search for the smallest capacity


def least_reserved_bytes(blocks: Blocks, whole: SimulatedStep | None = None) -> int:
    """Return the smallest capacity of a GPU on which the allocator completes a step.

    Before an out-of-memory error, torch releases unused segments and retries. Segments with a live block stay. cuDNN
    benchmarks are ignored, because they skip algorithms whose workspace does not fit.
    """
    if blocks.trials or whole is None:
        blocks = replace(blocks, trials=())
        whole = simulated(blocks)
    low, high = whole.allocated_bytes, whole.reserved_bytes
    for _ in range(HALVINGS):
        middle = (low + high) // 2
        completed = None if whole.exceeds(middle) else _completed(blocks, middle)
        low, high = (middle, high) if completed is None else (low, completed.reserved_bytes)
    return high


def _completed(blocks: Blocks, capacity_bytes: int) -> SimulatedStep | None:
    """Return the simulated step on a GPU with a limited capacity; None if the GPU is too small."""
    try:
        return _run(CachingAllocator(capacity_bytes=capacity_bytes), blocks)
    except AllocationError:
        return None


def simulated(blocks: Blocks, *, expandable_segments: bool = False) -> SimulatedStep:
    """Return the simulated memory peaks of steps with these memory blocks."""
    return _run(CachingAllocator(expandable_segments=expandable_segments), blocks)


def _run(allocator: CachingAllocator, blocks: Blocks) -> SimulatedStep:
    _allocate_all(allocator, (*blocks.lasting, *blocks.kept))
    storages, events, allocate, free = blocks.storages, blocks.events, allocator.allocate, allocator.free
    living: dict[int, MemoryBlock] = {}
    batch: list[MemoryBlock] = []
    for step in range(STEPS):
        # Variables of the training loop hold the previous batch until the next batch exists.
        batch, before = _allocate_all(allocator, blocks.batch), batch
        _free_all(allocator, before)
        left, living = dict(sorted(living.items())), {}
        gradients = [left.pop(number) for number in tuple(left) if storages[number].cause == "gradient"]
        if blocks.drops_gradients_at < 0:
            _free_all(allocator, gradients)
        for event in events:
            for number, size in event.born:
                living[number] = allocate(size)
                if left and number in left:  # the variable now refers to the tensor of this step
                    free(left.pop(number))
            if step == 0:
                for size in event.trials:
                    _free_all(allocator, _allocate_all(allocator, (size,)))
                    allocator.empty_cache()
            if event.workspace:
                free(allocate(event.workspace))
            if event.updates:
                if step == 0:
                    _allocate_all(allocator, blocks.state)
                _free_all(allocator, _allocate_all(allocator, blocks.update))
            for number in event.freed:
                free(living.pop(number))
            if event.drops_gradients:
                _free_all(allocator, gradients)
    return SimulatedStep(allocator.peak_allocated_bytes, allocator.peak_reserved_bytes, tuple(allocator.growth))


def _allocate_all(allocator: CachingAllocator, sizes: Sequence[int]) -> list[MemoryBlock]:
    return [allocator.allocate(size) for size in sizes if size]


def _free_all(allocator: CachingAllocator, blocks: list[MemoryBlock]) -> None:
    for block in blocks:
        allocator.free(block)
    blocks.clear()


@dataclass(frozen=True, slots=True)
class MemoryMoment:
    """Sizes of live tensors at one moment of a step."""

    index: int
    persistent_bytes: int  # Size of parameters and buffers
    state_bytes: int
    batch_bytes: int  # Size of the batch from the data loader
    gradient_bytes: int  # Size of the gradients, of this step or the previous step
    update_bytes: int  # Size of temporary tensors of the optimizer
    storages: tuple[Storage, ...]  # Other storages that the step wrote
    left_bytes: int  # Size of tensors of the previous step that variables of the training loop still hold

    @property
    def total_bytes(self) -> int:
        """Total size of all tensors."""
        always = self.persistent_bytes + self.state_bytes + self.batch_bytes + self.left_bytes
        return always + self.gradient_bytes + self.update_bytes + sum(storage.size_bytes for storage in self.storages)


def fullest_moments(blocks: Blocks) -> tuple[MemoryMoment, MemoryMoment]:
    """Return the peaks of the forward and backward passes, and of the optimizer step, in any but the first step."""
    levels = _levels(blocks) or [0]
    passes = levels[: blocks.update_at] or [0]
    updates = levels[blocks.update_at :] or [0]
    at_passes = passes.index(max(passes))
    at_update = min(blocks.update_at, blocks.count - 1) + updates.index(max(updates)) if updates != [0] else at_passes
    return _moment(blocks, at_passes, 0), _moment(blocks, at_update, sum(blocks.update))


def live_bytes(storages: Iterable[Storage], count: int) -> list[int]:
    """Return the total size of the live storages during each of `count` operations."""
    changes = [0] * (count + 1)
    for storage in storages:
        changes[storage.allocated_at] += storage.size_bytes
        changes[count if storage.freed_at is None else storage.freed_at + 1] -= storage.size_bytes
    return list(accumulate(changes[:count]))


def _levels(blocks: Blocks) -> list[int]:
    """Return the bytes of written storages during each operation, with those that the previous step left."""
    before = [
        replace(storage, allocated_at=0, freed_at=blocks.drops_gradients_at if is_gradient else storage.allocated_at)
        for storage in blocks.storages
        if (is_gradient := storage.cause == "gradient") or storage.freed_at is None
    ]
    return live_bytes([*blocks.storages, *before], blocks.count)


def tensor_levels(blocks: Blocks) -> list[int]:
    """Return the bytes of all tensors during each operation of a step that is not the first step."""
    always = sum(map(sum, (blocks.lasting, blocks.kept, blocks.state, blocks.batch)))
    levels = [always + written for written in _levels(blocks)]
    if blocks.update_at < len(levels):
        levels[blocks.update_at] += sum(blocks.update)
    return levels


def _moment(blocks: Blocks, index: int, update_bytes: int) -> MemoryMoment:
    living = [
        storage
        for storage in blocks.storages
        if storage.allocated_at <= index and (storage.freed_at is None or index <= storage.freed_at)
    ]
    old = index <= blocks.drops_gradients_at
    written = [storage for storage in blocks.storages if storage.cause == "gradient"]
    return MemoryMoment(
        index=index,
        persistent_bytes=sum(blocks.lasting),
        state_bytes=sum(blocks.state),
        batch_bytes=sum(blocks.batch),
        gradient_bytes=sum(blocks.kept)
        + sum(storage.size_bytes for storage in (written if old else living) if storage.cause == "gradient"),
        update_bytes=update_bytes,
        storages=tuple(storage for storage in living if storage.cause != "gradient"),
        left_bytes=sum(
            storage.size_bytes
            for storage in blocks.storages
            if storage.freed_at is None and storage.cause != "gradient" and index <= storage.allocated_at
        ),
    )
