"""A product takes no longer than a larger one that holds it: whoever multiplies may pad.

Libraries do not always pad. For the smallest products they pick kernels that are several times slower than those of
their neighbours (bfloat16 on the L40S: 18.6 µs at m = 2, n = 64, k = 4096, and 4.3 µs at m = 8), and a network that
learns this also predicts it where it is not so. So the prediction of a product is held within 1 / 0.72 of those with a
side doubled, and 1 / 0.72² of those with two doublings: no doubling is then predicted 30 % faster. Only the neighbours
whose reference time leaves room for such a drop are computed. Example::

    >>> from lightning_predict.gpus import gpu
    >>> from lightning_predict.kernels.operations import family_of, problem_batch
    >>> batch = problem_batch("linear", "float32", m=64, n=64, k=64)
    >>> family = family_of("linear", "float32")
    >>> def timed(grown, wanted):
    ...     return np.full(wanted.sum(), 0.5)
    >>> held = held_by_monotonicity(family, batch, [gpu("T4")], np.array([[1.0]]), timed)
    >>> round(float(held[0, 0]), 3)  # the least of 1, 0.5 / 0.72 and 0.5 / 0.72²
    0.694
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Final

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.arrays import BoolArray
from lightning_predict.kernels.features import reference_seconds
from lightning_predict.kernels.operations import Array, Family, ProblemBatch

LEAST_SHARE: Final = 0.72
"""Least share of a product's time that one with a side doubled may take."""

MOST_UTILISATION: Final = 0.6
"""Utilisation that the neighbours of a slow product are not taken to exceed, so that few of them need be computed."""

MOST_DOUBLINGS: Final = 2
"""Of all sides together: where one drop follows another, the second must count for the first."""


def held_by_monotonicity(
    family: Family,
    batch: ProblemBatch,
    gpus: Sequence[Gpu],
    seconds: Array,
    timed: Callable[[ProblemBatch, BoolArray], Array],
) -> Array:
    """Hold seconds so that no larger product undercuts them by much.

    Args:
        family: Family of the problems; without sides that grow, all stay as they are.
        batch: The problems.
        gpus: The GPUs.
        seconds: As predicted, shape (gpus, problems).
        timed: Predicts other problems of the same operation where a mask of shape (gpus, problems) asks for it, as a
            flat array.

    Returns:
        Shape (gpus, problems), nowhere above `seconds`.
    """
    if not family.growing:
        return seconds
    held = seconds.copy()
    doublings = [
        p for p in product(range(MOST_DOUBLINGS + 1), repeat=len(family.growing)) if 0 < sum(p) <= MOST_DOUBLINGS
    ]
    for powers in doublings:
        grown = _grown(batch, dict(zip(family.growing, powers, strict=True)))
        share = LEAST_SHARE ** sum(powers)
        # Neighbours whose reference is too long cannot undercut.
        wanted = reference_seconds(grown, gpus) < MOST_UTILISATION * share * held  # (gpus, problems)
        if wanted.any():
            held[wanted] = np.minimum(held[wanted], timed(grown, wanted) / share)
    return held


def _grown(batch: ProblemBatch, powers: Mapping[str, int]) -> ProblemBatch:
    columns = {name: values * 2.0 ** powers.get(name, 0) for name, values in batch.columns.items()}
    return ProblemBatch(batch.operation, batch.dtype, columns)
