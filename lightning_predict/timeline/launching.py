"""The host's part of a step: operations in its order, and when it makes each launch.

What does not depend on the host or on the kernels' speed (`LaunchOrder`) is put into arrays once; the walk of a host
through it (`host_walk`) is then a few sums, so that many hosts and speeds can be tried. Example::

    >>> import numpy as np
    >>> from lightning_predict.timeline.overheads import HostModel
    >>> work = [Launching(name="aten::mm", phase="forward", seconds=np.array([[1e-3]]), streams=(0,))]
    >>> walk = host_walk(launch_order(work, gpus=1), HostModel())
    >>> [round(float(moment) * 1e6, 1) for moment in walk.launched]  # T1 + T2 + T4
    [8.5]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lightning_predict.kernels.arrays import IndexArray
from lightning_predict.kernels.operations import Array
from lightning_predict.timeline.overheads import HostModel
from lightning_predict.tracing.records import Phase


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
@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """A step's operations as arrays.

    Attributes:
        kinds: Distinct (name, phase, launch calls) of the operations.
        kind: Which of them each operation is, shape (operations,).
        seconds: Device seconds of all kernels, shape (gpus, kernels).
        streams: Stream of each kernel, shape (kernels,).
        owners: Operation of each kernel, shape (kernels,).
        calls: Number of the launch call within its operation of each kernel, shape (kernels,).
        waits: (operations done, kernels issued) at each wait for the device, in order.
    """

    kinds: tuple[tuple[str, Phase, int], ...]
    kind: IndexArray
    seconds: Array
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
        launched: When each kernel's launch has been made, shape (kernels,).
        waits: (operations done, kernels issued, host time) at each wait, in order.
        seconds: The whole walk.
    """

    begins: Array
    launched: Array
    waits: tuple[tuple[int, int, float], ...]
    seconds: float


def launch_order(operations: Sequence[Launching], *, gpus: int) -> LaunchOrder:
    """Operations as arrays.

    Args:
        operations: In the order of the host.
        gpus: Number of GPUs (rows of every `seconds`).
    """
    kinds: dict[tuple[str, Phase, int], int] = {}
    kind: list[int] = []
    streams: list[int] = []
    owners: list[int] = []
    calls: list[int] = []
    waits: list[tuple[int, int]] = []
    for index, operation in enumerate(operations):
        kernels = len(operation.streams)
        kind.append(kinds.setdefault((operation.name, operation.phase, operation.launches), len(kinds)))
        streams += operation.streams
        owners += [index] * kernels
        calls += range(kernels) if operation.calls is None else operation.calls
        if operation.waits:
            waits.append((index + 1, len(streams)))
    parts = [operation.seconds for operation in operations if operation.streams]
    return LaunchOrder(
        kinds=tuple(kinds),
        kind=np.array(kind, dtype=np.intp),
        seconds=np.concatenate(parts, axis=1) if parts else np.zeros((gpus, 0)),
        streams=np.array(streams, dtype=np.intp),
        owners=np.array(owners, dtype=np.intp),
        calls=np.array(calls, dtype=np.intp),
        waits=tuple(waits),
    )


def host_walk(order: LaunchOrder, host: HostModel) -> HostWalk:
    """When a host does what."""
    overheads = [(host.of(name, phase), launches) for name, phase, launches in order.kinds]
    length = np.array([own.seconds(launches=launches) for own, launches in overheads])
    before = np.array([own.between_operations for own, _ in overheads])
    first = np.array([own.before_first_launch + own.launch for own, _ in overheads])
    each = np.array([own.launch + own.between_launches for own, _ in overheads])
    ends = np.concatenate([[0.0], np.cumsum(length[order.kind])])
    begins = ends[:-1] + before[order.kind]
    kind = order.kind[order.owners]
    return HostWalk(
        begins=begins,
        launched=begins[order.owners] + first[kind] + order.calls * each[kind],
        waits=tuple((operations, kernels, float(ends[operations])) for operations, kernels in order.waits),
        seconds=float(ends[-1]),
    )
