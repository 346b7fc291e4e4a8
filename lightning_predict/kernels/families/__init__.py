"""Families of operations, one file each, with everything that is known of an operation.

A file holds shape parameters, FLOPs and bytes, dispatcher calls, the backward pass, the estimate without a network, and
the input features of the networks. Importing this package registers those that most steps need; the
others are imported when a name is looked up that they may define (`import_for`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Final

from lightning_predict.kernels import collective
from lightning_predict.kernels.families import (
    attention,
    copies,
    elementwise,
    embedding,
    loss,
    matmul,
    norm,
    optimizer,
    reductions,
)

__all__ = [
    "attention",
    "collective",
    "copies",
    "elementwise",
    "embedding",
    "loss",
    "matmul",
    "norm",
    "optimizer",
    "reductions",
]

ON_DEMAND: Final[Mapping[str, str]] = {
    "convolution": r"conv",
    "fourier": r"fft",
    "linalg": r"linalg|cholesky|solve|inverse|det$|svd|matrix_exp|\b(lu|qr|eig)|_lu_|geqrf|or[gm]qr",
    "pooling": r"pool",
    "recurrent": r"lstm|gru|rnn",
    "sparse": r"sparse",
}
"""Families that few steps need, each with a pattern that the names of all its operations and calls match."""


def import_for(name: str) -> None:
    """Import the families on demand that may define an operation or a call."""
    for family, pattern in ON_DEMAND.items():
        if re.search(pattern, name):
            import_module(f"{__name__}.{family}")


def import_all() -> None:
    """Import all families."""
    for family in ON_DEMAND:
        import_module(f"{__name__}.{family}")
