"""Run other tools that estimate a step's memory, on rows with memory measured on a GPU.

Of timm's models, one a family on which nothing was chosen: torch's own `MemTracker`, FakeTensor (as published beside
the runs), accelerate's estimate and torch-kitsune, each by its own code where it is installed, beside ours. Of the ten
runs that xMem's authors published with what four estimators said, the torchvision models are recorded here at their 86
x 86 images. Install peers without their dependencies (`pip install --no-deps timm torchvision accelerate
torch-kitsune`). Example::

    python -m benchmarks.accuracy validation --of memory-peers --sample 12
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final, final

import torch
from rich.console import Console
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker

from benchmarks.accuracy.memory import CHOSEN_ON, CONTEXT_BYTES, GPU, LEAST_BYTES, TIMM_TABLE, is_of_the_step
from benchmarks.accuracy.workloads.vision import import_torchvision
from benchmarks.training.report import report_table
from lightning_predict.base.checked import read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.units import MEBIBYTE
from lightning_predict.hardware import gpu
from lightning_predict.hardware.records import Gpu
from lightning_predict.memory.step_memory import step_memory
from lightning_predict.record.recording import capture

BATCH: Final = 32
"""Of the rows: none that is all context, few that fill the card."""

XMEM_TABLE: Final = "xmem_peers.csv"
XMEM_GPU: Final = gpu("RTX-3060")
XMEM_IMAGE: Final = 86
XMEM_MODELS: Final = {"ConvNeXtTiny": "convnext_tiny", "ConvNeXtBase": "convnext_base", "MnasNet": "mnasnet1_0"}
"""Names in torchvision; the other runs are of language models whose text is not published."""

OPTIMIZERS: Final[Mapping[str, Callable[[Any], torch.optim.Optimizer]]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "RMSprop": torch.optim.RMSprop,
}


@final
@dataclass(frozen=True, slots=True)
class Said:
    """What each tool said of a run.

    Attributes:
        run: Its name.
        measured_bytes: Memory of the process minus its context.
        by_tool: Bytes, by tool.
    """

    run: str
    measured_bytes: float
    by_tool: Mapping[str, float]


def timm_runs(folder: Path, *, sample: int | None) -> Iterator[Said]:
    """Run every tool on one model a family of the table of timm.

    Args:
        folder: Where the table lies.
        sample: So many families at most; None for all.

    Raises:
        MeasurementTableError: A wrong table.
    """
    columns = ("model", "family", "batch", "status", "measured_mib", "fake_tensor_mib", "image", "channels")
    met: set[str] = set()
    for row in read_csv(folder / TIMM_TABLE, MeasurementTableError, columns=columns):
        values = row.value
        measured = row.member("measured_mib").parsed().positive() * MEBIBYTE - CONTEXT_BYTES
        fake = float(values["fake_tensor_mib"] or 0) * MEBIBYTE
        wanted = values["status"] == "ok" and int(values["batch"]) == BATCH and values["channels"] == "3" and fake > 0
        family = values["family"]
        if not wanted or family in CHOSEN_ON | met or measured < LEAST_BYTES or not is_of_the_step(fake, measured):
            continue
        if sample is not None and len(met) >= sample:
            return
        side = row.member("image").parsed().positive()
        with torch.device("meta"):
            module = _timm_model(values["model"])
            images = torch.empty(BATCH, 3, int(side), int(side))
        if module is None:
            continue
        met.add(family)
        said = _all_tools(module, images, torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9))
        yield Said(f"{values['model']}, {BATCH}", measured, {**said, "FakeTensor, as published": fake})


def _timm_model(name: str) -> nn.Module | None:
    import_torchvision()
    try:
        module: nn.Module = import_module("timm").create_model(name)
    except RuntimeError:  # a model that this release no longer has
        return None
    return module


def xmem_runs(folder: Path) -> Iterator[Said]:
    """Record the runs that xMem's authors published and that can be rebuilt."""
    import_torchvision()
    models = import_module("torchvision").models
    with (folder / XMEM_TABLE).open() as file:
        rows = [row for row in csv.DictReader(file) if row["model"] in XMEM_MODELS and row["real_oom"] == "0"]
    for row in rows:
        count = int(row["batch"])
        with torch.device("meta"):
            module = models.get_model(XMEM_MODELS[row["model"]], weights=None)
            images = torch.empty(count, 3, XMEM_IMAGE, XMEM_IMAGE)
        named = {"xmem": "xMem", "dnnmem": "DNNMem", "schedtune": "SchedTune"}
        said = {words: float(row[name]) for name, words in named.items() if row[name]}
        ours = _ours(module, images, OPTIMIZERS[row["optimizer"]](module.parameters()), XMEM_GPU)
        yield Said(
            f"{row['model']}, {row['optimizer']}, {count}", float(row["ground"]), {"lightning-predict": ours, **said}
        )


def _all_tools(module: nn.Module, images: torch.Tensor, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    said = {"lightning-predict": _ours(module, images, optimizer, GPU, benchmark=True)}
    step = _step(module, images, optimizer)
    tracker = MemTracker()
    tracker.track_external(module, optimizer, images)
    with tracker:
        step()
    said["torch's MemTracker"] = float(tracker.get_tracker_snapshot("peak")[torch.device("meta")]["Total"])
    size = sum(one.numel() * one.element_size() for one in (*module.parameters(), *module.buffers()))
    for name, tool in (("accelerate's estimate", _accelerate), ("torch-kitsune", _kitsune)):
        try:
            said[name] = tool(module, images, size)
        except ImportError:
            continue
    return said


def _accelerate(module: nn.Module, images: torch.Tensor, size: int) -> float:
    del module, images
    estimate = import_module("accelerate.commands.estimate")
    return float(estimate.estimate_training_usage(size, "float32")["step"])


def _kitsune(module: nn.Module, images: torch.Tensor, size: int) -> float:
    del size
    found = import_module("kitsune.predict").predict_memory(
        module, input_shape=tuple(images.shape[1:]), batch_size=len(images), optimizer="sgd"
    )
    parts = ("param", "gradient", "optimizer", "activation", "overhead")
    return float(sum(getattr(found, f"{part}_bytes") for part in parts))


def _ours(
    module: nn.Module, images: torch.Tensor, optimizer: torch.optim.Optimizer, on: Gpu, *, benchmark: bool = False
) -> float:
    trace = capture(_step(module, images, optimizer), samples_per_step=len(images))
    found = step_memory(replace(trace, flags=replace(trace.flags, cudnn_benchmark=benchmark)))
    assert found is not None
    return float(found.bytes_on(on))


def _step(module: nn.Module, images: torch.Tensor, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    labels = torch.empty(len(images), dtype=torch.int64, device=images.device)

    def run() -> None:
        optimizer.zero_grad()
        output: Any = module(images)
        nn.functional.cross_entropy(output[0] if isinstance(output, list | tuple) else output, labels).backward()
        optimizer.step()

    return run


def print_report(folder: Path, console: Console, *, sample: int | None) -> None:
    """Print what each tool said, and how far off it was; errors as for `timm_runs`."""
    found = (
        ("Runs of timm on an A100", list(timm_runs(folder, sample=sample))),
        ("Runs of xMem's authors", list(xmem_runs(folder))),
    )
    for title, runs in found:
        tools = list(dict.fromkeys(tool for run in runs for tool in run.by_tool))
        rows = report_table(f"{title}: said over measured, less one, %", ("run",), ("measured GiB", *tools))
        for run in runs:
            errors = {tool: 100 * (size / run.measured_bytes - 1) for tool, size in run.by_tool.items()}
            cells = (f"{errors[tool]:+.1f}" if tool in errors else "" for tool in tools)
            rows.add_row(run.run, f"{run.measured_bytes / 2**30:.2f}", *cells)
        console.print(rows)
        table = report_table(f"{title}: median error", ("tool",), ("runs", "median |error| %", "bias %"))
        for tool in tools:
            off = [run.by_tool[tool] / run.measured_bytes - 1 for run in runs if tool in run.by_tool]
            middle = f"{100 * statistics.median(map(abs, off)):.1f}"
            table.add_row(tool, str(len(off)), middle, f"{100 * statistics.median(off):+.1f}")
        console.print(table)
