"""Tables of predictions as plain text, on a terminal, in Markdown and in HTML.

The heading describes the predictions. Rows, columns and notes come from `table_rows`, `table_columns` and
`table_notes`. If a line is too narrow, less important columns are dropped. Example::

    print(result)            # plain_table: at most 120 columns, no colours
    print_table(result)      # rich: as wide as the terminal
    print(plain_table(result, columns=["kilowatt_hours"]))
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from lightning_predict.base.answers import GAP, TEXT_WIDTH
from lightning_predict.base.escaping import html_text, markdown_text, terminal_text
from lightning_predict.cost.prediction import AbstractPredictions, MachineInUse, Prediction
from lightning_predict.reports.format import ascii_text
from lightning_predict.reports.table_columns import Column, Grid, columns_of
from lightning_predict.reports.table_notes import table_notes
from lightning_predict.reports.table_rows import TableLine, lines_of

if TYPE_CHECKING:
    from rich.console import Console

_UNKNOWN: Final = "unknown"

_MOST_LINES: Final = 2  # Maximum number of lines per row


def plain_table(
    predictions: AbstractPredictions, *, columns: Collection[str] = (), verbose: bool = False, notes: Sequence[str] = ()
) -> str:
    """Return the table and its footnotes as aligned text of at most 120 columns, without colours."""
    lines = _lines(predictions, TEXT_WIDTH, columns=columns, verbose=verbose, notes=notes)
    return terminal_text("\n".join(text for text, _ in lines))


def print_table(
    predictions: AbstractPredictions,
    console: Console | None = None,
    *,
    columns: Collection[str] = (),
    verbose: bool = False,
    notes: Sequence[str] = (),
) -> None:
    """Print the table and its footnotes. Columns that do not fit into a narrow terminal are named below the table."""
    from rich.console import Console
    from rich.text import Text

    if console is None:
        console = Console()
        if not (console.is_terminal or console.is_jupyter):
            console.width = TEXT_WIDTH
    lines = _lines(predictions, console.width, columns=columns, verbose=verbose, notes=notes)
    if console.options.ascii_only:  # without a Unicode encoding, printing an unsupported character would raise an error
        text = ascii_text(terminal_text("\n".join(text for text, _ in lines)))
        console.out(text.encode(console.encoding, "replace").decode(console.encoding), highlight=False)
    else:  # Text objects, so that rich does not parse markup in names and notes
        console.print(Text("\n").join(Text(text, style) for text, style in lines), soft_wrap=True)


def _lines(
    predictions: AbstractPredictions, width: int, *, columns: Collection[str], verbose: bool, notes: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield the lines of a table, each with its style on a terminal: GPUs without enough memory are dimmed."""
    predictions = predictions if verbose else predictions.shown()
    shown = grid(predictions, width, columns=columns, verbose=verbose, fold=not verbose)
    if predictions.heading is not None:
        yield from ((text, "bold") for text in (*_wrapped(predictions.heading, width), ""))
    header_lines = max(column.header.count("\n") for column in shown.columns)
    headers = ["\n" * (header_lines - column.header.count("\n")) + column.header for column in shown.columns]
    rule = ["-" * own for own in shown.widths]
    styles = [
        "bold"
        if isinstance(line, MachineInUse) or line.gpu == predictions.used_gpu
        else ("dim" if isinstance(line, Prediction) and line.fits is False else "")
        for line in shown.lines
    ]
    for row, style in zip((headers, rule, *shown.rows), ("bold", "", *styles), strict=True):
        yield from ((text, style) for text in _aligned(row, shown))
    below = table_notes(predictions, shown, verbose=verbose, asked_for=notes)
    if below:
        yield "", ""
    yield from ((text, "dim") for note in below for text in _wrapped(note, width))


def grid(
    predictions: AbstractPredictions,
    width: int | None = None,
    *,
    columns: Collection[str] = (),
    verbose: bool = False,
    fold: bool = False,
) -> Grid:
    """Lay out a table of these predictions.

    Args:
        predictions: The predictions to show.
        width: Maximum line width in characters; columns are dropped if they do not fit. None for no limit.
        columns: Names of optional columns to show.
        verbose: Include the step's interval and the prediction methods.
        fold: Omit the GPUs of `folded_gpus`.
    """
    offered = columns_of(predictions, verbose=verbose, asked=columns)
    known = [
        column
        for column in offered
        if not predictions or any(column.cell(prediction) is not None for prediction in predictions.values())
    ]
    unknown = tuple(column.title for column in offered if column not in known)
    giving_way = sorted(
        (column for column in known if column.field.gives_way), key=lambda column: column.field.gives_way or 0
    )
    lines = lines_of(predictions, fold=fold)
    for count in range(len(giving_way) + 1):
        hidden = giving_way[:count]
        left = tuple(column for column in known if column not in hidden)
        rows = tuple(tuple(_cell(column, line) for column in left) for line in lines)
        shown = Grid(left, rows, unknown, tuple(column.title for column in hidden), lines)
        if width is None:
            break
        shown = _broken(shown, width)
        if (
            _total_width(shown.widths) <= width
            and max((text.count("\n") + 1 for row in shown.rows for text in row), default=1) <= _MOST_LINES
        ):
            break
    return shown


def _cell(column: Column, line: TableLine) -> str:
    text = column.text(line)
    return _UNKNOWN if text is None else text


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _broken(whole: Grid, width: int) -> Grid:
    """Break cells of breakable columns until the table fits the width, as far as possible."""
    excess = _total_width(whole.widths) - width
    if excess <= 0:
        return whole
    rows = tuple(
        tuple(
            _break_after_commas(text, column_width - excess) if column.field.breaks else text
            for column, column_width, text in zip(whole.columns, whole.widths, row, strict=True)
        )
        for row in whole.rows
    )
    return replace(whole, rows=rows)


def _break_after_commas(text: str, width: int) -> str:
    first, *others = text.split(", ")
    lines = [first]
    for piece in others:
        joined = f"{lines[-1]}, {piece}"
        if len(joined) < width:  # `<`, not `<=`, because a comma may follow
            lines[-1] = joined
        else:
            lines[-1] += ","
            lines.append(piece)
    return "\n".join(lines)


def _aligned(row: Iterable[str], shown: Grid) -> Iterable[str]:
    for line in zip_longest(*(text.split("\n") for text in row), fillvalue=""):
        cells = (
            text.rjust(width) if column.justify == "right" else text.ljust(width)
            for text, column, width in zip(line, shown.columns, shown.widths, strict=True)
        )
        yield (" " * GAP).join(cells).rstrip()


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)


def markdown_table(
    predictions: AbstractPredictions,
    *,
    columns: Collection[str] = (),
    verbose: bool = True,
    notes: Sequence[str] = (),
    width: int | None = None,
) -> str:
    """Return the table and its footnotes in Markdown.

    Columns that do not fit into `width` are dropped.
    """
    predictions = predictions if verbose else predictions.shown()
    shown = grid(predictions, width, columns=columns, verbose=verbose, fold=not verbose)
    rule = ["---:" if column.justify == "right" else ":---" for column in shown.columns]
    heads = [markdown_text(column.title) for column in shown.columns]
    # Markdown viewers break words in short cells to make room for a long cell.
    rows = [
        [
            markdown_text(text).replace(", ", ",<br>") if column.field.breaks else markdown_text(text)
            for column, text in zip(shown.columns, row, strict=True)
        ]
        for row in shown.rows
    ]
    heading = () if predictions.heading is None else (f"**{markdown_text(predictions.heading)}**", "")
    lines = ["| " + " | ".join(row) + " |" for row in (heads, rule, *rows)]
    below = table_notes(predictions, shown, verbose=verbose, asked_for=notes)
    return "\n".join([*heading, *lines, "", *(f"- {markdown_text(note)}" for note in below)])


def html_table(predictions: AbstractPredictions) -> str:
    """Return the table and its footnotes as an HTML fragment for notebooks."""
    predictions = predictions.shown()
    shown = grid(predictions, fold=True)

    def line(kind: str, texts: Sequence[str], scope: str) -> str:
        cells = []
        for number, (column, text) in enumerate(zip(shown.columns, texts, strict=True)):
            is_head = kind == "th" or number == 0
            given = f' scope="{scope}"' if is_head else ""
            tag = "th" if is_head else "td"
            cells.append(f'<{tag}{given} style="text-align: {column.justify}">{html_text(text)}</{tag}>')
        return f"<tr>{''.join(cells)}</tr>"

    head = line("th", [column.title for column in shown.columns], "col")
    body = "".join(line("td", row, "row") for row in shown.rows)
    caption = "" if predictions.heading is None else f"<caption>{html_text(predictions.heading)}</caption>"
    notes = "".join(
        f"<li>{html_text(note)}</li>" for note in table_notes(predictions, shown, asked_by=".text(verbose=True)")
    )
    return f"<table>{caption}<thead>{head}</thead><tbody>{body}</tbody></table><ul>{notes}</ul>"
