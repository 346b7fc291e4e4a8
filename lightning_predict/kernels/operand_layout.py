"""Which matrix products read their second factor transposed, A·Bᵀ: what libraries make of it, strides alone tell.

Recorders note it as an argument of the product, by the strides. Older traces without that still hold the views behind
their factors (`aten::t` before the product of a linear layer), and these are followed. Example::

    >>> from lightning_predict.tracing.trace import Operation, TensorInfo
    >>> data, weight = TensorInfo((8, 4), "float32", id=0), TensorInfo((2, 4), "float32", id=1)
    >>> turned = TensorInfo((4, 2), "float32", id=1)
    >>> transposing = Operation(name="aten::t", phase="forward", inputs=(weight,), outputs=(turned,))
    >>> product = Operation(name="aten::mm", phase="forward", inputs=(data, turned))
    >>> sorted(transposed_products((transposing, product)))
    [1]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lightning_predict.kernels.traffic import FREE_OPERATIONS
from lightning_predict.tracing.code_paths import FACTORS_AT, SECOND_TRANSPOSED
from lightning_predict.tracing.trace import Operation, TensorInfo

_ALWAYS: Final = frozenset({"aten::linear", "aten::mkldnn_linear"})
"""Calls that take a weight of (columns, rows) and read it transposed."""

_TURN_MATRICES: Final = frozenset({"aten::t", "aten::t_", "aten::mT", "aten::mH", "aten::adjoint", "aten::numpy_T"})

_Key = tuple[int | None, tuple[int, ...]]


def transposed_products(operations: Sequence[Operation]) -> frozenset[int]:
    """Find the places of products whose second factor lies transposed in memory.

    Args:
        operations: All of a trace, in order.
    """
    if [index for index, operation in enumerate(operations) if SECOND_TRANSPOSED in operation.arguments]:
        return frozenset(
            index
            for index, operation in enumerate(operations)
            if operation.name in _ALWAYS or operation.arguments.get(SECOND_TRANSPOSED)
        )
    turned: dict[_Key, bool] = {}
    found: set[int] = set()
    for index, operation in enumerate(operations):
        place = FACTORS_AT.get(operation.name)
        if operation.name in _ALWAYS:
            found.add(index)
        elif place is not None and len(operation.inputs) > place:
            if turned.get(_key(operation.inputs[place])):
                found.add(index)
        elif operation.name in FREE_OPERATIONS and operation.inputs and len(operation.outputs) == 1:
            turned[_key(operation.outputs[0])] = _is_turned(operation, turned)
    return frozenset(found)


def _key(tensor: TensorInfo) -> _Key:
    return tensor.id, tensor.shape


def _is_turned(view: Operation, turned: dict[_Key, bool]) -> bool:
    """Return whether the matrices of a view's result lie column by column."""
    before, after = view.inputs[0], view.outputs[0]
    if after.id is None or after.id != before.id:
        return False
    was_turned = turned.get(_key(before), False)
    if _turns(view):
        # A square looks the same turned and not: a forward pass turns what lies in rows.
        is_square = before.shape == after.shape
        return view.phase == "forward" if is_square else not was_turned
    return was_turned and before.shape[-2:] == after.shape[-2:]


def _turns(view: Operation) -> bool:
    """Return whether a view exchanges the last two dimensions and nothing else."""
    dimensions = len(view.inputs[0].shape)
    if view.name in _TURN_MATRICES:
        return dimensions > 1
    last = {dimensions - 1, dimensions - 2}
    if view.name == "aten::transpose":
        sides = [view.arguments.get(word) for word in ("dim0", "dim1")]
        return {side % dimensions for side in sides if isinstance(side, int) and dimensions} == last
    order = view.arguments.get("dims")
    if view.name != "aten::permute" or not isinstance(order, list | tuple) or dimensions < 2:
        return False
    expected = [*range(dimensions - 2), dimensions - 1, dimensions - 2]
    return [side % dimensions for side in order] == expected
