"""Attention that is written out becomes one call, and then equals a capture of the fused call."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import lightning_predict as lp
from lightning_predict.advice.changes import CHANGES
from lightning_predict.assumptions import Assumptions
from lightning_predict.record.signatures import ATTENTION
from lightning_predict.record.trace import Trace
from tests.advice.example_steps import GPU, profiled

HEADS, WIDTH = 12, 64


class Attention(nn.Module):
    """Self-attention with a mask and dropout, written out or not."""

    def __init__(self, *, is_fused: bool, is_masked: bool, dropout: float) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH), nn.Linear(HEADS * WIDTH, HEADS * WIDTH)
        self.is_fused, self.is_masked, self.dropout = is_fused, is_masked, dropout

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, length, width = tokens.shape
        query, key, value = self.project(tokens).view(batch, length, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        mask = torch.zeros(length, length, device=tokens.device) if self.is_masked else None
        if self.is_fused:
            made = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=self.dropout)
        else:
            scores = query @ key.transpose(-1, -2) / math.sqrt(WIDTH)
            scores = scores if mask is None else scores + mask
            made = functional.dropout(scores.softmax(-1), self.dropout) @ value
        out: torch.Tensor = self.out(made.transpose(1, 2).reshape(batch, length, width))
        return out


def captured(*, is_fused: bool, length: int = 512, is_masked: bool = False, dropout: float = 0.0) -> Trace:
    with torch.device("meta"):
        model = Attention(is_fused=is_fused, is_masked=is_masked, dropout=dropout)
        tokens = torch.randn(8, length, HEADS * WIDTH)
    return lp.capture(lambda: model(tokens).sum().backward(), samples_per_step=8)


def fused(trace: Trace) -> Trace:
    return CHANGES["sdpa"].apply(trace, Assumptions())[0]


def calls(trace: Trace) -> list[tuple[str, list[tuple[int, ...]], object]]:
    return [
        (operation.name, [tensor.shape for tensor in operation.inputs[:3]], operation.arguments["attn_mask"])
        for operation in trace.operations
        if operation.name.startswith(ATTENTION)
    ]


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("length", [512, WIDTH])  # the second has scores of the shape of queries
def test_fused_attention_equals_a_capture_of_the_fused_call(length: int, dropout: float, is_masked: bool) -> None:
    written = captured(is_fused=False, length=length, is_masked=is_masked, dropout=dropout)
    whole = captured(is_fused=True, length=length, is_masked=is_masked, dropout=dropout)
    changed = fused(written)
    assert calls(changed) == calls(whole)
    assert not any("softmax" in operation.name or operation.name == "aten::bmm" for operation in changed.operations)
    before, after, captured_so = (lp.predict(trace, ["L4"], history=False)["L4"] for trace in (written, changed, whole))
    # Copies that made the factors contiguous for bmm stay: they are read by other views, too.
    assert after.iteration_seconds == pytest.approx(captured_so.iteration_seconds, rel=0.1)
    if length == 512:
        assert after.iteration_seconds < before.iteration_seconds
        assert after.memory_bytes is not None
        assert before.memory_bytes is not None
        assert after.memory_bytes < before.memory_bytes


def test_attention_that_is_not_unfused_or_read_elsewhere_is_kept_with_the_reason() -> None:
    why_not = CHANGES["sdpa"].why_not
    assert why_not(captured(is_fused=True), None) == "attention is one call already"
    assert why_not(profiled(kernel_seconds=1e-3, every=1e-4), None) == "the step holds no attention that is written out"

    with torch.device("meta"):
        classes = torch.randn(8, 10)
    softmax_alone = lp.capture(lambda: classes.softmax(-1).sum())
    assert why_not(softmax_alone, None) == "the step holds no attention that is written out"
    # Weights that are returned, here to their sum, are no attention that one call could make.
    with torch.device("meta"):
        query, key, value = (torch.randn(16, 32, 8) for _ in range(3))

    def step() -> None:
        weights = torch.bmm(query, key.transpose(1, 2)).softmax(-1)
        weights.sum()
        torch.bmm(weights, value)

    assert CHANGES["sdpa"].why_not(lp.capture(step), None) == "the step holds no attention that is written out"
    trace = captured(is_fused=False)
    blind = replace(trace, operations=tuple(replace(operation, outputs=()) for operation in trace.operations))
    assert "pass it as `followed`" in (CHANGES["sdpa"].why_not(blind, None) or "")
    assert lp.advise(trace, [GPU])["sdpa"].verdict == "untested"
