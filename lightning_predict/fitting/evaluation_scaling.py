"""`training_throughput.csv`: how well training scales from one GPU to several of one machine.

Efficiency is the throughput of n GPUs over n times that of one. The step of one GPU is the measured one, as somebody
has it who has run on one; what the others add is predicted, from the links that the GPU's name promises. They may not be
there (a virtual machine without NVLink): `calibrated` takes the bus bandwidth that suits the machine's other benchmarks
best, as if it had been measured. Rows that no weak scaling explains are left out, each with its reason. Example::

    report = evaluate_scaling(Path("validation/training_throughput.csv"))
    report.errors(lambda row: row.case.has_nvlink), report.excluded
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

import numpy as np

from lightning_predict.errors import MeasurementTableError
from lightning_predict.fitting.evaluation_groups import evaluate_in_groups
from lightning_predict.fitting.workloads.benchmarks import BENCHMARKS, benchmark_trace
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.gpus.layouts import Layout
from lightning_predict.kernels.choice import timed_work
from lightning_predict.kernels.fabric import Interconnect
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import Array
from lightning_predict.scaling.parallel import SharedStep
from lightning_predict.scaling.strategy import Strategy
from lightning_predict.timeline.queues import iterations
from lightning_predict.units import gigabytes_to_bytes

LARGEST_EFFICIENCY: Final = 1.05
"""Above this, the row of one GPU ran something else."""

BUS_BANDWIDTHS: Final = tuple(gigabytes_to_bytes(0.5 * 2 ** (step / 2)) for step in range(19))
"""Bus bandwidths that a machine may have: 0.5 to 256 GB/s."""

Key = tuple[str, str, str, str]
"""GPU as reported, model, precision, container."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingCase:
    """A row of several GPUs beside that of one.

    Attributes:
        gpu: Our name of the GPU.
        system: GPU as reported and container: rows of one machine, as far as the table tells.
        count: GPUs.
        model: Benchmark.
        precision: `FP32`, `FP16` or `AMP`.
        batch: Samples of each GPU.
        single_per_second: Throughput of one GPU.
        efficiency: Measured efficiency.
    """

    gpu: str
    system: str
    count: int
    model: str
    precision: str
    batch: int
    single_per_second: float
    efficiency: float

    @property
    def has_nvlink(self) -> bool:
        """The GPU's data sheet has NVLink."""
        return find_gpu(self.gpu).nvlink_bytes_per_second is not None


@final
@dataclass(frozen=True, slots=True)
class ScalingResult:
    """A case and its predictions.

    Attributes:
        case: The row.
        efficiency: As predicted from the catalogue's links.
        low: Lower end of its 90 % interval.
        high: Upper end.
        by_bandwidth: As predicted at each of `BUS_BANDWIDTHS`.
        calibrated: As predicted at the bandwidth that suits the machine's other benchmarks; None where it has none.
    """

    case: ScalingCase
    efficiency: float
    low: float
    high: float
    by_bandwidth: tuple[float, ...]
    calibrated: float | None = None

    @property
    def error(self) -> float:
        """Predicted less measured efficiency."""
        return self.efficiency - self.case.efficiency

    @property
    def calibrated_error(self) -> float:
        """The same with the calibrated bus; nan without one."""
        return float("nan") if self.calibrated is None else self.calibrated - self.case.efficiency


@final
@dataclass(frozen=True, slots=True)
class ScalingReport:
    """Results, and the rows that were left out by reason."""

    results: tuple[ScalingResult, ...]
    excluded: Mapping[str, Sequence[str]]

    def errors(self, chosen: Callable[[ScalingResult], bool], *, calibrated: bool = False) -> Array:
        """|error| of the chosen results."""
        found = [row.calibrated_error if calibrated else row.error for row in self.results if chosen(row)]
        absolute: Array = np.abs(np.array([error for error in found if not np.isnan(error)]))
        return absolute


def read_scaling_cases(path: Path) -> tuple[tuple[ScalingCase, ...], dict[str, list[str]]]:
    """Rows of several GPUs that have one of a single GPU, and what was left out by reason.

    Raises:
        MeasurementTableError: A missing column.
        UnknownGpuError: A reported name that the catalogue does not hold.
    """
    with path.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    needed = {"gpu_reported", "n_gpus", "model", "precision_label", "batch", "pytorch", "throughput"}
    if missing := needed - set(rows[0] if rows else ()):
        raise MeasurementTableError(f"{path} has no column {', '.join(sorted(missing))}, or no rows.")
    groups: dict[Key, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        groups[row["gpu_reported"], row["model"], row["precision_label"], row["pytorch"]].append(row)
    cases, excluded = [], defaultdict[str, list[str]](list)
    for key, members in groups.items():
        singles = {row["batch"]: float(row["throughput"]) for row in members if row["n_gpus"] == "1"}
        for row in members:
            if row["n_gpus"] == "1":
                continue
            found = _case(row, key, singles)
            if isinstance(found, str):
                excluded[found].append(f"{key[0]} x {row['n_gpus']}, {key[1]} {key[2]}, torch {key[3]}")
            else:
                cases.append(found)
    return tuple(cases), dict(excluded)


def _case(row: Mapping[str, str], key: Key, singles: Mapping[str, float]) -> ScalingCase | str:
    """The case of a row, or why there is none."""
    reported, model, precision, container = key
    count = int(row["n_gpus"])
    if not row["batch"].replace(".", "", 1).isdigit():
        return "the batch is not stated as one number"
    if model not in BENCHMARKS:
        return "no model of this benchmark is written here"
    total = float(row["batch"])
    for batch, throughput in singles.items():
        if batch.replace(".", "", 1).isdigit() and total in (float(batch), count * float(batch)):
            efficiency = float(row["throughput"]) / (count * throughput)
            if efficiency > LARGEST_EFFICIENCY:
                return f"its efficiency is above {LARGEST_EFFICIENCY}"
            return ScalingCase(
                gpu=find_gpu(reported).name,
                system=f"{reported}, torch {container[:6]}",
                count=count,
                model=model,
                precision=precision,
                batch=int(float(batch)),
                single_per_second=throughput,
                efficiency=efficiency,
            )
    return "its batch is neither that of one GPU nor so many times it"


def evaluate_scaling(path: Path, *, jobs: int = 2) -> ScalingReport:
    """Predict each case's efficiency; errors as for `read_scaling_cases` and `predict`."""
    cases, excluded = read_scaling_cases(path)
    results = evaluate_in_groups(
        cases,
        key=lambda case: (case.model, case.precision, case.batch),
        evaluate=_predicted,
        jobs=jobs,
    )
    return ScalingReport(tuple(_calibrated(results)), excluded)


def _predicted(cases: Sequence[ScalingCase]) -> list[ScalingResult]:
    """Results of cases that ran the same step, which is recorded once."""
    first = cases[0]
    recorded = benchmark_trace(first.model, precision=first.precision, batch=first.batch)
    names = tuple(dict.fromkeys(case.gpu for case in cases))
    gpus = [find_gpu(name) for name in names]
    timed = timed_work(recorded.trace, gpus, origin=None, models=kernel_models(names), method="auto")
    steps = iterations(recorded.trace, timed, gpus)
    shared = SharedStep(recorded.trace, timed, gpus)
    results = []
    for case in cases:
        row = names.index(case.gpu)
        seconds = recorded.units / case.single_per_second
        measured = replace(steps[row], seconds=seconds, low_seconds=seconds, high_seconds=seconds)
        layout = Layout(gpus[row], case.count)
        found = shared.on(layout, measured, row, Strategy())
        by_bandwidth = (
            seconds
            / shared.on(layout, measured, row, Strategy(), Interconnect(intra_node_bytes_per_second=bus)).seconds
            for bus in BUS_BANDWIDTHS
        )
        ends = (seconds / found.seconds, seconds / found.high_seconds, seconds / found.low_seconds)
        results.append(ScalingResult(case, *ends, tuple(by_bandwidth)))
    return results


def _calibrated(results: Iterable[ScalingResult]) -> Iterable[ScalingResult]:
    """Each with the bus that suits the machine's other benchmarks at the same number of GPUs."""
    groups: dict[tuple[str, int], list[ScalingResult]] = defaultdict(list)
    results = list(results)
    for result in results:
        groups[result.case.system, result.case.count].append(result)
    for result in results:
        others = [one for one in groups[result.case.system, result.case.count] if one.case.model != result.case.model]
        if not others:
            yield result
            continue
        at_each = np.array([one.by_bandwidth for one in others])
        measured = np.array([one.case.efficiency for one in others])[:, None]
        best = int(np.abs(at_each - measured).mean(axis=0).argmin())
        yield replace(result, calibrated=result.by_bandwidth[best])
