"""Tables of the reports on accuracy, and figures next to their goals.

Names stand to the left, numbers to the right, without lines between columns.

Example::

    table = report_table("Errors", names=("GPU",), numbers=("median %", "mean %"))
    table.add_row("T4", "3.1", "4.0")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table


def report_table(title: str, names: Sequence[str], numbers: Sequence[str], *, no_wrap: bool = True) -> Table:
    """Return an empty table.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One figure with its goal."""

    what: str  # The figure in words
    cases: int  # Cases that it is over
    reached: float  # Its value, as a share
    reach: float  # Its goal, as a share
    is_error: bool = True  # It should be at most that; otherwise at least

    @property
    def is_held(self) -> bool:
        """The figure is as good as it should be."""
        return self.reached <= self.reach if self.is_error else self.reached >= self.reach


def reach_table(goals: Sequence[Goal]) -> Table:
    """Return the goals for the terminal."""
    table = Table(title="What is to be reached", box=box.SIMPLE)
    table.add_column("figure", no_wrap=True)
    for heading in ("cases", "reached %", "reach %", "held"):
        table.add_column(heading, justify="right", no_wrap=True)
    for goal in goals:
        bound = "at most" if goal.is_error else "at least"
        table.add_row(
            goal.what,
            str(goal.cases),
            f"{100 * goal.reached:.1f}",
            f"{bound} {100 * goal.reach:.0f}",
            "yes" if goal.is_held else "no",
        )
    return table
