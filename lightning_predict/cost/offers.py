"""Rental prices of GPUs, with dates and sources, and the cheapest current offer of a GPU.

`offers.toml` holds price lists: the provider, the date and source of the prices, and a row for each machine. Your own
files have the same keys (`read_offers`). A newer
price of a machine replaces an older price. A fresh price of a GPU takes precedence over older prices of the same GPU. A
price that is more than two years older than the newest price is never used. Example::

    >>> offer = cheapest_offer("T4")
    >>> offer.usd_per_gpu_hour < 1
    True
    >>> cheapest_offer("M60") is None  # the only prices are from 2019
    True
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date as calendar_date
from datetime import datetime, timezone
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Final

from lightning_predict.base.checked import (
    DAY,
    MONTH,
    Checked,
    File,
    nearest,
    read_csv,
    read_json,
    read_toml,
    read_yaml,
    shown,
)
from lightning_predict.base.errors import CatalogueError, InvalidArgumentError, UnknownGpuError
from lightning_predict.base.files import user_folder
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.layouts import is_same_machine

OFFERS_FILE: Final = Path(__file__).with_name("offers.toml")
RELEASE_FILE: Final = Path(__file__).with_name("current.json")  # Prices of a release (`make prices`); optional

PRICES_VARIABLE: Final = "LIGHTNING_PREDICT_PRICES"
"""Environment variable with the path of fetched prices. If the file does not exist, the package's prices are used."""

USER: Final = "user"  # Provider name of the user's own prices and machines
OWN_PRICE_MACHINE: Final = "own price"  # Machine name of a user's price that names no machine; its date is today
CURRENT_YEARS: Final = 2  # An offer is current if it is at most this number of years older than the newest offer
FRESH_DAYS: Final = 60  # Maximum age of a fresh on-demand price, in days; a rounded figure
FRESH_SPOT_DAYS: Final = 14  # Maximum age of a fresh spot price, in days; a rounded figure
OLD_DAYS: Final = 180  # Age in days above which a price counts as old; a rounded figure

KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "marketplace": ("Akash", "OpenRelay", "RunPod Community", "Vast.ai", "TensorDock", "Shadeform", "Salad"),
    "specialised": (
        "Civo",
        "CoreWeave",
        "Crusoe",
        "Cudo Compute",
        "DataCrunch",
        "DigitalOcean",
        "Exoscale",
        "FluidStack",
        "Hyperstack",
        "Jarvislabs",
        "Lambda",
        "Nebius",
        "Oblivus Cloud",
        "OVHcloud",
        "Paperspace",
        "RunPod",
        "Together AI",
        "Verda",
        "Vultr",
    ),
    "hyperscaler": ("AWS", "Azure", "GCP", "Oracle Cloud"),
}
"""Providers by kind. Marketplaces rent out machines of third parties. Specialised clouds offer mainly GPUs."""

COMMON_KEYS: Final = ("provider", "date", "source", "region", "max_gpus", "currency")
"""Keys that a list may have for all of its offers, so that the offers need not repeat them."""

OWN_KEYS: Final = ("instance", "gpu", "num_gpus", "usd_per_hour", "spot_usd_per_hour", "spot", "in_stock")

CURRENCY: Final = "USD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A machine for rent, with its price."""

    provider: str  # Name of the provider; `user` for the user's own price
    instance: str  # The provider's name for the machine
    gpu: str  # Catalogue name of the machine's GPU
    num_gpus: int  # Number of GPUs that `usd_per_hour` pays for
    usd_per_hour: float  # Price of all `num_gpus` GPUs: on demand, or on spot if `spot` is true
    date: str  # ISO date (or month) of the price
    source: str
    spot_usd_per_hour: float | None = None  # Spot price of all `num_gpus` GPUs; None if not offered or unknown
    spot: bool = False  # Whether `usd_per_hour` is a spot price
    region: str | None = None  # Region of the price; None if it applies everywhere, or the source names no region
    # Maximum number of GPUs that can be rented in one machine, at the same price per GPU; None if the machine is rented
    # as a whole
    max_gpus: int | None = None
    in_stock: bool | None = None  # Whether the machine was available when the price was read; None if not listed

    def with_gpus(self, num_gpus: int) -> Offer | None:
        """Return the offer with at least `num_gpus` GPUs in one machine; None if the provider rents no such machine."""
        if num_gpus <= self.num_gpus:
            return self
        if self.max_gpus is None or num_gpus > self.max_gpus:
            return None
        factor = num_gpus / self.num_gpus
        spot = None if self.spot_usd_per_hour is None else self.spot_usd_per_hour * factor
        return replace(
            self,
            instance=f"{num_gpus}x {self.instance.removeprefix(f'{self.num_gpus}x ')}",
            num_gpus=num_gpus,
            usd_per_hour=self.usd_per_hour * factor,
            spot_usd_per_hour=spot,
            in_stock=None if self.in_stock else self.in_stock,  # one available GPU does not imply several
        )

    @property
    def usd_per_gpu_hour(self) -> float:
        """Price of one GPU per hour."""
        return self.usd_per_hour / self.num_gpus

    @property
    def fresh_days(self) -> int:
        """Age in days up to which this price is fresh."""
        return FRESH_SPOT_DAYS if self.spot else FRESH_DAYS

    @property
    def label(self) -> str:
        """Provider, instance, date and availability: printed with every cost."""
        if self.provider == USER:
            return (
                f"your {self.instance}" if self.instance == OWN_PRICE_MACHINE else f"your {self.instance} ({self.date})"
            )
        kind = " spot" if self.spot else ""
        stock = "" if self.in_stock is None else f", {self.stock}"
        return f"{self.provider} {self.instance}{kind} ({self.date}{stock})".replace("  ", " ")

    @property
    def stock(self) -> str:
        """`in stock` or `sold out` on the date of the price; empty if unknown."""
        return {None: "", True: "in stock", False: "sold out"}[self.in_stock]


def load_offers() -> tuple[Offer, ...]:
    """Return the offers that ship with the package, and those that `lightning-predict offers --refresh` fetched."""
    current = current_prices_file()
    changed = current.stat().st_mtime_ns if current.is_file() else 0
    return _shipped_offers() + (_fetched_offers(current, changed) if changed else ())


def current_prices_file() -> Path:
    """Return the path of fetched prices: `LIGHTNING_PREDICT_PRICES`, otherwise a file in the platform's data folder."""
    named = os.environ.get(PRICES_VARIABLE)
    return Path(named) if named else user_folder("data") / "prices" / "current.json"


def offers_for(gpu_name: str, offers: Iterable[Offer] | None = None) -> tuple[Offer, ...]:
    """Return the offers of one GPU, cheapest per GPU first, with only the newest price of each machine.

    Args:
        gpu_name: Catalogue name of the GPU.
        offers: Offers to choose from; None uses the offers of the package.
    """
    listed = [offer for offer in (load_offers() if offers is None else offers) if offer.gpu == gpu_name]
    newest = [offer for offer in listed if not any(_replaces(other, offer) for other in listed)]
    return tuple(sorted(newest, key=lambda offer: offer.usd_per_gpu_hour))


def cheapest_offer(gpu_name: str, offers: Sequence[Offer] | None = None, *, num_gpus: int = 1) -> Offer | None:
    """Return the current machine with the lowest price per hour; None if there is no current offer.

    The price of the whole machine counts, because a run on one GPU pays for all of its GPUs. A sold-out machine is
    chosen only if no other machine is available. Fresh prices take precedence: an on-demand price is fresh for 60 days,
    a spot price for 14 days after the newest such price of the GPU.

    Args:
        gpu_name: Catalogue name of the GPU.
        offers: Offers to choose from; None uses the offers of the package. An offer is current if it is at most
            `CURRENT_YEARS` older than the newest offer, whatever its GPU.
        num_gpus: Minimum number of GPUs of the machine.
    """
    table = load_offers() if offers is None else tuple(offers)
    candidates = offers_for(gpu_name, table)
    if not candidates:
        return None
    date = max(offer.date for offer in table)  # ISO dates are in order as texts, even if some lack the day
    oldest_current = f"{int(date[:4]) - CURRENT_YEARS:04d}{date[4:]}"
    resized = (offer.with_gpus(num_gpus) for offer in candidates if offer.date >= oldest_current)
    current = [offer for offer in resized if offer is not None]
    newest: dict[bool, calendar_date] = {}
    for offer in current:
        newest[offer.spot] = max(newest.get(offer.spot, calendar_date.min), day_of(offer.date))

    def preference(offer: Offer) -> tuple[bool, bool, float, int]:
        age = (newest[offer.spot] - day_of(offer.date)).days
        return offer.in_stock is False, age > offer.fresh_days, offer.usd_per_hour, offer.num_gpus

    return min(current, key=preference, default=None)


def today() -> calendar_date:
    """Return the current day, or the day of the environment variable SOURCE_DATE_EPOCH, for reproducible documents."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    return datetime.fromtimestamp(int(epoch), timezone.utc).date() if epoch.isdecimal() else calendar_date.today()


def day_of(listed: str) -> calendar_date:
    """Parse the date of a price; the 28th is assumed for a month without a day."""
    return calendar_date.fromisoformat(listed if listed.count("-") == 2 else f"{listed}-28")


def kind_of_provider(provider: str) -> str | None:
    """Return the kind of a provider: `marketplace`, `specialised` or `hyperscaler`; None if unknown."""
    name = _plain(provider)
    return next((kind for kind, names in KINDS.items() if name in map(_plain, names)), None)


def from_providers(names: str | Iterable[str], offers: Sequence[Offer] | None = None) -> tuple[Offer, ...]:
    """Return the offers of the named providers, or of the named kinds of providers.

    Args:
        names: Names such as `RunPod` or `AWS`, or kinds (`marketplace`, `specialised`, `hyperscaler`).
        offers: Offers to choose from; None uses the offers of the package.
    """
    table = load_offers() if offers is None else offers
    asked = {_plain(name): name for name in ([names] if isinstance(names, str) else names)}
    known = {_plain(offer.provider) for offer in table} | {*KINDS}
    for name, word in asked.items():
        if name not in known:
            listed = ", ".join((*KINDS, *sorted({offer.provider for offer in table})))
            raise InvalidArgumentError(f"providers={word!r} has no offer here; expected some of {listed}.")
    return tuple(one for one in table if _plain(one.provider) in asked or kind_of_provider(one.provider) in asked)


def _plain(provider: str) -> str:
    return provider.casefold().replace(" ", "").replace(".", "")


def _replaces(newer: Offer, older: Offer) -> bool:
    """Return whether `newer` is a later price of the same machine, and of the same region if both name a region."""
    same_machine = (newer.provider, newer.instance, newer.num_gpus) == (older.provider, older.instance, older.num_gpus)
    same_region = newer.region == older.region or None in (newer.region, older.region)
    return same_machine and same_region and newer.date > older.date


def machine_offer(machine: str, gpu_name: str, offers: Iterable[Offer] | None = None) -> Offer | None:
    """Return the newest offer of a machine; None if the machine is not listed.

    Args:
        machine: The cloud's name of the machine, for example `p4d.24xlarge`.
        gpu_name: Catalogue name of the machine's GPU.
        offers: Offers to choose from; None uses the offers of the package.
    """
    listed = (offer for offer in offers_for(gpu_name, offers) if is_same_machine(offer.instance, machine))
    return max(listed, key=lambda offer: offer.date, default=None)


@cache
def _shipped_offers() -> tuple[Offer, ...]:
    """Load the prices that ship with the package: `offers.toml`, and prices fetched for the release."""
    return read_offers(OFFERS_FILE) + (read_offers(RELEASE_FILE) if RELEASE_FILE.is_file() else ())


@lru_cache(maxsize=1)
def _fetched_offers(path: Path, _changed: int) -> tuple[Offer, ...]:
    """Load fetched prices; the cache is valid until the file changes."""
    return read_offers(path)


def read_offers(path: str | os.PathLike[str], *, region: str | None = None) -> tuple[Offer, ...]:
    """Read the offers of a file, in order.

    YAML, TOML and JSON files have a list of offers under `offers`, or several such lists under `price_list`; a YAML
    file may be the list itself. Values that all offers of a list share may be given once, beside `offers`. A CSV file
    has a column for each key. `docs/howto/prices.md` has the keys of an offer.

    Args:
        path: The file.
        region: Region whose offers are used, and offers without a region; None for all regions.
    """
    file = Path(path).expanduser()
    suffix = file.suffix.lower()
    if suffix not in _READERS:
        raise CatalogueError(
            f"{file.name} has another ending than {', '.join(_READERS)}; give it the ending of its format."
        )
    if not file.is_file():
        raise CatalogueError(f"{os.fspath(path)} does not exist; give a file of offers ({', '.join(_READERS)}).")
    offers: dict[tuple[object, ...], Offer] = {}
    for row, common in _rows(_READERS[suffix](file)):
        offer = _offer(row, common, file.name)
        key = (offer.provider, offer.instance, offer.gpu, offer.num_gpus, offer.region, offer.date, offer.spot)
        if key in offers:
            raise row.error("is listed twice for one date; remove one of the two.")
        offers[key] = offer
    chosen = tuple(offer for offer in offers.values() if region is None or offer.region in (region, None))
    if not chosen:
        regions = [offer.region for offer in offers.values() if offer.region is not None]
        raise CatalogueError(f"{file.name} has no offer in region {region!r}. {nearest(str(region), regions)}")
    return chosen


def _read_csv_offers(path: Path) -> Checked:
    """Read the rows of a CSV file. An empty cell is a missing value."""
    rows = list(read_csv(path, CatalogueError, name=path.name))
    filled = [{name: cell for name, cell in row.value.items() if cell.strip()} for row in rows]
    return Checked(filled, File(path.name, CatalogueError))


_READERS: Final[Mapping[str, Callable[[Path], Checked]]] = {
    ".yaml": partial(read_yaml, error=CatalogueError),
    ".yml": partial(read_yaml, error=CatalogueError),
    ".toml": partial(read_toml, error=CatalogueError),
    ".json": partial(read_json, error=CatalogueError),
    ".csv": _read_csv_offers,
}


def _rows(document: Checked) -> Iterator[tuple[Checked, Checked]]:
    """Yield each offer of a document, with the list that has the common values."""
    is_mapping = isinstance(document.value, dict)
    if is_mapping and document.has("price_list"):
        document.check_keys({"price_list"})
        lists = _items(document.member("price_list"), "provider", "date")
    else:
        lists = [document if is_mapping else replace(document, value={"offers": document.value})]
    for price_list in lists:
        price_list.check_keys({"offers"}, COMMON_KEYS)
        for row in _items(price_list.member("offers"), "instance"):
            yield row, price_list


def _items(value: Checked, *named: str) -> list[Checked]:
    if not isinstance(value.value, list) or not value.value:
        raise value.unexpected("a list that is not empty, of offers with provider, instance, gpu, usd_per_hour, date")
    return value.items(named=named)


def _offer(row: Checked, common: Checked, file_name: str) -> Offer:
    row.check_keys((), (*OWN_KEYS, *COMMON_KEYS))

    def given(name: str) -> Checked:
        return row if row.has(name) or not common.has(name) else common

    given("currency").optional("currency", _check_currency, None)
    price, num_gpus = _price(row.member("usd_per_hour")), row.optional("num_gpus", _count, 1)
    spot = row.optional("spot_usd_per_hour", _price, None)
    if spot is not None and spot > price:
        raise row.member("spot_usd_per_hour").error(f"is {spot:g}, above the on-demand price; were the two exchanged?")
    return Offer(
        provider=_text(given("provider").member("provider")),
        instance=_text(row.member("instance")),
        gpu=_gpu_name(row.member("gpu")),
        num_gpus=num_gpus,
        max_gpus=given("max_gpus").optional("max_gpus", _count, None),
        usd_per_hour=price,
        spot_usd_per_hour=spot,
        spot=row.optional("spot", _flag, False),
        region=given("region").optional("region", _text, None),
        in_stock=row.optional("in_stock", _flag, None),
        date=_day(given("date").member("date", expected="the day or month that the price holds for")),
        source=given("source").optional("source", _text, file_name),
    )


def _price(value: Checked) -> float:
    return value.parsed().positive("in US dollars per hour of the whole machine")


def _count(value: Checked) -> int:
    return value.parsed().integer(minimum=1)


def _flag(value: Checked) -> bool:
    written = {"true": True, "false": False}
    return written[str(value.value).lower()] if str(value.value).lower() in written else value.flag()


def _text(value: Checked) -> str:
    """Return a value that may be a string or a number as a non-blank string."""
    if isinstance(value.value, int | float) and not isinstance(value.value, bool):
        return str(value.value)
    return value.words().strip()


def _day(value: Checked) -> str:
    """Return a day or month as a string. YAML parses days as dates."""
    day = replace(value, value=str(value.value)) if isinstance(value.value, calendar_date | int) else value
    return day.matching("the day or month that the price holds for, like 2026-11 or 2026-11-21", MONTH, DAY)


def _gpu_name(value: Checked) -> str:
    """Return the catalogue name of a GPU; raise `UnknownGpuError` with the nearest names."""
    try:
        return find_gpu(_text(value)).name
    except UnknownGpuError as error:
        raise replace(value, file=replace(value.file, error=UnknownGpuError)).error(f"is unknown: {error}") from None


def _check_currency(value: Checked) -> None:
    """Raise an error for prices in another currency than US dollars."""
    if value.words().strip().upper() != CURRENCY:
        raise value.error(
            f"is {shown(value.value)}; prices are compared in US dollars only. Convert them, and leave this key out."
        )
