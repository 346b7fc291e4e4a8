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

import math
import operator
from collections.abc import Callable, Iterable
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
    """A predicted value and the ends of its 90 % interval."""

    low: Value  # Lower end of the 90 % interval
    middle: Value  # The prediction
    high: Value  # Upper end of the 90 % interval

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
            change(*(interval.low for interval in every)),
            change(*(interval.middle for interval in every)),
            change(*(interval.high for interval in every)),
        )


NOTHING: Final = Interval(0.0, 0.0, 0.0)  # Seconds of something that does not happen


def around(middle: float, parts: Iterable[Interval[float]]) -> Interval[float]:
    """Return the interval of a sum whose parts have independent errors."""
    sides = [(part.middle - part.low, part.high - part.middle) for part in parts]
    down, up = (math.hypot(*each) for each in zip(*sides, strict=True))
    return Interval(max(0.0, middle - down), middle, middle + up)


def _chosen(value: Any, limit: Any, *, takes_smaller: bool) -> Any:
    if isinstance(value, float | int) and isinstance(limit, float | int):
        return min(value, limit) if takes_smaller else max(value, limit)
    import numpy as np

    return np.minimum(value, limit) if takes_smaller else np.maximum(value, limit)


CONFIDENCE: Final = 0.9  # Probability that an interval contains the actual value
OUTSIDE: Final = (1 - CONFIDENCE) / 2  # Probability that a value is below the interval; above, it is the same
NORMAL_95: Final = NormalDist().inv_cdf(1 - OUTSIDE)  # From the middle to an end, in standard deviations
