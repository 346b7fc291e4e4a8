"""Compare predictions with the project's own measurements on an H200: `python -m benchmarks.accuracy.own_gpu`.

`benchmarks/measured/H200-SXM-141GB` holds what 15 minutes on one NVIDIA H200 gave on 2026-11-27 (torch 2.11, CUDA
13.0): operators by replays of CUDA graphs with a flushed L2, whole training steps in a loop, and recordings of ten
steps. The tables:

* steps: forecasts from shapes, made at commit 191b58f before anything was measured, against the loop's seconds;
* recorded steps: the GPU's time in a recording against what shapes alone predict now;
* sums over rows: the calls behind one constant, one by one;
* operators: the rows of an operation in one dtype that took `SHORTEST_SECONDS` or more.

Cycles of norms, pooling, embeddings and fused Adam were chosen on the operators, sums of columns and attention with a
float32 mask on the recordings. The steps were not used for either.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

import lightning_predict as lp
from benchmarks.accuracy.recordings import without_kernels
from benchmarks.result_files import ResultConsole, write_result
from benchmarks.runs import RUNS
from benchmarks.scored_steps import WIDTH, page_options
from benchmarks.training.report import report_table
from lightning_predict.hardware import gpu
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import OperationShape
from lightning_predict.kernels.roofline import LIMITED
from lightning_predict.kernels.timing import predict_operation_times
from lightning_predict.own_weights.training.tables import read_own_tables

NAME: Final = "own_gpu"
FOLDER: Final = Path(__file__).parents[1] / "measured" / "H200-SXM-141GB"
GPU: Final = "H200-SXM-141GB"

SHORTEST_SECONDS: Final = 30e-6
"""Shorter rows hold a few microseconds that starting a graph takes."""

HOST_BOUND_SHARE: Final = 0.97
"""A loop whose host is done after this share of its time waits for the host."""


def _percent(error: float) -> str:
    return f"{100 * error:+.1f}"


def step_rows(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return measured and predicted milliseconds of each step with a forecast."""
    rows: list[tuple[str, ...]] = []
    for step in document["steps"]:
        if "forecast_ms" not in step:
            continue
        measured = 1e3 * statistics.median(step["seconds"])
        middle, low, high = step["forecast_ms"]
        host = statistics.median(step["host_seconds"]) / statistics.median(step["seconds"])
        rows.append(
            (
                step["model"],
                step["precision"],
                str(step["batch"]),
                f"{measured:.1f}",
                f"{middle:.1f}",
                _percent(middle / measured - 1),
                "yes" if low <= measured <= high else "no",
                "host" if host >= HOST_BOUND_SHARE else "device",
            )
        )
    return rows


def recorded_rows(folder: Path) -> list[tuple[str, ...]]:
    """Return the GPU's milliseconds in each recording, and as predicted from its shapes."""
    rows: list[tuple[str, ...]] = []
    for path in sorted(folder.glob("*.json.gz")):
        trace = lp.Trace.load(str(path))
        measured = 1e3 * sum(kernel.seconds for kernel in trace.kernels)
        predicted = 1e3 * lp.predict(without_kernels(trace.untimed()), [GPU], history=False)[GPU].device_seconds
        name = path.name.removesuffix(".json.gz")
        rows.append((name, f"{measured:.1f}", f"{predicted:.1f}", _percent(predicted / measured - 1)))
    return rows


def sum_rows(folder: Path) -> list[tuple[str, ...]]:
    """Return the sums over rows in each recording: calls of a shape, measured and predicted microseconds of one."""
    card, models = gpu(GPU), kernel_models((GPU,))
    rows: list[tuple[str, ...]] = []
    for path in sorted(folder.glob("*.json.gz")):
        trace = lp.Trace.load(str(path))
        work = predict_work_times(without_kernels(trace.untimed()), [card], origin=None, models=models)
        found: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        for item, seconds in zip(work.items, work.seconds[0], strict=True):
            call = trace.operations[item.operations[0]]
            if call.name == "aten::sum" and item.problems[-1].operation == LIMITED:
                shape = " x ".join(map(str, call.inputs[0].shape))
                found[shape, call.inputs[0].dtype].append((sum(one.seconds for one in call.kernels), float(seconds)))
        for (shape, dtype), pairs in found.items():
            measured, predicted = (1e6 * statistics.fmean(side) for side in zip(*pairs, strict=True))
            name = path.name.removesuffix(".json.gz")
            error = _percent(predicted / measured - 1)
            rows.append((name, shape, dtype, str(len(pairs)), f"{measured:.1f}", f"{predicted:.1f}", error))
    return rows


def operator_rows(folder: Path) -> list[tuple[str, ...]]:
    """Return the errors of each operation and dtype, only for the longer rows."""
    card = gpu(GPU)
    models = kernel_models((GPU,))
    errors: dict[tuple[str, str], np.ndarray[Any, Any]] = {}
    for group in read_own_tables(folder):
        batch = group.batch
        columns = list(batch.columns.values())
        problems = [
            OperationShape(batch.operation, batch.dtype, tuple(map(float, dims))) for dims in zip(*columns, strict=True)
        ]
        seconds = predict_operation_times(problems, [card], models).seconds[0]
        is_long = group.seconds >= SHORTEST_SECONDS
        if is_long.any():
            errors[batch.operation, batch.dtype] = (seconds / group.seconds - 1)[is_long]
    return [
        (operation, dtype, str(len(found)), f"{100 * np.median(np.abs(found)):.1f}", _percent(float(np.median(found))))
        for (operation, dtype), found in sorted(errors.items())
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, and write them if a folder is given."""
    options = page_options(arguments, (__doc__ or "").split("\n")[0])
    console = ResultConsole(width=WIDTH)
    document = json.loads((FOLDER / "steps.json").read_text(encoding="utf-8"))
    steps = step_rows(document)
    by_bound: defaultdict[str, list[tuple[str, ...]]] = defaultdict(list)
    for row in steps:
        by_bound[row[-1]].append(row)
        by_bound["all"].append(row)
    summary = [
        (
            name,
            str(len(rows)),
            f"{statistics.median(abs(float(row[5])) for row in rows):.1f}",
            f"{statistics.median(float(row[5]) for row in rows):+.1f}",
            f"{sum(row[6] == 'yes' for row in rows)} of {len(rows)}",
        )
        for name, rows in sorted(by_bound.items(), reverse=True)
    ]
    tables: tuple[tuple[str, tuple[str, ...], tuple[str, ...], Sequence[tuple[str, ...]]], ...] = (
        (
            "Steps on the H200, predicted before they were measured",
            ("model", "precision", "batch"),
            ("measured ms", "predicted ms", "error %", "inside", "bound by"),
            steps,
        ),
        ("The same, by the bottleneck", ("bottleneck",), ("n", "median %", "bias %", "inside"), summary),
        (
            "GPU time of recorded steps, from shapes",
            ("recording",),
            ("measured ms", "predicted ms", "error %"),
            recorded_rows(FOLDER / "recordings"),
        ),
        (
            "Sums over rows in the recordings",
            ("recording", "shape", "dtype"),
            ("calls", "measured us", "predicted us", "error %"),
            sum_rows(FOLDER / "recordings"),
        ),
        (
            "Operators on the H200 of 30 microseconds or more",
            ("operation", "dtype"),
            ("n", "median %", "bias %"),
            operator_rows(FOLDER / "operators"),
        ),
    )
    for title, names, numbers, rows in tables:
        table = report_table(title, names, numbers)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if options.result is not None:
        write_result(console.result(RUNS[NAME]), options.result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
