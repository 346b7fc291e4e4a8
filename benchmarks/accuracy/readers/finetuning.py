"""Qwen's published fine-tuning with LoRA.

The README of QwenLM/Qwen (at 03cd81f) tells seconds and memory of an update, eight sequences one by one, of three
models at six lengths on one A100-SXM-80GB: adapters of rank 64 on every layer, all in bfloat16, each block computed
again in the backward pass, FlashAttention 2 (which torch has since 2.2; they ran it with torch 2.0). Nothing was
fitted to these times. We take the page's G as 10^9 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lightning_predict as lp
from benchmarks.accuracy.case import Case, Step
from benchmarks.accuracy.readers.pretraining import with_memory

GPU: Final = "A100-SXM-80GB"
SEQUENCES: Final = 8
LENGTHS: Final = (256, 512, 1024, 2048, 4096, 8192)
VOCABULARY: Final = 151_936
RANK: Final = 64


@dataclass(frozen=True)
class Model:
    """A model of the page."""

    name: str  # As the page calls it
    width: int  # Of a token
    layers: int  # Blocks
    heads: int  # Of attention
    inner: int  # Width between the layers of a block
    seconds: tuple[float, ...]  # Measured time of an update, by `LENGTHS`
    gigabytes: tuple[float, ...]  # Measured memory, by `LENGTHS`


MODELS: Final = (
    Model("1.8B", 2048, 24, 16, 5504, (1.0, 1.0, 1.1, 1.7, 3.3, 6.8), (6.7, 7.4, 8.4, 11.0, 16.2, 21.8)),
    Model("7B", 4096, 32, 32, 11008, (1.2, 1.5, 2.8, 5.2, 10.1, 21.3), (20.1, 20.4, 21.5, 23.8, 29.7, 36.6)),
    Model("14B", 5120, 40, 40, 13696, (1.6, 2.4, 4.4, 8.4, 17.0, 36.0), (34.6, 35.1, 35.3, 37.4, 42.5, 55.2)),
)


class Norm(nn.Module):
    """A root-mean-square norm, written out in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width), requires_grad=False)

    def forward(self, data: Tensor) -> Tensor:
        """Same shape and dtype as `data`."""
        wide = data.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return normed.type_as(data) * self.weight


class Adapted(nn.Module):
    """A frozen layer with two small trainable layers (LoRA)."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)
        self.trained = nn.Sequential(
            nn.Dropout(0.05), nn.Linear(inputs, RANK, bias=False), nn.Linear(RANK, outputs, bias=False)
        )

    def forward(self, data: Tensor) -> Tensor:
        """Data of shape (batch, length, inputs)."""
        result: Tensor = self.frozen(data) + self.trained(data) * 0.25
        return result


class Block(nn.Module):
    """Attention and a gated layer, each behind a norm."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.heads = model.heads
        self.norms = nn.ModuleList(Norm(model.width) for _ in range(2))
        self.project = Adapted(model.width, 3 * model.width, bias=True)
        self.output = Adapted(model.width, model.width)
        self.gate, self.rise = (Adapted(model.width, model.inner) for _ in range(2))
        self.fall = Adapted(model.inner, model.width)

    def forward(self, data: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Same shape as `data`, (batch, length, width)."""
        parts = self.project(self.norms[0](data)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)) for part in parts)
        query, key = (_rotated(part, cosine, sine) for part in (query, key))
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        joined = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        data = data + self.output(joined.transpose(1, 2).flatten(2))
        normed = self.norms[1](data)
        result: Tensor = data + self.fall(self.rise(normed) * functional.silu(self.gate(normed)))
        return result


def _rotated(data: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    wide = data.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cosine + torch.cat((-second, first), dim=-1) * sine).type_as(data)


class Language(nn.Module):
    """The whole model, whose blocks are computed again."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, model.width).requires_grad_(False)
        self.blocks = nn.ModuleList(Block(model) for _ in range(model.layers))
        self.norm = Norm(model.width)
        self.head = nn.Linear(model.width, VOCABULARY, bias=False).requires_grad_(False)
        self.size = model.width // model.heads

    def forward(self, tokens: Tensor) -> Tensor:
        """Loss of tokens of shape (batch, length)."""
        data = self.words(tokens).requires_grad_()
        angles = torch.empty(1, tokens.shape[1], 1, self.size, dtype=torch.float32, device=tokens.device)
        cosine, sine = angles.cos(), angles.sin()
        for block in self.blocks:
            data = checkpoint(block, data, cosine, sine, use_reentrant=False)
        logits = self.head(self.norm(data))[:, :-1].contiguous()
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def recorded(model: Model, length: int) -> lp.Trace:
    """Record a batch of one sequence with its update."""
    with torch.device("meta"):
        network = Language(model).to(torch.bfloat16)
        tokens = torch.zeros(1, length, dtype=torch.long)
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4)

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = network(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return lp.capture(step)


def finetuning_cases(_data: Path) -> Iterator[Case]:
    """Yield time and memory of an update of each model at each length."""
    for model in MODELS:
        for length, seconds, gigabytes in zip(LENGTHS, model.seconds, model.gigabytes, strict=True):
            yield from with_memory(
                {"process": gigabytes * 1e9},
                source=f"Qwen {model.name}",
                model=f"Qwen {model.name} with LoRA, {length:,} tokens",
                gpu=GPU,
                step=Step(name=f"qwen-{model.name}-{length}", record=partial(recorded, model, length)),
                measured=seconds,
                release="2.2",
                strategy=f"ddp,accumulate={SEQUENCES}",
            )
