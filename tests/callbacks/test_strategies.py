"""Lightning's strategies in our words."""

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_predict.callbacks import RuntimePredictor
from lightning_predict.callbacks.lightning_packages import PACKAGES
from lightning_predict.callbacks.trainer_loop import strategy_of_trainer
from lightning_predict.layouts.strategy import Strategy
from tests.callbacks.small import Small


@pytest.mark.parametrize("package", PACKAGES)
def test_ddp_keeps_its_bucket_size_and_fsdp_its_name(package: str) -> None:
    strategies = import_module(f"{package}.strategies")
    assert strategy_of_trainer(SimpleNamespace(strategy=strategies.DDPStrategy())) == Strategy()
    large = strategies.DDPStrategy(bucket_cap_mb=100)
    assert strategy_of_trainer(SimpleNamespace(strategy=large)).bucket_cap_mb == 100
    assert strategy_of_trainer(SimpleNamespace(strategy=strategies.FSDPStrategy())).data == "fsdp"
    trainer = import_module(package).Trainer(accelerator="cpu", devices=1, logger=False)
    assert strategy_of_trainer(trainer) == Strategy()


OFFLOADED = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
ON_HOST = Strategy(data="zero2", offload="optimizer")


@pytest.mark.parametrize(
    ("name", "attributes", "precision", "strategy"),
    [
        ("FSDPStrategy", {"sharding_strategy": None}, "bf16-mixed", Strategy(data="fsdp", param_dtype="bfloat16")),
        ("FSDPStrategy", {"sharding_strategy": None}, "16-mixed", Strategy(data="fsdp", param_dtype="float16")),
        ("FSDPStrategy", {"sharding_strategy": None}, "bf16-true", Strategy(data="fsdp")),
        ("FSDPStrategy", {"sharding_strategy": SimpleNamespace(name="HYBRID_SHARD")}, None, Strategy(data="hybrid")),
        ("DeepSpeedStrategy", {"config": {"zero_optimization": {"stage": 0}}}, None, Strategy(data="ddp")),
        ("DeepSpeedStrategy", {"config": {"zero_optimization": {"stage": 1}}}, None, Strategy(data="zero1")),
        ("DeepSpeedStrategy", {"config": {"zero_optimization": {"stage": 2}}}, None, Strategy(data="zero2")),
        ("DeepSpeedStrategy", {"config": {"zero_optimization": {"stage": 3}}}, None, Strategy(data="fsdp")),
        ("DeepSpeedStrategy", {"config": {"zero_optimization": OFFLOADED}}, None, ON_HOST),
    ],
)
def test_strategy_is_known_by_its_class_and_attributes(
    name: str, attributes: dict[str, Any], precision: str | None, strategy: Strategy
) -> None:
    # As Lightning's classes; the real ones ask for a device mesh, or for deepspeed itself.
    trainer = SimpleNamespace(strategy=type(name, (), attributes)(), precision=precision)
    assert strategy_of_trainer(trainer) == strategy


def test_the_callback_takes_layouts_and_a_strategy() -> None:
    assert RuntimePredictor(["8xL4", "1x2xT4"], strategy="fsdp").gpus == ("8xL4", "2xT4")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_callback_predicts_shared_tables(package: str, tmp_path: Path) -> None:
    small = Small(package)
    model = small.model()
    model.network = Tables()
    predictor = RuntimePredictor(["2xT4", "T4"], strategy="embedding=row_wise", warmup_steps=1)
    small.trainer(tmp_path, max_steps=6, callbacks=[predictor]).fit(model, small.loader())
    assert predictor.predictions is not None
    assert "row_wise" in " ".join(predictor.predictions["2xT4"].notes)


class Tables(nn.Module):
    """Two bags of embeddings, asked for by the signs of the features, and a layer over them."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(1000, 16, mode="sum") for _ in range(2))
        self.top = nn.Linear(32, 2)

    def forward(self, rows: Tensor) -> Tensor:
        output: Tensor = self.top(torch.cat([table((rows > 0).long()) for table in self.tables], dim=1))
        return output
