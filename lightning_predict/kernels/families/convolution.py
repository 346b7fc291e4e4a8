"""Convolutions in one, two and three dimensions, transposed convolutions, and the two halves of the backward pass.

Each pass multiplies every output position with every filter tap: 2·N·O·H'·W'·(I/groups)·Kh·Kw FLOPs, also for the
gradients of the input and the weight. `H' = floor((H + 2p - d(K - 1) - 1) / s) + 1`. A 3 x 3 stride-1 filter may use
Winograd's F(2x2, 3x3), which needs 16 multiplications instead of the textbook's 36, so the minimum is 2.25 times lower.

Networks predict convolutions in float32. A formula based on tiles predicts the cases without training data
(`convolution_seconds`).

One and three dimensions are mapped to two. A line is an image of height 1. The output depth of a volume becomes part of
the batch, and the depth of its filter becomes part of the channels, which keeps the FLOPs. A transposed convolution
equals the input gradient of a convolution. Example::

    >>> from lightning_predict.kernels.operations import shape_batch
    >>> batch = shape_batch("conv2d", "float32", batch=1, in_channels=3, out_channels=8, kernel_size=3,
    ...                       image_size=4, padding=1)
    >>> float(batch.flops[0])  # 2 x 8 x 4 x 4 x 3 x 3 x 3
    6912.0
    >>> line = shape_batch("conv1d", "float32", batch=1, in_channels=2, out_channels=3, length=8, kernel_size=3)
    >>> float(line.flops[0])  # 2 x 3 x 6 positions x 2 x 3 taps
    216.0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lightning_predict.base.interval import Interval
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.families.reductions import summed
from lightning_predict.kernels.features import (
    alignment,
    log2,
    machine_features,
    multiprocessors,
    reference_seconds,
    tile_features,
    wave_quantisation,
    work_features,
)
from lightning_predict.kernels.operations import (
    COMPUTE_BYTES,
    Alternative,
    Array,
    BoolArray,
    Columns,
    CountedShape,
    Estimator,
    Formula,
    NamedFeatures,
    NetworkSpec,
    OperationShape,
    OperationSpec,
    ShapeBatch,
    Surrogate,
    batch_shapes,
    register,
    translates,
)
from lightning_predict.kernels.roofline import (
    SHORTEST_KERNEL_SECONDS,
    SINGLE_LOAD_CYCLES,
    TENSOR_ALIGNMENT,
    WIDE_LANES_SHARE,
    compute_peak,
    issue_rate,
    limited_transfer,
    per_gpu,
    sustained_flops,
    sustained_rate_uncertainty,
    with_sustained_peaks,
)
from lightning_predict.kernels.translation import COMPLEX_MATMULS, compute_dtype, is_complex
from lightning_predict.record.operand_strides import CHANNELS_LAST
from lightning_predict.record.trace import Flags, Operation, TensorInfo
from lightning_predict.uncertainty import convolution_interval

PASSES: Final = ("", "_backward_input", "_backward_weight")
"""Suffixes of a convolution's name: empty for the forward pass, and the two halves of the backward pass."""

_SETTINGS: Final = ("kernel", "stride", "padding", "dilation")
_PLANE: Final = ("height", "width")


# --- Work and traffic of two dimensions

WINOGRAD_GAIN: Final = 2.25  # Multiplications of the textbook algorithm over F(2x2, 3x3)


def output_size(c: Columns, side: str) -> Array:
    """Return the number of output positions along `height`, `width` or `depth`, at least 1, shape (shapes,)."""
    reach = c[f"dilation_{side}"] * (c[f"kernel_{side}"] - 1) + 1
    steps = (c[side] + 2 * c[f"padding_{side}"] - reach) / c[f"stride_{side}"]
    positions: Array = np.maximum(np.floor(steps) + 1, 1)
    return positions


def _flops(c: Columns) -> Array:
    taps = c["in_channels"] / c["groups"] * c["kernel_height"] * c["kernel_width"]
    return 2 * c["batch"] * c["out_channels"] * output_size(c, "height") * output_size(c, "width") * taps


def _has_winograd_filter(c: Columns) -> Array:
    steps = [c[f"{setting}_{side}"] == 1 for setting in ("stride", "dilation") for side in _PLANE]
    fits: Array = np.logical_and.reduce([c["kernel_height"] == 3, c["kernel_width"] == 3, *steps])
    return fits


def _least_flops(c: Columns) -> Array:
    return _flops(c) / np.where(_has_winograd_filter(c), WINOGRAD_GAIN, 1.0)


def _elements(c: Columns) -> dict[str, Array]:
    taps = c["kernel_height"] * c["kernel_width"]
    return {
        "images": c["batch"] * c["in_channels"] * c["height"] * c["width"],
        "filters": c["out_channels"] * c["in_channels"] / c["groups"] * taps,
        "outputs": c["batch"] * c["out_channels"] * output_size(c, "height") * output_size(c, "width"),
    }


_READ: Final = {
    "": ("images", "filters"),
    "_backward_input": ("outputs", "filters"),
    "_backward_weight": ("images", "outputs"),
}
"""Tensors that each pass reads; the pass writes the third tensor. As `outputs`, a backward pass reads the gradient."""


# --- Features

TILES: Final = ((32, 128), (64, 64), (128, 32), (128, 64), (128, 128))
"""Output tiles (positions x channels) of cuDNN's convolution kernels."""

WINOGRAD_TILES: Final = ((32, 128), (64, 64), (128, 64), (128, 128))
"""Output tiles (squares x channels) of the matmuls in an unfused Winograd."""


def _implicit_matmul(operation: str, c: Columns) -> tuple[Array, Array, Array]:
    """Return rows, columns and depth of the matmul of one group, each of shape (shapes,)."""
    taps = c["kernel_height"] * c["kernel_width"]
    in_channels, out_channels = c["in_channels"] / c["groups"], c["out_channels"] / c["groups"]
    outputs = c["batch"] * output_size(c, "height") * output_size(c, "width")
    if operation == "conv2d_backward_input":
        return c["batch"] * c["height"] * c["width"], in_channels, out_channels * taps
    if operation == "conv2d_backward_weight":
        return out_channels, in_channels * taps, outputs
    return outputs, out_channels, in_channels * taps


def _may_winograd(c: Columns) -> Array:
    allowed: Array = (_has_winograd_filter(c) & (c["groups"] == 1)).astype(np.float64)
    return allowed


def _winograd_features(batch: ShapeBatch, gpus: Sequence[Gpu]) -> dict[str, Array]:
    """Return the cost features of Winograd for 3 x 3 filters; 0 for all other filters.

    Unfused F(4x4, 3x3) has 36 matmuls of (squares of 4 x 4) x (output channels) x (input channels), between transforms
    through memory. Fused F(2x2, 3x3) has blocks of 16 x 8 outputs of one image by 32 channels. Both match the launch
    grids in the public tables exactly.
    """
    c = batch.columns  # each (shapes,)
    allowed = _may_winograd(c)
    height, width = output_size(c, "height"), output_size(c, "width")
    squares = c["batch"] * np.ceil(height / 4) * np.ceil(width / 4)
    copies = 36 * np.ones_like(squares)
    tiles = tile_features(squares, c["out_channels"], copies, gpus, WINOGRAD_TILES)
    named = {f"winograd_{name}": values * allowed for name, values in tiles.items()}  # (gpus, shapes)
    element_bytes = COMPUTE_BYTES[batch.dtype]
    transformed = 2 * 36 * (squares * (c["in_channels"] + c["out_channels"]) + c["in_channels"] * c["out_channels"])
    traffic = transformed * element_bytes + batch.bytes_moved  # (shapes,)
    compute = 2 * 36 * squares * c["in_channels"] * c["out_channels"] / compute_peak(batch, gpus)  # (gpus, shapes)
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
    """Return the features that depend only on the shape, each of shape (1, shapes)."""
    height, width = output_size(c, "height"), output_size(c, "width")
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


def convolution_features(batch: ShapeBatch, gpus: Sequence[Gpu]) -> NamedFeatures:
    """Return the network inputs of two-dimensional convolutions, by name.

    A convolution is a matmul of the output positions by the output channels over the filter taps (implicit GEMM). 3 x 3
    filters may also use Winograd, on output squares of 2 x 2 or 4 x 4.
    """
    c = batch.columns
    rows, cols, depth = _implicit_matmul(batch.operation, c)
    shape = {"rows": rows, "cols": cols, "depth": depth}
    shape |= {name: c[name] for name in ("batch", "in_channels", "out_channels")}
    named: dict[str, Array] = {name: log2(values)[None, :] for name, values in shape.items()}  # (1, shapes)
    for name in ("batch", "in_channels", "out_channels"):
        named[f"{name}_alignment"] = alignment(c[name])
    named |= _plane_features(c)
    named["backward_input"] = np.full((1, 1), float(batch.operation == "conv2d_backward_input"))
    named["backward_weight"] = np.full((1, 1), float(batch.operation == "conv2d_backward_weight"))
    named["half"] = np.full((1, 1), float(batch.dtype in ("float16", "bfloat16")))
    named |= tile_features(rows, cols, c["groups"], gpus, TILES)
    named |= _winograd_features(batch, gpus)
    return named | work_features(batch, gpus) | machine_features(batch, gpus)


CONVOLUTION: Final = NetworkSpec(
    name="convolution",
    dtypes=("float32",),
    describe=convolution_features,
    unmeasured=with_sustained_peaks,
    log_uncertainty=sustained_rate_uncertainty,
)
TENSOR_CONVOLUTION: Final = NetworkSpec(
    name="convolution_tensor", dtypes=("tf32", "float16", "bfloat16"), describe=convolution_features
)
"""Convolutions on tensor cores, for which users can train a network; no public table has them on current GPUs."""


# --- Formula for convolutions without a network

ON_MATRIX_UNITS: Final = frozenset({"tf32", "float16", "bfloat16"})
"""Dtypes that need tensor cores; without tensor cores for them, `timing` uses float32."""

MATRIX_TILES: Final = ((256, 128), (128, 128), (128, 64), (64, 64), (128, 32), (32, 128), (32, 32))
"""Output tiles of cuDNN's tensor-core kernels, rows x columns of the matmul."""

LOAD_TIME_RATIO: Final = 0.00015
"""Time to load a 16-bit tile of 128 x 128, relative to its compute time, per FLOP per clock and multiprocessor."""

FEED_FROM_SHARED_MEMORY: Final = 0.00005
"""The same on Hopper in 16 bits, whose matrix units read tiles from shared memory while the next tiles are copied."""

FEED_THROUGH_REGISTERS: Final = 0.00035  # The same before compute capability 8.0: copies pass through registers
OVERLAP: Final = 2.0  # Exponent of the norm that combines compute and memory time
BANDWIDTH_SHARE: Final = 0.85  # Share of the bandwidth that convolutions and layout conversions reach
WEIGHT_GRADIENT: Final = 1.3  # Time of the weight gradient over its FLOPs' time, due to the summation of parts

GROUPED_GRADIENT: Final = 2.0
"""Time of the input gradient of grouped, strided convolutions over its FLOPs' time and the product of the strides."""

PLACING_INSTRUCTIONS: Final = 200.0
"""Instructions per output of a depthwise convolution to compute its position; `TAP_INSTRUCTIONS` is per tap."""

TAP_INSTRUCTIONS: Final = 10.0  # Instructions per tap of a depthwise convolution
DEPTHWISE_LIBRARY: Final = 0.4  # Instructions of cuDNN's depthwise kernels relative to PyTorch's own

LIBRARY_SIDES: Final = (1, 3, 5)
LIBRARY_CHANNELS: Final = 32
LIBRARY_WIDTH: Final = 7
"""Filter sides, minimum channels and minimum width of the float16 depthwise convolutions that PyTorch passes to
cuDNN.

The values apply to channels-first layout (`use_cudnn_depthwise` in PyTorch's Convolution.cpp), with stride 1, or
with stride 2 and `LIBRARY_STRIDED`. In channels-last layout, PyTorch passes all depthwise convolutions to cuDNN."""

LIBRARY_STRIDED: Final = ((512, 0), (256, 28))  # Minimum (channels, width) for stride 2; either pair suffices

WIDTHS_LAST: Final = (4, 8, 16)
"""Channels per group, besides multiples of 32, for which cuDNN has its own channels-last kernels.

cuDNN's release notes list 4, 8, 16 and 32."""

GROUPED_LAST_SHARE: Final = 0.5
"""Share of the sustained rate of other group widths in channels-last layout, in tiles of 64 channels per group."""

PLACING_CYCLES: Final = 1.0
"""Cycles of a multiprocessor per padded element of grouped convolutions in channels-last layout, if cuDNN has no kernel
for the width of a group: it copies images and results to groups of 32 channels (`tensorTransformGeneric`)."""

PLACING_CYCLES_ON_HOPPER: Final = 2.0
"""The same in Hopper's forward pass, unless all groups together fill one tile of 128 channels at most."""

GROUPED_LAST_GRADIENT: Final = 0.028
"""Share of the sustained rate that gradients of grouped convolutions reach in channels-last layout, in tiles of 32 or
128 channels per group."""

SINGLE: Final = frozenset({"float32", "tf32", "float64"})
"""Dtypes for which cuDNN has channels-last depthwise kernels only for square filters of `LIBRARY_SIDES`.

Other filters use cuDNN's general kernel."""

TAP_WAIT_SECONDS: Final = 1.05e-06  # Time of a resident thread for one tap of one output in the general kernel

VOLUME_DEPTH: Final[Mapping[str, int]] = {"": 8, "_backward_input": 32, "_backward_weight": 8}
"""Multiples to which channels of volumes are padded in tensor-core layouts, and in the sum of each pass.

On the L40S, the H100-PCIe and the T4, a transposed volume of 16 channels takes as long from 3 as from 32 channels."""

VOLUME_GRADIENT: Final = 1.5  # Time of a volume's input gradient over the time of its matmuls


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionWork:
    """One pass of convolutions, each array of shape (shapes,)."""

    backward: str  # Empty for the forward pass, else the half of the backward: `_backward_input` or `_backward_weight`
    dtype: str
    rows: Array  # Rows of the implicit matmul of one group
    cols: Array  # Columns of the matmul
    depth: Array  # Depth (summed dimension) of the matmul
    padding: Array  # Padded over existing channels, of the input or of the filters, in tensor-core kernels
    groups: Array  # Number of matmuls, one per group
    channels: Array  # Input channels of one group
    taps: Array  # Positions of the filter
    strides: Array  # Product of the strides of all sides
    is_dilated: BoolArray
    single_outputs: Array  # Elements that a depthwise pass computes one by one
    is_depthwise: BoolArray  # Whether each channel has its own filter
    is_cudnn: BoolArray  # Whether cuDNN computes a depthwise pass
    is_channels_last: BoolArray
    is_odd: BoolArray  # Whether the number of channels of the images or of the outputs is odd
    is_volume: bool  # Whether there are three dimensions
    images: Array
    outputs: Array
    padded_images: Array  # Elements of the images after conversion to channels last
    padded_outputs: Array  # Elements of the outputs after conversion to channels last
    moved_bytes: Array  # Minimum traffic

    def of_merged_groups(self, merged: Array) -> tuple[Array, Array, Array, Array]:
        """Return number, rows, columns and depth of the matmuls if `merged` groups become one, padded with zeros."""
        if self.backward == "_backward_weight":
            return self.groups / merged, self.rows * merged, self.cols * merged, self.depth
        return self.groups / merged, self.rows, self.cols * merged, self.depth * merged


def convolution_seconds(work: ConvolutionWork, gpus: Sequence[Gpu]) -> Array:
    """Predict convolutions without a network: on tensor cores, grouped, or of volumes; shape (gpus, shapes).

    An implicit matmul is computed in output tiles, one per multiprocessor at a time. A tile takes the time of its FLOPs
    at the multiprocessor's share of the sustained rate, plus the time to load its operands. With F FLOPs per clock
    cycle and multiprocessor, tiles of M x N and elements of E bytes,

        t = 2·M·N·depth / (rate / multiprocessors) · (1 + LOAD_TIME_RATIO · F · 64 (1/M + 1/N) · E/2)

    Memory is a second limit that overlaps in part. Images are read once, because the im2col matrix is never in memory.
    Tensor cores need channels last, so separate kernels convert channels-first images and outputs.

    A depthwise convolution has no matmul: its traffic, or the instructions that compute an output's position, determine
    its time. Other grouped convolutions fill tiles badly, but are never slower than the dense convolution that contains
    them, except for input gradients with a stride (`GROUPED_GRADIENT`).

    For volumes, channels are padded, and compute and memory time add up. Only grouped input gradients of volumes
    compute all positions (`VOLUME_DEPTH`).

    The formula has the same constants for every GPU. `constants.toml` names the tables on which they were chosen.
    """
    rows = [_on_gpu(work, gpu) for gpu in gpus]  # each (shapes,)
    return np.array(rows, dtype=np.float64).reshape(len(gpus), len(work.rows))


def _on_gpu(work: ConvolutionWork, gpu: Gpu) -> Array:
    memory = work.moved_bytes / (BANDWIDTH_SHARE * _bandwidth(work.moved_bytes, gpu))  # (shapes,)
    least_merged = np.clip(TENSOR_ALIGNMENT / work.channels, 1, work.groups)
    dense = _by_matmuls(work, gpu, memory, work.groups)
    grouped = dense if work.is_volume else _by_matmuls(work, gpu, memory, least_merged)
    own = np.where(work.is_depthwise, _depthwise(work, gpu, memory), grouped)
    # In channels-last layout, PyTorch passes every depthwise convolution to cuDNN, which has no dense fallback.
    is_fixed = work.is_depthwise & work.is_channels_last & (work.dtype in SINGLE)
    fastest = np.where(is_fixed, own, np.minimum(own, dense))
    seconds = np.maximum(fastest, _least_in_groups_last(work, gpu)) + SHORTEST_KERNEL_SECONDS
    if work.is_volume and work.dtype == "float32" and "tf32" in gpu.peak_flops_per_second:
        # If TF32 is allowed, it also applies to float32's kernels: transposed volumes that take 16 ms on the L40S would
        # take 5 on its CUDA cores, judging by the T4's times.
        return np.maximum(seconds, _on_gpu(replace(work, dtype="tf32"), gpu))
    return seconds


def _least_in_groups_last(work: ConvolutionWork, gpu: Gpu) -> Array:
    """Return the minimum time of grouped convolutions in channels-last layout; 0 if this rule does not apply.

    PyTorch passes every such convolution to the library, even if the library's kernels for this layout are slow.
    """
    if work.dtype not in ON_MATRIX_UNITS or work.dtype not in gpu.peak_flops_per_second or work.is_volume:
        return np.zeros_like(work.rows)
    rate = sustained_flops(gpu, work.dtype)
    width = work.channels
    flops = 2 * work.groups * work.rows * work.cols * work.depth  # (shapes,)
    is_served = np.isin(width, WIDTHS_LAST) | (width % 32 == 0) | (width > 64)
    padded = np.where(is_served, 0.0, (work.images + work.outputs) * _padded(width, 32))
    is_slow = (
        gpu.generation.has_warp_group_matmul
        & (work.groups * width > max(columns for _, columns in MATRIX_TILES))
        & (not work.backward)
    )
    padding = np.where(is_slow, PLACING_CYCLES_ON_HOPPER, PLACING_CYCLES) * padded / issue_rate(gpu)
    if work.backward == "_backward_input":
        flops = flops * work.strides  # the gradient of a strided convolution computes all positions
    if work.backward:
        tile = np.where(width <= 32, 32.0, 128.0)
        rate, is_served = rate * GROUPED_LAST_GRADIENT * 2, np.isin(width, WIDTHS_LAST)  # both halves together
    else:
        tile, rate = np.full_like(width, 64.0), rate * GROUPED_LAST_SHARE
    waste = np.ceil(width / tile) * tile / width
    in_groups = np.where(is_served | work.is_depthwise, 0.0, flops * waste / rate + padding)
    return np.where(work.is_channels_last & (work.groups > 1), in_groups, 0.0)


def _by_matmuls(work: ConvolutionWork, gpu: Gpu, memory: Array, merged: Array) -> Array:
    """Return the time of implicit matmuls of merged groups, including layout conversions."""
    compute = _matmuls(work, gpu, merged)
    if work.backward == "_backward_input":
        compute = compute * _of_positions(work)
    elif work.backward == "_backward_weight":
        compute = compute * WEIGHT_GRADIENT
    overlap = 1.0 if work.is_volume else OVERLAP
    return (compute**overlap + memory**overlap) ** (1 / overlap) + _conversions(work, gpu)


def _of_positions(work: ConvolutionWork) -> Array:
    """Return the time of an input gradient over its FLOPs' time: grouped or dilated ones compute all positions."""
    is_strided, is_grouped = work.strides > 1, work.groups > 1
    if work.is_volume:
        return VOLUME_GRADIENT * np.where(is_strided & is_grouped, work.strides, 1.0)
    all_positions = work.strides * np.where(is_grouped, GROUPED_GRADIENT, 1.0)
    return np.where(is_strided & (work.is_dilated | is_grouped), all_positions, 1.0)


def _has_units(work: ConvolutionWork, gpu: Gpu) -> bool:
    return work.dtype in ON_MATRIX_UNITS and work.dtype in gpu.peak_flops_per_second


def _bandwidth(moved_bytes: Array, gpu: Gpu) -> Array:
    fast = max(gpu.l2_bytes_per_second, gpu.dram_bytes_per_second)
    return np.where(moved_bytes <= gpu.l2_bytes, fast, gpu.dram_bytes_per_second)


def _matmuls(work: ConvolutionWork, gpu: Gpu, merged: Array) -> Array:
    """Return the time of implicit matmuls of merged groups, with the fastest tile size."""
    copies, rows, cols, depth = work.of_merged_groups(merged)  # each (shapes,)
    single = gpu.peak_flops_per_second["float32"]
    has_units = _has_units(work, gpu)
    is_padded = has_units or work.is_volume
    if is_padded and work.backward == "_backward_weight":
        cols = cols * work.padding
    elif is_padded:
        depth = depth * work.padding
    rate = sustained_flops(gpu, work.dtype) if has_units else WIDE_LANES_SHARE * (gpu.peak(work.dtype) or single)
    if work.dtype == "float64":  # cuDNN uses no tensor cores for it
        rate = WIDE_LANES_SHARE * gpu.lanes_peak("float64")
    multiprocessors = gpu.streaming_multiprocessors
    per_flop = LOAD_TIME_RATIO if gpu.compute_capability >= (8, 0) else FEED_THROUGH_REGISTERS
    if gpu.generation.has_warp_group_matmul and COMPUTE_BYTES[work.dtype] == 2:
        per_flop = FEED_FROM_SHARED_MEMORY
    cycle_flops = rate / (multiprocessors * gpu.boost_clock_hz)
    best = np.full(len(rows), np.inf)
    for height, width in MATRIX_TILES:
        feed = per_flop * cycle_flops * 64 * (1 / height + 1 / width) * COMPUTE_BYTES[work.dtype] / 2
        blocks = np.ceil(rows / height) * np.ceil(cols / width) * copies
        parts = np.clip(np.floor(multiprocessors / blocks), 1, np.maximum(depth, 1))
        waves = np.ceil(blocks * parts / multiprocessors)
        tile = 2 * height * width * depth / parts / (rate / multiprocessors) * (1 + feed)
        best = np.minimum(best, waves * tile)
    return best


def _conversions(work: ConvolutionWork, gpu: Gpu) -> Array:
    """Return the time to convert channels-first images and gradients, which are read once and written once.

    Forward kernels in TF32 write either layout (`..._nhwckrsc_nchw` on the A100). A 1 x 1 filter with stride 1 is a
    plain matmul in either layout, except for its own gradient, which sums over the positions. Images with an odd number
    of channels in channels-last layout are unaligned, and are copied to padded images (RexNets lose 10 to 25 % by the
    layout).
    """
    if not (_has_units(work, gpu) if work.is_volume else work.dtype in ON_MATRIX_UNITS):
        return np.zeros_like(work.rows)
    converted = work.images + work.padded_images
    if work.backward or work.dtype != "tf32":
        converted = converted + work.outputs + work.padded_outputs
    traffic = converted * COMPUTE_BYTES[work.dtype]
    is_matmul = (work.taps == 1) & (work.strides == 1) & (work.backward != "_backward_weight")
    is_needed = (~work.is_channels_last & ~is_matmul) | (work.is_channels_last & work.is_odd)
    return np.where(is_needed, traffic / (BANDWIDTH_SHARE * _bandwidth(traffic, gpu)), 0.0)


def _lanes_rate(gpu: Gpu) -> float:
    """Return instructions per second: one per cycle and core. A multiply-add is two FLOPs."""
    return gpu.peak_flops_per_second["float32"] / 2


def _depthwise(work: ConvolutionWork, gpu: Gpu, memory: Array) -> Array:
    instructions = work.single_outputs * (PLACING_INSTRUCTIONS + TAP_INSTRUCTIONS * work.taps)  # (shapes,)
    instructions = instructions * np.where(work.is_cudnn, DEPTHWISE_LIBRARY, 1.0)
    threads = gpu.streaming_multiprocessors * gpu.max_threads_per_multiprocessor
    is_square = np.isin(work.taps, [side**2 for side in LIBRARY_SIDES])
    is_general = work.is_channels_last & (work.dtype in SINGLE) & ~is_square
    waits = np.where(is_general, work.single_outputs * work.taps * TAP_WAIT_SECONDS / threads, 0.0)
    longest = np.maximum(np.maximum(instructions / _lanes_rate(gpu), waits), memory)
    return longest + np.where(work.is_odd, _conversions(work, gpu), 0.0)


def _work(plane_pass: str, batch: ShapeBatch, c: Columns, *, is_volume: bool) -> ConvolutionWork:
    """Collect the formula's inputs. `c` are two-dimensional columns, in which depth taps are channels."""
    elements = _elements(c)
    depth_taps = batch.columns["kernel_depth"] if is_volume else 1.0
    in_channels, out_channels = c["in_channels"] / depth_taps, c["out_channels"]
    channels = in_channels / c["groups"]
    images, outputs = elements["images"], elements["outputs"]
    strides = c["stride_height"] * c["stride_width"]
    if is_volume:
        images = np.prod([batch.columns[name] for name in ("batch", "in_channels", "depth", "height", "width")], axis=0)
        strides = strides * batch.columns["stride_depth"]
        summed = out_channels if plane_pass == "_backward_input" else in_channels  # over all groups
        padding = _padded(summed, VOLUME_DEPTH[plane_pass])
        widest = max(VOLUME_DEPTH.values())
        padded_images, padded_outputs = images * _padded(in_channels, widest), outputs * _padded(out_channels, widest)
    else:
        summed = out_channels / c["groups"] if plane_pass == "_backward_input" else channels
        padding = np.where(c["groups"] == 1, np.maximum(summed, TENSOR_ALIGNMENT) / summed, 1.0)
        padded_images, padded_outputs = images, outputs
    rows, cols, depth = _implicit_matmul(f"conv2d{plane_pass}", c)
    if plane_pass == "_backward_input":  # on average, taps x outputs / images reach a position
        cols, depth = cols / depth_taps, depth * depth_taps
        depth = depth * (elements["outputs"] / c["out_channels"]) / (elements["images"] / c["in_channels"])
    return ConvolutionWork(
        backward=plane_pass,
        dtype=batch.dtype,
        rows=rows,
        cols=cols,
        depth=depth,
        padding=padding,
        groups=c["groups"],
        channels=channels,
        taps=c["kernel_height"] * c["kernel_width"] * depth_taps,
        strides=strides,
        is_dilated=(c["dilation_height"] * c["dilation_width"]) > 1,
        single_outputs=images if plane_pass == "_backward_input" else outputs,
        is_depthwise=(c["groups"] > 1) & (c["groups"] == c["in_channels"]),
        is_cudnn=_is_cudnn(batch.dtype, c),
        is_channels_last=c["channels_last"] > 0,
        is_odd=((c["in_channels"] % 2 > 0) & (c["in_channels"] > TENSOR_ALIGNMENT)) | (c["out_channels"] % 2 > 0),
        is_volume=is_volume,
        images=images,
        outputs=outputs,
        padded_images=padded_images,
        padded_outputs=padded_outputs,
        moved_bytes=batch.bytes_moved,
    )


def _padded(channels: Array, multiple: int) -> Array:
    over: Array = np.ceil(channels / multiple) * multiple / channels
    return over


def _is_cudnn(dtype: str, c: Columns) -> BoolArray:
    """Return which depthwise convolutions PyTorch passes to cuDNN, booleans of shape (shapes,)."""
    side, step, width, channels = (c[name] for name in ("kernel_width", "stride_width", "width", "in_channels"))
    is_even = (side == c["kernel_height"]) & (step == c["stride_height"])
    is_whole = (c["dilation_height"] == 1) & (c["dilation_width"] == 1)
    is_served = np.isin(side, LIBRARY_SIDES) & (channels >= LIBRARY_CHANNELS) & (width >= LIBRARY_WIDTH)
    strided = [(channels >= least) & (width >= narrowest) for least, narrowest in LIBRARY_STRIDED]
    fits: BoolArray = is_even & is_whole & is_served & ((step == 1) | ((step == 2) & np.logical_or.reduce(strided)))
    return (fits & (dtype == "float16")) | (c["channels_last"] > 0)


def _has_groups(shape: OperationShape) -> bool:
    return shape.parameters["groups"] > 1


def _is_beyond_networks(shape: OperationShape) -> bool:
    """Return whether networks do not support the shape: grouped, or an input gradient with stride and dilation."""
    sizes = shape.parameters
    skips, has_gaps = (max(sizes[f"{name}_{side}"] for side in _PLANE) > 1 for name in ("stride", "dilation"))
    return _has_groups(shape) or (shape.operation.endswith("_backward_input") and skips and has_gaps)


def as_matmul(shape: OperationShape) -> OperationShape | None:
    """Return the implicit matmul of a two-dimensional convolution or of half of its gradient; None if grouped.

    Libraries always provide this algorithm ("implicit GEMM" in cuDNN's developer guide). The input gradient sums over
    the filters, at the output's positions.
    """
    if _has_groups(shape):
        return None
    is_input = shape.operation == "conv2d_backward_input"
    name = "conv2d" if is_input else shape.operation
    rows, cols, depth = (float(side[0]) for side in _implicit_matmul(name, batch_shapes([shape]).columns))
    return OperationShape("linear", shape.dtype, (1.0, rows, depth, cols) if is_input else (1.0, rows, cols, depth))


# --- The operations


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    """Kind of convolution, and the two-dimensional convolution to which it is mapped."""

    name: str  # Name of the operation, without the pass
    sides: tuple[str, ...]  # Names of the sides: `height`, `width` and, for a volume, `depth`; empty for a line
    as_plane: Callable[[Columns], Columns]  # Maps the columns to `conv2d`'s columns
    plane_passes: Mapping[str, str]  # Maps the passes to `conv2d`'s passes

    def elements(self, c: Columns) -> dict[str, Array]:
        """Return the elements of the tensors. The input of a folded volume counts only once, not once per depth tap."""
        own = _elements(self.as_plane(c))
        if "depth" in self.sides:
            own["images"] = c["batch"] * c["in_channels"] * c["depth"] * c["height"] * c["width"]
        return own


def _on_plane(c: Columns) -> dict[str, Array]:
    """Return the columns that a variant shares with `conv2d`."""
    settings = [f"{setting}_{side}" for setting in _SETTINGS for side in _PLANE]
    return {name: c[name] for name in ("out_channels", *_PLANE, *settings, "groups", "channels_last")}


def _line_as_plane(c: Columns) -> Columns:
    ones = np.ones_like(c["length"])
    across = {"height": ones, "kernel_height": ones, "stride_height": ones, "dilation_height": ones}
    along = {"kernel_width": "kernel_size", "stride_width": "stride", "dilation_width": "dilation"}
    along |= {"width": "length", "padding_width": "padding"}
    shared = {name: c[name] for name in ("batch", "in_channels", "out_channels", "groups")}
    absent = {"padding_height": 0 * ones, "channels_last": 0 * ones}
    return {**shared, **across, **absent, **{name: c[own] for name, own in along.items()}}


def _volume_as_plane(c: Columns) -> Columns:
    folded = {"batch": c["batch"] * output_size(c, "depth"), "in_channels": c["in_channels"] * c["kernel_depth"]}
    return _on_plane(c) | folded


def _transposed_as_plane(c: Columns) -> Columns:
    def written(side: str) -> Array:
        reach = c[f"dilation_{side}"] * (c[f"kernel_{side}"] - 1) + 1 + c[f"padding_output_{side}"]
        size: Array = np.maximum((c[side] - 1) * c[f"stride_{side}"] - 2 * c[f"padding_{side}"] + reach, 1)
        return size

    channels = {"in_channels": c["out_channels"], "out_channels": c["in_channels"]}
    return _on_plane(c) | {"batch": c["batch"], **channels, **{side: written(side) for side in _PLANE}}


_SAME: Final = {name: name for name in PASSES}
_SWAPPED: Final = {"": "_backward_input", "_backward_input": "", "_backward_weight": "_backward_weight"}
_VARIANTS: Final = (
    _Variant(name="conv2d", sides=_PLANE, as_plane=lambda c: c, plane_passes=_SAME),
    _Variant(name="conv1d", sides=(), as_plane=_line_as_plane, plane_passes=_SAME),
    _Variant(name="conv3d", sides=("depth", *_PLANE), as_plane=_volume_as_plane, plane_passes=_SAME),
    _Variant(name="conv_transpose2d", sides=_PLANE, as_plane=_transposed_as_plane, plane_passes=_SWAPPED),
)


def _shape(variant: _Variant) -> tuple[tuple[str, ...], dict[str, float | str], dict[str, tuple[str, ...]]]:
    """Return shape parameters, their defaults, and the alternative names that set several parameters."""
    if not variant.sides:
        line = ("batch", "in_channels", "out_channels", "length", "kernel_size", "stride", "padding", "dilation")
        return (*line, "groups"), {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}, {"image_size": ("length",)}
    first, *others = variant.sides
    settings = [f"{setting}_{side}" for setting in _SETTINGS for side in variant.sides]
    defaults: dict[str, float | str] = {f"stride_{first}": 1, f"dilation_{first}": 1, "groups": 1}
    defaults |= dict.fromkeys(others, first)
    for setting in ("kernel", "stride", "dilation"):
        defaults |= dict.fromkeys((f"{setting}_{side}" for side in others), f"{setting}_{first}")
    defaults |= {f"padding_{side}": 0 for side in variant.sides} | {"channels_last": 0}
    spellings = {"image_size": variant.sides, "kernel_size": tuple(f"kernel_{side}" for side in variant.sides)}
    spellings |= {name: tuple(f"{name}_{side}" for side in variant.sides) for name in ("stride", "padding", "dilation")}
    if variant.name == "conv_transpose2d":
        extra = tuple(f"padding_output_{side}" for side in variant.sides)
        settings += extra
        defaults |= dict.fromkeys(extra, 0)
        spellings["output_padding"] = extra
    shape = ("batch", "in_channels", "out_channels", *variant.sides, *settings, "groups", "channels_last")
    return shape, defaults, spellings


def _kind(variant: _Variant, suffix: str) -> OperationSpec:
    shape, defaults, spellings = _shape(variant)
    plane_pass = variant.plane_passes[suffix]

    def added(c: Columns, *, read: bool) -> Array:
        sizes = [size for name, size in variant.elements(c).items() if (name in _READ[plane_pass]) is read]
        total: Array = np.sum(sizes, axis=0)
        return total

    def as_plane(shape: OperationShape) -> tuple[CountedShape, ...]:
        plane = variant.as_plane(batch_shapes([shape]).columns)
        dims = tuple(float(plane[name][0]) for name in _PLANE_SHAPE)
        return (CountedShape(1.0, OperationShape(f"conv2d{plane_pass}", shape.dtype, dims)),)

    def by_formula(batch: ShapeBatch, gpus: Sequence[Gpu]) -> Interval[Array]:
        work = _work(plane_pass, batch, variant.as_plane(batch.columns), is_volume="depth" in variant.sides)
        seconds = convolution_seconds(work, gpus)
        return convolution_interval(seconds, work.groups)

    formula = Formula(seconds=by_formula)
    estimators: tuple[Estimator, ...] = (Surrogate(as_plane),)
    if "depth" in variant.sides:
        estimators = (formula,)
    if variant.name == "conv2d":
        beyond = replace(formula, supports=_is_beyond_networks)
        estimators = (beyond, CONVOLUTION, TENSOR_CONVOLUTION, formula, Alternative(shape=as_matmul))
    return OperationSpec(
        name=variant.name + suffix,
        shape=shape,
        defaults=defaults,
        spellings=spellings,
        units="tensor",
        flops=lambda c: _flops(variant.as_plane(c)),
        minimum_flops=lambda c: _least_flops(variant.as_plane(c)),
        reads=lambda c: added(c, read=True),
        writes=lambda c: added(c, read=False),
        estimators=estimators,
    )


_PLANE_SHAPE: Final = _shape(_VARIANTS[0])[0]
register(*(_kind(variant, suffix) for variant in _VARIANTS for suffix in PASSES))


# --- Dispatcher calls


def _numbers(operation: Operation, name: str, dimensions: int, default: float) -> list[float]:
    """Return a convolution argument as one number per dimension."""
    value = operation.arguments.get(name)
    if value is None:
        return [default] * dimensions
    numbers = [float(item) for item in value] if isinstance(value, (list, tuple)) else [float(value)]
    return numbers * dimensions if len(numbers) == 1 else numbers


def _convolution_shape(
    name: str, operation: Operation, flags: Flags, images: TensorInfo, weight: TensorInfo
) -> OperationShape:
    """Return the shape for `images` (N, C, *sizes) and `weight` (O, C / groups, *taps), with lines of height 1."""
    sizes, taps = list(images.shape[2:]), list(weight.shape[2:])
    dimensions = len(sizes)
    stride = _numbers(operation, "stride", dimensions, 1)
    padding = _numbers(operation, "padding", dimensions, 0)
    dilation = _numbers(operation, "dilation", dimensions, 1)
    # For calls without the argument `groups` (depthwise), the channels determine the number of groups.
    groups = float(operation.arguments.get("groups", max(images.shape[1] // max(weight.shape[1], 1), 1)))
    batch, channels = float(images.shape[0]), float(weight.shape[1]) * groups
    if dimensions == 1:
        sizes, taps = [1, *sizes], [1, *taps]
        stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
    flat = [float(value) for values in (sizes, taps, stride, padding, dilation) for value in values]
    if is_complex(images):
        batch *= COMPLEX_MATMULS
    is_last = float(bool(operation.arguments.get(CHANNELS_LAST)))
    kind = name.replace("conv2d", "conv3d") if dimensions == 3 else name
    dtype = compute_dtype(images, tf32=flags.cudnn_tf32)
    return OperationShape(kind, dtype, (batch, channels, float(weight.shape[0]), *flat, groups, is_last))


def _transposed_images(operation: Operation, data: TensorInfo, weight: TensorInfo) -> TensorInfo:
    """Return the large side of a transposed convolution: its output, the input of the corresponding convolution."""
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
    """Return whether the tensors are (N, C, *sizes) and (O, C, *taps), with one, two or three dimensions."""
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
def _forward(operation: Operation, flags: Flags) -> tuple[OperationShape, ...] | None:
    if len(operation.inputs) < 2 or not _are_images(*operation.inputs[:2]):
        return None
    data, weight = operation.inputs[:2]
    if operation.arguments.get("transposed") or "transpose" in operation.name:
        # A transposed convolution is the same computation as the input gradient of a convolution.
        images = _transposed_images(operation, data, weight)
        shape = _convolution_shape("conv2d_backward_input", operation, flags, images, weight)
    else:
        shape = _convolution_shape("conv2d", operation, flags, data, weight)
    return shape, *_added_bias(operation, shape)


_ADDS_BIAS: Final = frozenset({"aten::convolution", "aten::_convolution", "aten::convolution_overrideable"})


def _added_bias(operation: Operation, shape: OperationShape) -> tuple[OperationShape, ...]:
    """Return the bias addition, which PyTorch runs as a separate kernel after cuDNN (`Convolution.cpp`, `output.add_`).

    PyTorch's depthwise kernel includes the bias.
    """
    sizes, batch = shape.parameters, batch_shapes([shape])
    is_depthwise = sizes["groups"] == sizes["in_channels"] > 1
    is_own = is_depthwise and not bool(_is_cudnn(shape.dtype, batch.columns)[0])
    if operation.name not in _ADDS_BIAS or len(operation.inputs) < 3 or is_own:
        return ()
    output = float(batch.bytes_written[0])
    elements = output / batch.element_bytes
    return (limited_transfer(output, output, elements, cycles=SINGLE_LOAD_CYCLES * elements),)  # broadcast


@translates("aten::convolution_backward", "aten::convolution_backward_overrideable")
def _backward(operation: Operation, flags: Flags) -> tuple[OperationShape, ...] | None:
    if len(operation.inputs) < 3 or not _are_images(*operation.inputs[1:3]):
        return None
    gradient, data, weight = operation.inputs[:3]
    wanted = operation.arguments.get("output_mask", (True, True, True))
    transposed = bool(operation.arguments.get("transposed"))
    images = gradient if transposed else data
    shapes: list[OperationShape] = []
    if wanted[0]:
        name = "conv2d" if transposed else "conv2d_backward_input"
        shapes.append(_convolution_shape(name, operation, flags, images, weight))
    if wanted[1]:
        shapes.append(_convolution_shape("conv2d_backward_weight", operation, flags, images, weight))
    if wanted[2]:
        columns = gradient.shape[1] if operation.arguments.get(CHANNELS_LAST) else 0
        shapes.append(summed(gradient, 0.0, columns))
    return tuple(shapes)
