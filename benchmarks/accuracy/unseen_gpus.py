"""Whole steps on GPUs whose measurements no network was trained on, next to the weights as they ship.

Each chip that both the measurement tables and the whole steps have is left out once, with all of its boards: the
bases are trained again without its rows, and its own weights are taken away. The chip is also predicted by the
same networks with the few figures that `measure --quick` finds on a GPU, here read off the tables: the rates of its
large products, where the catalogue has no rates measured by others, and the pace of its memory. The interval of a
left-out chip is widened by the uncertainty derived from the other chips (`unknown_half_width`). Constants that were
chosen by hand stay as they ship. Example::

    python -m benchmarks.accuracy FOLDER --of unseen --tables measurements --cache recorded-steps --chips A40 L40S
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

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.published_steps import PublishedStep
from benchmarks.accuracy.step_calibration import STANDARD_DEVIATIONS, StepCase, spread_out
from benchmarks.accuracy.whole_steps import predicted_steps, published_steps
from benchmarks.training.families import train_bases
from benchmarks.training.recipes import RECIPES, Recipe
from benchmarks.training.report import report_table
from benchmarks.training.tables import read_tables
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware import gpu_names
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.models import BundledModels, UtilisationModels, kernel_models
from lightning_predict.kernels.roofline import REDUCED
from lightning_predict.own_weights.measuring.main_rates import STREAMS, MainRates, equivalent_bandwidth
from lightning_predict.own_weights.training.tables import Group
from lightning_predict.own_weights.training.tuning import gpus_of
from lightning_predict.uncertainty import StepSpread, bundled_spread
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
        anchored: The same by these networks, with its board's anchors.
    """

    chip: str
    seen: StepCase
    unseen: StepCase
    anchored: StepCase


def evaluate_unseen(
    folder: Path,
    tables: Path,
    *,
    cache: Path,
    chips: Sequence[str] = CHIPS,
    recipes: Mapping[str, Recipe] = RECIPES,
    jobs: int = 2,
) -> tuple[UnseenResult, ...]:
    """Predict whole steps on each chip with and without its measurements.

    Args:
        folder: Folder of the tables of whole steps.
        tables: Folder of the measurement tables.
        cache: Folder that keeps the recorded steps.
        chips: Which to leave out, one after the other.
        recipes: What to train, by family.
        jobs: Trainings, and then steps, at a time.

    Raises:
        MeasurementTableError: A table is missing, or has a wrong column or value.
    """
    groups = read_tables(tables)
    gpus = gpus_of(groups)
    known = [group for group in groups if group.gpu in gpus]
    rows = tuple(published_steps(folder, cache))
    found = tuple(
        result
        for chip in chips
        if {group.gpu for group in known} & set(boards_of(chip))
        for result in _on_chip(chip, rows, known, recipes, cache, jobs)
    )
    return spread_apart(found, bundled_spread())


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
    with_anchors = {name: found for name in boards if (found := anchored(find_gpu(name), groups, stranger)) is not None}
    seen, unseen, known = (
        predicted_steps(rows, cache=cache, models_of=models_of, seen_as=seen_as, jobs=jobs)
        for models_of, seen_as in (
            (kernel_models, None),
            (partial(_same, stranger), None),
            (partial(_same, stranger), with_anchors),
        )
    )
    # A step that the host bounds by one of them is left out.
    by_row, by_anchors = ({_row(case): case for case in cases} for cases in (unseen, known))
    for case in seen:
        row = _row(case)
        if row in by_row and row in by_anchors:
            yield UnseenResult(chip, case, by_row[row], by_anchors[row])


def spread_apart(results: Sequence[UnseenResult], spread: StepSpread) -> tuple[UnseenResult, ...]:
    """Give each case the interval of a step, widened for a left-out chip by the uncertainty of the other chips.

    Args:
        results: Cases with their operations' own intervals.
        spread: How whole steps scatter; what ships for an unknown GPU stands where no other chip was left out.
    """
    others = {
        chip: [one.unseen for one in results if one.chip != chip and one.unseen.is_model]
        for chip in dict.fromkeys(one.chip for one in results)
    }
    besides = {chip: unknown_half_width(cases, spread) if cases else spread.new_chip for chip, cases in others.items()}
    return tuple(
        UnseenResult(
            one.chip,
            spread_out(one.seen, spread),
            *(spread_out(case, spread, besides[one.chip]) for case in (one.unseen, one.anchored)),
        )
        for one in results
    )


def unknown_half_width(cases: Sequence[StepCase], spread: StepSpread) -> float:
    """Return the half width that steps of whole models on GPUs ask for beyond what all steps have in common.

    Of each board in each table the mean logarithm of measured over predicted time counts, of each chip the mean of
    their squares, as errors on one chip go together.
    """
    boards: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for case in cases:
        chip = next(name for name in CHIPS if case.gpu in boards_of(name))
        boards[chip][case.table, case.gpu].append(case.log_ratio)
    squares = [statistics.fmean(statistics.fmean(own) ** 2 for own in found.values()) for found in boards.values()]
    beyond = STANDARD_DEVIATIONS**2 * statistics.fmean(squares) - spread.new_source**2
    return math.sqrt(max(beyond, 0.0))


LARGE_FLOP: Final = 1e11
"""Work from which on products count for a GPU's rates: a square of 3,700 a side."""

LARGE_BYTES: Final = 2**28
"""Bytes from which on what streams counts for the pace of memory."""

FEWEST_LARGE: Final = 20
RATE_QUANTILE: Final = 0.9
"""Of the rates of large linear layers of all shapes: what square products reach. An assumption; of the survey's rate in
the catalogue it is 0.84 to 1.05 where both know a GPU, but for the P100 (0.81) and the L4, which throttled (0.64)."""


def anchored(gpu: Gpu, groups: Sequence[Group], models: BundledModels) -> Gpu | None:
    """Read a GPU's anchors off its measurements, as `measure --quick` would find them; None without any.

    Its rates are its own, as power decides them; the pace of memory may be read off a board with the same memory, of a
    chip with as many multiprocessors.

    Args:
        gpu: By the catalogue.
        groups: Measurements.
        models: Networks that explain how long streaming takes.
    """
    rates: dict[str, list[float]] = defaultdict(list)
    streams: list[tuple[str, Mapping[str, float], float]] = []
    for group in groups:
        if _memory_of(find_gpu(group.gpu)) != _memory_of(gpu):
            continue
        operation, dtype, columns = group.batch.operation, group.batch.dtype, group.batch.columns
        if operation == "linear" and dtype in REDUCED and group.gpu == gpu.name:
            is_large = group.batch.flops >= LARGE_FLOP
            rates[dtype] += (group.batch.flops[is_large] / group.seconds[is_large]).tolist()
        if operation in STREAMS and dtype == "float32":
            streams += [
                (operation, {word: float(values[row]) for word, values in columns.items()}, float(group.seconds[row]))
                for row in np.flatnonzero(group.batch.bytes_moved >= LARGE_BYTES)
            ]
    found = {
        dtype: float(np.quantile(one, RATE_QUANTILE))
        for dtype, one in rates.items()
        if len(one) >= FEWEST_LARGE and dtype not in gpu.measured_flops_per_second
    }
    memory = equivalent_bandwidth(gpu, streams, models) if len(streams) >= FEWEST_LARGE else gpu.dram_bytes_per_second
    if not found and memory == gpu.dram_bytes_per_second:
        return None
    anchors = MainRates(gpu=gpu, flops_per_second=found, dram_bytes_per_second=memory)
    return replace(anchors.measured, name=gpu.name)


def _memory_of(gpu: Gpu) -> tuple[object, ...]:
    """What decides how fast a board streams: its chip and its memory."""
    return gpu.compute_capability, gpu.streaming_multiprocessors, gpu.memory_kind, gpu.dram_bytes_per_second


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
        for name, network in shipped.cross_gpu_model.families.items()
    }
    own = {name: weights for name, weights in shipped.gpus.items() if name not in boards}
    networks = UtilisationModels(LoadedWeights(replace(shipped.cross_gpu_model, families=families), own))
    return replace(kernel_models(gpu_names()), networks=networks)


def unseen_table(results: Sequence[UnseenResult]) -> Table:
    """Errors, coverage and width by table and chip, with the chip's measurements and without."""
    headings = [
        heading
        for name in ("seen", "left out", "anchored")
        for heading in (f"{name}, median %", "bias %", "in 90 %", "width")
    ]
    table = report_table(
        "Whole steps by weights as they ship, by networks that never saw the chip, and by these with its anchors",
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
    for cases in ([one.seen for one in results], [one.unseen for one in results], [one.anchored for one in results]):
        errors = [math.expm1(-case.log_ratio) for case in cases]
        yield f"{100 * statistics.median(map(abs, errors)):.1f}"
        yield f"{100 * statistics.median(errors):+.1f}"
        yield f"{100 * statistics.fmean(case.is_inside for case in cases):.0f}"
        yield f"{statistics.geometric_mean(case.width for case in cases):.2f}"


def print_report(folder: Path, tables: Path, console: Console, *, cache: Path, chips: Sequence[str] = CHIPS) -> None:
    """Evaluate and print; errors as for `evaluate_unseen`."""
    results = evaluate_unseen(folder, tables, cache=cache, chips=chips)
    console.print(unseen_table(results))
    models = [one.unseen for one in results if one.unseen.is_model]
    if models:
        half_width = unknown_half_width(models, bundled_spread())
        console.print(f"A GPU of which nothing is known adds a half width of {half_width:.3f} in log(seconds).")
