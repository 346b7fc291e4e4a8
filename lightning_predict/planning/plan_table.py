"""Shows a plan as a table."""

from __future__ import annotations

from typing import Final

from rich.table import Table

from lightning_predict.base.units import seconds_to_hours
from lightning_predict.planning.problem import JobOutcome, Placement, Plan

COLUMNS: Final = ("start h", "end h", "deadline h", "late h", "machines $", "tardiness $")
"""Columns of a job."""


def _cells(outcome: JobOutcome) -> list[str]:
    """Return the cells of `COLUMNS`."""
    times = (outcome.start_seconds, outcome.end_seconds, outcome.deadline_seconds, outcome.tardiness_seconds)
    amounts = (outcome.machine_usd, outcome.tardiness_usd)
    return [f"{seconds_to_hours(seconds):.2f}" for seconds in times] + [f"{usd:,.2f}" for usd in amounts]


def plan_table(plan: Plan) -> Table:
    """Return a table with one row per job in the order of their starts, and the total costs."""
    first: dict[str, Placement] = {}
    for segment in plan.segments:
        first.setdefault(segment.job, segment.placement)
    table = Table(title=f"Plan by {plan.policy}", show_footer=True)
    table.add_column("job", "all")
    table.add_column("starts on")
    makespan = f"{seconds_to_hours(plan.makespan_seconds):.2f}"
    footers = ("", makespan, "", "", f"{plan.machine_usd:,.2f}", f"{plan.tardiness_usd:,.2f}")
    for name, footer in zip(COLUMNS, footers, strict=True):
        table.add_column(name, footer, justify="right")
    for outcome in sorted(plan.outcomes, key=lambda item: (item.start_seconds, item.job)):
        machine, num_gpus = first[outcome.job].configuration
        place = f"node {first[outcome.job].node}: {num_gpus} GPUs of {machine}"
        table.add_row(outcome.job, place, *_cells(outcome), style="red" if outcome.tardiness_seconds else None)
    return table
