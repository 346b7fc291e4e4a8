"""Layers in 4 bits and optimizers in 8 bits have bitsandbytes' storage, memory and operations on the meta device."""

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.record.named_models.options import StepOptions
from lightning_predict.record.quantization import BlockwiseAdamW, Linear4bit, as_4bit, parameter_counts
from lightning_predict.record.trace import Trace
from tests.named_models.test_step_of import GPT2, gpt2

__all__ = ["gpt2"]

WIDTH = 512
VALUES = WIDTH * WIDTH


def model_of(blocks: int = 3) -> nn.Sequential:
    """A trained layer, frozen layers in a block, and a trained head."""
    with torch.device("meta"):
        frozen = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(blocks)))
        return nn.Sequential(nn.Sequential(nn.Embedding(10, WIDTH)), frozen.requires_grad_(False), nn.Linear(WIDTH, 10))


def recorded(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> Trace:
    """Record a step of token numbers."""
    tokens = torch.zeros((8, 16), dtype=torch.long, device="meta")

    def step() -> None:
        hidden = model[1](model[0](tokens).bfloat16())
        model[2](hidden.float()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return lp.capture(step)


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


@pytest.mark.parametrize("double", [False, True])
def test_4_bit_layer_stores_half_a_byte_per_value_and_scales(double: bool) -> None:
    model = model_of()
    assert as_4bit(model, compute_dtype=torch.bfloat16, double=double) == 3
    layer: Any = model.get_submodule("1.0")
    tensors = [*layer.parameters(), *layer.buffers()]
    blocks = VALUES // 64
    scales = blocks + 4 * blocks // 256 if double else 4 * blocks
    assert sum(tensor.numel() * tensor.element_size() for tensor in tensors) == VALUES // 2 + scales
    assert isinstance(model[2], nn.Linear)  # the head stays
    assert not isinstance(model[2], Linear4bit)
    whole = 10 * WIDTH + 3 * VALUES + 10 * WIDTH + 10
    assert parameter_counts(model) == (whole, whole - 3 * VALUES)


def test_weight_is_dequantized_in_both_passes() -> None:
    model = model_of()
    as_4bit(model, compute_dtype=torch.bfloat16)
    trace = recorded(model, torch.optim.AdamW(trained(model)))
    counts = Counter(one.phase for one in trace.operations if one.name == "lightning_predict::dequantize_4bit")
    assert counts == {"forward": 3, "backward": 3}
    prediction = lp.predict(trace, ["RTX-4090"], history=False)["RTX-4090"]
    assert not [note for note in prediction.notes if "unknown" in note]


def test_frozen_layers_need_less_memory_in_4_bits_and_small_states_keep_32() -> None:
    plain, packed = model_of(blocks=40), model_of(blocks=40)
    as_4bit(packed, compute_dtype=torch.bfloat16)
    allocated = [
        lp.predict(recorded(model, torch.optim.AdamW(trained(model))), ["T4"], history=False)["T4"].memory.allocated
        for model in (plain, packed)
    ]
    # 16 bits against 4 bits and a float32 scale for each block of 64; one weight is dequantized at the peak
    saved = 40 * VALUES * (2 - 0.5 - 4 / 64) - 2 * VALUES
    assert allocated[0].middle - allocated[1].middle == pytest.approx(saved, rel=0.02)  # type: ignore[union-attr]
    with torch.device("meta"):
        layer, data = nn.Linear(63, 64, bias=False), torch.empty(4, 63)
    optimizer = BlockwiseAdamW(layer.parameters(), paged=True)
    layer(data).sum().backward()
    optimizer.step()
    assert [state.dtype for state in optimizer.state[layer.weight].values()] == [torch.float32] * 2
    with pytest.raises(InvalidArgumentError, match="takes no closure"):
        optimizer.step(lambda: None)


@pytest.mark.parametrize(
    ("bits", "paged", "state_bytes"),
    [
        (32, False, 8 * VALUES),
        (8, False, 2 * VALUES + 2 * 4 * VALUES // 256),
        (8, True, 2 * 4 * VALUES // 256),
        (32, True, 0),
    ],
)
def test_optimizer_states_have_the_expected_size(bits: Any, paged: bool, state_bytes: int) -> None:
    with torch.device("meta"):
        layer, data = nn.Linear(WIDTH, WIDTH, bias=False), torch.empty(4, WIDTH)
    optimizer = BlockwiseAdamW(layer.parameters(), bits=bits, paged=paged)

    def step() -> None:
        layer(data).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    trace = lp.capture(step)
    states = [state for state in optimizer.state[layer.weight].values() if state.numel() != 256]
    assert sum(state.untyped_storage().nbytes() for state in states) == pytest.approx(state_bytes, abs=8)
    (update,) = [operation for operation in trace.operations if "optimizer_update" in operation.name]
    # Paged states are moved as others are: each value once in, once out
    assert sum(tensor.size_bytes for tensor in update.inputs) >= (8 + 2 * bits // 8) * VALUES
    paged_gib = 2 * VALUES * bits // 8 / 2**30
    expected = f"{paged_gib:.2f} GiB of the optimizer's states are paged"
    assert [note.startswith(expected) for note in trace.notes] == [True] * paged


@pytest.mark.parametrize("double", [False, True])
def test_layers_equal_the_layers_of_bitsandbytes(double: bool) -> None:
    library = pytest.importorskip("bitsandbytes")
    ours, theirs = model_of(), model_of()
    as_4bit(ours, compute_dtype=torch.bfloat16, double=double)
    for number in range(3):
        with torch.device("meta"):
            layer = library.nn.Linear4bit(
                WIDTH, WIDTH, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4", compress_statistics=double
            )
        theirs[1][number] = layer.to(torch.bfloat16)  # type: ignore[operator]
    memory, seconds = [], []
    for model, make in ((ours, BlockwiseAdamW), (theirs, library.optim.PagedAdamW8bit)):
        options: dict[str, Any] = {"paged": True} if make is BlockwiseAdamW else {}
        trace = recorded(model, make(trained(model), **options))
        prediction = lp.predict(trace, ["T4"], history=False)["T4"]
        memory.append(prediction.memory.allocated.middle)  # type: ignore[union-attr]
        seconds.append(prediction.step.device_seconds)
    assert memory[0] == pytest.approx(memory[1], rel=0.03)
    assert seconds[0] == pytest.approx(seconds[1], rel=0.06)  # the library reads scales within its product


def test_named_model_is_recorded_with_qlora(gpt2: str) -> None:
    pytest.importorskip("peft")
    trace = lp.step_of(gpt2, length=64, lora=4, quantization="nf4-double", optimizer="adamw_8bit", checkpointing=True)
    note = trace.notes[0]
    assert "AdamW with states in 8 bits" in note
    assert "layers in 4 bits (nf4, double quantization)" in note
    packed = [parameter for parameter in trace.parameters if parameter.dtype == "uint8"]
    width, layers = GPT2["n_embd"], GPT2["n_layer"]
    assert sum(math.prod(parameter.shape) for parameter in packed) == layers * 12 * width**2 // 2  # type: ignore[operator]
    assert {one.dtype for one in trace.parameters} == {"uint8", "bfloat16", "float32"}  # others and adapters
    trace = lp.step_of(gpt2, length=64, lora=4, quantization="nf4", recipe="float32-rest")
    assert {parameter.dtype for parameter in trace.parameters} == {"uint8", "float32"}  # as PEFT prepares a model
    assert "0.142 M parameters" in note  # 140,288 as without quantization, and 2,048 of the adapters


def test_note_says_which_share_of_a_mixture_stays_in_16_bits(tmp_path: Path) -> None:
    pytest.importorskip("transformers", minversion="5")
    pytest.importorskip("peft")
    width, inner, layers, experts, words = 64, 128, 2, 4, 1000
    config = {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_local_experts": experts,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": words,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    note = lp.step_of(str(tmp_path), length=16, lora=4, quantization="nf4").notes[0]
    joined = layers * experts * 3 * width * inner
    attention, gates, norms = layers * 4 * width**2, layers * experts * width, (2 * layers + 1) * width
    share = joined / (joined + attention + gates + norms + 2 * words * width)
    assert f"without the experts, {share:.0%} of the weights: bitsandbytes quantizes linear layers only" in note


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization": "nf4"}, "add lora=16"),
        ({"quantization": "int3", "lora": 4}, "expected one of nf4, nf4-double, fp4, fp4-double"),
        ({"optimizer": "adamw_4bit"}, "expected one of adamw, adam, sgd, muon, adamw_8bit"),
    ],
)
def test_other_settings_are_rejected(options: dict[str, Any], message: str) -> None:
    refused: Callable[..., StepOptions] = StepOptions
    with pytest.raises(InvalidArgumentError, match=message):
        refused(**options)
