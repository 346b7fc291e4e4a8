"""Convolutions in two dimensions, and the two halves of their backward pass.

One pass multiplies every output position with every filter tap: 2·N·O·H'·W'·(I/groups)·Kh·Kw, the same for the gradient
to the input and to the weight. `H' = floor((H + 2p - d(K - 1) - 1) / s) + 1`. A 3 x 3 stride-1 filter may go through
Winograd's F(2x2, 3x3), which needs 16 multiplications where the textbook needs 36, so 2.25 times fewer is the least.

One and three dimensions reduce to two: a line is an image of height 1, and a volume folds its depth into the batch
(outputs) and into the channels (taps). Example::

    >>> from lightning_predict.kernels.operations import problem_batch
    >>> batch = problem_batch("conv2d", "float32", batch=1, in_channels=3, out_channels=8, kernel_size=3,
    ...                       image_size=4, padding=1)
    >>> float(batch.flops[0])  # 2 x 8 x 4 x 4 x 3 x 3 x 3
    6912.0
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from lightning_predict.kernels.operations import Array, Columns, OperationKind, Problem, register
from lightning_predict.kernels.translation import COMPLEX_PRODUCTS, compute_dtype, is_complex, translates
from lightning_predict.tracing.trace import Flags, Operation, TensorInfo

_WORDS = (
    "batch",
    "in_channels",
    "out_channels",
    "height",
    "width",
    "kernel_height",
    "kernel_width",
    "stride_height",
    "stride_width",
    "padding_height",
    "padding_width",
    "dilation_height",
    "dilation_width",
    "groups",
)

WINOGRAD_GAIN = 2.25
"""Multiplications of the textbook over those of F(2x2, 3x3): 36 / 16."""


def _at_least_one(steps: Array) -> Array:
    """Output positions of a filter that can move by this many (fractional) steps."""
    positions: Array = np.maximum(np.floor(steps) + 1, 1)
    return positions


def output_size(c: Columns, side: str) -> Array:
    """Positions of the output along `height`, `width` or `depth`, at least 1."""
    reach = c[f"dilation_{side}"] * (c[f"kernel_{side}"] - 1) + 1
    return _at_least_one((c[side] + 2 * c[f"padding_{side}"] - reach) / c[f"stride_{side}"])


def output_height(c: Columns) -> Array:
    """Rows of the output, at least 1."""
    return output_size(c, "height")


def output_width(c: Columns) -> Array:
    """Columns of the output, at least 1."""
    return output_size(c, "width")


def _flops(c: Columns) -> Array:
    taps = c["in_channels"] / c["groups"] * c["kernel_height"] * c["kernel_width"]
    return 2 * c["batch"] * c["out_channels"] * output_height(c) * output_width(c) * taps


def _least_flops(c: Columns) -> Array:
    winograd = (
        (c["kernel_height"] == 3)
        & (c["kernel_width"] == 3)
        & (c["stride_height"] == 1)
        & (c["stride_width"] == 1)
        & (c["dilation_height"] == 1)
        & (c["dilation_width"] == 1)
    )
    return _flops(c) / np.where(winograd, WINOGRAD_GAIN, 1.0)


def _elements(c: Columns) -> Array:
    images = c["batch"] * c["in_channels"] * c["height"] * c["width"]
    filters = c["out_channels"] * c["in_channels"] / c["groups"] * c["kernel_height"] * c["kernel_width"]
    outputs = c["batch"] * c["out_channels"] * output_height(c) * output_width(c)
    return images + filters + outputs


_FORWARD = OperationKind(
    name="conv2d",
    words=_WORDS,
    defaults={
        "width": "height",
        "kernel_width": "kernel_height",
        "stride_height": 1,
        "stride_width": "stride_height",
        "padding_height": 0,
        "padding_width": 0,
        "dilation_height": 1,
        "dilation_width": "dilation_height",
        "groups": 1,
    },
    units="tensor",
    flops=_flops,
    least_flops=_least_flops,
    elements_moved=_elements,
    spellings={
        "image_size": ("height", "width"),
        "kernel_size": ("kernel_height", "kernel_width"),
        "stride": ("stride_height", "stride_width"),
        "padding": ("padding_height", "padding_width"),
        "dilation": ("dilation_height", "dilation_width"),
    },
)

# Each half of the backward pass reads two of (images, filters, outputs) and writes the third: the same traffic.
register(_FORWARD, replace(_FORWARD, name="conv2d_backward_input"), replace(_FORWARD, name="conv2d_backward_weight"))


def _numbers(operation: Operation, name: str, dimensions: int, default: float) -> list[float]:
    """A convolution argument as one number a dimension."""
    value = operation.arguments.get(name)
    if value is None:
        return [default] * dimensions
    numbers = [float(item) for item in value] if isinstance(value, (list, tuple)) else [float(value)]
    return numbers * dimensions if len(numbers) == 1 else numbers


def _convolution_problem(
    name: str, operation: Operation, flags: Flags, images: TensorInfo, weight: TensorInfo
) -> Problem:
    """A convolution of `images` (N, C, *sizes) by `weight` (O, C / groups, *taps), reduced to two dimensions.

    A volume is folded: its output depth goes into the batch and its taps' depth into the channels, which keeps FLOPs.
    """
    sizes, taps = list(images.shape[2:]), list(weight.shape[2:])
    dimensions = len(sizes)
    stride = _numbers(operation, "stride", dimensions, 1)
    padding = _numbers(operation, "padding", dimensions, 0)
    dilation = _numbers(operation, "dilation", dimensions, 1)
    # Calls without an argument for groups (depthwise ones) have as many as the channels ask for.
    groups = float(operation.arguments.get("groups", max(images.shape[1] // max(weight.shape[1], 1), 1)))
    batch, channels = float(images.shape[0]), float(weight.shape[1]) * groups
    if dimensions == 3:
        reach = dilation[0] * (taps[0] - 1) + 1
        batch *= max(math.floor((sizes[0] + 2 * padding[0] - reach) / stride[0]) + 1, 1)
        channels *= taps[0]
    if dimensions == 1:
        sizes, taps = [1, *sizes], [1, *taps]
        stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
    pairs = (sizes[-2:], taps[-2:], stride[-2:], padding[-2:], dilation[-2:])
    flat = [float(value) for pair in pairs for value in pair]
    dtype = compute_dtype(images, tf32=flags.cudnn_tf32)
    if is_complex(images):
        batch *= COMPLEX_PRODUCTS
    return Problem(name, dtype, (batch, channels, float(weight.shape[0]), *flat, groups))


def _transposed_images(operation: Operation, data: TensorInfo, weight: TensorInfo) -> TensorInfo:
    """The large side of a transposed convolution: what it writes, which the matching convolution would read."""
    dimensions = len(data.shape) - 2
    stride = _numbers(operation, "stride", dimensions, 1)
    padding = _numbers(operation, "padding", dimensions, 0)
    dilation = _numbers(operation, "dilation", dimensions, 1)
    extra = _numbers(operation, "output_padding", dimensions, 0)
    spread = [(data.shape[2 + i] - 1) * stride[i] - 2 * padding[i] for i in range(dimensions)]
    reach = [dilation[i] * (weight.shape[2 + i] - 1) + extra[i] + 1 for i in range(dimensions)]
    sizes = [int(a + b) for a, b in zip(spread, reach, strict=True)]
    channels = weight.shape[1] * int(operation.arguments.get("groups", 1))
    return TensorInfo((data.shape[0], channels, *sizes), data.dtype)


def _are_images(images: TensorInfo, weight: TensorInfo) -> bool:
    """True for (N, C, *sizes) and (O, C, *taps) of one, two or three dimensions."""
    return len(images.shape) == len(weight.shape) and len(images.shape) in (3, 4, 5)


@translates(
    "aten::convolution",
    "aten::_convolution",
    "aten::convolution_overrideable",
    "aten::cudnn_convolution",
    "aten::cudnn_convolution_relu",
    "aten::cudnn_convolution_add_relu",
    "aten::mkldnn_convolution",
    "aten::_slow_conv2d_forward",
    "aten::slow_conv3d_forward",
    "aten::slow_conv_dilated2d",
    "aten::slow_conv_dilated3d",
    "aten::_conv_depthwise2d",
    "aten::conv_depthwise3d",
    "aten::cudnn_convolution_transpose",
    "aten::slow_conv_transpose2d",
    "aten::slow_conv_transpose3d",
)
def _forward(operation: Operation, flags: Flags) -> tuple[Problem, ...] | None:
    if len(operation.inputs) < 2 or not _are_images(*operation.inputs[:2]):
        return None
    data, weight = operation.inputs[:2]
    if operation.arguments.get("transposed") or "transpose" in operation.name:
        # A transposed convolution computes what the gradient to the input of a convolution does.
        images = _transposed_images(operation, data, weight)
        return (_convolution_problem("conv2d_backward_input", operation, flags, images, weight),)
    return (_convolution_problem("conv2d", operation, flags, data, weight),)


@translates("aten::convolution_backward", "aten::convolution_backward_overrideable")
def _backward(operation: Operation, flags: Flags) -> tuple[Problem, ...] | None:
    if len(operation.inputs) < 3 or not _are_images(*operation.inputs[1:3]):
        return None
    gradient, data, weight = operation.inputs[:3]
    wanted = operation.arguments.get("output_mask", (True, True, True))
    transposed = bool(operation.arguments.get("transposed"))
    images = gradient if transposed else data
    problems: list[Problem] = []
    if wanted[0]:
        name = "conv2d" if transposed else "conv2d_backward_input"
        problems.append(_convolution_problem(name, operation, flags, images, weight))
    if wanted[1]:
        problems.append(_convolution_problem("conv2d_backward_weight", operation, flags, images, weight))
    if wanted[2]:
        read = float(gradient.size_bytes)
        problems.append(Problem("transfer", "float32", (read, 0.0, float(gradient.elements))))
    return tuple(problems)
