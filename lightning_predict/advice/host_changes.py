"""Suggested changes that reduce GPU idle time: CUDA graphs, fewer synchronizations, and more loader workers.

CUDA graphs launch a step's kernels with one call. If a step calls `.item()`, or prints or logs a tensor, the host waits
for the device, and then the device waits for the host. If a loader has too few workers, both wait for data.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Final

from lightning_predict.advice.change import Change, of_steps
from lightning_predict.assumptions import Assumptions
from lightning_predict.hardware.records import Gpu
from lightning_predict.record.trace import Trace
from lightning_predict.timeline.host import WAITING_OPERATIONS

GRAPH_HOST_SHARE: Final = 0.05
"""Host time of a step that is replayed as a CUDA graph, relative to launching each kernel."""


def _graphed(trace: Trace, assumptions: Assumptions) -> tuple[Trace, Assumptions]:
    # Measured times include the launches that CUDA graphs eliminate, so they must not calibrate the host.
    trace = trace.changed(
        lambda step: replace(step, step_seconds=(), host_seconds_unprofiled=(), running_step_seconds=None)
    )
    return trace, replace(assumptions, host=assumptions.host_assumed.scaled(GRAPH_HOST_SHARE))


def _why_no_graphs(trace: Trace, gpu: Gpu | None) -> str | None:
    del gpu
    calls = [kernel.launch_start_seconds for kernel in trace.kernels if kernel.launch_start_seconds is not None]
    if len(calls) > 1 and len(set(calls)) * 2 < len(calls):
        return "the step runs as CUDA graphs already"
    return None


def without_waits(trace: Trace) -> Trace:
    """Return the step without operations in which the host waits for a value from the device."""
    kept = (one for one in trace.operations if one.name not in WAITING_OPERATIONS or one.phase == "optimizer")
    waits = tuple(one for one in trace.waits if one.cause != "device")
    return replace(trace, operations=tuple(kept), waits=waits)


def _why_no_fewer_waits(trace: Trace, gpu: Gpu | None) -> str | None:
    del gpu
    reads = any(one.name in WAITING_OPERATIONS and one.phase != "optimizer" for one in trace.operations)
    return None if reads or any(one.cause == "device" for one in trace.waits) else "the host reads no value of the step"


def _without_loader(trace: Trace, assumptions: Assumptions) -> tuple[Trace, Assumptions]:
    return replace(trace, loader_seconds=()), assumptions


def _why_no_loader(trace: Trace, gpu: Gpu | None) -> str | None:
    del gpu
    waits = trace.loader_seconds
    if not waits:
        return "no wait for the loader was recorded"
    return None if statistics.mean(waits) > 0 else "the step never waits for the loader"


CUDA_GRAPHS: Final = Change(
    name="cuda_graphs",
    words='torch.compile(model, mode="reduce-overhead"), or torch.cuda.graphs',
    note="shapes must stay the same; memory for a graph's own pool",
    apply=_graphed,
    why_not=_why_no_graphs,
    side_effects=frozenset({"memory"}),
    slot="graphs",
    kind="cuda_graphs",
)

FEWER_WAITS: Final = Change(
    name="fewer_waits",
    words="no .item(), print or log of a tensor each step",
    note="values are seen later",
    apply=of_steps(without_waits),
    why_not=_why_no_fewer_waits,
    slot="waits",
    kind="waits",
)

LOADER: Final = Change(
    name="loader",
    words="DataLoader(num_workers=..., pin_memory=True)",
    note="cores and memory of the host",
    apply=_without_loader,
    why_not=_why_no_loader,
    slot="loader",
    kind="loader",
)
