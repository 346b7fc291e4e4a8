"""Features of operations bound by memory: bytes read and written, work per byte, and whether rows are reduced.

An operation is known by its counts, not by its name, so that one which was never measured is served as well:
`transfer` (bytes read, bytes written, FLOPs) is the element-wise case. Kernels that reduce each row (softmax,
normalisations) see the row's length as well. Example::

    >>> from lightning_predict.gpus import gpu
    >>> from lightning_predict.kernels.operations import problem_batch
    >>> add = problem_batch("add", "float32", rows=1024, cols=1024)
    >>> copy = problem_batch("transfer", "float32", read_bytes=2 * 2**22, write_bytes=2**22, flops=2**20)
    >>> all((vector_features(add, [gpu("T4")])[name] == values).all()
    ...     for name, values in vector_features(copy, [gpu("T4")]).items())
    True
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.features import (
    alignment,
    log2,
    machine_features,
    multiprocessors,
    per_gpu,
    wave_quantisation,
    work_features,
)
from lightning_predict.kernels.operations import Array, Family, NamedFeatures, ProblemBatch

ROW_REDUCTIONS: Final = frozenset(
    {
        "softmax",
        "softmax_backward",
        "layer_norm",
        "cross_entropy",
        "cross_entropy_backward",
    }
)
"""Operations whose kernels keep a whole row together."""

ELEMENTS_PER_BLOCK: Final = 1024
"""Elements that one block of an element-wise kernel takes (256 threads, 4 elements each)."""


STACKED_MEMORY: Final = frozenset({(7, 0), (8, 0), (9, 0), (10, 0), (10, 3)})
"""Compute capabilities of dies with HBM, which delivers more of its bandwidth than GDDR does. The P100's, the first, is
not among them: in the public tables it delivers as little as GDDR."""


def vector_features(batch: ProblemBatch, gpus: Sequence[Gpu]) -> NamedFeatures:
    """All features, by name."""
    read, written = batch.bytes_read, batch.bytes_written
    total = np.maximum(read + written, 1.0)
    named: dict[str, Array] = {
        "bytes": log2(total)[None, :],
        "written_share": (written / total)[None, :],
        "flops_per_byte": np.log2(batch.flops / total + 2.0**-4)[None, :],
    }
    reduces_rows = batch.operation in ROW_REDUCTIONS
    ones = np.ones_like(total)
    rows = batch.columns["rows"] if reduces_rows else ones
    cols = batch.columns["cols"] if reduces_rows else ones
    slots = multiprocessors(gpus)
    waves, tail = wave_quantisation(rows[None, :], slots)
    named["reduces_rows"] = np.full((1, 1), float(reduces_rows))
    named["rows"] = log2(rows)[None, :]
    named["cols"] = log2(cols)[None, :]
    named["cols_alignment"] = alignment(cols, 32)
    named["row_waves"] = log2(waves) * reduces_rows
    named["row_tail"] = log2(tail) * reduces_rows
    element_waves, element_tail = wave_quantisation(np.ceil(total / 4 / ELEMENTS_PER_BLOCK)[None, :], slots * 8)
    named["element_waves"] = log2(element_waves)
    named["element_tail"] = log2(element_tail)
    named["stacked_memory"] = per_gpu(gpus, lambda gpu: gpu.compute_capability in STACKED_MEMORY)
    return named | work_features(batch, gpus) | machine_features(batch, gpus)


VECTOR: Final = Family(
    name="vector",
    dtypes=("float32", "float16", "bfloat16"),
    describe=vector_features,
)
