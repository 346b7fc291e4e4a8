"""What the callback costs a training run on the CPU: the median step, and the capture itself.

    python -m benchmarks.callback_overhead

Runs of 200 steps without a callback, with an empty one, with RuntimePredictor and with RuntimePredictor and CostBudget
take turns, so that a machine that is busy for a while is so for all of them. A step lasts from the beginning of a batch
to the beginning of the next; the first 20, in which the capture falls, are not in the median. Each ratio is that of two
medians of the same round; printed are the median, the least and the largest of the rounds: of the wall clock, and of
processor time on one thread, which other processes disturb less.
"""

from __future__ import annotations

import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_predict.callbacks import CostBudget, RuntimePredictor

STEPS, SKIPPED, ROUNDS = 200, 20, 9
WIDTH, BATCH_SIZE = 512, 64


Clocks = tuple[float, float]
"""Wall and processor seconds."""


class Timed(LightningModule):
    """A small network that notes when its batches begin."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.starts: list[Clocks] = []

    def training_step(self, batch: Tensor) -> Tensor:
        """Note the time; the loss is the mean square of the output."""
        self.starts.append((time.perf_counter(), time.process_time()))
        loss: Tensor = self.network(batch).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters())


class Empty(Callback):
    """A callback that does nothing, for the part of the cost that is Lightning's."""


CASES: dict[str, Callable[[], list[Callback]]] = {
    "none": list,
    "an empty Callback": lambda: [Empty()],
    "RuntimePredictor": lambda: [RuntimePredictor(print_table=False)],
    "RuntimePredictor and CostBudget": lambda: [RuntimePredictor(print_table=False), CostBudget(hours=1000)],
}


def run(callbacks: list[Callback]) -> list[Clocks]:
    """Wall and processor seconds of each step of a run."""
    model = Timed()
    data = torch.randn(BATCH_SIZE * STEPS, WIDTH, generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=1,
            callbacks=callbacks,
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, DataLoader(data, batch_size=BATCH_SIZE))  # type: ignore[arg-type]
    pairs = zip(model.starts, model.starts[1:], strict=False)
    return [(after[0] - before[0], after[1] - before[1]) for before, after in pairs]


def median_step(steps: list[Clocks], clock: int) -> float:
    """The median of the steps after the capture."""
    return statistics.median(step[clock] for step in steps[SKIPPED:])


def ratio_in_words(rounds: list[dict[str, list[Clocks]]], name: str, clock: int) -> str:
    """Median, least and largest ratio to the run without a callback."""
    ratios = sorted(median_step(one[name], clock) / median_step(one["none"], clock) for one in rounds)
    return f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"


def main() -> None:
    """Print the ratios."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LIGHTNING_PREDICT_HISTORY"] = os.path.join(folder, "history.jsonl")
        run([])
        rounds = [{name: run(make()) for name, make in CASES.items()} for _ in range(ROUNDS)]
    plain = statistics.median(median_step(one["none"], 0) for one in rounds)
    print(f"a step without a callback: {plain * 1e3:.2f} ms; ratios to it over {ROUNDS} rounds of {STEPS} steps")
    for name in list(CASES)[1:]:
        wall, processor = (ratio_in_words(rounds, name, clock) for clock in (0, 1))
        print(f"{name:<32} wall {wall}, processor {processor}")
    for name in list(CASES)[2:]:
        extra = [sum(s[1] for s in one[name][:SKIPPED]) - sum(s[1] for s in one["none"][:SKIPPED]) for one in rounds]
        seconds = statistics.median(extra)
        print(f"{name}: the first {SKIPPED} steps take {seconds:.2f} s more, {seconds / plain:.0f} steps")


if __name__ == "__main__":
    main()
