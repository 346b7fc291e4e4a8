"""The user's own prices: a file of offers (see `offers.read_offers`).

The user's prices take precedence. GPUs without a user's price keep the prices of the package. Example::

    own = read_offers("our-prices.yaml")
    result = lp.predict(trace, gpus=["T4", "L4"], iterations=1000, offers=with_listed(own))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lightning_predict.cost.offers import Offer, cheapest_offer, load_offers


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
