"""Accuracy over whole iterations that others timed, each predicted without any measurement.

The folder holds one or both of two tables: `transformers_fp32.csv` (Hugging Face transformers in float32, with what
three other predictors said about the same cases) and `training_throughput.csv` (training benchmarks of NVIDIA's
DeepLearningExamples). Nothing is fitted to them. Example::

    python -m lightning_predict.fitting.evaluation validation --figure predicted-against-measured.png
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from rich.console import Console

from lightning_predict.errors import LightningPredictError, MeasurementTableError
from lightning_predict.fitting.evaluation_correction import correction_study, correction_table
from lightning_predict.fitting.evaluation_figure import save_figure
from lightning_predict.fitting.evaluation_reach import goals_of, reach_table
from lightning_predict.fitting.evaluation_scaling import ScalingReport, evaluate_scaling
from lightning_predict.fitting.evaluation_scaling_tables import scaling_tables
from lightning_predict.fitting.evaluation_tables import (
    case_table,
    summary_table,
    throughput_summary_table,
    throughput_table,
)
from lightning_predict.fitting.evaluation_throughput import ThroughputReport, evaluate_throughput
from lightning_predict.fitting.evaluation_transformers import TransformerResult, evaluate_transformers

TRANSFORMERS_TABLE = "transformers_fp32.csv"
THROUGHPUT_TABLE = "training_throughput.csv"


@final
@dataclass(frozen=True, slots=True)
class Report:
    """What the accuracy report found.

    Attributes:
        transformers: One result a row of `transformers_fp32.csv`; empty without the table.
        throughput: Results of `training_throughput.csv`; None without the table.
        scaling: Its rows of several GPUs; None without the table.
    """

    transformers: tuple[TransformerResult, ...]
    throughput: ThroughputReport | None
    scaling: ScalingReport | None = None


def evaluate_published(folder: Path, *, weights: Path | None = None) -> Report:
    """Predict every case of the tables in a folder.

    Args:
        folder: Folder with one or both tables.
        weights: Folder or file of weights; None searches as `predict` does.

    Raises:
        MeasurementTableError: Neither table is there, or one has a wrong column or value.
        WeightsError: Weights that cannot be found or trusted.
    """
    transformers, throughput = folder / TRANSFORMERS_TABLE, folder / THROUGHPUT_TABLE
    if not transformers.is_file() and not throughput.is_file():
        raise MeasurementTableError(
            f"No table of published iterations in {str(folder)!r}. Expected {TRANSFORMERS_TABLE} or {THROUGHPUT_TABLE}."
        )
    return Report(
        transformers=evaluate_transformers(transformers, weights=weights) if transformers.is_file() else (),
        throughput=evaluate_throughput(throughput, weights=weights) if throughput.is_file() else None,
        scaling=evaluate_scaling(throughput, weights=weights) if throughput.is_file() else None,
    )


def print_report(report: Report, console: Console) -> None:
    """Print every case and the summaries."""
    if report.transformers:
        console.print(case_table(report.transformers))
        console.print(summary_table(report.transformers))
    if report.throughput is not None:
        console.print(throughput_table(report.throughput))
        console.print(throughput_summary_table(report.throughput))
        console.print(correction_table(correction_study(report.throughput.ratios)))
    if report.scaling is not None and report.scaling.results:
        for table in scaling_tables(report.scaling):
            console.print(table)
    console.print(reach_table(goals_of(report.transformers, report.throughput)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 where it worked, 1 after an error in words."""
    parser = argparse.ArgumentParser(
        prog="python -m lightning_predict.fitting.evaluation", description=__doc__.split("\n")[0]
    )
    parser.add_argument("folder", type=Path, help="folder of the tables of published iteration times")
    parser.add_argument("--weights", type=Path, default=None, help="weights to use (default: cache, then bundled)")
    parser.add_argument("--figure", type=Path, default=None, help="PNG of predicted against measured times to write")
    options = parser.parse_args(arguments)
    try:
        report = evaluate_published(options.folder, weights=options.weights)
        print_report(report, Console(width=170))
        if options.figure is not None:
            save_figure(report.transformers, report.throughput, options.figure)
    except (LightningPredictError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
