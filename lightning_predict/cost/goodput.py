"""Count what failures, checkpoints and restarts leave of a long run on many GPUs.

Any GPU that fails stops the run: n of them fail n times as often as one. The run then starts again from its last
checkpoint and does again what came after it. Failures are taken to come at random at a constant rate, so that Daly's
formula (2006) holds for the time of a run with checkpoints of a length at an interval; the best interval, near Young's
sqrt(2 x checkpoint x mean time between failures) (1974), is the one that makes it shortest. Example::

    >>> found = goodput_of(1e12, 1024, Reliability(mtbf_hours=50_000, checkpoint_gbps=10))
    >>> round(found.checkpoint_seconds), round(found.interval_seconds / 60), round(100 * found.share, 1)
    (100, 98, 96.3)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.tracing.trace import Trace
from lightning_predict.units import gigabytes_to_bytes, hours_to_seconds

PUBLISHED_MTBF_HOURS: Final = 54 * 24 * 16_384 / 419
"""Mean time between failures of one GPU with its part of the machine: 419 unexpected interruptions in 54 days of 16,384
H100s (Llama 3, arXiv:2407.21783), 50,700 hours. One cluster of one generation: others differ by a multiple."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """How often machines fail, and how fast a run is saved and started again.

    Attributes:
        mtbf_hours: Mean hours between failures of one GPU, its part of machine and network included; of an
            interruptible one, between interruptions, too.
        checkpoint_gbps: GB (not Gbit) a second that storage takes of all GPUs together, while training waits.
        restart_minutes: From a failure until training goes on: noticing it, another machine, loading the checkpoint.

    Raises:
        InvalidArgumentError: A value that is not above 0.
    """

    mtbf_hours: float = PUBLISHED_MTBF_HOURS
    checkpoint_gbps: float = 10.0
    restart_minutes: float = 10.0

    def __post_init__(self) -> None:
        for name in ("mtbf_hours", "checkpoint_gbps", "restart_minutes"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidArgumentError(f"{name}={value!r}; expected a number above 0.")


@final
@dataclass(frozen=True, slots=True)
class Goodput:
    """What is left of a run.

    Attributes:
        share: Of the time, what training takes that is not done again.
        interval_seconds: Training between two checkpoints, at best.
        checkpoint_seconds: Time of one.
        checkpoint_bytes: Its size.
        failure_seconds: Mean time between two failures of any of the GPUs.
    """

    share: float
    interval_seconds: float
    checkpoint_seconds: float
    checkpoint_bytes: float
    failure_seconds: float


def checkpoint_bytes(trace: Trace) -> float | None:
    """Return the size of a checkpoint: parameters and the optimizer's state; None if they are not known."""
    memory = trace.memory
    if memory.parameter_bytes is None:
        return None
    return float(memory.parameter_bytes + (memory.optimizer_state_bytes or 0))


def goodput_of(size_bytes: float, gpus: int, reliability: Reliability) -> Goodput:
    """Find the best interval between checkpoints, and what is left of the time with it.

    Args:
        size_bytes: A checkpoint.
        gpus: GPUs, all of which the run needs.
        reliability: How often they fail, and how fast the run is saved and started again.
    """
    failing = hours_to_seconds(reliability.mtbf_hours) / gpus
    saving = size_bytes / gigabytes_to_bytes(reliability.checkpoint_gbps)
    restart = 60 * reliability.restart_minutes
    interval = _best_interval(saving, failing)
    # Daly (2006): M exp(R / M) (exp((interval + checkpoint) / M) - 1) for each interval of training.
    wall = failing * math.exp(min(restart / failing, 500.0)) * math.expm1(min((interval + saving) / failing, 500.0))
    return Goodput(min(interval / wall, 1.0), interval, saving, size_bytes, failing)


def _best_interval(saving: float, failing: float) -> float:
    """Find the interval with the least time of a run: where exp(x) (1 - x) = exp(-checkpoint / M), x in units of M."""
    if saving <= 0:
        return failing * 1e-6
    low, high = 0.0, 1.0
    target = math.exp(-min(saving / failing, 500.0))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.exp(middle) * (1 - middle) > target else (low, middle)
    return max(low, 1e-9) * failing
