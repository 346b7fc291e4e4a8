"""Predicts a `StepPrediction`, the time of one step, by simulating the trace's operations on a host and its device.

Every operation takes host time, even a view. A `WorkItem`, which a GPU runs as one launch, is launched once. If the
trace was recorded on a known GPU, the simulation is calibrated with the measured step (`calibration.py`). The step ends
when both the host and the device have finished.

`uncertainty.py` forms the intervals. Example::

    work = predict_work_times(trace, gpus, origin=None, models=models)
    steps = predict_steps(trace, work, gpus)
    steps[0].seconds, steps[0].bound_by
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from lightning_predict.base.interval import Interval
from lightning_predict.base.note import Note, decisive, details
from lightning_predict.base.ties import NEGLIGIBLE, clearly_less
from lightning_predict.base.units import seconds_to_milliseconds
from lightning_predict.hardware.records import NVIDIA, Gpu
from lightning_predict.kernels.measured_scaling import WorkTimes
from lightning_predict.kernels.operations import Array
from lightning_predict.kernels.timing import float8_becomes_bfloat16, uses_float32_fallback
from lightning_predict.kernels.translation import unknown_operation_notes
from lightning_predict.record.signatures import FUSED
from lightning_predict.record.trace import PHASES, WAITED_SHARE, Phase, Trace
from lightning_predict.timeline.calibration import StepCalibration, calibrate_step, measured_host, with_host_work
from lightning_predict.timeline.host import PROFILER_SLOWDOWN, UNKNOWN_HOST, Host, usual_host
from lightning_predict.timeline.simulation import SimulatedTimeline, host_operations, launch_schedule, simulate_timeline
from lightning_predict.timeline.verdict import COMPARED_SPEED, Verdict, verdicts
from lightning_predict.uncertainty import (
    UNCALIBRATED,
    bundled_spread,
    device_ends,
    ends_of_measured,
    ends_of_step,
    host_ends,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrediction:
    """Prediction of one step on one GPU."""

    gpu: str  # Name of the GPU
    interval: Interval[float]  # Step time in seconds with its 90 % interval
    device_seconds: float  # Compute time of the device
    host_seconds: float  # Host time for all launches and the Python work of the step
    # Share of the device time by prediction method; the shares add up to 1. The methods are `measured`, a kernel
    # recorded on this GPU; `wave`, wave-scaled from another GPU; `mlp`, a neural network trained on this operation and
    # dtype; `proxy`, a related operation or dtype; `bytes`, a copy of the same bytes; `formula`, a formula of the
    # operation's family; `roofline`, peak rates only.
    coverage: Mapping[str, float]
    forward_seconds: float = 0.0  # Device time of the forward phase, used to estimate validation
    optimizer_seconds: float = 0.0  # Device time of the optimizer, independent of the number of batches
    verdict: Verdict | None = None  # Bottleneck, and time by module; None without a simulated timeline
    communication_seconds: float = 0.0  # Time of all collectives between GPUs in a step; 0 on one GPU
    # Step time in addition to a GPU's own work: exposed communication, and waits for other stages and the slowest rank.
    # The value is negative if sharding the optimizer update saves more than these take.
    added_seconds: float = 0.0
    notes: tuple[str, ...] = ()  # Notes for the user about missing coverage
    extrapolated_share: float = 0.0  # Share of the device time from networks without measurements of this GPU
    measured_seconds: float | None = None  # Measured step time on the GPU in use; None on other GPUs
    unmeasured_seconds: float | None = None  # Step time on the GPU in use, without any measurement; None on other GPUs
    precision: str | None = None  # Precision of the step, if it differs from the recorded one; None otherwise

    @property
    def seconds(self) -> float:
        """Predicted step time in seconds (middle of the interval)."""
        return self.interval.middle

    @property
    def low_seconds(self) -> float:
        """Lower end of the 90 % interval of the step time."""
        return self.interval.low

    @property
    def high_seconds(self) -> float:
        """Upper end of the 90 % interval of the step time."""
        return self.interval.high

    @property
    def bound_by(self) -> Literal["device", "host"]:
        """Bottleneck of the step: host or device, whichever ends last. A faster GPU does not help a host-bound step."""
        return "host" if clearly_less(self.device_seconds, self.host_seconds) else "device"

    def scaled(self, factor: float, *, note: str) -> StepPrediction:
        """Multiply all times by a factor."""
        return replace(
            self,
            interval=self.interval.scaled(factor),
            device_seconds=self.device_seconds * factor,
            host_seconds=self.host_seconds * factor,
            forward_seconds=self.forward_seconds * factor,
            optimizer_seconds=self.optimizer_seconds * factor,
            notes=(*self.notes, note),
        )

    def accumulated(self, batches: int) -> StepPrediction:
        """Return a step that accumulates gradients over `batches` of the recorded batches and updates once, on one GPU.

        The update's share of the step time is assumed to equal its share of the device time.
        """
        if batches == 1:
            return self
        update = self.optimizer_seconds / self.device_seconds if self.device_seconds > 0 else 0.0
        factor = batches - (batches - 1) * update
        note = f"A step is {batches} batches as large as the recorded one, whose gradients add up."
        return replace(
            self.scaled(factor, note=note),
            forward_seconds=self.forward_seconds * batches,
            optimizer_seconds=self.optimizer_seconds,
            measured_seconds=None if self.measured_seconds is None else self.measured_seconds * factor,
            unmeasured_seconds=None if self.unmeasured_seconds is None else self.unmeasured_seconds * factor,
        )

    def with_wait(self, wait: Interval[float]) -> StepPrediction:
        """Add a wait inside the step, which no GPU shortens."""
        seconds = wait.middle
        if not seconds:
            return self
        waits = f"Each step waits {seconds_to_milliseconds(seconds):.3g} ms outside torch (an environment, a server)"
        note = f"{waits}, which counts on every GPU. The interval allows for no wait."
        kind = decisive if seconds >= WAITED_SHARE * self.seconds else details
        return replace(
            self,
            interval=self.interval.added(wait),
            verdict=None if self.verdict is None else self.verdict.with_wait(seconds, self.seconds),
            notes=(*self.notes, *kind([note])),
        )

    def with_measured_steps(self, step_seconds: Sequence[float]) -> StepPrediction:
        """Replace the interval with the interval of steps measured on this machine, if any were measured."""
        if not step_seconds:
            return self
        low, high = ends_of_measured(step_seconds)
        return replace(self, interval=Interval(low, statistics.median(step_seconds), high))


def predict_steps(
    trace: Trace,
    timed: WorkTimes,
    gpus: Sequence[Gpu],
    *,
    origin: Gpu | None = None,
    host: Host = UNKNOWN_HOST,
    is_host_measured: bool = False,
) -> tuple[StepPrediction, ...]:
    """Predict the step on each GPU from the predicted times of the trace's work.

    `timed` has rows in the order of `gpus`. The prediction for `origin` is the measured step.
    """
    predictions: dict[int, StepPrediction] = {}
    hosts = [host if is_host_measured else usual_host(host, gpu) for gpu in gpus]
    for kind in dict.fromkeys(hosts):
        rows = [row for row, gpu_host in enumerate(hosts) if gpu_host == kind]
        some = (timed.on(rows), [gpus[row] for row in rows]) if len(rows) < len(gpus) else (timed, gpus)
        steps = _with_host(trace, *some, origin=origin, host=kind, is_host_measured=is_host_measured)
        predictions |= dict(zip(rows, steps, strict=True))
    return tuple(predictions[row] for row in range(len(gpus)))


def _with_host(
    trace: Trace, timed: WorkTimes, gpus: Sequence[Gpu], *, origin: Gpu | None, host: Host, is_host_measured: bool
) -> tuple[StepPrediction, ...]:
    own = calibrate_step(trace, timed, origin, host)
    if is_host_measured:
        measured = measured_host(own.host)
        own = replace(own, host=measured, is_host_assumed=False)
    work = with_host_work(
        host_operations(trace, timed, timed.seconds), own.added_host_seconds
    )  # of seconds (gpus, items)
    schedule = launch_schedule(work, gpus=len(gpus), gap_seconds=own.gap_seconds)
    middle = simulate_timeline(schedule, own.host, speed=1 / own.device_factor)
    faster = simulate_timeline(schedule, own.host, speed=COMPARED_SPEED / own.device_factor)
    python = own.host.factor * math.fsum([operation.python_seconds for operation in work])
    doubted = host_ends(
        (own.host.low_factor, own.host.high_factor),
        launching=middle.host_seconds - python,
        python=python,
        has_stacks=trace.has_python_stacks,
    )
    low, high = _ends(trace, timed, gpus, own, middle, doubted)
    device = [float(busy) for busy in middle.active_with_gaps_seconds]
    doubtful = [
        own.is_host_assumed and clearly_less(doubted[0], busy) and clearly_less(busy, doubted[1]) for busy in device
    ]
    middle, faster = (replace(one, seconds=one.seconds + own.residual_seconds) for one in (middle, faster))
    beyond = (*_beyond_operations(trace, own, python), *_too_short(trace, own))
    phases = np.array(timed.phases, dtype=np.str_)  # (items,)
    by_phase = {phase: timed.seconds[:, phases == phase].sum(axis=1) for phase in PHASES}
    dtypes = frozenset([tensor.dtype for operation in trace.operations for tensor in operation.inputs])
    unmeasured = np.ones_like(timed.seconds) - sum(timed.shares.get(method, 0.0) for method in ("measured", "wave"))
    unknown = unknown_operation_notes(timed.items, timed.seconds, unmeasured)
    steps = (
        _iteration(
            timed,
            row,
            middle,
            Interval(float(low[row]), float(middle.seconds[row]), float(high[row])),
            by_phase=by_phase,
            gpu=target.name,
            verdict=replace(verdict, is_doubtful=doubtful[row]),
            notes=(
                *_assumed(trace, own, host, doubted, middle.host_seconds, device[row]),
                *decisive(_notes(dtypes, target)),
                *decisive(_untimed(trace, timed, row)),
                *decisive(unknown),
                *details(beyond),
            ),
        )
        for row, (target, verdict) in enumerate(zip(gpus, verdicts(work, middle, faster), strict=True))
    )
    own_steps = tuple(own.running_share * seconds for seconds in trace.measured_steps)
    waited = details(_waited(trace, own))
    return tuple(
        replace(step.with_measured_steps(own_steps), notes=(*step.notes, *waited)) if target == origin else step
        for target, step in zip(gpus, steps, strict=True)
    )


def _ends(
    trace: Trace,
    timed: WorkTimes,
    gpus: Sequence[Gpu],
    own: StepCalibration,
    middle: SimulatedTimeline,
    launched: tuple[float, float],
) -> tuple[Array, Array]:
    """Return the ends of the step's interval, each (gpus,)."""
    # The errors that whole steps share cancel in ratios of measured kernels.
    shared = UNCALIBRATED if trace.has_measured_kernels else bundled_spread()
    least, most = device_ends(
        timed.interval,
        timed.families,
        [item.shapes for item in timed.items],
        shared,
        is_validated=np.array([gpu.vendor == NVIDIA for gpu in gpus], dtype=np.bool_),
        is_fused=trace.compiled or FUSED in {operation.name for operation in trace.operations},
    )
    device = middle.active_with_gaps_seconds
    slower = np.maximum(device / own.device_seconds, 1.0) if own.device_seconds else np.ones_like(device)
    return ends_of_step(
        middle.seconds,
        Interval(device * least, device, device * most),
        (launched[0], middle.host_seconds, launched[1]),
        own.residual_seconds * slower,
    )


def _iteration(
    timed: WorkTimes,
    row: int,
    simulated: SimulatedTimeline,
    interval: Interval[float],
    *,
    by_phase: Mapping[Phase, Array],
    gpu: str,
    verdict: Verdict,
    notes: tuple[str, ...],
) -> StepPrediction:
    total = float(timed.seconds[row].sum())
    shares = {name: float((share[row] * timed.seconds[row]).sum()) for name, share in timed.shares.items()}
    return StepPrediction(
        gpu=gpu,
        interval=interval,
        device_seconds=float(simulated.active_seconds[row]),
        host_seconds=simulated.host_seconds,
        coverage={name: share / total for name, share in shares.items() if share > 0} if total else {},
        forward_seconds=float(by_phase["forward"][row]),
        optimizer_seconds=float(by_phase["optimizer"][row]),
        verdict=verdict,
        notes=notes,
        extrapolated_share=_share_of(timed.extrapolated_share, timed.seconds, row),
    )


def _share_of(part: Array | None, seconds: Array, row: int) -> float:
    """Average a share per item over one GPU's device time."""
    total = float(seconds[row].sum())
    return 0.0 if part is None or not total else float((part[row] * seconds[row]).sum()) / total


def _notes(dtypes: frozenset[str], target: Gpu) -> tuple[str, ...]:
    """Return notes about dtypes that the target emulates, or computes at float32's rate."""
    stood_in = sorted(dtype for dtype in dtypes & {"float16", "bfloat16"} if uses_float32_fallback(dtype, target))
    notes = [
        f"No {dtype} hardware: emulation is assumed."
        if dtype in target.emulated_dtypes or target.peak(dtype) is None
        else f"{dtype} products accumulate in float32: predicted at float32's rate."
        for dtype in stood_in
    ]
    if any(dtype.startswith("float8") for dtype in dtypes) and target.peak("float8") is None:
        instead = "bfloat16" if float8_becomes_bfloat16(target) else "float32"
        notes.append(f"No float8 hardware: torch cannot run this step here. Predicted with {instead} products.")
    return tuple(notes)


def _untimed(trace: Trace, timed: WorkTimes, row: int) -> tuple[str, ...]:
    """Return a note about kernels that count as zero: their work is unknown and no measurement can be scaled."""
    zero = np.flatnonzero(timed.seconds[row] <= 0)
    launched = [trace.operations[timed.items[int(index)].operations[0]] for index in zero]
    # Step counters of optimizers stay on the CPU.
    names = sorted({one.name for one in launched if {tensor.device for tensor in one.inputs} != {"cpu"}})
    if not names:
        return ()
    return (f"{len(names)} operations could not be timed and count as zero: {', '.join(names[:5])}.",)


def _beyond_operations(trace: Trace, own: StepCalibration, python: float) -> Iterator[str]:
    """Yield a note about the host time outside operations, if this time is a relevant part of the step."""
    seconds = python + own.residual_seconds
    is_measured = own.device_seconds > 0
    step = statistics.median(trace.measured_steps) if is_measured else trace.profiled_seconds
    if seconds <= 0 or (step is not None and seconds < NEGLIGIBLE * step):
        return
    share = f" ({seconds / step:.0%})" if step is not None and trace.device == "cuda" else ""
    yield (
        f"The {'measured' if is_measured else 'recorded'} step has {seconds_to_milliseconds(seconds):.3g} ms{share} "
        "outside operations (Python work, data, waits). This counts as host time on every GPU."
    )


FAR_SHORTER: Final = 0.8  # Minimum ratio of a measured step to its simulation, for both to be the same step


def _too_short(trace: Trace, own: StepCalibration) -> Iterator[str]:
    """Yield a note if the measured step is too short for the recorded kernels."""
    if not trace.measured_steps or own.device_factor >= FAR_SHORTER:
        return
    step = seconds_to_milliseconds(statistics.median(trace.measured_steps))
    kernels = seconds_to_milliseconds(own.device_seconds)
    yield (
        f"The measured step of {step:.3g} ms is {1 / own.device_factor:.1f} times shorter than its recorded kernels "
        f"({kernels:.3g} ms). Times are scaled to the measured step. Record again: the recording may contain another "
        "step or process."
    )


def _waited(trace: Trace, own: StepCalibration) -> Iterator[str]:
    """Yield a note about how much shorter a step is in the running loop than when steps are timed separately."""
    if own.running_share == 1:
        return
    alone = seconds_to_milliseconds(statistics.median(trace.measured_steps))
    yield (
        f"Steps were timed with a synchronization after each: {alone:.3g} ms. A training loop takes "
        f"{own.running_share * alone:.3g} ms, by the recorded launches and kernels."
    )


def _assumed(
    trace: Trace, own: StepCalibration, target: Host, host_ends: tuple[float, float], host: float, device: float
) -> Iterator[str]:
    """Note that the host was assumed or timed under a profiler, if it is or may be the bottleneck."""
    if not own.is_host_assumed or not clearly_less(device, host_ends[1]):
        return
    low, middle, high = (f"{seconds_to_milliseconds(seconds):.3g}" for seconds in (host_ends[0], host, host_ends[1]))
    if own.is_profiled:
        stacks = " with Python stacks" if trace.has_python_stacks else ""
        yield Note(
            f"The CPU was timed under a profiler{stacks}, which slows it about {PROFILER_SLOWDOWN:g} times. Without it "
            f"the CPU needs {middle} ms ({low} to {high} ms) for a step. `capture` measures this time.",
            is_decisive=True,
        )
        return
    yield Note(
        f"Host assumed: the CPU was not measured. A {target.name} CPU needs {middle} ms ({low} to {high} ms) to launch "
        "the step, possibly more than the GPU.",
        is_detail=True,
    )
