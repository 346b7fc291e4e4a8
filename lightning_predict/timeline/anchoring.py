"""Hold a recorded step against its simulation, and carry host, gaps and what no operation explains to other GPUs.

The step is simulated on the GPU that it was recorded on, with the kernels as they were measured, and held against what
a clock read without a recorder: when the host was done with a step, when the device was, and how long a step takes in a
running loop, which is what predictions are of. The host is as fast as the first says, without the profiler that it was
recorded under. What the measured step has beyond the simulated one is time of the host that no operation of the trace
accounts for; it is the same with any GPU, so it is added to each as it is. A shorter measured step means that the
profiler slowed the host, where the host bounds the step and its own time was not read, and else that the device leaves
less between its kernels, or ran a little faster. So a prediction is continuous in the measured step, and grows by what
that grows. Example::

    own = anchor(trace, timed, gpu("V100-SXM2-32GB"), Host())
    own.residual_seconds       # 0.030 where a training_step of 130 ms holds operations for 100 ms
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, final

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.choice import TimedWork
from lightning_predict.timeline.host import Host, HostModel, has_recorded_launches
from lightning_predict.timeline.simulation import (
    STEADY_STEPS,
    Launching,
    LaunchOrder,
    Simulated,
    host_walk,
    launch_order,
    launchings,
    main_queue,
    queue_of,
    run_queues,
)
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
        added_host_seconds: Work of the host in a step beyond what the recording holds, before its first operation.
        running_share: Time of a step in a running loop over the measured one: below 1 where the latter waited for the
            device at its ends by more than a little; 1 where nobody recorded the launches that overlap.
        is_host_assumed: The host is a median one, as neither its launches nor a step that it bounds were timed.
    """

    host: HostModel
    gap_seconds: float = 0.0
    device_factor: float = 1.0
    residual_seconds: float = 0.0
    device_seconds: float = 0.0
    added_host_seconds: float = 0.0
    running_share: float = 1.0
    is_host_assumed: bool = False


def anchor(trace: Trace, timed: TimedWork, origin: Gpu | None, target: Host) -> Anchor:
    """Hold the recorded step against the measured one.

    Args:
        trace: The trace.
        timed: Its work.
        origin: GPU that it was recorded on; None if it is not known.
        target: What is assumed of the host of the predicted GPUs.
    """
    if not trace.has_measured_kernels:
        return _of_shapes(trace, timed, origin, target)
    is_recorded = has_recorded_launches(trace)
    slower = STACKS_SPREAD if trace.has_python_stacks else PROFILED_SPREAD
    host = HostModel(low_factor=1 / slower / MACHINE_SPREAD, high_factor=MACHINE_SPREAD) if is_recorded else HostModel()
    gap = recorded_gap(trace)
    if origin is None or not trace.measured_steps:
        own = replace(host, factor=target.over_measured) if is_recorded else target.of_unmeasured_step
        return Anchor(host=own, gap_seconds=gap, is_host_assumed=not is_recorded)
    return _held_against(trace, timed, host, gap, target.over_measured)


def with_host_work(work: Sequence[Launching], seconds: float) -> tuple[Launching, ...]:
    """Let the host work for so long, on the machine of the recording, before the first operation."""
    if not work or seconds <= 0:
        return tuple(work)
    first, *others = work
    return replace(first, python_seconds=first.python_seconds + seconds), *others


def _of_shapes(trace: Trace, timed: TimedWork, origin: Gpu | None, target: Host) -> Anchor:
    """Take the host's own time where it was read; nothing is known of what it waits for in the midst of a step."""
    host = target.of_unmeasured_step
    if origin is None or not trace.host_seconds_unprofiled or trace.device == "cpu":
        return Anchor(host=host, is_host_assumed=True)
    order = launch_order(launchings(trace, timed, np.zeros((1, len(timed.items)))), gpus=1)
    walked = host_walk(order, HostModel()).seconds
    if order.waits or walked <= 0:
        return Anchor(host=host, is_host_assumed=True)
    own = target.over_measured * statistics.median(trace.host_seconds_unprofiled) / walked
    return Anchor(host=HostModel(factor=own, low_factor=1 / MACHINE_SPREAD, high_factor=MACHINE_SPREAD))


@final
class Replay:
    """The recorded step on its own GPU, with another host or gap, and with work of the host added to it."""

    def __init__(self, trace: Trace, timed: TimedWork, host: HostModel, gap: float) -> None:
        kernels = [
            [kernel for index in item.operations for kernel in trace.operations[index].kernels] for item in timed.items
        ]
        seconds = np.array([[sum(kernel.seconds for kernel in launched) for launched in kernels]])  # (1, items)
        self._work = launchings(trace, timed, seconds)
        self._host = host
        self.gap_seconds = gap
        self._order = self._ordered(0.0)

    def add_host_work(self, seconds: float) -> None:
        """Let the host work longer before the first operation."""
        self._order = self._ordered(seconds)

    def _ordered(self, added: float) -> LaunchOrder:
        return launch_order(with_host_work(self._work, added), gpus=1, gap_seconds=self.gap_seconds)

    def simulated(self, *, own: float = 1.0, gap: float | None = None, steps: int = STEADY_STEPS) -> Simulated:
        """Simulate so many steps in a row with a host that takes `own` times as long."""
        order = self._order if gap is None else replace(self._order, gap_seconds=gap)
        return run_queues(order, replace(self._host, factor=own), steps=steps)

    def seconds(self, *, own: float = 1.0, gap: float | None = None, steps: int = STEADY_STEPS) -> float:
        """Return the seconds of the last of so many steps."""
        return float(self.simulated(own=own, gap=gap, steps=steps).seconds[0])

    def host_seconds(self, own: float) -> float:
        """Return when the host is done with a step that began with an idle device, waits inside included."""
        return float(self.simulated(own=own, steps=1).host_ends[0])


def _held_against(trace: Trace, timed: TimedWork, host: HostModel, gap: float, factor: float) -> Anchor:
    replay = Replay(trace, timed, host, gap)
    read = _unprofiled(trace, replay)
    own, added = (1.0, 0.0) if read is None else read
    replay.add_host_work(added)
    found = replay.simulated(own=own, steps=1)
    running = replay.seconds(own=own)
    step = measured = statistics.median(trace.measured_steps)
    steps = STEADY_STEPS
    if trace.running_step_seconds is None:
        # It waited for the device at its ends. Between a running and a standing step of the replay it agrees with both.
        standing = float(found.seconds[0])
        step, steps = (min(step, running), STEADY_STEPS) if step <= standing else (step, 1)
    late = late_share(trace) if read is None else None
    is_host_bound = late >= LATE_SHARE if late is not None else found.host_seconds > float(found.occupied_seconds[0])
    recorded = running if steps > 1 else float(found.seconds[0])
    own_gap = gap
    if step < recorded and is_host_bound:
        least = (1 + FLAT) * replay.seconds(own=own / SLOWEST_PROFILER, steps=steps)
        if least < recorded:
            own = _solve(lambda one: replay.seconds(own=one, steps=steps), max(step, least), highest=own)
    elif step < recorded:
        least = replay.seconds(own=own, gap=0.0, steps=steps)
        own_gap = gap * max(step - least, 0.0) / (recorded - least) if recorded > least else 0.0
    explained = replay.seconds(own=own, gap=own_gap, steps=steps)
    overlap = explained - replay.seconds(own=own, gap=own_gap) if steps == 1 else 0.0
    share = (step - overlap) / measured if measured > 0 and has_recorded_launches(trace) else 1.0
    if is_host_bound or read is not None:
        host = replace(host, low_factor=1 / MACHINE_SPREAD, high_factor=MACHINE_SPREAD)
    return Anchor(
        host=replace(host, factor=own * factor),
        gap_seconds=own_gap,
        device_factor=min(step / explained, 1.0),
        residual_seconds=max(step - explained, 0.0),
        device_seconds=float(found.occupied_seconds[0]),
        added_host_seconds=added,
        running_share=share if share < 1 - FLAT else 1.0,
        is_host_assumed=not (is_host_bound or read is not None or has_recorded_launches(trace)),
    )


def _unprofiled(trace: Trace, replay: Replay) -> tuple[float, float] | None:
    """Return the factor of the recorded host that gives the host's own time, and what that has beyond the recording.

    None if it was not read, or if the host waits for the device until the end of the step, whatever its speed.
    """
    if not trace.host_seconds_unprofiled:
        return None
    read = statistics.median(trace.host_seconds_unprofiled)
    recorded = replay.host_seconds(1.0)
    if read >= recorded:
        return 1.0, read - recorded
    least = (1 + FLAT) * replay.host_seconds(1 / SLOWEST_PROFILER)
    return (_solve(replay.host_seconds, read, highest=1.0), 0.0) if least < min(read, recorded) else None


def _solve(seconds: Callable[[float], float], wanted: float, *, highest: float) -> float:
    """Return the host's factor, up to the highest, at which a time that grows with it equals the wanted one."""
    low, high = highest / SLOWEST_PROFILER, highest
    for _ in range(20):
        middle = (low * high) ** 0.5
        if seconds(middle) < wanted:
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
    main = main_queue(trace)
    return sorted((kernel for kernel in trace.kernels if queue_of(kernel) == main), key=lambda one: one.start_seconds)


def _end(kernel: Kernel) -> float:
    return kernel.start_seconds + kernel.seconds


def _launched(kernel: Kernel) -> float | None:
    """Return the end of the call that launched a kernel."""
    if kernel.launch_start_seconds is None or kernel.launch_seconds is None:
        return None
    return kernel.launch_start_seconds + kernel.launch_seconds
