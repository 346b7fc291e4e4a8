"""What is believed of a time from the values seen so far: the one rule by which steps, waits and pauses count.

Recording begins early; believing waits. Values at the beginning that are slow (allocators, caches, workers that start)
are left out by a test: of what is kept, the first half is not slower than the second by more than their standard error.
Of values that rise (sequences that grow, a second job on the machine) the last count, and may go on to rise.
What comes every so many values counts by how often it came; once is half an accident. The interval is Student's for
what varies, of those that were seen as of those still to come, and a floor for what so few values cannot have shown.
Example::

    >>> evidence = Evidence()
    >>> for seconds in (9.0, 1.0, 1.0, 1.0, 1.0):
    ...     evidence.add(seconds)
    >>> belief = evidence.believed()
    >>> belief.mean.middle, belief.values
    (1.0, 4)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

from lightning_predict.interval import Interval

# Chosen on the families of runs in tests/fit/scenarios.py with even seeds, scored on those with odd ones. A first step
# holds what happens once (cuDNN tries algorithms, the allocator asks the driver, Triton compiles), a few more hold what
# settles slowly (clocks, caches, workers of the loader). So a beginning is judged by what follows it, never by a number
# of steps: slow values are dropped from the front only as long as the halves of the rest disagree.

MOST_VALUES: Final = 1024
"""Values that are kept at most; beyond it, two become their mean."""

SLOW_RATIO: Final = 1.5
"""A value over this many times the typical one is slow: a warm-up at the beginning, an event later."""

KEPT_SHARE: Final = 0.25
"""Share of the values, the last ones, that count however slow the others were."""

FEWEST_KEPT: Final = 4
"""Values that are kept at least; of fewer than twice as many, half."""

AGREEMENT: Final = 1.2
"""Standard errors by which the first half of what is kept may be slower than the second; a single slow value in it is
one standard error."""

TOLERANCE: Final = 0.01
"""Difference between the halves that is never a warm-up, over the second."""

FLOOR_HIGH: Final = 1.4
"""How much longer than seen values may be, over the root of their number: slow ones that are rarer than that."""

FLOOR_LOW: Final = 0.2
"""How much shorter than seen values may be, over the root of their number."""

FLOOR_SETTLING: Final = 0.92
"""How much shorter than seen values may be, over their number to the power of 1.2: the warm-up that so few cannot tell
from the rest."""

LEAST_SHARE: Final = 0.25
"""Share of the mean that the low end never goes below."""

EVENTS_SHARE: Final = 0.25
"""Share of slow values from which on they are a kind of their own, and no events."""

MOST_PART: Final = 0.9
"""Part of a fall that the next one is taken for at most: values that fall in a line come to rest all the same."""

FALLS_ON: Final = 0.5
"""Part of the fall so far by which values that have not settled may still fall."""

FALLS_HIDDEN: Final = 0.4
"""Part of the difference between the halves of settled values by which they may be lower yet: what noise hides."""

SETTLED_SHARE: Final = 0.55
"""Share of the values that must agree for them to have settled; noise hides a slow fall in fewer."""

SETTLED_VALUES: Final = 32
"""Values that suffice, whatever their share."""

RISE_AGREEMENT: Final = 3.0
"""Standard errors by which the second half of values may be slower than the first: without a reason as a warm-up is
one, more is asked for than of a beginning."""

RISE_TOLERANCE: Final = 0.02
"""Difference between the halves that is no rise, over the first."""

RISES_ON: Final = 3.0
"""How many times as long as was seen values may go on to rise."""

CHUNKS: Final = 8
"""Stretches of a run whose means show how it varies over longer times."""


@final
@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed of a time.

    Attributes:
        mean: Its mean from now on.
        values: Values that it rests on.
        is_settled: The values kept do not fall any more.
    """

    mean: Interval[float]
    values: int
    is_settled: bool


@final
class Evidence:
    """Values in the order in which they came, at most so many numbers whatever their count."""

    __slots__ = ("_means", "_size", "_sum", "_summed", "count")

    def __init__(self) -> None:
        self.count = 0
        self._size = 1
        self._sum, self._summed = 0.0, 0
        self._means: list[float] = []

    def add(self, value: float) -> None:
        """Add one."""
        self.count += 1
        if self._size == 1 and len(self._means) < MOST_VALUES - 1:  # after each batch: no detour for the first thousand
            self._means.append(value)
            return
        self._sum += value
        self._summed += 1
        if self._summed == self._size:
            self._means.append(self._sum / self._size)
            self._sum, self._summed = 0.0, 0
            if len(self._means) == MOST_VALUES:
                pairs = zip(self._means[::2], self._means[1::2], strict=True)
                self._means = [(one + other) / 2 for one, other in pairs]
                self._size *= 2

    def believed(
        self, *, together: int = 1, turns: int = 4, of_each: int = 1, ahead: float = math.inf
    ) -> Belief | None:
        """Return what is believed of the next values; None before the first.

        Args:
            together: Values in turn that differ by their place, as the batches of an accumulation window do, or what
                several workers hand over at once: the mean of as many is one value.
            turns: Such means from which on they count, in place of single values.
            of_each: Values of which each of these is the mean.
            ahead: Values still to come.
        """
        values, size = self._means, self._size
        if size < together and len(values) >= turns * together:
            each = together // size
            starts = range(len(values) % each, len(values), each)
            values = [statistics.fmean(values[start : start + each]) for start in starts]
            size *= each
        return believe(values, of_each=size * of_each, ahead=ahead / size) if values else None


def believe(values: Sequence[float], *, of_each: int = 1, ahead: float = math.inf) -> Belief:
    """Return what is believed of the next values.

    Args:
        values: At least one, in the order in which they came.
        of_each: Values of which each of these is the mean.
        ahead: Values still to come, whose own mean varies the more, the fewer they are.
    """
    ahead = max(ahead, 1.0)
    start, is_settled = settles_at(values)
    later, kept = values[min(1, start) :], values[start:]
    all_kept, (risen, slope) = kept, rises_until(kept)
    kept = kept[risen:]
    typical = statistics.median(kept)
    at = [place for place, value in enumerate(kept) if value > SLOW_RATIO * typical]
    if len(at) > EVENTS_SHARE * len(kept):
        at = []  # not events: the values come in kinds, or vary
    usual = [value for value in kept if value <= SLOW_RATIO * typical] if at else kept
    middle, low, high = statistics.fmean(usual), 0.0, 0.0
    reached = least = middle
    if not is_settled:
        reached = _reached(kept)
        now = statistics.fmean(kept[-3:])
        least = min(reached, now - FALLS_ON * (statistics.fmean(later[:3]) - now))
    deviation = _mean_deviation(usual, ahead=ahead)
    if at:
        excess = statistics.fmean(kept[place] for place in at) - middle
        rate = _rate(at, len(kept), of=len(later), ahead=ahead)
        middle, reached, least = (one + excess * rate.middle for one in (middle, reached, least))
        low, high = excess * (rate.middle - rate.low), excess * (rate.high - rate.middle)
    number = len(kept) * of_each
    mean = (middle + reached) / 2
    fall = FALLS_HIDDEN * _fall(usual) if is_settled else 0.0
    down = math.hypot(low, deviation, fall, mean * FLOOR_LOW / math.sqrt(number))
    down += mean * FLOOR_SETTLING / number**1.2
    up = math.hypot(high, deviation, mean * FLOOR_HIGH / math.sqrt(number))
    ends = max(LEAST_SHARE * mean, min(least, mean) - down), max(middle, mean) + up
    if risen:  # on average as slow as at the end of what was seen, and slower yet as long as it goes on like this
        now, count = mean + slope * len(kept) / 2, len(all_kept)
        overall = (now - statistics.fmean(all_kept[:risen])) / (count - risen / 2)
        high = ends[1] + now - mean + overall * min(ahead, RISES_ON * count) / 2
        mean = now + min(slope, overall) * min(ahead, count) / 4
        ends = min(ends[0], statistics.fmean(all_kept)), max(high, mean)
    return Belief(Interval(ends[0], mean, ends[1]), number, is_settled)


def settles_at(values: Sequence[float], *, tolerance: float = TOLERANCE) -> tuple[int, bool]:
    """Find where the slow beginning ends.

    Args:
        values: In the order in which they came.
        tolerance: By which part the first half of what is kept may be slower than the second.

    Returns:
        How many values it has, and whether what follows does not fall any more.
    """
    first = min(1, len(values) - 1)  # the first of all compiles and allocates
    if first < 0:
        return 0, False
    later = len(values) - first
    most = len(values) - max(min(FEWEST_KEPT, math.ceil(later / 2)), math.ceil(KEPT_SHARE * later))
    start = first
    while start < most and values[start] > SLOW_RATIO * statistics.median(values[start + 1 :]):
        start += 1
    while True:
        kept = values[start:]
        half = len(kept) // 2
        if half < 2:
            return start, max(kept) <= (1 + tolerance) * min(values)  # so few must all agree
        limit = SLOW_RATIO * statistics.median(kept)  # what comes rarely hides no fall
        before, after = ([value for value in part if value <= limit] for part in (kept[:half], kept[half:]))
        if not before or not after:
            return start, True
        error = math.hypot(_standard_error(before), _standard_error(after))
        mean = statistics.fmean(after)
        if statistics.fmean(before) - mean <= max(AGREEMENT * error, tolerance * mean):
            return start, len(kept) >= min(SETTLED_SHARE * later, SETTLED_VALUES)
        if start >= most:
            return start, False
        start = min(most, start + max(1, len(kept) // 8))


def rises_until(values: Sequence[float]) -> tuple[int, float]:
    """Find from where on values that get slower no longer do.

    Returns:
        How many values come before, and by how much each of the others is still slower than the one before it.
    """
    most, start = len(values) - max(FEWEST_KEPT, math.ceil(KEPT_SHARE * len(values))), 0
    while True:
        kept = values[start:]
        size = len(kept)
        rises = (_rise(kept[:split], kept[split:]) for split in (size // 2, size - max(2 * FEWEST_KEPT, size // 8)))
        rise = next((one for one in rises if one is not None), None)
        if rise is None or start >= most:
            return start, 0.0 if rise is None else rise / (size / 2)
        start = min(most, start + max(1, size // 8))


def _rise(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Return by how much values are slower than those before; None where that may be chance."""
    if min(len(before), len(after)) < FEWEST_KEPT:
        return None
    rise = statistics.fmean(after) - statistics.fmean(before)
    error = math.hypot(_standard_error(before), _standard_error(after))
    return rise if rise > max(RISE_AGREEMENT * error, RISE_TOLERANCE * statistics.fmean(before)) else None


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _mean_deviation(values: Sequence[float], *, ahead: float) -> float:
    """Return half the width of Student's 90 % interval of the mean of those ahead, also where values in turn are alike.

    It errs as these values do, and as those ahead will.
    """
    if len(values) < 2:
        return 0.0
    again = len(values) / ahead
    alone = _student(len(values) - 1) * _standard_error(values) * math.sqrt(1 + again)
    if len(values) < 4 * CHUNKS:
        return alone
    size = len(values) // CHUNKS
    chunks = [statistics.fmean(values[start : start + size]) for start in range(0, CHUNKS * size, size)]
    return max(alone, _student(CHUNKS - 1) * _standard_error(chunks) * math.sqrt(1 + min(again, CHUNKS)))


def _student(freedom: int) -> float:
    """Return the 95 % quantile of Student's distribution, to 2 %."""
    return 1.645 + 1.52 / freedom + 1.5 / freedom**2 + 1.65 / freedom**3


def _fall(values: Sequence[float]) -> float:
    """Return by how much the first half is slower than the second; 0 if it is not."""
    half = len(values) // 2
    return max(0.0, statistics.fmean(values[:half]) - statistics.fmean(values[half:])) if half else 0.0


def _rate(at: Sequence[int], count: int, *, of: int, ahead: float) -> Interval[float]:
    """Return how often what came at these places will come, a value.

    Args:
        at: Places among those kept.
        count: Values kept.
        of: Values with those at the beginning that are left out.
        ahead: Values still to come, in which it may come once more or less, or by chance more often.
    """
    times = len(at)
    if times == 1:
        return Interval(0.0, 0.5 / of, max(2.5 / count, 1 / ahead))
    gaps = [after - before for before, after in pairwise(at)]
    if (
        times > 2 and max(gaps) - min(gaps) <= 1 and count <= at[-1] + max(gaps) + 1
    ):  # one that is overdue has no period
        found = Interval.around((times - 1) / (at[-1] - at[0]), 1 + 1 / count)
        return Interval(max(0.0, found.low - 1 / ahead), found.middle, found.high + 1 / ahead)
    rate = times / count
    less, more = (rate * math.hypot(width / math.sqrt(times), width / math.sqrt(rate * ahead)) for width in (1.3, 1.6))
    return Interval(max(0.0, rate - less), rate, rate + more)


def _reached(kept: Sequence[float]) -> float:
    """Return where values that still fall come to rest, if each fall is the same part of the one before."""
    third = len(kept) // 3
    if third == 0:
        return min(kept)
    first, second, last = (
        statistics.fmean(kept[len(kept) - number * third : len(kept) - (number - 1) * third]) for number in (3, 2, 1)
    )
    before, now = first - second, second - last
    if now <= 0 or before <= 0:
        return min(last, second)
    part = min(now / before, MOST_PART)
    return max(LEAST_SHARE * last, last - now * part / (1 - part))
