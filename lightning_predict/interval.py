"""A predicted value with its 90 % interval: scalars, or arrays of one shape.

Example::

    >>> step = Interval(0.4, 0.5, 0.6)
    >>> step.scaled(100.0)
    Interval(low=40.0, middle=50.0, high=60.0)
    >>> step.added(0.1).clamp_max(0.65)
    Interval(low=0.5, middle=0.6, high=0.65)
    >>> Interval.from_factor(1.0, 1.25)
    Interval(low=0.8, middle=1.0, high=1.25)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

Value = TypeVar("Value", "float", "Array")


@final
@dataclass(frozen=True, slots=True)
class Interval(Generic[Value]):
    """A predicted value and the ends of its 90 % interval.

    Attributes:
        low: Lower end of the 90 % interval.
        middle: The prediction.
        high: Upper end of the 90 % interval.
    """

    low: Value
    middle: Value
    high: Value

    @classmethod
    def from_factor(cls, middle: Value, spread: Value | float) -> Interval[Value]:
        """Make an interval from a value and the factor between it and either end."""
        return cls(middle, middle, middle).widened(spread)

    def widened(self, spread: Value | float) -> Interval[Value]:
        """Widen the interval by a factor on both sides."""
        return Interval(self.low / spread, self.middle, self.high * spread)

    def scaled(self, factor: Value | float) -> Interval[Value]:
        """Multiply the value and both ends by a factor."""
        return self.map(lambda value: value * factor)

    def added(self, amount: Value | float | Interval[Value]) -> Interval[Value]:
        """Add an exact amount, or add an interval end by end, assuming fully correlated errors."""
        if isinstance(amount, Interval):
            return self.map(operator.add, amount)
        return self.map(lambda value: value + amount)

    def clamp_max(self, limit: Value | float) -> Interval[Value]:
        """Clamp the value and both ends to an upper limit."""
        return self.map(lambda value: _chosen(value, limit, takes_smaller=True))

    def clamp_min(self, limit: Value | float) -> Interval[Value]:
        """Clamp the value and both ends to a lower limit."""
        return self.map(lambda value: _chosen(value, limit, takes_smaller=False))

    def contains(self, value: float) -> bool:
        """Return whether a number lies within the interval."""
        return bool(self.low <= value <= self.high)

    def map(self, change: Callable[..., Any], *others: Interval[Any]) -> Interval[Any]:
        """Apply a function to the value and to each end.

        Args:
            change: Takes one value of this interval and the corresponding value of each other interval.
            others: Further intervals.
        """
        every = (self, *others)
        return Interval(
            change(*(one.low for one in every)),
            change(*(one.middle for one in every)),
            change(*(one.high for one in every)),
        )


def _chosen(value: Any, limit: Any, *, takes_smaller: bool) -> Any:
    if isinstance(value, float | int) and isinstance(limit, float | int):
        return min(value, limit) if takes_smaller else max(value, limit)
    import numpy as np

    return np.minimum(value, limit) if takes_smaller else np.maximum(value, limit)


OUTSIDE: Final = 0.05
"""Share of cases below an interval, and above it."""

NORMAL_95: Final = NormalDist().inv_cdf(1 - OUTSIDE)
"""Standard deviations of a normal distribution from its middle to either end of an interval."""

ODDS: Final = (1 - OUTSIDE) / OUTSIDE
"""Odds of a case on the inner side of an end. Log-odds are linear in log time on either side of the middle."""

MIN_HALF_WIDTH: Final = 1e-3
"""Minimum half width in log time, for a time that is certain."""

HALVINGS: Final = 24
"""Number of bisections to find an end, for a precision of one millionth."""


def ends_of_later(one: Interval[Array], other: Interval[Array]) -> tuple[Array, Array]:
    """Return the 90 % interval of the later of two times with independent errors.

    Both must be over. If the intervals overlap, the low end is therefore above either low end, and the high end
    slightly above either high end. Each log time is assumed logistic on either side of its middle.
    """
    import numpy as np

    low, high = np.maximum(one.low, other.low), np.maximum(one.high, other.high)
    both = (one.low < other.high) & (other.low < one.high)
    parts = [each.map(lambda ends: ends[both]) for each in (one, other)]
    if both.any():
        middle = np.maximum(*(part.middle for part in parts))
        beyond = np.maximum(*(part.high**2 / part.middle for part in parts))
        low[both] = _by_which(parts, OUTSIDE, low[both], middle)
        high[both] = _by_which(parts, 1 - OUTSIDE, high[both], beyond)
    return low, high


def _by_which(parts: Sequence[Interval[Array]], share: float, least: Array, most: Array) -> Array:
    """Find the time by which all parts are over with this probability, by bisection between two times."""
    import numpy as np

    for _ in range(HALVINGS):
        between = np.sqrt(least * most)
        is_early = np.prod([_share_before(part, between) for part in parts], axis=0) < share
        least, most = np.where(is_early, between, least), np.where(is_early, most, between)
    found: Array = np.sqrt(least * most)
    return found


def _share_before(part: Interval[Array], time: Array) -> Array:
    """Return the probability that a part is over before a time."""
    import numpy as np

    away = np.log(time / part.middle)
    half = np.where(away < 0, np.log(part.middle / part.low), np.log(part.high / part.middle))
    share: Array = 1 / (1 + ODDS ** -(away / np.maximum(half, MIN_HALF_WIDTH)))
    return share
