"""Measure operations on the GPU at hand and write the tables.

One file per operation, with the columns of the public tables: GPU, operation, dtype, shape words, `latency_ms` (graph
replay, L2 flushed), and beside it `warm_ms`, `eager_ms`, `clock_mhz`, the software and the date. Rows are written as
they come, so that an interrupted run keeps what it has. Example::

    measure("tables", operations=["conv2d"], dtypes=["bfloat16", "tf32"], problems=200)
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final, TextIO, final

import torch

from lightning_predict.errors import CaptureError, InvalidArgumentError
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.kernels.operations import operation_kind, problem_batch
from lightning_predict.measuring.benchmarks import BENCHMARKS, Words, benchmark_of, draw_problems
from lightning_predict.measuring.clock import Timing, time_call
from lightning_predict.units import MEGA, seconds_to_milliseconds

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
EXTRA_COLUMNS: Final = ("latency_ms", "warm_ms", "eager_ms", "clock_mhz", "software", "date", "source")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The outcome of a measuring run.

    Attributes:
        rows: Rows written.
        files: Files written.
        skipped: Problems that did not fit in memory or are not supported, in words.
    """

    rows: int
    files: tuple[Path, ...]
    skipped: tuple[str, ...]


def measure(
    folder: str | Path,
    *,
    operations: Sequence[str] = tuple(BENCHMARKS),
    dtypes: Sequence[str] = ("float32", "tf32", "float16", "bfloat16"),
    problems: int = 200,
    seed: int = 0,
    device: str = "cuda",
    gpu: str | None = None,
    is_trial: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Measured:
    """Measure operations and write one table for each into a folder.

    Args:
        folder: Where the tables go; existing tables of the same names are replaced.
        operations: Names from `benchmarks.BENCHMARKS`; each with its backward passes.
        dtypes: Keys of `DTYPES`.
        problems: Shapes per operation and dtype.
        seed: Seed of the shapes.
        device: `cuda`; `cpu` times the host instead, for trying the command out.
        gpu: Our name of the GPU; None asks torch.
        is_trial: Leave out what takes a processor long, as nothing but the command is tried.
        progress: Called before each operation with its name, how many are done, and how many there are.

    Raises:
        CaptureError: No CUDA device.
        InvalidArgumentError: An unknown dtype, or fewer than one problem.
        UnknownOperationError: An operation without a benchmark.
        UnknownGpuError: The catalogue does not hold this GPU; name it with `gpu`.
    """
    strangers = [dtype for dtype in dtypes if dtype not in DTYPES]
    if strangers or problems < 1:
        raise InvalidArgumentError(
            f"Got dtypes={list(dtypes)} and problems={problems}; expected dtypes out of {list(DTYPES)} and at least 1 "
            "problem."
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise CaptureError("No CUDA device here to measure on. Run this where there is one (device='cpu' only tries).")
    name = _name_of(device, gpu)
    shapes = {operation: draw_problems(operation, problems, seed=seed) for operation in operations}
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    rows = 0
    files: list[Path] = []
    skipped: list[str] = []
    for number, (operation, words) in enumerate(shapes.items()):
        if progress is not None:
            progress(operation, number, len(shapes))
        path = target / f"own_{operation}.csv.gz"
        with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
            found = _rows(name, operation, words, dtypes, torch.device(device), skipped, is_trial=is_trial)
            rows += sum(_written(file, operation, found))
        files.append(path)
    return Measured(rows=rows, files=tuple(files), skipped=tuple(skipped))


def _name_of(device: str, gpu: str | None) -> str:
    if gpu is not None:
        return find_gpu(gpu).name
    if device != "cuda":
        return "cpu"
    memory = torch.cuda.get_device_properties(0).total_memory
    return find_gpu(torch.cuda.get_device_name(0), memory_bytes=memory).name


def _written(file: TextIO, operation: str, rows: Iterator[dict[str, object]]) -> Iterator[int]:
    """Write each row as it comes; 1 for each."""
    columns = ["gpu", "op", "dtype", *operation_kind(operation).shape, *EXTRA_COLUMNS]
    writer = csv.DictWriter(file, columns, restval="")
    writer.writeheader()
    for row in rows:
        writer.writerow(row)
        yield 1


def _rows(
    gpu: str,
    operation: str,
    shapes: Sequence[Words],
    dtypes: Sequence[str],
    device: torch.device,
    skipped: list[str],
    *,
    is_trial: bool,
) -> Iterator[dict[str, object]]:
    # Where bytes alone decide, all dtypes are one.
    counts_bytes = operation_kind(operation).element_bytes is not None
    for dtype in dtypes[:1] if counts_bytes else dtypes:
        with _tf32(allowed=dtype == "tf32"):
            for words in shapes:
                if is_trial and _is_large(operation, dtype, words):
                    skipped.append(f"{operation} {dtype} {words}: too large to try on a processor")
                    continue
                try:
                    calls = benchmark_of(operation).calls(words, DTYPES[dtype], device)
                    timings = {name: time_call(call, device) for name, call in calls.items()}
                except (torch.OutOfMemoryError, RuntimeError, NotImplementedError) as error:
                    skipped.append(f"{operation} {dtype} {words}: {str(error).splitlines()[0]}")
                    continue
                for name, timing in timings.items():
                    yield _row(gpu, name, dtype, words, timing)


def _is_large(operation: str, dtype: str, words: Words) -> bool:
    """Return whether a processor would take seconds for one call."""
    batch = problem_batch(operation, dtype, **words)
    return float(batch.flops[0]) > LARGEST_HOST_FLOP or float(batch.bytes_moved[0]) > LARGEST_HOST_BYTES


def _row(gpu: str, operation: str, dtype: str, words: Words, timing: Timing) -> dict[str, object]:
    """Return one row: the device's own time, or the eager one if there is no other (and `warm_ms` is empty)."""
    columns = problem_batch(operation, dtype, **words).columns  # with the words that the shape leaves out
    full = {word: f"{values[0]:g}" for word, values in columns.items()}
    own = timing.eager_seconds if timing.flushed_seconds is None else timing.flushed_seconds
    return {
        "gpu": gpu,
        "op": operation,
        "dtype": dtype,
        **full,
        "latency_ms": f"{seconds_to_milliseconds(own):.6g}",
        "warm_ms": "" if timing.warm_seconds is None else f"{seconds_to_milliseconds(timing.warm_seconds):.6g}",
        "eager_ms": f"{seconds_to_milliseconds(timing.eager_seconds):.6g}",
        "clock_mhz": "" if timing.clock_hz is None else f"{timing.clock_hz / MEGA:.0f}",
        "software": f"torch {torch.__version__}",
        "date": date.today().isoformat(),
        "source": SOURCE,
    }


class _tf32:  # noqa: N801 (a context, used as `with _tf32(...)`)
    """TF32 on or off for products and convolutions while inside, as it was afterwards."""

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed

    def __enter__(self) -> None:
        self._before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self._allowed

    def __exit__(self, *exception: object) -> None:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = self._before
