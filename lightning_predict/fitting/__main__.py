"""Train the weights from measurement tables, or score the bundled ones against them.

`python -m lightning_predict.fitting TABLES_FOLDER [--output FOLDER]` trains everything; with `--evaluate` it prints
errors of the weights that `load_weights` finds on the problems that no fit saw, what was found in training on GPUs that
were left out, and how good operations are that are predicted through others. `--baselines` trains networks on raw
latency to compare with, for a few minutes. Example::

    python -m lightning_predict.fitting measurements --output my-weights
    python -m lightning_predict.fitting --evaluate measurements --baselines
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from joblib import Parallel, delayed
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from lightning_predict.errors import LightningPredictError, UnknownGpuError
from lightning_predict.fitting.collectives import publish_curves
from lightning_predict.fitting.detours import DetourScore, detour_scores
from lightning_predict.fitting.families import train_families, trainings_of
from lightning_predict.fitting.operator_report import WIDTH, print_operators
from lightning_predict.fitting.publishing import publish
from lightning_predict.fitting.raw_network import RawNetwork, train_raw_network
from lightning_predict.fitting.recipes import RECIPES, Recipe
from lightning_predict.fitting.scores import Score, score_groups, scored_groups
from lightning_predict.fitting.splits import split_rows
from lightning_predict.fitting.tables import Group, read_tables
from lightning_predict.gpus import gpu
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.utilisation import UtilisationModels
from lightning_predict.weights.manifest import Manifest
from lightning_predict.weights.store import BUNDLED, load_weights, read_manifest

JOBS: Final = 2


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
    """Train all families that the tables have rows for and write the files, curves of collectives among them.

    Args:
        tables: Folder of the measurement tables.
        output: Folder to write.
        seed: Seed of the networks and of the split.
        recipes: What to train, by family.
        console: Where progress is shown.

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
    known = [group for group in groups if group.gpu in gpus]
    chosen = [recipe for recipe in recipes.values() if any(recipe.serves(group) for group in known)]
    with _progress(console) as progress:
        bar = progress.add_task("Training", total=sum(t.examples for t in trainings_of(chosen, known, seed)))
        results = train_families(
            chosen, known, gpus, seed=seed, jobs=JOBS, done=lambda t: progress.update(bar, advance=t.examples)
        )
        for number, (name, result) in enumerate(results.items(), start=1):
            progress.console.print(f"[{number}/{len(results)}] {name}: base and {len(result.own)} GPUs")
        networks = raw_networks(known, gpus, seed=seed, progress=progress)
    scores = publish(results, groups, gpus, folder=output, seed=seed, raw_networks=networks)
    curves = publish_curves(tables, output)
    if curves is not None and curves.mean_error is not None:
        console.print(f"Collectives: mean error {curves.mean_error:.1%} on sizes that were left out, from 1 MB.")
    return scores


def raw_networks(
    groups: Sequence[Group], gpus: Mapping[str, Gpu], *, seed: int, progress: Progress
) -> dict[tuple[str, str], RawNetwork]:
    """A network on raw latency for each operation and dtype, of the fitted rows that show the device."""
    fitted: dict[tuple[str, str], list[Group]] = {}
    for group in scored_groups(groups, gpus):
        rows = group.take(split_rows(group.batch.columns, seed=seed).fitted)
        if len(rows.seconds):
            fitted.setdefault((group.batch.operation, group.batch.dtype), []).append(rows)
    calls = [delayed(train_raw_network)(parts, gpus, seed=seed) for parts in fitted.values()]
    trained = Parallel(n_jobs=JOBS, return_as="generator")(calls)
    return dict(zip(fitted, progress.track(trained, total=len(calls), description="Raw networks"), strict=True))


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        yield progress


def evaluate(
    tables: Path,
    *,
    weights: Path | None = None,
    seed: int = 0,
    baselines: bool = False,
    console: Console | None = None,
) -> tuple[Score, ...]:
    """Score the weights that `load_weights` finds on the held-out rows of the tables; errors as for `train`.

    Args:
        tables: Folder of the measurement tables.
        weights: A folder or file of weights; None searches.
        seed: Seed of the split.
        baselines: Train networks on raw latency to compare with.
        console: Where their progress is shown.
    """
    groups = read_tables(tables)
    gpus = gpus_of(groups)
    models = UtilisationModels(load_weights(sorted(gpus), path=weights))
    networks = None
    if baselines:
        with _progress(console or Console()) as progress:
            networks = raw_networks(groups, gpus, seed=seed, progress=progress)
    return score_groups(models, groups, gpus, seed=seed, raw_networks=networks)


def evaluate_detours(tables: Path, *, weights: Path | None = None) -> tuple[DetourScore, ...]:
    """Score operations that are predicted through others; errors as for `detour_scores`.

    Args:
        tables: Folder of the measurement tables.
        weights: A folder or file of weights; None searches.
    """
    return detour_scores(tables, kernel_models((), None if weights is None else str(weights)))


def manifest_of(weights: Path | None) -> Manifest | None:
    """The manifest beside these weights, or the bundled one; None where there is none."""
    folder = BUNDLED if weights is None else weights if weights.is_dir() else weights.parent
    return read_manifest(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 where it worked, 1 after an error in words."""
    parser = argparse.ArgumentParser(prog="python -m lightning_predict.fitting", description=__doc__.split("\n")[0])
    parser.add_argument("tables", type=Path, help="folder of the measurement tables")
    parser.add_argument("--output", type=Path, default=BUNDLED, help="folder to write (default: the bundled weights)")
    parser.add_argument("--evaluate", action="store_true", help="print errors instead of training")
    parser.add_argument("--weights", type=Path, default=None, help="with --evaluate: weights to score")
    parser.add_argument("--baselines", action="store_true", help="with --evaluate: train networks on raw latency, too")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    console = Console(width=WIDTH)
    try:
        if options.evaluate:
            scores = evaluate(
                options.tables,
                weights=options.weights,
                seed=options.seed,
                baselines=options.baselines,
                console=Console(stderr=True),
            )
        else:
            scores = train(options.tables, options.output, seed=options.seed, console=console)
        detours = evaluate_detours(options.tables, weights=options.weights if options.evaluate else options.output)
    except (LightningPredictError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print_operators(scores, manifest_of(options.weights if options.evaluate else options.output), detours, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
