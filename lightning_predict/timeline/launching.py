"""The host's part of a step: operations in its order, and when it makes each launch.

What does not depend on the host or on the kernels' speed (`LaunchOrder`) is put into arrays once; the walk of a host
through it (`host_walk`) is then a few sums, so that many hosts and speeds can be tried. Example::

    >>> import numpy as np
    >>> from lightning_predict.timeline.overheads import HostModel
    >>> work = [Launching(name="aten::mm", phase="forward", seconds=np.array([[1e-3]]), streams=(0,))]
    >>> walk = host_walk(launch_order(work, gpus=1), HostModel())
    >>> [round(float(moment) * 1e6, 1) for moment in walk.launched]  # T1 + T2 + T4 + START_SECONDS
    [10.5]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lightning_predict.kernels.arrays import IndexArray
from lightning_predict.kernels.choice import TimedWork
from lightning_predict.kernels.operations import Array
from lightning_predict.kernels.translation import WorkItem
from lightning_predict.timeline.overheads import HostModel, Overheads
from lightning_predict.timeline.recorded_host import RecordedHost, recorded_host
from lightning_predict.tracing.records import Kernel, Phase, Trace
from lightning_predict.units import MICROSECOND

COMPUTE_STREAM: Final = 0

START_SECONDS: Final = 2 * MICROSECOND
"""From the end of a launch call to the start of its kernel on an idle stream: medians of 1 to 3 us in 17 public
recordings of V100, A100, H100, B200 and B300, which is 6-10 us from the start of the call."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Launching:
    """An operation as the simulation sees it.

    Attributes:
        name: Its name.
        phase: Its part of the step, for its overheads.
        seconds: Device seconds of each kernel on each GPU, shape (gpus, kernels); no kernels for host work alone.
        streams: Stream of each kernel.
        calls: Launch call that each kernel belongs to, from 0 on in order (a CUDA graph launches all of its kernels by
            one); None where each has its own.
        waits: The host waits afterwards until the compute stream is done.
        module: Whose time it is.
        recorded: Its overheads as they were recorded; None where the host model's count.
        python_seconds: Host work outside of operations before it.
    """

    name: str
    phase: Phase
    seconds: Array
    streams: tuple[int, ...] = ()
    calls: tuple[int, ...] | None = None
    waits: bool = False
    module: str | None = None
    recorded: Overheads | None = None
    python_seconds: float = 0.0

    @property
    def launches(self) -> int:
        """Launch calls that the host makes."""
        kernels = self.seconds.shape[1]
        return kernels if self.calls is None else max(self.calls, default=-1) + 1


@final
@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """A step's operations as arrays.

    Attributes:
        kinds: Distinct (recorded overheads, phase, launch calls) of the operations.
        kind: Which of them each operation is, shape (operations,).
        python_seconds: Host work outside of operations before each, shape (operations,).
        seconds: Device seconds of all kernels, shape (gpus, kernels).
        gap_seconds: What a stream leaves free between two kernels that wait in it.
        streams: Stream of each kernel, shape (kernels,).
        owners: Operation of each kernel, shape (kernels,).
        calls: Number of the launch call within its operation of each kernel, shape (kernels,).
        waits: (operations done, kernels issued) at each wait for the device, in order.
    """

    kinds: tuple[tuple[Overheads | None, Phase, int], ...]
    kind: IndexArray
    python_seconds: Array
    seconds: Array
    gap_seconds: float
    streams: IndexArray
    owners: IndexArray
    calls: IndexArray
    waits: tuple[tuple[int, int], ...]


@final
@dataclass(frozen=True, slots=True)
class HostWalk:
    """A host's walk through one step, waits left out.

    Attributes:
        begins: When each operation begins, shape (operations,).
        launched: When each kernel could start on an idle stream, shape (kernels,).
        waits: (operations done, kernels issued, host time) at each wait, in order.
        seconds: The whole walk.
    """

    begins: Array
    launched: Array
    waits: tuple[tuple[int, int, float], ...]
    seconds: float


def launch_order(operations: Sequence[Launching], *, gpus: int, gap_seconds: float = 0.0) -> LaunchOrder:
    """Operations as arrays.

    Args:
        operations: In the order of the host.
        gpus: Number of GPUs (rows of every `seconds`).
        gap_seconds: What a stream leaves free between two kernels that wait in it; 0 where `seconds` hold it.
    """
    kinds: dict[tuple[Overheads | None, Phase, int], int] = {}
    kind: list[int] = []
    streams: list[int] = []
    owners: list[int] = []
    calls: list[int] = []
    waits: list[tuple[int, int]] = []
    for index, operation in enumerate(operations):
        kernels = len(operation.streams)
        kind.append(kinds.setdefault((operation.recorded, operation.phase, operation.launches), len(kinds)))
        streams += operation.streams
        owners += [index] * kernels
        calls += range(kernels) if operation.calls is None else operation.calls
        if operation.waits:
            waits.append((index + 1, len(streams)))
    parts = [operation.seconds for operation in operations if operation.streams]
    return LaunchOrder(
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


def host_walk(order: LaunchOrder, host: HostModel) -> HostWalk:
    """When a host does what."""
    overheads = [(host.by_phase[phase] if own is None else own, launches) for own, phase, launches in order.kinds]
    length = np.array([own.seconds(launches=launches) for own, launches in overheads])
    before = np.array([own.between_operations for own, _ in overheads])
    first = np.array([own.before_first_launch + own.launch for own, _ in overheads])
    each = np.array([own.launch + own.between_launches for own, _ in overheads])
    ends = host.factor * np.concatenate([[0.0], np.cumsum(length[order.kind] + order.python_seconds)])
    begins = ends[:-1] + host.factor * (before[order.kind] + order.python_seconds)
    kind = order.kind[order.owners]
    launched = begins[order.owners] + host.factor * (first[kind] + order.calls * each[kind])
    return HostWalk(
        begins=begins,
        launched=launched + START_SECONDS,
        waits=tuple((operations, kernels, float(ends[operations])) for operations, kernels in order.waits),
        seconds=float(ends[-1]),
    )


def launchings(trace: Trace, timed: TimedWork, seconds: Array) -> tuple[Launching, ...]:
    """The trace's operations in the order of the host, with device seconds of shape (gpus, items) put in their place.

    Operations that a GPU would run inside another's launch are left out; so are, in a trace from elsewhere, the
    optimizer's views of single tensors, which the multi-tensor implementation does not take.
    """
    first = {item.operations[0]: column for column, item in enumerate(timed.items)}
    inside = {index for item in timed.items for index in item.operations[1:]}
    elsewhere = trace.device != "cuda"
    main = main_stream(trace)
    host = recorded_host(trace)
    work = []
    for index, operation in enumerate(trace.operations):
        column = first.get(index)
        if index in inside or (column is None and elsewhere and operation.phase == "optimizer"):
            continue
        item_seconds = np.zeros((len(seconds), 0)) if column is None else seconds[:, column : column + 1]
        item = None if column is None else timed.items[column]
        work.append(_launching(trace, index, item, item_seconds, main, host))
    return tuple(work)


def _launching(
    trace: Trace, index: int, item: WorkItem | None, seconds: Array, main: int | None, host: RecordedHost
) -> Launching:
    """Split an item's seconds over its kernels: by their measured shares, else equally."""
    operation = trace.operations[index]
    streams: tuple[int, ...] = ()
    calls: tuple[int, ...] | None = None
    if item is not None:
        kernels = [kernel for own in item.operations for kernel in trace.operations[own].kernels]
        measured = math.fsum(kernel.seconds for kernel in kernels)
        if measured > 0:
            seconds = seconds * (np.array([kernel.seconds for kernel in kernels]) / measured)[None, :]
            # Stream numbers are the driver's; the busiest is the one that computes, the others keep their number.
            streams = tuple(COMPUTE_STREAM if k.stream == main else k.stream + 1 for k in kernels)
            calls = _calls(kernels)
        else:
            if item.launches > 1:
                seconds = np.repeat(seconds / item.launches, item.launches, axis=1)
            streams = (COMPUTE_STREAM,) * item.launches
    return Launching(
        name=operation.name,
        phase=operation.phase,
        seconds=seconds,
        streams=streams,
        calls=calls,
        waits=host.waits[index],
        module=operation.module,
        recorded=host.overheads[index],
        python_seconds=host.python_seconds[index],
    )


def _calls(kernels: Sequence[Kernel]) -> tuple[int, ...] | None:
    """Launch call of each kernel, where some share one (a CUDA graph's do); None where none do, or it was not seen."""
    starts = [kernel.launch_start_seconds for kernel in kernels]
    if None in starts or len(set(starts)) == len(starts):
        return None
    numbers: dict[float | None, int] = {}
    return tuple(numbers.setdefault(start, len(numbers)) for start in starts)


def main_stream(trace: Trace) -> int | None:
    """The stream on which the device works longest; None without measured kernels."""
    busy: dict[int, float] = {}
    for kernel in trace.kernels:
        busy[kernel.stream] = busy.get(kernel.stream, 0.0) + kernel.seconds
    return max(busy, key=lambda stream: busy[stream], default=None)
