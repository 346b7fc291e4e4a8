"""Quick measurement of the main rates of a GPU: large matrix products and memory bandwidth.

Networks use these figures (`Gpu.measured_flops_per_second` and the data sheet's bandwidth) for a GPU that they were not
trained on. Measured figures therefore help if the GPU has no weights of its own. They are written to a file for
`gpus_file`. Products are A·B of one large side, as for the rates in the catalogue. Each is repeated for seconds, so
that the sustained clock counts. Memory is measured by an addition and a ReLU. The result is the data sheet bandwidth
that would explain both times, because other GPUs are compared by their data sheets. Example::

    found = measure_main_rates(gpu="RTX-6000-Ada")
    Path("anchors.toml").write_text(gpus_file_text(found))
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, final

import torch

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.extensions.own_weights.measuring.benchmarks import Words, benchmark_of
from lightning_predict.extensions.own_weights.measuring.clock import Timing, own_stream, time_call
from lightning_predict.extensions.own_weights.measuring.management import UNKNOWN_STATE, GpuState
from lightning_predict.extensions.own_weights.measuring.run import DTYPES, check_device, name_of, tf32_switched
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.models import BundledModels, kernel_models
from lightning_predict.kernels.operations import OperationShape
from lightning_predict.kernels.roofline import REDUCED, has_units, sustained_flops
from lightning_predict.kernels.timing import predict_operation_times
from lightning_predict.units import bytes_to_gigabytes, flops_to_teraflops

SIDE: Final = 8192
"""Side of the products if memory allows: large enough for all multiprocessors of the largest GPUs."""

ELEMENTS: Final = 2**27
"""Elements of the tensors in the memory measurement: ten times the largest L2."""

COLUMNS: Final = 4096
MEMORY_SHARE: Final = 0.25
"""Maximum share of the memory that a problem may take."""

FLOAT32_BYTES: Final = 4
TENSORS: Final = 3
"""Number of tensors of a product or an addition: two inputs and an output."""

SECONDS: Final = 5.0
"""Seconds to repeat each call: power limits lower the clock within seconds."""

TRIAL_SIDE: Final = 64
"""Side of the products in a trial run on a CPU."""

SUFFIX: Final = "-measured"
"""Suffix of the catalogue name for the measured GPU."""

STREAMS: Final = ("relu", "add")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MainRates:
    """Measured main rates of a GPU.

    Attributes:
        gpu: Its catalogue row.
        flops_per_second: Sustained rates of large products, by dtype.
        dram_bytes_per_second: Data sheet bandwidth that would explain the times of the memory-bound operations.
        state: Clock, power and throttling reasons at the end.
    """

    gpu: Gpu
    flops_per_second: Mapping[str, float]
    dram_bytes_per_second: float
    state: GpuState = UNKNOWN_STATE

    @property
    def measured(self) -> Gpu:
        """Catalogue row with these rates, under its own name."""
        rates = {**self.gpu.measured_flops_per_second, **self.flops_per_second}
        return replace(
            self.gpu,
            name=f"{self.gpu.name}{SUFFIX}",
            aliases=(),
            reported_names=(),
            measured_flops_per_second=rates,
            dram_bytes_per_second=self.dram_bytes_per_second,
        )


@final
@dataclass(frozen=True, slots=True)
class Figure:
    """Measured figure, and the value assumed without it, in a unit."""

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
    """Measure the main rates of this machine's GPU.

    Args:
        device: `cuda`; `cpu` measures the CPU instead, to test the command.
        gpu: Catalogue name of the GPU; None asks torch.
        seconds: Seconds to repeat each call.
        is_trial: Use problems that are small enough for a CPU.
        progress: Called before each problem with its name.
        clock: Returns seconds on a monotonic clock.

    Raises:
        CaptureError: No CUDA device.
        InvalidArgumentError: No GPU is named for a device other than CUDA, or `seconds` is not above 0.
        UnknownGpuError: The catalogue does not contain this GPU; name it with `gpu`.
    """
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
    streams = [(name, {"rows": rows, "cols": COLUMNS}) for name in STREAMS]
    timed = [(name, words, lasting(name, "float32", words)) for name, words in streams]
    return MainRates(
        gpu=record,
        flops_per_second=products,
        dram_bytes_per_second=explaining_bandwidth(record, timed),
        state=state,
    )


def device_seconds(timing: Timing) -> float:
    """Return the device time; without a CUDA graph, the time of the calls, which are long enough here."""
    return timing.eager_seconds if timing.flushed_seconds is None else timing.flushed_seconds


def largest_side(gpu: Gpu) -> int:
    """Return the largest power-of-two fraction of `SIDE` that fits into a share of the memory."""
    most = math.isqrt(int(MEMORY_SHARE * gpu.memory_bytes / (TENSORS * FLOAT32_BYTES)))
    return next(side for side in (SIDE >> step for step in range(SIDE.bit_length())) if side <= most)


def largest_rows(gpu: Gpu) -> int:
    """Return the number of rows of `COLUMNS` elements that fit into a share of the memory."""
    most = int(MEMORY_SHARE * gpu.memory_bytes / (TENSORS * FLOAT32_BYTES))
    return min(ELEMENTS, most) // COLUMNS


def explaining_bandwidth(
    gpu: Gpu, timed: Iterable[tuple[str, Mapping[str, float], float]], models: BundledModels | None = None
) -> float:
    """Return the data sheet bandwidth that would explain the times of memory-bound float32 operations.

    Args:
        gpu: The GPU with its data sheet values.
        timed: Operation, shape parameters and seconds of each.
        models: Models that predict the times; None takes those that ship.

    Returns:
        Bytes/s: the data sheet's, times the geometric mean of predicted over measured times.
    """
    known = [(OperationShape(name, "float32", tuple(words.values())), seconds) for name, words, seconds in timed]
    own = kernel_models((gpu.name,)) if models is None else models
    predicted = predict_operation_times([problem for problem, _ in known], [gpu], own).seconds[0]
    ratios = [math.log(told / seconds) for told, (_, seconds) in zip(predicted, known, strict=True)]
    return gpu.dram_bytes_per_second * math.exp(math.fsum(ratios) / len(ratios))


def gpus_file_text(anchors: MainRates) -> str:
    """Format the figures as a file for `gpus_file`."""
    rates = ", ".join(f"{dtype} = {flops_to_teraflops(rate):.4g}" for dtype, rate in anchors.flops_per_second.items())
    return (
        f"[gpu.{anchors.measured.name}]\n"
        f'like = "{anchors.gpu.name}"\n'
        f"dram_gb_per_s = {bytes_to_gigabytes(anchors.dram_bytes_per_second):.4g} # the bandwidth that explains the "
        "measured times; the data sheet says "
        f"{bytes_to_gigabytes(anchors.gpu.dram_bytes_per_second):.4g}\nmeasured_tflops = {{ {rates} }}\n"
    )


def comparison(anchors: MainRates) -> tuple[Figure, ...]:
    """Compare each figure with the value assumed without it."""
    products = [
        Figure(f"{dtype} products", flops_to_teraflops(rate), flops_to_teraflops(assumed), "TFLOP/s")
        for dtype, rate in anchors.flops_per_second.items()
        for assumed in [sustained_flops(anchors.gpu, dtype)]
    ]
    measured, stated = (bytes_to_gigabytes(one.dram_bytes_per_second) for one in (anchors, anchors.gpu))
    return (*products, Figure("memory, as a data sheet states it", measured, stated, "GB/s"))
