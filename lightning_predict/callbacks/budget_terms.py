"""The terms of a budget: its limits, its prices and the CO2 of its machines, as given to `CostBudget`.

Example::

    terms = Terms.checked(usd=50, hours=12)
    terms.description                                 # "$50.00 and 12 h"
    limits = terms.limits_of(trainer, ledger)         # of a fit that begins; sets the price in the ledger
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, final

from lightning_predict.base.checked import positive_number
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.units import grams_to_kilograms, hours_to_seconds, seconds_to_hours, watts_to_kilowatts
from lightning_predict.callbacks.arguments import amount_of, check_name, future_time, hours_of
from lightning_predict.callbacks.lightning_packages import warn
from lightning_predict.callbacks.output import print_sentence
from lightning_predict.cost.offers import Offer
from lightning_predict.cost.prediction import Charges, check_price
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.observe.budget import (
    Ledger,
    Limit,
    gpu_name_in_use,
    limits_of_fit,
    named_offer,
    price_of_run,
)
from lightning_predict.reports.format import duration, significant
from lightning_predict.reports.format import usd_of_steps as dollars
from lightning_predict.reports.format import usd_per_hour as in_words

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from lightning_predict.cost.grids import PowerGrid


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Emissions:
    """Budget of CO2 emissions, with the inputs to compute the emissions.

    Attributes:
        kg_co2: Budget in kilograms of CO2-equivalent.
        grid: Electric grid that feeds the machines.
        watts: Power of all machines; None uses the power limits of the GPUs.
        pue: Power usage effectiveness of the data centre.
    """

    kg_co2: float
    grid: PowerGrid
    watts: float | None
    pue: float

    @staticmethod
    def checked(
        *, kg_co2: float | Decimal | Fraction | None, grid: str | float | None, watts: float | None, pue: float
    ) -> Emissions | None:
        """Parse the CO2 arguments of `CostBudget`; None without a CO2 limit.

        Raises:
            InvalidArgumentError: A limit has no grid, or a number is out of its range.
        """
        if kg_co2 is None:
            if grid is not None or watts is not None or pue != 1:
                raise InvalidArgumentError("grid, watts and pue are for a limit in CO2; give it with kg_co2.")
            return None
        if grid is None:
            raise InvalidArgumentError(
                f"kg_co2={kg_co2} depends on the location of the machines; give grid, a place (europe-west3, "
                "Frankfurt) or grams of CO2 per kWh."
            )
        if (positive_number(pue) or 0.0) < 1:
            raise InvalidArgumentError(f"pue={pue!r} is out of range; expected a number of at least 1.")
        from lightning_predict.cost.grids import grid_of

        return Emissions(
            kg_co2=amount_of("kg_co2", kg_co2),
            grid=grid_of(grid),
            watts=None if watts is None else amount_of("watts", watts),
            pue=float(pue),
        )

    def per_second(self, trainer: Trainer) -> float | None:
        """Return kilograms of CO2 per second of this fit. If the machines' power is unknown, warn and return None."""
        watts, name = self.watts, gpu_name_in_use(trainer.strategy.root_device)
        if watts is None and name is not None:
            from lightning_predict.cost.energy import energy

            watts = energy(0.0, find_gpu(name), busy_share=1.0).watts * trainer.world_size
        if watts is None:
            warn("CostBudget: the power of this machine is unknown, so kg_co2 has no effect; give watts.")
            return None
        grams = self.grid.grams_per_kwh
        data_centre = "" if self.pue == 1 else f", times {self.pue:g} for the data centre"
        print_sentence(trainer, f"CostBudget counts {watts:,.0f} W{data_centre} at {self.grid.sentence}.")
        return seconds_to_hours(grams_to_kilograms(watts_to_kilowatts(watts * self.pue) * grams)) or None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Limits and prices of a budget; None for a limit that is not set.

    Attributes:
        usd: Limit in US dollars.
        hours: Limit in hours.
        deadline: Deadline, a time with a time zone.
        usd_per_hour: The user's own price of all machines of the run.
        offer: Offer that the user named.
        emissions: Limit in CO2.
        charges: Costs other than training time.
    """

    usd: float | None
    hours: float | None
    deadline: datetime | None
    usd_per_hour: float | None
    offer: Offer | None
    emissions: Emissions | None = None
    charges: Charges = field(default_factory=Charges)

    @staticmethod
    def checked(
        *,
        usd: float | Decimal | Fraction | None = None,
        hours: float | Decimal | Fraction | timedelta | None = None,
        deadline: str | datetime | None = None,
        usd_per_hour: float | Decimal | Fraction | None = None,
        offer: str | None = None,
        emissions: Emissions | None = None,
        charges: Charges | None = None,
    ) -> Terms:
        """Parse and check the arguments of `CostBudget`.

        Raises:
            InvalidArgumentError: There is no limit, or a limit is not positive or has passed.
            UnknownOfferError: No offer with this name is listed.
        """
        if usd is None and hours is None and deadline is None and emissions is None:
            raise InvalidArgumentError("CostBudget got no limit; give at least one of usd, hours, deadline and kg_co2.")
        check_name("offer", offer, "AWS g5.xlarge")
        check_price(usd_per_hour)
        return Terms(
            usd=None if usd is None else amount_of("usd", usd),
            hours=None if hours is None else hours_of("hours", hours),
            deadline=None if deadline is None else future_time("deadline", deadline),
            usd_per_hour=None if usd_per_hour is None else float(usd_per_hour),
            offer=None if offer is None else named_offer(offer),
            emissions=emissions,
            charges=charges or Charges(),
        )

    @property
    def description(self) -> str:
        """All limits as given, for example `$20.00 and 6 h`."""
        limits = [
            None if self.usd is None else dollars(self.usd),
            None if self.hours is None else duration(hours_to_seconds(self.hours)),
            None if self.deadline is None else f"time until {self.deadline.astimezone():%Y-%m-%d %H:%M %Z}",
            None if self.emissions is None else f"{significant(self.emissions.kg_co2)} kg CO2",
        ]
        return " and ".join(limit for limit in limits if limit is not None)

    def limits_of(self, trainer: Trainer, ledger: Ledger) -> tuple[Limit, ...]:
        """Print and return the limits of a fit that begins, and set the price in the ledger."""
        counted = ""
        if self.usd is not None:
            price = price_of_run(
                usd_per_hour=self.usd_per_hour,
                offer=self.offer,
                gpu=gpu_name_in_use(trainer.strategy.root_device),
                world_size=trainer.world_size,
                num_nodes=trainer.num_nodes,
            )
            ledger.usd_per_second = seconds_to_hours(price.usd_per_hour or 0.0)
            if price.warning is not None:
                warn(f"CostBudget: {price.warning}.")
            if price.source is not None and price.usd_per_hour is not None:
                counted = f"; it counts {in_words(price.usd_per_hour)} ({price.source})"
            elif price.usd_per_hour is not None:
                counted = f"; it counts {in_words(price.usd_per_hour)}"
        print_sentence(trainer, f"CostBudget allows {self.description}{counted}.")
        emissions = self.emissions
        if emissions is not None:
            ledger.kg_co2_per_second = emissions.per_second(trainer) or 0.0
        return limits_of_fit(
            ledger,
            usd=self.usd,
            hours=self.hours,
            deadline=self.deadline,
            spent_usd=self.charges.cost_usd(0.0, hours_to_seconds(ledger.usd_per_second)),
            kg_co2=None if emissions is None else emissions.kg_co2,
        )
