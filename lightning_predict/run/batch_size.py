"""Linear fits of step time and memory over the batch size, and the largest batch size that fits in memory.

GPU time and memory are linear in the batch size: a part grows with the number of samples, and another part (weights,
optimizer, kernel launches) is constant. The fit assumes that larger batches do not use the GPU better than the captured
batches. Example::

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

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.record.trace import Trace

LARGEST: Final = 2**30
"""Largest batch size that is considered."""


def samples_per_batch(trace: Trace) -> int:
    """Return the number of samples in one batch of a step; 1 if unknown."""
    return max((trace.samples or 1) // trace.batches, 1)


@final
@dataclass(frozen=True, slots=True)
class StraightLine:
    """A non-decreasing linear function of the batch size."""

    constant: float
    per_sample: float

    def at(self, batch_size: float) -> float:
        """Return the value at a batch size."""
        return self.constant + self.per_sample * batch_size


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeOption:
    """A batch size on one GPU, with its speed and cost.

    Attributes:
        gpu: Name of the GPU.
        batch_size: Largest batch size that fits; None if not even 1 fits. Linear fits consider only powers of two.
        step_seconds: Seconds of a step at this batch size.
        memory_bytes: Memory that the step needs.
        samples_per_second: Throughput.
        usd_per_hour: Price of the GPU; None if unknown.
        offer: Source and date of the price; None if unknown.
        usd_per_million_samples: Cost of training on a million samples; None if the price is unknown.
        is_extrapolated: Whether the batch size exceeds all captured batch sizes.
        fit_probability: Probability that the step fits in memory; None for linear fits.
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
    """Return the least-squares line through values at several batch sizes, with a slope of at least 0.

    Args:
        values: Value by batch size, with at least two entries.

    Raises:
        InvalidArgumentError: There are fewer than two batch sizes, or a batch size is below 1.
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
    """Return the largest power of two that fits as a batch size, at most `LARGEST`; None if not even 1 fits."""
    if memory.at(1) > available_bytes:
        return None
    if memory.at(LARGEST) <= available_bytes:
        return LARGEST
    exponent = int(math.log2((available_bytes - memory.constant) / memory.per_sample))
    # At an exact power of two, rounding of the logarithm may be off by one.
    near: list[int] = [2**power for power in range(max(0, exponent - 1), exponent + 2)]
    return max(size for size in near if memory.at(size) <= available_bytes)
