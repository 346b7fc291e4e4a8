"""Changes for several GPUs: DDP or FSDP, and gradient accumulation.

FSDP shards parameters, gradients and optimizer state, and gathers parameters before each use, so it needs less memory
but more communication. Gradient accumulation sums the gradients of several batches before an optimizer step and, on
several GPUs, before an all-reduce.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from lightning_predict.advice.change import Change, has_backward
from lightning_predict.assumptions import Assumptions
from lightning_predict.hardware.layouts import Layout
from lightning_predict.hardware.records import Gpu
from lightning_predict.layouts.strategy import DataStrategy, Strategy
from lightning_predict.record.trace import Trace

BATCHES: Final = 2
"""Factor by which gradient accumulation increases the number of batches per optimizer step."""


def _accumulated(trace: Trace, assumptions: Assumptions) -> tuple[Trace, Assumptions]:
    strategy = assumptions.strategy
    return trace, replace(assumptions, strategy=replace(strategy, accumulate=BATCHES * strategy.accumulate))


def _split_as(data: DataStrategy, trace: Trace, assumptions: Assumptions) -> tuple[Trace, Assumptions]:
    return trace, replace(assumptions, strategy=replace(assumptions.strategy, data=data))


def _why_not_accumulated(trace: Trace, gpu: Gpu | None) -> str | None:
    del gpu
    if not has_backward(trace) or not any(one.phase == "optimizer" for one in trace.operations):
        return "the step holds no update that batches could share"
    if trace.other_steps:
        return "steps of several kinds take turns"
    return None


def _why_not_split(trace: Trace, gpu: Gpu | None) -> str | None:
    del gpu
    if not has_backward(trace):
        return "the step has no backward pass"
    return None if trace.parameters else "the recording does not hold the model's parameters"


def _why_not_shared(data: DataStrategy, layout: Layout, strategy: Strategy) -> str | None:
    if layout.count == 1:
        return f"one {layout.gpu.name} shares nothing; ask for several, as 8x{layout.gpu.name}"
    return f"the strategy is {data} already" if strategy.data == data else None


ACCUMULATION: Final = Change(
    name="accumulation",
    words=f"Trainer(accumulate_grad_batches=...), {BATCHES} times as many",
    note="other optimisation: scale the learning rate",
    apply=_accumulated,
    why_not=_why_not_accumulated,
    side_effects=frozenset({"samples"}),
    slot="accumulation",
    kind="accumulation",
)


def _splitting(data: DataStrategy, words: str, note: str, asks_memory: bool) -> Change:
    return Change(
        name=data,
        words=words,
        note=note,
        apply=partial(_split_as, data),
        why_not=_why_not_split,
        why_not_shared=partial(_why_not_shared, data),
        side_effects=frozenset({"memory"}) if asks_memory else frozenset(),
        slot="strategy",
        kind="strategy",
    )


SHARING: Final = (
    _splitting("fsdp", 'Trainer(strategy="fsdp")', "checkpoints in parts; less memory", asks_memory=False),
    _splitting("ddp", 'Trainer(strategy="ddp")', "memory for the whole model on each GPU", asks_memory=True),
)
"""Changes between sharded and replicated parameters."""
