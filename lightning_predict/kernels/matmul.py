"""Matrix products: `linear` and `bmm`, (b, m, k) x (b, k, n).

Work: 2·b·m·n·k. Traffic: both factors read, the product written. The backward pass is two products of the same size,
the gradients to either factor. Example::

    >>> from lightning_predict.kernels.operations import problem_batch
    >>> float(problem_batch("bmm", "float32", b=2, m=3, n=5, k=4).flops[0])  # 2 x 2 x 3 x 5 x 4
    240.0
"""

from __future__ import annotations

import math

from lightning_predict.kernels.operations import Array, Columns, OperationKind, Problem, register
from lightning_predict.kernels.translation import compute_dtype, translates
from lightning_predict.tracing.records import Flags, Operation, TensorInfo


def _flops(c: Columns) -> Array:
    return 2 * c["b"] * c["m"] * c["n"] * c["k"]


def _bmm_elements(c: Columns) -> Array:
    return c["b"] * (c["m"] * c["k"] + c["k"] * c["n"] + c["m"] * c["n"])


def _linear_elements(c: Columns) -> Array:
    # The weight (k, n) is one for all b.
    return c["b"] * c["m"] * (c["k"] + c["n"]) + c["k"] * c["n"]


register(
    OperationKind(
        name="linear",
        words=("b", "m", "n", "k"),
        defaults={"b": 1},
        units="tensor",
        flops=_flops,
        elements_moved=_linear_elements,
    ),
    OperationKind(
        name="bmm",
        words=("b", "m", "n", "k"),
        defaults={},
        units="tensor",
        flops=_flops,
        elements_moved=_bmm_elements,
    ),
    # Gradient and factors read, the gradients to both factors written: each factor counts twice.
    OperationKind(
        name="linear_backward",
        words=("b", "m", "n", "k"),
        defaults={"b": 1},
        units="tensor",
        flops=lambda c: 2 * _flops(c),
        elements_moved=lambda c: 2 * _linear_elements(c) - c["b"] * c["m"] * c["n"],
    ),
    OperationKind(
        name="bmm_backward",
        words=("b", "m", "n", "k"),
        defaults={},
        units="tensor",
        flops=lambda c: 2 * _flops(c),
        elements_moved=lambda c: 2 * _bmm_elements(c) - c["b"] * c["m"] * c["n"],
    ),
)


def _product(tensors: tuple[TensorInfo, TensorInfo], flags: Flags) -> tuple[Problem, ...]:
    """Problem of `left @ right` for matrices, or for batches of them."""
    left, right = tensors
    *batch, m, k = left.shape
    n = right.shape[-1]
    dtype = compute_dtype(left, tf32=flags.matmul_tf32)
    b = math.prod(batch)
    if min(b, m, n, k) < 1:
        return ()
    return (Problem("bmm" if batch else "linear", dtype, (float(b), float(m), float(n), float(k))),)


@translates("aten::mm", "aten::bmm", "aten::_scaled_mm", "aten::_int_mm")
def _plain_product(operation: Operation, flags: Flags) -> tuple[Problem, ...]:
    return _product((operation.inputs[0], operation.inputs[1]), flags)


@translates("aten::addmm", "aten::baddbmm", "aten::addbmm", "aten::_addmm_activation")
def _product_with_addend(operation: Operation, flags: Flags) -> tuple[Problem, ...]:
    # The addend comes first; cuBLAS adds it in the epilogue.
    return _product((operation.inputs[1], operation.inputs[2]), flags)


@translates("aten::linear", "aten::mkldnn_linear")
def _linear(operation: Operation, flags: Flags) -> tuple[Problem, ...]:
    data, weight = operation.inputs[0], operation.inputs[1]
    n, k = weight.shape
    m = math.prod(data.shape[:-1])
    return (Problem("linear", compute_dtype(data, tf32=flags.matmul_tf32), (1.0, float(m), float(n), float(k))),)


@translates("aten::mv", "aten::dot", "aten::vdot")
def _vector_product(operation: Operation, flags: Flags) -> tuple[Problem, ...]:
    left = operation.inputs[0]
    m, k = (1, left.shape[0]) if len(left.shape) == 1 else left.shape
    return (Problem("linear", compute_dtype(left, tf32=flags.matmul_tf32), (1.0, float(m), 1.0, float(k))),)
