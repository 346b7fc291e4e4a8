"""Definitions of all operations: one file per family (matmul, attention, convolution, ...).

For each operation, the file defines shape parameters, FLOPs and bytes, dispatcher calls and the backward pass. The file
also defines the input features of the neural networks, and an estimate for GPUs without a network. Importing this
package registers the common families. `import_for` imports the other families when a matching name is looked up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Final

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
    "collective": r"^(all_reduce|all_gather|reduce_scatter|alltoall|broadcast)$",
    "convolution": r"conv",
    "fourier": r"fft",
    "linalg": r"linalg|cholesky|solve|inverse|det$|svd|matrix_exp|\b(lu|qr|eig)|_lu_|geqrf|or[gm]qr",
    "pooling": r"pool",
    "quantized": r"^(bitsandbytes|lightning_predict)::",
    "recurrent": r"lstm|gru|rnn",
    "sparse": r"sparse",
}
"""Rarely needed families, with a pattern that matches the names of all their operations and dispatcher calls."""


def import_for(name: str) -> None:
    """Import the families in `ON_DEMAND` whose pattern matches the name of an operation or call."""
    for family, pattern in ON_DEMAND.items():
        if re.search(pattern, name):
            import_module(f"{__name__}.{family}")


def import_all() -> None:
    """Import all families, including those that are imported on demand."""
    for family in ON_DEMAND:
        import_module(f"{__name__}.{family}")
