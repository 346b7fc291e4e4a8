"""DCGAN under manual optimization: two optimizers, each stepping once a batch.

Example::

    Trainer(max_epochs=1).fit(Dcgan(width=8), SyntheticData((torch.rand(4, 3, 64, 64),)))
"""

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from benchmarks.accuracy.workloads.dcgan import NOISE, discriminator, generator


class Dcgan(LightningModule):
    """The discriminator learns from a real and a generated batch, then the generator from the discriminator."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.discriminator = generator(width), discriminator(width)

    def discriminator_loss(self, real: Tensor) -> tuple[Tensor, Tensor]:
        """Its loss, and the images that were generated for it."""
        fake = self.generator(torch.randn(len(real), NOISE, 1, 1, device=real.device))
        on_real, on_fake = self.discriminator(real), self.discriminator(fake.detach())
        loss = _entropy(on_real, 1.0) + _entropy(on_fake, 0.0)
        return loss, fake

    def generator_loss(self, fake: Tensor) -> Tensor:
        return _entropy(self.discriminator(fake), 1.0)

    def steps(self, real: Tensor, optimizers: list[Any]) -> None:
        """Both updates of one batch."""
        of_generator, of_discriminator = optimizers
        loss, fake = self.discriminator_loss(real)
        of_discriminator.zero_grad()
        loss.backward()
        of_discriminator.step()
        of_generator.zero_grad()
        self.generator_loss(fake).backward()
        of_generator.step()

    def training_step(self, batch: tuple[Tensor, ...], index: int) -> None:
        optimizers: Any = self.optimizers()
        self.steps(batch[0], optimizers)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.Adam(network.parameters(), lr=2e-4, betas=(0.5, 0.999))
            for network in (self.generator, self.discriminator)
        ]


def _entropy(logits: Tensor, target: float) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, target))
