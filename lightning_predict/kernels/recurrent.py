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

from typing import Final

from lightning_predict.kernels.operations import Array, Columns, OperationKind, register

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
        words=("batch", "steps", "input_size", "hidden", "layers", "directions"),
        defaults={"input_size": "hidden", "layers": 1, "directions": 1},
        units="tensor",
        flops=lambda c: passes * 2 * c["batch"] * c["steps"] * _weights(c, gates),
        elements_moved=lambda c: passes * (_weights(c, gates) + _activations(c)),
    )


register(*(_kind(name, gates, backward=backward) for name, gates in GATES.items() for backward in (False, True)))
