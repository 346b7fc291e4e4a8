"""A Run at a price: the user's own price first, then the cheapest offer that is listed.

Example::

    quote = quote_of(run, layout_of("T4"), memory_bytes=3e9, usd_per_hour=0.50)
    quote.cost_usd  # hours x 0.50
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Final

from lightning_predict.cost.memory_fit import memory_fit, usable_bytes
from lightning_predict.cost.offers import cheapest_offer
from lightning_predict.cost.records import Offer, Quote
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus.layouts import Layout
from lightning_predict.scaling.records import Run
from lightning_predict.units import seconds_to_hours

UserPrice = float | Mapping[str, float] | None
"""Price of one GPU, the same for all or by our name of the GPU; by the name of a layout, the price of all of it. What
it does not name takes the listed offers."""

USER: Final = "user"


def check_price(usd_per_hour: UserPrice) -> None:
    """Refuse prices that are not positive numbers.

    Raises:
        InvalidArgumentError: A price that is zero, negative, infinite or not a number.
    """
    prices = usd_per_hour.values() if isinstance(usd_per_hour, Mapping) else [usd_per_hour]
    for price in prices:
        if price is not None and not (math.isfinite(price) and price > 0):
            raise InvalidArgumentError(f"usd_per_hour={price!r} is not a price; expected US dollars per hour above 0.")


def offer_for(layout: Layout, *, offers: Sequence[Offer] | None = None, usd_per_hour: UserPrice = None) -> Offer | None:
    """The price of one machine of a layout: the user's own, else the cheapest offer; None where there is none."""
    own = _own_price(layout, usd_per_hour)
    gpu = layout.gpu
    if own is not None:
        return Offer(
            provider=USER,
            instance="own price",
            gpu=gpu.name,
            num_gpus=layout.gpus_per_node,
            usd_per_hour=own / layout.nodes,
            date=date.today().isoformat(),
            source=USER,
        )
    return cheapest_offer(gpu.name, offers, num_gpus=layout.gpus_per_node)


def _own_price(layout: Layout, usd_per_hour: UserPrice) -> float | None:
    """Of the whole layout: as named for it, else that of one of its GPUs times their number."""
    if isinstance(usd_per_hour, Mapping):
        if layout.name in usd_per_hour:
            return usd_per_hour[layout.name]
        usd_per_hour = usd_per_hour.get(layout.gpu.name)
    return None if usd_per_hour is None else usd_per_hour * layout.count


def quote_of(
    run: Run,
    layout: Layout,
    *,
    memory_bytes: float | None,
    reported_bytes: float | None = None,
    offers: Sequence[Offer] | None = None,
    usd_per_hour: UserPrice = None,
) -> Quote:
    """The run's cost on a layout, and whether it fits.

    Args:
        run: What is still to come.
        layout: The GPUs it runs on.
        memory_bytes: Peak memory of a step on each of them; None where unknown.
        reported_bytes: Memory that the GPU itself reports; None where it is not at hand.
        offers: Offers to choose from; None takes those that ship with the package.
        usd_per_hour: The user's own price, which comes first.
    """
    offer = offer_for(layout, offers=offers, usd_per_hour=usd_per_hour)
    # Whole machines are paid, however many of their GPUs are used.
    price = None if offer is None else offer.usd_per_hour * layout.nodes
    known = price is not None and run.total_seconds is not None
    usable = usable_bytes(layout.gpu, reported_bytes)
    fit = memory_fit(memory_bytes, usable)
    return Quote(
        gpu=layout.name,
        usd_per_hour=price,
        offer=offer,
        cost_usd=seconds_to_hours(run.total_seconds or 0.0) * (price or 0.0) if known else None,
        memory_bytes=memory_bytes,
        fits=None if fit is None else fit != "exceeds",
        memory_fit=fit,
        memory_free_bytes=None if memory_bytes is None else usable - memory_bytes,
    )
