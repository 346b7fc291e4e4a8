"""Transformer-XL: attention over a remembered segment with relative positions, and one softmax over all words.

Example::

    model = TransformerXl(TRANSFORMER_XL_BASE)
    loss = model(tokens, targets, memories)  # tokens (length, batch); memories (remembered, batch, hidden), one a layer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class TransformerXlConfig:
    """Sizes of a Transformer-XL."""

    layers: int  # Layers
    hidden: int  # Width of a token
    heads: int  # Attention heads
    inner: int  # Width of the perceptrons
    length: int  # Tokens of a segment, and of the segment that is remembered
    dropout: float  # Share of dropped values
    score_dropout: float  # Share of dropped attention
    vocabulary: int = 267735  # Words there are
    head_width: int = 64  # Width of a head


TRANSFORMER_XL_BASE: Final = TransformerXlConfig(
    layers=16, hidden=512, heads=8, inner=2048, length=192, dropout=0.1, score_dropout=0.0
)
TRANSFORMER_XL_LARGE: Final = TransformerXlConfig(
    layers=18, hidden=1024, heads=16, inner=4096, length=256, dropout=0.2, score_dropout=0.2
)


class RelativeAttention(nn.Module):
    """Attention by content and by distance; the latter's scores are shifted row by row."""

    def __init__(self, config: TransformerXlConfig) -> None:
        super().__init__()
        self.heads, self.head_width = config.heads, config.head_width
        width = config.heads * config.head_width
        self.project = nn.Linear(config.hidden, 3 * width, bias=False)
        self.distances = nn.Linear(config.hidden, width, bias=False)
        self.output = nn.Linear(width, config.hidden, bias=False)
        self.score_dropout = nn.Dropout(config.score_dropout)
        self.dropout, self.norm = nn.Dropout(config.dropout), nn.LayerNorm(config.hidden)

    def forward(self, data: Tensor, memory: Tensor, places: Tensor, mask: Tensor, biases: Tensor) -> Tensor:
        """(length, batch, hidden) in and out.

        Args:
            data: The segment.
            memory: Remembered states, (remembered, batch, hidden).
            places: Encoded distances, (remembered + length, 1, hidden).
            mask: True where a token must not look, (length, remembered + length).
            biases: Added to queries by content and by distance, (2, heads, head width).
        """
        length, batch, _ = data.shape
        parts = self.project(torch.cat((memory, data))).chunk(3, dim=-1)
        query = parts[0][-length:].reshape(length, batch, self.heads, self.head_width)
        key, value = (part.reshape(-1, batch, self.heads, self.head_width) for part in parts[1:])
        distance = self.distances(places).view(-1, self.heads, self.head_width)
        by_content = torch.einsum("ibnd,jbnd->bnij", query + biases[0], key)
        by_distance = _shifted(torch.einsum("ibnd,jnd->bnij", query + biases[1], distance))
        scores = (by_content + by_distance) * self.head_width**-0.5
        scores = scores.masked_fill_(mask, -torch.inf)
        shares = self.score_dropout(torch.softmax(scores, dim=-1))
        joined = torch.einsum("bnij,jbnd->ibnd", shares, value).reshape(length, batch, -1)
        result: Tensor = self.norm(data + self.dropout(self.output(joined)))
        return result


def _shifted(scores: Tensor) -> Tensor:
    """Row i moved by i to the left, by padding and viewing: (batch, heads, rows, cols) in and out."""
    batch, heads, rows, cols = scores.shape
    padding = torch.zeros(batch, heads, rows, 1, dtype=scores.dtype, device=scores.device)
    padded = torch.cat((padding, scores), dim=-1).view(batch, heads, cols + 1, rows)
    return padded[:, :, 1:].reshape(batch, heads, rows, cols)


class Layer(nn.Module):
    """Attention and a two-layer perceptron with ReLU, each followed by a norm."""

    def __init__(self, config: TransformerXlConfig) -> None:
        super().__init__()
        self.attention = RelativeAttention(config)
        self.perceptron = nn.Sequential(
            nn.Linear(config.hidden, config.inner),
            nn.ReLU(inplace=True),
            nn.Dropout(config.dropout),
            nn.Linear(config.inner, config.hidden),
            nn.Dropout(config.dropout),
        )
        self.norm = nn.LayerNorm(config.hidden)

    def forward(self, data: Tensor, memory: Tensor, places: Tensor, mask: Tensor, biases: Tensor) -> Tensor:
        """(length, batch, hidden) in and out; the rest as for `RelativeAttention`."""
        data = self.attention(data, memory, places, mask, biases)
        result: Tensor = self.norm(data + self.perceptron(data))
        return result


class TransformerXl(nn.Module):
    """Embedding, layers, and the loss through the tied output projection."""

    def __init__(self, config: TransformerXlConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.word_bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.biases = nn.Parameter(torch.zeros(2, config.heads, config.head_width))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor, targets: Tensor, memories: list[Tensor]) -> Tensor:
        """The mean loss; `memories` are replaced by what this segment leaves."""
        hidden, length = self.config.hidden, len(tokens)
        total = length + len(memories[0])
        data = self.dropout(self.tokens(tokens) * hidden**0.5)
        mask = torch.ones(length, total, dtype=torch.bool, device=tokens.device).triu(1 + len(memories[0]))
        steps = torch.arange(total - 1, -1, -1.0, device=tokens.device, dtype=data.dtype)
        rates = 10000.0 ** -(torch.arange(0.0, hidden, 2.0, device=tokens.device, dtype=data.dtype) / hidden)
        angles = torch.outer(steps, rates)
        places = self.dropout(torch.cat((angles.sin(), angles.cos()), dim=-1)[:, None, :])
        for index, layer in enumerate(self.layers):
            remembered = memories[index]
            memories[index] = torch.cat((remembered, data))[-len(remembered) :].detach()
            data = layer(data, remembered, places, mask, self.biases)
        logits = nn.functional.linear(self.dropout(data).flatten(0, 1), self.tokens.weight, self.word_bias)
        chosen = torch.log_softmax(logits, dim=-1).gather(1, targets.reshape(-1, 1))
        result: Tensor = -chosen.mean()
        return result
