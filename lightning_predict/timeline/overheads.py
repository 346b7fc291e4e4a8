"""The five kinds of host time around an operation's launches (Lin et al., HiPC 2022), and where they come from.

    T1  between two operations            T4  one launch call
    T2  from the start of an operation    T5  between two launches of one operation;
        to its first launch                   the whole operation where it launches nothing
    T3  from its last launch to its end

A trace with host times gives its own; the rest comes from a table by kind of operation. Example::

    >>> model = HostModel()
    >>> kind = model.of("aten::mm", "forward")
    >>> round(kind.seconds(launches=1) * 1e6, 1)  # T1 + T2 + T4 + T3
    9.5
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, quantiles
from typing import Final, final

from lightning_predict.tracing.records import Operation, Phase, Trace
from lightning_predict.units import MICROSECOND, microseconds_to_seconds

PROFILER_EVENT_SECONDS: Final = 2 * MICROSECOND
"""What recording one host event adds to the time around it; Lin et al. subtract the same."""

SHORTEST_GAP_SECONDS: Final = 2 * MICROSECOND
LONGEST_GAP_SECONDS: Final = 200 * MICROSECOND
"""Gaps between operations outside these two are the profiler's own, or waits (for data, for the device)."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Host seconds around one operation's launches.

    Attributes:
        between_operations: T1.
        before_first_launch: T2.
        after_last_launch: T3.
        launch: T4.
        between_launches: T5.
        without_launch: T5 of an operation that launches nothing.
    """

    between_operations: float
    before_first_launch: float
    after_last_launch: float
    launch: float
    between_launches: float
    without_launch: float

    def seconds(self, *, launches: int) -> float:
        """Host time of one operation, the gap before it included."""
        if launches == 0:
            return self.between_operations + self.without_launch
        around = self.between_operations + self.before_first_launch + self.after_last_launch
        return around + launches * self.launch + (launches - 1) * self.between_launches


def _table_row(t1: float, t2: float, t3: float, t4: float, t5: float, without_launch: float) -> Overheads:
    t1, t2, t3, t4, t5, without_launch = map(microseconds_to_seconds, (t1, t2, t3, t4, t5, without_launch))
    return Overheads(
        between_operations=t1,
        before_first_launch=t2,
        after_last_launch=t3,
        launch=t4,
        between_launches=t5,
        without_launch=without_launch,
    )


SHARED_OVERHEADS: Final[Mapping[Phase, Overheads]] = {
    "forward": _table_row(1.5, 3.0, 1.0, 4.0, 1.0, 1.0),
    "backward": _table_row(1.0, 2.0, 1.0, 4.0, 1.0, 0.7),
    "optimizer": _table_row(2.0, 4.0, 1.0, 4.0, 1.0, 1.0),
    "other": _table_row(1.5, 3.0, 1.0, 4.0, 1.0, 1.0),
}
"""Microseconds by phase, for a run whose host was not profiled. T4 is Lin et al.'s constant. The others are an
assumption until a profiled run replaces them: eager PyTorch issues some 100,000 launching operations a second from
Python, and a third more from autograd's own thread, which calls no Python."""


@final
@dataclass(frozen=True, slots=True)
class HostModel:
    """Overheads by operation, by phase where the operation has none, times the host's factor.

    Attributes:
        by_operation: Measured overheads by (operation, phase).
        by_phase: Overheads of all other operations.
        factor: Time of this host over that of the host the overheads are from.
        is_measured: The overheads come from the user's own trace.
    """

    by_operation: Mapping[tuple[str, Phase], Overheads] = field(default_factory=dict)
    by_phase: Mapping[Phase, Overheads] = field(default_factory=lambda: SHARED_OVERHEADS)
    factor: float = 1.0
    is_measured: bool = False

    def of(self, name: str, phase: Phase) -> Overheads:
        """Overheads of one operation."""
        own = self.by_operation.get((name, phase), self.by_phase[phase])
        if self.factor == 1.0:
            return own
        return Overheads(
            between_operations=own.between_operations * self.factor,
            before_first_launch=own.before_first_launch * self.factor,
            after_last_launch=own.after_last_launch * self.factor,
            launch=own.launch * self.factor,
            between_launches=own.between_launches * self.factor,
            without_launch=own.without_launch * self.factor,
        )


def host_model(trace: Trace, *, factor: float = 1.0) -> HostModel:
    """The trace's own overheads where it was profiled on CUDA, the shared table otherwise."""
    timed = [operation for operation in trace.operations if operation.host_start_seconds is not None]
    if trace.device != "cuda" or not any(_launches(operation) for operation in timed):
        return HostModel(factor=factor)
    gaps = _gaps(timed)
    by_phase = {
        phase: _measured([o for o in timed if o.phase == phase], gaps.get(phase, ()), SHARED_OVERHEADS[phase])
        for phase in SHARED_OVERHEADS
    }
    groups: dict[tuple[str, Phase], list[Operation]] = {}
    for operation in timed:
        groups.setdefault((operation.name, operation.phase), []).append(operation)
    by_operation = {
        (name, phase): _measured(members, gaps.get(phase, ()), by_phase[phase])
        for (name, phase), members in groups.items()
    }
    return HostModel(by_operation=by_operation, by_phase=by_phase, factor=factor, is_measured=True)


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


def _gaps(operations: Sequence[Operation]) -> dict[Phase, list[float]]:
    """T1 of each pair of neighbours in one phase, waits left out."""
    gaps: dict[Phase, list[float]] = {}
    for earlier, later in pairwise(operations):
        if earlier.phase != later.phase:
            continue
        end = (earlier.host_start_seconds or 0.0) + (earlier.host_seconds or 0.0)
        gap = (later.host_start_seconds or 0.0) - end
        if earlier.module != later.module:
            gap -= 2 * PROFILER_EVENT_SECONDS  # the mark of one call ends there, and another's begins
        if SHORTEST_GAP_SECONDS < gap < LONGEST_GAP_SECONDS:
            gaps.setdefault(later.phase, []).append(gap)
    return gaps


def _measured(operations: Sequence[Operation], gaps: Sequence[float], default: Overheads) -> Overheads:
    """Means of the five kinds over operations, outliers and the profiler's own time taken off."""
    before: list[float] = []
    after: list[float] = []
    calls: list[float] = []
    between: list[float] = []
    alone: list[float] = []
    for operation in operations:
        start = operation.host_start_seconds or 0.0
        length = operation.host_seconds or 0.0
        launches = _launches(operation)
        if not launches:
            if not operation.kernels:
                alone.append(length)
            continue
        before.append(launches[0][0] - start)
        after.append(start + length - launches[-1][1])
        calls += [end - begin for begin, end in launches]
        between += [later[0] - earlier[1] for earlier, later in pairwise(launches)]
    return Overheads(
        between_operations=_typical(gaps, default.between_operations),
        before_first_launch=_typical(before, default.before_first_launch),
        after_last_launch=_typical(after, default.after_last_launch),
        launch=_typical(calls, default.launch),
        between_launches=_typical(between, default.between_launches),
        without_launch=_typical(alone, default.without_launch),
    )


def _typical(values: Iterable[float], default: float) -> float:
    """Mean without outliers (beyond 1.5 interquartile ranges), less one profiler event; the default for no values."""
    kept = list(values)
    if not kept:
        return default
    if len(kept) > 3:
        low, _, high = quantiles(kept, n=4)
        reach = 1.5 * (high - low)
        kept = [value for value in kept if low - reach <= value <= high + reach]
    return max(fmean(kept) - PROFILER_EVENT_SECONDS, 0.0)
