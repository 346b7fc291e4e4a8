"""Replaces unfused attention by one call of `F.scaled_dot_product_attention`.

Unfused attention computes the scores as a matmul of queries and keys, then scales, masks and normalises them by
softmax. After an optional dropout, a second matmul multiplies the scores with the values. Each operation reads and
writes a matrix over all pairs of tokens, which the fused call never stores. The operations are found by following the
scores from the first matmul to the second. In the backward pass, tensors that depend on the scores and their gradients
are followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final

from lightning_predict.kernels.families.attention import FUSED_ATTENTION
from lightning_predict.kernels.translation import translate
from lightning_predict.record.data_flow import has_data_flow
from lightning_predict.record.signatures import ATTENTION, ATTENTION_KERNEL
from lightning_predict.record.trace import Operation, TensorInfo, Trace

_MATMULS: Final = frozenset({"aten::bmm", "aten::baddbmm"})
_MASKS: Final = frozenset({"aten::add", "aten::add_", "aten::masked_fill", "aten::masked_fill_", "aten::where"})


@dataclass(slots=True, kw_only=True)
class _WrittenOut:
    """Unfused attention in a recorded step."""

    elements: int
    query: TensorInfo
    key: TensorInfo  # Second operand of the first matmul, with keys in columns
    scores: set[int | None]  # Storage ids of the scores and their gradients
    places: list[int]  # Positions of the operations in the step
    leading: tuple[int, ...] | None = None  # Sizes of batch and heads; None before the softmax
    is_masked: bool = False
    value: TensorInfo | None = None
    result: TensorInfo | None = None
    backward: list[int] = field(default_factory=list)

    def shaped(self, tensor: TensorInfo, *, is_turned: bool = False) -> TensorInfo:
        """Return an operand of a matmul in attention's shape: batch, heads, tokens, width."""
        rows, columns = tensor.shape[-2:]
        assert self.leading is not None
        return replace(tensor, shape=(*self.leading, *((columns, rows) if is_turned else (rows, columns))))


def _attentions(trace: Trace) -> list[_WrittenOut]:
    """Return all unfused attention in the forward pass, with the operations of its backward pass."""
    open_ones: list[_WrittenOut] = []
    found: list[_WrittenOut] = []
    for place, operation in enumerate(trace.operations):
        if operation.phase == "optimizer" or not operation.outputs:
            continue
        if operation.phase == "backward":
            for attention in found:
                _follow_back(attention, place, operation)
            continue
        for attention in list(open_ones):
            if not attention.scores.isdisjoint(tensor.id for tensor in operation.inputs):
                is_over = _follow(attention, place, operation)
                if is_over is not None:
                    open_ones.remove(attention)
                    found += [attention] if is_over else []
        if operation.name in _MATMULS and len(operation.outputs[0].shape) == 3:
            made = operation.outputs[0]
            query, key = operation.inputs[-2:]
            if not any(made.id in attention.scores or place in attention.places for attention in (*open_ones, *found)):
                open_ones.append(
                    _WrittenOut(elements=made.elements, query=query, key=key, scores={made.id}, places=[place])
                )
    return found


def _follow(attention: _WrittenOut, place: int, operation: Operation) -> bool | None:
    """Add an operation that reads the scores. Return True at the second matmul, False if there is no attention."""
    if operation.name in _MATMULS:
        is_second = attention.leading is not None and operation.inputs[0].id in attention.scores
        if is_second:
            attention.value, attention.result = operation.inputs[1], operation.outputs[0]
            attention.places.append(place)
        return is_second
    if any(tensor.elements != attention.elements for tensor in operation.outputs):
        return False  # another operation uses the scores, so they must be stored
    if operation.name == "aten::_softmax":
        *leading, _, _ = operation.inputs[0].shape
        attention.leading = (1, *leading) if len(leading) == 1 else tuple(leading)
    if operation.name in _MASKS and any(
        tensor.id not in attention.scores and tensor.elements > 1 for tensor in operation.inputs
    ):
        attention.is_masked = True
    attention.places.append(place)
    attention.scores |= {tensor.id for tensor in operation.outputs}
    return None


def _follow_back(attention: _WrittenOut, place: int, operation: Operation) -> None:
    """Add a backward operation that reads or writes the scores or their gradients."""
    assert attention.result is not None
    assert attention.value is not None
    reads = any(tensor.id in attention.scores for tensor in operation.inputs)
    made, is_matmul = operation.outputs[0], operation.name in _MATMULS
    # The gradient of the scores is the matmul of the result's gradient and the values. Matmuls that read this gradient
    # or
    # the scores compute the gradients of queries, keys and values.
    begins = is_matmul and not reads and any(tensor.id == attention.value.id for tensor in operation.inputs)
    if reads or (begins and made.elements == attention.elements):
        attention.backward.append(place)
        if made.elements == attention.elements and not (is_matmul and reads):
            attention.scores.add(made.id)


def has_unfused_attention(trace: Trace) -> bool:
    """Return whether the step has unfused attention that one call can replace."""
    return bool(_attentions(trace))


def with_fused_attention(trace: Trace) -> Trace:
    """Return the step with unfused attention replaced by fused calls."""
    return replace(trace, operations=tuple(_fused(trace)))


def with_attention_kernel(trace: Trace, kernel: str) -> Trace:
    """Return the step with attention in 16 bits by this kernel; without data flow, unfused attention stays."""
    fused = with_fused_attention(trace) if has_data_flow(trace) else trace

    def is_named(operation: Operation) -> bool:
        shapes = translate(operation, trace.flags)
        return any(shape.operation in FUSED_ATTENTION and shape.dtype in ("float16", "bfloat16") for shape in shapes)

    return replace(
        fused,
        operations=tuple(
            replace(one, arguments={**one.arguments, ATTENTION_KERNEL: kernel}) if is_named(one) else one
            for one in fused.operations
        ),
    )


def _fused(trace: Trace) -> Iterator[Operation]:
    calls: dict[int, Operation] = {}  # by position of an attention's last forward or first backward operation
    dropped: set[int] = set()
    gone: set[int | None] = set()
    for one in _attentions(trace):
        assert one.value is not None
        assert one.result is not None
        inputs = (one.shaped(one.query), one.shaped(one.key, is_turned=True), one.shaped(one.value))
        arguments = {"dropout_p": 0.0, "is_causal": False, "enable_gqa": False, "attn_mask": one.is_masked}
        first = trace.operations[one.places[0]]
        calls[one.places[-1]] = Operation(
            name=ATTENTION,
            phase="forward",
            inputs=inputs,
            outputs=(one.shaped(one.result),),
            arguments=arguments,
            module=first.module,
        )
        dropped |= {*one.places, *one.backward}
        gone |= one.scores
        made = [tensor for place in one.backward for tensor in trace.operations[place].outputs]
        if one.backward:
            calls[one.backward[0]] = Operation(
                name=f"{ATTENTION}_backward",
                phase="backward",
                inputs=inputs,
                outputs=tuple({tensor.id: tensor for tensor in made if tensor.id not in one.scores}.values()),
                arguments=arguments,
                module=first.module,
            )
    yield from with_replaced(trace, {place: [call] for place, call in calls.items()}, dropped, gone)


def with_replaced(
    trace: Trace, calls: Mapping[int, Sequence[Operation]], dropped: Set[int], gone: Set[int | None]
) -> Iterator[Operation]:
    """Yield the operations of a step of which some are replaced.

    Args:
        trace: The step.
        calls: New operations, by the place of an operation that they replace.
        dropped: Places of the operations that are replaced or left out.
        gone: Storages that are no longer written.
    """
    freed: list[int] = []
    for place, operation in enumerate(trace.operations):
        left = [number for number in operation.freed if number not in gone]
        if place in calls:
            *others, last = calls[place]
            yield from others
            yield replace(last, freed=(*freed, *left))
            freed = []
        elif place in dropped:
            freed += left
        else:
            yield replace(operation, freed=(*freed, *left)) if freed or len(left) < len(operation.freed) else operation
            freed = []
