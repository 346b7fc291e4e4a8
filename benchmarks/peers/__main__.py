"""Score what other tools say of memory on the published runs that ours is scored on: `python -m benchmarks.peers`.

The runs are those of `--of memory`: models of timm trained in float32 by SGD on an A100, of families that nothing here
was chosen on. Each tool is asked as its own documentation shows, for the model, the image, the batch and the optimizer,
and what it says is held against what nvidia-smi showed less the context, as ours is. The tools, timm and torchvision go
into a folder of their own, as they bring versions of torch that the checks do not take::

    pip install --no-deps --target peers torch-kitsune blink-gpu alloc timm torchvision
    PYTHONPATH=peers python -m benchmarks.peers validation --count 40
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.memory import CHOSEN_ON, TIMM_TABLE, MemoryCase, timm_cases
from benchmarks.accuracy.workloads.vision import TORCHVISION_OPERATORS
from lightning_predict.checked import read_csv
from lightning_predict.errors import MeasurementTableError
from lightning_predict.units import GIBIBYTE, MEBIBYTE


def _kitsune(model: Any, batch: int, side: int) -> float:
    predict = import_module("kitsune.predict").predict_memory
    return float(predict(model, (3, side, side), batch_size=batch, optimizer="sgd").total_bytes)


def _alloc(model: Any, batch: int, _side: int) -> float:
    ghost = import_module("alloc.ghost").ghost
    return float(ghost(model, dtype="float32", batch_size=batch, optimizer_type="SGD").total_gb) * GIBIBYTE


def _blink(model: Any, batch: int, side: int) -> float:
    predictor = import_module("blink").BlinkPredictor()
    return float(predictor.predict(model, batch_size=batch, input_shape=(3, side, side))["memory_mb"]) * MEBIBYTE


TOOLS: Final[dict[str, Callable[[Any, int, int], float]]] = {
    "torch-kitsune": _kitsune,
    "alloc (ghost scan)": _alloc,
    "blink-gpu": _blink,
}
"""What asks each tool for the bytes of a training step."""


def main() -> None:
    """Print a row a tool: its errors, and how long an answer takes."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=(__doc__ or "").partition("\n")[0])
    options.add_argument("folder", type=Path, help="the folder of published runs")
    options.add_argument("--count", type=int, default=40, help="runs to ask about, spread evenly")
    options.add_argument("--tools", default=",".join(TOOLS), help="names of tools, separated by commas")
    given = options.parse_args()
    columns = ("model", "batch", "image")
    sides = {
        (row.value["model"], int(row.value["batch"])): int(row.value["image"])
        for row in read_csv(given.folder / TIMM_TABLE, MeasurementTableError, columns=columns)
    }
    cases = [one for one in timm_cases(given.folder, None) if one.is_scored and one.family not in CHOSEN_ON]
    cases = cases[:: max(1, len(cases) // given.count)][: given.count]
    table = Table(title=f"memory of {len(cases)} training runs")
    for name in ("tool", "answers", "median error", "worst tenth", "seconds an answer"):
        table.add_column(name, justify="left" if name == "tool" else "right")
    table.add_row("lightning-predict", str(len(cases)), *_errors([case.error for case in cases]), "")
    for name in given.tools.split(","):
        table.add_row(name, *_score(TOOLS[name], cases, sides))
    Console(width=110).print(table)


def _score(
    ask: Callable[[Any, int, int], float], cases: list[MemoryCase], sides: dict[tuple[str, int], int]
) -> list[str]:
    for name, schema in TORCHVISION_OPERATORS.items():  # whose library another torch than its own cannot load
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", schema)
    timm = import_module("timm")
    errors: list[float] = []
    took: list[float] = []
    refused: list[str] = []
    for case in cases:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            model = timm.create_model(case.model)
            start = time.perf_counter()
            try:
                with torch.no_grad():
                    said = ask(model, case.batch, sides[case.model, case.batch])
            except Exception as error:
                refused.append(f"{case.model}: {type(error).__name__}: {error}")
                continue
        took.append(time.perf_counter() - start)
        errors.append(said / case.measured_bytes - 1)
    for words in refused[:3]:
        print(words[:200], file=sys.stderr)
    return [
        str(len(errors)),
        *(_errors(errors) if errors else ("", "")),
        f"{statistics.median(took):.1f}" if took else "",
    ]


def _errors(errors: list[float]) -> tuple[str, str]:
    sizes = sorted(abs(error) for error in errors)
    return f"{100 * statistics.median(sizes):.1f} %", f"{100 * sizes[int(0.9 * len(sizes))]:.0f} %"


if __name__ == "__main__":
    main()
