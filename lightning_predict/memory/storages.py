"""Finds the storages (tensor memory) that a step writes, with their sizes, uses and lifetimes.

A storage is allocated by the first operation that writes it, and freed after the last operation that uses it.
Autograd's use in the backward pass counts. If a variable of the step holds a storage, the storage lives longer.
Storages that survive the step are gradients, or belong to variables that the next step overwrites. Example::

    >>> from lightning_predict.record.trace import Operation, TensorInfo, Trace
    >>> data, hidden, loss = (TensorInfo((n,), "float32", id=n) for n in (10, 20, 1))
    >>> trace = Trace(device="meta", recorder="dispatch", operations=(
    ...     Operation(name="aten::relu", phase="forward", inputs=(data,), outputs=(hidden,), module="body"),
    ...     Operation(name="aten::sum", phase="forward", inputs=(hidden,), outputs=(loss,))))
    >>> [(one.cause, one.module, one.size_bytes, one.allocated_at, one.freed_at) for one in written_storages(trace)]
    [('activation', 'body', 80, 0, 1), ('activation', None, 4, 1, 1)]
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final, Literal

from lightning_predict.record.data_flow import storages_without_maker
from lightning_predict.record.signatures import ATTENTION, DRAWS_MASKS, FUSED, backward_name, is_taken_apart
from lightning_predict.record.trace import DTYPE_BYTES, Operation, Parameter, Phase, TensorInfo, Trace, backward_ends

_CAST: Final = "aten::_to_copy"

Cause = Literal["activation", "backward", "gradient", "update", "batch"]
"""Use of a storage: activation (written by the forward pass), temporary tensor of the backward pass, gradient,
temporary tensor of the optimizer, or input of the step."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage and its lifetime within the step."""

    size_bytes: int
    cause: Cause  # Use of the storage, see `Cause`
    allocated_at: int  # Index of the first operation that writes the storage; 0 for inputs of the step
    freed_at: int | None  # Index of the operation after which the storage is freed; None if it survives the step
    module: str | None = None  # Module that wrote the storage; None if unknown
    # First tensor of the storage; None for a storage inside an operation
    tensor: TensorInfo | None = field(default=None, compare=False, repr=False)


@dataclass(slots=True)
class _Life:
    """A storage: its first tensor, and the indices of the first and last operations that use the storage."""

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
        """Shape and dtype of the first tensor."""
        return self.tensor.shape, self.tensor.dtype

    @property
    def is_gradient(self) -> bool:
        """Whether the storage is a gradient: the backward pass writes it, and the optimizer reads it."""
        return self.phase == "backward" and not self.is_given and self.is_for_optimizer


def written_storages(trace: Trace) -> tuple[Storage, ...]:
    """Return the storages that the step writes, in order of allocation."""
    return _written(trace, _lives(trace.operations))


def storages_and_batch(trace: Trace) -> tuple[tuple[Storage, ...], tuple[int, ...]]:
    """Return the storages that the step writes, and the sizes of the tensors of the batch."""
    lives = _lives(trace.operations)
    return _written(trace, lives), _batch_bytes(lives, trace.parameters, trace.buffers or ())


def _written(trace: Trace, lives: Sequence[_Life]) -> tuple[Storage, ...]:
    held = None if trace.held is None else frozenset(trace.held)
    trained = frozenset(
        (math.prod(parameter.shape), parameter.dtype) for parameter in trace.parameters if parameter.requires_grad
    )
    end = backward_ends(trace.operations)
    again = computed_again(trace.operations)
    kinds = [(parameter.shape, parameter.dtype) for parameter in trace.parameters]
    unmade = {} if held is None else storages_without_maker(trace.operations, kinds)
    written = [
        _storage(life, held, trained, end)
        for life in lives
        if (not life.is_given and life.tensor.id not in again) or life.tensor.id in unmade
    ]
    return tuple(sorted([*written, *_kept_inside(trace.operations)], key=lambda storage: storage.allocated_at))


_ACTIVATION_FUNCTIONS: Final = frozenset(f"aten::{name}" for name in ("gelu", "relu", "sigmoid", "silu", "tanh"))
_POINTWISE: Final = (
    _ACTIVATION_FUNCTIONS
    | {f"{name}_backward" for name in _ACTIVATION_FUNCTIONS}
    | {FUSED, "aten::add", "aten::mul", "aten::view"}
)


def computed_again(operations: Sequence[Operation]) -> frozenset[int]:
    """Return the ids of storages that compiled code does not keep, but recomputes in the backward pass.

    Such a storage is written and read only by point-wise operations, whose inputs are kept anyway. Inductor's backward
    pass recomputes the storage from these inputs.
    """
    if FUSED not in {operation.name for operation in operations}:
        return frozenset()
    written: dict[int, Operation] = {}
    kept, needed = set[int | None](), set[int | None]()
    for operation in operations:
        read = {tensor.id for tensor in operation.inputs}
        if operation.phase == "forward" and (operation.name == FUSED or operation.name in _ACTIVATION_FUNCTIONS):
            written |= {
                output.id: operation for output in operation.outputs if output.id is not None and output.id not in read
            }
        if operation.phase == "backward":
            kept |= read
        if operation.name not in _POINTWISE:
            needed |= read
    recomputed = frozenset(number for number in written if number in kept and number not in needed)
    return frozenset(
        number
        for number in recomputed
        if all(tensor.id in kept and tensor.id not in recomputed for tensor in written[number].inputs)
    )


def _batch_bytes(lives: Sequence[_Life], parameters: Iterable[Parameter], buffers: Collection[int]) -> tuple[int, ...]:
    """Return the sizes of storages that the forward pass reads but no operation writes."""
    given = [life for life in lives if life.is_given and life.phase == "forward" and life.tensor.id not in buffers]
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
"""Forward and backward operations of attention that is recorded as one call."""


def attention_bytes(operation: Operation) -> int:
    """Return the size of the attention probabilities in bytes; 0 if a fused kernel does not store them.

    Fused kernels require tensors of four dimensions, and a mask whose rows are contiguous.
    """
    if operation.name not in ATTENTIONS or len(operation.inputs) < 3:
        return 0
    query, key = operation.inputs[:2]
    is_apart = is_taken_apart(operation)
    if (len(query.shape) == 4 and not is_apart) or len(query.shape) < 2 or len(key.shape) < 2:
        return 0
    return math.prod(query.shape[:-1]) * key.shape[-2] * DTYPE_BYTES["float32" if is_apart else query.dtype]


def _kept_by_attention(operation: Operation) -> int:
    """Return the bytes that unfused attention keeps for the backward pass; 0 for a fused kernel.

    The kept tensors are probabilities, scaled queries and keys, and with dropout its mask and output.
    """
    probabilities = attention_bytes(operation)
    if not probabilities:
        return 0
    query, key = operation.inputs[:2]
    item_bytes = DTYPE_BYTES["float32" if is_taken_apart(operation) else query.dtype]
    dropout = probabilities + probabilities // item_bytes if operation.arguments.get("dropout_p") else 0
    return probabilities + (query.elements + key.elements) * item_bytes + dropout


KEPT_BY_GATES: Final = {"aten::lstm": 5, "aten::gru": 6, "aten::rnn_tanh": 1, "aten::rnn_relu": 1}
"""Number of values that cuDNN keeps for the backward pass, per output value of a recurrent layer (for an LSTM: four
gates and the cell). The outputs of all layers except the last are also kept. Source: cuDNN requested 736,000,000
bytes for an LSTM with 3,038,090 parameters, and 864,000,000 bytes for a GRU
(github.com/pytorch/pytorch/issues/2895)."""


def recurrent_bytes(operation: Operation) -> int:
    """Return the bytes that a recurrent layer keeps for the backward pass, without its output; otherwise 0."""
    gates = KEPT_BY_GATES.get(operation.name)
    if gates is None or not operation.outputs:
        return 0
    layers, output = int(operation.arguments.get("num_layers", 1)), operation.outputs[0]
    dtype = str(operation.arguments.get("compute_dtype", output.dtype))
    return (layers * gates + layers - 1) * replace(output, dtype=dtype).size_bytes


def _kept_inside(operations: Sequence[Operation]) -> Iterator[Storage]:
    """Yield the storages that operations recorded as one call keep for the backward pass, in addition to their outputs.

    Unfused attention keeps probabilities; a recurrent layer keeps its gates.
    """
    open_calls: dict[str, list[tuple[int, Operation, int]]] = {}
    for index, operation in enumerate(operations):
        size = 0
        if operation.name == ATTENTION:
            size = _kept_by_attention(operation)
        elif operation.name in KEPT_BY_GATES:
            size = recurrent_bytes(operation)
        if size:
            open_calls.setdefault(backward_name(operation.name), []).append((index, operation, size))
        elif open_calls.get(operation.name) and (operation.name not in ATTENTIONS or attention_bytes(operation)):
            birth, call, kept = open_calls[operation.name].pop()  # the backward pass runs in reverse order
            yield Storage(kept, "activation", birth, index, call.module)
    for birth, call, kept in chain.from_iterable(open_calls.values()):
        yield Storage(kept, "activation", birth, birth, call.module)


def _storage(life: _Life, held: frozenset[int] | None, trained: frozenset[tuple[int, str]], end: int) -> Storage:
    """Return the storage with its lifetime and use; `end` is the index after the backward pass."""
    cause: Cause = "activation"
    # If the optimizer is not recorded or updates copies, no recorded operation of the optimizer reads the gradients.
    is_left = held is not None and (life.tensor.id in held or life.last >= end)
    is_left = is_left and (life.tensor.elements, life.tensor.dtype) in trained
    if life.is_gradient or (is_left and life.phase == "backward"):
        cause = "gradient"
    elif life.phase == "backward":
        cause = "backward"
    elif life.phase == "optimizer":
        cause = "update"
    is_open = life.is_gradient if held is None else life.tensor.id in held and not life.is_cast
    return Storage(life.size_bytes, cause, life.first, None if is_open else life.last, life.module, life.tensor)


def _lives(operations: Sequence[Operation]) -> list[_Life]:
    """Return every storage once, with the size of its first tensor, because later views may repeat elements."""
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
                    lives[tensor.id] = life
                life.last = number
                if phase == "optimizer":
                    life.is_for_optimizer = True
        if operation.name == DRAWS_MASKS and operation.outputs and operation.outputs[0].id is not None:
            lives[operation.outputs[0].id].size_bytes = operation.outputs[0].elements
        for freed in operation.freed:
            if freed in lives and freed not in casts.sources:
                lives[freed].last = number
    for number in casts.copies if casts.sources else ():  # the earlier recorder held them
        lives[number].is_cast = True
    return list({id(life): life for life in lives.values()}.values())


class _Casts:
    """Low-precision copies of the forward pass that the backward pass reads, in recordings of earlier versions.

    Those cast on the meta device below autograd: the backward pass reads a copy with a new storage id that no operation
    wrote. On a GPU, the backward pass would read the copy of the forward pass, and would not keep the source.
    """

    def __init__(self) -> None:
        self._copies: dict[tuple[int, str], list[tuple[int, int | None]]] = {}
        self.sources: set[int | None] = set()
        self.copies = list[int]()
        self.any_left = False

    def saw(self, cast: Operation) -> None:
        """Store a copy if an operation casts to another dtype."""
        if len(cast.outputs) == 1 and cast.inputs and cast.outputs[0].id is not None:
            copy, source = cast.outputs[0], cast.inputs[0]
            if copy.dtype != source.dtype and copy.id is not None:
                self._copies.setdefault((copy.elements, copy.dtype), []).append((copy.id, source.id))
                self.copies.append(copy.id)
                self.any_left = True

    def saved(self, tensor: TensorInfo) -> int | None:
        """Return the storage id of the latest forward copy with this size and dtype; None without such a copy."""
        alike = self._copies.get((tensor.elements, tensor.dtype))
        if not alike:
            return None
        number, source = alike.pop()
        self.sources.add(source)
        return number
