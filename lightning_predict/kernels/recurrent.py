"""LSTM, GRU and plain recurrent layers, whole.

A layer of one direction multiplies, in each step, the input and the hidden state with `gates` weight matrices:
2·gates·batch·steps·hidden·(input + hidden). Layers after the first take `hidden x directions` inputs. The backward pass
is two products for each of the forward's. Example::

    >>> from lightning_predict.kernels.operations import problem_batch
    >>> batch = problem_batch("lstm", "float32", batch=1, steps=1, input_size=2, hidden=3)
    >>> float(batch.flops[0])  # 2 x 4 gates x 3 x (2 + 3)
    120.0
"""

from __future__ import annotations

import math
from typing import Final

from lightning_predict.kernels.operations import Array, Columns, OperationKind, Problem, register, translates
from lightning_predict.kernels.translation import whole_compute_dtype
from lightning_predict.tracing.trace import Flags, Operation

GATES: Final = {"lstm": 4, "gru": 3, "rnn": 1}
"""Weight matrices per layer and direction: four gates, three gates, one."""


def _weights(c: Columns, gates: int) -> Array:
    """Elements of all weight matrices."""
    first = c["input_size"] + c["hidden"]
    later = c["hidden"] * c["directions"] + c["hidden"]
    return gates * c["hidden"] * c["directions"] * (first + (c["layers"] - 1) * later)


def _activations(c: Columns) -> Array:
    outputs = c["layers"] * c["hidden"] * c["directions"]
    return c["batch"] * c["steps"] * (c["input_size"] + outputs)


def _kind(name: str, gates: int, *, backward: bool) -> OperationKind:
    passes = 2.0 if backward else 1.0
    return OperationKind(
        name=f"{name}_backward" if backward else name,
        shape=("batch", "steps", "input_size", "hidden", "layers", "directions"),
        defaults={"input_size": "hidden", "layers": 1, "directions": 1},
        units="tensor",
        flops=lambda c: passes * 2 * c["batch"] * c["steps"] * _weights(c, gates),
        reads=lambda c: passes * (_weights(c, gates) + _activations(c)),
    )


register(*(_kind(name, gates, backward=backward) for name, gates in GATES.items() for backward in (False, True)))


def _layer(name: str, operation: Operation, flags: Flags) -> tuple[Problem, ...] | None:
    """`input` is (steps, batch, features), or (batch, steps, features) with batch_first; `hx` (layers x ways, ...).

    A packed sequence is (rows, features) with the batch of each step beside it: steps of the mean batch stand for it.
    """
    packed = bool(operation.arguments.get("packed"))
    if len(operation.inputs) < (3 if packed else 2) or "num_layers" not in operation.arguments:
        return None
    data, hidden = operation.inputs[0], operation.inputs[2 if packed else 1]
    if packed:
        (steps,), features = operation.inputs[1].shape, data.shape[1]
        batch = math.ceil(data.shape[0] / max(steps, 1))
    else:
        first, second, features = data.shape if len(data.shape) == 3 else (data.shape[0], 1, data.shape[1])
        batch, steps = (first, second) if operation.arguments.get("batch_first") else (second, first)
    layers = int(operation.arguments["num_layers"])
    directions = 2 if operation.arguments.get("bidirectional") else 1
    dims = (batch, steps, features, hidden.shape[-1], layers, directions)
    if min(dims) < 1:
        return ()
    dtype = whole_compute_dtype(operation.arguments.get("compute_dtype"), data, tf32=flags.cudnn_tf32)
    return (Problem(name, dtype, tuple(float(value) for value in dims)),)


_ATEN_NAMES: Final = {"aten::lstm": "lstm", "aten::gru": "gru", "aten::rnn_tanh": "rnn", "aten::rnn_relu": "rnn"}


@translates(*_ATEN_NAMES)
def _forward(operation: Operation, flags: Flags) -> tuple[Problem, ...] | None:
    return _layer(_ATEN_NAMES[operation.name], operation, flags)


@translates(*(f"{name}_backward" for name in _ATEN_NAMES))
def _backward(operation: Operation, flags: Flags) -> tuple[Problem, ...] | None:
    return _layer(f"{_ATEN_NAMES[operation.name.removesuffix('_backward')]}_backward", operation, flags)
