"""Times the user's Python code in a recorded step, between operations: for example an environment or a tokenizer.

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
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, Final, final

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


def user_seconds() -> float:
    """CPU time of this thread outside the kernel; with the kernel, where the system does not tell them apart.

    The kernel takes 10 ms to unmap 100 MB of a freed tensor on the CPU. On a GPU, the allocator keeps freed memory.
    """
    if resource is None or not hasattr(resource, "RUSAGE_THREAD"):
        return time.thread_time()
    used: float = resource.getrusage(resource.RUSAGE_THREAD).ru_utime
    return used


@final
class PauseTimer:
    """Measures the pauses between operations on one thread.

    The clock is the CPU time of this thread outside the kernel, so other programs, other threads, waits for the disk or
    another process, and the release of large tensors on the CPU do not count. Garbage collection, which recording
    increases, is excluded.

    Args:
        is_framework: Called at the end of a pause; returns whether only PyTorch ran in the pause. A recorder slows
            PyTorch: an update of 148 parameters takes 6.4 ms before its first operation on an idle machine.
        clock: CPU time of this thread outside the kernel, in seconds.
    """

    def __init__(
        self, is_framework: Callable[[], bool] = lambda: False, *, clock: Callable[[], float] | None = None
    ) -> None:
        self._is_framework = is_framework
        self._clock = clock or user_seconds
        self._found: list[tuple[int, float]] = []
        self._since: float | None = None
        self._collecting_since = 0.0
        self._collected = 0.0

    def open(self) -> None:
        """Start measuring, with no operation running."""
        self.close(after=0)
        gc.callbacks.append(self._collects)
        self.begins()

    def close(self, *, after: int) -> None:
        """Stop measuring; calling it again has no effect."""
        self.ends(before=after)
        if self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)

    def begins(self) -> None:
        """Record that no operation is running."""
        self._since = self._clock() - self._collected

    def ends(self, *, before: int) -> None:
        """Record that an operation begins, or that the recording ends."""
        since, self._since = self._since, None
        if since is None:
            return
        seconds = self._clock() - self._collected - since
        if seconds >= SHORTEST_PAUSE_SECONDS and not self._is_framework():
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
        now = self._clock()
        if phase == "start":
            self._collecting_since = now
        else:
            self._collected += now - self._collecting_since
