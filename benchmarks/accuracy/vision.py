"""Whole steps of vision models that others timed: `timm.csv.gz` and `torchvision_step.csv`.

Each step is recorded on the meta device and predicted from shapes alone, next to two baselines: the bare roofline, and
the package's own fallback without trained networks. Of each model, GPU, mode and layout the newest software counts.
Example::

    python -m benchmarks.accuracy FOLDER --of timm --sample 100 --cache traces-of-timm
    python -m benchmarks.accuracy FOLDER --of torchvision --cache traces-of-torchvision
"""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, final

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.transformers import evaluate_in_groups
from benchmarks.accuracy.workloads.vision import LAYOUTS, MODES, Precision, VisionStep, vision_trace
from benchmarks.runs import Run
from benchmarks.scored_steps import ScoredRow, published_cases
from benchmarks.training.report import report_table
from lightning_predict.base.checked import Checked, read_csv
from lightning_predict.base.errors import MeasurementTableError, UnknownGpuError
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import milliseconds_to_seconds
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.records import NVIDIA, Gpu
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import OperationShape, batch_shapes, operation_spec
from lightning_predict.kernels.roofline import roofline_seconds
from lightning_predict.kernels.translation import work_items
from lightning_predict.record.torch_releases import for_torch_release
from lightning_predict.record.trace import Trace
from lightning_predict.reports.published_cases import PublishedCase, StepDescription, describe
from lightning_predict.timeline.step_prediction import predict_steps

TIMM_TABLE: Final = "timm.csv.gz"
TORCHVISION_TABLE: Final = "torchvision_step.csv"
TORCHVISION_TABLE_2: Final = "torchvision_step_2.csv"

TORCHVISION_IMAGE_SIZE: Final = 224

_TIMM_COLUMNS: Final = ("gpu", "mode", "precision", "layout", "torch", "file", "compiled", "model", "batch", "img_size")
_TORCHVISION_COLUMNS: Final = ("gpu", "n_gpus", "precision", "mode", "model", "batch_per_gpu", "median_ms")
_TORCHVISION_PRECISIONS: Final[Mapping[str, Precision]] = {
    "half": "half",
    "single": "single",
    "float": "single",
    "double": "double",
}
FUSED_ATTENTION_SINCE: Final = "2.0"
"""Release of torch from which timm calls its fused attention."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class VisionCase:
    """One row of a table.

    Attributes:
        gpu: Our name of the GPU.
        step: Step that ran.
        software: Release of torch; empty where the table does not say.
        measured_seconds: One step.
    """

    gpu: str
    step: VisionStep
    software: str
    measured_seconds: float

    @property
    def vendor(self) -> str:
        """Who makes the GPU."""
        return find_gpu(self.gpu).vendor


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class VisionResult:
    """A case, its prediction with the 90 % interval, and the baselines' results.

    Attributes:
        case: The case.
        family: `convolutions`, `grouped convolutions` (some of them depthwise or in groups) or `transformer`.
        description: Kind of model and precision.
        seconds: Predicted.
        low_seconds: Lower end of the interval.
        high_seconds: Upper end of the interval.
        fallback_seconds: Predicted without any trained network.
        roofline_seconds: Sum of the rooflines of all its work.
    """

    case: VisionCase
    family: str
    description: StepDescription
    seconds: float
    low_seconds: float
    high_seconds: float
    fallback_seconds: float
    roofline_seconds: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.seconds / self.case.measured_seconds - 1

    @property
    def is_inside(self) -> bool:
        """True where the interval holds the measured time."""
        return self.low_seconds <= self.case.measured_seconds <= self.high_seconds


def read_timm_cases(path: Path, *, sample: int | None = None) -> tuple[VisionCase, ...]:
    """Read the rows of eager steps, for each GPU, model, mode and layout the row of the newest software.

    Args:
        path: `timm.csv.gz`.
        sample: Number of models to read, evenly spread over their names; None for all.

    Raises:
        MeasurementTableError: A missing column, or a value that is not a positive number.
        UnknownGpuError: A GPU that the catalogue does not hold.
    """
    newest: dict[tuple[str, str, str, str], VisionCase] = {}
    for row in read_csv(path, MeasurementTableError, columns=(*_TIMM_COLUMNS, "step_ms")):
        if row.value["compiled"] != "0":
            continue
        case = _timm_case(row)
        key = (case.gpu, case.step.model, case.step.mode, case.step.layout)
        if key not in newest or newest[key].software < case.software:
            newest[key] = case
    models = sorted({case.step.model for case in newest.values()})
    chosen = set(models if sample is None else models[:: max(len(models) // sample, 1)])
    return tuple(case for case in newest.values() if case.step.model in chosen)


def read_torchvision_cases(path: Path) -> tuple[VisionCase, ...]:
    """Read the rows of one GPU; errors as for `read_timm_cases`.

    The second table leaves `gpu` empty for cards of other makers: of these the rows count that the catalogue holds.
    """
    rows = read_csv(path, MeasurementTableError, columns=_TORCHVISION_COLUMNS)
    return tuple(_torchvision_case(row) for row in rows if row.value["n_gpus"] == "1" and _is_known(row))


def _is_known(row: Checked) -> bool:
    if row.value["gpu"]:
        return True
    try:
        find_gpu(_named(row))
    except UnknownGpuError:
        return False
    return True


def _named(row: Checked) -> str:
    return row.member("gpu").text() or row.member("gpu_as_named").text()


def _torchvision_release(row: Checked) -> str:
    """Release of torch: as the row says, for AMD's cards the release of their ROCm, otherwise of the table's year."""
    said = re.match(r"\d+\.\d+", row.value.get("software") or "")
    if said is not None:
        return said[0]
    return "2.3" if row.value.get("vendor") == "AMD" else "1.4"


def _timm_case(row: Checked) -> VisionCase:
    # The file's name tells 1.12 from 1.10, which are one number in the column: `...-pt112-cu113-...`.
    digits = next((word[2:] for word in row.member("file").text().split("-") if word.startswith("pt")), "")
    software = f"{digits[:1]}.{int(digits[1:]) // (10 if digits[0] == '2' else 1):02d}"
    return VisionCase(
        gpu=find_gpu(row.member("gpu").text()).name,
        software=software,
        step=VisionStep(
            source="timm",
            model=row.member("model").text(),
            mode=row.member("mode").choice(MODES),
            precision=row.member("precision").choice(("amp",)),
            layout=row.member("layout").choice(LAYOUTS),
            batch=int(row.member("batch").parsed().positive()),
            image_size=int(row.member("img_size").parsed().positive()),
            fuses_attention=software >= FUSED_ATTENTION_SINCE,
        ),
        measured_seconds=milliseconds_to_seconds(row.member("step_ms").parsed().positive()),
    )


def _torchvision_case(row: Checked) -> VisionCase:
    precision = row.member("precision").choice(tuple(_TORCHVISION_PRECISIONS))
    return VisionCase(
        gpu=find_gpu(_named(row)).name,
        software=_torchvision_release(row),
        step=VisionStep(
            source="torchvision",
            model=row.member("model").text(),
            mode=row.member("mode").choice(MODES),
            precision=_TORCHVISION_PRECISIONS[precision],
            layout="nchw",
            batch=int(row.member("batch_per_gpu").parsed().positive()),
            image_size=TORCHVISION_IMAGE_SIZE,
        ),
        measured_seconds=milliseconds_to_seconds(row.member("median_ms").parsed().positive()),
    )


def evaluate_vision(
    cases: Sequence[VisionCase], *, cache: Path | None = None, weights: Path | None = None, jobs: int = 2
) -> tuple[VisionResult, ...]:
    """Predict the cases whose step can be recorded; errors as for `vision_trace` and `predict`."""
    found = evaluate_in_groups(
        cases,
        key=lambda case: (case.step, case.software),
        evaluate=partial(_predicted, cache=cache, weights=weights),
        jobs=jobs,
    )
    return tuple(result for result in found if result is not None)


def _predicted(cases: Sequence[VisionCase], cache: Path | None, weights: Path | None) -> list[VisionResult | None]:
    """Results of rows that ran the same step under the same release, which is recorded once."""
    recorded = vision_trace(cases[0].step, cache)
    if recorded is None:
        return [None] * len(cases)
    trace = for_torch_release(recorded, cases[0].software)
    names = tuple(dict.fromkeys(case.gpu for case in cases))
    gpus = [find_gpu(name) for name in names]
    models = kernel_models(names, None if weights is None else str(weights))
    steps = predict_steps(trace, predict_work_times(trace, gpus, origin=None, models=models), gpus)
    fallbacks = predict_steps(trace, predict_work_times(trace, gpus, origin=None, models=None), gpus)
    rooflines = _rooflines(trace, gpus)
    family, description = family_of(trace), describe(trace)
    results: list[VisionResult | None] = []
    for case in cases:
        row = names.index(case.gpu)
        results.append(
            VisionResult(
                case=case,
                family=family,
                description=description,
                seconds=steps[row].seconds,
                low_seconds=steps[row].low_seconds,
                high_seconds=steps[row].high_seconds,
                fallback_seconds=fallbacks[row].seconds,
                roofline_seconds=float(rooflines[row]),
            )
        )
    return results


def family_of(trace: Trace) -> str:
    """Family of the model by where its floating-point operations are, and whether a convolution has groups."""
    flops: dict[str, float] = defaultdict(float)
    is_grouped = False
    for problem in (problem for item in work_items(trace) for problem in item.problems):
        kind = operation_spec(problem.operation)
        if kind.units == "tensor":
            name = "convolution" if problem.operation.startswith("conv") else "other"
            flops[name] += float(batch_shapes([problem]).flops[0])
            groups = problem.shape.get("groups", 1.0)
            is_grouped |= name == "convolution" and groups > 1
    if flops["other"] > flops["convolution"]:
        return "transformer"
    return "grouped convolutions" if is_grouped else "convolutions"


def _rooflines(trace: Trace, gpus: Sequence[Gpu]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    groups: dict[tuple[str, str], list[OperationShape]] = defaultdict(list)
    for problem in (problem for item in work_items(trace) for problem in item.problems):
        groups[problem.operation, problem.dtype].append(problem)
    total = np.zeros(len(gpus))
    for problems in groups.values():
        total += roofline_seconds(batch_shapes(problems), gpus).sum(axis=1)
    return total


def summary_tables(results: Sequence[VisionResult]) -> tuple[Table, ...]:
    """Errors and intervals by family, GPU, mode, layout and precision, with the baselines."""
    cuts: Mapping[str, Callable[[VisionResult], str]] = {
        "family": lambda one: one.family,
        "GPU": lambda one: one.case.gpu,
        "mode and layout": lambda one: f"{one.case.step.mode} {one.case.step.layout}",
        "precision": lambda one: one.case.step.precision,
        "family, mode, layout, precision and GPU": lambda one: ", ".join(
            (one.family, one.case.step.mode, one.case.step.layout, one.case.step.precision, one.case.gpu)
        ),
    }
    headings = ("n", "median %", "mean %", "bias %", "in 90 %", "width", "fallback median %", "roofline median %")
    tables = []
    for cut, key in cuts.items():
        table = report_table(f"Vision models, one step, predicted from shapes alone: by {cut}", (cut,), headings)
        for name in sorted({key(result) for result in results}):
            table.add_row(name, *_scores([result for result in results if key(result) == name]))
        table.add_section()
        table.add_row("all", *_scores(results))
        tables.append(table)
    return tuple(tables)


def _scores(results: Sequence[VisionResult]) -> tuple[str, ...]:
    """Cells of a row; the width is the geometric mean of the interval's high end over its low end."""
    measured = [result.case.measured_seconds for result in results]
    errors = [result.error for result in results]

    def median(predicted: Iterable[float]) -> str:
        return f"{100 * statistics.median(abs(p / m - 1) for p, m in zip(predicted, measured, strict=True)):.1f}"

    width = math.exp(statistics.fmean(math.log(result.high_seconds / result.low_seconds) for result in results))
    return (
        str(len(results)),
        median(result.seconds for result in results),
        f"{100 * statistics.fmean(map(abs, errors)):.1f}",
        f"{100 * statistics.median(errors):+.1f}",
        f"{100 * statistics.fmean(result.is_inside for result in results):.0f}",
        f"{width:.2f}",
        median(result.fallback_seconds for result in results),
        median(result.roofline_seconds for result in results),
    )


def published(results: Sequence[VisionResult], run: Run) -> tuple[PublishedCase, ...]:
    """Summarise the results on NVIDIA's GPUs in precisions that people train in, by model and GPU."""
    rows = [
        ScoredRow(
            names=(f"{one.case.step.model} {one.case.step.mode} {one.case.step.precision} {one.case.step.layout}",),
            gpu=one.case.gpu,
            step=one.description,
            measured=one.case.measured_seconds,
            predicted=Interval(one.low_seconds, one.seconds, one.high_seconds),
        )
        for one in results
        if one.case.vendor == NVIDIA and one.case.step.precision != "double"
    ]
    return published_cases(rows, source=run.name, split=run.split, copies_allowed=run.copies_allowed)


def layout_table(results: Sequence[VisionResult]) -> Table:
    """Channels last over channels first, measured and predicted, where both were timed in the same batch."""
    pairs: dict[tuple[str, str, str, int], dict[str, VisionResult]] = defaultdict(dict)
    for result in results:
        step = result.case.step
        pairs[result.case.gpu, step.model, step.mode, step.batch][step.layout] = result
    groups: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for (gpu, _, mode, _), found in pairs.items():
        if len(found) == len(LAYOUTS):
            last, first = found["nhwc"], found["nchw"]
            ratios = (last.case.measured_seconds / first.case.measured_seconds, last.seconds / first.seconds)
            groups[last.family, mode, gpu].append(ratios)
    table = report_table(
        "Time with channels last over channels first, medians",
        ("family", "mode", "GPU"),
        ("n", "measured", "predicted", "predicted over measured, median |error| %"),
    )
    for key, both in sorted(groups.items()):
        measured, predicted = (statistics.median(pair[column] for pair in both) for column in (0, 1))
        error = statistics.median(abs(pair[1] / pair[0] - 1) for pair in both)
        table.add_row(*key, str(len(both)), f"{measured:.2f}", f"{predicted:.2f}", f"{100 * error:.1f}")
    return table


def print_report(results: Sequence[VisionResult], console: Console) -> None:
    """Print the summaries."""
    for table in summary_tables(results):
        console.print(table)
    console.print(layout_table(results))
