"""Figures: the Gantt chart of a plan, and the comparison of a study.

Drawn through matplotlib's object interface: no pyplot, no window. Example::

    gantt_figure(plan, problem.machines).savefig("plan.png")
    comparison_figure(compare(runs)).savefig("study.png")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lightning_predict.errors import MissingDependencyError
from lightning_predict.planning.gantt import chart_of
from lightning_predict.planning.plans import Plan
from lightning_predict.planning.records import MachineType
from lightning_predict.planning.study import Comparison
from lightning_predict.units import seconds_to_hours

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MACHINES: Final = "#4878a8"
_TARDINESS: Final = "#d1733b"
_DOTS_PER_INCH: Final = 120


def gantt_figure(plan: Plan, machines: Sequence[MachineType]) -> Figure:
    """Time in hours to the right, a row a GPU, a bar a stay with the job's name.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    chart = chart_of(plan, machines)
    figure = _figure(10.0, 1.2 + 0.22 * chart.rows)
    axes = figure.add_subplot()
    for bar in chart.bars:
        start, end = seconds_to_hours(bar.start_seconds), seconds_to_hours(bar.end_seconds)
        middle = bar.first_row + (bar.rows - 1) / 2
        axes.barh(middle, end - start, left=start, height=bar.rows - 0.1, color=bar.color, edgecolor="white")
        if bar.end_seconds - bar.start_seconds > 0.06 * chart.end_seconds:
            axes.annotate(
                bar.job,
                ((start + end) / 2, middle),
                horizontalalignment="center",
                verticalalignment="center",
                fontsize=7,
                color="white",
                parse_math=False,
                clip_on=True,
            )
    for lane in chart.lanes:
        axes.axhline(lane.first_row - 0.5, color="#cccccc", linewidth=0.8, zorder=0)
    axes.set_yticks(
        [lane.first_row + (lane.rows - 1) / 2 for lane in chart.lanes], [lane.label for lane in chart.lanes]
    )
    axes.tick_params(axis="y", labelsize=8)
    axes.set_ylim(chart.rows - 0.5, -0.5)
    axes.set_xlim(0, seconds_to_hours(chart.end_seconds))
    axes.set_xlabel("hours")
    axes.set_title(
        f"{plan.policy}: machines ${plan.machine_usd:,.2f}, tardiness ${plan.tardiness_usd:,.2f}",
        fontsize=10,
        parse_math=False,
    )
    return figure


def comparison_figure(comparisons: Sequence[Comparison]) -> Figure:
    """A panel a setting, a bar a policy: median cost of machines and of tardiness, one on the other.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    settings = list(dict.fromkeys((item.nodes, item.mean_gap_seconds) for item in comparisons))
    figure = _figure(1.2 + 4.2 * len(settings), 4.2)
    panels = figure.subplots(1, len(settings), squeeze=False, sharey=True)[0]
    for axes, setting in zip(panels, settings, strict=True):
        rows = [item for item in comparisons if (item.nodes, item.mean_gap_seconds) == setting]
        for position, item in enumerate(rows):
            axes.bar(position, item.machine_usd, color=_MACHINES, label="machines")
            axes.bar(position, item.tardiness_usd, bottom=item.machine_usd, color=_TARDINESS, label="tardiness")
            if item.cut is not None:
                axes.annotate(
                    f"{-100 * item.cut:+.0f} %",
                    (position, item.machine_usd + item.tardiness_usd),
                    xytext=(0, 3),
                    textcoords="offset points",
                    horizontalalignment="center",
                    fontsize=8,
                )
        axes.set_xticks(range(len(rows)), [item.policy for item in rows], rotation=30)
        axes.set_title(f"{setting[0]} nodes, a job every {setting[1]:g} s", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("US dollars (median over the seeds)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles[:2], labels[:2], loc="outside upper right", ncols=2, fontsize=8)
    return figure


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "The figure needs matplotlib, which is not installed: pip install lightning-predict[planning]"
        ) from error
    return Figure(figsize=(width, height), dpi=_DOTS_PER_INCH, layout="constrained")
