"""What an hour of this run costs: the user's price, an offer that the user names, or the offers of the GPU in use.

Example::

    price = price_of_run(usd_per_hour=None, offer=None, gpu="T4", world_size=2, num_nodes=1)
    price.usd_per_hour, price.warning   # the highest of the T4's offers, twice; "... name one with offer=..."
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import final

import torch

from lightning_predict.cost.offers import Offer, load_offers, offers_for
from lightning_predict.errors import UnknownGpuError, UnknownOfferError
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.reports.format import usd_per_hour as price_in_words


@final
@dataclass(frozen=True, slots=True)
class RunPrice:
    """A price, and what the user should know about it.

    Attributes:
        usd_per_hour: Of all machines of the run; None if no price is known.
        warning: What is doubtful about it; None if nothing is.
        source: Where it comes from, with its date; None if there is none, or the warning says it.
    """

    usd_per_hour: float | None
    warning: str | None = None
    source: str | None = None


def named_offer(name: str, offers: Sequence[Offer] | None = None) -> Offer:
    """The newest listed offer with this name: the provider's name of the machine, alone or after the provider's own.

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
    """Our name of the GPU that this is; None off CUDA, and for one that the catalogue does not hold.

    Args:
        device: The device that trains.
    """
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
