"""OPT in eager mode: the query is scaled, the mask is added and then bounded from below.

Example::

    model = Opt(OPT_1_3B)
    logits = model(torch.zeros(2, 2048, dtype=torch.int64))  # (2, 2048, 50272)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

_POSITIONS_BEFORE_THE_FIRST: Final = 2  # The published model keeps two rows of its position table unused


@dataclass(frozen=True)
class OptConfig:
    """Sizes of an OPT."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int = 50272
    context: int = 2048
    dropout: float = 0.1


OPT_1_3B: Final = OptConfig(layers=24, hidden=2048, heads=32)


class Attention(nn.Module):
    """Causal attention on (batch x heads) matrices."""

    def __init__(self, config: OptConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query, self.key, self.value = (nn.Linear(config.hidden, config.hidden) for _ in range(3))
        self.output = nn.Linear(config.hidden, config.hidden)
        self.dropout = nn.Dropout(0.0)  # published with dropout only on the shortcuts

    def forward(self, data: Tensor, mask: Tensor) -> Tensor:
        """(batch, length, hidden) in and out; `mask` is (batch, 1, length, length)."""
        batch, length, hidden = data.shape
        parts = (self.query(data) * (hidden / self.heads) ** -0.5, self.key(data), self.value(data))
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2).contiguous().view(batch * self.heads, length, -1)
            for part in parts
        )
        scores = torch.bmm(query, key.transpose(1, 2)).view(batch, self.heads, length, length) + mask
        lowest = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype, device=scores.device)
        scores = torch.max(scores, lowest).view(batch * self.heads, length, length)
        joined = torch.bmm(self.dropout(torch.softmax(scores, dim=-1)), value)
        joined = joined.view(batch, self.heads, length, -1).transpose(1, 2).reshape(batch, length, hidden)
        result: Tensor = self.output(joined)
        return result


class Layer(nn.Module):
    """Attention and a two-layer perceptron with ReLU, each behind a layer norm and with a shortcut."""

    def __init__(self, config: OptConfig) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(config.hidden)
        self.attention = Attention(config)
        self.second_norm = nn.LayerNorm(config.hidden)
        self.widen = nn.Linear(config.hidden, 4 * config.hidden)
        self.narrow = nn.Linear(4 * config.hidden, config.hidden)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, data: Tensor, mask: Tensor) -> Tensor:
        """(batch, length, hidden) in and out."""
        data = data + self.dropout(self.attention(self.first_norm(data), mask))
        inner = torch.relu(self.widen(self.second_norm(data)))
        result: Tensor = data + self.dropout(self.narrow(inner))
        return result


class Opt(nn.Module):
    """Token and position embeddings, layers, a norm, and the tied output projection."""

    def __init__(self, config: OptConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.hidden, padding_idx=1)
        self.positions = nn.Embedding(config.context + _POSITIONS_BEFORE_THE_FIRST, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, length, vocabulary) of tokens (batch, length)."""
        batch, length = tokens.shape
        places = torch.cumsum(torch.ones_like(tokens), dim=1) + (_POSITIONS_BEFORE_THE_FIRST - 1)
        data = self.tokens(tokens) + self.positions(places)
        lowest = torch.finfo(data.dtype).min
        mask = torch.full((length, length), lowest, device=tokens.device).triu(1)
        mask = (
            mask[None, None]
            .expand(batch, 1, length, length)
            .masked_fill(~torch.ones_like(tokens).bool()[:, None, None], lowest)
        )
        for layer in self.layers:
            data = layer(data, mask)
        return nn.functional.linear(self.norm(data), self.tokens.weight)
