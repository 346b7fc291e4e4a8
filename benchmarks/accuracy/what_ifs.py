"""Compare what-ifs with second recordings of the changed step: `python -m benchmarks.accuracy.what_ifs DATA`.

Two recordings of one model differ in one option: mixed precision, `model.half()`, channels last, the batch size,
checkpointing, or `torch.compile`. The what-if changes the first recording as advice does. Both steps are then predicted
on the same GPUs. Their ratio is 1 if the what-if transforms the step as the option does. No measurement takes part,
except for compiled code, which only a GPU can run: its second recording is the project's own, on an H200.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final, final

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lightning_predict as lp
from benchmarks.accuracy.recordings import without_kernels
from benchmarks.result_files import ResultConsole, write_run
from benchmarks.scored_steps import WIDTH
from benchmarks.training.report import report_table
from lightning_predict.advice.batch_size import with_samples
from lightning_predict.advice.changes import CHANGES
from lightning_predict.assumptions import Assumptions
from lightning_predict.record.trace import Trace

NAME: Final = "what-ifs"
GPUS: Final = ("T4", "H100-SXM-80GB")
RECORDINGS: Final = Path(__file__).parents[1] / "measured" / "H200-SXM-141GB" / "recordings"

CLOSE: Final = 0.03
"""Largest difference of a what-if that counts as close."""

MOST_PAIRS: Final = 12
"""Pairs of one kind, spread evenly over the files."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SecondRecording:
    """A step before and after a change, both recorded.

    Attributes:
        kind: Kind of change.
        model: Name of the step.
        before: Reads the first recording.
        after: Reads the second recording.
        changed: Makes the change in the first recording.
        gpus: GPUs to predict.
    """

    kind: str
    model: str
    before: Callable[[], Trace]
    after: Callable[[], Trace]
    changed: Callable[[Trace], Trace]
    gpus: Sequence[str] = GPUS


@final
@dataclass(frozen=True, slots=True)
class Difference:
    """Largest difference of a what-if from the second recording, over the GPUs, as a share of the device time."""

    kind: str
    model: str
    largest: float


def change(name: str) -> Callable[[Trace], Trace]:
    """Return a function that makes a change as advice makes it."""
    return lambda trace: CHANGES[name].apply(trace, Assumptions())[0]


def recorded_pairs(folder: Path) -> Iterator[SecondRecording]:
    """Yield the pairs of recordings below a folder of validation tables."""
    halves = sorted((folder / "traces_pairs" / "torchvision").glob("*_float_*.json.gz"))
    for path in _spread(halves):
        yield _of_files("half", path, path.with_name(path.name.replace("_float_", "_half_")), change("half"))
    lasts = sorted((folder / "traces_pairs" / "timm").glob("*__nhwc.json.gz"))
    for path in _spread([one for one in lasts if _first_of(one).is_file()]):
        yield _of_files("channels last", _first_of(path), path, change("channels_last"))
    batches = [
        (small, large)
        for small, large in pairwise(sorted((folder / "traces_memory").glob("*.json.gz"), key=_model_and_batch))
        if _model_and_batch(small)[0] == _model_and_batch(large)[0]
    ]
    for small, large in _spread(batches):
        grown = _model_and_batch(large)[1]
        yield _of_files("batch size", small, large, lambda trace, count=grown: with_samples(trace, count))  # type: ignore[misc]
    for path in sorted((folder / "traces_new" / "milabench").glob("*-fp16-*.json.gz")):
        for precision in ("fp32", "tf32"):
            before = path.with_name(path.name.replace("-fp16-", f"-{precision}-"))
            if before.is_file():
                yield _of_files(f"mixed precision, from {precision}", before, path, change("16-mixed"))


def _first_of(last: Path) -> Path:
    return last.with_name(last.name.replace("__nhwc", "__nchw"))


def _spread(found: Sequence[tuple[Path, Path]] | Sequence[Path]) -> list:  # type: ignore[type-arg]
    """Return at most `MOST_PAIRS`, evenly spread."""
    step = max(1, -(-len(found) // MOST_PAIRS))
    return list(found[::step])


def _model_and_batch(path: Path) -> tuple[str, int]:
    model, _, batch = path.name.removesuffix(".json.gz").rpartition("_")
    return model, int(batch)


def _of_files(kind: str, before: Path, after: Path, changed: Callable[[Trace], Trace]) -> SecondRecording:
    def read(path: Path) -> Callable[[], Trace]:
        return lambda: Trace.load(str(path))

    name = after.name.removesuffix(".json.gz")
    return SecondRecording(kind=kind, model=name, before=read(before), after=read(after), changed=changed)


# --- Steps that are recorded here


@final
class Repeated(nn.Module):
    """Blocks that keep their activations, or compute them again in the backward pass."""

    def __init__(self, blocks: Sequence[nn.Module], *, again: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.again = again

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Run all blocks."""
        for block in self.blocks:
            data = checkpoint(block, data, use_reentrant=False) if self.again else block(data)
        return data


def _encoder(width: int) -> nn.Module:
    return nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True, norm_first=True)


def _mixer(width: int) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def _convolutional(width: int) -> nn.Module:
    layers = [part for _ in range(2) for part in (nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width))]
    return nn.Sequential(*layers, nn.ReLU())


def _denoiser(width: int) -> nn.Module:
    return nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))


ARCHITECTURES: Final[
    Mapping[str, tuple[Callable[[int], nn.Module], Sequence[int], Callable[[int], tuple[int, ...]]]]
] = {
    "transformer": (_encoder, (768, 2048), lambda width: (8192 // 512, 512, width)),
    "mixer": (_mixer, (512, 4096), lambda width: (64, 256, width)),
    "ResNet": (_convolutional, (64, 256), lambda width: (32, width, 56, 56)),
    "U-Net": (_denoiser, (128, 320), lambda width: (8, width, 64, 64)),
}
"""For each architecture: a block, widths, and the shape of the data."""

PRECISIONS: Final = ("32-true", "bf16-mixed", "16-mixed")


def recomputed_pairs() -> Iterator[SecondRecording]:
    """Yield steps without and with checkpointing of each block."""
    for name, (block, widths, shape) in ARCHITECTURES.items():
        for width in widths:
            for precision in PRECISIONS:

                def recorded(*, again: bool, made=block, size=width, data=shape, word=precision) -> Trace:  # type: ignore[no-untyped-def]
                    with torch.device("meta"):
                        model, rows = Repeated([made(size) for _ in range(4)], again=again), torch.empty(data(size))
                    rows.requires_grad_()
                    step = lambda: model(rows).square().mean().backward()  # noqa: E731
                    return lp.capture(step, resident=[model], warmup_steps=0, precision=word)

                yield SecondRecording(
                    kind="checkpointing",
                    model=f"{name} {width} {precision}",
                    before=lambda recorded=recorded: recorded(again=False),  # type: ignore[misc]
                    after=lambda recorded=recorded: recorded(again=True),  # type: ignore[misc]
                    changed=change("checkpointing"),
                )


def compiled_pairs() -> Iterator[SecondRecording]:
    """Yield the project's own step that was recorded eager and compiled, without the times of its kernels."""

    def read(name: str) -> Callable[[], Trace]:
        return lambda: without_kernels(Trace.load(str(RECORDINGS / f"{name}.json.gz")))

    yield SecondRecording(
        kind="compile",
        model="ResNet-50 on an H200",
        before=read("resnet50_eager"),
        after=read("resnet50_compile"),
        changed=change("compile"),
        gpus=("H200-SXM-141GB",),
    )


# --- Comparison


def difference(pair: SecondRecording) -> Difference:
    """Predict both steps and return the largest relative difference of their device times."""
    changed, recorded = (
        lp.predict(one, list(pair.gpus), history=False, iterations=None)
        for one in (pair.changed(pair.before()), pair.after())
    )
    ratios = [changed[gpu].device_seconds / recorded[gpu].device_seconds - 1 for gpu in pair.gpus]
    return Difference(pair.kind, pair.model, max(ratios, key=abs))


def print_report(found: Sequence[Difference], console: ResultConsole) -> None:
    """Print a row for each kind of change, and the what-ifs that are not close."""
    table = report_table(
        "What-ifs and second recordings: largest difference of a step's device time on a T4 and an H100",
        ("change",),
        ("steps", "within 3 %", "median %", "worst %"),
    )
    for kind, group in groupby(sorted(found, key=lambda one: one.kind), key=lambda one: one.kind):
        sizes = [abs(one.largest) for one in group]
        close = sum(size <= CLOSE for size in sizes)
        table.add_row(
            kind, str(len(sizes)), str(close), f"{100 * statistics.median(sizes):.1f}", f"{100 * max(sizes):.1f}"
        )
    sizes = [abs(one.largest) for one in found]
    table.add_row("all", str(len(sizes)), str(sum(size <= CLOSE for size in sizes)), "", f"{100 * max(sizes):.1f}")
    console.print(table)
    apart = report_table("What-ifs that differ by more than 3 %", ("change", "step"), ("difference %",))
    for one in sorted(found, key=lambda one: (one.kind, -abs(one.largest))):
        if abs(one.largest) > CLOSE:
            apart.add_row(one.kind, one.model, f"{100 * one.largest:+.1f}")
    console.print(apart)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of the validation tables")
    parser.add_argument("--kinds", nargs="+", default=(), help="only kinds of change that start with these words")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    console = ResultConsole(width=WIDTH)
    pairs = (*recorded_pairs(options.folder), *recomputed_pairs(), *compiled_pairs())
    wanted = tuple(options.kinds)
    found = [difference(one) for one in pairs if not wanted or one.kind.startswith(wanted)]
    print_report(found, console)
    write_run(console, NAME, options.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
