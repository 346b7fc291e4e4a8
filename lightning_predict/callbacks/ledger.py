"""`Ledger`: the time and the money that a run has taken, over all its fits.

Example::

    >>> ledger = Ledger(clock=iter([0.0, 7200.0]).__next__)
    >>> ledger.resume(seconds=3600.0, usd=1.0)
    >>> ledger.open(forget=False)
    >>> ledger.close()
    >>> ledger.seconds, ledger.usd  # The two hours of this fit had no price.
    (10800.0, 1.0)
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import final


@final
class Ledger:
    """Time and money that a run has taken, over all its fits.

    Args:
        clock: Seconds that only grow, whatever happens to the wall clock.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.usd_per_second = 0.0
        self.seconds_before = 0.0
        self.usd_before = 0.0
        self._clock = clock
        self._start: float | None = None

    @property
    def elapsed_seconds(self) -> float:
        """Of the current fit; 0 outside of one."""
        return 0.0 if self._start is None else self._clock() - self._start

    @property
    def seconds(self) -> float:
        """Of all fits."""
        return self.seconds_before + self.elapsed_seconds

    @property
    def usd(self) -> float:
        """Of all fits, each at its price; what had no price is not in it."""
        return self.usd_before + self.elapsed_seconds * self.usd_per_second

    def open(self, *, forget: bool) -> None:
        """A fit begins.

        Args:
            forget: Leave out what earlier fits took.
        """
        self.close()
        if forget:
            self.seconds_before = self.usd_before = 0.0
        self.usd_per_second = 0.0
        self._start = self._clock()

    def close(self) -> None:
        """The fit has ended; without effect where there is none."""
        self.seconds_before, self.usd_before, self._start = self.seconds, self.usd, None

    def resume(self, *, seconds: float, usd: float) -> None:
        """A checkpoint says what was taken before; what this process has seen itself counts where it is more."""
        self.seconds_before = max(self.seconds_before, seconds)
        self.usd_before = max(self.usd_before, usd)
