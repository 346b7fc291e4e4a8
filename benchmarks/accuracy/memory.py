"""Score predicted memory on what nvidia-smi showed of thousands of training runs.

The models of timm are read from recorded steps (`traces_memory/MODEL_BATCH.json.gz`) and, with a cache, recorded on the
meta device from timm itself. In these runs `cudnn.benchmark` was on, and 1,700 MiB of each process were its context
(both read off the rows, as the table says); the remainder is scored against the allocator's reserved memory, if it is
at least 1.7 GiB. Families that the workspaces of convolutions were chosen on are shown apart. Example::

    python -m benchmarks.accuracy validation --of memory --cache traces-of-timm
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.workloads.reformer import reformer_trace
from benchmarks.accuracy.workloads.vision import VisionStep, vision_trace
from benchmarks.training.report import report_table
from lightning_predict.base.checked import read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import GIBIBYTE, MEBIBYTE
from lightning_predict.hardware import gpu
from lightning_predict.memory.step_memory import fit_probability, step_memory
from lightning_predict.record.trace import Trace

TIMM_TABLE: Final = "memory_timm.csv.gz"
OTHER_TABLE: Final = "memory_other.csv.gz"
TRACES: Final = "traces_memory"
MILABENCH_TRACES: Final = Path("traces_new") / "milabench"
GPU: Final = gpu("A100-SXM-40GB")

CONTEXT_BYTES: Final = 1700 * MEBIBYTE
"""Of the processes of the table of timm, as its README says."""

MILABENCH_CONTEXT_BYTES: Final[Mapping[str, int]] = {"L40S": 920 * MEBIBYTE, "H100-SXM-80GB": 1275 * MEBIBYTE}
"""The same for milabench's processes."""

LEAST_BYTES: Final = 1.7 * GIBIBYTE
"""Own memory of the processes that are scored."""

CHOSEN_ON: Final = frozenset("byob coat convnext cspnet gcvit hgnet nasnet regnet vgg vovnet".split())
"""Families that the rule for workspaces was chosen on (`memory/libraries.py`)."""

VERDICT_SIZES: Final = tuple(gibibytes * GIBIBYTE for gibibytes in (4, 6, 8, 10, 12, 16, 20, 24, 32))
"""Memory of the cards that verdicts are given for, less the context."""

NEAR: Final = 0.15
"""Share of a card's memory: verdicts on steps as close to it count."""


def is_of_the_step(tensors_bytes: float, measured_bytes: float) -> bool:
    """Return whether a figure can belong to a step: it is at least the size of the tensors that live at a time.

    Args:
        tensors_bytes: These, as FakeTensor counted them.
        measured_bytes: The figure.
    """
    return tensors_bytes <= 1.25 * measured_bytes


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCase:
    """A run, and its prediction.

    Attributes:
        model: Its model.
        family: Family of the model.
        kind: `cnn`, `cnn-depthwise`, `hybrid`, `transformer` or `mlp`.
        batch: Samples of a step.
        status: `ok`, or the reason why the figure does not belong to the run.
        measured_bytes: Memory as shown by nvidia-smi, minus the context.
        peer_bytes: Estimate of another tool (FakeTensor in timm's table); None without an estimate.
        tensors_bytes: Tensors that live at the fullest moment, by our count.
        reserved: Prediction.
    """

    model: str
    family: str
    kind: str
    batch: int
    status: str
    measured_bytes: float
    peer_bytes: float | None
    tensors_bytes: float
    reserved: Interval[float]

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.reserved.middle / self.measured_bytes - 1

    @property
    def is_scored(self) -> bool:
        """True where the figure is one of the run, and the run is not all context."""
        is_a_step = self.peer_bytes is None or is_of_the_step(self.peer_bytes, self.measured_bytes)
        return self.status == "ok" and is_a_step and self.measured_bytes >= LEAST_BYTES


def timm_cases(folder: Path, cache: Path | None) -> tuple[MemoryCase, ...]:
    """Predict the runs whose step is recorded.

    Args:
        folder: Where the table and the recorded steps lie.
        cache: Folder of further steps; those that are missing are not recorded. None reads only the recordings of the
            folder.

    Raises:
        MeasurementTableError: A wrong table.
        MissingDependencyError: Steps are to be recorded, and timm is not installed.
    """
    columns = ("model", "family", "kind", "batch", "status", "measured_mib", "fake_tensor_mib", "image", "channels")
    cases = []
    for row in read_csv(folder / TIMM_TABLE, MeasurementTableError, columns=columns):
        values = row.value
        batch = int(row.member("batch").parsed().positive())
        trace = _timm_trace(folder, cache, values["model"], batch, int(row.member("image").parsed().positive()))
        if trace is None or values["channels"] != "3":
            continue
        trace = replace(trace, flags=replace(trace.flags, cudnn_benchmark=True))
        peer = float(values["fake_tensor_mib"]) * MEBIBYTE if values["fake_tensor_mib"] else None
        measured = row.member("measured_mib").parsed().positive() * MEBIBYTE - CONTEXT_BYTES
        case = _case(trace, values, measured, batch=batch, gpu_name=GPU.name, peer_bytes=peer)
        if case is not None:
            cases.append(case)
    return tuple(cases)


def timm_step(model: str, batch: int, image_size: int) -> VisionStep:
    """Return a training step as the table of timm's memory has it: float32, channels first."""
    return VisionStep(
        source="timm",
        model=model,
        mode="train",
        precision="single",
        layout="nchw",
        batch=batch,
        image_size=image_size,
    )


def _timm_trace(folder: Path, cache: Path | None, model: str, batch: int, image_size: int) -> Trace | None:
    if cache is not None:
        step = timm_step(model, batch, image_size)
        if (cache / step.file_name).is_file():
            return vision_trace(step, cache)
    path = folder / TRACES / f"{model}_{batch}.json.gz"
    return Trace.load(str(path)) if path.is_file() else None


def milabench_cases(folder: Path, cache: Path | None) -> tuple[MemoryCase, ...]:
    """Predict milabench's runs on a GPU of known context whose step is recorded; arguments, errors as for `timm_cases`.

    In these loops a variable keeps the inputs of the loss until the next step. With a cache, Reformer is recorded anew:
    in its step of the folder the backward pass ran under autocast, which the loop has left by then.
    """
    columns = ("source", "case", "family", "batch", "gpu", "measured_mib", "status")
    cases = []
    for row in read_csv(folder / OTHER_TABLE, MeasurementTableError, columns=columns):
        values = row.value
        context = MILABENCH_CONTEXT_BYTES.get(values["gpu"])
        path = folder / MILABENCH_TRACES / f"{values['case']}-{values['batch']}.json.gz"
        if values["source"] != "milabench" or context is None or not path.is_file():
            continue
        batch = int(values["batch"])
        if cache is not None and values["case"] == "reformer":
            trace = reformer_trace(batch, cache)
        else:
            trace = Trace.load(str(path))
        trace = with_held_outputs(trace)
        measured = float(values["measured_mib"]) * MEBIBYTE - context
        named = {"model": values["case"], "kind": values["gpu"], "family": values["family"], "status": values["status"]}
        case = _case(trace, named, measured, batch=batch, gpu_name=values["gpu"], peer_bytes=None)
        if case is not None:
            cases.append(case)
    return tuple(cases)


def with_held_outputs(trace: Trace) -> Trace:
    """Let a variable of the loop keep the input of the loss: the last large storage of the forward pass by a module."""
    written: dict[int, int] = {}
    losses = ("aten::_log_softmax", "aten::nll_loss", "aten::binary_cross_entropy", "aten::mse_loss")
    for operation in trace.operations:
        if operation.phase != "forward":
            continue
        if operation.name.startswith(losses) and operation.inputs and operation.inputs[0].id in written:
            held = operation.inputs[0].id
            gradients = _gradients(trace)
            return trace if held is None else replace(trace, held=(*gradients, held))
        written |= {tensor.id: tensor.size_bytes for tensor in operation.outputs if tensor.id is not None}
    return trace


def _gradients(trace: Trace) -> tuple[int, ...]:
    """List the storages that the backward pass writes for the optimizer."""
    for_update = {tensor.id for one in trace.operations if one.phase == "optimizer" for tensor in one.inputs}
    written = dict.fromkeys(tensor.id for one in trace.operations if one.phase == "backward" for tensor in one.outputs)
    return tuple(number for number in written if number is not None and number in for_update)


def _case(
    trace: Trace,
    values: Mapping[str, str],
    measured_bytes: float,
    *,
    batch: int,
    gpu_name: str,
    peer_bytes: float | None,
) -> MemoryCase | None:
    memory = step_memory(trace)
    if memory is None or measured_bytes <= 0:
        return None
    needed = float(memory.bytes_on(gpu(gpu_name)))
    return MemoryCase(
        model=values["model"],
        family=values["family"],
        kind=values["kind"],
        batch=batch,
        status=values["status"],
        measured_bytes=measured_bytes,
        peer_bytes=peer_bytes,
        tensors_bytes=float(memory.allocated_on(gpu(gpu_name)) - memory.workspace_bytes),
        reserved=memory.relative.scaled(needed),
    )


def slope(cases: Sequence[MemoryCase]) -> float | None:
    """Compute the predicted bytes of one more sample over the measured ones; None of one batch size."""
    first, last = min(cases, key=lambda one: one.batch), max(cases, key=lambda one: one.batch)
    measured = last.measured_bytes - first.measured_bytes
    if first.batch == last.batch or measured <= 0:
        return None
    return (last.reserved.middle - first.reserved.middle) / measured


def largest_batches(cases: Sequence[MemoryCase], total_bytes: float) -> tuple[float, float] | None:
    """Find the largest batch that fits by measured and by predicted lines; None where none was measured beyond it."""
    own = sorted(cases, key=lambda one: one.batch)
    if len(own) < 2 or own[-1].measured_bytes < total_bytes or own[0].measured_bytes > total_bytes:
        return None
    return tuple(  # type: ignore[return-value]
        _crossing([(one.batch, value(one)) for one in own], total_bytes) for value in (_measured, _predicted)
    )


def _measured(case: MemoryCase) -> float:
    return case.measured_bytes


def _predicted(case: MemoryCase) -> float:
    return case.reserved.middle


def _crossing(points: Sequence[tuple[int, float]], level: float) -> float:
    """Find where a line through points meets a level, by its last two points beyond them."""
    for (left, low), (right, high) in itertools.pairwise(points):
        if low <= level <= high:
            return left + (right - left) * (level - low) / (high - low)
    (left, low), (right, high) = points[-2:] if points[-1][1] < level else points[:2]
    return left + (right - left) * (level - low) / (high - low)


def error_table(cases: Sequence[MemoryCase], *, title: str, groups: Callable[[MemoryCase], str]) -> Table:
    """Errors by kind, with what tensors alone and the other tool would say."""
    table = report_table(
        title,
        ("runs",),
        (
            "n",
            "median |error| %",
            "within 10 %",
            "bias %",
            "tensors alone, median %",
            "FakeTensor, median %",
            "in 90 %",
            "width",
        ),
    )
    scored = [one for one in cases if one.is_scored]
    by_group = _grouped(scored, groups)
    for name, own in [*sorted(by_group.items()), ("all", scored)]:
        if own:
            table.add_row(name, *_error_cells(own))
    return table


def _error_cells(cases: Sequence[MemoryCase]) -> tuple[str, ...]:
    errors = [one.error for one in cases]
    tensors = [one.tensors_bytes / one.measured_bytes - 1 for one in cases]
    peers = [one.peer_bytes / one.measured_bytes - 1 for one in cases if one.peer_bytes]
    inside = [one.reserved.contains(one.measured_bytes) for one in cases]
    width = statistics.median(one.reserved.high / one.reserved.low for one in cases)
    return (
        str(len(cases)),
        _percent(statistics.median(map(abs, errors))),
        _percent(statistics.fmean(abs(error) <= 0.1 for error in errors), digits=0),
        f"{100 * statistics.median(errors):+.1f}",
        _percent(statistics.median(map(abs, tensors))),
        _percent(statistics.median(map(abs, peers))) if peers else "",
        _percent(statistics.fmean(inside), digits=0),
        f"{width:.2f}",
    )


def summary_table(groups: Mapping[str, Sequence[MemoryCase]]) -> Table:
    """Errors of reserved memory, by source."""
    table = report_table("Reserved memory", ("runs",), ("n", "median |error| %", "within 10 %", "in 90 %"))
    for name, cases in groups.items():
        own = [one for one in cases if one.is_scored]
        if own:
            count, middle, near, _, _, _, inside, _ = _error_cells(own)
            table.add_row(name, count, middle, near, inside)
    return table


def slope_table(cases: Sequence[MemoryCase]) -> Table:
    """Memory of one additional sample, predicted over measured."""
    table = report_table("One more sample, predicted over measured", ("kind",), ("models", "median", "5 %", "95 %"))
    slopes: dict[str, list[float]] = defaultdict(list)
    for own in _grouped([one for one in cases if one.is_scored], lambda one: one.model).values():
        found = slope(own)
        if found is not None:
            slopes[own[0].kind].append(found)
    for kind, values in sorted(slopes.items()):
        low, high = _quantiles(values)
        table.add_row(kind, str(len(values)), f"{statistics.median(values):.3f}", f"{low:.2f}", f"{high:.2f}")
    return table


def batch_table(cases: Sequence[MemoryCase]) -> Table:
    """The largest batch that fits cards of several sizes, between and a little beyond the batches that were run."""
    table = report_table(
        "Largest batch that fits, predicted over measured", ("kind",), ("n", "median", "within 10 %", "too large")
    )
    ratios: dict[str, list[float]] = defaultdict(list)
    for own in _grouped([one for one in cases if one.status == "ok"], lambda one: one.model).values():
        for size in VERDICT_SIZES:
            found = largest_batches(own, size)
            if found is not None:
                ratios[own[0].kind].append(found[1] / found[0])
    everything = [ratio for values in ratios.values() for ratio in values]
    for kind, values in [*sorted(ratios.items()), ("all", everything)]:
        if values:
            near = statistics.fmean(abs(ratio - 1) <= 0.1 for ratio in values)
            large = statistics.fmean(ratio > 1 for ratio in values)
            cells = (f"{statistics.median(values):.3f}", _percent(near, digits=0), _percent(large, digits=0))
            table.add_row(kind, str(len(values)), *cells)
    return table


def verdict_table(cases: Sequence[MemoryCase]) -> Table:
    """Whether it fits cards of several sizes, by the chance that was given."""
    table = report_table("Does it fit? By the chance that was given", ("chance",), ("verdicts", "chance", "fitted"))
    none = Interval(0.0, 0.0, 0.0)
    given = [
        (fit_probability(one.reserved, none, size), one.measured_bytes <= size, one.reserved.middle <= size, one, size)
        for one in cases
        if one.is_scored
        for size in VERDICT_SIZES
    ]
    for tenth in range(10):
        own = [each for each in given if tenth <= 10 * each[0] < tenth + 1 + (tenth == 9)]
        if own:
            chance = statistics.fmean(each[0] for each in own)
            fitted = statistics.fmean(each[1] for each in own)
            table.add_row(f"{10 * tenth}-{10 * tenth + 10} %", str(len(own)), _percent(chance), _percent(fitted))
    near = [each for each in given if abs(each[3].measured_bytes / each[4] - 1) <= NEAR]
    said = [each for each in given if each[0] >= 0.97]
    if near:
        table.add_row(
            "within 15 % of the card: right", str(len(near)), "", _percent(_share(e[1] == e[2] for e in near))
        )
    if said:
        table.add_row("said to fit", str(len(said)), "97 and more", _percent(_share(e[1] for e in said)))
    return table


def print_report(folder: Path, console: Console, *, cache: Path | None) -> None:
    """Print the summaries; errors as for `timm_cases`."""
    cases = timm_cases(folder, cache)
    title = "Memory of timm's runs on an A100, less the context"
    left_out = [one for one in cases if one.family not in CHOSEN_ON]
    console.print(error_table(cases, title=title, groups=lambda one: one.kind))
    console.print(
        error_table(left_out, title=f"{title}: families that nothing was chosen on", groups=lambda one: one.kind)
    )
    for table in (slope_table(left_out), batch_table(left_out), verdict_table(left_out)):
        console.print(table)
    found = milabench_cases(folder, cache)
    if found:
        title = "Milabench, less the context"
        console.print(error_table(found, title=title, groups=lambda one: f"{one.model}, {one.kind}"))
    groups = {
        "timm on an A100, families that nothing was chosen on": left_out,
        "milabench on an L40S and an H100": found,
    }
    console.print(summary_table(groups))


def _grouped(cases: Iterable[MemoryCase], key: Callable[[MemoryCase], str]) -> dict[str, list[MemoryCase]]:
    groups: dict[str, list[MemoryCase]] = defaultdict(list)
    for case in cases:
        groups[key(case)].append(case)
    return groups


def _share(values: Iterable[bool]) -> float:
    return statistics.fmean(values)


def _percent(value: float, *, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}"


def _quantiles(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[math.floor(0.05 * (len(ordered) - 1))], ordered[math.ceil(0.95 * (len(ordered) - 1))]
