"""Models on the GPU that the step does not use: an encoder, a teacher, an EMA in a callback."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from torch import nn

from lightning_predict.callbacks.prediction_fit import modules_of_callbacks
from lightning_predict.hardware import gpu
from lightning_predict.memory.step_memory import step_memory
from lightning_predict.record.recording import capture
from lightning_predict.record.trace import Trace

CARD = gpu("T4")
LAYER_BYTES = 4 * (512 * 512 + 512)


def allocated(resident: Sequence[Any], *, updates_ema: bool = False) -> tuple[int, Trace]:
    with torch.device("meta"):
        model, data = nn.Linear(512, 512), torch.empty(8, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ema = resident[0] if updates_ema else None

    def step() -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()
        if ema is not None:
            with torch.no_grad():
                for mean, weight in zip(ema.parameters(), model.parameters(), strict=True):
                    mean.mul_(0.9).add_(weight, alpha=0.1)

    trace = capture(step, resident=[*resident, model])
    memory = step_memory(trace)
    assert memory is not None
    return memory.allocated_on(CARD), trace


def layer() -> nn.Linear:
    with torch.device("meta"):
        return nn.Linear(512, 512)


def test_resident_models_are_counted_once_even_if_updated_or_of_a_callback() -> None:
    """fast-DiT on an A100 took 26.8 GiB with its EMA and encoder; 20.5 were predicted without them."""
    alone, _ = allocated([])
    encoder = layer()
    both, trace = allocated([encoder, encoder, torch.empty(1000, device="meta")])
    assert trace.memory.resident_bytes == LAYER_BYTES + 4000
    assert both - alone == pytest.approx(LAYER_BYTES + 4000, abs=2 * 512)  # whole blocks
    alone, _ = allocated([])
    updated, trace = allocated([layer()], updates_ema=True)
    assert trace.memory.resident_bytes is None
    assert updated - alone == pytest.approx(LAYER_BYTES, abs=2 * 512)
    average = Callback()
    average.model = layer()  # type: ignore[attr-defined]
    trainer = Trainer(callbacks=[average], logger=False, enable_checkpointing=False)
    assert modules_of_callbacks(trainer) == [average.model]  # type: ignore[attr-defined]
