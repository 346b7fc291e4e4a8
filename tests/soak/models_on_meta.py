"""Record models of other libraries on the meta device: `python -m tests.soak.models_on_meta [--only WORD]`.

Each is trained for one step with labels, and with masks, checkpointing or adapters where the name says so. Printed is a
table: operations, step and memory on an A100, notes, or the error. The exit code is 1 if a step raises an error that is
not ours, or has no memory. Needs transformers, timm, torchvision, diffusers and peft; a missing one is named.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import torch
import torch.nn.functional as functional
from torch import nn

import lightning_predict as lp
from lightning_predict.base.units import GIBIBYTE

GPU: Final = "A100-SXM-40GB"
BATCH, LENGTH, CLASSES = 2, 128, 10

Step = Callable[[], object]

_MASKED: Final = (
    "bert roberta distilbert albert electra deberta deberta-v2 mpnet modernbert xlm-roberta convbert".split()
)
_CAUSAL: Final = (
    "gpt2 gptj gpt_neox opt bloom llama mistral qwen2 qwen3 gemma gemma2 phi phi3 falcon olmo2 mamba mixtral qwen2_moe "
    "olmoe deepseek_v3"
).split()
_EXPERTS: Final = frozenset({"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v3", "gpt_oss"})
_SEQUENCES: Final = "t5 bart mbart m2m_100 whisper speech_to_text".split()
_IMAGES: Final = "vit swin convnext beit dinov2 segformer".split()
_SPEECH: Final = "wav2vec2 hubert".split()
_TIMM: Final = "vit_base_patch16_224 resnet50 convnext_tiny efficientnet_b0 swin_tiny_patch4_window7_224".split()
_TORCHVISION: Final = "resnet50 vit_b_16 efficientnet_v2_s".split()
_DETECTORS: Final = (
    "retinanet_resnet50_fpn fcos_resnet50_fpn ssd300_vgg16 fasterrcnn_resnet50_fpn maskrcnn_resnet50_fpn "
    "keypointrcnn_resnet50_fpn"
).split()
_SMALL: Final[dict[str, dict[str, Any]]] = {
    "mixtral": {"num_local_experts": 4, "hidden_size": 512, "intermediate_size": 1024},
    "deepseek_v3": {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2},
    "qwen2_moe": {"num_experts": 8},
    "olmoe": {"num_experts": 8},
    "qwen3_moe": {"num_experts": 8},
    "gpt_oss": {"num_local_experts": 8},
    "convnext": {"hidden_sizes": [96, 192], "depths": [1, 1]},  # two stages
    "swin": {"depths": [1, 1, 1, 1]},
    "segformer": {"depths": [1, 1, 1, 1]},
}
_DEPTHS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")


def _configuration(kind: str, **options: Any) -> Any:
    """Return a configuration of transformers with at most two layers."""
    configuration = import_module("transformers").AutoConfig.for_model(kind, **_SMALL.get(kind, {}), **options)
    for name in _DEPTHS:
        if isinstance(getattr(configuration, name, None), int):
            setattr(configuration, name, 2)
    with suppress(AttributeError):  # some derive it
        configuration.layer_types = configuration.layer_types[:2]
    if getattr(configuration, "is_encoder_decoder", False):
        configuration.decoder_start_token_id = 0
    return configuration


def _model(kind: str, head: str, **options: Any) -> nn.Module:
    automatic = getattr(import_module("transformers"), f"AutoModelFor{head}")
    with torch.device("meta"):
        model: nn.Module = automatic.from_config(_configuration(kind, **options))
    # Some parameters are made on the CPU in spite of the context; experts multiply in 16 bits only.
    return model.to("meta", torch.bfloat16 if kind in _EXPERTS else None).train()


def _numbers(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long, device="meta")


def _trained(model: nn.Module, loss: Callable[[], torch.Tensor]) -> Step:
    """Return a step with AdamW on the trained parameters."""
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _with_labels(model: Any, **inputs: torch.Tensor) -> Step:
    return _trained(model, lambda: model(**inputs).loss)


def _text(kind: str, head: str, *, mask: bool = True, checkpoints: bool = False, adapters: bool = False) -> Step:
    model: Any = _model(kind, head)
    if adapters:
        peft = import_module("peft")
        model = peft.get_peft_model(model.to(torch.bfloat16), peft.LoraConfig(r=8, target_modules="all-linear"))
    if checkpoints:
        model.gradient_checkpointing_enable()
    tokens = _numbers(BATCH, LENGTH)
    masks = {"attention_mask": torch.ones_like(tokens)} if mask else {}
    return _with_labels(model, input_ids=tokens, labels=tokens, **masks)


def _sequences(kind: str, **options: Any) -> Step:
    if kind not in ("whisper", "speech_to_text"):
        return _text(kind, "Seq2SeqLM", **options)
    model: Any = _model(kind, "SpeechSeq2Seq")
    bins, frames = (
        (model.config.num_mel_bins, 3000) if kind == "whisper" else (500, model.config.input_feat_per_channel)
    )
    return _with_labels(
        model, input_features=torch.empty(BATCH, bins, frames, device="meta"), labels=_numbers(BATCH, 64)
    )


def _images(kind: str, *, adapters: bool = False) -> Step:
    if kind == "segformer":
        model: Any = _model(kind, "SemanticSegmentation", num_labels=CLASSES)
        labels = _numbers(BATCH, 224, 224)
    else:
        model, labels = _model(kind, "ImageClassification", num_labels=CLASSES), _numbers(BATCH)
        model.config.problem_type = "single_label_classification"
    if adapters:
        peft = import_module("peft")
        model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules="all-linear"))
    return _with_labels(model, pixel_values=torch.empty(BATCH, 3, 224, 224, device="meta"), labels=labels)


def _speech(kind: str) -> Step:
    model = _model(kind, "CTC", vocab_size=32)
    return _with_labels(model, input_values=torch.empty(BATCH, 32_000, device="meta"), labels=_numbers(BATCH, 20))


def _contrastive(kind: str) -> Step:
    transformers = import_module("transformers")
    with torch.device("meta"):
        model = getattr(transformers, kind)(getattr(transformers, kind.replace("Model", "Config"))()).train()
    size = model.config.vision_config.image_size
    tokens = _numbers(BATCH, model.config.text_config.max_position_embeddings)
    images = torch.empty(BATCH, 3, size, size, device="meta")
    return _trained(model, lambda: model(input_ids=tokens, pixel_values=images, return_loss=True).loss)


def _classified(model: nn.Module) -> Step:
    images, labels = torch.empty(BATCH, 3, 224, 224, device="meta"), _numbers(BATCH)
    return _trained(model.train(), lambda: functional.cross_entropy(model(images), labels))


def _timm(name: str) -> Step:
    with torch.device("meta"):
        return _classified(import_module("timm").create_model(name, num_classes=CLASSES))


def _torchvision(name: str) -> Step:
    with torch.device("meta"):
        return _classified(getattr(import_module("torchvision.models"), name)(num_classes=CLASSES))


def _detector(name: str) -> Step:
    detection = import_module("torchvision.models.detection")
    with torch.device("meta"):
        model = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=2).train()
        images = [torch.empty(3, 320, 320) for _ in range(BATCH)]
        target = {
            "boxes": torch.empty(5, 4),
            "labels": torch.zeros(5, dtype=torch.long),
            "masks": torch.zeros(5, 320, 320, dtype=torch.uint8),
            "keypoints": torch.zeros(5, 17, 3),
        }
    return _trained(model, lambda: torch.stack(list(model(images, [target] * BATCH).values())).sum())


def _denoiser(name: str) -> Step:
    diffusers = import_module("diffusers")
    with torch.device("meta"):
        if name == "AutoencoderKL":
            model = diffusers.AutoencoderKL(block_out_channels=(64,), norm_num_groups=32)
            images = torch.empty(BATCH, 3, 64, 64)
            return _trained(model, lambda: functional.mse_loss(model(images).sample, images))
        noise, times = torch.empty(BATCH, 4, 32, 32), torch.zeros(BATCH, dtype=torch.long)
        if name == "DiTTransformer2DModel":
            model = diffusers.DiTTransformer2DModel(num_layers=2)
            given = {"class_labels": torch.zeros(BATCH, dtype=torch.long)}
        else:
            model = diffusers.UNet2DConditionModel(cross_attention_dim=768)
            given = {"encoder_hidden_states": torch.empty(BATCH, 77, 768)}
    return _trained(model, lambda: model(noise, timestep=times, **given).sample.square().mean())


def _adapted(model: nn.Module, **options: Any) -> Any:
    peft = import_module("peft")
    return peft.get_peft_model(model, peft.LoraConfig(r=8, **({"target_modules": "all-linear"} | options)))


def _headed(kind: str, head: str, *, checkpoints: bool = False, **labels: torch.Tensor) -> Step:
    """Return a step of a model of texts with another head than that for language."""
    model: Any = _model(kind, head)
    model.config.pad_token_id = 1
    if head == "SequenceClassification":
        model.config.problem_type = "single_label_classification"
    if checkpoints:
        model.gradient_checkpointing_enable()
    tokens = _numbers(BATCH, LENGTH)
    return _with_labels(model, input_ids=tokens, attention_mask=torch.ones_like(tokens), **labels)


def _checkpointed_images(kind: str) -> Step:
    model: Any = _model(kind, "ImageClassification", num_labels=CLASSES)
    model.config.problem_type = "single_label_classification"
    model.gradient_checkpointing_enable()
    return _with_labels(model, pixel_values=torch.empty(BATCH, 3, 224, 224, device="meta"), labels=_numbers(BATCH))


def _masked_images(kind: str) -> Step:
    model: Any = _model(kind, "PreTraining")
    return _with_labels(model, pixel_values=torch.empty(BATCH, 3, 224, 224, device="meta"))


def _detected(kind: str) -> Step:
    """Return a step that matches boxes to predictions on the CPU."""
    model: Any = _model(kind, "ObjectDetection", num_labels=CLASSES, use_timm_backbone=False, backbone=None)
    labels = [{"class_labels": _numbers(3), "boxes": torch.empty(3, 4, device="meta")}] * BATCH
    images = torch.empty(BATCH, 3, 320, 320, device="meta")
    return _trained(model, lambda: model(pixel_values=images, labels=labels).loss)


def _depths(kind: str) -> Step:
    model: Any = _model(kind, "DepthEstimation")
    images = torch.empty(BATCH, 3, 384, 384, device="meta")
    return _trained(model, lambda: model(pixel_values=images).predicted_depth.square().mean())


def _sounds(kind: str) -> Step:
    model: Any = _model(kind, "AudioClassification", num_labels=CLASSES)
    return _with_labels(model, input_values=torch.empty(BATCH, 32_000, device="meta"), labels=_numbers(BATCH))


def _whisper(*, adapters: bool = False, checkpoints: bool = False) -> Step:
    model: Any = _model("whisper", "SpeechSeq2Seq")
    features = torch.empty(BATCH, model.config.num_mel_bins, 3000, device="meta")
    model = _adapted(model, target_modules=["q_proj", "v_proj"]) if adapters else model
    if checkpoints:
        model.gradient_checkpointing_enable()
    return _with_labels(model, input_features=features, labels=_numbers(BATCH, 64))


def _routed(kind: str) -> Step:
    """Return a step of a mixture of experts with the loss that balances the experts."""
    model: Any = _model(kind, "CausalLM", output_router_logits=True)
    tokens = _numbers(BATCH, LENGTH)
    return _with_labels(model, input_ids=tokens, labels=tokens, attention_mask=torch.ones_like(tokens))


def combinations() -> Iterator[tuple[str, Callable[[], Step]]]:
    """Yield combinations of a kind of model with labels, masks, checkpointing and adapters, as people train them."""
    one, each = _numbers(BATCH), _numbers(BATCH, LENGTH)
    both = {"checkpoints": True, "adapters": True}
    yield "bert, sentences", lambda: _headed("bert", "SequenceClassification", labels=one)
    yield "roberta, answers", lambda: _headed("roberta", "QuestionAnswering", start_positions=one, end_positions=one)
    yield (
        "deberta-v2, tokens and checkpointing",
        lambda: _headed("deberta-v2", "TokenClassification", labels=each, checkpoints=True),
    )
    yield (
        "modernbert, sentences and checkpointing",
        lambda: _headed("modernbert", "SequenceClassification", labels=one, checkpoints=True),
    )
    yield "electra, LoRA", lambda: _text("electra", "MaskedLM", adapters=True)
    yield "llama, sentences", lambda: _headed("llama", "SequenceClassification", labels=one)
    yield "qwen3, mask, LoRA and checkpointing", lambda: _text("qwen3", "CausalLM", **both)
    yield "phi3, LoRA and checkpointing", lambda: _text("phi3", "CausalLM", **both)
    yield "gemma3_text, mask", lambda: _text("gemma3_text", "CausalLM")
    yield "smollm3, mask and checkpointing", lambda: _text("smollm3", "CausalLM", checkpoints=True)
    yield "gpt2, mask and checkpointing", lambda: _text("gpt2", "CausalLM", checkpoints=True)
    yield "t5, mask and checkpointing", lambda: _sequences("t5", checkpoints=True)
    yield "bart, LoRA and checkpointing", lambda: _sequences("bart", **both)
    yield "pegasus, mask", lambda: _sequences("pegasus")
    yield "vit, checkpointing", lambda: _checkpointed_images("vit")
    yield "swinv2, checkpointing", lambda: _checkpointed_images("swinv2")
    yield "vit_mae, masks at random", lambda: _masked_images("vit_mae")
    yield "detr, boxes matched", lambda: _detected("detr")
    yield "glpn, depths", lambda: _depths("glpn")
    yield "wav2vec2, sounds", lambda: _sounds("wav2vec2")
    yield "wavlm, CTC", lambda: _speech("wavlm")
    yield "whisper, LoRA", lambda: _whisper(adapters=True)
    yield "whisper, checkpointing", lambda: _whisper(checkpoints=True)
    yield "qwen3_moe, LoRA and checkpointing", lambda: _text("qwen3_moe", "CausalLM", **both)
    yield "olmoe, loss of the router", lambda: _routed("olmoe")
    yield "gpt_oss, mask", lambda: _text("gpt_oss", "CausalLM")


def models() -> Iterator[tuple[str, Callable[[], Step]]]:
    """Yield a name and the maker of a step for each model."""
    for kind in _MASKED:
        yield f"{kind}, mask", lambda kind=kind: _text(kind, "MaskedLM")  # type: ignore[misc]
    for kind in _CAUSAL:
        yield f"{kind}, mask", lambda kind=kind: _text(kind, "CausalLM")  # type: ignore[misc]
    options = {"mask": False, "checkpoints": True}
    for kind in ("llama", "bert", "qwen3", "mixtral"):
        head = "MaskedLM" if kind == "bert" else "CausalLM"
        yield f"{kind}, checkpointing", lambda kind=kind, head=head: _text(kind, head, **options)  # type: ignore[misc]
    for kind in ("llama", "gemma2"):
        yield f"{kind}, LoRA", lambda kind=kind: _text(kind, "CausalLM", adapters=True)  # type: ignore[misc]
    yield "llama, LoRA and checkpointing", lambda: _text("llama", "CausalLM", adapters=True, checkpoints=True)
    for kind in _SEQUENCES:
        yield kind, lambda kind=kind: _sequences(kind)  # type: ignore[misc]
    yield "t5, LoRA", lambda: _sequences("t5", adapters=True)
    for kind in _IMAGES:
        yield kind, lambda kind=kind: _images(kind)  # type: ignore[misc]
    yield "vit, LoRA", lambda: _images("vit", adapters=True)
    for kind in _SPEECH:
        yield f"{kind}, CTC", lambda kind=kind: _speech(kind)  # type: ignore[misc]
    for kind in ("CLIPModel", "SiglipModel"):
        yield kind, lambda kind=kind: _contrastive(kind)  # type: ignore[misc]
    for name in _TIMM:
        yield f"timm {name}", lambda name=name: _timm(name)  # type: ignore[misc]
    for name in _TORCHVISION:
        yield f"torchvision {name}", lambda name=name: _torchvision(name)  # type: ignore[misc]
    for name in _DETECTORS:
        yield f"torchvision {name}", lambda name=name: _detector(name)  # type: ignore[misc]
    for name in ("UNet2DConditionModel", "DiTTransformer2DModel", "AutoencoderKL"):
        yield f"diffusers {name}", lambda name=name: _denoiser(name)  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one model: a row of the table, and whether it is as promised."""

    text: str
    is_kept: bool


def outcome_of(make: Callable[[], Step]) -> Outcome:
    """Record and predict one step."""
    try:
        step = make()
    except Exception as error:
        return Outcome(f"not made: {type(error).__name__}: {error}"[:160], is_kept=True)
    try:
        trace = lp.capture(step)
        prediction = lp.predict(trace, [GPU], history=False)[GPU]
    except lp.LightningPredictError as error:
        return Outcome(f"refused: {error}"[:240], is_kept=True)
    except Exception as error:
        return Outcome(f"LEAKS {type(error).__name__}: {error}"[:240], is_kept=False)
    memory = prediction.memory.process
    if memory is None or trace.device != "meta":
        return Outcome(f"NO MEMORY, recorded on {trace.device}", is_kept=False)
    row = f"{len(trace.operations):6,} {1e3 * prediction.iteration_seconds:9.1f} {memory.middle / GIBIBYTE:7.2f}"
    return Outcome(f"{row}  {len(trace.notes)}", is_kept=True)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a name")
    only = parser.parse_args().only
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    print(f"{'model':34} {'ops':>6} {'step ms':>9} {'GiB':>7}  notes, on an {GPU}")
    kept = True
    for name, make in (*models(), *combinations()):
        if only in name:
            begin = time.perf_counter()
            outcome = outcome_of(make)
            kept &= outcome.is_kept
            print(f"{name:34} {outcome.text}  ({time.perf_counter() - begin:.0f} s)", flush=True)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
