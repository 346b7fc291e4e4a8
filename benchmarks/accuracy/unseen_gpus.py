"""Whole steps on GPUs whose measurements no network was trained on, next to the weights as they ship.

Each chip that both the measurement tables and the whole steps have is left out in turn, with all of its boards: the
bases are trained again without its rows, and its own weights are taken away. The widths of intervals, and constants
that were chosen by hand, stay as they ship. Example::

    python -m benchmarks.accuracy FOLDER --of unseen --tables measurements --cache recorded-steps
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, final

from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.published_steps import PublishedStep
from benchmarks.accuracy.step_calibration import StepCase, spread_out
from benchmarks.accuracy.whole_steps import predicted_steps, published_steps
from benchmarks.training.families import train_bases
from benchmarks.training.recipes import RECIPES, Recipe
from benchmarks.training.report import report_table
from benchmarks.training.tables import read_tables
from lightning_predict.gpus import gpu_names
from lightning_predict.kernels.models import BundledModels, UtilisationModels, kernel_models
from lightning_predict.timeline.iteration import bundled_spread
from lightning_predict.training.own import gpus_of
from lightning_predict.training.tables import Group
from lightning_predict.weights.records import LoadedWeights
from lightning_predict.weights.store import load_weights

CHIPS: Final = ("P100", "V100", "T4", "A100", "A40", "L40S")
"""Those that both kinds of tables hold."""


def boards_of(chip: str) -> tuple[str, ...]:
    """List the catalogue's boards of a chip; they must not stand in for each other."""
    return tuple(name for name in gpu_names() if name == chip or name.startswith(f"{chip}-"))


@final
@dataclass(frozen=True, slots=True)
class UnseenResult:
    """A row of a table on a chip that was left out.

    Attributes:
        chip: One of `CHIPS`.
        seen: The step by the weights as they ship.
        unseen: The same by networks that saw no measurement of the chip.
    """

    chip: str
    seen: StepCase
    unseen: StepCase


def evaluate_unseen(
    folder: Path,
    tables: Path,
    *,
    cache: Path,
    recipes: Mapping[str, Recipe] = RECIPES,
    jobs: int = 2,
) -> tuple[UnseenResult, ...]:
    """Predict whole steps on each chip with and without its measurements.

    Args:
        folder: Folder of the tables of whole steps.
        tables: Folder of the measurement tables.
        cache: Folder that keeps the recorded steps.
        recipes: What to train, by family.
        jobs: Trainings, and then steps, at a time.

    Raises:
        MeasurementTableError: A table is missing, or has a wrong column or value.
    """
    groups = read_tables(tables)
    gpus = gpus_of(groups)
    known = [group for group in groups if group.gpu in gpus]
    rows = tuple(published_steps(folder, cache))
    return tuple(
        result
        for chip in CHIPS
        if {group.gpu for group in known} & set(boards_of(chip))
        for result in _on_chip(chip, rows, known, recipes, cache, jobs)
    )


def _on_chip(
    chip: str,
    rows: Sequence[PublishedStep],
    groups: Sequence[Group],
    recipes: Mapping[str, Recipe],
    cache: Path,
    jobs: int,
) -> Iterator[UnseenResult]:
    boards = boards_of(chip)
    rows = [row for row in rows if row.gpu in boards]
    if not rows:
        return
    stranger = models_without(boards, groups, recipes, jobs=jobs)
    seen, unseen = (
        predicted_steps(rows, cache=cache, models_of=models_of, jobs=jobs)
        for models_of in (kernel_models, partial(_same, stranger))
    )
    by_row = {_row(case): case for case in unseen}  # a step that the host bounds by one of them is left out
    spread = bundled_spread()
    for case in seen:
        other = by_row.get(_row(case))
        if other is not None:
            yield UnseenResult(chip, spread_out(case, spread), spread_out(other, spread))


def _same(models: BundledModels, _names: tuple[str, ...]) -> BundledModels:
    return models


def _row(case: StepCase) -> tuple[str, str, str, str, float]:
    return case.table, case.source, case.gpu, case.model, case.measured_seconds


def models_without(
    boards: Sequence[str], groups: Sequence[Group], recipes: Mapping[str, Recipe] = RECIPES, *, jobs: int = 1
) -> BundledModels:
    """Train the bases without some GPUs and take their own weights away; all else is as bundled.

    Args:
        boards: The GPUs, by our names.
        groups: Measurements on GPUs of the catalogue.
        recipes: What to train, by family; others keep the bundled base.
        jobs: Trainings at a time.
    """
    shipped = load_weights(gpu_names())
    trained = train_bases(tuple(recipes.values()), groups, gpus_of(groups), left_out=boards, jobs=jobs)
    families = {
        name: replace(trained[name], interval=network.interval) if name in trained else network
        for name, network in shipped.base.families.items()
    }
    own = {name: weights for name, weights in shipped.gpus.items() if name not in boards}
    networks = UtilisationModels(LoadedWeights(replace(shipped.base, families=families), own))
    return replace(kernel_models(gpu_names()), networks=networks)


def unseen_table(results: Sequence[UnseenResult]) -> Table:
    """Errors, coverage and width by table and chip, with the chip's measurements and without."""
    headings = [
        f"{name} {what}" for name in ("seen", "left out") for what in ("median %", "bias %", "in 90 %", "width")
    ]
    table = report_table(
        "Whole steps by weights as they ship, and by networks that saw no measurement of the chip",
        ("table", "chip"),
        ("n", *headings),
    )
    groups: dict[str, dict[str, list[UnseenResult]]] = defaultdict(lambda: defaultdict(list))
    for one in results:
        groups[one.seen.table][one.chip].append(one)
    for name, chips in groups.items():
        for chip, members in chips.items():
            table.add_row(name, chip, *_cells(members))
        if len(chips) > 1:
            table.add_row(name, "all", *_cells([one for members in chips.values() for one in members]))
        table.add_section()
    return table


def _cells(results: Sequence[UnseenResult]) -> Iterator[str]:
    yield str(len(results))
    for cases in ([one.seen for one in results], [one.unseen for one in results]):
        errors = [math.expm1(-case.log_ratio) for case in cases]
        yield f"{100 * statistics.median(map(abs, errors)):.1f}"
        yield f"{100 * statistics.median(errors):+.1f}"
        yield f"{100 * statistics.fmean(case.is_inside for case in cases):.0f}"
        yield f"{statistics.geometric_mean(case.width for case in cases):.2f}"


def print_report(folder: Path, tables: Path, console: Console, *, cache: Path) -> None:
    """Evaluate and print; errors as for `evaluate_unseen`."""
    console.print(unseen_table(evaluate_unseen(folder, tables, cache=cache)))
