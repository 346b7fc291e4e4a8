"""Optimizers: one kernel for all parameters, or PyTorch's multi-tensor implementation.

Example::

    >>> from lightning_predict.kernels.operations import problem_batch
    >>> float(problem_batch("adamw", "float32", parameters=1000, fused=1).bytes_moved[0])  # 4 read, 3 written
    28000.0
"""

from __future__ import annotations

import numpy as np

from lightning_predict.kernels.families.elementwise import as_transfer
from lightning_predict.kernels.operations import Array, Columns, OperationKind, register


def _update(name: str, *, fused: float, multi_tensor: float) -> OperationKind:
    """Describe an optimizer by the elements that it moves a parameter."""

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
        proxy=as_transfer(),
    )


# Adam: parameter, gradient, two moments; multi-tensor: lerp, mul, addcmul, sqrt, div, add, addcdiv and the decay.
# Adagrad: parameter, gradient, sum of squares; multi-tensor: addcmul, sqrt, add, mul, addcdiv.
register(
    _update("adam", fused=7, multi_tensor=19),
    _update("adamw", fused=7, multi_tensor=21),
    _update("sgd", fused=5, multi_tensor=8),
    _update("adagrad", fused=5, multi_tensor=13),
)
