"""Score published runs of pretraining, of tables (`pretraining.py`) and of pages (`stated_runs.py`)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.large_runs import (
    AnyWorkload,
    LargeRunCase,
    LargeRunResult,
    choices_table,
    errors_table,
    predicted_runs,
    recorded,
)
from benchmarks.accuracy.model_cards import AUTOMODEL_TABLE, CARDS_TABLE, read_automodel_cases, read_card_cases
from benchmarks.accuracy.pretraining import (
    NANOTRON_TABLE,
    NEMO_TABLE,
    SIMUMAX_TABLE,
    TORCHTITAN_TABLE,
    Cases,
    read_nanotron_cases,
    read_nemo_cases,
    read_simumax_cases,
    read_torchtitan_cases,
)
from benchmarks.accuracy.stated_runs import (
    dgxc_cases,
    ibm_cases,
    kempner_cases,
    large_titan_cases,
    more_dgxc_cases,
)
from benchmarks.accuracy.transformers import evaluate_in_groups
from benchmarks.runs import RUNS
from benchmarks.scored_steps import ScoredRow, published_cases
from benchmarks.training.report import report_table
from lightning_predict.base.checked import read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.units import GIBIBYTE
from lightning_predict.memory.rank_memory import RankMemory
from lightning_predict.reports.published_cases import PublishedCase, StepDescription

READERS: Final[Mapping[str, tuple[str, Callable[[Path], Cases]]]] = {
    "torchtitan": (TORCHTITAN_TABLE, read_torchtitan_cases),
    "nanotron": (NANOTRON_TABLE, read_nanotron_cases),
    "nemo": (NEMO_TABLE, read_nemo_cases),
    "simumax": (SIMUMAX_TABLE, read_simumax_cases),
    "automodel": (AUTOMODEL_TABLE, read_automodel_cases),
    "cards": (CARDS_TABLE, read_card_cases),
    "dgxc": ("", dgxc_cases),
    "dgxc-more": ("", more_dgxc_cases),
    "torchtitan-large": ("", large_titan_cases),
    "ibm": ("", ibm_cases),
    "kempner": ("", kempner_cases),
}
"""File and reader of each table; an entry without a table reads no rows."""


def print_report(
    folder: Path, of: str, console: Console, *, weights: Path | None, cache: Path | None
) -> tuple[PublishedCase, ...]:
    """Print the errors of a table's rows, by possible causes and one by one, and the rows left out.

    Returns a summary of the rows by model and layout.

    Args:
        folder: Folder of the tables.
        of: A key of `READERS`.
        console: Where to print.
        weights: Weights to use.
        cache: Folder that keeps the recordings; None records them anew.

    Raises:
        MeasurementTableError: The table is wrong.
        LightningPredictError: As `predict`.
    """
    file, read = READERS[of]
    cases, left_out = read(folder / file)
    results = evaluate_in_groups(
        cases,
        key=lambda case: case.workload,
        evaluate=partial(predicted_runs, weights=weights, cache=cache, studies=False),
        jobs=1,
    )
    console.print(errors_table(of, results), choices_table(results))
    rows = report_table(
        f"{of}: each row",
        ("model", "GPU", "recipe", "sharing"),
        ("length", "measured s", "predicted s", "error %", "inside"),
        no_wrap=False,
    )
    for result in results:
        rows.add_row(*_cells(result))
    console.print(rows)
    if any(case.memory_bytes for case in cases):
        console.print(memory_table(of, cases, cache))
    if of == "simumax":
        console.print(simumax_table(folder / file))
    for reason, count in sorted(left_out.items()):
        console.print(f"left out: {count} row(s), {reason}")
    scored = [
        ScoredRow(
            names=(result.case.workload.model,),
            gpu=result.case.layout.name,
            step=StepDescription(
                kind="language model", precision="float8" if result.case.strategy.fp8 is not None else "16 bits"
            ),
            measured=result.case.measured_seconds,
            predicted=result.step.interval,
        )
        for result in results
    ]
    return published_cases(scored, source=of, split=RUNS[of].split)


def memory_table(of: str, cases: Sequence[LargeRunCase], cache: Path | None) -> Table:
    """Compare the peak that is derived for the fullest GPU with the one that was published."""
    words, numbers = ("model", "GPU", "sharing"), ("GiB", "predicted", "error %")
    table = report_table(f"{of}: memory of a GPU", words, numbers, no_wrap=False)
    by_workload: dict[AnyWorkload, list[LargeRunCase]] = defaultdict(list)
    for case in cases:
        if case.memory_bytes:
            by_workload[case.workload].append(case)
    errors = []
    for workload, own in by_workload.items():
        trace = workload.prepared(recorded(workload, cache))
        ranks = RankMemory(trace)
        for case in own:
            assert case.memory_bytes is not None
            need = ranks.most_filled(case.layout, case.strategy)
            found = (need.bytes_on if case.is_reserved else need.allocated_on)(case.layout.gpu)
            errors.append(found / case.memory_bytes - 1)
            sizes = (f"{size / GIBIBYTE:.1f}" for size in (case.memory_bytes, found))
            table.add_row(workload.name, case.layout.name, case.strategy.name, *sizes, f"{100 * errors[-1]:+.1f}")
    middle = f"{100 * statistics.median(map(abs, errors)):.1f}"
    table.add_row("median |error|, bias", "", "", "", middle, f"{100 * statistics.median(errors):+.1f}")
    return table


def simumax_table(path: Path) -> Table:
    """Compare SimuMax's own simulation of the same rows, as its authors published it, with the measured steps."""
    rows = list(read_csv(path, MeasurementTableError, columns=("step_ms", "simumax_ms")))
    errors = [
        row.member("simumax_ms").parsed().positive() / row.member("step_ms").parsed().positive() - 1 for row in rows
    ]
    table = report_table("SimuMax, as published", ("rows",), ("n", "median %", "worst %", "bias %"))
    largest = max(errors, key=abs)
    percent = (statistics.median(map(abs, errors)), largest, statistics.median(errors))
    table.add_row("all", str(len(errors)), f"{100 * percent[0]:.1f}", *(f"{100 * one:+.1f}" for one in percent[1:]))
    return table


def _cells(result: LargeRunResult) -> tuple[str, ...]:
    case = result.case
    return (
        case.workload.model,
        case.layout.name,
        case.workload.kind,
        case.strategy.name,
        str(case.workload.length),
        f"{case.measured_seconds:.3f}",
        f"{result.step.seconds:.3f}",
        f"{100 * result.error:+.1f}",
        "yes" if result.is_inside else "no",
    )
