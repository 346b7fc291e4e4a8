"""Bar chart of the predicted iteration time by GPU, with 90 % intervals.

matplotlib draws on a canvas of its own, without pyplot, so the user's plots are not affected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from lightning_predict.base.errors import MissingDependencyError
from lightning_predict.base.units import seconds_to_milliseconds
from lightning_predict.cost.prediction import Prediction
from lightning_predict.reports.charts import LOG_AXIS_SPREAD
from lightning_predict.reports.format import milliseconds, usd
from lightning_predict.reports.predictions import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOR: Final = "#4878a8"
_COLOR_IN_USE: Final = "#d1733b"
_COLOR_DOES_NOT_FIT: Final = "#b8b8b8"
_DOTS_PER_INCH: Final = 120
_FONT_POINTS: Final = 11  # TensorBoard first shows a small version of the figure


def iteration_figure(predictions: Predictions) -> Figure:
    """Draw horizontal bars in the order of `predictions`, labelled with the time and, if known, the cost."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "The bar figure needs matplotlib, which is not installed: pip install lightning-predict[tensorboard]"
        ) from error

    figure = Figure(figsize=(6.4, 1.3 + 0.36 * len(predictions)), dpi=_DOTS_PER_INCH, layout="constrained")
    axes = figure.add_subplot()
    _draw_bars(axes, predictions)
    _scale_axis(axes, predictions)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_bars(axes: Axes, predictions: Predictions) -> None:
    for row, prediction in enumerate(predictions.values()):
        middle = seconds_to_milliseconds(prediction.iteration_seconds)
        low = seconds_to_milliseconds(prediction.iteration_seconds_low)
        high = seconds_to_milliseconds(prediction.iteration_seconds_high)
        axes.barh(row, middle, color=_color(prediction, predictions))
        axes.plot([low, high], [row, row], color="#333333", linewidth=1, marker="|", markersize=8)
        axes.annotate(
            _label(prediction),
            (max(middle, high), row),
            xytext=(8, 0),
            textcoords="offset points",
            verticalalignment="center",
            fontsize=_FONT_POINTS,
            parse_math=False,  # show dollar signs literally
        )
    names = [_name(prediction, predictions) for prediction in predictions.values()]
    axes.set_yticks(range(len(predictions)), names, fontsize=_FONT_POINTS)
    axes.invert_yaxis()


def _scale_axis(axes: Axes, predictions: Predictions) -> None:
    middle = [seconds_to_milliseconds(prediction.iteration_seconds) for prediction in predictions.values()]
    low = [seconds_to_milliseconds(prediction.iteration_seconds_low) for prediction in predictions.values()]
    label = "ms of one iteration, with its 90 % interval"
    if min(low) > 0 and max(middle) > LOG_AXIS_SPREAD * min(middle):
        axes.set_xscale("log")
        axes.set_xlim(left=min(low) / 2)
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.set_xlabel(f"{label} (logarithmic)")
    else:
        axes.set_xlim(left=0)
        axes.set_xlabel(label)


def figure_pixels(figure: Figure) -> NDArray[np.uint8]:
    """Render the figure as an RGB image, shape (height, width, 3)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)  # matplotlib has no types for its methods
    canvas.draw()
    return np.asarray(canvas.buffer_rgba(), dtype=np.uint8)[:, :, :3].copy()


def _color(prediction: Prediction, predictions: Predictions) -> str:
    if prediction.gpu == predictions.used_gpu:
        return _COLOR_IN_USE
    return _COLOR_DOES_NOT_FIT if prediction.fits is False else _COLOR


def _name(prediction: Prediction, predictions: Predictions) -> str:
    return f"{prediction.gpu} (in use)" if prediction.gpu == predictions.used_gpu else prediction.gpu


def _label(prediction: Prediction) -> str:
    parts = [f"{milliseconds(prediction.iteration_seconds)} ms"]
    if prediction.cost_usd is not None:
        parts.append(usd(prediction.cost_usd))
    if prediction.fits is False:
        parts.append("does not fit")
    return ", ".join(parts)
