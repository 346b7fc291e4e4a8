"""A budget: what a run has used over all its fits, what it may use, and what follows; independent of the Trainer.

`Ledger` keeps what was used, a `Limit` is dollars, hours or a deadline, all used up by time at a rate of their own,
`price_of_run` finds what an hour costs, and `BudgetWatch` follows a fit batch by batch and says when there is something
to judge. Example::

    >>> limit = usd_limit(10.0, per_second=seconds_to_hours(1.0), before=2.0)  # $10 at $1 an hour, of which $2 are gone
    >>> limit.used(3600.0)
    3.0
    >>> judge_forecast([limit], 600.0, Interval(40_000.0, 50_000.0, 60_000.0)).action
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

from lightning_predict.cost.offers import Offer, load_offers, offers_for
from lightning_predict.errors import UnknownGpuError, UnknownOfferError
from lightning_predict.fit.forecast import Moments, RestOfRun
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.interval import Interval
from lightning_predict.reports.format import duration, significant
from lightning_predict.reports.format import usd_of_steps as dollars
from lightning_predict.reports.format import usd_per_hour as price_in_words
from lightning_predict.units import hours_to_seconds, seconds_to_hours

if TYPE_CHECKING:
    import torch


@final
@dataclass(frozen=True, slots=True)
class RunPrice:
    """A price, and what the user should know about it.

    Attributes:
        usd_per_hour: Price of all machines of the run; None if no price is known.
        warning: What is doubtful about it; None if nothing.
        source: Where it comes from, with its date; None if there is none, or the warning says it.
    """

    usd_per_hour: float | None
    warning: str | None = None
    source: str | None = None


def named_offer(name: str, offers: Sequence[Offer] | None = None) -> Offer:
    """Find the newest offer of this name: the provider's machine name, alone or after the provider's own.

    Args:
        name: For example `g5.xlarge` or `AWS g5.xlarge`.
        offers: Offers to choose from; None takes those that come with the package.

    Raises:
        UnknownOfferError: None is listed; the message names the nearest.
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
    """Find the catalogue name of the GPU in use; None without CUDA, and for a GPU that the catalogue lacks."""
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
    """Find what an hour of the run costs.

    Args:
        usd_per_hour: The user's own price of all machines; it comes first.
        offer: The offer that the user named; its whole machines are paid for.
        gpu: The GPU in use; None if it is not known.
        world_size: Processes of the run, each with one GPU.
        num_nodes: Machines of the run.
        offers: Offers of the GPU in use to choose from; None takes those that come with the package.
    """
    if usd_per_hour is not None:
        return RunPrice(usd_per_hour, source="your own price")
    if offer is not None:
        machines = max(num_nodes, math.ceil(world_size / offer.num_gpus))
        return RunPrice(offer.usd_per_hour * machines, source=offer.label)
    if gpu is None:
        return RunPrice(
            None, "the price of this machine is not known, so usd has no effect; give usd_per_hour or name an offer"
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
        f"{gpu} is listed from {low} to {high}, and the highest counts ({dearest.label}); choose one with offer=... or "
        "give usd_per_hour",
    )


WARNING_SHARE: Final = 0.8
"""Share of a limit at which its actual use is warned about."""

CHECK_SECONDS: Final = 30.0
"""Time from one check of the actual use to the next where several ranks have to agree on its result."""

REFRESH_SECONDS: Final = 60.0
"""Time from one forecast to the next, once training goes on."""


BY_FAR: Final = 2.0
"""Times a limit that the low end of a single forecast must reach to end a run; less must be said twice, as steps that
still get faster look settled beside noise."""


@final
class Ledger:
    """Time and money that a run has taken, over all its fits.

    Args:
        clock: Monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.usd_per_second = 0.0
        self.seconds_before = 0.0
        self.usd_before = 0.0
        self._clock = clock
        self._start: float | None = None

    @property
    def elapsed_seconds(self) -> float:
        """Seconds of the current fit; 0 outside of one."""
        return 0.0 if self._start is None else self._clock() - self._start

    @property
    def seconds(self) -> float:
        """Seconds of all fits."""
        return self.seconds_before + self.elapsed_seconds

    @property
    def usd(self) -> float:
        """Dollars of all fits, each at its own price; fits without a price are not included."""
        return self.usd_before + self.elapsed_seconds * self.usd_per_second

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle what was used so far: the clock of this fit means nothing elsewhere."""
        return vars(self) | {"seconds_before": self.seconds, "usd_before": self.usd, "_start": None}

    def open(self, *, forget: bool) -> None:
        """Begin a fit; `forget` what earlier ones took."""
        self.close()
        if forget:
            self.seconds_before = self.usd_before = 0.0
        self.usd_per_second = 0.0
        self._start = self._clock()

    def close(self) -> None:
        """End the fit; do nothing if there is none."""
        self.seconds_before, self.usd_before, self._start = self.seconds, self.usd, None

    def resume(self, *, seconds: float, usd: float) -> None:
        """Take over the use that a checkpoint recorded; what this process measured counts if it is more."""
        self.seconds_before = max(self.seconds_before, seconds)
        self.usd_before = max(self.usd_before, usd)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One limit.

    Attributes:
        name: The argument that set it: `usd`, `hours` or `deadline`.
        total: How much there is, in the limit's unit.
        per_second: How much of it a second of the run uses up.
        show: An amount of it in words.
        before: What was used up before this fit.
    """

    name: str
    total: float
    per_second: float
    show: Callable[[float], str]
    before: float = 0.0

    def used(self, elapsed_seconds: float) -> float:
        """Return how much is used up after this many seconds of the fit."""
        return self.before + elapsed_seconds * self.per_second

    def reached_seconds(self, share: float) -> float:
        """Return the seconds of this fit at which an amount of the total is used up; negative if before it began."""
        return (share * self.total - self.before) / self.per_second


def usd_limit(usd: float, *, per_second: float, before: float = 0.0) -> Limit:
    """Return a limit that time uses up at a price."""
    return Limit(name="usd", total=usd, per_second=per_second, show=dollars, before=before)


def hours_limit(name: str, hours: float, *, before: float = 0.0) -> Limit:
    """Return a limit in hours: an hour of the run uses up one hour of it."""
    return Limit(name=name, total=hours, per_second=seconds_to_hours(1.0), show=_hours_in_words, before=before)


def co2_limit(kilograms: float, *, per_second: float, before: float = 0.0) -> Limit:
    """Return a limit in kilograms of CO2: time uses it up at the power of the machines on their grid."""
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
    kg_co2_per_second: float | None = None,
) -> tuple[Limit, ...]:
    """Return the limits of a fit that has begun.

    Args:
        ledger: What was used before, and the price; dollars are a limit only where it has one.
        usd: Dollars.
        hours: Hours.
        deadline: A time with a zone.
        spent_usd: Dollars that went beside training, which count as used.
        kg_co2: Kilograms of CO2.
        kg_co2_per_second: What a second emits, of earlier fits, too; None: it is not known, and no limit.
    """
    limits = []
    if usd is not None and ledger.usd_per_second > 0:
        limits.append(usd_limit(usd, per_second=ledger.usd_per_second, before=ledger.usd_before + spent_usd))
    if kg_co2 is not None and kg_co2_per_second is not None:
        before = ledger.seconds_before * kg_co2_per_second
        limits.append(co2_limit(kg_co2, per_second=kg_co2_per_second, before=before))
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
    """A decision about the run, and its reason in words."""

    action: BudgetAction
    reason: str


GO_ON: Final = BudgetVerdict("go on", "within the budget")


def judge_forecast(
    limits: Sequence[Limit], elapsed_seconds: float, forecast: Interval[float], *, steps: int | None = None
) -> BudgetVerdict:
    """Stop where even the low end of the forecast breaks a limit, warn where its middle does.

    Args:
        limits: The limits.
        elapsed_seconds: Seconds of this fit.
        forecast: Seconds still to come.
        steps: Steps that it rests on, to say so; None leaves that out.
    """
    verdict = GO_ON
    from_steps = "" if steps is None else f", as {steps:,} step{'' if steps == 1 else 's'} tell"
    for limit in limits:
        low = limit.used(elapsed_seconds + forecast.low)
        middle = limit.used(elapsed_seconds + forecast.middle)
        high = limit.used(elapsed_seconds + forecast.high)
        reason = (
            f"the run is forecast to need {limit.show(middle)} ({limit.show(low)} to {limit.show(high)}), "
            f"{limit.show(limit.used(elapsed_seconds))} of it used so far, and {limit.name} allows "
            f"{limit.show(limit.total)}; {duration(forecast.middle)} are still to come{from_steps}"
        )
        if low > limit.total:
            return BudgetVerdict("stop", reason)
        if middle > limit.total and verdict is GO_ON:
            verdict = BudgetVerdict("warn", reason)
    return verdict


def judge_use(limits: Sequence[Limit], elapsed_seconds: float, end_seconds: float = 0.0) -> BudgetVerdict:
    """Stop where a limit is used up, less what it takes to end, and warn where 80 % of it is used."""
    verdict = GO_ON
    for limit in limits:
        used, at_end = limit.used(elapsed_seconds), limit.used(elapsed_seconds + end_seconds)
        if used < WARNING_SHARE * limit.total and at_end < limit.total:  # called often: build no text in vain
            continue
        reason = f"{limit.show(used)} of {limit.show(limit.total)} ({limit.name}) are used"
        if at_end >= limit.total:
            end = "" if used >= limit.total else f", and the validation that ends the run takes {duration(end_seconds)}"
            return BudgetVerdict("stop", reason + end)
        if verdict is GO_ON:
            verdict = BudgetVerdict("warn", reason)
    return verdict


VALIDATION_OVERRUN_SHARE: Final = 0.05
"""Share of a limit by which a validation that has begun may exceed it, for metrics of all of its batches."""

BudgetQuestion = Literal["forecast", "outlook", "use"]
"""What is to be judged: a forecast that may stop the run, one that may only warn, or the use alone."""


@final
class BudgetWatch:
    """Says after which batches there is something to judge, and judges it.

    Args:
        limits: The limits.
        ledger: What the run has taken.
        moments: When a forecast is worth acting on.
        warmup_steps: Batches before which no forecast is asked for.

    Attributes:
        forecast: The rest of the run, as judged last; None if there is none.
        end_seconds: What the run takes once it is told to stop: a validation.
    """

    def __init__(self, limits: Sequence[Limit], ledger: Ledger, *, moments: Moments, warmup_steps: int = 1) -> None:
        self.limits = tuple(limits)
        self.forecast: Interval[float] | None = None
        self.end_seconds = 0.0
        self._ledger = ledger
        self._moments = moments
        self._warmup_steps = warmup_steps
        self._warned: set[str] = set()
        self._is_broken = False
        self._refreshed_seconds = 0.0
        self._narrow_seconds = 0.0
        self._narrows()

    def question(self, batches: int, seconds: float, *, elapsed: float) -> BudgetQuestion | None:
        """Return what is to be judged after so many batches and seconds of them, with `elapsed` of the fit."""
        moments = self._moments
        if batches >= self._warmup_steps and moments.is_due(batches, seconds) and moments.has_come:
            return "forecast"
        if self.forecast is not None and elapsed - self._refreshed_seconds >= REFRESH_SECONDS:
            return "outlook"
        return "use" if elapsed >= self._narrow_seconds else None

    def metrics(self) -> dict[str, float]:
        """Return values for loggers by name: for each limit what is used, allowed and, given a forecast, needed."""
        values, elapsed, forecast = {}, self._ledger.elapsed_seconds, self.forecast
        for limit in self.limits:
            values[f"{limit.name}_used"], values[f"{limit.name}_limit"] = limit.used(elapsed), limit.total
            if forecast is not None:
                values[f"{limit.name}_forecast"] = limit.used(elapsed + forecast.middle)
                values[f"{limit.name}_forecast_low"] = limit.used(elapsed + forecast.low)
                values[f"{limit.name}_forecast_high"] = limit.used(elapsed + forecast.high)
        return values

    def judge_use(self) -> BudgetVerdict:
        """Judge what is used up, with what it takes to end; warn once."""
        return self._once("use", judge_use(self.limits, self._ledger.elapsed_seconds, self.end_seconds))

    def judge_validation(self, rest_seconds: float | None) -> BudgetVerdict:
        """Warn where a limit is used up within a validation, stop where its rest (None: unknown) exceeds it by far."""
        elapsed = self._ledger.elapsed_seconds
        use = judge_use(self.limits, elapsed)
        if use.action != "stop":
            return GO_ON
        allowed = [replace(limit, total=(1.0 + VALIDATION_OVERRUN_SHARE) * limit.total) for limit in self.limits]
        is_small = judge_use(allowed, elapsed, rest_seconds or 0.0).action != "stop"
        return BudgetVerdict("warn" if is_small else "stop", use.reason)

    def judge(
        self, question: BudgetQuestion, rest: RestOfRun | None, *, may_end_earlier: bool = False
    ) -> BudgetVerdict:
        """Judge the use, and the rest of the run where that is asked for.

        Args:
            question: What is asked.
            rest: The rest of the run; None where only the use is to be judged.
            may_end_earlier: Early stopping may end it, so that no forecast alone does.
        """
        if rest is not None:
            self._refreshed_seconds = self._ledger.elapsed_seconds
            self.ends_in(rest.end_seconds)
        use = self.judge_use()
        if use.action == "stop" or rest is None or rest.forecast is None or rest.batch_times is None:
            return use
        self.forecast = rest.forecast
        outlook = judge_forecast(self.limits, self._ledger.elapsed_seconds, rest.forecast, steps=rest.steps)
        if question == "forecast" and outlook.action != "stop":
            self._is_broken = False
        if outlook.action == "go on":
            return use
        if may_end_earlier:
            outlook = BudgetVerdict("warn", f"{outlook.reason}, unless early stopping ends it before")
        elif question == "outlook":
            outlook = BudgetVerdict("warn", f"{outlook.reason}; the run goes on until more steps say so")
        elif outlook.action == "stop" and not self._is_sure(rest.forecast, is_settled=rest.batch_times.is_settled):
            outlook = BudgetVerdict("warn", f"{outlook.reason}; the run ends if twice as many say the same")
        return outlook if outlook.action == "stop" or (use.action == "go on" and self._is_new("forecast")) else use

    def _is_sure(self, forecast: Interval[float], *, is_settled: bool) -> bool:
        """Return whether a forecast that breaks a limit is to be acted on: the second that does, or one by far."""
        was_broken, self._is_broken = self._is_broken, True
        elapsed = self._ledger.elapsed_seconds
        by_far = any(limit.used(elapsed + forecast.low) > BY_FAR * limit.total for limit in self.limits)
        return is_settled and (was_broken or by_far)

    def ends_in(self, seconds: float) -> None:
        """Note how long the run takes once it is told to stop."""
        self.end_seconds = seconds
        self._narrows()

    def _once(self, name: str, verdict: BudgetVerdict) -> BudgetVerdict:
        """Return a warning the first time only."""
        if verdict.action == "warn":
            verdict = verdict if self._is_new(name) else GO_ON
            self._narrows()
        return verdict

    def _is_new(self, name: str) -> bool:
        is_new = name not in self._warned
        self._warned.add(name)
        return is_new

    def _narrows(self) -> None:
        """Find the time before which the use need not be judged."""
        ends = [limit.reached_seconds(1.0) - self.end_seconds for limit in self.limits]
        if "use" not in self._warned:
            ends += [limit.reached_seconds(WARNING_SHARE) for limit in self.limits]
        self._narrow_seconds = min(ends, default=math.inf)
