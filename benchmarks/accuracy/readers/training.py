"""Training benchmarks of NVIDIA's DeepLearningExamples, as Lambda ran them (`training_throughput.csv`).

The figure is the throughput of a whole script, data loader included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.accuracy.case import Case, Step
from benchmarks.accuracy.readers.files import rows
from benchmarks.accuracy.workloads.benchmarks import BENCHMARKS, benchmark_trace, units_per_sample


def training_cases(data: Path) -> Iterator[Case]:
    """Read the rows of one GPU whose model is written here."""
    for row in rows(data / "validation" / "training_throughput.csv"):
        if row["n_gpus"] != "1" or row["model"] not in BENCHMARKS:
            continue
        model, precision, batch = row["model"], row["precision_label"], int(float(row["batch"]))
        release = re.match(r"\d+\.\d+", row["pytorch"])
        yield Case(
            source=f"{model} {precision}",
            model=f"{model} {precision}",
            gpu=row["gpu_reported"],
            step=Step(
                name=f"benchmarks-{model}-{precision}-{batch}",
                record=partial(benchmark_trace, model, precision=precision, batch=batch),
            ),
            measured=units_per_sample(model) * batch / float(row["throughput"]),
            release=None if release is None else release[0],
            includes="data loader",
        )
