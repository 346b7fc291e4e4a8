"""Launches that grew while a table was measured, taken off its times.

NeuSight's convolutions come in the order in which they were timed: random shapes, the same on every GPU. The shortest
call of each stretch of rows gets longer and longer, on all GPUs alike and whatever the shapes: from about 0.07 ms at
the top to 0.3 ms (V100) or 0.8 ms (P100, P4) at the bottom. The host took more time before each launch the more
convolutions it had run. That is no time of the GPU, and no shape explains it, so it is taken off. Example::

    >>> growing_launch(np.array([5.0, 2.0, 9.0, 4.0, 8.0])).tolist()  # 2 and 4 are undercut by nothing below them
    [2.0, 2.0, 3.0, 4.0, 8.0]
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lightning_predict.kernels.arrays import BoolArray
from lightning_predict.kernels.operations import Array

GROWING_LAUNCHES: Final = frozenset({("neusight", "conv2d")})
"""Source and operation of tables that are in the order of their measurement and whose launches grew."""

SHORTEST_SECONDS: Final = 10e-6
"""Of a call that took no longer than the launch, this is left: what its kernels took at least."""

MOST_LAUNCH: Final = 0.7
"""Calls of which the launch was a larger share are left out: what remains of them is mostly error."""


def growing_launch(seconds: Array) -> Array:
    """A launch that only grows and exceeds no call: the calls that no later one undercuts, joined by straight lines.

    Args:
        seconds: Times of calls in the order of their measurement, shape (calls,).

    Returns:
        Seconds of launch in each call, shape (calls,).
    """
    undercut = np.minimum.accumulate(seconds[::-1])[::-1]
    rows = np.arange(len(seconds))
    shortest = seconds == undercut
    launch: Array = np.minimum(np.interp(rows, rows[shortest], seconds[shortest]), seconds)
    return launch


def without_launch(seconds: Array) -> tuple[Array, BoolArray]:
    """What calls of a growing launch took on the device, and of which calls that says something.

    Args:
        seconds: Times of calls in the order of their measurement, shape (calls,).

    Returns:
        Seconds on the device, at least `SHORTEST_SECONDS`, and a mask; each of shape (calls,).
    """
    launch = growing_launch(seconds)
    return seconds - launch + SHORTEST_SECONDS, launch < MOST_LAUNCH * seconds
