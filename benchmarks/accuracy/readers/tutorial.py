"""The steps of "Let's reproduce GPT-2 (124M)".

Karpathy's lecture of June 2024 trains GPT-2 on one A100-SXM-80GB, 16 sequences of 1,024 tokens a step, and changes one
thing at a time; the chapters of the video carry the time of a step. Nothing was fitted to these times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import lightning_predict as lp
from benchmarks.accuracy.case import Case, Step
from benchmarks.accuracy.workloads.recorded import tf32

GPU: Final = "A100-SXM-80GB"
SEQUENCES: Final = 16
TOKENS: Final = 1024
WIDTH: Final = 768
HEADS: Final = 12


@dataclass(frozen=True)
class Chapter:
    """Changes of the lecture up to this row, and the time of a step."""

    words: str  # The change
    milliseconds: int  # Measured time of a step
    tf32: bool = True  # `torch.set_float32_matmul_precision("high")`
    bfloat16: bool = True  # Autocast in the forward pass
    compiled: bool = False  # `torch.compile(model)`
    fused: bool = False  # One kernel for attention
    vocabulary: int = 50_257  # Rows of the embedding


CHAPTERS: Final = (
    Chapter("float32", 1000, tf32=False, bfloat16=False),
    Chapter("TF32", 333, bfloat16=False),
    Chapter("bfloat16", 300),
    Chapter("torch.compile", 130, compiled=True),
    Chapter("flash attention", 96, compiled=True, fused=True),
    Chapter("50,304 words", 93, compiled=True, fused=True, vocabulary=50_304),
)


class Attention(nn.Module):
    """Causal attention, in one call or in four."""

    mask: Tensor

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.project, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.tril(torch.ones(TOKENS, TOKENS)).view(1, 1, TOKENS, TOKENS))

    def forward(self, data: Tensor) -> Tensor:
        """Data of shape (batch, length, width)."""
        parts = self.project(data).split(WIDTH, dim=2)
        query, key, value = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in parts)
        if self.fused:
            joined = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = (query @ key.transpose(-2, -1)) * (1.0 / math.sqrt(WIDTH // HEADS))
            joined = functional.softmax(scores.masked_fill(self.mask == 0, -math.inf), dim=-1) @ value
        result: Tensor = self.output(joined.transpose(1, 2).flatten(2))
        return result


class Block(nn.Module):
    """Attention and two layers, each behind a norm."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attention = Attention(fused=fused)
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, data: Tensor) -> Tensor:
        """Same shape as `data`."""
        data = data + self.attention(self.norms[0](data))
        result: Tensor = data + self.layers(self.norms[1](data))
        return result


class Gpt2(nn.Module):
    """GPT-2's smallest, whose embedding is its last layer, too."""

    def __init__(self, vocabulary: int, *, fused: bool) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block(fused=fused) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Loss of tokens of shape (batch, length)."""
        data = self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        logits = self.head(self.norm(self.blocks(data)))
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def step_of(chapter: Chapter) -> Callable[[], None]:
    """Return a step of the lecture's script, on the meta device."""
    with torch.device("meta"):
        model = Gpt2(chapter.vocabulary, fused=chapter.fused)
        tokens = torch.zeros(SEQUENCES, TOKENS, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=chapter.bfloat16):
            loss = model(tokens)
        loss.backward()
        optimizer.step()

    return step


def _recorded(chapter: Chapter) -> lp.Trace:
    with tf32(products=chapter.tf32):
        return lp.capture(step_of(chapter))


def tutorial_cases(_data: Path) -> Iterator[Case]:
    """Yield a step of each chapter."""
    for chapter in CHAPTERS:
        yield Case(
            source="eager" if not chapter.compiled else "compiled",
            model=f"GPT-2 124M, {chapter.words}",
            gpu=GPU,
            step=Step(name=f"gpt2-lecture-{chapter.words}", record=partial(_recorded, chapter)),
            measured=chapter.milliseconds / 1e3,
            kernels=("compile",) if chapter.compiled else (),
        )
