"""Problems that two GPUs both ran on the same software, with the errors of what is predicted for them.

Example::

    pairs = pairs_of(measured, gpus, (True, False))  # from GPUs with own weights to GPUs that no base saw
    blend_of(pairs).weight
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Final, final

import numpy as np
from joblib import Parallel, delayed
from rich import box
from rich.console import Console
from rich.table import Table

from lightning_predict.errors import LightningPredictError
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.blending import BUNDLED_BLENDS, PAIR_KINDS, Blend, BlendTable
from lightning_predict.kernels.operations import Array, ProblemBatch
from lightning_predict.kernels.wave_scaling import many_wave_factors
from lightning_predict.training.families import bases_of_strangers, log_errors, weighted_quantile
from lightning_predict.training.recipes import RECIPES, Recipe
from lightning_predict.training.tables import CALIBRATION_SHARE, HELD_OUT_SHARE, SOURCES, Group, read_tables, split_rows
from lightning_predict.training.weights import JOBS, gpus_of
from lightning_predict.weights.records import LoadedWeights, NetworkWeights
from lightning_predict.weights.store import load_weights

FEWEST_PAIR_ROWS: Final = 5
"""Problems in common below which a pair is left out: each counts as much as a pair of thousands."""

FEWEST_BLEND_ROWS: Final = 60
"""Rows of all pairs below which a 90 % quantile would rest on fewer than six of them."""

NO_ERROR: Final = 1e-9
"""An origin's error below this says nothing about the weight."""


@final
@dataclass(frozen=True)
class MeasuredGroup:
    """Rows of one GPU, operation and build.

    Attributes:
        group: The rows.
        known_error: log(predicted / measured) by the GPU's own weights; None where it has none for the operation.
        unseen_error: The same by a base that never saw the GPU; None where there is no such base.
    """

    group: Group
    known_error: Array | None
    unseen_error: Array | None

    def error(self, *, known: bool) -> Array | None:
        """log(predicted / measured) as though the GPU were known or unseen."""
        return self.known_error if known else self.unseen_error


@final
@dataclass(frozen=True)
class PairRows:
    """Problems that an origin and a target both ran; arrays of shape (problems,) in log(seconds).

    Attributes:
        origin_error: log(predicted / measured) on the origin.
        target_error: The same on the target.
        wave_error: log(wave-scaled / measured) on the target.
    """

    origin_error: Array
    target_error: Array
    wave_error: Array

    def __len__(self) -> int:
        return len(self.origin_error)


def pairs_of(measured: Sequence[MeasuredGroup], gpus: Mapping[str, Gpu], known: tuple[bool, bool]) -> list[PairRows]:
    """All ordered pairs of different GPUs that ran the same operation on the same build.

    Args:
        measured: Groups of any operations and GPUs.
        gpus: The catalogue's rows by name.
        known: Whether the origin, and whether the target, is predicted as one that is known.
    """
    together: dict[tuple[str, str, str, str], list[MeasuredGroup]] = defaultdict(list)
    for one in measured:
        group = one.group
        together[group.batch.operation, group.batch.dtype, group.source, group.build].append(one)
    pairs = []
    for members in together.values():
        for origin, target in permutations(members, 2):
            rows = _shared_rows(origin, target, gpus, known)
            if rows is not None and len(rows) >= FEWEST_PAIR_ROWS:
                pairs.append(rows)
    return pairs


def _shared_rows(
    origin: MeasuredGroup, target: MeasuredGroup, gpus: Mapping[str, Gpu], known: tuple[bool, bool]
) -> PairRows | None:
    origin_error, target_error = origin.error(known=known[0]), target.error(known=known[1])
    if origin.group.gpu == target.group.gpu or origin_error is None or target_error is None:
        return None
    here, there = _shapes(origin.group.batch), _shapes(target.group.batch)
    _, left, right = np.intersect1d(here, there, assume_unique=True, return_indices=True)
    batch = target.group.batch
    shared = ProblemBatch(batch.operation, batch.dtype, {w: values[right] for w, values in batch.columns.items()})
    factors = many_wave_factors(shared, origin=gpus[origin.group.gpu], destination=gpus[target.group.gpu])
    wave = np.log(factors * origin.group.seconds[left] / target.group.seconds[right])
    return PairRows(origin_error[left], target_error[right], wave)


def _shapes(batch: ProblemBatch) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Each problem's shape as one value that can be compared."""
    table = np.ascontiguousarray(np.stack(list(batch.columns.values()), axis=1))
    return table.view([("", table.dtype)] * table.shape[1]).ravel()


def blend_of(pairs: Sequence[PairRows]) -> Blend | None:
    """The weight with the least mean of |target error - w · origin error|, and the 90 % quantile of what is left.

    Every pair counts the same. Where wave scaling leaves less, it is chosen, with its own quantile. None where there
    are too few rows.
    """
    if sum(map(len, pairs)) < FEWEST_BLEND_ROWS:
        return None
    origin, target, wave, counts = joined(pairs)
    weight = _least_weight(origin, target, counts)
    left, waved = np.abs(target - weight * origin), np.abs(wave)
    by_wave = bool(waved @ counts < left @ counts)
    half_width = weighted_quantile(waved if by_wave else left, counts)
    return Blend(weight=weight, half_width=half_width, by_wave=by_wave)


def _least_weight(origin: Array, target: Array, counts: Array) -> float:
    """The mean of |target - w · origin| is least at the median of target / origin, each weighted by |origin|."""
    tells = np.abs(origin) > NO_ERROR
    if not tells.any():
        return 0.0
    ratios = target[tells] / origin[tells]
    order = np.argsort(ratios)
    total = np.cumsum((np.abs(origin[tells]) * counts[tells])[order])
    return float(np.clip(ratios[order][np.searchsorted(total, total[-1] / 2)], 0.0, 1.0))


def joined(pairs: Sequence[PairRows]) -> tuple[Array, Array, Array, Array]:
    """Origin, target and wave errors of all rows, and their weights, which add up to 1 for each pair."""
    return (
        np.concatenate([pair.origin_error for pair in pairs]),
        np.concatenate([pair.target_error for pair in pairs]),
        np.concatenate([pair.wave_error for pair in pairs]),
        np.concatenate([np.full(len(pair), 1 / len(pair)) for pair in pairs]),
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PairErrors:
    """Mean of |predicted / measured - 1| on held-out rows of one family and kind of pair; every pair counts the same.

    Attributes:
        family: Family of operations.
        kind: One of `PAIR_KINDS`.
        pairs: Ordered pairs of GPUs, for each operation and build.
        rows: Rows of all pairs.
        blend: What was learnt, on other rows.
        ratio_error: Of the measurement times the ratio of predictions.
        direct_error: Of the prediction alone.
        blend_error: Of both together, or of wave scaling where that was learnt to be better.
        wave_error: Of wave scaling.
        coverage: Share of the rows inside the blend's 90 % interval.
    """

    family: str
    kind: str
    pairs: int
    rows: int
    blend: Blend
    ratio_error: float
    direct_error: float
    blend_error: float
    wave_error: float
    coverage: float


def learn(
    tables: Path, *, weights: Path | None, seed: int = 0, recipes: Mapping[str, Recipe] = RECIPES
) -> tuple[BlendTable, tuple[PairErrors, ...]]:
    """Blends of all families, and their errors on held-out rows.

    Args:
        tables: Folder of the measurement tables.
        weights: Weights whose errors are blended; None takes those that `load_weights` finds.
        seed: Seed of the split, and of the bases that leave GPUs out.
        recipes: How the families are trained.

    Raises:
        MeasurementTableError: Tables are missing or wrong.
        WeightsError: Weights that cannot be found or trusted.
    """
    mean, builds = read_tables(tables), read_tables(tables, by_build=True)
    gpus = gpus_of(mean)
    loaded = load_weights(sorted(gpus), path=weights)
    served = [recipe for recipe in recipes.values() if any(recipe.serves(group) for group in mean)]
    served.sort(key=lambda recipe: -sum(len(group.seconds) for group in mean if recipe.serves(group)))
    learnt = Parallel(n_jobs=JOBS)(delayed(_family)(recipe, mean, builds, gpus, loaded, seed) for recipe in served)
    used = sorted({group.source for group in builds if any(recipe.serves(group) for recipe in served)})
    table = BlendTable(
        families={recipe.family.name: blends for recipe, (blends, _) in zip(served, learnt, strict=True) if blends},
        date=datetime.date.today().isoformat(),
        split={"seed": seed, "held_out_share": HELD_OUT_SHARE, "calibration_share": CALIBRATION_SHARE},
        sources=tuple(f"{SOURCES[name].title} ({SOURCES[name].licence})" for name in used if name in SOURCES),
    )
    return table, tuple(error for _, errors in learnt for error in errors)


def _family(
    recipe: Recipe,
    mean: Sequence[Group],
    builds: Sequence[Group],
    gpus: Mapping[str, Gpu],
    loaded: LoadedWeights,
    seed: int,
) -> tuple[dict[str, Blend], tuple[PairErrors, ...]]:
    trained = [group for group in mean if recipe.learns_from(group) and group.gpu in gpus]
    strangers = {name: network for name, (network, _) in bases_of_strangers(recipe, trained, gpus, seed).items()}
    calibration, held_out = [], []
    for group in builds:
        if recipe.serves(group) and group.gpu in gpus:
            split = split_rows(group.batch.columns, seed=seed)
            networks = _known_network(recipe, group, loaded), strangers.get(group.gpu)
            calibration.append(_measured(recipe, group, split.calibration, networks, gpus))
            held_out.append(_measured(recipe, group, split.held_out, networks, gpus))
    blends: dict[str, Blend] = {}
    errors = []
    for known, kind in PAIR_KINDS.items():
        blend = blend_of(pairs_of(calibration, gpus, known))
        if blend is None:
            continue
        blends[kind] = blend
        checked = pairs_of(held_out, gpus, known)
        if checked:
            errors.append(pair_errors(recipe.family.name, kind, blend, checked))
    return blends, tuple(errors)


def _known_network(recipe: Recipe, group: Group, loaded: LoadedWeights) -> NetworkWeights | None:
    """The GPU's own network, where it was trained on this operation in this dtype."""
    own = loaded.gpus.get(group.gpu)
    network = None if own is None else own.families.get(recipe.family.name)
    if network is None or (group.batch.operation, group.batch.dtype) not in network.trained:
        return None
    return network


def _measured(
    recipe: Recipe,
    group: Group,
    part: np.ndarray[tuple[int], np.dtype[np.bool_]],
    networks: tuple[NetworkWeights | None, NetworkWeights | None],
    gpus: Mapping[str, Gpu],
) -> MeasuredGroup:
    rows = group.take(part & (group.seconds >= recipe.scored_from(group)))
    known, unseen = (
        None if network is None else log_errors(recipe.family, network, rows, gpus[group.gpu]) for network in networks
    )
    return MeasuredGroup(rows, known, unseen)


def pair_errors(family: str, kind: str, blend: Blend, pairs: Sequence[PairRows]) -> PairErrors:
    """Errors of every way to predict the pairs' targets."""
    origin, target, wave, counts = joined(pairs)
    blended = wave if blend.by_wave else target - blend.weight * origin

    def mean(log_error: Array) -> float:
        return float(np.average(np.abs(np.expm1(log_error)), weights=counts))

    return PairErrors(
        family=family,
        kind=kind,
        pairs=len(pairs),
        rows=len(target),
        blend=blend,
        ratio_error=mean(target - origin),
        direct_error=mean(target),
        blend_error=mean(blended),
        wave_error=mean(wave),
        coverage=float(np.average(np.abs(blended) <= blend.half_width, weights=counts)),
    )


HEADINGS = (
    "family",
    "origin to target",
    "pairs",
    "rows",
    "weight of ratio",
    "half width",
    "ratio %",
    "direct %",
    "blend %",
    "wave scaling %",
    "in interval %",
)


def errors_table(errors: Sequence[PairErrors]) -> Table:
    """The errors for the terminal."""
    table = Table(title="Mean errors on held-out problems, from one GPU's measurement to another's", box=box.SIMPLE)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in HEADINGS[:2] else "right", no_wrap=True)
    for error in errors:
        shares = (error.ratio_error, error.direct_error, error.blend_error, error.wave_error, error.coverage)
        table.add_row(
            error.family,
            error.kind,
            str(error.pairs),
            f"{error.rows:,}",
            "wave" if error.blend.by_wave else f"{error.blend.weight:.2f}",
            f"{error.blend.half_width:.3f}",
            *(f"{100 * share:.1f}" for share in shares),
        )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 where it worked, 1 after an error in words."""
    parser = argparse.ArgumentParser(
        prog="python -m lightning_predict.training.blends", description=__doc__.split("\n")[0]
    )
    parser.add_argument("tables", type=Path, help="folder of the measurement tables")
    parser.add_argument("--output", type=Path, default=BUNDLED_BLENDS, help="file to write (default: the bundled one)")
    parser.add_argument("--weights", type=Path, default=None, help="weights whose errors are blended")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        table, errors = learn(options.tables, weights=options.weights, seed=options.seed)
        options.output.write_text(table.to_json(), encoding="utf-8")
    except (LightningPredictError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    Console(width=160).print(errors_table(errors))
    return 0


if __name__ == "__main__":
    sys.exit(main())
