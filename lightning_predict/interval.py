"""A predicted value with its 90 % interval; scalars, or arrays of equal shape.

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
        """Return the interval from `middle / spread` to `middle * spread`."""
        return cls(middle, middle, middle).widened(spread)

    def widened(self, spread: Value | float) -> Interval[Value]:
        """Divide the lower end and multiply the upper end by a factor."""
        return Interval(self.low / spread, self.middle, self.high * spread)

    def scaled(self, factor: Value | float) -> Interval[Value]:
        """Multiply the value and both ends by a factor."""
        return self.map(lambda value: value * factor)

    def added(self, amount: Value | float | Interval[Value]) -> Interval[Value]:
        """Add an exact amount, or add another interval end by end, assuming fully correlated errors."""
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
            change: Function of a value of this interval and the corresponding values of the other intervals.
            others: Intervals for further arguments of `change`.
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
"""Probability that a value is below the interval, and probability that a value is above the interval."""

NORMAL_95: Final = NormalDist().inv_cdf(1 - OUTSIDE)
"""Number of standard deviations between the middle and an end of the interval of a normal distribution."""

ODDS: Final = (1 - OUTSIDE) / OUTSIDE
"""Odds that a value is inside one end of the interval. Log-odds are linear in log time on each side of the middle."""

MIN_HALF_WIDTH: Final = 1e-3
"""Minimum half width in log time, used for an exactly known time."""

HALVINGS: Final = 24
"""Number of bisection steps when searching an end of an interval: a precision of one millionth."""


def ends_of_later(one: Interval[Array], other: Interval[Array]) -> tuple[Array, Array]:
    """Return the 90 % interval of the maximum of two times with independent errors.

    The maximum is above both times. If the intervals overlap, its low end is therefore above both low ends, and its
    high end is slightly above both high ends. Each log time has a logistic distribution on each side of its middle.
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
    """Return the quantile `share` of the maximum of the times, by bisection between `least` and `most`."""
    import numpy as np

    for _ in range(HALVINGS):
        between = np.sqrt(least * most)
        is_early = np.prod([_share_before(part, between) for part in parts], axis=0) < share
        least, most = np.where(is_early, between, least), np.where(is_early, most, between)
    found: Array = np.sqrt(least * most)
    return found


def _share_before(part: Interval[Array], time: Array) -> Array:
    """Return the probability that a time with this interval is below `time`."""
    import numpy as np

    away = np.log(time / part.middle)
    half = np.where(away < 0, np.log(part.middle / part.low), np.log(part.high / part.middle))
    share: Array = 1 / (1 + ODDS ** -(away / np.maximum(half, MIN_HALF_WIDTH)))
    return share
