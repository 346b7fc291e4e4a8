"""Builds image classifiers of timm and torchvision on the meta device, with a batch and a cross-entropy loss."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.record.named_models.built import NamedStep, counted, dtype_of_model, library, on_meta
from lightning_predict.record.named_models.names import ModelName
from lightning_predict.record.named_models.options import StepOptions

_FRAMES: Final = 16  # Frames of a clip, as in torchvision's reference script for video classification


def timm_step(name: ModelName, options: StepOptions) -> NamedStep:
    """Return a model of timm with a batch of images."""
    timm = library("timm", needed_for=name.text)
    _without_lora(name, options)
    own = {} if name.configuration is None else dict(name.configuration.get("model_args") or {})
    if name.configuration is not None and "num_classes" in name.configuration:
        own["num_classes"] = name.configuration["num_classes"]
    base = name.name.removeprefix("timm/").partition(".")[0]  # the part after the point names the weights
    if not timm.is_model(base):
        raise InvalidArgumentError(_unknown(name, timm.list_models(), "timm", timm.__version__))
    has_one_size = timm.get_pretrained_cfg(base).to_dict().get("fixed_input_size")  # as most transformers do
    own |= {"img_size": options.image_size} if options.image_size is not None and has_one_size else {}
    with on_meta(dtype_of_model(options)):
        model = timm.create_model(base, pretrained=False, **own)
    channels, height, width = model.default_cfg["input_size"]
    height, width = (options.image_size or height, options.image_size or width)
    details = []
    if options.checkpointing:
        model.set_grad_checkpointing(True)
        details.append("gradient checkpointing")
    return _classifier(model, (channels, height, width), options, details)


def torchvision_step(name: ModelName, options: StepOptions) -> NamedStep:
    """Return a classifier of torchvision with a batch of images."""
    torchvision = library("torchvision", needed_for=name.text)
    _without_lora(name, options)
    models = torchvision.models
    if name.name not in models.list_models():
        raise InvalidArgumentError(_unknown(name, models.list_models(), "torchvision", torchvision.__version__))
    segmenters, videos = (models.list_models(module=part) for part in (models.segmentation, models.video))
    if name.name not in (*models.list_models(module=models), *segmenters, *videos):
        raise InvalidArgumentError(
            f"{name.text} classifies no images, pixels or videos; only such models can be named, so far. Record your "
            "own step with lp.capture."
        )
    if options.checkpointing:
        raise InvalidArgumentError("checkpointing: models of torchvision have none; leave it out.")
    usual = models.get_model_weights(name.name).DEFAULT.transforms()
    own: dict[str, int | None] = {"weights_backbone": None} if name.name in segmenters else {}
    has_size = name.name.startswith("vit_")
    own |= {"image_size": options.image_size} if has_size and options.image_size else {}
    with on_meta(dtype_of_model(options)):
        model = models.get_model(name.name, weights=None, **own)
    size = options.image_size or (model.image_size if has_size else getattr(usual, "crop_size", usual.resize_size)[0])
    frames = (options.frames or _FRAMES,) if name.name in videos else ()
    return _classifier(model, (3, *frames, size, size), options, [], has_pixels=name.name in segmenters)


def _unknown(name: ModelName, known: Sequence[str], library_name: str, version: str) -> str:
    near = difflib.get_close_matches(name.name, known, n=3)
    meant = f"Did you mean {' or '.join(near)}?" if near else "Check the name."
    return f"{name.text} is not a model of {library_name} {version}. {meant}"


def _without_lora(name: ModelName, options: StepOptions) -> None:
    if options.lora is not None:
        raise InvalidArgumentError(f"lora={options.lora} is for models of transformers; leave it out for {name.text}.")
    if options.length is not None:
        raise InvalidArgumentError(f"length={options.length} is for models that read text; {name.text} reads images.")


def _classifier(
    model: nn.Module, shape: tuple[int, ...], options: StepOptions, details: Sequence[str], *, has_pixels: bool = False
) -> NamedStep:
    """Return a classifier with a batch and a cross-entropy loss, which includes the losses of auxiliary outputs.

    Args:
        model: The model.
        shape: Channels, frames of a video, height, width.
        options: Settings of the step.
        details: Phrases that describe the step.
        has_pixels: Whether each pixel has a class.
    """
    _, *frames, height, width = shape
    with on_meta(dtype_of_model(options)):
        images = torch.zeros((options.batch_size, *shape))
        labels = torch.zeros((options.batch_size, *((height, width) if has_pixels else ())), dtype=torch.long)
    model.train()
    kind = f"video{'s'[: options.batch_size - 1]} of {frames[0]} frames" if frames else None
    words = f"{options.batch_size:,} {kind}" if kind else counted(options.batch_size, "image")
    words += f" of {height} x {width}"
    return NamedStep(model=model, loss=_cross_entropy(model, images, labels), batch=words, details=tuple(details))


def _cross_entropy(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], Tensor]:
    def loss() -> Tensor:
        output = model(images)
        several = output.values() if isinstance(output, Mapping) else output  # a mapping for segmentation
        outputs = (output,) if isinstance(output, Tensor) else tuple(tensor for tensor in several if tensor is not None)
        total = functional.cross_entropy(outputs[0], labels)
        for auxiliary in outputs[1:]:
            total = total + functional.cross_entropy(auxiliary, labels)
        return total

    return loss
