"""Extrapolate steps at a few batch sizes by straight lines for time and memory, and find the largest that fits.

The work of a step grows with its samples, and what does not (weights, optimizer, launches) stays; so the device's time
and the memory lie on straight lines, as long as the larger sizes fill the GPU no better than those that were captured.
Example::

    >>> line = line_through({8: 1.0, 16: 1.5})
    >>> line.at(32)
    2.5
    >>> largest_power_of_two(line, 10.0)  # 0.5 + b / 16 up to 152
    128
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lightning_predict.errors import InvalidArgumentError

LARGEST: Final = 2**30
"""Largest batch size that is considered: the limit where memory does not grow with it."""


@final
@dataclass(frozen=True, slots=True)
class StraightLine:
    """A straight line over batch sizes; it does not fall."""

    constant: float
    per_sample: float

    def at(self, batch_size: float) -> float:
        """Return its value."""
        return self.constant + self.per_sample * batch_size


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeOption:
    """A batch size on one GPU.

    Attributes:
        gpu: Name of the GPU.
        batch_size: Samples of a batch, the most that fit (of lines: the largest power of two); None if not even one
            does.
        step_seconds: Seconds of a step of that size.
        memory_bytes: That it needs.
        samples_per_second: Throughput.
        usd_per_hour: Price of the GPU; None if unknown.
        offer: Where the price comes from, with its date; None if unknown.
        usd_per_million_samples: Cost of training on a million samples; None if no price is known.
        is_extrapolated: The size is over those that were captured.
        fit_probability: Chance that it fits; None where the size was found by lines.
    """

    gpu: str
    batch_size: int | None
    step_seconds: float | None = None
    memory_bytes: float | None = None
    samples_per_second: float | None = None
    usd_per_hour: float | None = None
    offer: str | None = None
    usd_per_million_samples: float | None = None
    is_extrapolated: bool = False
    fit_probability: float | None = None


def line_through(values: Mapping[int, float]) -> StraightLine:
    """Return the least-squares line through values by batch size; exact for two. A falling line is made flat.

    Args:
        values: At least two.

    Raises:
        InvalidArgumentError: Fewer, or a batch size below 1.
    """
    if len(values) < 2 or min(values) < 1:
        given = ", ".join(map(str, sorted(values))) or "none"
        raise InvalidArgumentError(
            f"The batch sizes are {given}; expected at least two different ones, each at least 1."
        )
    sizes, measured = np.array(list(values), dtype=np.float64), np.array(list(values.values()), dtype=np.float64)
    deviations = sizes - sizes.mean()
    slope = max(0.0, float(deviations @ (measured - measured.mean()) / (deviations @ deviations)))
    return StraightLine(float(measured.mean() - slope * sizes.mean()), slope)


def largest_power_of_two(memory: StraightLine, available_bytes: float) -> int | None:
    """Return the largest power of two as batch size that fits; None if not even 1 does."""
    if memory.at(1) > available_bytes:
        return None
    if memory.at(LARGEST) <= available_bytes:
        return LARGEST
    exponent = int(math.log2((available_bytes - memory.constant) / memory.per_sample))
    # Rounding may be off by one at an exact power.
    near: list[int] = [2**power for power in range(max(0, exponent - 1), exponent + 2)]
    return max(size for size in near if memory.at(size) <= available_bytes)
