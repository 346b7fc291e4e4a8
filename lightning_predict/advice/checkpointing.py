"""Turns gradient (activation) checkpointing on or off.

With gradient checkpointing, the backward pass recomputes activations of blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count

from lightning_predict.fusion.kernels import list_member_of
from lightning_predict.record.trace import Operation, TensorInfo, Trace


def checkpointed(trace: Trace) -> Trace:
    """Return the step with gradient checkpointing: each block repeats its forward operations before its backward pass.

    torch stops the repetition at the last result that the backward pass of the block reads. A block's outputs are freed
    after their last use in the forward pass, and the backward pass reads recomputed copies. Outputs that other blocks
    read are kept.
    """
    return replace(trace, operations=tuple(_again(trace)))


def _again(trace: Trace) -> Iterator[Operation]:
    forward: dict[str, list[Operation]] = {}
    done: set[str] = set()
    anew: dict[int, int] = {}  # new storage ids of recomputed tensors
    shared = _read_by_others(trace)
    needed: dict[str, set[int | None]] = {}
    for operation in trace.operations:
        if operation.phase == "backward" and (block := list_member_of(operation.module)) is not None:
            needed.setdefault(block, set()).update(tensor.id for tensor in operation.inputs)
    numbers = count(
        1
        + max(
            (tensor.id or 0 for operation in trace.operations for tensor in (*operation.inputs, *operation.outputs)),
            default=0,
        )
    )
    for operation in trace.operations:
        block = list_member_of(operation.module)
        if block is not None and operation.phase == "forward":
            if block in done:  # the next micro-batch of the step
                done.discard(block)
                forward[block] = []
            forward.setdefault(block, []).append(operation)
        elif block is not None and operation.phase == "backward" and block not in done:
            done.add(block)
            own = forward.get(block, [])
            while own and own[-1].outputs and not {tensor.id for tensor in own[-1].outputs} & needed[block]:
                own = own[:-1]
            written = {tensor.id for operation in own for tensor in operation.outputs if tensor.id is not None}
            written -= {tensor.id for operation in own[:1] for tensor in operation.inputs}
            again = {old: next(numbers) for old in sorted(written)}
            anew |= {old: new for old, new in again.items() if old not in shared}
            yield from (_repeated(_renamed(operation, again)) for operation in own)
        yield _renamed(operation, anew) if operation.phase == "backward" else operation


def _read_by_others(trace: Trace) -> set[int | None]:
    """Return the storages that the forward pass writes inside a block and reads outside this block."""
    writers: dict[int | None, str | None] = {}
    shared: set[int | None] = set()
    for operation in trace.operations:
        if operation.phase != "forward":
            continue
        block = list_member_of(operation.module)
        shared |= {tensor.id for tensor in operation.inputs if writers.get(tensor.id, block) != block}
        for tensor in operation.outputs:
            writers.setdefault(tensor.id, block)
    return shared


def _renamed(operation: Operation, names: Mapping[int, int]) -> Operation:
    """Return the operation with its storage ids replaced according to `names`."""
    touched = {tensor.id for tensor in (*operation.inputs, *operation.outputs)} | set(operation.freed)
    if not touched & names.keys():
        return operation

    def named(tensors: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
        return tuple(
            tensor if tensor.id is None else replace(tensor, id=names.get(tensor.id, tensor.id)) for tensor in tensors
        )

    return replace(
        operation,
        inputs=named(operation.inputs),
        outputs=named(operation.outputs),
        freed=tuple(names.get(number, number) for number in operation.freed),
    )


def _repeated(operation: Operation) -> Operation:
    return replace(
        operation,
        phase="backward",
        kernels=(),
        host_start_seconds=None,
        host_seconds=None,
        freed=(),
        arguments={name: value for name, value in operation.arguments.items() if name != "_place"},
    )


def recomputed(trace: Trace) -> dict[int, int]:
    """Return the recomputed operations of blocks under gradient checkpointing: backward position -> forward position.

    The backward pass of such a block starts with at least half of its forward operations, in order. torch stops
    recomputing when the last needed tensor exists. Views and `detach` launch no kernels, so they are ignored.
    """
    forward: dict[str, list[int]] = {}
    repeated: dict[str, list[tuple[int, int]]] = {}
    is_over: set[str] = set()
    for place, operation in enumerate(trace.operations):
        block = list_member_of(operation.module)
        if block is None or operation.phase == "optimizer" or not _is_written(operation):
            continue
        if operation.phase == "forward":
            forward.setdefault(block, []).append(place)
            continue
        own, done = forward.get(block, []), repeated.setdefault(block, [])
        if block in is_over or len(done) == len(own) or not _is_alike(operation, trace.operations[own[len(done)]]):
            is_over.add(block)
            continue
        done.append((place, own[len(done)]))
    kept = {block: pairs for block, pairs in repeated.items() if 2 * len(pairs) >= len(forward.get(block, ())) > 0}
    return {again: first for pairs in kept.values() for again, first in pairs}


def _is_written(operation: Operation) -> bool:
    """Return whether an operation writes a new tensor; views do not."""
    read = {tensor.id for tensor in operation.inputs}
    return any(tensor.id is not None and tensor.id not in read for tensor in operation.outputs)


def _is_alike(one: Operation, other: Operation) -> bool:
    shapes = ([tensor.shape for tensor in each.inputs] for each in (one, other))
    return one.name == other.name and next(shapes) == next(shapes)


def kept(trace: Trace) -> Trace:
    """Return the step without gradient checkpointing: activations are kept, not recomputed."""
    again = recomputed(trace)
    names = {
        new.id: old.id
        for place, first in again.items()
        for new, old in zip(trace.operations[place].outputs, trace.operations[first].outputs, strict=False)
        if new.id is not None and old.id is not None
    }
    read = {tensor.id for place, one in enumerate(trace.operations) if place not in again for tensor in one.inputs}
    early = {old for new, old in names.items() if new in read}  # kept until the recomputed tensors would be freed
    passing = {new for new, old in names.items() if old not in early}  # read in the forward pass alone
    operations = []
    freed: list[int] = []
    for place, operation in enumerate(trace.operations):
        freed += [number for number in operation.freed if number not in early | passing]
        if place not in again:
            operations.append(_renamed(replace(operation, freed=tuple(freed)), names))
            freed = []
    return replace(trace, operations=tuple(operations))
