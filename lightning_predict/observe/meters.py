"""What a run uses up: dollars, hours, CO2. One `Quantity` each, from its argument to its words in messages.

The arguments of every budget (`CostBudget`, `lp.watch`, Fabric, Hugging Face), ledgers, checkpoints, checks and loggers
follow from the table `QUANTITIES`. To add a quantity, add its row and its argument in `BudgetArguments`. Example::

    terms = Terms.checked(usd=50, hours=12, usd_per_hour=2.0)
    ledger = Ledger()
    ledger.open(forget=False)
    allowed = terms.start(RentedMachine("T4", gpu="T4"), ledger)       # sets the rates of the ledger
    allowed.sentence                                             # "$50.00 and 12 h; it counts $2.00/h (your own price)"
    allowed.meters[0].used(1800.0)                               # dollars after half an hour: 1.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypedDict

from typing_extensions import Unpack

from lightning_predict.base.checked import positive_number, shown
from lightning_predict.base.errors import InvalidArgumentError, UnknownGpuError, UnknownOfferError
from lightning_predict.base.units import grams_to_kilograms, hours_to_seconds, seconds_to_hours, watts_to_kilowatts
from lightning_predict.cost.offers import Offer, load_offers, offers_for
from lightning_predict.cost.prediction import Charges, check_price
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.reports.format import duration, significant
from lightning_predict.reports.format import usd_of_steps as dollars
from lightning_predict.reports.format import usd_per_hour as price_in_words

if TYPE_CHECKING:
    import torch

    from lightning_predict.cost.energy import PowerGrid

Amount = float | Decimal | Fraction


class BudgetArguments(TypedDict, total=False):
    """Arguments of a budget, besides `usd` and `usd_per_hour`.

    Args:
        hours: Budget in hours, or a timedelta.
        kg_co2: Budget in kilograms of CO2-equivalent; requires `grid`.
        deadline: A datetime, or a time in ISO format, for example `2030-01-31T18:00`; local without a time zone.
        offer: The listed offer that you pay for, for example `AWS g5.xlarge`.
        grid: The electric grid: grams of CO2 per kWh, a place (`Frankfurt`) or a country (`France`, `FR`).
        watts: Power of all machines of this run; None uses the power limits of the GPUs, an upper estimate.
        pue: Power usage effectiveness of the data centre, a factor on the power; 1 for the machines alone.
        setup_minutes: Minutes of paid machine time before training.
        storage_usd: Dollars for storage and data transfer, which count as used from the start.
    """

    hours: float | Decimal | Fraction | timedelta | None
    kg_co2: float | Decimal | Fraction | None
    deadline: str | datetime | None
    offer: str | None
    grid: str | float | None
    watts: float | None
    pue: float
    setup_minutes: float
    storage_usd: float


@dataclass(frozen=True, slots=True)
class RentedMachine:
    """Machines on which a fit runs."""

    device: str  # Catalogue name of the GPU; the device type if the catalogue lacks the device
    world_size: int = 1
    num_nodes: int = 1
    gpu: str | None = None  # Catalogue name of the GPU; None without a known GPU

    @staticmethod
    def of(device: torch.device, *, world_size: int = 1, num_nodes: int = 1) -> RentedMachine:
        """Return the machines whose processes train on this device."""
        gpu = gpu_name_in_use(device)
        return RentedMachine(gpu or device.type, world_size, num_nodes, gpu)

    def __str__(self) -> str:
        return f"{self.world_size} x {self.device}"


@dataclass(frozen=True, slots=True)
class Rate:
    """Amount of a quantity that a fit uses up per hour, with its source."""

    per_hour: float | None  # Amount per hour on all machines; None if unknown
    source: str | None = None  # Rate and source as text; None without a source
    warning: str | None = None  # Warning for the user about the rate; None without a warning


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A quantity that a run uses up in proportion to time."""

    words: Callable[[float], str]  # Formats an amount as text
    rate: Callable[[Terms, RentedMachine], Rate]  # Returns the rate on these machines
    # Returns the amount that is used before training, from the amount per hour
    spent: Callable[[Terms, float], float] = lambda terms, per_hour: 0.0  # noqa: ARG005
    parse: Callable[[str, object], float] = lambda name, amount: amount_of(name, amount)  # Converts the argument


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """A quantity that a fit uses up, with its limit."""

    name: str  # Name of the quantity, which is the argument that sets the limit
    limit: float  # Allowed amount
    rate: float  # Amount that one second of the fit uses up
    words: Callable[[float], str]  # Formats an amount as text
    before: float = 0.0  # Amount that was used before this fit

    def used(self, elapsed_seconds: float) -> float:
        """Return the amount used after this many seconds of the fit."""
        return self.before + elapsed_seconds * self.rate

    def reached_seconds(self, share: float) -> float:
        """Return the seconds of this fit after which `share` of the limit is used; negative if earlier."""
        return (share * self.limit - self.before) / self.rate


@dataclass(frozen=True, slots=True)
class Use:
    """What a run has used, over all its fits."""

    seconds: float = 0.0
    # For each quantity, its amount over the fits with a known rate, and the seconds of these fits
    metered: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def amount(self, name: str, rate: float = 0.0) -> float:
        """Return the used amount of a quantity. Seconds at an unknown rate count with `rate`."""
        amount, seconds = self.metered.get(name, (0.0, 0.0))
        return amount + max(0.0, self.seconds - seconds) * rate

    def after(self, seconds: float, rates: Mapping[str, float]) -> Use:
        """Return what is used after further seconds at these amounts per second."""
        metered = dict(self.metered)
        for name, rate in rates.items():
            amount, known = metered.get(name, (0.0, 0.0))
            metered[name] = (amount + seconds * rate, known + seconds)
        return Use(self.seconds + seconds, metered)

    def at_least(self, other: Use) -> Use:
        """Return the larger amount of each quantity."""
        nothing = (0.0, 0.0)
        metered = {}
        for name in {**self.metered, **other.metered}:
            own, others = self.metered.get(name, nothing), other.metered.get(name, nothing)
            metered[name] = (max(own[0], others[0]), max(own[1], others[1]))
        return Use(max(self.seconds, other.seconds), metered)

    def plain(self) -> dict[str, float]:
        """Return plain values for a file or a checkpoint."""
        values = {"seconds": self.seconds}
        for name in dict.fromkeys((*QUANTITIES, *self.metered)):
            values[name], values[f"{name}_seconds"] = self.metered.get(name, (0.0, 0.0))
        return values

    @staticmethod
    def names() -> tuple[str, ...]:
        """Return the keys of `plain` that a file or a checkpoint may lack, because its version did not know them."""
        return tuple(key for name in QUANTITIES for key in (name, f"{name}_seconds"))

    @staticmethod
    def parse(values: Mapping[str, Any]) -> Use:
        """Read values that `plain` or an earlier version has written."""
        seconds = _saved_amount(values, "seconds")
        metered = {}
        for name in QUANTITIES:
            if name in values:  # early versions did not store the seconds at a known price
                known = _saved_amount(values, f"{name}_seconds") if f"{name}_seconds" in values else seconds
                metered[name] = (_saved_amount(values, name), known)
        return Use(seconds, metered)


def _saved_amount(values: Mapping[str, Any], name: str) -> float:
    amount = values.get(name)
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < math.inf:
        raise InvalidArgumentError(f"{name}={shown(amount)} in a saved budget; expected a number of at least 0.")
    return float(amount)


class Ledger:
    """What a run has used, over all its fits and in the current fit."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.before = Use()  # Use of the fits that have ended
        # Amount of each quantity that a second of the current fit uses up, if known
        self.rates: Mapping[str, float] = {}
        self.clock = clock
        self._start: float | None = None

    @property
    def elapsed_seconds(self) -> float:
        """Seconds of the current fit; 0 outside a fit."""
        return 0.0 if self._start is None else self.clock() - self._start

    @property
    def use(self) -> Use:
        """Use of all fits so far."""
        return self.before.after(self.elapsed_seconds, self.rates)

    def time_at(self, seconds: float) -> float:
        """Return the time of the clock after this many seconds of the current fit."""
        return (self.clock() if self._start is None else self._start) + seconds

    def __getstate__(self) -> dict[str, Any]:
        """Return the use without the start time, which has no meaning in another process."""
        return vars(self) | {"before": self.use, "_start": None}

    def open(self, *, forget: bool) -> None:
        """Start a fit. If `forget`, reset the use of earlier fits."""
        self.close()
        self.before, self.rates = Use() if forget else self.before, {}
        self._start = self.clock()

    def close(self) -> None:
        """End the fit, if one is in progress."""
        self.before, self._start = self.use, None

    def resume(self, use: Use) -> None:
        """Restore the use in a checkpoint, unless this process has measured more."""
        self.before = self.before.at_least(use)


@dataclass(frozen=True, slots=True)
class Allowance:
    """Limits of a fit that begins."""

    meters: tuple[Meter, ...]
    sentence: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Limits of a budget, and what their rates depend on."""

    limits: Mapping[str, float] = field(default_factory=dict)
    deadline: datetime | None = None  # Deadline, a time with a time zone; None without a deadline
    usd_per_hour: float | None = None  # The user's own price of all machines of the run; None uses an offer
    offer: Offer | None = None  # Offer that the user named; None uses the listed offers of the GPU
    grid: PowerGrid | None = None  # Electric grid that feeds the machines; None if not given
    watts: float | None = None  # Power of all machines; None uses the power limits of the GPUs
    pue: float = 1.0  # Power usage effectiveness of the data centre
    charges: Charges = field(default_factory=Charges)  # Costs other than training time

    @staticmethod
    def checked(
        *, usd: Amount | None = None, usd_per_hour: Amount | None = None, **arguments: Unpack[BudgetArguments]
    ) -> Terms:
        """Parse and check the arguments of a budget."""
        given: dict[str, Any] = {"usd": usd, **arguments}
        unknown = [name for name in arguments if name not in BudgetArguments.__annotations__]
        if unknown:
            raise InvalidArgumentError(
                f"{', '.join(unknown)} is not an argument of a budget; expected one of "
                f"{', '.join(('usd', 'usd_per_hour', *BudgetArguments.__annotations__))}."
            )
        check_price(usd_per_hour)
        offer, deadline = given.get("offer"), given.get("deadline")
        if offer is not None and not isinstance(offer, str):
            raise InvalidArgumentError(
                f"offer={shown(offer)} is not a name; expected a string, for example 'AWS g5.xlarge'."
            )
        grid, watts, pue = _power_terms(given)
        return Terms(
            limits={
                name: quantity.parse(name, given[name])
                for name, quantity in QUANTITIES.items()
                if given.get(name) is not None
            },
            deadline=None if deadline is None else future_time("deadline", deadline),
            usd_per_hour=None if usd_per_hour is None else float(usd_per_hour),
            offer=None if offer is None else named_offer(offer),
            grid=grid,
            watts=watts,
            pue=pue,
            charges=Charges(**{name: given[name] for name in ("setup_minutes", "storage_usd") if name in given}),
        )

    @property
    def description(self) -> str:
        """All limits as given, for example `$20.00 and 6 h`; empty without a limit."""
        limits = [QUANTITIES[name].words(limit) for name, limit in self.limits.items()]
        if self.deadline is not None:
            limits.append(f"time until {self.deadline.astimezone():%Y-%m-%d %H:%M %Z}")
        return " and ".join(limits)

    def start(self, machine: RentedMachine, ledger: Ledger) -> Allowance:
        """Return the limits of a fit that has just begun, and set the rates of the ledger."""
        meters, sources, warnings, rates = [], [], [], {}
        for name, limit in self.limits.items():
            quantity = QUANTITIES[name]
            rate = quantity.rate(self, machine)
            warnings += [] if rate.warning is None else [rate.warning]
            sources += [] if rate.source is None else [rate.source]
            if rate.per_hour:
                rates[name] = each = seconds_to_hours(rate.per_hour)
                before = ledger.before.amount(name, each) + quantity.spent(self, rate.per_hour)
                meters.append(Meter(name=name, limit=limit, rate=each, words=quantity.words, before=before))
        ledger.rates = rates
        if self.deadline is not None:
            seconds_left = (self.deadline - datetime.now(timezone.utc)).total_seconds()
            until = seconds_to_hours(ledger.elapsed_seconds + seconds_left)
            meters.append(Meter(name="deadline", limit=until, rate=seconds_to_hours(1.0), words=_hours_in_words))
        counted = f"; it counts {' and '.join(sources)}" if sources else ""
        return Allowance(tuple(meters), f"{self.description}{counted}", tuple(warnings))


def _power_terms(given: Mapping[str, Any]) -> tuple[PowerGrid | None, float | None, float]:
    """Check grid, power and power usage effectiveness."""
    grid, watts, pue = given.get("grid"), given.get("watts"), given.get("pue", 1.0)
    if given.get("kg_co2") is None:
        if grid is not None or watts is not None or pue != 1:
            raise InvalidArgumentError("grid, watts and pue are for a limit in CO2; give it with kg_co2.")
        return None, None, 1.0
    if grid is None:
        raise InvalidArgumentError(
            f"kg_co2={given['kg_co2']} depends on the location of the machines; give grid, a place (europe-west3, "
            "Frankfurt) or grams of CO2 per kWh."
        )
    if (positive_number(pue) or 0.0) < 1:
        raise InvalidArgumentError(f"pue={pue!r} is out of range; expected a number of at least 1.")
    from lightning_predict.cost.energy import grid_of

    return grid_of(grid), None if watts is None else amount_of("watts", watts), float(pue)


def amount_of(name: str, amount: object) -> float:
    """Convert a positive number (int, float, Decimal, Fraction or numpy number) to a float."""
    number = positive_number(amount)
    if number is None:
        raise InvalidArgumentError(f"{name}={shown(amount)} is not a limit; expected a number above 0, or None.")
    return number


def hours_of(name: str, hours: object) -> float:
    """Convert a number or a timedelta to hours."""
    if isinstance(hours, timedelta) and hours > timedelta(0):
        return seconds_to_hours(hours.total_seconds())
    return amount_of(name, hours)


def future_time(name: str, time: object) -> datetime:
    """Parse a time in the future. A time without a time zone is local time.

    Args:
        name: Name of the argument, for errors.
        time: An ISO text, for example `2030-01-31T18:00` or `2030-01-31T18:00+01:00`, or a datetime.
    """
    try:
        if not isinstance(time, str | datetime):
            raise ValueError("not a string or a datetime")
        given = time if isinstance(time, datetime) else datetime.fromisoformat(time)
        # The conversion by timestamp is also right for an hour that daylight saving leaves out.
        parsed = datetime.fromtimestamp(given.timestamp(), timezone.utc).astimezone()
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidArgumentError(
            f"{name}={shown(time)} is not a time; expected ISO format, for example '2030-01-31T18:00', or a datetime."
        ) from error
    if parsed <= datetime.now().astimezone():
        raise InvalidArgumentError(f"{name}={shown(time)} has passed; expected a time in the future.")
    return parsed


def _hours_in_words(hours: float) -> str:
    return duration(hours_to_seconds(hours))


# --- Dollars: the price of the machines


def named_offer(name: str, offers: Sequence[Offer] | None = None) -> Offer:
    """Find the newest offer with a machine name, which may follow the provider's name.

    Args:
        name: Name, for example `g5.xlarge` or `AWS g5.xlarge`.
        offers: Offers to choose from; None for the package's price list.
    """
    offers = load_offers() if offers is None else offers
    named = [offer for offer in offers if name in (offer.instance, f"{offer.provider} {offer.instance}")]
    if not named:
        names = sorted({f"{offer.provider} {offer.instance}" for offer in offers})
        near = get_close_matches(name, [*names, *(offer.instance for offer in offers)], n=3, cutoff=0.5) or names[:3]
        raise UnknownOfferError(
            f"offer={name!r} is not listed. Nearest: {', '.join(dict.fromkeys(near))}. "
            "Name one that is, or give your own price with usd_per_hour."
        )
    providers = sorted({offer.provider for offer in named})
    if len(providers) > 1:
        choices = " or ".join(f"'{provider} {name}'" for provider in providers)
        raise UnknownOfferError(f"offer={name!r} is listed by {' and '.join(providers)}; say {choices}.")
    return max(named, key=lambda offer: offer.date)


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


def price_rate(terms: Terms, machine: RentedMachine, offers: Sequence[Offer] | None = None) -> Rate:
    """Return the hourly price of the run: the user's own, that of the named offer, or the highest that is listed.

    Args:
        terms: Own price and offer, which take precedence. The whole machines of an offer are charged.
        machine: Machines of the run.
        offers: Offers for the GPU in use; None for the package's price list.
    """
    if terms.usd_per_hour is not None:
        return _price(terms.usd_per_hour, "your own price")
    if terms.offer is not None:
        machines = max(machine.num_nodes, math.ceil(machine.world_size / terms.offer.num_gpus))
        return _price(terms.offer.usd_per_hour * machines, terms.offer.label)
    if machine.gpu is None:
        return Rate(
            None, warning="the price of this machine is unknown, so usd has no effect; give usd_per_hour or an offer"
        )
    listed = offers_for(machine.gpu, offers)
    if not listed:
        return Rate(None, warning=f"no price of {machine.gpu} is listed, so usd has no effect; give usd_per_hour")
    dearest = max(listed, key=lambda offer: offer.usd_per_gpu_hour)
    low, high = (price_in_words(offer.usd_per_gpu_hour) for offer in (listed[0], dearest))
    has_one_price = len({offer.usd_per_gpu_hour for offer in listed}) == 1
    return _price(
        dearest.usd_per_gpu_hour * machine.world_size,
        dearest.label if has_one_price else None,
        None
        if has_one_price
        else f"{machine.gpu} prices range from {low} to {high}. The highest price is used ({dearest.label}); choose "
        "another with offer=... or usd_per_hour",
    )


def _price(usd_per_hour: float, source: str | None, warning: str | None = None) -> Rate:
    words = price_in_words(usd_per_hour)
    return Rate(usd_per_hour, words if source is None else f"{words} ({source})", warning)


# --- CO2: the power of the machines and their grid


def _co2_rate(terms: Terms, machine: RentedMachine) -> Rate:
    watts = terms.watts
    if watts is None and machine.gpu is not None:
        from lightning_predict.cost.energy import energy

        watts = energy(0.0, find_gpu(machine.gpu), busy_share=1.0).watts * machine.world_size
    if watts is None or terms.grid is None:
        return Rate(None, warning="the power of this machine is unknown, so kg_co2 has no effect; give watts")
    data_centre = "" if terms.pue == 1 else f", times {terms.pue:g} for the data centre"
    return Rate(
        grams_to_kilograms(watts_to_kilowatts(watts * terms.pue) * terms.grid.grams_per_kwh),
        f"{watts:,.0f} W{data_centre} at {terms.grid.sentence}",
    )


QUANTITIES: Final[dict[str, Quantity]] = {  # Quantities by the name of the argument that sets a limit
    "usd": Quantity(words=dollars, rate=price_rate, spent=lambda terms, price: terms.charges.cost_usd(0.0, price)),
    "hours": Quantity(words=_hours_in_words, rate=lambda terms, machine: Rate(1.0), parse=hours_of),  # noqa: ARG005
    "kg_co2": Quantity(words=lambda amount: f"{significant(amount)} kg CO2", rate=_co2_rate),
}
