"""All benchmarks, by operation: add one by adding a row to the table of its file.

Example::

    >>> problems = draw_problems("linear", 3, seed=0)
    >>> len(problems), sorted(problems[0])
    (3, ['k', 'm', 'n'])
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

from lightning_predict.errors import UnknownOperationError
from lightning_predict.measuring.images import IMAGES
from lightning_predict.measuring.layers import LAYERS
from lightning_predict.measuring.linear_algebra import LINEAR_ALGEBRA
from lightning_predict.measuring.matrices import MATRICES
from lightning_predict.measuring.problems import Benchmark, Words
from lightning_predict.measuring.updates import UPDATES

BENCHMARKS: Final[Mapping[str, Benchmark]] = {**LAYERS, **IMAGES, **MATRICES, **LINEAR_ALGEBRA, **UPDATES}
"""Benchmarks by operation; each times the operation's backward passes as well."""


def benchmark_of(operation: str) -> Benchmark:
    """Return the benchmark of an operation.

    Raises:
        UnknownOperationError: There is none; the message lists those there are.
    """
    benchmark = BENCHMARKS.get(operation)
    if benchmark is None:
        raise UnknownOperationError(f"No benchmark for {operation!r}; there are: {', '.join(sorted(BENCHMARKS))}.")
    return benchmark


def draw_problems(operation: str, count: int, *, seed: int) -> list[Words]:
    """Shape words of so many problems; the same for the same seed.

    Raises:
        UnknownOperationError: As `benchmark_of`.
    """
    benchmark = benchmark_of(operation)
    draw = random.Random(f"{operation} {seed}")
    return [benchmark.draw(draw) for _ in range(count)]
