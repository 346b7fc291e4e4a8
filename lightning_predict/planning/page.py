"""The Gantt chart as one HTML page that needs nothing else: no script, no style sheet, no network.

Each bar shows its job, GPUs and times when the mouse rests on it. Example::

    Path("plan.html").write_text(gantt_page(plan, problem.machines), encoding="utf-8")
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from lightning_predict.planning.gantt import Bar, Chart, chart_of
from lightning_predict.planning.plans import Outcome, Plan
from lightning_predict.planning.records import MachineType
from lightning_predict.units import seconds_to_hours

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
    """The chart, the sums and a row a job."""
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


def _rectangle(bar: Bar, chart: Chart) -> str:
    x = _LEFT + _WIDTH * bar.start_seconds / chart.end_seconds
    width = _WIDTH * (bar.end_seconds - bar.start_seconds) / chart.end_seconds
    start, end = seconds_to_hours(bar.start_seconds), seconds_to_hours(bar.end_seconds)
    title = f"{bar.job}: {bar.rows} GPUs, {start:.2f} h to {end:.2f} h"
    return (
        f'<rect x="{x:.2f}" y="{bar.first_row * _ROW + 1}" width="{width:.2f}" height="{bar.rows * _ROW - 2}" '
        f'fill="{bar.color}"><title>{escape(title)}</title></rect>'
    )


def _row(outcome: Outcome) -> str:
    late = seconds_to_hours(outcome.tardiness_seconds)
    hours = (outcome.start_seconds, outcome.end_seconds, outcome.deadline_seconds)
    cells = [escape(outcome.job), *(f"{seconds_to_hours(value):.2f}" for value in hours), f"{late:.2f}"]
    cells += [f"{outcome.machine_usd:,.2f}", f"{outcome.tardiness_usd:,.2f}"]
    kind = ' class="late"' if late else ""
    return f"<tr{kind}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
