"""LSTM, GRU and plain recurrent layers, as whole layers.

In each step, a layer of one direction multiplies the input and the hidden state with `gates` weight matrices:
2·gates·batch·steps·hidden·(input + hidden) FLOPs. Layers after the first have `hidden x directions` inputs. The
backward pass has two matmuls per forward matmul. Example::

    >>> from lightning_predict.kernels.operations import shape_batch
    >>> batch = shape_batch("lstm", "float32", batch=1, steps=1, input_size=2, hidden=3)
    >>> float(batch.flops[0])  # 2 x 4 gates x 3 x (2 + 3)
    120.0
"""

from __future__ import annotations

import math
from typing import Final

from lightning_predict.kernels.operations import (
    COMPUTE_BYTES,
    Array,
    Columns,
    CountedShape,
    OperationShape,
    OperationSpec,
    Surrogate,
    register,
    translates,
)
from lightning_predict.kernels.translation import whole_compute_dtype
from lightning_predict.record.trace import Flags, Operation

GATES: Final = {"lstm": 4, "gru": 3, "rnn": 1}  # Weight matrices per layer and direction, one per gate


def _weights(c: Columns, gates: int) -> Array:
    """Return the number of elements of all weight matrices."""
    first = c["input_size"] + c["hidden"]
    later = c["hidden"] * c["directions"] + c["hidden"]
    return gates * c["hidden"] * c["directions"] * (first + (c["layers"] - 1) * later)


def _inputs(c: Columns) -> Array:
    return c["batch"] * c["steps"] * c["input_size"]


def _outputs(c: Columns) -> Array:
    return c["batch"] * c["steps"] * c["layers"] * c["hidden"] * c["directions"]


KERNELS_BETWEEN_STEPS: Final = 5  # Minimum kernel times per step of a recurrent layer: its matmul and its gates


def _as_matmuls(shape: OperationShape) -> tuple[CountedShape, ...]:
    """Split into one input matmul per layer, for all steps, and dependent steps.

    A step is a small matmul, a pass over its gates, and short kernels in between. Matmuls that a library runs in
    parallel count as one batched matmul. With one direction, layers run in parallel as a wavefront, each one step
    behind the previous layer. With two directions, the directions of a layer run in parallel, and both must end before
    the next layer starts (Appleyard et al., "Optimizing Performance of Recurrent Neural Networks on GPUs", 2016). The
    gradients of both weights are one matmul over all steps.
    """
    w = shape.parameters
    is_backward = shape.operation.endswith("_backward")
    gates = GATES[shape.operation.removesuffix("_backward")] * w["hidden"]
    rows, hidden, dtype = w["batch"] * w["steps"], w["hidden"], shape.dtype
    parts = []
    for layer in range(int(w["layers"])):
        features = w["input_size"] if layer == 0 else hidden * w["directions"]
        if is_backward:
            once = [(rows, features, gates), (gates, features, rows), (gates, hidden, rows)]
        else:
            once = [(rows, gates, features)]
        parts += [CountedShape(w["directions"], OperationShape("linear", dtype, (1.0, *dims))) for dims in once]
    together = w["layers"] if w["directions"] == 1 else w["directions"]
    chain = w["layers"] * w["directions"] * w["steps"] / together
    step = (w["batch"], hidden, gates) if is_backward else (w["batch"], gates, hidden)
    name = "linear" if together == 1 else "bmm"
    parts.append(CountedShape(chain, OperationShape(name, dtype, (together, *step))))
    # A wavefront takes an additional step per layer except the last.
    waits = chain + (w["layers"] - 1 if w["directions"] == 1 else 0)
    return (*parts, *_steps(w["batch"] * together, w["hidden"], gates, dtype, chain, waits))


def _steps(
    rows: float, hidden: float, gates: float, dtype: str, chain: float, waits: float
) -> tuple[CountedShape, ...]:
    """Count steps without their matmuls: gates (twice) and the cell are read; gates, cell and state are written."""
    size = rows * COMPUTE_BYTES[dtype]
    dims = (size * (2 * gates + hidden), size * (gates + 2 * hidden), 0.0)
    waiting = CountedShape(waits * KERNELS_BETWEEN_STEPS, OperationShape("transfer", "float32", (4.0, 4.0, 0.0)))
    return CountedShape(chain, OperationShape("transfer", "float32", dims)), waiting


def _kind(name: str, gates: int, *, backward: bool) -> OperationSpec:
    passes = 2.0 if backward else 1.0

    def reads(c: Columns) -> Array:
        return _weights(c, gates) + _inputs(c) + (_outputs(c) if backward else 0.0)

    return OperationSpec(
        name=f"{name}_backward" if backward else name,
        shape=("batch", "steps", "input_size", "hidden", "layers", "directions"),
        defaults={"input_size": "hidden", "layers": 1, "directions": 1},
        units="tensor",
        flops=lambda c: passes * 2 * c["batch"] * c["steps"] * _weights(c, gates),
        reads=reads,
        # The backward pass writes a gradient for each tensor that it reads.
        writes=reads if backward else _outputs,
        estimators=(Surrogate(_as_matmuls),),
    )


register(*(_kind(name, gates, backward=backward) for name, gates in GATES.items() for backward in (False, True)))


def _layer(name: str, operation: Operation, flags: Flags) -> tuple[OperationShape, ...] | None:
    """Translate `input` (steps, batch, features), or batch first if requested, with `hx` (layers x directions, ...).

    A packed sequence is (rows, features) with the batch size of each step. The mean batch size is used for all steps.
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
    return (OperationShape(name, dtype, tuple(float(value) for value in dims)),)


_ATEN_NAMES: Final = {"aten::lstm": "lstm", "aten::gru": "gru", "aten::rnn_tanh": "rnn", "aten::rnn_relu": "rnn"}


@translates(*_ATEN_NAMES)
def _forward(operation: Operation, flags: Flags) -> tuple[OperationShape, ...] | None:
    return _layer(_ATEN_NAMES[operation.name], operation, flags)


@translates(*(f"{name}_backward" for name in _ATEN_NAMES))
def _backward(operation: Operation, flags: Flags) -> tuple[OperationShape, ...] | None:
    return _layer(f"{_ATEN_NAMES[operation.name.removesuffix('_backward')]}_backward", operation, flags)
