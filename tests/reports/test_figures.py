import sys
from typing import Any

import numpy as np
import pytest

from lightning_predict.base.errors import LightningPredictError, MissingDependencyError
from lightning_predict.base.interval import Interval
from lightning_predict.reports.charts import LOG_AXIS_SPREAD
from lightning_predict.reports.figures import figure_pixels, iteration_figure
from lightning_predict.reports.predictions import Predictions
from lightning_predict.testing import with_values
from tests.reports.example import BARE, FULL, MINIMAL


def with_times(*iteration_seconds: float) -> Predictions:
    return Predictions(
        tuple(
            with_values(
                MINIMAL,
                gpu=f"GPU{number}",
                iteration=Interval(0.9 * value, value, 1.1 * value),
            )
            for number, value in enumerate(iteration_seconds)
        )
    )


def axes_of(predictions: Predictions) -> Any:
    (axes,) = iteration_figure(predictions).axes
    return axes


def test_bars_are_the_times_in_milliseconds_from_top_to_bottom() -> None:
    axes = axes_of(BARE)
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([20.0, 10.0])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["L4", "A10"]
    bottom, top = axes.get_ylim()
    assert bottom > top  # the first row is the upper one


def test_lines_are_the_intervals() -> None:
    axes = axes_of(with_times(0.1, 0.2))
    assert [list(line.get_xdata()) for line in axes.lines] == [
        pytest.approx([90.0, 110.0]),
        pytest.approx([180.0, 220.0]),
    ]


def test_labels_give_time_cost_and_what_does_not_fit() -> None:
    axes = axes_of(FULL)
    assert [text.get_text() for text in axes.texts] == ["6.00 ms, $1.20", "48.0 ms, $1.12", "1,200 ms, does not fit"]
    assert [label.get_text() for label in axes.get_yticklabels()][1] == "T4 (in use)"
    assert len({bar.get_facecolor() for bar in axes.patches}) == 3


def test_the_axis_is_logarithmic_only_where_the_gpus_are_far_apart() -> None:
    near = axes_of(with_times(1.0, 0.99 * LOG_AXIS_SPREAD))
    far = axes_of(with_times(1.0, 1.01 * LOG_AXIS_SPREAD))
    assert (near.get_xscale(), far.get_xscale()) == ("linear", "log")
    assert near.get_xlim()[0] == 0
    assert "logarithmic" in far.get_xlabel()
    assert "logarithmic" not in near.get_xlabel()


@pytest.mark.parametrize("predictions", [BARE, FULL])
def test_the_image_is_drawn_and_keeps_its_labels_inside(predictions: Predictions) -> None:
    pixels = figure_pixels(iteration_figure(predictions))
    height, width, colors = pixels.shape
    assert (width, colors) == (768, 3)  # 6.4 inches × 120 dots
    assert height > 200
    assert pixels.dtype == np.uint8
    assert pixels.std() > 10  # not blank
    edge = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert (edge == 255).all()  # nothing is cut off


def test_pyplot_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would now raise
    assert figure_pixels(iteration_figure(FULL)).size > 0


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"pip install lightning-predict\[tensorboard\]") as raised:
        iteration_figure(FULL)
    assert isinstance(raised.value, LightningPredictError)
    assert isinstance(raised.value, ImportError)
