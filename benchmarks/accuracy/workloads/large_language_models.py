"""GPTs as large runs train them: MPT under FSDP in bfloat16, and Megatron-DeepSpeed's GPT in float16.

Both keep 16-bit parameters and update float32 copies of them. MPT's attention is one fused kernel; Megatron's is a
product, a softmax, dropout and a product. `recompute` runs each block's forward pass again in the backward pass.
Example::

    trace = mpt_trace("7b", length=2048, batch=12, recompute=True)
    trace = megatron_trace(MegatronConfig(layers=24, hidden=1024, heads=16), batch=16)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lightning_predict as lp


@dataclass(frozen=True, slots=True)
class MptConfig:
    """Sizes of an MPT."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int = 50368


MPT: Final[Mapping[str, MptConfig]] = {  # By the table's name; heads as in llm-foundry's configurations
    "125m": MptConfig(12, 768, 12),
    "350m": MptConfig(24, 1024, 16),
    "760m": MptConfig(24, 1536, 12),
    "1b": MptConfig(24, 2048, 16),
    "3b": MptConfig(32, 2560, 20),
    "7b": MptConfig(32, 4096, 32),
    "13b": MptConfig(40, 5120, 40),
    "30b": MptConfig(48, 7168, 56),
    "70b": MptConfig(80, 8192, 64),
}


@dataclass(frozen=True, slots=True)
class MegatronConfig:
    """Sizes of a Megatron GPT; the vocabulary is GPT-2's, padded to a multiple of 128."""

    layers: int
    hidden: int
    heads: int
    context: int = 1024
    vocabulary: int = 50304
    dropout: float = 0.1


class FusedAttention(nn.Module):
    """Causal attention in one kernel."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(hidden, 3 * hidden)
        self.output = nn.Linear(hidden, hidden)

    def forward(self, data: Tensor) -> Tensor:
        """(batch, length, hidden) in and out."""
        batch, length, hidden = data.shape
        query, key, value = self.project(data).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind()
        joined = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.output(joined.transpose(1, 2).reshape(batch, length, hidden))
        return result


class UnfusedAttention(nn.Module):
    """Causal attention in steps."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(hidden, 3 * hidden)
        self.output = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, data: Tensor) -> Tensor:
        """(length, batch, hidden) in and out."""
        length, batch, hidden = data.shape
        parts = self.project(data).view(length, batch * self.heads, 3, -1).permute(2, 1, 0, 3).unbind()
        query, key, value = parts
        shares = self.dropout(torch.softmax(torch.bmm(query, key.transpose(1, 2)), dim=-1))
        joined = torch.bmm(shares, value).transpose(0, 1).reshape(length, batch, hidden)
        result: Tensor = self.output(joined)
        return result


class GptBlock(nn.Module):
    """Attention and a two-layer perceptron, each behind a layer norm and with a shortcut."""

    def __init__(self, attention: nn.Module, hidden: int, dropout: float) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(hidden)
        self.attention = attention
        self.second_norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.gelu = nn.GELU()
        self.down = nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, data: Tensor) -> Tensor:
        """(.., .., hidden) in and out."""
        data = data + self.dropout(self.attention(self.first_norm(data)))
        result: Tensor = data + self.dropout(self.down(self.gelu(self.up(self.second_norm(data)))))
        return result


class LargeGpt(nn.Module):
    """Token and position embeddings, blocks, a norm, and the tied output projection.

    Args:
        block: Makes a block.
        layers: Blocks.
        hidden: Width.
        vocabulary: Number of distinct tokens.
        context: Positions.
        recompute: Run each block again in the backward pass.
    """

    def __init__(
        self,
        block: Callable[[], nn.Module],
        *,
        layers: int,
        hidden: int,
        vocabulary: int,
        context: int,
        dropout: float,
        recompute: bool,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(context, hidden)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.blocks = nn.ModuleList(block() for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.recompute = recompute

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Logits of tokens at places."""
        data = self.dropout(self.tokens(tokens) + self.positions(places))
        for block in self.blocks:
            data = checkpoint(block, data, use_reentrant=False) if self.recompute else block(data)
        return nn.functional.linear(self.norm(data), self.tokens.weight)


def mpt_trace(name: str, *, length: int, batch: int, recompute: bool) -> lp.Trace:
    """One step of an MPT on the meta device, with the given number of samples at once.

    Args:
        name: A key of `MPT`.
        length: Tokens of a sample.
        batch: Samples.
        recompute: With activation checkpointing of each block.
    """
    config = MPT[name]

    def block() -> nn.Module:
        return GptBlock(FusedAttention(config.hidden, config.heads), config.hidden, 0.0)

    with torch.device("meta"):
        model = LargeGpt(
            block,
            layers=config.layers,
            hidden=config.hidden,
            vocabulary=config.vocabulary,
            context=length,
            dropout=0.0,
            recompute=recompute,
        )
        model.to(torch.bfloat16)
        tokens, places = torch.zeros(batch, length, dtype=torch.int64), torch.zeros(1, length, dtype=torch.int64)

    def loss() -> Tensor:
        return nn.functional.cross_entropy(model(tokens, places).flatten(0, 1), tokens.flatten())

    return lp.capture(step_with_masters(model, loss), samples_per_step=batch)


def megatron_trace(config: MegatronConfig, *, batch: int, recompute: bool = True) -> lp.Trace:
    """One step of a Megatron GPT on the meta device, with the given number of samples at once.

    Args:
        config: Its sizes.
        batch: Samples.
        recompute: Full recomputation of each block.
    """

    def block() -> nn.Module:
        attention = UnfusedAttention(config.hidden, config.heads, config.dropout)
        return GptBlock(attention, config.hidden, config.dropout)

    with torch.device("meta"):
        model = LargeGpt(
            block,
            layers=config.layers,
            hidden=config.hidden,
            vocabulary=config.vocabulary,
            context=config.context,
            dropout=config.dropout,
            recompute=recompute,
        )
        model.to(torch.float16)
        tokens = torch.zeros(config.context, batch, dtype=torch.int64)
        places = torch.zeros(config.context, 1, dtype=torch.int64)

    def loss() -> Tensor:
        return nn.functional.cross_entropy(model(tokens, places).float().flatten(0, 1), tokens.flatten())

    return lp.capture(step_with_masters(model, loss), samples_per_step=batch)


def step_with_masters(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    """Return a step that updates float32 copies of the trained parameters with a fused AdamW, and copies them back.

    Args:
        model: Holds the parameters in 16 bits.
        loss: Runs the forward pass.
    """
    trained = [parameter for parameter in model.train().parameters() if parameter.requires_grad]
    masters = [nn.Parameter(parameter.detach().float()) for parameter in trained]
    optimizer = torch.optim.AdamW(masters, lr=1e-4, fused=True)

    def step() -> None:
        loss().backward()
        for master, parameter in zip(masters, trained, strict=True):
            assert parameter.grad is not None
            master.grad, parameter.grad = parameter.grad.float(), None
        nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, trained, strict=True):
                parameter.copy_(master)

    return step


def step_without_masters(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    """Return a step that updates the parameters themselves with a fused AdamW; arguments as `step_with_masters`."""
    trained = [parameter for parameter in model.train().parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()

    return step
