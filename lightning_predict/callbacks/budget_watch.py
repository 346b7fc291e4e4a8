"""`BudgetWatch`: follows a fit batch by batch and judges it by its limits; it knows no Trainer.

Example::

    watch = BudgetWatch(limits, ledger, warmup_steps=3, clock=perf_counter, optimizer_steps_done=0)
    watch.batch_starts()
    # ... the batch is trained ...
    if watch.batch_ends(optimizer_steps_done=1) == "forecast":
        verdict = watch.judge_forecast(left)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, final

from lightning_predict.callbacks.budget import (
    GO_ON,
    WARNING_SHARE,
    Forecast,
    Verdict,
    forecast_of,
    judge_forecast,
    judge_use,
    metrics_of,
)
from lightning_predict.callbacks.ledger import Ledger
from lightning_predict.callbacks.limits import Limit
from lightning_predict.callbacks.recorders import Pace
from lightning_predict.callbacks.remaining import Remaining
from lightning_predict.callbacks.windows import Window, WindowWatch, steady_seconds

CHECK_SECONDS: Final = 30.0
"""Time from one check of the actual use to the next where several ranks have to agree on its result."""

REFRESH_SECONDS: Final = 60.0
"""Time from one forecast to the next, once training goes on."""

FORECASTS_THAT_COUNT: Final = 30
"""The latest stretches between forecasts from whose times the next is made: half an hour."""

Question = Literal["forecast", "use"]
"""What is to be judged at the end of a window."""


@dataclass(slots=True)
class _Mark:
    """Where a fit stands: its time, its training batches, and its validation so far."""

    elapsed_seconds: float = 0.0
    batches: int = 0
    validation_seconds: float = 0.0
    validation_batches: int = 0


@final
class BudgetWatch:
    """Measures the first windows, and says when there is something to judge.

    Args:
        limits: The limits.
        ledger: What the run has taken.
        warmup_steps: Windows to measure.
        clock: Seconds, once the device has done its work.
        optimizer_steps_done: `trainer.global_step` before the first batch.
        ranks_agree: Several ranks judge together, which costs communication: actual use is then judged now and then
            instead of at every window.
        validation_seconds: Of a validation batch, as measured in the sanity check; None where there was none.
    """

    def __init__(
        self,
        limits: Sequence[Limit],
        ledger: Ledger,
        *,
        warmup_steps: int,
        clock: Callable[[], float],
        optimizer_steps_done: int,
        ranks_agree: bool = False,
        validation_seconds: float | None = None,
    ) -> None:
        self.limits = tuple(limits)
        self.forecast: Forecast | None = None
        self.windows_between_checks = 1
        self._ledger = ledger
        self._warmup_steps = warmup_steps
        self._clock = clock
        self._ranks_agree = ranks_agree
        self._wake_seconds = 0.0
        self._slept = False
        self._validation_seconds = validation_seconds
        self._windows = WindowWatch(optimizer_steps_done=optimizer_steps_done)
        self._measured: list[Window] = []
        self._stretch = _Mark()
        self._stretch_seconds: list[float] = []
        self._validation_start: float | None = None
        self._mark = _Mark()

    @property
    def is_warming_up(self) -> bool:
        """Windows are still measured."""
        return len(self._measured) < self._warmup_steps

    def pause(self) -> None:
        """Something other than the loader happens before the next batch."""
        self._windows.pause()

    def validation_starts(self) -> None:
        """A validation run begins."""
        self.pause()
        self._validation_start = self._ledger.elapsed_seconds

    def validation_ends(self, *, batches: int) -> None:
        """It has ended.

        Args:
            batches: Batches that it had.
        """
        if self._validation_start is not None:
            self._mark.validation_seconds += self._ledger.elapsed_seconds - self._validation_start
            self._mark.validation_batches += batches
            self._validation_start = None

    def batch_starts(self) -> None:
        """A batch is about to be trained."""
        if self._ledger.elapsed_seconds >= self._wake_seconds:
            self._windows.batch_starts(self._now())

    def batch_passes_quietly(self) -> bool:
        """A batch was trained, and nothing can have come of it yet: then it costs no more than a look at the clock."""
        if self._ledger.elapsed_seconds >= self._wake_seconds:
            return False
        self._windows.batches_seen += 1
        self._slept = True
        return True

    def batch_ends(self, *, optimizer_steps_done: int) -> Question | None:
        """A batch was trained.

        Args:
            optimizer_steps_done: `trainer.global_step`.

        Returns:
            What is to be judged now; None within a window and between checks.
        """
        if self._slept:  # The batch may lie within a window, so the end of the next one is waited for.
            self._slept = False
            self._windows.resume(optimizer_steps_done=optimizer_steps_done)
            return None
        was_warming_up = self.is_warming_up
        window = self._windows.batch_ends(self._now(), optimizer_steps_done=optimizer_steps_done)
        if window is None:
            return None
        if not was_warming_up:
            since = self._windows.windows_seen - self._warmup_steps
            return "use" if since % self.windows_between_checks == 0 else None
        self._measured.append(window)
        if self.is_warming_up:
            return None
        self._stretch = self._now_marked()
        self._sleep()
        if self._ranks_agree:
            self.windows_between_checks = max(1, math.ceil(CHECK_SECONDS / max(window.interval_seconds, 1e-9)))
        return "forecast"

    def pace(self, *, is_manual: bool) -> Pace:
        """How windows went by.

        Args:
            is_manual: The module optimizes by itself.
        """
        if not is_manual or not self._measured:
            return Pace()
        steps = statistics.mean(window.optimizer_steps for window in self._measured)
        return Pace(batches_per_window=self._measured[-1].batches, steps_per_window=steps or 1.0)

    def metrics(self) -> dict[str, float]:
        """Values for loggers by name."""
        return metrics_of(self.limits, self._ledger.elapsed_seconds, self.forecast)

    def judge_use(self) -> Verdict:
        """Judge what is used up."""
        return judge_use(self.limits, self._ledger.elapsed_seconds)

    def judge_forecast(self, left: Remaining, *, seconds_left: float | None = None) -> Verdict:
        """Judge what the rest of the run will take; of unknown length, only what is used up.

        Args:
            left: What is still to come.
            seconds_left: Until a time limit of the Trainer ends it; None without one.
        """
        if left.batches is None:
            return self.judge_use()
        self.forecast = forecast_of(
            steady_seconds([window.interval_seconds / window.batches for window in self._measured]),
            batches=left.batches,
            validation_batches=left.validation_batches or 0,
            validation_batch_seconds=self._validation_seconds,
        ).cut_off(seconds_left)
        verdict = judge_forecast(self.limits, self._ledger.elapsed_seconds, self.forecast)
        return self.judge_use() if verdict is GO_ON else verdict

    @property
    def refresh_is_due(self) -> bool:
        """It is time for another forecast."""
        since = self._ledger.elapsed_seconds - self._stretch.elapsed_seconds
        return since >= REFRESH_SECONDS and self._windows.batches_seen > self._stretch.batches

    def refresh(self, left: Remaining, *, seconds_left: float | None = None) -> Verdict:
        """Forecast again from how training went since, everything but validation included, and judge it.

        Args:
            left: What is still to come.
            seconds_left: Until a time limit of the Trainer ends it; None without one.
        """
        before, now = self._stretch, self._now_marked()
        validating = now.validation_seconds - before.validation_seconds
        seconds = now.elapsed_seconds - before.elapsed_seconds - validating
        self._stretch = now
        self._sleep()
        self._stretch_seconds.append(seconds / (now.batches - before.batches))
        if left.batches is None:
            return GO_ON
        one_check = self._validation_seconds
        if now.validation_batches:
            one_check = now.validation_seconds / now.validation_batches
        self.forecast = forecast_of(
            self._stretch_seconds[-FORECASTS_THAT_COUNT:],
            batches=left.batches,
            validation_batches=left.validation_batches or 0,
            validation_batch_seconds=one_check,
        ).cut_off(seconds_left)
        return judge_forecast(self.limits, self._ledger.elapsed_seconds, self.forecast)

    def _sleep(self) -> None:
        """Look at nothing but the clock until a forecast is due, or two windows before a limit is 80 % used up.

        Ranks that judge together count their windows instead.
        """
        if self._ranks_agree:
            return
        two_windows = 2 * max(window.interval_seconds for window in self._measured)
        narrow = min((limit.reached_seconds(WARNING_SHARE) for limit in self.limits), default=0.0) - two_windows
        self._wake_seconds = min(narrow, self._stretch.elapsed_seconds + REFRESH_SECONDS)

    def _now_marked(self) -> _Mark:
        return replace(self._mark, elapsed_seconds=self._ledger.elapsed_seconds, batches=self._windows.batches_seen)

    def _now(self) -> float:
        """The time in the warm-up; later only the order of batches matters, and nothing waits for the device."""
        return self._clock() if self.is_warming_up else 0.0
