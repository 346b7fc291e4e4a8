"""Logs of nanoGPT's speed runs (KellerJordan/modded-nanogpt), each with the whole program in it: compiled GPTs.

Read are the programs whose model is plain code and whose optimizer torch has, AdamW or Muon. Left out are logs of
optimizers that torch does not have: SOAP decomposes matrices in float32 after each step, or after ten (all logs of four
H100, one H100, GH200 and A40), and Shampoo. Left out, too, are programs with FlexAttention, kernels and float8 of their
own. All GPUs of a machine get 524,288 tokens a step (the model of a billion: 491,520).
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import lightning_predict as lp
from benchmarks.accuracy.case import Case, Step, machines, strategy_text
from benchmarks.accuracy.readers.files import rows

MACHINES: Final = {"H100 80GB HBM3": "H100-SXM-80GB", "A100-SXM4-80GB": "A100-SXM-80GB", "L40S": "L40S"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What one program trains, and how."""

    width: int = 768  # Size of the residual stream
    layers: int = 12  # Number of blocks
    heads: int = 6  # Number of attention heads
    words: int = 50_304  # Rows of the embedding
    batch: int = 64  # Sequences of 1,024 tokens in a micro-batch
    sequences: int = 512  # Sequences of a step, on all GPUs
    # Whether the program is `train_gpt_simple.py`: biases, gains, weights converted layer by layer, a soft cap on the
    # logits, and gradients reduced after the backward pass
    is_plain: bool = False
    is_tied: bool = True  # Whether the embedding is the last layer
    has_gelu: bool = False  # Whether the activation is GELU, not the square of ReLU
    muon_steps: int = 5  # Number of Newton-Schulz steps of Muon; 0 for AdamW
    shares_muon: bool = True  # Whether the GPUs share the matrices out
    kernels: tuple[str, ...] = ()  # Further kernels that the program asks for


_FIRST: Final = Program(heads=12, words=50_257, has_gelu=True, shares_muon=False)
_PLAIN: Final = Program(is_plain=True, is_tied=False, muon_steps=12)

PROGRAMS: Final = {  # Programs by a part of a log's path
    "2024-10-10_Muon": _FIRST,
    "2024-10-14_ModernArch": Program(shares_muon=False),
    "2024-10-18_PyTorch25": Program(),
    "2024-10-20_ScaleUp1B": Program(width=1536, layers=52, heads=12, batch=10, sequences=480, muon_steps=0),
    "8d6193f4-27fc-4e68-899f-af70019a4d54": Program(),
    "95a9fd44-7c13-49c7-b324-3e7d9e23a499": Program(muon_steps=0),
    "2024-11-03_UntieEmbed": Program(is_tied=False, kernels=("cudnn_attention",)),
    "20260504_muloco_normuonh": _PLAIN,
    "20260522_ema_nesterov_muon": _PLAIN,
}


class Linear(nn.Linear):
    """A layer whose weights are converted to the dtype of its inputs."""

    def forward(self, data: Tensor) -> Tensor:
        """Same shape as a linear layer's."""
        bias = None if self.bias is None else self.bias.type_as(data)
        return functional.linear(data, self.weight.type_as(data), bias)


class Norm(nn.Module):
    """RMS norm, with gains in the plain program."""

    def __init__(self, width: int, *, has_gains: bool) -> None:
        super().__init__()
        self.gains = nn.Parameter(torch.ones(width)) if has_gains else None

    def forward(self, data: Tensor) -> Tensor:
        """Same shape as `data`."""
        gains = None if self.gains is None else self.gains.type_as(data)
        return functional.rms_norm(data, (data.shape[-1],), weight=gains)


class Block(nn.Module):
    """Attention with rotary positions and normalised queries and keys, and two layers."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        width, self.program = program.width, program
        linear = partial(Linear if program.is_plain else nn.Linear, bias=program.is_plain)
        self.norms = nn.ModuleList(Norm(width, has_gains=program.is_plain) for _ in range(2))
        self.query, self.key, self.value, self.output = (linear(width, width) for _ in range(4))
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

    def rotated(self, data: Tensor) -> Tensor:
        """Normalise and rotate data of shape (batch, length, heads, width)."""
        data = functional.rms_norm(data, (data.shape[-1],))
        angles = torch.outer(
            torch.arange(data.shape[1], device=data.device, dtype=torch.float32),
            torch.ones(data.shape[3] // 2, device=data.device),
        )[None, :, None, :]
        cos, sin = angles.cos(), angles.sin()
        if not self.program.is_plain:
            cos, sin = cos.bfloat16(), sin.bfloat16()
        one, other = (data.float() if self.program.is_plain else data).chunk(2, dim=3)
        return torch.cat((one * cos + other * sin, other * cos - one * sin), 3).type_as(data)

    def forward(self, data: Tensor) -> Tensor:
        """Data of shape (batch, length, width)."""
        inner = self.norms[0](data)
        query, key, value = (
            layer(inner).unflatten(2, (self.program.heads, -1)) for layer in (self.query, self.key, self.value)
        )
        query, key, value = (part.transpose(1, 2) for part in (self.rotated(query), self.rotated(key), value))
        joined = functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
        data = data + self.output(joined.contiguous().flatten(2))
        inner = self.up(self.norms[1](data))
        inner = functional.gelu(inner) if self.program.has_gelu else functional.relu(inner).square()
        result: Tensor = data + self.down(inner)
        return result


class Gpt(nn.Module):
    """The whole model; its result is the loss."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.embedding = nn.Embedding(program.words, program.width)
        self.blocks = nn.ModuleList(Block(program) for _ in range(program.layers))
        self.head = (Linear if program.is_plain else nn.Linear)(program.width, program.words, bias=program.is_plain)
        self.norms = nn.ModuleList(Norm(program.width, has_gains=program.is_plain) for _ in range(2))
        if program.is_tied:
            self.head.weight = self.embedding.weight
        elif program.is_plain:
            self.embedding.bfloat16()

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Loss of tokens of shape (batch, length)."""
        data = self.embedding(tokens)
        data = data if self.program.is_tied else self.norms[0](data)
        for block in self.blocks:
            data = block(data)
        logits = self.head(self.norms[1](data)).float()
        if self.program.is_plain:
            logits = 15 * logits * (logits.square() + 15**2).rsqrt()
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def program_trace(program: Program) -> lp.Trace:
    """Record a micro-batch and its update on the meta device."""
    with torch.device("meta"):
        model = Gpt(program)
        tokens = torch.zeros(program.batch, 1024, dtype=torch.long)
    matrices = [parameter for parameter in model.blocks.parameters() if parameter.ndim == 2 and program.muon_steps]
    is_matrix = set(map(id, matrices))
    rest = [parameter for parameter in model.parameters() if id(parameter) not in is_matrix]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(rest, fused=True)]
    if matrices:
        optimizers.append(torch.optim.Muon(matrices, ns_steps=program.muon_steps))

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=not program.is_plain):
            loss = model(tokens, tokens)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)

    return lp.capture(step)


def nanogpt_cases(data: Path) -> Iterator[Case]:
    """Yield a case for each program and machine: the median of its logs."""
    logs = defaultdict[tuple[str, str, int], list[tuple[float, str]]](list)
    for row in rows(data / "validation" / "nanogpt_steps.csv"):
        name = next((known for known in PROGRAMS if known in row["path"]), None)
        if name is not None and row["gpu"] in MACHINES:
            milliseconds = float(row["step_ms_middle_half"] or row["step_ms_mean"])
            logs[name, MACHINES[row["gpu"]], int(row["gpus"])].append((milliseconds, row["torch"]))
    for (name, gpu, count), entries in logs.items():
        program = PROGRAMS[name]
        times, releases = zip(*entries, strict=True)
        yield Case(
            source=f"{'plain program' if program.is_plain else 'speed runs'}, {gpu}",
            model=f"GPT, {name[:19]}",
            gpu=machines(gpu, count),
            step=Step(name=f"nanogpt-{name}", record=partial(program_trace, program)),
            measured=statistics.median(times) / 1e3,
            release=".".join(releases[0].split(".")[:2]),
            strategy=strategy_text(
                "zero1" if program.shares_muon and program.muon_steps else "ddp",
                accumulate=program.sequences // (count * program.batch),
                overlap_grad_reduce="false" if program.is_plain else None,
            ),
            kernels=("compile", *program.kernels),
        )
