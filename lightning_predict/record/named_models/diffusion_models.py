"""Builds denoisers of diffusers on the meta device, with a batch of noised latents and a squared loss.

By default, latents and text embeddings are computed before training, so that the denoiser is alone on the GPU. With the
recipe `encoders`, the frozen autoencoder and text encoders also run in each step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

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

CLASSES: Final[Mapping[str, int]] = {
    "UNet2DConditionModel": 77,
    "UNet2DModel": 0,
    "DiTTransformer2DModel": 0,
    "SD3Transformer2DModel": 333,
    "FluxTransformer2DModel": 512,
    "Flux2Transformer2DModel": 512,
    "ChromaTransformer2DModel": 512,
    "QwenImageTransformer2DModel": 512,
    "ZImageTransformer2DModel": 512,
    "AuraFlowTransformer2DModel": 256,
    "PixArtTransformer2DModel": 120,
    "SanaTransformer2DModel": 300,
    "WanTransformer3DModel": 512,
    "HunyuanVideoTransformer3DModel": 256,
    "LTXVideoTransformer3DModel": 128,
    "CogVideoXTransformer3DModel": 226,
}
"""Tokens of a text in the pipeline of each class: 77 of CLIP, with 256 of T5 in Stable Diffusion 3; 0 without text."""

ADAPTED: Final = ["to_k", "to_q", "to_v", "to_out.0"]
"""Layers that LoRA adapts in the training scripts of diffusers: the projections of attention."""

SIZES_OF_AN_IMAGE: Final = 6
"""Number of values that Stable Diffusion XL embeds per image: original size, crop offsets and target size, two each."""


def diffusers_step(name: ModelName, options: StepOptions) -> NamedStep:
    """Return a denoiser of diffusers with a batch of latents."""
    diffusers = library("diffusers", needed_for=name.text)
    content = shipped("diffusers", name.name).config if name.configuration is None else name.configuration
    kind = str(content.get("_class_name"))
    if kind not in CLASSES:
        raise InvalidArgumentError(
            f"{name.text}: _class_name is {shown(kind)}; expected one of {', '.join(CLASSES)}. Record a step of "
            "others with lp.capture."
        )
    dtype = dtype_of_model(options)
    with on_meta(dtype):
        model = getattr(diffusers, kind).from_config(dict(content))
        inputs, size = _batch(model, options)
        noised = next(inputs[part] for part in ("sample", "hidden_states", "x") if part in inputs)
        target = torch.zeros_like(torch.stack(noised) if isinstance(noised, list) else noised)
    details = []
    if options.checkpointing:
        model.enable_gradient_checkpointing()
        details.append("gradient checkpointing")
    encode, encoders = _encoders(model, inputs, size, options)
    details.append(encoders)
    details += quantized(model, options)
    model, adapted = with_adapters(model, options, ADAPTED)
    details += adapted
    model.train()
    words = f"{counted(options.batch_size, 'latent')} of {size} x {size}"
    if kind in _VIDEOS:
        usual, _, pixels, edges = _video(model)
        height, width = ((options.image_size or edge) // pixels * pixels for edge in edges)
        frames = options.frames or usual
        words = f"{counted(options.batch_size, 'video')} of {counted(frames, 'frame')} of {height} x {width}"
    return NamedStep(model=model, loss=_squared_error(model, inputs, target, encode), batch=words, details=(*details,))


def _batch(model: Any, options: StepOptions) -> tuple[dict[str, Any], int]:
    """Return a batch of noised latents as arguments of the model, and the height of the latents."""
    config, batch, kind = model.config, options.batch_size, type(model).__name__
    if kind in _VIDEOS:
        return _videos(model, options)
    pixels = _PIXELS.get(kind, 8)
    size = (options.image_size or config.get("sample_size", _FLUX_LATENTS) * pixels) // pixels
    length, times = options.length or CLASSES[kind], torch.zeros((batch,), dtype=torch.long)
    if kind.startswith(("Flux", "Chroma", "QwenImage")):
        return _packed(config, batch, size, length), size
    if kind == "ZImageTransformer2DModel":
        images = torch.zeros((batch, config.in_channels, 1, size, size))
        texts = torch.zeros((batch, length, config.cap_feat_dim))
        return {"x": [*images], "t": torch.zeros((batch,)), "cap_feats": [*texts]}, size
    latents = torch.zeros((batch, config.in_channels, size, size))
    if kind == "DiTTransformer2DModel":
        return {"hidden_states": latents, "timestep": times, "class_labels": times}, size
    inputs: dict[str, Any] = {"sample" if kind.startswith("UNet") else "hidden_states": latents, "timestep": times}
    width = config.get("joint_attention_dim") or config.get("caption_channels") or config.get("cross_attention_dim")
    if length:
        inputs["encoder_hidden_states"] = torch.zeros((batch, length, width))
    if kind == "SD3Transformer2DModel":
        inputs["pooled_projections"] = torch.zeros((batch, config.pooled_projection_dim))
    if kind == "PixArtTransformer2DModel":
        shapes = {"resolution": torch.zeros((batch, 2)), "aspect_ratio": torch.zeros((batch, 1))}
        inputs["added_cond_kwargs"] = shapes if model.use_additional_conditions else dict.fromkeys(shapes)
    if config.get("addition_embed_type") == "text_time":
        embedded = SIZES_OF_AN_IMAGE * config.addition_time_embed_dim
        inputs["added_cond_kwargs"] = {
            "text_embeds": torch.zeros((batch, config.projection_class_embeddings_input_dim - embedded)),
            "time_ids": torch.zeros((batch, SIZES_OF_AN_IMAGE)),
        }
    return inputs, size


def _packed(config: Any, batch: int, size: int, length: int) -> dict[str, Any]:
    """Return a batch of latents as tokens, each of two latents by two, with the places of images and texts."""
    places, axes = (size // 2) ** 2, len(config.axes_dims_rope)
    inputs: dict[str, Any] = {
        "hidden_states": torch.zeros((batch, places, config.in_channels)),
        "timestep": torch.zeros((batch,)),
        "encoder_hidden_states": torch.zeros((batch, length, config.joint_attention_dim)),
    }
    if config.get("zero_cond_t") is not None:  # Qwen-Image
        inputs["img_shapes"] = [[(1, size // 2, size // 2)]] * batch
    else:
        inputs |= {"img_ids": torch.zeros((places, axes)), "txt_ids": torch.zeros((length, axes))}
    if config.get("pooled_projection_dim"):
        inputs["pooled_projections"] = torch.zeros((batch, config.pooled_projection_dim))
    return inputs | ({"guidance": torch.zeros((batch,))} if config.get("guidance_embeds") else {})


_VIDEOS: Final[Mapping[str, tuple[int, int, int, tuple[int, int]]]] = {
    "WanTransformer3DModel": (81, 4, 8, (480, 832)),
    "HunyuanVideoTransformer3DModel": (129, 4, 8, (720, 1280)),
    "LTXVideoTransformer3DModel": (161, 8, 32, (512, 704)),
    "CogVideoXTransformer3DModel": (49, 4, 8, (480, 720)),
}
"""Frames by default, frames and pixels (along each edge) per latent, and default height and width of each pipeline."""


_WAN_5B: Final = (121, 4, 16, (704, 1280))  # The same for Wan 2.2's model of 5 B, whose autoencoder makes 48 channels


def _video(model: Any) -> tuple[int, int, int, tuple[int, int]]:
    return _WAN_5B if model.config.in_channels == 48 else _VIDEOS[type(model).__name__]


def _videos(model: Any, options: StepOptions) -> tuple[dict[str, Any], int]:
    """Return a batch of noised latents of videos as arguments of the model, and the height of the latents."""
    config, batch, kind = model.config, options.batch_size, type(model).__name__
    usual, frames_each, pixels, edges = _video(model)
    height, width = ((options.image_size or edge) // pixels for edge in edges)
    frames, length = ((options.frames or usual) - 1) // frames_each + 1, options.length or CLASSES[kind]
    text_width = config.get("text_dim") or config.get("text_embed_dim") or config.get("caption_channels")
    inputs: dict[str, Any] = {
        "hidden_states": torch.zeros((batch, config.in_channels, frames, height, width)),
        "timestep": torch.zeros((batch,), dtype=torch.long),
        "encoder_hidden_states": torch.zeros((batch, length, text_width)),
    }
    if kind.startswith("CogVideoX"):
        inputs["hidden_states"] = inputs["hidden_states"].transpose(1, 2)
        places = frames * (height // config.patch_size) * (width // config.patch_size)
        angles = torch.zeros((places, config.attention_head_dim))
        inputs |= {"image_rotary_emb": (angles, angles)} if config.use_rotary_positional_embeddings else {}
    if kind.startswith("LTX"):
        inputs["hidden_states"] = inputs["hidden_states"].flatten(2).transpose(1, 2)
        inputs |= {"num_frames": frames, "height": height, "width": width}
    if kind.startswith(("LTX", "Hunyuan")):
        inputs["encoder_attention_mask"] = torch.zeros((batch, length), dtype=torch.long)
    if kind.startswith("Hunyuan"):
        inputs["pooled_projections"] = torch.zeros((batch, config.pooled_projection_dim))
        inputs |= {"guidance": torch.zeros((batch,))} if config.guidance_embeds else {}
    return inputs, height


_PIXELS: Final = {"SanaTransformer2DModel": 32}
"""Number of pixels per latent along each edge where it is not 8, as in the autoencoders of Stable Diffusion."""

_FLUX_LATENTS: Final = 128  # Height of the latents of 1,024 pixels, for models that accept any

_CLIP_L: Final = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
_CLIP_H: Final = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 23, "num_attention_heads": 16}
_CLIP_G: Final = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 20}
_T5_XXL: Final = {"d_model": 4096, "d_kv": 64, "d_ff": 10_240, "num_layers": 24, "num_heads": 64, "vocab_size": 32_128}

_TEXT_ENCODERS: Final[Mapping[tuple[str, int], tuple[Mapping[str, int], ...]]] = {
    ("UNet2DConditionModel", 768): (_CLIP_L,),
    ("UNet2DConditionModel", 1024): (_CLIP_H,),
    ("UNet2DConditionModel", 2048): (_CLIP_L, _CLIP_G),
    ("SD3Transformer2DModel", 4096): (_CLIP_L, _CLIP_G, _T5_XXL),
    ("FluxTransformer2DModel", 4096): (_CLIP_L, _T5_XXL),
    ("PixArtTransformer2DModel", 4096): (_T5_XXL,),
}
"""Text encoders by class and width of its text: of Stable Diffusion 1, 2, XL, 3, FLUX, PixArt."""

_VAE: Final = {  # Autoencoder of all these; only its encoder runs in training
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 2,
}


def _encoders(model: Any, inputs: Mapping[str, Any], size: int, options: StepOptions) -> tuple[Callable[[], None], str]:
    """Return a function that encodes the images and texts of a batch, and a phrase that says where that happens."""
    if "encoders" not in options.recipes:
        return lambda: None, "latents and texts encoded before: no autoencoder and no text encoder on the GPU"
    texts, kind = inputs.get("encoder_hidden_states"), type(model).__name__
    wanted = None if texts is None else _TEXT_ENCODERS.get((kind, texts.shape[-1]))
    if texts is None or wanted is None:
        raise InvalidArgumentError(f"recipe=encoders: those of {kind} are not known; record the step with lp.capture.")
    transformers, diffusers = (library(name, needed_for="recipe=encoders") for name in ("transformers", "diffusers"))
    latents = 4 if kind in ("UNet2DConditionModel", "PixArtTransformer2DModel") else 16
    numbers = options.numbers()
    half = getattr(torch, options.autocast or numbers.dtype)
    with on_meta(half):
        encoders = [_text_encoder(transformers, values).requires_grad_(False) for values in wanted]
        autoencoder = diffusers.AutoencoderKL(**_VAE, latent_channels=latents).requires_grad_(False)
        images = torch.zeros((options.batch_size, 3, 8 * size, 8 * size))
        tokens = [
            torch.zeros((options.batch_size, min(77, texts.shape[1]) if "hidden_size" in values else texts.shape[1]))
            for values in wanted
        ]

    def encode() -> None:
        with torch.no_grad():
            autoencoder.encode(images).latent_dist.sample()
            for encoder, words in zip(encoders, tokens, strict=True):
                encoder(words.long())

    clips = sum("hidden_size" in values for values in wanted)
    words = f"{counted(clips, 'CLIP text encoder')}{' and T5-XXL' if len(wanted) > clips else ''}"
    return encode, f"frozen autoencoder and {words} in {str(half).removeprefix('torch.')} in each step"


def _text_encoder(transformers: Any, values: Mapping[str, int]) -> Any:
    if "hidden_size" in values:
        return transformers.CLIPTextModel(transformers.CLIPTextConfig(**values))
    return transformers.T5EncoderModel(transformers.T5Config(**values, feed_forward_proj="gated-gelu"))


def _squared_error(
    model: nn.Module, inputs: Mapping[str, Any], target: Tensor, encode: Callable[[], None]
) -> Callable[[], Tensor]:
    def loss() -> Tensor:
        encode()
        output = model(**inputs).sample
        sample: Tensor = torch.stack(output) if isinstance(output, list) else output
        # DiT and PixArt also predict a variance, which only other losses train; inpainting reads more than it predicts
        channels = min(sample.shape[1], target.shape[1])
        return functional.mse_loss(sample[:, :channels].float(), target[:, :channels].float())

    return loss
