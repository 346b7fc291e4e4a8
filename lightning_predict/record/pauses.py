"""Times the user's Python code in a recorded step, between operations: for example an environment or a tokenizer.

Waits there (an environment in another process, a server, `time.sleep`) are timed apart: no processor shortens them.

Example::

    pauses = PauseTimer()
    pauses.open()
    # ... user code runs for 30 ms ...
    pauses.ends(before=0)      # the first operation begins
    pauses.close(after=1)
    pauses.placed(operations)  # the first operation has python_seconds of 0.03
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import Any, Final, NamedTuple

from lightning_predict.base.units import nanoseconds_to_seconds
from lightning_predict.record.trace import Operation

resource: ModuleType | None
try:
    import resource
except ImportError:  # Windows
    resource = None

SHORTEST_PAUSE_SECONDS: Final = 5e-3
"""Minimum pause that is recorded.

Shorter pauses come from PyTorch, from hooks, or from time slices (3-4 ms) lost to other virtual machines. With six
times more programs than CPUs, pauses of a step without user code were at most 4.5 ms."""

PARAMETER_SECONDS: Final = 3e-5
"""Upper bound on PyTorch's time per parameter in loops over all parameters.

Such loops are `zero_grad` between two steps, and `clip_grad_norm_` before an update. `zero_grad` takes 3 to 7 us per
parameter. `clip_grad_norm_` takes 7 to 9 ms under a recorder for the 393 parameters of BERT-large, including the
first 5 ms of a pause, and 12 to 16 ms in three of thirteen recordings on a virtual machine at half speed. A smaller
bound would make one recording of a step 24 % slower than the next. User code below the bound takes less host time
than the update."""

NODE_SECONDS: Final = 5e-6
"""Upper bound on autograd's time per node, before the first node of a backward pass runs and when nodes are freed.

Autograd took 0.5 to 1.4 us per node in isolation, and 3.9 us in a large process on a busy machine."""


class ThreadUse(NamedTuple):
    """How this thread has spent its time so far."""

    # CPU time outside the kernel; with the kernel, where the system does not tell them apart. The kernel takes 10 ms to
    # unmap 100 MB of a freed tensor on the CPU. On a GPU, the allocator keeps freed memory.
    user_seconds: float
    idle_seconds: float  # Time without a processor
    # Number of times that the thread gave up its processor to wait; it does not when another program takes the
    # processor. Equal to `idle_seconds` where the system does not count them.
    waits: float


def thread_use() -> ThreadUse:
    """Return how this thread has spent its time so far."""
    if resource is None or not hasattr(resource, "RUSAGE_THREAD"):
        used = time.thread_time()
        idle = time.perf_counter() - used
        return ThreadUse(used, idle, idle)
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    # The thread's own clock is exact. Of `usage`, the sum of both times may jump by a tick (4 ms).
    return ThreadUse(usage.ru_utime, time.perf_counter() - time.thread_time(), usage.ru_nvcsw)


class PauseTimer:
    """Measures the pauses between operations on one thread.

    The clock is the CPU time of this thread outside the kernel, so other programs, other threads, waits for the disk or
    another process, and the release of large tensors on the CPU do not count. Garbage collection, which recording
    increases, is excluded.

    Args:
        is_framework: Called at the end of a pause; returns whether only PyTorch ran in the pause. A recorder slows
            PyTorch: an update of 148 parameters takes 6.4 ms before its first operation on an idle machine.
        clock: Returns how this thread has spent its time so far.
    """

    def __init__(
        self, is_framework: Callable[[], bool] = lambda: False, *, clock: Callable[[], ThreadUse] = thread_use
    ) -> None:
        self._is_framework = is_framework
        self._clock = clock
        self._found: list[tuple[int, float]] = []
        self._since: ThreadUse | None = None
        self._scheduler: int | None = None  # open file
        self._scheduled = b""
        # Time in pauses in which the thread gave up its processor to wait, without the time in which it could go on but
        # had no processor (on Linux)
        self.waited_seconds = 0.0
        self._collecting_since = 0.0
        self._collected = 0.0

    def open(self) -> None:
        """Start measuring, with no operation running."""
        self.close(after=0)
        with suppress(OSError):  # not Linux
            self._scheduler = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        gc.callbacks.append(self._collects)
        self.begins()

    def close(self, *, after: int) -> None:
        """Stop measuring; calling it again has no effect."""
        self.ends(before=after)
        if self._scheduler is not None:
            os.close(self._scheduler)
            self._scheduler = None
        if self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)

    def begins(self) -> None:
        """Record that no operation is running."""
        self._scheduled = self._read_scheduler()
        self._since, self._collected = self._clock(), 0.0

    def _read_scheduler(self) -> bytes:
        """Return the scheduler's numbers of this thread, of which the second is nanoseconds without a processor."""
        return b"0 0" if self._scheduler is None else os.pread(self._scheduler, 64, 0)

    def ends(self, *, before: int) -> None:
        """Record that an operation begins, or that the recording ends."""
        since, self._since = self._since, None
        if since is None:
            return
        now = self._clock()
        seconds = now.user_seconds - self._collected - since.user_seconds
        has_waited = now.waits > since.waits
        if (has_waited or seconds >= SHORTEST_PAUSE_SECONDS) and not self._is_framework():
            if has_waited:
                before_it, after = (int(text.split()[1]) for text in (self._scheduled, self._read_scheduler()))
                idle = now.idle_seconds - since.idle_seconds
                self.waited_seconds += max(0.0, idle - nanoseconds_to_seconds(after - before_it))
            if seconds >= SHORTEST_PAUSE_SECONDS:
                self._found.append((before, seconds))

    def placed(self, operations: Sequence[Operation], *, parameters: int = 0, nodes: int = 0) -> tuple[Operation, ...]:
        """Add each pause to the operation after it.

        Pauses after the last operation are added to the first operation, because steps repeat. Pauses that PyTorch's
        own work can explain are omitted.

        Args:
            operations: Operations of the step.
            parameters: Number of parameters. PyTorch's own work before an update and between two steps is proportional
                to this number.
            nodes: Number of autograd nodes. Autograd's own work before a backward pass, and at the end of a step, where
                nodes are freed, is proportional to this number. On the meta device, one operation such as an LSTM may
                create thousands of nodes.
        """
        timed = list(operations)
        for position, seconds in self._found if timed else ():
            index = position % len(timed)
            own = parameters * PARAMETER_SECONDS if index == 0 or timed[index].phase == "optimizer" else 0.0
            if index == 0:
                own = max(own, nodes * NODE_SECONDS)
            elif (timed[index - 1].phase, timed[index].phase) == ("forward", "backward"):
                own = max(index, nodes) * NODE_SECONDS
            if seconds < SHORTEST_PAUSE_SECONDS + own:
                continue
            timed[index] = replace(timed[index], python_seconds=timed[index].python_seconds + seconds)
        return tuple(timed)

    def _collects(self, phase: str, _: Mapping[str, Any]) -> None:
        now = self._clock().user_seconds
        if phase == "start":
            self._collecting_since = now
        else:
            self._collected += now - self._collecting_since
