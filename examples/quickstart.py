"""Train a small residual network on scikit-learn's digits, and read its time and cost on other GPUs.

    python examples/quickstart.py

No GPU and no download is needed: the digits come with scikit-learn. The table is printed after a few warm-up steps,
before training goes on; the same numbers are in `logs/` for TensorBoard (`tensorboard --logdir logs`) and as CSV. Below
it stands which GPU to rent, and whether so short a run is worth moving at all.
"""

import warnings

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_predict.callbacks import CostBudget, RuntimePredictor

DEADLINE_HOURS = 0.5 / 3600  # half a second: on most GPUs this run is over in less


def stage(channels_in: int, channels_out: int) -> nn.Sequential:
    """Two convolutions; the second convolution halves the image."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
        nn.Conv2d(channels_out, channels_out, 3, padding=1, stride=2, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


class DigitsNet(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Upsample(scale_factor=4),
            stage(1, 32),
            stage(32, 64),
            stage(64, 128),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(128, 10),
        )
        self.loss = nn.CrossEntropyLoss()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        loss: Tensor = self.loss(self.network(images), labels)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        correct = self.network(images).argmax(dim=1) == labels
        self.log("validation/accuracy", correct.float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def digits_loaders(batch_size: int) -> tuple[DataLoader, DataLoader]:  # type: ignore[type-arg]
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    training = TensorDataset(images[:1500], labels[:1500])
    validation = TensorDataset(images[1500:], labels[1500:])
    return DataLoader(training, batch_size, shuffle=True), DataLoader(validation, batch_size)


def main() -> None:
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")  # the digits are in memory
    seed_everything(1, verbose=False)
    predictor = RuntimePredictor(deadline_hours=DEADLINE_HOURS)
    trainer = Trainer(
        max_epochs=5,
        accelerator="cpu",
        callbacks=[predictor, CostBudget(usd=5, usd_per_hour=0.05)],
        logger=[TensorBoardLogger("logs", name="digits"), CSVLogger("logs", name="digits_csv")],
        log_every_n_steps=5,
        enable_model_summary=False,
    )
    training, validation = digits_loaders(batch_size=128)
    trainer.fit(DigitsNet(), training, validation)

    assert predictor.predictions is not None
    print(f"\nThe predictions are an object, too: {predictor.predictions['L4'].total_seconds:.3f} s on an L4.")


if __name__ == "__main__":
    main()
