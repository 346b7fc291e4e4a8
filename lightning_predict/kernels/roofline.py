"""What a GPU's units give: peaks that nothing passes, rates that last, and what keeps kernels from either.

The roofline is the time below which no kernel can go, `max(flops / peak, bytes / bandwidth)`; the bandwidth is the L2's
where the working set fits in it, the DRAM's otherwise. With `least=True` the FLOPs are the fewest that any algorithm in
use needs, which makes it the bound that no prediction may break (Williams et al., CACM 2009).

A peak is stated at the boost clock, and large products sustain another rate (`sustained_flops`). GeForce and
workstation boards run above that clock (up to `Gpu.highest_clock_hz`), boards with few watts for their multiprocessors
below it, and the 128 lanes of a multiprocessor of GeForce chips since Ampere, half of which compute integers, too,
never reach it. Where people measured large square products on a GPU, their rate stands
(`Gpu.measured_flops_per_second`), elsewhere this:

    rate = P · s / sqrt(1 + (e · P / W)²)

P is the peak at the highest clock, s the share of it that tensor cores or lanes reach with power to spare, W the
board's watts, and e the watts that a unit of P takes where power starts to limit it.

Three limits apply besides (`latencies`; families of operations give cycles and blocks, `operations.Floor`). A
multiprocessor issues so many instructions in a clock, so kernels that load one element at a time or compute indices
take a time by their elements, not by their bytes: half of the bandwidth in 16 bits where float32 reaches all of it, and
the more so on GPUs with HBM, which have twice the bytes per clock and multiprocessor. A block waits for what it loads,
so a kernel with one block per row or channel leaves a GPU idle where there are few. And a kernel that passes over its
rows several times finds them in the L2 only where those that run at once fit there. Example::

    >>> from lightning_predict.gpus import gpu
    >>> from lightning_predict.kernels.operations import problem_batch
    >>> batch = problem_batch("add", "float32", rows=4096, cols=4096)
    >>> seconds = roofline_seconds(batch, [gpu("T4")])  # 3 x 64 MiB over 320 GB/s
    >>> round(float(seconds[0, 0]) * 1e6)
    629
    >>> [round(sustained_flops(gpu(name), "float16") / 1e12) for name in ("A10", "RTX-A5000", "RTX-3070-Ti")]
    [82, 95, 44]
    >>> serial = limited_transfer(4, 4, 0, blocks=1, block_cycles=1.755e6)  # on one of 132 multiprocessors
    >>> round(float(latencies([serial], [gpu("H100-PCIe-80GB")])[0, 0]) * 1e3, 3)
    1.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.operations import (
    Array,
    CountedProblem,
    Floor,
    Problem,
    ProblemBatch,
    batch_of,
    by_bytes,
    operation_kind,
    register,
)

# --- Peaks, and the time below which no kernel can go


def per_gpu(gpus: Sequence[Gpu], figure: Callable[[Gpu], float]) -> Array:
    """Put one figure of each GPU in a column, shape (gpus, 1)."""
    return np.array([figure(gpu) for gpu in gpus], dtype=np.float64)[:, None]


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
        return per_gpu(gpus, lambda gpu: _tensor_peak(gpu, batch.dtype, least=least))
    return per_gpu(gpus, lambda gpu: gpu.lanes_peak(batch.dtype) * (gpu.overclock if least else 1.0))


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
        speeds = per_gpu(gpus, lambda gpu: link_bandwidth(gpu) if on_fabric else gpu.pcie_bytes_per_second)
        return np.broadcast_to(speeds, (len(gpus), len(batch)))
    dram = per_gpu(gpus, lambda gpu: gpu.dram_bytes_per_second)
    cache = per_gpu(gpus, lambda gpu: gpu.l2_bytes_per_second)
    capacity = per_gpu(gpus, lambda gpu: gpu.l2_bytes)
    return np.where(batch.bytes_moved[None, :] <= capacity, np.maximum(cache, dram), dram)


def roofline_seconds(
    batch: ProblemBatch, gpus: Sequence[Gpu], *, least: bool = False, bandwidth: Array | None = None
) -> Array:
    """Compute the seconds of each problem on each GPU at full utilisation, shape (gpus, problems).

    Args:
        batch: The problems.
        gpus: The GPUs.
        least: Use the fewest FLOPs of any algorithm in use instead of the textbook's, and the rate of the units
            instead of the one that libraries reach where they emulate.
        bandwidth: Bytes per second that feed the batch, (gpus, problems); None for `memory_bandwidth`'s.
    """
    flops = batch.least_flops if least else batch.flops
    compute = flops[None, :] / compute_peak(batch, gpus, least=least)  # (gpus, problems)
    fed = memory_bandwidth(batch, gpus) if bandwidth is None else bandwidth
    return np.maximum(compute, batch.bytes_moved[None, :] / fed)


def rooflines_of_twins(batch: ProblemBatch, twin: ProblemBatch, gpus: Sequence[Gpu]) -> tuple[Array, Array]:
    """Compute the rooflines of problems and of the same in another dtype, fed by one memory, (gpus, problems) each.

    The slower memory of the two feeds both. Where the one fits in the L2 and the other does not, nothing that was
    measured jumps as the bandwidth does: the weights of a layer come from DRAM, whether they would fit or not.
    """
    slower = np.minimum(memory_bandwidth(batch, gpus), memory_bandwidth(twin, gpus))
    return roofline_seconds(batch, gpus, bandwidth=slower), roofline_seconds(twin, gpus, bandwidth=slower)


# --- Rates that large products sustain

TENSOR_SHARE: Final = 0.98
"""Share of the peak that tensor cores reach. This and all constants below were fitted to the rates of 52 GPUs in the
catalogue (source `matmul_survey`), with weak priors. Errors on GPUs that were left out of the fit, median and nine in
ten: float32 4 and 21 %, TF32 5 and 11 %, float16 4 and 14 %, bfloat16 3 and 9 %."""

OVERCLOCKED_SHARE: Final = 0.90
"""Another factor for boards that may exceed their boost clock: the clock that lasts, over the highest."""

LANES_SHARE: Final = 0.93
"""Share of the float32 peak that lanes reach: 64 per multiprocessor, and those before Volta."""

WIDE_LANES_SHARE: Final = 0.805
"""The same for 128 lanes per multiprocessor on Hopper and Blackwell's data-centre chips."""

SHARED_LANES_SHARE: Final = 0.77
"""The same for 128 lanes per multiprocessor on the chips of GeForce boards since Ampere."""

TENSOR_WATTS: Final[Mapping[str, float]] = {
    "volta": 1.7,
    "ampere": 0.73,
    "ampere_geforce": 1.33,
    "ada": 0.83,
    "hopper": 0.53,
    "blackwell": 0.37,
}
"""Board watts per 16-bit TFLOP/s below which power limits tensor cores, by chip: 12 nm, 7 nm, 8 nm, and at 4 nm by
where operands come from: registers (Ada, Blackwell's GeForce chips), shared memory, tensor memory."""

RELATIVE_WATTS: Final[Mapping[str, float]] = {"float32": 4.6, "tf32": 2.0}
"""Watts of a FLOP over those of a 16-bit one: on lanes, and on tensor cores at half the rate."""

HEADROOM: Final = 1.25
"""Most that a product reaches of the sustained rate, in bursts and at the best of shapes: what the fastest of the GPUs'
large products in the measurement tables reach, but for one in a hundred."""

HOPPER_FLOAT8: Final = 1.05
"""Time of a product in float8 on Hopper over what the ratio of the peaks makes of bfloat16's. Training multiplies by
cuBLASLt, which no table times: TileLang's tuned products of 8,192 x 8,192 x k take 0.525, 0.502, 0.503 and 0.497 of its
float16 ones' time on one H800 at k of 2,048 to 16,384, and their 1,340 to 1,540 TFLOP/s stand to the 800 that cuBLAS
reaches in bfloat16 on the H100 as 0.60 to 0.52, where the peaks say 0.50. The kernels of `matmul_fp8`, which serve,
take 0.63 (H100) and 0.58 (H200) from 8,192 rows up. Nothing of steps was read. On Blackwell the peaks stand."""

POWER_DOUBT: Final = 0.5
"""Half width in log(rate) where power takes all, less as it takes less: how hot a card is, and what it multiplies, then
decide the clock. Times of float32 products on the L4 by two sources are 1.7 apart, of bfloat16 ones on the L40S 1.3, of
float32 ones on the T4 1.2; power takes a half, a quarter and a quarter of these."""

HOPPER_TF32: Final = 1.08
"""Time of a product in TF32 on Hopper over what the ratio of the peaks makes of bfloat16's: the middle of what two
sources say. XLA's best algorithms take 2.2 to 2.4 times as long in TF32 on the H100 as in bfloat16, from 8 to 500
GFLOP, and 1.6 to 1.85 times on the B200 (taken as 2 there and elsewhere); in torch the products of 2,048 to 10,240 a
side that people measured on an H100, an H800 and an H20 take 1.9 to 2.1 times as long (training data: these rows and
the H100's of `matmul_tf32`). Twelve steps in TF32 on the H100-PCIe, which did not decide it, are 7.5 % off in the
median with this, and 8.5 % with 1.13."""

UNMEASURED_DOUBT: Final = 0.12
"""The same where no rate was measured: nine in ten of the GPUs that were left out of the fit, but for float32."""

TRANSPOSED_WATTS: Final = 1.6
TRANSPOSED_WATTS_ON_TURING: Final = 1.3
"""Watts of a product A·Bᵀ on lanes over those of A·B, the second on Volta and Turing: both factors then pass through
shared memory element by element. The rates that people measured are of A·B. KernelBench's A·Bᵀ in float32 takes 1.43
times as long as A·B and Aᵀ·B of its shape on the L40S, 1.25 on the H100-PCIe and 1.12 on the RTX 3090 Ti, NeuSight's on
the L4 1.48 times as long as networks say that never saw an L4; this says 1.33, 1.08, 1.19 and 1.46, and with each left
out of the choice 1.35, 1.09, 1.24 and 1.54. On the A100 and the H100-SXM, whose power suffices, products A·Bᵀ of the
public tables reach the survey's rate within 4 %, and this says 1.02 and 1.04. Volta's kernels ask for less: 1.09
(NeuSight) and 1.20 (KernelBench) on the T4, 1.0 on the V100, where this says 1.15 and 1.05; chosen on the T4 alone it
is the same, on the V100 alone there would be no such factor (training data: all of these rows)."""

REDUCED: Final = ("float32", "tf32", "float16", "bfloat16")
"""Dtypes of which sustained rates are known."""

TWINS: Final[Mapping[str, str]] = {"float16": "bfloat16", "bfloat16": "float16"}
"""Dtypes that the same units multiply: where the rate of one was measured, it stands for the other. Of 52 boards with
both in the catalogue they are within 5 % of each other on 44."""


def sustained_flops(gpu: Gpu, dtype: str) -> float:
    """Estimate FLOP/s of large products in a dtype of `REDUCED` that the GPU has units for."""
    measured = _measured_flops(gpu, dtype)
    if measured is not None:
        return measured
    share = _lanes_share(gpu) if dtype == "float32" else TENSOR_SHARE
    if gpu.overclock > 1:
        share *= OVERCLOCKED_SHARE
    return gpu.peak_flops_per_second[dtype] * gpu.overclock * share * _share_of_power(gpu, dtype)


def sustained_doubt(gpu: Gpu, dtype: str) -> float:
    """Return the half width of a sustained rate's interval in log(FLOP/s)."""
    if dtype not in REDUCED or not has_units(gpu, dtype) or dtype not in gpu.peak_flops_per_second:
        return 0.0
    by_power = POWER_DOUBT * (1 - _share_of_power(gpu, dtype))
    return math.hypot(by_power, UNMEASURED_DOUBT) if _measured_flops(gpu, dtype) is None else by_power


def _measured_flops(gpu: Gpu, dtype: str) -> float | None:
    """Return the rate that people measured in a dtype, or in the one that the same units multiply."""
    measured, twin = gpu.measured_flops_per_second, TWINS.get(dtype, dtype)
    if dtype not in measured and gpu.peak_flops_per_second.get(twin) == gpu.peak_flops_per_second.get(dtype):
        return measured.get(twin)
    return measured.get(dtype)


def transposed_ratio(gpu: Gpu, dtype: str) -> float:
    """Estimate the time of a large product A·Bᵀ over that of A·B; 1 on matrix units, which take it as it lies."""
    if dtype != "float32" and (dtype != "tf32" or dtype in gpu.peak_flops_per_second):
        return 1.0
    is_turing = gpu.generation.chip == "volta" and gpu.generation.has_tensor_cores
    watts = TRANSPOSED_WATTS_ON_TURING if is_turing else TRANSPOSED_WATTS
    drawn = _drawn_power(gpu, "float32")
    return math.hypot(1.0, watts * drawn) / math.hypot(1.0, drawn)


def float8_ratio(gpu: Gpu) -> float:
    """Estimate the time of a product in float8 over what the peaks make of its time in bfloat16."""
    return HOPPER_FLOAT8 if gpu.generation.has_slow_reduced_products else 1.0


def tf32_ratio(gpu: Gpu) -> float:
    """Estimate the time of a product in TF32 over what the peaks make of its time in bfloat16."""
    return HOPPER_TF32 if gpu.generation.has_slow_reduced_products else 1.0


@lru_cache(maxsize=4096)  # asked for again by every family
def sustaining(gpu: Gpu) -> Gpu:
    """Describe a GPU to networks that were not trained on it: its peaks are what products reach at most.

    Dtypes that it emulates keep their rates, and so do those that no one measured on any GPU.
    """
    peaks = {
        dtype: HEADROOM * sustained_flops(gpu, dtype) if dtype in REDUCED and has_units(gpu, dtype) else peak
        for dtype, peak in gpu.peak_flops_per_second.items()
    }
    # The clock that lasts is in the peaks: a base clock far below the boost clock says no more.
    return replace(gpu, peak_flops_per_second=peaks, base_clock_hz=gpu.boost_clock_hz)


def _share_of_power(gpu: Gpu, dtype: str) -> float:
    """Compute the share of the rate that power leaves."""
    return 1 / math.hypot(1.0, _drawn_power(gpu, dtype))


def _drawn_power(gpu: Gpu, dtype: str) -> float:
    """Compute the watts at which power starts to limit the peak, over the board's."""
    peak = gpu.peak_flops_per_second[dtype] * gpu.overclock
    return TENSOR_WATTS[gpu.generation.chip] * RELATIVE_WATTS.get(dtype, 1.0) * peak / 1e12 / gpu.power_watts


def has_units(gpu: Gpu, dtype: str) -> bool:
    """Return whether libraries compute in the dtype itself: no emulated ones, nor the P100's float16."""
    return dtype not in gpu.emulated_dtypes and (dtype == "float32" or gpu.generation.has_tensor_cores)


def _lanes_share(gpu: Gpu) -> float:
    if gpu.cores_per_multiprocessor < 128 or not gpu.generation.has_tensor_cores:
        return LANES_SHARE
    return SHARED_LANES_SHARE if gpu.generation.is_made_for_games else WIDE_LANES_SHARE


# --- Instructions, waiting, and rows that leave the L2

LIMITED: Final = "limited_transfer"
"""A transfer that instructions or few blocks may bound: as `transfer`, with the cycles that all of it would take on one
multiprocessor, and the cycles of a block, one of so many."""

SINGLE_LOAD_CYCLES: Final = 1 / 1.3
"""Multiprocessor cycles per element of kernels that load one element at a time: operands that are broadcast, of
several dtypes or no whole tensors. 1.2 to 1.5 elements per cycle in Liger's rotary embeddings, RMS norms and gated
units, float32 and bfloat16, on the A100 and H100 (training data: those rows)."""

JOINED_LOAD_CYCLES: Final = 1.25
"""The same of a concatenation of tensors that do not lie in rows, which computes two places for each element: 1.20 and
1.29 in two recordings on the H100, of Qwen's rotary embeddings and of TimeSformer's class tokens (chosen on these)."""

SECTOR_BYTES: Final = 32
SECTOR_CYCLES: Final = 2.1
"""Bytes that memory moves at least, and cycles of a multiprocessor to get so many from the L2, where each serves one
element: a transposing copy. 2.1 in TimeSformer's keys on the H100 and 2.2 in its joined tokens (chosen on this
recording), three quarters of what its L2 delivers."""

CACHED_SHARE: Final = 0.35
"""Share of the L2 in which a row that comes again is found: the halves of an A100's or H100's L2 each keep their own
copy, and what is written takes room, too. In Liger's cross entropies on the A100, rows that take 35 % of the L2 are
found there and those of 70 % are not (training data: those rows)."""

FOUND_COST: Final = 0.56
"""Time of a softmax whose rows are found in the L2 again, over that of one whose rows are not: 0.56 in those rows, the
look-up of the targets taken off. Two of its four passes are left to the memory."""

LATENCY_SPREAD: Final = 1.3
"""Factor up and down around a time that one of these limits sets. An assumption: the constants above agree within 10 to
20 % where more than one GPU is known."""


HOST_COPY_BYTES_PER_SECOND: Final = 11e9
"""Bytes that a copy between host and GPU moves in a second however fast the link is: the host's memory is read first,
and links are shared. Copies of 19 to 56 MB in recordings on the V100, A100 (twice) and H100 came at 10.7, 9.9, 11.5 and
11.1 GB/s, pinned and not; one on a V100 at 5.9 (chosen on these, none left out)."""

LINK_SHARE: Final = 0.8
"""Share of a link's bandwidth that a copy reaches, where the host is no limit. An assumption."""


def host_copy_rate(gpu: Gpu) -> float:
    """Count bytes that a copy between host and GPU moves in a second."""
    return min(LINK_SHARE * gpu.pcie_bytes_per_second, HOST_COPY_BYTES_PER_SECOND)


def issue_rate(gpu: Gpu) -> float:
    """Count cycles of all multiprocessors in a second."""
    return gpu.streaming_multiprocessors * gpu.boost_clock_hz


def rounds(blocks: Array, gpu: Gpu, *, resident: int = 1) -> Array:
    """Count the rounds of blocks that one multiprocessor runs."""
    started: Array = np.ceil(blocks / (gpu.streaming_multiprocessors * resident))
    return started


def _latency(batch: ProblemBatch, gpu: Gpu) -> Array:
    c = batch.columns
    waiting = rounds(c["blocks"], gpu) * c["block_cycles"] / gpu.boost_clock_hz
    return np.maximum(c["cycles"] / issue_rate(gpu), waiting)


def _as_transfer(problem: Problem) -> tuple[CountedProblem, ...]:
    """Time it by memory traffic alone."""
    return (CountedProblem(1.0, Problem("transfer", "float32", problem.dims[:3])),)


register(
    replace(
        by_bytes(LIMITED),
        shape=("read_bytes", "write_bytes", "flops", "cycles", "blocks", "block_cycles"),
        defaults={"read_bytes": 0, "write_bytes": 0, "flops": 0, "cycles": 0, "blocks": 1, "block_cycles": 0},
        proxy=_as_transfer,
        floor=Floor(latency=_latency),
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
) -> Problem:
    """Return a transfer that instructions or few blocks may bound.

    Args:
        read_bytes: Bytes that it reads.
        written_bytes: Bytes that it writes.
        flops: Floating-point operations.
        cycles: Cycles that a GPU of one multiprocessor would need to issue it.
        blocks: Blocks that it has.
        block_cycles: Cycles of one of them.
    """
    return Problem(LIMITED, "float32", (read_bytes, written_bytes, flops, cycles, blocks, block_cycles))


def latencies(problems: Sequence[Problem], gpus: Sequence[Gpu]) -> Array:
    """Compute seconds that instructions and waiting take at least, shape (gpus, problems); 0 where none are known."""
    seconds = np.zeros((len(gpus), len(problems)))
    groups: dict[tuple[str, str], list[int]] = {}
    for index, item in enumerate(problems):
        if operation_kind(item.operation).floor is not None:
            groups.setdefault((item.operation, item.dtype), []).append(index)
    for (operation, _), indices in groups.items():
        floor, batch = operation_kind(operation).floor, batch_of([problems[index] for index in indices])
        assert floor is not None  # by the loop above
        seconds[:, indices] = [floor.latency(batch, gpu) for gpu in gpus]
    return seconds


def reread_share(bytes_per_multiprocessor: float, gpu: Gpu) -> float:
    """Return the share of the time of a kernel that finds nothing in the L2, from `FOUND_COST` to 1."""
    at_once = bytes_per_multiprocessor * gpu.streaming_multiprocessors
    missed = min(max(at_once / (CACHED_SHARE * gpu.l2_bytes) - 1, 0.0), 1.0)
    return FOUND_COST + (1 - FOUND_COST) * missed
