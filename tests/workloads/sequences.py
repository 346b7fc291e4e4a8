"""Sequence models: the Transformer of 2017, a Llama-style decoder, a mixture of experts.

Example::

    logits = Llama(layers=2, hidden=32, heads=4, kv_heads=2, inner=64, vocabulary=100)(tokens)
"""

import torch
from torch import Tensor, nn


class Transformer(nn.Module):
    """Encoder and decoder with one embedding, which is the output projection, too."""

    def __init__(self, *, layers: int, hidden: int, heads: int, inner: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        sizes = {"d_model": hidden, "nhead": heads, "dim_feedforward": inner, "batch_first": True}
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(**sizes) for _ in range(layers))  # type: ignore[arg-type]
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(**sizes) for _ in range(layers))  # type: ignore[arg-type]

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits (batch, target length, vocabulary)."""
        memory, data = self._embedded(source), self._embedded(target)
        for layer in self.encoder:
            memory = layer(memory)
        length = target.shape[1]
        mask = torch.full((length, length), -torch.inf, device=target.device).triu(1)
        for layer in self.decoder:
            data = layer(data, memory, tgt_mask=mask)
        return nn.functional.linear(data, self.tokens.weight)

    def _embedded(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens.embedding_dim
        places = torch.arange(tokens.shape[1], device=tokens.device)[:, None]
        angles = places * 10000.0 ** (-torch.arange(0, hidden, 2, device=tokens.device) / hidden)
        result: Tensor = self.tokens(tokens) * hidden**0.5 + torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
        return result


class GroupedAttention(nn.Module):
    """Causal attention with rotary positions; several query heads share one head of keys and values."""

    def __init__(self, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, width = heads, kv_heads, hidden // heads
        self.query, self.output = (nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(hidden, kv_heads * width, bias=False) for _ in range(2))

    def forward(self, data: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        batch, length, hidden = data.shape
        query = self.query(data).view(batch, length, self.heads, -1).transpose(1, 2)
        key, value = (
            layer(data).view(batch, length, self.kv_heads, -1).transpose(1, 2) for layer in (self.key, self.value)
        )
        query, key = (_rotated(part, cosine, sine) for part in (query, key))
        joined = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        result: Tensor = self.output(joined.transpose(1, 2).reshape(batch, length, hidden))
        return result


def _rotated(data: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = data.chunk(2, dim=-1)
    return data * cosine + torch.cat((-second, first), dim=-1) * sine


class GatedPerceptron(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate, self.widen = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.narrow = nn.Linear(inner, hidden, bias=False)

    def forward(self, data: Tensor) -> Tensor:
        result: Tensor = self.narrow(nn.functional.silu(self.gate(data)) * self.widen(data))
        return result


class LlamaLayer(nn.Module):
    """Grouped attention and a gated perceptron, each behind an RMS norm and with a shortcut."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, inner: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.attention = GroupedAttention(hidden, heads, kv_heads)
        self.perceptron = GatedPerceptron(hidden, inner)

    def forward(self, data: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        data = data + self.attention(self.first_norm(data), cosine, sine)
        result: Tensor = data + self.perceptron(self.second_norm(data))
        return result


class Llama(nn.Module):
    """A decoder of such layers, with an output projection of its own."""

    def __init__(self, *, layers: int, hidden: int, heads: int, kv_heads: int, inner: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(vocabulary, hidden), nn.RMSNorm(hidden)
        self.layers = nn.ModuleList(LlamaLayer(hidden, heads, kv_heads, inner) for _ in range(layers))
        self.classifier = nn.Linear(hidden, vocabulary, bias=False)
        self.head_width = hidden // heads

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, length, vocabulary)."""
        half = torch.arange(0, self.head_width, 2, device=tokens.device) / self.head_width
        angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device), 500000.0**-half)
        angles = torch.cat((angles, angles), dim=-1)
        data, cosine, sine = self.tokens(tokens), angles.cos(), angles.sin()
        for layer in self.layers:
            data = layer(data, cosine, sine)
        result: Tensor = self.classifier(self.norm(data))
        return result


class ExpertLayer(nn.Module):
    """A mixture of gated perceptrons in which each expert chooses its tokens, so that shapes are fixed."""

    def __init__(self, *, hidden: int, inner: int, experts: int, experts_per_token: int) -> None:
        super().__init__()
        self.router = nn.Linear(hidden, experts, bias=False)
        self.experts = nn.ModuleList(GatedPerceptron(hidden, inner) for _ in range(experts))
        self.experts_per_token = experts_per_token

    def forward(self, data: Tensor) -> Tensor:
        """Same shape as `data`, (batch, length, hidden)."""
        flat = data.flatten(0, 1)
        shares = torch.softmax(self.router(flat), dim=-1)
        capacity = len(flat) * self.experts_per_token // len(self.experts)
        weights, chosen = torch.topk(shares.t(), capacity, dim=1)
        mixed = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            mixed = mixed.index_add(0, chosen[index], expert(flat[chosen[index]]) * weights[index, :, None])
        return mixed.view_as(data)
