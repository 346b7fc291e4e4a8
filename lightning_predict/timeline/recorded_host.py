"""Read the host's work in a recorded step, operation by operation, with its waits taken out.

A synchronizing call, a copy that blocks and a launch into a full queue last as long as the device makes them; what is
kept is the work around them, and the simulation derives the waits again for another GPU. What is left between two
operations is Python code: PyTorch's own, microseconds long, or the user's (an environment, tokenizing, metrics).
Example::

    host = recorded_host(trace)
    host.overheads[7]          # T1 to T5 of the eighth operation as recorded; None if it was not timed
    sum(host.python_seconds)   # 0.030 for a training_step that steps an environment for 30 ms
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Final, final

from lightning_predict.timeline.overheads import Overheads
from lightning_predict.tracing.trace import Kernel, Operation, Trace
from lightning_predict.units import MICROSECOND

PROFILER_EVENT_SECONDS: Final = 2 * MICROSECOND
"""Time that recording one host event adds around it; Lin et al. subtract as much."""

PYTHON_SECONDS: Final = 1000 * MICROSECOND
"""A longer pause between two operations is work of the step's own code. PyTorch's pauses are microseconds, those of
Lightning's hooks some hundred; in recordings of ResNet-50 (1,200 to 1,700 operations) the longest within the forward or
the backward pass is 0.8 ms, profiler included."""

BLOCKED_LAUNCH_SECONDS: Final = 50 * MICROSECOND
BLOCKED_LAUNCH_RATIO: Final = 5.0
"""A launch call that is longer than both, 50 us and five times the median of its trace, was blocked: by a full queue,
or as a copy from pageable memory, which returns when it is done. Other launches take 3-20 us in all recordings that we
have seen, profiler included."""

WAITING_OPERATIONS: Final = frozenset({"aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::is_nonzero"})
"""Operations whose result the host needs at once."""

_PAGEABLE: Final = "Pageable"
_TO_PAGEABLE: Final = "-> Pageable"
"""In the names of copies from and to memory that is not page-locked; the call of the latter always waits."""

_NO_TIME: Final = Overheads(
    between_operations=0.0,
    before_first_launch=0.0,
    after_last_launch=0.0,
    launch=0.0,
    between_launches=0.0,
    without_launch=0.0,
)


@final
@dataclass(frozen=True, slots=True)
class RecordedHost:
    """The host's part of each operation of a trace, in its order.

    Attributes:
        overheads: T1 to T5 as recorded, without waits and the profiler's events; None if launches were not timed.
        python_seconds: Host work of at least `PYTHON_SECONDS` outside of operations before it; else 0.
        waits: The host waits for the compute stream after it.
    """

    overheads: tuple[Overheads | None, ...]
    python_seconds: tuple[float, ...]
    waits: tuple[bool, ...]


def recorded_host(trace: Trace) -> RecordedHost:
    """Read the host's part of each operation from a trace."""
    if has_recorded_launches(trace):
        return _replayed(trace)
    operations = trace.operations
    waits = [operation.name in WAITING_OPERATIONS and operation.phase != "optimizer" for operation in operations]
    python = [operation.python_seconds for operation in operations]
    if trace.device == "cuda" and any(operation.host_start_seconds is not None for operation in operations):
        python = list(_replayed(trace).python_seconds)  # the launches are not in the recording
    # Nobody saw whether the host waited for the device before its own work. It mostly does: an environment needs the
    # action, a metric the prediction. Work before the first operation waits for the step before.
    following = [*python[1:], *python[:1]]
    drained = [own or seconds > 0 for own, seconds in zip(waits, following, strict=True)]
    return RecordedHost((None,) * len(operations), tuple(python), tuple(drained))


def has_recorded_launches(trace: Trace) -> bool:
    """Say whether the trace holds the times of the host's own launches."""
    return trace.device == "cuda" and any(
        operation.host_start_seconds is not None and _launches(operation) for operation in trace.operations
    )


def _replayed(trace: Trace) -> RecordedHost:
    """Walk through the recorded step on a clock that stands still while the host waits."""
    recorded = ((wait.start_seconds, wait.seconds) for wait in trace.waits)
    clock = _WorkClock([*recorded, *_blocked(trace.kernels), *_awaited(trace.operations)])
    synchronized = sorted(wait.start_seconds for wait in trace.waits if wait.cause == "device")
    timed = [index for index, operation in enumerate(trace.operations) if operation.host_start_seconds is not None]
    overheads: list[Overheads | None] = [_NO_TIME] * len(trace.operations)
    python = [0.0] * len(trace.operations)
    waits = [False] * len(trace.operations)
    now, module = 0.0, None
    for place, index in enumerate(timed):
        operation = trace.operations[index]
        began, ended = _span(operation)
        start = max(clock.at(began), now)
        end = max(clock.at(ended), start)
        launches = [
            (_within(clock.at(one), start, end), _within(clock.at(two), start, end))
            for one, two in _launches(operation)
        ]
        # The mark of one module's call ends in between, and another's begins.
        events = 3 if place > 0 and operation.module != module else 1
        gap = max(start - now - events * PROFILER_EVENT_SECONDS, 0.0)
        python[index] = gap if gap >= PYTHON_SECONDS else 0.0
        overheads[index] = _overheads(gap - python[index], start, end, launches)
        # A wait in the pause behind an operation is one after it; behind the last one it is the recorder's own.
        until = _span(trace.operations[timed[place + 1]])[0] if place + 1 < len(timed) else ended
        first = bisect_left(synchronized, began)
        is_synchronized = first < len(synchronized) and synchronized[first] < until
        waits[index] = is_synchronized or _blocks(operation) or _needs_result(operation)
        now, module = end, operation.module
    last = overheads[timed[-1]]
    if last is not None and trace.profiled_seconds is not None and trace.kernels:
        # What a step ends with counts where the device is done: before, the recorder waits for it.
        done = max([kernel.start_seconds + kernel.seconds for kernel in trace.kernels])
        # An imported step's time leaves the loader out, which lies within.
        loading = math.fsum(trace.loader_seconds) if trace.recorder == "kineto" else 0.0
        rest = max(clock.at(trace.profiled_seconds + loading) - max(clock.at(done), now), 0.0)
        overheads[timed[-1]] = replace(
            last, after_last_launch=last.after_last_launch + rest, without_launch=last.without_launch + rest
        )
    return RecordedHost(tuple(overheads), tuple(python), tuple(waits))


def _span(operation: Operation) -> tuple[float, float]:
    """Start and end on the host."""
    start = operation.host_start_seconds or 0.0
    return start, start + (operation.host_seconds or 0.0)


def _within(moment: float, start: float, end: float) -> float:
    return min(max(moment, start), end)


def _launches(operation: Operation) -> list[tuple[float, float]]:
    """Start and end of each launch call that was recorded, in order, from the start of the step.

    The kernels of a CUDA graph share one call.
    """
    calls = {
        (kernel.launch_start_seconds, kernel.launch_start_seconds + kernel.launch_seconds)
        for kernel in operation.kernels
        if kernel.launch_start_seconds is not None and kernel.launch_seconds is not None
    }
    return sorted(calls)


def _overheads(gap: float, start: float, end: float, launches: Sequence[tuple[float, float]]) -> Overheads:
    """Measure T1 to T5 of one operation, each less one event of the profiler."""
    own = _less_one_event
    if not launches:
        return replace(_NO_TIME, between_operations=gap, without_launch=own([end - start]))
    return Overheads(
        between_operations=gap,
        before_first_launch=own([launches[0][0] - start]),
        after_last_launch=own([end - launches[-1][1]]),
        launch=own([two - one for one, two in launches]),
        between_launches=own([later[0] - earlier[1] for earlier, later in pairwise(launches)]),
        without_launch=0.0,
    )


def _less_one_event(values: Sequence[float]) -> float:
    return max(fmean(values) - PROFILER_EVENT_SECONDS, 0.0) if values else 0.0


def _needs_result(operation: Operation) -> bool:
    """Return whether the host reads a number of a tensor on the device."""
    return operation.name in WAITING_OPERATIONS and bool(operation.kernels)


def _blocks(operation: Operation) -> bool:
    """Return whether a copy from or to pageable memory held the host up; a small one to the device is staged."""
    return any(
        _TO_PAGEABLE in kernel.name
        or (_PAGEABLE in kernel.name and (kernel.launch_seconds or 0.0) >= max(kernel.seconds, BLOCKED_LAUNCH_SECONDS))
        for kernel in operation.kernels
    )


def _blocked(kernels: Sequence[Kernel]) -> Iterator[tuple[float, float]]:
    """Start and length of the part of each launch that it was blocked; a CUDA graph's launch takes long by itself."""
    calls = Counter(
        (kernel.launch_start_seconds, kernel.launch_seconds)
        for kernel in kernels
        if kernel.launch_start_seconds is not None and kernel.launch_seconds is not None
    )
    if not calls:
        return
    usual = statistics.median(seconds for _, seconds in calls)
    longest = max(BLOCKED_LAUNCH_SECONDS, BLOCKED_LAUNCH_RATIO * usual)
    for (start, seconds), launched in calls.items():
        if seconds > longest and launched == 1:
            yield start + usual, seconds - usual


def _awaited(operations: Iterable[Operation]) -> Iterator[tuple[float, float]]:
    """Find the time from the last launch to the last kernel's end, for each operation that waits for its result."""
    for operation in operations:
        launches = _launches(operation)
        if launches and (_needs_result(operation) or _blocks(operation)):
            launched = launches[-1][1]
            done = max(kernel.start_seconds + kernel.seconds for kernel in operation.kernels)
            yield launched, max(min(done, _span(operation)[1]) - launched, 0.0)


@final
class _WorkClock:
    """Time that the host worked until a moment.

    Args:
        waits: Start and length of each wait; they may overlap.
    """

    def __init__(self, waits: Iterable[tuple[float, float]]) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        for start, seconds in sorted(waits):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], start + seconds)
            else:
                self._starts.append(start)
                self._ends.append(start + seconds)
        self._waited = [0.0, *accumulate(end - start for start, end in zip(self._starts, self._ends, strict=True))]

    def at(self, moment: float) -> float:
        """Count worked time up to a moment of the recording."""
        begun = bisect_left(self._starts, moment)
        waited = self._waited[begun]
        if begun:
            waited -= max(self._ends[begun - 1] - moment, 0.0)
        return moment - waited
