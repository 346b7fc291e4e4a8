"""Scores of single matrix products that others timed: TF32 and bfloat16 (XLA), and float8 (vLLM's kernels).

    python -m benchmarks.accuracy MEASUREMENTS --of products

A row counts on GPUs of the catalogue; of float8's hundreds of thousands of rows, an evenly spread sample counts.
Products whose roofline is below `LONG_SECONDS` are apart: of these the launch decides (of `fp8_block` 0.1 ms and more).
Layers in float8 were timed with the cast of their activations, which is predicted in addition to the matmul. Example::

    scores = tf32_scores(Path("measurements/matmul_tf32.csv"))
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.accuracy.source_scores import Score, print_grouped
from lightning_predict.base.checked import Checked, read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import MICROSECOND, milliseconds_to_seconds
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import Array, OperationShape, batch_shapes
from lightning_predict.kernels.roofline import roofline_seconds
from lightning_predict.kernels.timing import predict_operation_times

TF32_TABLE: Final = "matmul_tf32.csv"
FP8_TABLE: Final = "matmul_fp8.csv.gz"

LONG_SECONDS: Final = 20 * MICROSECOND
SAMPLE: Final = 4_000
"""Rows of float8 on each GPU."""

FLOAT8_KERNELS: Final[Mapping[str, str]] = {"fp8": "float8", "fp8_block": "float8"}
"""Dtype of each of the table's names; scales by tensor, and by block."""

Shape = tuple[float, float, float, float]


def tf32_scores(path: Path) -> tuple[Score, ...]:
    """Score matmuls in TF32 and in bfloat16; errors as for `read_csv`."""
    columns = ("gpu", "op", "dtype", "b", "m", "n", "k", "latency_ms")
    rows: dict[tuple[str, str, str, str], list[tuple[Shape, float]]] = defaultdict(list)
    for row in read_csv(path, MeasurementTableError, columns=columns):
        gpu, operation, dtype = (row.value[column] for column in ("gpu", "op", "dtype"))
        if gpu and dtype in ("tf32", "bfloat16"):
            shape = (_of(row, "b"), _of(row, "m"), _of(row, "n"), _of(row, "k"))
            rows[find_gpu(gpu).name, operation, dtype, dtype].append((shape, _seconds(row)))
    return tuple(_scores(rows))


def float8_scores(path: Path) -> tuple[Score, ...]:
    """Score a sample of products in float8; errors as for `read_csv`."""
    rows: dict[tuple[str, str, str, str], list[tuple[Shape, float]]] = defaultdict(list)
    for row in read_csv(path, MeasurementTableError, columns=("gpu", "dtype", "m", "n", "k", "latency_ms")):
        dtype = row.value["dtype"]
        if dtype in FLOAT8_KERNELS:
            shape = (1.0, _of(row, "m"), _of(row, "n"), _of(row, "k"))
            rows[find_gpu(row.value["gpu"]).name, "linear", FLOAT8_KERNELS[dtype], dtype].append((shape, _seconds(row)))
    sampled = {key: found[:: max(len(found) // SAMPLE, 1)] for key, found in rows.items()}
    return tuple(_scores(sampled))


def _of(row: Checked, column: str) -> float:
    return row.member(column).parsed().positive()


def _seconds(row: Checked) -> float:
    return milliseconds_to_seconds(_of(row, "latency_ms"))


def _scores(rows: Mapping[tuple[str, str, str, str], Sequence[tuple[Shape, float]]]) -> Iterator[Score]:
    for (name, operation, dtype, label), found in rows.items():
        gpu = find_gpu(name)
        products = [OperationShape(operation, dtype, shape) for shape, _ in found]
        predicted = _timed(products, gpu)
        if dtype == "float8":
            predicted = predicted.added(_timed([_cast(shape) for shape, _ in found], gpu))
        rooflines = roofline_seconds(batch_shapes(products), [gpu])[0]
        for column, (_, measured) in enumerate(found):
            bound = float(rooflines[column])
            length = "over" if bound >= LONG_SECONDS else "under"
            own: Interval[float] = predicted.map(lambda ends, column=column: float(ends[column]))
            yield Score(
                gpu=name,
                group=f"{label} {operation}, {length} {LONG_SECONDS / MICROSECOND:.0f} us",
                measured=measured,
                predicted=own.middle,
                untrained=bound,
                roofline=bound,
                interval=own,
            )


def _timed(problems: Sequence[OperationShape], gpu: Gpu) -> Interval[Array]:
    return predict_operation_times(problems, [gpu], kernel_models((gpu.name,))).interval.map(lambda ends: ends[0])


def _cast(shape: Shape) -> OperationShape:
    """Return what vLLM does before a layer's product in float8: activations in bfloat16 scaled by rows, and cast."""
    batches, rows, _, depth = shape
    elements = batches * rows * depth
    return OperationShape("transfer", "float32", (2 * elements, elements, elements))


def print_report(folder: Path, console: Console) -> None:
    """Print the scores of the tables that the folder holds.

    Raises:
        MeasurementTableError: It holds neither, or one has a wrong column or value.
    """
    tables = {TF32_TABLE: tf32_scores, FP8_TABLE: float8_scores}
    found = {name: scores for name, scores in tables.items() if (folder / name).is_file()}
    if not found:
        raise MeasurementTableError(f"No table of products in {str(folder)!r}. Expected {' or '.join(tables)}.")
    for name, scores in found.items():
        print_grouped(scores(folder / name), console, title=name)
