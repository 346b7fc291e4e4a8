"""Shows a plan as a table and as a Gantt chart on an HTML page.

Each row of the chart is a GPU of a node, and each bar is a segment of a job. A tooltip on each bar shows its job, GPUs
and times. The page works without scripts, style sheets and network access.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rich.table import Table

from lightning_predict.base.escaping import html_text as escape
from lightning_predict.base.units import seconds_to_hours
from lightning_predict.planning.problem import JobOutcome, MachineType, Placement, Plan, Segment

COLORS: Final = "#4878a8 #d1733b #5a9a5a #b05070 #8a6db1 #8c6d4f #c98fb0 #7f7f7f #a8a23c #3f9fa8".split()
"""Colours of jobs, assigned in the order of their names."""

COLUMNS: Final = ("start h", "end h", "deadline h", "late h", "machines $", "tardiness $")
"""Columns of a job in the table and on the page."""


class Lane(NamedTuple):
    """Rows of a node in the chart: a row for each GPU of its largest machine type."""

    node: int
    label: str
    first_row: int
    rows: int


class JobBar(NamedTuple):
    """Bar of the chart: a segment of a job on adjacent GPUs of a node."""

    segment: Segment
    first_row: int
    rows: int
    color: str


class Chart(NamedTuple):
    """Positions of a Gantt chart: a lane per node, a bar per segment (several if its GPUs are not adjacent)."""

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
        first = sum(lane.rows for lane in lanes)
        lanes.append(Lane(node, f"node {node}: {', '.join(types)}", first, max(gpus[name] for name in types)))
    names = sorted(outcome.job for outcome in plan.outcomes)
    colors = {name: COLORS[number % len(COLORS)] for number, name in enumerate(names)}
    bars = (
        JobBar(segment, rows[0], len(rows), colors[segment.job])
        for lane in lanes
        for segment, rows in _adjacent_rows(lane, plan.segments)
    )
    return Chart(tuple(lanes), tuple(bars), plan.makespan_seconds)


def _adjacent_rows(lane: Lane, segments: Sequence[Segment]) -> Iterator[tuple[Segment, list[int]]]:
    """Yield each group of adjacent rows of each segment on a node: the lowest rows that are free when it begins."""
    free_at = [0.0] * lane.rows
    own = (segment for segment in segments if segment.placement.node == lane.node)
    for segment in sorted(own, key=lambda segment: (segment.start_seconds, segment.job)):
        free = [row for row, seconds in enumerate(free_at) if seconds <= segment.start_seconds]
        rows = free[: segment.placement.configuration.num_gpus]
        for row in rows:
            free_at[row] = segment.end_seconds
        for _, group in itertools.groupby(enumerate(rows), key=lambda pair: pair[1] - pair[0]):
            yield segment, [lane.first_row + row for _, row in group]


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
    rows = []
    for outcome in plan.outcomes:
        late = ' class="late"' if outcome.tardiness_seconds else ""
        cells = "".join(f"<td>{cell}</td>" for cell in (escape(outcome.job), *_cells(outcome)))
        rows.append(f"<tr{late}>{cells}</tr>")
    head, body = "".join(f"<th>{name}</th>" for name in ("job", *COLUMNS)), "\n".join(rows)
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>Plan</title><style>{_STYLE}</style></head>
<body>
<h1>Plan</h1>
<p>Chosen by {escape(plan.policy)}. Machines ${plan.machine_usd:,.2f}, tardiness ${plan.tardiness_usd:,.2f},
together ${plan.total_usd:,.2f}; ends after {seconds_to_hours(plan.makespan_seconds):.2f} h.</p>
{_svg(chart_of(plan, machines))}
<table><thead><tr>{head}</tr></thead><tbody>
{body}
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
    for segment, first_row, rows, color in chart.bars:
        x = _LEFT + _WIDTH * segment.start_seconds / chart.end_seconds
        width = _WIDTH * (segment.end_seconds - segment.start_seconds) / chart.end_seconds
        start, end = seconds_to_hours(segment.start_seconds), seconds_to_hours(segment.end_seconds)
        title = f"{segment.job}: {segment.placement.configuration.num_gpus} GPUs, {start:.2f} h to {end:.2f} h"
        parts.append(
            f'<rect x="{x:.2f}" y="{first_row * _ROW + 1}" width="{width:.2f}" height="{rows * _ROW - 2}" '
            f'fill="{color}"><title>{escape(title)}</title></rect>'
        )
    for number in range(_TICKS + 1):
        x = _LEFT + _WIDTH * number / _TICKS
        hours = seconds_to_hours(chart.end_seconds) * number / _TICKS
        parts.append(f'<text x="{x:g}" y="{height - 8}" text-anchor="middle">{hours:.2f} h</text>')
    return "\n".join([*parts, "</svg>"])
