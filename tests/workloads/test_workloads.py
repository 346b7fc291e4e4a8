"""Every workload trains on the CPU at a tiny size, and is recorded on the meta device at the published size."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.flop_counter import FlopCounterMode

import lightning_predict as lp
from lightning_predict.kernels.operations import batch_shapes, operation_spec
from lightning_predict.kernels.translation import translate
from lightning_predict.record.trace import Trace
from tests.workloads.catalogue import WORKLOADS
from tests.workloads.gan import Dcgan
from tests.workloads.modules import Batch, Size, SyntheticData, Workload

every_workload = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)


def step_of(module: LightningModule, batch: Batch) -> Callable[[], None]:
    """One training step without a Trainer."""
    optimizers: Any = module.configure_optimizers()

    def step() -> None:
        if isinstance(module, Dcgan):
            module.steps(batch[0], optimizers)
            return
        optimizers.zero_grad()
        loss: Any = module.training_step(batch, 0)
        loss.backward()
        optimizers.step()

    return step


def on_meta(workload: Workload, size: Size = "full") -> tuple[LightningModule, Batch]:
    with torch.device("meta"):
        return workload.module(size), workload.batch(size)


@every_workload
def test_tiny_workload_trains_on_cpu(workload: Workload) -> None:
    torch.manual_seed(0)
    module = workload.module("tiny")
    before = [parameter.detach().clone() for parameter in module.parameters()]
    updates = 2 if isinstance(module, Dcgan) else 1
    trainer = Trainer(
        accelerator="cpu",
        max_steps=updates,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, SyntheticData(workload.batch("tiny")))
    assert trainer.global_step == updates
    changed = [not torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True)]
    # Embedding rows that the batch does not hold, and biases in front of a norm, may keep their values.
    assert sum(changed) > 0.7 * len(changed)
    assert all(torch.isfinite(parameter).all() for parameter in module.parameters())


@every_workload
def test_published_size_has_published_number_of_parameters(workload: Workload) -> None:
    module, _ = on_meta(workload)
    assert sum(parameter.numel() for parameter in module.parameters()) == workload.parameters


@every_workload
def test_recorded_flops_equal_torchs_count(workload: Workload) -> None:
    module, batch = on_meta(workload)
    with FlopCounterMode(display=False) as counter:  # of the same step, some of which take seconds
        trace = lp.capture(step_of(module, batch), warmup_steps=0)
    assert tensor_flops(trace) == pytest.approx(counter.get_total_flops(), rel=0.02)
    assert {"forward", "backward", "optimizer"} <= {operation.phase for operation in trace.operations}


def tensor_flops(trace: Trace) -> float:
    """FLOPs of products, convolutions, recurrent layers and attention, a causal mask not counted as a saving."""
    total = []
    for operation in trace.operations:
        for shape in translate(operation, trace.flags):
            if operation_spec(shape.operation).units != "tensor":
                continue
            flops = float(batch_shapes([shape]).flops[0])
            is_causal = bool(operation.arguments.get("is_causal"))
            total.append(flops * (2 if is_causal else 1))
    return math.fsum(total)
