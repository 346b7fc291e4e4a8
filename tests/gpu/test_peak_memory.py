"""Peak memory derived on the meta device against what CUDA's allocator measures of the same step."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lightning_predict.memory.step_memory import StepMemory, step_memory
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.recording import capture
from lightning_predict.record.trace import Trace
from tests.workloads.catalogue import WORKLOADS

pytestmark = pytest.mark.gpu


def step_on(name: str, device: str) -> Callable[[], None]:
    """A training step of a published size, with zero_grad after the forward pass, as under Lightning."""
    with torch.device(device):
        module, batch = WORKLOADS[name].module("full"), WORKLOADS[name].batch("full")
    optimizer: Any = module.configure_optimizers()

    def step() -> None:
        loss: Any = module.training_step(batch, 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def memory_of(trace: Trace) -> StepMemory:
    memory = step_memory(trace)
    assert memory is not None
    return memory


@pytest.mark.parametrize("name", ["resnet50", "transformer", "unet"])
def test_the_derived_peak_is_within_ten_percent_of_the_measured_one(name: str) -> None:
    torch.cuda.empty_cache()
    trace = capture(step_on(name, "cuda"), warmup_steps=3)
    used = gpu_in_use(trace)
    assert used is not None
    derived = memory_of(capture(step_on(name, "meta"), warmup_steps=1))
    needed = derived.bytes_on(used) - derived.slack_bytes  # the allocator's peak counts blocks, not segments
    assert needed == pytest.approx(memory_of(trace).bytes_on(used), rel=0.1)
