"""Compare predictions at burst and at sustained rates with SimuMax's operators on a B200 and an A100-PCIe.

    python -m benchmarks.accuracy.sustained MEASUREMENTS

SimuMax times a matmul or grouped matmul in a loop, after a warm-up in the same loop (`LOOPS`). Each pass of attention
waits for the previous one, so only a pass of more than 5 ms is sustained work. A B200 lowers its clock after about 5 ms
of load (github.com/flashinfer-ai/flashinfer/pull/2899), so the first 5 ms of a loop are predicted at the burst rate.
The rate of 1,103 TFLOP/s in the catalogue is the median of 20 forward matmuls; other matmuls and attention were not
used for it. Rows below `SHORTEST_SECONDS` are left out. A grouped matmul is one matmul for each group, as Transformer
Engine runs it.

The last table says which kinds of work reach the power limit, in the own measurements on an H200. Example::

    operators = read_operators(Path("measurements/simumax_operators.csv"))
    rates_table(operators)
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

import numpy as np
from rich.table import Table

from benchmarks.accuracy.own_gpu import FOLDER
from benchmarks.result_files import ResultConsole, write_run
from benchmarks.scored_steps import WIDTH
from benchmarks.training.report import report_table
from lightning_predict.base.checked import Checked, read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import MICROSECOND, teraflops_to_flops
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.kernels.corrections import sustained_factors
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import OperationShape, problem
from lightning_predict.kernels.timing import predict_operation_times

TABLE: Final = "simumax_operators.csv"

SHORTEST_SECONDS: Final = 50 * MICROSECOND
THROTTLING_SECONDS: Final = 5e-3
"""Load after which a B200 lowers its clock."""

LOOPS: Final = {"products": (25, 75), "grouped products": (10, 40)}
"""Calls before the timer and calls that it times, in one loop."""

LONG_LOOP_SECONDS: Final = 10 * THROTTLING_SECONDS
"""Loops of matmuls that are this long are throttled for nine tenths of their time."""

PASS_FLOPS: Final = {"sdp_fwd": 2.0, "sdp_bwd": 5.0}
"""FLOPs per score and head dimension that SimuMax counts, for all scores, although the mask is causal."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A row of the table.

    Attributes:
        gpu: Name of the GPU.
        kind: Kind of work and duration of the load.
        shape: Operation that is predicted.
        count: Number of these operations in a call.
        measured: Seconds of one call.
        burst: Predicted seconds in a burst; NaN before the prediction.
        predicted: Predicted seconds at the sustained rate, with their interval; at the burst rate without load. None
            before the prediction.
    """

    gpu: str
    kind: str
    shape: OperationShape
    measured: float
    count: int = 1
    burst: float = math.nan
    predicted: Interval[float] | None = None

    @property
    def error(self) -> float:
        """Prediction over measurement, less one."""
        return math.nan if self.predicted is None else self.predicted.middle / self.measured - 1

    @property
    def is_inside(self) -> bool:
        """Whether the interval contains the measured time."""
        return self.predicted is not None and self.predicted.low <= self.measured <= self.predicted.high


def read_operators(path: Path) -> tuple[Operator, ...]:
    """Read and predict the rows.

    Raises:
        MeasurementTableError: A wrong column or value.
    """
    by_gpu: dict[str, list[Operator]] = defaultdict(list)
    for row in read_csv(path, MeasurementTableError, columns=("gpu", "operation", "shape", "tflops")):
        one = _operator(row)
        if one.measured >= SHORTEST_SECONDS:
            by_gpu[one.gpu].append(one)
    return tuple(one for gpu, members in by_gpu.items() for one in _predicted(gpu, members))


def _operator(row: Checked) -> Operator:
    words = dict(part.strip().split("=", 1) for part in row.member("shape").text().split(","))
    operation = row.member("operation").text()
    rate = teraflops_to_flops(row.member("tflops").parsed().positive())
    if operation in PASS_FLOPS:
        heads, seq = int(words["head_num"]), int(words["seq_len"])
        both_dims = int(words["qk_head_dim"]) + int(words["v_head_dim"])
        measured = PASS_FLOPS[operation] * int(words["batch"]) * seq**2 * heads * both_dims / rate
        shape = problem(
            "causal_attention" + ("_backward" if operation == "sdp_bwd" else ""),
            "bfloat16",
            batch=int(words["batch"]),
            heads=heads,
            kv_heads=int(words["kv_head_num"]),
            seq=seq,
            head_dim=both_dims / 2,
        )
        kind = f"attention, passes {'over' if measured > THROTTLING_SECONDS else 'under'} 5 ms"
        return Operator(gpu=row.value["gpu"], kind=kind, shape=shape, measured=measured)
    count, m, n, k = (int(words[name]) for name in (("ng", "M", "N", "K") if "ng" in words else ("b", "m", "n", "k")))
    measured = 2.0 * count * m * n * k / rate
    if "ng" in words:
        # The result is (rows, columns), and the sum runs over the last dimension.
        dims = {"fwd": (m, n, k), "bwd_grad_act": (m, k, n), "bwd_grad_w": (n, k, m)}[words["stage"]]
        shape = problem("linear", "bfloat16", m=dims[0], n=dims[1], k=dims[2])
        kind = f"grouped products, {GROUPED_PASSES[words['stage']]}"
        return Operator(gpu=row.value["gpu"], kind=kind, shape=shape, measured=measured, count=count)
    length = "over" if sum(LOOPS["products"]) * measured > LONG_LOOP_SECONDS else "under"
    kind = f"products, {PASSES[words['layout']]}, loops {length} 50 ms"
    shape = problem("linear", "bfloat16", m=count * m, n=n, k=k)
    return Operator(gpu=row.value["gpu"], kind=kind, shape=shape, measured=measured)


PASSES: Final = {"TN": "forward", "NN": "input gradient", "NT": "weight gradient"}
"""Pass of a linear layer by the layout of its operands."""


GROUPED_PASSES: Final = {"fwd": "forward", "bwd_grad_act": "input gradient", "bwd_grad_w": "weight gradient"}


def _predicted(name: str, rows: Sequence[Operator]) -> list[Operator]:
    gpu, models = find_gpu(name), kernel_models((name,))
    shapes = [one.shape for one in rows]
    times = predict_operation_times(shapes, [gpu], models)
    factors = np.broadcast_to(sustained_factors(shapes, [gpu], times.seconds, models), times.seconds.shape)[0]
    found = []
    for column, one in enumerate(rows):
        own: Interval[float] = times.interval.map(lambda ends, column=column: float(ends[0, column]))
        whole = own.scaled(one.count)
        share = sustained_share(one.kind.split(",")[0], one.measured, whole.middle)
        slower = 1 + share * (float(factors[column]) - 1)
        found.append(replace(one, burst=whole.middle, predicted=whole.scaled(slower)))
    return found


def sustained_share(kind: str, measured: float, burst: float) -> float:
    """Return the share of the timed calls that start after `THROTTLING_SECONDS` of load.

        >>> sustained_share("products", 1e-3, 1e-3), sustained_share("products", 1e-4, 1e-4)
        (1.0, 0.6666666666666667)

    Args:
        kind: Kind of work: a key of `LOOPS`, or attention, whose passes wait for each other.
        measured: Seconds of one call.
        burst: Predicted seconds of one call in a burst.
    """
    if kind not in LOOPS:
        return float(measured > THROTTLING_SECONDS)
    before, timed = LOOPS[kind]
    return 1 - min(max(THROTTLING_SECONDS / burst - before, 0.0), timed) / timed


HEADINGS: Final = ("n", "burst mean %", "burst bias %", "mean %", "median %", "bias %", "in 90 %")


def rates_table(operators: Sequence[Operator]) -> Table:
    """Return errors at the burst rate and at the sustained rate, by GPU and kind of work."""
    table = report_table("Operators of SimuMax at burst and sustained rates", ("GPU", "kind"), HEADINGS)
    for gpu in dict.fromkeys(one.gpu for one in operators):
        mine = [one for one in operators if one.gpu == gpu]
        for kind in sorted({one.kind for one in mine}):
            table.add_row(gpu, kind, *_cells([one for one in mine if one.kind == kind]))
        table.add_row(gpu, "all", *_cells(mine))
        table.add_section()
    for word in ("products", "grouped", "attention"):
        table.add_row("all", word, *_cells([one for one in operators if one.kind.startswith(word)]))
    table.add_row("all", "all", *_cells(operators))
    return table


def _cells(rows: Sequence[Operator]) -> tuple[str, ...]:
    if not rows:
        return ("0", *["-"] * (len(HEADINGS) - 1))

    burst = [100 * (one.burst / one.measured - 1) for one in rows]
    found = [100 * one.error for one in rows]
    return (
        str(len(rows)),
        f"{statistics.fmean(map(abs, burst)):.1f}",
        f"{statistics.median(burst):+.1f}",
        f"{statistics.fmean(map(abs, found)):.1f}",
        f"{statistics.median(map(abs, found)):.1f}",
        f"{statistics.median(found):+.1f}",
        f"{100 * statistics.fmean(one.is_inside for one in rows):.0f}",
    )


POWER_KINDS: Final = {"linear": "products", "bmm": "products", "conv2d": "convolutions", "attention": "attention"}
"""Kinds of work on matrix units by operation; all other operations are memory-bound."""


def power_table(folder: Path = FOLDER / "operators") -> Table:
    """Return how often the power limit lowered the clock in the own measurements on an H200, by kind of work.

    Raises:
        MeasurementTableError: A file has a wrong column or value.
    """
    rows: dict[str, list[Checked]] = defaultdict(list)
    for path in sorted(folder.glob("own_*.csv.gz")):
        kind = POWER_KINDS.get(path.name.removeprefix("own_").removesuffix(".csv.gz"), "memory-bound work")
        rows[kind] += read_csv(path, MeasurementTableError)
    table = report_table(
        "Power limit in own measurements on an H200",
        ("kind",),
        ("n", "limited by power", "lowest clock MHz", "highest power W"),
    )
    for kind, own in sorted(rows.items()):
        limited = sum(row.value["held_back_by"] == "power" for row in own)
        table.add_row(kind, str(len(own)), str(limited), _end(min, own, "clock_mhz"), _end(max, own, "power_watts"))
    return table


def _end(of: Callable[..., float], rows: Sequence[Checked], column: str) -> str:
    return f"{of(row.member(column).parsed().positive() for row in rows if row.value[column]):.0f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy.sustained", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("folder", type=Path, help="folder with the measurement tables")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    console = ResultConsole(width=WIDTH)
    console.print(rates_table(read_operators(options.folder / TABLE)))
    console.print(power_table())
    write_run(console, "sustained", options.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
