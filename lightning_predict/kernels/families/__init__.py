"""Definitions of all operations: one file per family (matmul, attention, convolution, ...).

For each operation, the file defines shape parameters, FLOPs and bytes, dispatcher calls and the backward pass. The file
also defines the input features of the neural networks, and an estimate for GPUs without a network. Importing this
package registers all operations, which `kernels/__init__.py` does.
"""

from lightning_predict.kernels.families import (
    attention,
    collective,
    convolution,
    copies,
    elementwise,
    embedding,
    fourier,
    linalg,
    loss,
    matmul,
    norm,
    optimizer,
    pooling,
    quantized,
    recurrent,
    reductions,
    sparse,
)

__all__ = [
    "attention",
    "collective",
    "convolution",
    "copies",
    "elementwise",
    "embedding",
    "fourier",
    "linalg",
    "loss",
    "matmul",
    "norm",
    "optimizer",
    "pooling",
    "quantized",
    "recurrent",
    "reductions",
    "sparse",
]
