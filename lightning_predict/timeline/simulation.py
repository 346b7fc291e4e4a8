"""One host thread and the device's streams, simulated through a step.

The host walks through the operations and pays their overheads T1 to T5 (`overheads.py`); each launch appends a kernel
to its stream, which starts when the stream is free and the launch has been made. The host runs ahead until an
operation waits for the device (`.item()`, a blocking copy). A step of a running loop begins while the device still
works on the one before, so several steps are simulated and the time between two ends counts; `steps=1` gives the step
from a standing start (Lin et al., HiPC 2022, algorithm 1).

Kernel j of a stream starts at max(end of j - 1, launch of j). With P_j the sum of the durations before j, start_j - P_j
is the running maximum of launch_i - P_i over i <= j, so all kernels of all GPUs are placed by one cumulative maximum.
The depth of the driver's queue does not matter: a host that it blocks waits for the device, which then bounds the step.
Example::

    >>> work = [Launching(name="aten::mm", phase="forward", seconds=np.array([[1e-3], [2e-6]]), streams=(0,))]
    >>> result = simulate(work, HostModel(), gpus=2)
    >>> [round(float(seconds) * 1e6, 1) for seconds in result.seconds]  # bound by the device; by the host
    [1000.0, 9.5]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lightning_predict.kernels.arrays import summed_by_owner
from lightning_predict.kernels.operations import Array
from lightning_predict.timeline.overheads import HostModel
from lightning_predict.tracing.records import Phase

STEADY_STEPS: Final = 3
"""Steps to simulate before the time between two ends is that of a running loop."""

COMPUTE_STREAM: Final = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Launching:
    """An operation as the simulation sees it.

    Attributes:
        name: Its name, for its overheads.
        phase: Its part of the step, for its overheads.
        seconds: Device seconds of each kernel on each GPU, shape (gpus, kernels); no kernels for host work alone.
        streams: Stream of each kernel.
        calls: Launch call that each kernel belongs to, from 0 on in order (a CUDA graph launches all of its kernels by
            one); None where each has its own.
        waits: The host waits afterwards until the compute stream is done.
        module: Whose time it is.
    """

    name: str
    phase: Phase
    seconds: Array
    streams: tuple[int, ...] = ()
    calls: tuple[int, ...] | None = None
    waits: bool = False
    module: str | None = None

    @property
    def launches(self) -> int:
        """Launch calls that the host makes."""
        kernels = self.seconds.shape[1]
        return kernels if self.calls is None else max(self.calls, default=-1) + 1


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Times of one step.

    Attributes:
        seconds: The step, shape (gpus,).
        active_seconds: Work of the compute stream, shape (gpus,).
        host_seconds: Time of the host alone, waits left out.
        busy: Seconds that each operation's kernels keep the compute stream busy, shape (gpus, operations).
        waiting: Seconds that the compute stream waits for each operation's launches, shape (gpus, operations).
        begins: When the last step begins, which is when the one before it ended, shape (gpus,).
        operation_starts: When the host begins each operation of the last step, shape (gpus, operations).
        kernel_starts: When each kernel of the last step begins, shape (gpus, kernels).
        kernel_seconds: How long it takes, shape (gpus, kernels).
        kernel_streams: Its stream, shape (kernels,).
        kernel_owners: The operation that launched it, shape (kernels,).
    """

    seconds: Array
    active_seconds: Array
    host_seconds: float
    busy: Array
    waiting: Array
    begins: Array
    operation_starts: Array
    kernel_starts: Array
    kernel_seconds: Array
    kernel_streams: npt.NDArray[np.intp]
    kernel_owners: npt.NDArray[np.intp]


@final
@dataclass(frozen=True, slots=True)
class _Plan:
    """The host's walk through one step, without waits.

    Attributes:
        durations: Device seconds of all kernels, (gpus, kernels).
        launched: Host time at which each launch has been made, (kernels,).
        streams: Stream of each kernel, (kernels,).
        owners: Operation of each kernel, (kernels,).
        begins: Host time at which each operation begins, (operations,).
        waits: (operations done, kernels issued, host time) at each wait, in order.
        host_seconds: Host time of the whole step.
    """

    durations: Array
    launched: Array
    streams: npt.NDArray[np.intp]
    owners: npt.NDArray[np.intp]
    begins: Array
    waits: tuple[tuple[int, int, float], ...]
    host_seconds: float


def simulate(
    operations: Sequence[Launching], host: HostModel, *, gpus: int, steps: int = STEADY_STEPS, speed: float = 1.0
) -> Simulated:
    """Simulate a step that is repeated.

    Args:
        operations: In the order of the host.
        host: Overheads.
        gpus: Number of GPUs (rows of every `seconds`).
        steps: Steps to run; the last one's time counts. 1 starts with an idle device.
        speed: How many times as fast as stated the kernels are.
    """
    plan = _plan(operations, host, gpus, speed)
    clocks = _Clocks(gpus)
    previous = np.zeros(gpus)
    last = _Placed(plan)
    for _ in range(max(steps, 1)):
        previous = clocks.end()
        last = clocks.run(plan)
    on_compute = plan.streams == COMPUTE_STREAM
    return Simulated(
        seconds=clocks.end() - previous,
        active_seconds=plan.durations[:, on_compute].sum(axis=1),
        host_seconds=plan.host_seconds,
        busy=summed_by_owner(plan.durations * on_compute, plan.owners, len(operations)),
        waiting=summed_by_owner(last.waiting, plan.owners, len(operations)),
        begins=previous,
        operation_starts=last.operation_starts,
        kernel_starts=last.starts,
        kernel_seconds=plan.durations,
        kernel_streams=plan.streams,
        kernel_owners=plan.owners,
    )


def _plan(operations: Sequence[Launching], host: HostModel, gpus: int, speed: float) -> _Plan:
    clock = 0.0
    launched: list[float] = []
    streams: list[int] = []
    owners: list[int] = []
    begins: list[float] = []
    waits: list[tuple[int, int, float]] = []
    for index, operation in enumerate(operations):
        overheads = host.of(operation.name, operation.phase)
        begins.append(clock + overheads.between_operations)
        kernels = operation.seconds.shape[1]
        if kernels:
            first = clock + overheads.between_operations + overheads.before_first_launch + overheads.launch
            each = overheads.launch + overheads.between_launches
            launched += [first + number * each for number in operation.calls or range(kernels)]
            streams += operation.streams
            owners += [index] * kernels
        clock += overheads.seconds(launches=operation.launches)
        if operation.waits:
            waits.append((index + 1, len(launched), clock))
    parts = [operation.seconds for operation in operations if operation.seconds.shape[1]]
    return _Plan(
        durations=np.concatenate(parts, axis=1) / speed if parts else np.zeros((gpus, 0)),
        launched=np.array(launched),
        streams=np.array(streams, dtype=np.intp),
        owners=np.array(owners, dtype=np.intp),
        begins=np.array(begins),
        waits=tuple(waits),
        host_seconds=clock,
    )


@final
class _Placed:
    """Where a step's operations and kernels lie in time."""

    def __init__(self, plan: _Plan) -> None:
        self.waiting = np.zeros_like(plan.durations)
        self.starts = np.zeros_like(plan.durations)
        self.operation_starts = np.zeros((len(plan.durations), len(plan.begins)))


@final
class _Clocks:
    """Clocks of the host and of the streams, each of shape (gpus,)."""

    def __init__(self, gpus: int) -> None:
        self.host = np.zeros(gpus)
        self.free: dict[int, Array] = {COMPUTE_STREAM: np.zeros(gpus)}

    def end(self) -> Array:
        """When everything issued so far is done."""
        latest: Array = np.maximum.reduce([self.host, *self.free.values()])
        return latest

    def run(self, plan: _Plan) -> _Placed:
        """Run one step."""
        placed = _Placed(plan)
        operation = kernel = 0
        for operations, kernels, moment in (*plan.waits, (len(plan.begins), len(plan.launched), None)):
            placed.operation_starts[:, operation:operations] = self.host[:, None] + plan.begins[operation:operations]
            if kernels > kernel:
                self._segment(plan, kernel, kernels, placed)
            operation, kernel = operations, kernels
            if moment is not None:  # the walk goes on when the device is done
                self.host = np.maximum(self.host, self.free[COMPUTE_STREAM] - moment)
        self.host = self.host + plan.host_seconds
        return placed

    def _segment(self, plan: _Plan, begin: int, end: int, placed: _Placed) -> None:
        """Place the kernels of one segment between two waits."""
        launched = self.host[:, None] + plan.launched[None, begin:end]
        durations, streams = plan.durations[:, begin:end], plan.streams[begin:end]
        own = np.arange(begin, end)
        compute = streams == COMPUTE_STREAM
        before = self.free[COMPUTE_STREAM]
        starts = _placed(launched[:, compute], durations[:, compute], before)
        ends = starts + durations[:, compute]
        placed.starts[:, own[compute]] = starts
        placed.waiting[:, own[compute]] = starts - np.concatenate([before[:, None], ends[:, :-1]], axis=1)
        for stream in np.unique(streams[~compute]):
            mine = streams == stream
            # Work beside the compute stream reads what that has written until then.
            done = np.concatenate([before[:, None], ends], axis=1)[:, np.cumsum(compute)[mine]]
            free = self.free.get(int(stream), np.zeros_like(before))
            side = _placed(np.maximum(launched[:, mine], done), durations[:, mine], free)
            placed.starts[:, own[mine]] = side
            self.free[int(stream)] = side[:, -1] + durations[:, mine][:, -1]
        if compute.any():
            self.free[COMPUTE_STREAM] = ends[:, -1]


def _placed(launched: Array, durations: Array, free: Array) -> Array:
    """Start of each kernel of one stream, (gpus, kernels)."""
    if not launched.shape[1]:
        return launched
    before = np.cumsum(durations, axis=1) - durations
    latest = np.maximum.accumulate(np.maximum(launched - before, free[:, None]), axis=1)
    starts: Array = before + latest
    return starts
