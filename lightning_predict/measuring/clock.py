"""Seconds of a call on a device: replayed from a CUDA graph, with L2 flushed and warm, and eager.

A graph replay has no launch cost, so it is the device's own time; a buffer larger than L2 is overwritten before each
replay of the flushed kind. What cannot be captured in a graph (it synchronises) is timed eagerly alone. On the CPU only
the eager time exists: it serves tests, not training. Example::

    timing = time_call(lambda: left @ right, torch.device("cuda"))
    timing.flushed_seconds, timing.warm_seconds, timing.eager_seconds
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final, final

import torch

from lightning_predict.units import megahertz_to_hertz, milliseconds_to_seconds

REPLAYS: Final = 20
WARM_UPS: Final = 3
FLUSH_TIMES_L2: Final = 2
HOST_SECONDS: Final = 0.02
"""Time that the calls on a host may take together: they only try the command out."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Medians of repeated calls; None if a kind of timing is not possible.

    Attributes:
        flushed_seconds: Graph replay after L2 was overwritten.
        warm_seconds: Graph replay after graph replay.
        eager_seconds: Ordinary calls, back to back, launches included.
        clock_hz: SM clock right after the replays; None if the driver does not tell.
    """

    flushed_seconds: float | None
    warm_seconds: float | None
    eager_seconds: float
    clock_hz: float | None


def time_call(call: Callable[[], object], device: torch.device, *, replays: int = REPLAYS) -> Timing:
    """Time a call.

    Args:
        call: Takes nothing, and may be repeated.
        device: Where it runs.
        replays: Repetitions of each kind; their median counts.
    """
    if device.type != "cuda":
        return Timing(flushed_seconds=None, warm_seconds=None, eager_seconds=_host_time(call, replays), clock_hz=None)
    for _ in range(WARM_UPS):
        call()
    eager = _event_times(call, replays, before=None)
    graph = _captured(call)
    if graph is None:
        return Timing(flushed_seconds=None, warm_seconds=None, eager_seconds=eager, clock_hz=_clock_hz(device))
    buffer = torch.empty(FLUSH_TIMES_L2 * _l2_bytes(device), dtype=torch.uint8, device=device)
    warm = _event_times(graph.replay, replays, before=None)
    flushed = _event_times(graph.replay, replays, before=buffer.zero_)
    return Timing(flushed_seconds=flushed, warm_seconds=warm, eager_seconds=eager, clock_hz=_clock_hz(device))


def _host_time(call: Callable[[], object], replays: int) -> float:
    times: list[float] = []
    call()
    while len(times) < replays and sum(times) < HOST_SECONDS:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times)


def _event_times(call: Callable[[], object], replays: int, before: Callable[[], object] | None) -> float:
    """Measure the median seconds between two events around each call."""
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(replays)]
    for start, end in pairs:
        if before is not None:
            before()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return median(milliseconds_to_seconds(start.elapsed_time(end)) for start, end in pairs)


def _captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph | None:
    """Return the call as a graph; None if it cannot be captured."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.stream(stream):
            call()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            call()
    except RuntimeError:  # it synchronises, or allocates outside of the graph's pool
        return None
    return graph


def _l2_bytes(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def _clock_hz(device: torch.device) -> float | None:
    """Read the SM clock now; None without NVIDIA's management library."""
    try:
        return megahertz_to_hertz(torch.cuda.clock_rate(device))
    except (ModuleNotFoundError, RuntimeError):
        return None
