"""Hold a recorded step against its simulation, and carry host, gaps and what no operation explains to other GPUs.

The step is simulated on the GPU that it was recorded on, with the kernels as they were measured, and held against the
steps that were timed without a recorder. What the measured step has beyond the simulated one is time of the host that
no operation of the trace accounts for; it is the same with any GPU, so it is added to each as it is. A shorter
measured step means that the profiler slowed the host, where late launches made the device wait in the recording, and
else that the device leaves less between its kernels, or ran a little faster. So a prediction is continuous in the
measured step, and grows by what that grows. Example::

    own = anchor(trace, timed, gpu("V100-SXM2-32GB"), 1.0)
    own.residual_seconds       # 0.030 where a training_step of 130 ms holds operations for 100 ms
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, final

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.choice import TimedWork
from lightning_predict.timeline.overheads import HostModel
from lightning_predict.timeline.recorded_host import has_recorded_launches
from lightning_predict.timeline.simulation import STEADY_STEPS, launch_order, launchings, main_stream, simulate
from lightning_predict.tracing.trace import Kernel, Trace
from lightning_predict.units import MICROSECOND

GAP_SECONDS: Final = 1 * MICROSECOND
"""What a stream leaves free between two kernels that wait in it, where a trace does not show it. Medians of public
recordings: V100 0.8-1.0 us, A100 1.0-1.2, H100 1.2-1.4; on a B200, where kernels may overlap, 0.4."""

LARGEST_GAP_SECONDS: Final = 3 * MICROSECOND
"""Longer pauses of a busy stream are waits for another stream."""

FEWEST_GAPS: Final = 20
"""Fewer gaps than these are too few for a median."""

LATE_SHARE: Final = 0.05
"""Share of the device's span that it waits for late launches from which on the host counts as a bound. In public
recordings device-bound steps have 0-4 %, host-bound ones 8-96 %."""

SLOWEST_PROFILER: Final = 20.0
"""A profiler slows a host by no more than this."""

FLAT: Final = 0.02
"""A step within this of what the device alone takes says no more of the host."""

PROFILED_SPREAD: Final = 2.0
"""How many times as fast a host may be without the profiler, which slowed it while it was timed: an assumption, since
no one has published both; its events alone take a third of the host's time in recordings of ResNet-50."""

STACKS_SPREAD: Final = 5.0
"""The same where the profiler kept Python's stacks. One ResNet-50 of 1,715 operations took the host 44 ms without and
192 ms with them, on two machines."""

MACHINE_SPREAD: Final = 1.25
"""Factor up and down around a measured host time: a machine with another GPU has another processor. An assumption."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The host and the corrections that hold on every GPU.

    Attributes:
        host: The host that launches its work.
        gap_seconds: What a stream leaves free between two kernels that wait in it; 0 where their times hold it.
        device_factor: Measured time of the device over that of the recorded kernels, 1 or a little less.
        residual_seconds: What the measured step has beyond what the trace explains.
        device_seconds: What the origin's device needs for the step; 0 where nothing was measured.
        steps: Steps to simulate; 1 where measured steps begin with an idle device, as a clock waits for it.
        is_host_assumed: The host is a median one, as neither its launches nor a step that it bounds were timed.
    """

    host: HostModel
    gap_seconds: float = 0.0
    device_factor: float = 1.0
    residual_seconds: float = 0.0
    device_seconds: float = 0.0
    steps: int = STEADY_STEPS
    is_host_assumed: bool = False


def anchor(trace: Trace, timed: TimedWork, origin: Gpu | None, factor: float) -> Anchor:
    """Hold the recorded step against the measured one."""
    if not trace.has_measured_kernels:
        return Anchor(host=HostModel(factor=factor), is_host_assumed=True)
    is_recorded = has_recorded_launches(trace)
    slower = STACKS_SPREAD if trace.has_python_stacks else PROFILED_SPREAD
    host = HostModel(low_factor=1 / slower / MACHINE_SPREAD, high_factor=MACHINE_SPREAD) if is_recorded else HostModel()
    gap = recorded_gap(trace)
    if origin is None or not trace.step_seconds:
        return Anchor(host=replace(host, factor=factor), gap_seconds=gap, is_host_assumed=not is_recorded)
    return _held_against(trace, timed, host, gap, factor)


def _held_against(trace: Trace, timed: TimedWork, host: HostModel, gap: float, factor: float) -> Anchor:
    kernels = [
        [kernel for index in item.operations for kernel in trace.operations[index].kernels] for item in timed.items
    ]
    seconds = np.array([[sum(kernel.seconds for kernel in launched) for launched in kernels]])  # (1, items)
    order = launch_order(launchings(trace, timed, seconds), gpus=1, gap_seconds=gap)
    step = statistics.median(trace.step_seconds)

    def simulated(own: float = 1.0, own_gap: float = gap) -> float:
        result = simulate(replace(order, gap_seconds=own_gap), replace(host, factor=own), steps=1)
        return float(result.seconds[0])

    share = late_share(trace)
    found = simulate(order, host, steps=1)
    recorded = float(found.seconds[0])
    is_host_bound = share >= LATE_SHARE if share is not None else found.host_seconds > float(found.occupied_seconds[0])
    own, own_gap = 1.0, gap
    if step < recorded and is_host_bound:
        least = (1 + FLAT) * simulated(1 / SLOWEST_PROFILER)
        own = _solve(simulated, max(step, least)) if least < recorded else 1.0
    elif step < recorded:
        least = simulated(own_gap=0.0)
        own_gap = gap * max(step - least, 0.0) / (recorded - least) if recorded > least else 0.0
    explained = simulated(own, own_gap)
    if is_host_bound:
        host = replace(host, low_factor=1 / MACHINE_SPREAD, high_factor=MACHINE_SPREAD)
    return Anchor(
        host=replace(host, factor=own * factor),
        gap_seconds=own_gap,
        device_factor=min(step / explained, 1.0),
        residual_seconds=max(step - explained, 0.0),
        device_seconds=float(found.occupied_seconds[0]),
        steps=1,
        is_host_assumed=not (is_host_bound or has_recorded_launches(trace)),
    )


def _solve(simulated: Callable[[float], float], step: float) -> float:
    """Return the host's factor, up to 1, at which the simulated step, which grows with it, equals the measured one."""
    low, high = 1 / SLOWEST_PROFILER, 1.0
    for _ in range(20):
        middle = (low * high) ** 0.5
        if simulated(middle) < step:
            low = middle
        else:
            high = middle
    return high


def recorded_gap(trace: Trace) -> float:
    """Measure the gap between two kernels of the trace's main stream of which the second waits in the queue."""
    gaps = [
        later.start_seconds - _end(earlier)
        for earlier, later in pairwise(_on_main_stream(trace))
        if (launched := _launched(later)) is not None and launched <= _end(earlier)
    ]
    if len(gaps) < FEWEST_GAPS:
        return GAP_SECONDS
    return min(max(statistics.median(gaps), 0.0), LARGEST_GAP_SECONDS)


def late_share(trace: Trace) -> float | None:
    """Return the share of the main stream's span in which it waited for a launch that ended after the kernel before.

    None if fewer than two launches were timed.
    """
    kernels = _on_main_stream(trace)
    pairs = [(earlier, later) for earlier, later in pairwise(kernels) if _launched(later) is not None]
    if not pairs:
        return None
    span = max(map(_end, kernels)) - kernels[0].start_seconds
    idle = sum(
        max(later.start_seconds - _end(earlier), 0.0)
        for earlier, later in pairs
        if (_launched(later) or 0.0) > _end(earlier)
    )
    return idle / span if span > 0 else 0.0


def _on_main_stream(trace: Trace) -> list[Kernel]:
    main = main_stream(trace)
    return sorted((kernel for kernel in trace.kernels if kernel.stream == main), key=lambda one: one.start_seconds)


def _end(kernel: Kernel) -> float:
    return kernel.start_seconds + kernel.seconds


def _launched(kernel: Kernel) -> float | None:
    """Return the end of the call that launched a kernel."""
    if kernel.launch_start_seconds is None or kernel.launch_seconds is None:
        return None
    return kernel.launch_start_seconds + kernel.launch_seconds
