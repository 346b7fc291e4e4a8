"""How much a measurement on one GPU says about another: learnt on problems that both have run.

    python -m lightning_predict.fitting.blending TABLES

For each family and kind of pair (`kernels/blending.py`), the weight w of the ratio is the one with the least mean of
|e_target - w · e_origin| over the calibration rows, and the half width of the interval their conformal 90 % quantile,
unless wave scaling errs less there; both GPUs ran the same software build. Tables hold no launches of both GPUs, so
wave scaling is that of many waves. The printed errors are on held-out rows. A GPU counts as unseen through a base
that was trained without it and its like (`families.bases_of_strangers`), which takes most of the time. The models were
trained on the software of the tables; where yours is another, a measurement says more than is learnt here. Example::

    table, errors = learn(Path("measurements"), weights=None)
    table.of("attention", origin_known=True, target_known=True).weight
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from joblib import Parallel, delayed
from rich import box
from rich.console import Console
from rich.table import Table

from lightning_predict.errors import LightningPredictError
from lightning_predict.fitting.__main__ import JOBS, gpus_of
from lightning_predict.fitting.families import bases_of_strangers
from lightning_predict.fitting.gpu_pairs import MeasuredGroup, PairRows, blend_of, joined, pairs_of
from lightning_predict.fitting.intervals import log_errors
from lightning_predict.fitting.recipes import RECIPES, Recipe
from lightning_predict.fitting.splits import CALIBRATION_SHARE, HELD_OUT_SHARE, split_rows
from lightning_predict.fitting.tables import SOURCES, Group, read_tables
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.blending import BUNDLED_BLENDS, PAIR_KINDS, Blend, BlendTable
from lightning_predict.kernels.operations import Array
from lightning_predict.weights.records import LoadedWeights, NetworkWeights
from lightning_predict.weights.store import load_weights


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
        prog="python -m lightning_predict.fitting.blending", description=__doc__.split("\n")[0]
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
