"""Hours against dollars, one point a GPU, and the line of those that no other beats in both.

Drawn through matplotlib's object interface, as `figure`. Example::

    ranking_figure(result, rank(result, deadline_hours=2)).savefig("hours_against_dollars.png")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lightning_predict.cost.prediction import Prediction
from lightning_predict.errors import MissingDependencyError
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import Ranking
from lightning_predict.units import seconds_to_hours

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOG_AXIS_SPREAD: Final = 20.0
"""Ratio of the largest to the smallest value of an axis from which it is logarithmic."""

_COLOR: Final = "#4878a8"
_COLOR_DOES_NOT_FIT: Final = "#b8b8b8"
_DOTS_PER_INCH: Final = 120


def points(predictions: Predictions) -> tuple[tuple[Prediction, float, float], ...]:
    """Prediction, hours and dollars of each GPU for which both are known."""
    return tuple(
        (one, seconds_to_hours(one.total_seconds), one.cost_usd)
        for one in predictions.values()
        if one.total_seconds is not None and one.cost_usd is not None
    )


def ranking_figure(predictions: Predictions, ranking: Ranking) -> Figure:
    """A scatter of hours and dollars; GPUs whose hours or dollars are unknown are named below it.

    Args:
        predictions: All GPUs, those on which the run does not fit in grey.
        ranking: Of the same predictions; its frontier is drawn as a line, its deadline as a limit.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "The figure needs matplotlib, which is not installed: pip install lightning-predict[tensorboard]"
        ) from error

    figure = Figure(figsize=(8.0, 5.0), dpi=_DOTS_PER_INCH, layout="constrained")
    axes = figure.add_subplot()
    shown = points(predictions)
    _draw_frontier(axes, ranking)
    for one, hours, dollars in shown:
        color = _COLOR_DOES_NOT_FIT if one.fits is False else _COLOR
        axes.plot([hours], [dollars], marker="x" if one.fits is False else "o", color=color, linestyle="")
        label = f"{one.gpu} (does not fit)" if one.fits is False else one.gpu
        axes.annotate(label, (hours, dollars), xytext=(6, 4), textcoords="offset points", fontsize=8)
    if ranking.deadline_hours is not None:
        axes.axvline(ranking.deadline_hours, color="#d1733b", linewidth=1, linestyle="--")
    _label_axes(axes, predictions, shown)
    return figure


def _draw_frontier(axes: Any, ranking: Ranking) -> None:
    known = [(one.prediction.total_seconds, one.cost_usd) for one in ranking.frontier]
    hours = [seconds_to_hours(seconds) for seconds, _ in known if seconds is not None]
    if len(hours) == len(known):
        axes.plot(hours, [cost for _, cost in known], color=_COLOR, linewidth=1, alpha=0.5)


def _label_axes(axes: Any, predictions: Predictions, shown: tuple[tuple[Prediction, float, float], ...]) -> None:
    spreads = [[value for value in values if value > 0] for values in zip(*(pair[1:] for pair in shown), strict=True)]
    for name, values in zip("xy", spreads, strict=False):
        if values and max(values) > LOG_AXIS_SPREAD * min(values):
            axes.set(**{f"{name}scale": "log"})
        elif values:
            axes.set(**{f"{name}lim": (0, None)})
    unknown = [one.gpu for one in predictions.values() if all(one is not known for known, _, _ in shown)]
    axes.set_xlabel("hours" + (f"\nhours or dollars not known: {', '.join(unknown)}" if unknown else ""))
    axes.set_ylabel("US dollars")
    axes.grid(visible=True, linewidth=0.3)
    axes.spines[["top", "right"]].set_visible(False)
