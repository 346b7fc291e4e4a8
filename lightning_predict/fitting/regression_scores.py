"""Errors of the regressions: of layers on published measurements, of whole runs beyond the fitted ones.

Published errors of the same kind stand beside them for context: they were measured on other GPUs, frameworks and
settings. Example::

    python -m lightning_predict.fitting.regression_scores measurements --throughput training_throughput.csv
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from rich.console import Console
from rich.table import Table

from lightning_predict.errors import LightningPredictError, MeasurementTableError
from lightning_predict.fitting.extrapolation_scores import (
    PUBLISHED_SOURCE,
    AxisScore,
    SweepPlan,
    axis_scores,
    cpu_scores,
    published_number_scores,
)
from lightning_predict.fitting.layer_scores import (
    METHODS,
    ConvolutionScore,
    NetworkScore,
    convolution_scores,
    network_scores,
)
from lightning_predict.fitting.report_tables import report_table
from lightning_predict.regression.runs import WORDS

CONVOLUTION_TABLE: Final = "conv2d_train_step.csv.gz"

FITTED_LAYER_SIZES: Final = (16, 64)
PREDICTED_LAYER_SIZES: Final = (32, 128)
LAYER_GPUS: Final = ("T4", "P100-PCIe-16GB", "V100-PCIe-32GB")

PUBLISHED_LAYERS: Final = {"AlexNet": "4.75", "GoogLeNet": "9.29"}
"""Mean error in percent of AlexNet from its own layers and from GoogLeNet's (Ardagna et al., SBAC-PAD 2018)."""

WIDTH: Final = 160


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionReport:
    """All scores.

    Attributes:
        convolutions: Of measured one-layer steps.
        networks: Of networks by their layers, simulated.
        axes: Of extrapolations, simulated and measured.
    """

    convolutions: tuple[ConvolutionScore, ...]
    networks: tuple[NetworkScore, ...]
    axes: tuple[AxisScore, ...]


def evaluate_regressions(
    tables: Path | None,
    *,
    plan: SweepPlan = SweepPlan(),  # noqa: B008  # frozen
    with_networks: bool = True,
    throughputs: Path | None = None,
    measures_cpu: bool = False,
) -> RegressionReport:
    """Fit and score everything.

    Args:
        tables: Folder with `conv2d_train_step.csv.gz`; None leaves the measured layers out.
        plan: Of the simulated sweeps.
        with_networks: Score networks by their layers, too.
        throughputs: Table of published training throughputs; None leaves them out.
        measures_cpu: Measure a sweep on this processor, too.

    Raises:
        MeasurementTableError: The table is missing or wrong.
    """
    convolutions: tuple[ConvolutionScore, ...] = ()
    if tables is not None:
        path = tables / CONVOLUTION_TABLE
        if not path.is_file():
            raise MeasurementTableError(
                f"No {CONVOLUTION_TABLE} in {str(tables)!r}: one-layer training steps of CDECatapult/"
                "ml-performance-prediction (Apache-2.0), columns gpu, batch, in_channels, ... and latency_ms."
            )
        convolutions = convolution_scores(path)
    networks: tuple[NetworkScore, ...] = ()
    if with_networks:
        networks = network_scores(LAYER_GPUS, fitted_sizes=FITTED_LAYER_SIZES, predicted_sizes=PREDICTED_LAYER_SIZES)
    measured = [] if throughputs is None else published_number_scores(throughputs)
    measured += cpu_scores() if measures_cpu else []
    return RegressionReport(convolutions=convolutions, networks=networks, axes=(*axis_scores(plan), *measured))


def print_report(report: RegressionReport, console: Console) -> None:
    """Print every score."""
    if report.convolutions:
        console.print(_convolution_table(report.convolutions))
    if report.networks:
        console.print(_network_table(report.networks))
    if report.axes:
        console.print(_axis_table(report.axes))
        console.print(_summary_table(report.axes))
        console.print(
            f"Published: {PUBLISHED_SOURCE}. Ours are simulated by this package's own predictions where it "
            "does not say measured, so they show the reach of the regression alone. All terms: every inverse and "
            "product, coefficients of either sign and absolute errors, as in the published regressions."
        )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _convolution_table(scores: Iterable[ConvolutionScore]) -> Table:
    title = "One-layer steps of TensorFlow 1, random shapes, held out: mean (median) error %"
    table = report_table(title, ("GPU", "steps"), ("rows", *METHODS))
    for score in scores:
        cells = [
            f"{_percent(score.errors[method])} ({_percent(score.medians[method])})" if method in score.errors else "-"
            for method in METHODS
        ]
        table.add_row(score.gpu, score.steps, str(score.rows), *cells)
    return table


def _network_table(scores: Iterable[NetworkScore]) -> Table:
    title = "Networks by their layers: layers and networks simulated by this package"
    table = report_table(title, ("GPU", "layers of", "network"), ("mean error %", "published %"))
    for score in scores:
        published = PUBLISHED_LAYERS.get(score.fitted, "-")
        table.add_row(score.gpu, score.fitted, score.predicted, _percent(score.mean_error), published)
    return table


def _axis_table(scores: Iterable[AxisScore]) -> Table:
    title = "Beyond the fitted runs"
    table = report_table(
        title,
        ("network", "along", "runs", "on"),
        ("fitted up to", "fitted", "predicted", "mean error %", "median %", "in 90 %", "all terms %"),
    )
    for score in scores:
        one = score.score
        table.add_row(
            score.model,
            WORDS[one.variable],
            "measured" if score.is_measured else "simulated",
            score.where,
            f"{one.limit:.4g}",
            str(one.fitted),
            str(len(one.errors)),
            _percent(one.mean_error),
            _percent(one.median_error),
            _percent(one.inside),
            _percent(score.error_as_published),
        )
    return table


def _summary_table(scores: Sequence[AxisScore]) -> Table:
    table = report_table(
        "Summary: mean errors of the extrapolations above",
        ("network", "along", "runs"),
        ("least %", "median %", "largest %", "all terms: median %", "published %"),
    )
    keys = dict.fromkeys((score.model, score.score.variable, score.is_measured) for score in scores)
    for model, variable, is_measured in keys:
        members = [
            one for one in scores if (one.model, one.score.variable, one.is_measured) == (model, variable, is_measured)
        ]
        errors = [one.score.mean_error for one in members]
        table.add_row(
            model,
            WORDS[variable],
            "measured" if is_measured else "simulated",
            *map(_percent, (min(errors), statistics.median(errors), max(errors))),
            _percent(statistics.median(one.error_as_published for one in members)),
            members[0].published or "-",
        )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 where it worked, 1 after an error in words."""
    parser = argparse.ArgumentParser(
        prog="python -m lightning_predict.fitting.regression_scores", description=__doc__.split("\n")[0]
    )
    parser.add_argument("tables", type=Path, nargs="?", default=None, help=f"folder with {CONVOLUTION_TABLE}")
    parser.add_argument("--throughput", type=Path, default=None, help="training_throughput.csv, on one to eight GPUs")
    parser.add_argument("--measure-cpu", action="store_true", help="measure a sweep on this processor, too")
    options = parser.parse_args(arguments)
    try:
        report = evaluate_regressions(options.tables, throughputs=options.throughput, measures_cpu=options.measure_cpu)
        print_report(report, Console(width=WIDTH))
    except (LightningPredictError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
