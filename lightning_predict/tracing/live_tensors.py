"""Find the tensors that live at the same time in a step, each storage once.

A storage lives from the first operation that writes it to the last one that uses it: just as long as autograd keeps
what the backward pass reads. Example::

    >>> from lightning_predict.tracing.trace import Operation, TensorInfo
    >>> a, b, c = (TensorInfo((n,), "float32", id=n) for n in (10, 20, 30))
    >>> steps = [((), (a,)), ((a,), (b,)), ((b,), (c,))]  # a is dead when c is written
    >>> live_tensors([Operation(name="aten::relu", phase="forward", inputs=i, outputs=o) for i, o in steps])
    (80, 120)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from lightning_predict.tracing.trace import Operation, Parameter, Phase, TensorInfo

_DRAWS_MASKS: Final = "aten::bernoulli_"
"""Off CUDA, dropout draws its mask in the type of its input; CUDA's own dropout (`native_dropout`) keeps one byte per
element."""


@dataclass(slots=True)
class _Life:
    """A storage as it was first met, and the numbers of the first and the last operation that met it."""

    tensor: TensorInfo
    size_bytes: int
    phase: Phase
    first: int
    last: int
    is_given: bool
    is_for_optimizer: bool = False

    @property
    def kind(self) -> tuple[tuple[int, ...], str]:
        """Shape and dtype."""
        return self.tensor.shape, self.tensor.dtype

    @property
    def outlives_step(self) -> bool:
        """Whether the step found it, or leaves it as a gradient."""
        return self.is_given or (self.phase == "backward" and self.is_for_optimizer)


def live_tensors(operations: Sequence[Operation]) -> tuple[int, ...]:
    """List bytes of each storage written by the step and still needed when these take the most together."""
    written = [life for life in _lives(operations) if not life.outlives_step]
    changes = [0] * (len(operations) + 1)
    for life in written:
        changes[life.first] += life.size_bytes
        changes[life.last + 1] -= life.size_bytes
    levels = list(accumulate(changes))
    fullest = levels.index(max(levels))
    return tuple(life.size_bytes for life in written if life.first <= fullest <= life.last)


def input_tensors(operations: Sequence[Operation], parameters: Iterable[Parameter]) -> tuple[int, ...]:
    """List bytes of each storage that the forward pass reads and none wrote: the batch, which always lives."""
    given = [life for life in _lives(operations) if life.is_given and life.phase == "forward"]
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


def update_tensors(operations: Sequence[Operation]) -> tuple[int, ...]:
    """List bytes of each storage that the optimizer writes in passing."""
    return tuple(life.size_bytes for life in _lives(operations) if life.phase == "optimizer" and not life.is_given)


def _lives(operations: Sequence[Operation]) -> Iterable[_Life]:
    """Find every storage once, in the size of the tensor that met it first, as later views may repeat its elements."""
    lives: dict[int, _Life] = {}
    for number, operation in enumerate(operations):
        for tensors, is_given in ((operation.inputs, True), (operation.outputs, False)):
            for tensor in tensors:
                if tensor.id is None:
                    continue
                life = lives.get(tensor.id)
                if life is None:
                    life = _Life(tensor, tensor.size_bytes, operation.phase, number, number, is_given)
                    lives[tensor.id] = life
                life.last = number
                life.is_for_optimizer |= operation.phase == "optimizer"
        if operation.name == _DRAWS_MASKS and operation.outputs and operation.outputs[0].id is not None:
            lives[operation.outputs[0].id].size_bytes = operation.outputs[0].elements
    return lives.values()
