"""Measure operations on the GPU at hand and write the tables.

One file per operation, with the columns of the public tables: GPU, operation, dtype, shape words, `latency_ms` (graph
replay, L2 flushed), and beside it `warm_ms`, `eager_ms`, how it was timed, clock and power, the software and the date.
A row of a call that no graph holds has `timed` eager: its time is not the device's alone, and `train` leaves it out.

All operations are measured in turns, those problems first that lie farthest apart, and each is written when it is done:
whenever a run ends, it has covered the range of every operation as well as its time allowed, and the next run goes on
where it stopped. Example::

    measure("tables", operations=["conv2d"], dtypes=["bfloat16", "tf32"], problems=200, minutes=30)
"""

from __future__ import annotations

import csv
import gzip
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final, final

import torch

from lightning_predict.checked import read_csv
from lightning_predict.errors import CaptureError, InvalidArgumentError, MeasurementTableError
from lightning_predict.extensions.own_weights.measuring.benchmarks import (
    BENCHMARKS,
    EAGER,
    Words,
    benchmark_of,
    draw_problems,
)
from lightning_predict.extensions.own_weights.measuring.clock import (
    KINDS,
    PROBLEM_SECONDS,
    REPLAYS,
    Timing,
    own_stream,
    time_call,
)
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.operations import operation_kind, operation_names, problem_batch
from lightning_predict.units import MEGA, minutes_to_seconds, seconds_to_milliseconds

DTYPES: Final = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
"""Compute dtype -> dtype of the tensors; `tf32` turns the two TF32 switches on."""

LARGEST_HOST_FLOP: Final = 2e8
LARGEST_HOST_BYTES: Final = 1e7
"""Problems beyond these are left out on a processor, where the command is only tried."""

SOURCE: Final = "own"
BY_GRAPH: Final = "graph"
EXTRA_COLUMNS: Final = (
    "latency_ms",
    "warm_ms",
    "eager_ms",
    "timed",
    "clock_mhz",
    "highest_clock_mhz",
    "power_watts",
    "power_limit_watts",
    "held_back_by",
    "software",
    "date",
    "source",
)

USUAL_UTILISATION: Final = 0.4
"""Share of its peaks that a GPU reaches, for an estimate of how long measuring takes: an assumption."""

SECONDS_AROUND: Final = 0.05
"""What making a problem's tensors and capturing its calls takes, for the same estimate: an assumption."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The outcome of a measuring run.

    Attributes:
        rows: Rows written.
        files: Files that hold rows of the operations asked for.
        skipped: Problems that did not fit in memory, take too long or are not supported, in words.
        eager: Rows among those written that no graph timed, in words; `train` leaves them out.
        known: Problems that were there from an earlier run.
        left: Problems that there was no time for.
    """

    rows: int
    files: tuple[Path, ...]
    skipped: tuple[str, ...]
    eager: tuple[str, ...] = ()
    known: int = 0
    left: int = 0


@final
@dataclass(frozen=True, slots=True)
class _Problem:
    """One problem of one operation in one dtype."""

    operation: str
    dtype: str
    words: Words

    def __str__(self) -> str:
        return f"{self.operation} {self.dtype} {self.words}"


def measure(
    folder: str | Path,
    *,
    operations: Sequence[str] = tuple(BENCHMARKS),
    dtypes: Sequence[str] = ("float32", "tf32", "float16", "bfloat16"),
    problems: int = 200,
    minutes: float | None = None,
    problem_seconds: float = PROBLEM_SECONDS,
    seed: int = 0,
    device: str = "cuda",
    gpu: str | None = None,
    is_trial: bool = False,
    announce: Callable[[int, float | None], None] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Measured:
    """Measure operations and write one table for each into a folder.

    Args:
        folder: Where the tables go; problems whose rows are there from an earlier run are not measured again.
        operations: Names from `benchmarks.BENCHMARKS`; each with its backward passes.
        dtypes: Keys of `DTYPES`.
        problems: Shapes per operation and dtype.
        minutes: Time after which no other problem is begun; None measures all.
        problem_seconds: Seconds that the repetitions of one call may take together; longer problems are left out.
        seed: Seed of the shapes.
        device: `cuda`; `cpu` times the host instead, for trying the command out.
        gpu: Our name of the GPU; None asks torch.
        is_trial: Leave out what takes a processor long, as nothing but the command is tried.
        announce: Called before the first problem with how many there are, and how many seconds they may take; None
            where that is not known.
        progress: Called before each problem with its operation, how many are done, and how many there are.
        clock: Seconds on a monotonic clock.

    Raises:
        CaptureError: No CUDA device, or one that a failed capture left unusable.
        InvalidArgumentError: An unknown dtype, fewer than one problem, or no time at all.
        MeasurementTableError: A table that is there has other columns.
        UnknownOperationError: An operation without a benchmark.
        UnknownGpuError: The catalogue does not hold this GPU; name it with `gpu`.
    """
    strangers = [dtype for dtype in dtypes if dtype not in DTYPES]
    if strangers or problems < 1:
        raise InvalidArgumentError(
            f"Got dtypes={list(dtypes)} and problems={problems}; expected dtypes out of {list(DTYPES)} and at least 1 "
            "problem."
        )
    if (minutes is not None and not minutes > 0) or not problem_seconds > 0:
        raise InvalidArgumentError(
            f"Got minutes={minutes} and problem_seconds={problem_seconds}; expected times above 0, or no minutes to "
            "measure everything."
        )
    check_device(device)
    name = name_of(device, gpu)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = {operation: target / f"own_{operation}.csv.gz" for operation in operations}
    known = {operation: _keys_of(path, operation) for operation, path in paths.items()}
    asked = problems_in_turns(operations, dtypes, problems, seed=seed)
    due = [one for one in asked if _key(name, one.operation, one.dtype, _columns(one)) not in known[one.operation]]
    record = find_gpu(name) if device == "cuda" else None
    if announce is not None:
        announce(len(due), None if record is None else estimate_seconds(due, record, problem_seconds=problem_seconds))
    until = math.inf if minutes is None else clock() + minutes_to_seconds(minutes)
    rows = done = 0
    skipped: list[str] = []
    eager: list[str] = []
    for one in due:
        if clock() >= until:
            break
        if progress is not None:
            progress(one.operation, done, len(due))
        done += 1
        reason = _reason_to_skip(one, record, is_trial=is_trial, problem_seconds=problem_seconds)
        found = () if reason else _timed(one, torch.device(device), problem_seconds)
        if isinstance(found, str) or reason:
            skipped.append(f"{one}: {reason or found}")
            continue
        new = [_row(name, operation, one, timing) for operation, timing in found]
        eager += [
            f"{operation} {one.dtype} {one.words}: {timing.reason}" for operation, timing in found if timing.reason
        ]
        _append(paths[one.operation], one.operation, new)
        rows += len(new)
    return Measured(
        rows=rows,
        files=tuple(path for path in paths.values() if path.is_file()),
        skipped=tuple(skipped),
        eager=tuple(eager),
        known=len(asked) - len(due),
        left=len(due) - done,
    )


def problems_in_turns(operations: Sequence[str], dtypes: Sequence[str], problems: int, *, seed: int) -> list[_Problem]:
    """Return the problems of all operations and dtypes in the order in which they are measured.

    First one problem of each, then the next of each, those that lie farthest apart first.
    """
    shapes = {name: spread_first(draw_problems(name, problems, seed=seed)) for name in operations}
    # Where bytes alone decide, all dtypes are one.
    own = {name: dtypes[:1] if operation_kind(name).element_bytes is not None else dtypes for name in operations}
    longest = max((len(found) for found in shapes.values()), default=0)
    return [
        _Problem(name, dtype, found[turn])
        for turn in range(longest)
        for name, found in shapes.items()
        if turn < len(found)
        for dtype in own[name]
    ]


def spread_first(problems: Sequence[Words]) -> list[Words]:
    """Order problems so that each is the farthest from all before it, in the logarithms of their sizes.

    The first is the one nearest to the middle.
    """
    left = [(words, {name: math.log2(value + 1) for name, value in words.items()}) for words in problems]
    if not left:
        return []
    middle = {name: math.fsum(one[name] for _, one in left) / len(left) for name in left[0][1]}
    place = min(range(len(left)), key=lambda index: _distance(left[index][1], middle))
    order = []
    nearest = [math.inf] * len(left)
    while left:
        words, chosen = left.pop(place)
        del nearest[place]
        order.append(words)
        nearest = [min(own, _distance(point, chosen)) for own, (_, point) in zip(nearest, left, strict=True)]
        place = max(range(len(left)), key=lambda index: nearest[index], default=0)
    return order


def _distance(one: dict[str, float], other: dict[str, float]) -> float:
    return math.fsum((value - other[name]) ** 2 for name, value in one.items())


def estimate_seconds(problems: Iterable[_Problem], gpu: Gpu, *, problem_seconds: float = PROBLEM_SECONDS) -> float:
    """Estimate how long measuring problems takes: their repetitions at a usual utilisation, and what is around them."""
    total = 0.0
    for one in problems:
        if _least_seconds(one, gpu) > problem_seconds:
            continue
        passes = 1 + sum(name.startswith(f"{one.operation}_backward") for name in operation_names())
        each = _least_seconds(one, gpu) / USUAL_UTILISATION
        total += passes * (min(KINDS * REPLAYS * each, problem_seconds) + SECONDS_AROUND)
    return total


def _least_seconds(problem: _Problem, gpu: Gpu) -> float:
    """Return the least that a forward pass can take, by the GPU's peaks."""
    batch = problem_batch(problem.operation, problem.dtype, **problem.words)
    is_matrix = batch.kind.units == "tensor"
    peak = (gpu.peak(problem.dtype) if is_matrix else None) or gpu.peak_flops_per_second["float32"]
    return max(float(batch.flops[0]) / peak, float(batch.bytes_moved[0]) / gpu.dram_bytes_per_second)


def _reason_to_skip(problem: _Problem, gpu: Gpu | None, *, is_trial: bool, problem_seconds: float) -> str | None:
    if is_trial and _is_large(problem):
        return "too large to try on a processor"
    if gpu is not None and (least := _least_seconds(problem, gpu)) > problem_seconds:
        return f"one call takes at least {least:.3g} s, over the limit of {problem_seconds:g} s a problem"
    return None


def _is_large(problem: _Problem) -> bool:
    """Return whether a processor would take seconds for one call."""
    batch = problem_batch(problem.operation, problem.dtype, **problem.words)
    return float(batch.flops[0]) > LARGEST_HOST_FLOP or float(batch.bytes_moved[0]) > LARGEST_HOST_BYTES


def _timed(problem: _Problem, device: torch.device, problem_seconds: float) -> list[tuple[str, Timing]] | str:
    """Time a problem's passes; a reason where it cannot run. Its tensors are gone afterwards."""
    try:
        with tf32_switched(allowed=problem.dtype == "tf32"), own_stream(device):
            calls = benchmark_of(problem.operation).calls(problem.words, DTYPES[problem.dtype], device)
            return [(name, time_call(call, device, problem_seconds=problem_seconds)) for name, call in calls.items()]
    except (torch.OutOfMemoryError, RuntimeError, NotImplementedError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0]


def check_device(device: str) -> None:
    """Check that there is a device of the kind.

    Raises:
        CaptureError: No CUDA device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise CaptureError("No CUDA device here to measure on. Run this where there is one (device='cpu' only tries).")


def name_of(device: str, gpu: str | None) -> str:
    """Return our name of the GPU to measure, `cpu` for a processor that no name was given for.

    Raises:
        UnknownGpuError: The catalogue does not hold it.
    """
    if gpu is not None:
        return find_gpu(gpu).name
    if device != "cuda":
        return "cpu"
    memory = torch.cuda.get_device_properties(0).total_memory
    return find_gpu(torch.cuda.get_device_name(0), memory_bytes=memory).name


def _append(path: Path, operation: str, rows: Sequence[dict[str, object]]) -> None:
    """Write rows behind those that are there: a file that is whole after each problem, however the run ends."""
    is_new = not path.is_file()
    with gzip.open(path, "at", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _header(operation), restval="")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


def _header(operation: str) -> list[str]:
    return ["gpu", "op", "dtype", *operation_kind(operation).shape, *EXTRA_COLUMNS]


_Key = tuple[str, str, str, tuple[str, ...]]


def _keys_of(path: Path, operation: str) -> Collection[_Key]:
    """Return which problems a table holds already.

    Raises:
        MeasurementTableError: A table of an earlier release, which does not say how its rows were timed.
    """
    if not path.is_file():
        return ()
    columns = _header(operation)
    rows = [row.value for row in read_csv(path, MeasurementTableError)]
    if rows and [*rows[0]] != columns:
        raise MeasurementTableError(
            f"{path} has other columns than this release writes, as it is from an earlier one: {', '.join(rows[0])}. "
            "Measure into another folder, or move it away."
        )
    shape = operation_kind(operation).shape
    return {_key(row["gpu"], row["op"], row["dtype"], {word: row[word] for word in shape}) for row in rows}


def _key(gpu: str, operation: str, dtype: str, columns: dict[str, str]) -> _Key:
    return gpu, operation, dtype, tuple(columns.values())


def _columns(problem: _Problem) -> dict[str, str]:
    """Return every word of the problem's shape as the table spells it, with those that the shape leaves out."""
    batch = problem_batch(problem.operation, problem.dtype, **problem.words)
    return {word: f"{batch.columns[word][0]:.15g}" for word in operation_kind(problem.operation).shape}


def _row(gpu: str, operation: str, problem: _Problem, timing: Timing) -> dict[str, object]:
    """Return one row: the device's own time, or the eager one if there is no other, which it says."""
    by_graph = timing.flushed_seconds is not None
    own = timing.eager_seconds if timing.flushed_seconds is None else timing.flushed_seconds
    state = timing.state
    return {
        "gpu": gpu,
        "op": operation,
        "dtype": problem.dtype,
        **_columns(problem),
        "latency_ms": f"{seconds_to_milliseconds(own):.6g}",
        "warm_ms": _text(None if timing.warm_seconds is None else seconds_to_milliseconds(timing.warm_seconds), "6g"),
        "eager_ms": f"{seconds_to_milliseconds(timing.eager_seconds):.6g}",
        "timed": BY_GRAPH if by_graph else EAGER,
        "clock_mhz": _text(None if state.clock_hz is None else state.clock_hz / MEGA, "0f"),
        "highest_clock_mhz": _text(None if state.highest_clock_hz is None else state.highest_clock_hz / MEGA, "0f"),
        "power_watts": _text(state.power_watts, "0f"),
        "power_limit_watts": _text(state.power_limit_watts, "0f"),
        "held_back_by": " ".join(state.held_back_by),
        "software": f"torch {torch.__version__}",
        "date": date.today().isoformat(),
        "source": SOURCE,
    }


def _text(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:.{form}}"


class tf32_switched:  # noqa: N801 (a context, used as `with tf32_switched(...)`)
    """TF32 on or off for products and convolutions while inside, as it was afterwards."""

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed

    def __enter__(self) -> None:
        self._before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self._allowed

    def __exit__(self, *exception: object) -> None:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = self._before
