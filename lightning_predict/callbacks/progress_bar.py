"""Show what is left of the whole run in Lightning's progress bar, whose own estimate ends with the epoch.

A bar shows what its `get_metrics` returns: Lightning documents that as the place to change the items displayed. Ours
puts `left` before them, in this one bar and until the fit ends; what is logged, and what other callbacks read of it,
stays as it is. Example::

    shown = show_in_bar(trainer, lambda: "3 h 12 min (2 h 50 min to 3 h 40 min), $5.70")
    shown.remove()
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, final

from lightning_predict.interval import Interval
from lightning_predict.reports.format import duration, duration_interval, usd
from lightning_predict.units import seconds_to_hours

RENEWED_SECONDS: Final = 1.0
"""Time from one wording to the next: a bar may ask after each batch."""

WIDE_COLUMNS: Final = 120
"""A terminal of as many has room for the interval beside the bar, too; what is no terminal is taken for one."""

NARROW_COLUMNS: Final = 100
"""A narrower one has room for the time alone: of 80 columns, Rich's bar leaves 19 to all that is shown beside it."""


def left_in_words(
    left: Interval[float] | None, *, usd_per_hour: float | None, at_most: bool = False, columns: int | None = None
) -> str | None:
    """Write what is left of a run: `3 h 12 min (2 h 50 min to 3 h 40 min), $5.70`; less where the terminal is narrow.

    Args:
        left: Seconds.
        usd_per_hour: Price of the machine; None if it is not known.
        at_most: The run may end earlier.
        columns: Width of the terminal; None asks for it.

    Returns:
        The words; None if what is left is not known.
    """
    if left is None:
        return None
    columns = shutil.get_terminal_size((WIDE_COLUMNS, 1)).columns if columns is None else columns
    time = f"{'≤ ' if at_most else ''}{duration_interval(left) if columns >= WIDE_COLUMNS else duration(left.middle)}"
    if usd_per_hour is None or columns < NARROW_COLUMNS:
        return time
    return f"{time}, {usd(seconds_to_hours(left.middle) * usd_per_hour)}"


@final
class ShownInBar:
    """Puts a text among the items of a progress bar.

    Args:
        bar: The bar; it may be of any class that has `get_metrics`.
        text: What to show; None leaves it out. Asked for once a second at most.
        clock: Seconds.
    """

    def __init__(self, bar: Any, text: Callable[[], str | None], *, clock: Callable[[], float]) -> None:
        self._bar, self._text, self._clock = bar, text, clock
        self._metrics: Callable[..., dict[str, Any]] = bar.get_metrics
        self._own = vars(bar).get("get_metrics")
        self._said: str | None = None
        self._next = clock()
        bar.get_metrics = self.get_metrics

    def get_metrics(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Return the items of the bar, what is left first; one of that name that was logged counts instead."""
        items = self._metrics(*args, **options)
        with suppress(Exception):  # a bar must not stop the training that it shows
            now = self._clock()
            if now >= self._next:
                self._said, self._next = self._text(), now + RENEWED_SECONDS
            return items if self._said is None else {"left": self._said, **items}
        return items

    def remove(self) -> None:
        """Leave the bar as it was."""
        if vars(self._bar).get("get_metrics") != self.get_metrics:
            return  # somebody else put another one in its place
        if self._own is None:
            del self._bar.get_metrics
        else:
            self._bar.get_metrics = self._own


def show_in_bar(trainer: Any, text: Callable[[], str | None], *, clock: Callable[[], float]) -> ShownInBar | None:
    """Show a text in the Trainer's progress bar; None if it has none that shows items."""
    bar = trainer.progress_bar_callback
    return ShownInBar(bar, text, clock=clock) if hasattr(bar, "get_metrics") else None
