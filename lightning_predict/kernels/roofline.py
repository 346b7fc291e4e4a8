"""Roofline of a GPU: peak rates and bandwidths, sustained matmul rates, and limits that slow kernels down.

The roofline is a lower bound on the time of a kernel: `max(flops / peak, bytes / bandwidth)`. The bandwidth is the L2
bandwidth if the working set fits in the L2 cache, otherwise the DRAM bandwidth. With `least=True`, the FLOPs are the
minimum of any algorithm in use, so the result is a lower bound on every prediction (Williams et al., CACM 2009).

A peak is stated at the boost clock, but large matmuls sustain another rate (`sustained_flops`). GeForce and workstation
boards run above the boost clock (up to `Gpu.highest_clock_hz`). Boards with low power for their number of
multiprocessors run below the boost clock. GeForce chips since Ampere have 128 CUDA cores per multiprocessor, which
never reach the peak, because half of them also compute integers. The sustained rate is the published rate of large
square matmuls (`Gpu.measured_flops_per_second`). Without published measurements:

    rate = P · s / sqrt(1 + (e · P / W)²)

P is the peak at the highest clock, and s the share of P that CUDA cores reach without a power limit; tensor cores reach
1. W is the board's power in watts, and e is the number of watts per unit of P below which power becomes the limit.

Two further limits apply (`minimum_latencies`, `OperationSpec.latency`): the issue of instructions, for kernels that
compute indices, and the latency of blocks that wait for their loads, for few rows.

Example::

    >>> from lightning_predict.hardware import gpu
    >>> from lightning_predict.kernels.operations import shape_batch
    >>> batch = shape_batch("add", "float32", rows=4096, cols=4096)
    >>> seconds = roofline_seconds(batch, [gpu("T4")])  # 3 x 64 MiB over 320 GB/s
    >>> round(float(seconds[0, 0]) * 1e6)
    629
    >>> [round(sustained_flops(gpu(name), "float16") / 1e12) for name in ("A10", "RTX-A5000", "RTX-3070-Ti")]
    [84, 94, 45]
    >>> serial = limited_transfer(4, 4, 0, blocks=1, block_cycles=1.755e6)  # on one of 132 multiprocessors
    >>> round(float(minimum_latencies([serial], [gpu("H100-PCIe-80GB")])[0, 0]) * 1e3, 3)
    1.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.operations import (
    Array,
    CountedShape,
    OperationShape,
    ShapeBatch,
    Surrogate,
    batch_shapes,
    by_bytes,
    operation_spec,
    register,
)
from lightning_predict.uncertainty import UNMEASURED_RATE_UNCERTAINTY

# --- Peaks, and the lower bound on a kernel's time


def per_gpu(gpus: Sequence[Gpu], figure: Callable[[Gpu], float]) -> Array:
    """Return one figure of each GPU as a column, shape (gpus, 1)."""
    return np.array([figure(gpu) for gpu in gpus], dtype=np.float64)[:, None]


def compute_peak(batch: ShapeBatch, gpus: Sequence[Gpu], *, least: bool = False) -> Array:
    """Return the peak FLOP/s of the batch's units, shape (gpus, 1).

    CUDA cores compute 16-bit dtypes at the float32 rate, and float64 if the GPU has no tensor cores. A dtype that a GPU
    does not support gets the float32 rate, because libraries emulate the dtype.

    Args:
        batch: Shapes to compute.
        gpus: GPUs that compute them.
        least: Whether to return an upper bound on the rate. The bound uses the highest clock instead of the boost
            clock. For an emulated dtype, it uses the rate of the underlying units instead of the catalogue's rate.
    """
    if batch.spec.units == "tensor":
        return per_gpu(gpus, lambda gpu: _tensor_peak(gpu, batch.dtype, least=least))
    return per_gpu(gpus, lambda gpu: gpu.lanes_peak(batch.dtype) * (gpu.overclock if least else 1.0))


def _tensor_peak(gpu: Gpu, dtype: str, *, least: bool) -> float:
    single = gpu.peak_flops_per_second["float32"]
    peak = gpu.peak(dtype) or single
    if not least:
        return peak
    return gpu.overclock * (max(peak, single) if dtype in gpu.emulated_dtypes else peak)


def link_bandwidth(gpu: Gpu) -> float:
    """Return the bytes per second from one GPU to the other GPUs of its machine: over NVLink, otherwise over PCIe."""
    return gpu.nvlink_bytes_per_second or gpu.pcie_bytes_per_second


def memory_bandwidth(batch: ShapeBatch, gpus: Sequence[Gpu]) -> Array:
    """Return the memory bandwidth in bytes per second, (gpus, shapes): L2 if the data fit in it, else DRAM."""
    if batch.spec.units in ("link", "fabric"):
        on_fabric = batch.spec.units == "fabric"
        speeds = per_gpu(gpus, lambda gpu: link_bandwidth(gpu) if on_fabric else gpu.pcie_bytes_per_second)
        return np.broadcast_to(speeds, (len(gpus), len(batch)))
    dram = per_gpu(gpus, lambda gpu: gpu.dram_bytes_per_second)
    cache = per_gpu(gpus, lambda gpu: gpu.l2_bytes_per_second)
    capacity = per_gpu(gpus, lambda gpu: gpu.l2_bytes)
    return np.where(batch.bytes_moved[None, :] <= capacity, np.maximum(cache, dram), dram)


def roofline_seconds(
    batch: ShapeBatch, gpus: Sequence[Gpu], *, least: bool = False, bandwidth: Array | None = None
) -> Array:
    """Compute the seconds of each shape on each GPU at full utilisation, shape (gpus, shapes).

    Args:
        batch: Shapes to compute.
        gpus: GPUs that compute them.
        least: Whether to use the minimum FLOPs of any algorithm in use, and the rate of the units for emulated dtypes.
        bandwidth: Bytes per second of memory, (gpus, shapes); None uses `memory_bandwidth`.
    """
    flops = batch.minimum_flops if least else batch.flops
    compute = flops[None, :] / compute_peak(batch, gpus, least=least)  # (gpus, shapes)
    fed = memory_bandwidth(batch, gpus) if bandwidth is None else bandwidth
    return np.maximum(compute, batch.bytes_moved[None, :] / fed)


def rooflines_at_equal_bandwidth(batch: ShapeBatch, twin: ShapeBatch, gpus: Sequence[Gpu]) -> tuple[Array, Array]:
    """Compute the rooflines of shapes in two dtypes, at one bandwidth for both, (gpus, shapes) each.

    Both use the slower of their memories. Otherwise, a dtype whose data alone fit in the L2 cache would have a much
    higher bandwidth. Measured times show no such jump: the weights of a layer come from DRAM in both dtypes.
    """
    slower = np.minimum(memory_bandwidth(batch, gpus), memory_bandwidth(twin, gpus))
    return roofline_seconds(batch, gpus, bandwidth=slower), roofline_seconds(twin, gpus, bandwidth=slower)


TENSOR_ALIGNMENT: Final = 8  # Elements in 16 bits to which tensor cores pad, and to which the widest loads are aligned
WARP_THREADS: Final = 32  # Threads of a warp
SHORTEST_KERNEL_SECONDS: Final = 2e-06  # Minimum kernel time, which is the time of a kernel without work on any GPU

TYPICAL_UTILISATION: Final = {"tensor": 0.5, "vector": 0.8, "link": 0.8, "fabric": 0.6}
"""Share of the roofline that kernels without a model reach.

Large matmuls reach about half of the peak; memory-bound kernels and copies reach about 80 % of the bandwidth."""

DELIVERED_SHARE: Final = 0.9  # Share of the memory bandwidth that kernels with vectorized loads reach

# --- Rates that large products sustain

OVERCLOCKED_SHARE: Final = 0.9  # Sustained clock over highest clock

LANES_SHARE: Final = 0.85
"""Share of the float32 peak that CUDA cores reach if there are 64 per multiprocessor, or on chips before Volta."""

WIDE_LANES_SHARE: Final = 0.79  # Share of the float32 peak that 128 CUDA cores per multiprocessor reach since Ampere

TENSOR_WATTS: Final[Mapping[str, float]] = {
    "volta": 1.7,
    "ampere": 0.73,
    "ampere_geforce": 1.33,
    "ada": 0.83,
    "hopper": 0.53,
    "blackwell": 0.37,
}
"""Board watts per 16-bit TFLOP/s below which power limits the tensor cores, by chip.

The manufacturing processes are 12 nm, 7 nm, 8 nm, and 4 nm. At 4 nm, the value depends on the source of operands:
registers (Ada, GeForce Blackwell), shared memory, or tensor memory."""

RELATIVE_WATTS: Final[Mapping[str, float]] = {"float32": 4.6, "tf32": 2.0}
"""Watts per FLOP, relative to a 16-bit FLOP, for CUDA cores and for tensor cores at half the rate."""

HEADROOM: Final = 1.25  # Maximum rate of a matmul relative to the sustained rate, exceeded in bursts and at best shapes
TRANSPOSED_WATTS: Final = 1.6  # Watts of a matmul A·Bᵀ on CUDA cores, relative to A·B
REDUCED: Final = ("float32", "tf32", "float16", "bfloat16")  # Dtypes whose sustained rates are modelled

TWINS: Final[Mapping[str, str]] = {"float16": "bfloat16", "bfloat16": "float16"}
"""For each dtype, the other dtype of the same units, whose measured rate replaces a missing rate.

52 boards of the catalogue have both rates, which agree within 5 % on 44 boards."""


def sustained_flops(gpu: Gpu, dtype: str) -> float:
    """Estimate the FLOP/s of large products in a dtype of `REDUCED` that the GPU supports."""
    measured = _measured_flops(gpu, dtype)
    if measured is not None:
        return measured
    is_wide = gpu.cores_per_multiprocessor >= 128 and gpu.generation.has_tensor_cores
    lanes_share = WIDE_LANES_SHARE if is_wide else LANES_SHARE
    share = lanes_share if dtype == "float32" else 1.0
    if gpu.overclock > 1:
        share *= OVERCLOCKED_SHARE
    return gpu.peak_flops_per_second[dtype] * gpu.overclock * share / math.hypot(1.0, _drawn_power(gpu, dtype))


def sustained_rate_uncertainty(gpu: Gpu, dtype: str) -> float:
    """Return the half width of a sustained rate's interval in log(FLOP/s)."""
    if dtype not in REDUCED or not has_units(gpu, dtype) or dtype not in gpu.peak_flops_per_second:
        return 0.0
    return UNMEASURED_RATE_UNCERTAINTY if _measured_flops(gpu, dtype) is None else 0.0


def _measured_flops(gpu: Gpu, dtype: str) -> float | None:
    """Return the measured rate of a dtype, or of the other dtype of the same units."""
    measured, twin = gpu.measured_flops_per_second, TWINS.get(dtype, dtype)
    if dtype not in measured and gpu.peak_flops_per_second.get(twin) == gpu.peak_flops_per_second.get(dtype):
        return measured.get(twin)
    return measured.get(dtype)


def transposed_ratio(gpu: Gpu, dtype: str) -> float:
    """Estimate the time of a large matmul A·Bᵀ relative to A·B; 1 on tensor cores, which support both layouts."""
    if dtype != "float32" and (dtype != "tf32" or dtype in gpu.peak_flops_per_second):
        return 1.0
    drawn = _drawn_power(gpu, "float32")
    return math.hypot(1.0, TRANSPOSED_WATTS * drawn) / math.hypot(1.0, drawn)


@lru_cache(maxsize=4096)  # called again by every family
def with_sustained_peaks(gpu: Gpu) -> Gpu:
    """Return a GPU with sustained rates as peaks, as input for neural networks that were not trained on this GPU.

    Dtypes that the GPU emulates, and dtypes without measurements on any GPU, keep their rates.
    """
    peaks = {
        dtype: HEADROOM * sustained_flops(gpu, dtype) if dtype in REDUCED and has_units(gpu, dtype) else peak
        for dtype, peak in gpu.peak_flops_per_second.items()
    }
    # The new peaks already include the sustained clock, so the base clock must not count again.
    return replace(gpu, peak_flops_per_second=peaks, base_clock_hz=gpu.boost_clock_hz)


def _drawn_power(gpu: Gpu, dtype: str) -> float:
    """Return the power at which power starts to limit the peak, relative to the board's power."""
    peak = gpu.peak_flops_per_second[dtype] * gpu.overclock
    return TENSOR_WATTS[gpu.generation.chip] * RELATIVE_WATTS.get(dtype, 1.0) * peak / 1e12 / gpu.power_watts


def has_units(gpu: Gpu, dtype: str) -> bool:
    """Return whether libraries compute in the dtype; False for emulated dtypes and for the P100's float16."""
    return dtype not in gpu.emulated_dtypes and (dtype == "float32" or gpu.generation.has_tensor_cores)


# --- Instruction issue, latency, and rows that do not fit in the L2

LIMITED: Final = "limited_transfer"
"""Name of a transfer whose time may be bound by instructions, or by too few blocks.

The shape parameters are those of `transfer`, the total cycles on a single multiprocessor, the number of blocks, and
the cycles of a block."""
VECTORIZED: Final = "vectorized"  # Element-wise operations and copies with wide loads (`families/elementwise.py`)

SINGLE_LOAD_CYCLES: Final = 0.77
"""Multiprocessor cycles per element of kernels that load one element at a time: broadcast, mixed or sliced operands."""
JOINED_LOAD_CYCLES: Final = 1.25  # The same for a concatenation of other than contiguous rows: two indices an element
ROLL_CYCLES: Final = 2.5  # The same for `roll`, which divides the index of an element once per dimension, in 64 bits
SECTOR_BYTES: Final = 32  # Minimum bytes of a memory access

WIDEST_FLOPS_PER_CLOCK: Final = 1024.0
"""TF32 FLOPs per clock and multiprocessor with the instructions of Ampere; in 16 bits, twice as many."""

OLDER_RATE: Final = 0.8  # Share of this rate of such kernels on GPUs with faster instructions (FlashAttention 2)
LINK_SHARE: Final = 0.8  # Share of a link's bandwidth that a copy between host and GPU reaches


def host_copy_rate(gpu: Gpu) -> float:
    """Return the bytes per second of a copy between host and GPU."""
    return LINK_SHARE * gpu.pcie_bytes_per_second


def issue_rate(gpu: Gpu) -> float:
    """Return the cycles per second of all multiprocessors together."""
    return gpu.streaming_multiprocessors * gpu.boost_clock_hz


def rounds(blocks: Array, gpu: Gpu, *, resident: int = 1) -> Array:
    """Return the number of sequential rounds of blocks per multiprocessor."""
    started: Array = np.ceil(blocks / (gpu.streaming_multiprocessors * resident))
    return started


def _latency(batch: ShapeBatch, gpu: Gpu) -> Array:
    c = batch.columns
    waiting = rounds(c["blocks"], gpu) * c["block_cycles"] / gpu.boost_clock_hz
    return np.maximum(c["cycles"] / issue_rate(gpu), waiting)


def _as_transfer(shape: OperationShape) -> tuple[CountedShape, ...]:
    """Return a transfer of the same bytes, to predict the time by memory traffic alone."""
    return (CountedShape(1.0, OperationShape("transfer", "float32", shape.dims[:3])),)


register(
    replace(
        by_bytes(LIMITED),
        shape=("read_bytes", "write_bytes", "flops", "cycles", "blocks", "block_cycles"),
        defaults={"read_bytes": 0, "write_bytes": 0, "flops": 0, "cycles": 0, "blocks": 1, "block_cycles": 0},
        estimators=(Surrogate(_as_transfer),),
        latency=_latency,
    )
)


def limited_transfer(
    read_bytes: float,
    written_bytes: float,
    flops: float,
    *,
    cycles: float = 0.0,
    blocks: float = 1.0,
    block_cycles: float = 0.0,
) -> OperationShape:
    """Return a transfer whose time may be bound by instructions, or by too few blocks.

    `cycles` are those to issue all instructions on a single multiprocessor.
    """
    return OperationShape(LIMITED, "float32", (read_bytes, written_bytes, flops, cycles, blocks, block_cycles))


def minimum_latencies(shapes: Sequence[OperationShape], gpus: Sequence[Gpu]) -> Array:
    """Return the minimum seconds for instructions and waiting, shape (gpus, shapes); 0 without such a limit."""
    seconds = np.zeros((len(gpus), len(shapes)))
    groups: dict[tuple[str, str], list[int]] = {}
    for index, item in enumerate(shapes):
        if operation_spec(item.operation).latency is not None:
            groups.setdefault((item.operation, item.dtype), []).append(index)
    for (operation, _), indices in groups.items():
        latency, batch = operation_spec(operation).latency, batch_shapes([shapes[index] for index in indices])
        assert latency is not None  # by the loop above
        seconds[:, indices] = [latency(batch, gpu) for gpu in gpus]
    return seconds
