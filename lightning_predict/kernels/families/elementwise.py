"""Element-wise operations, copies, and the network inputs of all memory-bound operations.

Each operation has a number of reads, writes and FLOPs per element of a (rows, cols) tensor. For equal shapes, the
operation's trained model applies. With broadcasting, or for an operator without measurements, the bytes determine the
time (`transfer`). Example::

    >>> from lightning_predict.kernels.operations import shape_batch
    >>> from lightning_predict.kernels.translation import translate
    >>> from lightning_predict.record.trace import Flags, Operation, TensorInfo
    >>> float(shape_batch("add", "float32", rows=2, cols=3).bytes_moved[0])  # (2 reads + 1 write) x 6 x 4 bytes
    72.0
    >>> x = TensorInfo((8, 16), "float32")
    >>> translate(Operation(name="aten::relu", phase="forward", inputs=(x,)), Flags())[0].dims
    (8.0, 16.0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from lightning_predict.hardware.records import NVIDIA, Gpu
from lightning_predict.kernels.features import (
    alignment,
    log2,
    machine_features,
    multiprocessors,
    wave_quantisation,
    work_features,
)
from lightning_predict.kernels.memory_bound import UNTRANSLATED, loads_singly
from lightning_predict.kernels.operations import (
    Alternative,
    Array,
    CountedShape,
    NamedFeatures,
    NetworkSpec,
    OperationShape,
    OperationSpec,
    RooflineEfficiency,
    ShapeBatch,
    Surrogate,
    batch_shapes,
    by_bytes,
    register,
)
from lightning_predict.kernels.roofline import DELIVERED_SHARE, VECTORIZED, host_copy_rate, per_gpu
from lightning_predict.kernels.translation import compute_dtype, rows_and_columns
from lightning_predict.record.operand_strides import CONTIGUOUS_ELEMENTS
from lightning_predict.record.trace import Flags, Operation, TensorInfo
from lightning_predict.uncertainty import UNKNOWN_SPREAD

ELEMENTS_PER_BLOCK: Final = 1024  # Elements per block of an element-wise kernel
MIN_FLOPS_PER_BYTE: Final = 0.0833333333333  # Minimum in the networks' training data: adding two float32 tensors


def _has_fast_stacks(gpu: Gpu) -> bool:
    return gpu.has_stacked_memory and gpu.generation.has_fast_stacked_memory


def vector_features(batch: ShapeBatch, gpus: Sequence[Gpu]) -> NamedFeatures:
    """Return the network inputs of memory-bound operations, by name.

    The inputs contain the operation's counts but not its name, so unmeasured operations are supported as well. The
    element-wise case is `transfer` (bytes read, bytes written, FLOPs). For kernels that reduce each row (softmax,
    normalisations), the row length is an input, too.
    """
    read, written = batch.bytes_read, batch.bytes_written
    total = np.maximum(read + written, 1.0)  # (shapes,)
    if "flops" in batch.columns:
        flops = np.maximum(batch.columns["flops"], MIN_FLOPS_PER_BYTE * total)
        batch = replace(batch, columns={**batch.columns, "flops": flops})
    named: dict[str, Array] = {
        "bytes": log2(total)[None, :],
        "written_share": (written / total)[None, :],
        "flops_per_byte": np.log2(batch.flops / total + 2.0**-4)[None, :],
    }
    reduces_rows = batch.spec.reduces_rows
    ones = np.ones_like(total)
    rows = batch.columns["rows"] if reduces_rows else ones
    cols = batch.columns["cols"] if reduces_rows else ones
    slots = multiprocessors(gpus)
    waves, tail = wave_quantisation(rows[None, :], slots)
    named["reduces_rows"] = np.full((1, 1), float(reduces_rows))
    named["rows"] = log2(rows)[None, :]
    named["cols"] = log2(cols)[None, :]
    named["cols_alignment"] = alignment(cols, 32)
    named["row_waves"] = log2(waves) * reduces_rows
    named["row_tail"] = log2(tail) * reduces_rows
    element_waves, element_tail = wave_quantisation(np.ceil(total / 4 / ELEMENTS_PER_BLOCK)[None, :], slots * 8)
    named["element_waves"] = log2(element_waves)
    named["element_tail"] = log2(element_tail)
    named["stacked_memory"] = per_gpu(gpus, _has_fast_stacks)
    return named | work_features(batch, gpus) | machine_features(batch, gpus)


WITHOUT_CODES: Final = 1.15  # Bandwidth of GDDR memory without inline ECC, relative to that with it


def without_inline_ecc(gpu: Gpu) -> Gpu:
    """Raise the bandwidth of GDDR without inline ECC, because the base network knows GDDR only with ECC."""
    if gpu.has_stacked_memory or gpu.has_inline_ecc:
        return gpu
    return replace(gpu, dram_bytes_per_second=WITHOUT_CODES * gpu.dram_bytes_per_second)


VECTOR: Final = NetworkSpec(
    name="vector", dtypes=("float32", "float16", "bfloat16"), describe=vector_features, unmeasured=without_inline_ecc
)


def as_transfer() -> Surrogate:
    """Make a surrogate from bytes alone: half of the traffic counts as read, half as written."""

    def parts(shape: OperationShape) -> tuple[CountedShape, ...]:
        batch = batch_shapes([shape])
        half = float(batch.bytes_moved[0]) / 2
        return (CountedShape(1.0, OperationShape("transfer", "float32", (half, half, float(batch.flops[0])))),)

    return Surrogate(parts)


STREAMED: Final = Alternative(
    shape=lambda shape: OperationShape("stream", "float32", _bytes_of(batch_shapes([shape]))),
    is_on=lambda gpu: gpu.vendor == NVIDIA and gpu.has_stacked_memory,
    bounds_networks=True,
)
"""Upper bound of kernels with vectorized loads, which reach the same share of the bandwidth of HBM."""


def _bytes_of(batch: ShapeBatch) -> tuple[float, float, float]:
    return float(batch.bytes_read[0]), float(batch.bytes_written[0]), 0.0


def by_element(name: str, reads: float, writes: float, flops: float = 1) -> OperationSpec:
    """Return an operation on a (rows, cols) tensor by its counts per element, timed as a transfer of its bytes."""
    return OperationSpec(
        name=name,
        shape=("rows", "cols"),
        units="vector",
        flops=lambda c: flops * (c["rows"] * c["cols"]),
        reads=lambda c: reads * (c["rows"] * c["cols"]),
        writes=lambda c: writes * (c["rows"] * c["cols"]),
        estimators=(as_transfer(),),
    )


def of_matrix(name: str, tensor: TensorInfo, rows: int, columns: int) -> tuple[OperationShape, ...]:
    """Return the shape of an operation on a tensor viewed as (rows, columns); empty if the tensor is empty."""
    if rows < 1 or columns < 1:
        return ()
    return (OperationShape(name, compute_dtype(tensor), (float(rows), float(columns))),)


PRODUCT_POWERS: Final = (-2, -1, -0.5, 0, 0.5, 1, 2, 3)  # Exponents that PyTorch computes without a power


def _is_float(tensor: TensorInfo) -> bool:
    return tensor.dtype.startswith(("float", "bfloat"))


def _binary(name: str, operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    first = operation.inputs[0]
    if CONTIGUOUS_ELEMENTS in operation.arguments or loads_singly(operation):  # not measured in any table
        return None
    seconds = [tensor for tensor in operation.inputs[1:] if tensor.shape]
    if not _is_float(first) or any((tensor.shape, tensor.dtype) != (first.shape, first.dtype) for tensor in seconds):
        return None
    if name == "pow" and operation.arguments.get("exponent") in PRODUCT_POWERS:
        name = "mul"
    return of_matrix(name if seconds else f"{name}_scalar", first, *rows_and_columns(first.shape))


def _unary(name: str, operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    data = operation.inputs[0]
    if not _is_float(data) or CONTIGUOUS_ELEMENTS in operation.arguments:
        return None
    return of_matrix(name, data, *rows_and_columns(data.shape))


def _host_copy_latency(batch: ShapeBatch, gpu: Gpu) -> Array:
    seconds: Array = batch.bytes_read / host_copy_rate(gpu)
    return seconds


def _calls(*names: str) -> tuple[str, ...]:
    """Return the calls with these names, and their in-place variants."""
    return tuple(f"aten::{name}{suffix}" for name in names for suffix in ("", "_"))


# FLOPs of transcendental functions follow Lin et al.'s measured equivalents for gelu and tanh. powf takes a logarithm
# and an exponential in extended precision: twice a tanh.
register(
    replace(by_element("add", 2, 1), aten=_calls("add", "sub"), translator=_binary, estimators=(VECTOR, STREAMED)),
    replace(by_element("add_scalar", 1, 1), estimators=(VECTOR, STREAMED)),
    replace(by_element("mul", 2, 1), aten=_calls("mul"), translator=_binary, estimators=(VECTOR, STREAMED)),
    replace(by_element("mul_scalar", 1, 1), estimators=(VECTOR, STREAMED)),
    replace(by_element("div", 2, 1), aten=_calls("div"), translator=_binary, estimators=(VECTOR, STREAMED)),
    replace(by_element("div_scalar", 1, 1), estimators=(VECTOR, STREAMED)),
    replace(by_element("pow", 2, 1, 40), aten=_calls("pow"), translator=_binary, estimators=(VECTOR,)),
    replace(by_element("pow_scalar", 1, 1, 40), estimators=(VECTOR,)),
    replace(by_element("relu", 1, 1), aten=_calls("relu"), translator=_unary, estimators=(VECTOR, STREAMED)),
    replace(by_element("gelu", 1, 1, 20), aten=_calls("gelu"), translator=_unary, estimators=(VECTOR, STREAMED)),
    replace(by_element("tanh", 1, 1, 20), aten=_calls("tanh"), translator=_unary, estimators=(VECTOR, STREAMED)),
    # The mask has one byte per element; `translation.work_items` finds the calls that draw, scale and apply it.
    replace(by_element("dropout", 1, 1.25, 2), estimators=(VECTOR, as_transfer())),
    by_element("dropout_backward", 1.25, 1),
    *(by_element(name, 1, 1) for name in ("neg", "exp", "log", "sqrt", "sigmoid", "silu", "leaky_relu")),
    by_element("sub", 2, 1),
    by_element("where", 2, 1),
    # Gradient and the tensor saved by the forward pass.
    *(by_element(f"{name}_backward", 2, 1) for name in ("relu", "gelu", "tanh", "sigmoid", "silu")),
    # Copies, and operations with known bytes only; `transfer` is the general one, counted in bytes.
    replace(by_bytes("transfer"), estimators=(VECTOR,)),
    replace(by_bytes(VECTORIZED), estimators=(VECTOR, STREAMED)),
    replace(by_bytes("stream"), estimators=(RooflineEfficiency(share=DELIVERED_SHARE),)),
    # Bytes of a call whose translator failed. The spread is wide, because the work is unknown: an addmm timed by its
    # bytes was 42 times faster than a matmul of equal size.
    replace(by_bytes(UNTRANSLATED), estimators=(RooflineEfficiency(spread=UNKNOWN_SPREAD**2),)),
    OperationSpec(
        name="host_copy",
        shape=("size_bytes",),
        units="link",
        flops=lambda c: 0 * c["size_bytes"],
        reads=lambda c: c["size_bytes"],  # once over the link
        element_bytes=1,
        latency=_host_copy_latency,
    ),
    by_element("concat", 1, 1),
    by_element("copy", 1, 1),
    by_element("gather", 1, 1),
    by_element("scatter", 1, 2),  # the existing values are read with their sectors
    OperationSpec(
        name="cast",
        shape=("rows", "cols", "source_bytes", "target_bytes"),
        defaults={"source_bytes": 4, "target_bytes": 2},
        units="vector",
        flops=lambda c: c["rows"] * c["cols"],
        reads=lambda c: c["rows"] * c["cols"] * c["source_bytes"],
        writes=lambda c: c["rows"] * c["cols"] * c["target_bytes"],
        element_bytes=1,
        estimators=(as_transfer(),),
    ),
)
