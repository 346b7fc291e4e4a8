"""Operations known by the bytes they move alone: more element-wise ones, reductions, pooling, copies, sorting, updates.

No table measured them; they are timed as a transfer of their traffic (`reductions.py`). Example::

    >>> from lightning_predict.kernels.operations import problem_batch
    >>> float(problem_batch("adamw", "float32", parameters=1000, fused=1).bytes_moved[0])  # 4 read, 3 written
    28000.0
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from lightning_predict.kernels.operations import Array, Columns, OperationKind, register

# Elements read and written of a (rows, cols) tensor.
BY_ELEMENT: Final[dict[str, tuple[float, float]]] = {
    **dict.fromkeys(("neg", "exp", "log", "sqrt", "sigmoid", "silu", "leaky_relu", "log_softmax"), (1, 1)),
    **dict.fromkeys(("sub", "where"), (2, 1)),
    # Gradient and what the forward pass kept; of dropout, the mask: a byte an element.
    **dict.fromkeys([f"{name}_backward" for name in ("relu", "gelu", "tanh", "sigmoid", "silu")], (2, 1)),
    "log_softmax_backward": (2, 1),
    "dropout_backward": (1.25, 1),
    "sum": (1, 0),
    "mean": (1, 0),
    "max": (1, 0),
    "argmax": (1, 0),
    "concat": (1, 1),
    "copy": (1, 1),
    "gather": (1, 1),
    "scatter": (1, 2),  # what is there already is read with its sector
    # Radix select by 8 bits a pass (PyTorch's for long rows): four passes over 4-byte keys count, one collects.
    "topk": (5, 0),
    # Radix sort of 4-byte keys with 8-byte indices: four passes, each reads and writes three times the key.
    "sort": (12, 12),
}

# Elements moved a parameter by a fused kernel, and by the multi-tensor implementation.
# Adam: parameter, gradient, two moments; multi-tensor: lerp, mul, addcmul, sqrt, div, add, addcdiv and the decay.
# Adagrad: parameter, gradient, sum of squares; multi-tensor: addcmul, sqrt, add, mul, addcdiv.
OPTIMIZERS: Final[dict[str, tuple[float, float]]] = {
    "adam": (7, 19),
    "adamw": (7, 21),
    "sgd": (5, 8),
    "adagrad": (5, 13),
}

POOLING_WORDS: Final = ("batch", "channels", "height", "width", "kernel_size", "stride")


def _by_element(name: str, reads: float, writes: float) -> OperationKind:
    return OperationKind(
        name=name,
        shape=("rows", "cols"),
        defaults={},
        units="vector",
        flops=lambda c: c["rows"] * c["cols"],
        reads=lambda c: (reads + writes) * c["rows"] * c["cols"],
    )


def _update(name: str, fused: float, multi_tensor: float) -> OperationKind:
    def moved(c: Columns) -> Array:
        per_parameter: Array = np.where(c["fused"] > 0, fused, multi_tensor)
        return per_parameter * c["parameters"]

    return OperationKind(
        name=name,
        shape=("parameters", "fused"),
        defaults={"fused": 0},
        units="vector",
        flops=lambda c: 10 * c["parameters"],
        reads=moved,
    )


def _pooled(c: Columns) -> Array:
    """Elements of the output."""
    rows = np.maximum(np.floor((c["height"] - c["kernel_size"]) / c["stride"]) + 1, 1)
    columns = np.maximum(np.floor((c["width"] - c["kernel_size"]) / c["stride"]) + 1, 1)
    pooled: Array = c["batch"] * c["channels"] * rows * columns
    return pooled


def _image(c: Columns) -> Array:
    return c["batch"] * c["channels"] * c["height"] * c["width"]


def _pooling(name: str, written: Callable[[Columns], Array]) -> OperationKind:
    return OperationKind(
        name=name,
        shape=POOLING_WORDS,
        defaults={"width": "height", "kernel_size": 2, "stride": "kernel_size"},
        units="vector",
        flops=lambda c: _pooled(c) * c["kernel_size"] ** 2,
        reads=lambda c: _image(c) + written(c),
        spellings={"image_size": ("height", "width")},
    )


register(
    *(_by_element(name, *counts) for name, counts in BY_ELEMENT.items()),
    *(_update(name, *counts) for name, counts in OPTIMIZERS.items()),
    _pooling("avg_pool2d", _pooled),
    _pooling("max_pool2d", lambda c: 3 * _pooled(c)),  # the value, and its place as 8 bytes
    # The same tensors the other way round: the gradient and the places are read, the image is written.
    _pooling("avg_pool2d_backward", _pooled),
    _pooling("max_pool2d_backward", lambda c: 3 * _pooled(c)),
    OperationKind(
        name="cast",
        shape=("rows", "cols", "source_bytes", "target_bytes"),
        defaults={"source_bytes": 4, "target_bytes": 2},
        units="vector",
        flops=lambda c: c["rows"] * c["cols"],
        reads=lambda c: c["rows"] * c["cols"] * (c["source_bytes"] + c["target_bytes"]),
        element_bytes=1,
    ),
)

POOLING: Final = ("avg_pool2d", "max_pool2d", "avg_pool2d_backward", "max_pool2d_backward")
MEMORY_BOUND: Final = (*BY_ELEMENT, *OPTIMIZERS, *POOLING, "cast")
"""Names of all of them."""
