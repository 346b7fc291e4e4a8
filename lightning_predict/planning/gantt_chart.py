"""Shows a plan as a table and as a Gantt chart on an HTML page.

Each row of the chart is a GPU of a node, and each bar is a segment of a job. A tooltip on each bar shows its job, GPUs
and times. The page works without scripts, style sheets and network access. Example::

    Console().print(plan_table(plan))
    Path("plan.html").write_text(gantt_page(plan, problem.machines), encoding="utf-8")
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from rich.table import Table

from lightning_predict.base.escaping import html_text as escape
from lightning_predict.base.units import seconds_to_hours
from lightning_predict.planning.problem import JobOutcome, MachineType, Placement, Plan, Segment

COLORS: Final = "#4878a8 #d1733b #5a9a5a #b05070 #8a6db1 #8c6d4f #c98fb0 #7f7f7f #a8a23c #3f9fa8".split()
"""Colours of jobs, assigned in the order of their names."""


@final
@dataclass(frozen=True, slots=True)
class JobBar:
    """Bar of the chart: a segment of a job on adjacent GPUs of a node."""

    segment: Segment
    first_row: int
    rows: int
    color: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Rows of a node in the chart: a row for each GPU of its largest machine type."""

    node: int
    label: str
    first_row: int
    rows: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Positions of all elements of a Gantt chart.

    Attributes:
        lanes: One lane per node that is ever rented, from the top.
        bars: One bar per segment; several bars if the job's GPUs are not adjacent.
        end_seconds: End of the plan.
    """

    lanes: tuple[Lane, ...]
    bars: tuple[JobBar, ...]
    end_seconds: float

    @property
    def rows(self) -> int:
        """Number of rows of all lanes."""
        return sum(lane.rows for lane in self.lanes)


def chart_of(plan: Plan, machines: Sequence[MachineType]) -> Chart:
    """Compute the chart of a plan."""
    gpus = {machine.name: machine.num_gpus for machine in machines}
    lanes: list[Lane] = []
    for node in sorted({rental.node for rental in plan.rentals}):
        types = list(dict.fromkeys(rental.machine for rental in plan.rentals if rental.node == node))
        rows = max(gpus[name] for name in types)
        first = lanes[-1].first_row + lanes[-1].rows if lanes else 0
        lanes.append(Lane(node=node, label=f"node {node}: {', '.join(types)}", first_row=first, rows=rows))
    names = sorted(outcome.job for outcome in plan.outcomes)
    colors = {name: COLORS[number % len(COLORS)] for number, name in enumerate(names)}
    bars = [
        bar
        for lane in lanes
        for segment, rows in _rows_of(lane, plan.segments)
        for bar in _bars(segment, rows, colors[segment.job])
    ]
    return Chart(lanes=tuple(lanes), bars=tuple(bars), end_seconds=plan.makespan_seconds)


def _rows_of(lane: Lane, segments: Sequence[Segment]) -> list[tuple[Segment, list[int]]]:
    """Return the rows of each segment on a node: the lowest rows that are free when the segment begins."""
    free_at = [0.0] * lane.rows
    placed = []
    for segment in sorted(
        (segment for segment in segments if segment.placement.node == lane.node),
        key=lambda segment: (segment.start_seconds, segment.job),
    ):
        free = [row for row, seconds in enumerate(free_at) if seconds <= segment.start_seconds]
        rows = free[: segment.placement.configuration.num_gpus]
        for row in rows:
            free_at[row] = segment.end_seconds
        placed.append((segment, [lane.first_row + row for row in rows]))
    return placed


def _bars(segment: Segment, rows: Sequence[int], color: str) -> Iterator[JobBar]:
    """Yield one bar for each group of adjacent rows."""
    for _, pairs in itertools.groupby(enumerate(rows), key=lambda pair: pair[1] - pair[0]):
        run = [row for _, row in pairs]
        yield JobBar(segment, run[0], len(run), color)


_WIDTH: Final = 1000
_LEFT: Final = 220
_ROW: Final = 14
_AXIS: Final = 30
_TICKS: Final = 8

_STYLE: Final = """
body { font: 14px system-ui, sans-serif; margin: 2em; color: #222; }
svg text { font-size: 11px; }
table { border-collapse: collapse; margin-top: 1em; }
th, td { padding: 2px 10px; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
.late { color: #b03030; }
"""


def gantt_page(plan: Plan, machines: Sequence[MachineType]) -> str:
    """Return an HTML page with the chart, the total costs and one row per job."""
    chart = chart_of(plan, machines)
    rows = "\n".join(_row(outcome) for outcome in plan.outcomes)
    head = "".join(
        f"<th>{name}</th>" for name in ("job", "start h", "end h", "deadline h", "late h", "machines $", "tardiness $")
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>Plan</title><style>{_STYLE}</style></head>
<body>
<h1>Plan</h1>
<p>Chosen by {escape(plan.policy)}. Machines ${plan.machine_usd:,.2f}, tardiness ${plan.tardiness_usd:,.2f},
together ${plan.total_usd:,.2f}; ends after {seconds_to_hours(plan.makespan_seconds):.2f} h.</p>
{_svg(chart)}
<table><thead><tr>{head}</tr></thead><tbody>
{rows}
</tbody></table>
</body>
</html>
"""


def _svg(chart: Chart) -> str:
    height = chart.rows * _ROW + _AXIS
    parts = [f'<svg viewBox="0 0 {_LEFT + _WIDTH + 20} {height}" width="{_LEFT + _WIDTH + 20}" role="img">']
    for lane in chart.lanes:
        top = lane.first_row * _ROW
        middle = top + lane.rows * _ROW / 2 + 4
        parts.append(f'<line x1="0" x2="{_LEFT + _WIDTH}" y1="{top}" y2="{top}" stroke="#ccc"/>')
        parts.append(f'<text x="0" y="{middle:g}">{escape(lane.label)}</text>')
    parts += [_rectangle(bar, chart) for bar in chart.bars]
    for number in range(_TICKS + 1):
        x = _LEFT + _WIDTH * number / _TICKS
        hours = seconds_to_hours(chart.end_seconds) * number / _TICKS
        parts.append(f'<text x="{x:g}" y="{height - 8}" text-anchor="middle">{hours:.2f} h</text>')
    return "\n".join([*parts, "</svg>"])


def _rectangle(bar: JobBar, chart: Chart) -> str:
    segment = bar.segment
    x = _LEFT + _WIDTH * segment.start_seconds / chart.end_seconds
    width = _WIDTH * (segment.end_seconds - segment.start_seconds) / chart.end_seconds
    start, end = seconds_to_hours(segment.start_seconds), seconds_to_hours(segment.end_seconds)
    title = f"{segment.job}: {segment.placement.configuration.num_gpus} GPUs, {start:.2f} h to {end:.2f} h"
    return (
        f'<rect x="{x:.2f}" y="{bar.first_row * _ROW + 1}" width="{width:.2f}" height="{bar.rows * _ROW - 2}" '
        f'fill="{bar.color}"><title>{escape(title)}</title></rect>'
    )


def _row(outcome: JobOutcome) -> str:
    late = seconds_to_hours(outcome.tardiness_seconds)
    hours = (outcome.start_seconds, outcome.end_seconds, outcome.deadline_seconds)
    cells = [escape(outcome.job), *(f"{seconds_to_hours(value):.2f}" for value in hours), f"{late:.2f}"]
    cells += [f"{outcome.machine_usd:,.2f}", f"{outcome.tardiness_usd:,.2f}"]
    kind = ' class="late"' if late else ""
    return f"<tr{kind}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def plan_table(plan: Plan) -> Table:
    """Return a table with one row per job in the order of their starts, and the total costs."""
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
