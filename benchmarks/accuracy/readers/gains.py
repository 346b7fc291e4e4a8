"""Gains of changes on pairs of measured steps that differ by one option (`pairs/`), as `lp.advise` promises them.

The step before is read from a recording. Rows that the tables call doubtful or bound by launches are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.accuracy.case import Case, step_of_file
from benchmarks.accuracy.readers.files import rows

TABLES: Final = {
    "timm_channels_last": "channels_last",
    "timm_compile": "compile",
    "kernelbench_compile": "compile",
    "torchvision_half": "half",
    "transformers_compile": "compile",
}
"""Changes by table, as advice names them."""


def gain_cases(data: Path) -> Iterator[Case]:
    """Read the pairs whose step before is recorded."""
    folder = data / "validation"
    for table, change in TABLES.items():
        for row in rows(folder / "pairs" / f"{table}.csv.gz"):
            traced, before = row.get("trace"), row.get("trace_before")
            path = folder / traced if traced else folder / "traces_pairs" / (before or "")
            doubtful = "True" in (row.get("launch_bound"), row.get("doubtful"))
            if path.is_file() and row["gain"] and not doubtful:
                mode = "train" if row["mode"].startswith("train") else "infer"
                yield Case(
                    source=f"{change}, {mode}, {row['gpu_name']}",
                    model=row["model"].removesuffix(".py"),
                    gpu=row["gpu_name"],
                    step=step_of_file(path),
                    measured=float(row["gain"]),
                    quantity="gain",
                    change=change,
                )
