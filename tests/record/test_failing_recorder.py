"""What fails of ours around an operation, a call or an update: the step itself runs exactly once, to the same end."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from lightning_predict.base.errors import CaptureError
from lightning_predict.record.dispatch import DispatchRecorder
from lightning_predict.record.hooks import OptimizerWatch
from lightning_predict.record.modes import WholeCallMode
from lightning_predict.record.session import CaptureSession

BEFORE: dict[str, tuple[type, str]] = {
    "an operation": (DispatchRecorder, "record_operation"),
    "its cast": (DispatchRecorder, "cast"),
    "a call": (DispatchRecorder, "note_autocast"),
    "a whole call": (DispatchRecorder, "record_whole_call"),
    "the casts of a call": (DispatchRecorder, "cast_call"),
    "what a call shows inside": (WholeCallMode, "_inside"),
    "attention inside": (WholeCallMode, "_attend"),
    "autograd": (WholeCallMode, "_run_autograd"),
    "a closure's beginning": (OptimizerWatch, "_enter_closure"),
    "a closure's end": (OptimizerWatch, "_leave_closure"),
}


def step(counts: Counter[str]) -> list[Tensor]:
    """Train with attention, autograd and a closure, in inference mode at the end."""
    torch.manual_seed(3)
    attention, layer = nn.MultiheadAttention(8, 2), nn.Linear(8, 8)
    parameters = [*attention.parameters(), *layer.parameters()]
    optimizer = torch.optim.LBFGS(parameters, max_iter=2)
    data = torch.randn(5, 3, 8)

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, one: Tensor) -> Tensor:
            counts["forward"] += 1
            return one * 2

        @staticmethod
        def backward(context: Any, *gradients: Tensor) -> Tensor:
            counts["backward"] += 1
            return gradients[0] * 2

    def closure() -> Tensor:
        counts["closure"] += 1
        optimizer.zero_grad()
        output, _ = attention(data, data, data, need_weights=False)
        attended = functional.scaled_dot_product_attention(output, output, output)
        loss: Tensor = Counted.apply(layer(attended)).square().mean()  # type: ignore[no-untyped-call]
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.inference_mode():
        last = layer(data).relu()
    return [*(parameter.detach() for parameter in parameters), last]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("where", BEFORE)
@pytest.mark.parametrize("error", [RuntimeError("ours"), StopIteration(), GeneratorExit()])
def test_error_of_the_recorder_never_reaches_the_step(
    monkeypatch: pytest.MonkeyPatch, where: str, after: bool, error: BaseException
) -> None:
    plain: Counter[str] = Counter()
    expected = step(plain)
    holder, name = BEFORE[where]
    original: Callable[..., Any] = getattr(holder, name)
    replaced = functional.linear, functional.scaled_dot_product_attention
    session = CaptureSession(device=torch.device("cpu"), compiled=False)
    session.start()
    failed = []

    def fails(*args: Any, **kwargs: Any) -> Any:
        failed.append(name)
        if after:
            original(*args, **kwargs)
        raise error

    counts: Counter[str] = Counter()
    with monkeypatch.context() as patched:
        patched.setattr(holder, name, fails)
        try:
            tensors = step(counts)
        finally:
            session.stop()
    assert failed
    assert counts == plain
    assert all(map(torch.equal, tensors, expected))
    assert vars(torch.autograd)["_engine_run_backward"].__module__ == "torch.autograd.graph"
    assert (functional.linear, functional.scaled_dot_product_attention) == replaced
    assert not torch.overrides._get_current_function_mode_stack()
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    if where not in ("a closure's beginning", "a closure's end"):
        with pytest.raises(CaptureError, match="recording it failed"):
            session.trace()
