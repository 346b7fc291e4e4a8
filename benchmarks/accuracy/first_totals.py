"""First total for other GPUs against the product's own after an epoch, in ordinary Trainer scripts on the CPU.

    python -m benchmarks.accuracy.first_totals [--wall] [SCRIPT ...]

The first total is predicted after a few steps, before any validation, and with cold caches. After an epoch with
validation and checkpoints, the same callback predicts again. Its parts, scaled to the batches and epochs of the first
total, are the expected value. The clock is this process's processor time, plus the waits of the scripts, which are
counted and not slept; `--wall` reads the wall clock and sleeps.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.accuracy.rest_of_run import IMAGE, Classifier, Recurrent, convolutions, perceptron, replace_clocks
from benchmarks.result_files import ResultConsole, write_run
from benchmarks.training.report import report_table
from lightning_predict.callbacks import RuntimePredictor

GPUS: Final = ("T4", "RTX-4090")
EPOCHS: Final = 4
BATCH: Final = 16


class Waits:
    """Clock of processor time and waits. A wait is counted, or slept if `is_wall`."""

    is_wall = False
    waited = 0.0

    @classmethod
    def wait(cls, seconds: float) -> None:
        """Wait for a disk or a server."""
        if cls.is_wall:
            time.sleep(seconds)
        cls.waited += seconds

    @classmethod
    def now(cls) -> float:
        """Return the seconds of the clock."""
        return time.process_time() + cls.waited


class Samples(IterableDataset[tuple[Tensor, Tensor]]):
    """Random samples of one shape, behind a disk that may be slow.

    Args:
        batches: Number of batches in a pass.
        shape: Shape of a sample.
        cold: Seconds of the very first sample: opening files, importing a decoder.
        opens: Seconds before the first sample of each pass.
        each: Seconds of each sample.
        first_pass: Seconds of each sample in the first pass, before the page cache is full.
    """

    def __init__(
        self,
        batches: int,
        shape: tuple[int, ...] = (256,),
        *,
        cold: float = 0.0,
        opens: float = 0.0,
        each: float = 0.0,
        first_pass: float = 0.0,
    ) -> None:
        self.batches, self.shape, self.cold, self.opens = batches, shape, cold, opens
        self.each, self.first_pass, self.seen = each, first_pass, 0

    def __len__(self) -> int:
        return self.batches * BATCH

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        Waits.wait(self.opens)
        for index in range(len(self)):
            Waits.wait((self.cold if self.seen == 0 else 0.0) + self.each)
            Waits.wait(self.first_pass if self.seen < len(self) else 0.0)
            self.seen += 1
            yield torch.randn(self.shape), torch.tensor(index % 10)


class Slow(Callback):
    """Metrics of a validation: seconds at the first batch ever, after each batch, and at the end of each run."""

    def __init__(self, *, first: float = 0.0, batch: float = 0.0, end: float = 0.0) -> None:
        self.first, self.batch, self.end = first, batch, end

    def on_validation_batch_end(self, *_: Any) -> None:
        """Wait after a batch."""
        Waits.wait(self.first + self.batch)
        self.first = 0.0

    def on_validation_epoch_end(self, *_: Any) -> None:
        """Wait at the end of a validation."""
        Waits.wait(self.end)


@dataclass(frozen=True, kw_only=True)
class Script:
    """An ordinary script."""

    network: Callable[[], nn.Module] = lambda: perceptron(512)  # Makes the network
    training: Callable[[], Samples] = lambda: Samples(60)  # Samples to train on
    validation: Callable[[], Samples] | None = lambda: Samples(15)  # Samples of a validation; None without validation
    options: dict[str, Any] = field(default_factory=dict)  # Options of the Trainer
    callbacks: Callable[[str], list[Callback]] = lambda _: []  # Makes further callbacks from a folder
    logs: bool = False  # Whether a CSV file is logged
    after: int = 1  # Number of epochs after which the run is predicted again


SCRIPTS: Final[dict[str, Script]] = {
    "plain": Script(),
    "cold validation": Script(validation=lambda: Samples(15, cold=3.0)),
    "cold training": Script(training=lambda: Samples(60, cold=2.0)),
    "both cold, convolutions": Script(
        network=lambda: convolutions(8),
        training=lambda: Samples(60, IMAGE, cold=1.0),
        validation=lambda: Samples(20, IMAGE, cold=1.0),
    ),
    "each validation opens a file": Script(validation=lambda: Samples(15, opens=0.5)),
    "slow disk": Script(training=lambda: Samples(60, each=0.002), validation=lambda: Samples(15, each=0.002)),
    "slow disk for validation": Script(validation=lambda: Samples(15, each=0.004)),
    "slow first pass": Script(
        training=lambda: Samples(60, first_pass=0.003), validation=lambda: Samples(15, first_pass=0.003)
    ),
    "long validation": Script(validation=lambda: Samples(120)),
    "no validation, checkpoints": Script(validation=None, callbacks=lambda folder: [ModelCheckpoint(folder)]),
    "large checkpoints": Script(network=lambda: perceptron(1024), callbacks=lambda folder: [ModelCheckpoint(folder)]),
    "checkpoints every 20 steps": Script(
        callbacks=lambda folder: [ModelCheckpoint(folder, every_n_train_steps=20, save_top_k=-1)]
    ),
    "four validations an epoch": Script(options={"val_check_interval": 0.25}),
    "validation every second epoch": Script(options={"check_val_every_n_epoch": 2}, after=2),
    "accumulation": Script(training=lambda: Samples(120), options={"accumulate_grad_batches": 4}),
    "no sanity check": Script(options={"num_sanity_val_steps": 0}),
    "whole sanity check": Script(validation=lambda: Samples(15, cold=1.0), options={"num_sanity_val_steps": -1}),
    "one validation batch": Script(validation=lambda: Samples(1, cold=1.0)),
    "LSTM, logged": Script(
        network=Recurrent,
        training=lambda: Samples(60, (48, 64)),
        validation=lambda: Samples(15, (48, 64), each=0.001),
        logs=True,
        options={"log_every_n_steps": 1},
    ),
    "slow metrics": Script(callbacks=lambda _: [Slow(first=1.0, batch=0.002, end=0.2)]),
}


class Probe(Callback):
    """Notes the first total of each GPU, and the expected total from the prediction after some epochs."""

    def __init__(self, predictor: RuntimePredictor, after: int) -> None:
        self.predictor, self.after = predictor, after
        self.first: Any = None
        self.expected: dict[str, float] = {}

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Note the predictions that are valid now."""
        predictions = self.predictor.predictions
        if predictions is None:
            return
        self.first = self.first or predictions
        if trainer.current_epoch != self.after or self.expected:
            return
        epochs = EPOCHS / (EPOCHS - self.after)
        for name in GPUS:
            first, now = self.first[name], predictions[name]
            training, rest = now.run.training_seconds or 0.0, now.remaining_seconds or 0.0
            steps = (first.iterations or 0) / (now.iterations or 1)
            self.expected[name] = training * steps + (rest - training) * epochs


def errors(script: Script) -> dict[str, tuple[float, float, bool]]:
    """Return for each GPU the first total, its error against the expected one, and whether its interval holds it."""
    torch.manual_seed(0)
    predictor = RuntimePredictor(GPUS, print_table=False, learn_from_history=False)
    probe = Probe(predictor, script.after)
    with tempfile.TemporaryDirectory() as folder:
        more = script.callbacks(folder)
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=EPOCHS,
            callbacks=[predictor, *more, probe],
            default_root_dir=folder,
            logger=CSVLogger(folder) if script.logs else False,
            enable_checkpointing=any(isinstance(callback, ModelCheckpoint) for callback in more),
            enable_progress_bar=False,
            enable_model_summary=False,
            **script.options,
        )
        validation = None if script.validation is None else DataLoader(script.validation(), batch_size=BATCH)
        trainer.fit(Classifier(script.network()), DataLoader(script.training(), batch_size=BATCH), validation)
    return {
        name: (
            probe.first[name].remaining_seconds,
            probe.first[name].remaining_seconds / expected - 1,
            probe.first[name].remaining.contains(expected),
        )
        for name, expected in probe.expected.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the error of the first total of each script, and of all."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("scripts", nargs="*", help="names of scripts (default: all)")
    parser.add_argument("--wall", action="store_true", help="read the wall clock, and sleep")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.scripts if name not in SCRIPTS]:
        parser.error(f"no script is named {', '.join(unknown)}; expected {', '.join(SCRIPTS)}")
    Waits.is_wall = options.wall
    if not options.wall:
        replace_clocks(Waits.now)
    warnings.filterwarnings("ignore")
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    heads = tuple(f"{name} {what}" for name in GPUS for what in ("first s", "error %"))
    table = report_table("First total against that after an epoch (*: outside the interval)", ("script",), heads)
    outcomes: list[tuple[float, bool]] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LIGHTNING_PREDICT_HISTORY"] = os.path.join(folder, "history.jsonl")
        for name in options.scripts or SCRIPTS:
            of_script = errors(SCRIPTS[name])
            worst = max(abs(error) for _, error, _ in of_script.values())
            outcomes.append((worst, all(holds for *_, holds in of_script.values())))
            cells = [
                text
                for first, error, holds in of_script.values()
                for text in (f"{first:.3g}", f"{100 * error:+.1f}{'' if holds else '*'}")
            ]
            table.add_row(name, *cells)
    median = 100 * statistics.median(error for error, _ in outcomes)
    inside = sum(holds for _, holds in outcomes)
    console = ResultConsole(width=120)
    console.print(table)
    console.print(
        f"Inside the interval on both GPUs: {inside} of {len(outcomes)}. Median of the larger error: {median:.1f} %"
    )
    write_run(console, "first-totals", options.result)


if __name__ == "__main__":
    main()
