"""Builds a complete step with gradient accumulation from the recorded micro-batches.

Micro-batches with equal shapes run equal operations, except the first and the last micro-batch. The first micro-batch
creates the gradients, and the optimizer update follows the last micro-batch. A micro-batch that was not recorded
becomes a copy of a recorded micro-batch, without the update. Tensors that the recorded micro-batch created or received
get new storage ids in the copy. Example with four micro-batches; only the first and the last were recorded::

    complete_step(operations, parts, represented_by=(0, 3, 3, 3))     # recorded, copy of 3, copy of 3, recorded
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count

from lightning_predict.record.trace import Operation, TensorInfo, backward_ends


def equal_batches(operations: Sequence[Operation]) -> int:
    """Count the micro-batches whose gradients a step adds up; 1 if their forward passes differ, as those of a GAN.

    A micro-batch begins with the first forward operation after a backward pass. An update between two of them means
    that they are no accumulation. Preparations of a batch are in the forward phase before the first pass only. Samples
    and lengths may differ.
    """
    forward_passes: list[list[tuple[str, str | None]]] = []
    before = "backward"
    for operation in operations:
        phase = operation.phase
        if phase == "forward":
            if before != "forward":
                forward_passes.append([])
                if before == "optimizer" and len(forward_passes) > 1:
                    return 1
            forward_passes[-1].append((operation.name, operation.module))
        if phase != "other":
            before = phase
    first, *others = forward_passes or [[]]
    shared = len(others[0]) if others else 0
    are_equal = shared > 0 and all(other == first[-shared:] for other in others)
    return len(forward_passes) if are_equal and not any(module for _, module in first[:-shared]) else 1


@dataclass(frozen=True, slots=True)
class RecordedMicroBatch:
    """Position of a recorded micro-batch in the recorded operations."""

    begins: int
    ends: int
    alive: frozenset[int]

    def of(self, operations: Sequence[Operation]) -> Sequence[Operation]:
        """Return the operations of the micro-batch."""
        return operations[self.begins : self.ends]


def complete_step(
    operations: Sequence[Operation],
    parts: Sequence[RecordedMicroBatch],
    *,
    represented_by: Sequence[int],
    parameters: Collection[int | None] = (),
    surviving: Collection[int] = (),
) -> tuple[tuple[Operation, ...], tuple[int, ...]]:
    """Return the operations of the complete step, and the storages that survive the step.

    Args:
        operations: Recorded operations.
        parts: Recorded micro-batches.
        represented_by: For each micro-batch, the number (among all micro-batches) of the recorded one that represents
            it.
        parameters: Storages that do not belong to a micro-batch (parameters).
        surviving: Storages that survive the recorded operations.
    """
    recorded = dict(zip(sorted({*represented_by}), parts, strict=True))
    owners = _owners(operations, parts)
    templates = {
        batch: _template(operations, parts[0], part, _owned(part, owners, parameters), surviving)
        for batch, part in recorded.items()
        if represented_by.count(batch) > 1
    }
    fresh = count(1 + max((number for number in owners if number is not None), default=-1))
    complete: list[Operation] = []
    all_surviving = list(surviving)
    with collector_paused():
        for batch, shown in enumerate(represented_by):
            if batch == shown:
                complete.extend(recorded[shown].of(operations))
                continue
            template = templates[shown]
            new_ids = {number: next(fresh) for number in template.own}
            complete.extend(_renumbered(template.operations, new_ids))
            all_surviving.extend(new_ids[number] for number in template.surviving)
    return tuple(complete), tuple(all_surviving)


@dataclass(frozen=True, slots=True)
class _Template:
    """Micro-batch without the update, from which copies are made."""

    operations: tuple[Operation, ...]
    own: tuple[int, ...]
    surviving: tuple[int, ...]


def _template(
    operations: Sequence[Operation],
    first: RecordedMicroBatch,
    part: RecordedMicroBatch,
    own: Collection[int | None],
    surviving: Collection[int],
) -> _Template:
    """Prepare a micro-batch for copies: remove the update, and free at the end all storages that do not survive."""
    whole, of_first = part.of(operations), first.of(operations)
    kept = without_update(whole, like=of_first)
    its = [number for number in dict.fromkeys(_touched(kept)) if number is not None and number in own]
    alive = [number for number in its if number in part.alive]
    survive = _surviving(of_first, whole, surviving) if alive else frozenset()
    freed = [number for number in alive if number not in survive]
    if freed:
        kept = (*kept[:-1], replace(kept[-1], freed=(*kept[-1].freed, *freed)))
    return _Template(kept, tuple(its), tuple(number for number in alive if number in survive))


def _owners(
    operations: Sequence[Operation], parts: Sequence[RecordedMicroBatch]
) -> dict[int | None, RecordedMicroBatch]:
    """Map each storage to the first micro-batch that uses it."""
    owners: dict[int | None, RecordedMicroBatch] = {}
    for part in parts:
        for number in _touched(part.of(operations)):
            owners.setdefault(number, part)
    return owners


def _owned(
    part: RecordedMicroBatch, owners: Mapping[int | None, RecordedMicroBatch], parameters: Collection[int | None]
) -> frozenset[int | None]:
    return frozenset(number for number in owners if owners[number] is part and number not in parameters) - {None}


def _surviving(
    first: Sequence[Operation], other: Sequence[Operation], surviving: Collection[int]
) -> frozenset[int | None]:
    """Find storages that survive their micro-batch, because the corresponding storages of the first micro-batch do."""
    return frozenset(
        its.id
        for operation, same in zip(first, other, strict=False)
        if operation.name == same.name
        for tensor, its in zip(operation.outputs, same.outputs, strict=False)
        if tensor.id in surviving
    )


def _touched(operations: Iterable[Operation]) -> Iterator[int | None]:
    for operation in operations:
        for tensor in operation.inputs:
            yield tensor.id
        for tensor in operation.outputs:
            yield tensor.id


def _renumbered(operations: Iterable[Operation], new_ids: Mapping[int, int]) -> Iterator[Operation]:
    """Yield copies of the operations with new storage ids."""
    known: dict[int, TensorInfo] = {}  # by identity: the recorder describes a tensor once, and hashing is slower

    def its(tensor: TensorInfo) -> TensorInfo:
        info = known.get(id(tensor))
        if info is None:
            number = None if tensor.id is None else new_ids.get(tensor.id)
            info = known[id(tensor)] = tensor if number is None else replace(tensor, id=number)
        return info

    for operation in operations:  # `replace` would take four times as long
        yield Operation(
            name=operation.name,
            phase=operation.phase,
            inputs=tuple([its(tensor) for tensor in operation.inputs]),
            outputs=tuple([its(tensor) for tensor in operation.outputs]),
            arguments=operation.arguments,
            module=operation.module,
            freed=tuple([new_ids[number] for number in operation.freed if number in new_ids]),
            python_seconds=operation.python_seconds,
        )


def without_update(operations: Sequence[Operation], *, like: Sequence[Operation] = ()) -> tuple[Operation, ...]:
    """Return the operations of a micro-batch without the optimizer update.

    Args:
        operations: Operations of a micro-batch, perhaps with an update.
        like: Operations of a micro-batch without an update. After the backward pass, only operations that also occur in
            `like` are kept.
    """
    end = backward_ends(operations)
    rest = iter(operations[end:])
    names = (operation.name for operation in like[backward_ends(like) :])
    found = (next((operation for operation in rest if operation.name == name), None) for name in names)
    return (*(one for one in operations[:end] if one.phase != "optimizer"), *(one for one in found if one is not None))


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector, which would repeatedly scan many small objects while they are created."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
