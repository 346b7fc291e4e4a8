"""Llama and what followed it, as torchtitan, nanotron and NeMo pretrain them: bfloat16, updated in float32 copies.

RMS norms, rotary positions, fused causal attention with as many or fewer heads of keys, and a gated perceptron, or
experts of it. GPT-3 as NeMo has it differs by its norms and its perceptron. Routed tokens are even: each expert's
product is one of a batched one. Example::

    trace = llama_trace(LLAMA["llama3-8b"], length=8192, batch=1)

or, to a file of one sample::

    python -m benchmarks.accuracy.workloads.llama llama3-8b 2048 examples/llama3-8b.json.gz
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lightning_predict as lp
from benchmarks.accuracy.workloads.large_language_models import step_with_masters, step_without_masters

Written = Literal["torchtitan", "torchtitan-2025", "torchtitan-2026", "fms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Sizes of a model."""

    layers: int  # Blocks
    hidden: int  # Width of the residual stream
    heads: int  # Heads of the queries
    kv_heads: int  # Heads of the keys and values
    inner: int  # Width of the perceptron, or of each expert
    vocabulary: int  # Number of distinct tokens
    head_width: int | None = None  # Width of a head; None for the stream's share
    is_gated: bool = True  # With a gated perceptron and RMS norms; GPT-3's GELU and layer norms else
    norms_heads: bool = False  # Queries and keys are normed (Qwen3)
    is_tied: bool = False  # The output layer is the embedding
    experts: int = 0  # Experts of a layer; 0 without experts
    active: int = 0  # Experts that a token visits
    rank: int = 0  # Width of the trained adapters (LoRA) of every linear layer of a block; 0 trains all parameters
    # Project whose model code runs: torchtitan's until 2025, IBM's fms until 2024. Both write norms out and rotate in
    # float32, and repeat keys and values. torchtitan fuses norms from 2025, and repeats nothing from 2026, but rotates
    # complex numbers still. None has fused norms and rotates in the dtype of the data.
    written: Written | None = None

    def norm(self, width: int) -> nn.Module:
        """Make a norm of a width."""
        if not self.is_gated:
            return nn.LayerNorm(width)
        return WrittenNorm(width) if self.written in ("torchtitan", "fms") else nn.RMSNorm(width)


def _llama(layers: int, hidden: int, heads: int, kv_heads: int, inner: int, vocabulary: int) -> LlamaConfig:
    return LlamaConfig(layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, inner=inner, vocabulary=vocabulary)


LLAMA: Final[Mapping[str, LlamaConfig]] = {
    "llama-1b": replace(_llama(24, 2048, 32, 32, 4096, 50257), is_tied=True),
    "llama2-7b": _llama(32, 4096, 32, 32, 11008, 32000),
    "llama2-13b": _llama(40, 5120, 40, 40, 13824, 32000),
    "llama2-34b": _llama(48, 8192, 64, 8, 22016, 32000),
    "llama2-70b": _llama(80, 8192, 64, 8, 28672, 32000),
    "internlm-7b": _llama(32, 4096, 32, 32, 11008, 103168),
    "llama3-8b": _llama(32, 4096, 32, 8, 14336, 128256),
    "llama3.2-3b": replace(_llama(28, 3072, 24, 8, 8192, 128256), is_tied=True),
    "llama3-15b": _llama(40, 5120, 40, 8, 17920, 128256),
    "llama3-70b": _llama(80, 8192, 64, 8, 28672, 128256),
    "llama3-70b-12": _llama(12, 8192, 64, 8, 28672, 128256),
    "llama3-175b": _llama(96, 12288, 96, 8, 39680, 128256),
    "llama3-405b": _llama(126, 16384, 128, 8, 53248, 128256),
    "llama3-8b-lora": replace(_llama(32, 4096, 32, 8, 14336, 128256), rank=16),
    "llama3-70b-lora": replace(_llama(80, 8192, 64, 8, 28672, 128256), rank=16),
    "qwen2.5-7b-lora": replace(_llama(28, 3584, 28, 4, 18944, 152064), rank=16),
    "qwen2.5-32b-lora": replace(_llama(64, 5120, 40, 8, 27648, 152064), rank=16),
    "qwen3-8b": replace(_llama(36, 4096, 32, 8, 12288, 151936), norms_heads=True),
    "qwen3-30b-a3b": replace(
        _llama(48, 2048, 32, 4, 768, 151936), norms_heads=True, head_width=128, experts=128, active=8
    ),
    "qwen3-235b-a22b": replace(
        _llama(94, 4096, 64, 4, 1536, 151936), norms_heads=True, head_width=128, experts=128, active=8
    ),
    "gpt-oss-20b": replace(_llama(24, 2880, 64, 8, 2880, 201088), head_width=64, experts=32, active=4),
    "gpt-oss-120b": replace(_llama(36, 2880, 64, 8, 2880, 201088), head_width=64, experts=128, active=4),
    "mixtral-8x7b": replace(_llama(32, 4096, 32, 8, 14336, 32000), experts=8, active=2),
    "grok1-314b": replace(_llama(64, 6144, 48, 8, 32768, 131072), experts=8, active=2),
    "nemotron4-15b": replace(_llama(32, 6144, 48, 8, 24576, 256000), is_gated=False),
    "nemotron4-340b": replace(_llama(96, 18432, 96, 8, 73728, 256000), is_gated=False),
    "gpt3-5b": replace(_llama(24, 4096, 32, 32, 16384, 51200), is_gated=False),
    "gpt3-20b": replace(_llama(44, 6144, 48, 48, 24576, 51200), is_gated=False),
    "gpt3-175b": replace(_llama(96, 12288, 96, 96, 49152, 51200), is_gated=False),
}
"""As their authors publish them; nanotron's model as its table words it, NeMo's GPT-3 by its parameters; models of
Llama 3's form with 15 and 175 billion parameters are KempnerForge's. The one with 12 blocks is SimuMax's. GPT-OSS has
full attention here, where every second block of the real one has a window of 128 tokens."""


class AdaptedLinear(nn.Module):
    """A frozen linear layer with a trained product of two narrow layers (LoRA)."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False)
        self.inward, self.outward = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, data: Tensor) -> Tensor:
        """(.., inputs) in, (.., outputs) out."""
        result: Tensor = self.base(data) + self.outward(self.inward(data))
        return result


def _linear(config: LlamaConfig, inputs: int, outputs: int) -> nn.Module:
    """Make a linear layer of a block, with an adapter if the configuration has a rank."""
    return AdaptedLinear(inputs, outputs, config.rank) if config.rank else nn.Linear(inputs, outputs, bias=False)


class WrittenNorm(nn.Module):
    """An RMS norm of point-wise operations in float32, with a weight in the dtype of the data."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, data: Tensor) -> Tensor:
        """(.., width) in and out."""
        wide = data.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        normed: Tensor = (wide * scale).type_as(data) * self.weight
        return normed


class RotaryAttention(nn.Module):
    """Fused causal attention behind one product for queries, keys and values."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width = config.head_width or config.hidden // config.heads
        self.config, self.width = config, width
        self.query = _linear(config, config.hidden, config.heads * width)
        self.key, self.value = (_linear(config, config.hidden, config.kv_heads * width) for _ in range(2))
        self.output = _linear(config, config.heads * width, config.hidden)
        if config.norms_heads:
            self.query_norm, self.key_norm = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, data: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """(batch, length, hidden) in and out."""
        batch, length, _ = data.shape
        query, key, value = (
            part(data).view(batch, length, -1, self.width) for part in (self.query, self.key, self.value)
        )
        if self.config.norms_heads:
            query, key = self.query_norm(query), self.key_norm(key)
        rotated = _ROTATED[self.config.written]
        query, key = rotated(query, cosine, sine), rotated(key, cosine, sine)
        if self.config.written in ("torchtitan", "torchtitan-2025", "fms"):
            key, value = (
                part.unsqueeze(3).expand(-1, -1, -1, self.config.heads // self.config.kv_heads, -1).flatten(2, 3)
                for part in (key, value)
            )
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        joined = nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=key.shape[1] < query.shape[1]
        )
        result: Tensor = self.output(joined.transpose(1, 2).reshape(batch, length, -1))
        return result


def _rotated(data: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = data.chunk(2, dim=-1)
    return data * cosine + torch.cat((-second, first), dim=-1) * sine


def _rotated_as_complex(data: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Multiply pairs by complex numbers."""
    turns = torch.complex(cosine[..., ::2].float(), sine[..., ::2].float())
    pairs = torch.view_as_complex(data.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(3).type_as(data)


def _rotated_by_matrices(data: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Multiply pairs by matrices of two rows, of which each product is written before the sum."""
    matrices = torch.stack((cosine, sine), dim=-1).float().unflatten(3, (-1, 2))
    pairs = data.float().unflatten(-1, (-1, 2))
    products: Tensor = matrices * pairs.unsqueeze(-2)
    return products.sum(5).flatten(3).type_as(data)


_ROTATED: Final = defaultdict(lambda: _rotated_as_complex, {None: _rotated, "fms": _rotated_by_matrices})


class Perceptron(nn.Module):
    """Gated by SiLU, or GPT-3's."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate = _linear(config, config.hidden, config.inner) if config.is_gated else None
        self.up = _linear(config, config.hidden, config.inner)
        self.down = _linear(config, config.inner, config.hidden)

    def forward(self, data: Tensor) -> Tensor:
        """(.., .., hidden) in and out."""
        if self.gate is None:
            inner = nn.functional.gelu(self.up(data), approximate="tanh")
        else:
            inner = nn.functional.silu(self.gate(data)) * self.up(data)
        result: Tensor = self.down(inner)
        return result


class GroupedProducts(nn.Module):
    """All experts' gated perceptrons, as batched products of evenly routed tokens."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        inward, outward = (config.experts, config.hidden, config.inner), (config.experts, config.inner, config.hidden)
        self.gate, self.up, self.down = (nn.Parameter(torch.zeros(shape)) for shape in (inward, inward, outward))

    def forward(self, data: Tensor) -> Tensor:
        """(experts, tokens of each, hidden) in and out."""
        return torch.bmm(nn.functional.silu(torch.bmm(data, self.gate)) * torch.bmm(data, self.up), self.down)


class Mixture(nn.Module):
    """A router and the experts behind it."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(config.hidden, config.experts, bias=False)
        self.experts = GroupedProducts(config)

    def forward(self, data: Tensor) -> Tensor:
        """(batch, length, hidden) in and out."""
        flat = data.flatten(0, 1)
        weights, chosen = torch.softmax(self.router(flat).float(), dim=-1).topk(self.config.active)
        each = flat.shape[0] * self.config.active // self.config.experts
        order = chosen.flatten().argsort()
        routed = flat[order // self.config.active][: each * self.config.experts]
        results = self.experts(routed.view(self.config.experts, each, -1)).flatten(0, 1)
        results = results * weights.flatten()[order][: len(results), None].to(results.dtype)
        return torch.zeros_like(flat).index_add(0, (order // self.config.active)[: len(results)], results).view_as(data)


class LlamaBlock(nn.Module):
    """Attention and a perceptron, each behind a norm and with a shortcut."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.first_norm, self.second_norm = config.norm(config.hidden), config.norm(config.hidden)
        self.attention = RotaryAttention(config)
        self.perceptron = Mixture(config) if config.experts else Perceptron(config)

    def forward(self, data: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """(batch, length, hidden) in and out."""
        data = data + self.attention(self.first_norm(data), cosine, sine)
        result: Tensor = data + self.perceptron(self.second_norm(data))
        return result


class Llama(nn.Module):
    """Embedding, blocks, a norm and the output layer."""

    def __init__(self, config: LlamaConfig, *, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.blocks = nn.ModuleList(LlamaBlock(config) for _ in range(config.layers))
        self.norm = config.norm(config.hidden)
        self.output = nn.Linear(config.hidden, config.vocabulary, bias=False)
        if config.is_tied:
            self.output.weight = self.tokens.weight

    def forward(self, tokens: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Logits of tokens."""
        data = self.tokens(tokens)
        for block in self.blocks:
            if self.recompute:
                data = checkpoint(block, data, cosine, sine, use_reentrant=False)
            else:
                data = block(data, cosine, sine)
        result: Tensor = self.output(self.norm(data))
        return result


def llama_trace(
    config: LlamaConfig, *, length: int, batch: int, recompute: bool = False, is_all_bfloat16: bool = False
) -> lp.Trace:
    """One step on the meta device, with the given number of samples at once.

    Args:
        config: Its sizes.
        length: Tokens of a sample.
        batch: Samples.
        recompute: With activation checkpointing of each block.
        is_all_bfloat16: So are the optimizer's state and the logits of the loss; else both are in float32.
    """
    width = config.head_width or config.hidden // config.heads
    with torch.device("meta"):
        model = Llama(config, recompute=recompute).to(torch.bfloat16)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not config.rank or "ward.weight" in name)
        tokens = torch.zeros(batch, length, dtype=torch.int64)
        angles = torch.zeros(1, length, 1, width, dtype=torch.bfloat16)

    held: list[Tensor] = []

    def loss() -> Tensor:
        logits = model(tokens, angles, angles)
        if is_all_bfloat16:
            held[:] = [logits]  # a variable of KempnerForge's loop, until the next forward pass ends
        else:
            logits = logits.float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    step = step_without_masters if is_all_bfloat16 else step_with_masters
    return lp.capture(step(model, loss), samples_per_step=batch)


def main(arguments: Sequence[str] | None = None) -> int:
    """Record one sample of a model to a file; the exit code.

    Args:
        arguments: Words of the command line; None takes the process's.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy.workloads.llama")
    parser.add_argument("model", choices=LLAMA)
    parser.add_argument("length", type=int, help="tokens of the sample")
    parser.add_argument("output", help="file to write")
    options = parser.parse_args(arguments)
    llama_trace(LLAMA[options.model], length=options.length, batch=1).save(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
