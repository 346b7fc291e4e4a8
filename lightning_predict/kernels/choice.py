"""Which method times each piece of work, and the timed trace that comes out.

Without measured kernels every piece is predicted directly. With them, a measurement is worth more than a model:

* `auto`: where a trained model knows the operation (kernels differ between GPUs), the ratio measured x
  model(destination) / model(origin), blended with the model's own time by how well each is known (`blending.py`);
  wave scaling elsewhere (the same code runs on both).
* `mlp`: the ratio of models everywhere, of rooflines where no model was trained (Habitat's MLPs).
* `wave`: wave scaling everywhere (Habitat's equations alone).

On the origin itself the measurement stands. Example::

    timed = timed_work(trace, [gpu("T4"), gpu("L4")], origin=None, models=models, method="auto")
    timed.seconds.sum(axis=1)  # device seconds of a step on each GPU
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final, get_args

import numpy as np

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.arrays import BoolArray, summed_by_owner
from lightning_predict.kernels.blending import Blend
from lightning_predict.kernels.estimates import KernelModels, TimedBy, problem_times
from lightning_predict.kernels.odd_sizes import is_odd_size
from lightning_predict.kernels.operations import Array, Problem, batch_of
from lightning_predict.kernels.translation import WorkItem, work_items
from lightning_predict.kernels.unknown_operations import UNKNOWN_SPREAD, unknown_operations
from lightning_predict.kernels.wave_scaling import memory_boundedness, ridge_of, scaled_seconds
from lightning_predict.tracing.records import Kernel, Phase, Trace

Method = Literal["auto", "mlp", "wave"]
METHODS: Final[tuple[Method, ...]] = get_args(Method)

WAVE_SPREAD: Final = 1.35
"""Factor up and down around a wave-scaled time. An assumption, near the errors that Habitat's authors report for
single operations."""

MEASURED_SPREAD: Final = 1.05
"""Factor around a measured time on the GPU that it was measured on: runs differ by a few per cent."""


@final
@dataclass(frozen=True, slots=True)
class TimedWork:
    """The trace's work with device seconds on each GPU; arrays have shape (gpus, items).

    Attributes:
        items: The work, in the trace's order.
        families: Operation that dominates each item; errors within one family go together.
        phases: Part of the step of each item.
        seconds: Middle of the prediction.
        low_seconds: Lower end of the 90 % interval.
        high_seconds: Upper end of the 90 % interval.
        shares: Share of each item's time by method: those of `estimates.TimedBy`, `wave` and `measured`; they add up
            to 1 where an item takes time.
        base_share: Share of each item's time by networks that saw no measurement of the GPU; None where not said.
    """

    items: tuple[WorkItem, ...]
    families: tuple[str, ...]
    phases: tuple[Phase, ...]
    seconds: Array
    low_seconds: Array
    high_seconds: Array
    shares: Mapping[str, Array]
    base_share: Array | None = None


def check_method(method: str) -> Method:
    """The method, if it is one.

    Raises:
        InvalidArgumentError: It is not; the message lists those there are.
    """
    for known in METHODS:
        if method == known:
            return known
    raise InvalidArgumentError(f"method={method!r} is not known; choose one of {', '.join(map(repr, METHODS))}.")


def timed_work(
    trace: Trace, gpus: Sequence[Gpu], *, origin: Gpu | None, models: KernelModels | None, method: str = "auto"
) -> TimedWork:
    """Device seconds of a trace's work on GPUs.

    Args:
        trace: What one step did.
        gpus: GPUs to predict.
        origin: GPU that the trace's kernels were measured on; None where there are none, or its GPU is not known.
        models: Trained models; None uses rooflines instead.
        method: `auto`, `mlp` or `wave`.

    Raises:
        InvalidArgumentError: An unknown method, or `wave` for a trace without kernels measured on a known GPU.
    """
    chosen = check_method(method)
    items = work_items(trace)
    measured = origin is not None and trace.has_measured_kernels
    if chosen == "wave" and not measured:
        raise InvalidArgumentError(
            f"method='wave' scales measured kernels, and this trace (recorded on {trace.device!r}) holds none from a "
            "GPU of the catalogue. Record it on a CUDA GPU, or use method='auto'."
        )
    direct = _direct(trace, items, gpus if origin is None else [*gpus, origin], models)
    if origin is None or not measured:
        return direct if origin is None else _without_last(direct)
    return _from_measurements(trace, direct, gpus, origin, models, chosen)


def _direct(trace: Trace, items: tuple[WorkItem, ...], gpus: Sequence[Gpu], models: KernelModels | None) -> TimedWork:
    """Predictions from shapes alone. An item without a known problem (a fused kernel) has zero seconds here."""
    problems = [problem for item in items for problem in item.problems]
    owner = np.array([index for index, item in enumerate(items) for _ in item.problems], dtype=np.intp)
    times = problem_times(problems, gpus, models) if problems else None
    shape = (len(gpus), len(items))

    def added(values: Array) -> Array:
        return summed_by_owner(values, owner, len(items))

    seconds, low, high, base_share = (np.zeros(shape) for _ in range(4))
    shares: dict[str, Array] = {method: np.zeros(shape) for method in get_args(TimedBy)}
    if times is not None:
        seconds, low, high = added(times.seconds), added(times.low_seconds), added(times.high_seconds)
        whole = np.where(seconds > 0, seconds, 1.0)
        base_share = added(times.seconds * times.base_share) / whole
        shares = {method: added(times.seconds * share) / whole for method, share in times.shares.items()}
    unknown = np.array([bool(unknown_operations(trace, item)) for item in items], dtype=np.bool_)
    return TimedWork(
        items=items,
        families=tuple(_family(trace, item) for item in items),
        phases=tuple(trace.operations[item.operations[0]].phase for item in items),
        seconds=seconds,
        low_seconds=low,
        high_seconds=np.where(unknown, UNKNOWN_SPREAD * high, high),
        shares=shares,
        base_share=base_share,
    )


def _family(trace: Trace, item: WorkItem) -> str:
    if not item.problems:
        return trace.operations[item.operations[0]].name
    return item.problems[0].operation.removesuffix("_backward")


def _without_last(timed: TimedWork) -> TimedWork:
    return TimedWork(
        timed.items,
        timed.families,
        timed.phases,
        timed.seconds[:-1],
        timed.low_seconds[:-1],
        timed.high_seconds[:-1],
        {method: share[:-1] for method, share in timed.shares.items()},
        None if timed.base_share is None else timed.base_share[:-1],
    )


def _from_measurements(
    trace: Trace, direct: TimedWork, gpus: Sequence[Gpu], origin: Gpu, models: KernelModels | None, method: Method
) -> TimedWork:
    """Scale the measured seconds; `direct` has the origin as its last row."""
    kernels = [tuple(k for i in item.operations for k in trace.operations[i].kernels) for item in direct.items]
    measured = np.array([math.fsum(kernel.seconds for kernel in launched) for launched in kernels])
    predicted, at_origin = direct.seconds[:-1], direct.seconds[-1]
    usable = (measured > 0) & (at_origin > 0)
    correction = np.divide(measured, at_origin, out=np.ones_like(measured), where=usable)
    has_model = (direct.shares["roofline"] < 0.5).all(axis=0)
    by_ratio = np.tile(usable & (has_model if method == "auto" else method == "mlp"), (len(gpus), 1))
    weight, low, high = _ratio_alone(direct, by_ratio)
    if models is not None and method == "auto":
        for column, row, blend in _learnt(direct.items, by_ratio, gpus, origin, models):
            weight[row, column], by_ratio[row, column] = blend.weight, not blend.by_wave
            low[row, column], high[row, column] = math.exp(-blend.half_width), math.exp(blend.half_width)

    seconds = np.where(by_ratio, predicted * correction**weight, _wave_scaled(direct.items, kernels, gpus, origin))
    low, high = seconds * low, seconds * high
    zeros = np.zeros_like(seconds)
    base_share = zeros if direct.base_share is None else np.where(by_ratio, direct.base_share[:-1], zeros)
    shares = {name: np.where(by_ratio, share[:-1], zeros) for name, share in direct.shares.items()}
    shares |= {"wave": np.where(by_ratio, zeros, 1.0), "measured": zeros.copy()}
    for row, target in enumerate(gpus):
        if target == origin:
            seconds[row], low[row], high[row] = measured, measured / MEASURED_SPREAD, measured * MEASURED_SPREAD
            for name, share in shares.items():
                share[row] = 1.0 if name == "measured" else 0.0
            base_share[row] = 0.0
    return TimedWork(direct.items, direct.families, direct.phases, seconds, low, high, shares, base_share)


def _ratio_alone(direct: TimedWork, by_ratio: BoolArray) -> tuple[Array, Array, Array]:
    """Weight 1 of the ratio, and the spread down and up, each (gpus, items) without the origin.

    The bias that model and measurement share cancels in the ratio; what is left is at most the model's own spread.
    """
    seconds = np.where(by_ratio, direct.seconds[:-1], 1.0)
    low = np.where(by_ratio, direct.low_seconds[:-1] / seconds, 1 / WAVE_SPREAD)
    high = np.where(by_ratio, direct.high_seconds[:-1] / seconds, WAVE_SPREAD)
    return np.ones_like(seconds), low, high


def _learnt(
    items: Sequence[WorkItem], by_ratio: BoolArray, gpus: Sequence[Gpu], origin: Gpu, models: KernelModels
) -> Iterator[tuple[int, int, Blend]]:
    """Item, GPU and what was learnt for the item's first problem, which dominates it, where the ratio may be used."""
    known: dict[tuple[object, ...], list[tuple[int, Blend]]] = {}
    for column, item in enumerate(items):
        if not item.problems or not by_ratio[:, column].any():
            continue
        leading = item.problems[0]
        key = (leading.operation, leading.dtype, is_odd_size(leading))
        if key not in known:
            blends = [(row, models.blend(leading, origin, target)) for row, target in enumerate(gpus)]
            known[key] = [(row, blend) for row, blend in blends if blend is not None]
        yield from ((column, row, blend) for row, blend in known[key])


def _wave_scaled(
    items: Sequence[WorkItem], kernels: Sequence[tuple[Kernel, ...]], gpus: Sequence[Gpu], origin: Gpu
) -> Array:
    """Wave-scaled seconds of each item on each GPU, (gpus, items); equal launches are scaled once."""
    factors: dict[tuple[object, ...], Array] = {}
    seconds = np.zeros((len(gpus), len(items)))
    for index, (item, launched) in enumerate(zip(items, kernels, strict=True)):
        intensity, dtype = _intensity(item.problems)
        for kernel in launched:
            key = (kernel.grid, kernel.block, kernel.registers_per_thread, kernel.shared_memory_bytes, intensity, dtype)
            if key not in factors:
                factors[key] = np.array([_wave_factor(kernel, intensity, dtype, origin, target) for target in gpus])
            seconds[:, index] += kernel.seconds * factors[key]
    return seconds


def _wave_factor(kernel: Kernel, intensity: float, dtype: str, origin: Gpu, target: Gpu) -> float:
    gamma = memory_boundedness(intensity=intensity, ridge=ridge_of(target, dtype))
    if kernel.seconds <= 0:
        return 1.0
    return scaled_seconds(kernel, origin=origin, destination=target, gamma=gamma) / kernel.seconds


def _intensity(problems: Sequence[Problem]) -> tuple[float, str]:
    """FLOPs per byte of an item and its compute dtype; a kernel of unknown work is taken as bound by memory."""
    flops = moved = 0.0
    dtype = "float32"
    for problem in problems:
        batch = batch_of([problem])
        flops += float(batch.flops[0])
        moved += float(batch.bytes_moved[0])
        dtype = problem.dtype if batch.kind.units == "tensor" else dtype
    return (flops / moved if moved else 0.0), dtype
