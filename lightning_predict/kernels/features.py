"""Features of a problem on a GPU for utilisation models: physical quantities, never the GPU's name.

Every feature comes from the problem's shape and from figures of the catalogue, so a catalogue row alone adds a GPU.
Most are base-2 logarithms of ratios: work against the machine's peak, traffic against its caches, blocks of a tiled
kernel against its multiprocessors. The families (`families/`) put these blocks
together. Example::

    >>> import numpy as np
    >>> waves, tail = wave_quantisation(np.array([[150.0]]), np.array([[100.0]]))
    >>> float(waves[0, 0]), float(tail[0, 0])  # 1.5 waves take the time of two
    (1.5, 0.75)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.operations import Array, ProblemBatch
from lightning_predict.kernels.roofline import compute_peak, per_gpu, roofline_seconds
from lightning_predict.units import GIGA, MICROSECOND

LAUNCH_SECONDS: Final = 1.5 * MICROSECOND
"""Shortest kernel: the quickest graph-replayed kernel of the public tables on any GPU takes 1.5 µs."""

SMALLEST: Final = 1e-12
"""Guards logarithms of quantities that may be zero (a copy without FLOPs)."""

MACHINE_FEATURES: Final = (
    "multiprocessors",
    "boost_clock",
    "flops_per_clock",
    "memory_bytes_per_clock",
    "cache_over_memory",
    "cache_per_multiprocessor",
    "watts_per_lane",
    "volta_or_later",
    "ampere_or_later",
    "hopper_or_later",
    "blackwell_datacentre",
)
"""Names of `machine_features`: the same for every problem in a dtype, so together they are as good as a GPU's name."""

ENOUGH_BASE_CLOCK: Final = 0.6
"""Share of the boost clock that the base clock must be for the boost clock to last: a board whose maker promises less
(L4, T4, L40S: 0.37 to 0.44) has too little power for it."""


def log2(values: Array) -> Array:
    """Take the base-2 logarithm that stays finite at zero."""
    return np.log2(np.maximum(values, SMALLEST))


def multiprocessors(gpus: Sequence[Gpu]) -> Array:
    """Count the SMs of each GPU, shape (gpus, 1)."""
    return per_gpu(gpus, lambda gpu: gpu.streaming_multiprocessors)


def reference_seconds(batch: ProblemBatch, gpus: Sequence[Gpu]) -> Array:
    """Compute the time that utilisation is measured against, shape (gpus, problems).

    A kernel's launch, plus the longer of computing (fewest FLOPs of any algorithm) and moving: traffic up to the size
    of the L2 may come from it, and what exceeds it must come from memory. Unlike the roofline, this does not jump
    where a working set outgrows the L2, and no kernel beats it.
    """
    compute = batch.least_flops[None, :] / compute_peak(batch, gpus)  # (gpus, problems)
    moved = batch.bytes_moved[None, :]  # (1, problems)
    capacity = per_gpu(gpus, lambda gpu: gpu.l2_bytes)
    cache = per_gpu(gpus, lambda gpu: max(gpu.l2_bytes_per_second, gpu.dram_bytes_per_second))
    memory = per_gpu(gpus, lambda gpu: gpu.dram_bytes_per_second)
    cached = moved / cache
    streamed = np.maximum(moved - capacity, 0.0) / memory
    return LAUNCH_SECONDS + np.maximum(compute, np.maximum(cached, streamed))


def machine_features(batch: ProblemBatch, gpus: Sequence[Gpu]) -> dict[str, Array]:
    """Describe what the GPU is, as ratios to its SMs and clock, each (gpus, 1)."""
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
    """Tell how far the clock that lasts falls short of the boost clock, (gpus, 1): 0 where it does not, else below."""
    promised = per_gpu(gpus, lambda gpu: gpu.base_clock_hz / gpu.boost_clock_hz)
    return {"clock_shortage": np.minimum(log2(promised / ENOUGH_BASE_CLOCK), 0.0)}


def work_features(batch: ProblemBatch, gpus: Sequence[Gpu]) -> dict[str, Array]:
    """Compare the work with the machine: time to compute, to move, to launch, and size against the L2."""
    compute = batch.flops[None, :] / compute_peak(batch, gpus)  # (gpus, problems)
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
    """Count waves of `blocks` on `slots` at a time, and the share of the last wave's time that is used.

    Returns:
        waves (blocks / slots) and tail (waves / ceil(waves), in (0, 1]).
    """
    waves = blocks / slots
    return waves, waves / np.ceil(waves)


def tile_features(
    rows: Array, cols: Array, copies: Array, gpus: Sequence[Gpu], tiles: Sequence[tuple[int, int]]
) -> dict[str, Array]:
    """Describe waves, tail and padding of a (rows x cols) result, `copies` times, cut into each of the usual tiles."""
    named: dict[str, Array] = {}
    slots = multiprocessors(gpus)
    for tile_rows, tile_cols in tiles:
        down, across = np.ceil(rows / tile_rows), np.ceil(cols / tile_cols)  # each (problems,)
        waves, tail = wave_quantisation((copies * down * across)[None, :], slots)  # each (gpus, problems)
        label = f"{tile_rows}x{tile_cols}"
        named[f"waves_{label}"] = log2(waves)
        named[f"tail_{label}"] = log2(tail)
        named[f"filled_{label}"] = log2(rows * cols / (down * tile_rows * across * tile_cols))[None, :]
    return named


def alignment(values: Array, largest: int = 128) -> Array:
    """Find log2 of the largest power of two, up to `largest`, that divides each value, shape (1, problems)."""
    whole = np.maximum(np.rint(values), 1.0).astype(np.int64)
    power = whole & -whole
    aligned: Array = np.log2(np.minimum(power, largest).astype(np.float64))
    return aligned[None, :]
