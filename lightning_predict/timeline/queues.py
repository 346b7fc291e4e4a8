"""From timed work to an Iteration: the trace's operations are simulated as a host and its device.

Every operation takes host time, views too; work that a GPU would run as one launch (`WorkItem`) is launched once. Where
the trace was recorded on a GPU that is known, its un-profiled step is the anchor: the host's factor is set so that the
simulation of that very GPU takes as long as was measured. Example::

    work = timed_work(trace, gpus, origin=None, models=models)
    steps = iterations(trace, work, gpus)
    steps[0].seconds, steps[0].bound_by
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.choice import TimedWork
from lightning_predict.kernels.estimates import float32_stands_in
from lightning_predict.kernels.operations import Array
from lightning_predict.kernels.translation import WorkItem
from lightning_predict.kernels.unknown_operations import unknown_operation_notes
from lightning_predict.timeline.launching import Launching, launch_order
from lightning_predict.timeline.overheads import HostModel, host_model
from lightning_predict.timeline.records import Iteration
from lightning_predict.timeline.simulation import COMPUTE_STREAM, Simulated, simulate
from lightning_predict.timeline.verdict import FASTER, Verdict, verdicts
from lightning_predict.tracing.records import PHASES, Kernel, Operation, Phase, Trace

HOST_SPREAD: Final = 2.0
"""Factor up and down around a host time that was not measured: hosts differ, and so do operators."""

SMALLEST_FACTOR, LARGEST_FACTOR = 0.05, 20.0
"""Range in which the host's factor is looked for; a host outside it is not the one that the overheads describe."""

FAMILY_CORRELATION: Final = 0.25
"""Correlation between the errors of two families of operations on one GPU: all were timed alone and in short bursts, so
a clock that drops under a long load, a hotter card, or another release of the libraries shifts them together.

The least of 0, 1/4, 1/2, 3/4 and 1 with which the 90 % interval holds 90 % of published iterations, whichever family of
models is left out (without Transformer-XL, 0 is enough); it holds 92 % of those left out.
`python -m benchmarks.accuracy FOLDER --of correlations` prints the study."""

WAITING_OPERATIONS: Final = frozenset({"aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::is_nonzero"})
"""Operations whose result the host needs at once."""


def iterations(
    trace: Trace,
    timed: TimedWork,
    gpus: Sequence[Gpu],
    *,
    origin: Gpu | None = None,
    host_factor: float = 1.0,
    correlation: float = FAMILY_CORRELATION,
) -> tuple[Iteration, ...]:
    """One Iteration a GPU from timed work.

    Args:
        trace: The trace that was timed.
        timed: Its work with device seconds, rows in the order of `gpus`.
        gpus: The GPUs.
        origin: GPU that the trace was recorded on; its own row is anchored at the measured step.
        host_factor: Time of the target's host over that of the host in use.
        correlation: See `interval_of_sum`.
    """
    host = anchored_host(trace, timed, origin, host_factor)
    low_device, high_device = interval_of_sum(timed, correlation)
    work = launchings(trace, timed, timed.seconds)
    order = launch_order(work, gpus=len(gpus))
    middle = simulate(order, host)
    faster = simulate(order, host, speed=FASTER)
    low, high = _ends(middle, host, low_device, high_device)
    phases = np.array(timed.phases, dtype=np.str_)
    by_phase = {phase: timed.seconds[:, phases == phase].sum(axis=1) for phase in PHASES}
    dtypes = frozenset(tensor.dtype for operation in trace.operations for tensor in operation.inputs)
    unknown = unknown_operation_notes(trace, timed.items, timed.seconds, _unmeasured(timed))
    return tuple(
        _iteration(
            timed,
            row,
            middle,
            (float(low[row]), float(high[row])),
            by_phase=by_phase,
            measured=trace.step_seconds if target == origin else (),
            gpu=target.name,
            verdict=verdict,
            notes=(*_notes(dtypes, target), *_untimed(trace, timed, row), *unknown),
        )
        for row, (target, verdict) in enumerate(zip(gpus, verdicts(work, middle, faster), strict=True))
    )


def launchings(trace: Trace, timed: TimedWork, seconds: Array) -> tuple[Launching, ...]:
    """The trace's operations in the order of the host, with device seconds of shape (gpus, items) put in their place.

    Operations that a GPU would run inside another's launch are left out; so are, in a trace from elsewhere, the
    optimizer's views of single tensors, which the multi-tensor implementation does not take.
    """
    first = {item.operations[0]: column for column, item in enumerate(timed.items)}
    inside = {index for item in timed.items for index in item.operations[1:]}
    elsewhere = trace.device != "cuda"
    main = _main_stream(trace)
    work = []
    for index, operation in enumerate(trace.operations):
        column = first.get(index)
        if index in inside or (column is None and elsewhere and operation.phase == "optimizer"):
            continue
        item_seconds = np.zeros((len(seconds), 0)) if column is None else seconds[:, column : column + 1]
        item = None if column is None else timed.items[column]
        work.append(_launching(trace, operation, item, item_seconds, main))
    return tuple(work)


def _launching(
    trace: Trace, operation: Operation, item: WorkItem | None, seconds: Array, main: int | None
) -> Launching:
    """Split an item's seconds over its kernels: by their measured shares, else equally."""
    waits = operation.name in WAITING_OPERATIONS and operation.phase != "optimizer"
    streams: tuple[int, ...] = ()
    calls: tuple[int, ...] | None = None
    if item is not None:
        kernels = [kernel for index in item.operations for kernel in trace.operations[index].kernels]
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
        waits=waits,
        module=operation.module,
    )


def _calls(kernels: Sequence[Kernel]) -> tuple[int, ...] | None:
    """Launch call of each kernel, where some share one (a CUDA graph's do); None where none do, or it was not seen."""
    starts = [kernel.launch_start_seconds for kernel in kernels]
    if None in starts or len(set(starts)) == len(starts):
        return None
    numbers: dict[float | None, int] = {}
    return tuple(numbers.setdefault(start, len(numbers)) for start in starts)


def _main_stream(trace: Trace) -> int | None:
    """The stream on which the device works longest; None without measured kernels."""
    busy: dict[int, float] = {}
    for kernel in trace.kernels:
        busy[kernel.stream] = busy.get(kernel.stream, 0.0) + kernel.seconds
    return max(busy, key=lambda stream: busy[stream], default=None)


def interval_of_sum(timed: TimedWork, correlation: float = FAMILY_CORRELATION) -> tuple[Array, Array]:
    """Ends of the interval of the device time, each of shape (gpus,).

    Errors of one family of operations go together (the same model, the same bias), so their half-widths add. With a
    correlation r between families, theirs add as standard deviations do: h² = (1 - r) Σ h_f² + r (Σ h_f)².

    Args:
        timed: The work.
        correlation: From 0 (families err independently) to 1 (all together).
    """
    families = sorted(set(timed.families))
    members = np.array([[family == own for own in timed.families] for family in families], dtype=np.float64)
    members = members.reshape(len(families), len(timed.families))
    below = (timed.seconds - timed.low_seconds) @ members.T
    above = (timed.high_seconds - timed.seconds) @ members.T
    device = timed.seconds.sum(axis=1)
    return device - _added(below, correlation), device + _added(above, correlation)


def _added(half_widths: Array, correlation: float) -> Array:
    """Half-width of the sum of families, (gpus,), from theirs, (gpus, families)."""
    apart, together = (half_widths**2).sum(axis=1), half_widths.sum(axis=1) ** 2
    added: Array = np.sqrt((1 - correlation) * apart + correlation * together)
    return added


def _ends(middle: Simulated, host: HostModel, low_device: Array, high_device: Array) -> tuple[Array, Array]:
    """Ends of the step's interval: the later of the two queues at its own end, with the overlap of the middle."""
    spread = 1.0 if host.is_measured else HOST_SPREAD
    later = np.maximum(middle.active_seconds, middle.host_seconds)
    exposed = middle.seconds - later  # what neither queue explains alone: waits in turn
    low = np.maximum(low_device, middle.host_seconds / spread) + exposed
    high = np.maximum(high_device, middle.host_seconds * spread) + exposed
    return np.minimum(low, middle.seconds), np.maximum(high, middle.seconds)


def anchored_host(trace: Trace, timed: TimedWork, origin: Gpu | None, factor: float) -> HostModel:
    """The host's overheads, scaled so that the origin's simulated step takes as long as its measured one.

    A step that the device bounds says nothing of the host but that it is no slower.
    """
    host = host_model(trace)
    if origin is None or not trace.step_seconds or not trace.has_measured_kernels:
        return host_model(trace, factor=factor)
    measured_kernels = np.array(
        [[sum(k.seconds for i in item.operations for k in trace.operations[i].kernels) for item in timed.items]]
    )
    order = launch_order(launchings(trace, timed, measured_kernels), gpus=1)
    step = statistics.median(trace.step_seconds)

    def simulated(own: float) -> float:
        scaled = HostModel(host.by_operation, host.by_phase, own, host.is_measured)
        return float(simulate(order, scaled).seconds[0])

    own = 1.0
    if simulated(SMALLEST_FACTOR) < step < simulated(LARGEST_FACTOR):
        own = _solve(simulated, step)
    return HostModel(host.by_operation, host.by_phase, own * factor, is_measured=True)


def _solve(simulated: Callable[[float], float], step: float) -> float:
    """The host's factor at which the simulated step, which grows with it, equals the measured one."""
    low, high = SMALLEST_FACTOR, LARGEST_FACTOR
    for _ in range(20):
        middle = (low * high) ** 0.5
        if simulated(middle) < step:
            low = middle
        else:
            high = middle
    return high


def _iteration(
    timed: TimedWork,
    row: int,
    simulated: Simulated,
    ends: tuple[float, float],
    *,
    by_phase: Mapping[Phase, Array],
    measured: Sequence[float],
    gpu: str,
    verdict: Verdict,
    notes: tuple[str, ...],
) -> Iteration:
    seconds, (low, high) = float(simulated.seconds[row]), ends
    if measured:
        seconds, low, high = statistics.median(measured), min(measured), max(measured)
    total = float(timed.seconds[row].sum())
    shares = {name: float((share[row] * timed.seconds[row]).sum()) for name, share in timed.shares.items()}
    return Iteration(
        gpu=gpu,
        seconds=seconds,
        low_seconds=low,
        high_seconds=high,
        device_seconds=float(simulated.active_seconds[row]),
        host_seconds=simulated.host_seconds,
        coverage={name: share / total for name, share in shares.items() if share > 0} if total else {},
        forward_seconds=float(by_phase["forward"][row]),
        optimizer_seconds=float(by_phase["optimizer"][row]),
        verdict=verdict,
        notes=notes,
        base_share=_share_of(timed.base_share, timed.seconds, row),
    )


def _unmeasured(timed: TimedWork) -> Array:
    """Share of each item's time that no measured kernel gave, shape (gpus, items)."""
    return np.ones_like(timed.seconds) - sum(timed.shares.get(method, 0.0) for method in ("measured", "wave"))


def _share_of(part: Array | None, seconds: Array, row: int) -> float:
    """Share of one GPU's device time, from the share of each item."""
    total = float(seconds[row].sum())
    return 0.0 if part is None or not total else float((part[row] * seconds[row]).sum()) / total


def _notes(dtypes: frozenset[str], target: Gpu) -> tuple[str, ...]:
    """What the target computes otherwise than the trace asks for."""
    stood_in = sorted(dtype for dtype in dtypes & {"float16", "bfloat16"} if float32_stands_in(dtype, target))
    notes = [
        f"{target.name} has no {dtype}; it is predicted as emulated."
        if dtype in target.emulated_dtypes or target.peak(dtype) is None
        else f"{target.name} adds {dtype} products in float32, at float32's rate."
        for dtype in stood_in
    ]
    if any(dtype.startswith("float8") for dtype in dtypes) and target.peak("float8") is None:
        notes.append(f"{target.name} has no float8; it is predicted at float32's rate.")
    return tuple(notes)


def _untimed(trace: Trace, timed: TimedWork, row: int) -> tuple[str, ...]:
    """Kernels whose work is unknown and that no measurement could scale: said, since they count as nothing."""
    zero = np.flatnonzero(timed.seconds[row] <= 0)
    names = sorted({trace.operations[timed.items[int(index)].operations[0]].name for index in zero})
    if not names:
        return ()
    return (f"{len(names)} operations could not be timed and count as nothing: {', '.join(names[:5])}.",)
