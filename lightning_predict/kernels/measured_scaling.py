"""Scales measured kernel times to other GPUs: chooses a prediction method for each item, and predicts a whole trace.

Without measured kernels, the time of every item is predicted directly from its shape. With measured kernels of the GPU
on which the trace was recorded (the origin), there are three methods:

* `auto`: multiply the direct prediction by a power of (measured / predicted time on the origin), because errors of a
  model for an operation recur on other GPUs (`RATIO_EXPONENTS`). Where a library chooses the kernels, or both GPUs have
  trained networks, only what lies beyond the networks' errors does (`transferable_residuals`). Wave scaling is used for
  operations without a model, such as the user's own kernels. Kernels without a known operation (CUDA graphs,
  extensions) whose names show matmuls are scaled by the rates of large matmuls (`kernel_names.py`).
* `mlp`: multiply the direct prediction by the ratio for all items (Habitat's MLPs). Without a trained model, the direct
  prediction comes from rooflines.
* `wave`: wave scaling for all items (Habitat's equations alone).

On the origin itself, the measured time is used. An operation on the GPU without recorded kernels is predicted directly,
and on the origin corrected by the machine's own rate (`_own_rates`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

import numpy as np

from lightning_predict.base.interval import Interval
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.corrections import (
    across_factors,
    attention_factors,
    attention_kernel,
    layout_factors,
    memory_factor,
    sustained_factors,
    torch_version_factors,
)
from lightning_predict.kernels.operations import (
    Array,
    BoolArray,
    IndexArray,
    OperationShape,
    batch_shapes,
    operation_spec,
)
from lightning_predict.kernels.timing import KernelModels, TimedBy, predict_operation_times, uses_float32_fallback
from lightning_predict.kernels.translation import WorkItem, work_items
from lightning_predict.record.trace import Flags, Kernel, Phase, Trace
from lightning_predict.uncertainty import (
    FORMULA_SPREAD,
    MEASURED_SPREAD,
    SCATTER,
    UNKNOWN_SPREAD,
    ratio_interval,
    summed_by_owner,
    transferred_part,
)

KernelRelation = Literal["same code", "same units", "other units"]
KERNEL_RELATIONS: Final[tuple[KernelRelation, ...]] = get_args(KernelRelation)
"""Kinds of relations between the kernels of an operation on two GPUs.

`same code`: equal kernels (element-wise work, norms, reductions, optimizers, copies). `same units`: different kernels
for the same units, chosen by a library. `other units`: different units, such as tensor cores and CUDA cores, or code
that the other GPU cannot run, such as FlashAttention 3."""

RATIO_EXPONENTS: Final[Mapping[KernelRelation, float]] = {"same code": 1.0, "same units": 0.75, "other units": 0.0}
"""Power of (measured / predicted time on the origin) by which the prediction for another GPU is multiplied.

The powers were chosen on 1,370 pairs of GPUs that ran the same shapes, which no neural network was fitted to.
Errors at the powers 0, 1/2, 3/4 and 1 are 0.046, 0.040, 0.034 and 0.029 for the same code; 0.102, 0.094, 0.099 and
0.109 for the same units; 0.366, 0.382, 0.455 and 0.514 for other units. Each GPU left out of the choice gives 0.029,
0.096 and 0.356. For the same units, whole steps select 3/4 (`timeline/same_gpu_check.py`). The
code of this study is that of commit b800dca9."""


@dataclass(frozen=True, slots=True)
class WorkTimes:
    """Work of a trace with its predicted seconds on each GPU; arrays have the shape (gpus, items)."""

    items: tuple[WorkItem, ...]  # Items of work, in the order of the trace
    families: tuple[str, ...]  # Dominant operation of each item. Errors within a family are correlated.
    phases: tuple[Phase, ...]
    interval: Interval[Array]  # GPU seconds
    # Share of each item's time by method: the methods of `timing.TimedBy`, `wave` and `measured`. The shares of an item
    # add up to 1 if the item takes time.
    shares: Mapping[str, Array]
    # Share of each item's time from neural networks without measurements of the GPU; None if unknown
    extrapolated_share: Array | None = None

    @property
    def seconds(self) -> Array:
        """Middle of the prediction."""
        return self.interval.middle

    def on(self, rows: Sequence[int]) -> WorkTimes:
        """Return the times on some of the GPUs."""
        extrapolated = None if self.extrapolated_share is None else self.extrapolated_share[rows]
        return replace(
            self,
            interval=self.interval.map(lambda seconds: seconds[rows]),
            shares={method: share[rows] for method, share in self.shares.items()},
            extrapolated_share=extrapolated,
        )


def predict_work_times(
    trace: Trace, gpus: Sequence[Gpu], *, origin: Gpu | None, models: KernelModels | None
) -> WorkTimes:
    """Predict the GPU time of a trace's work.

    `origin` is None without measured kernels. Without `models`, rooflines are used.
    """
    items = work_items(trace)
    direct = _direct(trace, items, gpus if origin is None else [*gpus, origin], models)
    if origin is None:
        return direct
    return _from_measurements(trace, direct, gpus, origin) if trace.has_measured_kernels else _without_last(direct)


def _direct(trace: Trace, items: tuple[WorkItem, ...], gpus: Sequence[Gpu], models: KernelModels | None) -> WorkTimes:
    """Predict times from shapes, with the trace's software. An item without a shape (a fused kernel) takes none."""
    shapes = [shape for item in items for shape in item.shapes]
    owner = np.array([index for index, item in enumerate(items) for _ in item.shapes], dtype=np.intp)
    times = predict_operation_times(shapes, gpus, models) if shapes else None
    shape = (len(gpus), len(items))

    def added(values: Array) -> Array:
        return summed_by_owner(values, owner, len(items))

    interval, base_share = Interval.from_factor(np.zeros(shape), 1.0), np.zeros(shape)
    shares: dict[str, Array] = {method: np.zeros(shape) for method in get_args(TimedBy)}
    if times is not None:
        named = [attention_kernel(trace.operations[items[index].operations[0]]) for index in owner]
        older = torch_version_factors(shapes, gpus, trace.software) * attention_factors(
            shapes, named, gpus, trace.software
        )
        in_loops = sustained_factors(shapes, gpus, times.seconds, models)
        of_release = times.interval.scaled(older).map(np.multiply, in_loops)
        interval = of_release.map(added)
        whole = np.where(interval.middle > 0, interval.middle, 1.0)
        base_share = added(of_release.middle * times.extrapolated_share) / whole
        shares = {method: added(of_release.middle * share) / whole for method, share in times.shares.items()}
    interval = interval.scaled(layout_factors(trace.operations, items, gpus, base_share))
    interval = interval.scaled(across_factors(trace.operations, items, gpus, interval.middle))
    interval = interval.scaled(np.array([[memory_factor(gpu)] for gpu in gpus]))
    unknown = np.array([bool(item.unknown) for item in items], dtype=np.bool_)
    return WorkTimes(
        items=items,
        families=tuple(_family(trace, item) for item in items),
        phases=tuple(trace.operations[item.operations[0]].phase for item in items),
        interval=replace(interval, high=interval.high * np.where(unknown, UNKNOWN_SPREAD, 1.0)),
        shares=shares,
        extrapolated_share=base_share,
    )


def _family(trace: Trace, item: WorkItem) -> str:
    if not item.shapes:
        return trace.operations[item.operations[0]].name
    return item.shapes[0].operation.removesuffix("_backward")


def _without_last(timed: WorkTimes) -> WorkTimes:
    return replace(
        timed,
        interval=timed.interval.map(lambda seconds: seconds[:-1]),
        shares={method: share[:-1] for method, share in timed.shares.items()},
        extrapolated_share=None if timed.extrapolated_share is None else timed.extrapolated_share[:-1],
    )


def _from_measurements(trace: Trace, direct: WorkTimes, gpus: Sequence[Gpu], origin: Gpu) -> WorkTimes:
    """Scale the measured seconds to other GPUs. The last row of `direct` is the prediction for the origin."""
    kernels = [tuple(k for i in item.operations for k in trace.operations[i].kernels) for item in direct.items]
    measured = np.array([math.fsum(kernel.seconds for kernel in launched) for launched in kernels])
    missing = np.array([_lacks_kernels(trace, item) for item in direct.items], dtype=np.bool_)
    alone = _without_last(direct)
    at_origin = direct.seconds[-1]
    usable = (measured > 0) & (at_origin > 0)
    by_ratio = usable & np.array([_goes_by_ratio(direct, i) for i in range(len(kernels))], dtype=np.bool_)
    correction = np.divide(measured, at_origin, out=np.ones_like(measured), where=usable)
    kinship = _kinships(direct.items, by_ratio, gpus, origin)
    kinship = np.where(_cannot_run_on(gpus, kernels, origin), KERNEL_RELATIONS.index("other units"), kinship)
    residuals: Array = np.log(correction)
    exponent = np.array([RATIO_EXPONENTS[each] for each in KERNEL_RELATIONS])[kinship]
    known = _known(direct)
    shrunk = transferable_residuals(residuals, _groups(direct, by_ratio))
    chosen_by_library = kinship == KERNEL_RELATIONS.index("same units")
    carried = exponent * np.where((known[:-1] & known[-1]) | chosen_by_library, shrunk, residuals)

    by_waves = Interval.from_factor(_wave_scaled(direct.items, kernels, gpus, origin, trace), FORMULA_SPREAD)
    scaled = alone.seconds * np.exp(carried)
    by_models = ratio_interval(alone.interval, scaled, kinship)
    is_origin = np.array([[target == origin] for target in gpus])
    is_measured = is_origin & ~missing  # (gpus, items)
    is_modelled = (by_ratio | missing) & ~is_measured
    is_waved = ~is_modelled & ~is_measured

    def chosen(directly: Array, by_model: Array, by_wave: Array, as_measured: Array) -> Array:
        return np.select([is_measured, is_waved, by_ratio & ~missing], [as_measured, by_wave, by_model], directly)

    if (is_origin & missing).any():
        rates = np.where(is_origin & missing, _own_rates(direct.items, measured, at_origin, missing), 1.0)
        alone = replace(alone, interval=alone.interval.scaled(rates))
    shares = {name: np.where(is_modelled, share, 0.0) for name, share in alone.shares.items()}
    shares |= {"wave": is_waved.astype(np.float64), "measured": is_measured.astype(np.float64)}
    return replace(
        alone,
        interval=alone.interval.map(chosen, by_models, by_waves, Interval.from_factor(measured, MEASURED_SPREAD)),
        shares=shares,
        extrapolated_share=None
        if alone.extrapolated_share is None
        else np.where(is_modelled, alone.extrapolated_share, 0.0),
    )


def _known(direct: WorkTimes) -> BoolArray:
    """Return which items were predicted by a network trained on measurements of their GPU, shape (gpus, items)."""
    if direct.extrapolated_share is None:
        return np.zeros(direct.seconds.shape, dtype=np.bool_)
    known: BoolArray = direct.shares["mlp"] - direct.extrapolated_share > 0.5
    return known


def _groups(direct: WorkTimes, by_ratio: BoolArray) -> IndexArray:
    """Return group numbers of items scaled by ratios, one per family and dtype; -1 for others, shape (items,)."""
    numbers: dict[tuple[str, str], int] = {}
    return np.array(
        [
            numbers.setdefault((family, item.shapes[0].dtype), len(numbers)) if goes else -1
            for item, family, goes in zip(direct.items, direct.families, by_ratio.tolist(), strict=True)
        ],
        dtype=np.intp,
    )


def transferable_residuals(residuals: Array, groups: IndexArray) -> Array:
    """Return the part of each residual on the origin that applies to another GPU.

    It is for operations of which both GPUs have trained networks, or whose kernels a library chooses: residuals of 93
    products that ran on an A100 and a B200 (`simumax_operators.csv`) have a correlation of -0.25, those of the same
    code on an H200 and a GB200 one of 0.85.

    A residual has two parts: the median of its family (a software version, a clock) and its own deviation from this
    median. Each part x is multiplied by x^2 / (x^2 + t^2), with `SCATTER` as t, because
    residuals within the errors of the networks do not recur on another GPU.

    Args:
        residuals: log(measured / predicted) on the origin, shape (items,).
        groups: Number of each item's family; -1 for items without a family, whose residuals are dropped.
    """
    believed = np.zeros_like(residuals)
    for number in np.unique(groups[groups >= 0]):
        mine = groups == number
        shared = float(np.median(residuals[mine]))
        own = residuals[mine] - shared
        believed[mine] = transferred_part(shared, SCATTER) + transferred_part(own, SCATTER)
    return believed


def _lacks_kernels(trace: Trace, item: WorkItem) -> bool:
    """Return whether an item ran on the GPU but has no recorded kernels; communication has no kernels of its own."""
    operations = [trace.operations[index] for index in item.operations]
    if not item.shapes or any(operation.kernels or operation.name.startswith("c10d::") for operation in operations):
        return False
    return any(tensor.device == "cuda" for one in operations for tensor in (*one.inputs, *one.outputs))


def _own_rates(items: Sequence[WorkItem], measured: Array, predicted: Array, missing: BoolArray) -> Array:
    """Return the machine's own rate, measured over predicted seconds on the origin, for each item.

    The rate is of items with the same shapes, otherwise of all matmuls or all other work. Clock, power and cooling
    belong to the machine, so other GPUs do not take it. Without a fifth of the
    kernels of 15 recordings, the mean error was 15.5 % from shapes, and 6.0 % with the rate (at commit 35902dc1).
    """
    totals: dict[Hashable, tuple[float, float]] = {}
    units = [operation_spec(item.shapes[0].operation).units if item.shapes else "" for item in items]
    for index in map(int, np.flatnonzero(~missing & (measured > 0) & (predicted > 0))):
        for key in (items[index].shapes, units[index]):
            seen = totals.get(key, (0.0, 0.0))
            totals[key] = seen[0] + float(measured[index]), seen[1] + float(predicted[index])
    pairs = (totals.get(item.shapes) or totals.get(own) or (1.0, 1.0) for item, own in zip(items, units, strict=True))
    return np.array([seconds / expected for seconds, expected in pairs])


def _goes_by_ratio(direct: WorkTimes, column: int) -> bool:
    """Return whether an item scales by a ratio; vector operations without a network scale by waves."""
    item = direct.items[column]
    if not item.shapes or item.unknown:
        return False
    by_figures = direct.shares["formula"][:, column] + direct.shares["roofline"][:, column]  # (gpus,)
    is_modelled = bool((by_figures < 0.5).all())
    return is_modelled or operation_spec(item.shapes[0].operation).units != "vector"


def _kinships(items: Sequence[WorkItem], by_ratio: BoolArray, gpus: Sequence[Gpu], origin: Gpu) -> IndexArray:
    """Return the index in `KERNEL_RELATIONS` for each item and GPU, by the dominant shape of the item."""
    known: dict[tuple[str, str], list[int]] = {}
    table = np.zeros((len(gpus), len(items)), dtype=np.intp)
    for column in map(int, np.flatnonzero(by_ratio)):
        leading = items[column].shapes[0]
        key = leading.operation, leading.dtype
        if key not in known:
            known[key] = [KERNEL_RELATIONS.index(kernel_relation(*key, origin, target)) for target in gpus]
        table[:, column] = known[key]
    return table


_ONE_ARCHITECTURE: Final = re.compile(r"flash.*sm(90|1[0-2]0)", re.IGNORECASE)
"""Names of FlashAttention 3 and 4, which run on one architecture. Other GPUs run another release of FlashAttention."""


def _cannot_run_on(gpus: Sequence[Gpu], kernels: Sequence[tuple[Kernel, ...]], origin: Gpu) -> BoolArray:
    """Return which items have kernels for the origin's architecture alone, shape (gpus, items)."""
    own = np.array(
        [any(_ONE_ARCHITECTURE.search(kernel.name) for kernel in launched) for launched in kernels], dtype=np.bool_
    )
    return own & np.array([[gpu.architecture != origin.architecture] for gpu in gpus], dtype=np.bool_)


def kernel_relation(operation: str, dtype: str, origin: Gpu, target: Gpu) -> KernelRelation:
    """Return the relation between an operation's kernels on two GPUs."""
    if operation_spec(operation).units != "tensor":
        return "same code"
    return "same units" if _on_matrix_units(dtype, origin) == _on_matrix_units(dtype, target) else "other units"


def _on_matrix_units(dtype: str, gpu: Gpu) -> bool:
    """Return whether tensor cores compute the dtype, instead of CUDA cores."""
    if dtype == "float64":
        return (gpu.peak(dtype) or 0.0) > gpu.lanes_peak(dtype)
    if dtype == "tf32":
        return dtype in gpu.peak_flops_per_second
    return dtype != "float32" and not uses_float32_fallback(dtype, gpu)


def _wave_scaled(
    items: Sequence[WorkItem],
    kernels: Sequence[tuple[Kernel, ...]],
    gpus: Sequence[Gpu],
    origin: Gpu,
    trace: Trace,
) -> Array:
    """Apply wave scaling to the measured seconds of each item, (gpus, items); scale matmuls of extensions by rates."""
    factors: dict[tuple[object, ...], Array] = {}
    seconds = np.zeros((len(gpus), len(items)))
    by_name = {index for index, item in enumerate(items) if _is_outside(trace, item)}
    for index, (item, launched) in enumerate(zip(items, kernels, strict=True)):
        intensity, dtype = _intensity(item.shapes)
        for kernel in launched:
            if index in by_name and (matrix := _matrix_seconds(kernel, gpus, origin, trace.flags)) is not None:
                seconds[:, index] += matrix
                continue
            key = (kernel.grid, kernel.block, kernel.registers_per_thread, kernel.shared_memory_bytes, intensity, dtype)
            if key not in factors:
                factors[key] = np.array([_wave_factor(kernel, intensity, dtype, origin, target) for target in gpus])
            seconds[:, index] += kernel.seconds * factors[key]
    return seconds


def _is_outside(trace: Trace, item: WorkItem) -> bool:
    """Return whether no operation of torch launched the kernels (a CUDA graph, an extension, a user's kernel)."""
    return not any(trace.operations[index].name.startswith("aten::") for index in item.operations)


def _matrix_seconds(kernel: Kernel, gpus: Sequence[Gpu], origin: Gpu, flags: Flags) -> list[float] | None:
    from lightning_predict.kernels.kernel_names import matrix_dtype, scale_by_matmul_throughput

    dtype = matrix_dtype(kernel.name, tf32=flags.matmul_tf32)
    return None if dtype is None else [scale_by_matmul_throughput(kernel, dtype, origin, target) for target in gpus]


def _wave_factor(kernel: Kernel, intensity: float, dtype: str, origin: Gpu, target: Gpu) -> float:
    from lightning_predict.kernels.wave_scaling import memory_boundedness, ridge_of, scaled_seconds

    gamma = memory_boundedness(intensity=intensity, ridge=ridge_of(target, dtype))
    if kernel.seconds <= 0:
        return 1.0
    return scaled_seconds(kernel, origin=origin, destination=target, gamma=gamma) / kernel.seconds


def _intensity(shapes: Sequence[OperationShape]) -> tuple[float, str]:
    """Return FLOPs per byte of an item, and its compute dtype. Unknown work counts as memory-bound."""
    flops = moved = 0.0
    dtype = "float32"
    for shape in shapes:
        batch = batch_shapes([shape])
        flops += float(batch.flops[0])
        moved += float(batch.bytes_moved[0])
        dtype = shape.dtype if batch.spec.units == "tensor" else dtype
    return (flops / moved if moved else 0.0), dtype
