"""Seconds of problems on GPUs, from the best source that there is for each.

In this order: a model trained on the operation and dtype; the same model for a sibling dtype, scaled by the ratio of
the rooflines; a reduction to operations that have a model (`reductions.py`); the roofline at a typical utilisation.
Nothing goes below the least-work bound. Example::

    >>> from lightning_predict.gpus import gpu
    >>> from lightning_predict.kernels.operations import problem
    >>> times = problem_times([problem("add", "float32", rows=4096, cols=4096)], [gpu("T4")], models=None)
    >>> times.seconds.shape, float(times.model_share[0, 0])
    ((1, 1), 0.0)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, final

import numpy as np

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.arrays import summed_by_owner
from lightning_predict.kernels.blending import Blend
from lightning_predict.kernels.operations import Array, Problem, ProblemBatch, batch_of, operation_kind
from lightning_predict.kernels.reductions import reduced
from lightning_predict.kernels.roofline import roofline_seconds
from lightning_predict.kernels.utilisation import Estimate
from lightning_predict.units import MICROSECOND

TYPICAL_UTILISATION: Final = {"tensor": 0.5, "vector": 0.8, "link": 0.8, "fabric": 0.6}
"""Share of the roofline that kernels without a model reach: large matrix work about half of the peak, streaming
kernels and copies about 80 % of the bandwidth."""

SHORTEST_KERNEL_SECONDS: Final = 2 * MICROSECOND
"""Time of a kernel with nothing to do: graph-replayed matmuls of one tile take 1.5 to 2.5 µs on nine GPUs."""

ROOFLINE_SPREAD: Final = 1.6
"""Factor up and down around a prediction from the roofline alone. An assumption, wide on purpose."""

DETOUR_SPREAD: Final = 1.3
"""Extra factor where a sibling dtype or a reduction stands in. An assumption, but no bold one: with it the intervals
hold nine in ten of the recurrent layers, norms and backward passes that others timed (`training/proxies.py`)."""

WIDER_DETOURS: Final[Mapping[str, float]] = {"conv2d": 2.1}
"""The same where the detour is known to be rougher: nine in ten of DeepBench's float16 convolutions on the V100 and T4
lie within it."""

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


class KernelModels(Protocol):
    """What trained models offer; `utilisation.UtilisationModels` is one."""

    def supports(self, operation: str, dtype: str) -> bool:
        """True where the operation was trained in this dtype."""

    def estimate(self, batch: ProblemBatch, gpus: Sequence[Gpu]) -> Estimate:
        """Seconds and their 90 % interval, each of shape (gpus, problems)."""

    def blend(self, problem: Problem, origin: Gpu, target: Gpu) -> Blend | None:
        """How a measurement on the origin counts on the target; None where that was not learnt."""


@final
@dataclass(frozen=True, slots=True)
class ProblemTimes:
    """Seconds of problems, arrays of shape (gpus, problems).

    Attributes:
        seconds: Middle of the prediction.
        low_seconds: Lower end of the 90 % interval.
        high_seconds: Upper end of the 90 % interval.
        model_share: Share of the time that comes from a trained model; the rest comes from the roofline.
    """

    seconds: Array
    low_seconds: Array
    high_seconds: Array
    model_share: Array


@final
@dataclass(frozen=True, slots=True)
class _Leaf:
    """A problem that is timed directly: by a model, maybe through a sibling dtype, or by the roofline."""

    problem: Problem
    sibling: str | None
    by_model: bool


def compute_dtype_on(dtype: str, gpu: Gpu) -> str:
    """Dtype that a GPU computes a request in: TF32 is float32 where the matrix units do not know it.

    Raises:
        InvalidArgumentError: float8 on a GPU without units for it, which no library emulates.
    """
    if dtype == "float8" and "float8" not in gpu.peak_flops_per_second:
        raise InvalidArgumentError(
            f"{gpu.name} has no units for float8; expected a GPU that does (Ada, Hopper or Blackwell). "
            "Choose bfloat16 or float16, or another GPU."
        )
    return "float32" if dtype == "tf32" and "tf32" not in gpu.peak_flops_per_second else dtype


def problem_times(problems: Sequence[Problem], gpus: Sequence[Gpu], models: KernelModels | None) -> ProblemTimes:
    """Times of problems on GPUs, each (gpus, problems); distinct problems are computed once.

    Args:
        problems: In any order, duplicates welcome.
        gpus: The GPUs.
        models: Trained models; None predicts by the roofline alone.
    """
    position: dict[Problem, int] = {}
    columns = np.array([position.setdefault(item, len(position)) for item in problems], dtype=np.intp)
    distinct = list(position)
    shape = (len(gpus), len(distinct))
    tables = [np.zeros(shape) for _ in range(4)]
    asks_tf32 = any(item.dtype == "tf32" for item in distinct)
    with_tf32 = [asks_tf32 and compute_dtype_on("tf32", gpu) == "tf32" for gpu in gpus]
    for has_tf32 in sorted(set(with_tf32)):
        rows = np.flatnonzero(np.array(with_tf32) == has_tf32)
        members = [gpus[int(row)] for row in rows]
        wanted = [
            replace(item, dtype="float32") if item.dtype == "tf32" and not has_tf32 else item for item in distinct
        ]
        times = _times_of_equals(wanted, members, models)
        for table, part in zip(tables, times, strict=True):
            table[rows] = part
    return ProblemTimes(*(table[:, columns] for table in tables))


def _times_of_equals(
    problems: Sequence[Problem], gpus: Sequence[Gpu], models: KernelModels | None
) -> tuple[Array, Array, Array, Array]:
    """Times on GPUs that compute every problem in the same dtype."""
    expansions = [_expand(item, models) for item in problems]
    leaves = list(dict.fromkeys(leaf for parts, _ in expansions for leaf, _ in parts))
    middle, low, high = _leaf_times(leaves, gpus, models)
    by_model = np.array([leaf.by_model for leaf in leaves], dtype=np.float64)
    position = {leaf: index for index, leaf in enumerate(leaves)}

    owner = np.array([i for i, (parts, _) in enumerate(expansions) for _ in parts], dtype=np.intp)
    leaf_of = np.array([position[leaf] for parts, _ in expansions for leaf, _ in parts], dtype=np.intp)
    times = np.array([count for parts, _ in expansions for _, count in parts])
    spread = np.array([factor for _, factor in expansions])

    def added(values: Array) -> Array:
        return summed_by_owner(values[:, leaf_of] * times, owner, len(problems))

    seconds = added(middle)
    share = added(middle * by_model) / seconds
    bound = _bounds(problems, gpus)
    return (
        np.maximum(seconds, bound),
        np.maximum(added(low) / spread, bound),
        np.maximum(added(high) * spread, bound),
        share,
    )


def _expand(problem: Problem, models: KernelModels | None) -> tuple[list[tuple[_Leaf, float]], float]:
    """Leaves of a problem with how often each counts, and the factor by which the detour widens the interval."""
    leaf = _direct(problem, models)
    if leaf is not None:
        return [(leaf, 1.0)], DETOUR_SPREAD if leaf.sibling else 1.0
    parts = reduced(problem)
    if parts and models is not None:
        expanded = [(_expand(part.problem, models), part.times) for part in parts]
        leaves = [(leaf, count * times) for (inner, _), times in expanded for leaf, count in inner]
        own = WIDER_DETOURS.get(problem.operation, DETOUR_SPREAD)
        return leaves, own * max(spread for (_, spread), _ in expanded)
    return [(_Leaf(problem, None, by_model=False), 1.0)], 1.0


def _direct(problem: Problem, models: KernelModels | None) -> _Leaf | None:
    if models is None:
        return None
    if models.supports(problem.operation, problem.dtype):
        return _Leaf(problem, None, by_model=True)
    siblings = SIBLING_DTYPES[operation_kind(problem.operation).units].get(problem.dtype, ())
    for sibling in siblings:
        if models.supports(problem.operation, sibling):
            return _Leaf(problem, sibling, by_model=True)
    return None


def _leaf_times(
    leaves: Sequence[_Leaf], gpus: Sequence[Gpu], models: KernelModels | None
) -> tuple[Array, Array, Array]:
    """Middle, low and high seconds of leaves, each (gpus, leaves)."""
    tables = tuple(np.empty((len(gpus), len(leaves))) for _ in range(3))
    groups: dict[tuple[str, str, str | None, bool], list[int]] = {}
    for index, leaf in enumerate(leaves):
        key = (leaf.problem.operation, leaf.problem.dtype, leaf.sibling, leaf.by_model)
        groups.setdefault(key, []).append(index)
    for (_, _, sibling, by_model), indices in groups.items():
        batch = batch_of([leaves[index].problem for index in indices])
        if by_model and models is not None:
            values = _by_model(batch, sibling, gpus, models)
        else:
            values = _by_roofline(batch, gpus)
        for table, value in zip(tables, values, strict=True):
            table[:, indices] = value
    return tables[0], tables[1], tables[2]


def _by_model(
    batch: ProblemBatch, sibling: str | None, gpus: Sequence[Gpu], models: KernelModels
) -> tuple[Array, Array, Array]:
    if sibling is None:
        estimate = models.estimate(batch, gpus)
        return estimate.seconds, estimate.low_seconds, estimate.high_seconds
    twin = ProblemBatch(batch.operation, sibling, batch.columns)
    estimate = models.estimate(twin, gpus)
    ratio = roofline_seconds(batch, gpus) / roofline_seconds(twin, gpus)
    return estimate.seconds * ratio, estimate.low_seconds * ratio, estimate.high_seconds * ratio


def _by_roofline(batch: ProblemBatch, gpus: Sequence[Gpu]) -> tuple[Array, Array, Array]:
    seconds = roofline_seconds(batch, gpus) / TYPICAL_UTILISATION[batch.kind.units] + SHORTEST_KERNEL_SECONDS
    return seconds, seconds / ROOFLINE_SPREAD, seconds * ROOFLINE_SPREAD


def _bounds(problems: Sequence[Problem], gpus: Sequence[Gpu]) -> Array:
    """Least seconds of each problem, (gpus, problems)."""
    bounds = np.empty((len(gpus), len(problems)))
    groups: dict[tuple[str, str], list[int]] = {}
    for index, item in enumerate(problems):
        groups.setdefault((item.operation, item.dtype), []).append(index)
    for indices in groups.values():
        bounds[:, indices] = roofline_seconds(batch_of([problems[index] for index in indices]), gpus, least=True)
    return bounds
