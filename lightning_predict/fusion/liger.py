"""What Liger's kernels replace: norms of rows, rotary positions, gated activations and losses over words.

Liger patches modules of these kinds. All other operations, such as sums of the residual stream, dropout and GELU that
is written out, run as recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set
from dataclasses import replace
from typing import Final

from lightning_predict.fusion.kernels import OUTSIDE, PICKS_WORDS, fused
from lightning_predict.fusion.losses import loss_places, with_chunked_loss
from lightning_predict.record.trace import Operation, Trace

ROW_NORMS: Final = frozenset({"aten::native_layer_norm", "aten::_fused_rms_norm"})

_WRITTEN_NORM: Final = frozenset({"aten::mean", "aten::rsqrt"})
_PRODUCTS: Final = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution"})

_GATES: Final = frozenset({"aten::silu", "aten::gelu"})
_GATES_BACKWARD: Final = frozenset({f"{name}_backward" for name in _GATES})

_ROTATION: Final = frozenset({"aten::neg", "aten::cat"})
_ROTATES: Final = frozenset({*_ROTATION, "aten::mul", "aten::add", "aten::slice_backward"})


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
    gates, others = _gated(trace)
    places = loss_places(trace) if _predicts_words(trace) else set()
    for place, operation in enumerate(trace.operations):
        name, read = operation.name, {tensor.id for tensor in operation.inputs}
        width = operation.outputs[0].shape[-1:] if operation.outputs else ()
        if (
            name.removesuffix("_backward") in ROW_NORMS
            or (operation.module in norms and operation.phase != "optimizer")
            or (name in _ROTATES and width in widths[operation.module])
            or (name in _GATES and operation.outputs[0].id in gates)
            or (name in _GATES_BACKWARD and operation.inputs[1].id in gates.values())
            or (name == "aten::mul" and not read.isdisjoint(others))
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
    negative: dict[int | None, str | None] = {}
    widths: defaultdict[str | None, set[tuple[int, ...]]] = defaultdict(set)
    for operation in trace.operations:
        if operation.name == "aten::neg" and operation.phase == "forward":
            negative[operation.outputs[0].id] = operation.module
        elif operation.name == "aten::cat" and any(
            tensor.id in negative and negative[tensor.id] == operation.module for tensor in operation.inputs
        ):
            (width,) = operation.outputs[0].shape[-1:]
            widths[operation.module] |= {(width,), (width // 2,)}
    return widths


def _gated(trace: Trace) -> tuple[dict[int | None, int | None], Set[int | None]]:
    """Return the input of each gated activation, by the id of its result, and all that the gating products read."""
    inputs: dict[int | None, Operation] = {}
    gates: dict[int | None, int | None] = {}
    others: set[int | None] = set()
    for operation in trace.operations:
        if operation.phase != "forward":
            continue
        if operation.name in _GATES:
            inputs[operation.outputs[0].id] = operation
        elif operation.name == "aten::mul" and len(operation.inputs) == 2:
            first, second = (tensor.id for tensor in operation.inputs)
            made = next((number for number in (first, second) if number in inputs), None)
            if made is not None and first != second and len({tensor.elements for tensor in operation.inputs}) == 1:
                gates[made] = inputs[made].inputs[0].id
                others |= {first, second}
    return gates, others - {None}
