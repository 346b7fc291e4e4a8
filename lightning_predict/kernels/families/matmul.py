"""Matmuls: `linear` and `bmm`, (b, m, k) x (b, k, n).

A matmul has 2·b·m·n·k FLOPs, reads both operands and writes the result. The backward pass has two matmuls of the same
size, for the gradients of both operands. Example::

    >>> from lightning_predict.kernels.operations import shape_batch
    >>> float(shape_batch("bmm", "float32", b=2, m=3, n=5, k=4).flops[0])  # 2 x 2 x 3 x 5 x 4
    240.0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.features import (
    alignment,
    clock_features,
    log2,
    machine_features,
    multiprocessors,
    tile_features,
    work_features,
)
from lightning_predict.kernels.operations import (
    Array,
    BoolArray,
    Columns,
    CountedShape,
    NamedFeatures,
    NetworkSpec,
    OperationShape,
    OperationSpec,
    ShapeBatch,
    Surrogate,
    register,
    translates,
)
from lightning_predict.kernels.roofline import (
    TENSOR_ALIGNMENT,
    issue_rate,
    per_gpu,
    sustained_rate_uncertainty,
    with_sustained_peaks,
)
from lightning_predict.kernels.translation import COMPLEX_MATMULS, compute_dtype, is_complex
from lightning_predict.record.operand_strides import FIRST_TRANSPOSED, SECOND_TRANSPOSED
from lightning_predict.record.trace import Flags, Operation, TensorInfo
from lightning_predict.uncertainty import FORMULA_SPREAD


def _flops(c: Columns) -> Array:
    return 2 * c["b"] * c["m"] * c["n"] * c["k"]


def _outputs(c: Columns) -> Array:
    return c["b"] * c["m"] * c["n"]


TILES: Final = ((64, 64), (128, 64), (64, 128), (128, 128), (256, 128), (128, 256), (256, 256))
"""Most common output tiles of cuBLAS and CUTLASS kernels."""


def canonical_shape(batch: ShapeBatch) -> tuple[Array, Array, Array, Array]:
    """Return copies, rows, columns and depth. Copies of a linear layer count as rows, because they share its weight."""
    c = batch.columns
    if batch.operation == "linear":
        return np.ones_like(c["b"]), c["b"] * c["m"], c["n"], c["k"]
    return c["b"], c["m"], c["n"], c["k"]


def matmul_features(batch: ShapeBatch, gpus: Sequence[Gpu]) -> NamedFeatures:
    """Return the network inputs of matmuls, by name.

    A linear layer is one matmul with all rows folded together. A batched matmul is `b` separate matmuls.
    """
    copies, rows, cols, depth = canonical_shape(batch)  # each (shapes,)
    shape = {"copies": copies, "rows": rows, "cols": cols, "depth": depth}
    named: dict[str, Array] = {name: log2(values)[None, :] for name, values in shape.items()}
    named["narrow"] = log2(np.minimum(rows, cols))[None, :]
    # Few output tiles over a long depth are split along the depth. The ratio is the potential for a split.
    named["depth_per_slot"] = log2(depth[None, :] * multiprocessors(gpus)) - log2(copies * rows * cols)[None, :]
    for name in ("rows", "cols", "depth"):
        named[f"{name}_alignment"] = alignment(shape[name])
    named["batched"] = np.full((1, 1), float(batch.operation == "bmm"))
    named["float16"] = np.full((1, 1), float(batch.dtype == "float16"))
    named |= tile_features(rows, cols, copies, gpus, TILES)
    return named | work_features(batch, gpus) | clock_features(gpus) | machine_features(batch, gpus)


MISALIGNED_FLOPS_PER_CLOCK: Final = 450.0
"""FLOPs per clock and multiprocessor at odd sizes: less than half of Volta's tensor cores; also in TF32 at sizes that
are not multiples of 4, whose rows are not aligned to the 16 bytes of a wide load."""
SINGLE_FLOPS_PER_CLOCK_SINCE_HOPPER: Final = 325.0  # The same in TF32 since Hopper
PAIRED_FLOPS_PER_CLOCK: Final = 800.0
"""The same in 16 bits at even sizes that are not multiples of 4, whose rows start at pairs of elements."""
ODD_ELEMENTS_PER_CLOCK: Final = 2.0
"""Elements of operands and result per clock and multiprocessor at odd sizes in 16 bits, since Hopper, one by one."""


def _is_no_multiple(batch: ShapeBatch, unit: int) -> BoolArray:
    """Return whether rows in memory (n or k elements) are not multiples of `unit`, shape (shapes,)."""
    sizes = np.rint(np.stack([batch.columns["n"], batch.columns["k"]]))  # (2, shapes)
    uneven: BoolArray = np.logical_or.reduce((sizes % unit > 0) & (sizes > 1))
    return uneven


def _alignment_uncertainty(batch: ShapeBatch) -> Array:
    return np.where(_is_no_multiple(batch, TENSOR_ALIGNMENT), FORMULA_SPREAD, 1.0)


def unaligned_matmul_seconds(batch: ShapeBatch, gpus: Sequence[Gpu]) -> Array:
    """Return the minimum seconds of matmuls with unaligned sizes, shape (gpus, shapes); 0 for aligned matmuls.

    Wide loads need rows that start at multiples of their width. Unaligned rows reach tensor cores one or two elements
    at a time, at a rate that does not increase with newer tensor cores. Before cuBLAS 11, no tensor cores were used.
    Since Hopper, the elements of odd sizes, few of which are used often in attention, limit the time, too.
    """
    is_odd, is_uneven = _is_no_multiple(batch, 2), _is_no_multiple(batch, TENSOR_ALIGNMENT // 2)
    uneven = np.where(is_uneven, batch.flops, 0.0)  # (shapes,)
    clocks = per_gpu(gpus, issue_rate)
    if batch.dtype == "tf32":
        rates = [
            SINGLE_FLOPS_PER_CLOCK_SINCE_HOPPER if gpu.generation.has_warp_group_matmul else MISALIGNED_FLOPS_PER_CLOCK
            for gpu in gpus
        ]
        of_single: Array = uneven / (clocks * np.array(rates)[:, None])
        return of_single
    seconds: Array = uneven / np.where(is_odd, MISALIGNED_FLOPS_PER_CLOCK, PAIRED_FLOPS_PER_CLOCK) / clocks
    one_by_one = np.where(is_odd, batch.bytes_moved / batch.element_bytes, 0.0) / ODD_ELEMENTS_PER_CLOCK / clocks
    is_limited = np.array([[gpu.generation.has_warp_group_matmul] for gpu in gpus])
    return np.where(is_limited, np.maximum(seconds, one_by_one), seconds)


def _single_latency(batch: ShapeBatch, gpu: Gpu) -> Array:
    """Return the minimum time of unaligned TF32 matmuls, which the networks of 16-bit matmuls do not include."""
    if batch.dtype != "tf32":
        return np.zeros(len(batch))
    seconds: Array = unaligned_matmul_seconds(batch, [gpu])[0]
    return seconds


SINGLE_PRECISION: Final = NetworkSpec(
    name="matmul_single",
    dtypes=("float32",),
    describe=matmul_features,
    unmeasured=with_sustained_peaks,
    log_uncertainty=sustained_rate_uncertainty,
)
HALF_PRECISION: Final = NetworkSpec(
    name="matmul_half",
    dtypes=("float16", "bfloat16"),
    describe=matmul_features,
    floor=unaligned_matmul_seconds,
    upper_interval_factor=_alignment_uncertainty,
    unmeasured=with_sustained_peaks,
    log_uncertainty=sustained_rate_uncertainty,
)


def _of_columns(b: float, m: float, n: float, k: float) -> tuple[float, float, float, float]:
    """Return the shape of a matmul Aᵀ·B by row-major A and B, as a matmul A·B of the same speed.

    The rows in memory have m and n elements, so an odd depth (tokens, for the gradient of a weight) is harmless. On the
    H200, 1,457 tokens of 1,024 to 4,096 features take 41 us forward and backward; as an odd depth, they took 124.
    """
    if k >= TENSOR_ALIGNMENT**2:  # a shorter depth would grow too much, and takes little time
        k = math.ceil(k / TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
    return (b, n, m, k) if m % TENSOR_ALIGNMENT > 0 == n % TENSOR_ALIGNMENT else (b, m, n, k)


def _matmul_backward(shape: OperationShape) -> tuple[CountedShape, ...]:
    """Split into two matmuls: gradient x weight for the data, data x gradient for the weight."""
    b, m, n, k = shape.dims
    if shape.operation == "linear_backward":
        products = ((1.0, b * m, k, n), _of_columns(1.0, k, n, b * m))
    else:
        products = ((b, m, k, n), _of_columns(b, k, n, m))
    name = shape.operation.removesuffix("_backward")
    return tuple(CountedShape(1.0, OperationShape(name, shape.dtype, dims)) for dims in products)


register(
    OperationSpec(
        name="linear",
        shape=("b", "m", "n", "k"),
        defaults={"b": 1},
        units="tensor",
        flops=_flops,
        reads=lambda c: c["b"] * c["m"] * c["k"] + c["k"] * c["n"],  # the weight is shared by all b
        writes=_outputs,
        estimators=(SINGLE_PRECISION, HALF_PRECISION),
        latency=_single_latency,
    ),
    OperationSpec(
        name="bmm",
        shape=("b", "m", "n", "k"),
        defaults={},
        units="tensor",
        flops=_flops,
        reads=lambda c: c["b"] * (c["m"] * c["k"] + c["k"] * c["n"]),
        writes=_outputs,
        estimators=(SINGLE_PRECISION, HALF_PRECISION),
        latency=_single_latency,
    ),
    # The gradient and both operands are read; the gradients of both operands are written.
    OperationSpec(
        name="linear_backward",
        shape=("b", "m", "n", "k"),
        defaults={"b": 1},
        units="tensor",
        flops=lambda c: 2 * _flops(c),
        reads=lambda c: _outputs(c) + c["b"] * c["m"] * c["k"] + c["k"] * c["n"],
        writes=lambda c: c["b"] * c["m"] * c["k"] + c["k"] * c["n"],
        estimators=(Surrogate(_matmul_backward),),
    ),
    OperationSpec(
        name="bmm_backward",
        shape=("b", "m", "n", "k"),
        defaults={},
        units="tensor",
        flops=lambda c: 2 * _flops(c),
        reads=lambda c: _outputs(c) + c["b"] * (c["m"] * c["k"] + c["k"] * c["n"]),
        writes=lambda c: c["b"] * (c["m"] * c["k"] + c["k"] * c["n"]),
        estimators=(Surrogate(_matmul_backward),),
    ),
)


def _matmul(operation: Operation, place: int, flags: Flags) -> tuple[OperationShape, ...] | None:
    """Translate a matmul of matrices, or of batches of matrices, the first of which is the input at `place`."""
    left, right = operation.inputs[place : place + 2]
    if len(left.shape) != len(right.shape) or len(left.shape) not in (2, 3):
        return None
    *batch, m, k = left.shape
    dims: tuple[float, float, float, float] = (math.prod(batch), m, right.shape[-1], k)
    if operation.arguments.get(FIRST_TRANSPOSED) and not operation.arguments.get(SECOND_TRANSPOSED):
        dims = _of_columns(*dims)
    return _shapes("bmm" if batch else "linear", left, dims, flags)


def _shapes(
    name: str, data: TensorInfo, dims: tuple[float, float, float, float], flags: Flags
) -> tuple[OperationShape, ...]:
    """Return one matmul of (b, m, n, k); empty if a side is empty. A packed four-bit element holds two numbers."""
    if min(dims) <= 0:
        return ()
    b, m, n, k = map(float, dims)
    if is_complex(data):
        b *= COMPLEX_MATMULS
    if data.dtype.endswith("_x2"):
        k *= 2
    dtype = compute_dtype(data, tf32=flags.matmul_tf32)
    return (OperationShape(name, dtype, (b, m, n, k)),)


@translates("aten::mm", "aten::bmm", "aten::_scaled_mm", "aten::_scaled_mm_v2", "aten::_int_mm")
def _plain_matmul(operation: Operation, flags: Flags) -> tuple[OperationShape, ...] | None:
    return _matmul(operation, 0, flags) if len(operation.inputs) > 1 else None


@translates("aten::addmm", "aten::baddbmm", "aten::addbmm", "aten::_addmm_activation")
def _matmul_with_addend(operation: Operation, flags: Flags) -> tuple[OperationShape, ...] | None:
    # The addend comes first; cuBLAS adds it in the epilogue.
    return _matmul(operation, 1, flags) if len(operation.inputs) > 2 else None


@translates("aten::linear", "aten::mkldnn_linear")
def _linear(operation: Operation, flags: Flags) -> tuple[OperationShape, ...] | None:
    if len(operation.inputs) < 2 or len(operation.inputs[1].shape) != 2:
        return None
    data, weight = operation.inputs[:2]
    n, k = weight.shape
    return _shapes("linear", data, (1, math.prod(data.shape[:-1]), n, k), flags)


@translates("_Linear", "_LayerNormLinear")
def _transformer_engine_linear(operation: Operation, flags: Flags) -> tuple[OperationShape, ...] | None:
    """Translate a linear layer of TransformerEngine, whose weight and data are matrices with equal rows.

    The order of weight and data differs between releases. In a layer with a norm, the norm's vectors lie between them.
    Float8 matmuls are scaled by their kernels' names instead, because other GPUs compute them in 16 bits.
    """
    from lightning_predict.kernels.kernel_names import matrix_dtype

    matrices = [tensor for tensor in operation.inputs if len(tensor.shape) >= 2][:2]
    if len(matrices) < 2 or matrices[0].shape[-1] != matrices[1].shape[-1]:
        return None
    data, weight = matrices
    if any(matrix_dtype(kernel.name) == "float8" for kernel in operation.kernels):
        return None
    return _shapes("linear", data, (1, math.prod(data.shape[:-1]), math.prod(weight.shape[:-1]), data.shape[-1]), flags)


@translates("aten::mv", "aten::dot", "aten::vdot")
def _matrix_vector(operation: Operation, flags: Flags) -> tuple[OperationShape, ...] | None:
    left = operation.inputs[0]
    return _with_vector(left, flags) if len(left.shape) in (1, 2) else None


@translates("aten::addmv")
def _matrix_vector_with_addend(operation: Operation, flags: Flags) -> tuple[OperationShape, ...] | None:
    if len(operation.inputs) < 3 or len(operation.inputs[1].shape) != 2:
        return None
    return _with_vector(operation.inputs[1], flags)


def _with_vector(left: TensorInfo, flags: Flags) -> tuple[OperationShape, ...]:
    m, k = (1, *left.shape)[-2:]
    return _shapes("linear", left, (1, m, 1, k), flags)


@translates("aten::_grouped_mm", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2")
def _grouped_matmul(operation: Operation, flags: Flags) -> tuple[OperationShape, ...] | None:
    """Translate one matmul per group (mixture of experts). Offsets split the operand without a group dimension.

    The offsets are data, so groups are assumed to be equal. The total work does not depend on the split:

    * (rows, k) x (groups, k, n), split rows: 2·rows·k·n
    * (groups, m, k) x (k, columns), split columns: 2·m·k·columns
    * (m, depth) x (depth, n), split depth: 2·m·n·depth, one result per group
    * (groups, m, k) x (groups, k, n): batches
    """
    if len(operation.inputs) < 2:
        return None
    left, right = operation.inputs[:2]
    match len(left.shape), len(right.shape):
        case 2, 3:
            groups, k, n = right.shape
            dims: Sequence[float] = (groups, left.shape[0] / max(groups, 1), n, k)
        case 3, 2:
            groups, m, k = left.shape
            dims = (groups, m, right.shape[1] / max(groups, 1), k)
        case 2, 2:
            # The offsets, one per group, come after the operands and their scales.
            offsets = [tensor for tensor in operation.inputs[2:] if len(tensor.shape) == 1 and tensor.dtype == "int32"]
            groups = offsets[0].shape[0] if offsets else 1
            dims = (groups, left.shape[0], right.shape[1], left.shape[1] / max(groups, 1))
        case 3, 3:
            groups, m, k = left.shape
            dims = (groups, m, right.shape[2], k)
        case _:
            return None
    if min(dims) <= 0:
        return ()
    count, rows, columns, depth = dims
    # A group has at least one row, column or layer; with fewer rows than groups, some groups are empty.
    return _shapes("bmm", left, (count, max(rows, 1.0), max(columns, 1.0), max(depth, 1.0)), flags)


@translates("aten::_trilinear")
def _trilinear(operation: Operation, flags: Flags) -> tuple[OperationShape, ...] | None:
    """Translate `torch.nn.Bilinear` and its gradients: a product of two operands, then a matmul with the third operand.

    ATen unrolls one dimension, with two launches per index.
    """
    named = operation.arguments
    if len(operation.inputs) < 3 or not {"expand1", "expand2", "expand3", "sumdim", "unroll_dim"} <= named.keys():
        return None
    unrolled, summed = int(named["unroll_dim"]), set(named["sumdim"])
    factors = []
    for number, tensor in enumerate(operation.inputs[:3], 1):
        places = range(len(tensor.shape) + len(named[f"expand{number}"]))
        own = [place for place in places if place not in named[f"expand{number}"]]
        factors.append(dict(zip(own, tensor.shape, strict=True)))
    times = max(factor.pop(unrolled, 1) for factor in factors)
    first, second, third = factors
    between, dims = _contracted(first, second, summed - third.keys())
    _, last_dims = _contracted(between, third, summed)
    data = operation.inputs[0]
    return (*_shapes("bmm", data, dims, flags), *_shapes("bmm", data, last_dims, flags)) * times


def _contracted(
    left: dict[int, int], right: dict[int, int], summed: set[int]
) -> tuple[dict[int, int], tuple[float, float, float, float]]:
    """Return the sides of two operands' product, summed over some sides, and the batched matmul for it."""
    both = left.keys() & right.keys()
    groups = (both - summed, left.keys() - both, right.keys() - both, both & summed)
    sizes = left | right
    b, m, n, k = (float(math.prod(sizes[side] for side in group)) for group in groups)
    return {side: size for side, size in sizes.items() if side not in summed}, (b, m, n, k)
