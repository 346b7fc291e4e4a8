"""Measure in a minute what says most of a GPU: the rates that large products keep up, and the pace of its memory.

Networks see a GPU that they were not trained on through these figures (`Gpu.measured_flops_per_second` and the data
sheet's bandwidth), so that they help where no weights of its own exist; a file for `gpus_file` holds them. Products are
A·B of one large side, as the rates of the catalogue are; each is repeated for seconds, so that what counts is the clock
that lasts. Memory streams through an addition and a ReLU, and what is kept is the data sheet's figure that would
explain both: it is data sheets that other GPUs are compared by. Example::

    found = measure_anchors(gpu="RTX-6000-Ada")
    Path("anchors.toml").write_text(gpus_file_of(found))
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
from lightning_predict.kernels.operations import Problem
from lightning_predict.kernels.roofline import REDUCED, has_units, sustained_flops
from lightning_predict.kernels.timing import problem_times
from lightning_predict.units import bytes_to_gigabytes, flops_to_teraflops

SIDE: Final = 8192
"""Of the products, where memory allows: large enough for all multiprocessors of the largest GPUs."""

ELEMENTS: Final = 2**27
"""Of the tensors that stream through memory: ten times the largest L2."""

COLUMNS: Final = 4096
MEMORY_SHARE: Final = 0.25
"""Share of the memory that a problem may take."""

FLOAT32_BYTES: Final = 4
TENSORS: Final = 3
"""Of a product and of an addition: two inputs and an output."""

SECONDS: Final = 5.0
"""How long each call is repeated: power limits lower the clock within seconds."""

TRIAL_SIDE: Final = 64
"""Of the products on a processor, where the command is only tried."""

SUFFIX: Final = "-measured"
"""Behind the name of the catalogue in the name of the row that holds the figures."""

STREAMS: Final = ("relu", "add")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Anchors:
    """The figures of a GPU.

    Attributes:
        gpu: What the catalogue says of it.
        flops_per_second: Rates that large products kept up, by dtype.
        dram_bytes_per_second: The data sheet's bandwidth that would explain the times of what streams.
        state: Clock, power and what held the GPU back at the end.
    """

    gpu: Gpu
    flops_per_second: Mapping[str, float]
    dram_bytes_per_second: float
    state: GpuState = UNKNOWN_STATE

    @property
    def measured(self) -> Gpu:
        """The GPU by these figures, under a name of its own."""
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
    """A figure that was measured, and what is assumed without it, in a unit."""

    name: str
    measured: float
    assumed: float
    unit: str


def measure_anchors(
    *,
    device: str = "cuda",
    gpu: str | None = None,
    seconds: float = SECONDS,
    is_trial: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Anchors:
    """Measure the anchors of the GPU at hand.

    Args:
        device: `cuda`; `cpu` times the host instead, for trying the command out.
        gpu: Our name of the GPU; None asks torch.
        seconds: How long each call is repeated.
        is_trial: Take problems that are small enough for a processor.
        progress: Called before each problem with its name.
        clock: Seconds on a monotonic clock.

    Raises:
        CaptureError: No CUDA device.
        InvalidArgumentError: No GPU is named where torch knows none, or no time at all.
        UnknownGpuError: The catalogue does not hold this GPU; name it with `gpu`.
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
    return Anchors(
        gpu=record,
        flops_per_second=products,
        dram_bytes_per_second=explaining_bandwidth(record, timed),
        state=state,
    )


def device_seconds(timing: Timing) -> float:
    """Return the device's own time; that of the calls, which are as long, where no graph holds them."""
    return timing.eager_seconds if timing.flushed_seconds is None else timing.flushed_seconds


def largest_side(gpu: Gpu) -> int:
    """Return the side of products that fit into a share of the memory: `SIDE` halved as often as it takes."""
    most = math.isqrt(int(MEMORY_SHARE * gpu.memory_bytes / (TENSORS * FLOAT32_BYTES)))
    return next(side for side in (SIDE >> step for step in range(SIDE.bit_length())) if side <= most)


def largest_rows(gpu: Gpu) -> int:
    """Return the rows of `COLUMNS` elements of what streams, so that it fits into a share of the memory."""
    most = int(MEMORY_SHARE * gpu.memory_bytes / (TENSORS * FLOAT32_BYTES))
    return min(ELEMENTS, most) // COLUMNS


def explaining_bandwidth(
    gpu: Gpu, timed: Iterable[tuple[str, Mapping[str, float], float]], models: BundledModels | None = None
) -> float:
    """Compute the data sheet's bandwidth that would explain how long memory-bound float32 operations take.

    Args:
        gpu: By its data sheet.
        timed: Operation, shape words and seconds of each.
        models: That predict it; None takes those that ship.

    Returns:
        Bytes/s: the data sheet's, times the geometric mean of predicted over measured times.
    """
    known = [(Problem(name, "float32", tuple(words.values())), seconds) for name, words, seconds in timed]
    own = kernel_models((gpu.name,)) if models is None else models
    predicted = problem_times([problem for problem, _ in known], [gpu], own).seconds[0]
    ratios = [math.log(told / seconds) for told, (_, seconds) in zip(predicted, known, strict=True)]
    return gpu.dram_bytes_per_second * math.exp(math.fsum(ratios) / len(ratios))


def gpus_file_of(anchors: Anchors) -> str:
    """Write the figures as a file for `gpus_file`."""
    rates = ", ".join(f"{dtype} = {flops_to_teraflops(rate):.4g}" for dtype, rate in anchors.flops_per_second.items())
    return (
        f"[gpu.{anchors.measured.name}]\n"
        f'like = "{anchors.gpu.name}"\n'
        f"dram_gb_per_s = {bytes_to_gigabytes(anchors.dram_bytes_per_second):.4g} # the data sheet that would explain "
        f"what was timed; it says {bytes_to_gigabytes(anchors.gpu.dram_bytes_per_second):.4g}\n"
        f"measured_tflops = {{ {rates} }}\n"
    )


def comparison(anchors: Anchors) -> tuple[Figure, ...]:
    """Set each figure beside what is assumed of the GPU without it."""
    products = [
        Figure(f"{dtype} products", flops_to_teraflops(rate), flops_to_teraflops(assumed), "TFLOP/s")
        for dtype, rate in anchors.flops_per_second.items()
        for assumed in [sustained_flops(anchors.gpu, dtype)]
    ]
    measured, stated = (bytes_to_gigabytes(one.dram_bytes_per_second) for one in (anchors, anchors.gpu))
    return (*products, Figure("memory, as a data sheet states it", measured, stated, "GB/s"))
