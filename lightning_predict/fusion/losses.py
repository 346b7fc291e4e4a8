"""Losses over words: computed in chunks of tokens with the output layer, or left outside of compiled code.

Liger's fused linear cross-entropy computes chunks. A chunk computes its logits, their gradient in place, and with it
the gradients of its inputs and of the weight. The logits of all tokens are never in memory. The library does so at the
end of the forward pass, here at the beginning of the backward pass, to which the gradients belong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from lightning_predict.fusion.attention import with_replaced
from lightning_predict.fusion.joint_graph import unused_ids
from lightning_predict.fusion.kernels import OUTSIDE
from lightning_predict.record.signatures import FUSED
from lightning_predict.record.trace import Operation, TensorInfo, Trace

_MATMULS: Final = ("aten::mm", "aten::addmm")
_LOSSES: Final = ("aten::_log_softmax", "aten::nll_loss_forward", "aten::nll_loss_backward")


@dataclass(frozen=True, slots=True)
class _Head:
    """Places of the operations between an output layer and its loss."""

    product: int  # Place of the output layer's matmul
    forward: list[int]  # Places of the other operations of the forward pass, the loss last
    backward: list[int]  # Places of the operations of the backward pass, without the two matmuls
    products: list[int]  # Places of the matmuls that compute the gradients of the inputs and of the weight
    bias: list[int]  # Place of the sum that computes the gradient of the bias, if there is one


def _heads(trace: Trace) -> Iterator[_Head]:
    """Yield each output layer whose logits only a cross-entropy reads. Its weight may be frozen."""
    operations = trace.operations
    for place, product in enumerate(operations):
        if product.name not in _MATMULS or product.phase != "forward" or not product.outputs:
            continue
        wide, logits = product.outputs[0].elements, {product.outputs[0].id}
        head = _Head(place, [], [], [], [])
        for later, operation in enumerate(operations[place + 1 :], place + 1):
            if operation.phase == "optimizer" or (operation.phase == "forward" and head.backward):
                break
            is_loss = operation.name in _LOSSES
            if logits.isdisjoint(tensor.id for tensor in operation.inputs) and not (is_loss and head.forward):
                continue
            if operation.phase == "backward" and operation.name in _MATMULS:
                head.products.append(later)
            elif operation.phase == "backward" and operation.name == "aten::sum":
                head.bias.append(later)
            elif is_loss or all(tensor.elements == wide for tensor in operation.outputs):
                (head.forward if operation.phase == "forward" else head.backward).append(later)
                logits |= {tensor.id for tensor in operation.outputs if tensor.elements == wide}
            else:
                break  # something else reads the logits
        names = {operations[index].name for index in head.forward}
        if {"aten::_log_softmax", "aten::nll_loss_forward"} <= names and head.products:
            yield head


def _chunkable_heads(trace: Trace) -> Iterator[_Head]:
    """Yield the heads that a library may chunk: their inputs are trained, and the script does not compute the loss."""
    for head in _heads(trace):
        sizes = [trace.operations[place].outputs[0].elements for place in head.products]
        is_trained = len(sizes) == 2 or sizes == [trace.operations[head.product].inputs[-2].elements]
        if is_trained and not trace.operations[head.forward[0]].arguments.get(OUTSIDE):
            yield head


def has_loss_over_words(trace: Trace) -> bool:
    """Return whether the step has an output layer whose logits only a cross-entropy reads."""
    return any(True for _ in _heads(trace))


def has_chunkable_loss(trace: Trace) -> bool:
    """Return whether the step has a loss over words that can be computed in chunks."""
    return any(True for _ in _chunkable_heads(trace))


def loss_places(trace: Trace) -> set[int]:
    """Return the places of the operations between output layers and their losses over words."""
    return {place for head in _heads(trace) for place in (*head.forward, *head.backward)}


def with_eager_loss(trace: Trace) -> Trace:
    """Return the step with marked losses over words, which no fused kernel computes."""
    places = loss_places(trace)
    marked = (
        replace(operation, arguments={**operation.arguments, OUTSIDE: True}) if place in places else operation
        for place, operation in enumerate(trace.operations)
    )
    return replace(trace, operations=tuple(marked))


def with_chunked_loss(trace: Trace) -> Trace:
    """Return the step with its output layers and losses computed in chunks."""
    calls: dict[int, list[Operation]] = {}
    dropped: set[int] = set()
    gone: set[int | None] = set()
    unused = unused_ids(trace.operations)
    for head in _chunkable_heads(trace):
        places = [head.product, *head.forward, *head.backward, *head.products, *head.bias]
        dropped |= set(places)
        loss = next(place for place in head.forward if trace.operations[place].name == "aten::nll_loss_forward")
        product = trace.operations[head.product]
        gone |= {t.id for p in (head.product, *head.forward, *head.backward) for t in trace.operations[p].outputs}
        gone -= {tensor.id for tensor in trace.operations[loss].outputs}
        gradients = [trace.operations[place].outputs[0] for place in head.products]
        losses = TensorInfo((product.outputs[0].shape[0],), "float32")
        mean = replace(trace.operations[loss], name="aten::sum", inputs=(losses,), arguments={})
        calls[loss] = [mean]
        sums = [trace.operations[place] for place in head.bias]
        calls[min(head.backward)] = list(_chunks(replace(product, phase="backward"), gradients, sums, next(unused)))
    return replace(trace, operations=tuple(with_replaced(trace, calls, dropped, gone)))


def _chunks(
    product: Operation, gradients: list[TensorInfo], sums_of_bias: list[Operation], number: int
) -> Iterator[Operation]:
    """Yield the operations of all chunks, of as many tokens as Liger's: the logits of one are as large as the inputs.

    On an A100 with 128,256 words of 4,096, Liger's loss takes 117, 167, 273 and 503 ms for 4,096 to 32,768 tokens.
    """
    inputs, weight = product.inputs[-2:]
    (tokens, width), words = inputs.shape, weight.shape[-1]
    size = min(2 ** math.ceil(math.log2(math.ceil(tokens / math.ceil(words / width)))), tokens)
    *of_weight, of_inputs = sorted(gradients, key=lambda one: one.elements != weight.elements)  # frozen: no gradient
    logits = TensorInfo((size, words), product.outputs[0].dtype, id=number)
    rows = replace(inputs, shape=(size, width))
    turned = replace(logits, shape=(words, size))
    sums = TensorInfo((size,), "float32")
    plain = replace(product, name="aten::mm", freed=(), arguments={})
    kernel = replace(plain, name=FUSED, arguments={"operations": ["liger::cross_entropy"], OUTSIDE: True})
    for _ in range(math.ceil(tokens / size)):
        yield replace(plain, inputs=(rows, weight), outputs=(logits,), arguments={"second_transposed": True})
        yield replace(kernel, inputs=(logits,), outputs=(sums,))
        yield replace(kernel, inputs=(logits, sums), outputs=(logits,))
        back = replace(weight, shape=weight.shape[::-1])
        yield replace(plain, inputs=(logits, back), outputs=(replace(of_inputs, shape=(size, width)),))
        for sums_of_chunks in of_weight:
            yield replace(plain, name="aten::addmm", inputs=(sums_of_chunks, turned, rows), outputs=(sums_of_chunks,))
        yield from (replace(operation, inputs=(logits,), freed=()) for operation in sums_of_bias)
        for sums_of_chunks in of_weight:
            yield replace(kernel, inputs=(sums_of_chunks,), outputs=())  # the matmul also reads what it adds to
