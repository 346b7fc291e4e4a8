"""Reductions, sorts, searches, distances and losses.

Example::

    >>> from lightning_predict.kernels.operations import shape_batch
    >>> float(shape_batch("sum", "float32", rows=2, cols=3).bytes_moved[0])  # read once; the sums are few
    24.0
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.families.elementwise import VECTOR, as_transfer, by_element, of_matrix
from lightning_predict.kernels.families.norm import along
from lightning_predict.kernels.memory_bound import bytes_read, bytes_written
from lightning_predict.kernels.operations import COMPUTE_BYTES, Array, OperationShape, ShapeBatch, register, translates
from lightning_predict.kernels.roofline import DELIVERED_SHARE, SHORTEST_KERNEL_SECONDS, WARP_THREADS, limited_transfer
from lightning_predict.kernels.translation import compute_dtype
from lightning_predict.record.trace import Flags, Operation, TensorInfo


def _select(name: str, operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    data = operation.inputs[0]
    whole = "median" in operation.name and "dim" not in operation.arguments
    rows, columns = (1, data.elements) if whole else along(data, operation)
    return of_matrix(name, data, rows, columns)


register(
    *(by_element(name, 1, 0) for name in ("sum", "mean", "max", "argmax")),
    # Radix select with 8 bits per pass (PyTorch's algorithm for long rows): four counting passes over 4-byte keys, one
    # to collect.
    replace(
        by_element("topk", 5, 0),
        aten=("aten::topk", "aten::kthvalue", "aten::median", "aten::nanmedian"),
        translator=_select,
    ),
    # Radix sort of 4-byte keys with 8-byte indices: four passes, which each read and write three times the key size.
    by_element("sort", 12, 12),
    replace(by_element("cross_entropy", 1, 1, 5), estimators=(VECTOR, as_transfer()), reduces_rows=True),
    replace(by_element("cross_entropy_backward", 1, 1, 4), estimators=(VECTOR, as_transfer()), reduces_rows=True),
)


@translates("aten::sum")
def _sum(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    data = operation.inputs[0]
    if not data.elements:
        return ()
    return (summed(data, float(bytes_written(operation)), _columns_kept(data, operation)),)


REDUCTION_THREADS: Final = 128
REDUCTION_VECTOR: Final = 4
LEAST_VALUES: Final = 16
MOST_VALUES: Final = 256
"""Threads per block of PyTorch's sums over the rows of a matrix, columns per thread, and the fewest and most rows that
a thread adds if blocks share a column (`Reduce.cuh`)."""

PARTIAL_SUM_CYCLES: Final = 660.0  # Cycles in which a thread reads one block's partial sum from L2, one after another


def _column_sum_latency(batch: ShapeBatch, gpu: Gpu) -> Array:
    """Return the time to read a matrix, and then the partial sums of the blocks that share a column."""
    rows, columns = batch.columns["rows"], batch.columns["cols"]
    wide = np.clip(2 ** np.floor(np.log2(np.maximum(columns / REDUCTION_VECTOR, 1))), 1, 32)
    high = REDUCTION_THREADS / wide
    of_thread = np.ceil(rows / high)
    across = np.ceil(columns / (REDUCTION_VECTOR * wide))
    fitting = gpu.streaming_multiprocessors * gpu.max_threads_per_multiprocessor / REDUCTION_THREADS / across
    shared = np.minimum(np.ceil(fitting), np.ceil(of_thread / LEAST_VALUES))
    shared = np.maximum(shared, np.ceil(of_thread / MOST_VALUES))
    is_shared = (of_thread >= high * LEAST_VALUES) | (of_thread >= MOST_VALUES)
    serial = np.where(is_shared, shared / high, of_thread / REDUCTION_VECTOR) * PARTIAL_SUM_CYCLES
    read = batch.bytes_moved / (DELIVERED_SHARE * gpu.dram_bytes_per_second)
    seconds: Array = read + serial / gpu.boost_clock_hz + 2 * SHORTEST_KERNEL_SECONDS  # with a fill of the semaphores
    return seconds


register(replace(by_element("column_sum", 1, 0), latency=_column_sum_latency))


def summed(data: TensorInfo, written: float, columns: int) -> OperationShape:
    """Return the shape of a sum over the rows of a tensor with some columns; 0 columns for other sums."""
    if columns == 0:
        return OperationShape("transfer", "float32", (float(data.size_bytes), written, float(data.elements)))
    return OperationShape("column_sum", compute_dtype(data), (float(data.elements // columns), float(columns)))


def _columns_kept(data: TensorInfo, operation: Operation) -> int:
    """Return the number of columns of a sum over the leading dimensions; 0 for other sums."""
    given = operation.arguments.get("dim")
    reduced = {int(axis) % max(len(data.shape), 1) for axis in (given if isinstance(given, (list, tuple)) else [])}
    is_leading = 0 < len(reduced) < len(data.shape) and reduced == set(range(len(reduced)))
    return math.prod(data.shape[len(reduced) :]) if is_leading else 0


@translates("aten::cumsum", "aten::cumprod", "aten::cumsum_", "aten::cumprod_", "aten::logcumsumexp")
def _scan(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    read, written = float(bytes_read(operation)), float(bytes_written(operation))
    count = float(operation.inputs[0].elements)
    return (OperationShape("transfer", "float32", (2 * read, written, count)),) if count else ()


@translates("aten::logsumexp")
def _log_sum_exp(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Count the maximum of each row, its subtraction, the exponentials in place, and their sum."""
    data = operation.inputs[0]
    size, kept = float(data.size_bytes), float(bytes_written(operation))
    if not data.elements:
        return ()
    count = float(data.elements)
    reduced = OperationShape("transfer", "float32", (size, kept, count))
    subtracted = OperationShape("transfer", "float32", (size + kept, size, count))  # broadcast over rows
    return (reduced, subtracted, OperationShape("transfer", "float32", (size, size, count)), reduced)


INDEX_BYTES: Final = COMPUTE_BYTES["int64"]


@translates("aten::sort", "aten::argsort", "aten::msort", "aten::mode")
def _sort(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    data = operation.inputs[0]
    return of_matrix("sort", data, *along(data, operation, default=0 if operation.name == "aten::msort" else -1))


@translates("aten::_unique", "aten::_unique2", "aten::unique_dim")
def _unique(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Count a sort, then passes that mark differing neighbours, count them, and collect them."""
    data = operation.inputs[0]
    size, places = float(data.size_bytes), float(INDEX_BYTES * data.elements)
    passes = OperationShape("transfer", "float32", (2 * size + 2 * places, size + 2 * places, float(data.elements)))
    return (*of_matrix("sort", data, 1, data.elements), passes) if data.elements else ()


@translates("aten::searchsorted", "aten::bucketize")
def _search(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Count a binary search per value: log2 reads of the boundaries, mostly from a cache."""
    if len(operation.inputs) < 2:
        return None
    boundaries, values = operation.inputs[:2]
    if operation.name == "aten::bucketize":
        values, boundaries = boundaries, values
    steps = math.log2(max(boundaries.shape[-1] if boundaries.shape else 1, 2))
    read = float(values.size_bytes + boundaries.size_bytes)
    dims = (read, float(INDEX_BYTES * values.elements), values.elements * steps)
    return (OperationShape("transfer", "float32", dims),) if values.elements else ()


@translates("aten::_cdist_forward", "aten::_euclidean_dist", "aten::_pdist_forward")
def _distances(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Count every pair of rows: a difference, a power and a sum for each number in a row."""
    if not operation.inputs[0].shape or not operation.outputs:
        return None
    written = operation.outputs[0]
    read = float(sum(tensor.size_bytes for tensor in operation.inputs))
    flops = 3.0 * written.elements * operation.inputs[0].shape[-1]
    dtype = compute_dtype(operation.inputs[0])
    return (OperationShape("transfer", dtype, (read, float(written.size_bytes), flops)),) if written.elements else ()


@translates("aten::_cdist_backward", "aten::_pdist_backward")
def _distances_backward(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Count the differences again, each multiplied by its gradient over its distance."""
    if len(operation.inputs) < 2 or not operation.inputs[1].shape:
        return None
    gradient, data = operation.inputs[:2]
    read = float(sum(tensor.size_bytes for tensor in operation.inputs))
    flops = 4.0 * gradient.elements * data.shape[-1]
    return (OperationShape("transfer", compute_dtype(data), (read, float(data.size_bytes), flops)),) if flops else ()


LOOK_UP_CYCLES: Final = {"forward": 1500.0, "backward": 600.0}
"""Cycles of `nll_loss` per `WARP_THREADS` rows.

`nll_loss` has one block with `WARP_THREADS` threads. Each thread loads a target and then the target's logit from
memory. The constant part of cross entropies in Liger (A100) and KernelBench (T4, H100-PCIe, L40S) is 1,450 to 1,800
cycles. The backward pass does not wait for loads and takes about 600 cycles (training data)."""


def _looked_up(operation: Operation, targets: TensorInfo, written: float, direction: str) -> tuple[OperationShape, ...]:
    """Count reading the targets and one value per target. `nll_loss2d` has many blocks."""
    alone = "2d" not in operation.name
    cycles = math.ceil(targets.elements / WARP_THREADS) * LOOK_UP_CYCLES[direction] if alone else 0.0
    return (limited_transfer(2.0 * targets.size_bytes, written, float(targets.elements), block_cycles=cycles),)


@translates("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def _nll_loss(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Count one probability per target."""
    return None if len(operation.inputs) < 2 else _looked_up(operation, operation.inputs[1], 4.0, "forward")


@translates("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def _nll_loss_backward(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Count zeroing the gradient, then writing one value per target."""
    if len(operation.inputs) < 3:
        return None
    data, targets = operation.inputs[1], operation.inputs[2]
    zeroed = OperationShape("transfer", "float32", (0.0, float(data.size_bytes), 0.0))
    written = float(targets.elements * data.size_bytes / max(data.elements, 1))
    return zeroed, *_looked_up(operation, targets, written, "backward")


@translates(
    "aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss", "aten::binary_cross_entropy", "aten::soft_margin_loss"
)
def _loss(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Count the loss of each element as written. For a mean or sum, the losses are read again."""
    data = operation.inputs[0]
    read, size, count = float(bytes_read(operation)), float(data.size_bytes), float(data.elements)
    if not count:
        return ()
    each = OperationShape("transfer", "float32", (read, size, count))
    if operation.arguments.get("reduction", 1) == 0:  # no reduction; 1 is the mean, 2 the sum
        return (each,)
    return each, OperationShape("transfer", "float32", (size, size / count, count))
