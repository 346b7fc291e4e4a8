"""Layers in 4 bits and optimizers in 8 bits, of bitsandbytes and of `record/quantization.py`.

A matmul with a 4-bit weight is a dequantization followed by a matmul, as bitsandbytes computes training batches.
bitsandbytes uses its fused kernel only for few rows. A dequantization is counted by the bytes that it moves. Example::

    >>> from lightning_predict.record.trace import Flags, Operation, TensorInfo
    >>> data, packed = TensorInfo((8, 64), "float16"), TensorInfo((4096, 1), "uint8")
    >>> product = Operation(name="bitsandbytes::gemm_4bit", phase="forward", inputs=(data, packed))
    >>> [one.dims for one in gemm_4bit(product, Flags())]
    [(4096.0, 16384.0, 8192.0), (1.0, 8.0, 128.0, 64.0)]
"""

from __future__ import annotations

import math

from lightning_predict.kernels.memory_bound import bytes_read, transfer_of
from lightning_predict.kernels.operations import OperationShape, translates
from lightning_predict.kernels.translation import compute_dtype
from lightning_predict.record.trace import DTYPE_BYTES, Flags, Operation


def _transfer(read: float, written: float, elements: float) -> OperationShape:
    return OperationShape("transfer", "float32", (float(read), float(written), float(elements)))


@translates("bitsandbytes::gemm_4bit")
def gemm_4bit(operation: Operation, flags: Flags) -> tuple[OperationShape, ...] | None:
    """Translate a matmul with a 4-bit weight."""
    if len(operation.inputs) < 2 or not operation.inputs[0].elements:
        return None
    data, *packed = operation.inputs
    depth = data.shape[-1]
    values = 2 * packed[0].size_bytes
    rows, columns = data.elements / depth, values / depth
    dequantized = _transfer(sum(tensor.size_bytes for tensor in packed), values * DTYPE_BYTES[data.dtype], values)
    product = OperationShape("linear", compute_dtype(data, tf32=flags.matmul_tf32), (1.0, rows, columns, float(depth)))
    return dequantized, product


@translates("bitsandbytes::dequantize_4bit", "lightning_predict::dequantize_4bit")
def dequantize_4bit(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Translate a dequantization. A profile lacks its result, which is assumed to have 16 bits per value."""
    if operation.outputs:
        return transfer_of(operation)
    values = 2 * operation.inputs[0].size_bytes
    return (_transfer(bytes_read(operation), values * DTYPE_BYTES["float16"], values),)


@translates(
    "bitsandbytes::optimizer_update_8bit_blockwise",
    "bitsandbytes::optimizer_update_32bit",
    "lightning_predict::optimizer_update_blockwise",
)
def update(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Translate an optimizer update in one kernel. It reads all tensors and writes all except the first."""
    read = sum(tensor.size_bytes for tensor in operation.inputs)
    written = read - operation.inputs[0].size_bytes
    return (_transfer(read, written, math.prod(operation.inputs[0].shape)),)


@translates(
    "bitsandbytes::dequantize_blockwise", "bitsandbytes::quantize_blockwise", "lightning_predict::dequantize_blockwise"
)
def _moved(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    return transfer_of(operation)
