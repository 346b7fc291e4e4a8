"""Applies the measurements of a recorded step to the same step with a change, so that both can be compared.

A change alters some operations, adds some (casts, layout copies) and drops some (fused operations). In a step with
measured kernels, unchanged operations keep their kernels. The measured time of an altered operation is scaled by the
ratio of its predictions with and without the change. The ratio of measured to predicted time is raised to the same
powers as between two GPUs (`kernels/measured_scaling.py`). For element-wise work, the model's error is assumed to be
the same in both dtypes. For matmuls, the errors in float32 and in 16 bits are independent. Added operations are
predicted.

Host times are kept. An added operation has the launch time of a median operation, and a dropped operation has none. The
step time is scaled from the recorded step time::

    changed step = measured step x simulated(after) / simulated(before), with one host and one residual for both

In a step without measurements, only the operations change.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from lightning_predict.base.units import MICROSECOND
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.measured_scaling import RATIO_EXPONENTS, KernelRelation, predict_work_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import operation_spec
from lightning_predict.kernels.timing import KernelModels
from lightning_predict.kernels.translation import WorkItem
from lightning_predict.memory.step_memory import step_memory
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.trace import Kernel, Memory, Operation, Trace
from lightning_predict.timeline.calibration import StepCalibration, calibrate_step, with_host_work
from lightning_predict.timeline.host import TABLE_HOST, UNKNOWN_HOST
from lightning_predict.timeline.same_gpu_check import same_gpu_check
from lightning_predict.timeline.simulation import (
    Queue,
    SimulatedTimeline,
    host_operations,
    launch_schedule,
    main_queue,
    simulate_timeline,
)
from lightning_predict.timeline.step_prediction import predict_steps
from lightning_predict.weights.source import AnyWeights

_PLACE: Final = "_place"  # Argument name that marks the position of the recorded operation while a change is applied

ADDED_HOST_SECONDS: Final = 15 * MICROSECOND
"""Host time of an added operation, if the recording has no timed operation with one kernel: 13 us for a forward
operation on a median host (`timeline/host.py`), plus a little for the profiler."""

ADDED_LAUNCH_SECONDS: Final = 5 * MICROSECOND


def carry_measurements(trace: Trace, change: Callable[[Trace], Trace], weights: AnyWeights) -> Trace:
    """Return the step with a change, and with the measurements that still apply.

    Args:
        trace: One kind of step.
        change: Function that returns the step with other operations. Its argument has no measurements.
        weights: Weights of the models.
    """
    origin = gpu_in_use(trace)
    marked = tuple(
        replace(operation, kernels=(), arguments={**operation.arguments, _PLACE: place})
        for place, operation in enumerate(trace.operations)
    )
    changed = change(
        replace(
            trace,
            operations=marked,
            step_seconds=(),
            host_seconds_unprofiled=(),
            running_step_seconds=None,
            profiled_seconds=None,
            memory=replace(trace.memory, peak_bytes=None, reserved_bytes=None),
        )
    )
    places = [_place_of(operation, trace.operations) for operation in changed.operations]
    plain = replace(changed, operations=tuple(map(_unmarked, changed.operations)))
    plain = replace(plain, memory=_measured_memory(trace, plain))
    if origin is None or not (trace.has_measured_kernels or trace.measured_steps):
        return replace(
            plain,
            operations=tuple(
                replace(operation, host_start_seconds=None, host_seconds=None) for operation in plain.operations
            ),
            waits=(),
        )
    plain = replace(plain, gpu_reported_name=trace.gpu_reported_name, gpu_memory_bytes=trace.gpu_memory_bytes)
    models = kernel_models((origin.name,), weights)
    if trace.has_measured_kernels:
        return _recorded(trace, plain, places, origin, models)
    check = same_gpu_check(trace, origin, models)
    if check is None:
        return plain
    timed = predict_work_times(plain, [origin], origin=None, models=models)
    (step,) = predict_steps(plain, timed, [origin], host=TABLE_HOST)
    return replace(plain, running_step_seconds=step.seconds * check.measured_seconds / check.predicted_seconds)


def _measured_memory(before: Trace, after: Trace) -> Memory:
    """Return the memory of a changed step: the measured memory, scaled by the ratio of two derived amounts."""
    own = before.memory
    if own.reserved_bytes is None and own.peak_bytes is None:
        return after.memory
    derived = [
        step_memory(replace(step, memory=replace(step.memory, peak_bytes=None, reserved_bytes=None)))
        for step in (before, after)
    ]
    if derived[0] is None or derived[1] is None:
        return after.memory
    old, new = (each.persistent_bytes + each.temporary_bytes + each.slack_bytes for each in derived if each is not None)

    def scaled(measured: int | None) -> int | None:
        return None if measured is None else round(measured * new / old)

    return replace(after.memory, peak_bytes=scaled(own.peak_bytes), reserved_bytes=scaled(own.reserved_bytes))


def _place_of(operation: Operation, recorded: Sequence[Operation]) -> int | None:
    """Return the position of the recorded operation that an operation corresponds to; None for an added operation."""
    place = operation.arguments.get(_PLACE)
    return place if isinstance(place, int) and recorded[place].name == operation.name else None


def _unmarked(operation: Operation) -> Operation:
    if _PLACE not in operation.arguments:
        return operation
    return replace(operation, arguments={name: value for name, value in operation.arguments.items() if name != _PLACE})


def _recorded(
    before: Trace, after: Trace, places: Sequence[int | None], origin: Gpu, models: KernelModels | None
) -> Trace:
    """Assign measured kernels to a changed step, and scale its step time."""
    stripped = replace(before, operations=tuple(replace(operation, kernels=()) for operation in before.operations))
    old, new = (_direct(trace, origin, models) for trace in (stripped, after))
    calibration = _calibration(before, old)
    seconds = []
    for index, place in enumerate(places):
        predicted, item = new.get(index, (0.0, None))
        if place is None:
            is_vector = item is None or not _is_tensor_work(item)
            seconds.append(predicted * (calibration if is_vector else 1.0))
            continue
        measured = sum(kernel.seconds for kernel in before.operations[place].kernels)
        at_first, first_item = old.get(place, (0.0, None))
        seconds.append(_altered(measured, at_first, predicted, first_item, item, origin))
    changed = _laid_out(before, after, places, seconds)
    if not before.measured_steps:
        return changed
    own = calibrate_step(
        before, predict_work_times(before, [origin], origin=origin, models=models), origin, UNKNOWN_HOST
    )
    was, becomes = (_simulated(trace, own, origin, models) for trace in (before, changed))
    running = own.running_share * statistics.median(before.measured_steps)
    launching = becomes.host_seconds / was.host_seconds if was.host_seconds > 0 else 1.0
    step = (float(trace.seconds[0]) + own.residual_seconds for trace in (becomes, was))
    return replace(
        changed,
        running_step_seconds=running * next(step) / next(step),
        host_seconds_unprofiled=tuple(launching * seconds for seconds in before.host_seconds_unprofiled),
    )


def _direct(trace: Trace, origin: Gpu, models: KernelModels | None) -> dict[int, tuple[float, WorkItem]]:
    """Predict the device seconds of each operation from shapes alone; return them by position in the step."""
    timed = predict_work_times(trace, [origin], origin=None, models=models)
    return {item.operations[0]: (float(timed.seconds[0, column]), item) for column, item in enumerate(timed.items)}


def _calibration(before: Trace, predicted: Mapping[int, tuple[float, WorkItem]]) -> float:
    """Return the ratio of measured to predicted seconds of element-wise work, which corrects added operations."""
    pairs = [
        (sum(kernel.seconds for kernel in before.operations[place].kernels), seconds)
        for place, (seconds, item) in predicted.items()
        if before.operations[place].kernels and not _is_tensor_work(item) and seconds > 0
    ]
    measured, expected = (sum(side) for side in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    return measured / expected if expected > 0 else 1.0


def _is_tensor_work(item: WorkItem) -> bool:
    return bool(item.shapes) and operation_spec(item.shapes[0].operation).units == "tensor"


def _altered(
    measured: float, before: float, after: float, old: WorkItem | None, new: WorkItem | None, origin: Gpu
) -> float:
    """Return the time of an altered operation, from its measured seconds and two predictions."""
    if old is not None and new is not None and old.shapes == new.shapes and old.launches == new.launches:
        return measured
    if measured <= 0 or before <= 0 or after <= 0:
        return after if measured <= 0 < after and old is None else measured
    relation: KernelRelation = "same code"
    if old is not None and new is not None and _is_tensor_work(old):
        units = {_uses_matrix_units(item, origin) for item in (old, new)}
        relation = "same units" if len(units) == 1 else "other units"
    return float(after * (measured / before) ** RATIO_EXPONENTS[relation])


def _uses_matrix_units(item: WorkItem, gpu: Gpu) -> bool:
    dtype = item.shapes[0].dtype
    return dtype != "float32" and gpu.peak(dtype) is not None


def _laid_out(before: Trace, after: Trace, places: Sequence[int | None], seconds: Sequence[float]) -> Trace:
    """Assign kernels to the changed operations, and shift host times and kernels by added and dropped operations."""
    singles = [
        operation.host_seconds
        for operation in before.operations
        if len(operation.kernels) == 1 and operation.host_seconds is not None
    ]
    added_seconds = statistics.median(singles) if singles else ADDED_HOST_SECONDS
    queue = main_queue(before) or (0, 0)
    kept = {place for place in places if place is not None}
    dropped = sorted(
        (operation.host_start_seconds, operation.host_seconds or 0.0)
        for place, operation in enumerate(before.operations)
        if place not in kept and operation.host_start_seconds is not None
    )
    starts = [start for start, _ in dropped]
    lengths = [0.0, *accumulate(length for _, length in dropped)]
    added, now = 0.0, 0.0
    moves: list[tuple[float, float]] = []  # (start in the recording, shift from this start on)
    operations = []
    for operation, place, own in zip(after.operations, places, seconds, strict=True):
        if place is None:
            kernels = (_added_kernel(own, now, queue),) if own > 0 else ()
            timed = replace(operation, kernels=kernels, host_start_seconds=now, host_seconds=added_seconds)
            operations.append(timed)
            now, added = now + added_seconds, added + added_seconds
            continue
        recorded = before.operations[place]
        began = recorded.host_start_seconds
        move = 0.0
        if began is not None:
            move = added - lengths[bisect_right(starts, began)]
            moves.append((began, move))
            now = began + move + (recorded.host_seconds or 0.0)
        operations.append(
            replace(
                operation,
                kernels=_scaled(recorded.kernels, own, move),
                host_start_seconds=None if began is None else began + move,
                host_seconds=recorded.host_seconds,
            )
        )
    moves.sort()

    def moved(moment: float) -> float:
        earlier = bisect_right(moves, (moment, math.inf))
        return moment + (moves[earlier - 1][1] if earlier else 0.0)

    waits = tuple(replace(wait, start_seconds=moved(wait.start_seconds)) for wait in after.waits)
    profiled = None if before.profiled_seconds is None else moved(before.profiled_seconds)
    return replace(after, operations=tuple(operations), waits=waits, profiled_seconds=profiled, device=before.device)


def _scaled(kernels: Sequence[Kernel], seconds: float, move: float) -> tuple[Kernel, ...]:
    """Return an operation's kernels, scaled to `seconds` in total and shifted in time by `move`."""
    measured = math.fsum(kernel.seconds for kernel in kernels)
    factor = seconds / measured if measured > 0 else 1.0
    return tuple(
        replace(
            kernel,
            seconds=kernel.seconds * factor,
            start_seconds=kernel.start_seconds + move,
            launch_start_seconds=None if kernel.launch_start_seconds is None else kernel.launch_start_seconds + move,
        )
        for kernel in kernels
    )


def _added_kernel(seconds: float, start: float, queue: Queue) -> Kernel:
    return Kernel(
        name="added by a change",
        seconds=seconds,
        grid=(0, 0, 0),
        block=(0, 0, 0),
        registers_per_thread=0,
        shared_memory_bytes=0,
        stream=queue[1],
        device=queue[0],
        start_seconds=start + ADDED_LAUNCH_SECONDS,
        launch_start_seconds=start,
        launch_seconds=ADDED_LAUNCH_SECONDS,
    )


def _simulated(trace: Trace, own: StepCalibration, origin: Gpu, models: KernelModels | None) -> SimulatedTimeline:
    """Simulate a step with measured kernels, with a known host and known corrections."""
    timed = predict_work_times(trace, [origin], origin=origin, models=models)
    work = with_host_work(host_operations(trace, timed, timed.seconds), own.added_host_seconds)
    return simulate_timeline(
        launch_schedule(work, gpus=1, gap_seconds=own.gap_seconds), own.host, speed=1 / own.device_factor
    )
