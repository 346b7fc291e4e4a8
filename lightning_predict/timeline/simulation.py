"""Simulates the timeline of a step: one host thread launches kernels into the streams of the device.

The host processes the operations in order. Each operation has five overheads, which `host.py` defines as T1 to T5. Each
launch appends a kernel to its stream. The kernel starts when the launch has been made and the stream is free. The host
runs ahead until an operation waits for the device (`.item()`, a blocking copy). In a running loop, a step begins while
the device still executes the previous one. Therefore several steps are simulated, and the step time is the time between
the ends of the last two. `steps=1` simulates an isolated step (Lin et al., HiPC 2022, algorithm 1).

Kernel j of a stream starts at max(end of j - 1, launch of j). A queued kernel starts about a microsecond
(`gap_seconds`) after the previous kernel ends. The simulation adds this gap to each kernel's duration. On an idle
stream, a kernel starts `START_SECONDS` after the launch call. Let P_j be the sum of the durations before j. Then
start_j - P_j is the running maximum of launch_i - P_i over i <= j, so one cumulative maximum yields the starts of all
kernels on all GPUs. The depth of the driver's queue has no influence: a host that is blocked by a full queue waits for
the device, which is then the bottleneck.

Data that depends neither on the host nor on the speed of kernels (`LaunchSchedule`) is converted to arrays once. The
timeline of a host (`host_timeline`) then takes only a few sums, so many hosts and speeds can be tried. Example::

    >>> from lightning_predict.timeline.simulation import HostOperation, launch_schedule
    >>> work = [HostOperation(name="aten::mm", phase="forward", seconds=np.array([[1e-3], [2e-6]]), streams=(0,))]
    >>> result = simulate_timeline(launch_schedule(work, gpus=2), HostModel())
    >>> [round(float(seconds) * 1e6, 1) for seconds in result.seconds]  # device-bound; host-bound
    [1000.0, 13.3]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lightning_predict.base.ties import greatest
from lightning_predict.kernels.measured_scaling import WorkTimes
from lightning_predict.kernels.operations import Array, IndexArray
from lightning_predict.kernels.translation import WorkItem
from lightning_predict.record.trace import Kernel, Phase, Trace
from lightning_predict.timeline.host import LIBRARY_SECONDS, HostModel, Overheads, RecordedHost, recorded_host
from lightning_predict.uncertainty import summed_by_owner

COMPUTE_STREAM: Final = 0

START_SECONDS: Final = 2e-06  # Time from the end of a launch call to the start of its kernel on an idle stream


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOperation:
    """An operation in the simulation."""

    name: str
    phase: Phase  # Phase of the step, which selects the overheads
    seconds: Array  # Device seconds of each kernel on each GPU, shape (gpus, kernels). Host work has no kernels.
    streams: tuple[int, ...] = ()
    # Index of the launch call of each kernel, from 0 in order. All kernels of a CUDA graph have the same call. None if
    # each kernel has its own call.
    calls: tuple[int, ...] | None = None
    waits: bool = False  # Whether the host waits after the operation until the compute stream has finished
    module: str | None = None
    recorded: Overheads | None = None  # Recorded overheads; None uses the overheads of the host model
    # Extra host time inside a library call, added to the overheads of the host model. Recorded overheads already
    # include this time.
    library_seconds: float = 0.0
    python_seconds: float = 0.0  # Host work before the operation, outside operations
    operation: int | None = None  # Index of the operation in the trace; None for an operation outside the trace

    @property
    def launches(self) -> int:
        """Number of launch calls."""
        kernels = self.seconds.shape[1]
        return kernels if self.calls is None else max(self.calls, default=-1) + 1


@dataclass(frozen=True, slots=True)
class LaunchSchedule:
    """Operations of a step as arrays."""

    # Distinct (recorded overheads, phase, launch calls, library seconds) of the operations
    kinds: tuple[tuple[Overheads | None, Phase, int, float], ...]
    kind: IndexArray  # Index into `kinds` of each operation, shape (operations,)
    python_seconds: Array  # Host work before each operation, outside operations, shape (operations,)
    seconds: Array  # Device seconds of all kernels, shape (gpus, kernels)
    gap_seconds: float  # Gap between two queued kernels of a stream
    streams: IndexArray  # Stream of each kernel, shape (kernels,)
    owners: IndexArray  # Operation of each kernel, shape (kernels,)
    calls: IndexArray  # Index of each kernel's launch call within its operation, shape (kernels,)
    waits: tuple[tuple[int, int], ...]  # For each synchronization, the number of operations and kernels before it


@dataclass(frozen=True, slots=True)
class HostTimeline:
    """Timeline of the host in one step, without waits."""

    begins: Array  # Start of each operation, shape (operations,)
    launched: Array  # Earliest start of each kernel on an idle stream, shape (kernels,)
    # For each synchronization, in order: the number of operations and kernels before it, and the host time
    waits: tuple[tuple[int, int, float], ...]
    seconds: float


def launch_schedule(operations: Sequence[HostOperation], *, gpus: int, gap_seconds: float = 0.0) -> LaunchSchedule:
    """Convert operations to arrays.

    Args:
        operations: Operations in host order.
        gpus: Number of GPUs (rows of every `seconds`).
        gap_seconds: Gap between two queued kernels of a stream; 0 if kernel times include the gap.
    """
    kinds: dict[tuple[Overheads | None, Phase, int, float], int] = {}
    kind: list[int] = []
    streams: list[int] = []
    owners: list[int] = []
    calls: list[int] = []
    waits: list[tuple[int, int]] = []
    for index, operation in enumerate(operations):
        kernels = len(operation.streams)
        own = (operation.recorded, operation.phase, operation.launches, operation.library_seconds)
        kind.append(kinds.setdefault(own, len(kinds)))
        streams += operation.streams
        owners += [index] * kernels
        calls += range(kernels) if operation.calls is None else operation.calls
        if operation.waits:
            waits.append((index + 1, len(streams)))
    parts = [operation.seconds for operation in operations if operation.streams]
    return LaunchSchedule(
        kinds=tuple(kinds),
        kind=np.array(kind, dtype=np.intp),
        python_seconds=np.array([operation.python_seconds for operation in operations], dtype=np.float64),
        seconds=np.concatenate(parts, axis=1) if parts else np.zeros((gpus, 0)),
        gap_seconds=gap_seconds,
        streams=np.array(streams, dtype=np.intp),
        owners=np.array(owners, dtype=np.intp),
        calls=np.array(calls, dtype=np.intp),
        waits=tuple(waits),
    )


def host_timeline(schedule: LaunchSchedule, host: HostModel) -> HostTimeline:
    """Compute the host timeline of a step."""
    overheads = [(host.overheads(phase, own, library), launches) for own, phase, launches, library in schedule.kinds]
    length = np.array([own.total_seconds(launches=launches) for own, launches in overheads])  # (kinds,)
    before = np.array([own.between_operations for own, _ in overheads])
    first = np.array([own.before_first_launch + own.launch for own, _ in overheads])
    each = np.array([own.launch + own.between_launches for own, _ in overheads])
    python = host.factor * schedule.python_seconds
    ends = np.concatenate([[0.0], np.cumsum(length[schedule.kind] + python)])  # (operations + 1,)
    begins = ends[:-1] + before[schedule.kind] + python
    kind = schedule.kind[schedule.owners]
    launched = begins[schedule.owners] + first[kind] + schedule.calls * each[kind]  # (kernels,)
    return HostTimeline(
        begins=begins,
        launched=launched + START_SECONDS,
        waits=tuple((operations, kernels, float(ends[operations])) for operations, kernels in schedule.waits),
        seconds=float(ends[-1]),
    )


def host_operations(trace: Trace, timed: WorkTimes, seconds: Array) -> tuple[HostOperation, ...]:
    """List the trace's operations in host order, with their device seconds of shape (gpus, items).

    An operation that a GPU runs inside the launch of another operation is omitted. If the trace was not recorded on
    CUDA, the optimizer's views of single tensors are omitted, because the multi-tensor implementation does not need
    them.
    """
    first = {item.operations[0]: column for column, item in enumerate(timed.items)}
    inside = {index for item in timed.items for index in item.operations[1:]}
    elsewhere = trace.device != "cuda"
    main = main_queue(trace)
    host = recorded_host(trace)
    work = []
    for index, operation in enumerate(trace.operations):
        column = first.get(index)
        if index in inside or (column is None and elsewhere and operation.phase == "optimizer"):
            continue
        item_seconds = np.zeros((len(seconds), 0)) if column is None else seconds[:, column : column + 1]
        item = None if column is None else timed.items[column]
        work.append(_host_operation(trace, index, item, item_seconds, main, host))
    return tuple(work)


def _host_operation(
    trace: Trace, index: int, item: WorkItem | None, seconds: Array, main: Queue | None, host: RecordedHost
) -> HostOperation:
    """Return the host operation of a work item. Its seconds are split over its kernels by measured or equal shares."""
    operation = trace.operations[index]
    streams: tuple[int, ...] = ()
    calls: tuple[int, ...] | None = None
    if item is not None:
        kernels = [kernel for own in item.operations for kernel in trace.operations[own].kernels]
        measured = math.fsum(kernel.seconds for kernel in kernels)
        if measured > 0:
            seconds = seconds * (np.array([kernel.seconds for kernel in kernels]) / measured)[None, :]
            streams = tuple(COMPUTE_STREAM if queue_of(k) == main else _number(queue_of(k), main) for k in kernels)
            calls = _calls(kernels)
        else:
            if item.launches > 1:
                seconds = np.repeat(seconds / item.launches, item.launches, axis=1)
            streams = (COMPUTE_STREAM,) * item.launches
    return HostOperation(
        name=operation.name,
        phase=operation.phase,
        seconds=seconds,
        streams=streams,
        calls=calls,
        waits=host.waits[index],
        module=operation.module,
        recorded=host.overheads[index],
        library_seconds=0.0 if host.overheads[index] is not None else LIBRARY_SECONDS.get(operation.name, 0.0),
        python_seconds=host.python_seconds[index],
        operation=index,
    )


def _calls(kernels: Sequence[Kernel]) -> tuple[int, ...] | None:
    """Return the launch call of each kernel if some kernels share a call, as in a CUDA graph; otherwise None."""
    starts = [kernel.launch_start_seconds for kernel in kernels]
    if None in starts or len(set(starts)) == len(starts):
        return None
    numbers: dict[float | None, int] = {}
    return tuple(numbers.setdefault(start, len(numbers)) for start in starts)


Queue = tuple[int, int]  # A GPU and one stream of this GPU. A stream executes its kernels in order.
STREAMS_OF_A_GPU: Final = 100_000  # Stream-id offset between GPUs, larger than the number of streams of any GPU


def queue_of(kernel: Kernel) -> Queue:
    """Return the device and the stream of a kernel."""
    return kernel.device, kernel.stream


def _number(queue: Queue, main: Queue | None) -> int:
    """Return the stream number of another queue than the main one: the driver's plus 1, with an offset per GPU."""
    others = queue[0] - main[0] if main is not None else 0
    return queue[1] + 1 + others * STREAMS_OF_A_GPU


def main_queue(trace: Trace) -> Queue | None:
    """Return the queue with the most kernel time; None without measured kernels."""
    busy: dict[Queue, float] = {}
    for kernel in trace.kernels:
        busy[queue_of(kernel)] = busy.get(queue_of(kernel), 0.0) + kernel.seconds
    return greatest(busy, busy.__getitem__) if busy else None


STEADY_STEPS: Final = 3  # Number of simulated steps; the last one corresponds to a step of a running loop


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTimeline:
    """Times of one simulated step."""

    seconds: Array  # Step time, shape (gpus,)
    active_seconds: Array  # Kernel time of the compute stream, shape (gpus,)
    active_with_gaps_seconds: Array  # Kernel time of the compute stream including gaps, shape (gpus,)
    host_seconds: float  # Host time without waits
    host_ends: Array  # Time from the start of the last step to its end on the host, with waits; shape (gpus,)
    busy: Array  # Time that the compute stream spends on each operation's kernels and gaps, shape (gpus, operations)
    waiting: Array  # Time that the compute stream waits for the launches of each operation, shape (gpus, operations)
    begins: Array  # Start of the last step, which is the end of the previous step, shape (gpus,)
    operation_starts: Array  # Host start of each operation of the last step, shape (gpus, operations)
    kernel_starts: Array  # Start of each kernel of the last step, shape (gpus, kernels)
    kernel_seconds: Array  # Duration of each kernel, shape (gpus, kernels)
    kernel_streams: IndexArray  # Stream of each kernel, shape (kernels,)
    kernel_owners: IndexArray  # Operation that launched each kernel, shape (kernels,)


def simulate_timeline(
    schedule: LaunchSchedule, host: HostModel, *, steps: int = STEADY_STEPS, speed: float = 1.0
) -> SimulatedTimeline:
    """Simulate repeated steps and return the times of the last step.

    Args:
        schedule: Operations in host order.
        host: Host model.
        steps: Number of steps. With 1, the device is idle at the start.
        speed: Speed of the kernels relative to the times in `order`.
    """
    timeline = host_timeline(schedule, host)
    durations = schedule.seconds / speed  # (gpus, kernels)
    occupied = durations + schedule.gap_seconds
    segments = _segments(schedule, timeline, occupied)
    clocks = _Clocks(len(durations))
    for _ in range(steps - 1):
        clocks.run(timeline, segments)
    previous = clocks.end()
    last = _Placed(durations, len(timeline.begins))
    clocks.run(timeline, segments, last)
    on_compute = schedule.streams == COMPUTE_STREAM  # (kernels,)
    operations = len(schedule.kind)
    return SimulatedTimeline(
        seconds=clocks.end() - previous,
        active_seconds=durations[:, on_compute].sum(axis=1),
        active_with_gaps_seconds=occupied[:, on_compute].sum(axis=1),
        host_seconds=timeline.seconds,
        host_ends=clocks.host - previous,
        busy=summed_by_owner(occupied * on_compute, schedule.owners, operations),
        waiting=summed_by_owner(last.waiting, schedule.owners, operations),
        begins=previous,
        operation_starts=last.operation_starts,
        kernel_starts=last.starts,
        kernel_seconds=durations,
        kernel_streams=schedule.streams,
        kernel_owners=schedule.owners,
    )


class _Placed:
    """Start times of the operations and kernels of a step."""

    def __init__(self, durations: Array, operations: int) -> None:
        self.waiting = np.zeros_like(durations)
        self.starts = np.zeros_like(durations)
        self.operation_starts = np.zeros((len(durations), operations))


class _Segment:
    """Launches between two waits of the host, with quantities that are the same in every step.

    Args:
        wait: Host time of the wait after the segment; None at the end of the step.
        launched: Launch time of each kernel of the step, shape (kernels,).
        durations: Device seconds of each kernel, shape (gpus, kernels).
        streams: Stream of each kernel.
    """

    def __init__(
        self,
        operations: slice,
        kernels: slice,
        wait: float | None,
        launched: Array,
        durations: Array,
        streams: IndexArray,
    ) -> None:
        self.operations, self.kernels, self.wait = operations, kernels, wait
        self.launched, self.durations, self.streams = launched[kernels], durations[:, kernels], streams[kernels]
        computes = self.streams == COMPUTE_STREAM
        self.has_others = not computes.all()
        # Positions of the compute stream's kernels in the segment
        self.compute = np.flatnonzero(computes) if self.has_others else slice(None)
        own = self.durations[:, self.compute]
        ends = np.cumsum(own, axis=1)  # (gpus, compute)
        self.before = ends - own  # P_j, the compute stream's work before each compute kernel, shape (gpus, compute)
        # Running maximum of launch_i - P_i, shape (gpus, compute)
        self.latest = np.maximum.accumulate(self.launched[self.compute] - self.before, axis=1)
        self.total = ends[:, -1] if ends.shape[1] else np.zeros(len(ends))  # Work of the compute stream, shape (gpus,)


def _segments(schedule: LaunchSchedule, timeline: HostTimeline, durations: Array) -> list[_Segment]:
    segments = []
    operation = kernel = 0
    for operations, kernels, moment in (*timeline.waits, (len(timeline.begins), len(timeline.launched), None)):
        cut = slice(operation, operations), slice(kernel, kernels)
        segments.append(_Segment(*cut, moment, timeline.launched, durations, schedule.streams))
        operation, kernel = operations, kernels
    return segments


class _Clocks:
    """Current time of the host and of each stream; every time has the shape (gpus,)."""

    def __init__(self, gpus: int) -> None:
        self.host = np.zeros(gpus)
        self.free: dict[int, Array] = {COMPUTE_STREAM: np.zeros(gpus)}

    def end(self) -> Array:
        """Return the time at which all issued work is done."""
        latest: Array = np.maximum.reduce([self.host, *self.free.values()])
        return latest

    def run(self, timeline: HostTimeline, segments: Sequence[_Segment], placed: _Placed | None = None) -> None:
        """Simulate one step; record start times in `placed` if given."""
        for segment in segments:
            if placed is not None:
                placed.operation_starts[:, segment.operations] = (
                    self.host[:, None] + timeline.begins[segment.operations]
                )
            self._run(segment, placed)
            if segment.wait is not None:  # the host continues when the device is done
                self.host = np.maximum(self.host, self.free[COMPUTE_STREAM] - segment.wait)
        self.host = self.host + timeline.seconds

    def _run(self, segment: _Segment, placed: _Placed | None) -> None:
        before = self.free[COMPUTE_STREAM]
        if segment.latest.shape[1]:
            self.free[COMPUTE_STREAM] = segment.total + np.maximum(self.host + segment.latest[:, -1], before)
        if placed is None and not segment.has_others:
            return
        starts = segment.before + np.maximum(self.host[:, None] + segment.latest, before[:, None])  # (gpus, compute)
        done = np.concatenate([before[:, None], starts + segment.durations[:, segment.compute]], axis=1)
        sides = self._sides(segment, done) if segment.has_others else {}
        if placed is not None:
            placed.starts[:, segment.kernels][:, segment.compute] = starts
            placed.waiting[:, segment.kernels][:, segment.compute] = starts - done[:, :-1]
            for stream, side in sides.items():
                placed.starts[:, segment.kernels][:, segment.streams == stream] = side

    def _sides(self, segment: _Segment, done: Array) -> dict[int, Array]:
        """Compute start times on the other streams."""
        issued = np.cumsum(segment.streams == COMPUTE_STREAM)  # (kernels,)
        starts = {}
        for stream in sorted(set(segment.streams.tolist()) - {COMPUTE_STREAM}):
            mine = segment.streams == stream
            durations = segment.durations[:, mine]
            # Kernels of other streams read results of the compute stream, so they wait for all earlier kernels of the
            # compute stream.
            launched = np.maximum(self.host[:, None] + segment.launched[mine], done[:, issued[mine]])
            free = self.free.get(stream, np.zeros_like(self.host))
            starts[stream] = _placed(launched, durations, free)
            self.free[stream] = starts[stream][:, -1] + durations[:, -1]
        return starts


def _placed(launched: Array, durations: Array, free: Array) -> Array:
    """Return the start of each kernel of one stream, (gpus, kernels)."""
    before = np.cumsum(durations, axis=1) - durations  # (gpus, kernels)
    latest = np.maximum.accumulate(np.maximum(launched - before, free[:, None]), axis=1)
    starts: Array = before + latest
    return starts
