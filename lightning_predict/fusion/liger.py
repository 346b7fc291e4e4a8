"""What Liger's kernels replace: norms of rows, rotary positions, gated activations and losses over words.

Liger patches modules of these kinds. All other operations, such as sums of the residual stream, dropout and GELU that
is written out, run as recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set
from dataclasses import replace
from typing import Final

from lightning_predict.fusion.kernels import OUTSIDE, PICKS_WORDS, ROW_NORMS, fused
from lightning_predict.fusion.losses import loss_places, with_chunked_loss
from lightning_predict.record.trace import Trace

_WRITTEN_NORM: Final = {"aten::mean", "aten::rsqrt"}
_PRODUCTS: Final = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution"}
_GATES: Final = ("aten::silu", "aten::gelu")
_ROTATES: Final = ("aten::neg", "aten::cat", "aten::mul", "aten::add", "aten::slice_backward")


def with_liger(trace: Trace) -> Trace:
    """Return a step with Liger's kernels, which keep their inputs alone and compute the rest again."""
    chunked = with_chunked_loss(trace) if _predicts_words(trace) else trace
    inside = places_of_liger(chunked)
    marked = (
        operation if place in inside else replace(operation, arguments={**operation.arguments, OUTSIDE: True})
        for place, operation in enumerate(chunked.operations)
    )
    return fused(replace(chunked, operations=tuple(marked)), by_library=True, keeps_inputs=True)


def has_row_norms(trace: Trace) -> bool:
    """Return whether the step normalises rows: layer norms, and RMS norms as one call or written out."""
    return bool(_modules_of_norms(trace)) or any(operation.name in ROW_NORMS for operation in trace.operations)


def places_of_liger(trace: Trace) -> Set[int]:
    """Return the places of the operations that Liger's kernels compute."""
    norms, widths = _modules_of_norms(trace), _rotated_widths(trace)
    forward = [operation for operation in trace.operations if operation.phase == "forward"]
    activations = {one.outputs[0].id: one.inputs[0].id for one in forward if one.name in _GATES}
    factors: set[int | None] = set()  # what products of an activation and another tensor of its size read
    for operation in forward:
        ids = {tensor.id for tensor in operation.inputs}
        sizes = {tensor.elements for tensor in operation.inputs}
        if operation.name == "aten::mul" and len(ids) == 2 and len(sizes) == 1 and not ids.isdisjoint(activations):
            factors |= ids
    gates = {activations[number] for number in factors.intersection(activations)}
    places = loss_places(trace) if _predicts_words(trace) else set()
    for place, operation in enumerate(trace.operations):
        name, read = operation.name, [tensor.id for tensor in operation.inputs]
        width = operation.outputs[0].shape[-1:] if operation.outputs else ()
        if (
            name in ROW_NORMS
            or (operation.module in norms and operation.phase != "optimizer")
            or (name in _ROTATES and width in widths[operation.module])
            or (name in _GATES and operation.outputs[0].id in factors)
            or (name.removesuffix("_backward") in _GATES and len(read) > 1 and read[1] in gates)
            or (name == "aten::mul" and not factors.isdisjoint(read))
        ):
            places.add(place)
    return places


def _predicts_words(trace: Trace) -> bool:
    """Return whether losses can be over words, of which a sample has several; a classifier predicts one class."""
    rows = [operation.inputs[1].elements for operation in trace.operations if operation.name == PICKS_WORDS]
    return trace.samples is None or any(count > trace.samples_per_batch for count in rows)


def _modules_of_norms(trace: Trace) -> Set[str | None]:
    """Return the modules that compute an RMS norm, written out, and nothing else."""
    names: defaultdict[str | None, set[str]] = defaultdict(set)
    for operation in trace.operations:
        if operation.phase == "forward" and operation.module is not None:
            names[operation.module].add(operation.name)
    return {module for module, own in names.items() if own >= _WRITTEN_NORM and own.isdisjoint(_PRODUCTS)}


def _rotated_widths(trace: Trace) -> defaultdict[str | None, set[tuple[int, ...]]]:
    """Return the widths of the tensors, and of their halves, that a module rotates: `cat(-second, first) * sin`."""
    negated = {(one.outputs[0].id, one.module) for one in trace.operations if one.name == "aten::neg"}
    widths: defaultdict[str | None, set[tuple[int, ...]]] = defaultdict(set)
    for operation in trace.operations:
        read = {(tensor.id, operation.module) for tensor in operation.inputs}
        if operation.name == "aten::cat" and not negated.isdisjoint(read):
            (width,) = operation.outputs[0].shape[-1:]
            widths[operation.module] |= {(width,), (width // 2,)}
    return widths
