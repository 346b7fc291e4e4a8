"""Find the storages that a step writes: how large, for what, and between which operations they live.

A storage is born with the first operation that writes it. It is freed after the last one that uses it (just as long as
autograd keeps what the backward pass reads), or later where the recorder saw that a variable of the step held it. What
is still there at the end is a gradient, or belongs to a variable that the next step replaces. Example::

    >>> from lightning_predict.tracing.trace import Operation, TensorInfo, Trace
    >>> data, hidden, loss = (TensorInfo((n,), "float32", id=n) for n in (10, 20, 1))
    >>> trace = Trace(device="meta", recorder="dispatch", operations=(
    ...     Operation(name="aten::relu", phase="forward", inputs=(data,), outputs=(hidden,), module="body"),
    ...     Operation(name="aten::sum", phase="forward", inputs=(hidden,), outputs=(loss,))))
    >>> [(one.cause, one.module, one.size_bytes, one.birth, one.death) for one in written_storages(trace)]
    [('activation', 'body', 80, 0, 1), ('activation', None, 4, 1, 1)]
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Final, Literal, final

from lightning_predict.tracing.signatures import ATTENTION, DRAWS_MASKS, backward_name
from lightning_predict.tracing.trace import Operation, Parameter, Phase, TensorInfo, Trace

Cause = Literal["activation", "backward", "gradient", "update", "batch"]
"""Why a storage lives: written by the forward pass; written by the backward pass in passing; a gradient; written by the
optimizer in passing; given to the step."""

_CAST: Final = "aten::_to_copy"


@final
@dataclass(frozen=True, slots=True)
class Storage:
    """A storage and its life within the step.

    Attributes:
        size_bytes: Its bytes.
        cause: Why it lives.
        birth: Index of the operation that writes it first; 0 for what the step found.
        death: Index of the operation after which it is freed; None if it is still there at the end.
        module: Module that wrote it; None if not known.
    """

    size_bytes: int
    cause: Cause
    birth: int
    death: int | None
    module: str | None = None


@dataclass(slots=True)
class _Life:
    """A storage as it was first met, and the numbers of the first and the last operation that met it."""

    tensor: TensorInfo
    size_bytes: int
    phase: Phase
    module: str | None
    first: int
    last: int
    is_given: bool
    is_for_optimizer: bool = False
    is_cast: bool = False

    @property
    def kind(self) -> tuple[tuple[int, ...], str]:
        """Shape and dtype."""
        return self.tensor.shape, self.tensor.dtype

    @property
    def is_gradient(self) -> bool:
        """Whether the backward pass wrote it for the optimizer."""
        return self.phase == "backward" and not self.is_given and self.is_for_optimizer


def written_storages(trace: Trace) -> tuple[Storage, ...]:
    """List the storages that the step writes, in the order of their birth."""
    held = None if trace.held is None else frozenset(trace.held)
    trained = frozenset((math.prod(one.shape), one.dtype) for one in trace.parameters if one.requires_grad)
    written = [_storage(life, held, trained) for life in _lives(trace.operations) if not life.is_given]
    return tuple(sorted([*written, *_kept_inside(trace.operations)], key=lambda one: one.birth))


def batch_bytes(
    operations: Sequence[Operation], parameters: Iterable[Parameter], buffers: Collection[int] = ()
) -> tuple[int, ...]:
    """List bytes of each storage that the forward pass reads and none wrote: the batch, which always lives.

    Args:
        operations: Those of a step.
        parameters: Of the model.
        buffers: Storages of the model's buffers.
    """
    given = [
        life
        for life in _lives(operations)
        if life.is_given and life.phase == "forward" and life.tensor.id not in buffers
    ]
    frozen = Counter((parameter.shape, parameter.dtype) for parameter in parameters)
    frozen.subtract(life.kind for life in given if life.is_for_optimizer)
    sizes = []
    for life in given:
        if life.is_for_optimizer:
            continue
        if frozen[life.kind] > 0:
            frozen[life.kind] -= 1
        else:
            sizes.append(life.size_bytes)
    return tuple(sizes)


ATTENTIONS: Final = frozenset({ATTENTION, backward_name(ATTENTION)})
"""Both passes of attention that was recorded whole."""


def attention_bytes(operation: Operation) -> int:
    """Return the bytes of the probabilities that attention writes; 0 where a fused kernel keeps them to itself.

    Fused kernels take tensors of four dimensions only.
    """
    if operation.name not in ATTENTIONS or len(operation.inputs) < 3:
        return 0
    query, key = operation.inputs[:2]
    if len(query.shape) == 4 or len(query.shape) < 2 or len(key.shape) < 2:
        return 0
    return math.prod(query.shape[:-1]) * key.shape[-2] * (query.size_bytes // max(query.elements, 1))


KEPT_BY_GATES: Final = {"aten::lstm": 5, "aten::gru": 6, "aten::rnn_tanh": 1, "aten::rnn_relu": 1}
"""Values that cuDNN keeps for the backward pass of each value that a recurrent layer computes (four gates and the cell
of an LSTM); it keeps the output of each layer but the last, too. It was seen to ask for 736,000,000 bytes for an LSTM
of 3,038,090 parameters, and for 864,000,000 for a GRU (github.com/pytorch/pytorch/issues/2895): four layers of 320 on
123 inputs have as many, and of 25,000 vectors keep 4 x 5 + 3 and 4 x 6 + 3 values of 4 bytes for each of 320."""


def recurrent_bytes(operation: Operation) -> int:
    """Return what a recurrent layer keeps for its backward pass beside its output; 0 for other operations."""
    gates = KEPT_BY_GATES.get(operation.name)
    if gates is None or not operation.outputs:
        return 0
    layers, output = int(operation.arguments.get("num_layers", 1)), operation.outputs[0]
    dtype = str(operation.arguments.get("compute_dtype", output.dtype))
    return (layers * gates + layers - 1) * replace(output, dtype=dtype).size_bytes


def _kept_inside(operations: Sequence[Operation]) -> Iterator[Storage]:
    """Find what calls that are recorded whole keep for their backward passes, beside the tensors that they return.

    Attention without a fused kernel keeps probabilities, and queries and keys, scaled; a recurrent layer its gates.
    """
    open_calls: dict[str, list[tuple[int, Operation, int]]] = {}
    for index, operation in enumerate(operations):
        size = recurrent_bytes(operation)
        if operation.name == ATTENTION and (probabilities := attention_bytes(operation)):
            size = probabilities + sum(tensor.size_bytes for tensor in operation.inputs[:2])
        if size:
            open_calls.setdefault(backward_name(operation.name), []).append((index, operation, size))
        elif open_calls.get(operation.name) and (operation.name not in ATTENTIONS or attention_bytes(operation)):
            birth, call, kept = open_calls[operation.name].pop()  # autograd goes back
            yield Storage(kept, "activation", birth, index, call.module)
    for birth, call, kept in chain.from_iterable(open_calls.values()):
        yield Storage(kept, "activation", birth, birth, call.module)


def live_tensors(operations: Sequence[Operation], end: int | None = None) -> tuple[int, ...]:
    """List bytes of each storage, but for gradients, that operations write and that live when these take the most.

    Args:
        operations: A step.
        end: Look at what the operations before this one take; None: at all. What is freed later lives until then.
    """
    written = [
        _storage(life, None, frozenset()) for life in _lives(operations) if not life.is_given and not life.is_gradient
    ]
    changes = [0] * (len(operations) + 1)
    for one in written:
        changes[one.birth] += one.size_bytes
        changes[len(operations) if one.death is None else one.death + 1] -= one.size_bytes
    levels = list(accumulate(changes[: len(operations) if end is None else end])) or [0]
    fullest = levels.index(max(levels))
    return tuple(
        one.size_bytes
        for one in written
        if one.birth <= fullest and fullest <= (fullest if one.death is None else one.death)
    )


def _storage(life: _Life, held: frozenset[int] | None, trained: frozenset[tuple[int, str]]) -> Storage:
    """Say how long a storage lives, and why.

    Args:
        life: The storage.
        held: What is still there at the end; None where the recorder did not see it.
        trained: Number of values and dtype of each parameter that is trained.
    """
    cause: Cause = "activation"
    # An optimizer that was not followed, or that updates copies, is not seen to read the gradients that it leaves.
    is_left = held is not None and life.tensor.id in held and (life.tensor.elements, life.tensor.dtype) in trained
    if life.is_gradient or (is_left and life.phase == "backward"):
        cause = "gradient"
    elif life.phase == "backward":
        cause = "backward"
    elif life.phase == "optimizer":
        cause = "update"
    # The recorder keeps autocast's copies of parameters on the meta device, which has no autocast.
    is_open = life.is_gradient if held is None else life.tensor.id in held and not life.is_cast
    return Storage(life.size_bytes, cause, life.first, None if is_open else life.last, life.module)


def _lives(operations: Sequence[Operation]) -> list[_Life]:
    """Find every storage once, in the size of the tensor that met it first, as later views may repeat its elements."""
    lives: dict[int, _Life] = {}
    casts = _Casts()
    for number, operation in enumerate(operations):
        phase = operation.phase
        if operation.name == _CAST and phase == "forward":
            casts.saw(operation)
        for tensors, is_given in ((operation.inputs, True), (operation.outputs, False)):
            for tensor in tensors:
                if tensor.id is None:
                    continue
                life = lives.get(tensor.id)
                if life is None and is_given and phase == "backward" and casts.any_left:
                    saved = casts.saved(tensor)
                    if saved is not None:
                        life = lives[tensor.id] = lives[saved]
                if life is None:
                    life = _Life(tensor, tensor.size_bytes, phase, operation.module, number, number, is_given)
                    life.is_cast = operation.name == _CAST and phase == "forward"
                    lives[tensor.id] = life
                life.last = number
                if phase == "optimizer":
                    life.is_for_optimizer = True
        if operation.name == DRAWS_MASKS and operation.outputs and operation.outputs[0].id is not None:
            lives[operation.outputs[0].id].size_bytes = operation.outputs[0].elements
        for freed in operation.freed:
            if freed in lives and freed not in casts.sources:
                lives[freed].last = number
    return list({id(life): life for life in lives.values()}.values())


@final
class _Casts:
    """The copies in fewer bits that autocast made in the forward pass, which the backward pass reads again.

    On the meta device, which has no autocast, the recorder casts below autograd: there the backward pass reads a copy
    of a copy's source that it has never met. It is the same copy on a GPU, where the source is not kept for it.
    """

    def __init__(self) -> None:
        self._copies: dict[tuple[int, str], list[tuple[int, int | None]]] = {}
        self.sources: set[int | None] = set()
        self.any_left = False

    def saw(self, cast: Operation) -> None:
        """Note a copy in another dtype."""
        if len(cast.outputs) == 1 and cast.inputs and cast.outputs[0].id is not None:
            copy, source = cast.outputs[0], cast.inputs[0]
            if copy.dtype != source.dtype and copy.id is not None:
                self._copies.setdefault((copy.elements, copy.dtype), []).append((copy.id, source.id))
                self.any_left = True

    def saved(self, tensor: TensorInfo) -> int | None:
        """Find the copy that a tensor of the backward pass is: the last one of its size, as that pass goes back."""
        alike = self._copies.get((tensor.elements, tensor.dtype))
        if not alike:
            return None
        number, source = alike.pop()
        self.sources.add(source)
        return number
