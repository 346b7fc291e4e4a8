"""Dispatcher names of the operations in `vector.py`.

Element-wise operations on equal shapes use the measured model of their family; with broadcasting, or with an operator
that no table measured, the bytes decide. Example::

    >>> from lightning_predict.kernels.translation import translate
    >>> from lightning_predict.tracing.records import Flags, Operation, TensorInfo
    >>> x = TensorInfo((8, 16), "float32")
    >>> translate(Operation(name="aten::_softmax", phase="forward", inputs=(x,)), Flags())[0].operation
    'softmax'
"""

from __future__ import annotations

import math
from typing import Final

from lightning_predict.kernels.operations import Problem
from lightning_predict.kernels.traffic import transfer_of
from lightning_predict.kernels.translation import compute_dtype, rows_and_columns, translates
from lightning_predict.tracing.records import Flags, Operation, TensorInfo

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
    return "float" in tensor.dtype


@translates(*BINARY, *(f"{name}_" for name in BINARY))
def _binary(operation: Operation, _flags: Flags) -> tuple[Problem, ...]:
    name = BINARY[operation.name.removesuffix("_")]
    first = operation.inputs[0]
    seconds = [tensor for tensor in operation.inputs[1:] if tensor.shape]
    if not _is_float(first) or any(tensor.shape != first.shape or not _is_float(tensor) for tensor in seconds):
        return transfer_of(operation)
    return _table_problem(name if seconds else f"{name}_scalar", first, *rows_and_columns(first.shape))


@translates(*UNARY, *(f"{name}_" for name in UNARY))
def _unary(operation: Operation, _flags: Flags) -> tuple[Problem, ...]:
    data = operation.inputs[0]
    return _table_problem(UNARY[operation.name.removesuffix("_")], data, *rows_and_columns(data.shape))


@translates(*BY_LAST_DIMENSION)
def _softmax(operation: Operation, _flags: Flags) -> tuple[Problem, ...]:
    data = operation.inputs[0]
    columns = data.shape[int(operation.arguments.get("dim", -1))] if data.shape else 1
    return _table_problem(BY_LAST_DIMENSION[operation.name], data, data.elements // max(columns, 1), columns)


def _normalised(operation: Operation, name: str, data: TensorInfo) -> tuple[Problem, ...]:
    columns = math.prod(operation.arguments.get("normalized_shape", data.shape[-1:]))
    return _table_problem(name, data, data.elements // max(columns, 1), columns)


@translates("aten::native_layer_norm")
def _layer_norm(operation: Operation, _flags: Flags) -> tuple[Problem, ...]:
    return _normalised(operation, "layer_norm", operation.inputs[0])


@translates("aten::_fused_rms_norm")
def _rms_norm(operation: Operation, _flags: Flags) -> tuple[Problem, ...]:
    return _normalised(operation, "rms_norm", operation.inputs[0])


@translates("aten::native_layer_norm_backward")
def _layer_norm_backward(operation: Operation, _flags: Flags) -> tuple[Problem, ...]:
    return _normalised(operation, "layer_norm_backward", operation.inputs[1])


@translates("aten::_fused_rms_norm_backward")
def _rms_norm_backward(operation: Operation, _flags: Flags) -> tuple[Problem, ...]:
    return _normalised(operation, "rms_norm_backward", operation.inputs[1])


@translates(*BY_CHANNEL)
def _channel_norm(operation: Operation, _flags: Flags) -> tuple[Problem, ...]:
    data = operation.inputs[0]
    columns = math.prod(data.shape[2:])
    if operation.arguments.get("training") is False:  # Known statistics: one pass over the data.
        return transfer_of(operation)
    return _table_problem(BY_CHANNEL[operation.name], data, data.elements // max(columns, 1), columns)


@translates("aten::embedding")
def _embedding(operation: Operation, _flags: Flags) -> tuple[Problem, ...]:
    table, indices = operation.inputs[0], operation.inputs[1]
    return _table_problem("embedding", table, indices.elements, table.shape[-1])


@translates("aten::embedding_dense_backward")
def _embedding_backward(operation: Operation, _flags: Flags) -> tuple[Problem, ...]:
    """The whole table's gradient is zeroed; then each row is read, and read and written where it lands."""
    gradient = operation.inputs[0]
    rows = float(operation.arguments.get("num_weights", 0))
    table_bytes = rows * gradient.size_bytes / max(gradient.elements, 1) * gradient.shape[-1]
    size = float(gradient.size_bytes)
    return (Problem("transfer", "float32", (2 * size, table_bytes + size, float(gradient.elements))),)


@translates("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def _nll_loss(operation: Operation, _flags: Flags) -> tuple[Problem, ...]:
    """One probability a target is read, not all of them."""
    target = operation.inputs[1]
    read = float(2 * target.size_bytes)
    return (Problem("transfer", "float32", (read, 4.0, float(target.elements))),)


@translates("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def _nll_loss_backward(operation: Operation, _flags: Flags) -> tuple[Problem, ...]:
    """The gradient is zeroed, and one value a target written."""
    data, target = operation.inputs[1], operation.inputs[2]
    read = float(2 * target.size_bytes)
    return (Problem("transfer", "float32", (read, float(data.size_bytes), float(target.elements))),)
