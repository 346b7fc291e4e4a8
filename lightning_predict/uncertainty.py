"""Combines the uncertainties of a prediction into the 90 % interval of a step: all spreads and correlations.

A half width is in log(seconds). A spread is the exponential of a half width: the factor to either end of an interval.
Seven rules apply in this order:

1. **One operation.** The half width of a network comes from its errors on held-out problems. The unknown rate of an
   unmeasured GPU is independent, so both half widths add in quadrature. Each formula has its own spread. A surrogate, a
   fallback to float32 or an odd size is a bias of unknown sign, so its spread is multiplied and does not average out.
2. **Measured operations.** A time measured on this GPU varies from run to run. The ratio of the times on two GPUs has a
   minimum half width per kind of relation (`PAIR_HALF_WIDTHS`). Only a deviation beyond the networks' errors is
   transferred to another GPU.
3. **The sum of a step's operations.** Half widths of repetitions of a problem add, because the repetitions have the
   same error. Errors of problems and of families have a correlation r: h² = (1 - r) Σ h_i² + r (Σ h_i)².
4. **The whole step.** A new source has an error that all operations share: clocks, power, libraries, and the spread of
   14 % between machines of one name. A chip without published steps has another. They add in quadrature.
5. **The host.** The interval of the host has factors on the launches and on the Python time between launches, which do
   not depend on the device.
6. **Host and device.** The step ends when the later of host and device ends. Their errors are independent.
7. **Many GPUs.** Links have their own spreads. Errors of compute and links are independent, but both are simulated at
   their low ends together, or at their high ends together, which gives a wider interval.

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
from typing import Any, Final, final, overload

import numpy as np
import numpy.typing as npt

from lightning_predict.base import checked
from lightning_predict.base.constants import constants_of
from lightning_predict.base.errors import WeightsFormatError
from lightning_predict.base.interval import NORMAL_95, OUTSIDE, Interval

_Array = npt.NDArray[np.float64]
_BoolArray = npt.NDArray[np.bool_]
_IndexArray = npt.NDArray[np.intp]

_OF: Final = constants_of(__name__)

# --- 1. One operation

MIN_SPREAD: Final = _OF.number("MIN_SPREAD", "factor")

POWER_RATE_UNCERTAINTY: Final = _OF.number("POWER_RATE_UNCERTAINTY", "log")
UNMEASURED_RATE_UNCERTAINTY: Final = _OF.number("UNMEASURED_RATE_UNCERTAINTY", "log")

MISALIGNED_SPREAD: Final = _OF.number("MISALIGNED_SPREAD", "factor")
NARROW_SPREAD: Final = _OF.number("NARROW_SPREAD", "factor")

CONVOLUTION_SPREAD: Final = _OF.numbers("CONVOLUTION_SPREAD", "factor")
GROUPED_SPREAD: Final = _OF.numbers("GROUPED_SPREAD", "factor")
FLOAT64_CONVOLUTION_SPREAD: Final = _OF.numbers("FLOAT64_CONVOLUTION_SPREAD", "factor")
VOLUME_SPREAD: Final = _OF.numbers("VOLUME_SPREAD", "factor")
FLOAT32_ATTENTION_SPREAD: Final = _OF.number("FLOAT32_ATTENTION_SPREAD", "factor")
LATENCY_SPREAD: Final = _OF.number("LATENCY_SPREAD", "factor")
EMBEDDING_SPREAD: Final = _OF.number("EMBEDDING_SPREAD", "factor")
FOURIER_SPREAD: Final = _OF.number("FOURIER_SPREAD", "factor")
SPARSE_SPREAD: Final = _OF.number("SPARSE_SPREAD", "factor")
LINALG_SPREAD: Final = _OF.number("LINALG_SPREAD", "factor")
ROOFLINE_SPREAD: Final = _OF.number("ROOFLINE_SPREAD", "factor")

SURROGATE_SPREAD: Final = _OF.number("SURROGATE_SPREAD", "factor")
FLOAT32_FALLBACK_SPREAD: Final = _OF.number("FLOAT32_FALLBACK_SPREAD", "factor")
UNKNOWN_OPERATION_SPREAD: Final = _OF.number("UNKNOWN_OPERATION_SPREAD", "factor")
UNTRANSLATED_SPREAD: Final = _OF.number("UNTRANSLATED_SPREAD", "factor")


def rate_half_width(share_of_power: float, *, is_measured: bool) -> float:
    """Return the half width of a GPU's sustained rate in log(FLOP/s).

    Args:
        share_of_power: Share of the rate that the power limit allows.
        is_measured: Whether the rate was measured on this GPU.
    """
    by_power = POWER_RATE_UNCERTAINTY * (1 - share_of_power)
    return by_power if is_measured else math.hypot(by_power, UNMEASURED_RATE_UNCERTAINTY)


def independent(*half_widths: _Array | float) -> _Array:
    """Combine half widths of independent errors by adding their squares."""
    total: _Array = np.asarray(half_widths[0])
    for other in half_widths[1:]:
        total = np.hypot(total, other)
    return total


def convolution_interval(seconds: _Array, groups: _Array, dtype: str, *, is_volume: bool) -> Interval[_Array]:
    """Return times from the convolution formula with their interval, shape (gpus, problems)."""
    plain = FLOAT64_CONVOLUTION_SPREAD if dtype == "float64" else VOLUME_SPREAD if is_volume else CONVOLUTION_SPREAD
    down, up = (
        np.where(groups > 1, max(own, grouped), own) for own, grouped in zip(plain, GROUPED_SPREAD, strict=True)
    )
    return Interval(seconds / down, seconds, seconds * up)


def of_network(seconds: _Array, highest: _Array, half_widths: _Array, odd: _Array, bound: _Array) -> Interval[_Array]:
    """Return times from networks with their interval, each (gpus, problems).

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
        times: Times of shape (gpus, problems).
        bound: Seconds of the minimum work.
        falls_back: Whether float32 replaces the dtype, shape (problems,). A replacement widens the interval.
    """
    spread = np.where(falls_back, FLOAT32_FALLBACK_SPREAD, 1.0)
    seconds = np.maximum(times.middle, MIN_SPREAD * bound)
    low = np.maximum(np.minimum(times.low / spread, seconds / MIN_SPREAD), bound)
    high = np.maximum(np.maximum(times.high, seconds) * spread, seconds * MIN_SPREAD)
    return Interval(low, seconds, high)


# --- 2. Measured operations

MEASURED_SPREAD: Final = _OF.number("MEASURED_SPREAD", "factor")
WAVE_SPREAD: Final = _OF.number("WAVE_SPREAD", "factor")
PAIR_HALF_WIDTHS: Final = _OF.numbers("PAIR_HALF_WIDTHS", "log")

SHARED_SCATTER: Final = _OF.number("SHARED_SCATTER", "log")
OWN_SCATTER: Final = _OF.number("OWN_SCATTER", "log")
CARRIED_SCATTER: Final = _OF.number("CARRIED_SCATTER", "log")


def transferred_part(residual: Any, scatter: float) -> Any:
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


# --- 3. The sum of a step's operations

PROBLEM_CORRELATION: Final = _OF.number("PROBLEM_CORRELATION", "correlation")
FAMILY_CORRELATION: Final = _OF.number("FAMILY_CORRELATION", "correlation")


def interval_of_sum(
    times: Interval[_Array],
    families: Sequence[str],
    problems: Sequence[Hashable],
    correlation: float | None = None,
    *,
    within: float | None = None,
) -> tuple[_Array, _Array]:
    """Return the ends of the interval of the device time, each of shape (gpus,).

    Args:
        times: Times of the items of work, (gpus, items).
        families: Family of each item. The networks of a family have the same bias.
        problems: Problem of each item. Items with the same problem have the same error.
        correlation: Correlation between families, from 0 (independent) to 1; None for `FAMILY_CORRELATION`.
        within: Correlation between the problems of one family; None for `PROBLEM_CORRELATION`.
    """
    between = FAMILY_CORRELATION if correlation is None else correlation
    inside = PROBLEM_CORRELATION if within is None else within
    numbers: dict[tuple[str, Hashable], int] = {}
    owners = np.array(
        [numbers.setdefault(key, len(numbers)) for key in zip(families, problems, strict=True)], dtype=np.intp
    )  # (items,)
    every: dict[str, int] = {}
    family_of = np.array([every.setdefault(family, len(every)) for family, _ in numbers], dtype=np.intp)

    def half_width(own: _Array) -> _Array:
        """Combine half-widths of items, (gpus, items), to the half-width of their sum, (gpus,)."""
        by_problem = summed_by_owner(own, owners, len(numbers))
        by_family = partly_shared(by_problem, family_of, len(every), inside)
        return partly_shared(by_family, np.zeros(len(every), dtype=np.intp), 1, between)[:, 0]

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

UNMEASURED_GPU_HALF_WIDTH: Final = _OF.number("UNMEASURED_GPU_HALF_WIDTH", "log")
OTHER_MAKERS_SPREAD: Final = _OF.number("OTHER_MAKERS_SPREAD", "factor")

SPREAD_FILE: Final = Path(__file__).parent / "weights" / "files" / "whole_steps.json"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpread:
    """Half width of a step's interval in log(seconds), by what is new about the step. Squares of the parts add.

    Attributes:
        operations_factor: Factor on the half width that results from the intervals of the operations.
        new_source: Half width that all operations of a step share, because every user's machine is a new source.
        new_chip: Additional shared half width for a chip without published steps.
        known_gpus: GPUs with a chip of which steps are published.
    """

    operations_factor: float
    new_source: float
    new_chip: float = 0.0
    known_gpus: frozenset[str] = frozenset()

    def of_new_chips(self, gpus: Sequence[str]) -> _Array:
        """Return the additional half width of each GPU by its name, shape (gpus,); 0 for a known chip."""
        return np.array([0.0 if name in self.known_gpus else self.new_chip for name in gpus])

    @overload
    def widened(self, low: float, high: float, additional_half_width: float = 0.0) -> tuple[float, float]: ...
    @overload
    def widened(
        self, low: _Array, high: _Array, additional_half_width: _Array | float = 0.0
    ) -> tuple[_Array, _Array]: ...
    def widened(
        self, low: float | _Array, high: float | _Array, additional_half_width: float | _Array = 0.0
    ) -> tuple[float | _Array, float | _Array]:
        """Return the ends of a step's interval from the ends of its operations' interval, all relative to the middle.

        The additional half width in log(seconds) is that of a new chip.
        """
        common = independent(self.new_source, additional_half_width)
        below, above = (independent(self.operations_factor * np.log(end), common) for end in (low, high))
        return np.exp(-below), np.exp(above)


UNCALIBRATED: Final = StepSpread(operations_factor=1.0, new_source=0.0)
"""Spread without calibration, which keeps the intervals of the operations."""


@cache
def bundled_spread() -> StepSpread:
    """Return the spread that is bundled with the weights."""
    return read_spread(SPREAD_FILE)


def read_spread(path: Path) -> StepSpread:
    """Read a spread from a file that `write_spread` of the accuracy study wrote.

    Raises:
        WeightsFormatError: The file does not contain a spread.
        OSError: The file cannot be read.
    """
    content = checked.read_json(path, WeightsFormatError)
    spread = content.member("spread")
    return StepSpread(
        operations_factor=spread.member("kept").number(),
        new_source=spread.member("new_source").number(),
        new_chip=UNMEASURED_GPU_HALF_WIDTH,
        known_gpus=frozenset(spread.member("known_gpus").texts()),
    )


def device_ends(
    times: Interval[_Array],
    families: Sequence[str],
    problems: Sequence[Hashable],
    spread: StepSpread,
    *,
    new: _Array,
    is_validated: _BoolArray,
    correlation: float | None = None,
) -> tuple[_Array, _Array]:
    """Return the ends of the device time of a step, relative to the middle, each (gpus,).

    Args:
        times: Times of the items of work, (gpus, items).
        families: Family of each item.
        problems: Problem of each item.
        spread: Errors that all operations share. For ratios of measured kernels, these errors cancel.
        new: Additional half width of a new chip.
        is_validated: Whether predictions for the GPU's vendor were compared with measurements.
        correlation: Correlation between families; None for `FAMILY_CORRELATION`.
    """
    device = times.middle.sum(axis=1)
    low, high = interval_of_sum(times, families, problems, correlation)
    is_known = device > 0
    least = np.minimum(np.divide(low, device, out=np.ones_like(device), where=is_known), 1 / MEASURED_SPREAD)
    most = np.maximum(np.divide(high, device, out=np.ones_like(device), where=is_known), MEASURED_SPREAD)
    least, most = spread.widened(least, most, new)
    wider = np.where(is_validated, 1.0, OTHER_MAKERS_SPREAD)
    return least / wider, most * wider


# --- 5. The host

FASTEST_HOST: Final = _OF.number("FASTEST_HOST", "factor")
SLOWEST_HOST: Final = _OF.number("SLOWEST_HOST", "factor")
HOST_CLASS_SPREADS: Final = _OF.numbers("HOST_CLASS_SPREADS", "factor")
MEASURED_HOST_SPREAD: Final = _OF.number("MEASURED_HOST_SPREAD", "factor")
PROFILED_SPREAD: Final = _OF.number("PROFILED_SPREAD", "factor")
STACKS_SPREAD: Final = _OF.number("STACKS_SPREAD", "factor")


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
    low = factors[0] if has_stacks else max(factors[0], 1 / MEASURED_HOST_SPREAD)
    high = min(factors[1], MEASURED_HOST_SPREAD)
    return launching * factors[0] + python * low, launching * factors[1] + python * high


# --- 6. Host and device

ODDS: Final = (1 - OUTSIDE) / OUTSIDE
"""Odds that a case is on the inner side of an interval end.

The log-odds are linear in log time on either side of the middle."""

MIN_HALF_WIDTH: Final = 1e-3
"""Half width in log time of a time that is certain."""

HALVINGS: Final = 24
"""Number of bisections to find an interval end, for a precision of one millionth."""


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
    found: _Array = np.sqrt(least * most)
    return found


def _probability_before(part: Interval[_Array], time: _Array) -> _Array:
    """Return the probability that a part ends before a time."""
    away = np.log(time / part.middle)
    half = np.where(away < 0, np.log(part.middle / part.low), np.log(part.high / part.middle))
    share: _Array = 1 / (1 + ODDS ** -(away / np.maximum(half, MIN_HALF_WIDTH)))
    return share


# --- 7. Many GPUs

UNFITTED_SPREAD: Final = _OF.number("UNFITTED_SPREAD", "factor")
PCIE_SPREADS: Final = _OF.numbers("PCIE_SPREADS", "factor")
UNKNOWN_PCIE_SPREAD: Final = _OF.number("UNKNOWN_PCIE_SPREAD", "factor")
UNMEASURED_LINKS_SPREAD: Final = _OF.number("UNMEASURED_LINKS_SPREAD", "factor")
OFFLOAD_SPREAD: Final = _OF.number("OFFLOAD_SPREAD", "factor")
LAYOUT_WIDTH: Final = _OF.number("LAYOUT_WIDTH", "log/log")

STRAGGLER_WAIT: Final = np.array(_OF.numbers("STRAGGLER_WAIT", "factor"))  # (low, middle, high)


def narrow_interval(ends: _Array) -> _Array:
    """Narrow the interval (low, middle, high) of a single step to the interval of a step on many GPUs."""
    middle = ends[1]
    if middle <= 0:
        return ends
    found: _Array = middle * (ends / middle) ** LAYOUT_WIDTH
    return found


def spread_of_mean(log_ratios: Sequence[float]) -> float:
    """Return the 90 % factor to either end of the mean ratio of actual to predicted times of earlier runs."""
    return math.exp(NORMAL_95 * statistics.stdev(log_ratios) / math.sqrt(len(log_ratios)))
