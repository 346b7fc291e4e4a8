"""Fuses embedding tables (FBGEMM) and a fused dot interaction, as in the training of recommendation models.

FBGEMM looks up all tables in one kernel launch, and writes the vectors where the interaction reads them. The backward
pass updates the rows directly, without storing gradients of tables. The fused interaction of DLRM reads the vectors of
a sample once, and appends their dot products to the dense features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lightning_predict.kernels.families.embedding import INTERACTION, LOOK_UPS, UPDATES
from lightning_predict.record.trace import Operation, TensorInfo, Trace

BAG: Final = "aten::_embedding_bag"  # Lookup in one table of `torch.nn.EmbeddingBag`

_BACKWARDS: Final = ("aten::_embedding_bag_backward", "aten::_embedding_bag_dense_backward")
_JOINS: Final = ("aten::stack", "aten::cat")


def with_fused_tables(trace: Trace) -> Trace:
    """Return the step with one fused lookup and update for all tables, and a fused interaction if the step has one."""
    operations = list(trace.operations)
    bags = [operation for operation in operations if operation.name == BAG]
    vectors = {operation.outputs[0].id for operation in bags if operation.outputs}
    fused, dropped = _fused_interaction(operations, vectors)
    tables = {operation.inputs[0].shape for operation in bags}
    updates: list[TensorInfo] = []
    for place, recorded in enumerate(operations):
        if recorded.name in _BACKWARDS and recorded.phase == "backward":
            gradient, indices = recorded.inputs[:2]
            shape = (int(recorded.arguments["num_weights"]), gradient.shape[-1])
            updates += [TensorInfo(shape, gradient.dtype), gradient, indices]
            fused[place] = Operation(name=UPDATES, phase="backward", inputs=tuple(updates))
            dropped.add(place)
        elif recorded.phase != "forward" and recorded.inputs and recorded.inputs[0].shape in tables:
            dropped.add(place)  # processes the gradient of a table, which no longer exists
    last = max((place for place, operation in fused.items() if operation.name == UPDATES), default=None)
    looked_up = tuple(tensor for operation in bags for tensor in operation.inputs[:3])
    rewritten: list[Operation] = []
    for place, recorded in enumerate(operations):
        if recorded is bags[-1]:
            outputs = tuple(bag.outputs[0] for bag in bags if bag.outputs)
            rewritten.append(Operation(name=LOOK_UPS, phase="forward", inputs=looked_up, outputs=outputs))
        elif recorded.name != BAG and place not in dropped:
            rewritten.append(recorded)
        if place in fused and (fused[place].name != UPDATES or place == last):
            rewritten.append(fused[place])
    return replace(trace, operations=tuple(rewritten))


def _fused_interaction(
    operations: Sequence[Operation], vectors: set[int | None]
) -> tuple[dict[int, Operation], set[int]]:
    """Return the fused operations of the interaction by position, and the positions of the replaced operations."""
    fused: dict[int, Operation] = {}
    dropped: set[int] = set()
    begin = next((p for p, one in enumerate(operations) if one.name in _JOINS and _count(one, vectors) > 1), None)
    if begin is None:
        return fused, dropped
    after = range(begin + 1, len(operations))
    product = next((p for p in after if operations[p].name == "aten::bmm"), None)
    end = (
        None if product is None else next((p for p in after if p > product and operations[p].name == "aten::cat"), None)
    )
    if product is None or end is None or operations[product].phase != "forward":
        return fused, dropped
    joined = operations[product].inputs[0]
    result = operations[end].outputs[0]
    fused[end] = Operation(name=INTERACTION, phase="forward", inputs=(joined,), outputs=(result,))
    dropped |= set(range(begin, end + 1))
    of_joined = [
        p
        for p in after
        if operations[p].phase == "backward" and operations[p].inputs and joined.shape in _shapes(operations[p])
    ]
    parted = [
        p
        for p in after
        if operations[p].phase == "backward"
        and operations[p].name == "aten::slice"
        and result.shape in _shapes(operations[p])
    ]
    if of_joined and parted:
        gradient = TensorInfo(result.shape, result.dtype)
        fused[of_joined[-1]] = Operation(
            name=f"{INTERACTION}_backward", phase="backward", inputs=(joined, gradient), outputs=(joined,)
        )
        dropped |= set(range(parted[0], of_joined[-1] + 1))
    return fused, dropped


def _count(operation: Operation, ids: set[int | None]) -> int:
    return sum(tensor.id in ids for tensor in operation.inputs)


def _shapes(operation: Operation) -> set[tuple[int, ...]]:
    return {tensor.shape for tensor in operation.inputs}
