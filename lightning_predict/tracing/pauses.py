"""Times in which a recorded step runs no operation: Python code of its own, such as an environment or a tokenizer.

Example::

    pauses = Pauses()
    pauses.open()
    # ... the step's own code works for 30 ms ...
    pauses.ends(before=0)      # its first operation begins
    pauses.close(after=1)
    pauses.placed(operations)  # the first one has python_seconds of 0.03
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final

from lightning_predict.tracing.trace import Operation
from lightning_predict.units import nanoseconds_to_seconds

SHORTEST_PAUSE_SECONDS: Final = 5e-3
"""A shorter pause is PyTorch's own, a hook's, or a slice of time (3-4 ms) that a virtual machine lost to another: on
one with six times as many programs as processors, pauses of a step that does nothing else were 4.5 ms at most."""

PARAMETER_SECONDS: Final = 3e-5
"""What PyTorch takes at most for a parameter where it passes through all of them, as `zero_grad` between two steps and
`clip_grad_norm_` before an update do. 3 to 7 us were seen of the former; the latter takes 7 to 9 ms for the 393
parameters of BERT-large under a recorder, of which a pause's 5 ms are a part, and 12 to 16 ms in three of thirteen
recordings, on a virtual machine whose processors ran at half speed for a while. Less would make the same step 24 %
slower in one recording than in the next; what is lost is less than the update itself takes of a host."""

NODE_SECONDS: Final = 5e-6
"""What autograd takes at most for a node before the first one of a backward pass runs, and to free it: 0.5 to 1.4 us
were seen alone, 3.9 in a crowded process on a busy machine."""

STALE_SECONDS: Final = 5e-4
"""Age up to which a reading of what other programs took of the processor counts as new."""

_SCHEDULER: Final = "/proc/thread-self/schedstat"
"""Where Linux says, second, for how many nanoseconds a thread was ready to run and another program ran."""


@final
class Pauses:
    """Measures the pauses between operations on one thread.

    A pause counts as it would on an idle machine: time in which other programs had the processor is left out (on Linux,
    which tells), and so are garbage collections, which a recorder brings about.

    Args:
        is_framework: Asked at the end of a pause, says whether only PyTorch ran in it, which a recorder slows down: in
            an update of 148 parameters, 6.4 ms before its first operation on a machine that has nothing else to do.
        clock: Monotonic clock, in seconds.
        others: Seconds in which others had the processor; None asks the system.
    """

    def __init__(
        self,
        is_framework: Callable[[], bool] = lambda: False,
        *,
        clock: Callable[[], float] = time.perf_counter,
        others: Callable[[], float] | None = None,
    ) -> None:
        self._is_framework = is_framework
        self._clock = clock
        self._others = others or self._waiting_seconds
        self._found: list[tuple[int, float]] = []
        self._since: float | None = None
        self._own_since = 0.0
        self._scheduler: int | None = None
        self._waited, self._read_at = 0.0, -math.inf
        self._collecting_since = 0.0
        self._collected = 0.0

    def open(self) -> None:
        """Begin to measure: no operation runs."""
        self.close(after=0)
        try:
            self._scheduler = os.open(_SCHEDULER, os.O_RDONLY)
        except OSError:
            self._scheduler = None
        gc.callbacks.append(self._collects)
        self.begins()

    def close(self, *, after: int) -> None:
        """Stop measuring; closing twice is harmless."""
        self.ends(before=after)
        if self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            os.close(scheduler)

    def begins(self) -> None:
        """Note that no operation runs any longer."""
        now = self._clock()
        # Reading the file after each operation costs more than all else; what others took of the processor in less
        # than a millisecond is at most that.
        if now - self._read_at > STALE_SECONDS:
            self._waited = self._others()
            # Another program may run as soon as the file is read: the pause begins after that.
            now = self._read_at = self._clock()
        self._since = now
        self._own_since = now - self._waited - self._collected

    def ends(self, *, before: int) -> None:
        """Note that an operation begins, or the recording ends."""
        since, self._since = self._since, None
        if since is None or self._clock() - since < SHORTEST_PAUSE_SECONDS:
            return
        seconds = self._own_clock() - self._own_since
        if seconds >= SHORTEST_PAUSE_SECONDS and not self._is_framework():
            self._found.append((before, seconds))

    def placed(self, operations: Sequence[Operation], *, parameters: int = 0, nodes: int = 0) -> tuple[Operation, ...]:
        """Give each operation the pauses before it; the first one those behind the last, as steps repeat.

        Args:
            operations: Those of the step.
            parameters: How many parameters it has: PyTorch's own work before an update and between two steps grows with
                their number.
            nodes: How many nodes autograd made for it: its own work before a backward pass, and where a step ends and
                they are freed, grows with their number. On the meta device one operation may make thousands, as an
                LSTM does.
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

    def _own_clock(self) -> float:
        """Return the seconds that stand still while others have the processor, or garbage is collected."""
        return self._clock() - self._others() - self._collected

    def _waiting_seconds(self) -> float:
        """Read for how long this thread was ready to run and did not."""
        if self._scheduler is None:
            return 0.0
        try:
            return nanoseconds_to_seconds(int(os.pread(self._scheduler, 64, 0).split()[1]))
        except (OSError, ValueError, IndexError):
            return 0.0

    def _collects(self, phase: str, _: Mapping[str, Any]) -> None:
        now = self._clock() - self._others()
        if phase == "start":
            self._collecting_since = now
        else:
            self._collected += now - self._collecting_since
