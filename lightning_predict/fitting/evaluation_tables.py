"""The accuracy report as tables for the terminal: every case, and means and medians by model and GPU.

Example::

    console.print(case_table(results))
    console.print(summary_table(results))
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from rich.table import Table

from lightning_predict.fitting.evaluation_throughput import ThroughputReport, ThroughputResult
from lightning_predict.fitting.evaluation_transformers import PEERS, TransformerResult
from lightning_predict.fitting.report_tables import report_table
from lightning_predict.units import seconds_to_milliseconds

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
        ("n", "mean %", "median %", "bias %", "in 90 %", *(f"{peer} mean %" for peer in PEERS)),
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


def _add_summary(table: Table, name: str, results: Sequence[TransformerResult]) -> None:
    if not results:
        return
    errors = [result.error for result in results]
    table.add_row(
        name,
        str(len(results)),
        unsigned_percent(errors, statistics.fmean),
        unsigned_percent(errors, statistics.median),
        percent(statistics.fmean(errors)),
        _inside(results),
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
        ("n", "mean %", "median %", "bias %", "in 90 %", "pairs", "relative mean %", "relative median %"),
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
    errors = [result.error for result in results]
    table.add_row(
        name,
        str(len(results)),
        unsigned_percent(errors, statistics.fmean),
        unsigned_percent(errors, statistics.median),
        percent(statistics.median(errors)),
        _inside(results),
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
