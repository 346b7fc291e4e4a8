"""How operands lie in memory, which kernels depend on: images, factors of products, and operands beside each other.

Images lie channels first (N, C, H, W) or channels last, as tensor cores want them. A convolution whose images are
channels last bears the argument `channels_last`, whichever way it was recorded, and a product whose second factor is
transposed `second_transposed`.

Operands of element-wise calls and copies lie alike, or so that a kernel reads them apart. PyTorch's kernels load
several elements at once where all operands lie alike without gaps, and one by one elsewhere. There the blocks of a
kernel share what they read by the way: neighbours of the result that are neighbours in an operand come in one sector,
others in a sector each. A call whose operands do not lie alike bears the argument `strided`, whichever way it was
recorded: how many elements lie side by side that one block reads. Example::

    >>> rows = (64, 128), (128, 1)                        # sizes and strides
    >>> columns = (64, 128), (1, 64)
    >>> side_by_side("aten::add", [rows, rows], {}) is None
    True
    >>> side_by_side("aten::add", [rows, columns], {})    # 512 elements of a block are 4 rows: 4 neighbours of a column
    4
    >>> side_by_side("aten::clone", [columns], {}) is None, side_by_side("aten::clone", [columns], TO_ROWS)
    (True, 4)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

# --- Images and factors

CHANNELS_LAST: Final = "channels_last"
"""Argument of a convolution or batch norm that reads images in this layout; left out for channels first."""

IMAGES_AT: Final[Mapping[str, int]] = {
    "aten::convolution": 0,
    "aten::_convolution": 0,
    "aten::cudnn_convolution": 0,
    "aten::convolution_backward": 1,
}
"""Convolutions, with the position of the images among their arguments."""

LAYOUT_AT: Final[Mapping[str, int]] = {
    **IMAGES_AT,
    "aten::native_batch_norm": 0,
    "aten::_native_batch_norm_legit": 0,
    "aten::_batch_norm_with_update": 0,
    "aten::cudnn_batch_norm": 0,
    "aten::native_batch_norm_backward": 1,
    "aten::batch_norm_backward": 1,
    "aten::cudnn_batch_norm_backward": 0,
}
"""Calls whose kernels depend on the layout of their images, with the position of these."""

SECOND_TRANSPOSED: Final = "second_transposed"
"""Argument of a product A·Bᵀ, whose second factor lies column by column, as a linear layer's; left out for others."""

FACTORS_AT: Final[Mapping[str, int]] = {"aten::mm": 1, "aten::addmm": 2, "aten::bmm": 1, "aten::baddbmm": 2}
"""Products, with the position of the second factor among their arguments."""


def is_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether neighbours in memory are channels; False where both layouts are the same, too.

    Args:
        shape: Sizes (N, C, *sizes) in two or three dimensions.
        strides: Elements between neighbours in each dimension.
    """
    if len(shape) not in (4, 5) or len(strides) != len(shape):
        return False
    return shape[1] > 1 and math.prod(shape[2:]) > 1 and strides[1] == 1


def is_transposed(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether neighbours in memory are the rows of matrices; False where both orders are the same, too.

    Args:
        shape: Sizes (rows, columns), or of batches of such.
        strides: Elements between neighbours in each dimension.
    """
    if len(shape) not in (2, 3) or len(strides) != len(shape):
        return False
    return min(shape[-2:]) > 1 and strides[-2] == 1


# --- Operands of element-wise calls and copies

STRIDED: Final = "strided"
"""Argument of a call whose operands do not lie alike: elements that one block reads and that lie side by side."""

BLOCK_ELEMENTS: Final = 512
"""Elements of a block of an element-wise kernel that loads one by one: 128 threads, 4 elements each."""

TO_ROWS: Final = {"memory_format": "contiguous_format"}
"""Arguments of a copy into rows."""

POINTWISE: Final = frozenset(
    # Those with torch's own tag `pointwise`, less the special functions, which compute for long.
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
    # And those that lack it.
    "_fused_dropout _prelu_kernel _prelu_kernel_backward binary_cross_entropy binary_cross_entropy_backward "
    "binary_cross_entropy_with_logits dropout elu_backward floor_divide glu glu_backward hardshrink_backward "
    "hardsigmoid_backward hardswish hardswish_backward hardtanh_backward huber_loss huber_loss_backward kl_div l1_loss "
    "leaky_relu_backward log_sigmoid log_sigmoid_backward log_sigmoid_forward mish_backward mse_loss "
    "mse_loss_backward native_dropout prelu rrelu_with_noise rrelu_with_noise_backward smooth_l1_loss "
    "smooth_l1_loss_backward soft_margin_loss softplus_backward softshrink_backward".split()
)
"""Element-wise calls, without `aten::`."""

LAID_OUT: Final = frozenset(
    f"aten::{name}{suffix}" for name in {*POINTWISE, "_to_copy", "copy", "cat", "stack"} for suffix in ("", "_")
) - {"aten::equal", "aten::positive"}
"""Calls whose kernels depend on how their operands lie."""

Operand = tuple[Sequence[int], Sequence[int]]
"""Sizes of a tensor and its strides, in elements."""


def side_by_side(name: str, operands: Sequence[Operand], arguments: Mapping[str, Any]) -> int | None:
    """Return how many elements that a block reads lie side by side; None where the operands lie alike without gaps.

    Args:
        name: One of `LAID_OUT`.
        operands: The call's tensors, in the schema's order; a copy's destination is the first.
        arguments: The call's other arguments.
    """
    found = [_merged(sizes, strides) for sizes, strides in operands if len(sizes) == len(strides) and 0 not in sizes]
    if not found:
        return None
    # Operands that are broadcast are told by their sizes.
    largest = max(math.prod(sizes) for sizes, _ in found)
    whole = [one for one in found if math.prod(one[0]) == largest] if name not in _JOINING else found
    orders = {tuple(_order(strides)) for _, strides in whole}
    into_rows = arguments.get("memory_format") == TO_ROWS["memory_format"]
    order = sorted(next(iter(orders))) if into_rows or name in _JOINING else _order(whole[0][1])
    if len(orders) == 1 and all(map(_is_whole, whole)) and (not into_rows or tuple(order) in orders):
        return None
    return min(_run(one, order if len(one[0]) == len(order) else range(len(one[0]))) for one in whole)


_JOINING: Final = frozenset({"aten::cat", "aten::stack"})


def _merged(sizes: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Leave out dimensions of one element, whose strides mean nothing."""
    kept = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size > 1]
    return tuple(size for size, _ in kept), tuple(stride for _, stride in kept)


def _order(strides: Sequence[int]) -> list[int]:
    """List dimensions from the slowest to the fastest."""
    return sorted(range(len(strides)), key=lambda place: -strides[place])


def _is_whole(operand: Operand) -> bool:
    """Return whether a tensor has neither gaps nor elements that it shares."""
    expected = 1
    for place in reversed(_order(operand[1])):
        if operand[1][place] != expected:
            return False
        expected *= operand[0][place]
    return True


def _run(operand: Operand, order: Sequence[int]) -> int:
    """Count elements of one block that lie side by side in an operand, the result's dimensions from slow to fast."""
    sizes, strides = operand
    beside = next((place for place in order if strides[place] == 1), None)
    if beside is None:  # one element of each row, or one for all
        return BLOCK_ELEMENTS if 0 in strides or not sizes else 1
    faster = math.prod(sizes[place] for place in order[list(order).index(beside) + 1 :])
    return max(min(BLOCK_ELEMENTS // faster, sizes[beside]), 1)
