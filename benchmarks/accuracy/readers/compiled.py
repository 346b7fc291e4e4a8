"""Training steps that people published eager and compiled: a book's ladder, nanoT5, airbench, torchtune.

The ladder (rasbt/LLMs-from-scratch at 0636158, ch05/10_llm-training-speed): GPT-2 of 124 M, 8 x 1,024 tokens, weights
in bfloat16, one of Lambda's A100 of 40 GB, torch 2.6. Its time has, every 15 steps, two losses of evaluation and the
start of four workers of each loader. The model is compiled and its loss is not.
nanoT5 (PiotrNawrot/nanoT5 at 1375b38): T5 v1.1 base, 144 samples of 512 and 114 tokens in two micro-batches, TF32, A100
of 80 GB; the row in bfloat16 changes the micro-batches, too, and is left out.
airbench94 (KellerJordan/cifar10-airbench, legacy, at 1b8f794): a step of 1,024 images in float16, channels last, A100
of 80 GB (eager) and of 40 GB (`max-autotune`); its time has the augmentation and one test.
torchtune (its README of 2025, optimization flags): all of Llama 3.2 3B in bfloat16, 2 x 4,096 packed tokens, an A100.
It then computes the loss in chunks. Its memory is the peak of what was active.
Nothing was fitted to the times; `advise` tells the gains among its pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import lightning_predict as lp
from benchmarks.accuracy.case import Case, Step
from benchmarks.accuracy.readers.pretraining import GIBIBYTE, with_memory
from benchmarks.accuracy.workloads.large_language_models import step_without_masters
from benchmarks.accuracy.workloads.llama import LLAMA, Llama, WrittenNorm
from benchmarks.accuracy.workloads.recorded import tf32

# --- The ladder

WIDTH: Final = 768
DROPOUT: Final = 0.1


class Block(nn.Module):
    """Fused attention and two layers, each behind a norm and with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.parts, self.output = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, data: Tensor) -> Tensor:
        """Data of shape (batch, length, width)."""
        query, key, value = self.parts(self.norms[0](data)).unflatten(2, (3, 12, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=DROPOUT, is_causal=True)
        data = self.dropout(self.output(mixed.transpose(1, 2).contiguous().flatten(2))) + data
        result: Tensor = self.dropout(self.layers(self.norms[1](data))) + data
        return result


class Gpt(nn.Module):
    """GPT-2's smallest with an output layer of its own."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, WIDTH), nn.Embedding(1024, WIDTH)
        self.blocks = nn.Sequential(nn.Dropout(DROPOUT), *(Block() for _ in range(12)), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of tokens of shape (batch, length)."""
        data = self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        result: Tensor = self.head(self.blocks(data))
        return result


def ladder_step(words: int, batch: int) -> Callable[[], None]:
    """Return a step of the ladder, on the meta device."""
    with torch.device("meta"):
        model, tokens = Gpt(words).bfloat16(), torch.zeros(batch, 1024, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()

    return step


# --- nanoT5


def t5_trace() -> lp.Trace:
    """Record a micro-batch of nanoT5 and its update."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=WIDTH, d_ff=2048, num_layers=12, num_heads=12, feed_forward_proj="gated-gelu", dropout_rate=0
    )
    config.decoder_start_token_id = 0
    with torch.device("meta"):
        model = T5ForConditionalGeneration(config)
        inputs, labels = (torch.zeros(72, length, dtype=torch.long) for length in (512, 114))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(input_ids=inputs, labels=labels).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    with tf32(products=True):
        return lp.capture(step)


# --- torchtune


def torchtune_trace(shares: int = 1) -> lp.Trace:
    """Record a step of torchtune's Llama: norms written out, all weights in bfloat16.

    Its chunked loss (`CEWithChunkedOutputLoss`) keeps the logits of all shares of a sequence in bfloat16, and computes
    in float32 on one share at a time, which is compiled.
    """
    with torch.device("meta"):
        model = Llama(LLAMA["llama3.2-3b"], recompute=False).bfloat16()
        for module in model.modules():
            for name, child in module.named_children():
                if isinstance(child, nn.RMSNorm):
                    setattr(module, name, WrittenNorm(child.normalized_shape[0]).bfloat16())
        tokens, angles = torch.zeros(2, 4096, dtype=torch.long), torch.zeros(1, 4096, 1, 128, dtype=torch.bfloat16)

    output = model.output
    model.output = nn.Identity()  # type: ignore[assignment]

    def loss() -> Tensor:
        hidden = model(tokens, angles, angles)
        logits = [output(share) for share in hidden.chunk(shares, dim=1)]
        losses = [
            functional.cross_entropy(share.float().flatten(0, 1), words.flatten(), reduction="sum")
            for share, words in zip(logits, tokens.chunk(shares, dim=1), strict=True)
        ]
        return torch.stack(losses).sum() / tokens.numel()

    return lp.capture(step_without_masters(model, loss))


# --- airbench94

CHANNELS: Final = (24, 64, 256, 256)


def _group(channels: int, wide: int) -> list[nn.Module]:
    first, second = (nn.Conv2d(each, wide, 3, padding="same", bias=False) for each in (channels, wide))
    norms = [nn.BatchNorm2d(wide).requires_grad_(False) for _ in range(2)]
    for norm in norms:
        norm.bias.requires_grad_(True)
    return [first, nn.MaxPool2d(2), norms[0], nn.GELU(), second, norms[1], nn.GELU()]


def airbench_trace() -> lp.Trace:
    """Record a step of airbench94."""
    with torch.device("meta"):
        whitening = nn.Conv2d(3, CHANNELS[0], 2).requires_grad_(False)
        groups = [layer for pair in pairwise(CHANNELS) for layer in _group(*pair)]
        model = nn.Sequential(whitening, nn.GELU(), *groups, nn.MaxPool2d(3), nn.Flatten(), nn.Linear(256, 10, False))
        model.half().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for layer in model:
            if isinstance(layer, nn.BatchNorm2d):
                layer.float()
        images = torch.empty(1024, 3, 32, 32, dtype=torch.half).to(memory_format=torch.channels_last)
        labels = torch.zeros(1024, dtype=torch.long)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, momentum=0.85, nesterov=True, weight_decay=1e-3)

    def step() -> None:
        outputs = model(images) * (1 / 9)
        functional.cross_entropy(outputs, labels, label_smoothing=0.2, reduction="none").sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    with tf32(products=True, tries_algorithms=True):
        return lp.capture(step)


# --- Rows


def _ladder(words: int, batch: int) -> Step:
    return Step(name=f"ladder-{words}-{batch}", record=lambda: lp.capture(ladder_step(words, batch)))


def compiled_cases(_data: Path) -> Iterator[Case]:
    """Yield each step, eager and compiled."""
    forty, eighty = "A100-SXM-40GB", "A100-SXM-80GB"
    t5 = Step(name="nanot5-base-tf32", record=t5_trace)
    airbench = Step(name="airbench94", record=airbench_trace)
    row = partial(Case, includes="evaluation and start of loaders")
    compiled = partial(row, kernels=("compile", "eager_loss"), source="compiled")
    ladder = "GPT-2, 50,257 words, batch 8"
    yield row(source="eager", model=ladder, gpu=forty, step=_ladder(50_257, 8), measured=8192 / 91_901, release="2.6")
    yield compiled(model=ladder, gpu=forty, step=_ladder(50_257, 8), measured=8192 / 112_046)
    for batch, rate in ((8, 127_345), (32, 142_156)):
        model, seconds = f"GPT-2, 50,304 words, batch {batch}", batch * 1024 / rate
        yield compiled(model=model, gpu=forty, step=_ladder(50_304, batch), measured=seconds)
    accumulated = partial(Case, model="T5 v1.1 base, TF32", gpu=eighty, step=t5, strategy="ddp,accumulate=2")
    yield accumulated(source="eager", measured=1.39, release="2.0")
    yield accumulated(source="compiled", measured=0.95, kernels=("compile",))
    torchtune = partial(with_memory, model="Llama 3.2 3B", gpu=eighty, release="2.5")
    # Without shares, logits become float32 in the model, outside of the compiled blocks and the compiled loss.
    for kernels, shares, rate, gibibytes in (
        ((), 1, 7075, 60.0),
        (("compile-blocks", "eager_loss"), 1, 8998, 51.0),
        (("compile-blocks",), 8, 9174, 42.9),
    ):
        yield from torchtune(
            {"allocated": gibibytes * GIBIBYTE},
            source="compiled" if kernels else "eager",
            step=Step(name=f"torchtune-llama3.2-3b-{shares}", record=partial(torchtune_trace, shares)),
            measured=8192 / rate,
            kernels=kernels,
        )
    convolutions = partial(Case, model="airbench94", step=airbench, includes="augmentation and a test")
    yield convolutions(source="eager", gpu=eighty, measured=3.83 / 476, release="2.1")
    yield convolutions(source="compiled", gpu=forty, measured=3.09 / 476, kernels=("compile",))
