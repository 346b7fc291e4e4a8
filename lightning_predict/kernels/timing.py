"""Seconds of problems on GPUs: where a time comes from, and what it may not pass.

The first of `SOURCES` that knows a problem times it, by trained models (`KernelModels`) or without; then each of
`LIMITS` that concerns it is held against that time, in order. So the backward pass of a layer norm in float16 on a GPU
that nobody measured is

    proxy:  2.2 x the forward pass, by the network of norms and element-wise work
    → no longer than another algorithm → no shorter than its blocks wait → no shorter than its least work
    → no longer than in float32

A source sees problems one by one and times them in batches of one operation and dtype; a limit sees the arrays of all
problems that concern it. `explain` tells which decided. Where a GPU computes a dtype of matrix work no faster than
float32, sources see float32 (`TimingRequest.computed`). Example::

    >>> from lightning_predict.gpus import gpu
    >>> from lightning_predict.kernels.operations import problem
    >>> add = problem("add", "float32", rows=4096, cols=4096)
    >>> times = problem_times([add], [gpu("T4")], models=None)
    >>> times.seconds.shape, float(times.shares["roofline"][0, 0])
    ((1, 1), 1.0)
    >>> explain(add, gpu("T4"), None).source.name
    'roofline'
    >>> compute_dtype_on("tf32", gpu("T4")), float32_stands_in("bfloat16", gpu("T4"))
    ('float32', True)
    >>> summed_by_owner(np.array([[1.0, 2.0, 4.0]]), np.array([1, 0, 1]), 2)
    array([[2., 5.]])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal, Protocol, final, get_args

import numpy as np

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus.records import Gpu
from lightning_predict.interval import Interval
from lightning_predict.kernels.operations import (
    COMPUTE_BYTES,
    Alternative,
    Array,
    BoolArray,
    Columns,
    CountedProblem,
    IndexArray,
    Problem,
    ProblemBatch,
    Rereads,
    Untrained,
    batch_of,
    operation_kind,
    proxies_of,
)
from lightning_predict.kernels.roofline import (
    LATENCY_SPREAD,
    float8_ratio,
    latencies,
    reread_share,
    roofline_seconds,
    rooflines_of_twins,
    sustained_flops,
    tf32_ratio,
)
from lightning_predict.units import MICROSECOND

# --- What a time is, and who may give one

TimedBy = Literal["mlp", "proxy", "bytes", "formula", "roofline"]
"""How a time without a measurement comes about: `mlp` by a model trained on measurements of this operation in this
dtype, on this or another GPU; `proxy` by a model of a related operation or dtype; `bytes` as a copy of as many bytes;
`formula` by a formula of its family, of tiles or caches; `roofline` from peak arithmetic and bandwidth alone."""


@final
@dataclass(frozen=True)
class Estimate:
    """Predicted times of problems, arrays of shape (gpus, problems).

    Attributes:
        interval: Seconds.
        by_base: True where the network that served saw no measurement of the GPU; None if no network did.
        held: Where the network's time was brought down, by what it was held to (`models.NETWORK_LIMITS`).
    """

    interval: Interval[Array]
    by_base: BoolArray | None = None
    held: Mapping[str, BoolArray] = field(default_factory=dict)

    @property
    def seconds(self) -> Array:
        """Middle of the prediction."""
        return self.interval.middle


class KernelModels(Protocol):
    """The interface of trained models; `models.BundledModels` is one."""

    def supports(self, operation: str, dtype: str) -> bool:
        """Return whether a model serves the operation in this dtype, trained on it or not."""

    def timed_by(self, operation: str, dtype: str) -> TimedBy:
        """Tell how a model that serves the operation in this dtype knows it."""

    def has_measured(self, gpu_name: str) -> bool:
        """Return whether they were trained on any measurement of this GPU's own."""

    def estimate(self, batch: ProblemBatch, gpus: Sequence[Gpu]) -> Estimate:
        """Estimate seconds and their 90 % interval, each of shape (gpus, problems)."""


@final
@dataclass(frozen=True, slots=True)
class ProblemTimes:
    """Seconds of problems, arrays of shape (gpus, problems).

    Attributes:
        interval: Seconds.
        shares: Share of the time by `TimedBy`; they add up to 1.
        base_share: Share of the time by networks that saw no measurement of the GPU.
    """

    interval: Interval[Array]
    shares: Mapping[TimedBy, Array]
    base_share: Array

    @property
    def seconds(self) -> Array:
        """Middle of the prediction."""
        return self.interval.middle


def compute_dtype_on(dtype: str, gpu: Gpu) -> str:
    """Return the dtype that a GPU computes in: TF32 is float32 where the matrix units do not know it.

    Raises:
        InvalidArgumentError: float8 on a GPU without units for it, which no library emulates.
    """
    if dtype == "float8" and "float8" not in gpu.peak_flops_per_second:
        raise InvalidArgumentError(
            f"{gpu.name} has no units for float8; expected a GPU that does (Ada, Hopper or Blackwell). "
            "Choose bfloat16 or float16, or another GPU."
        )
    return "float32" if dtype == "tf32" and "tf32" not in gpu.peak_flops_per_second else dtype


def float32_stands_in(dtype: str, gpu: Gpu) -> bool:
    """Return whether this GPU computes matrix work of a narrower dtype on float32's units, which are as fast.

    TF32 is left to `compute_dtype_on`: without units for it, it is float32 and not a stand-in for it.
    """
    if dtype not in ("float8", "float16", "bfloat16"):
        return False
    peak = gpu.peak(dtype)
    is_no_faster = peak is None or peak <= gpu.peak_flops_per_second["float32"]
    return is_no_faster or dtype in gpu.emulated_dtypes or not gpu.generation.has_tensor_cores


def computes_in_float32(dtype: str, gpu: Gpu) -> bool:
    """Return whether this GPU computes matrix work of another dtype on float32's units, TF32 included."""
    return float32_stands_in(dtype, gpu) or (dtype == "tf32" and compute_dtype_on(dtype, gpu) == "float32")


def summed_by_owner(values: Array, owners: IndexArray, count: int) -> Array:
    """Add up the columns of each owner.

    Args:
        values: Shape (gpus, parts).
        owners: Owner of each part, shape (parts,), each below `count`.
        count: Number of owners.

    Returns:
        Shape (gpus, count); owners without parts are 0.
    """
    if values.shape[1] == count and np.array_equal(owners, np.arange(count)):
        return values  # one part each
    rows = values.shape[0]
    # One flat histogram: row r's owners are numbered from r x count.
    flat = (owners[None, :] + count * np.arange(rows)[:, None]).ravel()
    total = np.bincount(flat, weights=values.ravel(), minlength=rows * count)
    return total.astype(np.float64).reshape(rows, count)


# --- All problems at once

TYPICAL_UTILISATION: Final = {"tensor": 0.5, "vector": 0.8, "link": 0.8, "fabric": 0.6}
"""Share of the roofline that kernels without a model reach: large matrix work about half of the peak, streaming
kernels and copies about 80 % of the bandwidth."""

SHORTEST_KERNEL_SECONDS: Final = 2 * MICROSECOND
"""Time of a kernel with nothing to do: graph-replayed matmuls of one tile take 1.5 to 2.5 µs on nine GPUs."""

ROOFLINE_SPREAD: Final = 1.6
"""Factor up and down around a prediction from the roofline alone. An assumption, wide on purpose."""

PROXY_SPREAD: Final = 1.3
"""Extra factor where a sibling dtype or a proxy stands in. An assumption, though a cautious one: with it the intervals
hold nine in ten of the recurrent layers, norms and backward passes that others timed
(`benchmarks/training/proxies.py`)."""

STAND_IN_SPREAD: Final = 2.0
"""Extra factor where float32 stands in for a dtype that the GPU computes no faster. An assumption. Products in float16
on the P100 take 0.72 to 1.04 times as long as in float32, convolutions 0.55 to 1.6 times (nine in ten of DeepBench's
rows, which are therefore no test of it). For emulated bfloat16 one rate of large products is known, 0.28 (M40) to 0.66
(V100) of float32's peak, which three reports of one card (T4: 2.0 to 2.5 TFLOP/s) put 20 % apart; of other shapes and
operations nothing is."""

LEAST_SPREAD: Final = 1.02
"""Least factor between the middle and either end. An assumption: timings of one kernel differ by as much, and nothing
was seen to reach its bound."""

SIBLING_DTYPES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "tensor": {
        "tf32": ("bfloat16", "float16"),
        "float16": ("bfloat16",),
        "bfloat16": ("float16",),
        "float64": ("float32",),
        "float8": ("bfloat16",),
    },
    "vector": {"float16": ("float32",), "bfloat16": ("float32",), "float64": ("float32",), "tf32": ("float32",)},
    "link": {},
    "fabric": {},
}
"""Dtypes whose kernels are built alike; memory-bound kernels differ by their bytes alone."""

LOWER_PRECISIONS: Final = frozenset({"tf32", "float16", "bfloat16", "float8"})
"""Dtypes that float32 holds, so that its kernels could compute what is asked for."""


def problem_times(problems: Sequence[Problem], gpus: Sequence[Gpu], models: KernelModels | None) -> ProblemTimes:
    """Time problems on GPUs, each (gpus, problems); distinct problems are computed once.

    Args:
        problems: In any order, duplicates welcome.
        gpus: The GPUs.
        models: Trained models; None predicts by the roofline alone.
    """
    position: dict[Problem, int] = {}
    columns = np.array([position.setdefault(item, len(position)) for item in problems], dtype=np.intp)  # (problems,)
    distinct = list(position)
    dtypes = {item.dtype for item in distinct if operation_kind(item.operation).units == "tensor"}
    groups: dict[frozenset[str], list[int]] = {}
    for row, gpu in enumerate(gpus):
        groups.setdefault(frozenset(dtype for dtype in dtypes if computes_in_float32(dtype, gpu)), []).append(row)
    parts = [
        _decided(TimingRequest(distinct, [gpus[row] for row in rows], models, as_float32))
        for as_float32, rows in groups.items()
    ]

    def joined(*tables: Array) -> Array:
        """Put the tables of the groups, each (rows, distinct), together as (gpus, problems)."""
        whole = np.empty((len(gpus), len(distinct)))
        for rows, table in zip(groups.values(), tables, strict=True):
            whole[rows] = table
        return whole[:, columns]

    return _each(parts[0], joined, *parts[1:])


@final
@dataclass(frozen=True)
class TimingRequest:
    """Distinct problems, on GPUs that compute the same dtypes of matrix work in float32.

    Attributes:
        asked: The problems.
        gpus: The GPUs.
        models: Trained models; None for none.
        as_float32: Dtypes of matrix work that these GPUs compute in float32.
    """

    asked: Sequence[Problem]
    gpus: Sequence[Gpu]
    models: KernelModels | None
    as_float32: frozenset[str] = frozenset()

    @cached_property
    def computed(self) -> Sequence[Problem]:
        """The problems in the dtypes that are computed in."""
        return [
            replace(item, dtype="float32")
            if item.dtype in self.as_float32 and operation_kind(item.operation).units == "tensor"
            else item
            for item in self.asked
        ]

    @cached_property
    def least(self) -> Array:
        """Seconds below which no kernel can go, (gpus, problems)."""
        return _rooflines(self.asked, self.gpus, least=True)

    @property
    def stood_in_for(self) -> BoolArray:
        """Where float32 stands in for another dtype; TF32 without units for it is float32 itself. (problems,)."""
        pairs = zip(self.computed, self.asked, strict=True)
        return np.array([one != asked and asked.dtype != "tf32" for one, asked in pairs], dtype=np.bool_)

    def of(self, columns: Sequence[int]) -> TimingRequest:
        """Ask for some of the problems alone."""
        return replace(self, asked=[self.asked[column] for column in columns])

    def about(self, problems: Sequence[Problem]) -> TimingRequest:
        """Ask these GPUs and models for other problems, in their own dtypes."""
        return TimingRequest(problems, self.gpus, self.models)


# --- Where a time comes from


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSource:
    """A way to time a problem.

    Attributes:
        name: One word.
        knows: Whether it times a problem in the dtype that it is computed in.
        estimate: Times a batch of one operation and dtype; None for proxies, whose parts have sources of their own.
        timed_by: How its times come about, for a problem that it knows.
    """

    name: str
    knows: Callable[[Problem, KernelModels | None], bool]
    estimate: Callable[[ProblemBatch, Sequence[Gpu], KernelModels | None], Estimate] | None
    timed_by: Callable[[Problem, KernelModels | None], TimedBy]


def _has_network(problem: Problem, models: KernelModels | None) -> bool:
    if models is None or not models.supports(problem.operation, problem.dtype):
        return False
    formula = operation_kind(problem.operation).formula
    return formula is None or not formula.comes_first(problem)


def _by_network(batch: ProblemBatch, gpus: Sequence[Gpu], models: KernelModels | None) -> Estimate:
    assert models is not None  # by `_has_network`
    return models.estimate(batch, gpus)


def _as_network_knows(problem: Problem, models: KernelModels | None) -> TimedBy:
    assert models is not None  # by `_has_network`
    return models.timed_by(problem.operation, problem.dtype)


def _has_formula(problem: Problem, models: KernelModels | None) -> bool:
    formula = operation_kind(problem.operation).formula
    return models is not None and formula is not None and formula.knows(problem)


def _by_formula(batch: ProblemBatch, gpus: Sequence[Gpu], _models: KernelModels | None) -> Estimate:
    formula = batch.kind.formula
    assert formula is not None  # by `_has_formula`
    return Estimate(formula.seconds(batch, gpus))


def _sibling(operation: str, dtype: str, models: KernelModels | None) -> str | None:
    """Find the dtype whose network stands in for one without."""
    siblings = SIBLING_DTYPES[operation_kind(operation).units].get(dtype, ())
    known = (one for one in siblings if models is not None and models.supports(operation, one))
    return next(known, None)


def _has_sibling(problem: Problem, models: KernelModels | None) -> bool:
    return _sibling(problem.operation, problem.dtype, models) is not None


def _by_sibling(batch: ProblemBatch, gpus: Sequence[Gpu], models: KernelModels | None) -> Estimate:
    sibling = _sibling(batch.operation, batch.dtype, models)
    assert models is not None  # by `_has_sibling`, and so is the next
    assert sibling is not None
    twin = ProblemBatch(batch.operation, sibling, _columns_of_twin(batch, sibling))
    found = models.estimate(twin, gpus)
    if batch.dtype == "tf32" and batch.kind.units == "tensor":
        return Estimate(_as_tf32(found.interval, batch, twin, gpus), found.by_base)
    # What a kernel takes that has nothing to do is the same in both.
    own, other = rooflines_of_twins(batch, twin, gpus)
    ratio = (SHORTEST_KERNEL_SECONDS + own) / (SHORTEST_KERNEL_SECONDS + other)  # (gpus, problems)
    if batch.dtype == "float8" and batch.kind.units == "tensor":
        ratio = ratio * np.array([[float8_ratio(gpu)] for gpu in gpus])
    return Estimate(found.interval.scaled(ratio), found.by_base)


def _as_tf32(of_twin: Interval[Array], batch: ProblemBatch, twin: ProblemBatch, gpus: Sequence[Gpu]) -> Interval[Array]:
    """Turn 16-bit products' seconds into TF32's: all that comes after the start of a kernel takes longer.

    Rows of twice the bytes pass through shared memory in twice as many steps, also where a product is too small for the
    roofline: XLA's products that take 4 to 12 us in bfloat16 take 2 to 9 us more in TF32 on the B200 and the H100.
    """
    own, other = rooflines_of_twins(batch, twin, gpus)
    slower = np.array([[tf32_ratio(gpu)] for gpu in gpus]) * own / other  # (gpus, problems)

    def longer(seconds: Array) -> Array:
        started = np.minimum(seconds, SHORTEST_KERNEL_SECONDS)
        return started + (seconds - started) * slower

    return of_twin.each(longer)


def _columns_of_twin(batch: ProblemBatch, sibling: str) -> Columns:
    """Return the sizes of a 16-bit product whose rows start at addresses as even as those of the batch do.

    A row of an odd number of 4-byte elements starts where one of an even number of 2-byte elements does, and one of a
    multiple of 4 where one of a multiple of 8 does.
    """
    is_wider = COMPUTE_BYTES[batch.dtype] > COMPUTE_BYTES[sibling] == 2
    if batch.operation not in ("linear", "bmm") or not is_wider:
        return batch.columns
    sides = {name: batch.columns[name] for name in ("m", "n", "k")}
    return {**batch.columns, **{name: np.where(size > 1, _twice_as_even(size), size) for name, size in sides.items()}}


def _twice_as_even(size: Array) -> Array:
    """Round up to the next multiple of twice the 1, 2 or 4 that it is a multiple of."""
    unit = np.where(size % 4 == 0, 8.0, np.where(size % 2 == 0, 4.0, 2.0))
    even: Array = np.ceil(size / unit) * unit
    return even


def _has_proxy(problem: Problem, models: KernelModels | None) -> bool:
    return models is not None and bool(proxies_of(problem))


def _by_roofline(batch: ProblemBatch, gpus: Sequence[Gpu], _models: KernelModels | None) -> Estimate:
    kind = batch.kind
    untrained = kind.untrained or Untrained()
    utilisation = untrained.utilisation or TYPICAL_UTILISATION[kind.units]
    kernels = 1 if untrained.sequential_kernels is None else untrained.sequential_kernels(batch.columns)
    seconds = roofline_seconds(batch, gpus) / utilisation + SHORTEST_KERNEL_SECONDS * kernels  # (gpus, problems)
    return Estimate(Interval.around(seconds, untrained.spread or ROOFLINE_SPREAD))


PROXY: Final = TimeSource(name="proxy", knows=_has_proxy, estimate=None, timed_by=lambda _problem, _models: "proxy")

# In the order of what was measured. A network of the operation has seen the very kernel; a formula of its family, what
# the kernel does, where too few measurements were there to train on. A sibling dtype has the same kernel with other
# units, and comes before a proxy, which is another kernel. The roofline comes last, since it knows everything: whatever
# stood behind it would never be asked. (A trace's own measured kernels come before all of these, in `choice.py`.)
SOURCES: Final = (
    TimeSource(name="network", knows=_has_network, estimate=_by_network, timed_by=_as_network_knows),
    TimeSource(name="formula", knows=_has_formula, estimate=_by_formula, timed_by=lambda _problem, _models: "formula"),
    TimeSource(
        name="sibling dtype", knows=_has_sibling, estimate=_by_sibling, timed_by=lambda _problem, _models: "proxy"
    ),
    PROXY,
    TimeSource(
        name="roofline",
        knows=lambda _problem, _models: True,
        estimate=_by_roofline,
        timed_by=lambda _problem, _models: "roofline",
    ),
)
"""Where a time can come from, best first: a network of the operation and dtype; a formula of its family, which knows
shapes that the siblings' networks never saw; the network of a dtype whose kernels are built alike, by the ratio of the
rooflines; problems that add up to it; the roofline, which knows everything."""


def source_of(problem: Problem, models: KernelModels | None) -> TimeSource:
    """Find the first source that knows a problem."""
    return next(source for source in SOURCES if source.knows(problem, models))


@final
@dataclass(frozen=True, slots=True)
class _Leaf:
    """A problem that a source times directly."""

    problem: Problem
    source: TimeSource
    timed_by: TimedBy


@final
@dataclass(frozen=True, slots=True)
class _Expansion:
    """Leaves of a problem with how often each counts.

    Attributes:
        parts: The leaves.
        spread: Factor by which standing in widens the interval.
        is_proxy: The leaves are other operations than the problem.
    """

    parts: tuple[tuple[_Leaf, float], ...]
    spread: float
    is_proxy: bool = False

    def timed_by(self, leaf: _Leaf) -> TimedBy:
        """Say how a leaf's share comes about; a model of another operation is a proxy, whatever it knows of its own."""
        return "proxy" if self.is_proxy and leaf.timed_by in ("mlp", "bytes") else leaf.timed_by


def _expand(problem: Problem, models: KernelModels | None) -> _Expansion:
    source = source_of(problem, models)
    if source is not PROXY:
        leaf = _Leaf(problem, source, source.timed_by(problem, models))
        return _Expansion(((leaf, 1.0),), PROXY_SPREAD if leaf.timed_by == "proxy" else 1.0)
    expanded = [(_expand(part.problem, models), part.times) for part in proxies_of(problem)]
    leaves = tuple((leaf, count * times) for inner, times in expanded for leaf, count in inner.parts)
    return _Expansion(leaves, PROXY_SPREAD * max(inner.spread for inner, _ in expanded), is_proxy=True)


def _sourced(question: TimingRequest) -> ProblemTimes:
    """Time each problem by its source, before any limit: the sum of its leaves."""
    problems = question.computed
    expansions = [_expand(item, question.models) for item in problems]
    leaves = list(dict.fromkeys(leaf for expansion in expansions for leaf, _ in expansion.parts))
    found, by_base = _leaf_times(leaves, question)  # each (gpus, leaves)
    position = {leaf: index for index, leaf in enumerate(leaves)}

    pairs = [(i, expansion, leaf, count) for i, expansion in enumerate(expansions) for leaf, count in expansion.parts]
    owner = np.array([i for i, *_ in pairs], dtype=np.intp)  # (pairs,)
    leaf_of = np.array([position[leaf] for *_, leaf, _ in pairs], dtype=np.intp)  # (pairs,)
    times = np.array([count for *_, count in pairs])  # (pairs,)
    methods = np.array([expansion.timed_by(leaf) for _, expansion, leaf, _ in pairs], dtype=np.str_)
    spread = np.array([expansion.spread for expansion in expansions])  # (problems,)

    def added(values: Array) -> Array:
        return summed_by_owner(values[:, leaf_of] * times, owner, len(problems))

    interval = found.each(added).widened(spread)  # (gpus, problems)
    whole = interval.middle
    shares: dict[TimedBy, Array] = {
        method: summed_by_owner(found.middle[:, leaf_of] * times * (methods == method), owner, len(problems)) / whole
        for method in get_args(TimedBy)
    }
    return ProblemTimes(interval, shares, added(found.middle * by_base) / whole)


def _leaf_times(leaves: Sequence[_Leaf], question: TimingRequest) -> tuple[Interval[Array], BoolArray]:
    """Time leaves in batches: their seconds, and where the base served, each (gpus, leaves)."""
    shape = (len(question.gpus), len(leaves))
    low, middle, high = (np.empty(shape) for _ in range(3))
    by_base = np.zeros(shape, dtype=np.bool_)
    groups: dict[tuple[str, str, str], list[int]] = {}
    for index, leaf in enumerate(leaves):
        groups.setdefault((leaf.problem.operation, leaf.problem.dtype, leaf.source.name), []).append(index)
    for indices in groups.values():
        estimate = leaves[indices[0]].source.estimate
        assert estimate is not None  # a leaf has no proxy for a source
        found = estimate(batch_of([leaves[index].problem for index in indices]), question.gpus, question.models)
        low[:, indices], middle[:, indices], high[:, indices] = (
            found.interval.low,
            found.interval.middle,
            found.interval.high,
        )
        if found.by_base is not None:
            by_base[:, indices] = found.by_base
    return Interval(low, middle, high), by_base


# --- What a time may not pass


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimit:
    """A bound on times.

    Attributes:
        name: What a time is held to, to follow "held to".
        concerns: Whether it may bound a problem, as asked and as computed.
        hold: Gives the times of the problems of a question, all of which it concerns, within the bound.
    """

    name: str
    concerns: Callable[[Problem, Problem, KernelModels | None], bool]
    hold: Callable[[ProblemTimes, TimingRequest], ProblemTimes]


def _alternative(problem: Problem) -> tuple[Alternative, Problem] | None:
    alternative = operation_kind(problem.operation).alternative
    other = None if alternative is None else alternative.problem(problem)
    return None if alternative is None or other is None else (alternative, other)


def _has_alternative(_asked: Problem, computed: Problem, models: KernelModels | None) -> bool:
    return models is not None and _alternative(computed) is not None


def _held_to_alternative(times: ProblemTimes, question: TimingRequest) -> ProblemTimes:
    """Take another algorithm's time where it bounds the operation, or the base calls the operation slower.

    The base saw nothing of the GPU. It is held to the implicit product of a convolution, and to the transfer of a
    norm's rows. Both opinions stay in the interval. On one ResNet-50 step of a V100, filters of 1 x 1 and those with
    strides take the products' time within 2 % and 0.70 of the base's, in total; that step is where this was found.
    Winograd's filters, 3 x 3 without strides, are faster as convolutions.
    """
    found = [pair for item in question.computed if (pair := _alternative(item)) is not None]
    other = _sourced(question.about([problem for _, problem in found]))
    kinds = [alternative for alternative, _ in found]
    has_it = np.array([[kind.is_on(gpu.generation) for kind in kinds] for gpu in question.gpus])
    counts = (times.base_share > 0.5) | np.array([kind.bounds_networks for kind in kinds])
    faster = has_it & counts & (other.seconds < times.seconds)  # (gpus, problems)
    shares: dict[TimedBy, Array] = {
        method: np.where(faster, 1.0 if method == "proxy" else 0.0, share) for method, share in times.shares.items()
    }
    interval = Interval(
        np.where(faster, np.minimum(other.interval.low, times.interval.low), times.interval.low),
        np.where(faster, other.seconds, times.seconds),
        times.interval.high,
    )
    return ProblemTimes(interval, shares, np.where(faster, other.base_share, times.base_share))


def _has_floor(_asked: Problem, computed: Problem, _models: KernelModels | None) -> bool:
    return operation_kind(computed.operation).floor is not None


def _held_to_latency(times: ProblemTimes, question: TimingRequest) -> ProblemTimes:
    return _raised(times, latencies(question.computed, question.gpus), question)


def _rereads(problem: Problem) -> Rereads | None:
    floor = operation_kind(problem.operation).floor
    return None if floor is None else floor.rereads(problem)


def _reads_again(_asked: Problem, computed: Problem, _models: KernelModels | None) -> bool:
    return _rereads(computed) is not None


def _held_to_rereads(times: ProblemTimes, question: TimingRequest) -> ProblemTimes:
    """Raise times of kernels that pass over their input again, by what the L2 does not hold of it."""
    found = [rereads for item in question.computed if (rereads := _rereads(item)) is not None]
    share = np.array([[reread_share(each.bytes_per_multiprocessor, gpu) for each in found] for gpu in question.gpus])
    whole = _sourced(question.about([each.transfer for each in found]))
    return _raised(times, share * whole.seconds, question)


def _raised(times: ProblemTimes, floor: Array, question: TimingRequest) -> ProblemTimes:
    """Raise times to what instructions, waiting and rows that left the L2 allow (`roofline.latencies`)."""
    binds = floor > times.seconds  # (gpus, problems)
    served: TimedBy = "roofline" if question.models is None else "proxy"
    shares: dict[TimedBy, Array] = {
        method: np.where(binds, float(method == served), share) for method, share in times.shares.items()
    }
    interval = times.interval.each(
        lambda seconds, least: np.where(binds, np.maximum(seconds, least), seconds),
        Interval.around(floor, LATENCY_SPREAD),
    )
    return ProblemTimes(interval, shares, np.where(binds, 0.0, times.base_share))


def _convolves(_asked: Problem, computed: Problem, _models: KernelModels | None) -> bool:
    return computed.operation.startswith("conv")


def _held_to_all_products(times: ProblemTimes, question: TimingRequest) -> ProblemTimes:
    """Raise convolutions to all of their products at the rate that lasts, on chips without Winograd's kernels."""
    before = np.array([not gpu.generation.has_winograd for gpu in question.gpus])
    if not before.any():
        return times
    lasting = [
        replace(gpu, peak_flops_per_second=dict.fromkeys(gpu.peak_flops_per_second, sustained_flops(gpu, "float32")))
        for gpu in question.gpus
    ]
    least = np.where(before[:, None], _rooflines(question.computed, lasting), 0.0)
    return replace(times, interval=times.interval.scaled(np.maximum(least / times.seconds, 1.0)))


FEW_CHANNELS: Final = 8
"""Channels that matrix units pad fewer ones to."""


def _convolves_few_channels(_asked: Problem, computed: Problem, _models: KernelModels | None) -> bool:
    if computed.operation != "conv2d" or computed.dtype != "float32":
        return False
    shape = computed.shape
    return shape["groups"] == 1 and shape["in_channels"] < FEW_CHANNELS


def _held_to_tf32(times: ProblemTimes, question: TimingRequest) -> ProblemTimes:
    """Raise float32's first layers to what TF32's kernels take of them, where the base times them.

    It learnt on GPUs without TF32 and calls these layers, which memory or padding binds, too fast. Held to it, TF32
    was so, too: KernelBench's 3 channels of 11 x 11 were 31 and 40 % too fast. Of all convolutions this is not so:
    ResNet-50 in TF32, which lets cuDNN try its algorithms, would come from 1 % too fast to 17 % too slow on the RTX
    3090 (training data: these rows).
    """
    has_units = np.array([["tf32" in gpu.peak_flops_per_second] for gpu in question.gpus])
    wanted = has_units & (times.base_share > 0.5)  # (gpus, problems)
    if not wanted.any():
        return times
    twins = [replace(item, dtype="tf32") for item in question.computed]
    least = np.where(wanted, _sourced(question.about(twins)).seconds, 0.0)
    return replace(times, interval=times.interval.scaled(np.maximum(least / times.seconds, 1.0)))


def _is_emulated(asked: Problem, computed: Problem, _models: KernelModels | None) -> bool:
    return computed != asked and asked.dtype != "tf32"


def _held_to_emulation(times: ProblemTimes, question: TimingRequest) -> ProblemTimes:
    """Raise times to the rate of the dtype that was asked for, where emulation is slower than float32.

    Where it is as fast, it saves products as float32's kernels do (Winograd), which no roofline knows: float16 before
    tensor cores.
    """
    interval = times.interval
    slower = [
        [(gpu.peak(asked.dtype) or 0.0) < gpu.peak_flops_per_second["float32"] for asked in question.asked]
        for gpu in question.gpus
    ]
    rates = np.where(np.array(slower, dtype=np.bool_), _rooflines(question.asked, question.gpus), 0.0)
    seconds = np.maximum(times.seconds, rates)
    return replace(times, interval=Interval(interval.low, seconds, np.maximum(interval.high, seconds)))


def _always(_asked: Problem, _computed: Problem, _models: KernelModels | None) -> bool:
    return True


def _held_to_least_work(times: ProblemTimes, question: TimingRequest) -> ProblemTimes:
    """Raise times to the least work, and let no interval be narrower than timings of one kernel scatter.

    Where float32 stands in, its kernels are a proxy and their interval is wider.
    """
    stands_in = question.stood_in_for  # (problems,)
    spread = np.where(stands_in, STAND_IN_SPREAD, 1.0)
    bound = question.least  # (gpus, problems)
    seconds = np.maximum(times.seconds, LEAST_SPREAD * bound)
    low = np.maximum(np.minimum(times.interval.low / spread, seconds / LEAST_SPREAD), bound)
    high = np.maximum(np.maximum(times.interval.high, seconds) * spread, seconds * LEAST_SPREAD)
    trained, copied = times.shares["mlp"], times.shares["bytes"]
    shares: dict[TimedBy, Array] = {
        "mlp": np.where(stands_in, 0.0, trained),
        "proxy": times.shares["proxy"] + np.where(stands_in, trained + copied, 0.0),
        "bytes": np.where(stands_in, 0.0, copied),
        "formula": times.shares["formula"],
        "roofline": times.shares["roofline"],
    }
    return ProblemTimes(Interval(low, seconds, high), shares, times.base_share)


def _float32_holds(asked: Problem, computed: Problem, _models: KernelModels | None) -> bool:
    """Return whether float32's kernels could compute the problem, and are not what was timed already.

    Libraries could, and do not where images lie channels last in groups: they take 16-bit kernels that are slower.
    """
    if asked.shape.get("channels_last") and asked.shape.get("groups", 1) > 1:
        return False
    on_gpu = operation_kind(asked.operation).units in ("tensor", "vector")
    return on_gpu and asked.dtype in LOWER_PRECISIONS and asked == computed


def _held_to_float32(times: ProblemTimes, question: TimingRequest) -> ProblemTimes:
    """Take float32's times where they are less; only where they may be are they computed.

    The interval is that of a stand-in, and its low end lower by what the dtype's own kernels may gain.
    """
    twins = [replace(item, dtype="float32") for item in question.asked]
    least, bound = _rooflines(twins, question.gpus, least=True), question.least
    may_gain = (times.seconds > least) & (bound <= least)  # (gpus, problems)
    doubtful = np.flatnonzero(may_gain.any(axis=0))
    if not doubtful.size:
        return times
    float32 = problem_times([twins[int(index)] for index in doubtful], question.gpus, question.models)
    own, gain = _columns(times, doubtful), (bound / least)[:, doubtful]
    taken = (float32.seconds < own.seconds * (1 - 1e-9)) & may_gain[:, doubtful]
    shares: dict[TimedBy, Array] = {method: np.zeros_like(gain) for method in get_args(TimedBy)}
    shares |= {method: float32.shares[method] for method in ("formula", "roofline")}
    shares["proxy"] = 1 - float32.shares["formula"] - float32.shares["roofline"]
    stand_in = float32.interval.widened(PROXY_SPREAD)
    stand_in = replace(stand_in, low=np.maximum(stand_in.low * gain, bound[:, doubtful]))
    instead = ProblemTimes(stand_in, shares, float32.base_share)

    def chosen(table: Array, other: Array) -> Array:
        return np.where(taken, other, table)

    return _merged(times, doubtful, _each(own, chosen, instead))


LIMITS: Final = (
    TimeLimit(name="another algorithm", concerns=_has_alternative, hold=_held_to_alternative),
    TimeLimit(name="instructions and waiting", concerns=_has_floor, hold=_held_to_latency),
    TimeLimit(name="rows read again", concerns=_reads_again, hold=_held_to_rereads),
    TimeLimit(name="all products", concerns=_convolves, hold=_held_to_all_products),
    TimeLimit(name="TF32's kernels", concerns=_convolves_few_channels, hold=_held_to_tf32),
    TimeLimit(name="emulation", concerns=_is_emulated, hold=_held_to_emulation),
    TimeLimit(name="least work", concerns=_always, hold=_held_to_least_work),
    TimeLimit(name="float32's kernels", concerns=_float32_holds, hold=_held_to_float32),
)
"""What a time may not pass, in the order in which it is held to them. What is faster comes first, so that no floor is
undercut after it was set, but for float32: its times were held to the same floors."""


def _stages(question: TimingRequest) -> Iterator[tuple[str, ProblemTimes]]:
    """Yield the times after the sources and after each limit that concerns a problem, with its name."""
    times = _sourced(question)
    yield "source", times
    for limit in LIMITS:
        pairs = zip(question.asked, question.computed, strict=True)
        concerned = [index for index, pair in enumerate(pairs) if limit.concerns(*pair, question.models)]
        if len(concerned) == len(question.asked):
            times = limit.hold(times, question)
        elif concerned:
            columns = np.array(concerned, dtype=np.intp)
            times = _merged(times, columns, limit.hold(_columns(times, columns), question.of(concerned)))
        else:
            continue
        yield limit.name, times


def _decided(question: TimingRequest) -> ProblemTimes:
    *_, (_, times) = _stages(question)
    return times


# --- What decided


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What decided the time of a problem on a GPU.

    Attributes:
        problem: The problem.
        computed: The same in the dtype that the GPU computes in.
        source: Where the time came from.
        parts: Problems of which it is the sum, where the source is a proxy.
        sourced_seconds: The source's time.
        network_limits: What the time of its network was held to already (`models.NETWORK_LIMITS`).
        limits: Limits that moved it, each with the seconds after it, in order.
        interval: Seconds.
    """

    problem: Problem
    computed: Problem
    source: TimeSource
    parts: tuple[CountedProblem, ...]
    sourced_seconds: float
    network_limits: tuple[str, ...]
    limits: tuple[tuple[str, float], ...]
    interval: Interval[float]


def explain(problem: Problem, gpu: Gpu, models: KernelModels | None) -> Explanation:
    """Tell which source timed a problem on a GPU, and which limits moved its time.

    Args:
        problem: The problem.
        gpu: The GPU.
        models: Trained models; None predicts by the roofline alone.
    """
    is_matrix = operation_kind(problem.operation).units == "tensor"
    as_float32 = frozenset({problem.dtype} if is_matrix and computes_in_float32(problem.dtype, gpu) else ())
    question = TimingRequest([problem], [gpu], models, as_float32)
    stages = [(name, times.interval.each(lambda table: float(table[0, 0]))) for name, times in _stages(question)]
    seconds = [interval.middle for _, interval in stages]
    (computed,) = question.computed
    source = source_of(computed, models)
    held = {} if source.estimate is None else source.estimate(batch_of([computed]), [gpu], models).held
    return Explanation(
        problem=problem,
        computed=computed,
        source=source,
        parts=proxies_of(computed) if source is PROXY else (),
        sourced_seconds=seconds[0],
        network_limits=tuple(name for name, where in held.items() if where[0, 0]),
        limits=tuple(
            (name, after)
            for (name, _), before, after in zip(stages[1:], seconds[:-1], seconds[1:], strict=True)
            if after != before
        ),
        interval=stages[-1][1],
    )


# --- Tables of times


def _each(times: ProblemTimes, change: Callable[..., Array], *others: ProblemTimes) -> ProblemTimes:
    """Apply a function to each table, taken with the same one of each of the others."""
    every = (times, *others)
    return ProblemTimes(
        times.interval.each(change, *(one.interval for one in others)),
        {method: change(*(one.shares[method] for one in every)) for method in get_args(TimedBy)},
        change(*(one.base_share for one in every)),
    )


def _columns(times: ProblemTimes, columns: IndexArray) -> ProblemTimes:
    return _each(times, lambda table: table[:, columns])


def _merged(times: ProblemTimes, columns: IndexArray, part: ProblemTimes) -> ProblemTimes:
    """Put the times of some problems in their place."""

    def placed(whole: Array, own: Array) -> Array:
        result = whole.copy()
        result[:, columns] = own
        return result

    return _each(times, placed, part)


def _rooflines(problems: Sequence[Problem], gpus: Sequence[Gpu], *, least: bool = False) -> Array:
    """Compute the roofline of problems of any operation and dtype, (gpus, problems)."""
    seconds = np.empty((len(gpus), len(problems)))
    groups: dict[tuple[str, str], list[int]] = {}
    for index, item in enumerate(problems):
        groups.setdefault((item.operation, item.dtype), []).append(index)
    for indices in groups.values():
        seconds[:, indices] = roofline_seconds(batch_of([problems[index] for index in indices]), gpus, least=least)
    return seconds
