"""What all workloads share: a LightningModule around a network, synthetic data, and the table's row.

Example::

    module, batch = workload.module("tiny"), workload.batch("tiny")
    Trainer(max_steps=1).fit(module, SyntheticData(batch))
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

Size = Literal["tiny", "full"]
Batch = tuple[Tensor, ...]


class Supervised(LightningModule):
    """A network with its loss on a batch and its optimizer."""

    def __init__(
        self,
        network: nn.Module,
        loss: Callable[[nn.Module, Batch], Tensor],
        optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        super().__init__()
        self.network, self.loss, self.optimizer = network, loss, optimizer

    def training_step(self, batch: Batch, index: int) -> Tensor:
        return self.loss(self.network, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer(self.parameters())


class SyntheticData(LightningDataModule):
    """One batch, over and over."""

    def __init__(self, batch: Batch, count: int = 2) -> None:
        super().__init__()
        self.batch, self.count = batch, count

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(_Repeated(self.batch, self.count), batch_size=None)


class _Repeated(Dataset[Batch]):
    def __init__(self, batch: Batch, count: int) -> None:
        self.batch, self.count = batch, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Batch:
        if index >= self.count:
            raise IndexError(index)
        return self.batch


@dataclass(frozen=True)
class Workload:
    """A model with its data."""

    name: str  # Name
    module: Callable[[Size], LightningModule]  # The LightningModule, tiny for the CPU or as published
    batch: Callable[[Size], Batch]  # A batch for it, on the default device; `full` has the published batch and sizes
    parameters: int  # Parameters of the full size
    source: str  # Where the number comes from


def classification_loss(network: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy of (inputs, labels); labels may have more than one dimension."""
    *inputs, labels = batch
    return nn.functional.cross_entropy(network(*inputs).flatten(0, -2), labels.flatten())


def click_loss(network: nn.Module, batch: Batch) -> Tensor:
    """Binary cross entropy of (dense features, look-ups, labels)."""
    dense, indices, labels = batch
    return nn.functional.binary_cross_entropy_with_logits(network(dense, indices), labels)


def momentum(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def adam(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def adamw(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def images(count: int, size: int, classes: int, *, channels: int = 3) -> Batch:
    """Images with labels."""
    return torch.rand(count, channels, size, size), torch.randint(classes, (count,))


def tokens(count: int, length: int, vocabulary: int) -> Batch:
    """Token sequences with the next tokens as labels."""
    return torch.randint(vocabulary, (count, length)), torch.randint(vocabulary, (count, length))
