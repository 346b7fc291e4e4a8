"""Compute activations again in the backward pass: what a recorded step repeats, and what it would repeat.

A step that was recorded with activation checkpointing holds its forward operations twice, the second time in the
backward phase; layers that lead back to the residual stream then add up over the GPUs once more. A step that was
recorded without is given the forward operations of its blocks a second time (`full`, or `layers` of every second one),
those between a block's projections (`selective`: the attention itself, as Megatron's "core attention"), or all but
attention and every second product, from the first on (`operations`, as torchtitan's per-operation selection). Example::

    work = with_recomputation(work, model, "selective")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

from lightning_predict.distributed.strategy import Recompute
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.extensions.parallel.experts import experts_module
from lightning_predict.extensions.parallel.tensor_parallel import SplitModel, TransformerBlock
from lightning_predict.kernels.translation import translate
from lightning_predict.timeline.simulation import Launching
from lightning_predict.tracing.trace import Operation, Trace

CORE_NAMES: Final = ("aten::bmm", "aten::baddbmm", "aten::matmul", "aten::scaled_dot_product", "aten::_scaled_dot")
"""Beginnings of the names of attention's own products, fused or written out."""

BACKWARD_PRODUCTS: Final = 2
"""Products of a linear layer's backward pass: the gradients of its input and of its weight."""


def recomputed_products(trace: Trace, model: SplitModel) -> dict[str, int]:
    """Count, by block, the linear layers whose forward pass the recorded backward pass repeats, from the first on."""
    forward, backward = (dict.fromkeys((block.name for block in model.blocks), 0) for _ in range(2))
    for operation in trace.operations:
        if operation.phase not in ("forward", "backward"):
            continue
        block = model.block(operation.module)
        if block is not None:
            counts = forward if operation.phase == "forward" else backward
            counts[block.name] += sum(problem.operation == "linear" for problem in translate(operation, trace.flags))
    return {
        name: min(max(backward[name] - BACKWARD_PRODUCTS * count, 0), count) // max(trace.batches, 1)
        for name, count in forward.items()
    }


PRODUCT_NAMES: Final = ("aten::mm", "aten::addmm", "aten::linear")
"""Names of the linear layers' products, of which `operations` keeps every second result, from the first on."""


def reduced_again(block: TransformerBlock, recomputed: int) -> tuple[float, ...]:
    """Return the bytes of the all_reduces that a block repeats with its first so many linear layers."""
    pairs = zip(block.reduced_behind, block.reduced_bytes, strict=True)
    return tuple(size for position, size in pairs if position < recomputed)


def check_recomputation(trace: Trace, model: SplitModel, recompute: Recompute) -> None:
    """Check that a step can be given what it was recorded without.

    Raises:
        InvalidArgumentError: It was recorded with activation checkpointing.
    """
    if recompute != "none" and any(recomputed_products(trace, model).values()):
        raise InvalidArgumentError(
            f"strategy: recompute={recompute} of a step that was recorded with activation checkpointing; leave it out, "
            "or record the step without."
        )


def with_recomputation(work: Sequence[Launching], model: SplitModel, recompute: Recompute) -> tuple[Launching, ...]:
    """Repeat the forward operations of each block before its backward ones."""
    return tuple(work) if recompute == "none" else tuple(_repeated(work, model, recompute))


def is_recomputed(position: int, recompute: Recompute) -> bool:
    """Return whether anything of the block at this position is computed again."""
    return recompute != "none" and (recompute != "layers" or position % 2 == 0)


def _repeated(work: Sequence[Launching], model: SplitModel, recompute: Recompute) -> Iterator[Launching]:
    latest: dict[str, list[Launching]] = {}
    done: set[str] = set()
    for operation in work:
        block = model.block(operation.module)
        if block is not None and operation.phase == "forward":
            if block.name in done:  # another batch
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
    """An operation, recorded or as it is launched."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def module(self) -> str | None:
        """The module that it belongs to."""


def recomputed_part(operations: Sequence[Named], recompute: Recompute) -> Sequence[int]:
    """Select the forward operations of a block that its backward pass repeats, in order.

    Batched products of experts are products of the perceptron, not of attention.
    """
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
    products = [index for index, operation in enumerate(operations) if operation.name in PRODUCT_NAMES]
    kept = {*products[::2], *inside}
    return [index for index in range(len(operations)) if index not in kept]


def chosen_operations(operations: Sequence[Operation], recompute: Recompute) -> Sequence[Operation]:
    """Select those of a block's forward operations that its backward pass repeats."""
    return [operations[index] for index in recomputed_part(operations, recompute)]
