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
    multiprocessors,
    per_gpu,
    reference_seconds,
    tile_features,
    wave_quantisation,
    work_features,
)
from lightning_predict.kernels.operations import COMPUTE_BYTES, Array, Columns, ProblemBatch
from lightning_predict.kernels.roofline import compute_peak

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


WINOGRAD_TILES: Final = ((32, 128), (64, 64), (128, 64), (128, 128))
"""Output tiles (squares x channels) of the products inside an unfused Winograd."""


def _may_winograd(c: Columns) -> Array:
    is_three = (c["kernel_height"] == 3) & (c["kernel_width"] == 3)
    unit_steps = (c["stride_height"] * c["stride_width"] * c["dilation_height"] * c["dilation_width"]) == 1
    allowed: Array = (is_three & unit_steps & (c["groups"] == 1)).astype(np.float64)
    return allowed


def _winograd_features(batch: ProblemBatch, gpus: Sequence[Gpu]) -> dict[str, Array]:
    """What 3 x 3 filters cost through Winograd, 0 for all others.

    Unfused F(4x4, 3x3): 36 products of (squares of 4 x 4) x (output channels) x (input channels), between transforms
    that pass through memory. Fused F(2x2, 3x3): blocks of 16 x 8 outputs of one image by 32 channels. The launch grids
    in the public tables are exactly these.
    """
    c = batch.columns
    allowed = _may_winograd(c)
    height, width = output_height(c), output_width(c)
    squares = c["batch"] * np.ceil(height / 4) * np.ceil(width / 4)
    named = {
        f"winograd_{name}": values * allowed
        for name, values in tile_features(
            squares, c["out_channels"], 36 * np.ones_like(squares), gpus, WINOGRAD_TILES
        ).items()
    }
    element_bytes = COMPUTE_BYTES[batch.dtype]
    transformed = 2 * 36 * (squares * (c["in_channels"] + c["out_channels"]) + c["in_channels"] * c["out_channels"])
    traffic = transformed * element_bytes + batch.bytes_moved
    compute = 2 * 36 * squares * c["in_channels"] * c["out_channels"] / compute_peak(batch, gpus)
    memory = traffic[None, :] / per_gpu(gpus, lambda gpu: gpu.dram_bytes_per_second)
    reference = log2(reference_seconds(batch, gpus))
    named["winograd_compute"] = allowed * (log2(compute) - reference)
    named["winograd_memory"] = allowed * (log2(memory) - reference)
    named["winograd_over_cache"] = allowed * log2(traffic[None, :] / per_gpu(gpus, lambda gpu: gpu.l2_bytes))
    fused = c["batch"] * np.ceil(height / 16) * np.ceil(width / 8) * np.ceil(c["out_channels"] / 32)
    waves, tail = wave_quantisation(fused[None, :], multiprocessors(gpus))
    named["fused_waves"] = allowed * log2(waves)
    named["fused_tail"] = allowed * log2(tail)
    outputs = c["batch"] * height * width * c["out_channels"]
    named["fused_filled"] = (allowed * log2(outputs / (fused * 16 * 8 * 32)))[None, :]
    return named


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
    named["may_winograd"] = _may_winograd(c)
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
    named |= _winograd_features(batch, gpus)
    return named | work_features(batch, gpus) | machine_features(batch, gpus)


_OPERATIONS: Final = ("conv2d", "conv2d_backward_input", "conv2d_backward_weight")

CONVOLUTION: Final = Family(
    name="convolution", operations=_OPERATIONS, dtypes=("float32",), describe=convolution_features
)
TENSOR_CONVOLUTION: Final = Family(
    name="convolution_tensor",
    operations=_OPERATIONS,
    dtypes=("tf32", "float16", "bfloat16"),
    describe=convolution_features,
)
"""On matrix units. No public table has them on current GPUs, so the bundled weights hold none; whoever measures some
can train them."""
