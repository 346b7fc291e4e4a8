"""DLRM: published training throughputs on one and several GPUs, and sharding plans against TorchRec's planner.

    python -m benchmarks.accuracy FOLDER --of dlrm

`deep_learning_examples.csv` has DLRM on one V100 or A100 with tables of 15.6 GiB, and on eight with 84.9 GiB, whole
tables on each GPU (their hybrid parallelism) and replayed from CUDA graphs. Steps are recorded on the meta device and
predicted with `embedding=auto`; nothing is fitted to them. Rows of more than eight GPUs are left out, as the switch of
their machine is not known.

TorchRec's planner rates the same tables where `torchrec` is installed (`pip install --no-deps torchrec iopath
typing-inspect mypy-extensions pyre-extensions`, in a folder of its own on PYTHONPATH). It needs no operator of
`fbgemm_gpu` for that, whose build must fit torch's; a stand-in without any takes its place. Both planners have the same
bandwidths: DRAM and links by data sheet.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import logging
import statistics
import sys
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final
from unittest.mock import MagicMock

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.many_gpus import EXAMPLES_TABLE, MACHINES, MOST_GPUS
from benchmarks.accuracy.workloads.dlrm import WIDTH, criteo_rows, criteo_trace
from benchmarks.scored_steps import ScoredRow, published_cases
from benchmarks.training.report import report_table
from lightning_predict.advice.embedding import with_fused_tables
from lightning_predict.base.checked import read_csv
from lightning_predict.base.errors import InfeasiblePlanError, MeasurementTableError
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import seconds_to_milliseconds
from lightning_predict.embeddings.loads import KINDS
from lightning_predict.embeddings.placement import TABLE_SHARE, place_tables
from lightning_predict.embeddings.step import WHOLE, Assignment, sharded_step
from lightning_predict.embeddings.tables import EmbeddingTable
from lightning_predict.hardware.layouts import Layout, layout_of
from lightning_predict.kernels.roofline import link_bandwidth
from lightning_predict.prediction import predict
from lightning_predict.reports.published_cases import PublishedCase, StepDescription

LEAST_ERROR: Final = 1e-3
"""Smaller errors count as this in a geometric mean, which one of 0 would make 0."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DlrmCase:
    """A row of the table.

    Attributes:
        layout: The GPUs.
        size: `small` or `large`.
        precision: `FP32`, `TF32` or `AMP`.
        batch: Samples of each GPU.
        samples_per_second: Measured, of all GPUs.
    """

    layout: str
    size: str
    precision: str
    batch: int
    samples_per_second: float


@final
@dataclass(frozen=True, slots=True)
class DlrmResult:
    """A case and its predicted step, in seconds; `active_seconds` are those in which the device computes."""

    case: DlrmCase
    seconds: float
    low_seconds: float
    high_seconds: float
    active_seconds: float

    @property
    def measured_seconds(self) -> float:
        """The step as it was measured."""
        return self.case.batch * layout_of(self.case.layout).count / self.case.samples_per_second

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.seconds / self.measured_seconds - 1

    @property
    def is_inside(self) -> bool:
        """True where the interval holds the measured time."""
        return self.low_seconds <= self.measured_seconds <= self.high_seconds


def read_dlrm_cases(path: Path) -> tuple[DlrmCase, ...]:
    """Read the rows of DLRM on up to eight GPUs, repeated settings once.

    Raises:
        MeasurementTableError: A missing column or value.
    """
    needed = ("path", "hardware", "gpus", "batch_per_gpu", "precision", "value", "row_json")
    found: dict[tuple[str, ...], DlrmCase] = {}
    for row in read_csv(path, MeasurementTableError, columns=needed):
        values = row.value
        gpu = next((own for words, own in MACHINES.items() if words in values["hardware"]), None)
        if "Recommendation/DLRM/" not in values["path"] or gpu is None:
            continue
        count = int(row.member("gpus").parsed().positive())
        if count > MOST_GPUS:
            continue
        case = DlrmCase(
            layout=gpu if count == 1 else f"{count}x{gpu}",
            size="large" if '"large"' in values["row_json"] else "small",
            precision=values["precision"],
            batch=1024 * int(values["batch_per_gpu"].removesuffix("k")),
            samples_per_second=row.member("value").parsed().positive(),
        )
        found[values["hardware"], case.layout, case.size, case.precision] = case
    return tuple(found.values())


def evaluate_dlrm(path: Path) -> tuple[DlrmResult, ...]:
    """Predict every case; errors as for `read_dlrm_cases` and `predict`."""
    results = []
    traces: dict[tuple[str, str, int], Any] = {}
    for case in read_dlrm_cases(path):
        key = case.size, case.precision, case.batch  # of one size on one GPU, of the other on eight
        if key not in traces:
            trace = criteo_trace(case.size, precision=case.precision, batch=case.batch)
            # On one GPU their script looks all tables up in one kernel, and so are its dot products; on several it
            # does not. The time that the tables' own plan adds there comes from `embeddings`.
            is_alone = layout_of(case.layout).count == 1
            traces[key] = with_fused_tables(trace, has_sparse_gradients=True) if is_alone else trace
        found = predict(traces[key], [case.layout], strategy="embedding=auto", history=False)[case.layout]
        seconds = (found.iteration_seconds, found.iteration_seconds_low, found.iteration_seconds_high)
        results.append(DlrmResult(case, *seconds, found.device_seconds))
    return tuple(results)


def dlrm_table(results: Sequence[DlrmResult]) -> Table:
    """Every case, and the errors together."""
    table = report_table(
        "DLRM of DeepLearningExamples, a step: predicted from nothing",
        ("GPUs", "tables", "precision"),
        ("batch a GPU", "measured ms", "predicted ms", "of it active", "error %", "in 90 %"),
    )
    for one in results:
        case = one.case
        table.add_row(
            *(case.layout, case.size, case.precision, f"{case.batch:,}"),
            f"{seconds_to_milliseconds(one.measured_seconds):.2f}",
            f"{seconds_to_milliseconds(one.seconds):.2f}",
            f"{seconds_to_milliseconds(one.active_seconds):.2f}",
            f"{100 * one.error:+.1f}",
            "yes" if one.is_inside else "no",
        )
    if results:
        table.add_section()
        errors = [abs(one.error) for one in results]
        inside = f"{sum(one.is_inside for one in results)} of {len(results)}"
        geometric = statistics.geometric_mean(max(error, LEAST_ERROR) for error in errors)
        both = f"geomean {100 * geometric:.1f}, median {100 * statistics.median(errors):.1f}"
        table.add_row("all", "", "", "", "", "", "", both, inside)
    return table


# --- TorchRec's planner on the same tables


@final
@dataclass(frozen=True, slots=True)
class Question:
    """Tables to share.

    Attributes:
        name: What to call them.
        tables: The tables.
        batch: Samples of each GPU.
    """

    name: str
    tables: tuple[EmbeddingTable, ...]
    batch: int


def _tables(rows: Sequence[int], dim: int, pooling: float) -> tuple[EmbeddingTable, ...]:
    return tuple(
        EmbeddingTable(rows=count, dim=dim, pooling=pooling, name=f"t{number}") for number, count in enumerate(rows)
    )


QUESTIONS: Final = (
    Question("Criteo, 26 tables of up to 49 M rows, one look-up", _tables(criteo_rows("large"), WIDTH, 1), 8192),
    Question(
        "11 tables of up to 200 M rows, 20 look-ups",
        _tables([int(rows) for rows in (2e8, 8e7, 4e7, 2e7, 8e6, 2e6, 5e5, 1e5, 1e4, 1e3, 1e2)], 64, 20),
        8192,
    ),
    Question("64 tables of 1 M rows, 50 look-ups", _tables([1_000_000] * 64, 128, 50), 2048),
    Question(
        "one table of 100 M rows beside 7 of 10,000, 10 look-ups", _tables([100_000_000, *[10_000] * 7], 128, 10), 4096
    ),
)
PLANNED_ON: Final = ("8xA100-SXM-80GB", "8xH100-SXM-80GB", "8xL4")


@final
@dataclass(frozen=True, slots=True)
class Planned:
    """One question on one layout, seconds of the tables by way; None where it does not fit.

    Attributes:
        question: The question.
        layout: The GPUs.
        ours: By way, and `best`, the best mixture.
        theirs: As TorchRec rates its own plans.
        priced: TorchRec's best plan as we predict it.
    """

    question: Question
    layout: str
    ours: Mapping[str, float | None]
    theirs: Mapping[str, float | None]
    priced: float | None

    @property
    def agreement(self) -> float | None:
        """Share of pairs of ways that both put in the same order; None without a pair."""
        both = [way for way in KINDS if self.ours.get(way) is not None and self.theirs.get(way) is not None]
        pairs = [(a, b) for index, a in enumerate(both) for b in both[index + 1 :]]
        if not pairs:
            return None
        same = [
            ((self.ours[a] or 0) - (self.ours[b] or 0)) * ((self.theirs[a] or 0) - (self.theirs[b] or 0)) >= 0
            for a, b in pairs
        ]
        return statistics.fmean(map(float, same))


def compared_plans(
    questions: Sequence[Question] = QUESTIONS, layouts: Sequence[str] = PLANNED_ON
) -> tuple[Planned, ...]:
    """Plan every question with both planners.

    Raises:
        ImportError: torchrec is not installed.
    """
    with _without_operators():
        parts = types.SimpleNamespace(
            **{
                name: getattr(importlib.import_module(module), name)
                for module, names in _PARTS.items()
                for name in names.split()
            }
        )
        return tuple(_planned(parts, question, layout_of(name)) for question in questions for name in layouts)


_PARTS: Final = {
    "torchrec.distributed.embeddingbag": "EmbeddingBagCollectionSharder",
    "torchrec.distributed.planner": "EmbeddingShardingPlanner ParameterConstraints Topology",
    "torchrec.modules.embedding_configs": "EmbeddingBagConfig",
    "torchrec.modules.embedding_modules": "EmbeddingBagCollection",
}


@contextmanager
def _without_operators() -> Iterator[None]:
    """Let torchrec be imported without the operators that plans do not need."""

    class Stand(importlib.machinery.PathFinder):
        def find_spec(self, name: str, *_: Any) -> Any:  # type: ignore[override]
            if name.partition(".")[0] in ("fbgemm_gpu", "tensordict", "torchmetrics"):
                return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
            return None

        def create_module(self, spec: Any) -> Any:
            module = MagicMock(name=spec.name)
            module.__spec__, module.__path__, module.__name__ = spec, [], spec.name
            return module

        def exec_module(self, module: Any) -> None: ...

    stand = Stand()
    logging.disable(logging.WARNING)
    sys.meta_path.insert(0, stand)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        sys.meta_path.remove(stand)


def _planned(parts: Any, question: Question, layout: Layout) -> Planned:
    samples = question.batch * layout.count
    ours: dict[str, float | None] = {}
    for kinds in (*((kind,) for kind in KINDS), tuple(KINDS)):
        name = kinds[0] if len(kinds) == 1 else "best"
        try:
            ours[name] = place_tables(question.tables, layout, samples=samples, kinds=kinds).best.seconds
        except InfeasiblePlanError:
            ours[name] = None
    theirs: dict[str, float | None] = {}
    priced = None
    for kind in (*KINDS, "best"):
        theirs[kind], assigned = _rated(parts, question, layout, None if kind == "best" else kind)
        if kind == "best" and assigned is not None:
            priced = sharded_step(assigned, layout, samples=samples).seconds
    return Planned(question, layout.name, ours, theirs, priced)


def _rated(
    parts: Any, question: Question, layout: Layout, kind: str | None
) -> tuple[float | None, list[Assignment] | None]:
    """Seconds by TorchRec's rating, and its plan in our words; None where it finds none."""
    constraints = {
        str(one.name): parts.ParameterConstraints(
            pooling_factors=[one.pooling],
            min_partition=max(one.dim // layout.count // 4 * 4, 4),
            sharding_types=list(KINDS) if kind is None else [kind],
            compute_kernels=["dense" if kind == "data_parallel" else "fused"] if kind else ["fused", "dense"],
        )
        for one in question.tables
    }
    with torch.device("meta"):
        module = torch.nn.Module()
        module.bags = parts.EmbeddingBagCollection(
            device=torch.device("meta"),
            tables=[
                parts.EmbeddingBagConfig(
                    name=str(one.name), embedding_dim=one.dim, num_embeddings=one.rows, feature_names=[f"f{one.name}"]
                )
                for one in question.tables
            ],
        )
    gpu = layout.gpu
    planner = parts.EmbeddingShardingPlanner(
        topology=parts.Topology(
            world_size=layout.count,
            local_world_size=layout.gpus_per_node,
            compute_device="cuda",
            hbm_cap=int(TABLE_SHARE * gpu.memory_bytes),
            hbm_mem_bw=gpu.dram_bytes_per_second / 1000,  # bytes per millisecond
            intra_host_bw=link_bandwidth(gpu) / 1000,
        ),
        constraints=constraints,
        batch_size=question.batch,
    )
    try:
        plan = planner.plan(module, [parts.EmbeddingBagCollectionSharder()])
    except Exception:  # its own errors say that nothing fits
        return None, None
    rating = planner._perf_model.rate(plan=planner._best_plan) / 1000
    chosen = plan.plan["bags"]
    assigned = []
    for one in question.tables:
        own = chosen[str(one.name)]
        assigned.append(Assignment(one, own.sharding_type, own.ranks[0] if own.sharding_type == WHOLE else None))
    return float(rating), assigned


def plans_table(planned: Sequence[Planned]) -> Table:
    """Both planners' milliseconds of each way, ours first, and their best plans."""
    table = report_table(
        "Ways to share tables, milliseconds of the tables: ours / TorchRec's rating",
        ("tables", "on"),
        (*KINDS, "best of each", "TorchRec's best, by us", "pairs in the same order"),
        no_wrap=False,
    )
    for one in planned:
        cells = [f"{_milliseconds(one.ours[way])} / {_milliseconds(one.theirs[way])}" for way in (*KINDS, "best")]
        agreed = "-" if one.agreement is None else f"{100 * one.agreement:.0f} %"
        table.add_row(one.question.name, one.layout, *cells, _milliseconds(one.priced), agreed)
    return table


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds_to_milliseconds(seconds):.2f}"


def published(results: Sequence[DlrmResult]) -> tuple[PublishedCase, ...]:
    """Summarise the results by size of the tables, GPUs and precision."""
    names = {"AMP": "16 bits", "FP32": "float32", "TF32": "TF32"}
    rows = [
        ScoredRow(
            names=(f"DLRM, {one.case.size} tables, {one.case.batch:,} samples a GPU",),
            gpu=one.case.layout,
            step=StepDescription(kind="recommender", precision=names[one.case.precision]),  # type: ignore[arg-type]
            measured=one.measured_seconds,
            predicted=Interval(one.low_seconds, one.seconds, one.high_seconds),
        )
        for one in results
    ]
    return published_cases(rows, source="dlrm", split="held out")


def print_report(folder: Path, console: Console) -> tuple[PublishedCase, ...]:
    """Print the published rows if the folder has them, and the plans if torchrec is installed; return the rows."""
    path = folder / EXAMPLES_TABLE
    results = evaluate_dlrm(path) if path.is_file() else ()
    if results:
        console.print(dlrm_table(results))
    _print_plans(console)
    return published(results)


def _print_plans(console: Console) -> None:
    try:
        planned = compared_plans()
    except ImportError as error:
        console.print(f"No plans of TorchRec beside ours: {error}; see the top of {Path(__file__).name}.")
        return
    console.print(plans_table(planned))
    gains = [one.priced / best for one in planned if one.priced is not None and (best := one.ours["best"]) is not None]
    agreed = [one.agreement for one in planned if one.agreement is not None]
    console.print(
        f"Of pairs of ways, {100 * statistics.fmean(agreed):.0f} % are in the same order; TorchRec's best plan takes "
        f"{statistics.geometric_mean(gains):.2f} times as long as ours by our own times."
    )
