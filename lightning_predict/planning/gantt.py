"""A plan as bars: one row a GPU of a node, one bar a job's stay, for the figure and for the page.

Example::

    chart = chart_of(plan, problem.machines)
    [(bar.job, bar.first_row, bar.rows) for bar in chart.bars]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from lightning_predict.planning.plans import Plan, Segment
from lightning_predict.planning.records import MachineType

COLORS: Final = (
    "#4878a8",
    "#d1733b",
    "#5a9a5a",
    "#b05070",
    "#8a6db1",
    "#8c6d4f",
    "#c98fb0",
    "#7f7f7f",
    "#a8a23c",
    "#3f9fa8",
)
"""One a job, in turn by name."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A job on neighbouring GPUs of a node.

    Attributes:
        job: Its name.
        first_row: The first GPU's row in the chart.
        rows: How many GPUs.
        start_seconds: When it begins.
        end_seconds: When it ends.
        color: Of the job.
    """

    job: str
    first_row: int
    rows: int
    start_seconds: float
    end_seconds: float
    color: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A node's rows.

    Attributes:
        node: Its number.
        label: Node and the machine types that it was.
        first_row: Its first row.
        rows: As many as the largest of those has GPUs.
    """

    node: int
    label: str
    first_row: int
    rows: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """All bars and lanes.

    Attributes:
        lanes: One a node that was ever rented, from the top.
        bars: One a stay; two where a job's GPUs are not neighbours.
        end_seconds: End of the plan.
    """

    lanes: tuple[Lane, ...]
    bars: tuple[Bar, ...]
    end_seconds: float

    @property
    def rows(self) -> int:
        """Rows of all lanes."""
        return sum(lane.rows for lane in self.lanes)


def chart_of(plan: Plan, machines: Sequence[MachineType]) -> Chart:
    """Lay out a plan."""
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
    """The GPUs of each stay on a node: the lowest that are free when it begins."""
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


def _bars(segment: Segment, rows: Sequence[int], color: str) -> list[Bar]:
    """One bar for each run of neighbouring rows."""
    runs: list[list[int]] = []
    for row in rows:
        if runs and runs[-1][-1] == row - 1:
            runs[-1].append(row)
        else:
            runs.append([row])
    return [
        Bar(
            job=segment.job,
            first_row=run[0],
            rows=len(run),
            start_seconds=segment.start_seconds,
            end_seconds=segment.end_seconds,
            color=color,
        )
        for run in runs
    ]
