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

from dataclasses import replace

import numpy as np

from lightning_predict.kernels.operations import Array, Columns, OperationKind, register

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


def output_height(c: Columns) -> Array:
    """Rows of the output, at least 1."""
    reach = c["dilation_height"] * (c["kernel_height"] - 1) + 1
    return np.maximum(np.floor((c["height"] + 2 * c["padding_height"] - reach) / c["stride_height"]) + 1, 1)


def output_width(c: Columns) -> Array:
    """Columns of the output, at least 1."""
    reach = c["dilation_width"] * (c["kernel_width"] - 1) + 1
    return np.maximum(np.floor((c["width"] + 2 * c["padding_width"] - reach) / c["stride_width"]) + 1, 1)


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
register(
    _FORWARD, replace(_FORWARD, name="conv2d_backward_input"), replace(_FORWARD, name="conv2d_backward_weight")
)
