"""Rates that a GPU sustains in large matrix products, which its data sheet does not say.

A peak is stated at the boost clock. GeForce and workstation boards run above it (up to `Gpu.highest_clock_hz`), boards
with few watts for their multiprocessors below it, and the 128 lanes of a multiprocessor of GeForce chips since Ampere,
half of which compute integers, too, never reach it. Where people measured large square products on a GPU, their rate
stands (`Gpu.measured_flops_per_second`), elsewhere this:

    rate = P · s / sqrt(1 + (e · P / W)²)

P is the peak at the highest clock, s the share of it that tensor cores or lanes reach with power to spare, W the
board's watts, and e the watts that a unit of P takes where power starts to limit it. Example::

    >>> from lightning_predict.gpus import gpu
    >>> [round(sustained_flops(gpu(name), "float16") / 1e12) for name in ("A10", "RTX-A5000", "RTX-3070-Ti")]
    [82, 95, 44]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final

from lightning_predict.gpus.records import Gpu

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

HOPPER_FLOAT8: Final = 1.2
"""Time of a product in float8 on Hopper over what the ratio of the peaks makes of bfloat16's: its products of 8,192
rows and more take 0.63 (H100) and 0.58 (H200) of bfloat16's time where the peaks say 0.50 (training data: those rows of
`matmul_fp8`). On Blackwell the same tables are of kernels that training does not run, and the peaks stand."""

POWER_DOUBT: Final = 0.5
"""Half width in log(rate) where power takes all, less as it takes less: how hot a card is, and what it multiplies, then
decide the clock. Times of float32 products on the L4 by two sources are 1.7 apart, of bfloat16 ones on the L40S 1.3, of
float32 ones on the T4 1.2; power takes a half, a quarter and a quarter of these."""

HOPPER_TF32: Final = 1.13
"""Time of a product in TF32 on Hopper over what the ratio of the peaks makes of bfloat16's: XLA's best algorithms take
2.2 to 2.4 times as long in TF32 on the H100 as in bfloat16, from 8 to 500 GFLOP, and 1.6 to 1.85 times on the B200
(training data: the H100's rows of `matmul_tf32`; taken as 2 there and elsewhere)."""

UNMEASURED_DOUBT: Final = 0.12
"""The same where no rate was measured: nine in ten of the GPUs that were left out of the fit, but for float32."""

TRANSPOSED_WATTS: Final = 1.6
"""Watts of a product A·Bᵀ on lanes over those of A·B: both factors then pass through shared memory element by element.
The rates that people measured are of A·B. KernelBench's A·Bᵀ in float32 takes 1.43 times as long as A·B and Aᵀ·B of its
shape on the L40S, 1.25 on the H100-PCIe, 1.20 on the T4 and 1.12 on the RTX 3090 Ti, where this says 1.33, 1.08, 1.31
and 1.19; with each left out of the choice 1.26, 1.08, 1.37 and 1.21. On the A100 and the H100-SXM, whose power
suffices, products A·Bᵀ of the public tables reach the survey's rate within 4 %, and this says 1.02 and 1.04 (training
data: those rows)."""

REDUCED: Final = ("float32", "tf32", "float16", "bfloat16")
"""Dtypes of which sustained rates are known."""


def sustained_flops(gpu: Gpu, dtype: str) -> float:
    """Estimate FLOP/s of large products in a dtype of `REDUCED` that the GPU has units for."""
    measured = gpu.measured_flops_per_second.get(dtype)
    if measured is not None:
        return measured
    share = _lanes_share(gpu) if dtype == "float32" else TENSOR_SHARE
    if gpu.overclock > 1:
        share *= OVERCLOCKED_SHARE
    return gpu.peak_flops_per_second[dtype] * gpu.overclock * share * _share_of_power(gpu, dtype)


def sustained_doubt(gpu: Gpu, dtype: str) -> float:
    """Return the half width of a sustained rate's interval in log(FLOP/s)."""
    if dtype not in REDUCED or not _has_units(gpu, dtype) or dtype not in gpu.peak_flops_per_second:
        return 0.0
    by_power = POWER_DOUBT * (1 - _share_of_power(gpu, dtype))
    return by_power if dtype in gpu.measured_flops_per_second else math.hypot(by_power, UNMEASURED_DOUBT)


def transposed_ratio(gpu: Gpu, dtype: str) -> float:
    """Estimate the time of a large product A·Bᵀ over that of A·B; 1 on matrix units, which take it as it lies."""
    if dtype != "float32" and (dtype != "tf32" or dtype in gpu.peak_flops_per_second):
        return 1.0
    drawn = _drawn_power(gpu, "float32")
    return math.hypot(1.0, TRANSPOSED_WATTS * drawn) / math.hypot(1.0, drawn)


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
        dtype: HEADROOM * sustained_flops(gpu, dtype) if dtype in REDUCED and _has_units(gpu, dtype) else peak
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


def _has_units(gpu: Gpu, dtype: str) -> bool:
    """Return whether libraries compute in the dtype itself: no emulated ones, nor the P100's float16."""
    return dtype not in gpu.emulated_dtypes and (dtype == "float32" or gpu.generation.has_tensor_cores)


def _lanes_share(gpu: Gpu) -> float:
    if gpu.cores_per_multiprocessor < 128 or not gpu.generation.has_tensor_cores:
        return LANES_SHARE
    return SHARED_LANES_SHARE if gpu.generation.is_made_for_games else WIDE_LANES_SHARE
