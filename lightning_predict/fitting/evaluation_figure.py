"""Predicted against measured times on logarithmic axes, through matplotlib's object interface.

Example::

    save_figure(report.transformers, report.throughput, Path("predicted-against-measured.png"))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lightning_predict.errors import MissingDependencyError
from lightning_predict.fitting.evaluation_throughput import ThroughputReport, ThroughputResult
from lightning_predict.fitting.evaluation_transformers import TransformerResult
from lightning_predict.units import seconds_to_milliseconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = TypeVar("Result", TransformerResult, ThroughputResult)

_MARKERS: Final = "osD^vP*X<>h"
_BAND: Final = 1.2
_DOTS_PER_INCH: Final = 150


def save_figure(transformers: Sequence[TransformerResult], throughput: ThroughputReport | None, path: Path) -> None:
    """Write the figure as PNG.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    evaluation_figure(transformers, throughput).savefig(path, format="png")


def evaluation_figure(transformers: Sequence[TransformerResult], throughput: ThroughputReport | None) -> Figure:
    """One panel for each table that there is; grey marks are shown apart in the tables, too.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "The figure needs matplotlib, which is not installed: pip install lightning-predict[tensorboard]"
        ) from error

    benchmarks = () if throughput is None else throughput.absolute
    panels = int(bool(transformers)) + int(bool(benchmarks))
    figure = Figure(figsize=(5.6 * max(panels, 1), 5.2), dpi=_DOTS_PER_INCH, layout="constrained")
    if transformers:
        axes = figure.add_subplot(1, panels, 1)
        _draw(axes, transformers, _transformer_point, lambda r: r.case.gpu if r.case.is_scored else "shown apart")
        _finish(axes, "Transformers, float32: one iteration", "milliseconds")
    if benchmarks:
        axes = figure.add_subplot(1, panels, panels)
        _draw(axes, benchmarks, _throughput_point, lambda r: r.case.model)
        _finish(axes, "Training benchmarks: throughput", "units per second")
    return figure


def _transformer_point(result: TransformerResult) -> tuple[float, float]:
    return (
        seconds_to_milliseconds(result.case.measured_seconds),
        seconds_to_milliseconds(result.predicted_seconds),
    )


def _throughput_point(result: ThroughputResult) -> tuple[float, float]:
    return result.case.measured_per_second, result.predicted_per_second


def _draw(
    axes: Any,
    results: Sequence[Result],
    point: Callable[[Result], tuple[float, float]],
    group: Callable[[Result], str],
) -> None:
    """One marker for each group, and the line of equality with a band of 20 % around it."""
    names = sorted({group(result) for result in results})
    for index, name in enumerate(names):
        points = [point(result) for result in results if group(result) == name]
        color = "#b8b8b8" if name == "shown apart" else f"C{index}"
        axes.plot(*zip(*points, strict=True), _MARKERS[index % len(_MARKERS)], ms=5, alpha=0.8, color=color, label=name)
    values = [value for result in results for value in point(result)]
    ends = [min(values) / _BAND, max(values) * _BAND]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.fill_between(
        ends, [e / _BAND for e in ends], [e * _BAND for e in ends], color="black", alpha=0.08, linewidth=0
    )


def _finish(axes: Any, title: str, unit: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_aspect("equal")
    axes.set_xlabel(f"measured, {unit}")
    axes.set_ylabel(f"predicted, {unit}")
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=7, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
