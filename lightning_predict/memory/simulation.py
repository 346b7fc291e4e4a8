"""Run torch's allocator through training: the parameters, then step after step, every storage at its time.

What a step finds lies there already when it begins: parameters and buffers, the optimizer's state from the first update
on, gradients of the step before (until the forward pass is done under Lightning, which is also assumed where the
recorder did not see it; else until the step begins), and what variables of the loop still hold. Three steps show what
fragments stay. Example::

    simulated_step(trace).reserved_bytes     # what torch.cuda.max_memory_reserved would say, without workspaces
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final, final

from lightning_predict.memory.allocator import CachingAllocator, MemoryBlock
from lightning_predict.memory.libraries import trial_bytes, workspace_bytes
from lightning_predict.memory.storages import ATTENTIONS, Storage, attention_bytes, batch_bytes, written_storages
from lightning_predict.tracing.recorded_on import FREES_GRADIENTS, release_of
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
        lasting: Parameters and buffers, and gradients that no operation was seen to write.
        kept: Gradients that stay from one step to the next.
        state: State of the optimizers, made by the first update.
        batch: What the loader gives, anew in each step.
        storages: What the step writes, in the order of birth.
        update: What the optimizer writes in passing on CUDA, all at once.
        count: Number of operations.
        update_at: Index of the first operation of the optimizer; `count` without one.
        drops_gradients_at: Index of the operation after which the gradients of the step before are freed; -1 where the
            step begins without them.
        workspaces: What operations take while they run, by their index.
        trials: What cuDNN's trials take in the first step, by the index of the operation; the cache is emptied after
            each.
    """

    lasting: tuple[int, ...]
    kept: tuple[int, ...]
    state: tuple[int, ...]
    batch: tuple[int, ...]
    storages: tuple[Storage, ...]
    update: tuple[int, ...]
    count: int
    update_at: int
    drops_gradients_at: int
    workspaces: tuple[tuple[int, int], ...] = ()
    trials: tuple[tuple[int, int], ...] = ()


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
    gradients = gradient_bytes(trace)
    update = () if at_once else _copies(min(gradients, written), trained)
    kept = [one.size_bytes for one in storages if one.cause == "gradient"]
    # A backward pass whose tensors were not all seen leaves gradients, too.
    unseen = gradients - sum(kept)
    release = release_of(trace.software)
    if release is None or release >= FREES_GRADIENTS:
        kept = []
    else:
        # They stay, filled with zeros, what comes is added to them, and parameters are updated one by one.
        storages = tuple(_added_up(one) for one in storages if one.cause != "update")
        update = (max(trained, default=0),) if written else ()
    return Blocks(
        lasting=(*sizes, *(size for size in (rest, unseen) if size > 0)),
        kept=tuple(kept),
        state=_copies(memory.optimizer_state_bytes or 0, trained),
        batch=batch_bytes(operations, trace.parameters, trace.buffers or ()),
        storages=tuple(one for one in storages if at_once or one.cause != "update"),
        update=update,
        count=len(operations),
        update_at=phases.index("optimizer") if "optimizer" in phases else len(operations),
        drops_gradients_at=backward_at - 1 if keeps else -1,
        workspaces=(*workspace_bytes(trace), *_passing_in_attention(trace)),
        trials=tuple(trial_bytes(trace)) if trace.flags.cudnn_benchmark else (),
    )


def _added_up(storage: Storage) -> Storage:
    """Return a gradient that is added to the one before; other storages as they are."""
    return replace(storage, cause="backward", death=storage.birth) if storage.cause == "gradient" else storage


def _passing_in_attention(trace: Trace) -> Iterator[tuple[int, int]]:
    """Find what attention without a fused kernel writes in passing: products before the softmax, or two gradients."""
    for index, operation in enumerate(trace.operations):
        size = attention_bytes(operation) if operation.name in ATTENTIONS else 0
        if size:
            yield index, size if operation.phase == "forward" else 2 * size


def gradient_bytes(trace: Trace) -> int:
    """Sum all gradients; those that are not there yet will be as large as what they are for."""
    memory = trace.memory
    if memory.gradient_bytes is None and any(operation.phase == "backward" for operation in trace.operations):
        return memory.parameter_bytes or 0
    return memory.gradient_bytes or 0


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


def least_reserved_bytes(blocks: Blocks) -> int:
    """Find what the allocator must reserve for a step: with what it gives back, and without trials of cuDNN.

    Torch frees the segments that are not in use and asks again before it gives up, and cuDNN tries no algorithm whose
    workspace does not fit.
    """
    return _run(CachingAllocator(gives_back=True), replace(blocks, trials=()), STEPS).reserved_bytes


def simulated(blocks: Blocks, *, expandable_segments: bool = False, steps: int = STEPS) -> SimulatedStep:
    """Simulate the allocator on the blocks of a step."""
    return _run(CachingAllocator(expandable_segments=expandable_segments), blocks, steps)


def _run(allocator: CachingAllocator, blocks: Blocks, steps: int) -> SimulatedStep:
    _allocate_all(allocator, (*blocks.lasting, *blocks.kept))
    storages, count = blocks.storages, blocks.count
    born: list[list[int]] = [[] for _ in range(count)]
    freed: list[list[int]] = [[] for _ in range(count)]
    for number, one in enumerate(storages):
        if one.size_bytes:
            born[one.birth].append(number)
            if one.death is not None:
                freed[one.death].append(number)
    trials: list[list[int]] = [[] for _ in range(count)]
    for index, size in blocks.trials:
        trials[index].append(size)
    workspaces = dict(blocks.workspaces)
    living: dict[int, MemoryBlock] = {}
    batch: list[MemoryBlock] = []
    for step in range(steps):
        # The loop's variables still name the batch before while the next one is made.
        batch, before = _allocate_all(allocator, blocks.batch), batch
        _free_all(allocator, before)
        left = {number: living.pop(number) for number, one in enumerate(storages) if number in living}
        gradients = [left.pop(number) for number in tuple(left) if storages[number].cause == "gradient"]
        if blocks.drops_gradients_at < 0:
            _free_all(allocator, gradients)
        for index in range(count):
            for number in born[index]:
                living[number] = allocator.allocate(storages[number].size_bytes)
                if number in left:  # its variable now names the new one
                    allocator.free(left.pop(number))
            if step == 0:
                for size in trials[index]:
                    _free_all(allocator, _allocate_all(allocator, (size,)))
                    allocator.empty_cache()
            if index in workspaces:
                _free_all(allocator, _allocate_all(allocator, (workspaces[index],)))
            if index == blocks.update_at:
                if step == 0:
                    _allocate_all(allocator, blocks.state)
                _free_all(allocator, _allocate_all(allocator, blocks.update))
            for number in freed[index]:
                allocator.free(living.pop(number))
            if index == blocks.drops_gradients_at:
                _free_all(allocator, gradients)
    return SimulatedStep(allocator.peak_allocated_bytes, allocator.peak_reserved_bytes)


def _allocate_all(allocator: CachingAllocator, sizes: Sequence[int]) -> list[MemoryBlock]:
    return [allocator.allocate(size) for size in sizes if size]


def _free_all(allocator: CachingAllocator, blocks: list[MemoryBlock]) -> None:
    for block in blocks:
        allocator.free(block)
    blocks.clear()


@final
@dataclass(frozen=True, slots=True)
class MemoryMoment:
    """What lives at one moment of a step, in bytes of tensors.

    Attributes:
        index: The operation that runs.
        lasting_bytes: Parameters and buffers.
        state_bytes: State of the optimizers.
        batch_bytes: What the loader gave.
        gradient_bytes: Gradients, of this step or the one before.
        update_bytes: What the optimizer writes in passing.
        storages: What else the step wrote.
        left_bytes: What variables of the loop hold of the step before.
    """

    index: int
    lasting_bytes: int
    state_bytes: int
    batch_bytes: int
    gradient_bytes: int
    update_bytes: int
    storages: tuple[Storage, ...]
    left_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        always = self.lasting_bytes + self.state_bytes + self.batch_bytes + self.left_bytes
        return always + self.gradient_bytes + self.update_bytes + sum(one.size_bytes for one in self.storages)


def fullest_moments(blocks: Blocks) -> tuple[MemoryMoment, MemoryMoment]:
    """Find the moments in which most lives: of the passes, and of the update; of a step that others went before."""
    changes = [0] * (blocks.count + 1)
    gradients = sum(one.size_bytes for one in blocks.storages if one.cause == "gradient")
    for one in blocks.storages:
        changes[one.birth] += one.size_bytes
        changes[blocks.count if one.death is None else one.death + 1] -= one.size_bytes
        if one.death is None and one.cause != "gradient":
            changes[0] += one.size_bytes
            changes[one.birth + 1] -= one.size_bytes
    changes[0] += gradients
    changes[blocks.drops_gradients_at + 1] -= gradients
    levels = list(accumulate(changes[: blocks.count])) or [0]
    passes = levels[: blocks.update_at] or [0]
    updates = levels[blocks.update_at :] or [0]
    at_passes = passes.index(max(passes))
    at_update = min(blocks.update_at, blocks.count - 1) + updates.index(max(updates)) if updates != [0] else at_passes
    return _moment(blocks, at_passes, 0), _moment(blocks, at_update, sum(blocks.update))


def _moment(blocks: Blocks, index: int, update_bytes: int) -> MemoryMoment:
    living = [one for one in blocks.storages if one.birth <= index and (one.death is None or index <= one.death)]
    old = index <= blocks.drops_gradients_at
    written = [one for one in blocks.storages if one.cause == "gradient"]
    return MemoryMoment(
        index=index,
        lasting_bytes=sum(blocks.lasting),
        state_bytes=sum(blocks.state),
        batch_bytes=sum(blocks.batch),
        gradient_bytes=sum(blocks.kept)
        + sum(one.size_bytes for one in (written if old else living) if one.cause == "gradient"),
        update_bytes=update_bytes,
        storages=tuple(one for one in living if one.cause != "gradient"),
        left_bytes=sum(
            one.size_bytes
            for one in blocks.storages
            if one.death is None and one.cause != "gradient" and index <= one.birth
        ),
    )
