"""Problems to measure: sizes drawn evenly over their logarithms, most of them as networks have them.

Example::

    >>> shapes = draw_shapes("linear", 3, seed=0)
    >>> len(shapes), sorted(shapes[0])
    (3, ['k', 'm', 'n'])
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Final

from lightning_predict.errors import UnknownOperationError

Words = dict[str, int]
Drawer = Callable[[random.Random], Words]

MULTIPLE_SHARE: Final = 0.7
"""Share of sizes that are multiples of 8, as most layers are; the rest is any number."""


def _size(draw: random.Random, low: int, high: int) -> int:
    """A size between two bounds, even over its logarithm."""
    value = round(low * math.exp(math.log(high / low) * draw.random()))
    if value >= 16 and draw.random() < MULTIPLE_SHARE:
        value = round(value / 8) * 8
    return max(value, low)


def _linear(draw: random.Random) -> Words:
    return {"m": _size(draw, 1, 16384), "n": _size(draw, 16, 16384), "k": _size(draw, 16, 16384)}


def _bmm(draw: random.Random) -> Words:
    sizes = {word: _size(draw, 16, 2048) for word in ("m", "n", "k")}
    return {"b": _size(draw, 1, 512), **sizes}


def _convolution(draw: random.Random) -> Words:
    kernel = draw.choice([1, 1, 3, 3, 3, 5, 7])
    image = _size(draw, max(7, kernel), 224)
    depthwise = draw.random() < 0.15
    channels = _size(draw, 3, 1024)
    return {
        "batch": _size(draw, 1, 256),
        "in_channels": channels,
        "out_channels": channels if depthwise else _size(draw, 8, 1024),
        "height": image,
        "width": image,
        "kernel_height": kernel,
        "kernel_width": kernel,
        "stride_height": (stride := draw.choice([1, 1, 1, 2])),
        "stride_width": stride,
        "padding_height": kernel // 2,
        "padding_width": kernel // 2,
        "groups": channels if depthwise else 1,
    }


def _attention(draw: random.Random) -> Words:
    heads = draw.choice([4, 8, 12, 16, 20, 32])
    return {
        "batch": _size(draw, 1, 64),
        "heads": heads,
        "kv_heads": draw.choice([heads, heads, max(heads // 4, 1)]),
        "seq": _size(draw, 64, 8192),
        "head_dim": draw.choice([32, 64, 64, 96, 128, 128]),
        "causal": draw.choice([0, 1]),
    }


def _recurrent(draw: random.Random) -> Words:
    return {
        "batch": _size(draw, 1, 256),
        "steps": _size(draw, 1, 256),
        "input_size": _size(draw, 16, 2048),
        "hidden": _size(draw, 16, 2048),
        "layers": draw.choice([1, 1, 2, 4]),
        "directions": draw.choice([1, 1, 2]),
    }


def _matrix(draw: random.Random) -> Words:
    return {"rows": _size(draw, 1, 65536), "cols": _size(draw, 16, 16384)}


VECTOR_OPERATIONS: Final = (
    "add add_scalar mul mul_scalar div div_scalar pow pow_scalar relu gelu tanh softmax layer_norm rms_norm batch_norm "
    "group_norm dropout embedding cross_entropy"
).split()

DRAWERS: Final[Mapping[str, Drawer]] = {
    "linear": _linear,
    "bmm": _bmm,
    "conv2d": _convolution,
    "attention": _attention,
    **dict.fromkeys(("lstm", "gru", "rnn"), _recurrent),
    **dict.fromkeys(VECTOR_OPERATIONS, _matrix),
}


def draw_shapes(operation: str, count: int, *, seed: int) -> list[Words]:
    """Shape words of so many problems; the same for the same seed.

    Raises:
        UnknownOperationError: No benchmark for this operation; the message lists those there are.
    """
    drawer = DRAWERS.get(operation)
    if drawer is None:
        raise UnknownOperationError(f"No benchmark for {operation!r}; there are: {', '.join(sorted(DRAWERS))}.")
    draw = random.Random(f"{operation} {seed}")
    return [drawer(draw) for _ in range(count)]
