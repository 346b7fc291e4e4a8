"""Groups of GPUs to predict: all GPUs with a current price, or only data-centre or consumer GPUs.

By default, every NVIDIA GPU with a current price is compared, and tables show only the best GPUs. Example::

    >>> from lightning_predict.testing import example_offer
    >>> offers = [example_offer("L4"), example_offer("RTX-4090"), example_offer("T4", date="2019-01-01")]
    >>> [layout.name for layout in layouts_to_predict("all", offers=offers)]  # the T4's price is too old
    ['L4', 'RTX-4090']
    >>> [layout.name for layout in layouts_to_predict("consumer", offers=offers)]
    ['RTX-4090']
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from lightning_predict.base.errors import InvalidArgumentError, UnknownGpuError
from lightning_predict.cost.offers import OLD_DAYS, Offer, day_of, load_offers
from lightning_predict.cost.prediction import UserPrice
from lightning_predict.hardware import Gpu, gpu, gpu_names
from lightning_predict.hardware.layouts import Layout, layouts_of
from lightning_predict.hardware.records import NVIDIA

ALL: Final = "all"

GROUPS: Final[Mapping[str, str]] = {ALL: "GPUs", "datacenter": "data-centre GPUs", "consumer": "consumer GPUs"}
"""Group names, with the name of the group in a sentence."""

_CONSUMER: Final = ("GTX-", "RTX-2", "RTX-3", "RTX-4", "RTX-5", "TITAN-")  # Name prefixes of GeForce and TITAN cards
_WORKSTATION: Final = ("-Ada",)  # Name suffixes of workstation cards with a prefix in `_CONSUMER`: RTX-4000-Ada.


class PricedGpus(tuple[Layout, ...]):
    """Layouts of a requested group: one for each GPU with a current price."""

    group: str


def is_consumer(card: Gpu) -> bool:
    """Return whether a GPU is a GeForce or TITAN card, which data centres do not offer."""
    return card.name.startswith(_CONSUMER) and not card.name.endswith(_WORKSTATION)


def layouts_to_predict(
    gpus: str | Sequence[str | Gpu | Layout],
    *,
    num_nodes: int = 1,
    offers: Sequence[Offer] | None = None,
    usd_per_hour: UserPrice = None,
) -> tuple[Layout, ...]:
    """Return the layouts of a group of GPUs, or of named GPUs.

    Args:
        gpus: A group (`all`, `datacenter` or `consumer`: NVIDIA GPUs with a current price), or a list of names as in
            `layouts_of`.
        num_nodes: Number of machines, for layouts whose name does not include it.
        offers: Offers to choose from; None uses the offers of the package.
        usd_per_hour: The user's own prices. A GPU with a user's price belongs to the group.

    Returns:
        The layouts; a `PricedGpus` for a group.
    """
    if isinstance(gpus, Sequence) and len(gpus) == 1 and isinstance(gpus[0], str) and gpus[0] in GROUPS:
        gpus = gpus[0]
    if not isinstance(gpus, str):
        try:
            return layouts_of(gpus, num_nodes=num_nodes)
        except UnknownGpuError:
            only = gpus[0] if len(gpus) == 1 else None
            if isinstance(only, str) and (near := get_close_matches(only, GROUPS)):
                raise UnknownGpuError(
                    f"{only!r} is neither a GPU nor a group of GPUs. Did you mean {near[0]!r}?"
                ) from None
            raise
    if gpus not in GROUPS:
        raise InvalidArgumentError(
            f"gpus={gpus!r} is no group of GPUs; expected {', '.join(GROUPS)}, or a list of names, for example "
            f"[{gpus!r}]."
        )
    priced = _with_current_price(load_offers() if offers is None else offers) | _with_own_price(usd_per_hour)
    cards = [gpu(name) for name in gpu_names() if name in priced]
    chosen = [card for card in cards if gpus == ALL or is_consumer(card) == (gpus == "consumer")]
    if not chosen:
        raise InvalidArgumentError(
            f"gpus={gpus!r}: no such GPU has a current price. Name GPUs, or give other offers or prices."
        )
    layouts = PricedGpus(Layout(card, 1, num_nodes) for card in chosen)
    layouts.group = gpus
    return layouts


def _with_current_price(offers: Sequence[Offer]) -> set[str]:
    """Return the names of NVIDIA GPUs with a price at most `OLD_DAYS` older than the newest price."""
    if not offers:
        return set()
    oldest = max(day_of(offer.date) for offer in offers) - datetime.timedelta(days=OLD_DAYS)
    return {offer.gpu for offer in offers if day_of(offer.date) >= oldest and gpu(offer.gpu).vendor == NVIDIA}


def _with_own_price(usd_per_hour: UserPrice) -> set[str]:
    names = set()
    for name in usd_per_hour if isinstance(usd_per_hour, Mapping) else ():
        try:
            names.add(gpu(name).name)
        except UnknownGpuError:
            continue  # a layout such as 8xL4
    return names
