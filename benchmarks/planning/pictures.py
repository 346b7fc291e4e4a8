"""Show a study of planners as a table and a figure.

Example::

    Console().print(comparison_table(compare(runs)))
    comparison_figure(compare(runs)).savefig("study.svg")
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from rich.table import Table

from benchmarks.planning.study import Comparison
from lightning_predict.base.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS: Final = "#4878a8 #d1733b #5a9a5a #b05070 #8a6db1 #8c6d4f #c98fb0 #7f7f7f #a8a23c #3f9fa8".split()  # Of policies

_TITLE: Final = (
    "Medians over the seeds. every: between two jobs. restart: lost by a move. saved: against the best queue rule of "
    "the same seed (worst to best seed). possible: what no plan surpasses (% of it saved). off: real from predicted "
    "cost. "
    "slowest: decision"
)


def comparison_figure(comparisons: Sequence[Comparison]) -> Figure:
    """Draw the saving of each policy against the cost of a move, one panel per number of nodes and time between jobs.

    A point is the median of the seeds, a bar goes from the worst seed to the best one.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "The figure needs matplotlib, which is not installed: pip install lightning-predict[planning]"
        ) from error
    settings = list(dict.fromkeys((item.nodes, item.mean_gap_seconds) for item in comparisons))
    policies = list(dict.fromkeys(item.policy for item in comparisons))
    figure = Figure(figsize=(1.2 + 3.6 * len(settings), 3.6), layout="constrained")
    panels = figure.subplots(1, len(settings), squeeze=False, sharey=True)[0]
    for axes, setting in zip(panels, settings, strict=True):
        axes.axhline(0.0, color="#cccccc", linewidth=0.8)
        for color, policy in zip(itertools.cycle(COLORS), policies):
            rows = [
                (item.restart_seconds, 100 * item.saved.median, 100 * item.saved.low, 100 * item.saved.high)
                for item in comparisons
                if (item.nodes, item.mean_gap_seconds, item.policy) == (*setting, policy) and item.saved is not None
            ]
            if rows:
                restarts, middle, low, high = np.array(rows).T
                bars = (middle - low, high - middle)
                axes.errorbar(restarts, middle, bars, color=color, marker="o", markersize=4, capsize=2, label=policy)
        axes.set_title(f"{setting[0]} nodes, a job every {setting[1]:g} s", fontsize=10)
        axes.set_xlabel("seconds lost by a move")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("% saved against the best queue rule")
    panels[0].legend(fontsize=8, frameon=False)
    return figure


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """Tabulate one row per setting and policy: medians over the seeds."""
    table = Table(title=_TITLE)
    for name in ("nodes", "every", "restart"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    for name in ("machines $", "late $", "total $", "saved %", "possible", "off %", "slowest"):
        table.add_column(name, justify="right", no_wrap=True)
    previous = None
    for item in comparisons:
        setting = (item.nodes, item.mean_gap_seconds, item.restart_seconds)
        saved = item.saved
        if previous is not None and setting != previous:
            table.add_section()
        previous = setting
        table.add_row(
            str(item.nodes),
            f"{item.mean_gap_seconds:.3g} s",
            f"{item.restart_seconds:g} s",
            item.policy,
            f"{item.machine_usd:,.2f}",
            f"{item.tardiness_usd:,.2f}",
            f"{item.total_usd:,.2f}",
            "" if saved is None else f"{100 * saved.median:.0f} ({100 * saved.low:.0f} to {100 * saved.high:.0f})",
            "" if saved is None else f"{100 * saved.possible:.0f}" + f" ({100 * saved.share:.0f})" * (saved.share > 0),
            f"{100 * item.deviation:.0f}",
            f"{item.longest_decision_seconds:.2f} s",
        )
    return table
