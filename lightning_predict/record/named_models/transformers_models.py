"""Builds Hugging Face `transformers` models on the meta device, with a batch. The model computes its own loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Final

import torch
from torch import Tensor, nn

from lightning_predict.base.checked import shown
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.record.named_models.built import (
    NamedStep,
    counted,
    dtype_of_model,
    library,
    on_meta,
    quantized,
    with_adapters,
)
from lightning_predict.record.named_models.names import ModelName, shipped
from lightning_predict.record.named_models.options import StepOptions

_TEXT_HEADS: Final = ("ForCausalLM", "LMHeadModel", "ForMaskedLM")
"""Suffixes of names of models of text alone, whose batch needs a length."""

_HEADS: Final = (*_TEXT_HEADS, "ForConditionalGeneration", "ForTokenClassification", "MTModel")
"""Suffixes of architecture names whose labels are one vocabulary index per token."""

_CLASSIFIERS: Final = ("ForSequenceClassification", "ForImageClassification", "ForAudioClassification")
"""Suffixes of architecture names whose labels are one class per sample."""

_PAIRS: Final = ("CLIPModel", "SiglipModel")  # Suffixes of names of models that compare texts with images
_POSITIONS: Final = ("max_position_embeddings", "n_positions")  # Keys of the number of positions

_OTHERS: Final = (  # Suffixes of architecture names with a loss of their own
    "ForCTC",
    "ForSemanticSegmentation",
    "ForPreTraining",
    "ForObjectDetection",
    "ForDepthEstimation",
    *_PAIRS,
)

_WRITERS: Final = ("ForConditionalGeneration", "VisionEncoderDecoderModel")
"""Suffixes of names of models that write a text for an image."""

_SECONDS: Final = 10  # Length of a recording for models that read samples of sound, 16,000 a second
_LETTERS: Final = 128  # Letters of such a recording's text
_BETA: Final = 0.1  # Weight of the log-ratios in DPO's loss
_PIXELS: Final = 224  # Height and width of the images of models that accept any: of the ImageNet classifiers among them

_DETECTOR_PIXELS: Final = 800
"""Height and width of the images of detectors, whose shorter side most scripts for COCO scale to 800."""

_SCALE: Final = 20.0  # Scale of cosines in sentence-transformers' loss of pairs


def transformers_step(name: ModelName, options: StepOptions) -> NamedStep:
    """Return a model of transformers with a batch."""
    if options.lora is not None:
        library("peft", needed_for="lora=")  # before slower imports, as the length
    content, source = _configuration(name)
    if str((content.get("architectures") or [""])[0]).endswith(_TEXT_HEADS):
        options.required_length(next((content[key] for key in _POSITIONS if key in content), None))
    transformers = library("transformers", needed_for=name.text)
    config = _config_of(content, transformers, name)
    architecture = _architecture(config, transformers, name)
    config.use_cache = False
    config.apply_spec_augment = False  # masks of a few frames, drawn on the host
    with on_meta(dtype_of_model(options)):
        model = architecture(config)
        inputs, words = _batch(model, config, options, name)
    details = [source]
    if options.checkpointing:
        _enable_checkpointing(model, name)
        details.append("gradient checkpointing")
    details += quantized(model, options)
    model, adapted = with_adapters(model, options)
    details += adapted
    model.train()
    loss = _LOSSES.get(frozenset(inputs), _loss)(model, inputs)
    if "reference" in options.recipes:
        loss, more = _preference_loss(model, inputs, options, lambda: architecture(config), name)
        details.append(more)
    return NamedStep(model=model, loss=loss, batch=words, details=tuple(details))


def _loss(model: nn.Module, inputs: Mapping[str, Any]) -> Callable[[], Tensor]:
    def loss() -> Tensor:
        value: Tensor = model(**inputs).loss
        return value

    return loss


def _loss_of_pairs(model: nn.Module, inputs: Mapping[str, Any]) -> Callable[[], Tensor]:
    """Return sentence-transformers' usual loss: of each text, find the partner among the partners of the batch."""

    def loss() -> Tensor:
        one, other = (nn.functional.normalize(model(**inputs).last_hidden_state.mean(1), dim=-1) for _ in range(2))
        cosines = one @ other.T * _SCALE
        return nn.functional.cross_entropy(cosines, torch.arange(len(cosines), device=cosines.device))

    return loss


def _loss_of_features(model: nn.Module, inputs: Mapping[str, Any]) -> Callable[[], Tensor]:
    """Return a squared loss of what a model makes of images: features, masks or depths."""

    def loss() -> Tensor:
        outputs = model(inputs["pixel_values"])
        values: Tensor = next(outputs[name] for name in _FEATURES if name in outputs)
        return values.float().square().mean()

    return loss


def _loss_of_boxes(model: nn.Module, inputs: Mapping[str, Any]) -> Callable[[], Tensor]:
    """Return a loss of classes and boxes, without the matching, which runs on the host."""

    def loss() -> Tensor:
        outputs = model(inputs["pixel_values"])
        classes: Tensor = outputs.logits.flatten(0, 1).float().log_softmax(-1)
        boxes: Tensor = outputs.pred_boxes.float().abs()
        return boxes.mean() - classes[:, 0].mean()

    return loss


_FEATURES: Final = ("last_hidden_state", "pred_masks", "predicted_depth")

_LOSSES: Final = {  # Losses of models that compute none, by the names in their batch
    frozenset({"input_ids"}): _loss_of_pairs,
    frozenset({"pixel_values", "features"}): _loss_of_features,
    frozenset({"pixel_values", "boxes"}): _loss_of_boxes,
}


def _preference_loss(
    model: Any, inputs: Mapping[str, Any], options: StepOptions, build: Callable[[], Any], name: ModelName
) -> tuple[Callable[[], Tensor], str]:
    """Return DPO's loss of preferred and rejected texts, and a phrase that describes the reference model."""
    if set(inputs) != {"input_ids", "labels"} or inputs["labels"].dim() != 2:
        raise InvalidArgumentError(f"recipe=reference is for models that write text; leave it out for {name.text}.")
    with on_meta(dtype_of_model(options)):
        tokens = torch.zeros((2 * options.batch_size, inputs["input_ids"].shape[1]), dtype=torch.long)
        reference = model if options.lora else build().requires_grad_(False)

    def likelihoods(of: Any) -> Tensor:
        scores = of(input_ids=tokens).logits[:, :-1].log_softmax(-1)
        each: Tensor = scores.gather(-1, tokens[:, 1:, None]).squeeze(-1).sum(-1)
        return each

    def loss() -> Tensor:
        with torch.no_grad(), reference.disable_adapter() if options.lora else nullcontext():
            before = likelihoods(reference)
        preferred, rejected = (likelihoods(model) - before).chunk(2)
        return -nn.functional.logsigmoid(_BETA * (preferred - rejected)).mean()

    words = "the model without adapters" if options.lora else f"a frozen copy in {options.numbers().dtype}"
    return loss, f"DPO of pairs, so twice as many sequences; the reference is {words}"


def _configuration(name: ModelName) -> tuple[Mapping[str, Any], str]:
    """Return the content of the configuration and its origin: given, or shipped."""
    if name.configuration is not None:
        return name.configuration, "configuration as given"
    known = shipped("hf", name.name)
    is_alike = name.name.lower() not in {
        each for alias in known.names for each in (alias.lower(), alias.lower().rpartition("/")[2])
    }
    alike = f" of {known.name}, whose name differs in words for weights only" if is_alike else ""
    doubt = "" if known.doubt is None else f" ({known.doubt})"
    return known.config, f"shipped configuration{alike}{doubt}"


def _config_of(content: Mapping[str, Any], transformers: Any, name: ModelName) -> Any:
    values = {key: value for key, value in content.items() if key not in ("transformers_version", "_name_or_path")}
    kind = values.pop("model_type", None)
    try:
        return transformers.AutoConfig.for_model(kind, **values)
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidArgumentError(
            f"{name.text}: transformers {transformers.__version__} does not read the configuration ({error}). A newer "
            "release may know this kind of model."
        ) from error


def _architecture(config: Any, transformers: Any, name: ModelName) -> Any:
    named = (getattr(config, "architectures", None) or [""])[0]
    architecture = getattr(transformers, named, None) if named else None
    if architecture is None:
        raise InvalidArgumentError(
            f"{name.text}: architectures is {shown(named)}; expected a class of transformers {transformers.__version__}"
            ", for example LlamaForCausalLM. Models with code of their own can be recorded with lp.capture."
        )
    if not named.endswith((*_HEADS, *_CLASSIFIERS, *_OTHERS, "Model")):
        raise InvalidArgumentError(
            f"{name.text}: {named} has no loss that is known here; name a class in architectures that ends in "
            f"{', '.join((*_HEADS, *_CLASSIFIERS, *_OTHERS))}, or record your own step with lp.capture."
        )
    return architecture


def _batch(model: Any, config: Any, options: StepOptions, name: ModelName) -> tuple[dict[str, Any], str]:
    """Return a batch on the meta device, and a text that describes it."""
    batch, reads = options.batch_size, model.main_input_name
    is_classifier = type(model).__name__.endswith(_CLASSIFIERS)
    one_class = torch.zeros((batch,), dtype=torch.long)
    if reads == "pixel_values" and type(model).__name__.endswith(_WRITERS):
        images, words = _images(model, config, options)
        writer = next((getattr(config, part) for part in ("text_config", "decoder") if hasattr(config, part)), config)
        length = options.required_length(getattr(writer, "max_position_embeddings", None))
        _check_length(length, _positions(model, writer), name)
        tokens = torch.zeros((batch, length), dtype=torch.long)
        own = {"input_ids": tokens} if hasattr(config, "text_config") else {}
        return images | own | {"labels": tokens}, f"{words} with {counted(tokens.shape[1], 'token')}"
    if reads == "pixel_values" and type(model).__name__.endswith((*_CLASSIFIERS, *_OTHERS, "Model")):
        return _images(model, config, options)
    if reads == "input_values" and hasattr(config, "num_mel_bins") and is_classifier:
        frames = torch.zeros((batch, config.max_length, config.num_mel_bins))
        return {reads: frames, "labels": one_class}, f"{counted(batch, 'recording')} of {config.max_length:,} frames"
    if reads == "input_values" and type(model).__name__.endswith("ForCTC"):
        sound = torch.zeros((batch, _SECONDS * 16_000))
        words = f"{counted(batch, 'recording')} of {_SECONDS} s with {counted(options.length or _LETTERS, 'letter')}"
        return {reads: sound, "labels": torch.zeros((batch, options.length or _LETTERS), dtype=torch.long)}, words
    if reads == "input_features" and hasattr(config, "max_target_positions"):
        frames = 2 * config.max_source_positions  # the encoder's second convolution has a stride of 2
        length = options.length or config.max_target_positions
        _check_length(length, config.max_target_positions, name)
        sound = torch.zeros((batch, config.num_mel_bins, frames))
        words = f"{counted(batch, 'recording')} of {frames:,} frames with {counted(length, 'token')}"
        return {reads: sound, "labels": torch.zeros((batch, length), dtype=torch.long)}, words
    if reads != "input_ids":
        raise InvalidArgumentError(
            f"{name.text}: {type(model).__name__} reads {reads}, of which no batch is known here. Record your own step "
            "with lp.capture."
        )
    text = getattr(config, "text_config", None) or config
    is_clip = type(model).__name__.endswith(_PAIRS)
    positions = _positions(model, text)
    length = options.length or text.max_position_embeddings if is_clip else options.required_length(positions)
    _check_length(length, positions, name)
    tokens = torch.zeros((batch, length), dtype=torch.long)
    words = f"{counted(batch, 'sequence')} of {counted(length, 'token')}"
    if is_clip:
        images, more = _images(model, config.vision_config, options)
        inputs = {reads: tokens, "pixel_values": images["pixel_values"], "return_loss": True}
        return inputs, f"{more}, each with {counted(length, 'token')}"
    if hasattr(config, "vision_config"):
        words += ", without images"
    if not type(model).__name__.endswith((*_HEADS, *_CLASSIFIERS)):
        return {reads: tokens}, f"{words}, each with a second one as its partner"
    if getattr(config, "is_encoder_decoder", False):
        words += ", as many in the target"
    return {reads: tokens, "labels": one_class if is_classifier else tokens}, words


def _images(model: Any, config: Any, options: StepOptions) -> tuple[dict[str, Tensor], str]:
    """Return a batch of images with their classes: one of each image, one of each pixel, or none for autoencoders."""
    kind, batch = type(model).__name__, options.batch_size
    part = next((getattr(config, name) for name in ("vision_config", "encoder") if hasattr(config, name)), config)
    usual = _DETECTOR_PIXELS if kind.endswith("ForObjectDetection") else _PIXELS
    size = options.image_size or getattr(part, "image_size", None) or usual
    size = size if isinstance(size, int) else min(size)
    inputs: dict[str, Any] = {"pixel_values": torch.zeros((batch, getattr(part, "num_channels", 3), size, size))}
    if kind.endswith(_WRITERS):
        return inputs, f"{counted(batch, 'image')} of {size} x {size}"
    if kind.endswith(("ForObjectDetection", "ForDepthEstimation", "Model")):
        inputs["boxes" if kind.endswith("ForObjectDetection") else "features"] = torch.zeros(())
    elif not kind.endswith("ForPreTraining"):
        shape = (batch, size, size) if kind.endswith("ForSemanticSegmentation") else (batch,)
        inputs["labels"] = torch.zeros(shape, dtype=torch.long)
    return inputs, f"{counted(batch, 'image')} of {size} x {size}"


def _positions(model: nn.Module, text: Any) -> int | None:
    """Return the number of positions of a model: with a padding token, those after its index (RoBERTa)."""
    tables = [table for part, table in model.named_modules() if part.endswith("position_embeddings")]
    padded = [table for table in tables if isinstance(table, nn.Embedding) and table.padding_idx is not None]
    counts = [table.num_embeddings - 1 - (table.padding_idx or 0) for table in padded]
    positions = getattr(text, "max_position_embeddings", None)
    return min(counts) if counts else positions if isinstance(positions, int) else None


def _check_length(length: int, positions: int | None, name: ModelName) -> None:
    """Raise an error if the model has fewer positions than the sequence has tokens."""
    if positions is not None and length > positions:
        raise InvalidArgumentError(
            f"length={length} is beyond the {positions:,} positions of {name.text}; give at most these, or a "
            "config.json with more."
        )


def _enable_checkpointing(model: Any, name: ModelName) -> None:
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise InvalidArgumentError(f"checkpointing: {name.text} has none in transformers; leave it out.")
    settings = {"use_reentrant": False}
    if hasattr(model, "activation_checkpointing_enable"):  # name since transformers 5.23
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=settings)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)
