"""Kernel models: from what a Trace recorded to seconds on a GPU.

`operations.py` is the registry of operations, which one file per family fills (`families/`). `translation.py` finds in
it the problems that a recorded call computes, `traffic.py` the bytes of any other call; `fusion.py` rewrites a step as
a compiler would run it. `timing.py` says where a problem's time can come from, best first, and what it may not pass:
`models.py` has the trained models and `features.py` what networks see, `collective.py` and `fabric.py` what GPUs
exchange, `roofline.py` what a GPU's units give. `choice.py` decides where a measurement serves an operation, and how
much it counts (`wave_scaling.py` is Habitat's method), with what moves a time whatever its source (`corrections.py`).
`operator_times.py` times one operation for a user.
"""

from __future__ import annotations

# Importing a family registers its operations and translators.
from lightning_predict.kernels import collective
from lightning_predict.kernels.families import (
    attention,
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
    "recurrent",
    "reductions",
    "sparse",
]
