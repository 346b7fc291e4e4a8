"""Sizes of problems to measure: drawn evenly over their logarithms, most of them as networks have them.

Example::

    >>> import random
    >>> draw = random.Random(0)
    >>> all(16 <= size(draw, 16, 4096) <= 4096 for _ in range(100))
    True
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Final

Words = dict[str, int]
Drawer = Callable[[random.Random], Words]

MULTIPLE_SHARE: Final = 0.7
"""Share of sizes that are multiples of 8, as most layers are; the rest is any number."""


def size(draw: random.Random, low: int, high: int) -> int:
    """A size between two bounds, even over its logarithm."""
    value = round(low * math.exp(math.log(high / low) * draw.random()))
    if value >= 16 and draw.random() < MULTIPLE_SHARE:
        value = round(value / 8) * 8
    return min(max(value, low), high)
