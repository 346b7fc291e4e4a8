"""Rows of `training_throughput.csv` with several GPUs, each beside that of a single one, or the reason why not.

Example::

    cases, left_out = read_scaling_cases(Path("validation/training_throughput.csv"))
    cases[0].efficiency, list(left_out)
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from lightning_predict.errors import MeasurementTableError
from lightning_predict.fitting.evaluation_scaling_uniform import UNIFORM_BENCHMARKS
from lightning_predict.fitting.workloads.benchmarks import BENCHMARKS
from lightning_predict.gpus import gpu as find_gpu

LARGEST_EFFICIENCY: Final = 1.05
"""Above this, the row of one GPU ran something else."""

WITHOUT_EXCHANGE: Final = frozenset({"transformerxlbase", "transformerxllarge"})
"""Benchmarks whose efficiency is 0.95 to 1.0 on every link, also where their gradients cannot pass in the time: their
processes do not exchange them in every step, whatever the reason. Shown apart."""

Key = tuple[str, str, str, str]
"""GPU as reported, model, precision, container."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingCase:
    """A row of several GPUs beside that of one.

    Attributes:
        gpu: Our name of the GPU.
        system: GPU as reported and container: rows of one machine, as far as the table tells.
        count: GPUs.
        model: Benchmark.
        precision: `FP32`, `FP16` or `AMP`.
        batch: Samples of each GPU.
        single_per_second: Throughput of one GPU.
        efficiency: Measured efficiency.
    """

    gpu: str
    system: str
    count: int
    model: str
    precision: str
    batch: int
    single_per_second: float
    efficiency: float

    @property
    def exchanges(self) -> bool:
        """Its processes exchange gradients in every step."""
        return self.model not in WITHOUT_EXCHANGE

    @property
    def has_nvlink(self) -> bool:
        """The GPU's data sheet has NVLink."""
        return find_gpu(self.gpu).nvlink_bytes_per_second is not None


def read_scaling_cases(path: Path) -> tuple[tuple[ScalingCase, ...], dict[str, list[str]]]:
    """Rows of several GPUs that have one of a single GPU, and what was left out by reason.

    Raises:
        MeasurementTableError: A missing column.
        UnknownGpuError: A reported name that the catalogue does not hold.
    """
    with path.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    needed = {"gpu_reported", "n_gpus", "model", "precision_label", "batch", "pytorch", "throughput"}
    if missing := needed - set(rows[0] if rows else ()):
        raise MeasurementTableError(f"{path} has no column {', '.join(sorted(missing))}, or no rows.")
    groups: dict[Key, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        groups[row["gpu_reported"], row["model"], row["precision_label"], row["pytorch"]].append(row)
    cases, excluded = [], defaultdict[str, list[str]](list)
    for key, members in groups.items():
        singles = {row["batch"]: float(row["throughput"]) for row in members if row["n_gpus"] == "1"}
        for row in members:
            if row["n_gpus"] == "1":
                continue
            found = _case(row, key, singles)
            if isinstance(found, str):
                excluded[found].append(f"{key[0]} x {row['n_gpus']}, {key[1]} {key[2]}, torch {key[3]}")
            else:
                cases.append(found)
    return tuple(cases), dict(excluded)


def _case(row: Mapping[str, str], key: Key, singles: Mapping[str, float]) -> ScalingCase | str:
    """The case of a row, or why there is none."""
    reported, model, precision, container = key
    count = int(row["n_gpus"])
    if not row["batch"].replace(".", "", 1).isdigit():
        return "the batch is not stated as one number"
    if model not in BENCHMARKS and model not in UNIFORM_BENCHMARKS:
        return "no model of this benchmark is written here"
    total = float(row["batch"])
    for batch, throughput in singles.items():
        if batch.replace(".", "", 1).isdigit() and total in (float(batch), count * float(batch)):
            efficiency = float(row["throughput"]) / (count * throughput)
            if efficiency > LARGEST_EFFICIENCY:
                return f"its efficiency is above {LARGEST_EFFICIENCY}"
            return ScalingCase(
                gpu=find_gpu(reported).name,
                system=f"{reported}, torch {container[:6]}",
                count=count,
                model=model,
                precision=precision,
                batch=int(float(batch)),
                single_per_second=throughput,
                efficiency=efficiency,
            )
    return "its batch is neither that of one GPU nor so many times it"
