"""Published steps with their predictions: the table of one page, and the cases that ship with the package.

Example::

    rows = [ScoredRow(names=("float32",), measured=1.0, predicted=Interval(0.9, 1.0, 1.1), gpu="A100-SXM-80GB")]
    print_rows("One step of GPT-2", ("chapter",), rows, console, unit="ms")
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, final

from rich.console import Console

from benchmarks.result_files import ResultConsole, write_result
from benchmarks.runs import RUNS, SOURCES
from benchmarks.training.report import report_table
from lightning_predict.base.interval import Interval
from lightning_predict.reports.published_cases import PublishedCase, SourceSplit, StepDescription, precision_on

WIDTH: Final = 140
"""Columns of the printed tables."""

GIGABYTE: Final = 1e9
SCALES: Final = {"s": 1.0, "ms": 1e3}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRow:
    """A published step with its prediction, kind of model and GPU.

    Attributes:
        names: Cells that name the row.
        gpu: Our name of the GPU or layout.
        step: Kind of model and precision.
        measured: Measured seconds.
        predicted: Predicted seconds with the 90 % interval.
        measured_bytes: Measured memory; None if the page does not tell it.
        predicted_bytes: Predicted memory.
    """

    names: tuple[str, ...]
    gpu: str
    step: StepDescription
    measured: float
    predicted: Interval[float]
    measured_bytes: float | None = None
    predicted_bytes: Interval[float] | None = None

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted.middle / self.measured - 1

    @property
    def is_inside(self) -> bool:
        """True if the interval holds the measured time."""
        return bool(self.predicted.low <= self.measured <= self.predicted.high)  # ends from an array are numpy's

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured memory, less one; None without memory."""
        if self.measured_bytes is None or self.predicted_bytes is None:
            return None
        return self.predicted_bytes.middle / self.measured_bytes - 1


def print_rows(
    title: str, headings: Sequence[str], rows: Sequence[ScoredRow], console: Console, *, unit: Literal["s", "ms"]
) -> None:
    """Print each row and, last, the median absolute errors and the number of rows in the interval.

    Args:
        title: Title of the table.
        headings: Headings of the cells that name a row.
        rows: The rows.
        console: Where to print.
        unit: Unit of times.
    """
    memories = [row.memory_error for row in rows if row.memory_error is not None]
    more = ("measured G", "predicted G", "memory error %") if memories else ()
    columns = (f"measured {unit}", f"predicted {unit}", "error %", "90 % from", "to", "inside", *more)
    table = report_table(title, headings, columns)

    def time(seconds: float) -> str:
        value = SCALES[unit] * seconds
        return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"

    for row in rows:
        memory: tuple[str, ...] = ()
        if row.memory_error is not None and row.measured_bytes is not None and row.predicted_bytes is not None:
            sizes = (row.measured_bytes, row.predicted_bytes.middle)
            memory = (*(f"{size / GIGABYTE:.1f}" for size in sizes), f"{100 * row.memory_error:+.1f}")
        times = (time(row.measured), time(row.predicted.middle), f"{100 * row.error:+.1f}")
        ends = (time(row.predicted.low), time(row.predicted.high))
        table.add_row(*row.names, *times, *ends, "yes" if row.is_inside else "no", *memory)
    table.add_section()
    middle = statistics.median(abs(row.error) for row in rows)
    inside = f"{sum(row.is_inside for row in rows)} of {len(rows)}"
    last = ("", "", f"{100 * statistics.median(map(abs, memories)):.1f}") if memories else ()
    name = ("median |error|", *[""] * (len(headings) - 1))
    table.add_row(*name, "", "", f"{100 * middle:.1f}", "", "", inside, *last)
    console.print(table)


def published_cases(
    rows: Iterable[ScoredRow], *, source: str, split: SourceSplit, copies_allowed: bool = True
) -> tuple[PublishedCase, ...]:
    """Summarise rows by model, GPU and precision.

    Args:
        rows: Rows; the first of a row's names is its model.
        source: Key of `SOURCES`.
        split: Whether constants were chosen on them.
        copies_allowed: False leaves the measured and the predicted time out.
    """
    groups: dict[tuple[str, str, StepDescription], list[ScoredRow]] = defaultdict(list)
    for row in rows:
        step = replace(row.step, precision=precision_on(row.step.precision, row.gpu))
        groups[row.names[0], row.gpu, step].append(row)
    return tuple(
        _summary(model, gpu, step, members, source=SOURCES[source], split=split, copies_allowed=copies_allowed)
        for (model, gpu, step), members in groups.items()
    )


def _summary(
    model: str,
    gpu: str,
    step: StepDescription,
    rows: Sequence[ScoredRow],
    *,
    source: str,
    split: SourceSplit,
    copies_allowed: bool,
) -> PublishedCase:
    middle = sorted(rows, key=lambda row: row.error)[len(rows) // 2]
    return PublishedCase(
        model=model,
        kind=step.kind,
        gpu=gpu,
        precision=step.precision,
        source=source,
        split=split,
        steps=len(rows),
        error=round(statistics.median(row.error for row in rows), 3),
        absolute_error=round(statistics.median(abs(row.error) for row in rows), 3),
        inside=sum(row.is_inside for row in rows),
        measured_ms=float(f"{1e3 * middle.measured:.4g}") if copies_allowed else None,
        predicted_ms=float(f"{1e3 * middle.predicted.middle:.4g}") if copies_allowed else None,
        is_training=step.is_training,
    )


def page_options(arguments: Sequence[str] | None, description: str, choices: Sequence[str] = ()) -> argparse.Namespace:
    """Parse the options of a command that scores one page: `--result FOLDER`, and names of rows if it has choices.

    Args:
        arguments: Words of the command line; None takes the process's.
        description: Description in the help.
        choices: Names of groups of rows that may be chosen; a result needs all of them.
    """
    parser = argparse.ArgumentParser(description=description)
    if choices:
        parser.add_argument("names", nargs="*", help=f"rows to predict, of {', '.join(choices)} (default: all)")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    names = options.names if choices else []
    if unknown := [name for name in names if name not in choices]:
        parser.error(f"no rows are named {', '.join(unknown)}; expected {', '.join(choices)}")
    if names and options.result is not None:
        parser.error("a result has all rows: leave out the names or --result")
    return options


def report_page(
    name: str,
    title: str,
    headings: Sequence[str],
    rows: Sequence[ScoredRow],
    *,
    unit: Literal["s", "ms"],
    folder: Path | None,
) -> None:
    """Print the rows of a page and write the result.

    Args:
        name: Name of the run in `RUNS`.
        title: Title of the table.
        headings: Headings of the cells that name a row.
        rows: The rows.
        unit: Unit of printed times.
        folder: Folder to write the result to; None writes none.
    """
    console, run = ResultConsole(width=WIDTH), RUNS[name]
    print_rows(title, headings, rows, console, unit=unit)
    if folder is not None:
        cases = published_cases(rows, source=name, split=run.split, copies_allowed=run.copies_allowed)
        write_result(console.result(run, published=cases), folder)
