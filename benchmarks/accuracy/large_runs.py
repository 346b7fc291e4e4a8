"""Score steps of large language models on many GPUs, predicted from the meta device alone.

`mpt_fsdp.csv` (MPT under FSDP in bfloat16), `megatron_single_node.csv` (Megatron-DeepSpeed's GPT in float16 with full
recomputation, tensor x data x pipeline parallelism), and the published runs of Megatron-LM on up to 3,072 GPUs
(`published_runs.py`). Each row's batch is recorded whole and cut by `micro_batches`. Example::

    results = evaluate_large_runs(Path("validation"))
    Console().print(*large_run_tables(results))
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final, Protocol, final

from rich.table import Table

from benchmarks.accuracy.published_runs import LENGTH, VOCABULARY, published_runs
from benchmarks.accuracy.transformers import evaluate_in_groups
from benchmarks.accuracy.workloads.large_language_models import MPT, MegatronConfig, megatron_trace, mpt_trace
from benchmarks.training.report import report_table
from lightning_predict.base.checked import Checked, read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.units import gigabytes_to_bytes, milliseconds_to_seconds
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.interconnect import CATALOGUE, Interconnect
from lightning_predict.kernels.models import kernel_models
from lightning_predict.layouts.layout_steps import MultiGpuStep
from lightning_predict.layouts.overlap import OVERLAP_COSTS
from lightning_predict.layouts.single_gpu import PredictionContext, single_steps
from lightning_predict.layouts.strategy import GatheredDtype, Strategy
from lightning_predict.record.torch_releases import for_torch_release
from lightning_predict.record.trace import Trace
from lightning_predict.timeline.host import UNKNOWN_HOST
from lightning_predict.timeline.step_prediction import StepPrediction

MPT_TABLE: Final = "mpt_fsdp.csv"
MEGATRON_TABLE: Final = "megatron_single_node.csv"

MPT_RELEASE: Final = "2.1"
"""Release of torch whose attention is as old as in MPT's runs of 2023."""

MEGATRON_GPU: Final = "A100-SXM-80GB"
MPT_GPUS: Final = {"a100_40gb": "A100-SXM-40GB", "a100_80gb": "A100-SXM-80GB", "h100_80gb": "H100-SXM-80GB"}
"""Catalogue names of the table's words."""

MPT_REDUCED: Final[Mapping[str | None, GatheredDtype]] = {"DEFAULT": "float32"}
"""In what Composer exchanges gradients by the table's mode of mixed precision; else in the parameters' dtype."""

ROCE_1600: Final = Interconnect(inter_node_bytes_per_second=gigabytes_to_bytes(200))
"""Between MPT's A100 machines, as the table's heading says ("1600 Gbps node-node interconnect (RoCE)")."""

GPUS_PER_NODE: Final = 8


@final
@dataclass(frozen=True, slots=True)
class Workload:
    """Workload of one row; rows with equal workloads share a recording.

    Attributes:
        table: `mpt`, `megatron` or `published`.
        model: MPT's name, or Megatron's sizes in words.
        layers: Blocks.
        hidden: Width.
        heads: Heads of attention.
        length: Tokens of a sample.
        batch: Samples of a replica and step.
        recompute: With activation checkpointing.
        vocabulary: Number of distinct tokens.
        kind: What else rows are distinguished by.
    """

    table: str
    model: str
    layers: int
    hidden: int
    heads: int
    length: int
    batch: int
    recompute: bool
    vocabulary: int = 50304
    kind: str = ""

    @property
    def name(self) -> str:
        """Words for a file."""
        again = "recompute" if self.recompute else "plain"
        return f"{self.table}-{self.layers}x{self.hidden}-{self.length}-{self.batch}-{again}"

    def trace(self) -> Trace:
        """Record it on the meta device."""
        if self.table == "mpt":
            return mpt_trace(self.model, length=self.length, batch=self.batch, recompute=self.recompute)
        config = MegatronConfig(self.layers, self.hidden, self.heads, context=self.length, vocabulary=self.vocabulary)
        return megatron_trace(config, batch=self.batch, recompute=self.recompute)

    def prepared(self, trace: Trace) -> Trace:
        """Return the recording as it runs: MPT's attention, in Triton, is of FlashAttention's first generation."""
        return for_torch_release(trace, MPT_RELEASE) if self.table == "mpt" else trace


class AnyWorkload(Hashable, Protocol):
    """Workload of a row, recorded on its own; rows with equal workloads share a recording."""

    @property
    def table(self) -> str:
        """Name of its table."""

    @property
    def model(self) -> str:
        """Its model, in words."""

    @property
    def length(self) -> int:
        """Tokens of a sample."""

    @property
    def kind(self) -> str:
        """What else rows are distinguished by."""

    @property
    def name(self) -> str:
        """Words for a file."""

    def trace(self) -> Trace:
        """Record it."""

    def prepared(self, trace: Trace) -> Trace:
        """Return the recording as it runs."""


@final
@dataclass(frozen=True, slots=True)
class LargeRunCase:
    """One row.

    Attributes:
        workload: Workload.
        layout: The GPUs.
        strategy: How they share.
        micro_batch: Samples of a replica's micro-batch.
        measured_seconds: A step.
        interconnect: Links as stated in the table.
        memory_bytes: Peak of a GPU; None where the table does not say.
        is_reserved: That counts what the allocator reserves beyond the tensors.
    """

    workload: AnyWorkload
    layout: Layout
    strategy: Strategy
    micro_batch: int
    measured_seconds: float
    interconnect: Interconnect = CATALOGUE
    memory_bytes: float | None = None
    is_reserved: bool = True


FRAMEWORK_HOSTS: Final = (1.0, 1.3, 1.55, 1.8)
SPREADS: Final = (0.0, 0.025, 0.05, 0.075, 0.1)
"""The grid of the constants that are chosen on these tables: the framework's host, and how far paces differ."""


@final
@dataclass(frozen=True, slots=True)
class LargeRunResult:
    """A row and its prediction.

    Attributes:
        case: The row.
        step: As predicted.
        studied: Seconds of the step for each of `FRAMEWORK_HOSTS`: without waiting for the slowest, and the time
            that the default's waiting adds.
    """

    case: LargeRunCase
    step: StepPrediction = field(repr=False)
    studied: tuple[tuple[float, float], ...] = field(repr=False, default=())

    @property
    def error(self) -> float:
        """Predicted over measured time, less one."""
        return self.step.seconds / self.case.measured_seconds - 1

    @property
    def is_inside(self) -> bool:
        """True where the interval holds the measured time."""
        return self.step.low_seconds <= self.case.measured_seconds <= self.step.high_seconds

    def seconds(self, host: float, spread: float) -> float:
        """Predict the step with other constants.

        Args:
            host: One of `FRAMEWORK_HOSTS`.
            spread: Standard deviation of a GPU's pace.
        """
        alone, waiting = self.studied[FRAMEWORK_HOSTS.index(host)]
        return alone + spread / OVERLAP_COSTS.straggler_spread * waiting


def read_mpt_cases(path: Path) -> tuple[LargeRunCase, ...]:
    """Read the rows of `mpt_fsdp.csv`; their time is the batch over the throughput of tokens.

    Raises:
        MeasurementTableError: A missing column, or a value that is not a positive number.
    """
    columns = ("Model", "SeqLen (T)", "# GPUs", "GPU", "MicroBatchSize", "GradAccum", "Throughput (T/s)")
    return tuple(_mpt_case(row) for row in read_csv(path, MeasurementTableError, columns=columns))


def _mpt_case(row: Checked) -> LargeRunCase:
    def number(column: str) -> int:
        return row.member(column).parsed().integer(minimum=1)

    name = row.member("Model").choice(tuple(MPT))
    config, length, count = MPT[name], number("SeqLen (T)"), number("# GPUs")
    micro, accumulated = number("MicroBatchSize"), number("GradAccum")
    tokens = length * micro * accumulated * count
    per_node = min(count, GPUS_PER_NODE)
    workload = Workload(
        table="mpt",
        model=name,
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        length=length,
        batch=micro * accumulated,
        recompute=row.value["Activation Checkpointing"] == "True",
    )
    reported = row.value["GPU"]
    return LargeRunCase(
        workload=workload,
        layout=Layout(find_gpu(MPT_GPUS.get(reported, reported)), per_node, count // per_node),
        strategy=Strategy(
            data="fsdp", micro_batches=accumulated, reduce_dtype=MPT_REDUCED.get(row.value.get("MP Mode"))
        ),
        micro_batch=micro,
        measured_seconds=tokens / row.member("Throughput (T/s)").parsed().positive(),
        interconnect=ROCE_1600 if "1600 Gbps" in row.value.get("section", "") else CATALOGUE,
    )


def read_megatron_cases(path: Path) -> tuple[LargeRunCase, ...]:
    """Read the rows of `megatron_single_node.csv`.

    Raises:
        MeasurementTableError: A missing column, or a value that is not a positive number.
    """
    columns = ("# GPUs", "global batch", "micro batch", "hidden size", "attention heads", "# layers", "sequence length")
    degrees = ("tensor parallelism", "data parallelism", "pipeline parallelism")
    time = "iteration time (ms)"
    return tuple(
        _megatron_case(row, degrees, time)
        for row in read_csv(path, MeasurementTableError, columns=(*columns, *degrees, time))
    )


def _megatron_case(row: Checked, degrees: Sequence[str], time: str) -> LargeRunCase:
    def number(column: str) -> int:
        return row.member(column).parsed().integer(minimum=1)

    tensor, data, pipeline = map(number, degrees)
    batch, micro, count = number("global batch") // data, number("micro batch"), number("# GPUs")
    layers, hidden, heads = number("# layers"), number("hidden size"), number("attention heads")
    workload = Workload(
        table="megatron",
        model=f"{layers} x {hidden}",
        layers=layers,
        hidden=hidden,
        heads=heads,
        length=number("sequence length"),
        batch=batch,
        recompute=True,
    )
    per_node = min(count, GPUS_PER_NODE)
    return LargeRunCase(
        workload=workload,
        layout=Layout(find_gpu(MEGATRON_GPU), per_node, count // per_node),
        strategy=Strategy(tensor=tensor, pipeline=pipeline, micro_batches=batch // micro, overlap_grad_reduce=False),
        micro_batch=micro,
        measured_seconds=milliseconds_to_seconds(row.member(time).parsed().positive("in milliseconds")),
    )


def published_cases() -> tuple[LargeRunCase, ...]:
    """Return the runs of `published_runs.py`. Only runs with full recomputation are recorded with it."""
    return tuple(
        LargeRunCase(
            workload=Workload(
                table="published",
                model=run.name,
                layers=run.layers,
                hidden=run.hidden,
                heads=run.heads,
                length=LENGTH,
                batch=run.batch // run.replicas,
                recompute=not run.is_selective,
                vocabulary=VOCABULARY,
            ),
            layout=run.layout,
            strategy=run.strategy,
            micro_batch=run.micro_batch,
            measured_seconds=run.measured_seconds,
        )
        for run in published_runs()
    )


def evaluate_large_runs(
    folder: Path,
    *,
    weights: Path | None = None,
    jobs: int = 2,
    cache: Path | None = None,
    chosen: Callable[[LargeRunCase], bool] = lambda _case: True,
) -> tuple[LargeRunResult, ...]:
    """Predict each row of the tables that the folder has, and the published runs.

    Args:
        folder: Folder of the tables.
        weights: Weights to use.
        jobs: Recordings predicted at a time.
        cache: Folder that keeps the recordings; None records them anew.
        chosen: Rows to predict.

    Raises:
        MeasurementTableError: A table is wrong.
        LightningPredictError: As `predict`.
    """
    cases: list[LargeRunCase] = []
    for table, read in ((MPT_TABLE, read_mpt_cases), (MEGATRON_TABLE, read_megatron_cases)):
        if (folder / table).is_file():
            cases += filter(chosen, read(folder / table))
    cases += filter(chosen, published_cases())
    return evaluate_in_groups(
        cases,
        key=lambda case: case.workload,
        evaluate=partial(predicted_runs, weights=weights, cache=cache),
        jobs=jobs,
    )


def predicted_runs(
    cases: Sequence[LargeRunCase], *, weights: Path | None = None, cache: Path | None = None, studies: bool = True
) -> list[LargeRunResult]:
    """Predict rows that ran the same step, which is recorded once.

    Args:
        cases: The rows.
        weights: Weights to use.
        cache: Folder that keeps the recording; None records it anew.
        studies: Predict them with other constants, too.
    """
    trace = cases[0].workload.prepared(recorded(cases[0].workload, cache))
    gpus = tuple(dict.fromkeys(case.layout.gpu for case in cases))
    models = kernel_models(tuple(gpu.name for gpu in gpus), None if weights is None else str(weights))
    single = single_steps(trace, PredictionContext(gpus, None, models, "auto", UNKNOWN_HOST, CATALOGUE))
    shared = MultiGpuStep(single.trace, single.timed, gpus, models=models, host=single.host)
    results = []
    for case in cases:
        row = gpus.index(case.layout.gpu)
        on = partial(shared.on_layout, case.layout, single.steps[row], row, case.strategy, case.interconnect)
        studied = []
        for host in FRAMEWORK_HOSTS if studies else ():
            overlap_costs = replace(OVERLAP_COSTS, framework_host=host)
            alone = on(overlap_costs=replace(overlap_costs, straggler_spread=0.0)).seconds
            studied.append((alone, on(overlap_costs=overlap_costs).seconds - alone))
        results.append(LargeRunResult(case, on(), tuple(studied)))
    return results


def recorded(workload: AnyWorkload, cache: Path | None) -> Trace:
    """The recording of a workload, from the cache where it is there."""
    if cache is None:
        return workload.trace()
    path = cache / f"{workload.name}.json.gz"
    if path.is_file():
        return Trace.load(str(path))
    trace = workload.trace()
    cache.mkdir(parents=True, exist_ok=True)
    trace.save(str(path))
    return trace


def large_run_tables(results: Sequence[LargeRunResult]) -> Iterator[Table]:
    """Errors and intervals over all rows of each table, and by what may explain them."""
    for name in dict.fromkeys(result.case.workload.table for result in results):
        own = [result for result in results if result.case.workload.table == name]
        yield errors_table(name, own)
    yield choices_table(results)
    yield left_out_table(results)


def choices_table(results: Sequence[LargeRunResult]) -> Table:
    """Compare, where one step was run in several layouts, the one predicted fastest with the fastest that was measured.

    Such rows have the same model and length, GPUs and samples, and differ in how the GPUs share them.
    """
    table = report_table(
        "The layout predicted fastest: its measured time over the fastest one's, less one",
        ("rows",),
        ("choices", "layouts", "median %", "mean %", "worst %", "the fastest"),
    )
    for name in dict.fromkeys(result.case.workload.table for result in results):
        alike: dict[tuple[object, ...], list[LargeRunResult]] = {}
        for result in results:
            if result.case.workload.table == name:
                alike.setdefault(_same_step(result.case), []).append(result)
        sweeps = [own for own in alike.values() if len(own) > 1]
        if sweeps:
            over = [_chosen(own).case.measured_seconds / _fastest(own) - 1 for own in sweeps]
            table.add_row(
                name,
                str(len(sweeps)),
                str(sum(map(len, sweeps))),
                f"{100 * statistics.median(over):+.1f}",
                f"{100 * statistics.fmean(over):+.1f}",
                f"{100 * max(over):+.1f}",
                f"{sum(each == 0 for each in over)}",
            )
    return table


def _same_step(case: LargeRunCase) -> tuple[object, ...]:
    """Return what rows have in common that are layouts of one step."""
    strategy = case.strategy
    batches = (strategy.micro_batches or 1) * strategy.accumulate * strategy.replicas(case.layout)
    return case.workload.model, case.workload.length, case.workload.kind, case.layout, case.micro_batch * batches


def _chosen(sweep: Sequence[LargeRunResult]) -> LargeRunResult:
    return min(sweep, key=lambda result: result.step.seconds)


def _fastest(sweep: Sequence[LargeRunResult]) -> float:
    return min(result.case.measured_seconds for result in sweep)


LEAVE_OUT: Final[Sequence[tuple[str, Callable[[LargeRunCase], str]]]] = (
    ("source", lambda case: case.workload.table),
    ("GPU", lambda case: case.layout.gpu.name),
    ("machines", lambda case: f"{case.layout.nodes}"),
    ("model", lambda case: f"{case.workload.table} {case.workload.model}"),
)
"""Groups that are left out one at a time; the constants are chosen on the others."""


def read_off(results: Sequence[LargeRunResult]) -> tuple[float, float]:
    """Choose the framework's host and the spread of paces that suit these rows best, of the grid.

    Args:
        results: Rows, studied; each table counts alike, however many rows it has.
    """
    tables = [result.case.workload.table for result in results]
    weights = [1 / tables.count(table) for table in tables]

    def badness(constants: tuple[float, float]) -> float:
        errors = (abs(math.log(one.seconds(*constants) / one.case.measured_seconds)) for one in results)
        return sum(weight * error for weight, error in zip(weights, errors, strict=True))

    return min(product(FRAMEWORK_HOSTS, SPREADS), key=badness)


def width_of(results: Sequence[LargeRunResult], share: float = 0.9) -> float:
    """Find the factor on the logarithmic widths with which the intervals hold this share of the rows."""
    needed = sorted(map(_needed_width, results))
    return needed[min(math.ceil(share * len(needed)), len(needed)) - 1]


def _needed_width(result: LargeRunResult) -> float:
    """Distance of the measured time from the middle over the distance of the interval's end, as logarithms."""
    step, measured = result.step, result.case.measured_seconds
    end = step.high_seconds if measured > step.seconds else step.low_seconds
    return abs(math.log(measured / step.seconds) / math.log(end / step.seconds))


def left_out_table(results: Sequence[LargeRunResult]) -> Table:
    """Errors and intervals of rows whose source, GPU, number of machines or model the constants were not read off.

    The published runs are never read off.
    """
    table = report_table(
        "Constants read off the other rows: |error| and intervals of those left out",
        ("left out",),
        ("n", "host", "spread", "median %", "mean %", "bias %", "width x", "in 90 %", "width"),
    )
    for what, kind in LEAVE_OUT:
        for own in sorted({kind(result.case) for result in results}, key=lambda words: (len(words), words)):
            scored = [result for result in results if kind(result.case) == own]
            rest = [one for one in results if kind(one.case) != own and one.case.workload.table != "published"]
            if rest:
                _add_left_out(table, f"{what} {own}", scored, rest)
        table.add_section()
    return table


def _add_left_out(table: Table, name: str, scored: Sequence[LargeRunResult], rest: Sequence[LargeRunResult]) -> None:
    host, spread = read_off(rest)
    width = width_of(rest)
    errors = [one.seconds(host, spread) / one.case.measured_seconds - 1 for one in scored]
    inside, widths = [], []
    for one, error in zip(scored, errors, strict=True):
        low, high = (math.log(end / one.step.seconds) * width for end in (one.step.low_seconds, one.step.high_seconds))
        inside.append(low <= -math.log(1 + error) <= high)
        widths.append(math.exp(high - low))
    table.add_row(
        name,
        str(len(scored)),
        f"{host:g}",
        f"{spread:g}",
        f"{100 * statistics.median(map(abs, errors)):.1f}",
        f"{100 * statistics.fmean(map(abs, errors)):.1f}",
        f"{100 * statistics.median(errors):+.1f}",
        f"{width:.2f}",
        f"{100 * statistics.fmean(inside):.0f}",
        f"{statistics.geometric_mean(widths):.2f}",
    )


BY: Final[Sequence[tuple[str, Callable[[LargeRunCase], str]]]] = (
    ("GPU", lambda case: case.layout.gpu.name),
    ("model", lambda case: case.workload.model),
    ("GPUs", lambda case: f"{case.layout.count}"),
    ("tensor x data x pipeline", lambda case: _degrees(case)),
    ("micro-batch", lambda case: f"{case.micro_batch}"),
    ("length", lambda case: f"{case.workload.length}"),
    ("", lambda case: case.workload.kind),
)
"""What rows are distinguished by."""


def _degrees(case: LargeRunCase) -> str:
    strategy = case.strategy
    return f"{strategy.tensor} x {strategy.replicas(case.layout)} x {strategy.pipeline}"


def errors_table(name: str, results: Sequence[LargeRunResult]) -> Table:
    """Errors and intervals over all rows, and by what may explain them."""
    table = report_table(
        f"{name}: absolute error of a step on many GPUs",
        ("rows",),
        ("n", "median %", "mean %", "worst %", "bias %", "in 90 %", "width"),
    )
    for what, kind in BY:
        kinds = dict.fromkeys(kind(result.case) for result in results)
        if 1 < len(kinds) <= 20:
            for own in sorted(kinds, key=lambda words: (len(words), words)):
                _add(table, f"{what} {own}", [result for result in results if kind(result.case) == own])
            table.add_section()
    _add(table, "all", results)
    return table


def _add(table: Table, name: str, results: Sequence[LargeRunResult]) -> None:
    errors = [result.error for result in results]
    table.add_row(
        name,
        str(len(results)),
        f"{100 * median_error(results):.1f}",
        f"{100 * statistics.fmean(map(abs, errors)):.1f}",
        f"{100 * max(errors, key=abs):+.0f}",
        f"{100 * statistics.median(errors):+.1f}",
        f"{100 * coverage(results):.0f}",
        f"{statistics.median(result.step.high_seconds / result.step.low_seconds for result in results):.2f}",
    )


def median_error(results: Iterable[LargeRunResult]) -> float:
    """Median of |error|."""
    return statistics.median(abs(result.error) for result in results)


def coverage(results: Sequence[LargeRunResult]) -> float:
    """Share of the rows whose interval holds the measured time."""
    return statistics.fmean(result.is_inside for result in results)
