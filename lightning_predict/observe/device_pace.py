"""Seconds a batch takes on a device that works behind the host.

Kernel launches are queued, so the host is done with a batch before the device is. After each wait for the device, the
host runs ahead at its own pace until the launch queue is full. Only then do its cycles (from the start of a batch to
the start of the next) take as long as the device needs. Cycles of a host that runs ahead say nothing about the run,
so they are left out. Example::

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
from typing import Final, final

from lightning_predict.observe.steady_state import MeanEstimate, TimingSamples, estimate_mean

LAUNCH_QUEUE: Final = 8192
"""Upper bound on launches that wait for a device. On an H200 (CUDA 13.0, driver 580), the host never waited within
6,000 additions on 8 values behind 0.25 s of products. In a training step it ran about 1,000 launches ahead."""

AHEAD_SHARE: Final = 0.05
"""Relative difference from the measured pace within which cycles follow the device."""

STEADY_CYCLES: Final = 4
"""Cycles in a row during which the backlog sets no new maximum: the queue is full, or the host sets the pace."""


@final
class DevicePace:
    """Cycles of the host, without those in which it runs ahead of the device.

    The backlog is a queue: each cycle adds the device time of a batch and takes away the time that passed. While it
    reaches new maxima, the host runs ahead. A backlog larger than any launch queue shows that the device is faster
    than measured; from then on all cycles count.

    Attributes:
        seconds: Device time of a batch as measured between two waits; None if unknown.
    """

    __slots__ = ("_backlog", "_batches", "_cycles", "_limit", "_peak", "_pending", "seconds")

    def __init__(self) -> None:
        self.seconds: float | None = None
        self._backlog = 0.0
        self._batches = 1
        self._limit = math.inf
        self._peak = 0.0
        self._pending: list[float] | None = []
        self._cycles = TimingSamples()

    @property
    def count(self) -> int:
        """Cycles that count, or batches behind the measured pace before there is any."""
        return self._cycles.count or (0 if self.seconds is None else self._batches)

    def measured(self, seconds: float | None, *, launches: int = 1, batches: int = 1) -> None:
        """Take the device time of a batch, and forget earlier cycles, which contain waits.

        Args:
            seconds: Seconds of a batch between two waits for the device; None if that was not measured.
            launches: Kernel launches of a batch, at least 1.
            batches: Batches between the two waits.
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
        if self._backlog > self._limit:
            self.seconds, self._backlog = None, 0.0
            self._cycles.add(cycle)
        elif self._backlog > self._peak:
            self._peak = self._backlog
            pending = [*(self._pending or ()), cycle]
            self._pending = []
            if statistics.fmean(pending) >= (1 - AHEAD_SHARE) * pace:
                self._count(pending)
        elif self._pending is None:
            self._cycles.add(cycle)
        else:
            self._pending.append(cycle)
            if len(self._pending) >= STEADY_CYCLES:
                self._count(self._pending)
                self._pending = None

    def drain(self) -> float:
        """Note that the device catches up with the host; return the seconds of work that it had queued."""
        queued, self._backlog, self._peak = self._backlog, 0.0, 0.0
        self._pending = []
        return queued

    def estimate(self, *, together: int = 1, ahead: float = math.inf) -> MeanEstimate | None:
        """Return the future seconds of a cycle; None before anything is known.

        Args:
            together: Number of consecutive cycles that differ by position, such as the batches of an accumulation
                window.
            ahead: Remaining cycles of the run.
        """
        found = self._cycles.estimate(together=together, ahead=ahead)
        if found is None and self.seconds is not None:
            found = estimate_mean([self.seconds] * self._batches, remaining=ahead)
        return found

    def _count(self, cycles: list[float]) -> None:
        for cycle in cycles:
            self._cycles.add(cycle)
