"""Train the weights from measurement tables, or score weights against them, and report on single operations.

Example::

    scores = train(Path("measurements"), Path("my-weights"))
    print_operators(scores, manifest_of(Path("my-weights")), (), Console(width=WIDTH))
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from joblib import Parallel, delayed
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from benchmarks.training.collectives import publish_curves
from benchmarks.training.families import train_families, trainings_of
from benchmarks.training.publishing import publish, unseen_table
from benchmarks.training.recipes import RECIPES, Recipe
from benchmarks.training.report import Goal, reach_table
from benchmarks.training.scores import RawNetwork, Score, score_groups, score_table, scored_groups, train_raw_network
from benchmarks.training.surrogates import ProxyScore, proxy_scores, proxy_table
from benchmarks.training.tables import read_tables
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.models import UtilisationModels, kernel_models
from lightning_predict.own_weights.training.tables import Group, split_rows
from lightning_predict.own_weights.training.tuning import gpus_of
from lightning_predict.weights.files import HeldOutError, Manifest, file_name
from lightning_predict.weights.records import CROSS_GPU
from lightning_predict.weights.store import BUNDLED, load_weights, read_manifest

JOBS: Final = 2


def train(
    tables: Path,
    output: Path,
    *,
    seed: int = 0,
    recipes: Mapping[str, Recipe] = RECIPES,
    console: Console | None = None,
    jobs: int = JOBS,
) -> tuple[Score, ...]:
    """Train all families that the tables have rows for and write the files, curves of collectives among them.

    Args:
        tables: Folder of the measurement tables.
        output: Folder to write.
        seed: Seed of the networks and of the split.
        recipes: What to train, by family.
        console: Where progress is shown.
        jobs: Networks to train at a time, each in a process of its own.

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
            chosen, known, gpus, seed=seed, jobs=jobs, done=lambda t: progress.update(bar, advance=t.examples)
        )
        for number, (name, result) in enumerate(results.items(), start=1):
            progress.console.print(f"[{number}/{len(results)}] {name}: base and {len(result.own)} GPUs")
        networks = raw_networks(known, gpus, seed=seed, progress=progress, jobs=jobs)
    scores = publish(results, groups, gpus, folder=output, seed=seed, raw_networks=networks)
    curves = publish_curves(tables, output)
    if curves is not None and curves.mean_error is not None:
        console.print(f"Collectives: mean error {curves.mean_error:.1%} on sizes that were left out, from 1 MB.")
    return scores


def raw_networks(
    groups: Sequence[Group], gpus: Mapping[str, Gpu], *, seed: int, progress: Progress, jobs: int = JOBS
) -> dict[tuple[str, str], RawNetwork]:
    """Return a network on raw latency for each operation and dtype, of the fitted rows that show the device."""
    fitted: dict[tuple[str, str], list[Group]] = {}
    for group in scored_groups(groups, gpus):
        rows = group.take(split_rows(group.batch.columns, seed=seed).fitted)
        if len(rows.seconds):
            fitted.setdefault((group.batch.operation, group.batch.dtype), []).append(rows)
    calls = [delayed(train_raw_network)(parts, gpus, seed=seed) for parts in fitted.values()]
    trained = Parallel(n_jobs=jobs, return_as="generator")(calls)
    return dict(zip(fitted, progress.track(trained, total=len(calls), description="Raw networks"), strict=True))


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        yield progress


def evaluate(
    tables: Path, *, weights: Path | None = None, seed: int = 0, baselines: bool = False, console: Console | None = None
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
    models = UtilisationModels(load_weights(sorted(gpus), weights))
    networks = None
    if baselines:
        with _progress(console or Console()) as progress:
            networks = raw_networks(groups, gpus, seed=seed, progress=progress)
    return score_groups(models, groups, gpus, seed=seed, raw_networks=networks)


def evaluate_proxies(tables: Path, *, weights: Path | None = None) -> tuple[ProxyScore, ...]:
    """Score operations that are predicted through others; errors as for `proxy_scores`."""
    return proxy_scores(tables, kernel_models((), None if weights is None else str(weights)))


def manifest_of(weights: Path | None) -> Manifest | None:
    """Return the manifest next to these weights, or the bundled one; None without a manifest."""
    folder = BUNDLED if weights is None else weights if weights.is_dir() else weights.parent
    return read_manifest(folder)


LEAST_COVERAGE, MOST_COVERAGE = 0.88, 0.93
"""Share of the measurements that 90 % intervals should hold: fewer is too bold, more says too little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """A mean error that operations should not exceed on any of some GPUs with weights of their own."""

    operations: tuple[str, ...]  # Operations
    dtype: str  # dtype
    limit: float  # The error
    gpus: tuple[str, ...] | None = None  # GPUs that it is for; None is for all that no other line names
    called: bool = False  # Of whole calls, the launch with them (`launches.py`), instead of the device's time


_PRODUCTS: Final = ("linear", "bmm")
_DATA_CENTRE_BLACKWELL: Final = ("B200-SXM-180GB", "B300-SXM-288GB", "GB200", "GB300")
_VECTORS: Final = tuple(
    "add add_scalar mul mul_scalar div div_scalar pow pow_scalar relu gelu tanh softmax layer_norm".split()
)

REACHES: Final = (
    Reach(operations=("linear",), dtype="bfloat16", limit=0.05),
    Reach(operations=("linear",), dtype="bfloat16", limit=0.06, gpus=("B200-SXM-180GB", "GB200")),
    Reach(operations=("linear",), dtype="bfloat16", limit=0.07, gpus=("L40S",)),
    Reach(operations=_PRODUCTS, dtype="float32", limit=0.08),
    Reach(operations=_PRODUCTS, dtype="float32", limit=0.12, gpus=("P4", "T4", "L4")),
    Reach(operations=("conv2d",), dtype="float32", limit=0.11),
    Reach(operations=("conv2d",), dtype="float32", limit=0.15, gpus=("P100-PCIe-16GB",)),
    Reach(operations=("conv2d",), dtype="float32", limit=0.11, called=True),
    Reach(operations=("conv2d",), dtype="float32", limit=0.15, gpus=("P100-PCIe-16GB",), called=True),
    Reach(operations=_VECTORS, dtype="float32", limit=0.08),
)
"""Add a line by adding a row. Cards that throttle, and whose bandwidth or algorithms scatter, are granted more."""

LEFT_OUT: Final[Mapping[tuple[str, ...], tuple[str, tuple[str, ...]]]] = {
    ("linear",): ("bfloat16", ("A100-SXM-80GB", "B200-SXM-180GB", "H200-SXM-141GB", "L40S", "RTX-PRO-6000-Server")),
    _PRODUCTS: ("float32", ("H100-SXM-80GB", "L4", "V100-PCIe-32GB")),
}
"""GPUs that are looked at when they are left out, by operations."""


def operator_goals(scores: Sequence[Score], manifest: Manifest | None) -> tuple[Goal, ...]:
    """Return the goals that there are scores for.

    Args:
        scores: Scores of the weights, with own weights where the GPU has some.
        manifest: Results of the training for left-out GPUs; None omits them.
    """
    own = [score for score in scores if score.own_weights]
    goals = [goal for reach in REACHES for goal in _reached(reach, own)]
    entry = None if manifest is None else manifest.files.get(file_name(CROSS_GPU))
    return (*goals, *_unseen({} if entry is None else entry.held_out_error), *_intervals(own))


def _reached(reach: Reach, scores: Sequence[Score]) -> Iterator[Goal]:
    """Yield the worst GPU of a line."""
    elsewhere = {
        gpu
        for other in REACHES
        if (other.operations, other.dtype, other.called) == (reach.operations, reach.dtype, reach.called)
        for gpu in other.gpus or ()
    }
    known = [
        (error, score)
        for score in scores
        if score.operation in reach.operations
        and score.dtype == reach.dtype
        and (score.gpu in reach.gpus if reach.gpus is not None else score.gpu not in elsewhere)
        and (error := score.called if reach.called else score.mean) is not None
    ]
    if known:
        error, worst = max(known, key=lambda pair: pair[0])
        what = f"{worst.operation} {worst.dtype}, mean error{' of whole calls' if reach.called else ''}, {worst.gpu}"
        others = f", the worst of {len(known)}" if len(known) > 1 else ""
        yield Goal(what=what + others, cases=sum(score.rows for _, score in known), reached=error, reach=reach.limit)


def _unseen(errors: Mapping[str, HeldOutError]) -> Iterator[Goal]:
    """Take medians of GPUs that were left out: on average for 16-bit products, the worst for all."""
    for operations, (dtype, gpus) in LEFT_OUT.items():
        known = {
            f"{operation} {dtype}, {gpu}": errors[f"{operation}/{dtype}/{gpu}"]
            for operation in operations
            for gpu in gpus
            if f"{operation}/{dtype}/{gpu}" in errors
        }
        if not known:
            continue
        cases = sum(error.rows for error in known.values())
        medians = {name: error.median for name, error in known.items()}
        if dtype == "bfloat16":
            mean = statistics.fmean(medians.values())
            what = f"{' and '.join(operations)} {dtype}, mean of {len(known)} left-out GPUs' medians"
            yield Goal(what=what, cases=cases, reached=mean, reach=0.12)
        worst = max(medians, key=lambda name: medians[name])
        yield Goal(what=f"{worst}, left out, median error", cases=cases, reached=medians[worst], reach=0.20)


def _intervals(scores: Sequence[Score]) -> Iterator[Goal]:
    rows = sum(score.rows for score in scores)
    if rows:
        held = sum(score.coverage * score.rows for score in scores) / rows
        what = "measurements in the 90 % interval, own weights"
        yield Goal(what=what, cases=rows, reached=held, reach=LEAST_COVERAGE, is_error=False)
        yield Goal(what=what, cases=rows, reached=held, reach=MOST_COVERAGE)


WIDTH: Final = 220  # Columns of the printed tables


def print_operators(
    scores: Sequence[Score], manifest: Manifest | None, proxies: Sequence[ProxyScore], console: Console
) -> None:
    """Print the report.

    Args:
        scores: Scores of the weights on held-out shapes.
        manifest: Results of the training for left-out GPUs; None omits them.
        proxies: Scores of operations without a network; an empty list omits them.
        console: Where to.
    """
    console.print(score_table(scores))
    if manifest is not None:
        console.print(unseen_table(manifest))
    if proxies:
        console.print(proxy_table(proxies))
    console.print(reach_table(operator_goals(scores, manifest)))
