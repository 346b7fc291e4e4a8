"""The same predictions in TensorBoard and in Weights & Biases (offline: nothing is uploaded, no account is needed).

pip install wandb
python examples/tensorboard_and_wandb.py
tensorboard --logdir logs
"""

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_predict.callbacks import RuntimePredictor


class Perceptron(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1)
        )

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        data, target = batch
        loss = nn.functional.mse_loss(self.layers(data), target)
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


def main() -> None:
    seed_everything(1, verbose=False)
    data = torch.randn(4096, 256)
    loader = DataLoader(TensorDataset(data, data.sum(dim=1, keepdim=True)), batch_size=512, num_workers=0)
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[RuntimePredictor(gpus=["T4", "A10G", "H100-SXM-80GB"])],
        logger=[TensorBoardLogger("logs", name="perceptron"), WandbLogger(save_dir="logs", offline=True)],
        log_every_n_steps=4,
    )
    trainer.fit(Perceptron(), loader)


if __name__ == "__main__":
    main()
