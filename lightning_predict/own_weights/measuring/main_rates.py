"""Measures the main rates of a GPU in half a minute: large matmuls, fused attention, and memory bandwidth.

Predictions for this GPU then use the measured rates instead of the catalogue's rates. `gpus_file_text` writes the rates
in the format of the option `gpus_file`. The matmuls multiply large square matrices, as for the rates in the catalogue.
Each call is repeated for seconds, so the GPU runs at its sustained clock. Memory bandwidth is measured by an addition
and a ReLU, and given as an equivalent data sheet bandwidth: the value for which the kernel models predict both times.
It is comparable with other data sheets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.units import bytes_to_gigabytes, flops_to_teraflops
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.own_rates import gpu_with_attention, gpu_with_rates
from lightning_predict.hardware.records import Gpu
from lightning_predict.hardware.user_gpus import ATTENTION_SHARE
from lightning_predict.kernels.corrections import LARGE_SIDE
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import OperationShape, operation_shape
from lightning_predict.kernels.roofline import REDUCED, has_units, sustained_flops
from lightning_predict.kernels.timing import predict_operation_times
from lightning_predict.own_weights.measuring.benchmarks import Words, benchmark_of
from lightning_predict.own_weights.measuring.clock import UNKNOWN_STATE, GpuState, Timing, own_stream, time_call
from lightning_predict.own_weights.measuring.run import DTYPES, check_device, name_of, tf32_switched
from lightning_predict.record.trace import DTYPE_BYTES

ELEMENTS: Final = 2**27  # Number of elements of the tensors in the memory measurement: ten times the largest L2 cache

COLUMNS: Final = 4096
MEMORY_SHARE: Final = 0.25  # Maximum share of the GPU's memory that the tensors use
ATTENTION: Final[Words] = {"batch": 4, "heads": 16, "kv_heads": 16, "seq": 4096, "head_dim": 128, "causal": 1}
SECONDS: Final = 5.0  # Duration of the repetitions of each call. A power limit lowers the clock within seconds.
TRIAL_SIDE: Final = 64  # Side of the square matrices in a test on a CPU

STREAMS: Final = ("relu", "add")


@dataclass(frozen=True, slots=True, kw_only=True)
class MainRates:
    """Measured main rates of a GPU."""

    gpu: Gpu
    flops_per_second: Mapping[str, float]  # Sustained rates of large matmuls, by dtype
    dram_bytes_per_second: float  # Equivalent data sheet bandwidth, from the times of memory-bound operations
    attention_share: float | None = None  # Rate of fused attention in 16 bits, over its predicted rate in a burst
    state: GpuState = UNKNOWN_STATE  # Clock, power and throttling reasons at the end of the measurement

    @property
    def measured(self) -> Gpu:
        """Catalogue row of the GPU with the measured rates."""
        own = gpu_with_rates(self.gpu, self.flops_per_second)
        if self.attention_share is not None:
            own = gpu_with_attention(own, self.attention_share)
        return replace(own, dram_bytes_per_second=self.dram_bytes_per_second)


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured rate, the value that is assumed without a measurement, and the unit of both."""

    name: str
    measured: float
    assumed: float
    unit: str


def measure_main_rates(
    *,
    device: str = "cuda",
    gpu: str | None = None,
    seconds: float = SECONDS,
    is_trial: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> MainRates:
    """Measure this machine's main rates. Each call is repeated for some seconds, on a CPU with small sizes."""
    if not seconds > 0:
        raise InvalidArgumentError(f"Got seconds={seconds}; expected a time above 0.")
    check_device(device)
    if device != "cuda" and gpu is None:
        raise InvalidArgumentError(f"device={device!r} is no GPU; name the one that the figures stand for (gpu).")
    record = find_gpu(name_of(device, gpu))
    where = torch.device(device)
    side, rows = (TRIAL_SIDE, TRIAL_SIDE) if is_trial else (largest_side(record), largest_rows(record))
    state = UNKNOWN_STATE

    def lasting(operation: str, dtype: str, words: Words) -> float:
        nonlocal state
        progress(f"{operation} {dtype}")
        with tf32_switched(allowed=dtype == "tf32"), own_stream(where), torch.no_grad():
            call = benchmark_of(operation).calls(words, DTYPES[dtype], where)[operation]
            until = clock() + seconds
            timing = time_call(call, where)
            while clock() < until:
                timing = time_call(call, where)
        state = timing.state
        return device_seconds(timing)

    products = {
        dtype: 2.0 * side**3 / lasting("bmm", dtype, {"b": 1, "m": side, "n": side, "k": side})
        for dtype in REDUCED
        if dtype in record.peak_flops_per_second and has_units(record, dtype)
    }
    share = None
    halves = [dtype for dtype in ("bfloat16", "float16") if dtype in products]
    for dtype in halves[:1]:
        words = {**ATTENTION, "batch": 1, "heads": 1, "kv_heads": 1, "seq": TRIAL_SIDE} if is_trial else ATTENTION
        shape = operation_shape("attention", dtype, **words)
        predicted = predict_operation_times([shape], [record], kernel_models((record.name,))).seconds[0, 0]
        share = float(predicted) / lasting("attention", dtype, words)
    streams = [(name, {"rows": rows, "cols": COLUMNS}) for name in STREAMS]
    timed = [(name, words, lasting(name, "float32", words)) for name, words in streams]
    return MainRates(
        gpu=record,
        flops_per_second=products,
        dram_bytes_per_second=equivalent_bandwidth(record, timed),
        attention_share=share,
        state=state,
    )


def device_seconds(timing: Timing) -> float:
    """Return the device time of a call; without a CUDA graph, the time of long ordinary calls."""
    return timing.eager_seconds if timing.flushed_seconds is None else timing.flushed_seconds


def largest_side(gpu: Gpu) -> int:
    """Return `LARGE_SIDE`, halved until three matrices fit into `MEMORY_SHARE` of the memory."""
    most = math.isqrt(int(MEMORY_SHARE * gpu.memory_bytes / (3 * DTYPE_BYTES["float32"])))
    return next(side for side in (LARGE_SIDE >> step for step in range(LARGE_SIDE.bit_length())) if side <= most)


def largest_rows(gpu: Gpu) -> int:
    """Return the number of rows of `COLUMNS` elements of three tensors that fit into `MEMORY_SHARE` of the memory."""
    most = int(MEMORY_SHARE * gpu.memory_bytes / (3 * DTYPE_BYTES["float32"]))
    return min(ELEMENTS, most) // COLUMNS


def equivalent_bandwidth(gpu: Gpu, timed: Iterable[tuple[str, Mapping[str, float], float]]) -> float:
    """Return the data sheet bandwidth for which the models predict the times of memory-bound float32 operations.

    Args:
        gpu: The GPU, with its data sheet values.
        timed: Operation, shape parameters and seconds of each measurement.

    Returns:
        Bandwidth in bytes/s: the data sheet's bandwidth times the geometric mean of predicted over measured times.
    """
    known = [(OperationShape(name, "float32", tuple(words.values())), seconds) for name, words, seconds in timed]
    predicted = predict_operation_times([shape for shape, _ in known], [gpu], kernel_models((gpu.name,))).seconds[0]
    ratios = [math.log(told / seconds) for told, (_, seconds) in zip(predicted, known, strict=True)]
    return gpu.dram_bytes_per_second * math.exp(math.fsum(ratios) / len(ratios))


def gpus_file_text(main_rates: MainRates) -> str:
    """Return the measured rates in the format of the option `gpus_file`."""
    share = main_rates.attention_share
    rates = ", ".join(
        f"{dtype} = {flops_to_teraflops(rate):.4g}" for dtype, rate in main_rates.flops_per_second.items()
    )
    return (
        f"[measured.{main_rates.gpu.name}]\n"
        f"dram_gb_per_s = {bytes_to_gigabytes(main_rates.dram_bytes_per_second):.4g} # the bandwidth that explains the "
        "measured times; the data sheet says "
        f"{bytes_to_gigabytes(main_rates.gpu.dram_bytes_per_second):.4g}\n"
        + ("" if share is None else f"{ATTENTION_SHARE} = {share:.4g} # of fused attention, over its predicted rate\n")
        + f"tflops = {{ {rates} }}\n"
    )


def comparison(rates: MainRates) -> tuple[Figure, ...]:
    """Return each measured rate with the value that is assumed without a measurement."""
    products = [
        Figure(f"{dtype} products", flops_to_teraflops(rate), flops_to_teraflops(assumed), "TFLOP/s")
        for dtype, rate in rates.flops_per_second.items()
        for assumed in [sustained_flops(rates.gpu, dtype)]
    ]
    measured, stated = (bytes_to_gigabytes(source.dram_bytes_per_second) for source in (rates, rates.gpu))
    attention = [
        Figure("attention", share, rates.gpu.sustained_attention_share, "of its rate in a burst")
        for share in (rates.attention_share,)
        if share is not None
    ]
    return (*products, *attention, Figure("memory, as a data sheet states it", measured, stated, "GB/s"))
