"""Score what other tools say before a run on the published runs that ours is scored on: `python -m benchmarks.peers`.

Memory: the runs of `--of memory`, models of timm trained in float32 by SGD on an A100, of families that nothing here
was chosen on, against what nvidia-smi showed less the context. Time: steps of torchvision's models in float32 that
others published, forward alone and whole, on GPUs that the tool knows by the figures it asks for. Each tool is
asked as its own documentation shows. The tools, timm and torchvision go into a folder of their own, as they bring
versions of torch that the checks do not take::

    pip install --no-deps --target peers torch-kitsune blink-gpu xgboost thop alloc timm torchvision
    PYTHONPATH=peers python -m benchmarks.peers validation --count 40
    PYTHONPATH=peers python -m benchmarks.peers validation --count 40 --of time
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.accuracy.memory import CHOSEN_ON, TIMM_TABLE, MemoryCase, timm_cases
from benchmarks.accuracy.vision import (
    TORCHVISION_IMAGE_SIZE,
    TORCHVISION_TABLE,
    TORCHVISION_TABLE_2,
    VisionResult,
    evaluate_vision,
    read_torchvision_cases,
)
from benchmarks.accuracy.workloads.vision import TORCHVISION_OPERATORS
from lightning_predict.base.checked import read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.units import (
    GIBIBYTE,
    MEBIBYTE,
    bytes_to_gigabytes,
    flops_to_teraflops,
    milliseconds_to_seconds,
)
from lightning_predict.hardware import gpu

Case = TypeVar("Case")


def _kitsune(model: Any, batch: int, side: int) -> float:
    predict = import_module("kitsune.predict").predict_memory
    return float(predict(model, (3, side, side), batch_size=batch, optimizer="sgd").total_bytes)


def _alloc(model: Any, batch: int, _side: int) -> float:
    ghost = import_module("alloc.ghost").ghost
    return float(ghost(model, dtype="float32", batch_size=batch, optimizer_type="SGD").total_gb) * GIBIBYTE


def _alloc_traced(model: Any, batch: int, side: int) -> float:
    """Ask with the size of the outputs of all modules for one image, as alloc's hooks count it where they can."""
    outputs: list[int] = []

    def count(_module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            outputs.append(output.numel() * output.element_size())

    hooks = [one.register_forward_hook(count) for one in model.modules() if not list(one.children())]
    model.eval()(torch.empty(1, 3, side, side))  # a batch norm of one image has nothing to train on
    for hook in hooks:
        hook.remove()
    ghost = import_module("alloc.ghost").ghost
    said = ghost(
        model, dtype="float32", batch_size=batch, optimizer_type="SGD", activation_memory_bytes=sum(outputs)
    ).total_gb
    return float(said) * GIBIBYTE


def _blink(model: Any, batch: int, side: int) -> float:
    predictor = import_module("blink").BlinkPredictor()
    return float(predictor.predict(model, batch_size=batch, input_shape=(3, side, side))["memory_mb"]) * MEBIBYTE


MEMORY_TOOLS: Final[Mapping[str, Callable[[Any, int, int], float]]] = {
    "torch-kitsune": _kitsune,
    "alloc (ghost)": _alloc,
    "alloc (traced)": _alloc_traced,
    "blink-gpu": _blink,
}
"""What asks each tool for the bytes of a training step."""


def _blink_seconds(model: Any, batch: int, gpu_name: str) -> float:
    """Ask for a time on a GPU, whose network uses three figures; `predict` of its facade names no GPU."""
    features = import_module("blink.model_analyser").ModelAnalyzer().extract_features(model, (3, 224, 224))
    row = gpu(gpu_name)
    figures = {
        "batch_size": batch,
        "tflops_fp32": flops_to_teraflops(row.peak_flops_per_second["float32"]),
        "memory_bandwidth_gbps": bytes_to_gigabytes(row.dram_bytes_per_second),
        "sm_count": row.streaming_multiprocessors,
    }
    said = import_module("blink.gpu_predictor").GPUPredictor().predict([features | figures])
    said = said[0] if isinstance(said, list) else said
    return milliseconds_to_seconds(float(said["exec_time_ms"]))


def main() -> None:
    """Print a row a tool: its errors, and how long an answer takes."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=(__doc__ or "").partition("\n")[0])
    options.add_argument("folder", type=Path, help="the folder of published runs")
    options.add_argument("--of", choices=("memory", "time"), default="memory", help="what to ask for")
    options.add_argument("--count", type=int, default=40, help="runs to ask about, spread evenly")
    options.add_argument("--tools", default=",".join(MEMORY_TOOLS), help="with memory: names of tools: a,b")
    given = options.parse_args()
    for name, schema in TORCHVISION_OPERATORS.items():  # whose library another torch than its own cannot load
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", schema)
    if given.of == "memory":
        found = memory_table(given.folder, given.count, [name.strip() for name in given.tools.split(",")])
    else:
        found = time_table(given.folder, given.count)
    Console(width=110).print(found)


def memory_table(folder: Path, count: int, tools: Sequence[str]) -> Table:
    """Score memory on runs spread evenly over those that are scored."""
    columns = ("model", "batch", "image")
    sides = {
        (row.value["model"], int(row.value["batch"])): int(row.value["image"])
        for row in read_csv(folder / TIMM_TABLE, MeasurementTableError, columns=columns)
    }
    scored = [one for one in timm_cases(folder, None) if one.is_scored and one.family not in CHOSEN_ON]
    cases = _spread(scored, count)
    table = _table(f"memory of {len(cases)} training runs")
    table.add_row("lightning-predict", str(len(cases)), *_errors([case.error for case in cases]), "")
    create = import_module("timm").create_model

    def asked(ask: Callable[[Any, int, int], float], case: MemoryCase) -> Callable[[], tuple[float, float]]:
        def answer() -> tuple[float, float]:
            model = create(case.model)
            start = time.perf_counter()
            said = ask(model, case.batch, sides[case.model, case.batch])
            return said / case.measured_bytes - 1, time.perf_counter() - start

        return answer

    for name in tools:
        table.add_row(name, *_row([asked(MEMORY_TOOLS[name], case) for case in cases], [c.model for c in cases]))
    return table


def time_table(folder: Path, count: int) -> Table:
    """Score the time of a forward pass and of a training step in float32, on each GPU of the tables."""
    rows = [
        row
        for table in (TORCHVISION_TABLE, TORCHVISION_TABLE_2)
        for row in read_torchvision_cases(folder / table)
        if row.step.precision == "single"
    ]
    found = _table(
        f"float32 steps of torchvision at {TORCHVISION_IMAGE_SIZE} pixels, on {len({r.gpu for r in rows})} GPUs"
    )
    models = import_module("torchvision").models

    def asked(result: VisionResult) -> Callable[[], tuple[float, float]]:
        def answer() -> tuple[float, float]:
            case = result.case
            model = models.get_model(case.step.model, weights=None)
            start = time.perf_counter()
            said = _blink_seconds(model, case.step.batch, case.gpu)
            return said / case.measured_seconds - 1, time.perf_counter() - start

        return answer

    for mode, words in (("infer", "forward"), ("train", "training")):
        results = evaluate_vision(_spread([row for row in rows if row.step.mode == mode], count), jobs=1)
        found.add_row(f"lightning-predict, {words}", str(len(results)), *_errors([one.error for one in results]), "")
        cells = _row([asked(one) for one in results], [one.case.step.model for one in results])
        found.add_row(f"blink-gpu, {words}", *cells)
    return found


def _spread(cases: Sequence[Case], count: int) -> list[Case]:
    return list(cases[:: max(1, len(cases) // count)][:count])


def _table(title: str) -> Table:
    table = Table(title=title)
    for name in ("tool", "answers", "median error", "worst tenth", "bias", "seconds an answer"):
        table.add_column(name, justify="left" if name == "tool" else "right")
    return table


def _row(answers: Sequence[Callable[[], tuple[float, float]]], names: Sequence[str]) -> list[str]:
    """Ask for everything, and write the scores of what was answered; the refused recordings goes to stderr."""
    errors: list[float] = []
    took: list[float] = []
    refused: list[str] = []
    for answer, name in zip(answers, names, strict=True):
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            try:
                error, seconds = answer()
            except Exception as problem:
                refused.append(f"{name}: {type(problem).__name__}: {problem}")
                continue
        errors.append(error)
        took.append(seconds)
    for words in refused[:3]:
        print(words[:200], file=sys.stderr)
    scores = _errors(errors) if errors else ("", "", "")
    return [str(len(errors)), *scores, f"{statistics.median(took):.1f}" if took else ""]


def _errors(errors: Sequence[float]) -> tuple[str, str, str]:
    sizes = sorted(abs(error) for error in errors)
    bias = statistics.median(errors)
    return (
        f"{100 * statistics.median(sizes):.1f} %",
        f"{100 * sizes[int(0.9 * len(sizes))]:.0f} %",
        f"{100 * bias:+.0f} %",
    )


if __name__ == "__main__":
    main()
