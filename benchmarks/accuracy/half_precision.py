"""Compare steps in float16 (`16-true`) with steps under float16 autocast (`16-mixed`), on GPUs with 16-bit units.

    python -m benchmarks.accuracy.half_precision FOLDER

20 training steps are recorded on the meta device in float32 and both precisions. A step in `16-true` has fewer casts
and half the optimizer's traffic, so its time should be at most that of `16-mixed`. Batch norms are the exception: cuDNN
takes float16 images only with float32 weights, so PyTorch's own kernels run in `16-true`. FOLDER holds published steps
of VGG with and without batch norms (`torchvision_step.csv`, `torchvision_step_2.csv`, `timm.csv.gz`). Their differences
are the measured times of batch norms, next to predictions if `--cache` has the recorded steps. The what-ifs of advice,
from the float32 step, are compared with recorded steps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

import torch
from rich.table import Table
from torch import Tensor, nn

import lightning_predict as lp
from benchmarks.accuracy.vision import (
    TIMM_TABLE,
    TORCHVISION_TABLE,
    TORCHVISION_TABLE_2,
    VisionCase,
    evaluate_vision,
    read_timm_cases,
    read_torchvision_cases,
)
from benchmarks.accuracy.workloads.bert import BERT_BASE, BERT_LARGE, Bert
from benchmarks.accuracy.workloads.cifar import cifar_resnet18
from benchmarks.accuracy.workloads.classifiers import VGG16, VGG19, alexnet, googlenet, vgg
from benchmarks.accuracy.workloads.dcgan import discriminator
from benchmarks.accuracy.workloads.gnmt import GNMT, Gnmt
from benchmarks.accuracy.workloads.gpt import GPT2_LARGE, GPT2_SMALL, Gpt
from benchmarks.accuracy.workloads.inception import InceptionV3
from benchmarks.accuracy.workloads.recorded import without_pauses
from benchmarks.accuracy.workloads.resnet import ResNet50
from benchmarks.result_files import ResultConsole, write_run
from benchmarks.training.report import report_table
from lightning_predict.advice.changes import in_half
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.records import NVIDIA
from lightning_predict.record.precision import in_precision
from lightning_predict.record.trace import Trace

GPUS: Final = (
    *("V100-SXM2-16GB", "T4", "RTX-2080-Ti", "A100-SXM-80GB", "A10", "RTX-3090", "L4", "L40S", "RTX-4090"),
    *("H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "RTX-5090"),
)
"""GPUs with tensor cores, of all generations since Volta."""

PRECISIONS: Final = ("32-true", "16-true", "16-mixed")

WIDTH: Final = 160


@final
@dataclass(frozen=True, slots=True)
class Model:
    """A model to train: how to build it, and the shape of its input; tokens if the shape has two numbers."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    inputs: int = 1


MODELS: Final[Mapping[str, Model]] = {
    "ResNet-50, 32 images": Model(ResNet50, (32, 3, 224, 224)),
    "ResNet-50, 128 images": Model(ResNet50, (128, 3, 224, 224)),
    "ResNet-18 of CIFAR, 128": Model(cifar_resnet18, (128, 3, 32, 32)),
    "GoogLeNet, 64": Model(googlenet, (64, 3, 224, 224)),
    "Inception v3, 32": Model(InceptionV3, (32, 3, 299, 299)),
    "DCGAN's discriminator, 64": Model(lambda: discriminator(64), (64, 3, 64, 64)),
    "AlexNet, 128": Model(alexnet, (128, 3, 224, 224)),
    "VGG-16, 32": Model(lambda: vgg(VGG16), (32, 3, 224, 224)),
    "VGG-19, 64": Model(lambda: vgg(VGG19), (64, 3, 224, 224)),
    "BERT-base, 32 of 128 tokens": Model(lambda: Bert(BERT_BASE, head="classification"), (32, 128)),
    "BERT-base, 8 of 512": Model(lambda: Bert(BERT_BASE, head="classification"), (8, 512)),
    "BERT-large, 8 of 384": Model(lambda: Bert(BERT_LARGE, head="questions"), (8, 384)),
    "BERT-large, pretraining, 8 of 128": Model(lambda: Bert(BERT_LARGE, head="pretraining"), (8, 128)),
    "GPT-2, 4 of 1,024": Model(lambda: Gpt(GPT2_SMALL), (4, 1024)),
    "GPT-2 large, 2 of 1,024": Model(lambda: Gpt(GPT2_LARGE), (2, 1024)),
    "GPT-2, 16 of 256": Model(lambda: Gpt(GPT2_SMALL), (16, 256)),
    "BERT-large, 32 of 128": Model(lambda: Bert(BERT_LARGE, head="classification"), (32, 128)),
    "GNMT, 64 of 30": Model(lambda: Gnmt(GNMT), (30, 64), inputs=2),
    "Transformer encoder, 16 of 256": Model(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True), 6), (16, 256, 1024)
    ),
    "Perceptron of 8 layers, 512": Model(
        lambda: nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8))), (512, 1, 4096)
    ),
}


def recorded(model: Model, precision: str) -> Trace:
    """Record a training step with AdamW on the meta device."""
    dtype = torch.float16 if precision == "16-true" else torch.float32
    with torch.device("meta"):
        module = model.build().to(dtype).train()
        data = torch.zeros(model.shape, dtype=torch.int64 if len(model.shape) == 2 else dtype)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        output: Any = module(*[data] * model.inputs)
        _loss(output[0] if isinstance(output, tuple) else output).backward()
        optimizer.step()

    return without_pauses(lp.capture(step, warmup_steps=1, precision=precision))


def _loss(output: Tensor) -> Tensor:
    rows = output.flatten(0, -2) if output.dim() > 1 else output.unsqueeze(1)
    return nn.functional.cross_entropy(rows, torch.zeros(len(rows), dtype=torch.int64, device=rows.device))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HalfScore:
    """Ratios of predicted times of a step, by GPU.

    Attributes:
        model: Name of the model.
        has_batch_norms: Whether the step has batch norms.
        ratios: Time in `16-true` over the time in `16-mixed`.
        without_norms: The same ratio without the batch norms.
        advice: The what-if from the float32 step over the recorded step, by precision.
    """

    model: str
    has_batch_norms: bool
    ratios: Mapping[str, float]
    without_norms: Mapping[str, float]
    advice: Mapping[str, Mapping[str, float]]


def scores(names: Sequence[str] = tuple(MODELS), gpus: Sequence[str] = GPUS) -> Iterator[HalfScore]:
    """Predict each step in each precision."""
    for name in names:
        steps = {precision: recorded(MODELS[name], precision) for precision in PRECISIONS}
        what_ifs = {
            "16-true": in_half(steps["32-true"], "float16"),
            "16-mixed": in_precision(steps["32-true"], "float16"),
        }
        times = {precision: _times(step, gpus) for precision, step in steps.items()}
        bare = {precision: _times(_without_norms(steps[precision]), gpus) for precision in what_ifs}
        yield HalfScore(
            model=name,
            has_batch_norms=any("batch_norm" in one.name for one in steps["16-true"].operations),
            ratios=_ratios(times["16-true"], times["16-mixed"]),
            without_norms=_ratios(bare["16-true"], bare["16-mixed"]),
            advice={one: _ratios(_times(step, gpus), times[one]) for one, step in what_ifs.items()},
        )


def _without_norms(trace: Trace) -> Trace:
    kept = tuple(one for one in trace.operations if "batch_norm" not in one.name)
    return replace(trace, operations=kept)


def _times(trace: Trace, gpus: Sequence[str]) -> dict[str, float]:
    found = lp.predict(trace, gpus, history=False)
    return {gpu: found[gpu].iteration_seconds for gpu in gpus}


def _ratios(above: Mapping[str, float], below: Mapping[str, float]) -> dict[str, float]:
    return {gpu: above[gpu] / below[gpu] for gpu in above}


def ratio_table(found: Sequence[HalfScore]) -> Table:
    """Return the ratios of each step, and the largest of steps without and with batch norms."""
    table = report_table(
        f"A step in 16-true over the step in 16-mixed, on {len(GPUS)} GPUs",
        ("step", "batch norms"),
        ("median", "largest", "largest without batch norms", "advice differs, 16-true %", "16-mixed %"),
    )
    for one in found:
        table.add_row(one.model, "yes" if one.has_batch_norms else "no", *_cells([one]))
    table.add_section()
    for has, name in ((False, "all without batch norms"), (True, "all with batch norms")):
        rows = [one for one in found if one.has_batch_norms is has]
        if rows:
            table.add_row(name, "yes" if has else "no", *_cells(rows))
    return table


def _cells(found: Sequence[HalfScore]) -> tuple[str, ...]:
    ratios = [ratio for one in found for ratio in one.ratios.values()]
    bare = [ratio for one in found for ratio in one.without_norms.values()]
    off = {
        precision: max(abs(ratio - 1) for one in found for ratio in one.advice[precision].values())
        for precision in PRECISIONS[1:]
    }
    return (
        *(f"{value:.3f}" for value in (statistics.median(ratios), max(ratios), max(bare))),
        *(f"{100 * off[precision]:.1f}" for precision in PRECISIONS[1:]),
    )


VGGS: Final = ("vgg11", "vgg13", "vgg16", "vgg19")


def norm_table(folder: Path, cache: Path | None = None) -> Table:
    """Return measured times of VGG's batch norms: the step with them less the step without, by precision.

    Args:
        folder: Folder with the tables.
        cache: Folder of recorded steps, to predict the times of NVIDIA's GPUs, too.

    Raises:
        MeasurementTableError: A table lacks a column or a value.
    """
    table = report_table(
        "Batch norms of VGG in training, measured: time relative to float32",
        ("GPU", "model"),
        ("float16 weights", "autocast", "predicted over measured, float16 weights"),
    )
    errors = list[float]()
    cases = [
        case for name in (TORCHVISION_TABLE, TORCHVISION_TABLE_2) for case in read_torchvision_cases(folder / name)
    ]
    autocast = read_timm_cases(folder / TIMM_TABLE)
    for gpu in dict.fromkeys(case.gpu for case in cases):
        own = _per_image(case for case in cases if case.gpu == gpu)
        mixed = _per_image(case for case in autocast if case.gpu == gpu)
        predicted = _predicted(cases, gpu, cache)
        for name in VGGS:
            single, half = _of_norms(own, name, "single"), _of_norms(own, name, "half")
            if single and half:
                amp = _of_norms(mixed, name, "amp")
                ours = _of_norms(predicted, name, "half")
                errors += [] if ours is None else [abs(ours / half - 1)]
                cells = (
                    f"{one:.2f}" if one else "-" for one in (half / single, (amp or 0) / single, (ours or 0) / half)
                )
                table.add_row(gpu, name, *cells)
    if errors:
        table.add_section()
        table.add_row("mean error %", "", "", "", f"{100 * statistics.fmean(errors):.1f}")
    return table


def _predicted(cases: Sequence[VisionCase], gpu: str, cache: Path | None) -> dict[tuple[str, str], float]:
    """Return predicted seconds of an image in float16, by model and precision; none for other makers' GPUs."""
    if cache is None or find_gpu(gpu).vendor != NVIDIA:
        return {}
    names = (*VGGS, *(f"{name}_bn" for name in VGGS))
    own = [case for case in cases if case.gpu == gpu and case.step.mode == "train" and case.step.precision == "half"]
    found = evaluate_vision([case for case in own if case.step.model in names], cache=cache, jobs=1)
    return {(one.case.step.model, "half"): one.seconds / one.case.step.batch for one in found}


def _per_image(cases: Any) -> dict[tuple[str, str], float]:
    training: list[VisionCase] = [case for case in cases if case.step.mode == "train" and case.step.layout == "nchw"]
    return {(case.step.model, case.step.precision): case.measured_seconds / case.step.batch for case in training}


def _of_norms(times: Mapping[tuple[str, str], float], name: str, precision: str) -> float | None:
    with_norms, without = times.get((f"{name}_bn", precision)), times.get((name, precision))
    return None if with_norms is None or without is None else with_norms - without


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy.half_precision", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("folder", type=Path, help="folder with the tables of published steps")
    parser.add_argument("--cache", type=Path, default=None, help="folder of recorded steps of torchvision")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    console = ResultConsole(width=WIDTH)
    console.print(ratio_table(list(scores())))
    console.print(norm_table(options.folder, options.cache))
    write_run(console, "half-precision", options.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
