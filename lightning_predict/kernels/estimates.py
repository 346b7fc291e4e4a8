"""Seconds of problems on GPUs, from the best source that there is for each, and which source that was.

In this order: a model trained on the operation and dtype; the same model for a sibling dtype, scaled by the ratio of
the rooflines; proxies that have a model (`families/`); the roofline at a typical utilisation.
Where a GPU computes a dtype no faster than float32, float32 stands in. Nothing goes below the least-work bound, and no
interval is narrower than `LEAST_SPREAD`. Example::

    >>> from lightning_predict.gpus import gpu
    >>> from lightning_predict.kernels.operations import problem
    >>> times = problem_times([problem("add", "float32", rows=4096, cols=4096)], [gpu("T4")], models=None)
    >>> times.seconds.shape, float(times.shares["roofline"][0, 0])
    ((1, 1), 1.0)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol, final, get_args

import numpy as np

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus.records import Gpu
from lightning_predict.interval import Interval
from lightning_predict.kernels.arrays import BoolArray, IndexArray, summed_by_owner
from lightning_predict.kernels.latency import LATENCY_SPREAD, latencies, reread_share
from lightning_predict.kernels.operations import (
    COMPUTE_BYTES,
    Array,
    Columns,
    Problem,
    ProblemBatch,
    batch_of,
    operation_kind,
    proxies_of,
)
from lightning_predict.kernels.roofline import roofline_seconds
from lightning_predict.kernels.utilisation import Estimate
from lightning_predict.units import MICROSECOND

TimedBy = Literal["mlp", "proxy", "bytes", "formula", "roofline"]
"""How a time without a measurement comes about: `mlp` by a model trained on measurements of this operation in this
dtype, on this or another GPU; `proxy` by a model of a related operation or dtype; `bytes` as a copy of as many bytes;
`formula` by a formula of its family, of tiles or caches; `roofline` from peak arithmetic and bandwidth alone."""

TYPICAL_UTILISATION: Final = {"tensor": 0.5, "vector": 0.8, "link": 0.8, "fabric": 0.6}
"""Share of the roofline that kernels without a model reach: large matrix work about half of the peak, streaming
kernels and copies about 80 % of the bandwidth."""

SHORTEST_KERNEL_SECONDS: Final = 2 * MICROSECOND
"""Time of a kernel with nothing to do: graph-replayed matmuls of one tile take 1.5 to 2.5 µs on nine GPUs."""

ROOFLINE_SPREAD: Final = 1.6
"""Factor up and down around a prediction from the roofline alone. An assumption, wide on purpose."""

PROXY_SPREAD: Final = 1.3
"""Extra factor where a sibling dtype or a proxy stands in. An assumption, though a cautious one: with it the intervals
hold nine in ten of the recurrent layers, norms and backward passes that others timed (`training/proxies.py`)."""

STAND_IN_SPREAD: Final = 2.0
"""Extra factor where float32 stands in for a dtype that the GPU computes no faster. An assumption. Products in float16
on the P100 take 0.72 to 1.04 times as long as in float32, convolutions 0.55 to 1.6 times (nine in ten of DeepBench's
rows, which are therefore no test of it). For emulated bfloat16 one rate of large products is known, 0.28 (M40) to 0.66
(V100) of float32's peak, which three reports of one card (T4: 2.0 to 2.5 TFLOP/s) put 20 % apart; of other shapes and
operations nothing is."""

LEAST_SPREAD: Final = 1.02
"""Least factor between the middle and either end. An assumption: timings of one kernel differ by as much, and nothing
was seen to reach its bound."""

FIRST_TENSOR_CORES: Final = (7, 0)
"""Compute capability from which matrix units add 16-bit products in float32. Before, PyTorch has cuBLAS compute them in
float32, at its rate: large float16 products reach 8.4 TFLOP/s on the P100, float32 ones 8.6, though its lanes do twice
as many in float16 (10.0 and 10.1 on the P40, 4.8 and 5.0 on the P4; source `matmul_survey` of the catalogue)."""

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


class KernelModels(Protocol):
    """The interface of trained models; `utilisation.UtilisationModels` is one."""

    def supports(self, operation: str, dtype: str) -> bool:
        """Return whether a model serves the operation in this dtype, trained on it or not."""

    def timed_by(self, operation: str, dtype: str) -> TimedBy:
        """Tell how a model that serves the operation in this dtype knows it."""

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


@final
@dataclass(frozen=True, slots=True)
class _Leaf:
    """A problem that is timed directly: by a model, maybe through a sibling dtype, or by the roofline."""

    problem: Problem
    sibling: str | None
    timed_by: TimedBy
    source: Literal["model", "formula", "roofline"]


@final
@dataclass(frozen=True, slots=True)
class _Expansion:
    """Leaves of a problem with how often each counts.

    Attributes:
        parts: The leaves.
        spread: Factor by which the proxy widens the interval.
        is_proxy: The leaves are other operations than the problem.
    """

    parts: tuple[tuple[_Leaf, float], ...]
    spread: float
    is_proxy: bool = False


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
    return is_no_faster or dtype in gpu.emulated_dtypes or gpu.compute_capability < FIRST_TENSOR_CORES


def problem_times(problems: Sequence[Problem], gpus: Sequence[Gpu], models: KernelModels | None) -> ProblemTimes:
    """Time problems on GPUs, each (gpus, problems); distinct problems are computed once.

    TF32 and dtypes of fewer bits never take longer than float32 on the same GPU, whose kernels are there for them, too.

    Args:
        problems: In any order, duplicates welcome.
        gpus: The GPUs.
        models: Trained models; None predicts by the roofline alone.
    """
    own = _own_times(problems, gpus, models)
    lower = np.array([index for index, item in enumerate(problems) if _float32_holds(item)], dtype=np.intp)
    if not lower.size:
        return own
    asked = [problems[int(index)] for index in lower]
    twins = [replace(item, dtype="float32") for item in asked]
    least, bound = _rooflines(twins, gpus, least=True), _rooflines(asked, gpus, least=True)
    # Only where float32 may be the faster one, and is not what was timed already, is it timed as well.
    may_gain = (own.seconds[:, lower] > least) & (bound <= least) & ~_are_float32_already(asked, gpus)
    doubtful = np.flatnonzero(may_gain.any(axis=0))
    if not doubtful.size:
        return own
    float32 = _own_times([twins[int(index)] for index in doubtful], gpus, models)
    bound, gain = bound[:, doubtful], (bound / least)[:, doubtful]
    return _no_slower(own, lower[doubtful], float32, bound, gain, may_gain[:, doubtful])


def _float32_holds(problem: Problem) -> bool:
    """Return whether float32's kernels could compute the problem."""
    return problem.dtype in LOWER_PRECISIONS and operation_kind(problem.operation).units in ("tensor", "vector")


def _are_float32_already(problems: Sequence[Problem], gpus: Sequence[Gpu]) -> BoolArray:
    """Find where the time in a problem's own dtype is made of float32's, with an interval that says so.

    Returns:
        Shape (gpus, problems).
    """
    by_dtype = {dtype: [_computes_in_float32(dtype, gpu) for gpu in gpus] for dtype in {one.dtype for one in problems}}
    on_lanes = [False] * len(gpus)
    columns = [by_dtype[one.dtype] if operation_kind(one.operation).units == "tensor" else on_lanes for one in problems]
    return np.array(columns, dtype=np.bool_).T


def _no_slower(
    own: ProblemTimes, columns: IndexArray, float32: ProblemTimes, bound: Array, gain: Array, may_gain: BoolArray
) -> ProblemTimes:
    """Replace times in `columns` by float32's where these are less; arrays are (gpus, columns).

    The interval is that of a stand-in, and its low end lower by what the dtype's own kernels may gain.

    Args:
        own: Times in each problem's own dtype.
        columns: Problems that float32 could compute.
        float32: Their times in float32.
        bound: Their least times in their own dtype.
        gain: The same over float32's least times.
        may_gain: Where float32 may be less.
    """
    taken = (float32.seconds < own.seconds[:, columns] * (1 - 1e-9)) & may_gain

    def merged(table: Array, instead: Array) -> Array:
        result = table.copy()
        result[:, columns] = np.where(taken, instead, table[:, columns])
        return result

    shares: dict[TimedBy, Array] = {
        method: merged(own.shares[method], np.zeros_like(gain)) for method in get_args(TimedBy)
    }
    for method in ("formula", "roofline"):
        shares[method] = merged(own.shares[method], float32.shares[method])
    shares["proxy"] = merged(own.shares["proxy"], 1 - float32.shares["formula"] - float32.shares["roofline"])
    stand_in = float32.interval.widened(PROXY_SPREAD)
    stand_in = replace(stand_in, low=np.maximum(stand_in.low * gain, bound))
    return ProblemTimes(own.interval.each(merged, stand_in), shares, merged(own.base_share, float32.base_share))


def _own_times(problems: Sequence[Problem], gpus: Sequence[Gpu], models: KernelModels | None) -> ProblemTimes:
    """Time problems on GPUs, each in its own dtype; distinct problems are computed once."""
    position: dict[Problem, int] = {}
    columns = np.array([position.setdefault(item, len(position)) for item in problems], dtype=np.intp)  # (problems,)
    distinct = list(position)
    dtypes = {item.dtype for item in distinct if operation_kind(item.operation).units == "tensor"}
    groups: dict[frozenset[str], list[int]] = {}
    for row, gpu in enumerate(gpus):
        groups.setdefault(frozenset(dtype for dtype in dtypes if _computes_in_float32(dtype, gpu)), []).append(row)
    parts = [
        _times_of_equals(distinct, [gpus[row] for row in rows], models, as_float32)
        for as_float32, rows in groups.items()
    ]

    def joined(*tables: Array) -> Array:
        """Put the tables of the groups, each (rows, distinct), together as (gpus, problems)."""
        whole = np.empty((len(gpus), len(distinct)))
        for rows, table in zip(groups.values(), tables, strict=True):
            whole[rows] = table
        return whole[:, columns]

    first, *others = (part.interval for part in parts)
    return ProblemTimes(
        first.each(joined, *others),
        {method: joined(*(part.shares[method] for part in parts)) for method in get_args(TimedBy)},
        joined(*(part.base_share for part in parts)),
    )


def _computes_in_float32(dtype: str, gpu: Gpu) -> bool:
    has_own_units = dtype == "tf32" and compute_dtype_on(dtype, gpu) == "tf32"
    return float32_stands_in(dtype, gpu) or (dtype == "tf32" and not has_own_units)


def _times_of_equals(
    problems: Sequence[Problem], gpus: Sequence[Gpu], models: KernelModels | None, as_float32: frozenset[str]
) -> ProblemTimes:
    """Time problems on GPUs that compute the same dtypes of matrix work in float32."""
    wanted = [
        replace(item, dtype="float32")
        if item.dtype in as_float32 and operation_kind(item.operation).units == "tensor"
        else item
        for item in problems
    ]
    times = _held_to_alternatives(wanted, gpus, models, _expanded_times(wanted, gpus, models))
    # TF32 without units for it is float32 itself; of the others, float32 is a stand-in.
    stands_in = np.array(
        [one != asked and asked.dtype != "tf32" for one, asked in zip(wanted, problems, strict=True)], dtype=np.bool_
    )
    bound = _rooflines(problems, gpus, least=True)  # (gpus, problems)
    own_rate = np.where(stands_in, _rooflines(problems, gpus), 0.0)  # emulation may be slower than float32
    times = _no_faster_than_latency(times, wanted, gpus, models)
    spread = np.where(stands_in, STAND_IN_SPREAD, 1.0)  # (problems,)
    seconds = np.maximum(np.maximum(times.seconds, own_rate), LEAST_SPREAD * bound)
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


def _expanded_times(problems: Sequence[Problem], gpus: Sequence[Gpu], models: KernelModels | None) -> ProblemTimes:
    """Add up the times of each problem's leaves, without its bound."""
    expansions = [_expand(item, models) for item in problems]
    leaves = list(dict.fromkeys(leaf for expansion in expansions for leaf, _ in expansion.parts))
    found, by_base = _leaf_times(leaves, gpus, models)  # each (gpus, leaves)
    position = {leaf: index for index, leaf in enumerate(leaves)}

    pairs = [(i, expansion, leaf, count) for i, expansion in enumerate(expansions) for leaf, count in expansion.parts]
    owner = np.array([i for i, *_ in pairs], dtype=np.intp)  # (pairs,)
    leaf_of = np.array([position[leaf] for *_, leaf, _ in pairs], dtype=np.intp)  # (pairs,)
    times = np.array([count for *_, count in pairs])  # (pairs,)
    methods = np.array([_method(leaf, expansion) for _, expansion, leaf, _ in pairs], dtype=np.str_)
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


def _held_to_alternatives(
    problems: Sequence[Problem], gpus: Sequence[Gpu], models: KernelModels | None, times: ProblemTimes
) -> ProblemTimes:
    """Take another algorithm's time where it bounds the operation, or the base calls the operation slower.

    The base saw nothing of the GPU. It is held to the implicit product of a convolution, and to the transfer of a
    norm's rows. Both opinions stay in the interval. On one ResNet-50 step of a V100, filters of 1 x 1 and those with
    strides take the products' time within 2 % and 0.70 of the base's, in total; that step is where this was found.
    Winograd's filters, 3 x 3 without strides, are faster as convolutions.
    """
    others = {index: found for index, item in enumerate(problems) if (found := _alternative(item)) is not None}
    if models is None or not others:
        return times
    columns = np.fromiter(others, dtype=np.intp)
    other = _expanded_times(list(others.values()), gpus, models)  # (gpus, others)
    kinds = [operation_kind(problems[index].operation) for index in others]
    has_it = np.array([[gpu.compute_capability >= kind.alternative_since for kind in kinds] for gpu in gpus])
    counts = (times.base_share[:, columns] > 0.5) | np.array([kind.alternative_bounds for kind in kinds])
    faster = np.zeros(times.seconds.shape, dtype=np.bool_)
    faster[:, columns] = has_it & counts & (other.seconds < times.seconds[:, columns])

    def taken(own: Array, theirs: Array) -> Array:
        spread_out = own.copy()
        spread_out[:, columns] = np.where(faster[:, columns], theirs, own[:, columns])
        return spread_out

    shares: dict[TimedBy, Array] = {
        method: np.where(faster, 1.0 if method == "proxy" else 0.0, share) for method, share in times.shares.items()
    }
    interval = Interval(
        taken(times.interval.low, np.minimum(other.interval.low, times.interval.low[:, columns])),
        taken(times.seconds, other.seconds),
        times.interval.high,
    )
    return ProblemTimes(interval, shares, taken(times.base_share, other.base_share))


def _alternative(problem: Problem) -> Problem | None:
    alternative = operation_kind(problem.operation).alternative
    return None if alternative is None else alternative(problem)


def _no_faster_than_latency(
    times: ProblemTimes, problems: Sequence[Problem], gpus: Sequence[Gpu], models: KernelModels | None
) -> ProblemTimes:
    """Raise times to what instructions, waiting and rows that left the L2 allow (`latency.py`)."""
    floor = np.maximum(latencies(problems, gpus), _reread_seconds(problems, gpus, models))  # (gpus, problems)
    binds = floor > times.seconds
    served: TimedBy = "roofline" if models is None else "proxy"
    shares: dict[TimedBy, Array] = {
        method: np.where(binds, float(method == served), share) for method, share in times.shares.items()
    }
    interval = times.interval.each(
        lambda seconds, least: np.where(binds, np.maximum(seconds, least), seconds),
        Interval.around(floor, LATENCY_SPREAD),
    )
    return ProblemTimes(interval, shares, np.where(binds, 0.0, times.base_share))


def _reread_seconds(problems: Sequence[Problem], gpus: Sequence[Gpu], models: KernelModels | None) -> Array:
    """Time kernels that pass over their input again, by what the L2 does not hold of it."""
    seconds = np.zeros((len(gpus), len(problems)))
    kinds = (operation_kind(item.operation) for item in problems)
    found = {
        index: rereads
        for index, (item, kind) in enumerate(zip(problems, kinds, strict=True))
        if kind.rereads is not None and (rereads := kind.rereads(item)) is not None
    }
    if found:
        share = np.array(
            [[reread_share(each.bytes_per_multiprocessor, gpu) for each in found.values()] for gpu in gpus]
        )
        whole = _expanded_times([each.transfer for each in found.values()], gpus, models)
        seconds[:, list(found)] = share * whole.seconds
    return seconds


def _method(leaf: _Leaf, expansion: _Expansion) -> TimedBy:
    """Name the method; a model of another operation is a proxy, whatever it knows of its own."""
    return "proxy" if expansion.is_proxy and leaf.timed_by in ("mlp", "bytes") else leaf.timed_by


def _expand(problem: Problem, models: KernelModels | None) -> _Expansion:
    """List a problem's leaves with how often each counts, and the factor by which the proxy widens the interval."""
    leaf = _direct(problem, models)
    if leaf is not None:
        return _Expansion(((leaf, 1.0),), PROXY_SPREAD if leaf.timed_by == "proxy" else 1.0)
    parts = proxies_of(problem)
    if parts and models is not None:
        expanded = [(_expand(part.problem, models), part.times) for part in parts]
        leaves = tuple((leaf, count * times) for inner, times in expanded for leaf, count in inner.parts)
        own = operation_kind(problem.operation).proxy_spread or PROXY_SPREAD
        return _Expansion(leaves, own * max(inner.spread for inner, _ in expanded), is_proxy=True)
    return _Expansion(((_Leaf(problem, None, "roofline", "roofline"), 1.0),), 1.0)


def _direct(problem: Problem, models: KernelModels | None) -> _Leaf | None:
    if models is None:
        return None
    kind = operation_kind(problem.operation)
    is_beyond = kind.beyond_networks is not None and kind.beyond_networks(problem)
    if models.supports(problem.operation, problem.dtype) and not is_beyond:
        return _Leaf(problem, None, models.timed_by(problem.operation, problem.dtype), "model")
    if kind.formula is not None:
        return _Leaf(problem, None, "formula", "formula")
    siblings = SIBLING_DTYPES[operation_kind(problem.operation).units].get(problem.dtype, ())
    for sibling in siblings:
        if models.supports(problem.operation, sibling):
            return _Leaf(problem, sibling, "proxy", "model")
    return None


def _leaf_times(
    leaves: Sequence[_Leaf], gpus: Sequence[Gpu], models: KernelModels | None
) -> tuple[Interval[Array], BoolArray]:
    """Time leaves, each by its source: their seconds, and where the base served, each (gpus, leaves)."""
    low, middle, high = (np.empty((len(gpus), len(leaves))) for _ in range(3))
    by_base = np.zeros((len(gpus), len(leaves)), dtype=np.bool_)
    groups: dict[tuple[str, str, str | None, str], list[int]] = {}
    for index, leaf in enumerate(leaves):
        key = (leaf.problem.operation, leaf.problem.dtype, leaf.sibling, leaf.source)
        groups.setdefault(key, []).append(index)
    for (_, _, sibling, source), indices in groups.items():
        batch = batch_of([leaves[index].problem for index in indices])
        if source == "model" and models is not None:
            found = _by_model(batch, sibling, gpus, models)
        elif source == "formula" and batch.kind.formula is not None:
            seconds, spread = batch.kind.formula(batch, gpus)
            found = Estimate(Interval.around(seconds, spread))
        else:
            found = _by_roofline(batch, gpus)
        low[:, indices], middle[:, indices], high[:, indices] = (
            found.interval.low,
            found.interval.middle,
            found.interval.high,
        )
        if found.by_base is not None:
            by_base[:, indices] = found.by_base
    return Interval(low, middle, high), by_base


def _by_model(batch: ProblemBatch, sibling: str | None, gpus: Sequence[Gpu], models: KernelModels) -> Estimate:
    if sibling is None:
        return models.estimate(batch, gpus)
    twin = ProblemBatch(batch.operation, sibling, _columns_of_twin(batch, sibling))
    found = models.estimate(twin, gpus)
    # What a kernel takes that has nothing to do is the same in both.
    own, other = (SHORTEST_KERNEL_SECONDS + roofline_seconds(each, gpus) for each in (batch, twin))
    return Estimate(found.interval.scaled(own / other), found.by_base)


def _columns_of_twin(batch: ProblemBatch, sibling: str) -> Columns:
    """Return the sizes of a 16-bit product whose rows start at addresses as even as those of the batch do.

    A row of an odd number of 4-byte elements starts where one of an even number of 2-byte elements does.
    """
    is_wider = COMPUTE_BYTES[batch.dtype] > COMPUTE_BYTES[sibling] == 2
    if batch.operation not in ("linear", "bmm") or not is_wider:
        return batch.columns
    sides = {name: batch.columns[name] for name in ("m", "n", "k")}
    return {**batch.columns, **{name: np.where(size > 1, size + size % 2, size) for name, size in sides.items()}}


def _by_roofline(batch: ProblemBatch, gpus: Sequence[Gpu]) -> Estimate:
    kind = batch.kind
    utilisation = kind.typical_utilisation or TYPICAL_UTILISATION[kind.units]
    kernels = 1 if kind.sequential_kernels is None else kind.sequential_kernels(batch.columns)
    seconds = roofline_seconds(batch, gpus) / utilisation + SHORTEST_KERNEL_SECONDS * kernels  # (gpus, problems)
    return Estimate(Interval.around(seconds, kind.typical_spread or ROOFLINE_SPREAD))


def _rooflines(problems: Sequence[Problem], gpus: Sequence[Gpu], *, least: bool = False) -> Array:
    """Compute the roofline of problems of any operation and dtype, (gpus, problems)."""
    seconds = np.empty((len(gpus), len(problems)))
    groups: dict[tuple[str, str], list[int]] = {}
    for index, item in enumerate(problems):
        groups.setdefault((item.operation, item.dtype), []).append(index)
    for indices in groups.values():
        seconds[:, indices] = roofline_seconds(batch_of([problems[index] for index in indices]), gpus, least=least)
    return seconds
