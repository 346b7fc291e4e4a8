"""Command `measure`: times operations on this machine's GPU, and writes tables (micro-benchmarks).

There is one file per operation, with the columns of the public tables: GPU, operation, dtype, shape parameters and
`latency_ms` (graph replay with flushed L2). Further columns are `warm_ms`, `eager_ms`, the method, clock and power, the
software and the date. A call that cannot be captured in a graph has "eager" in the column `timed`. Its time includes
launches, and `train` ignores the row.

The most useful shapes are measured first (`order.py`), and every row is written immediately, so an interrupted run can
be continued. If an operation fails repeatedly in a dtype, it is not tried again. Example::

    measure("tables", operations=["conv2d"], dtypes=["bfloat16", "tf32"], problems=200, minutes=30)
"""

from __future__ import annotations

import csv
import gzip
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Final, final

import numpy as np
import torch

from lightning_predict.base.checked import read_csv
from lightning_predict.base.errors import CaptureError, InvalidArgumentError, MeasurementTableError
from lightning_predict.base.units import MEGA, minutes_to_seconds, seconds_to_milliseconds
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.operations import Array, network_spec, operation_spec, shape_batch
from lightning_predict.own_weights.measuring.benchmarks import BENCHMARKS, EAGER, benchmark_of
from lightning_predict.own_weights.measuring.clock import (
    NOT_CUDA,
    PROBLEM_SECONDS,
    REPETITION_KINDS,
    REPLAYS,
    Timing,
    own_stream,
    time_call,
)
from lightning_predict.own_weights.measuring.order import MeasuringProblem, problems_by_worth
from lightning_predict.own_weights.training.factors import is_enough_for_a_factor
from lightning_predict.own_weights.training.tables import read_own_tables
from lightning_predict.own_weights.training.tuning import MIN_OWN_ROWS, fitted_rows

DTYPES: Final = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
"""dtype of the tensors by compute dtype. `tf32` also turns on both TF32 switches of torch."""

LARGEST_HOST_FLOP: Final = 2e8
LARGEST_HOST_BYTES: Final = 1e7
"""Maximum bytes of a shape on a CPU, where only the command is tested."""

MAX_FAILURES: Final = 2
"""Number of consecutive failed shapes after which an operation is not tried again in a dtype."""

SHAPE_FAILURES: Final = ("over the limit of", "out of memory", "CUDA out of memory")
"""Parts of error messages that depend on the shape."""

NOT_IMPLEMENTED: Final = "not implemented"
"""Part of torch's error message if an operation does not support a dtype."""

NOT_AGAIN: Final = " (not tried again in this dtype)"

SOURCE: Final = "own"
BY_GRAPH: Final = "graph"
EXTRA_COLUMNS: Final = (
    *("latency_ms", "warm_ms", "eager_ms", "sustained_ms", "timed"),
    *("clock_mhz", "sustained_clock_mhz", "highest_clock_mhz"),
    *("power_watts", "power_limit_watts", "held_back_by", "software", "date", "source"),
)

USUAL_UTILISATION: Final = 0.4
"""Assumed share of the peak rates that a GPU reaches, to estimate the duration of a measurement."""

SECONDS_AROUND: Final = 0.05
"""Assumed seconds to create the tensors of a shape and to capture its calls, to estimate the duration of a
measurement."""

LOAD_SECONDS: Final = 1.0
"""Duration of the load at whose end a sustained time is measured."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Result of a measuring run.

    Attributes:
        rows: Number of written rows.
        files: Files with rows of the requested operations.
        skipped: Shapes that do not fit in memory, take too long or are not supported, with reasons.
        eager: Rows that were timed without a graph, with reasons. `train` ignores these rows.
        known: Number of shapes that an earlier run measured.
        left: Number of shapes that were not measured for lack of time.
        families: Number of rows of each family with a network, over all runs so far.
        factors: Operations and dtypes for which `train` can compute a correction factor, as "gelu/bfloat16".
        dropped: Number of rows that `train` does not use, because their family and operation have too few rows.
    """

    rows: int
    files: tuple[Path, ...]
    skipped: tuple[str, ...]
    eager: tuple[str, ...] = ()
    known: int = 0
    left: int = 0
    families: tuple[FamilyRows, ...] = ()
    factors: tuple[str, ...] = ()
    dropped: int = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRows:
    """Number of rows of a family of operations, in the tables of one GPU.

    Attributes:
        family: Name of the family.
        rows: Number of rows that `train` fits the family's network to.
        needed: Minimum number of rows. With fewer rows, `train` keeps the shipped network.
    """

    family: str
    rows: int
    needed: int = MIN_OWN_ROWS

    @property
    def is_enough(self) -> bool:
        """Whether `train` tunes the network of this family."""
        return self.rows >= self.needed


def measure(
    folder: str | Path,
    *,
    operations: Sequence[str] = tuple(BENCHMARKS),
    dtypes: Sequence[str] = ("float32", "tf32", "float16", "bfloat16"),
    problems: int | None = None,
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
    """Measure operations, and write one table per operation into a folder.

    Args:
        folder: Folder of the tables. Shapes that the tables already contain are not measured again.
        operations: Names from `benchmarks.BENCHMARKS`, each with its backward passes.
        dtypes: Keys of `DTYPES`.
        problems: Number of shapes per operation and dtype; None for the number that `train` needs, then 200.
        minutes: Minutes after which no further measurement starts; None for no limit.
        problem_seconds: Maximum duration of all repetitions of one call, in seconds. Shapes that take longer are
            skipped.
        seed: Seed of the shapes.
        device: `cuda`, or `cpu` to measure the CPU instead, as a test of the command.
        gpu: Catalogue name of the GPU; None uses the name that torch reports.
        is_trial: Whether to skip large shapes, for a test on a CPU.
        announce: Called before the first measurement, with the number of shapes and the expected seconds (None if
            unknown).
        progress: Called before each measurement with the operation, the number of finished shapes, and the number of
            all shapes.
        clock: Function that returns seconds on a monotonic clock.

    Raises:
        CaptureError: There is no CUDA device, or a failed capture left the device unusable.
        InvalidArgumentError: A dtype is unknown, there is less than one shape, or a time is not above 0.
        MeasurementTableError: An existing table has other columns.
        UnknownOperationError: An operation has no benchmark.
        UnknownGpuError: The catalogue does not have this GPU.
    """
    strangers = [dtype for dtype in dtypes if dtype not in DTYPES]
    if strangers or (problems is not None and problems < 1):
        raise InvalidArgumentError(
            f"Got dtypes={list(dtypes)} and problems={problems}; expected dtypes out of {list(DTYPES)} and at least 1 "
            "problem."
        )
    if (minutes is not None and not minutes > 0) or not problem_seconds > 0:
        raise InvalidArgumentError(
            f"Got minutes={minutes} and problem_seconds={problem_seconds}; expected times above 0, or no minutes to "
            "measure everything."
        )
    for operation in operations:
        benchmark_of(operation)
    check_device(device)
    name = name_of(device, gpu)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = {operation: target / f"own_{operation}.csv.gz" for operation in operations}
    known = {operation: _keys_of(path, operation) for operation, path in paths.items()}
    record = find_gpu(name) if device == "cuda" else None

    def why_skipped(one: MeasuringProblem) -> str | None:
        return _reason_to_skip(one, record, is_trial=is_trial, problem_seconds=problem_seconds)

    asked = problems_by_worth(operations, dtypes, problems, seed=seed, is_possible=lambda one: why_skipped(one) is None)
    due = [
        one
        for one in asked
        if not known[one.operation] or _key(name, one.calls[0], one.dtype, _columns(one)) not in known[one.operation]
    ]
    if announce is not None:
        announce(len(due), None if record is None else estimate_seconds(due, record, problem_seconds=problem_seconds))
    until = math.inf if minutes is None else clock() + minutes_to_seconds(minutes)
    rows = done = 0
    skipped: list[str] = []
    eager: list[str] = []
    attempts = _Attempts()
    for one in due:
        if clock() >= until:
            break
        if progress is not None:
            progress(one.operation, done, len(due))
        done += 1
        if attempts.is_hopeless(one):
            continue
        reason = why_skipped(one)
        found = () if reason else _timed(one, torch.device(device), problem_seconds)
        if isinstance(found, str) or reason:
            skipped.append(f"{one}: {reason or found}" + (attempts.failed(one, str(found)) if reason is None else ""))
            continue
        new = [_row(name, operation, one, timing) for operation, timing in found]
        waiting = [
            f"{operation} {one.dtype} {one.shape}: {timing.reason}" for operation, timing in found if timing.reason
        ]
        if waiting:
            waiting[-1] += attempts.timed(one, [timing for _, timing in found])
        eager += waiting
        _append(paths[one.operation], one.operation, new)
        rows += len(new)
    counted = count_rows(target, name)
    return Measured(
        rows=rows,
        files=tuple(path for path in paths.values() if path.is_file()),
        skipped=tuple(skipped),
        eager=tuple(eager),
        known=len(asked) - len(due),
        left=len(due) - done,
        families=counted.families,
        factors=counted.factors,
        dropped=counted.dropped,
    )


@final
@dataclass(frozen=True, slots=True)
class _Attempts:
    """Consecutive failed shapes by operation and dtype, and failed shapes, which are not tried again."""

    failures: dict[tuple[str, str], int] = field(default_factory=dict)
    problems: set[str] = field(default_factory=set)

    def is_hopeless(self, one: MeasuringProblem) -> bool:
        """Return whether this shape has failed before, or `MAX_FAILURES` shapes of its operation and dtype."""
        return str(one) in self.problems or self.failures.get((one.operation, one.dtype), 0) >= MAX_FAILURES

    def failed(self, one: MeasuringProblem, reason: str) -> str:
        """Count a failed shape, unless only the shape caused the failure. Return a text to append to the reason."""
        self.problems.add(str(one))
        return self._counted(one, reason)

    def _counted(self, one: MeasuringProblem, reason: str) -> str:
        if any(words in reason for words in SHAPE_FAILURES):
            return ""
        key = one.operation, one.dtype
        count = MAX_FAILURES if NOT_IMPLEMENTED in reason else self.failures.get(key, 0) + 1
        self.failures[key] = count
        return NOT_AGAIN if count >= MAX_FAILURES else ""

    def timed(self, one: MeasuringProblem, timings: Sequence[Timing]) -> str:
        """Count a shape that was timed only by ordinary calls. Return a text to append to the reason."""
        if any(timing.reason in (None, NOT_CUDA) for timing in timings):
            self.failures.pop((one.operation, one.dtype), None)
            return ""
        return self._counted(one, "")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRows:
    """Numbers of rows by their use in `train`; attributes as in `Measured`."""

    families: tuple[FamilyRows, ...]
    factors: tuple[str, ...]
    dropped: int


def count_rows(folder: Path, gpu: str) -> CountedRows:
    """Count the rows of a GPU in a folder of tables, by their use in `train`."""
    try:
        groups = [group for group in read_own_tables(folder) if group.gpu == gpu]
    except MeasurementTableError:  # there is no table, or only rows of ordinary calls
        groups = []
    rows: dict[str, int] = {}
    for group in groups:
        family = network_spec(group.batch.operation, group.batch.dtype)
        if family is not None:
            rows[family.name] = rows.get(family.name, 0) + fitted_rows([group], 0)
    found = {name: FamilyRows(family=name, rows=count) for name, count in rows.items()}
    others = [
        group
        for group in groups
        if (family := network_spec(group.batch.operation, group.batch.dtype)) is None
        or not found[family.name].is_enough
    ]
    factors = [group for group in others if is_enough_for_a_factor(group, seed=0)]
    return CountedRows(
        families=tuple(found.values()),
        factors=tuple(f"{group.batch.operation}/{group.batch.dtype}" for group in factors),
        dropped=sum(len(group.seconds) for group in others) - sum(len(group.seconds) for group in factors),
    )


def estimate_seconds(
    problems: Iterable[MeasuringProblem], gpu: Gpu, *, problem_seconds: float = PROBLEM_SECONDS
) -> float:
    """Return the expected duration of measurements: repetitions at `USUAL_UTILISATION`, plus overhead."""
    alike: dict[tuple[str, str, tuple[str, ...]], list[MeasuringProblem]] = {}
    for one in problems:
        alike.setdefault((one.operation, one.dtype, tuple(one.shape)), []).append(one)
    total = 0.0
    for group in alike.values():
        least = _least_seconds(group, gpu)  # (problems,)
        passes = np.array([len(one.calls) for one in group])
        each = np.minimum(REPETITION_KINDS * REPLAYS * least / USUAL_UTILISATION, problem_seconds) + SECONDS_AROUND
        total += float((passes * each)[least <= problem_seconds].sum()) + LOAD_SECONDS * sum(
            one.is_loaded for one in group
        )
    return total


def _least_seconds(problems: Sequence[MeasuringProblem], gpu: Gpu) -> Array:
    """Return the minimum times of the forward calls of one operation and dtype, from the GPU's peak rates."""
    first = problems[0]
    words = {word: np.array([one.shape[word] for one in problems], dtype=np.float64) for word in first.shape}
    batch = shape_batch(first.operation, first.dtype, **words)
    is_matrix = batch.spec.units == "tensor"
    peak = (gpu.peak(first.dtype) if is_matrix else None) or gpu.peak_flops_per_second["float32"]
    least: Array = np.maximum(batch.flops / peak, batch.bytes_moved / gpu.dram_bytes_per_second)
    return least


def _reason_to_skip(
    problem: MeasuringProblem, gpu: Gpu | None, *, is_trial: bool, problem_seconds: float
) -> str | None:
    if is_trial and _is_large(problem):
        return "too large to try on a processor"
    if gpu is not None and (least := float(_least_seconds([problem], gpu)[0])) > problem_seconds:
        return f"one call takes at least {least:.3g} s, over the limit of {problem_seconds:g} s a problem"
    return None


def _is_large(problem: MeasuringProblem) -> bool:
    """Return whether a call takes seconds on a CPU."""
    batch = shape_batch(problem.operation, problem.dtype, **problem.shape)
    return float(batch.flops[0]) > LARGEST_HOST_FLOP or float(batch.bytes_moved[0]) > LARGEST_HOST_BYTES


def _timed(problem: MeasuringProblem, device: torch.device, problem_seconds: float) -> list[tuple[str, Timing]] | str:
    """Time the calls of a shape, or return the reason why the shape cannot run; its tensors are freed afterwards."""
    try:
        with tf32_switched(allowed=problem.dtype == "tf32"), own_stream(device):
            calls = benchmark_of(problem.operation).calls(problem.shape, DTYPES[problem.dtype], device)
            return [
                (name, time_call(call, device, problem_seconds=problem_seconds, load_seconds=_load_of(problem, name)))
                for name, call in calls.items()
                if name in problem.calls
            ]
    except (torch.OutOfMemoryError, RuntimeError, NotImplementedError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0]


def _load_of(problem: MeasuringProblem, call: str) -> float | None:
    return LOAD_SECONDS if problem.is_loaded and call == problem.calls[0] else None


def check_device(device: str) -> None:
    """Raise an error if the device does not exist.

    Raises:
        CaptureError: There is no CUDA device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise CaptureError("No CUDA device here to measure on. Run this where there is one (device='cpu' only tries).")


def name_of(device: str, gpu: str | None) -> str:
    """Return the catalogue name of the GPU to measure; `cpu` for a CPU without a given name.

    Raises:
        UnknownGpuError: The catalogue does not have the GPU.
    """
    if gpu is not None:
        return find_gpu(gpu).name
    if device != "cuda":
        return "cpu"
    memory = torch.cuda.get_device_properties(0).total_memory
    return find_gpu(torch.cuda.get_device_name(0), memory_bytes=memory).name


def _append(path: Path, operation: str, rows: Sequence[dict[str, object]]) -> None:
    """Append rows to a table, so that the file is valid even if the run is interrupted."""
    is_new = not path.is_file()
    with gzip.open(path, "at", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _header(operation), restval="")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


def _header(operation: str) -> list[str]:
    return ["gpu", "op", "dtype", *operation_spec(operation).shape, *EXTRA_COLUMNS]


_Key = tuple[str, str, str, tuple[str, ...]]


def _keys_of(path: Path, operation: str) -> Collection[_Key]:
    """Return the keys of the shapes that a table already contains."""
    if not path.is_file():
        return ()
    columns = _header(operation)
    rows = [row.value for row in read_csv(path, MeasurementTableError)]
    if rows and [*rows[0]] != columns:
        raise MeasurementTableError(
            f"{path} has other columns than this release writes, as it is from an earlier one: {', '.join(rows[0])}. "
            "Measure into another folder, or move it away."
        )
    shape = operation_spec(operation).shape
    return {_key(row["gpu"], row["op"], row["dtype"], {word: row[word] for word in shape}) for row in rows}


def _key(gpu: str, operation: str, dtype: str, columns: dict[str, str]) -> _Key:
    return gpu, operation, dtype, tuple(columns.values())


def _columns(problem: MeasuringProblem) -> dict[str, str]:
    """Return every shape parameter as written in the table, including defaults."""
    batch = shape_batch(problem.operation, problem.dtype, **problem.shape)
    return {word: f"{batch.columns[word][0]:.15g}" for word in operation_spec(problem.operation).shape}


def _row(gpu: str, operation: str, problem: MeasuringProblem, timing: Timing) -> dict[str, object]:
    """Return one row, with the device time or, without a graph, the time of ordinary calls."""
    by_graph = timing.flushed_seconds is not None
    own = timing.eager_seconds if timing.flushed_seconds is None else timing.flushed_seconds
    state = timing.state
    return {
        "gpu": gpu,
        "op": operation,
        "dtype": problem.dtype,
        **_columns(problem),
        "latency_ms": _milliseconds(own),
        "warm_ms": _milliseconds(timing.warm_seconds),
        "eager_ms": _milliseconds(timing.eager_seconds),
        "sustained_ms": _milliseconds(timing.sustained_seconds),
        "timed": BY_GRAPH if by_graph else EAGER,
        "clock_mhz": _whole(state.clock_hz, MEGA),
        "sustained_clock_mhz": _whole(timing.sustained_clock_hz, MEGA),
        "highest_clock_mhz": _whole(state.highest_clock_hz, MEGA),
        "power_watts": _whole(state.power_watts),
        "power_limit_watts": _whole(state.power_limit_watts),
        "held_back_by": " ".join(state.held_back_by),
        "software": f"torch {torch.__version__}",
        "date": date.today().isoformat(),
        "source": SOURCE,
    }


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds_to_milliseconds(seconds):.6g}"


def _whole(value: float | None, unit: float = 1.0) -> str:
    return "" if value is None else f"{value / unit:.0f}"


class tf32_switched:  # noqa: N801 (a context, used as `with tf32_switched(...)`)
    """Context manager that switches TF32 for matmuls and convolutions, and restores the setting at the end."""

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed

    def __enter__(self) -> None:
        self._before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self._allowed

    def __exit__(self, *exception: object) -> None:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = self._before
