"""A GPU without measurements is no slower than a measured one that it beats in every figure.

The base may err where no GPU like the one asked for was measured; a lesser GPU's own measurements then say what is
slow enough. Its 90 % interval is granted on top, because its measurements may be of a throttled card. Nor is it slower
than the base says of the same GPU with every figure a third less, and a third less again, but for half of the interval:
where the tables show only launches, the base wavers between GPUs that never were. Example::

    >>> from lightning_predict.gpus import gpu
    >>> beats(gpu("V100-SXM2-32GB"), gpu("P100-PCIe-16GB"), "float32"), beats(gpu("L4"), gpu("T4"), "float32")
    (True, False)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.operations import Array

WEAKER: Final = (1.5, 2.25)
"""How much stronger a GPU must be, in every figure, before the base may not call it slower. The second is the first
twice: where one rise follows another, both are taken back."""


def beats(gpu: Gpu, other: Gpu, dtype: str) -> bool:
    """True where no figure that decides a kernel's time is below the other's; power counts, since it throttles."""
    return all(own >= its for own, its in zip(_figures(gpu, dtype), _figures(other, dtype), strict=True))


def weakened(gpu: Gpu, factor: float) -> Gpu:
    """The GPU with every figure divided by the factor."""
    return replace(
        gpu,
        streaming_multiprocessors=max(round(gpu.streaming_multiprocessors / factor), 1),
        base_clock_hz=gpu.base_clock_hz / factor,
        boost_clock_hz=gpu.boost_clock_hz / factor,
        peak_flops_per_second={dtype: peak / factor for dtype, peak in gpu.peak_flops_per_second.items()},
        dram_bytes_per_second=gpu.dram_bytes_per_second / factor,
        l2_bytes=gpu.l2_bytes / factor,
        l2_bytes_per_second=gpu.l2_bytes_per_second / factor,
        memory_bytes=gpu.memory_bytes / factor,
        power_watts=gpu.power_watts / factor,
    )


def _figures(gpu: Gpu, dtype: str) -> tuple[float, ...]:
    major, minor = gpu.compute_capability
    return (
        gpu.streaming_multiprocessors,
        gpu.boost_clock_hz,
        gpu.peak(dtype) or 0.0,
        gpu.dram_bytes_per_second,
        gpu.l2_bytes,
        gpu.l2_bytes_per_second,
        gpu.power_watts,
        10 * major + minor,
    )


def longest_seconds(gpus: Sequence[Gpu], lesser: Sequence[Gpu], high_seconds: Array, dtype: str) -> Array:
    """Upper end of the interval of the fastest GPU that each one beats.

    Args:
        gpus: GPUs without measurements.
        lesser: GPUs with measurements.
        high_seconds: Upper ends of the latter, shape (lesser, problems).
        dtype: What is computed in.

    Returns:
        Shape (gpus, problems); infinite where a GPU beats none of them.
    """
    beaten = np.array([[beats(gpu, other, dtype) for other in lesser] for gpu in gpus], dtype=np.bool_)
    limits = np.where(beaten.reshape(len(gpus), len(lesser), 1), high_seconds[None], np.inf)
    least: Array = limits.min(axis=1, initial=np.inf)
    return least
