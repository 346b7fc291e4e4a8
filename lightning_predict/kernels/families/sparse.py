"""Matmuls with sparse matrices, counted by their stored elements.

Each stored element multiplies one row of the dense operand: 2 x stored x columns, independent of the shape. Other
operations on sparse tensors move their values and indices (`memory_bound.py`). Example::

    >>> from lightning_predict.record.trace import Flags, Operation, TensorInfo
    >>> adjacency = TensorInfo((1000, 1000), "float32", stored_elements=50, stored_bytes=1000)
    >>> dense = TensorInfo((1000, 8), "float32")
    >>> product = Operation(name="aten::_sparse_mm", phase="forward", inputs=(adjacency, dense))
    >>> sparse_shapes(product, Flags())[0].dims[2]  # 2 x 50 x 8
    800.0
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from lightning_predict.kernels.memory_bound import bytes_read, bytes_written
from lightning_predict.kernels.operations import (
    ON_SPARSE_TENSORS,
    OperationShape,
    RooflineEfficiency,
    by_bytes,
    register,
    translates,
)
from lightning_predict.record.trace import Flags, Operation, TensorInfo
from lightning_predict.uncertainty import ASSUMED_SPREAD

register(
    replace(
        by_bytes("sparse_product"),
        # Rows are gathered, often repeatedly. Both values are assumptions: no measurements were available.
        estimators=(RooflineEfficiency(spread=ASSUMED_SPREAD),),
    )
)

_FACTORS_FIRST: Final = frozenset(
    f"aten::{name}" for name in "mm bmm mv _sparse_mm _sparse_sparse_matmul hspmm".split()
)
_FACTORS_AFTER_ADDEND: Final = frozenset(
    f"aten::{name}" for name in "addmm addmv baddbmm _sparse_addmm sspaddmm sparse_sampled_addmm".split()
)


@translates(ON_SPARSE_TENSORS)
def sparse_shapes(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Return the shapes of an operation on sparse tensors; None if its bytes determine its time."""
    if operation.name == "aten::sparse_mask" or operation.name.endswith("_"):
        return _where_stored(operation)
    if operation.name in _FACTORS_FIRST:
        factors = operation.inputs[:2]
    elif operation.name in _FACTORS_AFTER_ADDEND:
        factors = operation.inputs[1:3]
    else:
        return None
    if len(factors) < 2 or any(len(tensor.shape) < 1 for tensor in factors):
        return None
    read, written = float(bytes_read(operation)), float(bytes_written(operation))
    sampled = operation.inputs[0].stored_elements if operation.name == "aten::sparse_sampled_addmm" else None
    flops = _flops(*factors, sampled=sampled)
    return (OperationShape("sparse_product", "float32", (read, written, flops)),) if read + written else ()


def _where_stored(operation: Operation) -> tuple[OperationShape, ...]:
    """Count the bytes of a dense tensor that is accessed only at the stored elements of a sparse tensor."""
    sparse = [tensor for tensor in operation.inputs if tensor.stored_bytes is not None]
    elements = float(max((tensor.elements for tensor in sparse), default=0))
    stored = float(sum(tensor.size_bytes for tensor in sparse))
    dense = [tensor for tensor in operation.inputs if tensor.stored_bytes is None]
    touched = elements * max((tensor.size_bytes / max(tensor.elements, 1) for tensor in dense), default=0.0)
    return (
        (OperationShape("transfer", "float32", (stored + touched, max(touched, stored), elements)),) if stored else ()
    )


def _flops(left: TensorInfo, right: TensorInfo, *, sampled: int | None) -> float:
    """Return FLOPs; for two sparse operands, under the assumption of evenly distributed elements."""
    depth = max(left.shape[-1], 1)
    if sampled is not None:
        return 2.0 * sampled * depth
    return 2.0 * left.elements * right.elements / depth / max(math.prod(left.shape[:-2]), 1)
