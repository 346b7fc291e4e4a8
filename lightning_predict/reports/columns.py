"""The columns of every table, and which of them there is something to say in and room for.

A column is added by a row of `COLUMNS`. Example::

    >>> [column.title for column in COLUMNS][:2]
    ['GPU', 'iteration (ms)']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

from lightning_predict.cost.records import Prediction
from lightning_predict.reports.footnotes import (
    BASE_MARK,
    IN_USE_MARK,
    bound_notes,
    coverage_note,
    in_use_note,
    interval_note,
    is_bound_by_links,
    is_bound_by_loader,
    is_marked_as_base,
    tight_note,
    total_notes,
)
from lightning_predict.reports.format import duration, gibibytes, milliseconds, milliseconds_interval, share, usd
from lightning_predict.reports.predictions import Predictions

GAP: Final = 2
"""Spaces between two columns."""

_UNKNOWN: Final = "unknown"
_MOST_LINES: Final = 2
"""A table of ten GPUs with more lines for each is no longer read at a glance."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of every table.

    Attributes:
        header: Words over it, in lines.
        cell: Its text for one GPU; None where the value is not known.
        justify: Alignment.
        gives_way: Order in which columns go when there is no room for all, 1 first; None: it stays.
        breaks: Its cells may be broken into lines, after commas only.
        notes: Its footnotes, given where it is shown; None without any.
    """

    header: str
    cell: Callable[[Prediction], str | None]
    justify: Literal["left", "right"] = "left"
    gives_way: int | None = None
    breaks: bool = False
    notes: Callable[[Predictions], Iterable[str]] | None = None

    @property
    def title(self) -> str:
        """The header on one line."""
        return self.header.replace("\n", " ")


def _interval(prediction: Prediction) -> str:
    return milliseconds_interval(prediction.iteration_seconds_low, prediction.iteration_seconds_high)


def _total(prediction: Prediction) -> str | None:
    if prediction.total_seconds is None:
        return None
    return ("≤ " if prediction.at_most else "") + duration(prediction.total_seconds)


def _cost(prediction: Prediction) -> str | None:
    if prediction.cost_usd is None:
        return None
    return ("≤ " if prediction.at_most else "") + usd(prediction.cost_usd)


def _memory(prediction: Prediction) -> str | None:
    return None if prediction.memory_bytes is None else gibibytes(prediction.memory_bytes)


def _fits(prediction: Prediction) -> str | None:
    if prediction.memory_fit == "tight":
        return "tight"
    return None if prediction.fits is None else ("yes" if prediction.fits else "no")


def _bound_by(prediction: Prediction) -> str:
    if is_bound_by_loader(prediction):
        return "loader"
    if is_bound_by_links(prediction):
        return "links"
    return "host" if prediction.host_seconds > prediction.device_seconds else "device"


def _covered_by(prediction: Prediction) -> str | None:
    by_share = sorted(prediction.coverage.items(), key=lambda item: -item[1])
    text = ", ".join(f"{method} {share(part)}" for method, part in by_share if part > 0)
    return f"{text} {BASE_MARK}" if text and is_marked_as_base(prediction) else text or None


COLUMNS: Final = (
    Column(header="GPU", cell=lambda prediction: prediction.gpu, notes=in_use_note),
    Column(
        header="iteration\n(ms)", cell=lambda prediction: milliseconds(prediction.iteration_seconds), justify="right"
    ),
    Column(header="interval\n(90 %, ms)", cell=_interval, justify="right", notes=interval_note),
    Column(header="total", cell=_total, justify="right", notes=total_notes),
    Column(header="cost", cell=_cost, justify="right"),
    Column(header="memory\n(GiB)", cell=_memory, justify="right", gives_way=3),
    Column(header="fits", cell=_fits, notes=tight_note),
    Column(header="bound\nby", cell=_bound_by, gives_way=2, notes=bound_notes),
    Column(header="covered by", cell=_covered_by, gives_way=1, breaks=True, notes=coverage_note),
)


@final
@dataclass(frozen=True, slots=True)
class Grid:
    """What one table shows.

    Attributes:
        columns: The columns that are shown.
        rows: The texts of each GPU, in lines where a cell is broken.
        unknown: Titles of the columns in which nothing is known.
        hidden: Titles of the columns that there was no room for.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    unknown: tuple[str, ...]
    hidden: tuple[str, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of each column in characters."""
        texts = zip((column.header for column in self.columns), *self.rows, strict=True)
        return tuple(max(len(line) for text in column for line in text.split("\n")) for column in texts)


def grid(predictions: Predictions, width: int | None = None, *, extra: Sequence[Column] = ()) -> Grid:
    """Columns and texts of a table for these predictions.

    Args:
        predictions: What to show.
        width: Characters on one line; columns give way where it is too small for all. None: no limit.
        extra: Columns to show after the usual ones.
    """
    offered = (*COLUMNS, *extra)
    known = [
        column
        for column in offered
        if not predictions or any(column.cell(prediction) is not None for prediction in predictions.values())
    ]
    unknown = tuple(column.title for column in offered if column not in known)
    giving_way = sorted((column for column in known if column.gives_way), key=lambda column: column.gives_way or 0)
    for count in range(len(giving_way) + 1):
        hidden = giving_way[:count]
        columns = tuple(column for column in known if column not in hidden)
        rows = _rows(predictions, columns)
        shown = Grid(columns, rows, unknown, tuple(column.title for column in hidden))
        if width is None:
            break
        shown = _broken(shown, width)
        if _total_width(shown.widths) <= width and _most_lines(shown) <= _MOST_LINES:
            break
    return shown


def _rows(predictions: Predictions, columns: Sequence[Column]) -> tuple[tuple[str, ...], ...]:
    rows = []
    for prediction in predictions.values():
        name, *others = (column.cell(prediction) or _UNKNOWN for column in columns)
        marked = f"{name} {IN_USE_MARK}" if prediction.gpu == predictions.used_gpu else name
        rows.append((marked, *others))
    return tuple(rows)


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _most_lines(shown: Grid) -> int:
    return max((text.count("\n") + 1 for row in shown.rows for text in row), default=1)


def _broken(whole: Grid, width: int) -> Grid:
    """The grid with the cells of its breaking columns broken as far as the width asks for."""
    excess = _total_width(whole.widths) - width
    if excess <= 0:
        return whole
    rows = tuple(
        tuple(
            _break_after_commas(text, column_width - excess) if column.breaks else text
            for column, column_width, text in zip(whole.columns, whole.widths, row, strict=True)
        )
        for row in whole.rows
    )
    return Grid(whole.columns, rows, whole.unknown, whole.hidden)


def _break_after_commas(text: str, width: int) -> str:
    first, *others = text.split(", ")
    lines = [first]
    for piece in others:
        joined = f"{lines[-1]}, {piece}"
        if len(joined) < width:  # less, as a comma may follow
            lines[-1] = joined
        else:
            lines[-1] += ","
            lines.append(piece)
    return "\n".join(lines)
