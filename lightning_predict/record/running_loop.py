"""Step time in a running loop, and host time without a profiler, both from clock readings only.

An isolated step begins and ends with an idle device. A running loop does not wait: the host launches a step while the
device still executes the previous one. Two additional measurements give both times. In an isolated step, the clock is
also read when the host is done, before the wait for the device. A block of steps is timed with a single wait at its
end. Example::

    block = StepBlock(seconds=0.86, waited_seconds=0.0, steps=8, batches=1)
    running_step_seconds(block, standing=0.12, host=0.03)   # 0.106: (0.86 - 0.12) / 7
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from lightning_predict.base.ties import NOTICEABLE
from lightning_predict.record.trace import Trace

BLOCK_BATCHES: Final = 8
"""Number of batches per block.

The idle device at the start lengthens the mean step by at most an eighth of a step, before the correction."""

MIN_BATCHES: Final = 3  # Minimum number of batches in a block. With fewer, the single wait has too much weight.
BLOCKS_OF_A_RUN: Final = 4  # Minimum length of the remaining run, in blocks, for timing a block before predicting
HOST_AHEAD_SHARE: Final = 0.9  # Maximum share of a block of host work and waits, so that the device never runs dry
MAX_TRIES: Final = 2  # Maximum number of attempts to time a block. If epochs are shorter, none succeeds.


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBlock:
    """Consecutive steps that were timed with a single wait for the device, at their end."""

    seconds: float  # Time from the start of the first step, on an idle device, until it has finished the last step
    waited_seconds: float  # Time spent waiting for batches, in which the device may have worked
    steps: int
    batches: int = 1  # Batches per step


class BlockTimer:
    """Times one block of steps, from calls at their starts and ends. An interruption discards the block."""

    def __init__(self) -> None:
        self.block: StepBlock | None = None
        self.is_running = False
        self._tries = MAX_TRIES
        self._steps = self._steps_wanted = 0
        self._batches = 1
        self._began = self._waited = 0.0
        self._last_end: float | None = None

    @property
    def may_begin(self) -> bool:
        """Whether a block may begin: no block is complete, and an attempt is left."""
        return self.block is None and not self.is_running and self._tries > 0

    @property
    def is_at_last_step(self) -> bool:
        """Whether the current step is the last step of the block, after which to wait for the device."""
        return self.is_running and self._steps == self._steps_wanted - 1

    def begins(self, now: float, *, steps: int, batches: int) -> None:
        """Record that a block begins, with an idle device."""
        self.is_running = True
        self._tries -= 1
        self._steps, self._steps_wanted, self._batches = 0, steps, batches
        self._began, self._waited, self._last_end = now, 0.0, None

    def on_batch_start(self, now: float) -> None:
        """Record that a batch begins."""
        if self._last_end is not None:
            self._waited += now - self._last_end

    def on_batch_end(self, now: float) -> None:
        """Record that the host is done with a batch."""
        self._last_end = now

    def on_step_end(self, now: float) -> None:
        """Record that a step ended. For the last step, `now` is the time at which the device was done."""
        self._steps += 1
        if self._steps < self._steps_wanted:
            return
        self.is_running = False
        self.block = StepBlock(
            seconds=now - self._began, waited_seconds=self._waited, steps=self._steps, batches=self._batches
        )

    def breaks(self) -> None:
        """Discard the current block because other work ran between its steps."""
        self.is_running = False


def block_steps(*, batches: int, steps_after: int | None) -> int:
    """Return the number of steps for a block; 0 if the run is too short.

    Args:
        batches: Batches per step.
        steps_after: Steps until the end of the run; None if unknown.
    """
    wanted = max(BLOCK_BATCHES // batches, 1)
    enough = wanted * batches >= MIN_BATCHES and (steps_after is None or steps_after >= BLOCKS_OF_A_RUN * wanted)
    return wanted if enough else 0


def running_step_seconds(block: StepBlock, *, standing: float, host: float) -> float | None:
    """Return the step time in a running loop; None if the block is unsuitable.

    An isolated step waits once per batch for the device's remaining work, w = (standing - running) / b with b batches.
    The block waits once, so seconds = steps * running + w. An isolated step takes at most the sum of host and device
    time, so a step in a running loop takes at least half as long as an isolated step.

    Args:
        block: Block of steps.
        standing: Time of one isolated step, with a wait for the device at its end (and after each of its batches).
        host: Time of an isolated step until the host is done.
    """
    is_ahead = block.steps * host + block.waited_seconds <= HOST_AHEAD_SHARE * block.seconds
    if block.steps * block.batches < MIN_BATCHES or (
        block.waited_seconds > NOTICEABLE * block.seconds and not is_ahead
    ):
        return None
    follows_host = standing - host <= NOTICEABLE * standing
    seconds = block.seconds - (block.waited_seconds if follows_host else 0.0)
    once = 1 / block.batches
    running = (seconds - once * standing) / (block.steps - once)
    return min(max(running, standing / 2), seconds / block.steps)


def with_running_loop(trace: Trace, *, hosts: Sequence[float], block: StepBlock | None) -> Trace:
    """Add host times and the step time in a running loop to a trace, from clock readings.

    Args:
        trace: Trace with times of isolated steps.
        hosts: Time of each isolated step until the host was done; empty if not measured.
        block: Block of steps; None if no block was timed.
    """
    trace = replace(trace, host_seconds_unprofiled=tuple(hosts))
    if block is None or not hosts or not trace.step_seconds or block.batches != trace.batches:
        return trace
    running = running_step_seconds(block, standing=statistics.median(trace.step_seconds), host=statistics.median(hosts))
    return trace if running is None else replace(trace, running_step_seconds=running, running_steps=block.steps)
