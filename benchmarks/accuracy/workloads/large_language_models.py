"""GPTs as large runs train them: MPT under FSDP in bfloat16, and Megatron-DeepSpeed's GPT in float16.

Both keep 16-bit parameters and update float32 copies of them. MPT's attention is one fused kernel; Megatron's is a
product, a fused softmax, dropout and a product. `recompute` runs each block's forward pass again in the backward pass.
Example::

    trace = mpt_trace("7b", length=2048, batch=12, recompute=True)
    trace = megatron_trace(MegatronConfig(layers=24, hidden=1024, heads=16), batch=16)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.accuracy.workloads.recorded import without_pauses
from lightning_predict.layouts.gradients import trainable_parameter_count
from lightning_predict.record.session import CaptureSession
from lightning_predict.record.signatures import FUSED
from lightning_predict.record.trace import Flags, Operation, TensorInfo, Trace


@final
@dataclass(frozen=True, slots=True)
class MptConfig:
    """Sizes of an MPT."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int = 50368


MPT: Final[Mapping[str, MptConfig]] = {
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
"""By the table's name; heads as in llm-foundry's configurations."""


@final
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
    """Causal attention in steps; the scaled, masked softmax is one kernel."""

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


def mpt_trace(name: str, *, length: int, batch: int, recompute: bool) -> Trace:
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

    return replace(with_float32_copies(model, loss), samples=batch)


def megatron_trace(config: MegatronConfig, *, batch: int, recompute: bool = True) -> Trace:
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

    return with_own_softmax(replace(with_float32_copies(model, loss), samples=batch))


def with_own_softmax(trace: Trace) -> Trace:
    """Run the backward pass of softmax as Megatron's own kernel, which reads gradient and result; torch has two."""
    operations = (
        replace(one, name=FUSED, arguments={"operations": [one.name]})
        if one.name == "aten::_softmax_backward_data"
        else one
        for one in trace.operations
    )
    return replace(trace, operations=tuple(operations))


def with_float32_copies(model: nn.Module, loss: Callable[[], Tensor]) -> Trace:
    """Forward, backward, and one fused update of float32 copies of the parameters."""
    trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
    copies = [nn.Parameter(parameter.detach().float()) for parameter in trained]
    trace = _passes(model, loss, copies)
    # The copies go with the optimizer's state: they are shared with it, and no module holds them.
    state = (trace.memory.optimizer_state_bytes or 0) + sum(4 * copy.numel() for copy in copies)
    return with_fused_update(replace(trace, memory=replace(trace.memory, optimizer_state_bytes=state)))


def with_fused_adam(model: nn.Module, loss: Callable[[], Tensor]) -> Trace:
    """Forward, backward, and one fused update of the parameters themselves, behind the norm of their gradients."""
    trace = _passes(model, loss, [parameter for parameter in model.parameters() if parameter.requires_grad])
    elements = trainable_parameter_count(trace)
    own, norm = TensorInfo((elements,), trace.parameters[0].dtype), TensorInfo((), "float32")
    update = (
        Operation(name="aten::linalg_vector_norm", phase="optimizer", inputs=(own,), outputs=(norm,)),
        Operation(name="aten::mul_", phase="optimizer", inputs=(own,), outputs=(own,)),
        Operation(name="aten::_fused_adamw_", phase="optimizer", inputs=(own,) * 4),
    )
    passes = (one for one in trace.operations if one.phase in ("forward", "backward"))
    return replace(trace, operations=(*passes, *update))


def _passes(model: nn.Module, loss: Callable[[], Tensor], updated: list[nn.Parameter]) -> Trace:
    """Record forward and backward pass with the state of an optimizer."""
    optimizer = torch.optim.AdamW(updated, lr=1e-4)
    for parameter in updated:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()  # makes its state
    session = CaptureSession(device=torch.device("meta"), model=model.train(), optimizers=[optimizer])
    loss().backward()  # the first pass imports, which would count as Python work of the step
    session.start()
    model.zero_grad(set_to_none=True)
    loss().backward()
    session.stop()
    return replace(without_pauses(session.trace()), flags=Flags(matmul_tf32=False, cudnn_tf32=True))


def with_fused_update(trace: Trace) -> Trace:
    """Give a step the update that fused optimizers of float32 copies make, which no kernel for the meta device is for.

    Gradients are copied to float32, their norm is taken, Adam updates the copies in one kernel, and these are copied
    to the parameters.
    """
    passes = [operation for operation in trace.operations if operation.phase in ("forward", "backward")]
    elements = trainable_parameter_count(trace)
    half = TensorInfo((elements,), trace.parameters[0].dtype)
    single = TensorInfo((elements,), "float32")
    update = (
        Operation(name="aten::_to_copy", phase="optimizer", inputs=(half,), outputs=(single,)),
        Operation(
            name="aten::linalg_vector_norm", phase="optimizer", inputs=(single,), outputs=(TensorInfo((), "float32"),)
        ),
        Operation(name="aten::_fused_adamw_", phase="optimizer", inputs=(single,) * 4),
        Operation(name="aten::copy_", phase="optimizer", inputs=(half, single), outputs=(half,)),
    )
    return replace(trace, operations=(*passes, *update))
