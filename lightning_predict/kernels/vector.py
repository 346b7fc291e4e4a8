"""Operations bound by memory: element-wise families, normalisations, look-ups, copies.

Each is a row of a table: elements read and written, and floating-point operations, per element of a (rows, cols)
tensor. `transfer` is the general one, counted in bytes: whatever is known only by what it reads and writes. Example::

from lightning_predict.kernels.operations import problem_batch
    >>> float(problem_batch("add", "float32", rows=2, cols=3).bytes_moved[0])  # (2 reads + 1 write) x 6 x 4 bytes
    72.0
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lightning_predict.kernels.features_vector import VECTOR
from lightning_predict.kernels.operations import Array, Columns, OperationKind, register
from lightning_predict.kernels.traffic import UNTRANSLATED

# name: (elements read, elements written, floating-point operations), each per element of the output.
# Transcendental counts follow Lin et al.'s measured equivalents for gelu, tanh and softmax. powf takes a logarithm
# and an exponential in extended precision: twice a tanh.
VECTOR_OPERATIONS: Final[dict[str, tuple[float, float, float]]] = {
    "add": (2, 1, 1),
    "add_scalar": (1, 1, 1),
    "mul": (2, 1, 1),
    "mul_scalar": (1, 1, 1),
    "div": (2, 1, 1),
    "div_scalar": (1, 1, 1),
    "pow": (2, 1, 40),
    "pow_scalar": (1, 1, 40),
    "relu": (1, 1, 1),
    "gelu": (1, 1, 20),
    "tanh": (1, 1, 20),
    "softmax": (1, 1, 5),
    "softmax_backward": (2, 1, 4),
    "layer_norm": (1, 1, 8),
    "layer_norm_backward": (2, 1, 14),
    "rms_norm": (1, 1, 5),
    "rms_norm_backward": (2, 1, 10),
    # Training-mode batch and group norm read their input twice: once for the statistics, once to normalise.
    "batch_norm": (2, 1, 8),
    "batch_norm_backward": (4, 1, 14),
    "group_norm": (2, 1, 8),
    "group_norm_backward": (4, 1, 14),
    "dropout": (1, 1.25, 2),
    "embedding": (1, 1, 0),
    # Scatter-add of gradient rows into a zeroed table: the rows are read, and read and written where they land.
    "embedding_backward": (2, 1, 1),
    "cross_entropy": (1, 1, 5),
    "cross_entropy_backward": (1, 1, 4),
}

NORM_BACKWARD_RATIOS: Final = {"layer_norm_backward": 1.5, "rms_norm_backward": 3.1}
"""Backward over forward pass of norms, which add up their weights' gradients in a second kernel: counts of elements do
not tell how long that takes. Of PyTorch's kernels in cudnn-frontend's tables, bfloat16: the median of 36 rows of
rms_norm (2.7 on the H200, 3.2 on the GB200, 3.3 on the GB300); of layer_norm one shape alone (2.0, 1.3, 1.3)."""

TRANSFER_RATIOS: Final = {"rms_norm": 1.1}
"""Over a transfer of the same bytes: PyTorch's fused rms_norm in the same 36 rows (median 1.09; 0.9 to 1.2 in half of
them), far from the layer_norm and softmax of older libraries that networks were trained on."""


def _elements(c: Columns) -> Array:
    return c["rows"] * c["cols"]


def _vector_kind(name: str, reads: float, writes: float, flops: float) -> OperationKind:
    return OperationKind(
        name=name,
        shape=("rows", "cols"),
        defaults={},
        units="vector",
        flops=lambda c: flops * _elements(c),
        reads=lambda c: reads * _elements(c),
        writes=lambda c: writes * _elements(c),
        families=() if name in {*NORM_BACKWARD_RATIOS, *TRANSFER_RATIOS} else (VECTOR,),
    )


register(*(_vector_kind(name, *counts) for name, counts in VECTOR_OPERATIONS.items()))

register(
    OperationKind(
        name="transfer",
        shape=("read_bytes", "write_bytes", "flops"),
        defaults={"read_bytes": 0, "write_bytes": 0, "flops": 0},
        units="vector",
        flops=lambda c: c["flops"],
        reads=lambda c: c["read_bytes"],
        writes=lambda c: c["write_bytes"],
        families=(VECTOR,),
        element_bytes=1,
    ),
    # What a call whose translator failed touches. Its work is not known: an addmm taken for its bytes was 42 times
    # faster than a product of that size.
    OperationKind(
        name=UNTRANSLATED,
        shape=("read_bytes", "write_bytes", "flops"),
        defaults={"read_bytes": 0, "write_bytes": 0, "flops": 0},
        units="vector",
        flops=lambda c: c["flops"],
        reads=lambda c: c["read_bytes"] + c["write_bytes"],
        element_bytes=1,
        typical_spread=40.0,
    ),
    OperationKind(
        name="host_copy",
        shape=("size_bytes",),
        defaults={},
        units="link",
        flops=lambda c: np.zeros_like(c["size_bytes"]),
        reads=lambda c: c["size_bytes"],
        element_bytes=1,
    ),
)
