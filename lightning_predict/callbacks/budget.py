"""A budget as arithmetic: what is used, what the rest of the run will take, and what follows from that.

Example::

    >>> limit = usd_limit(10.0, per_second=seconds_to_hours(1.0))  # $10 at $1 an hour
    >>> judge_forecast([limit], 600.0, Forecast(40_000.0, 50_000.0, 60_000.0)).action
    'stop'
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

from lightning_predict.callbacks.limits import Limit
from lightning_predict.reports.format import duration

WARNING_SHARE: Final = 0.8
"""Share of a limit at which its actual use is warned about."""

FORWARD_SHARE: Final = 1 / 3
"""Part of a training batch that its forward pass takes: the backward pass computes twice as much."""


@final
@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds that the rest of the run takes: the low end, the middle and the high end of what was measured."""

    low: float
    middle: float
    high: float

    def cut_off(self, seconds: float | None) -> Forecast:
        """The same under a time limit of the Trainer; None is no limit."""
        if seconds is None:
            return self
        return Forecast(min(self.low, seconds), min(self.middle, seconds), min(self.high, seconds))


Action = Literal["go on", "warn", "stop"]


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do, and why, in words."""

    action: Action
    reason: str


GO_ON: Final = Verdict("go on", "within the budget")


def forecast_of(
    batch_seconds: Sequence[float],
    *,
    batches: int,
    validation_batches: int = 0,
    validation_batch_seconds: float | None = None,
) -> Forecast:
    """The rest of the run from the batches that were measured.

    Args:
        batch_seconds: Measured times of training batches, waits for the loader included; at least one.
        batches: Training batches still to come.
        validation_batches: Validation batches still to come.
        validation_batch_seconds: A measured one; None estimates it: the low end then counts none, the middle a forward
            pass and the high end a whole training batch.
    """
    low, middle, high = min(batch_seconds), statistics.median(batch_seconds), max(batch_seconds)
    measured = validation_batch_seconds
    check_low, check_middle, check_high = (
        (0.0, FORWARD_SHARE * middle, high) if measured is None else (measured, measured, measured)
    )
    return Forecast(
        low=batches * low + validation_batches * check_low,
        middle=batches * middle + validation_batches * check_middle,
        high=batches * high + validation_batches * check_high,
    )


def metrics_of(limits: Sequence[Limit], elapsed_seconds: float, forecast: Forecast | None) -> dict[str, float]:
    """Values for loggers by name: what is used, allowed and, where there is a forecast, needed of each limit.

    Args:
        limits: The limits; a deadline counts in hours from the beginning of the fit.
        elapsed_seconds: Of this fit.
        forecast: The rest of it; None where there is none.
    """
    values = {}
    for limit in limits:
        values[f"{limit.name}_used"] = limit.used(elapsed_seconds)
        values[f"{limit.name}_limit"] = limit.total
        if forecast is not None:
            values[f"{limit.name}_forecast"] = limit.used(elapsed_seconds + forecast.middle)
            values[f"{limit.name}_forecast_low"] = limit.used(elapsed_seconds + forecast.low)
            values[f"{limit.name}_forecast_high"] = limit.used(elapsed_seconds + forecast.high)
    return values


def judge_forecast(limits: Sequence[Limit], elapsed_seconds: float, forecast: Forecast) -> Verdict:
    """Stop where even the low end of the forecast breaks a limit, warn where its middle does.

    Args:
        limits: The limits.
        elapsed_seconds: Of this fit.
        forecast: The rest of it.
    """
    verdict = GO_ON
    for limit in limits:
        low = limit.used(elapsed_seconds + forecast.low)
        middle = limit.used(elapsed_seconds + forecast.middle)
        high = limit.used(elapsed_seconds + forecast.high)
        reason = (
            f"the run is forecast to need {limit.show(middle)} ({limit.show(low)} to {limit.show(high)}), "
            f"{limit.show(limit.used(elapsed_seconds))} of it used so far, and {limit.name} allows "
            f"{limit.show(limit.total)}; {duration(forecast.middle)} are still to come"
        )
        if low > limit.total:
            return Verdict("stop", reason)
        if middle > limit.total and verdict is GO_ON:
            verdict = Verdict("warn", reason)
    return verdict


def judge_use(limits: Sequence[Limit], elapsed_seconds: float) -> Verdict:
    """Stop where a limit is used up, warn where 80 % of it are.

    Args:
        limits: The limits.
        elapsed_seconds: Of this fit.
    """
    verdict = GO_ON
    for limit in limits:
        used = limit.used(elapsed_seconds)
        if used < WARNING_SHARE * limit.total:  # asked often, so that nothing is put in words in vain
            continue
        reason = f"{limit.show(used)} of {limit.show(limit.total)} ({limit.name}) are used"
        if used >= limit.total:
            return Verdict("stop", reason)
        if verdict is GO_ON:
            verdict = Verdict("warn", reason)
    return verdict
