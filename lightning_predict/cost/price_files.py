"""The user's own prices: a file of offers (see `offers.read_offers`), or a machine that is already paid for.

The user's prices take precedence. GPUs without a user's price keep the prices of the package. Example::

    own = read_offers("our-prices.yaml")
    result = lp.predict(trace, gpus=["T4", "L4"], iterations=1000, offers=with_listed(own))

    >>> round(own_machine_offer("RTX-4090", watts=600, usd_per_kwh=0.30).usd_per_hour, 3)  # 0.6 kW x $0.30
    0.18
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date as calendar_date
from typing import Final

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.units import watts_to_kilowatts
from lightning_predict.cost.offers import USER, Offer, cheapest_offer, load_offers
from lightning_predict.hardware import gpu as find_gpu

OWN_MACHINE: Final = "own machine"


def with_listed(own: Sequence[Offer]) -> tuple[Offer, ...]:
    """Return the user's offers, and the package's offers of GPUs that the user's offers lack."""
    priced = {offer.gpu for offer in own}
    return (*own, *(offer for offer in load_offers() if offer.gpu not in priced))


def outdated(own: Sequence[Offer]) -> tuple[str, ...]:
    """Return a warning for each GPU whose newest user's price is too old to be current."""
    table = with_listed(own)
    names = dict.fromkeys(offer.gpu for offer in own)
    return tuple(
        f"{name}: the newest of your prices is of {max(offer.date for offer in own if offer.gpu == name)}, too old to "
        "be compared with the others; its cost is not known. Give a current price."
        for name in names
        if cheapest_offer(name, table) is None
    )


def at_spot_prices(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """Return offers at their spot prices; offers without a spot price are omitted."""
    spot = []
    for offer in offers:
        if offer.spot:
            spot.append(offer)
        elif offer.spot_usd_per_hour is not None:
            spot.append(replace(offer, usd_per_hour=offer.spot_usd_per_hour, spot_usd_per_hour=None, spot=True))
    return tuple(spot)


def with_spot_prices(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """Return offers at spot prices where available, otherwise at on-demand prices."""
    listed = tuple(offers)
    spot = at_spot_prices(listed)
    interruptible = {(offer.provider, offer.instance, offer.num_gpus) for offer in spot}
    others = (offer for offer in listed if (offer.provider, offer.instance, offer.num_gpus) not in interruptible)
    return (*spot, *others)


def own_machine_offer(
    gpu: str,
    *,
    usd_per_hour: float | None = None,
    watts: float | None = None,
    usd_per_kwh: float | None = None,
    num_gpus: int = 1,
    name: str = OWN_MACHINE,
    date: str | None = None,
) -> Offer:
    """Return an offer for the user's own machine, at a given price or at the price of its electricity.

    Args:
        gpu: Any name of the machine's GPU.
        usd_per_hour: Price of the whole machine.
        watts: Power of the whole machine in training. Use with `usd_per_kwh`, instead of `usd_per_hour`.
        usd_per_kwh: Price of electricity.
        num_gpus: Number of GPUs of the machine.
        name: Name of the machine in tables.
        date: ISO day of the price; None for today.

    Raises:
        UnknownGpuError: The catalogue does not have the GPU.
        InvalidArgumentError: Not exactly one of `usd_per_hour` and `watts` is given, or a number is not above 0.
    """
    if (usd_per_hour is None) == (watts is None) or (watts is None) != (usd_per_kwh is None):
        raise InvalidArgumentError(
            f"usd_per_hour={usd_per_hour}, watts={watts}, usd_per_kwh={usd_per_kwh}: give either usd_per_hour, "
            "or watts and usd_per_kwh together."
        )
    given = {"usd_per_hour": usd_per_hour, "watts": watts, "usd_per_kwh": usd_per_kwh, "num_gpus": num_gpus}
    for word, value in given.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InvalidArgumentError(f"{word}={value!r} must be a finite number above 0.")
    electricity = "" if watts is None else f"{watts:g} W at ${usd_per_kwh:g}/kWh"
    return Offer(
        provider=USER,
        instance=f"{name}, {electricity}" if electricity else name,
        gpu=find_gpu(gpu).name,
        num_gpus=num_gpus,
        usd_per_hour=usd_per_hour if usd_per_hour is not None else watts_to_kilowatts(watts or 0) * (usd_per_kwh or 0),
        date=calendar_date.today().isoformat() if date is None else date,
        source=electricity or "user",
    )
