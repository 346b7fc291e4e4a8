"""A predicted value with its 90 % interval, as one value instead of three loose numbers.

Example::

    >>> step = Interval(0.4, 0.5, 0.6)
    >>> step.scaled(100.0)
    Interval(low=40.0, middle=50.0, high=60.0)
    >>> step.added(0.1).at_most(0.65)
    Interval(low=0.5, middle=0.6, high=0.65)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class Interval:
    """A predicted value and what it may be instead.

    Attributes:
        low: Lower end of the 90 % interval.
        middle: The prediction.
        high: Upper end of the 90 % interval.
    """

    low: float
    middle: float
    high: float

    def scaled(self, factor: float) -> Interval:
        """Multiply the value and its ends by a factor.

        Args:
            factor: At least 0, so that the ends stay in order.
        """
        return Interval(self.low * factor, self.middle * factor, self.high * factor)

    def added(self, amount: float) -> Interval:
        """Add an amount that is known for certain.

        Args:
            amount: In the unit of the value.
        """
        return Interval(self.low + amount, self.middle + amount, self.high + amount)

    def at_most(self, limit: float) -> Interval:
        """Cap the value and its ends.

        Args:
            limit: In the unit of the value.
        """
        return Interval(min(self.low, limit), min(self.middle, limit), min(self.high, limit))
