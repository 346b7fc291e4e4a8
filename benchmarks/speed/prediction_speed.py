"""How long a prediction takes, and the loop that it replaces.

    python -m benchmarks.speed.prediction_speed

A trace of 5,000 operations, 500 of them distinct, is predicted for 40 GPUs at once; the baseline calls the same models
once for each operation and GPU (on a tenth of the work, scaled up). Then GPT-2 Large is recorded on the meta device.
Next to the wall-clock time is the CPU time, which other work on the machine changes less. In the end the
best ten ways to share a model of 13 billion parameters among 8 x 8 H100 are searched (`lightning-predict parallel`).
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

import lightning_predict as lp
from benchmarks.accuracy.workloads.large_language_models import mpt_trace
from benchmarks.result_files import Figure, ResultConsole, write_run
from lightning_predict.hardware import gpu_names
from lightning_predict.record.trace import Flags, Operation, TensorInfo, Trace
from tests.workloads.gpt import GPT2_LARGE, Gpt

OPERATIONS, DISTINCT, GPUS = 5000, 500, 40
SIZES = [64, 128, 256, 384, 512, 768, 1024, 2048, 3072, 4096]


def synthetic_trace() -> Trace:
    """Products, softmaxes, additions and unknown operations of random sizes, each ten times."""
    draw = random.Random(0)
    operations: list[Operation] = []
    while len(operations) < DISTINCT:
        rows, columns, inner = draw.choice(SIZES), draw.choice(SIZES), draw.choice(SIZES)
        left, right = TensorInfo((rows, inner), "float32"), TensorInfo((inner, columns), "float32")
        name = draw.choice(["aten::mm", "aten::mm", "aten::_softmax", "aten::add", "aten::sigmoid"])
        inputs = (left, right) if name == "aten::mm" else (left, left) if name == "aten::add" else (left,)
        operations.append(Operation(name=name, phase="forward", inputs=inputs))
    return Trace(
        operations=tuple(operations * (OPERATIONS // DISTINCT)), device="cpu", recorder="dispatch", flags=Flags()
    )


@dataclass(frozen=True)
class Timed:
    """Median seconds of an action on the clock, and of the processors of all its threads."""

    wall: float
    processor: float


def timed(action: Callable[[], object], *, repeats: int = 9) -> Timed:
    """Times of an action after one warm-up."""
    action()
    walls, processors = [], []
    for _ in range(repeats):
        wall, processor = time.perf_counter(), time.process_time()
        action()
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    return Timed(median(walls), median(processors))


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args()
    trace = synthetic_trace()
    gpus = gpu_names()[:GPUS]
    together = timed(lambda: lp.predict(trace, gpus, history=False))
    part = Trace(operations=trace.operations[:DISTINCT], device="cpu", recorder="dispatch", flags=Flags())

    def one_by_one() -> None:
        for name in gpus[: GPUS // 10]:
            for operation in part.operations:
                lp.predict(Trace(operations=(operation,), device="cpu", recorder="dispatch"), [name])

    loop = timed(one_by_one, repeats=1).wall * (OPERATIONS / DISTINCT) * 10

    def record() -> None:
        with torch.device("meta"):
            model = Gpt(GPT2_LARGE)
            tokens = torch.zeros(1, 1024, dtype=torch.int64)

        def step() -> None:
            logits = model(tokens)
            logits.backward(torch.empty_like(logits))

        lp.predict(lp.capture(step, warmup_steps=0))

    large = timed(record, repeats=3)
    step = mpt_trace("13b", length=2048, batch=16, recompute=False)
    search = timed(lambda: lp.best_layouts(step, ["8x8xH100-SXM-80GB"]), repeats=1)
    work = f"{OPERATIONS:,} operations x {len(gpus)} GPUs"
    figures = (
        Figure(name=f"{work}, one call", value=f"{together.wall:.3f}", unit="s"),
        Figure(name=f"{work}, one call: processor time", value=f"{together.processor:.3f}", unit="s"),
        Figure(name=f"{work}, one operation and GPU at a time", value=f"{loop:.0f}", unit="s"),
        Figure(name="GPT-2 Large, recorded on meta and predicted for ten GPUs", value=f"{large.wall:.2f}", unit="s"),
        Figure(name="ten best ways to share 13 B on 8 x 8 H100", value=f"{search.wall:.1f}", unit="s"),
        Figure(name="the same: processor time", value=f"{search.processor:.1f}", unit="s"),
    )
    console = ResultConsole(width=100)
    console.print_figures("Time of predictions", figures)
    write_run(console, "speed-prediction", options.result)


if __name__ == "__main__":
    main()
