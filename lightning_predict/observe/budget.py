"""Budget of a run: used amounts over all fits, limits, and the decision to stop. Independent of the Trainer.

`Ledger` adds up the used time and money. A `Limit` is an amount of dollars, hours or CO2, or a deadline, which is used
up at a constant rate. `price_of_run` finds the hourly price. `BudgetWatch` decides when to check the limits, and checks
them. Example::

    >>> limit = usd_limit(10.0, per_second=seconds_to_hours(1.0), before=2.0)  # $10 at $1 an hour; $2 already spent
    >>> limit.used(3600.0)
    3.0
    >>> check_forecast([limit], 600.0, Interval(40_000.0, 50_000.0, 60_000.0)).action
    'stop'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from difflib import get_close_matches
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal, final

from lightning_predict.base.errors import UnknownGpuError, UnknownOfferError
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import hours_to_seconds, seconds_to_hours
from lightning_predict.cost.offers import Offer, load_offers, offers_for
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.observe.forecast import ForecastSchedule, RestOfRun
from lightning_predict.reports.format import duration, significant
from lightning_predict.reports.format import usd_of_steps as dollars
from lightning_predict.reports.format import usd_per_hour as price_in_words

if TYPE_CHECKING:
    import torch

    from lightning_predict.observe.run_observer import RunObserver


@final
@dataclass(frozen=True, slots=True)
class RunPrice:
    """Hourly price of a run, with its source.

    Attributes:
        usd_per_hour: Price of all machines of the run; None if unknown.
        warning: Warning for the user about the price; None without a warning.
        source: Source and date of the price; None without a price, or if the warning already names the source.
    """

    usd_per_hour: float | None
    warning: str | None = None
    source: str | None = None


def named_offer(name: str, offers: Sequence[Offer] | None = None) -> Offer:
    """Find the newest offer with a machine name, which may follow the provider's name.

    Args:
        name: Name, for example `g5.xlarge` or `AWS g5.xlarge`.
        offers: Offers to choose from; None for the package's price list.

    Raises:
        UnknownOfferError: No offer has this name. The message contains the most similar names.
    """
    offers = load_offers() if offers is None else offers
    found = [offer for offer in offers if name in (offer.instance, f"{offer.provider} {offer.instance}")]
    if not found:
        names = sorted({f"{offer.provider} {offer.instance}" for offer in offers})
        near = get_close_matches(name, [*names, *(offer.instance for offer in offers)], n=3, cutoff=0.5) or names[:3]
        raise UnknownOfferError(
            f"offer={name!r} is not listed. Nearest: {', '.join(dict.fromkeys(near))}. "
            "Name one that is, or give your own price with usd_per_hour."
        )
    providers = sorted({offer.provider for offer in found})
    if len(providers) > 1:
        choices = " or ".join(f"'{provider} {name}'" for provider in providers)
        raise UnknownOfferError(f"offer={name!r} is listed by {' and '.join(providers)}; say {choices}.")
    return max(found, key=lambda offer: offer.date)


def gpu_name_in_use(device: torch.device) -> str | None:
    """Return the catalogue name of the GPU in use; None without CUDA, or if the catalogue lacks the GPU."""
    if device.type != "cuda":
        return None
    import torch

    properties = torch.cuda.get_device_properties(device)
    try:
        return find_gpu(properties.name, memory_bytes=properties.total_memory).name
    except UnknownGpuError:
        return None


def price_of_run(
    *,
    usd_per_hour: float | None,
    offer: Offer | None,
    gpu: str | None,
    world_size: int,
    num_nodes: int,
    offers: Sequence[Offer] | None = None,
) -> RunPrice:
    """Find the hourly price of the run.

    Args:
        usd_per_hour: The user's own price of all machines, which takes precedence.
        offer: Offer that the user named; its whole machines are charged.
        gpu: Name of the GPU in use; None if unknown.
        world_size: Number of processes of the run, each with one GPU.
        num_nodes: Number of machines of the run.
        offers: Offers for the GPU in use; None for the package's price list.
    """
    if usd_per_hour is not None:
        return RunPrice(usd_per_hour, source="your own price")
    if offer is not None:
        machines = max(num_nodes, math.ceil(world_size / offer.num_gpus))
        return RunPrice(offer.usd_per_hour * machines, source=offer.label)
    if gpu is None:
        return RunPrice(
            None, "the price of this machine is unknown, so usd has no effect; give usd_per_hour or an offer"
        )
    listed = offers_for(gpu, offers)
    if not listed:
        return RunPrice(None, f"no price of {gpu} is listed, so usd has no effect; give usd_per_hour")
    dearest = max(listed, key=lambda one: one.usd_per_gpu_hour)
    if len({one.usd_per_gpu_hour for one in listed}) == 1:
        return RunPrice(dearest.usd_per_gpu_hour * world_size, source=dearest.label)
    low, high = (price_in_words(one.usd_per_gpu_hour) for one in (listed[0], dearest))
    return RunPrice(
        dearest.usd_per_gpu_hour * world_size,
        f"{gpu} prices range from {low} to {high}. The highest price is used ({dearest.label}); choose another with "
        "offer=... or usd_per_hour",
    )


WARNING_SHARE: Final = 0.8
"""Used share of a limit at which a warning is shown."""

CHECK_SECONDS: Final = 30.0
"""Seconds between two checks of the used amounts, if several ranks must agree on the result."""

REFRESH_SECONDS: Final = 60.0
"""Seconds between two forecasts during training."""


def batches_between_checks(observer: RunObserver) -> int:
    """Return the number of batches until the ranks decide again: as many as so far, but at most `CHECK_SECONDS`."""
    batches = observer.batches
    if batches == 0:
        return 1
    return max(1, min(batches, math.ceil(CHECK_SECONDS * batches / max(observer.training_seconds, 1e-9))))


CLEAR_EXCESS: Final = 2.0
"""Factor by which the low end of a single forecast must exceed a limit to stop the run."""


@final
class Ledger:
    """Time and money that a run has used, over all its fits.

    Args:
        clock: Returns seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.usd_per_second = self.kg_co2_per_second = 0.0
        self.seconds_before = 0.0
        self.usd_before = 0.0
        self.kg_co2_before = self.kg_co2_seconds_before = 0.0
        self.clock = clock
        self._start: float | None = None

    @property
    def elapsed_seconds(self) -> float:
        """Seconds of the current fit; 0 outside a fit."""
        return 0.0 if self._start is None else self.clock() - self._start

    def time_at(self, seconds: float) -> float:
        """Return the time of the clock after this many seconds of the current fit."""
        return (self.clock() if self._start is None else self._start) + seconds

    @property
    def seconds(self) -> float:
        """Seconds of all fits."""
        return self.seconds_before + self.elapsed_seconds

    @property
    def usd(self) -> float:
        """Dollars of all fits, with the price of each fit. Fits without a price are not included."""
        return self.usd_before + self.elapsed_seconds * self.usd_per_second

    @property
    def kg_co2(self) -> float:
        """Kilograms of CO2 of the fits with a known power, computed from the machines and the grid of each fit."""
        return self.kg_co2_before + self.elapsed_seconds * self.kg_co2_per_second

    @property
    def kg_co2_seconds(self) -> float:
        """Seconds of the fits with a known power."""
        return self.kg_co2_seconds_before + (self.elapsed_seconds if self.kg_co2_per_second else 0.0)

    def __getstate__(self) -> dict[str, Any]:
        """Return the used amounts without the clock, which has no meaning in another process."""
        emitted = {"kg_co2_before": self.kg_co2, "kg_co2_seconds_before": self.kg_co2_seconds}
        return vars(self) | {"seconds_before": self.seconds, "usd_before": self.usd, "_start": None} | emitted

    def open(self, *, forget: bool) -> None:
        """Start a fit. If `forget`, reset the amounts of earlier fits."""
        self.close()
        if forget:
            self.seconds_before = self.usd_before = self.kg_co2_before = self.kg_co2_seconds_before = 0.0
        self.usd_per_second = self.kg_co2_per_second = 0.0
        self._start = self.clock()

    def close(self) -> None:
        """End the fit, if one is in progress."""
        self.kg_co2_before, self.kg_co2_seconds_before = self.kg_co2, self.kg_co2_seconds
        self.seconds_before, self.usd_before, self._start = self.seconds, self.usd, None

    def resume(self, *, seconds: float, usd: float, kg_co2: float = 0.0, kg_co2_seconds: float = 0.0) -> None:
        """Restore the amounts of a checkpoint, unless this process has measured more."""
        self.seconds_before = max(self.seconds_before, seconds)
        self.usd_before = max(self.usd_before, usd)
        self.kg_co2_before = max(self.kg_co2_before, kg_co2)
        self.kg_co2_seconds_before = max(self.kg_co2_seconds_before, kg_co2_seconds)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit of a run, such as a budget in dollars.

    Attributes:
        name: Argument that sets the limit: `usd`, `hours` or `deadline`.
        total: Allowed amount, in the unit of the limit.
        per_second: Amount that one second of the run uses up.
        show: Formats an amount as text.
        before: Amount that was used before this fit.
    """

    name: str
    total: float
    per_second: float
    show: Callable[[float], str]
    before: float = 0.0

    def used(self, elapsed_seconds: float) -> float:
        """Return the amount used after this many seconds of the fit."""
        return self.before + elapsed_seconds * self.per_second

    def reached_seconds(self, share: float) -> float:
        """Return the seconds of this fit after which `share` of the total is used; negative if earlier."""
        return (share * self.total - self.before) / self.per_second


def usd_limit(usd: float, *, per_second: float, before: float = 0.0) -> Limit:
    """Return a limit in dollars."""
    return Limit(name="usd", total=usd, per_second=per_second, show=dollars, before=before)


def hours_limit(name: str, hours: float, *, before: float = 0.0) -> Limit:
    """Return a limit in hours."""
    return Limit(name=name, total=hours, per_second=seconds_to_hours(1.0), show=_hours_in_words, before=before)


def co2_limit(kilograms: float, *, per_second: float, before: float = 0.0) -> Limit:
    """Return a limit in kilograms of CO2, from the power of the machines and the carbon intensity of their grid."""
    return Limit(name="kg_co2", total=kilograms, per_second=per_second, show=_co2_in_words, before=before)


def _co2_in_words(kilograms: float) -> str:
    return f"{significant(kilograms)} kg CO2"


def _hours_in_words(hours: float) -> str:
    return duration(hours_to_seconds(hours))


def limits_of_fit(
    ledger: Ledger,
    *,
    usd: float | None,
    hours: float | None,
    deadline: datetime | None,
    spent_usd: float = 0.0,
    kg_co2: float | None = None,
) -> tuple[Limit, ...]:
    """Return the limits of a fit that has just begun.

    Args:
        ledger: Used amounts, and the price. Without a price, there is no limit in dollars.
        usd: Limit in dollars.
        hours: Limit in hours.
        deadline: Deadline, a time with a time zone.
        spent_usd: Dollars spent on anything but training, which count as used.
        kg_co2: Limit in kilograms of CO2.
    """
    limits = []
    if usd is not None and ledger.usd_per_second > 0:
        limits.append(usd_limit(usd, per_second=ledger.usd_per_second, before=ledger.usd_before + spent_usd))
    if kg_co2 is not None and (rate := ledger.kg_co2_per_second) > 0:
        # Earlier seconds on machines of unknown power are counted at the present power.
        before = ledger.kg_co2_before + max(0.0, ledger.seconds_before - ledger.kg_co2_seconds_before) * rate
        limits.append(co2_limit(kg_co2, per_second=rate, before=before))
    if hours is not None:
        limits.append(hours_limit("hours", hours, before=seconds_to_hours(ledger.seconds_before)))
    if deadline is not None:
        seconds_left = (deadline - datetime.now(timezone.utc)).total_seconds()
        limits.append(hours_limit("deadline", seconds_to_hours(ledger.elapsed_seconds + seconds_left)))
    return tuple(limits)


BudgetAction = Literal["go on", "warn", "stop"]


@final
@dataclass(frozen=True, slots=True)
class BudgetVerdict:
    """Decision about the run (continue, warn or stop), with its reason as text."""

    action: BudgetAction
    reason: str


GO_ON: Final = BudgetVerdict("go on", "within the budget")


def check_forecast(
    limits: Sequence[Limit], elapsed_seconds: float, forecast: Interval[float], *, steps: int | None = None
) -> BudgetVerdict:
    """Compare a forecast with the limits. Stop if its low end exceeds a limit, warn if its middle does.

    Args:
        limits: Limits of the run.
        elapsed_seconds: Seconds of this fit so far.
        forecast: Remaining seconds.
        steps: Number of steps on which the forecast is based, for the message; None omits the number.
    """
    verdict = GO_ON
    from_steps = "" if steps is None else f", {steps:,} step{'' if steps == 1 else 's'} measured"
    for limit in limits:
        low = limit.used(elapsed_seconds + forecast.low)
        middle = limit.used(elapsed_seconds + forecast.middle)
        high = limit.used(elapsed_seconds + forecast.high)
        reason = (
            f"forecast {limit.show(middle)} ({limit.show(low)} to {limit.show(high)}) exceeds the budget of "
            f"{limit.show(limit.total)} ({limit.name}; {limit.show(limit.used(elapsed_seconds))} used{from_steps}, "
            f"{duration(forecast.middle)} left)"
        )
        if low > limit.total:
            return BudgetVerdict("stop", reason)
        if middle > limit.total and verdict is GO_ON:
            verdict = BudgetVerdict("warn", reason)
    return verdict


def check_use(limits: Sequence[Limit], elapsed_seconds: float, end_seconds: float = 0.0) -> BudgetVerdict:
    """Compare the used amounts with the limits.

    Stop if a limit is used up, including the time to end the run. Warn if 80 % of a limit is used.
    """
    verdict = GO_ON
    for limit in limits:
        used, at_end = limit.used(elapsed_seconds), limit.used(elapsed_seconds + end_seconds)
        if used < WARNING_SHARE * limit.total and at_end < limit.total:  # called often: build text only if needed
            continue
        reason = f"{limit.show(used)} of {limit.show(limit.total)} ({limit.name}) are used"
        if at_end >= limit.total:
            end = "" if used >= limit.total else f", and the final validation takes {duration(end_seconds)}"
            return BudgetVerdict("stop", reason + end)
        if verdict is GO_ON:
            verdict = BudgetVerdict("warn", reason)
    return verdict


VALIDATION_OVERRUN_SHARE: Final = 0.05
"""Share of a limit by which a running validation may exceed the limit, so that its metrics cover all batches."""

DueCheck = Literal["forecast", "outlook", "use"]
"""What to check: a forecast that may stop the run, a forecast that may only warn, or only the used amounts."""


@final
class BudgetWatch:
    """Decides after which batches to check the budget, and checks the budget.

    Args:
        limits: Limits of the run.
        ledger: Used amounts.
        moments: Schedule that decides when a forecast is reliable enough to act on.
        warmup_steps: Number of batches before the first forecast.

    Attributes:
        forecast: Remaining seconds in the last check; None if unknown.
        end_seconds: Duration of the final validation, which runs after a stop.
    """

    def __init__(
        self, limits: Sequence[Limit], ledger: Ledger, *, schedule: ForecastSchedule, warmup_steps: int = 1
    ) -> None:
        self.limits = tuple(limits)
        self.forecast: Interval[float] | None = None
        self.end_seconds = 0.0
        self._ledger = ledger
        self._schedule = schedule
        self._warmup_steps = warmup_steps
        self._warned: set[str] = set()
        self._is_broken = False
        self._refreshed_seconds = 0.0
        self._narrow_seconds = 0.0
        self._update_next_check()

    def due_check(self, batches: int, seconds: float, *, elapsed: float) -> DueCheck | None:
        """Return what to check after this many batches and seconds of training, and `elapsed` seconds of the fit."""
        moments = self._schedule
        if batches >= self._warmup_steps and moments.is_due(batches, seconds) and moments.has_started:
            return "forecast"
        if self.forecast is not None and elapsed - self._refreshed_seconds >= REFRESH_SECONDS:
            return "outlook"
        return "use" if elapsed >= self._narrow_seconds else None

    def nothing_until(self, batches: int) -> tuple[float, float]:
        """Return the number of batches and the seconds of training before which no forecast is due."""
        next_batches, seconds = self._schedule.nothing_until(batches)
        return max(next_batches, self._warmup_steps), math.inf if batches < self._warmup_steps else seconds

    @property
    def next_seconds(self) -> float:
        """Seconds of the fit before which no other check is due."""
        refresh = math.inf if self.forecast is None else self._refreshed_seconds + REFRESH_SECONDS
        return min(self._narrow_seconds, refresh)

    def metrics(self) -> dict[str, float]:
        """Return values for loggers by name: for each limit the used, allowed, left and forecast amounts."""
        values, elapsed, forecast = {}, self._ledger.elapsed_seconds, self.forecast
        for limit in self.limits:
            used = limit.used(elapsed)
            values[f"{limit.name}_used"], values[f"{limit.name}_limit"] = used, limit.total
            values[f"{limit.name}_left"] = max(limit.total - used, 0.0)
            if forecast is not None:
                values[f"{limit.name}_forecast"] = limit.used(elapsed + forecast.middle)
                values[f"{limit.name}_forecast_low"] = limit.used(elapsed + forecast.low)
                values[f"{limit.name}_forecast_high"] = limit.used(elapsed + forecast.high)
        return values

    def check_use(self) -> BudgetVerdict:
        """Check the used amounts, including the time that ending the run takes. Warn only once."""
        return self._warned_once("use", check_use(self.limits, self._ledger.elapsed_seconds, self.end_seconds))

    def check_validation(self, rest_seconds: float | None) -> BudgetVerdict:
        """Check a limit that is used up during a validation.

        Warn if the rest of the validation is short. Stop if the rest exceeds the limit by more than the allowed
        overrun.

        Args:
            rest_seconds: Remaining seconds of the validation; None if unknown.
        """
        elapsed = self._ledger.elapsed_seconds
        use = check_use(self.limits, elapsed)
        if use.action != "stop":
            return GO_ON
        allowed = [replace(limit, total=(1.0 + VALIDATION_OVERRUN_SHARE) * limit.total) for limit in self.limits]
        is_small = check_use(allowed, elapsed, rest_seconds or 0.0).action != "stop"
        return BudgetVerdict("warn" if is_small else "stop", use.reason)

    def check(
        self,
        question: DueCheck,
        rest: RestOfRun | None,
        *,
        without_stalls: Callable[[], RestOfRun],
        may_end_earlier: bool = False,
    ) -> BudgetVerdict:
        """Check the used amounts and, if `rest` is given, the forecast of the run.

        Args:
            question: What to check.
            rest: Rest of the run; None checks only the used amounts.
            without_stalls: Returns a second forecast without the longest times. Stopping requires that this forecast
                exceeds the limit, too.
            may_end_earlier: Whether early stopping may end the run. If so, a forecast alone never stops the run.
        """
        if rest is not None:
            self._refreshed_seconds = self._ledger.elapsed_seconds
            self.set_end_seconds(rest.end_seconds)
        use = self.check_use()
        if use.action == "stop" or rest is None or rest.forecast is None or rest.batch_times is None:
            return use
        self.forecast = rest.forecast
        outlook = check_forecast(self.limits, self._ledger.elapsed_seconds, rest.forecast, steps=rest.steps)
        if question == "forecast" and outlook.action != "stop":
            self._is_broken = False
        if outlook.action == "go on":
            return use
        if may_end_earlier:
            outlook = BudgetVerdict("warn", f"{outlook.reason}. Early stopping may end the run sooner")
        elif question == "outlook":
            outlook = BudgetVerdict("warn", f"{outlook.reason}. The run continues until more steps confirm this")
        elif outlook.action == "stop" and not self._confirms_stop(without_stalls()):
            outlook = BudgetVerdict("warn", f"{outlook.reason}. The run ends if twice as many steps confirm this")
        return outlook if outlook.action == "stop" or (use.action == "go on" and self._is_new("forecast")) else use

    def _confirms_stop(self, calm: RestOfRun) -> bool:
        """Return whether to stop the run because of a forecast that exceeds a limit.

        The forecast without stalls must exceed the limit, too. It must also be the second such forecast in a row, or
        exceed the limit by the factor `CLEAR_EXCESS`.
        """
        elapsed = self._ledger.elapsed_seconds
        is_broken = calm.forecast is not None and check_forecast(self.limits, elapsed, calm.forecast).action == "stop"
        was_broken, self._is_broken = self._is_broken, is_broken
        if not is_broken or calm.forecast is None or calm.batch_times is None or not calm.batch_times.is_settled:
            return False
        low = elapsed + calm.forecast.low
        return was_broken or any(limit.used(low) > CLEAR_EXCESS * limit.total for limit in self.limits)

    def set_end_seconds(self, seconds: float) -> None:
        """Set the duration of the final validation, which runs after a stop."""
        self.end_seconds = seconds
        self._update_next_check()

    def _warned_once(self, name: str, verdict: BudgetVerdict) -> BudgetVerdict:
        """Return the verdict, but replace a repeated warning by `GO_ON`."""
        if verdict.action == "warn":
            verdict = verdict if self._is_new(name) else GO_ON
            self._update_next_check()
        return verdict

    def _is_new(self, name: str) -> bool:
        is_new = name not in self._warned
        self._warned.add(name)
        return is_new

    def _update_next_check(self) -> None:
        """Compute the earliest time at which a limit can be reached. Before, the used amounts need no check."""
        ends = [limit.reached_seconds(1.0) - self.end_seconds for limit in self.limits]
        if "use" not in self._warned:
            ends += [limit.reached_seconds(WARNING_SHARE) for limit in self.limits]
        self._narrow_seconds = min(ends, default=math.inf)
