"""Score steps of large language models on many GPUs, predicted from the meta device alone.

`mpt_fsdp.csv` (MPT under FSDP in bfloat16) and `megatron_single_node.csv` (Megatron-DeepSpeed's GPT in float16 with
full recomputation, tensor x data x pipeline parallelism). Each row's batch is recorded whole and cut by
`micro_batches`. Example::

    results = evaluate_large_runs(Path("validation"))
    Console().print(*large_run_tables(results))
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, final

from rich.table import Table

from benchmarks.accuracy.transformers import evaluate_in_groups
from benchmarks.accuracy.workloads.large_language_models import MPT, MegatronConfig, megatron_trace, mpt_trace
from lightning_predict.checked import Checked, read_csv
from lightning_predict.distributed.layout_steps import Setting, shared_steps, single_steps
from lightning_predict.distributed.strategy import Strategy
from lightning_predict.errors import MeasurementTableError
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.gpus.layouts import Layout
from lightning_predict.kernels.fabric import CATALOGUE, Interconnect
from lightning_predict.kernels.models import kernel_models
from lightning_predict.timeline.iteration import Iteration
from lightning_predict.tracing.trace import Trace
from lightning_predict.training.report import report_table
from lightning_predict.units import gigabytes_to_bytes, milliseconds_to_seconds

MPT_TABLE: Final = "mpt_fsdp.csv"
MEGATRON_TABLE: Final = "megatron_single_node.csv"

MEGATRON_GPU: Final = "A100-SXM-80GB"
MPT_GPUS: Final = {"a100_40gb": "A100-SXM-40GB", "a100_80gb": "A100-SXM-80GB", "h100_80gb": "H100-SXM-80GB"}
"""Catalogue names of the table's words."""

ROCE_1600: Final = Interconnect(inter_node_bytes_per_second=gigabytes_to_bytes(200))
"""Between MPT's A100 machines, as the table's heading says ("1600 Gbps node-node interconnect (RoCE)")."""

GPUS_PER_NODE: Final = 8


@final
@dataclass(frozen=True, slots=True)
class Workload:
    """What one row trains; rows with equal ones share a recording.

    Attributes:
        table: `mpt` or `megatron`.
        model: MPT's name, or Megatron's sizes in words.
        layers: Blocks.
        hidden: Width.
        heads: Heads of attention.
        length: Tokens of a sample.
        batch: Samples of a replica and step.
        recompute: With activation checkpointing.
    """

    table: str
    model: str
    layers: int
    hidden: int
    heads: int
    length: int
    batch: int
    recompute: bool

    @property
    def name(self) -> str:
        """Words for a file."""
        again = "recompute" if self.recompute else "plain"
        return f"{self.table}-{self.layers}x{self.hidden}-{self.length}-{self.batch}-{again}"

    def trace(self) -> Trace:
        """Record it on the meta device."""
        if self.table == "mpt":
            return mpt_trace(self.model, length=self.length, batch=self.batch, recompute=self.recompute)
        config = MegatronConfig(self.layers, self.hidden, self.heads, context=self.length)
        return megatron_trace(config, batch=self.batch, recompute=self.recompute)


@final
@dataclass(frozen=True, slots=True)
class LargeRunCase:
    """One row.

    Attributes:
        workload: What it trains.
        layout: The GPUs.
        strategy: How they share.
        micro_batch: Samples of a replica's micro-batch.
        measured_seconds: A step.
        interconnect: What the table says of the links.
    """

    workload: Workload
    layout: Layout
    strategy: Strategy
    micro_batch: int
    measured_seconds: float
    interconnect: Interconnect = CATALOGUE


@final
@dataclass(frozen=True, slots=True)
class LargeRunResult:
    """A row and its prediction."""

    case: LargeRunCase
    step: Iteration = field(repr=False)

    @property
    def error(self) -> float:
        """Predicted over measured time, less one."""
        return self.step.seconds / self.case.measured_seconds - 1

    @property
    def is_inside(self) -> bool:
        """True where the interval holds the measured time."""
        return self.step.low_seconds <= self.case.measured_seconds <= self.step.high_seconds


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
        strategy=Strategy(data="fsdp", micro_batches=accumulated),
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


def evaluate_large_runs(
    folder: Path,
    *,
    weights: Path | None = None,
    jobs: int = 2,
    cache: Path | None = None,
    chosen: Callable[[LargeRunCase], bool] = lambda _case: True,
) -> tuple[LargeRunResult, ...]:
    """Predict each row of the tables that the folder has.

    Args:
        folder: Of the tables.
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
    return evaluate_in_groups(
        cases,
        key=lambda case: case.workload,
        evaluate=partial(_predicted, weights=weights, cache=cache),
        jobs=jobs,
    )


def _predicted(cases: Sequence[LargeRunCase], weights: Path | None, cache: Path | None) -> list[LargeRunResult]:
    """Results of rows that ran the same step, which is recorded once."""
    trace = _trace(cases[0].workload, cache)
    gpus = tuple(dict.fromkeys(case.layout.gpu for case in cases))
    models = kernel_models(tuple(gpu.name for gpu in gpus), None if weights is None else str(weights))
    setting = Setting(gpus, None, models, "auto", 1.0, CATALOGUE)
    single = single_steps(trace, setting)
    results = []
    for case in cases:
        own = replace(setting, interconnect=case.interconnect)
        (step,) = shared_steps(single, single.steps, [case.layout], case.strategy, own)
        results.append(LargeRunResult(case, step))
    return results


def _trace(workload: Workload, cache: Path | None) -> Trace:
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
        yield _table(name, own)


BY: Final[Sequence[tuple[str, Callable[[LargeRunCase], str]]]] = (
    ("GPU", lambda case: case.layout.gpu.name),
    ("model", lambda case: case.workload.model),
    ("GPUs", lambda case: f"{case.layout.count}"),
    ("tensor x data x pipeline", lambda case: _degrees(case)),
    ("micro-batch", lambda case: f"{case.micro_batch}"),
    ("length", lambda case: f"{case.workload.length}"),
)
"""What rows are told apart by."""


def _degrees(case: LargeRunCase) -> str:
    strategy = case.strategy
    return f"{strategy.tensor} x {strategy.replicas(case.layout)} x {strategy.pipeline}"


def _table(name: str, results: Sequence[LargeRunResult]) -> Table:
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
