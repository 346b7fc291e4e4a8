"""Predicts kernel times of operations on GPUs: chooses the source of each time, then clamps it to bounds.

The first estimator of an operation that supports a shape predicts its time (`source_of`). Some use trained models
(`KernelModels`). Each applicable entry of `BOUNDS` then clamps the time, in order. For example, the backward pass of a
layer norm in float16, on a GPU without measurements, takes

    proxy:  2.2 x the forward pass, by the network of norms and element-wise work
    → at most as long as another algorithm → at least the latency of its blocks → at least its minimum work
    → at most as long as in float32

A source gets batches of one operation and dtype. A bound gets arrays of all shapes to which the bound applies.
`explain` returns the source and the bounds that determined a time. If a GPU computes a matrix dtype no faster than
float32, sources use float32 instead (`TimingRequest.computed`). Example::

    >>> from lightning_predict.hardware import gpu
    >>> from lightning_predict.kernels.operations import operation_shape
    >>> add = operation_shape("add", "float32", rows=4096, cols=4096)
    >>> times = predict_operation_times([add], [gpu("T4")], models=None)
    >>> times.seconds.shape, float(times.shares["roofline"][0, 0])
    ((1, 1), 1.0)
    >>> explain(add, gpu("T4"), None).source
    'roofline'
    >>> compute_dtype_on("tf32", gpu("T4")), uses_float32_fallback("bfloat16", gpu("T4"))
    ('float32', True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal, Protocol, get_args

import numpy as np

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.interval import Interval
from lightning_predict.base.ties import clearly_less
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.operations import (
    COMPUTE_BYTES,
    Alternative,
    Array,
    BoolArray,
    Columns,
    CountedShape,
    Formula,
    IndexArray,
    NetworkSpec,
    OperationShape,
    RooflineEfficiency,
    ShapeBatch,
    Surrogate,
    batch_shapes,
    operation_spec,
    surrogates_of,
)
from lightning_predict.kernels.roofline import (
    SHORTEST_KERNEL_SECONDS,
    TYPICAL_UTILISATION,
    minimum_latencies,
    roofline_seconds,
    rooflines_at_equal_bandwidth,
    sustained_flops,
)
from lightning_predict.uncertainty import FORMULA_SPREAD, SURROGATE_SPREAD, above_minimum_work, summed_by_owner
from lightning_predict.weights.records import MeasuredFactor

# --- Estimates and the interface of models

TimedBy = Literal["mlp", "proxy", "bytes", "formula", "roofline"]
"""Prediction method of a time that was not measured.

`mlp`: a model trained on measurements of this operation and dtype, on this or another GPU. `proxy`: a model of a
related operation or dtype. `bytes`: a copy of the same number of bytes. `formula`: a formula of the family, based on
tiles or caches. `roofline`: peak arithmetic and bandwidth alone."""


@dataclass(frozen=True)
class Estimate:
    """Predicted times of shapes, arrays of shape (gpus, shapes)."""

    interval: Interval[Array]
    is_extrapolated: BoolArray | None = None  # Whether the network had no measurements of the GPU; None: no network
    # Whether a bound lowered the network's time, by the name of the bound (`models.LESSER_GPU`)
    held: Mapping[str, BoolArray] = field(default_factory=dict)

    @property
    def seconds(self) -> Array:
        """Middle of the prediction."""
        return self.interval.middle


class KernelModels(Protocol):
    """Interface of trained models; `models.BundledModels` implements it."""

    def for_gpu(self, gpu_name: str) -> KernelModels:
        """Return the models of one GPU, including its networks of families that other GPUs do not have."""

    def supports(self, operation: str, dtype: str) -> bool:
        """Return whether a model supports the operation in this dtype, even if it was not trained on this dtype."""

    def timed_by(self, operation: str, dtype: str) -> TimedBy:
        """Return how the model of an operation predicts its time in this dtype."""

    def measured_factor(self, gpu_name: str, operation: str, dtype: str) -> MeasuredFactor | None:
        """Return the factor from this GPU's own measurements, for an operation without a neural network of this GPU."""

    def estimate(self, batch: ShapeBatch, gpus: Sequence[Gpu]) -> Estimate:
        """Estimate seconds and their 90 % interval, each of shape (gpus, shapes)."""


@dataclass(frozen=True, slots=True)
class OperationTimes:
    """Seconds of shapes, arrays of shape (gpus, shapes)."""

    interval: Interval[Array]
    shares: Mapping[TimedBy, Array]  # Share of the time by prediction method; the shares add up to 1
    extrapolated_share: Array  # Share of the time from neural networks without measurements of the GPU

    @property
    def seconds(self) -> Array:
        """Middle of the prediction."""
        return self.interval.middle


def compute_dtype_on(dtype: str, gpu: Gpu) -> str:
    """Return the dtype in which a GPU computes: without TF32 units, TF32 becomes float32."""
    if dtype == "float8" and "float8" not in gpu.peak_flops_per_second:
        raise InvalidArgumentError(
            f"{gpu.name} has no units for float8; expected a GPU that does (Ada, Hopper or Blackwell). "
            "Choose bfloat16 or float16, or another GPU."
        )
    return "float32" if dtype == "tf32" and "tf32" not in gpu.peak_flops_per_second else dtype


def float8_becomes_bfloat16(gpu: Gpu) -> bool:
    """Return whether float8 matmuls count as bfloat16: torch cannot run float8 here, and bfloat16 has units."""
    return gpu.peak("float8") is None and not uses_float32_fallback("bfloat16", gpu)


def in_bfloat16(shape: OperationShape) -> OperationShape:
    """Return a float8 matmul as a bfloat16 matmul; other shapes unchanged."""
    is_matmul = shape.dtype == "float8" and operation_spec(shape.operation).units == "tensor"
    return replace(shape, dtype="bfloat16") if is_matmul else shape


def uses_float32_fallback(dtype: str, gpu: Gpu) -> bool:
    """Return whether this GPU computes a lower-precision matrix dtype on float32 units, which are as fast.

    `compute_dtype_on` handles TF32: without TF32 units, TF32 is equal to float32.
    """
    if dtype not in ("float8", "float16", "bfloat16"):
        return False
    peak = gpu.peak(dtype)
    is_no_faster = peak is None or peak <= gpu.peak_flops_per_second["float32"]
    return is_no_faster or dtype in gpu.emulated_dtypes or not gpu.generation.has_tensor_cores


def computes_in_float32(dtype: str, gpu: Gpu) -> bool:
    """Return whether this GPU computes another matrix dtype, including TF32, on the units for float32."""
    return uses_float32_fallback(dtype, gpu) or (dtype == "tf32" and compute_dtype_on(dtype, gpu) == "float32")


# --- Times of all shapes

SIBLING_DTYPES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "tensor": {
        "tf32": ("bfloat16", "float16"),
        "float16": ("bfloat16",),
        "bfloat16": ("float16",),
        "float64": ("float32",),
        "float8": ("bfloat16",),
    },
    "vector": dict.fromkeys(("float16", "bfloat16", "float64", "tf32", "float8"), ("float32",)),
    "link": {},
    "fabric": {},
}
"""For each dtype, other dtypes with similar kernels. Memory-bound kernels of these differ only by their bytes."""

LOWER_PRECISIONS: Final = frozenset({"tf32", "float16", "bfloat16", "float8"})
"""Dtypes whose values float32 can represent, so that float32 kernels could compute the same result."""


def predict_operation_times(
    shapes: Sequence[OperationShape], gpus: Sequence[Gpu], models: KernelModels | None
) -> OperationTimes:
    """Predict the times of shapes on GPUs, (gpus, shapes), duplicates once; without `models`, by the roofline."""
    position: dict[OperationShape, int] = {}
    columns = np.array([position.setdefault(item, len(position)) for item in shapes], dtype=np.intp)  # (shapes,)
    distinct = list(position)
    dtypes = {item.dtype for item in distinct if operation_spec(item.operation).units == "tensor"}
    serving = [models if models is None else models.for_gpu(gpu.name) for gpu in gpus]
    groups: dict[tuple[frozenset[str], bool, int], list[int]] = {}
    for row, (gpu, own) in enumerate(zip(gpus, serving, strict=True)):
        as_float32 = frozenset(dtype for dtype in dtypes if computes_in_float32(dtype, gpu))
        groups.setdefault((as_float32, float8_becomes_bfloat16(gpu), id(own)), []).append(row)
    parts = [
        _predict_times(
            TimingRequest(
                [in_bfloat16(item) for item in distinct] if in_16_bits else distinct,
                [gpus[row] for row in rows],
                serving[rows[0]],
                as_float32,
            )
        )
        for (as_float32, in_16_bits, _), rows in groups.items()
    ]

    def joined(*tables: Array) -> Array:
        """Combine the groups' tables, (rows, distinct shapes), to a table of shape (gpus, shapes)."""
        whole = np.empty((len(gpus), len(distinct)))
        for rows, table in zip(groups.values(), tables, strict=True):
            whole[rows] = table
        return whole[:, columns]

    return _each(parts[0], joined, *parts[1:])


@dataclass(frozen=True)
class TimingRequest:
    """Distinct shapes, and GPUs that all compute the same matrix dtypes in float32."""

    requested: Sequence[OperationShape]
    gpus: Sequence[Gpu]
    models: KernelModels | None
    as_float32: frozenset[str] = frozenset()

    @cached_property
    def computed(self) -> Sequence[OperationShape]:
        """Shapes with the dtypes in which the GPUs compute."""
        return [
            replace(item, dtype="float32")
            if item.dtype in self.as_float32 and operation_spec(item.operation).units == "tensor"
            else item
            for item in self.requested
        ]

    @cached_property
    def least(self) -> Array:
        """Lower bound on the seconds of any kernel, (gpus, shapes)."""
        return _rooflines(self.requested, self.gpus, least=True)

    @property
    def is_float32_fallback(self) -> BoolArray:
        """Whether float32 replaces another dtype, shape (shapes,). TF32 without TF32 units counts as float32."""
        pairs = zip(self.computed, self.requested, strict=True)
        return np.array([computed != asked and asked.dtype != "tf32" for computed, asked in pairs], dtype=np.bool_)

    def subset(self, columns: Sequence[int]) -> TimingRequest:
        """Return a request for some of the shapes."""
        return replace(self, requested=[self.requested[column] for column in columns])

    def for_shapes(self, shapes: Sequence[OperationShape]) -> TimingRequest:
        """Return a request for other shapes in their own dtypes, with the same GPUs and models."""
        return TimingRequest(shapes, self.gpus, self.models)


# --- Sources of times

TimeSource = Literal["network", "formula", "sibling dtype", "proxy", "roofline"]
"""How a time is predicted: by the neural network of the operation and dtype; by a formula; by the network of a sibling
dtype, times the ratio of the rooflines; as the sum of surrogates; by the roofline, which supports every shape.
(Measured kernels of the trace precede all of these, in `measured_scaling.py`.)"""


def source_of(shape: OperationShape, models: KernelModels | None) -> TimeSource:
    """Return the first source that supports a shape, in the order of its operation's estimators."""
    if models is None:
        return "roofline"
    spec, has_network = operation_spec(shape.operation), models.supports(shape.operation, shape.dtype)
    if has_network and not spec.of(NetworkSpec):  # collectives, which measured curves time
        return "network"
    for estimator in spec.estimators:
        if isinstance(estimator, NetworkSpec) and has_network:
            return "network"
        if isinstance(estimator, Formula) and estimator.supports(shape):
            return "formula"
        if isinstance(estimator, Surrogate) and not has_network:
            return "proxy" if _sibling(shape.operation, shape.dtype, models) is None else "sibling dtype"
    return "roofline" if _sibling(shape.operation, shape.dtype, models) is None else "sibling dtype"


def _estimate(source: TimeSource, batch: ShapeBatch, gpus: Sequence[Gpu], models: KernelModels | None) -> Estimate:
    """Predict the times of a batch by a source other than `proxy`, whose parts have their own sources."""
    if source == "formula":
        return Estimate(batch.spec.of(Formula)[0].seconds(batch, gpus))
    if source == "roofline" or models is None:
        return _by_roofline(batch, gpus)
    return models.estimate(batch, gpus) if source == "network" else _by_sibling(batch, gpus, models)


def _timed_by(source: TimeSource, shape: OperationShape, models: KernelModels | None) -> TimedBy:
    """Return the prediction method of a source."""
    if source == "network" and models is not None:
        return models.timed_by(shape.operation, shape.dtype)
    return "formula" if source == "formula" else "roofline" if source == "roofline" else "proxy"


def _sibling(operation: str, dtype: str, models: KernelModels) -> str | None:
    """Return the sibling dtype whose neural network replaces a missing network of the shape's dtype, or None."""
    siblings = SIBLING_DTYPES[operation_spec(operation).units].get(dtype, ())
    return next((sibling for sibling in siblings if models.supports(operation, sibling)), None)


def _by_sibling(batch: ShapeBatch, gpus: Sequence[Gpu], models: KernelModels) -> Estimate:
    sibling = _sibling(batch.operation, batch.dtype, models)
    assert sibling is not None  # by `source_of`
    twin = ShapeBatch(batch.operation, sibling, _columns_of_twin(batch, sibling))
    estimate = models.estimate(twin, gpus)
    if batch.dtype == "tf32" and batch.spec.units == "tensor":
        return Estimate(_as_tf32(estimate.interval, batch, twin, gpus), estimate.is_extrapolated)
    # The minimum kernel time is the same for both dtypes.
    own, other = rooflines_at_equal_bandwidth(batch, twin, gpus)
    ratio = (SHORTEST_KERNEL_SECONDS + own) / (SHORTEST_KERNEL_SECONDS + other)  # (gpus, shapes)
    return Estimate(estimate.interval.scaled(ratio), estimate.is_extrapolated)


def _as_tf32(of_twin: Interval[Array], batch: ShapeBatch, twin: ShapeBatch, gpus: Sequence[Gpu]) -> Interval[Array]:
    """Convert seconds of matmuls in 16 bits to TF32. Only the time after the start of a kernel is scaled.

    Rows with twice the bytes pass through shared memory in twice as many steps, even if a matmul is too small to reach
    the roofline. XLA's matmuls that take 4 to 12 µs in bfloat16 take 2 to 9 µs more in TF32, on the B200 and the H100.
    """
    own, other = rooflines_at_equal_bandwidth(batch, twin, gpus)
    slower = own / other  # (gpus, shapes)

    def longer(seconds: Array) -> Array:
        started = np.minimum(seconds, SHORTEST_KERNEL_SECONDS)
        return started + (seconds - started) * slower

    return of_twin.map(longer)


def _columns_of_twin(batch: ShapeBatch, sibling: str) -> Columns:
    """Return the sizes of a 16-bit matmul whose rows have the same alignment as the rows of the batch.

    A row with an odd number of 4-byte elements has the alignment of an even number of 2-byte elements. A multiple of 4
    corresponds to a multiple of 8.
    """
    is_wider = COMPUTE_BYTES[batch.dtype] > COMPUTE_BYTES[sibling] == 2
    if batch.operation not in ("linear", "bmm") or not is_wider:
        return batch.columns
    sides = {name: batch.columns[name] for name in ("m", "n", "k")}
    return {**batch.columns, **{name: np.where(size > 1, _twice_as_even(size), size) for name, size in sides.items()}}


def _twice_as_even(size: Array) -> Array:
    """Round up to the next multiple of 2, 4 or 8, for sizes that are odd, multiples of 2, and multiples of 4."""
    unit = np.where(size % 4 == 0, 8.0, np.where(size % 2 == 0, 4.0, 2.0))
    even: Array = np.ceil(size / unit) * unit
    return even


def _by_roofline(batch: ShapeBatch, gpus: Sequence[Gpu]) -> Estimate:
    (untrained, *_) = (*batch.spec.of(RooflineEfficiency), RooflineEfficiency())
    kernels = 1 if untrained.sequential_kernels is None else untrained.sequential_kernels(batch.columns)
    share = untrained.share or TYPICAL_UTILISATION[batch.spec.units]
    seconds = roofline_seconds(batch, gpus) / share + SHORTEST_KERNEL_SECONDS * kernels  # (gpus, shapes)
    return Estimate(Interval.from_factor(seconds, untrained.spread or FORMULA_SPREAD))


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A shape whose time a source predicts directly."""

    shape: OperationShape
    source: TimeSource
    timed_by: TimedBy


@dataclass(frozen=True, slots=True)
class _Expansion:
    """Leaves into which a shape is expanded, each with a multiplier."""

    parts: tuple[tuple[_Leaf, float], ...]
    spread: float  # Factor by which the interval is widened because of a surrogate
    is_surrogate: bool = False  # Whether the leaves are other operations than the shape

    def timed_by(self, leaf: _Leaf) -> TimedBy:
        """Return the prediction method of a leaf. A model of another operation counts as a proxy."""
        return "proxy" if self.is_surrogate and leaf.timed_by in ("mlp", "bytes") else leaf.timed_by


def _expand(shape: OperationShape, models: KernelModels | None) -> _Expansion:
    source = source_of(shape, models)
    if source != "proxy":
        leaf = _Leaf(shape, source, _timed_by(source, shape, models))
        return _Expansion(((leaf, 1.0),), SURROGATE_SPREAD if leaf.timed_by == "proxy" else 1.0)
    expanded = [(_expand(part.shape, models), part.times) for part in surrogates_of(shape)]
    leaves = tuple((leaf, count * times) for inner, times in expanded for leaf, count in inner.parts)
    return _Expansion(leaves, SURROGATE_SPREAD * max(inner.spread for inner, _ in expanded), is_surrogate=True)


def _unclamped_times(request: TimingRequest) -> OperationTimes:
    """Predict the time of each shape before any bound: the sum of the times of its leaves."""
    shapes = request.computed
    expansions = [_expand(item, request.models) for item in shapes]
    leaves = list(dict.fromkeys(leaf for expansion in expansions for leaf, _ in expansion.parts))
    per_leaf, by_base = _leaf_times(leaves, request)  # each (gpus, leaves)
    position = {leaf: index for index, leaf in enumerate(leaves)}

    pairs = [(i, expansion, leaf, count) for i, expansion in enumerate(expansions) for leaf, count in expansion.parts]
    owner = np.array([i for i, *_ in pairs], dtype=np.intp)  # (pairs,)
    leaf_of = np.array([position[leaf] for *_, leaf, _ in pairs], dtype=np.intp)  # (pairs,)
    times = np.array([count for *_, count in pairs])  # (pairs,)
    methods = np.array([expansion.timed_by(leaf) for _, expansion, leaf, _ in pairs], dtype=np.str_)
    spread = np.array([expansion.spread for expansion in expansions])  # (shapes,)

    def added(values: Array) -> Array:
        return summed_by_owner(values[:, leaf_of] * times, owner, len(shapes))

    interval = per_leaf.map(added).widened(spread)  # (gpus, shapes)
    whole = interval.middle
    shares: dict[TimedBy, Array] = {
        method: summed_by_owner(per_leaf.middle[:, leaf_of] * times * (methods == method), owner, len(shapes)) / whole
        for method in get_args(TimedBy)
    }
    return OperationTimes(interval, shares, added(per_leaf.middle * by_base) / whole)


def _leaf_times(leaves: Sequence[_Leaf], request: TimingRequest) -> tuple[Interval[Array], BoolArray]:
    """Predict times of leaves in batches: seconds, and whether a base network was used, each (gpus, leaves)."""
    shape = (len(request.gpus), len(leaves))
    low, middle, high = (np.empty(shape) for _ in range(3))
    by_base = np.zeros(shape, dtype=np.bool_)
    groups: dict[tuple[str, str, TimeSource], list[int]] = {}
    for index, leaf in enumerate(leaves):
        groups.setdefault((leaf.shape.operation, leaf.shape.dtype, leaf.source), []).append(index)
    for (_, _, source), indices in groups.items():
        batch = batch_shapes([leaves[index].shape for index in indices])
        estimate = _estimate(source, batch, request.gpus, request.models)
        low[:, indices], middle[:, indices], high[:, indices] = (
            estimate.interval.low,
            estimate.interval.middle,
            estimate.interval.high,
        )
        if estimate.is_extrapolated is not None:
            by_base[:, indices] = estimate.is_extrapolated
    return Interval(low, middle, high), by_base


# --- Bounds on times


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBound:
    """Upper or lower bound on times."""

    name: str
    # Returns whether the bound may apply to a shape, which is given as requested and as computed
    applies_to: Callable[[OperationShape, OperationShape, KernelModels | None], bool]
    clamp: Callable[[OperationTimes, TimingRequest], OperationTimes]  # Clamps the times to which the bound applies


def _alternative(shape: OperationShape) -> tuple[Alternative, OperationShape] | None:
    for alternative in operation_spec(shape.operation).of(Alternative):
        other = alternative.shape(shape)
        return None if other is None else (alternative, other)
    return None


def _clamp_to_alternative(times: OperationTimes, request: TimingRequest) -> OperationTimes:
    """Use the time of another algorithm if it is an upper bound, or if a network without measurements is slower.

    Examples are the implicit matmul of a convolution, and a transfer of the rows of a norm. The interval covers both
    values. The rule was derived from one ResNet-50 step of a V100. There, 1 x 1 and strided filters take the same total
    time as the matmuls within 2 %, and 0.70 of the base network's time. Winograd filters (3 x 3, stride 1) are faster
    as convolutions.
    """
    alternatives = [pair for item in request.computed if (pair := _alternative(item)) is not None]
    other = _unclamped_times(request.for_shapes([shape for _, shape in alternatives]))
    kinds = [alternative for alternative, _ in alternatives]
    has_it = np.array([[kind.is_on(gpu) for kind in kinds] for gpu in request.gpus])
    is_by_network = times.shares["roofline"] < 0.5
    counts = (times.extrapolated_share > 0.5) | (np.array([kind.bounds_networks for kind in kinds]) & is_by_network)
    faster = has_it & counts & clearly_less(other.seconds, times.seconds)  # (gpus, shapes)
    shares: dict[TimedBy, Array] = {
        method: np.where(faster, 1.0 if method == "proxy" else 0.0, share) for method, share in times.shares.items()
    }
    interval = Interval(
        np.where(faster, np.minimum(other.interval.low, times.interval.low), times.interval.low),
        np.where(faster, other.seconds, times.seconds),
        times.interval.high,
    )
    return OperationTimes(interval, shares, np.where(faster, other.extrapolated_share, times.extrapolated_share))


def _raised(times: OperationTimes, floor: Array, request: TimingRequest) -> OperationTimes:
    """Raise times to a lower bound from instructions or latency (`roofline.minimum_latencies`)."""
    binds = clearly_less(times.seconds, floor)  # (gpus, shapes)
    served: TimedBy = "roofline" if request.models is None else "proxy"
    shares: dict[TimedBy, Array] = {
        method: np.where(binds, float(method == served), share) for method, share in times.shares.items()
    }
    interval = times.interval.map(
        lambda seconds, least: np.where(binds, np.maximum(seconds, least), seconds),
        Interval.from_factor(floor, SURROGATE_SPREAD),
    )
    return OperationTimes(interval, shares, np.where(binds, 0.0, times.extrapolated_share))


def _clamp_to_matmuls_without_winograd(times: OperationTimes, request: TimingRequest) -> OperationTimes:
    """Raise convolutions to the time of all their matmuls at the sustained rate, on chips without Winograd kernels."""
    before = np.array([not gpu.generation.has_winograd for gpu in request.gpus])
    if not before.any():
        return times
    lasting = [
        replace(gpu, peak_flops_per_second=dict.fromkeys(gpu.peak_flops_per_second, sustained_flops(gpu, "float32")))
        for gpu in request.gpus
    ]
    least = np.where(before[:, None], _rooflines(request.computed, lasting), 0.0)
    return replace(times, interval=times.interval.scaled(np.maximum(least / times.seconds, 1.0)))


def _clamp_to_emulated_rate(times: OperationTimes, request: TimingRequest) -> OperationTimes:
    """Raise times to the rate of the requested dtype, if its emulation is slower than float32.

    An emulation as fast as float32 (float16 before tensor cores) can also save multiplications by Winograd's algorithm,
    which a roofline does not include.
    """
    interval = times.interval
    slower = [
        [(gpu.peak(asked.dtype) or 0.0) < gpu.peak_flops_per_second["float32"] for asked in request.requested]
        for gpu in request.gpus
    ]
    rates = np.where(np.array(slower, dtype=np.bool_), _rooflines(request.requested, request.gpus), 0.0)
    seconds = np.maximum(times.seconds, rates)
    return replace(times, interval=Interval(interval.low, seconds, np.maximum(interval.high, seconds)))


def _scaled_as_measured(times: OperationTimes, request: TimingRequest) -> OperationTimes:
    """Multiply times by the factors that were measured on the GPU, with the interval of such a correction."""
    models = request.models
    assert models is not None
    factors = [
        [models.measured_factor(gpu.name, item.operation, item.dtype) for item in request.computed]
        for gpu in request.gpus
    ]
    if not any(correction is not None for row in factors for correction in row):
        return times
    is_measured = np.array([[correction is not None for correction in row] for row in factors])  # (gpus, shapes)
    factor = np.array([[1.0 if correction is None else correction.factor for correction in row] for row in factors])
    spread = np.exp([[0.0 if correction is None else correction.half_width for correction in row] for row in factors])
    middle = times.seconds * factor
    interval = Interval(
        np.where(is_measured, middle / spread, times.interval.low),
        middle,
        np.where(is_measured, middle * spread, times.interval.high),
    )
    return replace(times, interval=interval, extrapolated_share=np.where(is_measured, 0.0, times.extrapolated_share))


def _clamp_to_minimum_work(times: OperationTimes, request: TimingRequest) -> OperationTimes:
    """Raise times to the minimum work, and widen intervals to at least the scatter of repeated timings.

    If float32 replaces another dtype, the float32 kernels count as a proxy, and the interval is wider.
    """
    stands_in = request.is_float32_fallback  # (shapes,)
    trained, copied = times.shares["mlp"], times.shares["bytes"]
    shares: dict[TimedBy, Array] = {
        "mlp": np.where(stands_in, 0.0, trained),
        "proxy": times.shares["proxy"] + np.where(stands_in, trained + copied, 0.0),
        "bytes": np.where(stands_in, 0.0, copied),
        "formula": times.shares["formula"],
        "roofline": times.shares["roofline"],
    }
    interval = above_minimum_work(times.interval, request.least, stands_in)
    return OperationTimes(interval, shares, times.extrapolated_share)


def _float32_holds(asked: OperationShape, computed: OperationShape, _models: KernelModels | None) -> bool:
    """Return whether float32 kernels could compute the shape, and its time does not come from them already.

    For grouped convolutions in channels-last layout, libraries choose 16-bit kernels although these are slower. A copy
    that is counted in bytes moves the same bytes in any dtype.
    """
    kind = operation_spec(asked.operation)
    if kind.element_bytes is not None:
        return False
    if asked.parameters.get("channels_last") and asked.parameters.get("groups", 1) > 1:
        return False
    on_gpu = kind.units in ("tensor", "vector")
    return on_gpu and asked.dtype in LOWER_PRECISIONS and asked == computed


def _clamp_to_float32(times: OperationTimes, request: TimingRequest) -> OperationTimes:
    """Use the times of float32 if they are shorter.

    Float32 times are computed only if they can be shorter. The interval is the interval of a surrogate. Its lower end
    is reduced by the possible gain of the dtype's own kernels.
    """
    twins = [replace(item, dtype="float32") for item in request.requested]
    least, bound = _rooflines(twins, request.gpus, least=True), request.least
    may_gain = clearly_less(least, times.seconds) & ~clearly_less(least, bound)  # (gpus, shapes)
    doubtful = np.flatnonzero(may_gain.any(axis=0))
    if not doubtful.size:
        return times
    float32 = predict_operation_times([twins[int(index)] for index in doubtful], request.gpus, request.models)
    own, gain = _columns(times, doubtful), (bound / least)[:, doubtful]
    taken = clearly_less(float32.seconds, own.seconds) & may_gain[:, doubtful]
    shares: dict[TimedBy, Array] = {method: np.zeros_like(gain) for method in get_args(TimedBy)}
    shares |= {method: float32.shares[method] for method in ("formula", "roofline")}
    shares["proxy"] = 1 - float32.shares["formula"] - float32.shares["roofline"]
    stand_in = float32.interval.widened(SURROGATE_SPREAD)
    stand_in = replace(stand_in, low=np.maximum(stand_in.low * gain, bound[:, doubtful]))
    # Kernels of the dtype may wait longer than float32's, such as softmax of odd rows.
    waits = minimum_latencies([request.requested[int(index)] for index in doubtful], request.gpus)
    instead = _raised(OperationTimes(stand_in, shares, float32.extrapolated_share), waits, request)

    def chosen(table: Array, other: Array) -> Array:
        return np.where(taken, other, table)

    return _merged(times, doubtful, _each(own, chosen, instead))


BOUNDS: Final = (
    TimeBound(
        name="another algorithm",
        applies_to=lambda _, computed, models: models is not None and _alternative(computed) is not None,
        clamp=_clamp_to_alternative,
    ),
    TimeBound(
        name="instructions and waiting",
        applies_to=lambda _, computed, _models: operation_spec(computed.operation).latency is not None,
        clamp=lambda times, own: _raised(times, minimum_latencies(own.computed, own.gpus), own),
    ),
    TimeBound(
        name="all products",
        applies_to=lambda _, computed, _models: computed.operation.startswith("conv"),
        clamp=_clamp_to_matmuls_without_winograd,
    ),
    TimeBound(
        name="emulation",
        applies_to=lambda asked, computed, _: computed != asked and asked.dtype != "tf32",
        clamp=_clamp_to_emulated_rate,
    ),
    TimeBound(
        name="own measurements", applies_to=lambda _, _computed, models: models is not None, clamp=_scaled_as_measured
    ),
    TimeBound(name="least work", applies_to=lambda *_: True, clamp=_clamp_to_minimum_work),
    TimeBound(name="float32's kernels", applies_to=_float32_holds, clamp=_clamp_to_float32),
)
"""Bounds on times, in order of application.

Upper bounds precede lower bounds, so that no lower bound is violated afterwards. Factors from the GPU's own
measurements are applied in between. The float32 bound is last, because float32 times satisfy the same lower bounds."""


def _stages(request: TimingRequest) -> Iterator[tuple[str, OperationTimes]]:
    """Yield the times after the source and after each applicable bound, with the name of this stage."""
    times = _unclamped_times(request)
    yield "source", times
    for limit in BOUNDS:
        pairs = zip(request.requested, request.computed, strict=True)
        concerned = [index for index, pair in enumerate(pairs) if limit.applies_to(*pair, request.models)]
        if len(concerned) == len(request.requested):
            times = limit.clamp(times, request)
        elif concerned:
            columns = np.array(concerned, dtype=np.intp)
            times = _merged(times, columns, limit.clamp(_columns(times, columns), request.subset(concerned)))
        else:
            continue
        yield limit.name, times


def _predict_times(request: TimingRequest) -> OperationTimes:
    *_, (_, times) = _stages(request)
    return times


# --- Explanation of a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Source and bounds that determined the time of a shape on a GPU."""

    shape: OperationShape
    computed: OperationShape  # Shape in the dtype in which the GPU computes
    source: TimeSource
    parts: tuple[CountedShape, ...]  # Surrogates whose times add up to the time, if the source is a proxy
    sourced_seconds: float  # Time from the source, before any bound
    network_limits: tuple[str, ...]  # Bounds that already lowered the time of the neural network (`models.LESSER_GPU`)
    limits: tuple[tuple[str, float], ...]  # Bounds that changed the time, in order, with the seconds after each bound
    interval: Interval[float]


def explain(shape: OperationShape, gpu: Gpu, models: KernelModels | None) -> Explanation:
    """Return the source of a shape's time on a GPU, and the bounds that changed it; without `models`, the roofline."""
    shape = in_bfloat16(shape) if float8_becomes_bfloat16(gpu) else shape
    is_matrix = operation_spec(shape.operation).units == "tensor"
    as_float32 = frozenset({shape.dtype} if is_matrix and computes_in_float32(shape.dtype, gpu) else ())
    request = TimingRequest([shape], [gpu], models, as_float32)
    stages = [(name, times.interval.map(lambda table: float(table[0, 0]))) for name, times in _stages(request)]
    seconds = [interval.middle for _, interval in stages]
    (computed,) = request.computed
    source = source_of(computed, models)
    held = {} if source == "proxy" else _estimate(source, batch_shapes([computed]), [gpu], models).held
    return Explanation(
        shape=shape,
        computed=computed,
        source=source,
        parts=surrogates_of(computed) if source == "proxy" else (),
        sourced_seconds=seconds[0],
        network_limits=tuple(name for name, where in held.items() if where[0, 0]),
        limits=tuple(
            (name, after)
            for (name, _), before, after in zip(stages[1:], seconds[:-1], seconds[1:], strict=True)
            if clearly_less(after, before) or clearly_less(before, after)
        ),
        interval=stages[-1][1],
    )


# --- Helpers for tables of times


def _each(times: OperationTimes, change: Callable[..., Array], *others: OperationTimes) -> OperationTimes:
    """Apply a function to each table of times, together with the same table of the other times."""
    every = (times, *others)
    return OperationTimes(
        times.interval.map(change, *(operand.interval for operand in others)),
        {method: change(*(operand.shares[method] for operand in every)) for method in get_args(TimedBy)},
        change(*(operand.extrapolated_share for operand in every)),
    )


def _columns(times: OperationTimes, columns: IndexArray) -> OperationTimes:
    return _each(times, lambda table: table[:, columns])


def _merged(times: OperationTimes, columns: IndexArray, part: OperationTimes) -> OperationTimes:
    """Insert the times of some shapes into the times of all shapes."""

    def placed(whole: Array, own: Array) -> Array:
        result = whole.copy()
        result[:, columns] = own
        return result

    return _each(times, placed, part)


def _rooflines(shapes: Sequence[OperationShape], gpus: Sequence[Gpu], *, least: bool = False) -> Array:
    """Compute the roofline of shapes of any operation and dtype, (gpus, shapes)."""
    seconds = np.empty((len(gpus), len(shapes)))
    groups: dict[tuple[str, str], list[int]] = {}
    for index, item in enumerate(shapes):
        groups.setdefault((item.operation, item.dtype), []).append(index)
    for indices in groups.values():
        seconds[:, indices] = roofline_seconds(batch_shapes([shapes[index] for index in indices]), gpus, least=least)
    return seconds
