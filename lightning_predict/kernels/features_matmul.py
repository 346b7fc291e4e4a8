"""Features of matrix products: `linear` and `bmm`.

A linear layer is one product with all rows folded together; a batched product is `b` separate ones. Example::

    >>> from lightning_predict.gpus import gpu
    >>> from lightning_predict.kernels.operations import problem_batch
    >>> batch = problem_batch("linear", "bfloat16", b=2, m=64, n=128, k=512)
    >>> float(matmul_features(batch, [gpu("T4")])["rows"][0, 0])  # log2(2 x 64)
    7.0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.features import (
    alignment,
    clock_features,
    log2,
    machine_features,
    multiprocessors,
    tile_features,
    work_features,
)
from lightning_predict.kernels.operations import Array, Family, NamedFeatures, ProblemBatch

TILES: Final = ((64, 64), (128, 64), (64, 128), (128, 128), (256, 128), (128, 256), (256, 256))
"""Output tiles of the kernels that cuBLAS and CUTLASS pick most."""


def canonical_shape(batch: ProblemBatch) -> tuple[Array, Array, Array, Array]:
    """Copies, rows, columns and depth: the weight of a linear layer is shared, so its copies are rows."""
    c = batch.columns
    if batch.operation == "linear":
        return np.ones_like(c["b"]), c["b"] * c["m"], c["n"], c["k"]
    return c["b"], c["m"], c["n"], c["k"]


def matmul_features(batch: ProblemBatch, gpus: Sequence[Gpu]) -> NamedFeatures:
    """All features, by name."""
    copies, rows, cols, depth = canonical_shape(batch)
    shape = {"copies": copies, "rows": rows, "cols": cols, "depth": depth}
    named: dict[str, Array] = {name: log2(values)[None, :] for name, values in shape.items()}
    named["narrow"] = log2(np.minimum(rows, cols))[None, :]
    # Few output tiles over a long depth are split along it; the ratio says how much there is to split.
    named["depth_per_slot"] = log2(depth[None, :] * multiprocessors(gpus)) - log2(copies * rows * cols)[None, :]
    for name in ("rows", "cols", "depth"):
        named[f"{name}_alignment"] = alignment(shape[name])
    named["batched"] = np.full((1, 1), float(batch.operation == "bmm"))
    named["float16"] = np.full((1, 1), float(batch.dtype == "float16"))
    named |= tile_features(rows, cols, copies, gpus, TILES)
    return named | work_features(batch, gpus) | clock_features(gpus) | machine_features(batch, gpus)


SINGLE_PRECISION: Final = Family(name="matmul_single", dtypes=("float32",), describe=matmul_features)
HALF_PRECISION: Final = Family(name="matmul_half", dtypes=("float16", "bfloat16"), describe=matmul_features)
