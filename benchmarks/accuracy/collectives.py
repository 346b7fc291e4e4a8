"""Score collectives and the steps of cards without NVLink: `nccl.csv`, `sia.csv`, `milabench.csv`.

nccl-tests print bus bandwidths of large messages; each row is predicted by the name of its GPU alone, once with the
kind of machine that its table describes and once without. Sia's and milabench's tables have steps on one to eight cards
at the same local batch: their ratio to one card's step is predicted, of one recorded step of each model, as where in it
gradients are ready hardly goes by the batch. Shares of PCIe links were read off these tables
(`kernels/interconnect.py`), so that they are training data for those.
Example::

    for table in collective_tables(Path("validation")):
        Console().print(table)
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final, final

from rich.table import Table

from benchmarks.accuracy.published_steps import RECORDED
from benchmarks.accuracy.workloads.cifar import cifar_resnet18_trace
from benchmarks.training.report import report_table
from lightning_predict.base.checked import read_csv
from lightning_predict.base.errors import LightningPredictError, MeasurementTableError
from lightning_predict.base.interval import Interval
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.interconnect import CATALOGUE, Interconnect, bus_factor
from lightning_predict.kernels.models import kernel_models
from lightning_predict.layouts.layout_steps import MultiGpuStep
from lightning_predict.layouts.single_gpu import PredictionContext, single_steps
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.record.trace import Trace
from lightning_predict.timeline.host import UNKNOWN_HOST
from lightning_predict.timeline.step_prediction import StepPrediction

NCCL_TABLE: Final = "nccl.csv"
SIA_TABLE: Final = "sia.csv"
MILABENCH_TABLE: Final = "milabench.csv"


@final
@dataclass(frozen=True, slots=True)
class BusCase:
    """A row of `nccl.csv`.

    Attributes:
        layout: The GPUs.
        operation: The collective.
        message_bytes: Its message.
        busbw: Bytes per second that were printed.
        kind: The table's statement about machines without NVLink, a key of `PCIE_MACHINES`; None of those with.
        source: Where it is from.
    """

    layout: Layout
    operation: str
    message_bytes: float
    busbw: float
    kind: str | None
    source: str

    def predicted(self, interconnect: Interconnect = CATALOGUE) -> Interval[float]:
        """Bus bandwidth as predicted, as training assumes it: with the spread of machines."""
        from lightning_predict.layouts.overlap import Links

        (ends,) = Links(self.layout, interconnect, 1.0).collective(self.operation, [self.message_bytes])
        size = bus_factor(self.operation, self.layout.count) * self.message_bytes
        return Interval(size / float(ends[2]), size / float(ends[1]), size / float(ends[0]))


BRIDGE: Final = "NVLink bridge"
"""Link of a pair of PCIe cards that an NVLink bridge joins, which no kind of machine without NVLink is."""


def read_bus_cases(path: Path) -> tuple[BusCase, ...]:
    """Read the rows of one machine, or of several of the same number of GPUs, whose GPU the catalogue has.

    Pairs with a bridge are left out.

    Raises:
        MeasurementTableError: A missing column, or a value that is not a positive number.
    """
    columns = ("gpu", "gpus", "nodes", "operation", "message_bytes", "busbw_gb_s", "p2p", "link", "topology")
    cases = []
    for row in read_csv(path, MeasurementTableError, columns=columns):
        count, nodes = (row.member(name).parsed().integer(minimum=1) for name in ("gpus", "nodes"))
        try:
            gpu = find_gpu(row.value["gpu"])
        except LightningPredictError:
            continue
        if count % nodes or row.value["operation"] not in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
            continue
        if row.value["link"] == BRIDGE:
            continue
        cases.append(
            BusCase(
                layout=Layout(gpu, count // nodes, nodes),
                operation=row.value["operation"],
                message_bytes=row.member("message_bytes").parsed().positive("in bytes"),
                busbw=row.member("busbw_gb_s").parsed().positive("in GB/s") * 1e9,
                kind=_kind(row.value) if gpu.nvlink_bytes_per_second is None else None,
                source=f"{row.value.get('source', '')} {row.value['topology']}",
            )
        )
    return tuple(cases)


def _kind(row: dict[str, str]) -> str:
    """Tell what joins a row's cards, of what its table says."""
    topology = row["topology"].casefold()
    if row["p2p"] == "off":
        return "virtual" if "container" in topology or "same box" in topology else "host"
    return "switch" if "switch" in topology else "root"


@final
@dataclass(frozen=True, slots=True)
class RatioCase:
    """Steps on several cards of one machine over that on one.

    Attributes:
        source: The table.
        model: Model that is trained.
        layout: The cards.
        step: File of a recorded step; None records ResNet-18 for CIFAR.
        batch: Samples of each card.
        single_seconds: The step on one.
        seconds: The step on all.
    """

    source: str
    model: str
    layout: Layout
    step: Path | None
    batch: int
    single_seconds: float
    seconds: float

    def predicted(self, interconnect: Interconnect = CATALOGUE) -> Interval[float]:
        """Seconds of the step on all, from that on one."""
        shared, step = _shared_step(self.step, self.layout.gpu.name)
        single = replace(step, interval=Interval(*[self.single_seconds] * 3))
        return shared.on_layout(self.layout, single, 0, Strategy(), interconnect).interval


CIFAR_BATCH: Final = 256


@lru_cache
def _shared_step(step: Path | None, gpu: str) -> tuple[MultiGpuStep, StepPrediction]:
    """Return a step ready to be shared, and its time on one card."""
    trace = cifar_resnet18_trace(CIFAR_BATCH) if step is None else Trace.load(str(step))
    gpus, models = (find_gpu(gpu),), kernel_models((gpu,), None)
    single = single_steps(trace, PredictionContext(gpus, None, models, "auto", UNKNOWN_HOST, CATALOGUE))
    return MultiGpuStep(single.trace, single.timed, gpus, models=models, host=single.host), single.steps[0]


SIA_MODELS: Final = {"imagenet": "sia/imagenet-200.json.gz", "bert": "sia/bert-24.json.gz", "cifar10": None}
"""Recorded steps of the models of `sia.csv` that can be rebuilt: ResNet-50, BERT for SQuAD, ResNet-18 for CIFAR."""

RESNET_152: Final = "milabench/lightning-128.json.gz"

LEAST_SECONDS: Final = 0.1
"""Shorter steps of Sia's table wait for loaders and AdaptDL's statistics."""


def read_sia_ratios(path: Path) -> Iterator[RatioCase]:
    """Read `sia.csv`: placements in one machine, of the cards and models that are known."""
    steps: dict[tuple[str, str, int, int], list[float]] = defaultdict(list)
    for row in read_csv(
        path, MeasurementTableError, columns=("app", "gpu", "kind", "n_nodes", "n_gpus", "local_batch")
    ):
        value = row.value
        if value["kind"] == "placements" and value["n_nodes"] == "1" and value["gpu"] and value["app"] in SIA_MODELS:
            seconds = row.member("step_seconds").parsed().positive("in seconds")
            count, batch = (int(float(value[name])) for name in ("n_gpus", "local_batch"))
            steps[value["app"], value["gpu"], batch, count].append(seconds)
    for (app, gpu, batch, count), times in sorted(steps.items()):
        alone = steps.get((app, gpu, batch, 1))
        if count == 1 or alone is None or statistics.median(alone) < LEAST_SECONDS:
            continue
        layout, file = Layout(find_gpu(gpu), count), SIA_MODELS[app]
        step = None if file is None else path.parent / RECORDED / file
        yield RatioCase("sia", app, layout, step, batch, statistics.median(alone), statistics.median(times))


def read_milabench_ratios(path: Path) -> Iterator[RatioCase]:
    """Read `milabench.csv`: ResNet-152 on one and on four cards at the same local batch."""
    rows = [row.value for row in read_csv(path, MeasurementTableError, columns=("gpu", "n_gpus", "bench", "step_ms"))]
    alone = {
        (row["gpu"], row["batch_size"]): float(row["step_ms"]) / 1e3
        for row in rows
        if row["n_gpus"] == "1" and row["bench"] == "lightning"
    }
    for row in rows:
        single = alone.get((row["gpu"], row["batch_size"]))
        if row["n_gpus"] in ("", "1") or single is None or "152" not in row["model"]:
            continue
        layout = Layout(find_gpu(row["gpu"]), int(row["n_gpus"]))
        batch, seconds = int(row["batch_size"]), float(row["step_ms"]) / 1e3
        step = path.parent / RECORDED / RESNET_152
        yield RatioCase("milabench", row["bench"], layout, step, batch, single, seconds)


def collective_tables(folder: Path) -> Iterator[Table]:
    """All tables of the report, of the tables that the folder has."""
    if (folder / NCCL_TABLE).is_file():
        yield _bus_table(read_bus_cases(folder / NCCL_TABLE))
    ratios: list[RatioCase] = []
    if (folder / SIA_TABLE).is_file():
        ratios += read_sia_ratios(folder / SIA_TABLE)
    if (folder / MILABENCH_TABLE).is_file():
        ratios += read_milabench_ratios(folder / MILABENCH_TABLE)
    if ratios:
        yield _ratio_table(ratios)


GROUPS: Final[Sequence[tuple[str, Callable[[BusCase], bool]]]] = (
    ("NVLink, one machine", lambda one: one.kind is None and one.layout.nodes == 1),
    ("NVLink, several machines", lambda one: one.kind is None and one.layout.nodes > 1),
    ("no NVLink, several machines", lambda one: one.kind is not None and one.layout.nodes > 1),
)


def _bus_table(cases: Sequence[BusCase]) -> Table:
    table = report_table(
        "Bus bandwidth of large messages (nccl.csv): |predicted / measured - 1|",
        ("machines",),
        ("rows", "median %", "worst (x)", "bias %", "in 90 %", "high / low"),
    )
    for name, belongs in GROUPS:
        own = [one for one in cases if belongs(one)]
        if own:
            _add_bus(table, name, [(one, one.predicted()) for one in own])
    known = [one for one in cases if one.kind is not None and one.layout.nodes == 1]
    if known:
        for name, own in (("each row", known), ("one row a machine", one_a_machine(known))):
            _add_bus(table, f"no NVLink, one machine, kind not known, {name}", [(one, one.predicted()) for one in own])
            told = [(one, one.predicted(Interconnect(pcie=one.kind))) for one in own]
            _add_bus(table, f"no NVLink, one machine, kind told, {name}", told)
    return table


def one_a_machine(cases: Sequence[BusCase]) -> list[BusCase]:
    """Keep the largest message of each machine, by card and source: a machine's others err as it does."""
    largest: dict[tuple[str, str], BusCase] = {}
    for case in sorted(cases, key=lambda case: case.message_bytes):
        largest[case.layout.gpu.name, case.source] = case
    return list(largest.values())


def _add_bus(table: Table, name: str, rows: Sequence[tuple[BusCase, Interval[float]]]) -> None:
    logs = [math.log(found.middle / one.busbw) for one, found in rows]
    table.add_row(
        name,
        str(len(rows)),
        f"{100 * statistics.median(abs(math.expm1(one)) for one in logs):.1f}",
        f"{math.exp(max(map(abs, logs))):.1f}",
        f"{100 * math.expm1(statistics.median(logs)):+.1f}",
        f"{100 * statistics.fmean(found.low <= one.busbw <= found.high for one, found in rows):.0f}",
        f"{statistics.median(found.high / found.low for _, found in rows):.1f}",
    )


def _ratio_table(cases: Sequence[RatioCase]) -> Table:
    table = report_table(
        "Steps of several cards over that of one, same local batch, DDP: predicted less measured, in % of the step",
        ("cards",),
        ("rows", "measured +%", "predicted +%", "bias", "mean |error|", "in 90 %"),
    )
    groups: dict[str, list[RatioCase]] = defaultdict(list)
    for one in cases:
        groups[f"{one.source} {one.model}, {one.layout.name}"].append(one)
    for name, own in sorted(groups.items()):
        _add_ratio(table, name, own)
    table.add_section()
    _add_ratio(table, "all", cases)
    return table


def _add_ratio(table: Table, name: str, cases: Sequence[RatioCase]) -> None:
    found = [one.predicted() for one in cases]
    measured = [100 * (one.seconds / one.single_seconds - 1) for one in cases]
    predicted = [100 * (own.middle / one.single_seconds - 1) for one, own in zip(cases, found, strict=True)]
    errors = [100 * (own.middle / one.seconds - 1) for one, own in zip(cases, found, strict=True)]
    table.add_row(
        name,
        str(len(cases)),
        f"{statistics.fmean(measured):+.1f}",
        f"{statistics.fmean(predicted):+.1f}",
        f"{statistics.fmean(errors):+.1f}",
        f"{statistics.fmean(map(abs, errors)):.1f}",
        f"{100 * statistics.fmean(o.low <= c.seconds <= o.high for c, o in zip(cases, found, strict=True)):.0f}",
    )
