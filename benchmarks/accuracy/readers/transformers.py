"""NeuSight's float32 transformers (`transformers_fp32.csv`): torch 2.1, eager and compiled, on one GPU.

The published training times leave out the loss, which the recorded step has. P4 could not hold its clocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.accuracy.case import Case, Step
from benchmarks.accuracy.readers.files import rows
from benchmarks.accuracy.workloads.published import published_trace


def transformer_cases(data: Path) -> Iterator[Case]:
    """Read the rows."""
    for row in rows(data / "validation" / "transformers_fp32.csv"):
        model, mode, length, batch = row["model"], row["mode"], int(row["seq"]), int(row["batch"])
        yield Case(
            source=f"{'compiled' if row['variant'] else 'eager'}, {mode}",
            model=f"{model} {mode}",
            gpu=row["gpu"],
            step=Step(
                name=f"transformers-{model}-{mode}-{length}-{batch}",
                record=partial(published_trace, model, mode=mode, length=length, batch=batch),
            ),
            measured=float(row["iteration_ms"]) / 1e3,
            kernels=("compile",) if row["variant"] else (),
            release=None if row["variant"] else "2.1",
            said={
                tool: float(row[column]) / 1e3
                for tool, column in (("NeuSight", "neusight_predicted_ms"), ("Habitat-style", "habitat_predicted_ms"))
                if row[column]
            },
        )
