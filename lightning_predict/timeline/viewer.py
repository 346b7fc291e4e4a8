"""Exports the predicted timeline of a step as a Chrome trace, for Perfetto and chrome://tracing.

The host and each stream have a row. Each kernel shows its operation. Kernels of the compute stream also
show how long the device waited for the launch.
Example::

    with open("timeline.json", "w") as file:
        json.dump(chrome_trace(trace, gpu("L4"), origin=None, models=models), file)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lightning_predict.base.units import seconds_to_microseconds
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.kernels.timing import KernelModels
from lightning_predict.record.trace import Trace
from lightning_predict.timeline.calibration import calibrate_step, with_host_work
from lightning_predict.timeline.host import UNKNOWN_HOST, usual_host
from lightning_predict.timeline.simulation import COMPUTE_STREAM, host_operations, launch_schedule, simulate_timeline

HOST_PROCESS: Final = 0
DEVICE_PROCESS: Final = 1


def chrome_trace(trace: Trace, target: Gpu, *, origin: Gpu | None, models: KernelModels | None) -> dict[str, Any]:
    """Return the timeline of an isolated step in the Trace Event format; without `models`, by rooflines."""
    timed = predict_work_times(trace, [target], origin=origin, models=models)
    own = calibrate_step(trace, timed, origin, usual_host(UNKNOWN_HOST, target))
    work = with_host_work(host_operations(trace, timed, timed.seconds), own.added_host_seconds)
    host = own.host
    step = simulate_timeline(
        launch_schedule(work, gpus=1, gap_seconds=own.gap_seconds), host, steps=1, speed=1 / own.device_factor
    )
    events = [
        _row_name(HOST_PROCESS, "host"),
        _row_name(DEVICE_PROCESS, f"{target.name} (predicted)"),
    ]
    for index, operation in enumerate(work):
        overheads = host.overheads(operation.phase, operation.recorded, operation.library_seconds)
        length = overheads.total_seconds(launches=operation.launches) - overheads.between_operations
        arguments = {"phase": operation.phase} | ({"module": operation.module} if operation.module else {})
        start = float(step.operation_starts[0, index])
        events.append(_complete_event(operation.name, HOST_PROCESS, 0, start, length, arguments))
    for kernel, owner in enumerate(step.kernel_owners):
        operation = work[int(owner)]
        stream = int(step.kernel_streams[kernel])
        start, length = float(step.kernel_starts[0, kernel]), float(step.kernel_seconds[0, kernel])
        arguments = {"phase": operation.phase}
        if stream == COMPUTE_STREAM:
            arguments["device waited, us"] = f"{seconds_to_microseconds(float(step.waiting[0, owner])):.1f}"
        events.append(_complete_event(operation.name, DEVICE_PROCESS, stream, start, length, arguments))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _row_name(process: int, name: str) -> dict[str, object]:
    """Return the metadata event that names a process."""
    return {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}


def _complete_event(
    name: str, process: int, thread: int, start_seconds: float, seconds: float, arguments: Mapping[str, object]
) -> dict[str, object]:
    """Return a complete event; the format requires microseconds."""
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": round(seconds_to_microseconds(start_seconds), 3),
        "dur": round(seconds_to_microseconds(seconds), 3),
        "args": dict(arguments),
    }
