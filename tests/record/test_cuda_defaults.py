"""torch's defaults on CUDA in steps of the meta device: optimizers, clipping, GradScaler, zero_grad, by release."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.base.units import GIBIBYTE
from lightning_predict.record.torch_releases import for_torch_release
from lightning_predict.record.trace import Trace

Step = Callable[[], object]

_GPU = "A100-SXM-40GB"


def _adamw_step(device: str = "meta", *, clips: bool = False, foreach: bool | None = None, **options: bool) -> Step:
    with torch.device(device):
        model, data = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4))), torch.ones(2, 16)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach, **options)  # type: ignore[arg-type]

    def step() -> None:
        model(data).sum().backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _updates(trace: Trace) -> list[str]:
    return [operation.name for operation in trace.operations if operation.phase == "optimizer"]


def test_updates_on_meta_use_foreach_as_on_cuda_and_take_less_host_time() -> None:
    default, together = (lp.capture(_adamw_step(foreach=foreach)) for foreach in (None, True))
    assert _updates(default) == _updates(together)
    assert _updates(default).count("aten::_foreach_addcdiv_") == 1
    assert "aten::addcdiv_" not in _updates(default)
    assert (default.flags.foreach, together.flags.foreach) == (None, True)
    default_seconds, together_seconds, single_seconds = (
        lp.predict(lp.capture(_adamw_step(foreach=foreach)), [_GPU], history=False)[_GPU].step.host_seconds
        for foreach in (None, True, False)
    )
    assert default_seconds == together_seconds
    assert single_seconds > 1.5 * default_seconds
    names = _updates(lp.capture(_adamw_step(clips=True)))
    assert "aten::_foreach_norm" in names
    assert "aten::_foreach_mul_" in names
    assert "aten::linalg_vector_norm" in names  # of the norms
    assert names.count("aten::linalg_vector_norm") == 1


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_foreach_choice_is_recorded_on_every_device(device: str) -> None:
    choices = (None, True, False)
    assert [lp.capture(_adamw_step(device, foreach=foreach)).flags.foreach for foreach in choices] == [*choices]


class _Own(torch.optim.Optimizer):
    """An optimizer with a loop of its own, which CUDA runs one by one, too."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad.sign(), alpha=-group["lr"])


def test_custom_and_capturable_optimizers_run_on_meta() -> None:
    with torch.device("meta"):
        model, data = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4))), torch.ones(2, 16)
    own = _Own(model.parameters())

    def step() -> None:
        model(data).sum().backward()
        own.step()

    trace = lp.capture(step)
    assert trace.flags.foreach is False
    assert _updates(trace).count("aten::add_") == 8  # a weight and a bias in each of four layers
    assert _updates(lp.capture(_adamw_step(capturable=True)))
    assert _updates(lp.capture(_adamw_step(fused=True)))
    with torch.device("meta"):
        layer, data = nn.Linear(4, 4), torch.ones(2, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, fused=True)

    def fused_step() -> None:
        layer(data).sum().backward()
        optimizer.step()

    assert _updates(lp.capture(fused_step)) == ["aten::_fused_sgd_"]


def test_torch_1_updates_and_zeroes_gradients_one_by_one() -> None:
    default, together, single = (lp.capture(_adamw_step(foreach=foreach)) for foreach in (None, True, False))
    old = for_torch_release(default, "1.13")
    assert not any(name.startswith("aten::_foreach_") for name in _updates(old))
    elements = [
        sum(tensor.elements for one in trace.operations if one.name == "aten::addcdiv_" for tensor in one.inputs)
        for trace in (old, for_torch_release(single, "1.13"))
    ]
    assert elements[0] == elements[1] > 0
    assert _updates(for_torch_release(together, "1.13")) == _updates(together)
    now = {explicit: _allocated(explicit, None) for explicit in (None, True, False)}
    then = {explicit: _allocated(explicit, "1.13") for explicit in (None, True, False)}
    assert now[None] == now[True] < now[False]
    assert then[True] == now[True]
    assert then[None] == pytest.approx(now[False], rel=1e-3)
    assert then[False] == pytest.approx(now[False], rel=1e-3)


def _allocated(explicit: bool | None, release: str | None) -> float:
    with torch.device("meta"):
        layers = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(8)]
        model, data = nn.Sequential(*layers), torch.empty(2048, 1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(data).sum().backward()
        optimizer.step()
        optimizer.zero_grad(**({} if explicit is None else {"set_to_none": explicit}))

    memory = lp.predict(lp.capture(step), [_GPU], history=False, release=release)[_GPU].memory
    assert memory.allocated is not None
    return memory.allocated.middle / GIBIBYTE


def _scaled(device: str, dtype: torch.dtype, *, unscales: bool = False) -> tuple[Trace, Any]:
    with pytest.warns(UserWarning, match="CUDA is not available"):
        scaler = torch.amp.GradScaler("cuda")
    with torch.device(device):
        layer, data = nn.Linear(8, 8), torch.ones(4, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def step() -> None:
        with torch.autocast("cuda", dtype=dtype):
            loss = layer(data).sum()
        scaler.scale(loss).backward()
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return lp.capture(step), scaler


@pytest.mark.skipif(torch.cuda.is_available(), reason="GradScaler is on")
@pytest.mark.parametrize("unscales", [False, True])
def test_grad_scaler_is_on_for_meta_under_float16(*, unscales: bool) -> None:
    trace, scaler = _scaled("meta", torch.float16, unscales=unscales)
    names = [operation.name for operation in trace.operations]
    # On CUDA: the loss is scaled, gradients are unscaled and checked, the host waits, the update runs, the scale moves.
    expected = [
        "aten::_amp_foreach_non_finite_check_and_unscale_",
        "aten::_local_scalar_dense",
        "aten::_foreach_add_",
        "aten::_amp_update_scale_",
    ]
    assert [name for name in names if name in expected] == expected
    assert [note for note in trace.notes if "GradScaler" in note] == list(trace.notes)
    assert not scaler.is_enabled()


@pytest.mark.skipif(torch.cuda.is_available(), reason="GradScaler is on")
@pytest.mark.parametrize(("device", "dtype"), [("meta", torch.bfloat16), ("cpu", torch.float16)])
def test_grad_scaler_stays_off_otherwise(device: str, dtype: torch.dtype) -> None:
    trace, _ = _scaled(device, dtype)
    assert not any("_amp_" in operation.name for operation in trace.operations)
    assert any("GradScaler is off" in note for note in trace.notes) is (device == "cpu")
