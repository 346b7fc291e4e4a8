"""The hooks of a step cost as much after a million steps as after a thousand, with every kind of optimization.

The real hooks are called from a fit that has begun, with Lightning's counters of batches and optimizer steps, but
without its loop and a model, which would take most of the time. `pytest -s` prints the cost.
"""

import statistics
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from lightning_predict.callbacks import CostBudget, RuntimePredictor
from tests.callbacks.small import BATCH_SIZE, FEATURES, Small

STEPS: Final = 1_000_000
BLOCK: Final = 1_000  # Steps whose time is one measurement
BLOCKS: Final = 24  # Measurements at each end, of which the median counts


class Endless:
    """A loader of more batches than the hooks are told of, which need no memory."""

    def __len__(self) -> int:
        return 2 * STEPS

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.zeros(BATCH_SIZE, FEATURES)


def model_of(small: Small, kind: str) -> Any:
    """Return a model whose optimizer steps are automatic, manual, of an optimizer unknown to Lightning, or none."""
    if kind == "automatic":
        return small.model()
    base = type(small.gan())

    class Manual(base):  # type: ignore[misc,valid-type]
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            if kind == "manual":
                super().training_step(batch, batch_idx)
            elif kind == "own optimizer":
                self.own.zero_grad()
                self.generator(batch).sum().backward()
                self.own.step()

        def configure_optimizers(self) -> Any:
            self.own = torch.optim.SGD(self.generator.parameters(), lr=0.01)
            return super().configure_optimizers() if kind == "manual" else None

    return Manual()


@pytest.mark.parametrize("kind", ["automatic", "manual", "own optimizer", "no steps"])
def test_hooks_cost_as_much_after_a_million_steps_as_after_a_thousand(
    lightning: Small, tmp_path: Path, kind: str
) -> None:
    callbacks: list[Any] = [RuntimePredictor(["T4"], print_table=False), CostBudget(usd=1e9, usd_per_hour=1.0)]
    steps_per_batch = {"automatic": 1, "manual": 2}.get(kind, 0)
    seconds: list[float] = []
    counted: list[int] = []

    class Drive(lightning.lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx < 200:
                return
            loop = trainer.fit_loop.epoch_loop
            progress = loop.automatic_optimization.optim_progress.optimizer.step
            if kind != "automatic":
                progress = loop.manual_optimization.optim_step_progress
            for _ in range(STEPS // BLOCK):
                start = time.process_time()
                for _ in range(BLOCK):
                    loop.batch_progress.increment_ready()
                    for callback in callbacks:
                        callback.on_train_batch_start(trainer, pl_module, batch, batch_idx)
                    loop.batch_progress.increment_started()
                    for _ in range(steps_per_batch):
                        callbacks[0].on_before_optimizer_step(trainer, pl_module, trainer.optimizers[0])
                        progress.increment_ready()
                        progress.increment_completed()
                    loop.batch_progress.increment_processed()
                    for callback in callbacks:
                        callback.on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
                    loop.batch_progress.increment_completed()
                seconds.append((time.process_time() - start) / BLOCK)
            counted.extend(callback._fit.observer.batches for callback in callbacks)
            trainer.should_stop = True

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.trainer(tmp_path, max_epochs=1, callbacks=[*callbacks, Drive()])
        trainer.fit(model_of(lightning, kind), Endless())
    first, last = statistics.median(seconds[1 : 1 + BLOCKS]), statistics.median(seconds[-BLOCKS:])
    print(f"\n{kind}: {1e6 * first:.1f} us a step at {BLOCK:,} steps, {1e6 * last:.1f} us at {STEPS:,}")
    assert len(counted) == 2
    assert min(counted) >= STEPS  # both callbacks were on
    assert last <= 1.1 * first
