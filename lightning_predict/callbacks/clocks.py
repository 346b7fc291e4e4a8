"""Choose the clock by which the callbacks time fits: the machine's own, or one that a test shows instead.

Example::

    with clock_of_fits(lambda: 0.0):
        trainer.fit(model)  # takes no time
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic, perf_counter
from typing import Final

import torch

_SHOWN: Final[ContextVar[Callable[[], float] | None]] = ContextVar("clock of fits", default=None)


@contextmanager
def clock_of_fits(clock: Callable[[], float]) -> Iterator[None]:
    """Let all callbacks that are made and fits that begin inside read one clock.

    Args:
        clock: Seconds that only grow.
    """
    token = _SHOWN.set(clock)
    try:
        yield
    finally:
        _SHOWN.reset(token)


def host_clock() -> Callable[[], float]:
    """Return a clock in seconds that does not wait for the device."""
    return _SHOWN.get() or perf_counter


def ledger_clock() -> Callable[[], float]:
    """Return the clock by which money is counted."""
    return _SHOWN.get() or monotonic


def device_clock(device: torch.device) -> Callable[[], float]:
    """Return a clock in seconds that waits for the device, so that what it times is done and not just queued.

    Args:
        device: The device that trains.
    """
    shown = _SHOWN.get()
    if shown is not None or device.type != "cuda":
        return shown or perf_counter

    def synchronized() -> float:
        torch.cuda.synchronize(device)
        return perf_counter()

    return synchronized
