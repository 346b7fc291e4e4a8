"""Gains of changes on pairs of measured steps that differ by one option (`pairs/`), as `lp.advise` shows them.

The step before is read from a recording. Rows that the tables call doubtful or bound by launches are left out. For
compiled training there is no table: its pairs are steps of other tables, published both eager and compiled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.accuracy.case import Case, step_of_file
from benchmarks.accuracy.readers.backends import backend_cases
from benchmarks.accuracy.readers.compiled import compiled_cases
from benchmarks.accuracy.readers.diffusion import diffusion_cases
from benchmarks.accuracy.readers.files import rows
from benchmarks.accuracy.readers.tutorial import tutorial_cases

TABLES: Final = {  # Changes by table, as advice names them
    "timm_channels_last": "channels_last",
    "timm_compile": "compile",
    "kernelbench_compile": "compile",
    "torchvision_half": "half",
    "transformers_compile": "compile",
}

TRAINED: Final = {
    "SegmentAnything, eager": "SegmentAnything, compiled",
    "Stable Diffusion, eager": "Stable Diffusion, compiled",
    "Gemma, eager": "Gemma, compiled",
    "Mistral, eager": "Mistral, compiled",
    "ControlNet, channels last, batch 8": "ControlNet, torch.compile, batch 8",
    "GPT-2 124M, bfloat16": "GPT-2 124M, torch.compile",
    "GPT-2, 50,257 words, batch 8": "GPT-2, 50,257 words, batch 8",
    "T5 v1.1 base, TF32": "T5 v1.1 base, TF32",
    "airbench94": "airbench94",
    "Llama 3.2 3B": "Llama 3.2 3B",
}
"""Compiled step by the eager one, which differs by compilation alone; Keras's BERT does not: it becomes TF32, too."""


def trained_cases(data: Path) -> Iterator[Case]:
    """Yield the gains of compiled training."""
    cases = defaultdict[str, dict[bool, Case]](dict)
    for reader in (backend_cases, diffusion_cases, tutorial_cases, compiled_cases):
        for case in reader(data):
            if case.quantity == "time":
                cases[case.model].setdefault(bool(case.kernels), case)
    for name, other in TRAINED.items():
        before = cases[name][False]
        measured = before.measured / cases[other][True].measured
        source = f"compile, train{', more than the step' * bool(before.includes)}"
        yield replace(before, source=source, measured=measured, quantity="gain", change="compile", release=None)


def gain_cases(data: Path) -> Iterator[Case]:
    """Read the pairs whose step before is recorded."""
    yield from trained_cases(data)
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
