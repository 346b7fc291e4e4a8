"""Train a family's networks: a base, each GPU's own, and their intervals.

A base is trained on all GPUs; each GPU with enough measurements gets a copy of it, or of a base of the family alone
(`Recipe.start`), fine-tuned on its own rows where that is better on the calibration rows. The interval of own weights
rests on their own errors; the base's interval, on the errors of bases that never saw the GPU (`Recipe.folds`), because
that is how the base is used. Families that are kin are fitted to the same rows, so they share their bases' trainings.

The half width is the 90 % quantile of |log(predicted / measured)| on the calibration rows, which no fit saw, so that
90 % of new shapes of the same kind fall inside (Vovk et al., Algorithmic Learning in a Random World, 2005). Example::

    results = train_families([RECIPES["vector"]], groups, gpus, seed=0)
    results["vector"].own["T4"].interval["relu/float32"]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from joblib import Parallel, delayed

from benchmarks.training.doublings import doubling_pairs
from benchmarks.training.recipes import Recipe
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.operations import Array, NetworkSpec, shape_batch
from lightning_predict.own_weights.training.networks import TrainingPlan, TrainingRows, collect_rows, train_network
from lightning_predict.own_weights.training.tables import Group, shape_shares, split_rows
from lightning_predict.own_weights.training.tuning import MIN_OWN_ROWS, log_errors, weighted_quantile
from lightning_predict.weights.records import CROSS_GPU, NetworkWeights

UNMEASURED_HALF_WIDTH: Final = math.log(3.0)
"""Half width where nothing was held out: "within a factor of three", an assumption."""

FEWEST_GROUP_ROWS: Final = 5  # Calibration rows of an operation on a GPU below which they are left out


def interval_of(
    tested: Mapping[str, tuple[NetworkWeights, Sequence[Group]]],
    recipe: Recipe,
    gpus: Mapping[str, Gpu],
    seed: int,
    *,
    are_strangers: bool = False,
) -> Mapping[str, float]:
    """Compute half widths in log(seconds), by "operation/dtype" and "*" for the widest; every GPU counts the same.

    An operation is not known better on new shapes than on those that were fitted to, and those are ten times as
    many: where few rows calibrate it and happen to be easy ones, the width of the fitted rows stands. Strangers saw
    none of either, so both calibrate them: of a table of 90 rows 7 alone would say as much as the worst of them.
    """
    calibration: dict[str, list[Array]] = {}
    fitted: dict[str, list[Array]] = {}
    for network, groups in tested.values():
        for key, (calibrating, fitting) in _errors_by_operation(network, groups, recipe, gpus, seed).items():
            if are_strangers:
                calibrating = fitting = np.concatenate([calibrating, fitting])
            if len(calibrating) >= FEWEST_GROUP_ROWS:
                calibration.setdefault(key, []).append(calibrating)
                fitted.setdefault(key, []).append(fitting)
    if not calibration:
        return {"*": UNMEASURED_HALF_WIDTH}
    widths = {key: max(_half_width(parts), _half_width(fitted[key])) for key, parts in calibration.items()}
    return {**widths, "*": max(widths.values())}


def _errors_by_operation(
    network: NetworkWeights, groups: Sequence[Group], recipe: Recipe, gpus: Mapping[str, Gpu], seed: int
) -> Mapping[str, tuple[Array, Array]]:
    """Compute |log(predicted / measured)| of calibration and of fitted rows, by "operation/dtype"."""
    pairs: dict[str, list[tuple[Array, Array]]] = {}
    for group in groups:
        split = split_rows(group.batch.columns, seed=seed)
        error = np.abs(log_errors(recipe.family, network, group, gpus[group.gpu]))
        shows_device = group.seconds >= recipe.scored_from(group)
        parts = error[split.calibration & shows_device], error[split.fitted & shows_device]
        pairs.setdefault(f"{group.batch.operation}/{group.batch.dtype}", []).append(parts)
    return {
        key: (np.concatenate([one for one, _ in parts]), np.concatenate([other for _, other in parts]))
        for key, parts in pairs.items()
    }


def _half_width(errors: Sequence[Array]) -> float:
    """Return the conformal quantile of one array a GPU, each of the same weight in all; 0 for no errors."""
    joined = np.concatenate(errors)
    if not len(joined):
        return 0.0
    return weighted_quantile(joined, np.concatenate([np.full(len(part), 1 / max(len(part), 1)) for part in errors]))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenError:
    """Errors on held-out rows of one (operation, dtype, GPU) by a base that never saw the GPU or a similar GPU."""

    operation: str  # Operation
    dtype: str  # dtype
    gpu: str  # GPU
    rows: int  # Held-out rows
    median: float  # Median of |predicted / measured - 1|
    mean: float  # Its mean
    coverage: float  # Share of the rows inside the base's interval


def unseen_errors(
    tested: Mapping[str, tuple[NetworkWeights, Sequence[Group]]],
    recipe: Recipe,
    gpus: Mapping[str, Gpu],
    seed: int,
    interval: Mapping[str, float],
) -> tuple[UnseenError, ...]:
    """Compute errors of each network on the held-out rows of the GPU that it is tested on."""
    errors: dict[tuple[str, str, str], list[Array]] = {}
    for network, groups in tested.values():
        for group in groups:
            mask = split_rows(group.batch.columns, seed=seed).held_out
            mask &= group.seconds >= recipe.scored_from(group)
            if mask.any():
                error = log_errors(recipe.family, network, group.take(mask), gpus[group.gpu])
                errors.setdefault((group.batch.operation, group.batch.dtype, group.gpu), []).append(error)
    joined = {key: np.concatenate(parts) for key, parts in sorted(errors.items())}
    return tuple(_unseen_error(key, error, interval) for key, error in joined.items())


def _unseen_error(key: tuple[str, str, str], log_error: Array, interval: Mapping[str, float]) -> UnseenError:
    operation, dtype, gpu = key
    error = np.abs(np.expm1(log_error))
    width = interval.get(f"{operation}/{dtype}", interval["*"])
    return UnseenError(
        operation=operation,
        dtype=dtype,
        gpu=gpu,
        rows=len(error),
        median=float(np.median(error)),
        mean=float(error.mean()),
        coverage=float((np.abs(log_error) <= width).mean()),
    )


def seen_by_base(family: NetworkSpec, gpus: Mapping[str, Gpu]) -> dict[str, Gpu]:
    """Describe GPUs, by name, as the base sees them, which is not told which of them were measured."""
    return {name: family.unmeasured(gpu) for name, gpu in gpus.items()}


FEWEST_ROWS: Final = 300  # Rows below which a family is not trained
SHORTEST_DTYPE: Final = "float32"  # dtype of the sources whose short rows show the launch
DOUBLING_PAIRS: Final = 20_000  # Pairs of a shape and its double, drawn for each training


@dataclass(frozen=True)
class FamilyResult:
    """Trained networks of one family."""

    base: NetworkWeights  # Serves GPUs without own weights
    own: Mapping[str, NetworkWeights]  # Own networks by GPU name
    rows: Mapping[str, int]  # Rows that each file's network was fitted to, by GPU name; the base's under `CROSS_GPU`
    unseen: tuple[UnseenError, ...]  # Errors of bases on GPUs that they never saw


@dataclass(frozen=True, slots=True)
class Training:
    """One network to be trained; families that share a base have equal trainings for it."""

    families: frozenset[str]  # Whose rows are fitted
    plan: TrainingPlan  # How long
    left_out: tuple[str, ...] = ()  # GPUs that a base does not see
    own: str | None = None  # The GPU that a base is tuned to; None for a base
    # Of networks that will know the GPU by its measurements, or start those that do; the others see GPUs as a base does
    by_data_sheet: bool = False

    @property
    def examples(self) -> int:
        """Rows that the training goes through, over all members: its cost, up to a factor."""
        return self.plan.steps * self.plan.batch_rows * self.plan.members


def train_families(
    recipes: Sequence[Recipe],
    groups: Sequence[Group],
    gpus: Mapping[str, Gpu],
    *,
    seed: int = 0,
    jobs: int = 1,
    done: Callable[[Training], None] = lambda _: None,
) -> dict[str, FamilyResult]:
    """Train the bases, the own networks and the intervals of families, by name.

    Args:
        recipes: One a family.
        groups: Measurements; those on GPUs that are not in `gpus` are left out.
        gpus: GPUs by name.
        seed: Seed of the networks and of the split.
        jobs: Trainings at a time; the results do not depend on it.
        done: Called after each training.
    """
    known = [group for group in groups if group.gpu in gpus]
    for recipe in recipes:
        _check_rows(recipe, known)
    run = Parallel(n_jobs=jobs, return_as="generator")

    def trained(wanted: Mapping[Training, tuple[Recipe, NetworkWeights | None]]) -> Iterator[NetworkWeights]:
        calls = [delayed(_train)(t, recipe, known, gpus, seed, start) for t, (recipe, start) in wanted.items()]
        for training, network in zip(wanted, run(calls), strict=True):
            done(training)
            yield network

    shared = {training: (recipe, None) for recipe in recipes for training in base_trainings(recipe, known)}
    bases = dict(zip(shared, trained(shared), strict=True))
    results = {recipe.family.name: _base_result(recipe, known, gpus, bases, seed) for recipe in recipes}
    tuned = {
        training: (recipe, replace(bases[start_training(recipe)], family=recipe.family.name))
        for recipe in recipes
        for training in own_trainings(recipe, known, seed)
    }
    owned = dict(zip(tuned, trained(tuned), strict=True))
    return {
        recipe.family.name: _with_own(results[recipe.family.name], recipe, known, gpus, owned, seed)
        for recipe in recipes
    }


def train_bases(
    recipes: Sequence[Recipe],
    groups: Sequence[Group],
    gpus: Mapping[str, Gpu],
    *,
    left_out: Sequence[str],
    seed: int = 0,
    jobs: int = 1,
) -> dict[str, NetworkWeights]:
    """Train the bases of families as they ship, but without the measurements of some GPUs, by family.

    Args:
        recipes: One a family; those that the measurements have no rows for are left out.
        groups: Measurements, all on GPUs that are in `gpus`.
        gpus: GPUs by name.
        left_out: GPUs that no base sees.
        seed: Seed of the networks and of the split.
        jobs: Trainings at a time.
    """
    served = [recipe for recipe in recipes if any(map(recipe.serves, groups))]
    wanted = {
        replace(base_trainings(recipe, groups)[0], left_out=tuple(left_out)): recipe for recipe in reversed(served)
    }
    calls = (delayed(_train)(training, recipe, groups, gpus, seed, None) for training, recipe in wanted.items())
    trained = dict(zip((training.families for training in wanted), Parallel(n_jobs=jobs)(calls), strict=True))
    return {
        recipe.family.name: replace(trained[base_trainings(recipe, groups)[0].families], family=recipe.family.name)
        for recipe in served
    }


def trainings_of(recipes: Sequence[Recipe], groups: Sequence[Group], seed: int) -> list[Training]:
    """Return all that `train_families` trains."""
    bases = {training: None for recipe in recipes for training in base_trainings(recipe, groups)}
    return [*bases, *(training for recipe in recipes for training in own_trainings(recipe, groups, seed))]


def base_trainings(recipe: Recipe, groups: Sequence[Group]) -> list[Training]:
    """Start the base of a recipe, those that leave out GPUs it has measurements of, and own weights."""
    names = frozenset(family.name for family in (recipe.family, *recipe.kin))
    present = {group.gpu for group in groups if recipe.serves(group)}
    taught = {group.gpu for group in groups if recipe.learns_from(group)}
    folds = [fold for fold in recipe.folds if present & set(fold) and taught - set(fold)]
    left_out = [Training(names, recipe.fold or recipe.base, fold) for fold in folds]
    return [Training(names, recipe.base), *left_out, *([start_training(recipe)] if recipe.start else [])]


def start_training(recipe: Recipe) -> Training:
    """Return the base that own weights are tuned from."""
    if recipe.start is None:
        return Training(frozenset(family.name for family in (recipe.family, *recipe.kin)), recipe.base)
    return Training(frozenset({recipe.family.name}), recipe.start, by_data_sheet=True)


def own_trainings(recipe: Recipe, groups: Sequence[Group], seed: int) -> list[Training]:
    """Start one training for each GPU with enough rows."""
    counts = fitted_rows(recipe, groups, seed)
    wanted = sorted(name for name, count in counts.items() if name != CROSS_GPU and count >= MIN_OWN_ROWS)
    return [Training(frozenset({recipe.family.name}), recipe.own, own=name, by_data_sheet=True) for name in wanted]


def fitted_rows(recipe: Recipe, groups: Sequence[Group], seed: int) -> dict[str, int]:
    """Return the rows of the family that are fitted, by GPU, and on all under `CROSS_GPU`."""
    counts = {CROSS_GPU: 0}
    for group in groups:
        if recipe.serves(group):
            rows = int(split_rows(group.batch.columns, seed=seed).fitted.sum())
            counts[group.gpu] = counts.get(group.gpu, 0) + rows
            counts[CROSS_GPU] += rows
    return counts


def _strangers(
    recipe: Recipe, groups: Sequence[Group], bases: Mapping[Training, NetworkWeights]
) -> Mapping[str, tuple[NetworkWeights, Sequence[Group]]]:
    tested: dict[str, tuple[NetworkWeights, Sequence[Group]]] = {}
    for training in base_trainings(recipe, groups):
        for name in training.left_out:
            mine = [group for group in groups if group.gpu == name and recipe.serves(group)]
            if mine:
                tested[name] = (replace(bases[training], family=recipe.family.name), mine)
    return tested


def _check_rows(recipe: Recipe, groups: Sequence[Group]) -> None:
    rows = sum(len(group.seconds) for group in groups if recipe.serves(group))
    if rows < FEWEST_ROWS:
        raise MeasurementTableError(
            f"The tables have {rows} rows for {recipe.family.name!r} on GPUs of the catalogue; expected at least "
            f"{FEWEST_ROWS}. Add measurements of: {', '.join(recipe.family.operations)}."
        )


def _base_result(
    recipe: Recipe,
    groups: Sequence[Group],
    gpus: Mapping[str, Gpu],
    bases: Mapping[Training, NetworkWeights],
    seed: int,
) -> FamilyResult:
    """Return the base with its interval, and how it errs on GPUs that it did not see; no own networks yet."""
    strangers = _strangers(recipe, groups, bases)
    # Of one GPU alone nothing can be left out.
    gpus = seen_by_base(recipe.family, gpus)
    interval = (
        interval_of(strangers, recipe, gpus, seed, are_strangers=True) if strangers else {"*": UNMEASURED_HALF_WIDTH}
    )
    base = replace(bases[base_trainings(recipe, groups)[0]], family=recipe.family.name, interval=interval)
    return FamilyResult(
        base, {}, fitted_rows(recipe, groups, seed), unseen_errors(strangers, recipe, gpus, seed, interval)
    )


def _with_own(
    result: FamilyResult,
    recipe: Recipe,
    groups: Sequence[Group],
    gpus: Mapping[str, Gpu],
    networks: Mapping[Training, NetworkWeights],
    seed: int,
) -> FamilyResult:
    own = {}
    for training in own_trainings(recipe, groups, seed):
        name = str(training.own)
        mine = [group for group in groups if group.gpu == name and recipe.serves(group)]
        network = networks[training]
        own[name] = replace(network, interval=interval_of({name: (network, mine)}, recipe, gpus, seed))
    return replace(result, own=own)


def _train(
    training: Training,
    recipe: Recipe,
    groups: Sequence[Group],
    gpus: Mapping[str, Gpu],
    seed: int,
    start: NetworkWeights | None,
) -> NetworkWeights:
    """Run one training; `start` is the base that own weights are tuned from."""
    families = [family for family in (recipe.family, *recipe.kin) if family.name in training.families]
    dtypes = {dtype for family in families for dtype in family.dtypes}
    shapes = [shape for shape in recipe.shapes if shape.dtype in dtypes]
    mine = [
        group
        for group in groups
        if recipe.learns_from(group)
        and group.batch.dtype in dtypes
        and group.gpu not in training.left_out
        and training.own in (None, group.gpu)
    ]
    fitted, calibration = _parts(recipe, mine, gpus, training, seed)
    pairs = None
    if not training.by_data_sheet:
        gpus = seen_by_base(recipe.family, gpus)
    if shapes:
        on = [gpus[name] for name in sorted({group.gpu for group in mine})]
        pairs = doubling_pairs(recipe.family, shapes, on, count=DOUBLING_PAIRS, seed=seed)
    return train_network(fitted, calibration, training.plan, seed=seed, start=start, pairs=pairs)


def _parts(
    recipe: Recipe, groups: Sequence[Group], gpus: Mapping[str, Gpu], training: Training, seed: int
) -> tuple[TrainingRows, TrainingRows]:
    """Split into fitted rows, with the shortest shapes where sources cannot see them, and calibration rows."""
    if training.plan.group_rows is not None:
        groups = [_thinned(group, training.plan.group_rows, seed) for group in groups]
    floors = {group.gpu for group in groups if group.floor_seconds > 0 and group.batch.dtype == SHORTEST_DTYPE}
    shortest = [extra for name in sorted(floors) for extra in _shortest(recipe, name)]
    splits = [split_rows(group.batch.columns, seed=seed) for group in groups]
    fitted = [group.take(split.fitted) for group, split in zip(groups, splits, strict=True)]
    calibration = [group.take(split.calibration) for group, split in zip(groups, splits, strict=True)]
    cards = [gpus[group.gpu] for group in (*groups, *shortest)]
    if not training.by_data_sheet:
        reached = [_with_reached_rate(card, group) for card, group in zip(cards, (*groups, *shortest), strict=True)]
        cards = [recipe.family.unmeasured(card) for card in reached]
    return collect_rows(recipe.family, [*fitted, *shortest], cards), collect_rows(
        recipe.family, calibration, cards[: len(groups)]
    )


LARGE_PRODUCT_FLOPS: Final = 2 * 4096.0**3
FEWEST_LARGE_PRODUCTS: Final = 5
REACHED_QUANTILE: Final = 0.9
"""Of the large products of a group the ninth in ten is as fast as the survey's, on the GPUs that did not throttle."""


def _with_reached_rate(gpu: Gpu, group: Group) -> Gpu:
    """Return the GPU with the rate that the large products of a group reached on it.

    Sources load GPUs differently, and some throttled: a base that saw the survey's rate instead would learn these by
    their caches and clocks, and take other GPUs like them for slow.
    """
    flops = group.batch.flops
    if group.batch.operation not in ("linear", "bmm"):
        return gpu
    large = flops >= LARGE_PRODUCT_FLOPS
    if large.sum() < FEWEST_LARGE_PRODUCTS:
        return gpu
    rate = float(np.quantile(flops[large] / group.seconds[large], REACHED_QUANTILE))
    return replace(gpu, measured_flops_per_second={**gpu.measured_flops_per_second, group.batch.dtype: rate})


def _thinned(group: Group, most_rows: int, seed: int) -> Group:
    """Keep about as many rows of a group at most, drawn by their shapes independently of the split."""
    share = shape_shares(group.batch.columns, seed=seed + 1)
    return group.take(share * len(group.seconds) < most_rows)


def _shortest(recipe: Recipe, gpu: str) -> list[Group]:
    """Add tiny shapes: nothing to compute or move, so as long as the shortest kernels that were measured."""
    made = []
    for operation, words in recipe.shortest:
        grid = np.meshgrid(*words.values(), indexing="ij")
        batch = shape_batch(operation, SHORTEST_DTYPE, **{w: axis.ravel() for w, axis in zip(words, grid, strict=True)})
        seconds = np.full(len(batch), recipe.shortest_seconds)
        made.append(Group(gpu, "shortest", batch, seconds, 0.0))
    return made
