"""Dispatcher names of the operations in `vector.py`.

Element-wise operations on equal shapes use the measured model of their family; with broadcasting, or with an operator
that no table measured, the bytes decide. Example::

    >>> from lightning_predict.kernels.translation import translate
    >>> from lightning_predict.tracing.trace import Flags, Operation, TensorInfo
    >>> x = TensorInfo((8, 16), "float32")
    >>> translate(Operation(name="aten::_softmax", phase="forward", inputs=(x,)), Flags())[0].operation
    'softmax'
"""

from __future__ import annotations

import math
from typing import Final

from lightning_predict.kernels.operations import Problem, translates
from lightning_predict.kernels.translation import compute_dtype, rows_and_columns
from lightning_predict.tracing.trace import Flags, Operation, TensorInfo

BINARY: Final = {"aten::add": "add", "aten::mul": "mul", "aten::div": "div", "aten::pow": "pow", "aten::sub": "add"}
UNARY: Final = {"aten::relu": "relu", "aten::gelu": "gelu", "aten::tanh": "tanh"}
BY_LAST_DIMENSION: Final = {
    "aten::_softmax": "softmax",
    "aten::_log_softmax": "softmax",
    "aten::_softmax_backward_data": "softmax_backward",
    "aten::_log_softmax_backward_data": "softmax_backward",
}
BY_CHANNEL: Final = {
    "aten::native_batch_norm": "batch_norm",
    "aten::cudnn_batch_norm": "batch_norm",
    "aten::_native_batch_norm_legit": "batch_norm",
    "aten::_batch_norm_with_update": "batch_norm",
    "aten::native_batch_norm_backward": "batch_norm_backward",
    "aten::cudnn_batch_norm_backward": "batch_norm_backward",
    "aten::batch_norm_backward": "batch_norm_backward",
    "aten::native_group_norm": "group_norm",
    "aten::native_group_norm_backward": "group_norm_backward",
}


def _table_problem(name: str, tensor: TensorInfo, rows: int, columns: int) -> tuple[Problem, ...]:
    if rows < 1 or columns < 1:
        return ()
    return (Problem(name, compute_dtype(tensor), (float(rows), float(columns))),)


def _is_float(tensor: TensorInfo) -> bool:
    return tensor.dtype.startswith(("float", "bfloat"))


@translates(*BINARY, *(f"{name}_" for name in BINARY))
def _binary(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    name = BINARY[operation.name.removesuffix("_")]
    first = operation.inputs[0]
    seconds = [tensor for tensor in operation.inputs[1:] if tensor.shape]
    if not _is_float(first) or any(tensor.shape != first.shape or not _is_float(tensor) for tensor in seconds):
        return None
    return _table_problem(name if seconds else f"{name}_scalar", first, *rows_and_columns(first.shape))


@translates(*UNARY, *(f"{name}_" for name in UNARY))
def _unary(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    data = operation.inputs[0]
    if not _is_float(data):
        return None
    return _table_problem(UNARY[operation.name.removesuffix("_")], data, *rows_and_columns(data.shape))


@translates(*BY_LAST_DIMENSION)
def _softmax(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    data = operation.inputs[0]
    return _table_problem(BY_LAST_DIMENSION[operation.name], data, *_along(data, operation))


def _along(data: TensorInfo, operation: Operation, default: int = -1) -> tuple[int, int]:
    """Rows and columns of a tensor whose columns lie along the operation's dimension."""
    dimension = int(operation.arguments.get("dim", default))
    columns = data.shape[dimension] if -len(data.shape) <= dimension < len(data.shape) else 1
    return data.elements // max(columns, 1), columns


def _normalised(operation: Operation, name: str, position: int = 0) -> tuple[Problem, ...] | None:
    if len(operation.inputs) <= position:
        return None
    data = operation.inputs[position]
    columns = math.prod(operation.arguments.get("normalized_shape", data.shape[-1:]))
    return _table_problem(name, data, data.elements // max(columns, 1), columns)


@translates("aten::native_layer_norm")
def _layer_norm(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    return _normalised(operation, "layer_norm")


@translates("aten::_fused_rms_norm")
def _rms_norm(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    return _normalised(operation, "rms_norm")


@translates("aten::native_layer_norm_backward")
def _layer_norm_backward(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    return _normalised(operation, "layer_norm_backward", position=1)


@translates("aten::_fused_rms_norm_backward")
def _rms_norm_backward(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    return _normalised(operation, "rms_norm_backward", position=1)


@translates(*BY_CHANNEL)
def _channel_norm(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    data = operation.inputs[0]
    columns = math.prod(data.shape[2:])
    if operation.arguments.get("training") is False:  # Known statistics: one pass over the data.
        return None
    return _table_problem(BY_CHANNEL[operation.name], data, data.elements // max(columns, 1), columns)


@translates("aten::embedding")
def _embedding(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    if len(operation.inputs) < 2 or len(operation.inputs[0].shape) != 2:
        return None
    table, indices = operation.inputs[:2]
    return _table_problem("embedding", table, indices.elements, table.shape[-1])


@translates("aten::embedding_dense_backward")
def _embedding_backward(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    """The whole table's gradient is zeroed; then each row is read, and read and written where it lands."""
    gradient = operation.inputs[0]
    if not gradient.shape or "num_weights" not in operation.arguments:
        return None
    rows = float(operation.arguments["num_weights"])
    table_bytes = rows * gradient.size_bytes / max(gradient.elements, 1) * gradient.shape[-1]
    size = float(gradient.size_bytes)
    return (Problem("transfer", "float32", (2 * size, table_bytes + size, float(gradient.elements))),)


@translates("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def _nll_loss(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    """One probability a target is read, not all of them."""
    if len(operation.inputs) < 2:
        return None
    target = operation.inputs[1]
    read = float(2 * target.size_bytes)
    return (Problem("transfer", "float32", (read, 4.0, float(target.elements))),)


@translates("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def _nll_loss_backward(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    """The gradient is zeroed, and one value a target written."""
    if len(operation.inputs) < 3:
        return None
    data, target = operation.inputs[1], operation.inputs[2]
    read = float(2 * target.size_bytes)
    return (Problem("transfer", "float32", (read, float(data.size_bytes), float(target.elements))),)


INDEX_BYTES: Final = 8
"""Of the places that sorting and selecting write."""

LONGEST_ROW_IN_A_BLOCK: Final = 4096
"""Elements of a row that one block sorts by itself (PyTorch's `sortKeyValueInplace`); longer ones go through a radix
sort in memory."""


def _sorted(data: TensorInfo, rows: int, columns: int) -> tuple[Problem, ...]:
    """A sort of each row: in one block, log2² comparisons a pair; or a radix sort, of whatever dtype the keys are."""
    if rows < 1 or columns < 1:
        return ()
    if columns > LONGEST_ROW_IN_A_BLOCK:
        return (Problem("sort", compute_dtype(data), (float(rows), float(columns))),)
    size = float(data.size_bytes)
    steps = math.ceil(math.log2(columns)) if columns > 1 else 0
    compared = data.elements * steps * (steps + 1) / 4
    return (Problem("transfer", "float32", (size, size + INDEX_BYTES * data.elements, compared)),)


@translates("aten::sort", "aten::argsort", "aten::msort", "aten::mode")
def _sort(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    data = operation.inputs[0]
    return _sorted(data, *_along(data, operation, default=0 if operation.name == "aten::msort" else -1))


@translates("aten::topk", "aten::kthvalue", "aten::median", "aten::nanmedian")
def _select(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    data = operation.inputs[0]
    whole = "median" in operation.name and "dim" not in operation.arguments
    rows, columns = (1, data.elements) if whole else _along(data, operation)
    return _table_problem("topk", data, rows, columns)


@translates("aten::_unique", "aten::_unique2", "aten::unique_dim")
def _unique(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    """A sort, then a pass that marks neighbours which differ, one that counts and one that collects them."""
    data = operation.inputs[0]
    size, places = float(data.size_bytes), float(INDEX_BYTES * data.elements)
    passes = Problem("transfer", "float32", (2 * size + 2 * places, size + 2 * places, float(data.elements)))
    return (*_sorted(data, 1, data.elements), passes) if data.elements else ()


@translates("aten::searchsorted", "aten::bucketize")
def _search(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    """A binary search of each value: log2 reads of the boundaries, mostly from a cache."""
    if len(operation.inputs) < 2:
        return None
    boundaries, values = operation.inputs[:2]
    if operation.name == "aten::bucketize":
        values, boundaries = boundaries, values
    steps = math.log2(max(boundaries.shape[-1] if boundaries.shape else 1, 2))
    read = float(values.size_bytes + boundaries.size_bytes)
    dims = (read, float(INDEX_BYTES * values.elements), values.elements * steps)
    return (Problem("transfer", "float32", dims),) if values.elements else ()


@translates("aten::_cdist_forward", "aten::_euclidean_dist", "aten::_pdist_forward")
def _distances(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    """Every row against every other: a difference, a power and a sum for each of their numbers."""
    if not operation.inputs[0].shape or not operation.outputs:
        return None
    written = operation.outputs[0]
    read = float(sum(tensor.size_bytes for tensor in operation.inputs))
    flops = 3.0 * written.elements * operation.inputs[0].shape[-1]
    dtype = compute_dtype(operation.inputs[0])
    return (Problem("transfer", dtype, (read, float(written.size_bytes), flops)),) if written.elements else ()


@translates("aten::_cdist_backward", "aten::_pdist_backward")
def _distances_backward(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    """As many differences again, each scaled by its gradient over its distance."""
    if len(operation.inputs) < 2 or not operation.inputs[1].shape:
        return None
    gradient, data = operation.inputs[:2]
    read = float(sum(tensor.size_bytes for tensor in operation.inputs))
    flops = 4.0 * gradient.elements * data.shape[-1]
    return (Problem("transfer", compute_dtype(data), (read, float(data.size_bytes), flops)),) if flops else ()
