"""Results of the benchmark commands as files: written by the commands, read by the documentation.

A `ResultConsole` prints as rich's `Console` does and keeps the tables and sentences that it printed, so the file holds
the values that a reader of the terminal saw. `benchmarks/render_docs.py` fills the templates of the documentation with
them. Example::

    console = ResultConsole(width=180)
    console.print(table)
    write_result(console.result(RUNS["lin"]), Path("benchmarks/results"))
    read_result("lin", Path("benchmarks/results")).figure("time / all / median %")   # "8.4"
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.runs import RUNS, Run
from lightning_predict.reports.published_cases import PublishedCase, SourceSplit

FOLDER: Final = Path(__file__).parent / "results"  # Where the results of this repository are kept
SEPARATOR: Final = " / "  # Between the title of a table, its row and its column in the name of a figure

UNITS: Final = ("%", "ms", "s", "G", "MiB", "GiB", "minutes", "microseconds")
"""Units that stand at the end of a column's heading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number that a sentence quotes."""

    name: str  # Name that templates use
    value: str  # The number as text, with the digits that were printed
    unit: str = ""  # Its unit; empty for a count or a ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """A printed table."""

    title: str  # Its title
    columns: tuple[str, ...]  # Headings of the columns
    names: int  # Number of leading columns that name the row
    rows: tuple[tuple[str, ...], ...]  # Cells as printed

    def row_name(self, row: Sequence[str]) -> str:
        """Name of a row: its leading cells without empty ones."""
        return ", ".join(cell for cell in row[: self.names] if cell)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one run of a command."""

    name: str  # Name of the file
    command: str  # The command as a user types it
    date: str  # Day of the run, as 2026-11-27
    commit: str  # Commit that ran; its first 12 digits
    split: SourceSplit  # Whether constants were chosen on the scored rows
    fitted: str = ""  # Constants that were chosen on them; empty if none
    cases: int = 0  # Number of scored cases
    figures: tuple[Figure, ...] = ()  # Single numbers
    tables: tuple[ResultTable, ...] = ()  # Printed tables
    sentences: tuple[str, ...] = ()  # Printed lines
    published: tuple[PublishedCase, ...] = ()  # Scored steps for `lightning-predict accuracy`

    def table(self, title: str) -> ResultTable:
        """Table with this title, or the only one whose title contains it.

        Raises:
            KeyError: No table or more than one fits.
        """
        same = [table for table in self.tables if table.title == title]
        tables = same or [table for table in self.tables if title in table.title]
        if len(tables) != 1:
            titles = "; ".join(table.title for table in self.tables)
            raise KeyError(f"{self.name} has {len(tables)} tables for {title!r}. Expected one of: {titles}.")
        return tables[0]

    def figure(self, name: str) -> Figure:
        """Return a figure by its name, or by `title / row / column` of a table.

        Raises:
            KeyError: There is no such figure, or more than one.
        """
        for figure in self.figures:
            if figure.name == name:
                return figure
        parts = name.split(SEPARATOR)
        if len(parts) != 3:
            raise KeyError(f"{self.name} has no figure {name!r}: {[figure.name for figure in self.figures]}.")
        title, row_name, heading = parts
        table = self.table(title)
        rows = [row for row in table.rows if table.row_name(row) == row_name]
        columns = [number for number, column in enumerate(table.columns) if column == heading]
        if len(rows) != 1 or not columns:
            names = sorted({table.row_name(row) for row in table.rows})
            raise KeyError(f"{self.name}: {len(rows)} rows for {name!r}. Rows: {names}. Columns: {table.columns}.")
        return Figure(name=name, value=rows[0][columns[0]], unit=unit_of(heading))


def write_run(console: ResultConsole, name: str, folder: Path | None) -> None:
    """Write the printed tables and figures as the result of a run; None writes nothing.

    Args:
        console: The console.
        name: Key of `RUNS`.
        folder: Folder to write to.
    """
    if folder is not None:
        write_result(console.result(RUNS[name]), folder)


def unit_of(heading: str) -> str:
    """Unit at the end of a column's heading; empty if it has none."""
    word = heading.rpartition(" ")[2]
    return word if word in UNITS else ""


class ResultConsole(Console):
    """A console that keeps the tables and the lines that it prints."""

    def __init__(self, *, width: int, keeps_measurements: bool = True) -> None:
        """Make a console.

        Args:
            width: Columns of the terminal.
            keeps_measurements: False keeps tables without their columns of measured and of predicted values, because
                the licence of their source does not allow copies.
        """
        super().__init__(width=width)
        self._keeps_measurements = keeps_measurements
        self._tables: list[ResultTable] = []
        self._sentences: list[str] = []
        self._figures: list[Figure] = []

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does, and keep tables and lines."""
        super().print(*objects, **options)
        for part in objects:
            if isinstance(part, Table):
                self._keep(table_of(part))
            elif isinstance(part, str) and part.strip():
                self._sentences.append(part)

    def print_figures(self, title: str, figures: Sequence[Figure]) -> None:
        """Print single numbers as a table and keep them as figures."""
        table = Table(title=title, box=box.SIMPLE)
        table.add_column("figure")
        table.add_column("value", justify="right")
        table.add_column("unit")
        for figure in figures:
            table.add_row(figure.name, figure.value, figure.unit)
        super().print(table)
        self._figures += figures

    def _keep(self, table: ResultTable) -> None:
        if table.rows:
            self._tables.append(table if self._keeps_measurements else without_measurements(table))

    def result(self, run: Run, *, published: Sequence[PublishedCase] = ()) -> Result:
        """Return the printed tables and figures as a result of today.

        Args:
            run: The command that printed it.
            published: Scored steps.
        """
        return Result(
            name=run.name,
            command=run.command,
            date=datetime.now(timezone.utc).date().isoformat(),
            commit=current_commit(),
            split=run.split,
            fitted=run.fitted,
            cases=sum(case.steps for case in published) or counted_cases(self._tables) or len(self._figures),
            figures=tuple(self._figures),
            tables=tuple(self._tables),
            sentences=tuple(self._sentences),
            published=tuple(published),
        )


COUNTS: Final = ("n", "rows", "cases", "steps", "predicted", "runs")  # Headings of columns that count cases


def counted_cases(tables: Sequence[ResultTable]) -> int:
    """Largest number in a column that counts cases; the number of rows of all tables if none does."""
    counts = [
        int(row[number].replace(",", ""))
        for table in tables
        for number, heading in enumerate(table.columns)
        if heading in COUNTS
        for row in table.rows
        if row[number].replace(",", "").isdigit()
    ]
    return max(counts) if counts else sum(len(table.rows) for table in tables)


def table_of(table: Table) -> ResultTable:
    """Cells of a rich table, without styles."""
    cells = [[_plain(cell) for cell in column.cells] for column in table.columns]
    names = [column.justify != "right" for column in table.columns]
    return ResultTable(
        title=" ".join(_plain(table.title or "").split()),
        columns=distinct([_plain(column.header) for column in table.columns]),
        names=max(1, names.index(False) if False in names else 1),
        rows=tuple(zip(*cells, strict=True)),
    )


def without_measurements(table: ResultTable) -> ResultTable:
    """Return a table without its columns of measured values, and of predicted ones, from which these would follow."""
    kept = [
        number
        for number, heading in enumerate(table.columns)
        if number < table.names or not heading.startswith(("measured", "predicted"))
    ]
    return replace(
        table,
        columns=tuple(table.columns[number] for number in kept),
        rows=tuple(tuple(row[number] for number in kept) for row in table.rows),
    )


def distinct(headings: Sequence[str]) -> tuple[str, ...]:
    """Name repeated headings after the column before: `roofline mean %`, `median %` becomes `roofline median %`."""
    titles: list[str] = []
    for heading in headings:
        subject = titles[-1].rpartition(" ")[0].rpartition(" ")[0] if titles else ""
        titles.append(f"{subject} {heading}" if heading in titles and subject else heading)
    return tuple(titles)


def _plain(cell: Any) -> str:
    if isinstance(cell, Text):
        return cell.plain
    return Text.from_markup(str(cell)).plain.strip()


def current_commit() -> str:
    """Commit of the working tree, or `unknown` outside a clone."""
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def write_result(result: Result, folder: Path = FOLDER) -> Path:
    """Write a result and return its path.

    Raises:
        OSError: The file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.name}.json"
    path.write_text(result_text(result), encoding="utf-8")
    return path


def result_text(result: Result) -> str:
    """Return the content of a result's file: JSON with a row of a table on each line."""
    content = asdict(result)
    tables, published = content.pop("tables"), content.pop("published")
    head = json.dumps(content, indent=1, ensure_ascii=False)[:-2]
    shown = ",".join(_table_text(table) for table in tables)
    cases = ",".join(f"\n  {json.dumps(case, ensure_ascii=False)}" for case in published)
    return f'{head},\n "tables": [{shown}],\n "published": [{cases}]\n}}\n'


def _table_text(table: dict[str, Any]) -> str:
    rows = table.pop("rows")
    head = json.dumps(table, ensure_ascii=False)[:-1]
    lines = ",\n    ".join(json.dumps(row, ensure_ascii=False) for row in rows)
    return f'\n  {head}, "rows": [\n    {lines}]}}'


def read_result(name: str, folder: Path = FOLDER) -> Result:
    """Read a result.

    Raises:
        OSError: The file cannot be read.
        TypeError: A field is missing or unknown.
    """
    content = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    figures = tuple(Figure(**figure) for figure in content.pop("figures"))
    tables = tuple(
        ResultTable(
            title=table["title"],
            columns=tuple(table["columns"]),
            names=table["names"],
            rows=tuple(tuple(row) for row in table["rows"]),
        )
        for table in content.pop("tables")
    )
    published = tuple(PublishedCase(**case) for case in content.pop("published"))
    content["sentences"] = tuple(content["sentences"])
    return Result(**content, figures=figures, tables=tables, published=published)
