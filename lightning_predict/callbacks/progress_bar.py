"""Shows the remaining time of the whole run in Lightning's progress bar, whose own estimate covers only the epoch.

A bar shows the items that its `get_metrics` returns, and Lightning documents how to override this method. `ShownInBar`
adds the item `left` in front, only in this instance of the bar, until the fit ends. Logged values and other callbacks
are not affected.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from lightning_predict.base.answers import TEXT_WIDTH
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import seconds_to_hours
from lightning_predict.reports.format import duration, duration_interval, usd

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

RENEWED_SECONDS: Final = 1.0  # Minimum seconds between two updates of the text: a bar may request it after each batch

NARROW_COLUMNS: Final = 100
"""Minimum terminal width for showing the cost. At a width of 80 columns, Rich's bar leaves 19 for all items."""


def left_in_words(
    left: Interval[float] | None, *, usd_per_hour: float | None, at_most: bool = False, columns: int | None = None
) -> str | None:
    """Format the rest of a run: `3 h 12 min (2 h 50 min to 3 h 40 min), $5.70`; shorter for a narrow terminal.

    Args:
        left: Remaining seconds.
        usd_per_hour: Price of the machine; None if unknown.
        at_most: Whether the run may end earlier.
        columns: Width of the terminal; None detects the width.

    Returns:
        The text; None if the remaining time is unknown.
    """
    if left is None:
        return None
    columns = shutil.get_terminal_size((TEXT_WIDTH, 1)).columns if columns is None else columns
    time = f"{'≤ ' if at_most else ''}{duration_interval(left) if columns >= TEXT_WIDTH else duration(left.middle)}"
    if usd_per_hour is None or columns < NARROW_COLUMNS:
        return time
    return f"{time}, {usd(seconds_to_hours(left.middle) * usd_per_hour)}"


class ShownInBar:
    """Text among the items of a progress bar, until it is removed.

    Args:
        bar: Progress bar of any class with `get_metrics`.
        text: Returns the text (None for no text); called at most once a second.
        clock: Returns seconds.
    """

    def __init__(self, bar: Any, text: Callable[[], str | None], *, clock: Callable[[], float]) -> None:
        self._bar, self._text, self._clock = bar, text, clock
        self._metrics: Callable[..., dict[str, Any]] = bar.get_metrics
        self._own = vars(bar).get("get_metrics")
        self._said: str | None = None
        self._next = clock()
        bar.get_metrics = self.get_metrics

    def get_metrics(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Return the items of the bar, with `left` first. A logged item named `left` takes precedence."""
        items = self._metrics(*args, **options)
        with suppress(Exception):  # an error in a bar must not stop the training
            now = self._clock()
            if now >= self._next:
                self._said, self._next = self._text(), now + RENEWED_SECONDS
            return items if self._said is None else {"left": self._said, **items}
        return items

    def remove(self) -> None:
        """Restore the bar's own `get_metrics`."""
        if vars(self._bar).get("get_metrics") != self.get_metrics:
            return  # other code has replaced it in the meantime
        if self._own is None:
            del self._bar.get_metrics
        else:
            self._bar.get_metrics = self._own


def show_in_bar(trainer: Trainer, text: Callable[[], str | None], *, clock: Callable[[], float]) -> ShownInBar | None:
    """Show a text in the Trainer's progress bar; None if the Trainer has no bar with items."""
    bar = trainer.progress_bar_callback
    return ShownInBar(bar, text, clock=clock) if hasattr(bar, "get_metrics") else None
