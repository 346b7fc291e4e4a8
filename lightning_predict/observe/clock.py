"""Clocks of a fit: of the host, of the device, and of the budget. Tests replace all of them with `clock_of_fits`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Final

from lightning_predict.record.waiting import wait_for

if TYPE_CHECKING:
    import torch

_Clock = Callable[[], float]

_SHOWN: Final[ContextVar[tuple[_Clock, _Clock] | None]] = ContextVar("clocks of the host and the device", default=None)


@contextmanager
def clock_of_fits(clock: Callable[[], float], *, device: Callable[[], float] | None = None) -> Iterator[None]:
    """Replace the clock of all callbacks that are created, and all fits that start, within this context.

    Args:
        clock: Returns seconds of a monotonic clock.
        device: Returns seconds after waiting for the device; None uses `clock`.
    """
    token = _SHOWN.set((clock, device or clock))
    try:
        yield
    finally:
        _SHOWN.reset(token)


def host_clock() -> Callable[[], float]:
    """Return a clock in seconds that does not wait for the device."""
    shown = _SHOWN.get()
    return perf_counter if shown is None else shown[0]


def ledger_clock() -> Callable[[], float]:
    """Return the clock of the budget. If the system supports it, time in which the machine sleeps counts."""
    shown = _SHOWN.get()
    if shown is not None:
        return shown[0]
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return monotonic if boot is None else partial(time.clock_gettime, boot)  # it must be picklable


def device_clock(device: torch.device) -> Callable[[], float]:
    """Return a clock in seconds that first waits for the device, so that queued work is included."""
    shown = _SHOWN.get()
    if shown is not None:
        return shown[1]
    wait = wait_for(device)
    if wait is None:
        return perf_counter

    def synchronized() -> float:
        wait()
        return perf_counter()

    return synchronized
