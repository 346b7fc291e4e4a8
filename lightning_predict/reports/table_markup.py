"""Tables of predictions in Markdown and HTML, from the same columns and notes as the plain table.

Example::

    markdown_table(result)   # for TensorBoard and MLflow
    html_table(result)       # for notebooks
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lightning_predict.base.escaping import html_text as escape
from lightning_predict.base.escaping import markdown_text
from lightning_predict.cost.prediction import AbstractPredictions
from lightning_predict.reports.table import grid
from lightning_predict.reports.table_notes import table_notes


def markdown_table(
    predictions: AbstractPredictions,
    *,
    columns: Collection[str] = (),
    verbose: bool = True,
    notes: Sequence[str] = (),
    width: int | None = None,
) -> str:
    """Return the table and its footnotes in Markdown.

    Args:
        predictions: The predictions to show.
        columns: Names of optional columns to show.
        verbose: Add prediction methods, sources of prices, and all notes.
        notes: Additional notes.
        width: Maximum line width in characters; columns are dropped if they do not fit. None for no limit.
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
            cells.append(f'<{tag}{given} style="text-align: {column.justify}">{escape(text)}</{tag}>')
        return f"<tr>{''.join(cells)}</tr>"

    head = line("th", [column.title for column in shown.columns], "col")
    body = "".join(line("td", row, "row") for row in shown.rows)
    caption = "" if predictions.heading is None else f"<caption>{escape(predictions.heading)}</caption>"
    notes = "".join(
        f"<li>{escape(note)}</li>" for note in table_notes(predictions, shown, asked_by=".text(verbose=True)")
    )
    return f"<table>{caption}<thead>{head}</thead><tbody>{body}</tbody></table><ul>{notes}</ul>"
