"""Report the accuracy over whole iterations that others timed, each predicted without any measurement.

The folder holds one or both of two tables: `transformers_fp32.csv` (Hugging Face transformers in float32, with what
three other predictors said about the same cases) and `training_throughput.csv` (training benchmarks of NVIDIA's
DeepLearningExamples). Nothing is fitted to them. Example::

    print_report(evaluate_published(Path("validation")), Console())
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.many_gpus import ScalingReport, evaluate_scaling, scaling_tables
from benchmarks.accuracy.studies import correction_study, correction_table
from benchmarks.accuracy.throughput import THROUGHPUT_TABLE, ThroughputReport, ThroughputResult, evaluate_throughput
from benchmarks.accuracy.transformers import (
    PEERS,
    TRANSFORMERS_TABLE,
    TransformerResult,
    evaluate_transformers,
    mean_error,
)
from benchmarks.scored_steps import ScoredRow, published_cases
from benchmarks.training.report import Goal, reach_table, report_table
from lightning_predict.base.errors import MeasurementTableError, MissingDependencyError
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import seconds_to_milliseconds
from lightning_predict.reports.published_cases import ModelKind, PublishedCase, StepDescription

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Result = TypeVar("Result")


def percent(share: float | None) -> str:
    """A signed percentage with one digit; a dash for None."""
    return "-" if share is None else f"{100 * share:+.1f}"


def unsigned_percent(shares: Iterable[float | None], average: Callable[[list[float]], float]) -> str:
    """Average of the absolute shares that there are, in percent; a dash for none."""
    known = [abs(share) for share in shares if share is not None]
    return f"{100 * average(known):.1f}" if known else "-"


def case_table(results: Sequence[TransformerResult]) -> Table:
    """Every case of `transformers_fp32.csv`: scored ones first, then those shown apart."""
    table = report_table(
        "Transformers in float32, predicted without any measurement",
        ("GPU", "model", "mode"),
        ("batch x length", "measured ms", "predicted ms", "error %", "in 90 %", *(f"{peer} %" for peer in PEERS)),
    )
    for is_scored in (True, False):
        for result in (result for result in results if result.case.is_scored == is_scored):
            table.add_row(*_case_cells(result), style=None if is_scored else "dim")
        table.add_section()
    return table


def _case_cells(result: TransformerResult) -> Iterator[str]:
    case = result.case
    mode = f"{case.mode}, {case.variant}" if case.variant else case.mode
    yield from (case.gpu, case.model, mode, f"{case.batch} x {case.length}")
    yield f"{seconds_to_milliseconds(case.measured_seconds):.1f}"
    yield f"{seconds_to_milliseconds(result.predicted_seconds):.1f}"
    yield percent(result.error)
    yield "yes" if result.is_inside else "no"
    yield from (percent(result.peer_error(peer)) for peer in PEERS)


def summary_table(results: Sequence[TransformerResult]) -> Table:
    """Mean and median of |error| by model, by GPU and over all, with the peers on the same cases."""
    table = report_table(
        "Absolute error over dense models, eager, on cards that held their clocks; the rest apart",
        ("cases",),
        ("n", "mean %", "median %", "bias %", "in 90 %", "width", *(f"{peer} mean %" for peer in PEERS)),
    )
    scored = [result for result in results if result.case.is_scored]
    for part in (_grouped(scored, lambda r: r.case.model), _grouped(scored, lambda r: r.case.gpu), {"all": scored}):
        for name, members in part.items():
            _add_summary(table, name, members)
        table.add_section()
    for name, members in _grouped([r for r in results if not r.case.is_scored], _reason_apart).items():
        _add_summary(table, name, members)
    _add_summary(table, "all, with those apart", results)
    return table


def _reason_apart(result: TransformerResult) -> str:
    case = result.case
    return f"apart: {case.variant or 'eager'}, {case.gpu}, {case.model}"


def _errors(
    name: str,
    results: Sequence[TransformerResult] | Sequence[ThroughputResult],
    middle: Callable[[list[float]], float],
) -> Iterator[str]:
    """Write the columns that every summary begins with; `middle` is of the signed errors."""
    errors = [result.error for result in results]
    yield name
    yield str(len(results))
    yield unsigned_percent(errors, statistics.fmean)
    yield unsigned_percent(errors, statistics.median)
    yield percent(middle(errors))
    yield _inside(results)
    yield f"{statistics.geometric_mean(result.width for result in results):.2f}"


def _add_summary(table: Table, name: str, results: Sequence[TransformerResult]) -> None:
    if not results:
        return
    table.add_row(
        *_errors(name, results, statistics.fmean),
        *(unsigned_percent((result.peer_error(peer) for result in results), statistics.fmean) for peer in PEERS),
    )


def throughput_table(report: ThroughputReport) -> Table:
    """Every row of `training_throughput.csv` that ran on one GPU."""
    table = report_table(
        "Training benchmarks on one GPU, predicted without any measurement",
        ("GPU", "model", "precision", "torch"),
        ("batch", "measured / s", "predicted / s", "error %", "in 90 %"),
    )
    for result in report.absolute:
        case = result.case
        table.add_row(
            *(case.gpu, case.model, case.precision, case.software, str(case.batch)),
            f"{case.measured_per_second:.4g}",
            f"{result.predicted_per_second:.4g}",
            percent(result.error),
            "yes" if result.is_inside else "no",
        )
    return table


def throughput_summary_table(report: ThroughputReport) -> Table:
    """Mean and median of |error| by model and precision and by GPU: absolute, and from one GPU's row to another's."""
    table = report_table(
        "Absolute error of training benchmarks; relative: from another GPU's measured row in the same container",
        ("rows",),
        ("n", "mean %", "median %", "bias %", "in 90 %", "width", "pairs", "relative mean %", "relative median %"),
    )
    for key in (_benchmark, _gpu):
        for name, members in _grouped(report.absolute, key).items():
            pairs = [pair.error for pair in report.ratios if key(pair.target) == name]
            _add_throughput_summary(table, name, members, pairs)
        table.add_section()
    _add_throughput_summary(table, "all", report.absolute, [pair.error for pair in report.ratios])
    return table


def _benchmark(result: ThroughputResult) -> str:
    return f"{result.case.model} {result.case.precision}"


def _gpu(result: ThroughputResult) -> str:
    return result.case.gpu


def _add_throughput_summary(
    table: Table, name: str, results: Sequence[ThroughputResult], ratio_errors: Sequence[float]
) -> None:
    if not results:
        return
    table.add_row(
        *_errors(name, results, statistics.median),
        str(len(ratio_errors)),
        unsigned_percent(ratio_errors, statistics.fmean),
        unsigned_percent(ratio_errors, statistics.median),
    )


def _inside(results: Sequence[TransformerResult] | Sequence[ThroughputResult]) -> str:
    return f"{100 * statistics.fmean(float(result.is_inside) for result in results):.0f}"


def _grouped(results: Iterable[Result], key: Callable[[Result], str]) -> Mapping[str, list[Result]]:
    """Results by key, in the order of the names."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[key(result)].append(result)
    return dict(sorted(groups.items()))


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


TRANSFORMER_REACH: Final = 0.05
RATIO_REACH: Final = 0.12
ABSOLUTE_REACH: Final = 0.20
INTERVAL_REACH: Final = 0.85


def goals_of(transformers: Sequence[TransformerResult], throughput: ThroughputReport | None) -> tuple[Goal, ...]:
    """The goals that there are cases for."""
    return tuple(_goals(transformers, throughput))


def _goals(transformers: Sequence[TransformerResult], throughput: ThroughputReport | None) -> Iterator[Goal]:
    scored = [result for result in transformers if result.case.is_scored]
    if scored:
        yield Goal(
            what="transformers in float32 without any measurement, mean error; apart ones left out",
            cases=len(scored),
            reached=mean_error(scored),
            reach=TRANSFORMER_REACH,
        )
    benchmarks = () if throughput is None else throughput.absolute
    if throughput is not None and throughput.ratios:
        yield Goal(
            what="training benchmarks from one GPU's row to another's in one container, median error",
            cases=len(throughput.ratios),
            reached=throughput.median_ratio_error,
            reach=RATIO_REACH,
        )
    if throughput is not None and benchmarks:
        yield Goal(
            what="training benchmarks without any measurement, median error",
            cases=len(benchmarks),
            reached=throughput.median_absolute_error,
            reach=ABSOLUTE_REACH,
        )
    inside = [result.is_inside for result in transformers] + [result.is_inside for result in benchmarks]
    if inside:
        yield Goal(
            what="cases that the 90 % interval holds, all of both tables, apart ones too",
            cases=len(inside),
            reached=statistics.fmean(inside),
            reach=INTERVAL_REACH,
            is_error=False,
        )


@final
@dataclass(frozen=True, slots=True)
class Report:
    """Results of the accuracy report.

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


BENCHMARK_KINDS: Final[Mapping[str, ModelKind]] = {
    "resnet50": "convolutional network",
    "bert_base_squad": "language model",
    "bert_large_squad": "language model",
    "gnmt": "recurrent network",
    "transformerxlbase": "language model",
    "transformerxllarge": "language model",
    "ncf": "recommender",
}


def published(report: Report) -> tuple[PublishedCase, ...]:
    """Summarise the steps of both tables by model and GPU."""
    transformers = [
        ScoredRow(
            names=(f"{one.case.model} {one.case.mode}",),
            gpu=one.case.gpu,
            step=StepDescription(kind="language model", precision="float32", is_training=one.case.mode == "training"),
            measured=one.case.measured_seconds,
            predicted=Interval(one.low_seconds, one.predicted_seconds, one.high_seconds),
        )
        for one in report.transformers
        if one.case.is_scored
    ]
    benchmarks = [
        ScoredRow(
            names=(f"{one.case.model} {one.case.precision}",),
            gpu=one.case.gpu,
            step=StepDescription(
                kind=BENCHMARK_KINDS[one.case.model], precision="TF32" if one.case.precision == "FP32" else "16 bits"
            ),
            measured=1 / one.case.measured_per_second,
            predicted=Interval(1 / one.high_per_second, 1 / one.predicted_per_second, 1 / one.low_per_second),
        )
        for one in (report.throughput.absolute if report.throughput is not None else ())
    ]
    return (
        *published_cases(transformers, source="transformers", split="fitted"),
        *published_cases(benchmarks, source="benchmarks", split="fitted", copies_allowed=False),
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
