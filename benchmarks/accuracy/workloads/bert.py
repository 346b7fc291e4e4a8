"""BERT in eager mode, with the heads that were timed: classification, pre-training, answering questions.

Example::

    model = Bert(BERT_LARGE, head="pretraining")
    logits = model(torch.zeros(2, 512, dtype=torch.int64))  # (2, 512, 30522)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

Head = Literal["classification", "pretraining", "questions"]


@dataclass(frozen=True)
class BertConfig:
    """Sizes of a BERT."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int = 30522
    context: int = 512
    dropout: float = 0.1


BERT_BASE: Final = BertConfig(layers=12, hidden=768, heads=12)
BERT_LARGE: Final = BertConfig(layers=24, hidden=1024, heads=16)


class Attention(nn.Module):
    """Attention over both sides with an additive mask, its output projection and norm."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query, self.key, self.value = (nn.Linear(config.hidden, config.hidden) for _ in range(3))
        self.output = nn.Linear(config.hidden, config.hidden)
        self.score_dropout, self.output_dropout = nn.Dropout(config.dropout), nn.Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.hidden, eps=1e-12)

    def forward(self, data: Tensor, mask: Tensor) -> Tensor:
        """(batch, length, hidden) in and out; `mask` is (batch, 1, 1, length), 0 where attended."""
        batch, length, hidden = data.shape
        parts = (layer(data) for layer in (self.query, self.key, self.value))
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(hidden / self.heads)
        shares = self.score_dropout(torch.softmax(scores + mask, dim=-1))
        joined = torch.matmul(shares, value).transpose(1, 2).contiguous().view(batch, length, hidden)
        result: Tensor = self.norm(self.output_dropout(self.output(joined)) + data)
        return result


class Layer(nn.Module):
    """Attention and a two-layer perceptron with erf-GELU, each followed by a layer norm."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.perceptron = nn.Sequential(
            nn.Linear(config.hidden, 4 * config.hidden),
            nn.GELU(),
            nn.Linear(4 * config.hidden, config.hidden),
            nn.Dropout(config.dropout),
        )
        self.norm = nn.LayerNorm(config.hidden, eps=1e-12)

    def forward(self, data: Tensor, mask: Tensor) -> Tensor:
        """(batch, length, hidden) in and out."""
        data = self.attention(data, mask)
        result: Tensor = self.norm(self.perceptron(data) + data)
        return result


class Embeddings(nn.Module):
    """Token, segment and position embeddings, a norm and dropout."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.hidden, padding_idx=0)
        self.positions = nn.Embedding(config.context, config.hidden)
        self.segments = nn.Embedding(2, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=1e-12)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) to (batch, length, hidden)."""
        places = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        data = self.tokens(tokens) + self.segments(torch.zeros_like(tokens)) + self.positions(places)
        result: Tensor = self.dropout(self.norm(data))
        return result


class Bert(nn.Module):
    """The encoder with one head.

    Args:
        config: Sizes.
        head: `classification` pools the first token and gives two classes; `pretraining` gives a logit a word, through
            the tied embedding, and two classes of the pooled pair; `questions` gives two logits a token.
    """

    def __init__(self, config: BertConfig, *, head: Head) -> None:
        super().__init__()
        hidden = config.hidden
        self.head = head
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        if head != "questions":
            self.pooler = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh())
        classes = nn.Linear(hidden, 2)
        self.classifier = nn.Sequential(nn.Dropout(config.dropout), classes) if head == "classification" else classes
        if head == "pretraining":
            self.transform = nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.LayerNorm(hidden, eps=1e-12))
            self.word_bias = nn.Parameter(torch.zeros(config.vocabulary))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of tokens (batch, length): (batch, 2), (batch, length, vocabulary) or (batch, length, 2)."""
        dtype = self.embeddings.tokens.weight.dtype
        mask = torch.ones_like(tokens)[:, None, None, :].to(dtype)
        mask = (1.0 - mask) * torch.finfo(dtype).min
        data = self.embeddings(tokens)
        for layer in self.layers:
            data = layer(data, mask)
        result: Tensor
        if self.head == "questions":
            result = self.classifier(data)
            return result
        pooled = self.pooler(data[:, 0])
        result = self.classifier(pooled)
        if self.head == "pretraining":
            result = nn.functional.linear(self.transform(data), self.embeddings.tokens.weight, self.word_bias)
        return result


class BertAdam(torch.optim.Optimizer):
    """Adam as the first BERTs were fine-tuned in float32: every parameter for itself, one operation after the other.

    Each gradient is clipped alone before it counts, and nothing is fused, so a parameter is read and written some
    thirty times a step. NVIDIA's examples kept it for float32 and took a fused Adam for float16 (their `BertAdam`).
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, lr: float = 3e-5, weight_decay: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient; `closure`, which others ask for the loss, is not called."""
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, lr=group["lr"], weight_decay=group["weight_decay"])

    def _update(self, parameter: nn.Parameter, *, lr: float, weight_decay: float) -> None:
        state = self.state[parameter]
        if not state:
            state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        nn.utils.clip_grad_norm_([parameter], 1.0, foreach=False)
        state["mean"].mul_(0.9).add_(parameter.grad, alpha=0.1)
        state["square"].mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
        update = state["mean"] / (state["square"].sqrt() + 1e-6)
        update += weight_decay * parameter
        parameter.add_(-(lr * update))
