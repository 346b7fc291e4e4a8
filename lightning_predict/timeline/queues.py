"""Two queues: the host launches, the device computes, and the step ends with the later of them.

Device time is the sum of the timed work on one stream. Host time is the time to issue all launches; it does not shrink
on a faster GPU, so small models stop gaining there. Where a step was measured on the GPU in use and took longer than
the device was busy, the step itself is the host's time. Example::

    >>> host_seconds(launches=1000, optimizer_launches=0)
    0.01
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.choice import TimedWork
from lightning_predict.kernels.operations import Array
from lightning_predict.kernels.translation import WorkItem
from lightning_predict.timeline.records import Iteration
from lightning_predict.tracing.records import Trace
from lightning_predict.units import MICROSECOND

HOST_SECONDS_PER_LAUNCH: Final = 10 * MICROSECOND
"""Host time of one eager operation that launches a kernel: Lin et al. take 10 µs for a traced launch call; Python and
the dispatcher around it, without a tracer, come to about the same."""

HOST_SPREAD: Final = 2.0
"""Factor up and down around a host time that was not measured: hosts differ, and so do operators."""

IDLE_SHARE: Final = 0.1
"""From this share of idle time on, the measured step is taken to be bound by the host."""


def host_seconds(*, launches: int, optimizer_launches: int) -> float:
    """Host time to issue a step's launches."""
    return (launches + optimizer_launches) * HOST_SECONDS_PER_LAUNCH


def iterations(
    trace: Trace, timed: TimedWork, gpus: Sequence[Gpu], *, origin: Gpu | None = None
) -> tuple[Iteration, ...]:
    """One Iteration a GPU from timed work.

    Args:
        trace: The trace that was timed.
        timed: Its work with device seconds, rows in the order of `gpus`.
        gpus: The GPUs.
        origin: GPU that the trace was recorded on; its own row is anchored at the measured step.
    """
    device = timed.seconds.sum(axis=1)
    low, high = interval_of_sum(timed)
    host, host_is_measured = _host_time(trace, timed, origin)
    return tuple(
        _iteration(
            trace,
            timed,
            row,
            target,
            device=(float(low[row]), float(device[row]), float(high[row])),
            host=host,
            host_spread=1.0 if host_is_measured else HOST_SPREAD,
            is_origin=origin is not None and target == origin,
        )
        for row, target in enumerate(gpus)
    )


def interval_of_sum(timed: TimedWork) -> tuple[Array, Array]:
    """Ends of the interval of the device time, each of shape (gpus,).

    Errors of one family of operations go together (the same model, the same bias), so their half-widths add; families
    err independently, so theirs add in squares.
    """
    families = sorted(set(timed.families))
    members = np.array([[family == own for own in timed.families] for family in families], dtype=np.float64)
    below = (timed.seconds - timed.low_seconds) @ members.T
    above = (timed.high_seconds - timed.seconds) @ members.T
    device = timed.seconds.sum(axis=1)
    return device - np.sqrt((below**2).sum(axis=1)), device + np.sqrt((above**2).sum(axis=1))


def _host_time(trace: Trace, timed: TimedWork, origin: Gpu | None) -> tuple[float, bool]:
    """Host seconds of a step, and whether they were measured."""
    launches = sum(item.launches for item, phase in zip(timed.items, timed.phases, strict=True) if phase != "optimizer")
    updates = sum(item.launches for item, phase in zip(timed.items, timed.phases, strict=True) if phase == "optimizer")
    counted = host_seconds(launches=launches, optimizer_launches=updates)
    if origin is None or not trace.step_seconds or not trace.has_measured_kernels:
        return counted, False
    step = statistics.median(trace.step_seconds)
    busy = math.fsum(kernel.seconds for kernel in trace.kernels)
    if busy < (1 - IDLE_SHARE) * step:
        return step, True
    return min(counted, step), False


def _iteration(
    trace: Trace,
    timed: TimedWork,
    row: int,
    target: Gpu,
    *,
    device: tuple[float, float, float],
    host: float,
    host_spread: float,
    is_origin: bool,
) -> Iteration:
    low, middle, high = device
    seconds = max(middle, host)
    low_seconds, high_seconds = max(low, host / host_spread), max(high, host * host_spread)
    if is_origin and trace.step_seconds:
        seconds = statistics.median(trace.step_seconds)
        low_seconds, high_seconds = min(trace.step_seconds), max(trace.step_seconds)
    total = float(timed.seconds[row].sum())
    forward = np.array([phase == "forward" for phase in timed.phases])
    shares = {name: float((share[row] * timed.seconds[row]).sum()) for name, share in timed.shares.items()}
    coverage = {name: share / total for name, share in shares.items() if share > 0} if total else {}
    return Iteration(
        gpu=target.name,
        seconds=seconds,
        low_seconds=min(low_seconds, seconds),
        high_seconds=max(high_seconds, seconds),
        device_seconds=middle,
        host_seconds=host,
        coverage=coverage,
        forward_seconds=float(timed.seconds[row][forward].sum()),
        notes=(*_notes(trace, target), *_untimed(trace, timed, row)),
    )


def _notes(trace: Trace, target: Gpu) -> tuple[str, ...]:
    """What the target computes otherwise than the trace asks for."""
    dtypes = {tensor.dtype for operation in trace.operations for tensor in operation.inputs}
    emulated = sorted(dtypes & target.emulated_dtypes)
    notes = [f"{target.name} has no {dtype}; it is predicted as emulated." for dtype in emulated]
    if any(dtype.startswith("float8") for dtype in dtypes) and target.peak("float8") is None:
        notes.append(f"{target.name} has no float8; it is predicted at float32's rate.")
    return tuple(notes)


def _untimed(trace: Trace, timed: TimedWork, row: int) -> tuple[str, ...]:
    """Kernels whose work is unknown and that no measurement could scale: said, since they count as nothing."""
    names = sorted({trace.operations[item.operations[0]].name for item in _zero_items(timed, row)})
    if not names:
        return ()
    return (f"{len(names)} operations could not be timed and count as nothing: {', '.join(names[:5])}.",)


def _zero_items(timed: TimedWork, row: int) -> list[WorkItem]:
    return [item for item, seconds in zip(timed.items, timed.seconds[row], strict=True) if seconds <= 0]
