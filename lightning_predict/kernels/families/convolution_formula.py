"""Seconds of convolutions that no network was trained on: on matrix units, in groups, of volumes.

An implicit product is computed in tiles of the output, of which each multiprocessor takes one at a time. A tile takes
its FLOPs at the multiprocessor's share of the peak, and longer by what feeding it takes: with F FLOPs a clock cycle and
multiprocessor, tiles of M x N and elements of E bytes,

    t = 2·M·N·depth / (peak / multiprocessors) · (1 + FEED · F · 64 (1/M + 1/N) · E/2)

Memory is a second bound that overlaps in part. Images are read once: the im2col matrix is never in memory. Matrix units
want channels last, so that images and outputs with channels first are converted, each by a kernel of its own.

A depthwise convolution multiplies nothing by matrices: it is bound by its traffic or by the instructions that place an
output. Other groups fill tiles badly, but are never slower than the dense convolution that holds them.

FLOPs and bytes alone enter, and the same constants hold for every GPU, so that two of one peak get one time. They were
chosen on four tables, which so are training data for them: the kernels of one ResNet-50 step in TF32 on an A100
(tiles, feeding, conversions, strided gradients), timm's inference in AMP with channels last and first on the RTX 3090
and 4090 (what is merged in groups, depthwise outputs), DeepBench's float16 rows (feeding through registers), and
KernelBench's level 1 on the H100-PCIe and L40S (volumes, depthwise in float32).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.arrays import BoolArray
from lightning_predict.kernels.operations import COMPUTE_BYTES, Array
from lightning_predict.units import MICROSECOND

ON_MATRIX_UNITS: Final = frozenset({"tf32", "float16", "bfloat16"})
"""Dtypes that a GPU without matrix units for them is not asked for: `estimates` asks for float32 there."""

TILES: Final = ((256, 128), (128, 128), (128, 64), (64, 64), (128, 32), (32, 128), (32, 32))
"""Output tiles of cuDNN's kernels for matrix units, rows x columns of the product."""

FEED: Final = 2.4e-4
"""Time of feeding a tile of 128 x 128 in 16 bits over that of computing it, by FLOPs a clock cycle and multiprocessor.
It is 0.12 where there are 512 of them (GeForce), 0.5 where there are 2048 (A100), 1 where there are 4096 (Hopper):
large convolutions reach 90, 65 and 50 % of those peaks."""

FEED_THROUGH_REGISTERS: Final = 6e-4
"""The same before compute capability 8.0, whose copies into shared memory pass through registers: DeepBench's float16
rows on the V100 ask for 5e-4 to 7e-4."""

ASYNCHRONOUS_COPIES: Final = (8, 0)
"""Compute capability from which memory is copied into shared memory past the registers."""

LANES_SHARE: Final = 0.75
"""Share of the ordinary lanes' peak that implicit products reach without matrix units."""

OVERLAP: Final = 2.0
"""Power of the norm by which computing and memory add up: 1 is one after the other, infinity the longer alone."""

BANDWIDTH_SHARE: Final = 0.85
"""Share of the bandwidth that they and the conversions reach: 0.83 to 0.89 for the A100's conversions of 50 MB and
more."""

LEAST_CHANNELS: Final = 8
"""Channels that each tap is padded to. The A100 takes 463 µs for three channels, as for 24 in any other layer."""

SPLIT_DEPTH: Final = 512
"""Least depth of the parts that a product is split into where its tiles do not fill the GPU."""

WEIGHT_GRADIENT: Final = 1.3
"""Time of the gradient to the weight over that of its FLOPs, which adds up parts: median of DeepBench's float32 rows of
at least 0.2 ms on eight GPUs (1.04 to 1.52), and 1.3 to 1.4 of the forward pass in TF32 on the A100."""

STRIDED_GRADIENT: Final = 1.4
"""Time of a gradient to the input over that of its FLOPs where the filter skips positions: 1.2 to 2 on the A100 and the
V100 in one ResNet-50 step."""

ODD_GRADIENT: Final = 4.0
"""The same where it skips positions and is dilated, too, or has groups: 4 to 8 on the L40S and the H100-PCIe."""

MERGED_CHANNELS: Final = 8
"""Channels of a group below which groups are computed as one of as many."""

PLACING_INSTRUCTIONS: Final = 200.0
"""Instructions that place one output of a depthwise convolution, and those for each tap: PyTorch's kernel divides
indices, and takes 2.5 cycles of an H100's multiprocessor (128 lanes) for an output of 9 taps."""

TAP_INSTRUCTIONS: Final = 10.0

DEPTHWISE_LAST: Final = 0.4
"""Instructions of cuDNN's depthwise kernels for channels last over those of PyTorch's for channels first."""

VOLUME: Final = 3.0
"""Time of a volume over that of its FLOPs and bytes: 1.9 to 14 on the H100-PCIe, 2.5 to 18 on the L40S, more on cards
with older software."""

SHORTEST_SECONDS: Final = 3 * MICROSECOND
"""Of one convolution, its first and last instructions and the work that finds its place."""

SPREAD: Final = 2.1
"""Factor up and down that holds most plain convolutions in 16 bits or TF32: five in six of DeepBench's on the V100 and
the T4, whose libraries are those of 2019, and nine in ten of KernelBench's."""

GROUPED_SPREAD: Final = 2.0
VOLUME_SPREAD: Final = 4.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionWork:
    """One pass of convolutions, each array of shape (problems,).

    Attributes:
        backward: Empty for the forward pass, else the half of the backward pass: `_backward_input` or
            `_backward_weight`.
        dtype: Compute dtype.
        rows: Rows of the implicit product of one group.
        cols: Its columns.
        depth: What it sums over.
        groups: Number of such products.
        channels: Input channels of one group.
        taps: Positions of the filter.
        strides: Steps of the filter, those of all sides multiplied.
        is_dilated: The filter has gaps.
        placed: Elements that the pass computes one by one where it is depthwise.
        is_depthwise: Each channel has a filter of its own.
        is_last: Channels last.
        is_volume: Three dimensions.
        images: Elements of the images.
        outputs: Elements of the outputs.
        moved_bytes: Least traffic.
    """

    backward: str
    dtype: str
    rows: Array
    cols: Array
    depth: Array
    groups: Array
    channels: Array
    taps: Array
    strides: Array
    is_dilated: BoolArray
    placed: Array
    is_depthwise: BoolArray
    is_last: BoolArray
    is_volume: bool
    images: Array
    outputs: Array
    moved_bytes: Array

    def of_merged_groups(self, merged: Array) -> tuple[Array, Array, Array, Array]:
        """Count products, and their rows, columns and depth, where so many groups are one with zeros between them."""
        if self.backward == "_backward_weight":
            return self.groups / merged, self.rows * merged, self.cols * merged, self.depth
        return self.groups / merged, self.rows, self.cols * merged, self.depth * merged


def convolution_seconds(work: ConvolutionWork, gpus: Sequence[Gpu]) -> Array:
    """Time each convolution on each GPU, shape (gpus, problems)."""
    rows = [_on_gpu(work, gpu) for gpu in gpus]  # each (problems,)
    return np.array(rows, dtype=np.float64).reshape(len(gpus), len(work.rows))


def convolution_spread(work: ConvolutionWork) -> Array:
    """Give the factor up and down around the formula's times, shape (problems,)."""
    plain = VOLUME_SPREAD if work.is_volume else SPREAD
    return np.where(work.groups > 1, max(plain, GROUPED_SPREAD), plain)


def _on_gpu(work: ConvolutionWork, gpu: Gpu) -> Array:
    memory = work.moved_bytes / (BANDWIDTH_SHARE * _bandwidth(work.moved_bytes, gpu))  # (problems,)
    least_merged = np.clip(MERGED_CHANNELS / work.channels, 1, work.groups)
    dense = _by_products(work, gpu, memory, work.groups, is_odd=work.is_dilated)
    grouped = _by_products(work, gpu, memory, least_merged, is_odd=work.is_dilated | (work.groups > 1))
    own = np.where(work.is_depthwise, _depthwise(work, gpu, memory), grouped)
    return np.minimum(own, dense) + SHORTEST_SECONDS


def _by_products(work: ConvolutionWork, gpu: Gpu, memory: Array, merged: Array, *, is_odd: BoolArray) -> Array:
    """Time implicit products, so many groups in one, with the conversions around them."""
    compute = _products(work, gpu, merged)
    if work.backward == "_backward_input":
        compute = compute * np.where(work.strides > 1, STRIDED_GRADIENT, 1.0)
    elif work.backward == "_backward_weight":
        compute = compute * WEIGHT_GRADIENT
    seconds = (compute**OVERLAP + memory**OVERLAP) ** (1 / OVERLAP) + _conversions(work, gpu)
    if work.backward == "_backward_input":
        seconds = seconds * np.where(is_odd & (work.strides > 1), ODD_GRADIENT, 1.0)
    return seconds * VOLUME if work.is_volume else seconds


def _bandwidth(moved_bytes: Array, gpu: Gpu) -> Array:
    fast = max(gpu.l2_bytes_per_second, gpu.dram_bytes_per_second)
    return np.where(moved_bytes <= gpu.l2_bytes, fast, gpu.dram_bytes_per_second)


def _products(work: ConvolutionWork, gpu: Gpu, merged: Array) -> Array:
    """Time the implicit products, so many groups in one, by the tile that takes least."""
    copies, rows, cols, depth = work.of_merged_groups(merged)  # each (problems,)
    single = gpu.peak_flops_per_second["float32"]
    peak = (gpu.peak(work.dtype) or single) * (1.0 if work.dtype in ON_MATRIX_UNITS else LANES_SHARE)
    multiprocessors = gpu.streaming_multiprocessors
    per_flop = FEED if gpu.compute_capability >= ASYNCHRONOUS_COPIES else FEED_THROUGH_REGISTERS
    cycle_flops = peak / (multiprocessors * gpu.boost_clock_hz)
    best = np.full(len(rows), np.inf)
    for height, width in TILES:
        feed = per_flop * cycle_flops * 64 * (1 / height + 1 / width) * COMPUTE_BYTES[work.dtype] / 2
        blocks = np.ceil(rows / height) * np.ceil(cols / width) * copies
        parts = np.clip(np.floor(multiprocessors / blocks), 1, np.maximum(depth / SPLIT_DEPTH, 1))
        waves = np.ceil(blocks * parts / multiprocessors)
        tile = 2 * height * width * depth / parts / (peak / multiprocessors) * (1 + feed)
        best = np.minimum(best, waves * tile)
    return best


def _conversions(work: ConvolutionWork, gpu: Gpu) -> Array:
    """Time the conversion of images and gradients with channels first, each read once and written once.

    Kernels of the forward pass in TF32 write either layout (`..._nhwckrsc_nchw` on the A100). A filter of one tap and
    single steps is a plain product in either, but for its own gradient, which sums over the positions.
    """
    if work.dtype not in ON_MATRIX_UNITS or work.is_volume:
        return np.zeros_like(work.rows)
    writes_either = work.backward == "" and work.dtype == "tf32"
    converted = work.images if writes_either else work.images + work.outputs
    traffic = 2 * converted * COMPUTE_BYTES[work.dtype]
    is_product = (work.taps == 1) & (work.strides == 1) & (work.backward != "_backward_weight")
    is_needed = ~work.is_last & ~is_product
    return np.where(is_needed, traffic / (BANDWIDTH_SHARE * _bandwidth(traffic, gpu)), 0.0)


def _depthwise(work: ConvolutionWork, gpu: Gpu, memory: Array) -> Array:
    instructions = work.placed * (PLACING_INSTRUCTIONS + TAP_INSTRUCTIONS * work.taps)  # (problems,)
    instructions = instructions * np.where(work.is_last, DEPTHWISE_LAST, 1.0)
    lanes = gpu.peak_flops_per_second["float32"] / 2  # an instruction a cycle and lane; a multiply-add is two FLOPs
    return np.maximum(instructions / lanes, memory)
