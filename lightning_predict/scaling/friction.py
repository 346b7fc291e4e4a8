"""What training together costs beyond its collectives: they disturb the work beside them, and all wait for the slowest.

Example::

    >>> round(slowest_of(8), 2)  # the largest of eight draws lies 1.4 standard deviations above the mean
    1.41
    >>> FRICTION.slowdown
    1.5
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, final

import numpy as np

from lightning_predict.kernels.operations import Array
from lightning_predict.timeline.communication import Walked


def slowest_of(count: int) -> float:
    """Mean of the largest of so many draws of a standard normal distribution (Blom's approximation); 0 for one."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Friction:
    """What training together costs beyond the collectives alone.

    The figures suit the published training throughputs of one to eight GPUs best, of those of a coarse grid; the
    accuracy report leaves out each GPU in turn (`benchmarks/accuracy/many_gpus.py`).

    Attributes:
        slowdown: Time of a collective beside a training step over that of the same collective alone.
        contention: Seconds by which computing slows down for each second of a transfer beside it, as both need memory
            and processors.
        straggler_spread: Standard deviation of one GPU's step, as a share of it. All wait for the slowest, so that n
            GPUs take as long as the largest of n draws.
    """

    slowdown: float = 1.5
    contention: float = 0.9
    straggler_spread: float = 0.04

    def seconds(self, walked: Walked, single: Array, *, replicas: int, spread: Array | float = 1.0) -> Array:
        """The step.

        Args:
            walked: What the two queues give.
            single: Seconds of the step on one GPU.
            replicas: Groups of GPUs that wait for each other.
            spread: Times the mean wait for the slowest.
        """
        hidden = np.maximum(walked.communication_seconds - walked.exposed_seconds, 0.0)
        waiting = spread * self.straggler_spread * slowest_of(replicas) * single
        seconds: Array = walked.seconds + self.contention * hidden + waiting
        return seconds


FRICTION: Final = Friction()

WAITS: Final = np.array([0.0, 1.0, 2.5])
"""Low end, middle and high end of the wait for the slowest, over its mean."""
