"""DLRM of NVIDIA's DeepLearningExamples on one and eight GPUs (`deep_learning_examples.csv`).

On eight GPUs each has whole tables, which the strategy `embedding=auto` plans. Larger clusters are left out, as the
switch of their machine is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.accuracy.case import Case, Step, machines
from benchmarks.accuracy.readers.files import rows
from benchmarks.accuracy.workloads.dlrm import criteo_trace

GPUS: Final = {"V100 32GB": "V100-SXM2-32GB", "A100 80GB": "A100-SXM-80GB"}  # GPUs by a part of the name of a machine

MOST_GPUS: Final = 8


def dlrm_cases(data: Path) -> Iterator[Case]:
    """Read the rows of training."""
    for row in rows(data / "validation" / "deep_learning_examples.csv"):
        gpu = next((own for words, own in GPUS.items() if words in row["hardware"]), None)
        if "Recommendation/DLRM/" not in row["path"] or gpu is None or float(row["gpus"]) > MOST_GPUS:
            continue
        count, batch = int(float(row["gpus"])), 1024 * int(row["batch_per_gpu"].removesuffix("k"))
        size, precision = "large" if '"large"' in row["row_json"] else "small", row["precision"]
        yield Case(
            source=f"{row['hardware'].partition(' (')[0]}, {count} GPU{'s' * (count > 1)}",
            model=f"DLRM, {size} tables, {precision}",
            gpu=machines(gpu, count),
            step=Step(
                name=f"dlrm-{size}-{precision}-{batch}",
                record=partial(criteo_trace, size, precision=precision, batch=batch),
            ),
            measured=batch * count / float(row["value"]),
            strategy="ddp,embedding=auto",
        )
