"""Calibrates the simulation of a recorded step with measured times, and transfers the corrections to other GPUs.

The step is simulated on the GPU on which it was recorded, with the measured kernel times. The simulation is compared
with three times that were measured without a recorder: the time until the host has finished a step, the time until the
device has finished the step, and the step time in a running loop. The step time in a running loop is the quantity to
predict.

- The host's measured time calibrates the speed of the host. This removes the overhead of the profiler.
- If the measured step is longer than the simulated one, the rest is host time that does not depend on the GPU.
- If the measured step is shorter, the profiler slowed the host, the gaps between kernels were shorter, or the device
  ran faster. A slower host is assumed if the host is the bottleneck and its time was not measured.

Predictions are therefore a continuous and increasing function of the measured step time. Example::

    own = calibrate_step(trace, timed, gpu("V100-SXM2-32GB"), Host())
    own.residual_seconds       # 0.030 if a training_step takes 130 ms and its operations explain 100 ms
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from lightning_predict.base.ties import NOTICEABLE, clearly_less
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.measured_scaling import WorkTimes
from lightning_predict.record.trace import Kernel, Trace
from lightning_predict.timeline.host import PROFILER_SLOWDOWN, Host, HostModel, has_recorded_launches
from lightning_predict.timeline.simulation import (
    STEADY_STEPS,
    HostOperation,
    LaunchSchedule,
    SimulatedTimeline,
    host_operations,
    host_timeline,
    launch_schedule,
    main_queue,
    queue_of,
    simulate_timeline,
)
from lightning_predict.uncertainty import ASSUMED_SPREAD, FORMULA_SPREAD, SURROGATE_SPREAD

GAP_SECONDS: Final = 1e-06  # Default gap between two kernels in a stream's queue, for traces that do not show it
LARGEST_GAP_SECONDS: Final = 3e-06  # Upper bound on a gap
MIN_GAPS: Final = 20  # Minimum number of gaps for computing a median
SLOWEST_PROFILER: Final = 20.0  # Upper bound on the factor by which a profiler slows the host


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCalibration:
    """Calibrated host and corrections, which apply to the predictions for all GPUs."""

    host: HostModel
    gap_seconds: float = 0.0  # Gap between two queued kernels of a stream; 0 if kernel times include the gap
    device_factor: float = 1.0  # Measured device time divided by the sum of recorded kernel times, at most 1
    residual_seconds: float = 0.0  # Part of the measured step time that the trace does not explain
    device_seconds: float = 0.0  # Device time of the step on the recorded GPU; 0 without measurements
    # Host work per step that is missing from the recording. The simulation adds this work before the first operation.
    added_host_seconds: float = 0.0
    # Step time in a running loop divided by the measured step time; below 1 if each measured step waited for the device
    # at its end
    running_share: float = 1.0
    is_host_assumed: bool = False  # Whether neither the host's time without a profiler nor a host-bound step is known
    is_profiled: bool = False  # Whether the assumed host derives from a profiler's times; otherwise the median host


def measured_host(host: HostModel | None = None, spread: float = SURROGATE_SPREAD) -> HostModel:
    """Return a host with the interval of a measured one, or of one that was measured under a profiler."""
    return replace(host or HostModel(), low_factor=1 / spread, high_factor=spread)


def calibrate_step(trace: Trace, timed: WorkTimes, origin: Gpu | None, target: Host) -> StepCalibration:
    """Calibrate the host and the corrections with the measured step."""
    if not trace.has_measured_kernels:
        return _calibrate_without_kernels(trace, timed, origin, target)
    is_recorded = has_recorded_launches(trace)
    profiled = measured_host(spread=ASSUMED_SPREAD if trace.has_python_stacks else FORMULA_SPREAD)
    host = profiled if is_recorded else target.default_model
    gap = recorded_gap(trace)
    if origin is None or not trace.measured_steps:
        own = replace(host, factor=target.measured_factor) if is_recorded else target.default_model
        return StepCalibration(host=own, gap_seconds=gap, is_host_assumed=True, is_profiled=is_recorded)
    return _calibrate_with_kernels(trace, timed, host, gap, target)


def with_host_work(work: Sequence[HostOperation], seconds: float) -> tuple[HostOperation, ...]:
    """Add host time, on the recording machine's scale, before the first operation."""
    if not work or seconds <= 0:
        return tuple(work)
    first, *others = work
    return replace(first, python_seconds=first.python_seconds + seconds), *others


def _calibrate_without_kernels(trace: Trace, timed: WorkTimes, origin: Gpu | None, target: Host) -> StepCalibration:
    """Calibrate the host with its measured time, without recorded kernels. Waits inside such a step are unknown."""
    host = target.default_model
    if origin is None or not trace.host_seconds_unprofiled or trace.device == "cpu":
        return StepCalibration(host=host, is_host_assumed=True)
    order = launch_schedule(host_operations(trace, timed, np.zeros((1, len(timed.items)))), gpus=1)
    walked = host_timeline(order, HostModel()).seconds
    if order.waits or walked <= 0:
        return StepCalibration(host=host, is_host_assumed=True)
    host_factor = target.measured_factor * statistics.median(trace.host_seconds_unprofiled) / walked
    return StepCalibration(host=measured_host(HostModel(factor=host_factor)))


class RecordedSimulation:
    """Simulation of the recorded step on its own GPU. The host speed, the gap and the added host work are variable."""

    def __init__(self, trace: Trace, timed: WorkTimes, host: HostModel, gap: float) -> None:
        kernels = [
            [kernel for index in item.operations for kernel in trace.operations[index].kernels] for item in timed.items
        ]
        seconds = np.array([[sum(kernel.seconds for kernel in launched) for launched in kernels]])  # (1, items)
        self._work = host_operations(trace, timed, seconds)
        self._host = host
        self.gap_seconds = gap
        self._order = self._ordered(0.0)

    def add_host_work(self, seconds: float) -> None:
        """Set the host work before the first operation, in seconds."""
        self._order = self._ordered(seconds)

    def _ordered(self, added: float) -> LaunchSchedule:
        return launch_schedule(with_host_work(self._work, added), gpus=1, gap_seconds=self.gap_seconds)

    def simulate(
        self, *, host_factor: float = 1.0, gap: float | None = None, steps: int = STEADY_STEPS
    ) -> SimulatedTimeline:
        """Simulate `steps` consecutive steps with a host that takes `host_factor` times as long as the recorded one."""
        order = self._order if gap is None else replace(self._order, gap_seconds=gap)
        return simulate_timeline(order, replace(self._host, factor=host_factor), steps=steps)

    def seconds(self, *, host_factor: float = 1.0, gap: float | None = None, steps: int = STEADY_STEPS) -> float:
        """Return the time of the last of `steps` consecutive steps on the first GPU."""
        return float(self.simulate(host_factor=host_factor, gap=gap, steps=steps).seconds[0])

    def host_seconds(self, host_factor: float) -> float:
        """Return the time until the host has finished a step, including waits, if the device is idle at the start."""
        return float(self.simulate(host_factor=host_factor, steps=1).host_ends[0])


def _calibrate_with_kernels(
    trace: Trace, timed: WorkTimes, host: HostModel, gap: float, target: Host
) -> StepCalibration:
    replay = RecordedSimulation(trace, timed, host, gap)
    read = _unprofiled(trace, replay)
    host_factor, added = (1.0, 0.0) if read is None else read
    replay.add_host_work(added)
    simulated = replay.simulate(host_factor=host_factor, steps=1)
    running = replay.seconds(host_factor=host_factor)
    step = measured = statistics.median(trace.measured_steps)
    steps = STEADY_STEPS
    if trace.running_step_seconds is None:
        # Each measured step waited for the device at its end. The recording is consistent with any time between the
        # step time of a simulated loop and the time of a single simulated step.
        isolated_seconds = float(simulated.seconds[0])
        step, steps = (min(step, running), STEADY_STEPS) if step <= isolated_seconds else (step, 1)
    is_host_bound = clearly_less(float(simulated.active_with_gaps_seconds[0]), simulated.host_seconds)
    recorded = running if steps > 1 else float(simulated.seconds[0])
    own_gap = gap
    is_profiled = read is None and has_recorded_launches(trace)
    # A profiler's slowdown is uncertain, so a longer step means a slower host if the host is the bottleneck.
    highest = host_factor * FORMULA_SPREAD if is_profiled and step > recorded else host_factor
    if is_host_bound and (is_profiled or step < recorded):
        least = (1 + NOTICEABLE) * replay.seconds(host_factor=highest / SLOWEST_PROFILER, steps=steps)
        if least < replay.seconds(host_factor=highest, steps=steps):
            host_factor = _solve(
                lambda factor: replay.seconds(host_factor=factor, steps=steps), max(step, least), highest=highest
            )
    elif step < recorded:
        least = replay.seconds(host_factor=host_factor, gap=0.0, steps=steps)
        own_gap = gap * max(step - least, 0.0) / (recorded - least) if recorded > least else 0.0
    explained = replay.seconds(host_factor=host_factor, gap=own_gap, steps=steps)
    overlap = explained - replay.seconds(host_factor=host_factor, gap=own_gap) if steps == 1 else 0.0
    share = (step - overlap) / measured if measured > 0 and has_recorded_launches(trace) else 1.0
    is_assumed = not is_host_bound and read is None
    factor = target.measured_factor
    if not is_assumed:
        host = measured_host(host)
    elif not is_profiled:
        factor = host.factor
    return StepCalibration(
        host=replace(host, factor=host_factor * factor),
        gap_seconds=own_gap,
        device_factor=min(step / explained, 1.0),
        residual_seconds=max(step - explained, 0.0),
        device_seconds=float(simulated.active_with_gaps_seconds[0]),
        added_host_seconds=added,
        running_share=share if share < 1 - NOTICEABLE else 1.0,
        is_host_assumed=is_assumed,
        is_profiled=is_profiled and is_assumed,
    )


def _unprofiled(trace: Trace, replay: RecordedSimulation) -> tuple[float, float] | None:
    """Return the host factor and additional host seconds that reproduce the host time measured without the profiler.

    None if this time was not measured, or if the host waits for the device until the end of the step at any speed.
    """
    if not trace.host_seconds_unprofiled:
        return None
    read = statistics.median(trace.host_seconds_unprofiled)
    highest = PROFILER_SLOWDOWN if has_recorded_launches(trace) else 1.0
    recorded = replay.host_seconds(highest)
    if read >= recorded:
        return highest, (read - recorded) / highest  # all host work is multiplied by the factor
    least = (1 + NOTICEABLE) * replay.host_seconds(highest / SLOWEST_PROFILER)
    return (_solve(replay.host_seconds, read, highest=highest), 0.0) if least < min(read, recorded) else None


def _solve(seconds: Callable[[float], float], wanted: float, *, highest: float) -> float:
    """Find by bisection the host factor, at most `highest`, at which `seconds` (increasing) equals `wanted`."""
    low, high = highest / SLOWEST_PROFILER, highest
    for _ in range(20):
        middle = (low * high) ** 0.5
        if seconds(middle) < wanted:
            low = middle
        else:
            high = middle
    return high


def recorded_gap(trace: Trace) -> float:
    """Return the median gap before kernels of the main stream that were queued when the previous kernel ended."""
    gaps = [
        later.start_seconds - _end(earlier)
        for earlier, later in pairwise(_on_main_stream(trace))
        if (launched := _launched(later)) is not None and launched <= _end(earlier)
    ]
    if len(gaps) < MIN_GAPS:
        return GAP_SECONDS
    return min(max(statistics.median(gaps), 0.0), LARGEST_GAP_SECONDS)


def _on_main_stream(trace: Trace) -> list[Kernel]:
    main = main_queue(trace)
    return sorted((kernel for kernel in trace.kernels if queue_of(kernel) == main), key=lambda one: one.start_seconds)


def _end(kernel: Kernel) -> float:
    return kernel.start_seconds + kernel.seconds


def _launched(kernel: Kernel) -> float | None:
    """Return the end of the launch call of a kernel; None if it was not recorded."""
    if kernel.launch_start_seconds is None or kernel.launch_seconds is None:
        return None
    return kernel.launch_start_seconds + kernel.launch_seconds
