"""Training with simulated quantisation: its observers change at each forward pass, and we must not add one."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.ao import quantization
from torch.ao.quantization._learnable_fake_quantize import _LearnableFakeQuantize

from lightning_predict.callbacks import CostBudget, RuntimePredictor
from tests.callbacks.small import FEATURES, Small

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:Please use quant_min"
)


class Rounded(torch.autograd.Function):
    """Rounding whose gradient passes."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        return (values * 16).round() / 16

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class StraightThrough(nn.Module):
    """A layer that rounds."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return Rounded.apply(values)  # type: ignore[no-any-return,no-untyped-call]


def prepared() -> nn.Module:
    """Return a network as torch prepares it for quantisation-aware training."""
    network = nn.Sequential(
        quantization.QuantStub(), nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 2), quantization.DeQuantStub()
    )
    network.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    return quantization.prepare_qat(network.train())  # type: ignore[no-any-return]


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "prepare_qat": prepared,
    "a fake quantisation": lambda: nn.Sequential(
        nn.Linear(FEATURES, 16), quantization.FakeQuantize(), nn.ReLU(), nn.Linear(16, 2), quantization.FakeQuantize()
    ),
    "learned scales": lambda: nn.Sequential(
        nn.Linear(FEATURES, 16),
        _LearnableFakeQuantize(quantization.MovingAverageMinMaxObserver, quant_min=0, quant_max=255),
        nn.Linear(16, 2),
    ),
    "straight-through": lambda: nn.Sequential(nn.Linear(FEATURES, 16), StraightThrough(), nn.Linear(16, 2)),
}


def trained(folder: Path, make: Callable[[], nn.Module], ours: list[Any]) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Train, and return all weights, scales and observed ranges, and our warnings."""
    small = Small("lightning.pytorch")
    model = small.model()
    torch.manual_seed(0)
    model.network = make()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        small.trainer(folder, max_epochs=2, callbacks=ours).fit(model, small.loader(16))
    return dict(model.state_dict()), [str(one.message) for one in caught if "LightningPredict" in str(one.category)]


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_weights_scales_and_ranges_are_those_without_callbacks(tmp_path: Path, make: Callable[[], nn.Module]) -> None:
    plain, _ = trained(tmp_path, make, [])
    predictor = RuntimePredictor(["T4", "8xL4"], print_table=False)
    watched, said = trained(tmp_path, make, [predictor, CostBudget(usd=100, usd_per_hour=1)])
    assert plain.keys() == watched.keys()
    assert all(torch.equal(plain[name], watched[name]) for name in plain)
    assert predictor.predictions is not None
    assert predictor.predictions["T4"].iteration_seconds > 0
    assert said == []
