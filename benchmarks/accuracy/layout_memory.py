"""Score predicted memory of tensor, pipeline and context parallelism on Megatron-LM's steps on eight B200.

SimuMax (github.com/MooreThreads/SimuMax, Apache-2.0) publishes torch's peaks of allocated and reserved memory, most of
all ranks, next to the tool's own results after its calibration on the same machine: Llama 3 70B cut to 12 layers,
bfloat16, micro-batches of one sample, distributed optimizer, float32 gradients, fused cross entropy. Example::

    python -m benchmarks.accuracy validation --of layout-memory --cache STEPS
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, final

from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.workloads.llama import LLAMA, llama_trace
from benchmarks.training.report import report_table
from lightning_predict.base.checked import read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import GIBIBYTE
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.fusion import fused
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.memory.rank_memory import RankMemory
from lightning_predict.memory.step_memory import MemoryNeed, StepMemory, step_memory
from lightning_predict.record.trace import Trace
from lightning_predict.step_predictor import memory_need_of

TABLE: Final = "simumax_steps.csv"
GPUS: Final = 8
LENGTH: Final = 4096
"""Tokens of a sample where the case names no other length."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutMemoryCase:
    """A row: measured memory, the peer's result, and the prediction.

    Attributes:
        name: Layout, length and micro-batches.
        measured: Allocated and reserved bytes.
        peer: The same by SimuMax.
        need_on: Prediction for the fullest GPU, of a memory size; None for the GPU's own.
    """

    name: str
    measured: tuple[float, float]
    peer: tuple[float, float]
    need_on: Callable[[float | None], MemoryNeed]

    @property
    def predicted(self) -> tuple[Interval[float], Interval[float]]:
        """Allocated and reserved bytes."""
        need = self.need_on(None)
        assert need.allocated is not None
        assert need.reserved is not None
        return need.allocated, need.reserved


def megatron_strategy(parallel: str, micro_batches: int) -> Strategy:
    """Return the strategy of a row, whose word has degrees such as `tp2cp4pp1`."""
    degrees = {name: int(count) for name, count in re.findall(r"(tp|cp|pp)(\d+)", parallel)}
    return Strategy(
        data="zero1",
        tensor=degrees.get("tp", 1),
        context=degrees.get("cp", 1),
        pipeline=degrees.get("pp", 1),
        micro_batches=1,
        accumulate=micro_batches,
        sequence=degrees.get("tp", 1) > 1,
        gather_again=True,
        reduce_dtype="float32",
        loss="fused",
    )


def layout_memory_cases(folder: Path, cache: Path | None) -> tuple[LayoutMemoryCase, ...]:
    """Predict the rows of `TABLE`.

    Args:
        folder: Folder of the table.
        cache: Folder of recorded steps; None records them anew.

    Raises:
        MeasurementTableError: A wrong table.
    """
    columns = ("case", "parallel", "layers", "micro_batches", "allocated_gib", "reserved_gib")
    layout, traces, ranks = Layout(gpu("B200"), GPUS), dict[int, Trace](), dict[int, RankMemory]()
    cases = []
    for row in read_csv(folder / TABLE, MeasurementTableError, columns=columns):
        words = row.value
        found = re.search(r"seq(\d+)", words["case"])
        length = LENGTH if found is None else int(found[1])
        if length not in traces:
            traces[length] = _trace(int(words["layers"]), length, cache)
        strategy = megatron_strategy(words["parallel"], int(words["micro_batches"]))
        memory = step_memory(traces[length])
        assert memory is not None
        cases.append(
            LayoutMemoryCase(
                name=f"{words['parallel']}, {length:,} tokens, {words['micro_batches']}",
                measured=_bytes(words, ""),
                peer=_bytes(words, "simumax_"),
                need_on=partial(_need, (traces[length], memory), layout, strategy, ranks),
            )
        )
    return tuple(cases)


def _need(
    of: tuple[Trace, StepMemory],
    layout: Layout,
    strategy: Strategy,
    ranks: dict[int, RankMemory],
    size_bytes: float | None,
) -> MemoryNeed:
    return memory_need_of([of], layout, strategy, reported_bytes=size_bytes, ranks=ranks)


def _bytes(words: Mapping[str, str], prefix: str) -> tuple[float, float]:
    allocated, reserved = (float(words[f"{prefix}{kind}_gib"]) * GIBIBYTE for kind in ("allocated", "reserved"))
    return allocated, reserved


def _trace(layers: int, length: int, cache: Path | None) -> Trace:
    """Record one sample; Transformer Engine's norms and activations are taken to be as fused as a compiler's."""
    path = None if cache is None else cache / f"simumax-{layers}-{length}.json.gz"
    if path is not None and path.is_file():
        return fused(Trace.load(str(path)))
    trace = llama_trace(replace(LLAMA["llama3-70b"], layers=layers), length=length, batch=1)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        trace.save(str(path))
    return fused(trace)


def rows_table(cases: Sequence[LayoutMemoryCase]) -> Table:
    """Each row, and the median error of both tools."""
    names = ("allocated", "reserved")
    numbers = tuple(f"{kind} {what}" for kind in names for what in ("GiB", "error %", "in 90 %", "SimuMax %"))
    table = report_table("Megatron-LM on eight B200: memory of the fullest GPU", ("layout",), numbers, no_wrap=False)
    errors: dict[tuple[str, str], list[float]] = {(kind, tool): [] for kind in names for tool in ("ours", "peer")}
    inside = dict.fromkeys(names, 0)
    for case in cases:
        cells = list[str]()
        for kind, measured, peer, ours in zip(names, case.measured, case.peer, case.predicted, strict=True):
            own, other = ours.middle / measured - 1, peer / measured - 1
            errors[kind, "ours"].append(abs(own))
            errors[kind, "peer"].append(abs(other))
            inside[kind] += ours.contains(measured)
            is_in = "yes" if ours.contains(measured) else "no"
            cells += [f"{measured / GIBIBYTE:.2f}", f"{100 * own:+.1f}", is_in, f"{100 * other:+.1f}"]
        table.add_row(case.name, *cells)
    ends = list[str]()
    for kind in names:
        middles = [f"{100 * statistics.median(errors[kind, tool]):.1f}" for tool in ("ours", "peer")]
        ends += ["", middles[0], f"{inside[kind]} of {len(cases)}", middles[1]]
    table.add_row("median |error|", *ends)
    return table


def print_report(folder: Path, console: Console, *, cache: Path | None) -> None:
    """Print the table; errors as for `layout_memory_cases`."""
    console.print(rows_table(layout_memory_cases(folder, cache)))
