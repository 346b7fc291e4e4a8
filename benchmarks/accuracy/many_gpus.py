"""Score how well training scales from one GPU to several of one machine.

Two tables have rows of several GPUs: `training_throughput.csv` and `deep_learning_examples.csv`.

Efficiency is the throughput of n GPUs over n times the throughput of one GPU. The step of one GPU is the measured one,
as a user has who ran on one GPU; the additional time of several GPUs is predicted, from the links that the GPU's name
promises. They may not be there (a virtual machine without NVLink): `calibrated` takes the bus bandwidth that suits the
machine's other benchmarks best, as if it had been measured. Rows that no weak scaling explains are left out, each with
its reason. Benchmarks with only a known size spread their gradients evenly over a backward pass of two thirds of the
step. Example::

    report = evaluate_scaling(Path("validation/training_throughput.csv"))
    report.results[0].efficiency, report.results[0].case.efficiency, report.excluded
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Final, final

import numpy as np
from rich.table import Table

from benchmarks.accuracy.reported_gpus import reported_gpu
from benchmarks.accuracy.transformers import evaluate_in_groups
from benchmarks.accuracy.workloads.benchmarks import BENCHMARKS, benchmark_trace
from benchmarks.training.report import report_table
from lightning_predict.base.checked import read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import gigabytes_to_bytes, mebibytes_to_bytes
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.interconnect import Interconnect, bus_factor, collective_seconds
from lightning_predict.kernels.measured_scaling import WorkTimes, predict_work_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.translation import WorkItem
from lightning_predict.layouts.layout_steps import MultiGpuStep
from lightning_predict.layouts.overlap import OverlapCosts, slowest_of
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.record.trace import Operation, Parameter, Phase, TensorInfo, Trace
from lightning_predict.timeline.step_prediction import StepPrediction, predict_steps

PARTS: Final = 20
"""Modules that the step is cut into, alike in time and in parameters."""

FORWARD_SHARE: Final = 1 / 3
"""Of the step: the backward pass of a layer takes two products where the forward pass takes one."""


@final
@dataclass(frozen=True, slots=True)
class UniformBenchmark:
    """Published properties of a benchmark.

    Attributes:
        parameters: Its trainable parameters.
        units_per_sample: Units that the table counts per sample.
    """

    parameters: int
    units_per_sample: float = 1.0


UNIFORM_BENCHMARKS: Final[Mapping[str, UniformBenchmark]] = {
    # SSD300 with a ResNet-50 and Mask R-CNN with a ResNet-50 and a feature pyramid; an image is a unit.
    "SSD": UniformBenchmark(23_000_000),
    "maskrcnn": UniformBenchmark(44_400_000),
    # An utterance of LJSpeech lasts 6.6 s on average: 566 mel frames of 256 samples at 22.05 kHz.
    "tacotron2": UniformBenchmark(28_200_000, 566),
    # Trained on segments of 8,000 audio samples.
    "waveglow": UniformBenchmark(87_900_000, 8_000),
    # Of deep_learning_examples.csv, whose batches of the Transformer are tokens already.
    "Jasper": UniformBenchmark(333_000_000),
    "QuartzNet": UniformBenchmark(18_900_000),
    "BART": UniformBenchmark(406_000_000),
    "Transformer": UniformBenchmark(210_000_000),
    "MaskRCNN": UniformBenchmark(44_400_000),
}
"""Benchmarks by the table's name; parameters as their authors and torchvision state them."""


@final
@dataclass(frozen=True, slots=True)
class UniformStep:
    """A step of one second, ready to be shared, and itself on each GPU."""

    shared: MultiGpuStep
    singles: tuple[StepPrediction, ...]


def uniform_step(benchmark: str | UniformBenchmark, *, precision: str, gpus: Sequence[Gpu]) -> UniformStep:
    """The step of a benchmark.

    Args:
        benchmark: A key of `UNIFORM_BENCHMARKS`, or the known properties of another benchmark.
        precision: `FP32`, or a precision that keeps its gradients in 16 bits.
        gpus: GPUs to run it on; on each it takes a second.
    """
    if isinstance(benchmark, str):
        benchmark = UNIFORM_BENCHMARKS[benchmark]
    dtype = "float32" if precision == "FP32" else "float16"
    data = TensorInfo((1,), dtype)
    order: list[tuple[Phase, int]] = [("forward", part) for part in range(PARTS)]
    order += [("backward", part) for part in reversed(range(PARTS))]
    operations = [
        Operation(name="aten::mm", phase=phase, inputs=(data, data), outputs=(data,), module=str(part))
        for phase, part in order
    ]
    trace = Trace(
        operations=(*operations, Operation(name="aten::add", phase="optimizer", inputs=(data,), outputs=(data,))),
        device="cuda",
        recorder="kineto",
        parameters=tuple(
            Parameter(name=f"{part}.weight", shape=(benchmark.parameters // PARTS,), dtype=dtype)
            for part in range(PARTS)
        ),
    )
    shares = {"forward": FORWARD_SHARE / PARTS, "backward": (1 - FORWARD_SHARE) / PARTS}
    seconds = np.array([[*(shares[phase] for phase, _ in order), 0.0]] * len(gpus))
    timed = WorkTimes(
        items=tuple(WorkItem((index,), (), 1) for index in range(len(trace.operations))),
        families=("linear",) * len(trace.operations),
        phases=tuple(operation.phase for operation in trace.operations),
        interval=Interval.from_factor(seconds, 1.0),
        shares={"measured": np.ones_like(seconds)},
    )
    return UniformStep(MultiGpuStep(trace, timed, gpus), predict_steps(trace, timed, gpus))


LARGEST_EFFICIENCY: Final = 1.05
"""Above this, the row of one GPU ran something else."""

WITHOUT_EXCHANGE: Final = frozenset({"transformerxlbase", "transformerxllarge"})
"""Benchmarks whose efficiency is 0.95 to 1.0 on every link, also where their gradients cannot pass in the time: their
processes do not exchange them in every step, for unknown reasons. Shown apart."""

Key = tuple[str, str, str, str]
"""GPU as reported, model, precision, container."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingCase:
    """A row of several GPUs with the row of one GPU.

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
    def exchanges(self) -> bool:
        """Its processes exchange gradients in every step."""
        return self.model not in WITHOUT_EXCHANGE

    @property
    def has_nvlink(self) -> bool:
        """The GPU's data sheet has NVLink."""
        return find_gpu(self.gpu).nvlink_bytes_per_second is not None


def read_scaling_cases(path: Path) -> tuple[tuple[ScalingCase, ...], dict[str, list[str]]]:
    """Rows of several GPUs that have one of a single GPU, and the number of rows left out, by reason.

    Raises:
        MeasurementTableError: A missing column.
        UnknownGpuError: A reported name that the catalogue does not hold.
    """
    needed = ("gpu_reported", "n_gpus", "model", "precision_label", "batch", "pytorch", "throughput")
    groups: dict[Key, list[dict[str, str]]] = defaultdict(list)
    for row in (row.value for row in read_csv(path, MeasurementTableError, columns=needed)):
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
    """The case of a row, or the reason why the row has no case."""
    reported, model, precision, container = key
    count = int(row["n_gpus"])
    if not row["batch"].replace(".", "", 1).isdigit():
        return "the batch is not stated as one number"
    if model not in BENCHMARKS and model not in UNIFORM_BENCHMARKS:
        return "no model of this benchmark is written here"
    total = float(row["batch"])
    for batch, throughput in singles.items():
        if batch.replace(".", "", 1).isdigit() and total in (float(batch), count * float(batch)):
            efficiency = float(row["throughput"]) / (count * throughput)
            if efficiency > LARGEST_EFFICIENCY:
                return f"its efficiency is above {LARGEST_EFFICIENCY}"
            return ScalingCase(
                gpu=reported_gpu(reported).name,
                system=f"{reported}, torch {container[:6]}",
                count=count,
                model=model,
                precision=precision,
                batch=int(float(batch)),
                single_per_second=throughput,
                efficiency=efficiency,
            )
    return "its batch is neither that of one GPU nor so many times it"


EXAMPLES_TABLE: Final = "deep_learning_examples.csv"

MACHINES: Final[Mapping[str, str]] = {
    "V100 16GB": "V100-SXM2-16GB",
    "V100 32GB": "V100-SXM2-32GB",
    "A100 40GB": "A100-SXM-40GB",
    "A100 80GB": "A100-SXM-80GB",
}
"""Catalogue names of the GPUs that `deep_learning_examples.csv` names among its machines."""

MOST_GPUS: Final = 8
"""Machines with more GPUs join them by switches that no curve of a collective is known of (DGX-2, 16 V100)."""


def read_example_cases(path: Path) -> tuple[tuple[ScalingCase, ...], dict[str, list[str]]]:
    """Read the rows of several GPUs of `deep_learning_examples.csv` that have one of a single GPU, as weak scaling.

    Returns:
        The cases, and the number of rows left out, by reason.

    Raises:
        MeasurementTableError: A missing column.
    """
    needed = ("path", "heading", "hardware", "gpus", "batch_per_gpu", "precision", "value", "row_json")
    rows = [row.value for row in read_csv(path, MeasurementTableError, columns=needed)]
    singles: dict[tuple[str, ...], float] = {}
    for row in rows:
        if row["gpus"] == "1.0":
            singles.setdefault(_example_key(row), float(row["value"]))
    cases, excluded = [], defaultdict[str, list[str]](list)
    for row in rows:
        if row["gpus"] in ("", "1.0"):
            continue
        found = _example(row, singles)
        if isinstance(found, str):
            excluded[found].append(f"{row['path']}, {row['hardware']} x {row['gpus']}, {row['precision']}")
        else:
            cases.append(found)
    return tuple(cases), dict(excluded)


def _example_key(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[word] for word in ("path", "heading", "hardware", "batch_per_gpu", "precision"))


def _example(row: Mapping[str, str], singles: Mapping[tuple[str, ...], float]) -> ScalingCase | str:
    """Return the case of a row, or the reason why the row has no case."""
    model, machine = row["path"].split("/")[2], row["hardware"]
    name = next((own for words, own in MACHINES.items() if words in machine), None)
    count, printed = int(float(row["gpus"])), json.loads(row["row_json"])
    single = singles.get(_example_key(row))
    batches = row["batch_per_gpu"].replace("/", ",").split(",")
    # "100, 200" and "10240/5120" belong to both precisions.
    is_float32 = row["precision"] in ("FP32", "TF32")
    batch = batches[0 if len(batches) == 1 or is_float32 == ("/" not in row["batch_per_gpu"]) else -1].strip()
    if model not in UNIFORM_BENCHMARKS:
        return "no parameters of this benchmark are written here"
    if name is None or count > MOST_GPUS:
        return f"no machine of at most {MOST_GPUS} GPUs whose links are known"
    if single is None or not batch.isdigit():
        return "no row of one GPU with the same batch on each"
    efficiency = float(row["value"]) / (count * single)
    if efficiency > LARGEST_EFFICIENCY:
        return f"its efficiency is above {LARGEST_EFFICIENCY}"
    if "Grad accumulation" in printed:
        return "gradients accumulate over as many batches as keep the sum over all GPUs the same"
    return ScalingCase(
        gpu=name,
        system=f"{machine}, NGC",
        count=count,
        model=model,
        precision="FP32" if is_float32 else row["precision"],
        batch=int(batch),
        single_per_second=single,
        efficiency=efficiency,
    )


LEAST_LINK_SHARE: Final = 0.25
"""Below this share of the bandwidth that a GPU's name promises, a machine is shown apart."""

BUS_BANDWIDTHS: Final = tuple(gigabytes_to_bytes(0.5 * 2**step) for step in range(10))
"""Bus bandwidths that a machine may have: 0.5 to 256 GB/s."""

SLOWDOWNS: Final = (1.0, 1.5, 2.0, 2.5, 3.0)
CONTENTIONS: Final = (0.3, 0.5, 0.7, 0.9)
SPREADS: Final = (0.02, 0.03, 0.04, 0.05, 0.06)
"""The grid of overlap costs."""


@final
@dataclass(frozen=True, slots=True)
class Study:
    """A case at each of `SLOWDOWNS`, and at each bus bandwidth, all over the step of one GPU.

    Attributes:
        walked: (step, hidden communication) at each slowdown.
        by_bandwidth: Efficiency at each of `BUS_BANDWIDTHS`.
        seconds: The step of one GPU.
        has_nvlink: Whose overlap costs the grid is of; cards without have their own.
    """

    walked: tuple[tuple[float, float], ...]
    by_bandwidth: tuple[float, ...]
    seconds: float = 1.0
    has_nvlink: bool = True
    is_hopper: bool = False

    def efficiency(self, overlap_costs: OverlapCosts, count: int) -> float:
        """With other figures of overlap costs; its slowdown is one of `SLOWDOWNS`."""
        step, hidden = self.walked[SLOWDOWNS.index(overlap_costs.slowdown)]
        waiting = float(overlap_costs.speed_deviation(np.array(self.seconds))) * slowest_of(count)
        if self.is_hopper:
            contention = overlap_costs.hopper_contention
        else:
            contention = overlap_costs.contention if self.has_nvlink else overlap_costs.pcie_contention
        return 1 / (step + contention * hidden + waiting)


@final
@dataclass(frozen=True, slots=True)
class ScalingResult:
    """A case and its predictions.

    Attributes:
        case: The row.
        study: Efficiency under other assumptions.
        efficiency: As predicted.
        low: Lower end of its 90 % interval.
        high: Upper end.
        left_out: As predicted with the overlap costs that suits the other GPUs' rows.
        calibrated: As predicted at the bus bandwidth that suits the machine's other benchmarks; None if it has none.
        link_share: That bandwidth over the one that the GPU's name promises; None in the same case.
    """

    case: ScalingCase
    study: Study
    efficiency: float
    low: float
    high: float
    left_out: float = float("nan")
    calibrated: float | None = None
    link_share: float | None = None

    @property
    def is_inside(self) -> bool:
        """True where the interval holds the measured efficiency."""
        return self.low <= self.case.efficiency <= self.high

    @property
    def has_its_links(self) -> bool:
        """The machine's links reach a quarter of what the GPU's name promises, or this is unknown."""
        return self.link_share is None or self.link_share >= LEAST_LINK_SHARE


@final
@dataclass(frozen=True, slots=True)
class ScalingReport:
    """Results, the overlap costs that suits each GPU's others, and the rows that were left out by reason."""

    results: tuple[ScalingResult, ...]
    overlap_costs_without: Mapping[str, OverlapCosts]
    excluded: Mapping[str, Sequence[str]]


def evaluate_scaling(path: Path, *, weights: Path | None = None, jobs: int = 2) -> ScalingReport:
    """Predict each case's efficiency; errors as for the reader of the table and `predict`."""
    cases, excluded = (read_example_cases if path.name == EXAMPLES_TABLE else read_scaling_cases)(path)
    results = evaluate_in_groups(
        cases,
        key=lambda case: (case.model, case.precision, case.batch),
        evaluate=partial(_predicted, weights=weights),
        jobs=jobs,
    )
    without = {gpu: best_overlap_costs(results, without=gpu) for gpu in dict.fromkeys(case.gpu for case in cases)}
    complete = (
        replace(result, left_out=result.study.efficiency(without[result.case.gpu], result.case.count))
        for result in _calibrated(results)
    )
    return ScalingReport(tuple(complete), without, excluded)


def best_overlap_costs(results: Iterable[ScalingResult], *, without: str | None = None) -> OverlapCosts:
    """The figures of the grid with the least mean error, over rows that exchange gradients.

    Args:
        results: Cases of all GPUs.
        without: A GPU whose rows do not count.
    """
    rows = [one for one in results if one.case.gpu != without and one.case.exchanges]
    grid = [
        OverlapCosts(slowdown=slowdown, contention=contention, straggler_spread=spread)
        for slowdown, contention, spread in product(SLOWDOWNS, CONTENTIONS, SPREADS)
    ]
    return min(grid, key=lambda overlap_costs: _mean_error(rows, overlap_costs))


def _mean_error(rows: Sequence[ScalingResult], overlap_costs: OverlapCosts) -> float:
    errors = [abs(one.study.efficiency(overlap_costs, one.case.count) - one.case.efficiency) for one in rows]
    return sum(errors) / max(len(errors), 1)


def _predicted(cases: Sequence[ScalingCase], weights: Path | None) -> list[ScalingResult]:
    """Results of cases that ran the same step, which is recorded once."""
    names = tuple(dict.fromkeys(case.gpu for case in cases))
    gpus = [find_gpu(name) for name in names]
    steps, shared, units = _prepared(cases[0], gpus, weights)
    results = []
    for case in cases:
        row = names.index(case.gpu)
        seconds = units / case.single_per_second
        measured = replace(steps[row], interval=Interval(seconds, seconds, seconds))
        found = shared.on_layout(Layout(gpus[row], case.count), measured, row, Strategy())
        ends = (seconds / found.seconds, seconds / found.high_seconds, seconds / found.low_seconds)
        results.append(ScalingResult(case, _study(shared, measured, row, Layout(gpus[row], case.count)), *ends))
    return results


def _prepared(
    case: ScalingCase, gpus: Sequence[Gpu], weights: Path | None
) -> tuple[Sequence[StepPrediction], MultiGpuStep, float]:
    """The step of a case on one of each GPU, ready to be shared, and the samples that it processes."""
    if case.model in UNIFORM_BENCHMARKS:
        uniform = uniform_step(case.model, precision=case.precision, gpus=gpus)
        return uniform.singles, uniform.shared, case.batch * UNIFORM_BENCHMARKS[case.model].units_per_sample
    recorded = benchmark_trace(case.model, precision=case.precision, batch=case.batch)
    models = kernel_models(tuple(gpu.name for gpu in gpus), None if weights is None else str(weights))
    timed = predict_work_times(recorded.trace, gpus, origin=None, models=models, method="auto")
    return predict_steps(recorded.trace, timed, gpus), MultiGpuStep(recorded.trace, timed, gpus), recorded.units


def _study(shared: MultiGpuStep, step: StepPrediction, row: int, layout: Layout) -> Study:
    walked = []
    for slowdown in SLOWDOWNS:
        found = shared.overlapped(layout, step, row, Strategy(), overlap_costs=OverlapCosts(slowdown=slowdown))
        hidden = max(float((found.communication_seconds - found.exposed_seconds)[1]), 0.0)
        walked.append((float(found.seconds[1]) / step.seconds, hidden / step.seconds))
    at_each = (
        shared.on_layout(layout, step, row, Strategy(), Interconnect(intra_node_bytes_per_second=bus)).seconds
        for bus in BUS_BANDWIDTHS
    )
    by_bandwidth = tuple(step.seconds / seconds for seconds in at_each)
    has_nvlink = layout.gpu.nvlink_bytes_per_second is not None
    is_hopper = has_nvlink and layout.gpu.generation.has_in_network_reduction
    return Study(tuple(walked), by_bandwidth, step.seconds, has_nvlink, is_hopper)


def _calibrated(results: Sequence[ScalingResult]) -> Iterator[ScalingResult]:
    """Each with the bus that suits the machine's other benchmarks at the same number of GPUs."""
    groups: dict[tuple[str, int], list[ScalingResult]] = defaultdict(list)
    for result in results:
        if result.case.exchanges:
            groups[result.case.system, result.case.count].append(result)
    for result in results:
        others = [one for one in groups[result.case.system, result.case.count] if one.case.model != result.case.model]
        if not others:
            yield result
            continue
        at_each = np.array([one.study.by_bandwidth for one in others])
        measured = np.array([one.case.efficiency for one in others])[:, None]
        best = int(np.abs(at_each - measured).mean(axis=0).argmin())
        yield replace(
            result,
            calibrated=result.study.by_bandwidth[best],
            link_share=BUS_BANDWIDTHS[best] / _promised(result.case),
        )


def _promised(case: ScalingCase) -> float:
    """Bus bandwidth of a large bucket of gradients, from the GPU's name."""
    size = mebibytes_to_bytes(25)
    alone = float(collective_seconds("all_reduce", size, Layout(find_gpu(case.gpu), case.count)).middle[0])
    return bus_factor("all_reduce", case.count) * size / alone


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
            "overlap costs without this GPU: median",
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
