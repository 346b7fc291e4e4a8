"""Scores of single operators and small modules on published times, with the roofline and the untrained fallback.

Two tables: KernelBench (`kernelbench/times.csv.gz`, modules in eager mode and compiled, with the recorded steps next
to it) and Liger's operators (`liger_operators.csv`, forward and backward). A row counts where the device bounds it: it
takes at least `LEAST_SECONDS`, and `LEAST_SECONDS_A_LAUNCH` for each kernel that eager mode launches. Example::

    print_scores(kernel_bench_results(Path("validation/kernelbench")), Console(), title="KernelBench")
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.workloads.liger import LIGER_FAMILIES, PASSES, liger_trace
from benchmarks.training.report import report_table
from lightning_predict.base.checked import read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.units import MICROSECOND, milliseconds_to_seconds
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.fusion import fused
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.kernels.operations import batch_shapes
from lightning_predict.kernels.roofline import roofline_seconds
from lightning_predict.kernels.translation import work_items
from lightning_predict.prediction import predict
from lightning_predict.record.trace import Trace

KERNEL_BENCH: Final = "kernelbench"
KERNEL_BENCH_TABLE: Final = "times.csv.gz"
LIGER_TABLE: Final = "liger_operators.csv"

EAGER: Final = "torch"
COMPILED: Final = "torch_compile_inductor_default"

LEAST_SECONDS: Final = 100 * MICROSECOND
LEAST_SECONDS_A_LAUNCH: Final = 20 * MICROSECOND
"""Twice the launch time of the slower hosts that timed these tables."""

FAMILIES: Final[Mapping[str, str]] = {
    "recurrent layers": r"RNN|LSTM|LTSM|GRU",
    "attention": r"Attention",
    "convolutions": r"[Cc]onv",
    "products": r"[Mm]atmul|matrix_multiplication|_matrices|Gemm|BMM",
    "losses": r"Loss",
    "norms and softmax": r"Norm|Softmax",
    "pooling": r"Pool",
    "scans and reductions": r"cum|reduction|_over_a_dimension",
    "element-wise": r"",
}
"""Families of level 1, by the first expression that the problem's name holds."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorResult:
    """A published time and its prediction, in seconds.

    Attributes:
        gpu: Our name of the GPU.
        name: The operator or module.
        family: Family of operators that it belongs to.
        measured: Published time.
        predicted: Middle of the prediction.
        low: Low end of its 90 % interval.
        high: High end of it.
        roofline: Sum of the rooflines of its problems.
        fallback: Prediction without any trained weights.
        speed_up: Measured time of the eager call over the time of the compiled call; None if it is not compiled.
        predicted_speed_up: The same, predicted.
    """

    gpu: str
    name: str
    family: str
    measured: float
    predicted: float
    low: float
    high: float
    roofline: float
    fallback: float
    speed_up: float | None = None
    predicted_speed_up: float | None = None

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1

    @property
    def is_inside(self) -> bool:
        """True where the interval holds the measured time."""
        return self.low <= self.measured <= self.high


def kernel_bench_results(
    folder: Path, *, mode: str = EAGER, version: str | None = None, weights: Path | None = None
) -> tuple[OperatorResult, ...]:
    """Predict the device-bound rows of KernelBench whose steps are there.

    Args:
        folder: Holds the table and the recorded steps.
        mode: `EAGER`, or `COMPILED` for calls that ran in both modes on one machine.
        version: Version of the problems; None for all.
        weights: Folder or file of weights; None searches as `predict` does.

    Raises:
        MeasurementTableError: The table is missing or has a wrong column or value.
    """
    times = kernel_bench_times(folder, version)
    by_trace: dict[str, list[tuple[str, str, float, float | None]]] = defaultdict(list)
    for (gpu, trace, where), modes in times.items():
        if mode in modes and EAGER in modes and (folder / trace).is_file():
            measured = statistics.median(modes[mode])
            eager = None if mode == EAGER else statistics.median(modes[EAGER])
            by_trace[trace].append((gpu, where, measured, eager))
    found: list[OperatorResult] = []
    for path, cases in sorted(by_trace.items()):
        step = Trace.load(str(folder / path))
        name, family = _named(path)
        gpus = tuple(dict.fromkeys(gpu for gpu, *_ in cases))
        as_run = fused(step) if mode == COMPILED else step
        eager_seconds = _seconds(step, gpus, weights)
        seconds = eager_seconds if as_run is step else _seconds(as_run, gpus, weights)
        rooflines, fallbacks = baselines(as_run, [find_gpu(name) for name in gpus])
        least = least_seconds(step)
        for gpu, _, measured, eager in cases:
            if (measured if eager is None else eager) < least:
                continue
            low, middle, high = seconds[gpu]
            found.append(
                OperatorResult(
                    gpu=gpu,
                    name=name,
                    family=family,
                    measured=measured,
                    predicted=middle,
                    low=low,
                    high=high,
                    roofline=rooflines[gpu],
                    fallback=fallbacks[gpu],
                    speed_up=None if eager is None else eager / measured,
                    predicted_speed_up=None if eager is None else eager_seconds[gpu][1] / middle,
                )
            )
    return tuple(found)


def least_seconds(step: Trace) -> float:
    """Seconds from which the device bounds a step, by the kernels that it launches."""
    return max(LEAST_SECONDS, LEAST_SECONDS_A_LAUNCH * sum(item.launches for item in work_items(step)))


def kernel_bench_times(folder: Path, version: str | None) -> dict[tuple[str, str, str], dict[str, list[float]]]:
    """Measured seconds by GPU, recorded step and machine, then by mode. Eager calls of several machines count apart."""
    columns = ("set", "problem_version", "gpu", "mode", "mean_ms", "trace")
    times: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in read_csv(folder / KERNEL_BENCH_TABLE, MeasurementTableError, columns=columns):
        if version is None or row.member("problem_version").text() == version:
            gpu = find_gpu(row.member("gpu").text()).name
            seconds = milliseconds_to_seconds(row.member("mean_ms").parsed().positive())
            key = gpu, row.member("trace").text(), row.member("set").text()
            times[key][row.member("mode").text()].append(seconds)
    return times


def _named(trace: str) -> tuple[str, str]:
    """Name and family of a problem by the file of its recorded step, `v02/level1_23_Softmax.json.gz`."""
    level, _, name = Path(trace).name.removesuffix(".json.gz").partition("_")
    if level == "level1":
        return name, next(family for family, pattern in FAMILIES.items() if re.search(pattern, name))
    if re.search(FAMILIES["recurrent layers"], name):
        return name, "recurrent layers"
    if level == "level3":
        return name, "whole models"
    convolves = re.search(FAMILIES["convolutions"], name) is not None
    return name, "convolutions and more" if convolves else "products and more"


def liger_results(path: Path, *, weights: Path | None = None) -> tuple[OperatorResult, ...]:
    """Predict the device-bound rows of Liger's operators as torch or Hugging Face write them.

    Args:
        path: The table.
        weights: Folder or file of weights; None searches as `predict` does.

    Raises:
        MeasurementTableError: The table has a wrong column or value.
    """
    columns = ("kernel", "provider", "pass", "x_name", "x_value", "config_json", "gpu", "ms_median")
    cases: dict[tuple[str, str, str, str, str], list[tuple[str, float]]] = defaultdict(list)
    for row in read_csv(path, MeasurementTableError, columns=columns):
        known = row.member("kernel").text() in LIGER_FAMILIES and row.member("pass").text() in PASSES
        if known and "compile" not in row.member("provider").text():
            seconds = milliseconds_to_seconds(row.member("ms_median").parsed().positive())
            texts = (row.member(column).text() for column in ("kernel", "pass", "x_name", "x_value", "config_json"))
            kernel, part, word, value, config = texts
            cases[kernel, part, word, value, config].append((find_gpu(row.member("gpu").text()).name, seconds))
    found = []
    for (kernel, part, word, value, config), measured in cases.items():
        trace = liger_trace(kernel, part, word=word, value=float(value), config=config)
        gpus = tuple(dict.fromkeys(gpu for gpu, _ in measured))
        predictions = _seconds(trace, gpus, weights)
        rooflines, fallbacks = baselines(trace, [find_gpu(name) for name in gpus])
        for gpu, own in measured:
            if own < least_seconds(trace):
                continue
            low, middle, high = predictions[gpu]
            found.append(
                OperatorResult(
                    gpu=gpu,
                    name=f"{kernel} {part} {word}={value}",
                    family=f"{LIGER_FAMILIES[kernel]}, {part}",
                    measured=own,
                    predicted=middle,
                    low=low,
                    high=high,
                    roofline=rooflines[gpu],
                    fallback=fallbacks[gpu],
                )
            )
    return tuple(found)


def _seconds(trace: Trace, gpus: Sequence[str], weights: Path | None) -> dict[str, tuple[float, float, float]]:
    """Low end, middle and high end of the step by GPU."""
    predictions = predict(trace, gpus, weights=None if weights is None else str(weights), history=False)
    return {
        name: (one.iteration_seconds_low, one.iteration_seconds, one.iteration_seconds_high)
        for name, one in zip(gpus, predictions.values(), strict=True)
    }


def baselines(trace: Trace, gpus: Sequence[Gpu]) -> tuple[dict[str, float], dict[str, float]]:
    """Give the roofline and the untrained prediction of the device's time, both by the GPU's name."""
    names = [gpu.name for gpu in gpus]
    timed = predict_work_times(trace, gpus, origin=None, models=None)
    problems = [problem for item in timed.items for problem in item.problems]
    bound = np.sum([roofline_seconds(batch_shapes([one]), gpus)[:, 0] for one in problems], axis=0)
    untrained = timed.seconds.sum(axis=1)
    rooflines = dict(zip(names, map(float, bound), strict=True))
    fallbacks = dict(zip(names, map(float, untrained), strict=True))
    return rooflines, fallbacks


def print_scores(results: Sequence[OperatorResult], console: Console, *, title: str) -> None:
    """Print errors by family, by GPU and over all, with both baselines on the same rows."""
    table = report_table(
        title,
        ("rows",),
        (
            "n",
            "mean %",
            "median %",
            "bias %",
            "in 90 %",
            "width",
            "roofline mean %",
            "median %",
            "untrained mean %",
            "median %",
        ),
    )
    for key in (_family, _gpu):
        for name, members in sorted(_grouped(results, key).items()):
            table.add_row(*_score(name, members))
        table.add_section()
    if results:
        table.add_row(*_score("all", results))
    console.print(table)
    both = [one for one in results if one.speed_up is not None and one.predicted_speed_up is not None]
    if both:
        console.print(_speed_up_table(both))


def _family(result: OperatorResult) -> str:
    return result.family


def _gpu(result: OperatorResult) -> str:
    return result.gpu


def _grouped(
    results: Iterable[OperatorResult], key: Callable[[OperatorResult], str]
) -> dict[str, list[OperatorResult]]:
    groups: dict[str, list[OperatorResult]] = defaultdict(list)
    for result in results:
        groups[key(result)].append(result)
    return groups


def _score(name: str, results: Sequence[OperatorResult]) -> tuple[str, ...]:
    errors = [one.error for one in results]
    held = statistics.fmean(one.is_inside for one in results)
    width = statistics.geometric_mean(one.high / one.low for one in results)
    roofline = [one.roofline / one.measured - 1 for one in results]
    fallback = [one.fallback / one.measured - 1 for one in results]
    return (
        name,
        str(len(results)),
        *_mean_and_median(errors),
        f"{100 * statistics.median(errors):+.1f}",
        f"{100 * held:.0f}",
        f"x{width:.2f}",
        *_mean_and_median(roofline),
        *_mean_and_median(fallback),
    )


def _mean_and_median(errors: Sequence[float]) -> tuple[str, str]:
    absolute = [abs(error) for error in errors]
    return f"{100 * statistics.fmean(absolute):.1f}", f"{100 * statistics.median(absolute):.1f}"


def _speed_up_table(results: Sequence[OperatorResult]) -> Table:
    """Speed-up of compiled over eager calls, measured and predicted: medians, and the error of their ratio."""
    table = report_table(
        "Speed-up by compiling",
        ("rows",),
        ("n", "measured median", "predicted median", "mean error %", "median error %", "bias %"),
    )
    groups = {**_grouped(results, _family), **_grouped(results, _gpu), "all": list(results)}
    for name, members in groups.items():
        pairs = [(one.speed_up or 1.0, one.predicted_speed_up or 1.0) for one in members]
        errors = [predicted / measured - 1 for measured, predicted in pairs]
        table.add_row(
            name,
            str(len(members)),
            f"{statistics.median(measured for measured, _ in pairs):.2f}",
            f"{statistics.median(predicted for _, predicted in pairs):.2f}",
            *_mean_and_median(errors),
            f"{100 * statistics.median(errors):+.1f}",
        )
    return table


def print_report(folder: Path, console: Console, *, compiled: bool = False, weights: Path | None = None) -> None:
    """Print the scores of the tables in a folder.

    Args:
        folder: Holds `KERNEL_BENCH`, `LIGER_TABLE` or both.
        console: Where to print.
        compiled: The calls of KernelBench that ran compiled; else the eager ones, and Liger's.
        weights: Folder or file of weights; None searches as `predict` does.

    Raises:
        MeasurementTableError: Neither table is there, or one has a wrong column or value.
    """
    modules, operators = folder / KERNEL_BENCH, folder / LIGER_TABLE
    if not modules.is_dir() and not operators.is_file():
        raise MeasurementTableError(f"No {KERNEL_BENCH} or {LIGER_TABLE} in {str(folder)!r}; give a folder with one.")
    if modules.is_dir():
        for version in ("v0.2", "v0"):
            mode = COMPILED if compiled else EAGER
            results = kernel_bench_results(modules, mode=mode, version=version, weights=weights)
            words = "compiled" if compiled else "eager"
            print_scores(results, console, title=f"KernelBench {version}, {words}, device-bound rows")
    if operators.is_file() and not compiled:
        results = liger_results(operators, weights=weights)
        print_scores(results, console, title="Operators of Liger's benchmarks, device-bound rows")
