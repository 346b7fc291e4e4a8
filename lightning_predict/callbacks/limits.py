"""`Limit`: dollars, hours or a deadline, all used up by time at a rate of their own, so that they can be judged alike.

Example::

    >>> limit = usd_limit(10.0, per_second=seconds_to_hours(1.0), before=2.0)  # $10 at $1 an hour, of which $2 are gone
    >>> limit.used(3600.0)
    3.0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import final

from lightning_predict.callbacks.ledger import Ledger
from lightning_predict.reports.format import duration
from lightning_predict.reports.format import usd as dollars
from lightning_predict.units import hours_to_seconds, seconds_to_hours


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One limit.

    Attributes:
        name: The argument that set it: `usd`, `hours` or `deadline`.
        total: How much there is, in the limit's unit.
        per_second: How much of it a second of the run uses up.
        show: An amount of it in words.
        before: What was used up before this fit.
    """

    name: str
    total: float
    per_second: float
    show: Callable[[float], str]
    before: float = 0.0

    def used(self, elapsed_seconds: float) -> float:
        """What is used up after so many seconds of this fit."""
        return self.before + elapsed_seconds * self.per_second

    def reached_seconds(self, share: float) -> float:
        """Seconds of this fit after which so much of the total is used up; below 0 where it was before."""
        return (share * self.total - self.before) / self.per_second


def usd_limit(usd: float, *, per_second: float, before: float = 0.0) -> Limit:
    """A limit that time uses up at a price.

    Args:
        usd: US dollars that there are.
        per_second: Dollars that a second of the run costs.
        before: Dollars used up before this fit.
    """
    return Limit(name="usd", total=usd, per_second=per_second, show=dollars, before=before)


def hours_limit(name: str, hours: float, *, before: float = 0.0) -> Limit:
    """A limit that an hour of the run uses up by an hour.

    Args:
        name: The argument that set it.
        hours: How many there are.
        before: Hours used up before this fit.
    """
    return Limit(name=name, total=hours, per_second=seconds_to_hours(1.0), show=_hours_in_words, before=before)


def _hours_in_words(hours: float) -> str:
    return duration(hours_to_seconds(hours))


def limits_of_fit(
    ledger: Ledger, *, usd: float | None, hours: float | None, deadline: datetime | None
) -> tuple[Limit, ...]:
    """The limits of a fit that has begun; dollars only where the ledger has a price.

    Args:
        ledger: What was used before, and the price.
        usd: Dollars; None is no limit.
        hours: Hours; None is no limit.
        deadline: A time with a zone; None is no limit.
    """
    limits = []
    if usd is not None and ledger.usd_per_second > 0:
        limits.append(usd_limit(usd, per_second=ledger.usd_per_second, before=ledger.usd_before))
    if hours is not None:
        limits.append(hours_limit("hours", hours, before=seconds_to_hours(ledger.seconds_before)))
    if deadline is not None:
        seconds_left = (deadline - datetime.now(UTC)).total_seconds()
        limits.append(hours_limit("deadline", seconds_to_hours(ledger.elapsed_seconds + seconds_left)))
    return tuple(limits)
