"""Decoder-only transformers as GPT-2 runs in eager mode: product, scale, mask, softmax, dropout, product.

GPT-3 differs by its sizes alone. Example::

    model = Gpt(GPT2_LARGE)  # under `torch.device("meta")` for the full size
    logits = model(torch.zeros(1, 1024, dtype=torch.int64))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class GptConfig:
    """Sizes of a GPT."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int = 50257
    context: int = 1024
    dropout: float = 0.1


GPT2_SMALL: Final = GptConfig(layers=12, hidden=768, heads=12)
GPT2_LARGE: Final = GptConfig(layers=36, hidden=1280, heads=20)
GPT3_XL: Final = GptConfig(layers=24, hidden=3072, heads=24, context=2048)
GPT3_2_7B: Final = GptConfig(layers=32, hidden=2560, heads=32, context=2048)


class TanhGelu(nn.Module):
    """The tanh form of GELU, written out: eight element-wise operations."""

    def forward(self, data: Tensor) -> Tensor:
        """Same shape as `data`."""
        inner = math.sqrt(2 / math.pi) * (data + 0.044715 * torch.pow(data, 3.0))
        return 0.5 * data * (1.0 + torch.tanh(inner))


class Attention(nn.Module):
    """Causal attention, all of its steps apart."""

    mask: Tensor

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.project = nn.Linear(config.hidden, 3 * config.hidden)
        self.output = nn.Linear(config.hidden, config.hidden)
        self.score_dropout = nn.Dropout(config.dropout)
        self.output_dropout = nn.Dropout(config.dropout)
        mask = torch.ones(config.context, config.context, dtype=torch.bool).tril()
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, data: Tensor) -> Tensor:
        """(batch, length, hidden) in and out."""
        batch, length, hidden = data.shape
        parts = self.project(data).split(hidden, dim=2)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        scores = torch.matmul(query, key.transpose(-1, -2))
        scores = scores / torch.full([], math.sqrt(hidden / self.heads), dtype=scores.dtype, device=scores.device)
        lowest = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype, device=scores.device)
        scores = torch.where(self.mask[:length, :length], scores, lowest)
        shares = self.score_dropout(torch.softmax(scores, dim=-1))
        joined = torch.matmul(shares, value).transpose(1, 2).contiguous().view(batch, length, hidden)
        result: Tensor = self.output_dropout(self.output(joined))
        return result


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a layer norm and with a shortcut."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(config.hidden)
        self.attention = Attention(config)
        self.second_norm = nn.LayerNorm(config.hidden)
        self.perceptron = nn.Sequential(
            nn.Linear(config.hidden, 4 * config.hidden),
            TanhGelu(),
            nn.Linear(4 * config.hidden, config.hidden),
            nn.Dropout(config.dropout),
        )

    def forward(self, data: Tensor) -> Tensor:
        """(batch, length, hidden) in and out."""
        data = self.attention(self.first_norm(data)) + data
        result: Tensor = data + self.perceptron(self.second_norm(data))
        return result


class Gpt(nn.Module):
    """Token and position embeddings, blocks, a norm, and the tied output projection."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.positions = nn.Embedding(config.context, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, length, vocabulary) of tokens (batch, length)."""
        places = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        data = self.dropout(self.tokens(tokens) + self.positions(places))
        return nn.functional.linear(self.norm(self.blocks(data)), self.tokens.weight)
