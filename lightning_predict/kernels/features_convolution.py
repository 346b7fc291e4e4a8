"""Features of two-dimensional convolutions and the two halves of their backward pass.

A convolution is a matrix product of the output positions by the output channels over the filter taps (implicit GEMM);
3 x 3 filters may also go through Winograd, which works on output squares of 2 x 2 or 4 x 4. Example::

    >>> from lightning_predict.gpus import gpu
    >>> from lightning_predict.kernels.operations import problem_batch
    >>> batch = problem_batch("conv2d", "float32", batch=2, in_channels=4, out_channels=8, kernel_size=3, image_size=16,
    ...                       padding=1)
    >>> float(convolution_features(batch, [gpu("T4")])["rows"][0, 0])  # log2(2 x 16 x 16)
    9.0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.convolution import output_height, output_width
from lightning_predict.kernels.features import (
    Family,
    NamedFeatures,
    alignment,
    log2,
    machine_features,
    tile_features,
    work_features,
)
from lightning_predict.kernels.operations import Array, Columns, ProblemBatch

TILES: Final = ((32, 128), (64, 64), (128, 32), (128, 64), (128, 128))
"""Output tiles (positions x channels) of cuDNN's convolution kernels."""


def _implicit_product(batch: ProblemBatch) -> tuple[Array, Array, Array]:
    """Rows, columns and depth of the matrix product of one group."""
    c = batch.columns
    taps = c["kernel_height"] * c["kernel_width"]
    in_channels, out_channels = c["in_channels"] / c["groups"], c["out_channels"] / c["groups"]
    outputs = c["batch"] * output_height(c) * output_width(c)
    if batch.operation == "conv2d_backward_input":
        return c["batch"] * c["height"] * c["width"], in_channels, out_channels * taps
    if batch.operation == "conv2d_backward_weight":
        return out_channels, in_channels * taps, outputs
    return outputs, out_channels, in_channels * taps


def _plane_features(c: Columns) -> dict[str, Array]:
    height, width = output_height(c), output_width(c)
    named = {
        "image_height": log2(c["height"]),
        "image_width": log2(c["width"]),
        "kernel_taps": log2(c["kernel_height"] * c["kernel_width"]),
        "kernel_aspect": log2(c["kernel_height"] / c["kernel_width"]),
        "strides": log2(c["stride_height"] * c["stride_width"]),
        "dilations": log2(c["dilation_height"] * c["dilation_width"]),
        "groups": log2(c["groups"]),
        "output_over_image": log2(height * width / (c["height"] * c["width"])),
    }
    for square in (2, 4, 6):
        covered = np.ceil(height / square) * np.ceil(width / square) * square**2
        named[f"filled_squares_{square}"] = log2(height * width / covered)
    fourier = 2.0 ** np.ceil(log2(np.maximum(height, width) + 2))
    named["fourier_filled"] = log2(height * width / fourier**2)
    is_three = (c["kernel_height"] == 3) & (c["kernel_width"] == 3)
    unit_steps = (c["stride_height"] * c["stride_width"] * c["dilation_height"] * c["dilation_width"]) == 1
    named["may_winograd"] = (is_three & unit_steps & (c["groups"] == 1)).astype(np.float64)
    return {name: values[None, :] for name, values in named.items()}


def convolution_features(batch: ProblemBatch, gpus: Sequence[Gpu]) -> NamedFeatures:
    """All features, by name."""
    c = batch.columns
    rows, cols, depth = _implicit_product(batch)
    shape = {"rows": rows, "cols": cols, "depth": depth}
    shape |= {name: c[name] for name in ("batch", "in_channels", "out_channels")}
    named: dict[str, Array] = {name: log2(values)[None, :] for name, values in shape.items()}
    for name in ("batch", "in_channels", "out_channels"):
        named[f"{name}_alignment"] = alignment(c[name])
    named |= _plane_features(c)
    named["backward_input"] = np.full((1, 1), float(batch.operation == "conv2d_backward_input"))
    named["backward_weight"] = np.full((1, 1), float(batch.operation == "conv2d_backward_weight"))
    named["half"] = np.full((1, 1), float(batch.dtype in ("float16", "bfloat16")))
    named |= tile_features(rows, cols, c["groups"], gpus, TILES)
    return named | work_features(batch, gpus) | machine_features(batch, gpus)


CONVOLUTION: Final = Family(
    name="convolution",
    operations=("conv2d", "conv2d_backward_input", "conv2d_backward_weight"),
    dtypes=("float32",),
    describe=convolution_features,
)
