"""Softmax and normalisations, forward and backward: operations on whole rows.

Example::

    >>> from lightning_predict.kernels.translation import translate
    >>> from lightning_predict.record.trace import Flags, Operation, TensorInfo
    >>> x = TensorInfo((8, 16), "float32")
    >>> translate(Operation(name="aten::_softmax", phase="forward", inputs=(x,)), Flags())[0].operation
    'softmax'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np

from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.families.elementwise import VECTOR, as_transfer, by_element, of_matrix
from lightning_predict.kernels.operations import (
    COMPUTE_BYTES,
    Alternative,
    Array,
    CountedShape,
    OperationShape,
    ShapeBatch,
    Surrogate,
    batch_shapes,
    register,
    translates,
)
from lightning_predict.kernels.roofline import (
    DELIVERED_SHARE,
    TYPICAL_UTILISATION,
    WARP_THREADS,
    issue_rate,
    memory_bandwidth,
    rounds,
)
from lightning_predict.record.operand_strides import CHANNELS_LAST
from lightning_predict.record.trace import Flags, Operation, TensorInfo

BACKWARD_RATIO: Final = 2.2  # Time of the backward pass over the forward pass of PyTorch's norm kernels

NORM_WAIT_CYCLES: Final = 3.7
NORM_THREADS: Final = 128  # Cycles for an element of a row that a block of layer norm passes twice, and its threads

STREAMED_COLUMNS: Final = 1024  # Longest row for which layer norm takes as long as a transfer of its bytes
LONGEST_ROW_IN_A_WARP: Final = 1024  # Longest row of softmax in one warp, in elements
LONGEST_ROW_IN_REGISTERS: Final = 9216
"""Longest row of softmax that 1,024 threads keep in at most nine registers each, whatever its alignment."""

SHARED_ROW_BYTES: Final = 49152  # Longest row that softmax keeps in shared memory; it reads a longer row three times

SOFTMAX_CYCLES: Final = {"warp": 0.43, "block": 0.8, "again": 0.7}
"""Multiprocessor cycles per element of softmax, for any dtype, by the place of a row.

A row is kept in a warp, in the registers of a block, in its shared memory (as fast as in a warp: 0.38 for 13,952
bfloat16 columns on our H200), or is read again. These cycles are the limit in 16 bits
and on GPUs with high bandwidth. Measured values (training data: all of these):

* H20, float16 and float32 (flagos-ai/FlagGems 5578): 0.42 to 0.49 for 512 and 1,024 columns, 0.92 and 0.93 for
  4,096.
* H100, float16: 0.82 to 0.94, and 0.65 if read again.
* A100-PCIe-80GB, float32, 4,096 columns: at most 0.75; memory is the limit.
* B200, float32, 32,000 to 152,064 columns (Liger's cross entropy): 0.70 to 0.77.
* H200, bfloat16, 1,024 rows of 32,768: published at 1.2, twice the H100's.

These cycles apply to Hopper and Blackwell, where they were measured. On the A100, they would raise the median error
of 18 published steps of Megatron-LM from 4.1 to 5.8 %."""

CHANNEL_ELEMENTS_PER_SECOND: Final = {True: 4.4e9, False: 3.4e9}
CHANNEL_ELEMENTS_PER_SECOND_BACKWARD: Final = {True: 2.75e9, False: 2.2e9}
"""Elements per second of one channel's block in training-mode batch norm, on HBM (True) and other memory.

The block loads single elements. One ResNet-50 step on a V100 and an A100 gives 4.6 and 3.8 billion forward, and 2.7
and
2.8 billion backward, for 64 to 512 channels. KernelBench gives 5.4 to 5.7 billion forward on the H100-PCIe for 16
and 32 channels, and 2.5 to 3.1 billion on the L40S. Whole ResNet-50 steps on GeForce boards imply 2.8 and 1.8
billion (training data)."""

HALF_GAIN: Final[Mapping[bool, float]] = {True: 1.0, False: 1.5}
"""Speed-up of float16 elements in cuDNN's batch norm kernels, on HBM (True) and other memory.

On HBM, float16 is not faster. On other memory, timm's training on the RTX 3090 implies more than 4 and 3 billion
elements per second (training data). With this speed-up, ResNet-50 in FP16 or AMP on 13 other GPUs improves from 10
to 5 % too slow."""

GROUP_NORM_CYCLES: Final = {"": 1.85, "_backward": 2.5}
"""SM cycles per element of group norm, forward and backward. PyTorch loads single elements for the statistics.

Liger's float32 rows on the A100-SXM-40GB give 1.9 and 2.6, at 32 MB and more (training data)."""


BATCH_NORM_LAST_CYCLES: Final = {"": 1.3, "_backward": 1.1}
"""SM cycles per element of PyTorch's own batch norm with channels last, forward and backward.

On the H200 with torch 2.11 (own measurements, 2026-11-27), forward takes 1.29 and 1.41 in bfloat16, and 1.21 and
1.36 in float32. Backward takes 1.10 and 1.19 in bfloat16; in float32, memory is the limit."""

UNMEASURED_IN_CUDNN: Final = MappingProxyType({"float16": 0.0})
"""float16 uses cuDNN's kernels, which were not measured, so only traffic bounds their time."""


def _element_latency(cycles: float, *, other: Mapping[str, float] = MappingProxyType({})) -> Callable[..., Array]:
    """Make the latency function of a kernel that takes equal SM cycles for each element."""

    def latency(batch: ShapeBatch, gpu: Gpu) -> Array:
        elements = batch.columns["rows"] * batch.columns["cols"]
        seconds: Array = other.get(batch.dtype, cycles) * elements / issue_rate(gpu)
        return seconds

    return latency


LAYER_NORM_CYCLES: Final = {False: (0.31, 370.0), True: (0.47, 375.0)}
"""SM cycles of layer norm per element, and for the statistics of a row, in 16 bits (False) and in float32 (True)."""

GRADIENT_ROW_CYCLES: Final = 130.0  # SM cycles of a row in the gradient of a norm's input, in addition to its bytes
WEIGHT_ROW_CYCLES: Final = 9.0  # Cycles of a row in the gradient of a norm's weight: a block sums a warp's columns
SPLIT_ROWS: Final = 65536
"""Minimum number of rows with which PyTorch splits the rows of that sum among blocks, if there are fewer blocks than
half of the multiprocessors (`layer_norm_kernel.cu`)."""


def _norm_latency(batch: ShapeBatch, gpu: Gpu) -> Array:
    """Return the time of one block per row: few long rows leave SMs idle."""
    c = batch.columns
    resident = gpu.max_threads_per_multiprocessor // NORM_THREADS
    return rounds(c["rows"], gpu, resident=resident) * c["cols"] * NORM_WAIT_CYCLES / gpu.boost_clock_hz


def _layer_norm_latency(batch: ShapeBatch, gpu: Gpu) -> Array:
    """Return the minimum time of layer norm, including the instructions for its statistics."""
    rows, columns = batch.columns["rows"], batch.columns["cols"]
    by_element, by_row = LAYER_NORM_CYCLES[batch.dtype == "float32"]
    cycles = rows * (by_element * columns + by_row)
    return np.maximum(_norm_latency(batch, gpu), cycles / issue_rate(gpu))


def _norm_backward_latency(batch: ShapeBatch, gpu: Gpu) -> Array:
    """Return the time of two kernels: the gradient of the input, and the sum over rows for that of the weight."""
    rows, columns = batch.columns["rows"], batch.columns["cols"]
    streamed = rows * columns * batch.element_bytes / (DELIVERED_SHARE * gpu.dram_bytes_per_second)
    is_split = (rows > SPLIT_ROWS) & (columns / WARP_THREADS < gpu.streaming_multiprocessors / 2)
    by_row = np.where(is_split, 0.0, rows * WEIGHT_ROW_CYCLES / gpu.boost_clock_hz)
    seconds: Array = 3 * streamed + rows * GRADIENT_ROW_CYCLES / issue_rate(gpu) + np.maximum(2 * streamed, by_row)
    return seconds


def _softmax_latency(batch: ShapeBatch, gpu: Gpu) -> Array:
    """Return the minimum time of softmax, which spends cycles on each element and reads long rows several times."""
    reading = _passes(batch, gpu, passes=4)
    if not gpu.generation.has_warp_group_matmul:
        return reading
    issued = _softmax_cycles(batch) * batch.columns["rows"] * batch.columns["cols"] / issue_rate(gpu)
    return np.maximum(reading, issued)


def _softmax_backward_latency(batch: ShapeBatch, gpu: Gpu) -> Array:
    return _passes(batch, gpu, passes=5)


def _passes(batch: ShapeBatch, gpu: Gpu, *, passes: int) -> Array:
    """Return the time of several passes over rows that fit neither in shared memory nor in the L2; 0 for other rows."""
    row_bytes = batch.columns["cols"] * batch.element_bytes
    again = passes * batch.columns["rows"] * row_bytes / (TYPICAL_UTILISATION["vector"] * gpu.dram_bytes_per_second)
    held = gpu.streaming_multiprocessors * (gpu.max_threads_per_multiprocessor // 1024)  # rows, each in 1,024 threads
    is_found = held * row_bytes <= gpu.l2_bytes
    return np.where((row_bytes > SHARED_ROW_BYTES) & ~is_found, again, 0.0)


def _softmax_cycles(batch: ShapeBatch) -> Array:
    """Return cycles per element, by the place where PyTorch keeps a row, shape (shapes,)."""
    columns = batch.columns["cols"]
    is_kept = columns * batch.element_bytes <= SHARED_ROW_BYTES
    by_block = np.where(is_kept, SOFTMAX_CYCLES["warp"], SOFTMAX_CYCLES["again"])
    by_block = np.where(columns <= LONGEST_ROW_IN_REGISTERS, SOFTMAX_CYCLES["block"], by_block)
    return np.where(columns <= LONGEST_ROW_IN_A_WARP, SOFTMAX_CYCLES["warp"], by_block)


def _batch_norm_latency(per_channel: Mapping[bool, float]) -> Callable[[ShapeBatch, Gpu], Array]:
    """Make the latency function of one block per channel, two per SM. It combines latency and bandwidth."""

    def latency(batch: ShapeBatch, gpu: Gpu) -> Array:
        at_once = np.minimum(batch.columns["channels"], 2 * gpu.streaming_multiprocessors)
        gain = HALF_GAIN[gpu.has_stacked_memory] if batch.dtype == "float16" else 1.0
        rate = at_once * per_channel[gpu.has_stacked_memory] * gain
        streaming = batch.bytes_moved / (DELIVERED_SHARE * memory_bandwidth(batch, [gpu])[0])
        seconds: Array = np.hypot(batch.bytes_moved / batch.element_bytes / rate, streaming)
        return seconds

    return latency


def _streamed(longest: float) -> Callable[[OperationShape], OperationShape | None]:
    """Make the alternative of a norm or softmax that takes as long as a transfer if one block keeps a row."""

    def alternative(shape: OperationShape) -> OperationShape | None:
        rows, columns = shape.dims
        if columns > longest:
            return None
        size = rows * columns * COMPUTE_BYTES[shape.dtype]
        return OperationShape("transfer", "float32", (size, size, float(batch_shapes([shape]).flops[0])))

    return alternative


def along(data: TensorInfo, operation: Operation, default: int = -1) -> tuple[int, int]:
    """Return the shape of a tensor as a matrix whose columns are along the operation's dimension."""
    dimension = int(operation.arguments.get("dim", default))
    columns = data.shape[dimension] if -len(data.shape) <= dimension < len(data.shape) else 1
    return data.elements // max(columns, 1), columns


def _along_dimension(name: str, operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    return of_matrix(name, operation.inputs[0], *along(operation.inputs[0], operation))


SOFTMAX_BACKWARD: Final = ("softmax_backward", "mul")
"""Operations of the backward pass of softmax in eager mode; the first operation dominates.

PyTorch writes the product of gradient and result in one kernel, and sums the product by rows in another kernel
(`SoftMax.cu`, in all versions). The backward pass of log_softmax is one kernel."""


@translates("aten::_softmax_backward_data")
def _softmax_backward(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    matrix = along(operation.inputs[0], operation)
    return tuple(shape for name in SOFTMAX_BACKWARD for shape in of_matrix(name, operation.inputs[0], *matrix))


def _normalised(name: str, operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    position = 1 if name.endswith("_backward") else 0  # after the gradient
    if len(operation.inputs) <= position:
        return None
    data = operation.inputs[position]
    columns = math.prod(operation.arguments.get("normalized_shape", data.shape[-1:]))
    return of_matrix(name, data, data.elements // max(columns, 1), columns)


def _by_channel(name: str, operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    data = operation.inputs[0]
    columns = math.prod(data.shape[2:])
    if operation.arguments.get("training") is False:  # statistics are known: one pass over the data
        return None
    shapes = of_matrix(name, data, data.elements // max(columns, 1), columns)
    if not name.startswith("batch_norm"):
        return shapes
    # cuDNN takes float16 only with float32 weights, and no bfloat16. With float16 weights, PyTorch's kernels run, as in
    # bfloat16. On GTX 1080 Ti, RTX 2080 Ti, RTX 3090 and TITAN V, VGG's batch norms with float16 weights err by 10 %
    # in the mean with bfloat16's time, and by 42 % with float32's (training data).
    is_own = any(tensor.dtype == "float16" for tensor in operation.inputs if len(tensor.shape) == 1)
    shapes = tuple(replace(shape, dtype="bfloat16" if is_own else shape.dtype) for shape in shapes)
    if operation.arguments.get(CHANNELS_LAST):
        return tuple(replace(shape, operation=name.replace("batch_norm", "batch_norm_last")) for shape in shapes)
    channels = float(data.shape[1] if len(data.shape) > 1 else data.elements)
    return tuple(replace(shape, dims=(*shape.dims, channels)) for shape in shapes)


def _times(ratio: float, name: str) -> Surrogate:
    """Make a surrogate: another operation of the same shape, multiplied by a factor."""
    return Surrogate(lambda shape: (CountedShape(ratio, OperationShape(name, shape.dtype, shape.dims)),))


register(
    # FLOPs of transcendental functions follow Lin et al.'s measured equivalents.
    replace(
        by_element("softmax", 1, 1, 5),
        aten=("aten::_softmax", "aten::_log_softmax"),
        translator=_along_dimension,
        estimators=(VECTOR, Alternative(shape=_streamed(math.inf), is_on=lambda gpu: gpu.generation.streams_softmax)),
        reduces_rows=True,
        latency=_softmax_latency,
    ),
    replace(
        by_element("softmax_backward", 2, 1, 4),
        aten=("aten::_log_softmax_backward_data",),
        translator=_along_dimension,
        estimators=(VECTOR,),
        reduces_rows=True,
        latency=_softmax_backward_latency,
    ),
    # log_softmax takes as long as softmax, with the same traffic.
    replace(by_element("log_softmax", 1, 1), estimators=(_times(1.0, "softmax"),), latency=_softmax_latency),
    replace(
        by_element("log_softmax_backward", 2, 1),
        estimators=(_times(1.0, "softmax_backward"),),
        latency=_softmax_backward_latency,
    ),
    replace(
        by_element("layer_norm", 1, 1, 8),
        aten=("aten::native_layer_norm",),
        translator=_normalised,
        estimators=(
            VECTOR,
            Alternative(shape=_streamed(STREAMED_COLUMNS), is_on=lambda gpu: gpu.generation.streams_norms),
        ),
        reduces_rows=True,
        latency=_layer_norm_latency,
    ),
    replace(
        by_element("layer_norm_backward", 2, 1, 14),
        aten=("aten::native_layer_norm_backward",),
        translator=_normalised,
        estimators=(_times(BACKWARD_RATIO, "layer_norm"),),
        latency=_norm_backward_latency,
    ),
    replace(
        by_element("rms_norm", 1, 1, 5),
        aten=("aten::_fused_rms_norm",),
        translator=_normalised,
        estimators=(as_transfer(),),
        latency=_norm_latency,
    ),
    replace(
        by_element("rms_norm_backward", 2, 1, 10),
        aten=("aten::_fused_rms_norm_backward",),
        translator=_normalised,
        estimators=(_times(BACKWARD_RATIO, "rms_norm"),),
        latency=_norm_backward_latency,
    ),
    # In training, batch and group norm read their input twice: once for the statistics, once to normalise.
    replace(
        by_element("batch_norm", 2, 1, 8),
        shape=("rows", "cols", "channels"),
        defaults={"channels": "rows"},
        latency=_batch_norm_latency(CHANNEL_ELEMENTS_PER_SECOND),
        aten=(
            "aten::native_batch_norm",
            "aten::cudnn_batch_norm",
            "aten::_native_batch_norm_legit",
            "aten::_batch_norm_with_update",
        ),
        translator=_by_channel,
        estimators=(VECTOR, as_transfer()),
    ),
    replace(
        by_element("batch_norm_backward", 4, 1, 14),
        shape=("rows", "cols", "channels"),
        defaults={"channels": "rows"},
        latency=_batch_norm_latency(CHANNEL_ELEMENTS_PER_SECOND_BACKWARD),
        aten=("aten::native_batch_norm_backward", "aten::cudnn_batch_norm_backward", "aten::batch_norm_backward"),
        translator=_by_channel,
        estimators=(VECTOR, as_transfer()),
    ),
    # With channels last, neighbouring elements belong to different channels, so there is no block per channel: bytes
    # or instructions determine the time.
    replace(
        by_element("batch_norm_last", 2, 1, 8),
        latency=_element_latency(BATCH_NORM_LAST_CYCLES[""], other=UNMEASURED_IN_CUDNN),
    ),
    replace(
        by_element("batch_norm_last_backward", 4, 1, 14),
        latency=_element_latency(BATCH_NORM_LAST_CYCLES["_backward"], other=UNMEASURED_IN_CUDNN),
    ),
    replace(
        by_element("group_norm", 2, 1, 8),
        latency=_element_latency(GROUP_NORM_CYCLES[""]),
        aten=("aten::native_group_norm",),
        translator=_by_channel,
        estimators=(VECTOR, as_transfer()),
    ),
    replace(
        by_element("group_norm_backward", 4, 1, 14),
        latency=_element_latency(GROUP_NORM_CYCLES["_backward"]),
        aten=("aten::native_group_norm_backward",),
        translator=_by_channel,
        estimators=(VECTOR, as_transfer()),
    ),
)
