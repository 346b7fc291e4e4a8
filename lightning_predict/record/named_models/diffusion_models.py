"""Builds denoisers of diffusers on the meta device, with a batch of noised latents and a squared loss.

The autoencoder and the text encoder are not part of the step, because most trainings encode all data before training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_predict.base.checked import shown
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.record.named_models.names import ModelName, shipped
from lightning_predict.record.named_models.options import NamedStep, StepOptions, counted, library, on_meta

CLASSES: Final = ("UNet2DConditionModel", "UNet2DModel", "DiTTransformer2DModel")

CLIP_TOKENS: Final = 77
"""Number of tokens of a prompt in CLIP's text encoder, which all versions of Stable Diffusion use."""

SIZES_OF_AN_IMAGE: Final = 6
"""Number of values that Stable Diffusion XL embeds per image: original size, crop offsets and target size, two each."""


def diffusers_step(name: ModelName, options: StepOptions) -> NamedStep:
    """Return a denoiser of diffusers with a batch of latents.

    Raises:
        InvalidArgumentError: The configuration is unknown, or belongs to another kind of model.
        MissingDependencyError: diffusers is not installed.
    """
    diffusers = library("diffusers", needed_for=name.text)
    if options.lora is not None:
        raise InvalidArgumentError(f"lora={options.lora} is for models of transformers; leave it out for {name.text}.")
    content = shipped("diffusers", name.name).config if name.configuration is None else name.configuration
    kind = content.get("_class_name")
    if kind not in CLASSES:
        raise InvalidArgumentError(
            f"{name.text}: _class_name is {shown(kind)}; expected one of {', '.join(CLASSES)}. Record a step of "
            "others with lp.capture."
        )
    details = ["the denoiser alone"]
    with on_meta(options.dtype):
        model = getattr(diffusers, kind).from_config(dict(content))
        inputs, size = _batch(model, options)
        target = torch.zeros_like(inputs["sample" if "sample" in inputs else "hidden_states"])
    if options.checkpointing:
        model.enable_gradient_checkpointing()
        details.append("gradient checkpointing")
    model.train()
    words = f"{counted(options.batch_size, 'latent')} of {size} x {size}"
    return NamedStep(model=model, loss=_squared_error(model, inputs, target), batch=words, details=tuple(details))


def _batch(model: Any, options: StepOptions) -> tuple[dict[str, Any], int]:
    """Return a batch of noised latents as arguments of the model, and the height of the latents."""
    config, batch = model.config, options.batch_size
    size = config.sample_size if options.image_size is None else options.image_size // _PIXELS_OF_A_LATENT
    latents = torch.zeros((batch, config.in_channels, size, size))
    times = torch.zeros((batch,), dtype=torch.long)
    kind = type(model).__name__
    if kind == "DiTTransformer2DModel":
        return {"hidden_states": latents, "timestep": times, "class_labels": times}, size
    inputs: dict[str, Any] = {"sample": latents, "timestep": times}
    if kind == "UNet2DConditionModel":
        length = options.length or CLIP_TOKENS
        inputs["encoder_hidden_states"] = torch.zeros((batch, length, config.cross_attention_dim))
    if config.get("addition_embed_type") == "text_time":
        embedded = SIZES_OF_AN_IMAGE * config.addition_time_embed_dim
        inputs["added_cond_kwargs"] = {
            "text_embeds": torch.zeros((batch, config.projection_class_embeddings_input_dim - embedded)),
            "time_ids": torch.zeros((batch, SIZES_OF_AN_IMAGE)),
        }
    return inputs, size


_PIXELS_OF_A_LATENT: Final = 8
"""Number of pixels per latent along each edge, in the autoencoders of Stable Diffusion and DiT."""


def _squared_error(model: nn.Module, inputs: Mapping[str, Any], target: Tensor) -> Callable[[], Tensor]:
    channels = target.shape[1]

    def loss() -> Tensor:
        found: Tensor = model(**inputs).sample
        # DiT also predicts a variance, which only other losses train
        return functional.mse_loss(found[:, :channels], target)

    return loss
