"""Predicted and actual time of the rest of a run on the machine in use, on the CPU.

    python -m benchmarks.accuracy.rest_of_run [--processor-time] [KIND ...]

Real fits of seven kinds, a few tens of seconds each: convolutions, an MLP whose rows two worker processes make, an
LSTM, the README's example, accumulation, a validation that is longer than training, and small steps with checkpoints
and a logger. Each line names the error of the prediction that stands right after the capture and after 20, 50 and 100
steps, `predicted / actual - 1` of the time that was left then, with a star where that lay outside of the interval; the
last lines, mean and worst of all kinds. With
`--processor-time` every clock is this process's processor time, which other programs on the machine hardly disturb;
waits for workers and disks are then left out of both sides.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.result_files import ResultConsole, write_run
from benchmarks.training.report import report_table
from lightning_predict.callbacks import RuntimePredictor

CAPTURE: Final = 0
MOMENTS: Final = (CAPTURE, 20, 50, 100)  # Steps after which the prediction that stands is compared; 0 is the capture
THREADS: Final = 1  # Of torch, so that worker processes have a core of their own on a machine of two


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Samples of one shape, each made with the given amount of CPU work.

    Args:
        samples: How many.
        shape: Shape of each.
        work: Rounds of sorting random numbers before a sample is there.
    """

    def __init__(self, samples: int, shape: tuple[int, ...], *, work: int = 0) -> None:
        self.samples, self.shape, self.work = samples, shape, work

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index)
        for _ in range(self.work):
            torch.rand(2000, generator=generator).sort()
        return torch.randn(self.shape, generator=generator), torch.tensor(index % 10)


class Classifier(LightningModule):
    """A network with the usual loss, metrics and optimizer."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.loss = network, nn.CrossEntropyLoss()

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The loss, logged."""
        loss: Tensor = self.loss(self.network(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        """Loss and accuracy, logged."""
        logits = self.network(batch[0])
        self.log("validation/loss", self.loss(logits, batch[1]))
        self.log("validation/accuracy", (logits.argmax(dim=1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters())


class Recurrent(nn.Module):
    """An LSTM and a classifier of its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 192, num_layers=2, batch_first=True)
        self.head = nn.Linear(192, 10)

    def forward(self, rows: Tensor) -> Tensor:
        """Logits."""
        states, _ = self.lstm(rows)
        logits: Tensor = self.head(states[:, -1])
        return logits


def convolutions(channels: int) -> nn.Module:
    """Three convolutions with batch norms, each but the first of half the image."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, channels), (channels, 2 * channels), (2 * channels, 4 * channels)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, stride=1 if inputs == 3 else 2), nn.BatchNorm2d(outputs)]
        layers.append(nn.ReLU())
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * channels, 10))


def perceptron(width: int) -> nn.Module:
    """Three linear layers."""
    return nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of run."""

    network: Callable[[], nn.Module]  # Makes the network
    training: Rows  # Samples to train on
    validation: Rows | None  # Samples to validate on
    batch_size: int = 32  # Batch size of both loaders
    workers: int = 0  # Workers of both loaders
    options: dict[str, Any] = field(default_factory=dict)  # Options of the Trainer
    saves: bool = False  # A checkpoint is written every epoch, and a CSV file


IMAGE: Final = (3, 32, 32)
KINDS: Final[dict[str, Kind]] = {
    "convolutions": Kind(
        network=lambda: convolutions(32),
        training=Rows(32 * 80, IMAGE),
        validation=Rows(32 * 20, IMAGE),
        options={"max_epochs": 3},
    ),
    "MLP, two workers": Kind(
        network=lambda: perceptron(512),
        training=Rows(64 * 100, (256,), work=4),
        validation=Rows(64 * 25, (256,), work=4),
        batch_size=64,
        workers=2,
        options={"max_epochs": 4},
    ),
    "LSTM": Kind(
        network=Recurrent,
        training=Rows(32 * 128, (48, 64)),
        validation=Rows(32 * 32, (48, 64)),
        options={"max_epochs": 2},
    ),
    "short": Kind(
        network=lambda: convolutions(32),
        training=Rows(32 * 40, IMAGE),
        validation=Rows(32 * 10, IMAGE),
        options={"max_epochs": 2},
    ),
    "accumulation": Kind(
        network=lambda: convolutions(16),
        training=Rows(16 * 400, IMAGE),
        validation=Rows(16 * 40, IMAGE),
        batch_size=16,
        options={"max_epochs": 2, "accumulate_grad_batches": 4},
    ),
    "long validation": Kind(
        network=lambda: convolutions(16),
        training=Rows(32 * 60, IMAGE),
        validation=Rows(32 * 120, IMAGE),
        options={"max_epochs": 5},
    ),
    "small steps, saved": Kind(
        network=lambda: perceptron(1024),
        training=Rows(32 * 200, (256,)),
        validation=Rows(32 * 20, (256,)),
        options={"max_epochs": 10, "log_every_n_steps": 10},
        saves=True,
    ),
}


class Probe(Callback):
    """Notes when each step ended and, there, when the run is predicted to end.

    Args:
        predictor: Is asked.
    """

    def __init__(self, predictor: RuntimePredictor) -> None:
        self.predictor = predictor
        self.ends: dict[int, tuple[float, Any]] = {}

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Note the first prediction, and the predictions that are valid after the given numbers of steps."""
        left = self.predictor.remaining
        if left is None:
            return
        step, now = trainer.global_step, time.perf_counter()
        if CAPTURE not in self.ends:
            self.ends[CAPTURE] = (now, left)
        if step in MOMENTS and step not in self.ends:
            self.ends[step] = (now, left)


def errors(kind: Kind) -> tuple[float, dict[int, tuple[float, bool]]]:
    """Measure a fit after the capture: its seconds, and each forecast's error and whether its interval held."""
    torch.manual_seed(0)
    predictor = RuntimePredictor(["T4"], print_table=False, learn_from_history=False)
    probe = Probe(predictor)

    def loader(rows: Rows, *, shuffles: bool) -> DataLoader[tuple[Tensor, Tensor]]:
        return DataLoader(rows, batch_size=kind.batch_size, shuffle=shuffles, num_workers=kind.workers)

    ended: list[float] = []

    class End(Callback):
        def on_train_end(self, *_: Any) -> None:
            ended.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            callbacks=[predictor, probe, End(), *([ModelCheckpoint(folder)] if kind.saves else [])],
            default_root_dir=folder,
            logger=CSVLogger(folder) if kind.saves else False,
            enable_checkpointing=kind.saves,
            enable_progress_bar=False,
            enable_model_summary=False,
            **kind.options,
        )
        validation = None if kind.validation is None else loader(kind.validation, shuffles=False)
        trainer.fit(Classifier(kind.network()), loader(kind.training, shuffles=True), validation)
    start = probe.ends[CAPTURE][0]
    return ended[0] - start, {
        moment: (left.middle / (ended[0] - now) - 1, left.contains(ended[0] - now))
        for moment, (now, left) in probe.ends.items()
        if ended[0] > now
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the errors of each kind, and of all."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("kinds", nargs="*", help=f"kinds of runs, of {', '.join(KINDS)} (default: all)")
    parser.add_argument("--processor-time", action="store_true", help="read processor time instead of the wall clock")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.kinds if name not in KINDS]:
        parser.error(f"no kind is named {', '.join(unknown)}; expected {', '.join(KINDS)}")
    if options.processor_time:
        replace_clocks(time.process_time)
    warnings.filterwarnings("ignore")
    logging.disable(logging.INFO)
    torch.set_num_threads(THREADS)
    heads = ("after the capture %", *(f"{moment} steps %" for moment in MOMENTS[1:]))
    table = report_table("Error of the remaining time (*: outside the interval)", ("kind",), ("took s", *heads))
    deviations: dict[int, list[float]] = {moment: [] for moment in MOMENTS}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LIGHTNING_PREDICT_HISTORY"] = os.path.join(folder, "history.jsonl")
        for name in options.kinds or KINDS:
            seconds, of_kind = errors(KINDS[name])
            for moment, (error, _) in of_kind.items():
                deviations[moment].append(abs(error))
            said = {moment: f"{100 * error:+.1f}{'' if holds else '*'}" for moment, (error, holds) in of_kind.items()}
            table.add_row(name, f"{seconds:.1f}", *(said.get(moment, "") for moment in MOMENTS))
    table.add_section()
    for title, statistic in (("mean |error|", statistics.mean), ("worst", max)):
        cells = (f"{100 * statistic(deviations[moment]):.1f}" if deviations[moment] else "" for moment in MOMENTS)
        table.add_row(title, "", *cells)
    console = ResultConsole(width=120)
    console.print(table)
    write_run(console, "rest-of-run", options.result)


def replace_clocks(clock: Callable[[], float]) -> None:
    """Replace every clock in this process, also those that are imported by name."""
    clocks = {time.perf_counter, time.monotonic}
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("lightning_predict"):
            for name, value in list(vars(module).items()):
                if callable(value) and value in clocks:
                    setattr(module, name, clock)
    time.perf_counter = clock


if __name__ == "__main__":
    main()
