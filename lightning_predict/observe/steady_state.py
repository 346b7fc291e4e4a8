"""Steady-state estimate of a repeated time (step, loader wait, pause): detects warm-up and drift in measured values.

Timing starts with the first step, but values count only once they are steady:

- Warm-up: slow values at the beginning (allocators, caches, starting workers) are dropped. Further values are dropped
  as long as the first half of the other values is slower than the second half by more than the standard error.
- Drift: if values rise (growing sequences, a second job on the machine), only the last values count, and the interval
  allows a further rise.
- Rare slow values, whether periodic or not, are weighted by their frequency. A single slow value counts half.

The interval combines Student's interval (variance of past and future values) with a minimum width that allows for the
limits of a small sample. Example::

    >>> evidence = TimingSamples()
    >>> for seconds in (9.0, 1.0, 1.0, 1.0, 1.0):
    ...     evidence.add(seconds)
    >>> belief = evidence.estimate()
    >>> belief.mean.middle, belief.values
    (1.0, 4)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from lightning_predict.base.interval import Interval

# The constants were chosen on the scenarios in tests/observe/scenarios.py with even seeds, and evaluated on the odd
# seeds. The first step includes one-off costs (cuDNN autotuning, first allocations, Triton compilation). A few more
# steps include slow transients (GPU clocks, caches, loader workers). Therefore the length of a warm-up is not a fixed
# number of steps: values are dropped from the front as long as the two halves of the other values differ.

MAX_VALUES: Final = 1024  # Maximum number of stored values. At this number, neighbouring values are averaged in pairs.
SLOW_RATIO: Final = 1.5  # Ratio to the median above which a value is slow
KEPT_SHARE: Final = 0.25  # Minimum share of the values that are used, even if the earlier values were slower
MIN_KEPT: Final = 4  # Minimum number of values that are used
AGREEMENT: Final = 1.2  # Standard errors by which the first half may be slower than the second without a warm-up
TOLERANCE: Final = 0.01  # Relative difference between the halves that is never taken for a warm-up
FLOOR_HIGH: Final = 1.4  # Minimum upper half width relative to the mean, divided by sqrt(n)
FLOOR_LOW: Final = 0.2  # Minimum lower half width relative to the mean, divided by sqrt(n)

FLOOR_SETTLING: Final = 0.92
"""Additional lower half width relative to the mean, divided by n**1.2, for a warm-up that a small sample hides."""

MIN_SHARE: Final = 0.25  # Minimum of the interval's low end, as a share of the mean
EVENTS_SHARE: Final = 0.25  # Share of slow values above which slow values are a regular kind of value, not rare events
MAX_DECREASE_RATIO: Final = 0.9  # Maximum ratio of successive decreases
FURTHER_DECREASE: Final = 0.5  # Share of the decrease so far by which unsteady values may still decrease

FALLS_HIDDEN: Final = 0.4
"""Share of the difference between the halves by which steady values may still decrease, hidden by noise."""

SETTLED_SHARE: Final = 0.55  # Minimum share of agreeing values for the values to count as steady
SETTLED_VALUES: Final = 32  # Number of agreeing values that is always enough to count as steady

RISE_AGREEMENT: Final = 3.0
"""Number of standard errors by which the second half must be slower than the first half to count as a rise."""

RISE_TOLERANCE: Final = 0.02  # Relative difference between the halves that is never taken for a rise
RISES_ON: Final = 3.0  # Maximum duration of a further rise, as a multiple of the duration of the rise so far
CHUNKS: Final = 8  # Number of chunks of values whose means show the variation over longer times
BEST_VALUES: Final = 8  # Number of consecutive values whose mean counts as a pace that a run can hold


@dataclass(frozen=True, slots=True)
class MeanEstimate:
    """Estimate of a repeated time."""

    mean: Interval[float]
    values: int
    is_settled: bool  # Whether the used values no longer decrease, so that the warm-up is over


class TimingSamples:
    """Measured values in the order of their arrival, stored in bounded memory."""

    __slots__ = ("_means", "_size", "_sum", "_summed", "count")

    def __init__(self) -> None:
        self.count = 0
        self._size = 1
        self._sum, self._summed = 0.0, 0
        self._means: list[float] = []

    def add(self, value: float) -> None:
        """Add one value."""
        self.count += 1
        if self._size == 1 and len(self._means) < MAX_VALUES - 1:  # called per batch, so it must be fast
            self._means.append(value)
            return
        self._sum += value
        self._summed += 1
        if self._summed == self._size:
            self._means.append(self._sum / self._size)
            self._sum, self._summed = 0.0, 0
            if len(self._means) == MAX_VALUES:
                pairs = zip(self._means[::2], self._means[1::2], strict=True)
                self._means = [(first + second) / 2 for first, second in pairs]
                self._size *= 2

    def at_best(self, group_size: int = 1) -> TimingSamples:
        """Return a copy of values that are all the best so far: the least mean of `BEST_VALUES` consecutive values.

        Whole groups are averaged. Of fewer values, the least counts; a single value may be all stall, so 0 takes its
        place.
        """
        best, values = copy(self), self._means
        wanted = group_size * math.ceil(BEST_VALUES / group_size)
        if len(values) < wanted:
            least = min(values) if len(values) > 1 else 0.0
        else:
            least = min(statistics.fmean(values[start : start + wanted]) for start in range(len(values) - wanted + 1))
        best._means = [least] * len(values)
        return best

    def estimate(
        self, *, group_size: int = 1, min_groups: int = 4, measurements_per_value: int = 1, remaining: float = math.inf
    ) -> MeanEstimate | None:
        """Estimate the mean of the future values; None before the first value.

        Args:
            group_size: Number of consecutive values whose mean counts as one value, such as the batches of an optimizer
                step, or the batches that several workers deliver at once.
            min_groups: Minimum number of such means. With fewer means, single values are used.
            measurements_per_value: Number of measurements that are averaged in each value.
            remaining: Number of future values.
        """
        values, size = self._means, self._size
        if size < group_size and len(values) >= min_groups * group_size:
            each = group_size // size
            starts = range(len(values) % each, len(values), each)
            values = [statistics.fmean(values[start : start + each]) for start in starts]
            size *= each
        return (
            estimate_mean(values, measurements_per_value=size * measurements_per_value, remaining=remaining / size)
            if values
            else None
        )


def estimate_mean(
    values: Sequence[float], *, measurements_per_value: int = 1, remaining: float = math.inf
) -> MeanEstimate:
    """Estimate the mean of the future values from the measured values.

    Args:
        values: Values in the order of their arrival, at least one.
        measurements_per_value: Number of measurements that are averaged in each value.
        remaining: Number of future values. The mean of few values varies more.
    """
    remaining = max(remaining, 1.0)
    start, is_settled = warmup_end(values)
    later, kept = values[min(1, start) :], values[start:]
    all_kept, (risen, slope) = kept, rise_end(kept)
    kept = kept[risen:]
    typical = statistics.median(kept)
    at = [place for place, value in enumerate(kept) if value > SLOW_RATIO * typical]
    if len(at) > EVENTS_SHARE * len(kept):
        at = []  # these are not rare events: there are several kinds of values, or values vary widely
    usual = [value for value in kept if value <= SLOW_RATIO * typical] if at else kept
    middle, low, high = statistics.fmean(usual), 0.0, 0.0
    reached = least = middle
    if not is_settled:
        reached = _reached(kept)
        now = statistics.fmean(kept[-3:])
        least = min(reached, now - FURTHER_DECREASE * (statistics.fmean(later[:3]) - now))
    deviation = _mean_deviation(usual, remaining=remaining)
    if at:
        excess = statistics.fmean(kept[place] for place in at) - middle
        rate = _rate(at, len(kept), of=len(later), remaining=remaining)
        if len(at) == 1 and excess > sum(usual):  # longer than all others together: says little about the others
            rate = replace(rate, middle=0.0)
        middle, reached, least = (seconds + excess * rate.middle for seconds in (middle, reached, least))
        low, high = excess * (rate.middle - rate.low), excess * (rate.high - rate.middle)
    number = len(kept) * measurements_per_value
    mean = (middle + reached) / 2
    fall = FALLS_HIDDEN * _fall(usual) if is_settled else 0.0
    down = math.hypot(low, deviation, fall, mean * FLOOR_LOW / math.sqrt(number))
    down += mean * FLOOR_SETTLING / number**1.2
    up = math.hypot(high, deviation, mean * FLOOR_HIGH / math.sqrt(number))
    ends = max(MIN_SHARE * mean, min(least, mean) - down), max(middle, mean) + up
    if risen:  # the mean is the level that was reached last, and the high end allows a further rise
        now, count = mean + slope * len(kept) / 2, len(all_kept)
        overall = (now - statistics.fmean(all_kept[:risen])) / (count - risen / 2)
        high = ends[1] + now - mean + overall * min(remaining, RISES_ON * count) / 2
        mean = now + min(slope, overall) * min(remaining, count) / 4
        ends = min(ends[0], statistics.fmean(all_kept)), max(high, mean)
    return MeanEstimate(Interval(ends[0], mean, ends[1]), number, is_settled)


def warmup_end(values: Sequence[float], *, tolerance: float = TOLERANCE) -> tuple[int, bool]:
    """Find the end of the warm-up in measured values.

    Args:
        values: Values in the order of their arrival.
        tolerance: Relative difference by which the first half of the remaining values may be slower than the second
            half.

    Returns:
        The number of warm-up values, and whether the later values no longer decrease.
    """
    first = min(1, len(values) - 1)  # the first value always includes compilation and allocation
    if first < 0:
        return 0, False
    later = len(values) - first
    most = len(values) - max(min(MIN_KEPT, math.ceil(later / 2)), math.ceil(KEPT_SHARE * later))
    start = first
    while start < most and values[start] > SLOW_RATIO * statistics.median(values[start + 1 :]):
        start += 1
    while True:
        kept = values[start:]
        half = len(kept) // 2
        if half < 2:
            return start, max(kept) <= (1 + tolerance) * min(values)  # two or three values must all agree
        limit = SLOW_RATIO * statistics.median(kept)  # rare slow values must not hide a decrease
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


def rise_end(values: Sequence[float]) -> tuple[int, float]:
    """Find the end of a rise in measured values.

    Returns:
        The number of values before the end of the rise, and the later slope per value (0 if the rise has ended).
    """
    most, start = len(values) - max(MIN_KEPT, math.ceil(KEPT_SHARE * len(values))), 0
    while True:
        kept = values[start:]
        size = len(kept)
        rises = (_rise(kept[:split], kept[split:]) for split in (size // 2, size - max(2 * MIN_KEPT, size // 8)))
        rise = next((each for each in rises if each is not None), None)
        if rise is None or start >= most:
            return start, 0.0 if rise is None else rise / (size / 2)
        start = min(most, start + max(1, size // 8))


def _rise(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Return the increase from the first part to the second; None if it may be random."""
    if min(len(before), len(after)) < MIN_KEPT:
        return None
    rise = statistics.fmean(after) - statistics.fmean(before)
    error = math.hypot(_standard_error(before), _standard_error(after))
    return rise if rise > max(RISE_AGREEMENT * error, RISE_TOLERANCE * statistics.fmean(before)) else None


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _mean_deviation(values: Sequence[float], *, remaining: float) -> float:
    """Return half the width of Student's 90 % interval for the mean of the future values.

    Means of chunks account for autocorrelation. The interval covers the errors of the past and of the future mean.
    """
    if len(values) < 2:
        return 0.0
    again = len(values) / remaining
    alone = _student(len(values) - 1) * _standard_error(values) * math.sqrt(1 + again)
    if len(values) < 4 * CHUNKS:
        return alone
    size = len(values) // CHUNKS
    chunks = [statistics.fmean(values[start : start + size]) for start in range(0, CHUNKS * size, size)]
    return max(alone, _student(CHUNKS - 1) * _standard_error(chunks) * math.sqrt(1 + min(again, CHUNKS)))


def _student(freedom: int) -> float:
    """Return the 95 % quantile of Student's t distribution, accurate to 2 %."""
    return 1.645 + 1.52 / freedom + 1.5 / freedom**2 + 1.65 / freedom**3


def _fall(values: Sequence[float]) -> float:
    """Return by how much the first half's mean exceeds the second half's mean; at least 0."""
    half = len(values) // 2
    return max(0.0, statistics.fmean(values[:half]) - statistics.fmean(values[half:])) if half else 0.0


def _rate(at: Sequence[int], count: int, *, of: int, remaining: float) -> Interval[float]:
    """Estimate the future frequency of rare slow values, as a share of all values.

    Args:
        at: Positions of the slow values among the used values.
        count: Number of used values.
        of: Number of values, including the dropped warm-up.
        remaining: Number of future values, among which the number of slow values varies by chance.
    """
    times = len(at)
    if times == 1:
        return Interval(0.0, 0.5 / of, max(2.5 / count, 1 / remaining))
    gaps = [after - before for before, after in pairwise(at)]
    if times > 2 and max(gaps) - min(gaps) <= 1 and count <= at[-1] + max(gaps) + 1:  # an overdue event is not periodic
        periodic = Interval.from_factor((times - 1) / (at[-1] - at[0]), 1 + 1 / count)
        return Interval(max(0.0, periodic.low - 1 / remaining), periodic.middle, periodic.high + 1 / remaining)
    rate = times / count
    less, more = (
        rate * math.hypot(width / math.sqrt(times), width / math.sqrt(rate * remaining)) for width in (1.3, 1.6)
    )
    return Interval(max(0.0, rate - less), rate, rate + more)


def _reached(kept: Sequence[float]) -> float:
    """Extrapolate the level that decreasing values approach, assuming a geometric decay."""
    third = len(kept) // 3
    if third == 0:
        return min(kept)
    first, second, last = (
        statistics.fmean(kept[len(kept) - number * third : len(kept) - (number - 1) * third]) for number in (3, 2, 1)
    )
    before, now = first - second, second - last
    if now <= 0 or before <= 0:
        return min(last, second)
    part = min(now / before, MAX_DECREASE_RATIO)
    return max(MIN_SHARE * last, last - now * part / (1 - part))
