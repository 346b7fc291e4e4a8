"""The step of a running loop and the host without a profiler, from clock readings alone.

A step that is timed until the device is done begins and ends with an idle device. A running loop does not wait: its
host is ahead, and launches one step while the device works on the one before. Two readings tell them apart. In a timed
step the clock is read before the device is waited for, too, which is when the host was done; and a block of steps is
timed with one wait, at its end. Example::

    block = StepBlock(seconds=0.86, waited_seconds=0.0, steps=8, batches=1)
    running_step_seconds(block, standing=0.12, host=0.03)   # 0.106: (0.86 - 0.12) / 7
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from lightning_predict.tracing.trace import Trace

BLOCK_BATCHES: Final = 8
"""Batches of a block: what its beginning with an idle device adds is an eighth of a step before it is taken out."""

FEWEST_BATCHES: Final = 3
"""Of fewer, the one wait is too large a part."""

BLOCKS_OF_A_RUN: Final = 4
"""A run that leaves less than so many blocks is too short to wait for one before something is said of it."""

WAITED_SHARE: Final = 0.02
"""A block that waited longer for its batches is no loop that the step bounds: the device caught up meanwhile."""

MOST_TRIES: Final = 2
"""Blocks that are begun at most: where epochs are shorter than a block, there is none."""

IDLE_SHARE: Final = 0.02
"""A device that is done within this share of a step after the host follows the host's pace."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StepBlock:
    """Steps that ran one after the other, with one wait for the device, at their end.

    Attributes:
        seconds: From the beginning of the first, with an idle device, until the device had done the last.
        waited_seconds: Waits for a batch between them, which the device may have used.
        steps: Steps in it.
        batches: Batches of each.
    """

    seconds: float
    waited_seconds: float
    steps: int
    batches: int = 1


@final
class BlockTimer:
    """Times one block, told of steps and batches; a break in it discards it.

    Attributes:
        block: The block once it is whole.
        is_running: A block is under way.
    """

    def __init__(self) -> None:
        self.block: StepBlock | None = None
        self.is_running = False
        self._tries = MOST_TRIES
        self._steps = self._steps_wanted = 0
        self._batches = 1
        self._began = self._waited = 0.0
        self._last_end: float | None = None

    @property
    def may_begin(self) -> bool:
        """There is no block yet, and a try is left."""
        return self.block is None and not self.is_running and self._tries > 0

    @property
    def is_at_last_step(self) -> bool:
        """The step under way is the last of the block: the device is waited for at its end."""
        return self.is_running and self._steps == self._steps_wanted - 1

    def begins(self, now: float, *, steps: int, batches: int) -> None:
        """Note that a block begins, with an idle device.

        Args:
            now: Seconds on a monotonic clock.
            steps: Steps that it is to have.
            batches: Batches of each.
        """
        self.is_running = True
        self._tries -= 1
        self._steps, self._steps_wanted, self._batches = 0, steps, batches
        self._began, self._waited, self._last_end = now, 0.0, None

    def batch_starts(self, now: float) -> None:
        """Note that a batch is about to be trained."""
        if self._last_end is not None:
            self._waited += now - self._last_end

    def batch_ends(self, now: float) -> None:
        """Note that the host is done with a batch."""
        self._last_end = now

    def step_ends(self, now: float) -> None:
        """Note that a step ended; the last one's time is when the device was done."""
        self._steps += 1
        if self._steps < self._steps_wanted:
            return
        self.is_running = False
        self.block = StepBlock(
            seconds=now - self._began, waited_seconds=self._waited, steps=self._steps, batches=self._batches
        )

    def breaks(self) -> None:
        """Discard a block under way: something else came between its steps."""
        self.is_running = False


def block_steps(*, batches: int, steps_after: int | None) -> int:
    """Return how many steps a block should have; 0 where the run is too short for one.

    Args:
        batches: Batches of a step.
        steps_after: Steps until the run ends; None if unknown.
    """
    wanted = max(BLOCK_BATCHES // batches, 1)
    enough = wanted * batches >= FEWEST_BATCHES and (steps_after is None or steps_after >= BLOCKS_OF_A_RUN * wanted)
    return wanted if enough else 0


def running_step_seconds(block: StepBlock, *, standing: float, host: float) -> float | None:
    """Return the seconds of a step in the block once it runs; None if the block does not say.

    Each of the b batches of a standing step waits once for what the device still has to do, w = (standing - running) /
    b; the block waits once: seconds = steps * running + w. As a standing step takes no longer than host and device one
    after the other, a running one takes at least half of it.

    Args:
        block: The block.
        standing: Seconds of one step that waits for the device at its end (and after each of its batches).
        host: Seconds of it until the host is done.
    """
    if block.steps * block.batches < FEWEST_BATCHES or block.waited_seconds > WAITED_SHARE * block.seconds:
        return None
    follows_host = standing - host <= IDLE_SHARE * standing
    seconds = block.seconds - (block.waited_seconds if follows_host else 0.0)
    once = 1 / block.batches
    running = (seconds - once * standing) / (block.steps - once)
    return min(max(running, standing / 2), seconds / block.steps)


def with_running_loop(trace: Trace, *, hosts: Sequence[float], block: StepBlock | None) -> Trace:
    """Return the trace with what the clock readings say of the host and of the loop.

    Args:
        trace: A trace with the seconds of steps that were timed one by one.
        hosts: Seconds of each of them until the host was done; empty if not read.
        block: A block of such steps; None if none was timed.
    """
    trace = replace(trace, host_seconds_unprofiled=tuple(hosts))
    if block is None or not hosts or not trace.step_seconds or block.batches != trace.batches:
        return trace
    running = running_step_seconds(block, standing=statistics.median(trace.step_seconds), host=statistics.median(hosts))
    return trace if running is None else replace(trace, running_step_seconds=running, running_steps=block.steps)
