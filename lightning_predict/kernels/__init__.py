"""Kernel models: from what a Trace recorded to seconds on a GPU.

`operations.py` has the records and the table of operations, `translation.py` the way from the dispatcher's names to
them; one file a family fills both (`matmul.py`, `convolution.py`, `attention.py`, `recurrent.py`, `vector.py`,
`linear_algebra.py`, `fourier.py`, `sparse.py`).
`roofline.py` is the bound, `wave_scaling.py` Habitat's method, `utilisation.py` the trained models, which `growth.py`
and `lesser_gpus.py` hold to larger problems and lesser GPUs; `estimates.py` takes the best of them for a problem and
says which it was, `unknown_operations.py` names what none of them knows; `choice.py` decides where a measurement
serves an operation, and how much it counts.
"""

from __future__ import annotations

# Importing a family registers its operations and translators.
from lightning_predict.kernels import (
    attention,
    collective,
    embedding,
    fourier,
    linear_algebra,
    matmul,
    memory_bound,
    recurrent,
    sparse,
    vector,
    vector_translation,
)
from lightning_predict.kernels.families import convolution

__all__ = [
    "attention",
    "collective",
    "convolution",
    "embedding",
    "fourier",
    "linear_algebra",
    "matmul",
    "memory_bound",
    "recurrent",
    "sparse",
    "vector",
    "vector_translation",
]
