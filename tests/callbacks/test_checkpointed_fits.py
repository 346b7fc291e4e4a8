"""Activation checkpointing in real fits: the callback's trace names, shares and exchanges as without it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lightning_predict as lp
from lightning_predict.callbacks import RuntimePredictor
from lightning_predict.layouts.gradients import unit_bytes
from lightning_predict.record.trace import Trace
from tests.callbacks.small import FEATURES, Small

WIDTH = 32
LAYOUT = "8xA100-SXM-80GB"

pytestmark = pytest.mark.usefixtures("readings")


def checkpointed(small: Small, reentrant: bool | None) -> Any:
    """Three layers of two products each, computed again in the backward pass if `reentrant` is not None."""

    class Model(small.lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed = nn.Linear(FEATURES, WIDTH)
            self.layers = nn.ModuleList(
                nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(3)
            )

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            data = self.embed(batch)
            for layer in self.layers:
                data = layer(data) if reentrant is None else checkpoint(layer, data, use_reentrant=reentrant)
            return data.square().mean()  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    return Model()


def fitted(small: Small, folder: Path, reentrant: bool | None) -> Trace:
    predictor = RuntimePredictor([LAYOUT], print_table=False, strategy="fsdp")
    small.trainer(folder, max_epochs=1, callbacks=predictor).fit(checkpointed(small, reentrant), small.loader(20))
    assert predictor.trace is not None
    return predictor.trace


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_callback_records_names_shares_and_traffic_of_the_model_without_it(
    lightning: Small, tmp_path: Path, reentrant: bool
) -> None:
    plain, again = fitted(lightning, tmp_path, None), fitted(lightning, tmp_path, reentrant)
    assert again.parameters == plain.parameters
    assert [each.name for each in again.parameters][2] == "layers.0.0.weight"
    assert again.memory == plain.memory
    assert (
        unit_bytes(again.parameters)
        == unit_bytes(plain.parameters)
        == {
            "": (FEATURES * WIDTH + WIDTH) * 4,
            **{f"layers.{layer}": 2 * (WIDTH * WIDTH + WIDTH) * 4 for layer in range(3)},
        }
    )
    modules = {each.module for each in again.operations if each.phase == "backward" and each.name == "aten::mm"}
    assert modules == {"embed", *(f"layers.{layer}.{part}" for layer in range(3) for part in (0, 2))}
    for strategy in ("ddp", "fsdp"):
        seconds = [
            lp.predict(trace, [LAYOUT], strategy=strategy, history=False)[LAYOUT].communication_seconds
            for trace in (plain, again)
        ]
        assert seconds[0] == pytest.approx(seconds[1])
