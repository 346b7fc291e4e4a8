"""Lightning's strategies in our words."""

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from lightning_predict.assumptions import Assumptions
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.callbacks import RuntimePredictor
from lightning_predict.callbacks.lightning_packages import PACKAGES
from lightning_predict.callbacks.trainer_loop import strategy_of_trainer
from lightning_predict.layouts.strategy import Strategy
from tests.callbacks.small import Small


@pytest.mark.parametrize("package", PACKAGES)
def test_a_trainer_on_one_device_would_take_ddp(package: str) -> None:
    trainer = import_module(package).Trainer(accelerator="cpu", devices=1, logger=False)
    assert strategy_of_trainer(trainer) == Strategy()


@pytest.mark.parametrize("package", PACKAGES)
def test_ddp_keeps_its_bucket_size(package: str) -> None:
    strategies = import_module(f"{package}.strategies")
    assert strategy_of_trainer(SimpleNamespace(strategy=strategies.DDPStrategy())) == Strategy()
    large = strategies.DDPStrategy(bucket_cap_mb=100)
    assert strategy_of_trainer(SimpleNamespace(strategy=large)).bucket_cap_mb == 100


@pytest.mark.parametrize("package", PACKAGES)
def test_fsdp_and_its_hybrid_form(package: str) -> None:
    strategies = import_module(f"{package}.strategies")
    assert strategy_of_trainer(SimpleNamespace(strategy=strategies.FSDPStrategy())).data == "fsdp"


def test_fsdp_gathers_in_the_dtype_of_the_trainers_mixed_precision() -> None:
    class FSDPStrategy:  # as Lightning's
        sharding_strategy = None

    for precision, dtype in (("bf16-mixed", "bfloat16"), ("16-mixed", "float16"), ("bf16-true", None)):
        trainer = SimpleNamespace(strategy=FSDPStrategy(), precision=precision)
        assert strategy_of_trainer(trainer).param_dtype == dtype


def test_deepspeed_may_keep_the_optimizer_in_the_hosts_memory() -> None:
    class DeepSpeedStrategy:  # as Lightning's, which needs deepspeed itself
        config = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}  # noqa: RUF012

    assert strategy_of_trainer(SimpleNamespace(strategy=DeepSpeedStrategy())) == Strategy(
        data="zero2", offload="optimizer"
    )


def test_hybrid_sharding_is_read_from_the_strategy() -> None:
    class FSDPStrategy:  # as Lightning's; the real one asks for a device mesh here
        sharding_strategy = SimpleNamespace(name="HYBRID_SHARD")

    assert strategy_of_trainer(SimpleNamespace(strategy=FSDPStrategy())).data == "hybrid"


@pytest.mark.parametrize(("stage", "data"), [(0, "ddp"), (1, "zero1"), (2, "zero2"), (3, "fsdp")])
def test_deepspeed_by_stage(stage: int, data: str) -> None:
    class DeepSpeedStrategy:  # as Lightning's, which needs deepspeed itself
        config = {"zero_optimization": {"stage": stage}}  # noqa: RUF012

    assert strategy_of_trainer(SimpleNamespace(strategy=DeepSpeedStrategy())).data == data


def test_the_callback_takes_layouts_and_a_strategy_and_refuses_what_cannot_be() -> None:
    assert RuntimePredictor(["8xL4", "1x2xT4"], strategy="fsdp").gpus == ("8xL4", "2xT4")
    with pytest.raises(InvalidArgumentError, match="The layout '0xT4' has"):
        RuntimePredictor(["0xT4"])
    with pytest.raises(InvalidArgumentError, match="strategy='gossip' is not known"):
        RuntimePredictor(["T4"], strategy="gossip")
    with pytest.raises(InvalidArgumentError, match="cores_per_node=0 is not a number of cores"):
        RuntimePredictor(["T4"], assumptions=Assumptions(cores_per_node=0))


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
