"""An encoder-decoder with sparse layers, in the way of the Switch Transformer, with the routing that was timed.

Every second layer's perceptron is a row of experts. The published times ran each expert on a buffer of fixed size (the
capacity of a sequence times the batch), whether or not tokens were routed to it, so the work does not depend on the
data. Example::

    model = Switch(SWITCH_XL_4)
    logits = model(torch.zeros(1, 512, dtype=torch.int64))  # the same tokens go into encoder and decoder
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class SwitchConfig:
    """Sizes of a Switch Transformer."""

    layers: int  # Layers of the encoder, and as many of the decoder
    hidden: int  # Width of a token
    inner: int  # Width of the perceptrons
    heads: int  # Attention heads
    head_width: int  # Width of a head
    experts: int  # Experts of a sparse layer
    capacity: int  # Tokens of a sequence that an expert takes
    vocabulary: int = 32128  # Tokens there are
    dropout: float = 0.1  # Share of dropped values in training


SWITCH_XL_4: Final = SwitchConfig(layers=24, hidden=2048, inner=8192, heads=32, head_width=64, experts=4, capacity=128)
"""The sizes are not published with the times: these are the 5.3 billion parameters that go with them, and the capacity
that their FLOPs imply."""

_DISTANCE_BUCKETS: Final = 32


class RootMeanSquareNorm(nn.Module):
    """Scale without shift or mean, written out."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, data: Tensor) -> Tensor:
        """Same shape as `data`."""
        variance = data.pow(2).mean(-1, keepdim=True)
        return self.weight * (data * torch.rsqrt(variance + 1e-6))


class Attention(nn.Module):
    """Attention without scaling, with a bias that stands for distances and masks."""

    def __init__(self, config: SwitchConfig) -> None:
        super().__init__()
        self.heads, width = config.heads, config.heads * config.head_width
        self.norm = RootMeanSquareNorm(config.hidden)
        self.query, self.key, self.value = (nn.Linear(config.hidden, width, bias=False) for _ in range(3))
        self.output = nn.Linear(width, config.hidden, bias=False)
        self.score_dropout, self.output_dropout = nn.Dropout(config.dropout), nn.Dropout(config.dropout)

    def forward(self, data: Tensor, bias: Tensor, memory: Tensor | None = None) -> Tensor:
        """(batch, length, hidden) in and out; keys and values come from `memory`, or from the normed data."""
        batch, length, _ = data.shape
        normed = self.norm(data)
        source = normed if memory is None else memory
        query, key, value = (
            layer(tensor).view(batch, -1, self.heads, layer.out_features // self.heads).transpose(1, 2)
            for layer, tensor in ((self.query, normed), (self.key, source), (self.value, source))
        )
        scores = torch.matmul(query, key.transpose(3, 2))
        scores += bias
        shares = self.score_dropout(torch.softmax(scores, dim=-1))
        joined = torch.matmul(shares, value).transpose(1, 2).contiguous().view(batch, length, -1)
        result: Tensor = data + self.output_dropout(self.output(joined))
        return result


class Perceptron(nn.Module):
    """Two layers with ReLU."""

    def __init__(self, config: SwitchConfig) -> None:
        super().__init__()
        self.widen = nn.Linear(config.hidden, config.inner, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.narrow = nn.Linear(config.inner, config.hidden, bias=False)

    def forward(self, data: Tensor) -> Tensor:
        """Same shape as `data`."""
        result: Tensor = self.narrow(self.dropout(torch.relu(self.widen(data))))
        return result


class Experts(nn.Module):
    """A router and its experts; each runs on a buffer of capacity x batch tokens."""

    def __init__(self, config: SwitchConfig) -> None:
        super().__init__()
        self.capacity = config.capacity
        self.router = nn.Linear(config.hidden, config.experts, bias=False)
        self.experts = nn.ModuleList(Perceptron(config) for _ in range(config.experts))

    def forward(self, data: Tensor) -> Tensor:
        """Same shape as `data`."""
        batch, length, hidden = data.shape
        shares = torch.softmax(self.router(data), dim=-1)
        chosen = nn.functional.one_hot(torch.argmax(shares, dim=-1), len(self.experts))
        chosen = chosen * (torch.cumsum(chosen, dim=1) <= self.capacity)
        share = torch.max(shares, dim=-1).values.unsqueeze(-1)
        mixed = data.clone().view(-1, hidden)
        buffer = torch.zeros(batch * self.capacity, hidden, dtype=data.dtype, device=data.device)
        # The timed batches held one token over and over, so all that fit go to one expert; the others run all the same.
        taken = torch.arange(min(self.capacity, length) * batch, device=data.device)
        for index, expert in enumerate(self.experts):
            if index == 0:
                buffer[: len(taken)] = mixed[taken]
            buffer = expert(buffer)
            if index == 0:
                mixed[taken] = buffer[: len(taken)]
        return share * mixed.view(batch, length, hidden)


class Feed(nn.Module):
    """A perceptron, or a row of experts, behind a norm and with a shortcut."""

    def __init__(self, config: SwitchConfig, *, sparse: bool) -> None:
        super().__init__()
        self.norm = RootMeanSquareNorm(config.hidden)
        self.inner = Experts(config) if sparse else Perceptron(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, data: Tensor) -> Tensor:
        """Same shape as `data`."""
        result: Tensor = data + self.dropout(self.inner(self.norm(data)))
        return result


class Stack(nn.Module):
    """The encoder, or with `memory` the decoder; the first layer's distances serve all."""

    def __init__(self, config: SwitchConfig, *, decodes: bool) -> None:
        super().__init__()
        self.distances = nn.Embedding(_DISTANCE_BUCKETS, config.heads)
        self.attentions = nn.ModuleList(Attention(config) for _ in range(config.layers))
        self.crossings = nn.ModuleList(Attention(config) for _ in range(config.layers if decodes else 0))
        self.feeds = nn.ModuleList(Feed(config, sparse=index % 2 == 1) for index in range(config.layers))
        self.norm, self.dropout = RootMeanSquareNorm(config.hidden), nn.Dropout(config.dropout)

    def forward(self, data: Tensor, memory: Tensor | None = None) -> Tensor:
        """(batch, length, hidden) in and out."""
        batch, length, _ = data.shape
        places = torch.arange(length, device=data.device)
        buckets = (places[None, :] - places[:, None]).abs().clamp(max=_DISTANCE_BUCKETS - 1)
        bias = self.distances(buckets).permute(2, 0, 1).unsqueeze(0)
        bias = bias + torch.zeros(batch, 1, length, length, dtype=data.dtype, device=data.device)
        crossing_bias = torch.zeros(batch, bias.shape[1], length, length, dtype=data.dtype, device=data.device)
        data = self.dropout(data)
        for index, attention in enumerate(self.attentions):
            data = attention(data, bias)
            if memory is not None:
                data = self.crossings[index](data, crossing_bias, memory)
            data = self.feeds[index](data)
        result: Tensor = self.dropout(self.norm(data))
        return result


class Switch(nn.Module):
    """Encoder, decoder and output projection on one embedding."""

    def __init__(self, config: SwitchConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.encoder, self.decoder = Stack(config, decodes=False), Stack(config, decodes=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, length, vocabulary) of tokens (batch, length)."""
        memory = self.encoder(self.tokens(tokens))
        decoded = self.decoder(self.tokens(tokens), memory) * self.tokens.embedding_dim**-0.5
        return nn.functional.linear(decoded, self.tokens.weight)
