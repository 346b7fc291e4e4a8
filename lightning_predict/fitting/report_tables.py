"""Tables of the reports on accuracy: names to the left, numbers to the right, no lines between columns.

Example::

    table = report_table("Errors", names=("GPU",), numbers=("median %", "mean %"))
    table.add_row("T4", "3.1", "4.0")
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table


def report_table(title: str, names: Sequence[str], numbers: Sequence[str], *, no_wrap: bool = True) -> Table:
    """An empty table.

    Args:
        title: Stands above it.
        names: Headings of the columns of text, first.
        numbers: Headings of the columns of numbers, set to the right.
        no_wrap: Cells stay on one line, however wide the table gets.
    """
    table = Table(title=title, box=box.SIMPLE)
    for heading in names:
        table.add_column(heading, no_wrap=no_wrap)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=no_wrap)
    return table
