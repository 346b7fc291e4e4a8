"""Record models of other libraries on the meta device: `python -m tests.soak.models_on_meta [--only WORD]`.

Each is trained for one step with labels, and with masks, checkpointing or adapters where the name says so. Printed is a
table: operations, step and memory on an A100, notes, or the error. The exit code is 1 if a step raises an error that is
not ours, or has no memory. Needs transformers, timm, torchvision, diffusers and peft; a missing one is named.
"""

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
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

_EXPERTS: Final = frozenset({"mixtral", "qwen3_moe", "olmoe", "deepseek_v3", "gpt_oss"})
_SMALL: Final[dict[str, dict[str, Any]]] = {
    "mixtral": {"num_local_experts": 4, "hidden_size": 512, "intermediate_size": 1024},
    "deepseek_v3": {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 8},
    "qwen3_moe": {"num_experts": 8},
    "gpt_oss": {"num_local_experts": 8},
    "convnext": {"hidden_sizes": [96, 192], "depths": [1, 1]},  # two stages
    "swin": {"depths": [1, 1, 1, 1]},
    "segformer": {"depths": [1, 1, 1, 1]},
}
_DEPTHS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")


def _model(kind: str, head: str, **options: Any) -> Any:
    """Return a model of transformers with at most two layers."""
    transformers = import_module("transformers")
    configuration = transformers.AutoConfig.for_model(kind, **_SMALL.get(kind, {}), **options)
    for name in _DEPTHS:
        if isinstance(getattr(configuration, name, None), int):
            setattr(configuration, name, 2)
    with suppress(AttributeError):  # some derive it
        configuration.layer_types = configuration.layer_types[:2]
    if getattr(configuration, "is_encoder_decoder", False):
        configuration.decoder_start_token_id = 0
    with torch.device("meta"):
        model = getattr(transformers, f"AutoModelFor{head}").from_config(configuration)
    if "Classification" in head:
        model.config.problem_type = "single_label_classification"
    if head == "SequenceClassification":
        model.config.pad_token_id = 1
    # Some parameters are made on the CPU in spite of the context; experts multiply in 16 bits only.
    return model.to("meta", torch.bfloat16 if kind in _EXPERTS else None).train()


def _numbers(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long, device="meta")


def _images(side: int = 224) -> torch.Tensor:
    return torch.empty(BATCH, 3, side, side, device="meta")


def _trained(model: nn.Module, loss: Callable[[], torch.Tensor]) -> Step:
    """Return a step with AdamW on the trained parameters."""
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _inputs(kind: str, head: str, model: Any) -> dict[str, Any]:
    """Return the inputs and labels of a model of transformers, by the head."""
    tokens = _numbers(BATCH, LENGTH)
    words = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    match head:
        case "MaskedLM" | "CausalLM" | "Seq2SeqLM" | "TokenClassification":
            return words | {"labels": tokens}
        case "SequenceClassification":
            return words | {"labels": _numbers(BATCH)}
        case "QuestionAnswering":
            return words | {"start_positions": _numbers(BATCH), "end_positions": _numbers(BATCH)}
        case "SpeechSeq2Seq":
            whisper = kind == "whisper"
            sizes = (model.config.num_mel_bins, 3000) if whisper else (500, model.config.input_feat_per_channel)
            return {"input_features": torch.empty(BATCH, *sizes, device="meta"), "labels": _numbers(BATCH, 64)}
        case "CTC" | "AudioClassification":
            labels = _numbers(BATCH, 20) if head == "CTC" else _numbers(BATCH)
            return {"input_values": torch.empty(BATCH, 32_000, device="meta"), "labels": labels}
        case "SemanticSegmentation":
            return {"pixel_values": _images(), "labels": _numbers(BATCH, 224, 224)}
        case "ObjectDetection":  # matches boxes to predictions on the CPU
            boxes = {"class_labels": _numbers(3), "boxes": torch.empty(3, 4, device="meta")}
            return {"pixel_values": _images(320), "labels": [boxes] * BATCH}
        case "ImageClassification":
            return {"pixel_values": _images(), "labels": _numbers(BATCH)}
        case _:  # PreTraining
            return {"pixel_values": _images()}


def _of_transformers(kind: str, head: str, *how: str, **options: Any) -> Step:
    """Return a step of a model of transformers: `how` may have "LoRA", "checkpointing" and "no mask"."""
    model = _model(kind, head, **options)
    inputs = _inputs(kind, head, model)
    if "no mask" in how:
        del inputs["attention_mask"]
    if "LoRA" in how:
        peft = import_module("peft")
        targets: Any = ["q_proj", "v_proj"] if kind == "whisper" else "all-linear"
        model = peft.get_peft_model(model.to(torch.bfloat16), peft.LoraConfig(r=8, target_modules=targets))
        inputs = {
            name: value.to(torch.bfloat16) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
            for name, value in inputs.items()
        }
    if "checkpointing" in how:
        model.gradient_checkpointing_enable()
    return _trained(model, lambda: model(**inputs).loss)


def _contrastive(kind: str) -> Step:
    transformers = import_module("transformers")
    with torch.device("meta"):
        model = getattr(transformers, kind)(getattr(transformers, kind.replace("Model", "Config"))()).train()
    tokens = _numbers(BATCH, model.config.text_config.max_position_embeddings)
    images = _images(model.config.vision_config.image_size)
    return _trained(model, lambda: model(input_ids=tokens, pixel_values=images, return_loss=True).loss)


def _classifier(library: str, name: str) -> Step:
    with torch.device("meta"):
        if library == "timm":
            model = import_module("timm").create_model(name, num_classes=CLASSES)
        else:
            model = getattr(import_module("torchvision.models"), name)(num_classes=CLASSES)
    return _trained(model.train(), lambda: functional.cross_entropy(model(_images()), _numbers(BATCH)))


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
            model, given = diffusers.DiTTransformer2DModel(num_layers=2), {"class_labels": _numbers(BATCH)}
        else:
            model = diffusers.UNet2DConditionModel(cross_attention_dim=768)
            given = {"encoder_hidden_states": torch.empty(BATCH, 77, 768)}
    return _trained(model, lambda: model(noise, timestep=times, **given).sample.square().mean())


_HEADS: Final[dict[str, str]] = {
    "MaskedLM": "bert roberta distilbert electra deberta-v2 modernbert",
    "CausalLM": "gpt2 gptj bloom llama mistral qwen3 gemma2 gemma3_text phi3 falcon mamba mixtral gpt_oss deepseek_v3",
    "Seq2SeqLM": "t5 bart pegasus m2m_100",
    "SpeechSeq2Seq": "whisper speech_to_text",
    "ImageClassification": "vit swin convnext beit dinov2",
    "SemanticSegmentation": "segformer",
    "CTC": "wav2vec2 hubert wavlm",
    "AudioClassification": "wav2vec2",
    "SequenceClassification": "bert llama",
    "QuestionAnswering": "roberta",
    "ObjectDetection": "detr",
    "PreTraining": "vit_mae",
}
_COMBINED: Final = (
    ("llama", "CausalLM", "no mask", "checkpointing"),
    ("bert", "MaskedLM", "no mask", "checkpointing"),
    ("mixtral", "CausalLM", "no mask", "checkpointing"),
    ("deberta-v2", "TokenClassification", "checkpointing"),
    ("modernbert", "SequenceClassification", "checkpointing"),
    ("llama", "CausalLM", "LoRA"),
    ("electra", "MaskedLM", "LoRA"),
    ("t5", "Seq2SeqLM", "LoRA"),
    ("vit", "ImageClassification", "LoRA"),
    ("vit", "ImageClassification", "checkpointing"),
    ("whisper", "SpeechSeq2Seq", "checkpointing"),
    ("llama", "CausalLM", "LoRA", "checkpointing"),
    ("qwen3_moe", "CausalLM", "LoRA", "checkpointing"),
    ("bart", "Seq2SeqLM", "LoRA", "checkpointing"),
)
_CLASSIFIERS: Final = {
    "timm": "vit_base_patch16_224 resnet50 convnext_tiny efficientnet_b0 swin_tiny_patch4_window7_224",
    "torchvision": "resnet50 vit_b_16 efficientnet_v2_s",
}
_DETECTORS: Final = "retinanet fcos fasterrcnn maskrcnn keypointrcnn"


def models() -> Iterator[tuple[str, Callable[[], Step]]]:
    """Yield a name and the maker of a step for each model."""
    options: dict[str, dict[str, Any]] = {
        "ImageClassification": {"num_labels": CLASSES},
        "SemanticSegmentation": {"num_labels": CLASSES},
        "AudioClassification": {"num_labels": CLASSES},
        "CTC": {"vocab_size": 32},
        "ObjectDetection": {"num_labels": CLASSES, "use_timm_backbone": False, "backbone": None},
    }
    every = [(kind, head) for head, kinds in _HEADS.items() for kind in kinds.split()]
    for kind, head, *how in (*every, *_COMBINED):
        name = ", ".join((kind, head, *how))
        yield name, partial(_of_transformers, kind, head, *how, **options.get(head, {}))
    # The loss that balances the experts.
    yield "olmoe, loss of the router", partial(_of_transformers, "olmoe", "CausalLM", output_router_logits=True)
    for kind in ("CLIPModel", "SiglipModel"):
        yield kind, partial(_contrastive, kind)
    for library, names in _CLASSIFIERS.items():
        for name in names.split():
            yield f"{library} {name}", partial(_classifier, library, name)
    for name in (*(f"{detector}_resnet50_fpn" for detector in _DETECTORS.split()), "ssd300_vgg16"):
        yield f"torchvision {name}", partial(_detector, name)
    for name in ("UNet2DConditionModel", "DiTTransformer2DModel", "AutoencoderKL"):
        yield f"diffusers {name}", partial(_denoiser, name)


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
    for name, make in models():
        if only in name:
            begin = time.perf_counter()
            outcome = outcome_of(make)
            kept &= outcome.is_kept
            print(f"{name:34} {outcome.text}  ({time.perf_counter() - begin:.0f} s)", flush=True)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
