"""Roofline: the time below which no kernel can go, for many problems and GPUs at once.

`seconds = max(flops / peak, bytes / bandwidth)`; the bandwidth is the L2's where the working set fits in it, the DRAM's
otherwise. With `least=True` the FLOPs are the fewest that any algorithm in use needs, which makes it the bound that no
prediction may break (Williams et al., CACM 2009). Example::

    >>> from lightning_predict.gpus import gpu
    >>> from lightning_predict.kernels.operations import problem_batch
    >>> batch = problem_batch("add", "float32", rows=4096, cols=4096)
    >>> seconds = roofline_seconds(batch, [gpu("T4")])  # 3 x 64 MiB over 320 GB/s
    >>> round(float(seconds[0, 0]) * 1e6)
    629
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.operations import Array, ProblemBatch


def compute_peak(batch: ProblemBatch, gpus: Sequence[Gpu], *, least: bool = False) -> Array:
    """Find the FLOP/s that the batch's units reach at most, shape (gpus, 1).

    Ordinary lanes compute in float32 whatever the 16-bit type stored, and in float64, without the tensor cores, for
    float64. A dtype that a GPU cannot compute is taken at float32's rate, which is how libraries emulate it.

    Args:
        batch: The problems.
        gpus: The GPUs.
        least: What nothing goes beyond: the highest clock instead of the boost clock, and of an emulated dtype, for
            which the catalogue states the rate that libraries reach, the rate of the units that they use.
    """
    if batch.kind.units == "tensor":
        peaks = [_tensor_peak(gpu, batch.dtype, least=least) for gpu in gpus]
    else:
        peaks = [gpu.lanes_peak(batch.dtype) * (gpu.overclock if least else 1.0) for gpu in gpus]
    return np.array(peaks, dtype=np.float64)[:, None]


def _tensor_peak(gpu: Gpu, dtype: str, *, least: bool) -> float:
    single = gpu.peak_flops_per_second["float32"]
    peak = gpu.peak(dtype) or single
    if not least:
        return peak
    return gpu.overclock * (max(peak, single) if dtype in gpu.emulated_dtypes else peak)


def link_bandwidth(gpu: Gpu) -> float:
    """Find the bytes per second that one GPU sends to others of its node: over NVLink, else over PCIe."""
    return gpu.nvlink_bytes_per_second or gpu.pcie_bytes_per_second


def memory_bandwidth(batch: ProblemBatch, gpus: Sequence[Gpu]) -> Array:
    """Find the bytes per second that feed the batch, (gpus, problems): L2's where the work fits in it, else DRAM's."""
    if batch.kind.units in ("link", "fabric"):
        on_fabric = batch.kind.units == "fabric"
        speeds = [link_bandwidth(gpu) if on_fabric else gpu.pcie_bytes_per_second for gpu in gpus]
        return np.broadcast_to(np.array(speeds, dtype=np.float64)[:, None], (len(gpus), len(batch)))
    dram = np.array([gpu.dram_bytes_per_second for gpu in gpus], dtype=np.float64)[:, None]  # (gpus, 1)
    cache = np.array([gpu.l2_bytes_per_second for gpu in gpus], dtype=np.float64)[:, None]
    capacity = np.array([gpu.l2_bytes for gpu in gpus], dtype=np.float64)[:, None]
    return np.where(batch.bytes_moved[None, :] <= capacity, np.maximum(cache, dram), dram)


def roofline_seconds(batch: ProblemBatch, gpus: Sequence[Gpu], *, least: bool = False) -> Array:
    """Compute the seconds of each problem on each GPU at full utilisation, shape (gpus, problems).

    Args:
        batch: The problems.
        gpus: The GPUs.
        least: Use the fewest FLOPs of any algorithm in use instead of the textbook's, and the rate of the units
            instead of the one that libraries reach where they emulate.
    """
    flops = batch.least_flops if least else batch.flops
    compute = flops[None, :] / compute_peak(batch, gpus, least=least)  # (gpus, problems)
    memory = batch.bytes_moved[None, :] / memory_bandwidth(batch, gpus)
    return np.maximum(compute, memory)
