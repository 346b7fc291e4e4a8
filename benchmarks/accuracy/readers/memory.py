"""Memory of training processes: timm's models on an A100 (`memory_timm.csv.gz`), milabench (`memory_other.csv.gz`).

The figures are what nvidia-smi showed of a process, context included. A run of timm whose tensors alone exceed the GPU,
as FakeTensor counted them, did not fit; what filled the GPU otherwise has no known outcome. milabench measured the
throughput of runs that filled their GPU, so these fitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import lightning_predict as lp
from benchmarks.accuracy.case import Case, Step, step_of_file
from benchmarks.accuracy.readers.files import rows

MEBIBYTE: Final = 2**20
GPU: Final = "A100-SXM-40GB"
TOTAL_MEBIBYTES: Final = 40_361  # Largest process of the table of timm

CHOSEN_ON: Final = frozenset("byob coat convnext cspnet gcvit hgnet nasnet regnet vgg vovnet".split())
"""Families that the rule for workspaces of convolutions was chosen on (`lightning_predict/memory/libraries.py`)."""


def timm_memory_cases(data: Path) -> Iterator[Case]:
    """Read the runs of timm whose step is recorded."""
    folder = data / "validation"
    for row in rows(folder / "memory_timm.csv.gz"):
        path = folder / "traces_memory" / f"{row['model']}_{row['batch']}.json.gz"
        if not path.is_file() or row["channels"] != "3":
            continue
        measured, tensors = float(row["measured_mib"] or 0), float(row["fake_tensor_mib"] or 0)
        known = {
            "source": row["kind"],
            "model": f"{row['model']}, batch {row['batch']}",
            "gpu": GPU,
            "step": Step(name=f"memory-{path.name.removesuffix('.json.gz')}", record=partial(_trying, path)),
            "chosen_on": row["family"] in CHOSEN_ON,
        }
        # A passing peak, or a figure below the tensors that live at a time, is no figure of the step.
        if row["status"] == "ok" and tensors <= 1.25 * measured:
            yield Case(measured=measured * MEBIBYTE, quantity="process", **known)  # type: ignore[arg-type]
            yield Case(measured=1, quantity="fits", **known)  # type: ignore[arg-type]
        elif tensors > TOTAL_MEBIBYTES:
            yield Case(measured=0, quantity="fits", **known)  # type: ignore[arg-type]


def _trying(path: Path) -> lp.Trace:
    """Read a recorded step, with `torch.backends.cudnn.benchmark` on, as the runs had it."""
    trace = lp.Trace.load(str(path))
    return replace(trace, flags=replace(trace.flags, cudnn_benchmark=True))


def milabench_memory_cases(data: Path) -> Iterator[Case]:
    """Read milabench's runs on one GPU whose step is recorded."""
    folder = data / "validation"
    for row in rows(folder / "memory_other.csv.gz"):
        path = folder / "traces_new" / "milabench" / f"{row['case']}-{row['batch']}.json.gz"
        if row["source"] != "milabench" or row["status"] not in ("ok", "wall") or not path.is_file():
            continue
        known = {
            "source": f"{row['case']}, {row['gpu']}",
            "model": f"{row['case']}, batch {row['batch']}",
            "gpu": row["gpu"],
            "step": step_of_file(path),
            "release": "2.6",
        }
        if row["status"] == "ok":
            yield Case(measured=float(row["measured_mib"]) * MEBIBYTE, quantity="process", **known)  # type: ignore[arg-type]
        yield Case(measured=1, quantity="fits", **known)  # type: ignore[arg-type]
