"""Train the weights from measurement tables, or score the bundled ones against them.

`python -m lightning_predict.fitting TABLES_FOLDER [--output FOLDER]` trains everything; with `--evaluate` it prints
errors of the weights that `load_weights` finds on the problems that no fit saw. Example::

    python -m lightning_predict.fitting measurements --output my-weights
    python -m lightning_predict.fitting --evaluate measurements
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from joblib import Parallel, delayed
from rich.console import Console

from lightning_predict.errors import LightningPredictError, UnknownGpuError
from lightning_predict.fitting.families import FamilyResult, train_family
from lightning_predict.fitting.publishing import publish
from lightning_predict.fitting.recipes import RECIPES, Recipe
from lightning_predict.fitting.scores import Score, score_groups, score_table
from lightning_predict.fitting.tables import Group, read_tables
from lightning_predict.gpus import gpu
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.utilisation import UtilisationModels
from lightning_predict.weights.store import BUNDLED, load_weights

JOBS = 2


def gpus_of(groups: Iterable[Group]) -> dict[str, Gpu]:
    """GPUs of the tables that the catalogue knows by exactly this name.

    A bare `V100` is an alias of one form factor; whoever measured it did not say which, so it is left out.
    """
    found: dict[str, Gpu] = {}
    for name in {group.gpu for group in groups}:
        try:
            card = gpu(name)
        except UnknownGpuError:
            continue
        if card.name == name:
            found[name] = card
    return found


def train(
    tables: Path,
    output: Path,
    *,
    seed: int = 0,
    recipes: Mapping[str, Recipe] = RECIPES,
    console: Console | None = None,
) -> tuple[Score, ...]:
    """Train all families that the tables have rows for and write the files.

    Raises:
        MeasurementTableError: Tables are missing or wrong.
        OSError: The output cannot be written.
    """
    console = console or Console()
    groups = read_tables(tables)
    gpus = gpus_of(groups)
    unknown = sorted({group.gpu for group in groups} - set(gpus))
    if unknown:
        console.print(f"Left out, not in the catalogue by that name: {', '.join(unknown)}")
    chosen = [recipe for recipe in recipes.values() if _rows(recipe, groups, gpus)]
    chosen.sort(key=lambda recipe: -_rows(recipe, groups, gpus))  # the longest first
    timed = Parallel(n_jobs=JOBS, return_as="generator_unordered")(
        delayed(_timed)(recipe, groups, gpus, seed) for recipe in chosen
    )
    results: dict[str, FamilyResult] = {}
    for number, (name, result, seconds) in enumerate(timed, start=1):
        results[name] = result
        console.print(f"[{number}/{len(chosen)}] {name}: base and {len(result.own)} GPUs in {seconds:.0f} s")
    ordered = {recipe.family.name: results[recipe.family.name] for recipe in chosen}
    return publish(ordered, groups, gpus, folder=output, seed=seed)


def evaluate(tables: Path, *, weights: Path | None = None, seed: int = 0) -> tuple[Score, ...]:
    """Score the weights that `load_weights` finds on the held-out rows of the tables; errors as for `train`."""
    groups = read_tables(tables)
    gpus = gpus_of(groups)
    models = UtilisationModels(load_weights(sorted(gpus), path=weights))
    return score_groups(models, groups, gpus, seed=seed)


def _rows(recipe: Recipe, groups: Sequence[Group], gpus: Mapping[str, Gpu]) -> int:
    return sum(len(group.seconds) for group in groups if recipe.serves(group) and group.gpu in gpus)


def _timed(
    recipe: Recipe, groups: Sequence[Group], gpus: Mapping[str, Gpu], seed: int
) -> tuple[str, FamilyResult, float]:
    started = time.perf_counter()
    result = train_family(recipe, groups, gpus, seed=seed)
    return recipe.family.name, result, time.perf_counter() - started


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 where it worked, 1 after an error in words."""
    parser = argparse.ArgumentParser(prog="python -m lightning_predict.fitting", description=__doc__.split("\n")[0])
    parser.add_argument("tables", type=Path, help="folder of the measurement tables")
    parser.add_argument("--output", type=Path, default=BUNDLED, help="folder to write (default: the bundled weights)")
    parser.add_argument("--evaluate", action="store_true", help="print errors instead of training")
    parser.add_argument("--weights", type=Path, default=None, help="with --evaluate: weights to score")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    console = Console(width=160)
    try:
        if options.evaluate:
            scores = evaluate(options.tables, weights=options.weights, seed=options.seed)
        else:
            scores = train(options.tables, options.output, seed=options.seed, console=console)
    except (LightningPredictError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    console.print(score_table(scores))
    return 0


if __name__ == "__main__":
    sys.exit(main())
