"""A predicted value with its 90 % interval: scalars, or arrays of one shape.

Example::

    >>> step = Interval(0.4, 0.5, 0.6)
    >>> step.scaled(100.0)
    Interval(low=40.0, middle=50.0, high=60.0)
    >>> step.added(0.1).at_most(0.65)
    Interval(low=0.5, middle=0.6, high=0.65)
    >>> Interval.around(1.0, 1.25)
    Interval(low=0.8, middle=1.0, high=1.25)
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

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
    def around(cls, middle: Value, spread: Value | float) -> Interval[Value]:
        """Make an interval from a value and the factor between it and either end."""
        return cls(middle, middle, middle).widened(spread)

    def widened(self, spread: Value | float) -> Interval[Value]:
        """Move both ends away from the value by a factor."""
        return Interval(self.low / spread, self.middle, self.high * spread)

    def scaled(self, factor: Value | float) -> Interval[Value]:
        """Multiply the value and its ends by a factor."""
        return self.each(lambda value: value * factor)

    def added(self, amount: Value | float | Interval[Value]) -> Interval[Value]:
        """Add an amount: a certain one to all three, or, end by end, an interval whose error is fully correlated."""
        if isinstance(amount, Interval):
            return self.each(operator.add, amount)
        return self.each(lambda value: value + amount)

    def at_most(self, limit: Value | float) -> Interval[Value]:
        """Cap the value and its ends."""
        return self.each(lambda value: _chosen(value, limit, takes_smaller=True))

    def at_least(self, limit: Value | float) -> Interval[Value]:
        """Raise the value and its ends to a limit."""
        return self.each(lambda value: _chosen(value, limit, takes_smaller=False))

    def holds(self, value: float) -> bool:
        """Return whether a number lies within the interval."""
        return bool(self.low <= value <= self.high)

    def each(self, change: Callable[..., Any], *others: Interval[Any]) -> Interval[Any]:
        """Apply a function to the value and to either end.

        Args:
            change: Takes one value of this interval and the same one of each of the others.
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
