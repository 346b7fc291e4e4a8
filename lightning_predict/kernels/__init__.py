"""Kernel models: from what a Trace recorded to seconds on a GPU.

`operations.py` is the registry of operations, which one file per family fills (`families/`); `translation.py` finds in
it the problems that a recorded call computes. `roofline.py` is the bound, `wave_scaling.py` Habitat's method,
`utilisation.py` the trained models, which are held to larger problems (`monotonicity.py`) and lesser GPUs;
`timing.py` says where a problem's time can come from, best first, and what it may not pass; `unknown_operations.py`
names what no source knows; `choice.py` decides where a measurement serves an operation, and how much it counts.
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
