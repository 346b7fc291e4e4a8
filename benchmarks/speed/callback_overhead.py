"""Cost of the callbacks for a training run on the CPU: each step after the capture, and the capture itself.

    python -m benchmarks.speed.callback_overhead

Runs of 200 steps. From step 20 on, when the capture is over, the callbacks are taken out of the Trainer and put back
every five steps, so that a stretch with them and one without lie next to each other under the same load of the machine.
The cost of a step is the median over all such pairs of the ratio of the two, with an interval that holds the true
median with 95 % confidence (bootstrap over pairs); by processor time on one thread, which other programs hardly
disturb, and by the wall clock. Lightning itself takes a while for any callback: compare with an empty one. It also
prints the time of the callbacks' own hooks, measured one by one.

The cost of the capture and of the prediction is the additional time of the first 20 steps over runs without callbacks
: in the first run of the process, which loads the weights, and in later ones.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.result_files import Figure, ResultConsole, write_run
from lightning_predict.callbacks import CostBudget, RuntimePredictor

STEPS, CAPTURE_STEPS, STRETCH, ROUNDS = 200, 20, 5, 36
WIDTH, BATCH_SIZE = 512, 64

NOTHING = "nothing (a check of the method)"
CASES: dict[str, Callable[[], list[Callback]]] = {
    NOTHING: list,
    "an empty Callback": lambda: [Callback()],
    "RuntimePredictor": lambda: [RuntimePredictor(print_table=False)],
    "RuntimePredictor and CostBudget": lambda: [RuntimePredictor(print_table=False), CostBudget(hours=1000)],
}


class Network(LightningModule):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def training_step(self, batch: Tensor) -> Tensor:
        """The mean square of the output."""
        loss: Tensor = self.network(batch).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters())


@dataclass(slots=True)
class Clocks:
    """Times of one run."""

    # Wall and processor seconds at the beginning of each batch
    starts: list[tuple[float, float]] = field(default_factory=list)
    hook_seconds: dict[int, float] = field(default_factory=dict)  # Processor seconds in hooks of the callbacks, by step

    def steps(self, clock: int) -> list[float]:
        """Seconds of each step."""
        return [after[clock] - before[clock] for before, after in zip(self.starts, self.starts[1:], strict=False)]

    def pairs(self, clock: int) -> list[float]:
        """Ratios of a stretch with the callbacks to the next without them, the first step of each left out."""
        steps = self.steps(clock)[CAPTURE_STEPS:]
        sums = [sum(steps[start + 1 : start + STRETCH]) for start in range(0, len(steps) - STRETCH + 1, STRETCH)]
        return [one / other for one, other in zip(sums[::2], sums[1::2], strict=False)]


class Switch(Callback):
    """Notes when batches begin, and takes the other callbacks out and puts them back."""

    def __init__(self, others: list[Callback], clocks: Clocks) -> None:
        self.others = others
        self.clocks = clocks

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """A step begins."""
        self.clocks.starts.append((time.perf_counter(), time.process_time()))
        later = len(self.clocks.starts) - 1 - CAPTURE_STEPS
        if later >= 0 and later % STRETCH == 0:
            has_others = (later // STRETCH) % 2 == 0
            trainer.callbacks = [self, *self.others] if has_others else [self]


def run(others: list[Callback]) -> Clocks:
    """A run of 200 steps with these callbacks."""
    clocks = Clocks()
    for callback in others:
        clock_hooks(callback, clocks)
    data = torch.randn(BATCH_SIZE * STEPS, WIDTH, generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=1,
            callbacks=[Switch(others, clocks), *others],
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Network(), DataLoader(data, batch_size=BATCH_SIZE))  # type: ignore[arg-type]
    return clocks


def clock_hooks(callback: Callback, clocks: Clocks) -> None:
    """Clock the two hooks that each step calls."""
    for name in ("on_train_batch_start", "on_train_batch_end"):
        hook = getattr(callback, name)

        @wraps(hook)
        def clocked(*args: Any, hook: Callable[..., None] = hook, **options: Any) -> None:
            before = time.thread_time()
            hook(*args, **options)
            step = len(clocks.starts)
            clocks.hook_seconds[step] = clocks.hook_seconds.get(step, 0.0) + time.thread_time() - before

        setattr(callback, name, clocked)


def median_in_words(ratios: Iterable[float]) -> str:
    """Median of ratios, and the interval that holds the true one with 95 % confidence."""
    values = np.array(list(ratios))
    draws = np.random.default_rng(0).choice(values, (2000, len(values)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return f"{np.median(values):.4f} ({low:.4f} to {high:.4f})"


def report(name: str, runs: list[Clocks]) -> tuple[Figure, ...]:
    """Return the cost of one case per step."""
    wall, processor = (median_in_words(ratio for one in runs for ratio in one.pairs(clock)) for clock in (0, 1))
    hooks = [seconds for one in runs for step, seconds in one.hook_seconds.items() if step > CAPTURE_STEPS] or [0.0]
    step = statistics.median(seconds for one in runs for seconds in one.steps(1)[CAPTURE_STEPS:])
    return (
        Figure(name=f"{name}: processor time of a step over one without", value=processor),
        Figure(name=f"{name}: wall time of a step over one without", value=wall),
        Figure(name=f"{name}: hooks of a step", value=f"{1e6 * statistics.median(hooks):.1f}", unit="microseconds"),
        Figure(name=f"{name}: a step", value=f"{1e3 * step:.2f}", unit="ms"),
    )


def main() -> None:
    """Print the cost of the callbacks."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LIGHTNING_PREDICT_HISTORY"] = os.path.join(folder, "history.jsonl")
        run([])
        cold = run(CASES["RuntimePredictor"]())
        rounds = [{name: run(make()) for name, make in CASES.items()} for _ in range(ROUNDS)]
    figures = [figure for name in CASES for figure in report(name, [runs[name] for runs in rounds])]
    plain = statistics.median(sum(runs[NOTHING].steps(1)[:CAPTURE_STEPS]) for runs in rounds)
    step = statistics.median(seconds for runs in rounds for seconds in runs[NOTHING].steps(1)[CAPTURE_STEPS:])
    first = sum(cold.steps(1)[:CAPTURE_STEPS]) - plain
    figures.append(Figure(name="capture and prediction, first", value=f"{first:.2f}", unit="s"))
    figures.append(Figure(name="the same in steps", value=f"{first / step:.0f}"))
    for name in list(CASES)[2:]:
        later = statistics.median(sum(runs[name].steps(1)[:CAPTURE_STEPS]) for runs in rounds) - plain
        figures.append(Figure(name=f"capture and prediction, later, {name}", value=f"{later:.2f}", unit="s"))
    console = ResultConsole(width=120)
    console.print_figures(f"Cost of the callbacks, {ROUNDS} runs of {STEPS} steps (95 % interval)", figures)
    write_run(console, "speed-callbacks", options.result)


if __name__ == "__main__":
    main()
