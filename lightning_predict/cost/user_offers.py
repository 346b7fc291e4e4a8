"""The user's own prices: a YAML file, a SkyPilot catalogue, or a machine that is already paid for.

Own prices come first; GPUs that they do not name keep the prices that ship with the package. Example::

    own = read_offers("our-prices.yaml")
    result = lp.predict(trace, gpus=["T4", "L4"], iterations=1000, offers=with_listed(own))

    >>> round(own_machine_offer("RTX-4090", watts=600, usd_per_kwh=0.30).usd_per_hour, 3)  # 0.6 kW x $0.30
    0.18
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date as calendar_date
from pathlib import Path
from typing import Final

from lightning_predict.cost.offers import cheapest_offer, load_offers
from lightning_predict.cost.records import Offer
from lightning_predict.cost.user_offers_rows import OfferFile
from lightning_predict.errors import CatalogueError, InvalidArgumentError
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.units import watts_to_kilowatts

YAML_SUFFIXES: Final = (".yaml", ".yml")
CSV_SUFFIX: Final = ".csv"
OWN_MACHINE: Final = "own machine"


def read_offers(
    path: str | os.PathLike[str], *, region: str | None = None, date: str | None = None
) -> tuple[Offer, ...]:
    """The offers of a price file; `read_offer_file` also says what was left out of them.

    Args:
        path: A YAML file (`user_offers_yaml` has an example) or a SkyPilot catalogue as CSV.
        region: Take offers of this region only.
        date: ISO day of a CSV's prices; the day of its last change where None.

    Raises:
        CatalogueError: The file is missing, malformed or breaks a rule; with line and column.
        UnknownGpuError: A YAML file names a GPU that the catalogue does not hold; with the nearest names.
    """
    return read_offer_file(path, region=region, date=date).offers


def read_offer_file(path: str | os.PathLike[str], *, region: str | None = None, date: str | None = None) -> OfferFile:
    """The offers of a price file, and what was left out of them; arguments and errors as for `read_offers`."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise CatalogueError(f"{os.fspath(path)} does not exist; give a YAML file of offers or a SkyPilot CSV.")
    if file.suffix.lower() in YAML_SUFFIXES:
        from lightning_predict.cost.user_offers_yaml import read_yaml_offers

        if date is not None:
            raise InvalidArgumentError(f"date={date!r} is for CSV files; each offer of {file.name} has its own date.")
        found = read_yaml_offers(file)
        return replace(found, offers=_in_region(found.offers, region, file))
    if file.suffix.lower() == CSV_SUFFIX:
        from lightning_predict.cost.user_offers_sky import read_sky_offers

        return read_sky_offers(file, region=region, date=date)
    raise CatalogueError(
        f"{file.name} is neither YAML ({', '.join(YAML_SUFFIXES)}) nor a SkyPilot catalogue ({CSV_SUFFIX}); "
        "rename it to what it is."
    )


def with_listed(own: Sequence[Offer]) -> tuple[Offer, ...]:
    """The user's own offers, and the shipped ones of every GPU that these do not price."""
    priced = {offer.gpu for offer in own}
    return (*own, *(offer for offer in load_offers() if offer.gpu not in priced))


def outdated(own: Sequence[Offer]) -> tuple[str, ...]:
    """Notes on own prices that are too old to be compared with the shipped ones, so that no cost comes from them."""
    table = with_listed(own)
    names = dict.fromkeys(offer.gpu for offer in own)
    return tuple(
        f"{name}: the newest of your prices is of {max(offer.date for offer in own if offer.gpu == name)}, too old to "
        "be compared with the others; its cost is not known. Give a current price."
        for name in names
        if cheapest_offer(name, table) is None
    )


def at_spot_prices(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """Offers at the price of interruptible machines; those without one are left out."""
    spot = []
    for offer in offers:
        if offer.spot:
            spot.append(offer)
        elif offer.spot_usd_per_hour is not None:
            spot.append(replace(offer, usd_per_hour=offer.spot_usd_per_hour, spot_usd_per_hour=None, spot=True))
    return tuple(spot)


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
    """What an hour of a machine of your own costs: a price that you set, or its electricity.

    Args:
        gpu: Any name of its GPU.
        usd_per_hour: Your price of the whole machine.
        watts: What the whole machine draws while it trains; with `usd_per_kwh`, instead of `usd_per_hour`.
        usd_per_kwh: Your price of electricity.
        num_gpus: GPUs of the machine.
        name: What to call it in tables.
        date: ISO day of the price; today where None.

    Raises:
        UnknownGpuError: The catalogue does not hold the GPU.
        InvalidArgumentError: Neither or both ways to a price are given, or a number is not above 0.
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
        provider="user",
        instance=f"{name}, {electricity}" if electricity else name,
        gpu=find_gpu(gpu).name,
        num_gpus=num_gpus,
        usd_per_hour=usd_per_hour if usd_per_hour is not None else watts_to_kilowatts(watts or 0) * (usd_per_kwh or 0),
        date=calendar_date.today().isoformat() if date is None else date,
        source=electricity or "user",
    )


def _in_region(offers: tuple[Offer, ...], region: str | None, file: Path) -> tuple[Offer, ...]:
    if region is None:
        return offers
    chosen = tuple(offer for offer in offers if offer.region in (region, None))
    if not chosen:
        from lightning_predict.cost.user_offers_rows import nearest

        regions = [offer.region for offer in offers if offer.region is not None]
        raise CatalogueError(f"{file.name} has no offer in region {region!r}. {nearest(region, regions)}")
    return chosen
