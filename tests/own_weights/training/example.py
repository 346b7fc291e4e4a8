"""A synthetic table: two made-up GPUs whose kernels follow a utilisation law that is known."""

import csv
import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.training.families import FamilyResult, train_families
from benchmarks.training.recipes import Recipe
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.features import reference_seconds
from lightning_predict.kernels.operations import Array, ShapeBatch, shape_batch
from lightning_predict.own_weights.training.tables import STEPS_FOLDER, Group
from lightning_predict.record.trace import Kernel, Operation, TensorInfo, Trace
from tests.example_gpu import BIG, SMALL

GPUS = {"SMALL": SMALL, "BIG": BIG}


def law(batch: ShapeBatch) -> Array:
    """Utilisation between 0.2 and 0.8 that grows with the work: half way at 2^28 FLOPs."""
    return np.asarray(0.2 + 0.6 / (1 + np.exp2(0.5 * (28 - np.log2(batch.flops)))), dtype=np.float64)


def products(rows: int, *, seed: int = 0, dtype: str = "float32") -> ShapeBatch:
    """Random linear layers of 16 to 4096 rows, columns and depth."""
    sizes = np.rint(2 ** np.random.default_rng(seed).uniform(4, 12, size=(3, rows)))
    return shape_batch("linear", dtype, b=1, m=sizes[0], n=sizes[1], k=sizes[2])


def measured(gpu: Gpu, batch: ShapeBatch) -> Array:
    """Seconds by the law."""
    seconds: Array = reference_seconds(batch, [gpu])[0] / law(batch)
    return seconds


def group(gpu: Gpu, rows: int, *, seed: int = 0) -> Group:
    """Measurements of random linear layers on one GPU."""
    batch = products(rows, seed=seed)
    return Group(gpu.name, "synthetic", batch, measured(gpu, batch), 0.0)


def write_matmul_table(path: Path, gpus: list[Gpu], rows: int) -> None:
    """The same measurements as a table, `matmul.csv.gz`."""
    with gzip.open(path, "wt", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(["gpu", "op", "dtype", "b", "m", "n", "k", "latency_ms", "source"])
        for gpu in gpus:
            batch = products(rows)
            columns = [batch.columns[word] for word in ("b", "m", "n", "k")]
            for *shape, seconds in zip(*columns, measured(gpu, batch), strict=True):
                writer.writerow([gpu.name, "linear", "float32", *(int(x) for x in shape), seconds * 1e3, "synthetic"])


def write_own_table(folder: Path, gpus: Sequence[Gpu], rows: int) -> None:
    """The same measurements as `measure` writes them, `own_linear.csv.gz`."""
    with gzip.open(folder / "own_linear.csv.gz", "wt", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(["gpu", "op", "dtype", "b", "m", "n", "k", "latency_ms", "timed", "source"])
        for gpu in gpus:
            batch = products(rows)
            columns = [batch.columns[word] for word in ("b", "m", "n", "k")]
            for *shape, seconds in zip(*columns, measured(gpu, batch), strict=True):
                words = [gpu.name, "linear", "float32", *(int(x) for x in shape), seconds * 1e3, "graph", "own"]
                writer.writerow(words)
    write_unchanged_steps(folder, gpus)


def recorded_step(name: str, seconds: float, card: Gpu) -> Trace:
    """A step of one operation on matrices of 2,048 rows and columns, recorded on a GPU."""
    data = TensorInfo((2048, 2048), "float32")
    kernel = Kernel(
        name="kernel",
        seconds=seconds,
        grid=(256, 1, 1),
        block=(256, 1, 1),
        registers_per_thread=64,
        shared_memory_bytes=0,
        stream=7,
        start_seconds=0.0,
    )
    inputs = (data, data) if name == "aten::mm" else (data,)
    operation = Operation(name=name, phase="forward", inputs=inputs, outputs=(data,), kernels=(kernel,))
    return Trace(operations=(operation,), device="cuda", recorder="profiler", gpu_reported_name=card.name)


def write_unchanged_steps(folder: Path, gpus: Sequence[Gpu]) -> None:
    """Steps of one ReLU, which no weights of these tests change."""
    (folder / STEPS_FOLDER).mkdir(parents=True, exist_ok=True)
    for card in gpus:
        recorded_step("aten::relu", 1e-4, card).save(folder / STEPS_FOLDER / f"{card.name}.json.gz")


def train_family(recipe: Recipe, groups: Sequence[Group], gpus: Mapping[str, Gpu], *, seed: int = 0) -> FamilyResult:
    """Train one family."""
    return train_families([recipe], groups, gpus, seed=seed)[recipe.family.name]
