"""`Terms`: what a user sets as a budget, checked, and the limits that follow from it in a fit.

Example::

    terms = Terms.checked(usd=50.0, usd_per_hour=1.2)
    limits = terms.limits_of(trainer, ledger)   # the ledger now knows the price of a second
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, final

from lightning_predict.callbacks.arguments import check_amount, future_time
from lightning_predict.callbacks.bases import rank_zero_info, warn
from lightning_predict.callbacks.ledger import Ledger
from lightning_predict.callbacks.limits import Limit, limits_of_fit
from lightning_predict.callbacks.price import gpu_in_use, named_offer, price_of_run
from lightning_predict.cost.quotes import check_price
from lightning_predict.cost.records import Offer
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.reports.format import usd_per_hour as in_words
from lightning_predict.units import seconds_to_hours

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """A budget; None is no limit.

    Attributes:
        usd: US dollars.
        hours: Hours.
        deadline: A time with a zone.
        usd_per_hour: The user's own price of all machines of the run.
        offer: The offer that the user named.
    """

    usd: float | None
    hours: float | None
    deadline: datetime | None
    usd_per_hour: float | None
    offer: Offer | None

    @staticmethod
    def checked(
        *,
        usd: float | None = None,
        hours: float | None = None,
        deadline: str | None = None,
        usd_per_hour: float | None = None,
        offer: str | None = None,
    ) -> Terms:
        """The terms that the arguments of `CostBudget` set.

        Args:
            usd: US dollars.
            hours: Hours.
            deadline: A time in ISO format.
            usd_per_hour: The user's own price.
            offer: Name of a listed offer.

        Raises:
            InvalidArgumentError: No limit, or one that is not positive or has passed.
            UnknownOfferError: No offer of that name is listed.
        """
        if usd is None and hours is None and deadline is None:
            raise InvalidArgumentError("CostBudget got no limit; give at least one of usd, hours and deadline.")
        check_amount("usd", usd)
        check_amount("hours", hours)
        check_price(usd_per_hour)
        return Terms(
            usd=usd,
            hours=hours,
            deadline=None if deadline is None else future_time("deadline", deadline),
            usd_per_hour=usd_per_hour,
            offer=None if offer is None else named_offer(offer),
        )

    def limits_of(self, trainer: Trainer, ledger: Ledger) -> tuple[Limit, ...]:
        """The limits of a fit that begins; the ledger gets the price of what it runs on.

        Args:
            trainer: The Trainer that is fitting.
            ledger: What the run has taken.
        """
        if self.usd is not None:
            price = price_of_run(
                usd_per_hour=self.usd_per_hour,
                offer=self.offer,
                gpu=gpu_in_use(trainer.strategy.root_device),
                world_size=trainer.world_size,
                num_nodes=trainer.num_nodes,
            )
            ledger.usd_per_second = seconds_to_hours(price.usd_per_hour or 0.0)
            if price.warning is not None:
                warn(f"CostBudget: {price.warning}.")
            elif price.usd_per_hour is not None:
                rank_zero_info(f"CostBudget counts {in_words(price.usd_per_hour)} ({price.source}).")
        return limits_of_fit(ledger, usd=self.usd, hours=self.hours, deadline=self.deadline)
