"""Causal language models of transformers on the meta device: each way to train them is recorded, with one note."""

from collections.abc import Callable

import pytest
import torch

import lightning_predict as lp
from lightning_predict.record.trace import Trace

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")

_GPU = "A100-SXM-40GB"


def _step(kind: str, attention: str, *, has_mask: bool, checkpoints: bool) -> Callable[[], None]:
    configuration = getattr(transformers, f"{kind}Config")(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        vocab_size=100,
        attn_implementation=attention,
    )
    with torch.device("meta"):
        model = getattr(transformers, f"{kind}ForCausalLM")(configuration)
        tokens = torch.zeros((2, 32), dtype=torch.long)
        mask = torch.ones((2, 32), dtype=torch.long)
    if checkpoints:
        model.gradient_checkpointing_enable()
    model.train()

    def step() -> None:
        model(input_ids=tokens, labels=tokens, **({"attention_mask": mask} if has_mask else {})).loss.backward()

    return step


def _products(trace: Trace) -> list[tuple[str, list[tuple[int, ...]]]]:
    """Attention and matmuls: the masks made for eager attention differ."""
    return [
        (operation.name, [tensor.shape for tensor in operation.inputs])
        for operation in trace.operations
        if "attention" in operation.name or operation.name in ("aten::mm", "aten::bmm")
    ]


@pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_mask_of_ones_is_recorded_like_no_mask(kind: str, attention: str, *, checkpoints: bool) -> None:
    without, with_mask = (
        lp.capture(_step(kind, attention, has_mask=has_mask, checkpoints=checkpoints)) for has_mask in (False, True)
    )
    assert _products(with_mask) == _products(without)
    assert len(with_mask.notes) <= 1
    prediction = lp.predict(with_mask, [_GPU], history=False)[_GPU]
    assert prediction.iteration_seconds > 0
    assert prediction.memory.process is not None
