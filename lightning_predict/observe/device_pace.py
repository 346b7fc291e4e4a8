"""Time of a batch on a device (GPU) whose work is queued, so that the host (CPU) runs ahead of the device.

Kernel launches are queued, so the host is done with a batch before the device is. After each wait for the device, the
host runs ahead at its own speed until the launch queue is full. Only then do the host's cycles (from the start of a
batch to the start of the next) take as long as the device needs. Cycles in which the host runs ahead do not show the
device's speed, so they are excluded. Example::

    >>> pace = DevicePace()
    >>> pace.measured(0.030, launches=100, batches=8)
    >>> for cycle in (0.010, 0.010, 0.010, 0.030, 0.030, 0.030, 0.030):
    ...     pace.add(cycle)
    >>> pace.estimate().mean.middle
    0.03
"""

from __future__ import annotations

import math
import statistics
from copy import copy
from typing import Final

from lightning_predict.observe.steady_state import MeanEstimate, TimingSamples, estimate_mean

LAUNCH_QUEUE: Final = 8192  # Upper bound on the number of launches that wait for a device
AHEAD_SHARE: Final = 0.05  # Relative tolerance within which cycles equal the measured device time

STEADY_CYCLES: Final = 4
"""Number of consecutive cycles without a new maximum of the backlog, after which the host no longer runs ahead."""


class DevicePace:
    """Cycles of the host, without cycles in which the host runs ahead of the device.

    The backlog (seconds of queued work) models the launch queue: each cycle adds the device time of a batch, and
    subtracts the time that passed. While the backlog reaches new maxima, the host runs ahead, and its cycles do not
    count. Other cycles wait in `_pending` until they are enough to count. The real queue cannot hold more than
    `LAUNCH_QUEUE` launches. If the modelled backlog is larger, the measured device time was too long; from then on, the
    model is dropped and every cycle counts.
    """

    __slots__ = ("_backlog", "_batches", "_cycles", "_limit", "_peak", "_pending", "seconds")

    def __init__(self) -> None:
        # Device time of a batch, measured between two waits for the device; None if unknown
        self.seconds: float | None = None
        self._backlog = 0.0
        self._batches = 1
        self._limit = math.inf
        self._peak = 0.0
        self._pending: list[float] | None = []
        self._cycles = TimingSamples()

    @property
    def count(self) -> int:
        """Number of cycles that count; before the first cycle that counts, the number of measured batches."""
        return self._cycles.count or (0 if self.seconds is None else self._batches)

    def measured(self, seconds: float | None, *, launches: int = 1, batches: int = 1) -> None:
        """Set the device time of a batch, and discard earlier cycles, which contain waits.

        Args:
            seconds: Seconds of a batch between two waits for the device; None if not measured.
            launches: Number of kernel launches of a batch, at least 1.
            batches: Number of batches between the two waits.
        """
        self.seconds, self._batches = seconds, batches
        if seconds is None:
            return
        self._limit = seconds * LAUNCH_QUEUE / launches
        self._cycles = TimingSamples()
        self.drain()

    def add(self, cycle: float) -> None:
        """Add a cycle in seconds."""
        pace = self.seconds
        if pace is None:
            self._cycles.add(cycle)
            return
        self._backlog = max(0.0, self._backlog + pace - cycle)
        if self._backlog > self._limit:  # the queue cannot hold this much: drop the model
            self.seconds, self._backlog = None, 0.0
            self._count([cycle])
        elif self._backlog > self._peak:  # the host runs ahead
            self._peak = self._backlog
            pending, self._pending = [*(self._pending or ()), cycle], []
            if statistics.fmean(pending) >= (1 - AHEAD_SHARE) * pace:  # but hardly faster than the device
                self._count(pending)
        elif self._pending is None:  # the queue is full: the host waits in every cycle
            self._count([cycle])
        else:
            self._pending.append(cycle)
            if len(self._pending) >= STEADY_CYCLES:
                self._count(self._pending)
                self._pending = None

    def drain(self) -> float:
        """Record that the device finishes all queued work. Return the seconds of work that were queued."""
        queued, self._backlog, self._peak = self._backlog, 0.0, 0.0
        self._pending = []
        return queued

    def estimate(self, *, group_size: int = 1, remaining: float = math.inf) -> MeanEstimate | None:
        """Estimate the seconds of future cycles; None without any measurement.

        Args:
            group_size: Number of consecutive cycles that differ by position, such as the batches of an optimizer step.
            remaining: Number of remaining cycles of the run.
        """
        cycles = self._cycles.estimate(group_size=group_size, remaining=remaining)
        if cycles is None and self.seconds is not None:
            cycles = estimate_mean([self.seconds] * self._batches, remaining=remaining)
        return cycles

    def at_best(self, group_size: int) -> DevicePace:
        """Return a copy in which every cycle is the best so far. A measured time without cycles may hold a stall."""
        best = copy(self)
        best._cycles = self._cycles.at_best(group_size)
        best.seconds = self.seconds if self._cycles.count else None
        return best

    def _count(self, cycles: list[float]) -> None:
        for cycle in cycles:
            self._cycles.add(cycle)
