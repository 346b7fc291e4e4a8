"""Times a call on a device (GPU): by CUDA graph replay, with the L2 cache flushed or warm, and as an ordinary call.

A graph replay has no launch overhead, so it measures the device time. A single replay waits some microseconds for the
host, so the warm time is that by which a graph with twice as many calls takes longer. To flush L2, a buffer larger than
L2 is overwritten before each replay of a graph with one call. A call that synchronises cannot be captured in a graph;
it is timed only as an ordinary call, and its row states this. A CPU has only this time, which is for tests, not for
training.

All calls run on a separate stream, on which the tensors are also created. Autograd runs a backward node on the stream
of its forward pass, so a node on the default stream would invalidate every capture of its backward pass. Each time
comes with the state of the GPU (clock, power) from the driver's NVML: in hours of training, but not in a short burst,
the power limit or the temperature lowers the clock. Example::

    with own_stream(device):
        left, right = make_them()
        timing = time_call(lambda: left @ right, device)
    timing.flushed_seconds, timing.warm_seconds, timing.eager_seconds
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import median
from typing import Any, Final

import torch

from lightning_predict.base.errors import CaptureError
from lightning_predict.base.units import KILO, megahertz_to_hertz, milliseconds_to_seconds

REPLAYS: Final = 20  # Maximum number of repetitions of each kind. The result is the median.
MIN_REPLAYS: Final = 3  # Minimum number of repetitions of each kind, and of calls before them
NOT_CUDA: Final = "not a CUDA device"  # Reason for a missing graph on a device without CUDA
REPETITION_KINDS: Final = 3  # Number of kinds of repetition: eager, warm and flushed
GRAPH_SECONDS: Final = 3e-4  # Minimum duration of a replay that hides the host's launch; a shorter call is repeated
MOST_CALLS: Final = 512  # Maximum number of calls in a graph

FLUSH_TIMES_L2: Final = 2
HOST_SECONDS: Final = 0.02  # Maximum duration of all repetitions on a CPU, in seconds
SHAPE_SECONDS: Final = 2.0  # Default maximum duration of all repetitions of one call, in seconds


REASONS: Final = {
    0x04: "power",
    0x08: "hardware",
    0x20: "temperature",
    0x40: "temperature",
    0x80: "power brake",
    0x02: "clock setting",
    0x100: "clock setting",
}
"""Bits of `nvmlDeviceGetCurrentClocksEventReasons` that mean a reduced clock under load (NVML documentation)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """State of a GPU at one moment. Unknown values are None.

    The highest clock is the maximum that the driver allows. The driver averages the power over a fraction of a second.
    `held_back_by` has the throttling reasons; it is empty without throttling, or if unknown.
    """

    clock_hz: float | None = None
    highest_clock_hz: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    held_back_by: tuple[str, ...] = ()


UNKNOWN_STATE: Final = GpuState()  # State without any information

_SM_CLOCK: Final = ctypes.c_int(1)


@cache
def _library() -> Any:
    """Return the driver's NVML; None without an NVIDIA driver."""
    for name in ("libnvidia-ml.so.1", "nvml.dll"):
        with suppress(OSError):
            library = ctypes.CDLL(name)
            return library if library.nvmlInit_v2() == 0 else None
    return None


def read_state(device: torch.device) -> GpuState:
    """Return the state of a CUDA device; unknown if NVML is missing or the container hides it."""
    library = _library()
    handle = None if library is None else _handle(library, device)
    if handle is None:
        return UNKNOWN_STATE

    def read(function: str, *kind: ctypes.c_int) -> int | None:
        value = ctypes.c_ulonglong()
        call = getattr(library, function, None)
        return value.value if call is not None and call(handle, *kind, ctypes.byref(value)) == 0 else None

    clock, highest = read("nvmlDeviceGetClockInfo", _SM_CLOCK), read("nvmlDeviceGetMaxClockInfo", _SM_CLOCK)
    power, limit = read("nvmlDeviceGetPowerUsage"), read("nvmlDeviceGetEnforcedPowerLimit")
    reasons = read("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # older drivers use another name
        reasons = read("nvmlDeviceGetCurrentClocksThrottleReasons")
    return GpuState(
        clock_hz=None if clock is None else megahertz_to_hertz(clock),
        highest_clock_hz=None if highest is None else megahertz_to_hertz(highest),
        power_watts=None if power is None else power / KILO,
        power_limit_watts=None if limit is None else limit / KILO,
        held_back_by=tuple(dict.fromkeys(word for bit, word in REASONS.items() if (reasons or 0) & bit)),
    )


def _handle(library: Any, device: torch.device) -> ctypes.c_void_p | None:
    """Return NVML's handle of the GPU, found by UUID because CUDA_VISIBLE_DEVICES changes the numbering."""
    index = torch.cuda.current_device() if device.index is None else device.index
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    handle = ctypes.c_void_p()
    if uuid is None:
        status = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
    else:
        status = library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(handle))
    return handle if status == 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Medians of repeated calls; None for a kind of timing that is not possible."""

    flushed_seconds: float | None  # Device time of a call after L2 was overwritten
    warm_seconds: float | None  # Device time of a call directly after the same call
    eager_seconds: float  # Time of an ordinary call in a sequence of calls, including launches
    sustained_seconds: float | None = None  # Of a replay at the end of a load of this call; None without a load
    sustained_clock_hz: float | None = None  # SM clock at the end of the load; None if unknown
    state: GpuState = UNKNOWN_STATE  # Clock, power and throttling reasons directly after the replays
    reason: str | None = None  # Reason why the call has no graph; None for a call with a graph


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Run the body of the `with` statement on a separate stream; without CUDA, this has no effect."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


def time_call(
    call: Callable[[], object],
    device: torch.device,
    *,
    replays: int = REPLAYS,
    shape_seconds: float = SHAPE_SECONDS,
    load_seconds: float | None = None,
) -> Timing:
    """Time a call. On CUDA, use `time_call` inside `own_stream`.

    Args:
        call: Function without arguments that can be repeated.
        device: Device of the call.
        replays: Maximum number of repetitions of each kind.
        shape_seconds: Maximum duration of all repetitions, in seconds. Long calls have fewer repetitions.
        load_seconds: Duration of a load of this call, above 0, at whose end the sustained time is measured; None for
            no load. A power limit lowers the clock under load.
    """
    if device.type != "cuda":
        times: list[float] = []
        call()
        while len(times) < replays and sum(times) < HOST_SECONDS:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        own = median(times)
        return Timing(flushed_seconds=None, warm_seconds=None, eager_seconds=own, reason=NOT_CUDA)
    call()  # loads libraries and selects algorithms
    torch.cuda.synchronize(device)
    seconds = _event_times(call, 1, before=None)
    if seconds > shape_seconds:
        raise RuntimeError(f"one call takes {seconds:.3g} s, over the limit of {shape_seconds:g} s a shape")
    replays = repetitions_that_fit(seconds, replays=replays, shape_seconds=shape_seconds)
    for _ in range(min(MIN_REPLAYS, replays)):
        call()
    eager = _event_times(call, replays, before=None)
    graph, reason = captured(call, device)
    if graph is None:
        return Timing(
            flushed_seconds=None, warm_seconds=None, eager_seconds=eager, state=read_state(device), reason=reason
        )
    buffer = torch.empty(FLUSH_TIMES_L2 * _l2_bytes(device), dtype=torch.uint8, device=device)
    alone = _event_times(graph.replay, replays, before=None)
    flushed = _event_times(graph.replay, replays, before=buffer.zero_)
    warm = alone if alone >= GRAPH_SECONDS else _warm_time(call, device, alone, replays)
    timing = Timing(flushed_seconds=flushed, warm_seconds=warm, eager_seconds=eager, state=read_state(device))
    if load_seconds is None:
        return timing
    until = time.perf_counter() + load_seconds
    while time.perf_counter() < until:
        sustained = _event_times(graph.replay, replays, before=None)
    return replace(timing, sustained_seconds=sustained, sustained_clock_hz=read_state(device).clock_hz)


def repetitions_that_fit(one_seconds: float, *, replays: int, shape_seconds: float) -> int:
    """Return the number of repetitions of each kind that fit in `shape_seconds`, at least `MIN_REPLAYS`."""
    if one_seconds <= 0:
        return replays
    return max(min(replays, int(shape_seconds / REPETITION_KINDS / one_seconds)), min(MIN_REPLAYS, replays))


def _event_times(call: Callable[[], object], replays: int, before: Callable[[], object] | None) -> float:
    """Return the median duration of a call, measured by CUDA events."""
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(replays)]
    for start, end in pairs:
        if before is not None:
            before()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return median(milliseconds_to_seconds(start.elapsed_time(end)) for start, end in pairs)


def _warm_time(call: Callable[[], object], device: torch.device, alone: float, replays: int) -> float | None:
    """Return the duration of a call among equal calls; None if it cannot be measured.

    A replay of one call takes `alone`. Graphs with twice as many calls each are timed until one lasts `GRAPH_SECONDS`.
    What the last half adds to it is free of the launch of a replay.
    """
    calls, before = 2, alone
    while calls <= MOST_CALLS:
        graph, _ = captured(partial(_repeat, call, calls), device)
        if graph is None:
            return None
        seconds = _event_times(graph.replay, replays, before=None)
        if before >= GRAPH_SECONDS:
            return (seconds - before) / (calls // 2) if seconds > before else None
        calls, before = 2 * calls, seconds
    return before / MOST_CALLS


def _repeat(call: Callable[[], object], count: int) -> None:
    for _ in range(count):
        call()


def captured(call: Callable[[], object], device: torch.device) -> tuple[torch.cuda.CUDAGraph | None, str | None]:
    """Capture a call on the current stream, and clean up after a failed capture.

    Args:
        call: The call to capture. It must have run on this stream before.
        device: A CUDA device.

    Returns:
        The graph and None, or None and the reason for the failure.
    """
    pool = torch.cuda.graph_pool_handle()  # our own pool, since a graph does not expose its pool after a failed capture
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(device)
    failure: RuntimeError | None = None
    graph.capture_begin(pool=pool)
    try:
        call()
    except RuntimeError as error:  # the call synchronises, or allocates outside the graph's pool
        failure = error
    finally:
        try:
            graph.capture_end()
        except RuntimeError as error:  # the capture was invalidated
            failure = failure or error
            _release(pool, device)
    if failure is None:
        return graph, None
    graph.reset()
    _renew_generator(device)
    try:
        torch.cuda.synchronize(device)
        torch.rand(1, device=device)
    except RuntimeError as error:
        raise CaptureError(
            f"A call that cannot be captured in a CUDA graph ({_line(failure)}) left CUDA unusable in this process: "
            f"{_line(error)}. Run the command again: it goes on where it stopped."
        ) from error
    return None, _line(failure)


def _release(pool: tuple[int, int], device: torch.device) -> None:
    """Release the memory pool of a failed capture; before torch 2.6, the function has another name."""
    index = torch.cuda.current_device() if device.index is None else device.index
    for names in (("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool"), ("_cuda_releasePool",)):
        release = next((getattr(torch._C, name) for name in names if hasattr(torch._C, name)), None)
        if release is not None:
            with suppress(RuntimeError):
                release(index, pool)


def _renew_generator(device: torch.device) -> None:
    """Replace the random generator's state by a copy from outside a capture, at the same position."""
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    with suppress(RuntimeError, AttributeError):
        generator.graphsafe_set_state(generator.clone_state())


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _l2_bytes(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).L2_cache_size)
