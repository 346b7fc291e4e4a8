"""GNMT v2: LSTM encoder and decoder with additive attention, as in MLPerf and NVIDIA's examples.

Example::

    model = Gnmt(GNMT)
    logits = model(torch.zeros(25, 4, dtype=torch.int64), torch.zeros(25, 4, dtype=torch.int64))  # (25, 4, 31800)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class GnmtConfig:
    """Sizes of a GNMT."""

    hidden: int
    layers: int
    vocabulary: int
    dropout: float = 0.2


GNMT: Final = GnmtConfig(hidden=1024, layers=4, vocabulary=31800)


class AdditiveAttention(nn.Module):
    """Normalised Bahdanau attention: a score is w · tanh(query + key)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.direction = nn.Parameter(torch.rand(hidden))
        self.scale = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Context (batch, targets, hidden) of queries (batch, targets, hidden) over keys (batch, sources, hidden)."""
        summed = self.query(queries).unsqueeze(2) + self.key(keys).unsqueeze(1) + self.bias
        scores = torch.tanh(summed) @ (self.direction / self.direction.norm() * self.scale)
        return torch.bmm(torch.softmax(scores, dim=-1), keys)


class Encoder(nn.Module):
    """A bidirectional layer and more of one direction, with shortcuts from the third on."""

    def __init__(self, config: GnmtConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.first = nn.LSTM(hidden, hidden, bidirectional=True)
        self.second = nn.LSTM(2 * hidden, hidden)
        self.others = nn.ModuleList(nn.LSTM(hidden, hidden) for _ in range(config.layers - 2))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, data: Tensor) -> Tensor:
        """(steps, batch, hidden) in and out."""
        data, _ = self.first(self.dropout(data))
        data, _ = self.second(self.dropout(data))
        for layer in self.others:
            inner, _ = layer(self.dropout(data))
            data = inner + data
        return data


class Decoder(nn.Module):
    """A first layer whose output asks the encoder; the context goes into every other layer."""

    def __init__(self, config: GnmtConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.first = nn.LSTM(hidden, hidden)
        self.attention = AdditiveAttention(hidden)
        self.others = nn.ModuleList(nn.LSTM(2 * hidden, hidden) for _ in range(config.layers - 1))
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(hidden, config.vocabulary)

    def forward(self, data: Tensor, memory: Tensor) -> Tensor:
        """Logits (steps, batch, vocabulary) of inputs and memory, both (steps, batch, hidden)."""
        data, _ = self.first(self.dropout(data))
        context = self.attention(data.transpose(0, 1), memory.transpose(0, 1)).transpose(0, 1)
        for index, layer in enumerate(self.others):
            inner, _ = layer(torch.cat((self.dropout(data), context), dim=2))
            data = inner if index == 0 else inner + data
        result: Tensor = self.classifier(data)
        return result


class Gnmt(nn.Module):
    """Encoder and decoder on one embedding."""

    def __init__(self, config: GnmtConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.hidden, padding_idx=0)
        self.encoder, self.decoder = Encoder(config), Decoder(config)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits (target steps, batch, vocabulary) of tokens (steps, batch)."""
        result: Tensor = self.decoder(self.tokens(target), self.encoder(self.tokens(source)))
        return result
