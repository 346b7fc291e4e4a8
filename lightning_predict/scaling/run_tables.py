"""Past runs from a table of the user's: a CSV file, as one writes it or as MLflow and Weights & Biases export it.

Columns are found by the names of `FIELDS`, plain or as the trackers write them (`params.batch_size`,
`metrics.seconds`, `Runtime`); others are named by the user. Example::

    table = read_runs("runs.csv", columns={"batch_size": "config.loader.bs"}, values={"gpu": "T4"})
    table.runs[0].setting.batch_size, table.notes

A folder `mlruns`, a database `mlflow.db` and the package's own history are read as well (`run_stores.py`).
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, final

from lightning_predict.errors import InvalidArgumentError, MeasurementTableError, UnknownGpuError
from lightning_predict.scaling.runs import PastRun, RunSetting
from lightning_predict.units import gigaflops_to_flops, milliseconds_to_seconds

FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "seconds": ("Runtime", "_runtime", "duration_seconds"),
    "iterations": ("global_step", "trainer/global_step", "max_steps"),
    "batch_size": (),
    "model": ("model_name",),
    "gpu": ("gpu_name",),
    "gflops": (),
    "num_gpus": ("gpus", "devices"),
    "threads": ("num_workers",),
    "disk_delay_seconds": (),
    "inner_modules": (),
}
"""What is read of a run, and the names that trackers give it where nobody named a column."""

REQUIRED: Final = ("seconds", "iterations", "batch_size")

PREFIXES: Final = ("", "params.", "metrics.", "tags.", "config.", "config/", "summary.", "summary/")

STATES: Final[Mapping[str, str]] = {"status": "FINISHED", "State": "finished"}
"""Columns of MLflow and W&B that say how a run ended, and the word for those that ran to their end."""


@final
@dataclass(frozen=True, slots=True)
class RunRow:
    """One run as text.

    Attributes:
        place: Where it stands, for errors: file and line, or the run's name.
        cells: Texts by column.
    """

    place: str
    cells: Mapping[str, str]


@final
@dataclass(frozen=True, slots=True)
class RunTable:
    """Past runs, and what was left out.

    Attributes:
        runs: In the order of the table.
        notes: In words.
    """

    runs: tuple[PastRun, ...]
    notes: tuple[str, ...] = ()


def read_table(
    path: Path, *, columns: Mapping[str, str] | None = None, values: Mapping[str, str] | None = None
) -> RunTable:
    """Past runs of a CSV file (gzip where the name ends in `.gz`).

    Args:
        path: The file.
        columns: Column of a field, where it has another name than the usual ones.
        values: Value of a field that no column has; the same for all runs.

    Raises:
        MeasurementTableError: A column is missing, or a cell is wrong; the message names line and column.
        InvalidArgumentError: A field that there is not.
        OSError: The file cannot be read.
    """
    return runs_of_rows(tuple(_csv_rows(path)), str(path), columns=columns, values=values)


def runs_of_rows(
    rows: Iterable[RunRow],
    source: str,
    *,
    columns: Mapping[str, str] | None = None,
    values: Mapping[str, str] | None = None,
) -> RunTable:
    """Past runs from texts; see `read_table`.

    Raises:
        MeasurementTableError: As `read_table`.
        InvalidArgumentError: As `read_table`.
    """
    kept, notes = _ended(tuple(rows))
    if not kept:
        raise MeasurementTableError(f"{source} holds no run that has ended.")
    present = list(dict.fromkeys(column for row in kept for column in row.cells))
    found = _columns(source, present, columns or {}, values or {})
    default_model = Path(source).name.removesuffix(".gz").removesuffix(".csv")
    runs = tuple(_run(row, found, values or {}, default_model) for row in kept)
    return RunTable(runs, notes)


def _csv_rows(path: Path) -> Iterator[RunRow]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", newline="", encoding="utf-8-sig") as lines:
        reader = csv.DictReader(lines)
        for row in reader:
            place = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise MeasurementTableError(
                    f"{place}: it has another number of cells than the {len(reader.fieldnames or ())} columns."
                )
            yield RunRow(place, row)


def _ended(rows: tuple[RunRow, ...]) -> tuple[tuple[RunRow, ...], tuple[str, ...]]:
    """Runs that ran to their end, and how many did not in words."""
    kept = tuple(
        row
        for row in rows
        if all(row.cells[column] == word for column, word in STATES.items() if row.cells.get(column))
    )
    gone = len(rows) - len(kept)
    return kept, ((f"{gone} of {len(rows)} runs did not run to their end, and are left out.",) if gone else ())


def _columns(source: str, present: list[str], columns: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Column of each field that there is one for.

    Raises:
        MeasurementTableError: A named or a required column is missing.
        InvalidArgumentError: A field that there is not.
    """
    strangers = [name for name in (*columns, *values) if name not in FIELDS]
    if strangers:
        raise InvalidArgumentError(f"{strangers[0]!r} is not a field of a run. There are: {', '.join(FIELDS)}.")
    missing = [f"{column!r} (for {field})" for field, column in columns.items() if column not in present]
    usual = {
        field: next((p + name for name in (field, *others) for p in PREFIXES if p + name in present), None)
        for field, others in FIELDS.items()
    }
    found = {field: columns.get(field) or usual[field] for field in FIELDS if field not in values}
    timed = "start_time" in present and "end_time" in present
    missing += [
        f"{field!r}"
        for field in REQUIRED
        if field not in values and not found[field] and (field != "seconds" or not timed)
    ]
    if not (found.get("gpu") or found.get("gflops") or "gpu" in values or "gflops" in values):
        missing.append("'gpu' or 'gflops'")
    if missing:
        raise MeasurementTableError(
            f"{source} has no column {', '.join(missing)}. Name it (columns), or give one value for all runs (values). "
            f"Columns found: {', '.join(present) or 'none'}."
        )
    return {field: column for field, column in found.items() if column}


@final
@dataclass(frozen=True, slots=True)
class _Cells:
    """The fields of one run."""

    row: RunRow
    columns: Mapping[str, str]
    values: Mapping[str, str]

    def text(self, field: str) -> str:
        if field in self.values:
            return self.values[field]
        return self.row.cells.get(self.columns.get(field, ""), "").strip()

    def number(self, field: str) -> float | None:
        """A number; None for an empty cell."""
        text = self.text(field)
        if not text:
            return None
        value = _number(text)
        if value is None:
            raise self.wrong(field)
        return value

    def count(self, field: str) -> int | None:
        value = self.number(field)
        # A fraction is refused by what takes the count, in words.
        return int(value) if value is not None and value.is_integer() else value  # type: ignore[return-value]

    def wrong(self, field: str) -> MeasurementTableError:
        where = f"column {self.columns[field]!r}" if field in self.columns else f"the value of {field}"
        return MeasurementTableError(f"{self.row.place}, {where}: {self.text(field)!r}; expected a number.")


def _run(row: RunRow, columns: Mapping[str, str], values: Mapping[str, str], model: str) -> PastRun:
    """One run.

    Raises:
        MeasurementTableError: A cell is wrong.
    """
    cells = _Cells(row, columns, values)
    is_timed = "seconds" in columns or "seconds" in values
    seconds = cells.number("seconds") if is_timed else _elapsed(row)
    iterations, batch_size = cells.count("iterations"), cells.count("batch_size")
    if seconds is None or iterations is None or batch_size is None:
        raise cells.wrong("seconds" if seconds is None else "iterations" if iterations is None else "batch_size")
    gflops, num_gpus = cells.number("gflops"), cells.count("num_gpus")
    try:
        setting = RunSetting(
            iterations=iterations,
            batch_size=batch_size,
            gpu=cells.text("gpu") or None,
            flops_per_second=None if gflops is None else gigaflops_to_flops(gflops),
            num_gpus=1 if num_gpus is None else num_gpus,
            threads=cells.count("threads"),
            disk_seconds=cells.number("disk_delay_seconds"),
            inner_modules=cells.count("inner_modules"),
        )
        return PastRun(model=cells.text("model") or model, setting=setting, seconds=seconds)
    except (InvalidArgumentError, UnknownGpuError) as error:
        raise MeasurementTableError(f"{row.place}: {error}") from error


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _elapsed(row: RunRow) -> float:
    """Seconds from `start_time` to `end_time`, which MLflow writes as dates or as milliseconds.

    Raises:
        MeasurementTableError: One of them is neither.
    """
    moments = []
    for column in ("start_time", "end_time"):
        text = row.cells.get(column, "").strip()
        milliseconds = _number(text)
        try:
            moments.append(
                datetime.fromisoformat(text).timestamp()
                if milliseconds is None
                else milliseconds_to_seconds(milliseconds)
            )
        except ValueError:
            raise MeasurementTableError(
                f"{row.place}, column {column!r}: {text!r}; expected a date and time."
            ) from None
    return moments[1] - moments[0]
