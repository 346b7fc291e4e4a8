"""The scaling report as tables for the terminal: by kind of link, by machine, and what was left out.

Example::

    for table in scaling_tables(report):
        console.print(table)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median

import numpy as np
from rich.table import Table

from lightning_predict.fitting.evaluation_scaling import ScalingReport, ScalingResult
from lightning_predict.fitting.report_tables import report_table

KINDS: Sequence[tuple[str, Callable[[ScalingResult], bool]]] = (
    ("NVLink, as the GPU's name promises", lambda one: one.case.has_nvlink and one.has_its_links),
    ("PCIe", lambda one: not one.case.has_nvlink and one.has_its_links),
    ("links below a quarter of what the name promises", lambda one: not one.has_its_links),
    ("all of these", lambda _one: True),
)
"""Rows that exchange gradients, by what links their machine has."""


def scaling_tables(report: ScalingReport) -> Iterator[Table]:
    """All tables of the report."""
    yield _by_link(report.results)
    yield _by_machine(report.results)
    yield _left_out(report)


def _by_link(results: Sequence[ScalingResult]) -> Table:
    table = report_table(
        "Scaling efficiency from 1 to 2, 3, 4, 8 GPUs: predicted less measured, in points",
        ("links",),
        (
            "rows",
            "median",
            "90th",
            "friction without this GPU: median",
            "90th",
            "links measured: median",
            "90th",
            "in 90 %",
        ),
        no_wrap=False,
    )
    exchanging = [one for one in results if one.case.exchanges]
    for name, belongs in KINDS:
        _add_errors(table, name, [one for one in exchanging if belongs(one)])
    _add_errors(table, "no exchange of gradients (Transformer-XL)", [one for one in results if not one.case.exchanges])
    _add_errors(table, "every row", results)
    return table


def _add_errors(table: Table, name: str, rows: Sequence[ScalingResult]) -> None:
    if not rows:
        return
    measured = np.array([one.case.efficiency for one in rows])
    kinds = ([one.efficiency for one in rows], [one.left_out for one in rows], [_known(one.calibrated) for one in rows])
    cells = []
    for predicted in kinds:
        errors = np.abs(np.array(predicted) - measured)
        errors = errors[~np.isnan(errors)]
        cells += [_points(np.median(errors)), _points(np.quantile(errors, 0.9))] if len(errors) else ["-", "-"]
    inside = f"{100 * sum(one.is_inside for one in rows) / len(rows):.0f} %"
    table.add_row(name, str(len(rows)), *cells, inside)


def _by_machine(results: Sequence[ScalingResult]) -> Table:
    table = report_table(
        "By machine: means over the benchmarks that exchange gradients",
        ("machine",),
        ("GPUs", "rows", "measured", "predicted", "links over promised"),
        no_wrap=False,
    )
    groups: dict[tuple[str, int], list[ScalingResult]] = defaultdict(list)
    for one in results:
        if one.case.exchanges:
            groups[one.case.system, one.case.count].append(one)
    for (system, count), rows in sorted(groups.items()):
        shares = [one.link_share for one in rows if one.link_share is not None]
        measured = fmean(one.case.efficiency for one in rows)
        predicted = fmean(one.efficiency for one in rows)
        link = f"{median(shares):.2f}" if shares else "-"
        table.add_row(system, str(count), str(len(rows)), f"{measured:.2f}", f"{predicted:.2f}", link)
    return table


def _left_out(report: ScalingReport) -> Table:
    table = report_table("Left out", ("reason",), ("rows",), no_wrap=False)
    for reason, rows in sorted(report.excluded.items()):
        table.add_row(reason, str(len(rows)))
    return table


def _known(value: float | None) -> float:
    return float("nan") if value is None else value


def _points(error: float) -> str:
    return f"{100 * error:.1f}"
