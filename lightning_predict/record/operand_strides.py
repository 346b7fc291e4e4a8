"""Memory layout (strides) of operands on which kernels depend: images, matmul factors and element-wise operands.

Images are stored channels first (N, C, H, W) or channels last, which tensor cores need. A convolution with
channels-last images has the argument `channels_last`. A matmul with a transposed factor has the argument
`first_transposed` or `second_transposed`. All recorders set these arguments.

PyTorch's element-wise and copy kernels load several elements at once if all operands have the same layout without gaps.
Otherwise, the kernels load single elements: contiguous elements of an operand share a memory sector, and every other
element takes a whole sector. A call with different layouts has the argument `strided`: the number of contiguous
elements that a block reads. All recorders set this argument. Example::

    >>> rows = (64, 128), (128, 1)                        # sizes and strides
    >>> columns = (64, 128), (1, 64)
    >>> contiguous_elements("aten::add", [rows, rows], {}) is None
    True
    >>> contiguous_elements("aten::add", [rows, columns], {})    # a block of 512 reads 4 rows: 4 contiguous elements
    4
    >>> contiguous_elements("aten::clone", [columns], {}) is None
    True
    >>> contiguous_elements("aten::clone", [columns], TO_ROWS)
    4
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

# --- Images and matmul factors

CHANNELS_LAST: Final = "channels_last"  # Argument of a convolution or batch norm with channels-last images; else absent

IMAGES_AT: Final[Mapping[str, int]] = {  # Convolutions, with the position of the images among their arguments
    "aten::convolution": 0,
    "aten::_convolution": 0,
    "aten::cudnn_convolution": 0,
    "aten::convolution_backward": 1,
}

IMAGES_POSITION: Final[Mapping[str, int]] = {
    **IMAGES_AT,
    "aten::native_batch_norm": 0,
    "aten::_native_batch_norm_legit": 0,
    "aten::_batch_norm_with_update": 0,
    "aten::cudnn_batch_norm": 0,
    "aten::native_batch_norm_backward": 1,
    "aten::batch_norm_backward": 1,
    "aten::cudnn_batch_norm_backward": 0,
    "aten::max_pool2d_with_indices_backward": 1,
}
"""Operations whose kernels depend on the layout of their images, with the position of the images."""

SECOND_TRANSPOSED: Final = "second_transposed"
"""Argument of a matmul A·Bᵀ whose second factor is column-major, as in a linear layer; otherwise absent."""

FIRST_TRANSPOSED: Final = "first_transposed"
"""Argument of a matmul Aᵀ·B whose first factor is column-major, as in the gradient of a weight; otherwise absent."""

SECOND_FACTOR_POSITION: Final[Mapping[str, int]] = {"aten::mm": 1, "aten::addmm": 2, "aten::bmm": 1, "aten::baddbmm": 2}
"""Matmuls, with the position of the second factor among their arguments; the first factor precedes it."""


def is_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether adjacent elements in memory are channels; False if both memory formats are identical.

    Args:
        shape: Shape (N, C, *sizes), with two or three spatial dimensions.
        strides: Strides in elements.
    """
    if len(shape) not in (4, 5) or len(strides) != len(shape):
        return False
    return shape[1] > 1 and math.prod(shape[2:]) > 1 and strides[1] == 1


def is_transposed(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether matrices are column-major; False if row-major and column-major are identical.

    Args:
        shape: Shape (rows, columns), or (batch, rows, columns).
        strides: Strides in elements.
    """
    if len(shape) not in (2, 3) or len(strides) != len(shape):
        return False
    return min(shape[-2:]) > 1 and strides[-2] == 1


# --- Operands of element-wise calls and copies

CONTIGUOUS_ELEMENTS: Final = "strided"
"""Argument of a call whose operands have different layouts: the number of contiguous elements that one block reads."""

BLOCK_ELEMENTS: Final = 512  # Elements per block of an element-wise kernel with scalar loads: 128 threads, 4 each
TO_ROWS: Final = {"memory_format": "contiguous_format"}  # Arguments of a copy to a row-major layout

POINTWISE: Final = frozenset(  # Names of element-wise operations, without `aten::`
    # Operations with torch's tag `pointwise`, except special functions, which are compute-bound.
    "__ilshift_ __ixor_ __lshift_ __rshift_ __xor_ _conj_physical abs acos acosh add addcdiv addcmul angle asin asinh "
    "atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu "
    "clamp clamp_max clamp_min clip clone conj_physical copysign cos cosh deg2rad div elu eq equal erf erfc erfinv exp "
    "exp2 expm1 float_power floor fmax fmin fmod frac frexp ge gelu gelu_backward gt hardshrink hardsigmoid hardtanh "
    "heaviside hypot isfinite isinf isnan isneginf isposinf ldexp le leaky_relu lerp log log10 log1p log2 logaddexp "
    "logaddexp2 logical_and logical_not logical_or logical_xor logit logit_backward lt masked_fill max maximum min "
    "minimum mish mul nan_to_num native_dropout_backward ne neg nextafter positive pow rad2deg reciprocal relu relu6 "
    "remainder round rrelu rsqrt rsub selu sgn sigmoid sigmoid_backward sign signbit silu silu_backward sin sinc sinh "
    "softplus softshrink sqrt square sub tan tanh tanh_backward threshold threshold_backward true_divide trunc where "
    "xlogy "
    # Element-wise operations without that tag.
    "_fused_dropout _prelu_kernel _prelu_kernel_backward binary_cross_entropy binary_cross_entropy_backward "
    "binary_cross_entropy_with_logits dropout elu_backward floor_divide glu glu_backward hardshrink_backward "
    "hardsigmoid_backward hardswish hardswish_backward hardtanh_backward huber_loss huber_loss_backward kl_div l1_loss "
    "leaky_relu_backward log_sigmoid log_sigmoid_backward log_sigmoid_forward mish_backward mse_loss "
    "mse_loss_backward native_dropout prelu rrelu_with_noise rrelu_with_noise_backward smooth_l1_loss "
    "smooth_l1_loss_backward soft_margin_loss softplus_backward softshrink_backward".split()
)

RECORDED_WITH_STRIDES: Final = frozenset(  # Operations whose kernels depend on the layout of their operands
    f"aten::{name}{suffix}" for name in {*POINTWISE, "_to_copy", "copy", "cat", "stack"} for suffix in ("", "_")
) - {"aten::equal", "aten::positive"}

Operand = tuple[Sequence[int], Sequence[int]]  # Sizes and strides of a tensor, in elements


def contiguous_elements(name: str, operands: Sequence[Operand], arguments: Mapping[str, Any]) -> int | None:
    """Return the number of contiguous elements that a block reads; None if all operands have one layout without gaps.

    Args:
        name: Operation from `RECORDED_WITH_STRIDES`.
        operands: Tensors of the call in schema order. The destination of a copy comes first.
        arguments: Other arguments of the call.
    """
    merged = [_merged(sizes, strides) for sizes, strides in operands if len(sizes) == len(strides) and 0 not in sizes]
    if not merged:
        return None
    # Broadcast operands have fewer elements.
    largest = max(math.prod(sizes) for sizes, _ in merged)
    whole = [operand for operand in merged if math.prod(operand[0]) == largest] if name not in _JOINING else merged
    orders = {tuple(_order(strides)) for _, strides in whole}
    into_rows = arguments.get("memory_format") == TO_ROWS["memory_format"]
    order = sorted(next(iter(orders))) if into_rows or name in _JOINING else _order(whole[0][1])
    if len(orders) == 1 and all(map(_is_whole, whole)) and (not into_rows or tuple(order) in orders):
        return None
    return min(_run(operand, order if len(operand[0]) == len(order) else range(len(operand[0]))) for operand in whole)


_JOINING: Final = frozenset({"aten::cat", "aten::stack"})


def _merged(sizes: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Remove dimensions of size 1, whose strides are meaningless."""
    kept = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size > 1]
    return tuple(size for size, _ in kept), tuple(stride for _, stride in kept)


def _order(strides: Sequence[int]) -> list[int]:
    return sorted(range(len(strides)), key=lambda place: -strides[place])


def _is_whole(operand: Operand) -> bool:
    """Return whether a tensor has no gaps and no overlapping elements."""
    expected = 1
    for place in reversed(_order(operand[1])):
        if operand[1][place] != expected:
            return False
        expected *= operand[0][place]
    return True


def _run(operand: Operand, order: Sequence[int]) -> int:
    """Count the contiguous elements of an operand that one block reads. `order` lists dimensions from slow to fast."""
    sizes, strides = operand
    beside = next((place for place in order if strides[place] == 1), None)
    if beside is None:  # one element per row, or one for all rows
        return BLOCK_ELEMENTS if 0 in strides or not sizes else 1
    # All elements of an expanded dimension are one element in memory.
    faster = math.prod(sizes[place] for place in order[list(order).index(beside) + 1 :] if strides[place])
    return max(min(BLOCK_ELEMENTS // faster, sizes[beside]), 1)
