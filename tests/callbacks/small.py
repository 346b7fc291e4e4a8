"""Small models, data and Trainers for either Lightning package, so that a whole fit takes a fraction of a second.

A package's classes cannot be inherited once and used for both, so each model is made for the package asked for::

    small = Small("pytorch_lightning")
    trainer = small.trainer(tmp_path, max_steps=5)
    trainer.fit(small.model(), small.loader())
"""

import csv
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lightning_predict.reports.loggers import CSV_FILE

FEATURES = 8
BATCH_SIZE = 4


class Rows(Dataset[Tensor]):
    """Batches of random rows, the same ones each time."""

    def __init__(self, batches: int) -> None:
        self.data = torch.randn(batches * BATCH_SIZE, FEATURES, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Tensor:
        return self.data[index]


class Stream(IterableDataset[Tensor]):
    """The same without a length."""

    def __init__(self, batches: int) -> None:
        self.rows = Rows(batches)

    def __iter__(self) -> Any:
        return iter(self.rows.data)


def our_rows(logger: Any) -> list[defaultdict[str, str]]:
    """Return what our CSV file beside a CSVLogger's holds, as a row per step."""
    rows: dict[str, defaultdict[str, str]] = {}
    with open(Path(logger.log_dir) / CSV_FILE, newline="") as file:
        for value in csv.DictReader(file):
            row = rows.setdefault(value["step"], defaultdict(str, step=value["step"]))
            row[value["name"]] = value["value"]
    return list(rows.values())


def network() -> nn.Module:
    """A network with dropout, so that training draws random numbers."""
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 2))


class Small:
    """Models and Trainers of one package.

    Args:
        package: `lightning.pytorch` or `pytorch_lightning`.
    """

    def __init__(self, package: str) -> None:
        self.lightning: Any = import_module(package)

    def loader(self, batches: int = 4) -> DataLoader[Tensor]:
        """Batches in the order of the data."""
        return DataLoader(Rows(batches), batch_size=BATCH_SIZE)

    def stream(self, batches: int = 4) -> DataLoader[Tensor]:
        """A loader without a length."""
        return DataLoader(Stream(batches), batch_size=BATCH_SIZE)

    def trainer(self, folder: Path, **options: Any) -> Any:
        """A Trainer that writes only requested files."""
        defaults: dict[str, Any] = {
            "accelerator": "cpu",
            "devices": 1,
            "default_root_dir": str(folder),
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "log_every_n_steps": 1,
        }
        return self.lightning.Trainer(**(defaults | options))

    def model(self, *, seed: int = 0, validates: bool = False) -> Any:
        """A classifier with dropout; automatic optimization."""

        class Model(self.lightning.LightningModule):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(seed)
                self.network = network()
                self.batches_trained = 0

            def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
                self.batches_trained += 1
                return self.network(batch).square().mean()  # type: ignore[no-any-return]

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.Adam(self.parameters(), lr=0.01)

        class ValidatedModel(Model):
            def validation_step(self, batch: Tensor, batch_idx: int) -> None:
                self.log("val_loss", self.network(batch).square().mean())

        return ValidatedModel() if validates else Model()

    def gan(self, *, accumulates: int = 1) -> Any:
        """Two networks with an optimizer each, stepped by hand after every `accumulates` batches."""

        class Gan(self.lightning.LightningModule):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.automatic_optimization = False
                self.generator, self.discriminator = network(), network()
                self.batches_trained = 0

            def training_step(self, batch: Tensor, batch_idx: int) -> None:
                self.batches_trained += 1
                for part, optimizer in zip((self.generator, self.discriminator), self.optimizers(), strict=True):
                    self.manual_backward(part(batch).square().mean())
                    if (batch_idx + 1) % accumulates == 0:
                        optimizer.step()
                        optimizer.zero_grad()

            def configure_optimizers(self) -> list[torch.optim.Optimizer]:
                parts = (self.generator, self.discriminator)
                return [torch.optim.SGD(part.parameters(), lr=0.01) for part in parts]

        return Gan()
