"""The tables that people read: plain text, rich and Markdown, all from the same columns and footnotes.

Example::

    print(result)            # plain_table: at most 120 columns, no colours
    print_table(result)      # rich: as wide as the terminal
    markdown_table(result)   # for TensorBoard and MLflow
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from lightning_predict.reports.columns import GAP, Column, Grid, grid
from lightning_predict.reports.footnotes import prediction_notes, price_notes, unknown_length_note
from lightning_predict.reports.format import markdown_text
from lightning_predict.reports.predictions import Predictions

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PLAIN_WIDTH: Final = 120

_ASCII: Final = str.maketrans({"≤": "<", "–": "-", "†": "+"})  # noqa: RUF001 (an en dash is meant)
"""One character for one, so that columns stay aligned."""


def plain_table(predictions: Predictions, *, extra: Sequence[Column] = ()) -> str:
    """The table and its footnotes as aligned text of at most 120 columns, without colours.

    Args:
        predictions: What to show.
        extra: Columns to show after the usual ones.
    """
    shown = grid(predictions, PLAIN_WIDTH, extra=extra)
    header_lines = max(column.header.count("\n") for column in shown.columns)
    headers = ["\n" * (header_lines - column.header.count("\n")) + column.header for column in shown.columns]
    rule = ["-" * width for width in shown.widths]
    lines = [line for row in (headers, rule, *shown.rows) for line in _aligned(row, shown)]
    notes = [
        textwrap.fill(note, PLAIN_WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        for note in _notes(predictions, shown)
    ]
    return "\n".join([*lines, "", *notes])


def print_table(predictions: Predictions, console: Console | None = None, *, extra: Sequence[Column] = ()) -> None:
    """Print the table and its footnotes; columns that a narrow terminal has no room for are named below it.

    Args:
        predictions: What to print.
        console: Where to; standard output without one, 120 columns wide where that is a file.
        extra: Columns to show after the usual ones.
    """
    from rich.console import Console
    from rich.text import Text

    if console is None:
        console = Console()
        if not (console.is_terminal or console.is_jupyter):
            console.width = PLAIN_WIDTH
    if console.options.ascii_only:  # its encoding is not a Unicode one; a character that it lacks would raise
        text = plain_table(predictions, extra=extra).translate(_ASCII)
        console.out(text.encode(console.encoding, "replace").decode(console.encoding), highlight=False)
        return
    shown = grid(predictions, console.width, extra=extra)
    console.print(_rich_table(predictions, shown))
    console.print()
    for note in _notes(predictions, shown):
        wrapped = textwrap.fill(note, console.width, subsequent_indent="  ", break_on_hyphens=False)
        console.print(Text(wrapped, style="dim"))


def rich_table(predictions: Predictions) -> Table:
    """The table with all known columns, without its footnotes (which `print_table` adds)."""
    return _rich_table(predictions, grid(predictions))


def markdown_table(predictions: Predictions, *, extra: Sequence[Column] = ()) -> str:
    """The table and its footnotes in Markdown, with columns of one's own after the usual ones."""
    shown = grid(predictions, extra=extra)
    rule = ["---:" if column.justify == "right" else ":---" for column in shown.columns]
    rows = [[markdown_text(text) for text in row] for row in ([column.title for column in shown.columns], *shown.rows)]
    lines = ["| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:])]
    return "\n".join([*lines, "", *(f"- {markdown_text(note)}" for note in _notes(predictions, shown))])


def _notes(predictions: Predictions, shown: Grid) -> Iterable[str]:
    """All that is said below this table."""
    for column in shown.columns:
        if column.notes is not None:
            yield from column.notes(predictions)
    yield from unknown_length_note(predictions)
    yield from price_notes(predictions)
    yield from prediction_notes(predictions)
    if shown.unknown:
        yield f"Not known for any of them: {', '.join(shown.unknown)}."
    if shown.hidden:
        yield f"Left out for want of room: {', '.join(shown.hidden)}."


def _aligned(row: Iterable[str], shown: Grid) -> Iterable[str]:
    """The lines of one row of a plain table."""
    for line in zip_longest(*(text.split("\n") for text in row), fillvalue=""):
        cells = (
            text.rjust(width) if column.justify == "right" else text.ljust(width)
            for text, column, width in zip(line, shown.columns, shown.widths, strict=True)
        )
        yield (" " * GAP).join(cells).rstrip()


def _rich_table(predictions: Predictions, shown: Grid) -> Table:
    """The grid in rich: the GPU in use bold, one that the run does not fit dim."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for column in shown.columns:
        table.add_column(Text(column.header), justify=column.justify, no_wrap=True)
    for prediction, row in zip(predictions.values(), shown.rows, strict=True):
        in_use = prediction.gpu == predictions.used_gpu
        style = "bold" if in_use else ("dim" if prediction.fits is False else None)
        # Text, so that nothing in a name or a note is taken for rich's markup.
        table.add_row(*(Text(text) for text in row), style=style)
    return table
