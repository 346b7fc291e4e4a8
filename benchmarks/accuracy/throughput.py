"""`training_throughput.csv`: training benchmarks on one GPU, absolute, and from one GPU's row to another's.

The absolute prediction is the units of a step over its predicted time. The relative one takes a measured row of one
GPU and multiplies by the ratio of predictions, as somebody does who knows their own speed. Rows are compared within one
container version, where both GPUs have one, since another version of the same code differs by about a fifth. Example::

    report = evaluate_throughput(Path("validation/training_throughput.csv"))
    report.median_absolute_error, report.median_ratio_error
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Final, final

from benchmarks.accuracy.reported_gpus import reported_gpu
from benchmarks.accuracy.transformers import evaluate_in_groups
from benchmarks.accuracy.workloads.benchmarks import BENCHMARKS, benchmark_trace
from lightning_predict.base.checked import Checked, read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.prediction import predict

THROUGHPUT_TABLE: Final = "training_throughput.csv"

_COLUMNS: Final = ("gpu_reported", "n_gpus", "model", "precision_label", "batch", "pytorch", "throughput")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputCase:
    """One row of the table.

    Attributes:
        gpu: Our name of the GPU.
        model: A key of `BENCHMARKS`.
        precision: `FP32` (TF32 where there is one), `FP16` or `AMP`.
        batch: Samples of one step.
        software: Version of torch in the container.
        measured_per_second: Units per second.
    """

    gpu: str
    model: str
    precision: str
    batch: int
    software: str
    measured_per_second: float


@final
@dataclass(frozen=True, slots=True)
class ThroughputResult:
    """A case, its prediction and the 90 % interval, all in units per second."""

    case: ThroughputCase
    predicted_per_second: float
    low_per_second: float
    high_per_second: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_per_second / self.case.measured_per_second - 1

    @property
    def is_inside(self) -> bool:
        """True where the interval holds the measured value."""
        return self.low_per_second <= self.case.measured_per_second <= self.high_per_second

    @property
    def width(self) -> float:
        """High end of the interval over its low end."""
        return self.high_per_second / self.low_per_second


@final
@dataclass(frozen=True, slots=True)
class RatioResult:
    """A prediction from one GPU's measured row to another's."""

    origin: ThroughputResult
    target: ThroughputResult

    @property
    def predicted_per_second(self) -> float:
        """The origin's measurement times the ratio of predictions."""
        ratio = self.target.predicted_per_second / self.origin.predicted_per_second
        return self.origin.case.measured_per_second * ratio

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_per_second / self.target.case.measured_per_second - 1


@final
@dataclass(frozen=True, slots=True)
class ThroughputReport:
    """Absolute results, and the results of all ordered pairs of GPUs on the same benchmark, precision and container."""

    absolute: tuple[ThroughputResult, ...]
    ratios: tuple[RatioResult, ...]

    @property
    def median_absolute_error(self) -> float:
        """Median of |error| over all rows; nan for none."""
        return _median(result.error for result in self.absolute)

    @property
    def median_ratio_error(self) -> float:
        """Median of |error| over all pairs; nan for none."""
        return _median(result.error for result in self.ratios)


def read_throughput_cases(path: Path) -> tuple[ThroughputCase, ...]:
    """Read the rows of one GPU and a known benchmark, in the table's order.

    Raises:
        MeasurementTableError: A missing column, or a value that is not a positive number.
        UnknownGpuError: A reported name that the catalogue does not hold.
    """
    return tuple(
        _case(row)
        for row in read_csv(path, MeasurementTableError, columns=_COLUMNS)
        if row.value["n_gpus"] == "1" and row.value["model"] in BENCHMARKS
    )


def evaluate_throughput(path: Path, *, weights: Path | None = None, jobs: int = 2) -> ThroughputReport:
    """Predict each row of the table, `jobs` steps at a time; errors as for `read_throughput_cases` and `predict`."""
    results = predicted_cases(read_throughput_cases(path), weights=weights, jobs=jobs)
    return ThroughputReport(results, tuple(ratios_of(results)))


def predicted_cases(
    cases: Sequence[ThroughputCase], *, weights: Path | None = None, jobs: int = 2
) -> tuple[ThroughputResult, ...]:
    """Predict these rows, `jobs` steps at a time; errors as for `predict`."""
    return evaluate_in_groups(
        cases,
        key=lambda case: (case.model, case.precision, case.batch),
        evaluate=partial(predicted_together, weights=weights),
        jobs=jobs,
    )


def predicted_together(cases: Sequence[ThroughputCase], weights: Path | None) -> list[ThroughputResult]:
    """Predict rows that ran the same step, which is recorded once for each release and predicted as that ran it."""
    first = cases[0]
    names = list(dict.fromkeys(case.gpu for case in cases))
    by_release = {}
    for release in dict.fromkeys(case.software for case in cases):
        recorded = benchmark_trace(first.model, precision=first.precision, batch=first.batch, torch_release=release)
        predictions = predict(recorded.trace, names, weights=None if weights is None else str(weights))
        by_release[release] = recorded.units, predictions
    results = []
    for case in cases:
        units, predictions = by_release[case.software]
        prediction = predictions[case.gpu]
        seconds = (
            prediction.iteration_seconds,
            prediction.iteration_seconds_high,
            prediction.iteration_seconds_low,
        )
        results.append(ThroughputResult(case, *(units / each for each in seconds)))
    return results


def ratios_of(results: Sequence[ThroughputResult]) -> Iterator[RatioResult]:
    """All ordered pairs of different GPUs that ran the same benchmark and precision in the same container."""
    groups: dict[tuple[str, str, str], list[ThroughputResult]] = defaultdict(list)
    for result in results:
        case = result.case
        groups[case.model, case.precision, case.software].append(result)
    for members in groups.values():
        for origin, target in permutations(members, 2):
            if origin.case.gpu != target.case.gpu:
                yield RatioResult(origin, target)


def _case(row: Checked) -> ThroughputCase:
    return ThroughputCase(
        gpu=reported_gpu(row.member("gpu_reported").text()).name,
        model=row.member("model").text(),
        precision=row.member("precision_label").text(),
        batch=int(row.member("batch").parsed().positive()),
        software=row.member("pytorch").text(),
        measured_per_second=row.member("throughput").parsed().positive(),
    )


def _median(errors: Iterable[float]) -> float:
    absolute = [abs(error) for error in errors]
    return statistics.median(absolute) if absolute else float("nan")
