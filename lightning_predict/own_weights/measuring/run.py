"""Command `measure`: times operations on this machine's GPU, and writes tables (micro-benchmarks).

There is one file per operation, with the columns of the public tables: GPU, operation, dtype, shape parameters and
`latency_ms` (graph replay with flushed L2). `train` reads `warm_ms`, the time with a warm L2, as in a step. Further
columns are `eager_ms`, the method, clock and power, the software and the date. A call that cannot be captured in a
graph has "eager" in the column `timed`. Its time includes launches, and `train` ignores the row.

The most useful shapes are measured first (`order.py`), and every row is written immediately, so an interrupted run can
be continued. If an operation fails repeatedly in a dtype, it is not tried again. Example::

    measure("tables", operations=["conv2d"], dtypes=["bfloat16", "tf32"], shapes=200, minutes=30)
"""

from __future__ import annotations

import csv
import gzip
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Final, TypedDict

import numpy as np
import torch

from lightning_predict.base.checked import read_csv
from lightning_predict.base.errors import CaptureError, InvalidArgumentError, MeasurementTableError
from lightning_predict.base.units import MEGA, minutes_to_seconds, seconds_to_milliseconds
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.operations import Array, network_spec, operation_spec, shape_batch
from lightning_predict.own_weights.measuring.benchmarks import BENCHMARKS, EAGER, GRAPHS, benchmark_of
from lightning_predict.own_weights.measuring.clock import (
    NOT_CUDA,
    REPETITION_KINDS,
    REPLAYS,
    SHAPE_SECONDS,
    Timing,
    own_stream,
    time_call,
)
from lightning_predict.own_weights.measuring.order import ShapeToMeasure, shapes_by_worth
from lightning_predict.own_weights.training.factors import is_enough_for_a_factor
from lightning_predict.own_weights.training.tables import read_own_tables
from lightning_predict.own_weights.training.tuning import MIN_OWN_ROWS, fitted_rows

DTYPES: Final = {  # dtype of the tensors by compute dtype. `tf32` also turns on both TF32 switches of torch.
    "float32": torch.float32,
    "tf32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}

LARGEST_HOST_FLOP: Final = 2e8
LARGEST_HOST_BYTES: Final = 1e7  # Maximum bytes of a shape on a CPU, where only the command is tested
MAX_FAILURES: Final = 2  # Number of consecutive failed shapes after which an operation is not tried again in a dtype

SHAPE_FAILURES: Final = ("over the limit of", "out of memory", "CUDA out of memory")
"""Parts of error messages that depend on the shape."""

NOT_IMPLEMENTED: Final = "not implemented"  # Part of torch's error message if an operation does not support a dtype

NOT_AGAIN: Final = " (not tried again in this dtype)"

SOURCE: Final = "own"
EXTRA_COLUMNS: Final = (
    *("latency_ms", "warm_ms", "eager_ms", "sustained_ms", "timed"),
    *("clock_mhz", "sustained_clock_mhz", "highest_clock_mhz"),
    *("power_watts", "power_limit_watts", "held_back_by", "software", "date", "source"),
)

USUAL_UTILISATION: Final = 0.4  # Assumed share of a GPU's peak rates, to estimate a measurement's duration
SECONDS_AROUND: Final = 0.05  # Assumed seconds for a shape's tensors and capture, to estimate a measurement's duration
LOAD_SECONDS: Final = 1.0  # Duration of the load at whose end a sustained time is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Result of a measuring run."""

    rows: int
    files: tuple[Path, ...]  # Files with rows of the requested operations
    skipped: tuple[str, ...]  # Shapes that do not fit in memory, take too long or are not supported, with reasons
    eager: tuple[str, ...] = ()  # Rows that were timed without a graph, with reasons. `train` ignores these rows.
    known: int = 0  # Number of shapes that an earlier run measured
    left: int = 0  # Number of shapes that were not measured for lack of time
    families: tuple[FamilyRows, ...] = ()  # Number of rows of each family with a network, over all runs so far
    factors: tuple[str, ...] = ()  # Operations and dtypes for which `train` can fit a factor, as "gelu/bfloat16"
    dropped: int = 0  # Number of rows that `train` does not use, because their family and operation have too few rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRows:
    """Number of rows that `train` fits a family's network to, and the minimum, below which it keeps the network."""

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
    shapes: int | None = None,
    minutes: float | None = None,
    shape_seconds: float = SHAPE_SECONDS,
    seed: int = 0,
    device: str = "cuda",
    gpu: str | None = None,
    is_trial: bool = False,
    announce: Callable[[int, float | None], None] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Measured:
    """Measure operations, and write one table per operation into a folder.

    The arguments are the options of the command. `announce` gets the number of shapes and the expected seconds (None if
    unknown); `progress` gets the operation, the number of finished shapes, and the number of all shapes.
    """
    _check_arguments(operations, dtypes, shapes, minutes, shape_seconds)
    check_device(device)
    tables = _Run(Path(folder), operations, name_of(device, gpu), device, shape_seconds, is_trial)
    tried = _on_processor if is_trial else lambda shape: shape
    order = shapes_by_worth(
        operations, dtypes, shapes, seed=seed, is_possible=lambda shape: tables.reason_to_skip(tried(shape)) is None
    )
    requested = list(dict.fromkeys(map(tried, order)))
    due = [shape for shape in requested if not tables.has(shape)]
    if announce is not None:
        record = tables.record
        announce(len(due), None if record is None else estimate_seconds(due, record, shape_seconds=shape_seconds))
    until = math.inf if minutes is None else clock() + minutes_to_seconds(minutes)
    done = 0
    for one in due:
        if clock() >= until:
            break
        if progress is not None:
            progress(one.operation, done, len(due))
        done += 1
        tables.measure(one)
    return Measured(
        rows=tables.rows,
        files=tuple(path for path in tables.paths.values() if path.is_file()),
        skipped=tuple(tables.skipped),
        eager=tuple(tables.eager),
        known=len(requested) - len(due),
        left=len(due) - done,
        **count_rows(Path(folder), tables.gpu),
    )


def _check_arguments(
    operations: Sequence[str], dtypes: Sequence[str], shapes: int | None, minutes: float | None, shape_seconds: float
) -> None:
    if any(dtype not in DTYPES for dtype in dtypes) or (shapes is not None and shapes < 1):
        raise InvalidArgumentError(
            f"Got dtypes={list(dtypes)} and problems={shapes}; expected dtypes out of {list(DTYPES)} and at least 1 "
            "problem."
        )
    if (minutes is not None and not minutes > 0) or not shape_seconds > 0:
        raise InvalidArgumentError(
            f"Got minutes={minutes} and problem_seconds={shape_seconds}; expected times above 0, or no minutes to "
            "measure everything."
        )
    for operation in operations:
        benchmark_of(operation)


class _Run:
    """Tables of a run, its results so far, and failed shapes, which are not tried again."""

    def __init__(
        self, folder: Path, operations: Iterable[str], gpu: str, device: str, shape_seconds: float, is_trial: bool
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.gpu, self.device, self.shape_seconds, self.is_trial = gpu, device, shape_seconds, is_trial
        self.record = find_gpu(gpu) if device == "cuda" else None
        self.paths = {operation: folder / f"own_{operation}.csv.gz" for operation in operations}
        self._known = {operation: _keys_of(path, operation) for operation, path in self.paths.items()}
        self.rows = 0
        self.skipped: list[str] = []
        self.eager: list[str] = []
        self._failures: dict[tuple[str, str], int] = {}  # consecutive failed shapes, by operation and dtype
        self._failed: set[str] = set()

    def has(self, shape: ShapeToMeasure) -> bool:
        """Return whether an earlier run measured a shape."""
        known = self._known[shape.operation]
        return bool(known) and (self.gpu, shape.calls[0], shape.dtype, tuple(_columns(shape).values())) in known

    def reason_to_skip(self, shape: ShapeToMeasure) -> str | None:
        """Return why a shape is not measured; None if it is."""
        if self.is_trial and _is_large(shape):
            return "too large to try on a processor"
        return None if self.record is None else reason_too_long(shape, self.record, self.shape_seconds)

    def measure(self, shape: ShapeToMeasure) -> None:
        """Measure a shape, unless it has failed before, or `MAX_FAILURES` shapes of its operation and dtype."""
        if str(shape) in self._failed or self._failures.get((shape.operation, shape.dtype), 0) >= MAX_FAILURES:
            return
        if reason := self.reason_to_skip(shape):
            self.skipped.append(f"{shape}: {reason}")
            return
        timings = _timed(shape, torch.device(self.device), self.shape_seconds)
        if isinstance(timings, str):
            self._failed.add(str(shape))
            self.skipped.append(f"{shape}: {timings}{self._count_failure(shape, timings)}")
            return
        reasons = [
            f"{operation} {shape.dtype} {shape.parameters}: {timing.reason}"
            for operation, timing in timings
            if timing.reason
        ]
        if any(timing.reason in (None, NOT_CUDA) for _, timing in timings):
            self._failures.pop((shape.operation, shape.dtype), None)
        else:  # timed only by ordinary calls
            reasons[-1] += self._count_failure(shape, "")
        self.eager += reasons
        _append(self.paths[shape.operation], shape.operation, [_row(self.gpu, *timed, shape) for timed in timings])
        self.rows += len(timings)

    def _count_failure(self, shape: ShapeToMeasure, reason: str) -> str:
        """Count a failed shape, unless only the shape caused the failure. Return a text to append to the reason."""
        if any(words in reason for words in SHAPE_FAILURES):
            return ""
        key = shape.operation, shape.dtype
        self._failures[key] = MAX_FAILURES if NOT_IMPLEMENTED in reason else self._failures.get(key, 0) + 1
        return NOT_AGAIN if self._failures[key] >= MAX_FAILURES else ""


def reason_too_long(shape: ShapeToMeasure, gpu: Gpu, shape_seconds: float) -> str | None:
    """Return why a shape takes too long by the GPU's peak rates; None if it does not."""
    least = float(_least_seconds([shape], gpu)[0])
    if least <= shape_seconds:
        return None
    return f"one call takes at least {least:.3g} s, over the limit of {shape_seconds:g} s a shape"


def _is_large(shape: ShapeToMeasure) -> bool:
    """Return whether a call takes seconds on a CPU."""
    batch = shape_batch(shape.operation, shape.dtype, **shape.parameters)
    return float(batch.flops[0]) > LARGEST_HOST_FLOP or float(batch.bytes_moved[0]) > LARGEST_HOST_BYTES


def _on_processor(shape: ShapeToMeasure) -> ShapeToMeasure:
    """Halve the batch size until a CPU takes no seconds."""
    first, size = next(iter(shape.parameters.items()))
    if size == 1 or not _is_large(shape):
        return shape
    return _on_processor(replace(shape, parameters={**shape.parameters, first: size // 2}))


class RowCounts(TypedDict):
    """Numbers of rows by their use in `train`; keys as in `Measured`."""

    families: tuple[FamilyRows, ...]
    factors: tuple[str, ...]
    dropped: int


def count_rows(folder: Path, gpu: str) -> RowCounts:
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
    families = {name: FamilyRows(family=name, rows=count) for name, count in rows.items()}
    others = [
        group
        for group in groups
        if (family := network_spec(group.batch.operation, group.batch.dtype)) is None
        or not families[family.name].is_enough
    ]
    factors = [group for group in others if is_enough_for_a_factor(group, seed=0)]
    return RowCounts(
        families=tuple(families.values()),
        factors=tuple(f"{group.batch.operation}/{group.batch.dtype}" for group in factors),
        dropped=sum(len(group.seconds) for group in others) - sum(len(group.seconds) for group in factors),
    )


def estimate_seconds(shapes: Iterable[ShapeToMeasure], gpu: Gpu, *, shape_seconds: float = SHAPE_SECONDS) -> float:
    """Return the expected duration of measurements: repetitions at `USUAL_UTILISATION`, plus overhead."""
    alike: dict[tuple[str, str, tuple[str, ...]], list[ShapeToMeasure]] = {}
    for shape in shapes:
        alike.setdefault((shape.operation, shape.dtype, tuple(shape.parameters)), []).append(shape)
    total = 0.0
    for group in alike.values():
        least = _least_seconds(group, gpu)  # (shapes,)
        passes = np.array([len(shape.calls) for shape in group])
        each = np.minimum(REPETITION_KINDS * REPLAYS * least / USUAL_UTILISATION, shape_seconds) + SECONDS_AROUND
        total += float((passes * each)[least <= shape_seconds].sum()) + LOAD_SECONDS * sum(
            shape.is_loaded for shape in group
        )
    return total


def _least_seconds(shapes: Sequence[ShapeToMeasure], gpu: Gpu) -> Array:
    """Return the minimum times of the forward calls of one operation and dtype, from the GPU's peak rates."""
    first = shapes[0]
    words = {word: np.array([one.parameters[word] for one in shapes], dtype=np.float64) for word in first.parameters}
    batch = shape_batch(first.operation, first.dtype, **words)
    is_matrix = batch.spec.units == "tensor"
    peak = (gpu.peak(first.dtype) if is_matrix else None) or gpu.peak_flops_per_second["float32"]
    least: Array = np.maximum(batch.flops / peak, batch.bytes_moved / gpu.dram_bytes_per_second)
    return least


def _timed(shape: ShapeToMeasure, device: torch.device, shape_seconds: float) -> list[tuple[str, Timing]] | str:
    """Time the calls of a shape, or return the reason why the shape cannot run; its tensors are freed afterwards."""
    try:
        with tf32_switched(allowed=shape.dtype == "tf32"), own_stream(device):
            calls = benchmark_of(shape.operation).calls(shape.parameters, DTYPES[shape.dtype], device)
            return [
                (
                    name,
                    time_call(
                        call,
                        device,
                        shape_seconds=shape_seconds,
                        load_seconds=LOAD_SECONDS if shape.is_loaded and name == shape.calls[0] else None,
                    ),
                )
                for name, call in calls.items()
                if name in shape.calls
            ]
    except (torch.OutOfMemoryError, RuntimeError, NotImplementedError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0]


def check_device(device: str) -> None:
    """Raise an error if the device does not exist."""
    if device == "cuda" and not torch.cuda.is_available():
        raise CaptureError("No CUDA device here to measure on. Run this where there is one (device='cpu' only tries).")


def name_of(device: str, gpu: str | None) -> str:
    """Return the catalogue name of the GPU to measure; `cpu` for a CPU without a given name."""
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
    return {(row["gpu"], row["op"], row["dtype"], tuple(row[word] for word in shape)) for row in rows}


def _columns(shape: ShapeToMeasure) -> dict[str, str]:
    """Return every shape parameter as written in the table, including defaults."""
    batch = shape_batch(shape.operation, shape.dtype, **shape.parameters)
    return {word: f"{batch.columns[word][0]:.15g}" for word in operation_spec(shape.operation).shape}


def _row(gpu: str, operation: str, timing: Timing, shape: ShapeToMeasure) -> dict[str, object]:
    """Return one row, with the device time or, without a graph, the time of ordinary calls."""
    by_graph = timing.flushed_seconds is not None
    own = timing.eager_seconds if timing.flushed_seconds is None else timing.flushed_seconds
    state = timing.state
    return {
        "gpu": gpu,
        "op": operation,
        "dtype": shape.dtype,
        **_columns(shape),
        "latency_ms": _milliseconds(own),
        "warm_ms": _milliseconds(timing.warm_seconds),
        "eager_ms": _milliseconds(timing.eager_seconds),
        "sustained_ms": _milliseconds(timing.sustained_seconds),
        "timed": GRAPHS if by_graph else EAGER,
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


@contextmanager
def tf32_switched(*, allowed: bool) -> Iterator[None]:
    """Switch TF32 for matmuls and convolutions, and restore the setting at the end."""
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
