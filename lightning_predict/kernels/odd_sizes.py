"""16-bit products of odd sizes, which tensor cores are fed with one element at a time.

A row-major matrix with an odd number of columns has rows that start at addresses which no wider load may use. cuBLAS 11
and later have kernels for that, at a rate of their own that newer tensor cores do not raise; before, such products did
not run on tensor cores at all. No public table measured them. Example::

    >>> from lightning_predict.gpus import gpu
    >>> from lightning_predict.kernels.operations import problem_batch
    >>> batch = problem_batch("linear", "bfloat16", m=4096, n=[50257, 50304], k=768)
    >>> (odd_size_seconds(batch, [gpu("A100-SXM-40GB")]) * 1e3).round(1).tolist()
    [[2.7, 0.0]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.operations import Array, Problem, ProblemBatch

ODD_SIZE_FLOPS_PER_CLOCK: Final = 768.0
"""FLOPs that a multiprocessor computes in a clock at odd sizes: three quarters of what Volta's tensor cores do. From
one account, on the A100: nanoGPT trains a quarter faster with 50304 words than with 50257."""

ODD_SIZE_SPREAD: Final = 2.0
"""Extra factor upwards: the library may be one that leaves the tensor cores."""


def odd_size_seconds(batch: ProblemBatch, gpus: Sequence[Gpu]) -> Array:
    """Least seconds of each product of odd sizes, shape (gpus, problems); 0 where no size is odd."""
    if not _may_be_odd(batch.operation, batch.dtype):
        return np.zeros((len(gpus), len(batch)))
    sizes = np.rint(np.stack([batch.columns["n"], batch.columns["k"]]))
    is_odd = ((sizes % 2 == 1) & (sizes > 1)).any(axis=0)
    rates = [gpu.streaming_multiprocessors * gpu.boost_clock_hz * ODD_SIZE_FLOPS_PER_CLOCK for gpu in gpus]
    seconds: Array = np.where(is_odd, batch.flops, 0.0)[None, :] / np.array(rates)[:, None]
    return seconds


def is_odd_size(problem: Problem) -> bool:
    """True for a 16-bit product of which a row starts at an odd element."""
    if not _may_be_odd(problem.operation, problem.dtype):
        return False
    *_, n, k = problem.dims
    return any(size > 1 and round(size) % 2 == 1 for size in (n, k))


def _may_be_odd(operation: str, dtype: str) -> bool:
    return operation in ("linear", "bmm") and dtype in ("float16", "bfloat16")
