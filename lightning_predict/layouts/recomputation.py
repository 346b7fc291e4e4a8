"""Gradient (activation) checkpointing: recomputation in the backward pass, as recorded or added to a step.

A step that was recorded with gradient checkpointing contains forward operations twice, the second time in the backward
pass. Under tensor parallelism, a recomputed layer whose output is added to the residual stream repeats its all-reduce.

If the step was recorded without checkpointing, forward operations are repeated before the backward pass of each block:

- `full`: all operations of every block.
- `layers`: all operations of every second block.
- `selective`: the operations between a block's projections, which are attention (Megatron's "core attention").
- `operations`: all operations except attention and every second matmul, starting with the first (torchtitan's
  per-operation selection).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.kernels.operations import BACKWARD_MATMULS
from lightning_predict.kernels.translation import translate
from lightning_predict.layouts.gradients import experts_module
from lightning_predict.layouts.strategy import Recompute
from lightning_predict.layouts.tensor_parallel import SplitModel, TransformerBlock
from lightning_predict.record.trace import Trace
from lightning_predict.timeline.simulation import HostOperation

CORE_NAMES: Final = ("aten::bmm", "aten::baddbmm", "aten::matmul", "aten::scaled_dot_product", "aten::_scaled_dot")
"""Name prefixes of operations that compute attention, fused or unfused."""


def recomputed_matmuls(trace: Trace, model: SplitModel) -> dict[str, int]:
    """Return the number of linear layers that the recorded backward pass recomputes, by block name."""
    if id(trace) not in model.recomputed:
        model.recomputed[id(trace)] = _recomputed_matmuls(trace, model)
    return model.recomputed[id(trace)]


def _recomputed_matmuls(trace: Trace, model: SplitModel) -> dict[str, int]:
    forward, backward = (dict.fromkeys((block.name for block in model.blocks), 0) for _ in range(2))
    for operation in trace.operations:
        if operation.phase not in ("forward", "backward"):
            continue
        block = model.block(operation.module)
        if block is not None:
            counts = forward if operation.phase == "forward" else backward
            counts[block.name] += sum(shape.operation == "linear" for shape in translate(operation, trace.flags))
    return {
        name: min(max(backward[name] - BACKWARD_MATMULS * count, 0), count) // max(trace.batches, 1)
        for name, count in forward.items()
    }


MATMUL_NAMES: Final = ("aten::mm", "aten::addmm", "aten::linear")
"""Names of the matmuls of linear layers. The recomputation `operations` keeps every second result, from the first."""


def reduced_again(block: TransformerBlock, recomputed: int) -> tuple[float, ...]:
    """Return the message sizes of the all-reduces that recomputing the first `recomputed` linear layers repeats."""
    pairs = zip(block.reduced_behind, block.reduced_bytes, strict=True)
    return tuple(size for position, size in pairs if position < recomputed)


def check_recomputation(trace: Trace, model: SplitModel, recompute: Recompute) -> None:
    """Check that recomputation can be added to a step."""
    if recompute != "none" and any(recomputed_matmuls(trace, model).values()):
        raise InvalidArgumentError(
            f"strategy: recompute={recompute} of a step that was recorded with activation checkpointing; leave it out, "
            "or record the step without."
        )


def with_recomputation(
    work: Sequence[HostOperation], model: SplitModel, recompute: Recompute
) -> tuple[HostOperation, ...]:
    """Return the work with a copy of each block's recomputed forward operations before its backward operations."""
    return tuple(work) if recompute == "none" else tuple(_repeated(work, model, recompute))


def is_recomputed(position: int, recompute: Recompute) -> bool:
    """Return whether the block with this index is recomputed, at least in part."""
    return recompute != "none" and (recompute != "layers" or position % 2 == 0)


def _repeated(work: Sequence[HostOperation], model: SplitModel, recompute: Recompute) -> Iterator[HostOperation]:
    latest: dict[str, list[HostOperation]] = {}
    done: set[str] = set()
    for operation in work:
        block = model.block(operation.module)
        if block is not None and operation.phase == "forward":
            if block.name in done:  # the next batch begins
                done.discard(block.name)
                latest[block.name] = []
            latest.setdefault(block.name, []).append(operation)
        elif block is not None and operation.phase == "backward" and block.name not in done:
            done.add(block.name)
            own = latest.get(block.name, []) if is_recomputed(model.positions[block.name], recompute) else []
            chosen = recomputed_part(own, recompute)
            yield from (replace(own[index], phase="backward") for index in chosen)
        yield operation


class Named(Protocol):
    """A recorded or launched operation, with a name and a module."""

    @property
    def name(self) -> str:
        """Name of the operation."""

    @property
    def module(self) -> str | None:
        """Module of the operation."""


def recomputed_part(operations: Sequence[Named], recompute: Recompute) -> Sequence[int]:
    """Return the indices of a block's forward operations that its backward pass repeats, without experts' matmuls."""
    if recompute == "none":
        return ()
    if recompute in ("full", "layers"):
        return range(len(operations))
    core = [
        index
        for index, operation in enumerate(operations)
        if operation.name.startswith(CORE_NAMES) and experts_module(operation.module) is None
    ]
    inside = range(core[0], core[-1] + 1) if core else range(0)
    if recompute == "selective":
        return inside
    products = [index for index, operation in enumerate(operations) if operation.name in MATMUL_NAMES]
    kept = {*products[::2], *inside}
    return [index for index in range(len(operations)) if index not in kept]
