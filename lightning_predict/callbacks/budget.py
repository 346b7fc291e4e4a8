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
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from difflib import get_close_matches
from time import monotonic
from typing import Any, Final, Literal, final

import torch

from lightning_predict.callbacks.recorders import Pace, Window, WindowWatch, steady_seconds
from lightning_predict.cost.offers import Offer, load_offers, offers_for
from lightning_predict.errors import UnknownGpuError, UnknownOfferError
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.interval import Interval
from lightning_predict.reports.format import duration
from lightning_predict.reports.format import usd as dollars
from lightning_predict.reports.format import usd_per_hour as price_in_words
from lightning_predict.units import hours_to_seconds, seconds_to_hours


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


def gpu_in_use(device: torch.device) -> str | None:
    """Find the catalogue name of the GPU in use; None without CUDA, and for a GPU that the catalogue lacks."""
    if device.type != "cuda":
        return None
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
        """Begin a fit.

        Args:
            forget: Leave out what earlier fits took.
        """
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


def _hours_in_words(hours: float) -> str:
    return duration(hours_to_seconds(hours))


def limits_of_fit(
    ledger: Ledger, *, usd: float | None, hours: float | None, deadline: datetime | None
) -> tuple[Limit, ...]:
    """Return the limits of a fit that has begun; dollars only where the ledger has a price."""
    limits = []
    if usd is not None and ledger.usd_per_second > 0:
        limits.append(usd_limit(usd, per_second=ledger.usd_per_second, before=ledger.usd_before))
    if hours is not None:
        limits.append(hours_limit("hours", hours, before=seconds_to_hours(ledger.seconds_before)))
    if deadline is not None:
        seconds_left = (deadline - datetime.now(timezone.utc)).total_seconds()
        limits.append(hours_limit("deadline", seconds_to_hours(ledger.elapsed_seconds + seconds_left)))
    return tuple(limits)


Action = Literal["go on", "warn", "stop"]


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision about the run, and its reason in words."""

    action: Action
    reason: str


GO_ON: Final = Verdict("go on", "within the budget")


def metrics_of(limits: Sequence[Limit], elapsed_seconds: float, forecast: Interval[float] | None) -> dict[str, float]:
    """Return values for loggers by name: for each limit what is used, allowed and, given a forecast, needed."""
    values = {}
    for limit in limits:
        values[f"{limit.name}_used"] = limit.used(elapsed_seconds)
        values[f"{limit.name}_limit"] = limit.total
        if forecast is not None:
            values[f"{limit.name}_forecast"] = limit.used(elapsed_seconds + forecast.middle)
            values[f"{limit.name}_forecast_low"] = limit.used(elapsed_seconds + forecast.low)
            values[f"{limit.name}_forecast_high"] = limit.used(elapsed_seconds + forecast.high)
    return values


def judge_forecast(limits: Sequence[Limit], elapsed_seconds: float, forecast: Interval[float]) -> Verdict:
    """Stop where even the low end of the forecast breaks a limit, warn where its middle does."""
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


def judge_use(limits: Sequence[Limit], elapsed_seconds: float, end_seconds: float = 0.0) -> Verdict:
    """Stop where a limit is used up, less what it takes to end, and warn where 80 % of it is used."""
    verdict = GO_ON
    for limit in limits:
        used, at_end = limit.used(elapsed_seconds), limit.used(elapsed_seconds + end_seconds)
        if used < WARNING_SHARE * limit.total and at_end < limit.total:  # called often: build no text in vain
            continue
        reason = f"{limit.show(used)} of {limit.show(limit.total)} ({limit.name}) are used"
        if at_end >= limit.total:
            end = "" if used >= limit.total else f", and the validation that ends the run takes {duration(end_seconds)}"
            return Verdict("stop", reason + end)
        if verdict is GO_ON:
            verdict = Verdict("warn", reason)
    return verdict


VALIDATION_OVERRUN_SHARE: Final = 0.05
"""Share of a limit by which a validation that has begun may exceed it, for metrics of all of its batches."""


def judge_validation(limits: Sequence[Limit], elapsed_seconds: float, rest_seconds: float | None) -> Verdict:
    """Judge the use within a validation: warn where a limit is used up, stop where the rest would exceed it by far.

    Args:
        limits: The limits.
        elapsed_seconds: Seconds of this fit.
        rest_seconds: Seconds that the rest of the validation takes; None if unknown.
    """
    use = judge_use(limits, elapsed_seconds)
    if use.action != "stop":
        return GO_ON
    allowed = [replace(limit, total=(1.0 + VALIDATION_OVERRUN_SHARE) * limit.total) for limit in limits]
    is_small = judge_use(allowed, elapsed_seconds, rest_seconds or 0.0).action != "stop"
    return Verdict("warn" if is_small else "stop", use.reason)


Question = Literal["forecast", "use"]
"""What is to be judged at the end of a window."""


@final
class BudgetWatch:
    """Times the first windows, and says when there is something to judge.

    Args:
        limits: The limits.
        ledger: What the run has taken.
        warmup_steps: Windows to time.
        clock: Clock in seconds that waits for the device.
        optimizer_steps_done: `trainer.global_step` before the first batch.
        ranks_agree: Several ranks judge together, which costs communication: actual use is then judged at intervals
            instead of at every window.

    Attributes:
        forecast: The rest of the run, as judged last; None if there is none.
        end_seconds: What the run takes once it is told to stop: a validation.
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
    ) -> None:
        self.limits = tuple(limits)
        self.forecast: Interval[float] | None = None
        self.windows_between_checks = 1
        self.end_seconds = 0.0
        self._ledger = ledger
        self._warmup_steps = warmup_steps
        self._clock = clock
        self._ranks_agree = ranks_agree
        self._wake_seconds = 0.0
        self._slept = False
        self._windows = WindowWatch(optimizer_steps_done=optimizer_steps_done)
        self._timed: list[Window] = []
        self._forecast_at_seconds, self._forecast_at_batch = 0.0, 0

    @property
    def is_warming_up(self) -> bool:
        """Whether windows are still being timed."""
        return len(self._timed) < self._warmup_steps

    @property
    def batch_seconds(self) -> tuple[float, ...]:
        """Times of a batch in the windows of the warm-up, without slow ones at the beginning and without waits."""
        return steady_seconds([window.seconds / window.batches for window in self._timed])

    @property
    def refresh_is_due(self) -> bool:
        """Whether another forecast is due."""
        since = self._ledger.elapsed_seconds - self._forecast_at_seconds
        return since >= REFRESH_SECONDS and self._windows.batches_seen > self._forecast_at_batch

    def pause(self) -> None:
        """Exclude what happens before the next batch from the loader's wait."""
        self._windows.pause()

    def batch_starts(self) -> None:
        """Note that a batch is about to be trained."""
        if self._ledger.elapsed_seconds >= self._wake_seconds:
            self._windows.batch_starts(self._now())

    def batch_passes_quietly(self) -> bool:
        """Return whether the trained batch needs no judgement, at the cost of one clock read."""
        if self._ledger.elapsed_seconds >= self._wake_seconds:
            return False
        self._windows.batches_seen += 1
        self._slept = True
        return True

    def batch_ends(self, *, optimizer_steps_done: int) -> Question | None:
        """Note that a batch was trained.

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
        self._timed.append(window)
        if self.is_warming_up:
            return None
        if self._ranks_agree:
            self.windows_between_checks = max(1, math.ceil(CHECK_SECONDS / max(window.interval_seconds, 1e-9)))
        self._sleep()
        return "forecast"

    def pace(self, *, is_manual: bool) -> Pace:
        """Return the pace of the windows."""
        if not is_manual or not self._timed:
            return Pace()
        steps = statistics.mean(window.optimizer_steps for window in self._timed)
        return Pace(batches_per_window=self._timed[-1].batches, steps_per_window=steps or 1.0)

    def metrics(self) -> dict[str, float]:
        """Return values for loggers by name."""
        return metrics_of(self.limits, self._ledger.elapsed_seconds, self.forecast)

    def judge_use(self) -> Verdict:
        """Judge what is used up, with what it takes to end."""
        return judge_use(self.limits, self._ledger.elapsed_seconds, self.end_seconds)

    def judge_validation(self, rest_seconds: float | None) -> Verdict:
        """Judge what is used up within a validation, whose rest takes so long."""
        return judge_validation(self.limits, self._ledger.elapsed_seconds, rest_seconds)

    def judge_forecast(self, forecast: Interval[float] | None) -> Verdict:
        """Judge what the rest of the run will take, and be quiet until the next forecast is due."""
        self._sleep()
        if forecast is None:
            return GO_ON
        self.forecast = forecast
        return judge_forecast(self.limits, self._ledger.elapsed_seconds, forecast)

    def ends_in(self, seconds: float) -> None:
        """Note how long the run takes once it is told to stop."""
        self.end_seconds = seconds
        if not self.is_warming_up:
            self._wake_seconds = min(self._wake_seconds, self._narrow_seconds())

    def _narrow_seconds(self) -> float:
        """Compute the time of two windows, before which the use of a limit need not be judged."""
        two_windows = 2 * max(window.interval_seconds for window in self._timed)
        shares = [limit.reached_seconds(WARNING_SHARE) for limit in self.limits]
        ends = [limit.reached_seconds(1.0) - self.end_seconds for limit in self.limits]
        return min(shares + ends, default=0.0) - two_windows

    def _sleep(self) -> None:
        """Check only the clock until a forecast is due, or until two windows before a limit is 80 % used up.

        Ranks that judge together count their windows instead.
        """
        self._forecast_at_seconds, self._forecast_at_batch = self._ledger.elapsed_seconds, self._windows.batches_seen
        if self._ranks_agree:
            return
        self._wake_seconds = min(self._narrow_seconds(), self._forecast_at_seconds + REFRESH_SECONDS)

    def _now(self) -> float:
        """Return the time in the warm-up; later only the order of batches matters, and nothing waits for the device."""
        return self._clock() if self.is_warming_up else 0.0
