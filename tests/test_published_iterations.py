"""Whole iterations that others measured, predicted from the meta device: no weight, no GPU, no measurement.

The measured times are those of the NeuSight artifact (MIT licence): PyTorch 2.1, float32 with TF32 off, eager
attention, no optimizer step; the loss is outside the forward pass, its gradient inside the backward pass. None of them
was used to train the weights.
"""

from dataclasses import replace

import pytest
import torch

import lightning_predict as lp
from lightning_predict.record.trace import Flags, Trace
from tests.workloads.gpt import GPT2_LARGE, Gpt, GptConfig


def recorded(config: GptConfig, *, batch: int, length: int, training: bool) -> Trace:
    """One step on the meta device, in float32 with TF32 off."""
    with torch.device("meta"):
        model = Gpt(config).train(training)
        tokens = torch.zeros(batch, length, dtype=torch.int64)

    def step() -> None:
        if training:
            logits = model(tokens)
            logits.backward(torch.empty_like(logits))
        else:
            with torch.no_grad():
                model(tokens)

    return replace(lp.capture(step, warmup_steps=0), flags=Flags(matmul_tf32=False, cudnn_tf32=False))


def test_gpt2_large_training_on_a_v100() -> None:
    trace = recorded(GPT2_LARGE, batch=1, length=1024, training=True)
    predicted = lp.predict(trace, gpus=["V100-PCIe-32GB"])["V100-PCIe-32GB"].iteration_seconds
    assert predicted == pytest.approx(0.5769, rel=0.25)


@pytest.fixture(scope="module")
def inference() -> Trace:
    return recorded(GPT2_LARGE, batch=4, length=1024, training=False)


@pytest.mark.parametrize(
    ("gpu", "measured_seconds"), [("A100-PCIe-40GB", 0.5358), ("V100-PCIe-32GB", 0.7288), ("T4", 2.505)]
)
def test_gpt2_large_inference(inference: Trace, gpu: str, measured_seconds: float) -> None:
    predicted = lp.predict(inference, gpus=[gpu])[gpu].iteration_seconds
    assert predicted == pytest.approx(measured_seconds, rel=0.25)
