"""The PyTorch models of Keras's page on its backends, as its scripts train them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GemmaConfig,
    GemmaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    SamVisionConfig,
)
from transformers.models.sam.modeling_sam import SamVisionEncoder

from benchmarks.accuracy.readers.diffusion import ImageAttention, Norm, image_encoder

RANK: Final = 4


class Adapted(nn.Module):
    """A frozen layer with two small trainable layers (LoRA)."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, RANK, bias=False, dtype=frozen.weight.dtype)
        self.up = nn.Linear(RANK, frozen.out_features, bias=False, dtype=frozen.weight.dtype)

    def forward(self, data: Tensor) -> Tensor:
        """Data of shape (batch, length, inputs)."""
        result: Tensor = self.frozen(data) + self.up(self.down(data)) * 2.0
        return result


class FusedAttention(nn.Module):
    """One head over all positions of an image, in one call, as diffusers has it since torch 2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = Norm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, data: Tensor) -> Tensor:
        """Same shape as `data`, (batch, width, side, side)."""
        normed = self.norm(data).flatten(2).transpose(1, 2)
        query, key, value = (layer(normed).unsqueeze(1) for layer in (self.query, self.key, self.value))
        joined = functional.scaled_dot_product_attention(query, key, value).squeeze(1)
        result: Tensor = data + self.out(joined).transpose(1, 2).unflatten(2, data.shape[2:])
        return result


def _trained(loss: Callable[[], Tensor], parameters: Iterable[nn.Parameter]) -> Callable[[], None]:
    """Return a step of transformers' Trainer."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-5)

    def step() -> None:
        loss().backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _encoder_step(encoder: nn.Module, images: Tensor, target: Tensor) -> Callable[[], None]:
    """Return a step that brings what an encoder says of images nearer to a target."""
    optimizer = torch.optim.Adam(encoder.parameters())

    def step() -> None:
        optimizer.zero_grad()
        functional.mse_loss(encoder(images), target).backward()
        optimizer.step()

    return step


class _Encoded(nn.Module):
    """Segment Anything's encoder, which gives a tensor."""

    def __init__(self, configuration: SamVisionConfig) -> None:
        super().__init__()
        self.encoder = SamVisionEncoder(configuration)

    def forward(self, images: Tensor) -> Tensor:
        """Images of shape (batch, 3, 1024, 1024)."""
        result: Tensor = self.encoder(images).last_hidden_state
        return result


def segment_anything() -> Callable[[], None]:
    """Return a step of the encoder of Segment Anything's largest model, one image, in float32."""
    configuration = SamVisionConfig(
        hidden_size=1280,
        num_hidden_layers=32,
        num_attention_heads=16,
        mlp_dim=5120,
        global_attn_indexes=[7, 15, 23, 31],
    )
    configuration._attn_implementation = "eager"
    return _encoder_step(_Encoded(configuration), torch.zeros(1, 3, 1024, 1024), torch.zeros(1, 256, 64, 64))


def stable_diffusion() -> Callable[[], None]:
    """Return a step of the encoder of Stable Diffusion's images, eight of 512 x 512, in float32."""
    layers = (
        FusedAttention(512) if isinstance(layer, ImageAttention) else layer
        # The last layer is not the encoder's.
        for layer in list(image_encoder())[:-1]
    )
    return _encoder_step(nn.Sequential(*layers), torch.zeros(8, 3, 512, 512), torch.zeros(8, 8, 64, 64))


def bert() -> Callable[[], None]:
    """Return a step of BERT-base, 32 texts of 512 tokens, in float32."""
    configuration = BertConfig(vocab_size=28_996)
    configuration._attn_implementation = "eager"
    model = BertForSequenceClassification(configuration)
    tokens, labels = torch.zeros(32, 512, dtype=torch.long), torch.zeros(32, dtype=torch.long)
    mask = torch.zeros(32, 1, 1, 512)
    return _trained(lambda: model(input_ids=tokens, labels=labels, attention_mask=mask).loss, model.parameters())


def _adapted(model: GemmaForCausalLM | MistralForCausalLM) -> Callable[[], None]:
    """Return a step of a language model, eight texts of 128 tokens, mostly padding."""
    model.to(torch.bfloat16).requires_grad_(False)  # type: ignore[arg-type]
    for layer in model.model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.self_attn, name, Adapted(getattr(layer.self_attn, name)))
    tokens = torch.zeros(8, 128, dtype=torch.long)
    mask = torch.zeros(8, 1, 128, 128, dtype=torch.bfloat16)
    return _trained(
        lambda: model(input_ids=tokens, labels=tokens, attention_mask=mask, use_cache=False).loss, model.parameters()
    )


def gemma() -> Callable[[], None]:
    """Return a step of Gemma 7B."""
    return _adapted(GemmaForCausalLM(GemmaConfig()))


def mistral() -> Callable[[], None]:
    """Return a step of Mistral 7B."""
    return _adapted(MistralForCausalLM(MistralConfig(sliding_window=None)))
