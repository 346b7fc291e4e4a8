"""The recipe: from tables to a base and each GPU's own networks, with their intervals.

For each family: a base is trained on all GPUs; each GPU with enough measurements gets a copy fine-tuned on its own
rows, where that is better on the calibration rows. The interval of own weights is the 90 % quantile of their errors
on the calibration rows; that of the base, the same of bases that never saw the GPU (`folds`), because that is how the
base is used. Example::

    result = train_family(RECIPES["attention"], groups, gpus, seed=0)
    result.own["L40S"].interval["attention/bfloat16"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np

from lightning_predict.errors import MeasurementTableError
from lightning_predict.fitting.splits import split_rows
from lightning_predict.fitting.tables import Group
from lightning_predict.fitting.training import TrainingPlan, TrainingRows, collect_rows, train_network
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.features import Family, reference_seconds
from lightning_predict.kernels.operations import Array, problem_batch
from lightning_predict.kernels.utilisation import FAMILIES, log_utilisation_of
from lightning_predict.weights.records import NetworkWeights

RECIPE_NAME: Final = "utilisation-1"
INTERVAL_SHARE: Final = 0.9
FEWEST_ROWS: Final = 300
"""Rows below which a GPU gets no weights of its own."""

DATA_CENTRE_BLACKWELL: Final = ("B200-SXM-180GB", "B300-SXM-288GB", "GB200", "GB300")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How one family is trained.

    Attributes:
        family: The family.
        base: Plan of the base.
        own: Plan of a GPU's own weights.
        fold: Plan of the bases that leave GPUs out.
        folds: Groups of GPUs that are left out together: alike ones must not stand in for each other.
        scored_from_seconds: Kernels shorter than this are not scored.
        scored_calls_from_seconds: Timed calls shorter than this show the launch, and are not scored.
        shortest: A tiny problem of the family (operation, shape words) and its device time, for sources whose short
            rows show only the launch; None where the tables have short rows.
    """

    family: Family
    base: TrainingPlan
    own: TrainingPlan
    fold: TrainingPlan
    folds: tuple[tuple[str, ...], ...]
    scored_from_seconds: float
    scored_calls_from_seconds: float
    shortest: tuple[tuple[str, Mapping[str, tuple[float, ...]]], ...] = ()
    shortest_seconds: float = 2.5e-6


_TINY: Final = (1.0, 4.0, 16.0, 32.0)
_FLOAT32_FOLDS: Final = (
    ("P4",),
    ("P100-PCIe-16GB",),
    ("V100-PCIe-32GB",),
    ("T4",),
    ("A100-PCIe-40GB", "A100-PCIe-80GB"),
    ("H100-SXM-80GB",),
    ("L4",),
)
_BFLOAT16_FOLDS: Final = (
    ("A100-SXM-80GB",),
    ("H100-SXM-80GB",),
    ("H200-SXM-141GB",),
    ("L40S",),
    ("RTX-PRO-6000-Server",),
    DATA_CENTRE_BLACKWELL,
)

RECIPES: Final[Mapping[str, Recipe]] = {
    "matmul_half": Recipe(
        family=FAMILIES["matmul_half"],
        base=TrainingPlan(steps=8000, batch_rows=2048),
        own=TrainingPlan(steps=2500, learning_rate=1e-3),
        fold=TrainingPlan(steps=800, batch_rows=2048),
        folds=_BFLOAT16_FOLDS,
        scored_from_seconds=4e-6,
        scored_calls_from_seconds=2e-4,
    ),
    "matmul_single": Recipe(
        family=FAMILIES["matmul_single"],
        base=TrainingPlan(steps=6000),
        own=TrainingPlan(steps=2500, learning_rate=1e-3),
        fold=TrainingPlan(steps=1500),
        folds=_FLOAT32_FOLDS,
        scored_from_seconds=0.0,
        scored_calls_from_seconds=2e-4,
        shortest=(
            ("linear", {"b": (1.0,), "m": _TINY, "n": _TINY, "k": _TINY}),
            ("bmm", {"b": _TINY, "m": _TINY, "n": _TINY, "k": _TINY}),
        ),
    ),
    "convolution": Recipe(
        family=FAMILIES["convolution"],
        base=TrainingPlan(steps=4000, batch_rows=512, hidden=(64, 64, 64), members=4, weight_decay=0.03),
        own=TrainingPlan(steps=800, batch_rows=512, learning_rate=1e-3, weight_decay=0.03),
        fold=TrainingPlan(steps=1500, batch_rows=512, hidden=(64, 64, 64), members=4, weight_decay=0.03),
        folds=_FLOAT32_FOLDS[:5],
        scored_from_seconds=0.0,
        scored_calls_from_seconds=2e-4,
        shortest=(
            (
                "conv2d",
                {
                    "batch": (1.0,),
                    "in_channels": (1.0, 4.0, 16.0),
                    "out_channels": (1.0, 4.0, 16.0),
                    "kernel_size": (1.0, 3.0),
                    "image_size": (1.0, 4.0, 8.0),
                },
            ),
        ),
        shortest_seconds=6e-6,
    ),
    "attention": Recipe(
        family=FAMILIES["attention"],
        base=TrainingPlan(steps=7000),
        own=TrainingPlan(steps=2500, learning_rate=1e-3),
        fold=TrainingPlan(steps=1500),
        folds=_BFLOAT16_FOLDS,
        scored_from_seconds=2e-5,
        scored_calls_from_seconds=2e-4,
    ),
    "vector": Recipe(
        family=FAMILIES["vector"],
        base=TrainingPlan(steps=4000),
        own=TrainingPlan(steps=1200, learning_rate=1e-3),
        fold=TrainingPlan(steps=1200),
        folds=_FLOAT32_FOLDS,
        scored_from_seconds=0.0,
        scored_calls_from_seconds=1e-4,
        shortest=tuple(
            (operation, {"rows": (1.0, 4.0, 16.0), "cols": (16.0, 64.0, 256.0)})
            for operation in ("add", "relu", "gelu", "softmax", "layer_norm")
        ),
    ),
}
"""Recipes by family name."""


@final
@dataclass(frozen=True)
class FamilyResult:
    """Trained networks of one family.

    Attributes:
        base: Serves GPUs without own weights.
        own: Own networks by GPU name.
        rows: Rows that each file's network was fitted to, by GPU name; the base's under "base".
    """

    base: NetworkWeights
    own: Mapping[str, NetworkWeights]
    rows: Mapping[str, int]


def train_family(recipe: Recipe, groups: Sequence[Group], gpus: Mapping[str, Gpu], *, seed: int = 0) -> FamilyResult:
    """Train the base, the own networks and the intervals of one family.

    Raises:
        MeasurementTableError: No table has rows of this family.
    """
    mine = [g for g in groups if _serves(recipe.family, g) and g.gpu in gpus]
    if not mine:
        raise MeasurementTableError(f"No table has rows for {recipe.family.name!r} on a known GPU.")
    base, rows = _train_base(recipe, mine, gpus, recipe.base, seed)
    base = replace(base, interval=_unseen_interval(recipe, mine, gpus, seed))
    own: dict[str, NetworkWeights] = {}
    counts = {"base": rows}
    for name in sorted({group.gpu for group in mine}):
        groups_of_gpu = [group for group in mine if group.gpu == name]
        fitted, calibration = _parts(recipe, groups_of_gpu, gpus, seed)
        if len(fitted) < FEWEST_ROWS:
            continue
        network = train_network(fitted, calibration, recipe.own, seed=seed, start=base)
        interval = _interval({name: (network, groups_of_gpu)}, recipe, gpus, seed)
        own[name] = replace(network, interval=interval)
        counts[name] = len(fitted)
    return FamilyResult(base, own, counts)


def _serves(family: Family, group: Group) -> bool:
    return group.batch.operation in family.operations and group.batch.dtype in family.dtypes


def _train_base(
    recipe: Recipe, groups: Sequence[Group], gpus: Mapping[str, Gpu], plan: TrainingPlan, seed: int
) -> tuple[NetworkWeights, int]:
    fitted, calibration = _parts(recipe, groups, gpus, seed)
    return train_network(fitted, calibration, plan, seed=seed), len(fitted)


def _parts(
    recipe: Recipe, groups: Sequence[Group], gpus: Mapping[str, Gpu], seed: int
) -> tuple[TrainingRows, TrainingRows]:
    """Fitted rows, with the shortest problems where the sources cannot see them, and calibration rows."""
    splits = [split_rows(group.batch.columns, seed=seed) for group in groups]
    fitted = [group.take(split.fitted) for group, split in zip(groups, splits, strict=True)]
    calibration = [group.take(split.calibration) for group, split in zip(groups, splits, strict=True)]
    floors = {group.gpu for group in groups if group.floor_seconds > 0}
    fitted += [extra for name in sorted(floors) for extra in _shortest(recipe, name)]
    return collect_rows(recipe.family, fitted, gpus), collect_rows(recipe.family, calibration, gpus)


def _shortest(recipe: Recipe, gpu: str) -> list[Group]:
    """Tiny problems: nothing to compute or move, so they take as long as the shortest kernels that were measured."""
    made = []
    for operation, words in recipe.shortest:
        grid = np.meshgrid(*words.values(), indexing="ij")
        batch = problem_batch(operation, "float32", **{w: axis.ravel() for w, axis in zip(words, grid, strict=True)})
        seconds = np.full(len(batch), recipe.shortest_seconds)
        made.append(Group(gpu, "shortest", batch, seconds, 0.0))
    return made


def _unseen_interval(
    recipe: Recipe, groups: Sequence[Group], gpus: Mapping[str, Gpu], seed: int
) -> Mapping[str, float]:
    """Interval of a base on GPUs that it never saw: errors of bases that leave one fold out."""
    tested: dict[str, tuple[NetworkWeights, Sequence[Group]]] = {}
    present = {group.gpu for group in groups}
    for fold in recipe.folds:
        left_out = [group for group in groups if group.gpu in fold]
        seen = [group for group in groups if group.gpu not in fold]
        if not left_out or not seen:
            continue
        network, _ = _train_base(recipe, seen, gpus, recipe.fold, seed)
        for name in present & set(fold):
            tested[name] = (network, [group for group in left_out if group.gpu == name])
    if not tested:  # one GPU alone: nothing can be left out, so the interval says "within a factor of three"
        return {"*": float(np.log(3.0))}
    return _interval(tested, recipe, gpus, seed)


def _interval(
    tested: Mapping[str, tuple[NetworkWeights, Sequence[Group]]], recipe: Recipe, gpus: Mapping[str, Gpu], seed: int
) -> Mapping[str, float]:
    """Half widths in log(seconds), by "operation/dtype" and "*" for the widest of them; every GPU counts the same."""
    errors: dict[str, list[Array]] = {}
    weights: dict[str, list[Array]] = {}
    for network, groups in tested.values():
        for group in groups:
            mask = split_rows(group.batch.columns, seed=seed).calibration
            mask &= group.seconds >= scored_from(recipe, group)
            if mask.sum() < 5:
                continue
            key = f"{group.batch.operation}/{group.batch.dtype}"
            error = np.abs(log_errors(recipe.family, network, group.take(mask), gpus[group.gpu]))
            errors.setdefault(key, []).append(error)
            weights.setdefault(key, []).append(np.full(len(error), 1 / len(error)))
    widths = {
        key: _weighted_quantile(np.concatenate(parts), np.concatenate(weights[key])) for key, parts in errors.items()
    }
    return {**widths, "*": max(widths.values(), default=float(np.log(3.0)))}


def _weighted_quantile(errors: Array, weights: Array) -> float:
    order = np.argsort(errors)
    total = np.cumsum(weights[order])
    # The split-conformal correction: one more row, at infinity, counts as an error.
    level = min(INTERVAL_SHARE * (1 + 1 / len(errors)), 1.0) * total[-1]
    return float(max(errors[order][min(np.searchsorted(total, level), len(errors) - 1)], 1e-3))


def scored_from(recipe: Recipe, group: Group) -> float:
    """Seconds from which a group's rows are scored."""
    return recipe.scored_calls_from_seconds if group.floor_seconds > 0 else recipe.scored_from_seconds


def log_errors(family: Family, network: NetworkWeights, group: Group, gpu: Gpu) -> Array:
    """log(predicted / measured) of every row of a group."""
    log_utilisation = log_utilisation_of(network, family.feature_matrix(group.batch, [gpu]))[0]
    error: Array = np.log(reference_seconds(group.batch, [gpu])[0]) - log_utilisation - np.log(group.seconds)
    return error
