"""From tables to a family's networks: a base, each GPU's own, and their intervals.

A base is trained on all GPUs; each GPU with enough measurements gets a copy fine-tuned on its own rows, where that is
better on the calibration rows. The interval of own weights rests on their own errors; that of the base, on the errors
of bases that never saw the GPU (`Recipe.folds`), because that is how the base is used. Example::

    result = train_family(RECIPES["attention"], groups, gpus, seed=0)
    result.own["L40S"].interval["attention/bfloat16"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np

from lightning_predict.errors import MeasurementTableError
from lightning_predict.fitting.doublings import DoublingPairs, doubling_pairs
from lightning_predict.fitting.intervals import UNMEASURED_HALF_WIDTH, UnseenError, interval_of, unseen_errors
from lightning_predict.fitting.recipes import Recipe
from lightning_predict.fitting.splits import split_rows
from lightning_predict.fitting.tables import Group
from lightning_predict.fitting.training import TrainingPlan, TrainingRows, collect_rows, train_network
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.operations import problem_batch
from lightning_predict.weights.records import BASE, NetworkWeights

FEWEST_ROWS: Final = 300
"""Rows below which a family is not trained."""

FEWEST_OWN_ROWS: Final = 500
"""Fitted rows below which a GPU gets no weights of its own: tuned on a few shapes, they forget all others."""

DOUBLING_PAIRS: Final = 20_000
"""Pairs of a problem and its double, drawn for each training."""


@final
@dataclass(frozen=True)
class FamilyResult:
    """Trained networks of one family.

    Attributes:
        base: Serves GPUs without own weights.
        own: Own networks by GPU name.
        rows: Rows that each file's network was fitted to, by GPU name; the base's under `BASE`.
        unseen: Errors of bases on GPUs that they never saw.
    """

    base: NetworkWeights
    own: Mapping[str, NetworkWeights]
    rows: Mapping[str, int]
    unseen: tuple[UnseenError, ...]


def train_family(recipe: Recipe, groups: Sequence[Group], gpus: Mapping[str, Gpu], *, seed: int = 0) -> FamilyResult:
    """Train the base, the own networks and the intervals of one family.

    Raises:
        MeasurementTableError: The tables have too few rows of this family.
    """
    mine = [group for group in groups if recipe.serves(group) and group.gpu in gpus]
    rows_found = sum(len(group.seconds) for group in mine)
    if rows_found < FEWEST_ROWS:
        raise MeasurementTableError(
            f"The tables have {rows_found} rows for {recipe.family.name!r} on GPUs of the catalogue; expected at least "
            f"{FEWEST_ROWS}. Add measurements of: {', '.join(recipe.family.operations)}."
        )
    base, rows = _train_base(recipe, mine, gpus, recipe.base, seed)
    strangers = bases_of_strangers(recipe, mine, gpus, seed)
    # Of one GPU alone nothing can be left out.
    unseen = interval_of(strangers, recipe, gpus, seed) if strangers else {"*": UNMEASURED_HALF_WIDTH}
    base = replace(base, interval=unseen)
    own: dict[str, NetworkWeights] = {}
    counts = {BASE: rows}
    for name in sorted({group.gpu for group in mine}):
        groups_of_gpu = [group for group in mine if group.gpu == name]
        fitted, calibration = _parts(recipe, groups_of_gpu, gpus, seed)
        if len(fitted) < FEWEST_OWN_ROWS:
            continue
        pairs = _pairs(recipe, [gpus[name]], seed)
        network = train_network(fitted, calibration, recipe.own, seed=seed, start=base, pairs=pairs)
        interval = interval_of({name: (network, groups_of_gpu)}, recipe, gpus, seed)
        own[name] = replace(network, interval=interval)
        counts[name] = len(fitted)
    return FamilyResult(base, own, counts, unseen_errors(strangers, recipe, gpus, seed))


def _train_base(
    recipe: Recipe, groups: Sequence[Group], gpus: Mapping[str, Gpu], plan: TrainingPlan, seed: int
) -> tuple[NetworkWeights, int]:
    fitted, calibration = _parts(recipe, groups, gpus, seed)
    pairs = _pairs(recipe, [gpus[name] for name in sorted({group.gpu for group in groups})], seed)
    return train_network(fitted, calibration, plan, seed=seed, pairs=pairs), len(fitted)


def _pairs(recipe: Recipe, gpus: Sequence[Gpu], seed: int) -> DoublingPairs | None:
    if not recipe.shapes:
        return None
    return doubling_pairs(recipe.family, recipe.shapes, gpus, count=DOUBLING_PAIRS, seed=seed)


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


def bases_of_strangers(
    recipe: Recipe, groups: Sequence[Group], gpus: Mapping[str, Gpu], seed: int
) -> Mapping[str, tuple[NetworkWeights, Sequence[Group]]]:
    """By GPU, a base that never saw it nor its like, and the GPU's measurements."""
    tested: dict[str, tuple[NetworkWeights, Sequence[Group]]] = {}
    present = {group.gpu for group in groups}
    for fold in recipe.folds:
        seen = [group for group in groups if group.gpu not in fold]
        if not seen or not present & set(fold):
            continue
        network, _ = _train_base(recipe, seen, gpus, recipe.fold, seed)
        for name in sorted(present & set(fold)):
            tested[name] = (network, [group for group in groups if group.gpu == name])
    return tested
