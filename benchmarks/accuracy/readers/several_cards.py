"""Steps of DDP on several cards of one machine: Sia (T4, RTX 2080 Ti) and milabench (L40S)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from benchmarks.accuracy.case import Case, Step, machines, step_of_file
from benchmarks.accuracy.readers.files import rows
from benchmarks.accuracy.readers.machines import cifar_step


def several_card_cases(data: Path) -> Iterator[Case]:
    """Read the rows whose step is recorded; repeated rows become their median."""
    folder = data / "validation"
    times: dict[tuple[str, str, int, int], list[float]] = defaultdict(list)
    for row in rows(folder / "sia.csv"):
        count = int(row["n_gpus"])
        if (row["kind"], row["n_nodes"]) == ("placements", "1") and row["gpu"] and count > 1:
            times["Sia", row["app"] + "|" + row["gpu"], count, int(row["local_batch"])].append(
                float(row["step_seconds"])
            )
    for row in rows(folder / "milabench.csv"):
        if int(row["n_gpus"] or 1) > 1 and row["step_ms"] and row["bound_by"] == "device":
            bench = row["bench"].replace("-ddp-gpus", "") + "|" + row["gpu"]
            times["milabench", bench, int(row["n_gpus"]), int(float(row["batch_size"]))].append(
                float(row["step_ms"]) / 1e3
            )
    for (source, words, count, size), seconds in times.items():
        model, _, gpu = words.partition("|")
        path = folder / "traces_new" / source.lower() / f"{model}-{size}.json.gz"
        step: Step | None = step_of_file(path) if path.is_file() else None
        if model == "cifar10":
            step = cifar_step(size)
        if step is not None:
            yield Case(
                source=f"{source}, {model}, {machines(gpu, count)}",
                model=f"{model}, batch {size}",
                gpu=machines(gpu, count),
                step=step,
                measured=statistics.median(seconds),
                release="1.9" if source == "Sia" else "2.6",
                includes="data loader" if source == "Sia" else "",
            )
