"""A GAN with two optimizers and manual optimization: one batch is one step, and both updates are in it.

python examples/gan_manual_optimization.py
"""

import warnings

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_predict.callbacks import RuntimePredictor

LATENT = 64


class Gan(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(
            nn.Unflatten(1, (LATENT, 1, 1)),
            nn.ConvTranspose2d(LATENT, 64, 2),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )
        self.discriminator = nn.Sequential(
            nn.Conv2d(1, 32, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(32, 64, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(64 * 2 * 2, 1),
        )
        self.loss = nn.BCEWithLogitsLoss()

    def training_step(self, batch: tuple[Tensor], batch_idx: int) -> None:
        (real,) = batch
        generator_optimizer, discriminator_optimizer = self.optimizers()  # type: ignore[attr-defined]
        ones = torch.ones(len(real), 1, device=self.device)
        fake = self.generator(torch.randn(len(real), LATENT, device=self.device))

        discriminator_optimizer.zero_grad()
        judged = self.loss(self.discriminator(real), ones) + self.loss(self.discriminator(fake.detach()), 0 * ones)
        self.manual_backward(judged)
        discriminator_optimizer.step()

        generator_optimizer.zero_grad()
        fooled = self.loss(self.discriminator(fake), ones)
        self.manual_backward(fooled)
        generator_optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.999)),
            torch.optim.Adam(self.discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999)),
        ]


def main() -> None:
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")  # the digits are in memory
    seed_everything(1, verbose=False)
    images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 16
    loader = DataLoader(TensorDataset(images), batch_size=128, shuffle=True)
    predictor = RuntimePredictor(gpus=["T4", "L4", "A100-SXM-40GB", "H100-SXM-80GB"])
    trainer = Trainer(max_epochs=2, accelerator="cpu", callbacks=[predictor], logger=False, enable_checkpointing=False)
    trainer.fit(Gan(), loader)


if __name__ == "__main__":
    main()
