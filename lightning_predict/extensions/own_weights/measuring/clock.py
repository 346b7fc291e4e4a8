"""Timing of a call on a device: CUDA graph replay with L2 flushed and warm, and eager calls.

A graph replay has no launch cost, so it is the device time. For the flushed kind, a buffer larger than L2 is
overwritten before each replay. A call that cannot be captured in a graph (it synchronises) is only timed eagerly, and
marked so. On the CPU only the eager time exists; it is for tests, not for training.

Everything runs on one separate stream, on which the tensors are also created. Autograd nodes run on the stream of their
forward pass, and a node on the default stream invalidates every capture of its backward pass. Example::

    with own_stream(device):
        left, right = make_them()
        timing = time_call(lambda: left @ right, device)
    timing.flushed_seconds, timing.warm_seconds, timing.eager_seconds
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, final

import torch

from lightning_predict.errors import CaptureError
from lightning_predict.extensions.own_weights.measuring.management import UNKNOWN_STATE, GpuState, read_state
from lightning_predict.units import milliseconds_to_seconds

REPLAYS: Final = 20
"""Repetitions of each kind; the result is their median."""

MIN_REPLAYS: Final = 3
"""Minimum repetitions of a problem, however long each takes."""

NOT_CUDA: Final = "not a CUDA device"
"""Reason for having no graph that says nothing about the call."""

WARM_UPS: Final = 3
KINDS: Final = 3
"""Kinds of repetition: eager, warm and flushed."""

FLUSH_TIMES_L2: Final = 2
HOST_SECONDS: Final = 0.02
"""Maximum seconds of all calls on a CPU, which only test the command."""

PROBLEM_SECONDS: Final = 2.0
"""Default maximum seconds of the repetitions of one call."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Medians of repeated calls; None if a kind of timing is not possible.

    Attributes:
        flushed_seconds: Graph replay after overwriting L2.
        warm_seconds: Graph replay after graph replay.
        eager_seconds: Ordinary back-to-back calls, including launches.
        state: Clock, power and throttling reasons, right after the replays.
        reason: Why there is no graph; None if there is one.
    """

    flushed_seconds: float | None
    warm_seconds: float | None
    eager_seconds: float
    state: GpuState = UNKNOWN_STATE
    reason: str | None = None


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Run the body on a non-default stream; no effect without CUDA."""
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
    problem_seconds: float = PROBLEM_SECONDS,
) -> Timing:
    """Time a call, on CUDA within `own_stream`.

    Args:
        call: Takes no arguments, and may be repeated.
        device: Device of the call.
        replays: Maximum repetitions of each kind; the result is their median.
        problem_seconds: Maximum seconds of all repetitions: long calls have fewer.

    Raises:
        RuntimeError: One call takes longer than that.
    """
    if device.type != "cuda":
        own = _host_time(call, replays)
        return Timing(flushed_seconds=None, warm_seconds=None, eager_seconds=own, reason=NOT_CUDA)
    call()  # loads libraries and selects algorithms
    torch.cuda.synchronize(device)
    one = _event_times(call, 1, before=None)
    if one > problem_seconds:
        raise RuntimeError(f"one call takes {one:.3g} s, over the limit of {problem_seconds:g} s a problem")
    replays = fitting(one, replays=replays, problem_seconds=problem_seconds)
    for _ in range(min(WARM_UPS, replays)):
        call()
    eager = _event_times(call, replays, before=None)
    graph, reason = captured(call, device)
    if graph is None:
        return Timing(
            flushed_seconds=None, warm_seconds=None, eager_seconds=eager, state=read_state(device), reason=reason
        )
    buffer = torch.empty(FLUSH_TIMES_L2 * _l2_bytes(device), dtype=torch.uint8, device=device)
    warm = _event_times(graph.replay, replays, before=None)
    flushed = _event_times(graph.replay, replays, before=buffer.zero_)
    return Timing(flushed_seconds=flushed, warm_seconds=warm, eager_seconds=eager, state=read_state(device))


def fitting(one_seconds: float, *, replays: int, problem_seconds: float) -> int:
    """Return the repetitions of each kind that fit into the time of a problem, with a minimum."""
    if one_seconds <= 0:
        return replays
    return max(min(replays, int(problem_seconds / KINDS / one_seconds)), min(MIN_REPLAYS, replays))


def _host_time(call: Callable[[], object], replays: int) -> float:
    times: list[float] = []
    call()
    while len(times) < replays and sum(times) < HOST_SECONDS:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times)


def _event_times(call: Callable[[], object], replays: int, before: Callable[[], object] | None) -> float:
    """Return the median seconds between two events around each call."""
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(replays)]
    for start, end in pairs:
        if before is not None:
            before()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return median(milliseconds_to_seconds(start.elapsed_time(end)) for start, end in pairs)


def captured(call: Callable[[], object], device: torch.device) -> tuple[Any, str | None]:
    """Capture a call on the current stream, and clean up if that fails.

    Args:
        call: The call to capture; it has run on this stream before.
        device: A CUDA device.

    Returns:
        The graph, or None and the reason in a line.

    Raises:
        CaptureError: A failed capture left this process in a state in which no further capture is possible.
    """
    pool = torch.cuda.graph_pool_handle()  # our own: a graph does not expose its pool after a failed capture
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(device)
    failure: RuntimeError | None = None
    graph.capture_begin(pool=pool)
    try:
        call()
    except RuntimeError as error:  # it synchronises, or allocates outside the graph's pool
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


def _release(pool: Any, device: torch.device) -> None:
    """Release the memory pool of a failed capture, which torch leaves in recording state.

    The function that ends the recording has another name before torch 2.6.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    for names in (("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool"), ("_cuda_releasePool",)):
        found = next((getattr(torch._C, name) for name in names if hasattr(torch._C, name)), None)
        if found is not None:
            with suppress(RuntimeError):
                found(index, pool)


def _renew_generator(device: torch.device) -> None:
    """Replace the random generator's state by a copy outside any capture, at the same position in its sequence."""
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    with suppress(RuntimeError, AttributeError):
        generator.graphsafe_set_state(generator.clone_state())


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _l2_bytes(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).L2_cache_size)
