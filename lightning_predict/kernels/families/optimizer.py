"""Optimizers: one kernel for all parameters, or PyTorch's multi-tensor implementation.

Example::

    >>> from lightning_predict.kernels.operations import shape_batch
    >>> float(shape_batch("adamw", "float32", parameters=1000, fused=1).bytes_moved[0])  # 4 read, 3 written
    28000.0
"""

from __future__ import annotations

import numpy as np

from lightning_predict.kernels.families.elementwise import as_transfer
from lightning_predict.kernels.operations import Array, Columns, OperationSpec, register

Moved = tuple[int, int]  # Elements read and written for each parameter


def _update(name: str, *, fused: Moved, multi_tensor: Moved) -> OperationSpec:
    """Return an optimizer defined by the elements that it reads and writes per parameter."""

    def moved(c: Columns, place: int) -> Array:
        per_parameter: Array = np.where(c["fused"] > 0, fused[place], multi_tensor[place])
        return per_parameter * c["parameters"]

    return OperationSpec(
        name=name,
        shape=("parameters", "fused"),
        defaults={"fused": 0},
        units="vector",
        flops=lambda c: 10 * c["parameters"],
        reads=lambda c: moved(c, 0),
        writes=lambda c: moved(c, 1),
        estimators=(as_transfer(),),
    )


# Fused: parameter, gradient and state are read; all but the gradient are written. Multi-tensor: (read, written) of each
# operation.
# Adam: lerp (2, 1), mul (1, 1), addcmul (3, 1), sqrt (1, 1), div (1, 1), add (1, 1), addcdiv (3, 1); AdamW: mul (1, 1).
# SGD with momentum: mul (1, 1), add (2, 1), add (2, 1).
# Adagrad: addcmul (2, 1: the gradient counts once; for Adam, twice), sqrt, add and mul (1, 1), addcdiv (3, 1).
register(
    _update("adam", fused=(4, 3), multi_tensor=(12, 7)),
    _update("adamw", fused=(4, 3), multi_tensor=(13, 8)),
    _update("sgd", fused=(3, 2), multi_tensor=(5, 3)),
    _update("adagrad", fused=(3, 2), multi_tensor=(8, 5)),
)
