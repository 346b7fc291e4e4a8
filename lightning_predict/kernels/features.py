"""Input features of the neural networks for a shape on a GPU: physical quantities, never the name of the GPU.

Every feature is computed from the shape and the catalogue's figures, so a new GPU needs only a row in
the catalogue. Most features are base-2 logarithms of ratios: work over peak, traffic over cache size, blocks of a tiled
kernel over multiprocessors. The families (`families/`) combine the functions of this file. Example::

    >>> import numpy as np
    >>> waves, tail = wave_quantisation(np.array([[150.0]]), np.array([[100.0]]))
    >>> float(waves[0, 0]), float(tail[0, 0])  # 1.5 waves take the time of two
    (1.5, 0.75)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from lightning_predict.base.units import GIGA
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.operations import Array, ShapeBatch
from lightning_predict.kernels.roofline import compute_peak, per_gpu, roofline_seconds

LAUNCH_SECONDS: Final = 1.5e-06  # Minimum kernel time
SMALLEST: Final = 1e-12  # Lower bound in logarithms of quantities that can be zero (a copy without FLOPs)

MACHINE_FEATURES: Final = (
    *("multiprocessors", "boost_clock", "flops_per_clock", "memory_bytes_per_clock"),
    *("cache_over_memory", "cache_per_multiprocessor", "watts_per_lane"),
    *("volta_or_later", "ampere_or_later", "hopper_or_later", "blackwell_datacentre"),
)
"""Names of `machine_features`. Their values are equal for all shapes of a dtype, so they identify the GPU."""

ENOUGH_BASE_CLOCK: Final = 0.6  # Minimum base clock, as a share of the boost clock, of a GPU that sustains its boost


def log2(values: Array) -> Array:
    """Return the base-2 logarithm, finite at zero."""
    return np.log2(np.maximum(values, SMALLEST))


def multiprocessors(gpus: Sequence[Gpu]) -> Array:
    """Return the number of SMs of each GPU, shape (gpus, 1)."""
    return per_gpu(gpus, lambda gpu: gpu.streaming_multiprocessors)


def reference_seconds(batch: ShapeBatch, gpus: Sequence[Gpu]) -> Array:
    """Return the reference time of utilisation, shape (gpus, shapes). No kernel is faster than the reference.

    The reference is a kernel launch plus the longer of two times: the compute time (fewest FLOPs of any algorithm) and
    the memory time. Traffic up to the size of the L2 cache may come from the cache; further traffic comes from memory.
    Unlike the roofline, this reference has no jump at the size of the L2 cache.
    """
    compute = batch.minimum_flops[None, :] / compute_peak(batch, gpus)  # (gpus, shapes)
    moved = batch.bytes_moved[None, :]  # (1, shapes)
    capacity = per_gpu(gpus, lambda gpu: gpu.l2_bytes)
    cache = per_gpu(gpus, lambda gpu: max(gpu.l2_bytes_per_second, gpu.dram_bytes_per_second))
    memory = per_gpu(gpus, lambda gpu: gpu.dram_bytes_per_second)
    cached = moved / cache
    streamed = np.maximum(moved - capacity, 0.0) / memory
    return LAUNCH_SECONDS + np.maximum(compute, np.maximum(cached, streamed))


def machine_features(batch: ShapeBatch, gpus: Sequence[Gpu]) -> dict[str, Array]:
    """Return features of the GPU, as ratios to its number of SMs and its clock, each (gpus, 1)."""
    lanes = per_gpu(gpus, lambda gpu: gpu.streaming_multiprocessors * gpu.boost_clock_hz)  # (gpus, 1)
    capability = per_gpu(gpus, lambda gpu: gpu.network_capability[0] + gpu.network_capability[1] / 10)
    return {
        "multiprocessors": log2(multiprocessors(gpus)),
        "boost_clock": log2(per_gpu(gpus, lambda gpu: gpu.boost_clock_hz / GIGA)),
        "flops_per_clock": log2(compute_peak(batch, gpus) / lanes),
        "memory_bytes_per_clock": log2(per_gpu(gpus, lambda gpu: gpu.dram_bytes_per_second) / lanes),
        "cache_over_memory": log2(per_gpu(gpus, lambda gpu: gpu.l2_bytes_per_second / gpu.dram_bytes_per_second)),
        "cache_per_multiprocessor": log2(per_gpu(gpus, lambda gpu: gpu.l2_bytes) / multiprocessors(gpus)),
        "watts_per_lane": log2(per_gpu(gpus, lambda gpu: gpu.power_watts) / lanes * GIGA),
        "volta_or_later": (capability >= 7.0).astype(np.float64),
        "ampere_or_later": (capability >= 8.0).astype(np.float64),
        "hopper_or_later": (capability >= 9.0).astype(np.float64),
        "blackwell_datacentre": ((capability >= 10.0) & (capability < 11.0)).astype(np.float64),
    }


def clock_features(gpus: Sequence[Gpu]) -> dict[str, Array]:
    """Return log2 of base clock over required base clock, (gpus, 1), at most 0; 0 if the boost clock is sustained."""
    promised = per_gpu(gpus, lambda gpu: gpu.base_clock_hz / gpu.boost_clock_hz)
    return {"clock_shortage": np.minimum(log2(promised / ENOUGH_BASE_CLOCK), 0.0)}


def work_features(batch: ShapeBatch, gpus: Sequence[Gpu]) -> dict[str, Array]:
    """Return ratios of the work to the GPU: compute, memory and launch time, and size relative to the L2 cache."""
    compute = batch.flops[None, :] / compute_peak(batch, gpus)  # (gpus, shapes)
    memory = batch.bytes_moved[None, :] / per_gpu(gpus, lambda gpu: gpu.dram_bytes_per_second)
    bound = roofline_seconds(batch, gpus)
    return {
        "compute_over_memory": np.clip(log2(compute) - log2(memory), -12.0, 12.0),
        "compute_over_launch": log2(compute + LAUNCH_SECONDS / 16) - np.log2(LAUNCH_SECONDS),
        "memory_over_launch": log2(memory + LAUNCH_SECONDS / 16) - np.log2(LAUNCH_SECONDS),
        "bound_over_launch": log2(bound + LAUNCH_SECONDS / 16) - np.log2(LAUNCH_SECONDS),
        "traffic_over_cache": log2(batch.bytes_moved[None, :] / per_gpu(gpus, lambda gpu: gpu.l2_bytes)),
    }


def wave_quantisation(blocks: Array, slots: Array) -> tuple[Array, Array]:
    """Return the number of waves of `blocks` on `slots`, and the used share of all waves including the last one.

    Returns:
        waves (blocks / slots) and tail (waves / ceil(waves), in (0, 1]).
    """
    waves = blocks / slots
    return waves, waves / np.ceil(waves)


def tile_features(
    rows: Array, cols: Array, copies: Array, gpus: Sequence[Gpu], tiles: Sequence[tuple[int, int]]
) -> dict[str, Array]:
    """Return waves, tail and padding of `copies` results of (rows x cols), for each of the usual tile sizes."""
    named: dict[str, Array] = {}
    slots = multiprocessors(gpus)
    for tile_rows, tile_cols in tiles:
        down, across = np.ceil(rows / tile_rows), np.ceil(cols / tile_cols)  # each (shapes,)
        waves, tail = wave_quantisation((copies * down * across)[None, :], slots)  # each (gpus, shapes)
        label = f"{tile_rows}x{tile_cols}"
        named[f"waves_{label}"] = log2(waves)
        named[f"tail_{label}"] = log2(tail)
        named[f"filled_{label}"] = log2(rows * cols / (down * tile_rows * across * tile_cols))[None, :]
    return named


def alignment(values: Array, largest: int = 128) -> Array:
    """Return log2 of the largest power of two, up to `largest`, that divides each value, shape (1, shapes)."""
    whole = np.maximum(np.rint(values), 1.0).astype(np.int64)
    power = whole & -whole
    aligned: Array = np.log2(np.minimum(power, largest).astype(np.float64))
    return aligned[None, :]
