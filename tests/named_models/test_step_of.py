"""`step_of` records the same as a script with this step."""

import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.base.errors import CaptureError, InvalidArgumentError, MissingDependencyError
from lightning_predict.base.model_options import ModelOptions
from lightning_predict.cli import main
from lightning_predict.record import sources
from lightning_predict.record.named_models import built, step, transformers_models
from lightning_predict.record.sources import step_of_source
from lightning_predict.record.trace import Trace

GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 64,
    "n_positions": 128,
    "vocab_size": 500,
}


@pytest.fixture
def gpt2(tmp_path: Path) -> str:
    """Configuration of a small GPT-2."""
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(GPT2), encoding="utf-8")
    return str(tmp_path)


def recorded(model: nn.Module, loss: Callable[[], torch.Tensor], *, samples: int, precision: str) -> Trace:
    """Record the step of a script: loss, gradients, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return lp.capture(step, samples_per_step=samples, precision=precision)


def operations(trace: Trace) -> list[tuple[Any, ...]]:
    """What determines the times of operations."""
    return [(operation.name, operation.phase, operation.inputs, operation.outputs) for operation in trace.operations]


def check_same(named: Trace, own: Trace) -> None:
    """The same operations, and therefore the same times and memory."""
    assert [operation[:2] for operation in operations(named)] == [operation[:2] for operation in operations(own)]
    ours, theirs = (lp.predict(trace, ["A100-SXM-40GB"], history=False)["A100-SXM-40GB"] for trace in (named, own))
    # The host's part is measured in each recording: the device's work must agree exactly
    assert ours.memory_bytes == theirs.memory_bytes
    assert ours.step.device_seconds == pytest.approx(theirs.step.device_seconds, rel=1e-9)


def test_text_model_equals_a_script(gpt2: str) -> None:
    transformers = pytest.importorskip("transformers")
    named = lp.step_of(gpt2, batch_size=2, length=64)
    config = transformers.GPT2Config(
        **{key: value for key, value in GPT2.items() if key not in ("model_type", "architectures")}, use_cache=False
    )
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(config).train()
        tokens = torch.zeros((2, 64), dtype=torch.long)
    own = recorded(model, lambda: model(input_ids=tokens, labels=tokens).loss, samples=2, precision="bf16-mixed")
    check_same(named, own)
    assert named.samples == 2
    assert sum(math.prod(one.shape) for one in named.parameters) == sum(one.numel() for one in model.parameters())


def test_timm_model_equals_a_script() -> None:
    timm = pytest.importorskip("timm")
    named = lp.step_of("timm:vit_tiny_patch16_224", batch_size=4, precision="32-true")
    with torch.device("meta"):
        model = timm.create_model("vit_tiny_patch16_224").train()
        images, labels = torch.zeros((4, 3, 224, 224)), torch.zeros((4,), dtype=torch.long)
    own = recorded(model, lambda: nn.functional.cross_entropy(model(images), labels), samples=4, precision="32-true")
    check_same(named, own)


def test_source_has_adapters_and_4_bits_as_variants(gpt2: str) -> None:
    pytest.importorskip("peft")
    options = ModelOptions(length=16, precision="bf16-mixed")
    adapters, packed = step_of_source(gpt2, options).variants
    assert [one.changes for one in (adapters, packed)] == [
        ("LoRA of rank 16 (--lora 16)",),
        ("LoRA of rank 16 (--lora 16)", "frozen weights in 4 bits (--quantization nf4)"),
    ]
    own = lp.step_of(gpt2, length=16, precision="bf16-true", lora=16, quantization="nf4")
    assert packed.step().operations == own.operations
    (only,) = step_of_source(gpt2, replace(options, lora=8)).variants
    assert (only.changes, only.trains_all) == (packed.changes[1:], True)
    assert not step_of_source(gpt2, replace(options, lora=8, quantization="nf4")).variants


def test_note_describes_the_step_and_checkpointing_repeats_it(gpt2: str) -> None:
    note = lp.step_of(gpt2, batch_size=2, length=64, precision="bf16-true", optimizer="sgd").notes[0]
    # 2 blocks of 12 * 64^2 + 13 * 64, the tables of 500 words and 128 positions, and the last norm
    assert 2 * (12 * 64**2 + 13 * 64) + (500 + 128) * 64 + 2 * 64 == 140_288
    assert note == (
        f"{gpt2}: 0.14 M parameters; 2 sequences of 64 tokens; bf16-true; SGD with momentum; configuration as given."
    )
    plain, checkpointed = (lp.step_of(gpt2, length=64, checkpointing=value) for value in (False, True))
    attentions = [
        sum("scaled_dot_product" in one.name and "backward" not in one.name for one in trace.operations)
        for trace in (plain, checkpointed)
    ]
    assert attentions == [2, 4]  # of two blocks


def test_held_logits_stay_in_memory_during_the_backward_pass(gpt2: str) -> None:
    freed, held = (
        lp.predict(lp.step_of(gpt2, batch_size=32, length=128, holds_output=value), ["T4"], history=False)["T4"]
        for value in (False, True)
    )
    assert freed.memory.allocated is not None
    assert held.memory.allocated is not None
    # 32 x 128 tokens, 500 words, 2 bytes (bfloat16 under autocast). The output also has the keys and values of both
    # blocks, views of the 192 columns of c_attn's result, which the backward pass frees otherwise.
    logits = 32 * 128 * 500 * 2
    keys_and_values = 2 * 32 * 128 * 192 * 2
    assert 0.99 * logits < held.memory.allocated.middle - freed.memory.allocated.middle < logits + keys_and_values
    assert held.iteration_seconds == pytest.approx(freed.iteration_seconds, rel=0.01)


def test_only_adapters_are_trained(gpt2: str) -> None:
    pytest.importorskip("peft")
    trace = lp.step_of(gpt2, length=64, lora=4)
    # c_attn of each block: 64 x 192; A has 4 x 64 values and B 192 x 4
    trained = [parameter for parameter in trace.parameters if parameter.requires_grad]
    assert sum(math.prod(parameter.shape) for parameter in trained) == 2 * 4 * (64 + 192)
    assert {parameter.dtype for parameter in trained} == {"float32"}
    assert {parameter.dtype for parameter in trace.parameters if not parameter.requires_grad} == {"bfloat16"}
    assert "LoRA of rank 4 in c_attn" in trace.notes[0]


@pytest.mark.parametrize(
    ("precision", "quantization", "words", "autocast"),
    [
        (None, None, "bf16-mixed, frozen weights in bfloat16", "bfloat16"),  # adapters in float32, under autocast
        ("16-true", None, "16-mixed, frozen weights in float16", "float16"),
        ("bf16-mixed", None, "bf16-mixed", "bfloat16"),
        ("bf16-mixed", "nf4", "bf16-mixed", "bfloat16"),
        ("32-true", None, "32-true", None),
    ],
)
def test_adapters_are_trained_in_the_stated_precision(
    gpt2: str, precision: str | None, quantization: str | None, words: str, autocast: str | None
) -> None:
    pytest.importorskip("peft")
    trace = lp.step_of(gpt2, length=64, lora=4, precision=precision, quantization=quantization)
    assert f"tokens; {words}; AdamW" in trace.notes[0]
    assert trace.flags.autocast_dtype == autocast
    heading = lp.predict(trace, ["T4"], history=False).heading or ""
    assert words.partition(",")[0].replace("32-true", "float32") in heading
    products = {one.inputs[0].dtype for one in trace.operations if one.name in ("aten::mm", "aten::addmm")}
    assert products == {autocast or "float32"}


def test_adapters_have_the_dtype_of_the_model_or_float32_in_a_plain_loop(gpt2: str) -> None:
    pytest.importorskip("peft")
    trace = lp.step_of(gpt2, length=64, lora=4, lora_targets=["c_attn", "c_proj"], recipe="16-bit-adapters")
    assert {parameter.dtype for parameter in trace.parameters} == {"bfloat16"}
    assert "LoRA of rank 4 in c_attn, c_proj, adapters in bfloat16" in trace.notes[0]
    trace = lp.step_of(gpt2, length=64, lora=4, lora_targets=["c_attn"], precision="16-true", recipe="no-autocast")
    adapted = {one.shape: one.dtype for one in trace.parameters}
    products = [one for one in trace.operations if one.phase == "forward" and one.name in ("aten::mm", "aten::addmm")]
    assert {one.dtype for one in trace.parameters} == {"float16", "float32"}
    assert {tensor.dtype for one in products for tensor in one.inputs if 4 in tensor.shape} == {"float32"}
    assert {one.inputs[-1].dtype for one in products if 500 in one.outputs[0].shape} == {adapted[500, 64]}
    assert trace.flags.autocast_dtype is None


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "intermediate_size": 64}, "qkv_proj"),
        ({"model_type": "distilbert", "architectures": ["DistilBertForMaskedLM"], "dim": 64}, "q_lin, v_lin"),
    ],
)
def test_adapters_are_at_queries_and_values_where_peft_has_no_default(
    config: dict[str, Any], layers: str, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "n_heads": 2, "vocab_size": 500, "pad_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(sizes | config), encoding="utf-8")
    trace = lp.step_of(str(tmp_path), length=64, lora=4)
    assert f"LoRA of rank 4 in {layers}, adapters in float32" in trace.notes[0]


def test_model_without_usual_projections_names_its_layers_and_the_profile(tmp_path: Path, gpt2: str) -> None:
    pytest.importorskip("peft")
    config = {"model_type": "fnet", "architectures": ["FNetForMaskedLM"], "hidden_size": 64, "num_hidden_layers": 1}
    (tmp_path / "fnet").mkdir()
    (tmp_path / "fnet" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(InvalidArgumentError) as raised:
        lp.step_of(str(tmp_path / "fnet"), length=64, lora=4)
    assert str(raised.value) == (
        "LoRA adapts no layer of this model. Its layers are named decoder, dense, projection. Give some of them, or "
        "all-linear, as lora_targets: of step_of, or in the table [model] of a profile (--profile on the command line)."
    )
    with pytest.raises(
        InvalidArgumentError, match=r"^LoRA adapts no layer of this model by lora_targets='q_proj'\. Its "
    ):
        lp.step_of(gpt2, length=64, lora=4, lora_targets="q_proj")
    profile = tmp_path / "profile.toml"
    profile.write_text('[model]\nlora_targets = "dense"\n', encoding="utf-8")
    words = ["predict", str(tmp_path / "fnet"), "--length", "64", "--lora", "4", "--gpus", "L4"]
    assert main([*words, "--profile", str(profile)]) == 0


def test_16_bit_model_runs_under_autocast(gpt2: str) -> None:
    trace = lp.step_of(gpt2, length=64, precision="bf16-true", recipe="autocast")
    assert trace.flags.autocast_dtype == "bfloat16"
    assert "bf16-mixed, weights in bfloat16" in trace.notes[0]
    with torch.device("meta"):
        layer, rows = nn.Linear(8, 8, dtype=torch.bfloat16), torch.empty(4, 8)
    own = lp.capture(lambda: layer(rows).sum().backward(), precision="bf16-mixed")
    assert {parameter.dtype for parameter in own.parameters} == {"bfloat16"}


def test_reference_model_runs_forward_on_twice_the_sequences(gpt2: str) -> None:
    trace = lp.step_of(gpt2, batch_size=3, length=64, recipe="reference")
    attentions = [operation for operation in trace.operations if "scaled_dot_product" in operation.name]
    forward = [attention for attention in attentions if "backward" not in attention.name]
    assert len(forward) == 2 * 2  # two blocks of the model, and of the reference
    assert {attention.inputs[0].shape[0] for attention in forward} == {6}
    frozen = sum(math.prod(parameter.shape) for parameter in trace.parameters if not parameter.requires_grad)
    assert frozen == 140_288  # the copy; see test_note_describes_the_step
    assert "the reference is a frozen copy in float32" in trace.notes[0]


DENOISER = {
    "_class_name": "FluxTransformer2DModel", "in_channels": 16, "num_layers": 1, "num_single_layers": 1,
    "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 4096, "pooled_projection_dim": 32,
    "axes_dims_rope": [4, 6, 6],
}  # fmt: skip


def test_adapters_of_a_denoiser_are_trained_and_its_encoders_are_said(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    pytest.importorskip("peft")
    (tmp_path / "config.json").write_text(json.dumps(DENOISER), encoding="utf-8")
    alone, whole = (
        lp.step_of(str(tmp_path), image_size=64, length=32, lora=4, recipe=recipe) for recipe in (None, "encoders")
    )
    # to_q, to_k, to_v of both blocks, to_out.0 of the first: A has 4 x 32 values, and B as many
    trained = sum(math.prod(parameter.shape) for parameter in alone.parameters if parameter.requires_grad)
    assert trained == 7 * 2 * 4 * 32
    assert "no autoencoder and no text encoder on the GPU" in alone.notes[0]
    assert "frozen autoencoder and 1 CLIP text encoder and T5-XXL in bfloat16 in each step" in whole.notes[0]
    assert len(whole.operations) > 2 * len(alone.operations)


_DENOISER = {"num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("FluxTransformer2DModel", _DENOISER | {"in_channels": 64, "axes_dims_rope": [4, 6, 6]}),
        ("Flux2Transformer2DModel", _DENOISER | {"in_channels": 64, "axes_dims_rope": [4, 4, 4, 4]}),
        ("ChromaTransformer2DModel", _DENOISER | {"in_channels": 64, "axes_dims_rope": [4, 6, 6]}),
        ("QwenImageTransformer2DModel", _DENOISER | {"axes_dims_rope": [4, 6, 6]}),
        ("ZImageTransformer2DModel", {"dim": 32, "n_heads": 2, "n_kv_heads": 2, "n_layers": 1, "axes_dims": [4, 6, 6]}),
    ],
)
def test_image_of_a_denoiser_is_a_token_for_two_latents_by_two(
    tmp_path: Path, kind: str, own: dict[str, object]
) -> None:
    diffusers = pytest.importorskip("diffusers")
    if not hasattr(diffusers, kind):
        pytest.skip("this release of diffusers has no such class")
    own = {key: value for key, value in own.items() if not (key == "num_single_layers" and kind.startswith("Qwen"))}
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": kind} | own), encoding="utf-8")
    trace = lp.step_of(str(tmp_path), batch_size=2, image_size=128, length=32)
    assert "2 latents of 16 x 16" in trace.notes[0]
    shapes = {tensor.shape for operation in trace.operations for tensor in operation.inputs}
    assert any(64 in shape[:-1] for shape in shapes)  # 8 x 8 tokens
    assert any(operation.phase == "backward" for operation in trace.operations)


def test_video_has_as_many_latents_as_its_frames_and_pixels_make(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    wan = {"_class_name": "WanTransformer3DModel", "num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 16}
    own = {"in_channels": 4, "out_channels": 4, "ffn_dim": 32, "text_dim": 8, "freq_dim": 16}
    (tmp_path / "config.json").write_text(json.dumps(wan | own), encoding="utf-8")
    trace = lp.step_of(str(tmp_path), frames=9, image_size=64, length=8)
    assert "1 video of 9 frames of 64 x 64" in trace.notes[0]
    # (9 - 1) / 4 + 1 = 3 latent frames of 8 x 8, in patches of 1 x 2 x 2: 48 tokens of two heads of 16
    forward = [one for one in trace.operations if "scaled_dot_product" in one.name and "backward" not in one.name]
    assert forward[0].inputs[0].shape == (1, 2, 48, 16)
    usual = lp.step_of(str(tmp_path), frames=5, length=8)
    assert "1 video of 5 frames of 480 x 832" in usual.notes[0]  # as WanPipeline: 2 x 30 x 52 tokens
    assert (1, 2, 3120, 16) in [operation.inputs[0].shape for operation in usual.operations if operation.inputs]


def test_detector_trains_on_images_of_its_size_without_matching(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    yolos = {
        "model_type": "yolos",
        "architectures": ["YolosForObjectDetection"],
        "hidden_size": 16,
        "image_size": [64, 96],
    }
    own = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "num_detection_tokens": 5}
    (tmp_path / "config.json").write_text(json.dumps(yolos | own), encoding="utf-8")
    trace = lp.step_of(str(tmp_path))
    assert "1 image of 64 x 64" in trace.notes[0]
    assert any(operation.phase == "backward" for operation in trace.operations)


def test_unknown_architectures_and_missing_or_long_lengths_are_rejected(gpt2: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"length= is missing: .* for example length=128\."):
        lp.step_of(gpt2)
    with pytest.raises(InvalidArgumentError, match=r"length=129 is beyond the 128 positions of .* with more"):
        lp.step_of(gpt2, length=129)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(GPT2 | {"architectures": ["MineForCausalLM"]}), encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match="architectures is 'MineForCausalLM'; expected a class of transform"):
        lp.step_of(str(file), length=64)


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(built, "import_module", absent)
    with pytest.raises(MissingDependencyError, match="needs timm, which is not installed: pip install timm"):
        lp.step_of("timm:resnet50")
    assert main(["predict", "hf:gpt2", "--length", "127", "--gpus", "T4"]) == 2
    assert "pip install transformers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "billions", "source"),
    [
        ("Qwen/Qwen2.5-7B", 7.62, "safetensors of the model: 7,615,616,512"),
        ("Qwen/Qwen2.5-3B", 3.09, "model card: 3.09 B"),
        ("Qwen/Qwen3-4B", 4.02, "safetensors of the model: 4,022,468,096"),
        ("meta-llama/Llama-3.1-8B", 8.03, "model card: 8.03 B"),
        ("meta-llama/Llama-3.2-1B", 1.24, "model card: 1.23 B"),
        ("meta-llama/Llama-3.2-3B", 3.21, "model card: 3.21 B"),
        ("mistralai/Mistral-7B-v0.1", 7.24, "model card: 7.24 B"),
        ("mistralai/Mixtral-8x7B-v0.1", 46.7, "announcement: 46.7 B"),
        ("google/gemma-2-2b", 2.61, "Gemma 2 report: 0.59 + 2.02 B"),
        ("google/gemma-7b", 8.54, "Gemma report: 0.79 + 7.75 B"),
        ("microsoft/phi-4", 14.7, "model card: 14 B; safetensors 14.7 B"),
        ("EleutherAI/pythia-1.4b", 1.41, "model card: 1,414,647,808"),
        ("HuggingFaceTB/SmolLM2-1.7B", 1.71, "safetensors of the model: 1.71 B"),
        ("gpt2-xl", 1.558, "nanoGPT: 1558 M"),
        ("bert-large-uncased", 0.336, "336 M with the head tied"),
        ("t5-large", 0.738, "737,668,096"),
        ("openai/whisper-medium", 0.764, "Whisper: 769 M with positions and the head tied"),
        ("openai/whisper-large-v3", 1.543, "safetensors of the model: 1.54 B"),
        ("deepseek-ai/DeepSeek-V3", 671.0, "DeepSeek-V3 report: 671 B"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1.777, "safetensors of the model: 1.78 B"),
        ("meta-llama/Llama-4-Scout-17B-16E", 107.8, "model card: 109 B with the image encoder"),
        ("openai/gpt-oss-20b", 20.91, "model card: 20.9 B"),
        ("google/gemma-3-4b-it", 4.3, "safetensors of the model: 4.3 B"),
        ("Qwen/Qwen3-30B-A3B", 30.5, "model card: 30.5 B"),
        ("microsoft/deberta-v3-base", 0.184, "model card: 86 M + 98 M of the vocabulary"),
        ("FacebookAI/xlm-roberta-base", 0.278, "safetensors of the model: 279 M"),
        ("BAAI/bge-m3", 0.568, "model card: 568 M"),
        ("BAAI/bge-small-en-v1.5", 0.0334, "safetensors of the model: 33.4 M"),
        ("answerdotai/ModernBERT-large", 0.395, "model card: 395 M"),
        ("google/siglip-so400m-patch14-384", 0.878, "safetensors of the model: 878 M"),
        ("laion/CLIP-ViT-H-14-laion2B-s32B-b79K", 0.986, "open_clip: 986 M"),
        ("facebook/wav2vec2-xls-r-1b", 0.963, "XLS-R paper: 965 M"),
        ("google/pegasus-xsum", 0.570, "PEGASUS paper: 568 M"),
        ("facebook/nllb-200-distilled-1.3B", 1.371, "NLLB paper: 1.37 B"),
        ("mistralai/Mistral-Nemo-Base-2407", 12.25, "safetensors of the model: 12.2 B"),
        ("bigscience/bloom-7b1", 7.069, "model card: 7,069,016,064"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", 8.29, "safetensors of the model: 8.29 B"),
        ("distil-whisper/distil-large-v3", 0.756, "model card: 756 M"),
        ("facebook/sam-vit-huge", 0.641, "safetensors of the model: 641 M"),
        ("bigcode/starcoder2-15b", 15.96, "safetensors of the model: 16.0 B"),
    ],
)
def test_shipped_models_have_the_published_number_of_parameters(name: str, billions: float, source: str) -> None:
    transformers = pytest.importorskip("transformers")
    from lightning_predict.record.named_models.names import shipped

    config = dict(shipped("hf", name).config)
    architecture = getattr(transformers, config["architectures"][0])
    with torch.device("meta"):
        model = architecture(transformers.AutoConfig.for_model(config.pop("model_type"), **config))
    assert sum(one.numel() for one in model.parameters()) == pytest.approx(1e9 * billions, rel=0.006), source


def test_note_says_which_configurations_are_only_the_defaults_of_a_class() -> None:
    pytest.importorskip("transformers")
    doubt = "(the defaults of its class in transformers, from which the checkpoint's own may differ)"
    for name, is_in_doubt in (("distilbert-base-uncased", True), ("bert-base-uncased", False)):
        note = lp.step_of(f"hf:{name}", length=16).notes[0]
        assert "shipped configuration" in note
        assert (doubt in note) is is_in_doubt


def test_missing_length_is_refused_before_transformers_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_models, "library", lambda name, *, needed_for: pytest.fail(f"imports {name}"))
    with pytest.raises(InvalidArgumentError, match=r"length= is missing: .* for example length=1024\."):
        lp.step_of("hf:gpt2")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lraspp_mobilenet_v3_large", "2 images of 64 x 64"),
        ("r3d_18", "2 videos of 16 frames of 64 x 64"),
        ("resnet18", "2 images of 64 x 64"),
    ],
)
def test_torchvision_trains_classifiers_of_images_pixels_and_videos(name: str, words: str) -> None:
    pytest.importorskip("torchvision")
    trace = lp.step_of(f"torchvision:{name}", batch_size=2, image_size=64)
    assert words in trace.notes[0]
    labels = {tensor.shape for one in trace.operations for tensor in one.inputs if tensor.dtype == "int64"}
    assert (2, 64, 64) in labels if "lraspp" in name else (2,) in labels
    with pytest.raises(InvalidArgumentError, match="classifies no images, pixels or videos"):
        lp.step_of("torchvision:retinanet_resnet50_fpn")


def test_batch_of_one_that_cannot_be_normalized_names_what_works() -> None:
    pytest.importorskip("torchvision")
    with pytest.raises(CaptureError, match="Give batch_size=2 or more"):
        lp.step_of("torchvision:deeplabv3_resnet50", image_size=64)


def test_first_positions_of_roberta_are_those_of_padding(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    own = {"model_type": "roberta", "architectures": ["RobertaForMaskedLM"], "max_position_embeddings": 66}
    (tmp_path / "config.json").write_text(json.dumps(own | small), encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match="length=65 is beyond the 64 positions of"):
        lp.step_of(str(tmp_path), length=65)
    assert "1 sequence of 64 tokens" in lp.step_of(str(tmp_path), length=64).notes[0]


def test_command_line_takes_a_model_name(gpt2: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", gpt2, "--length", "64", "--batch-size", "2", "--gpus", "T4"]) == 0
    out, err = capsys.readouterr()
    heading = out.partition("\n\n")[0].replace("\n  ", " ")
    assert "0.14 M parameters; 2 sequences of 64 tokens; bf16-mixed; AdamW" in heading
    assert re.search(
        r"The 8 most similar published models, for the T4: median error \d+ %, \d+ of \d+ within their interval",
        heading,
    )
    assert err == ""
    assert "\nT4 " in out


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch before 2.9")
def test_muon_multiplies_matrices_in_bfloat16_and_gpus_share_them_under_zero1(gpt2: str) -> None:
    step = lp.step_of(gpt2, batch_size=2, length=64, optimizer="muon")
    products = [one for one in step.operations if one.phase == "optimizer" and one.name in ("aten::mm", "aten::addmm")]
    # 2 blocks of 4 matrices, 5 iterations of 3 products each; the head is tied to the table of words
    assert len(products) == 2 * 4 * 5 * 3
    assert {tensor.dtype for product in products for tensor in product.inputs} == {"bfloat16"}
    whole, shared = (lp.predict(step, ["8xH100"], history=False, strategy=word)["8xH100"] for word in ("ddp", "zero1"))
    assert shared.iteration_seconds < 0.7 * whole.iteration_seconds  # launches of Muon decide this small step
    assert (shared.memory_bytes or 0) < (whole.memory_bytes or 0)


def test_second_answer_by_name_reads_the_recording(
    gpt2: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LIGHTNING_PREDICT_CACHE", str(tmp_path / "cache"))
    saved = tmp_path / "step.json.gz"
    words = ["predict", gpt2, "--length", "64", "--gpus", "T4"]
    assert main([*words, "--save-trace", str(saved)]) == 0
    first = capsys.readouterr().out
    monkeypatch.setattr("lightning_predict.record.named_models.step.step_of", None)
    assert main(words) == 0
    assert capsys.readouterr().out == first
    assert main(["predict", str(saved), "--gpus", "T4"]) == 0
    assert capsys.readouterr().out in first
    monkeypatch.undo()
    monkeypatch.setenv("LIGHTNING_PREDICT_CACHE", str(tmp_path / "cache"))
    (Path(gpt2) / "config.json").write_text(json.dumps(GPT2 | {"n_layer": 3}), encoding="utf-8")
    assert main(words) == 0
    assert "0.19 M parameters" in capsys.readouterr().out  # the configuration changed, so it is recorded anew


def test_bytecode_that_python_writes_meanwhile_leaves_the_recording_valid(
    gpt2: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sources, "_CODE", tmp_path)
    (tmp_path / "named_models").mkdir()
    (tmp_path / "named_models" / "step.py").touch()
    before = sources._cached_file(gpt2, {})
    (tmp_path / "named_models" / "__pycache__").mkdir()
    (tmp_path / "named_models" / "__pycache__" / "step.cpython-313.pyc").touch()
    assert sources._cached_file(gpt2, {}) == before
    os.utime(tmp_path / "named_models" / "step.py", (0, 0))
    assert sources._cached_file(gpt2, {}) != before


def test_batch_of_no_samples_is_refused_by_every_source(gpt2: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", gpt2, "--batch-size", "0", "--length", "64"]) == 2
    assert "--batch-size 0; expected a whole number of at least 1" in capsys.readouterr().err
    assert main(["predict", "example:gpt2", "--batch-size", "0"]) == 2
    assert "--batch-size has no effect on a recorded step" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["advise", "--gpus", "T4,L4"],
        ["trace", "memory", "--gpu", "T4"],
        ["parallel", "--gpus", "8xL4", "--batch-size", "8"],
        ["curve", "--gpus", "8xL4", "--batch-size", "8"],
        ["accuracy", "--gpu", "T4", "--like"],
    ],
    ids=lambda words: words[0],
)
def test_every_command_takes_a_model_by_name(words: list[str], gpt2: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = words.index("memory") + 1 if "memory" in words else len(words) if "--like" in words else 1
    assert main([*words[:place], gpt2, *words[place:], "--length", "64"]) == 0
    assert capsys.readouterr().out


def test_a_model_whose_step_fails_is_named_with_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss() -> torch.Tensor:
        raise RuntimeError("Expected target size [1, 5120], got [1]")

    named = built.NamedStep(model=nn.Linear(2, 2), loss=loss, batch="1 image")
    monkeypatch.setitem(step._BUILDERS, "hf", lambda name, options: named)
    with pytest.raises(
        CaptureError,
        match=r"hf:gpt2 has no training step that runs \(RuntimeError: Expected .*\)\. Record your own step with lp",
    ):
        lp.step_of("hf:gpt2", length=8)
