"""Budget of a run: when to check its limits, and the decision to stop. Independent of the Trainer.

`check_use` and `check_forecast` compare meters (`observe.meters`) with their limits. `BudgetWatch` decides when to
check them. Example::

    >>> from lightning_predict.base.units import seconds_to_hours
    >>> from lightning_predict.observe.meters import Meter
    >>> from lightning_predict.reports.format import usd
    >>> meter = Meter(name="usd", limit=10.0, rate=seconds_to_hours(1.0), words=usd, before=2.0)
    >>> check_forecast([meter], 600.0, Interval(40_000.0, 50_000.0, 60_000.0)).action  # $10 at $1 an hour; $2 used
    'stop'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from lightning_predict.base.interval import Interval
from lightning_predict.observe.forecast import ForecastSchedule, RestOfRun
from lightning_predict.observe.ledger_file import LEDGER_SECONDS
from lightning_predict.observe.meters import Ledger, Meter
from lightning_predict.observe.steady_state import BEST_VALUES
from lightning_predict.reports.format import duration

if TYPE_CHECKING:
    from lightning_predict.observe.run_observer import RunObserver

WARNING_SHARE: Final = 0.8  # Used share of a limit at which a warning is shown
CHECK_SECONDS: Final = 30.0  # Seconds between two checks of the used amounts, if several ranks must agree on the result


def batches_between_checks(observer: RunObserver) -> int:
    """Return the number of batches until the ranks decide again: as many as so far, but at most `CHECK_SECONDS`."""
    batches = observer.batches
    if batches == 0:
        return 1
    return max(1, min(batches, math.ceil(CHECK_SECONDS * batches / max(observer.training_seconds, 1e-9))))


STOP_SHARE: Final = 0.79
"""Used share of a limit from which a forecast may stop a run. A run that needs 1 / 0.7 of the limit would then have to
become three times faster; earlier, nothing tells it from a run that becomes faster in time."""

FASTER_STILL: Final = 0.9
"""Share of the best pace's time that a run may still reach. So a run that exceeds a limit by little is stopped late."""

STOP_STEP: Final = 0.02  # Used share of a limit between two forecasts that may stop the run

BudgetAction = Literal["go on", "warn", "stop"]


@dataclass(frozen=True, slots=True)
class BudgetVerdict:
    """Decision about the run (continue, warn or stop), with its reason as text."""

    action: BudgetAction
    reason: str


GO_ON: Final = BudgetVerdict("go on", "within the budget")


def check_forecast(
    meters: Sequence[Meter], elapsed_seconds: float, forecast: Interval[float], *, steps: int | None = None
) -> BudgetVerdict:
    """Compare a forecast with the limits. Stop if its low end exceeds a limit, warn if its middle does.

    `steps` is the number of steps on which the forecast is based, for the message.
    """
    verdict = GO_ON
    from_steps = "" if steps is None else f", {steps:,} step{'' if steps == 1 else 's'} measured"
    for meter in meters:
        low = meter.used(elapsed_seconds + forecast.low)
        middle = meter.used(elapsed_seconds + forecast.middle)
        high = meter.used(elapsed_seconds + forecast.high)
        reason = (
            f"forecast {meter.words(middle)} ({meter.words(low)} to {meter.words(high)}) exceeds the budget of "
            f"{meter.words(meter.limit)} ({meter.name}; {meter.words(meter.used(elapsed_seconds))} used{from_steps}, "
            f"{duration(forecast.middle)} left)"
        )
        if low > meter.limit:
            return BudgetVerdict("stop", reason)
        if middle > meter.limit and verdict is GO_ON:
            verdict = BudgetVerdict("warn", reason)
    return verdict


def check_use(meters: Sequence[Meter], elapsed_seconds: float, end_seconds: float = 0.0) -> BudgetVerdict:
    """Compare the used amounts, with the time to end the run, with the limits: warn at 80 %, stop at 100 %."""
    verdict = GO_ON
    for meter in meters:
        used, at_end = meter.used(elapsed_seconds), meter.used(elapsed_seconds + end_seconds)
        if used < WARNING_SHARE * meter.limit and at_end < meter.limit:  # called often: build text only if needed
            continue
        reason = f"{meter.words(used)} of {meter.words(meter.limit)} ({meter.name}) are used"
        if at_end >= meter.limit:
            end = "" if used >= meter.limit else f", and the final validation takes {duration(end_seconds)}"
            return BudgetVerdict("stop", reason + end)
        if verdict is GO_ON:
            verdict = BudgetVerdict("warn", reason)
    return verdict


VALIDATION_OVERRUN_SHARE: Final = 0.05
"""Share of a limit by which a running validation may exceed the limit, so that its metrics cover all batches."""

DueCheck = Literal["forecast", "use"]  # What to check: the forecast and the used amounts, or only the used amounts


class BudgetWatch:
    """Decides after which batches to check the budget, and checks the budget."""

    def __init__(
        self, meters: Sequence[Meter], ledger: Ledger, *, schedule: ForecastSchedule, warmup_steps: int = 1
    ) -> None:
        self.meters = tuple(meters)
        self.forecast: Interval[float] | None = None  # Remaining seconds in the last check; None if unknown
        self.end_seconds = 0.0  # Duration of the final validation, which runs after a stop
        self._ledger = ledger
        self._schedule = schedule
        self._warmup_steps = warmup_steps
        self._warned: set[str] = set()
        self._stop_share = STOP_SHARE
        self._refreshed_seconds = 0.0
        self._narrow_seconds = 0.0
        self._update_next_check()

    def due_check(self, batches: int, seconds: float, *, elapsed: float) -> DueCheck | None:
        """Return what to check after this many batches and seconds of training, and `elapsed` seconds of the fit."""
        moments = self._schedule
        if batches >= self._warmup_steps:
            is_old = self.forecast is not None and elapsed - self._refreshed_seconds >= LEDGER_SECONDS
            is_late = any(meter.used(elapsed) >= self._stop_share * meter.limit for meter in self.meters)
            if (moments.is_due(batches, seconds) and moments.has_started) or is_old or is_late:
                return "forecast"
        return "use" if elapsed >= self._narrow_seconds else None

    def nothing_until(self, batches: int) -> tuple[float, float]:
        """Return the number of batches and the seconds of training before which no forecast is due."""
        next_batches, seconds = self._schedule.nothing_until(batches)
        return max(next_batches, self._warmup_steps), math.inf if batches < self._warmup_steps else seconds

    @property
    def next_seconds(self) -> float:
        """Seconds of the fit before which no other check is due."""
        refresh = math.inf if self.forecast is None else self._refreshed_seconds + LEDGER_SECONDS
        return min(self._narrow_seconds, refresh)

    def metrics(self) -> dict[str, float]:
        """Return values for loggers by name: for each limit the used, allowed, left and forecast amounts."""
        values, elapsed, forecast = {}, self._ledger.elapsed_seconds, self.forecast
        for meter in self.meters:
            used = meter.used(elapsed)
            values[f"{meter.name}_used"], values[f"{meter.name}_limit"] = used, meter.limit
            values[f"{meter.name}_left"] = max(meter.limit - used, 0.0)
            if forecast is not None:
                values[f"{meter.name}_forecast"] = meter.used(elapsed + forecast.middle)
                values[f"{meter.name}_forecast_low"] = meter.used(elapsed + forecast.low)
                values[f"{meter.name}_forecast_high"] = meter.used(elapsed + forecast.high)
        return values

    def check_validation(self, rest_seconds: float | None) -> BudgetVerdict:
        """Check a limit that is used up during a validation.

        Warn if the rest of the validation (None: unknown) is short. Stop if it exceeds the limit by more than the
        allowed overrun.
        """
        elapsed = self._ledger.elapsed_seconds
        use = check_use(self.meters, elapsed)
        if use.action != "stop":
            return GO_ON
        allowed = [replace(meter, limit=(1.0 + VALIDATION_OVERRUN_SHARE) * meter.limit) for meter in self.meters]
        is_small = check_use(allowed, elapsed, rest_seconds or 0.0).action != "stop"
        return BudgetVerdict("warn" if is_small else "stop", use.reason)

    def check(
        self, rest: RestOfRun | None, *, at_best: Callable[[], RestOfRun] | None = None, may_end_earlier: bool = False
    ) -> BudgetVerdict:
        """Check the used amounts and, if `rest` is given, the forecast of the run.

        A forecast stops the run only if even the best pace so far, held to the end, would exceed a limit: a compiler, a
        page cache or a neighbour on the machine only make a slow start faster. It stops no run before `STOP_SHARE` of
        the limit is used. Before that, a forecast warns once.

        Args:
            rest: Rest of the run; None checks only the used amounts.
            at_best: Returns a second forecast, in which everything takes as long as at its best so far; None never
                stops the run by a forecast.
            may_end_earlier: Whether early stopping may end the run. If so, a forecast alone never stops the run.
        """
        elapsed = self._ledger.elapsed_seconds
        if rest is not None:
            self._refreshed_seconds = elapsed
            shares = [meter.used(elapsed) / meter.limit for meter in self.meters]
            while self._stop_share <= max(shares, default=0.0):
                self._stop_share += STOP_STEP
            self.set_end_seconds(rest.end_seconds)
        use = self._check_use()
        if use.action == "stop" or rest is None or rest.forecast is None or rest.batch_times is None:
            return use
        self.forecast = rest.forecast
        outlook = check_forecast(self.meters, elapsed, rest.forecast, steps=rest.steps)
        if outlook.action == "go on":
            return use
        has_pace = rest.steps >= BEST_VALUES and not may_end_earlier
        if outlook.action == "stop" and has_pace and at_best is not None and self._is_exceeded(at_best()):
            return outlook
        why = "Early stopping may end the run sooner" if may_end_earlier else "The run goes on while it may get faster"
        is_new = use.action == "go on" and self._is_new("forecast")
        return BudgetVerdict("warn", f"{outlook.reason}. {why}") if is_new else use

    def _is_exceeded(self, best: RestOfRun) -> bool:
        """Return whether the rest at the best pace exceeds a limit of which so much is used that this counts."""
        if best.forecast is None:
            return False
        elapsed = self._ledger.elapsed_seconds
        late = (meter for meter in self.meters if meter.used(elapsed) >= STOP_SHARE * meter.limit)
        return any(meter.used(elapsed + FASTER_STILL * best.forecast.low) > meter.limit for meter in late)

    def set_end_seconds(self, seconds: float) -> None:
        """Set the duration of the final validation, which runs after a stop."""
        self.end_seconds = seconds
        self._update_next_check()

    def _check_use(self) -> BudgetVerdict:
        """Check the used amounts, including the time that ending the run takes. Warn only once."""
        verdict = check_use(self.meters, self._ledger.elapsed_seconds, self.end_seconds)
        if verdict.action == "warn":
            verdict = verdict if self._is_new("use") else GO_ON
            self._update_next_check()
        return verdict

    def _is_new(self, name: str) -> bool:
        is_new = name not in self._warned
        self._warned.add(name)
        return is_new

    def _update_next_check(self) -> None:
        """Compute the earliest time at which a limit can be reached. Before, the used amounts need no check."""
        ends = [meter.reached_seconds(1.0) - self.end_seconds for meter in self.meters]
        ends += [meter.reached_seconds(self._stop_share) for meter in self.meters]
        if "use" not in self._warned:
            ends += [meter.reached_seconds(WARNING_SHARE) for meter in self.meters]
        self._narrow_seconds = min(ends, default=math.inf)
