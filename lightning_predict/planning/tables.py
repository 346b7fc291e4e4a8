"""Print tables in the terminal: a plan by job, and the comparison of a study.

Example::

    Console().print(plan_table(plan))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.table import Table

from lightning_predict.planning.plan import Plan
from lightning_predict.planning.problem import Placement
from lightning_predict.planning.study import Comparison
from lightning_predict.units import seconds_to_hours

_TITLE: Final = (
    "Medians over the seeds. saved: against the best of FIFO, EDF and PS on the same seed. "
    "off: real cost from predicted cost. slowest: decision"
)


def plan_table(plan: Plan) -> Table:
    """Tabulate a row a job in the order of their start, and the sums."""
    first: dict[str, Placement] = {}
    for segment in plan.segments:
        first.setdefault(segment.job, segment.placement)
    table = Table(title=f"Plan by {plan.policy}", show_footer=True)
    table.add_column("job", "all")
    table.add_column("starts on")
    for name, footer in (
        ("start h", ""),
        ("end h", f"{seconds_to_hours(plan.makespan_seconds):.2f}"),
        ("deadline h", ""),
        ("late h", ""),
        ("machines $", f"{plan.machine_usd:,.2f}"),
        ("tardiness $", f"{plan.tardiness_usd:,.2f}"),
    ):
        table.add_column(name, footer, justify="right")
    for outcome in sorted(plan.outcomes, key=lambda item: (item.start_seconds, item.job)):
        place = first[outcome.job]
        configuration = place.configuration
        table.add_row(
            outcome.job,
            f"node {place.node}: {configuration.num_gpus} GPUs of {configuration.machine}",
            f"{seconds_to_hours(outcome.start_seconds):.2f}",
            f"{seconds_to_hours(outcome.end_seconds):.2f}",
            f"{seconds_to_hours(outcome.deadline_seconds):.2f}",
            f"{seconds_to_hours(outcome.tardiness_seconds):.2f}",
            f"{outcome.machine_usd:,.2f}",
            f"{outcome.tardiness_usd:,.2f}",
            style="red" if outcome.tardiness_seconds else None,
        )
    return table


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """Tabulate a row a setting and policy; medians over the seeds."""
    table = Table(title=_TITLE)
    for name in ("nodes", "a job every"):
        table.add_column(name, justify="right")
    table.add_column("policy")
    for name in ("machines $", "tardiness $", "total $", "saved", "off", "slowest"):
        table.add_column(name, justify="right")
    previous = None
    for item in comparisons:
        setting = (item.nodes, item.mean_gap_seconds)
        if previous is not None and setting != previous:
            table.add_section()
        previous = setting
        table.add_row(
            str(item.nodes),
            f"{item.mean_gap_seconds:g} s",
            item.policy,
            f"{item.machine_usd:,.2f}",
            f"{item.tardiness_usd:,.2f}",
            f"{item.total_usd:,.2f}",
            "" if item.cut is None else f"{100 * item.cut:.1f} %",
            f"{100 * item.deviation:.1f} %",
            f"{item.longest_decision_seconds:.2f} s",
        )
    return table
