"""Goodput of a long run on many GPUs: the share of time that failures, checkpoints and restarts leave for training.

A failure of any GPU stops the run, so a run on n GPUs fails n times as often as a run on one GPU. The run restarts from
its last checkpoint and repeats the lost work. Failures are random, with a constant rate. Daly's formula (2006) gives
the run time for a checkpoint time and interval. The best interval minimizes the run time, and is close to Young's
sqrt(2 x checkpoint time x mean time between failures) (1974). Example::

    >>> found = goodput_of(1e12, 1024, Reliability(mtbf_hours=50_000, checkpoint_gbps=10))
    >>> round(found.checkpoint_seconds), round(found.interval_seconds / 60), round(100 * found.share, 1)
    (100, 98, 96.3)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.units import gigabytes_to_bytes, hours_to_seconds
from lightning_predict.record.trace import Trace

PUBLISHED_MTBF_HOURS: Final = 50677.0023866  # Mean time between failures of one GPU, including its share of the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Failure rate, checkpoint bandwidth and restart time of a run."""

    # Mean hours between failures of one GPU, including its share of the machine and network, and including
    # interruptions of spot machines
    mtbf_hours: float = PUBLISHED_MTBF_HOURS
    # Storage bandwidth for a checkpoint of all GPUs, in GB/s (not Gbit/s). Training waits while a checkpoint is
    # written.
    checkpoint_gbps: float = 10.0
    restart_minutes: float = 10.0  # Minutes from a failure until training continues

    def __post_init__(self) -> None:
        for name in ("mtbf_hours", "checkpoint_gbps", "restart_minutes"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidArgumentError(f"{name}={value!r}; expected a number above 0.")


@dataclass(frozen=True, slots=True)
class Goodput:
    """Goodput of a run with the best checkpoint interval."""

    share: float
    interval_seconds: float
    checkpoint_seconds: float
    checkpoint_bytes: float
    failure_seconds: float


def checkpoint_bytes(trace: Trace) -> float | None:
    """Return the size of a checkpoint (parameters and optimizer state) in bytes; None if unknown."""
    memory = trace.memory
    if memory.parameter_bytes is None:
        return None
    return float(memory.parameter_bytes + (memory.optimizer_state_bytes or 0))


def goodput_of(size_bytes: float, gpus: int, reliability: Reliability) -> Goodput:
    """Return the goodput with the best checkpoint interval.

    The run needs all GPUs.
    """
    failing = hours_to_seconds(reliability.mtbf_hours) / gpus
    saving = size_bytes / gigabytes_to_bytes(reliability.checkpoint_gbps)
    restart = 60 * reliability.restart_minutes
    interval = _best_interval(saving, failing)
    # Daly (2006): M exp(R / M) (exp((interval + checkpoint) / M) - 1), for each interval of training
    wall = failing * math.exp(min(restart / failing, 500.0)) * math.expm1(min((interval + saving) / failing, 500.0))
    return Goodput(min(interval / wall, 1.0), interval, saving, size_bytes, failing)


def _best_interval(saving: float, failing: float) -> float:
    """Return the interval with the least run time: solve exp(x) (1 - x) = exp(-checkpoint / M), x = interval / M."""
    if saving <= 0:
        return failing * 1e-6
    low, high = 0.0, 1.0
    target = math.exp(-min(saving / failing, 500.0))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.exp(middle) * (1 - middle) > target else (low, middle)
    return max(low, 1e-9) * failing
