"""Combines the uncertainties of a prediction into the 90 % interval of a step: all spreads and correlations.

A half width is in log(seconds). A spread is the exponential of a half width: the factor to either end of an interval.
Seven rules apply in this order:

1. **One operation.** The half width of a network comes from its errors on held-out shapes. The unknown rate of an
   unmeasured GPU is independent, so both half widths add in quadrature. Each formula has its own spread. A surrogate, a
   fallback to float32 or an odd size is a bias of unknown sign, so its spread is multiplied and does not average out.
2. **Measured operations.** A time measured on this GPU varies from run to run. The ratio of the times on two GPUs has a
   minimum half width per kind of relation (`PAIR_HALF_WIDTHS`). Only a deviation beyond the networks' errors is
   transferred to another GPU.
3. **The sum of a step's operations.** Half widths of repetitions of a shape add, because the repetitions have the
   same error. Errors of shapes and of families have a correlation r: h² = (1 - r) Σ h_i² + r (Σ h_i)².
4. **The whole step.** A new source has an error that all operations share: clocks, power, libraries. If a compiler or a
   library fuses the step, its kernels are less certain.
5. **The host.** The interval of the host has factors on the launches and on the Python time between launches, which do
   not depend on the device.
6. **Host and device.** The step ends when the later of host and device ends. Their errors are independent.
7. **Many GPUs.** What several GPUs change about a step adds to its width. Links have their own spreads. Errors of
   compute and links are independent, but both are simulated at their low ends together, or at their high ends together,
   which gives a wider interval.

A run has the same relative uncertainty as its step, because the error is equal in all steps and does not average out.
Earlier runs correct the total of a run, with the standard error of their mean (`spread_of_mean`).

`constants.toml` contains the evidence for each constant. The documentation page on accuracy shows the coverage of the
intervals. Example::

    >>> spread = StepSpread(operations_factor=0.5, new_source=0.3)
    >>> low, high = spread.widened(0.8, 1.25)  # sqrt((0.5 * 0.223)**2 + 0.3**2) = 0.32
    >>> round(float(low), 2), round(float(high), 2)
    (0.73, 1.38)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeVar, overload

import numpy as np
import numpy.typing as npt

from lightning_predict.base import checked
from lightning_predict.base.errors import WeightsFormatError
from lightning_predict.base.interval import NORMAL_95, OUTSIDE, Interval

_Array = npt.NDArray[np.float64]
_BoolArray = npt.NDArray[np.bool_]
_IndexArray = npt.NDArray[np.intp]
_Number = TypeVar("_Number", float, _Array)

# --- 1. One operation

# Five classes of spreads, from a repeated measurement to a guess.

MEASURED_SPREAD: Final = 1.05  # Spread of a time measured on the same GPU, as runs differ; no interval is narrower
SURROGATE_SPREAD: Final = 1.3
"""Spread of a time derived from a related measurement: another operation or dtype, a latency, a look-up in a cache."""
FORMULA_SPREAD: Final = 1.5  # Spread of a time by a formula or a roofline, or of kernels that a library may not use
ASSUMED_SPREAD: Final = 2.0  # Spread of a time that rests on an assumption about hardware or kernels, unmeasured
UNKNOWN_SPREAD: Final = 10.0  # Spread of work of which only the bytes are known
UNMEASURED_RATE_UNCERTAINTY: Final = 0.12  # Half width in log(rate) without a measured rate
CONVOLUTION_SPREAD: Final = (1.45, 2.6)  # Lower and upper interval factors that cover most convolutions by the formula


def independent(*half_widths: _Array | float) -> _Array:
    """Combine half widths of independent errors by adding their squares."""
    total: _Array = np.asarray(half_widths[0])
    for other in half_widths[1:]:
        total = np.hypot(total, other)
    return total


def convolution_interval(seconds: _Array, groups: _Array) -> Interval[_Array]:
    """Return times from the convolution formula with their interval, shape (gpus, shapes)."""
    down, up = CONVOLUTION_SPREAD
    return Interval(seconds / np.where(groups > 1, ASSUMED_SPREAD, down), seconds, seconds * up)


def of_network(seconds: _Array, highest: _Array, half_widths: _Array, odd: _Array, bound: _Array) -> Interval[_Array]:
    """Return times from networks with their interval, each (gpus, shapes).

    Args:
        seconds: Predicted times.
        highest: Predicted times before clamping to upper bounds from other predictions, because such a bound may be
            wrong.
        half_widths: Half widths in log(seconds).
        odd: Additional factor to the upper end for odd sizes.
        bound: Seconds of the minimum work.
    """
    spread = np.exp(half_widths)
    return Interval(np.maximum(seconds / spread, bound), seconds, highest * spread * odd)


def above_minimum_work(times: Interval[_Array], bound: _Array, falls_back: _BoolArray) -> Interval[_Array]:
    """Raise times to the minimum work, and widen intervals to at least the scatter of repeated timings.

    Args:
        times: Times of shape (gpus, shapes).
        bound: Seconds of the minimum work.
        falls_back: Whether float32 replaces the dtype, shape (shapes,). A replacement widens the interval.
    """
    spread = np.where(falls_back, ASSUMED_SPREAD, 1.0)
    seconds = np.maximum(times.middle, MEASURED_SPREAD * bound)
    low = np.maximum(np.minimum(times.low / spread, seconds / MEASURED_SPREAD), bound)
    high = np.maximum(np.maximum(times.high, seconds) * spread, seconds * MEASURED_SPREAD)
    return Interval(low, seconds, high)


# --- 2. Measured operations

PAIR_HALF_WIDTHS: Final = (0.065, 0.194, 0.0)
"""Minimum half width of a ratio of two GPUs' times: with the same kernels, with other kernels of the same units, and
with other units."""

SCATTER: Final = 0.35  # Size (in log) of the networks' error on a network's or operation's times; half of it counts
CARRIED_SCATTER: Final = 0.15  # A deviation of this size (in log) moves by half from one 16-bit dtype to the other


def transferred_part(residual: _Number, scatter: float) -> _Number:
    """Return the transferred part of a deviation in log: half of a deviation as large as the networks' scatter.

    The prior of the deviation and its noise are both normal, so the weight is x² / (x² + scatter²).
    """
    return residual * (residual**2 / (residual**2 + scatter**2))


def ratio_interval(alone: Interval[_Array], scaled: _Array, relation: _IndexArray) -> Interval[_Array]:
    """Return times scaled by the ratio on another GPU, with the wider interval: the prediction's or the ratio's.

    Args:
        alone: Predictions without the ratio, (gpus, items).
        scaled: Predictions with the ratio.
        relation: Index of the relation of each pair of kernels.
    """
    least = np.array([math.exp(half_width) for half_width in PAIR_HALF_WIDTHS])[relation]
    whole = np.where(alone.middle > 0, alone.middle, 1.0)
    return Interval(
        scaled * np.minimum(alone.low / whole, 1 / least), scaled, scaled * np.maximum(alone.high / whole, least)
    )


def ends_of_measured(step_seconds: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the interval of the median of measured steps.

    It covers the measured steps, and at least the spread of repeated runs over the square root of their number.
    """
    middle = statistics.median(step_seconds)
    spread = MEASURED_SPREAD ** (1 / math.sqrt(len(step_seconds)))
    return min(*step_seconds, middle / spread), max(*step_seconds, middle * spread)


def wait_elsewhere(seconds: float, step_seconds: Sequence[float], *, is_most: bool) -> Interval[float]:
    """Return the wait of a recorded step with its interval on another machine, which may not wait.

    The recorded step may be the one that waited least, so others wait longer by up to the ratio of the longest to the
    shortest measured step, or as long as the longest step if the wait is most of the recorded step.
    """
    shortest, longest = min(step_seconds, default=0.0), max(step_seconds, default=0.0)
    most = seconds * max(longest / shortest if shortest else 1.0, MEASURED_SPREAD)
    return Interval(0.0, seconds, max(most, longest) if is_most else most)


# --- 3. The sum of a step's operations

SHAPE_CORRELATION: Final = 0.5  # Correlation between the errors of two shapes of one family
FAMILY_CORRELATION: Final = 0.25
"""Correlation between the errors of two operation families on one GPU. The cause is that all operations were timed
alone and in short bursts."""


def interval_of_sum(
    times: Interval[_Array], families: Sequence[str], shapes: Sequence[Hashable]
) -> tuple[_Array, _Array]:
    """Return the ends of the interval of the device time, each of shape (gpus,).

    Args:
        times: Times of the items of work, (gpus, items).
        families: Family of each item. The networks of a family have the same bias.
        shapes: Shape of each item. Items with the same shape have the same error.
    """
    numbers: dict[tuple[str, Hashable], int] = {}
    owners = np.array(
        [numbers.setdefault(key, len(numbers)) for key in zip(families, shapes, strict=True)], dtype=np.intp
    )  # (items,)
    every: dict[str, int] = {}
    family_of = np.array([every.setdefault(family, len(every)) for family, _ in numbers], dtype=np.intp)

    def half_width(own: _Array) -> _Array:
        """Combine half-widths of items, (gpus, items), to the half-width of their sum, (gpus,)."""
        by_shape = summed_by_owner(own, owners, len(numbers))
        by_family = partly_shared(by_shape, family_of, len(every), SHAPE_CORRELATION)
        return partly_shared(by_family, np.zeros(len(every), dtype=np.intp), 1, FAMILY_CORRELATION)[:, 0]

    device = times.middle.sum(axis=1)
    return device - half_width(times.middle - times.low), device + half_width(times.high - times.middle)


def partly_shared(half_widths: _Array, owners: _IndexArray, count: int, correlation: float) -> _Array:
    """Combine half-widths in seconds, (gpus, parts), to half-widths of the sums per owner, (gpus, count)."""
    apart, together = summed_by_owner(half_widths**2, owners, count), summed_by_owner(half_widths, owners, count) ** 2
    added: _Array = np.sqrt((1 - correlation) * apart + correlation * together)
    return added


def summed_by_owner(values: _Array, owners: _IndexArray, count: int) -> _Array:
    """Sum the columns of each owner.

        >>> summed_by_owner(np.array([[1.0, 2.0, 4.0]]), np.array([1, 0, 1]), 2)
        array([[2., 5.]])

    The shape is (gpus, parts) before and (gpus, count) after; `owners` has the owner of each part, below `count`.
    """
    if values.shape[1] == count and np.array_equal(owners, np.arange(count)):
        return values  # one part each
    rows = values.shape[0]
    # A single flat histogram: the owners of row r start at r x count.
    flat = (owners[None, :] + count * np.arange(rows)[:, None]).ravel()
    total = np.bincount(flat, weights=values.ravel(), minlength=rows * count)
    return total.astype(np.float64).reshape(rows, count)


# --- 4. The whole step

SPREAD_FILE: Final = Path(__file__).parent / "weights" / "files" / "whole_steps.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpread:
    """Half width of a step's interval in log(seconds), by what is new about the step. Squares of the parts add."""

    operations_factor: float  # Factor on the half width that results from the intervals of the operations
    new_source: float  # Half width that all operations of a step share, because every user's machine is a new source
    fused: float = 0.0  # Further half width if a compiler or library fuses the step: its release chooses the kernels

    @overload
    def widened(self, low: float, high: float, *, is_fused: bool = False) -> tuple[float, float]: ...
    @overload
    def widened(self, low: _Array, high: _Array, *, is_fused: bool = False) -> tuple[_Array, _Array]: ...
    def widened(
        self, low: float | _Array, high: float | _Array, *, is_fused: bool = False
    ) -> tuple[float | _Array, float | _Array]:
        """Return the ends of a step's interval from those of its operations, all relative to the middle."""
        common = independent(self.new_source, self.fused if is_fused else 0.0)
        below, above = (independent(self.operations_factor * np.log(end), common) for end in (low, high))
        return np.exp(-below), np.exp(above)


UNCALIBRATED: Final = StepSpread(operations_factor=1.0, new_source=0.0)
"""Spread without calibration, which keeps the intervals of the operations."""


@cache
def bundled_spread() -> StepSpread:
    """Return the spread that is bundled with the weights."""
    return read_spread(SPREAD_FILE)


def read_spread(path: Path) -> StepSpread:
    """Read a spread from a file that `benchmarks.training.step_spread` wrote."""
    content = checked.read_json(path, WeightsFormatError)
    spread = content.member("spread")
    return StepSpread(
        operations_factor=spread.member("kept").number(),
        new_source=spread.member("new_source").number(),
        fused=spread.member("fused").number(),
    )


def device_ends(
    times: Interval[_Array],
    families: Sequence[str],
    shapes: Sequence[Hashable],
    spread: StepSpread,
    *,
    is_validated: _BoolArray,
    is_fused: bool = False,
) -> tuple[_Array, _Array]:
    """Return the ends of the device time of a step, relative to the middle, each (gpus,).

    `times` have the shape (gpus, items). The errors that all operations share (`spread`) cancel in ratios of measured
    kernels.
    """
    device = times.middle.sum(axis=1)
    low, high = interval_of_sum(times, families, shapes)
    is_known = device > 0
    least = np.minimum(np.divide(low, device, out=np.ones_like(device), where=is_known), 1 / MEASURED_SPREAD)
    most = np.maximum(np.divide(high, device, out=np.ones_like(device), where=is_known), MEASURED_SPREAD)
    least, most = spread.widened(least, most, is_fused=is_fused)
    wider = np.where(is_validated, 1.0, ASSUMED_SPREAD)
    return least / wider, most * wider


# --- 5. The host

FASTEST_HOST: Final = 0.5  # Lower end of the 90 % interval of an unmeasured host's time, relative to the table
SLOWEST_HOST: Final = 1.5  # Upper end of that interval


def host_ends(
    factors: tuple[float, float], *, launching: float, python: float, has_stacks: bool
) -> tuple[float, float]:
    """Return the ends of the host time in seconds. Only a profiler with stacks slows Python code between operations.

    Args:
        factors: Ends of the host's time, relative to the middle.
        launching: Host seconds of all operations.
        python: Seconds of Python code between operations.
        has_stacks: Whether the profiler recorded Python stacks.
    """
    low = factors[0] if has_stacks else max(factors[0], 1 / SURROGATE_SPREAD)
    high = min(factors[1], SURROGATE_SPREAD)
    return launching * factors[0] + python * low, launching * factors[1] + python * high


# --- 6. Host and device

ODDS: Final = (1 - OUTSIDE) / OUTSIDE
"""Odds that a case is on the inner side of an interval end. Log-odds are linear in log time on either side."""

MIN_HALF_WIDTH: Final = 1e-3  # Half width in log time of a time that is certain
HALVINGS: Final = 24  # Number of bisections to find an interval end, for a precision of one millionth


def ends_of_step(
    middle: _Array, device: Interval[_Array], host: tuple[float, float, float], residual: _Array | float
) -> tuple[_Array, _Array]:
    """Return the ends of the step's interval, each (gpus,).

    Args:
        middle: Predicted step time.
        device: Device time.
        host: Low end, middle and high end of the host time.
        residual: Maximum time that the trace does not explain; the minimum is 0, because device work may hide this
            time.
    """
    launched = Interval(*(np.full_like(device.middle, seconds) for seconds in host))
    exposed = middle - np.maximum(device.middle, host[1])  # mutual waits, which are in neither queue's own time
    low, high = (end + exposed for end in interval_of_maximum(device, launched))
    return np.minimum(low, middle), np.maximum(high, middle) + residual


def interval_of_maximum(one: Interval[_Array], other: Interval[_Array]) -> tuple[_Array, _Array]:
    """Return the 90 % interval of the later of two times with independent errors.

    If the intervals overlap, the low end is above both low ends, and the high end is slightly above both high ends. The
    distribution of each log time is assumed to be logistic on either side of its middle.
    """
    low, high = np.maximum(one.low, other.low), np.maximum(one.high, other.high)
    both = (one.low < other.high) & (other.low < one.high)
    parts = [each.map(lambda ends: ends[both]) for each in (one, other)]
    if both.any():
        middle = np.maximum(*(part.middle for part in parts))
        beyond = np.maximum(*(part.high**2 / part.middle for part in parts))
        low[both] = _quantile_of_maximum(parts, OUTSIDE, low[both], middle)
        high[both] = _quantile_of_maximum(parts, 1 - OUTSIDE, high[both], beyond)
    return low, high


def _quantile_of_maximum(parts: Sequence[Interval[_Array]], share: float, least: _Array, most: _Array) -> _Array:
    """Find by bisection the time before which all parts end with the given probability."""
    for _ in range(HALVINGS):
        between = np.sqrt(least * most)
        is_early = np.prod([_probability_before(part, between) for part in parts], axis=0) < share
        least, most = np.where(is_early, between, least), np.where(is_early, most, between)
    quantile: _Array = np.sqrt(least * most)
    return quantile


def _probability_before(part: Interval[_Array], time: _Array) -> _Array:
    """Return the probability that a part ends before a time."""
    away = np.log(time / part.middle)
    half = np.where(away < 0, np.log(part.middle / part.low), np.log(part.high / part.middle))
    share: _Array = 1 / (1 + ODDS ** -(away / np.maximum(half, MIN_HALF_WIDTH)))
    return share


# --- 7. Many GPUs

SEVERAL_GPUS: Final = 0.16
"""Half width in log(seconds) that several GPUs add to the interval of one.

Sia's steps on 2 to 8 cards over those on one card deviate from the predicted ratios by 0.02 to 0.2 (six pairs of model
and card, `benchmarks.accuracy several-cards` beside `sia`): 0.095 in the mean square, times 1.645."""

STRAGGLER_WAIT: Final = np.array((0.0, 1.0, 4.0))  # (low, middle, high)
"""Low end, middle and high end of the wait for the slowest GPU, relative to its mean.

In the published profile of one of eight H100, collectives take 35 ms longer in four steps of 44 ms than the shortest of
their kind: a fifth of the step, where the mean wait of eight GPUs is 5 %."""


def on_several_gpus(ends: _Array) -> _Array:
    """Widen the interval (low, middle, high) of a step on one GPU to that of the same work on each of several GPUs."""
    middle = ends[1]
    if middle <= 0:
        return ends
    away = np.log(ends / middle)
    widened: _Array = middle * np.exp(np.array((-1.0, 0.0, 1.0)) * independent(away, SEVERAL_GPUS))
    return widened


def spread_of_mean(log_ratios: Sequence[float]) -> float:
    """Return the 90 % factor to either end of the mean ratio of actual to predicted times of earlier runs."""
    return math.exp(NORMAL_95 * statistics.stdev(log_ratios) / math.sqrt(len(log_ratios)))
