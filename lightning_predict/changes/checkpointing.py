"""Activation checkpointing: blocks compute their activations again in the backward pass instead of keeping them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from lightning_predict.changes.change import Change, has_backward, of_steps
from lightning_predict.gpus.records import Gpu
from lightning_predict.tracing.trace import Operation, Trace

_BLOCK: Final = re.compile(r"^(.*?\.?\d+)(?:\.|$)")
"""A block is a member of a list of modules: `encoder.layers.3` of `encoder.layers.3.mlp.fc1`."""


def block_of(module: str | None) -> str | None:
    """Return the member of a list of modules that a module belongs to; None if it is in none."""
    found = None if module is None else _BLOCK.match(module)
    return None if found is None else found.group(1)


def checkpointed(trace: Trace) -> Trace:
    """Return a step whose blocks run their forward operations once more before their backward ones."""
    return replace(trace, operations=tuple(_again(trace)))


def _again(trace: Trace) -> Iterator[Operation]:
    forward: dict[str, list[Operation]] = {}
    done: set[str] = set()
    for operation in trace.operations:
        block = block_of(operation.module)
        if block is not None and operation.phase == "forward":
            if block in done:  # another batch of the window
                done.discard(block)
                forward[block] = []
            forward.setdefault(block, []).append(operation)
        elif block is not None and operation.phase == "backward" and block not in done:
            done.add(block)
            yield from (_repeated(one) for one in forward.get(block, ()))
        yield operation


def _repeated(operation: Operation) -> Operation:
    return replace(
        operation,
        phase="backward",
        kernels=(),
        host_start_seconds=None,
        host_seconds=None,
        arguments={name: value for name, value in operation.arguments.items() if name != "_place"},
    )


def _why_not(trace: Trace, gpu: Gpu | None) -> str | None:
    del gpu
    if not has_backward(trace):
        return "the step has no backward pass"
    if not any(block_of(one.module) for one in trace.operations):
        return "the recording does not hold blocks of modules"
    return None


CHECKPOINTING: Final = Change(
    name="checkpointing",
    words="torch.utils.checkpoint of each block (gradient_checkpointing_enable())",
    note="slower: it saves memory, for a larger batch",
    apply=of_steps(checkpointed),
    why_not=_why_not,
    slot="checkpointing",
    kind="checkpointing",
)
