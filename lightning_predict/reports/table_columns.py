"""Columns of a table of predictions: the title and the text of each cell.

Every field in `cost/prediction.py` with a title has a column. `_BY_UNIT` formats a value by its unit. `_SPECIAL` has
the fields whose text depends on other predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.fields import Field
from lightning_predict.base.interval import Interval
from lightning_predict.base.ties import NEGLIGIBLE, NOTICEABLE, ordered
from lightning_predict.cost.prediction import FIELDS, AbstractPredictions, MachineInUse, Prediction
from lightning_predict.memory.step_memory import MemoryNeed
from lightning_predict.reports.format import (
    duration,
    gibibytes,
    milliseconds_interval,
    relative_interval,
    share,
    significant,
    usd,
    usd_of_steps,
    usd_per_hour,
)
from lightning_predict.reports.table_rows import LARGE_PART, TableLine, bound_by, name_in_use, shown_period

EXTRAPOLATION_MARK: Final = "†"  # Marks a GPU whose time is mostly extrapolated from other GPUs
MARKED_EXTRAPOLATED_SHARE: Final = 0.5  # A GPU is marked if this share of its time is extrapolated from other GPUs
MAIN_SHARE: Final = 1 / 3  # The loader is named as the bottleneck if waiting for it takes this share of the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table."""

    field: Field[Any]
    header: str
    cell: Callable[[TableLine], str | None]

    @property
    def title(self) -> str:
        """Header on one line."""
        return self.header.replace("\n", " ")

    @property
    def justify(self) -> Literal["left", "right"]:
        """Alignment."""
        return "left" if self.field.is_left else "right"

    def text(self, line: TableLine) -> str | None:
        """Return the text of a cell; None if the value is unknown."""
        if isinstance(line, Prediction):
            return self.cell(line)
        return (self.cell(line) or "") if self.field.on_machine else ""


@dataclass(frozen=True, slots=True)
class Grid:
    """Columns and cell texts of one table."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]  # The cell texts of each row. A line break in a text breaks the cell.
    unknown: tuple[str, ...]  # Titles of the columns without any known value
    hidden: tuple[str, ...]  # Titles of the columns that were dropped for lack of space
    lines: tuple[TableLine, ...]  # What each row describes

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of each column in characters."""
        texts = zip((column.header for column in self.columns), *self.rows, strict=True)
        return tuple(max(len(line) for text in column for line in text.split("\n")) for column in texts)


def columns_of(
    predictions: AbstractPredictions, *, verbose: bool = False, asked: Collection[str] = ()
) -> tuple[Column, ...]:
    """Return the columns of a table of these predictions.

    Args:
        predictions: The predictions.
        verbose: Include the prediction methods and the step's interval.
        asked: Names of optional columns to show.
    """
    asked = column_names(asked)
    shown = {"always", "verbose"} if verbose else {"always"}
    return tuple(
        _column(row, predictions)
        for row in FIELDS
        if row.title is not None and (row.shown in shown or row.name in asked)
        if row.name != "cycle_seconds" or waits_for_loader(predictions) or row.name in asked
    )


def waits_for_loader(predictions: AbstractPredictions) -> bool:
    """Return whether waiting for the loader takes a notable share of the time in any row."""
    lines: list[TableLine] = [*predictions.values()]
    if predictions.machine is not None:
        lines.append(predictions.machine)
    return any(line.loader_share >= NEGLIGIBLE for line in lines)


def column_names(asked: Collection[str]) -> tuple[str, ...]:
    """Return the field names for names or titles of columns: `mfu`, `MFU`, `tokens/s`."""
    titled = {row.name: row.title.replace("\n", " ") for row in FIELDS if row.title is not None}
    fields = {word.casefold(): name for name, title in titled.items() for word in (name, title)}
    for word in asked:
        if word.casefold() not in fields:
            known = ", ".join(row.name for row in FIELDS if row.shown == "asked")
            raise InvalidArgumentError(f"columns={word!r} is no column; expected some of {known}.")
    return tuple(fields[word.casefold()] for word in asked)


def _column(row: Field[Any], predictions: AbstractPredictions) -> Column:
    special = _SPECIAL.get(row.name)
    header = row.title or row.name
    if row.name == "remaining_seconds":
        header = shown_period(predictions).title
    if special is not None:
        return Column(field=row, header=header, cell=partial(special, predictions))

    def cell(line: TableLine) -> str | None:
        value = row.value(line)
        return None if value is None else _BY_UNIT.get(row.unit, significant)(value)

    return Column(field=row, header=header, cell=cell)


def _name_cell(predictions: AbstractPredictions, line: TableLine) -> str:
    if isinstance(line, MachineInUse):
        return name_in_use(line.name, predictions)
    text = name_in_use(line.gpu, predictions) if line.gpu == predictions.used_gpu else line.gpu
    if line.step.precision is not None:
        text = f"{text} ({line.step.precision})"
    return f"{text} {EXTRAPOLATION_MARK}" if is_mostly_extrapolated(line) else text


def is_mostly_extrapolated(prediction: Prediction) -> bool:
    """Return whether a GPU is marked: extrapolated or a user's, without a measured step."""
    is_unseen = prediction.base_share >= MARKED_EXTRAPOLATED_SHARE or prediction.layout.gpu.is_described_by_user
    return is_unseen and prediction.measured_seconds is None


def _total_cell(predictions: AbstractPredictions, line: TableLine) -> str | None:
    seconds = shown_period(predictions).seconds(line)
    return None if seconds is None else _most(predictions, line) + duration(seconds.middle)


def _most(predictions: AbstractPredictions, line: TableLine) -> str:
    return "≤ " if line.at_most and shown_period(predictions).is_whole else ""


def _interval_cell(predictions: AbstractPredictions, line: TableLine) -> str | None:
    seconds = shown_period(predictions).seconds(line)
    is_measured = isinstance(line, MachineInUse) or line.measured_seconds is not None
    if is_measured and not (predictions.is_running and seconds is not None and seconds.low < seconds.high):
        return "measured" if isinstance(line, Prediction) or seconds is not None else ""
    return None if seconds is None else relative_interval(seconds.low, seconds.middle, seconds.high)


def _cost_cell(predictions: AbstractPredictions, line: TableLine) -> str | None:
    span = shown_period(predictions)
    amount = span.cost_usd(line)
    if amount is None:
        return None
    text = usd(amount) if span.is_whole else usd_of_steps(amount)
    return text if text.startswith("<") else _most(predictions, line) + text


def _memory(need: MemoryNeed) -> str | None:
    if need.memory_bytes is None:
        return None
    if need.usable_bytes is None:
        return gibibytes(need.memory_bytes)
    amount = f"{gibibytes(need.memory_bytes)} of {gibibytes(need.usable_bytes)}"
    if need.least_filled_bytes is not None:
        amount = f"{gibibytes(need.least_filled_bytes)} to {amount}"
    exceeds = "unlikely" if lacked_bytes(need) is None else "too large"
    word = {"exceeds": f"{exceeds}: ", "tight": "tight: "}.get(need.memory_fit or "", "")
    return f"{word}{amount}"


def lacked_bytes(need: MemoryNeed) -> float | None:
    """Return what a step that does not fit lacks by the numbers of its cell; None if only its chance is too low."""
    usable = need.usable_bytes or 0.0
    lack = (need.memory_bytes or 0.0) - need.releasable_bytes - usable
    return None if lack < NOTICEABLE * usable and need.fit_probability is not None else lack


def _ends(size: Interval[float]) -> str:
    return f"{gibibytes(size.low)} to {gibibytes(size.high)}"


def bound_cell(prediction: Prediction) -> str:
    """Return the bottleneck for a table, with the loader's share of the time if the share is large."""
    part, bound = prediction.loader_share, bound_by(prediction)
    if part < LARGE_PART or not prediction.run.loader_is_reliable:
        return bound
    loader = f"loader {share(part)}"
    return loader if bound == "loader" or part >= MAIN_SHARE else f"{bound}, {loader}"


def _covered_by(prediction: Prediction) -> str | None:
    by_share = ordered(prediction.coverage.items(), lambda item: item[1], reverse=True)
    text = ", ".join(f"{method} {share(part)}" for method, part in by_share if part > 0)
    return text or None


_BY_UNIT: Final[Mapping[str, Callable[[Any], str]]] = {
    "s": duration,
    "$": usd,
    "$/h": lambda price: usd_per_hour(price).removesuffix("/h"),
    "bytes": gibibytes,
    "share": share,
    "": str,
}
"""Formatters by unit; values with other units get three significant digits."""

_SPECIAL: Final[Mapping[str, Callable[[AbstractPredictions, Any], str | None]]] = {
    "gpu": _name_cell,
    "iteration": lambda _, row: milliseconds_interval(row.iteration_seconds_low, row.iteration_seconds_high),
    "remaining_seconds": _total_cell,
    "remaining": _interval_cell,
    "cost_usd": _cost_cell,
    "memory_bytes": lambda _, line: _memory(line.memory),
    "process": lambda _, line: None if (size := line.memory.process) is None else _ends(size),
    "verdict": lambda _, row: bound_cell(row),
    "coverage": lambda _, row: _covered_by(row),
}
"""Cell functions of fields whose text depends on all predictions, by field name."""
