"""A product takes no longer than a larger one that holds it: whoever multiplies may pad.

Libraries do not always pad. For the smallest products they pick kernels that are several times slower than those of
their neighbours (bfloat16 on the L40S: 18.6 µs at m = 2, n = 64, k = 4096, and 4.3 µs at m = 8), and a network that
learns this also predicts it where it is not so. So the prediction of a product is held within 1 / 0.72 of those with a
side doubled, and 1 / 0.72² of those with two doublings: no doubling is then predicted 30 % faster. Only the neighbours
whose reference time leaves room for such a drop are computed. Example::

    >>> from lightning_predict.gpus import gpu
    >>> from lightning_predict.kernels.operations import problem_batch
    >>> batch = problem_batch("linear", "float32", m=64, n=64, k=64)
    >>> held = held_by_growth(batch, [gpu("T4")], np.array([[1.0]]), lambda grown, wanted: np.full(wanted.sum(), 0.5))
    >>> round(float(held[0, 0]), 3)  # the least of 1, 0.5 / 0.72 and 0.5 / 0.72²
    0.694
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Final

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.arrays import BoolArray
from lightning_predict.kernels.features import reference_seconds
from lightning_predict.kernels.odd_sizes import odd_size_seconds
from lightning_predict.kernels.operations import Array, ProblemBatch

GROWING: Final = ("linear", "bmm")
SIDES: Final = ("m", "n", "k")
LEAST_SHARE: Final = 0.72
"""Least share of a product's time that one with a side doubled may take."""

MOST_UTILISATION: Final = 0.6
"""Utilisation that the neighbours of a slow product are not taken to exceed, so that few of them need be computed."""

DOUBLINGS: Final = tuple(powers for powers in product(range(3), repeat=len(SIDES)) if 0 < sum(powers) <= 2)
"""Doublings of each side, up to two in all: where one drop follows another, the second must count for the first."""


def held_by_growth(
    batch: ProblemBatch, gpus: Sequence[Gpu], seconds: Array, timed: Callable[[ProblemBatch, BoolArray], Array]
) -> Array:
    """Seconds that no larger product undercuts by much.

    Args:
        batch: The problems; others than products stay as they are, and so do products of odd sizes, which are slower
            than the next even ones.
        gpus: The GPUs.
        seconds: As predicted, shape (gpus, problems).
        timed: Predicts other problems of the same operation where a mask of shape (gpus, problems) asks for it, as a
            flat array.

    Returns:
        Shape (gpus, problems), nowhere above `seconds`.
    """
    if batch.operation not in GROWING:
        return seconds
    held = seconds.copy()
    may_fall = odd_size_seconds(batch, gpus) == 0
    for powers in DOUBLINGS:
        grown = _grown(batch, powers)
        share = LEAST_SHARE ** sum(powers)
        # Neighbours whose reference is too long cannot undercut.
        wanted = may_fall & (reference_seconds(grown, gpus) < MOST_UTILISATION * share * held)
        if wanted.any():
            held[wanted] = np.minimum(held[wanted], timed(grown, wanted) / share)
    return held


def _grown(batch: ProblemBatch, powers: tuple[int, ...]) -> ProblemBatch:
    factors = {side: 2.0**power for side, power in zip(SIDES, powers, strict=True)}
    columns = {word: values * factors.get(word, 1.0) for word, values in batch.columns.items()}
    return ProblemBatch(batch.operation, batch.dtype, columns)
