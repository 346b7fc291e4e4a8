"""Fetch the current prices of all providers, and store them for later predictions.

If `gpuhunt` is installed (extra `prices`), its catalogues come first. SkyPilot's catalogues supply the other providers,
or all providers if `gpuhunt` is not installed. For each provider, GPU and GPU count, we keep the cheapest on-demand and
spot machines. We also keep machines with a known network. A provider that cannot be fetched keeps its earlier prices,
with their date. Example::

    refreshed = refresh_prices()     # needs the network; later predictions do not
    refreshed.path                   # .../lightning-predict/prices/current.json
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, final

from lightning_predict.base.errors import CatalogueError, UnknownGpuError
from lightning_predict.base.files import write_atomically
from lightning_predict.base.timeout import run_with_timeout
from lightning_predict.base.units import bytes_to_gibibytes
from lightning_predict.cost.offers import KINDS, Offer, current_prices_file, load_offers, today
from lightning_predict.cost.price_files import form_of, read_sky_offers
from lightning_predict.cost.price_update import MAX_PRICE_BYTES
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.layouts import find_machine
from lightning_predict.weights.fetch import Download
from lightning_predict.weights.source import Address, address_of

URL_VARIABLE: Final = "LIGHTNING_PREDICT_PRICES_URL"
"""Environment variable with the address of a mirror of SkyPilot's catalogues: a folder of `PROVIDER/vms.csv`."""

SKY_URL: Final = "https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/master/catalogs/v8"
SKY_PROVIDERS: Final = (
    "aws azure cudo do fluidstack gcp hyperbolic hyperstack jarvislabs lambda mithril nebius oci paperspace "
    "primeintellect runpod seeweb shadeform spheron vast verda yotta"
).split()
"""Folders of SkyPilot's catalogues that contain rental prices."""

GPUHUNT: Final = "gpuhunt"
GPUHUNT_URL: Final = "https://github.com/dstackai/gpuhunt"

SPELLINGS: Final[Mapping[str, str]] = {
    "cudo": "Cudo Compute",
    "do": "DigitalOcean",
    "lambdalabs": "Lambda",
    "oci": "Oracle Cloud",
    "vast": "Vast.ai",
    "vastai": "Vast.ai",
}
"""Providers whose name in the catalogues differs from the package's price lists."""

REFRESH_SECONDS: Final = 180.0
"""Time limit in seconds for gpuhunt, and for each SkyPilot catalogue. The largest catalogue has about 10 MB."""

PARALLEL_DOWNLOADS: Final = 8

MEMORY_TOLERANCE: Final = 0.125
"""Memory sizes within this relative difference count as equal, because providers round and mix GB and GiB."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshedPrices:
    """Fetched prices, and the file that stores them.

    Attributes:
        path: File that later predictions read.
        offers: Offers in the file at `path`. Providers that could not be fetched keep their earlier offers.
        sources: Names of the sources that answered.
        notes: Messages about omitted providers and machines.
    """

    path: Path
    offers: tuple[Offer, ...]
    sources: tuple[str, ...]
    notes: tuple[str, ...]


def refresh_prices() -> RefreshedPrices:
    """Fetch the current prices of all providers, and store them for later predictions.

    Raises:
        CatalogueError: No provider could be fetched. Stored prices are unchanged.
        InvalidArgumentError: The address in `LIGHTNING_PREDICT_PRICES_URL` is invalid.
    """
    notes: list[str] = []
    hunted = _gpuhunt_offers(notes)
    sky = _sky_offers({offer.provider for offer in hunted}, notes)
    if not hunted and not sky:
        raise CatalogueError(
            f"No current prices were fetched, and nothing was changed. {' '.join(notes)} Check the connection, or "
            f"import a catalogue that you downloaded: lightning-predict offers --update FILE."
        )
    path = current_prices_file()
    fetched = {offer.provider for offer in (*hunted, *sky)}
    earlier = load_offers(path) if path.is_file() else ()
    offers = (*_chosen((*hunted, *sky)), *(offer for offer in earlier if offer.provider not in fetched))
    write_prices(path, offers)
    sources = [name for name, found in ((GPUHUNT, hunted), ("SkyPilot's catalogue", sky)) if found]
    return RefreshedPrices(path=path, offers=load_offers(path), sources=tuple(sources), notes=tuple(notes))


def _sky_offers(known: set[str], notes: list[str]) -> list[Offer]:
    """Download SkyPilot's catalogues for the providers that `gpuhunt` did not supply (those not in `known`)."""
    address = address_of(os.environ.get(URL_VARIABLE) or SKY_URL, what="Price address", expected="a folder")
    names = [name for name in SKY_PROVIDERS if _spelled(name) not in known]
    with ThreadPoolExecutor(PARALLEL_DOWNLOADS) as threads, tempfile.TemporaryDirectory() as place:
        found = list(threads.map(lambda name: _sky_provider(name, address, Path(place)), names))
    offers, failed = [], dict[str, list[str]]()
    for name, result in zip(names, found, strict=True):
        if isinstance(result, str):
            failed.setdefault(result, []).append(name)
        else:
            offers += [replace(offer, provider=_spelled(name), source=SKY_URL) for offer in result]
    notes += [f"Not fetched: {', '.join(group)} ({reason})." for reason, group in failed.items()]
    return offers


def _sky_provider(name: str, address: Address, place: Path) -> tuple[Offer, ...] | str:
    """Download and read the catalogue of one provider; return a string with the reason on failure."""
    folder = Address(address.parts._replace(path=f"{address.parts.path}/{name}"))
    download = Download(folder, seconds=REFRESH_SECONDS, error=CatalogueError, remedy="")
    path = place / f"{name}.csv"
    try:
        path.write_bytes(download.content("vms.csv", MAX_PRICE_BYTES))
        return read_sky_offers(path, date=today().isoformat()).offers
    except CatalogueError as error:
        return str(error).strip().rstrip(".").partition(": ")[2] or str(error)


def _gpuhunt_offers(notes: list[str]) -> list[Offer]:
    """Return gpuhunt's offers; on failure, or if gpuhunt is not installed, return no offers and add a note."""
    if find_spec(GPUHUNT) is None:
        notes.append("gpuhunt is not installed; SkyPilot's catalogue is used alone. More: pip install gpuhunt.")
        return []
    try:
        items = run_with_timeout(REFRESH_SECONDS, _gpuhunt_items)
    except Exception as error:  # providers in gpuhunt raise many types
        notes.append(f"gpuhunt failed ({type(error).__name__}); SkyPilot's catalogue is used alone.")
        return []
    return list(_from_gpuhunt(items, today().isoformat()))


def _gpuhunt_items() -> Sequence[Any]:
    """Download gpuhunt's catalogues, without providers that need an account."""
    import gpuhunt

    logger = logging.getLogger(GPUHUNT)
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # gpuhunt logs a missing provider as an error; here, a note says so
    try:
        catalog = gpuhunt.Catalog(auto_reload=False)
        catalog.load()
        items: Sequence[Any] = catalog.query(min_gpu_count=1)
    finally:
        logger.setLevel(level)
    return items


def _from_gpuhunt(items: Iterable[Any], date: str) -> Iterator[Offer]:
    """Convert gpuhunt's items to offers. gpuhunt has separate items for on-demand and spot prices."""
    spot: dict[tuple[str, str, str], float] = {}
    for item in items:
        if item.spot:
            key = (item.provider, item.instance_name, item.location)
            spot[key] = min(item.price, spot.get(key, item.price))
    for item in items:
        name = None if item.spot else _gpu_of(item.gpu_name, item.gpu_memory, item.instance_name)
        if name is None or item.price <= 0:
            continue
        yield Offer(
            provider=_spelled(item.provider),
            instance=item.instance_name,
            gpu=name,
            num_gpus=item.gpu_count,
            usd_per_hour=item.price,
            spot_usd_per_hour=spot.get((item.provider, item.instance_name, item.location)),
            region=item.location or None,
            date=date,
            source=GPUHUNT_URL,
        )


def _gpu_of(name: str | None, gibibytes: float | None, instance: str) -> str | None:
    """Return the catalogue name of a GPU with this name and memory size; None for an unknown GPU."""
    if name is None:
        return None
    for text in ([] if gibibytes is None else [f"{name}-{gibibytes:g}GB"]) + [name]:
        try:
            found = find_gpu(text)
        except UnknownGpuError:
            continue
        size = bytes_to_gibibytes(found.memory_bytes)
        if gibibytes is None or abs(gibibytes / size - 1) <= MEMORY_TOLERANCE:
            return form_of(found.name, instance)
    return None


def _spelled(provider: str) -> str:
    """Return a provider's name as spelled in the package's price lists."""
    names = itertools.chain((offer.provider for offer in load_offers()), *KINDS.values())
    known = {name.casefold(): name for name in names}
    return SPELLINGS.get(provider.casefold()) or known.get(provider.casefold()) or provider.capitalize()


def _chosen(offers: Iterable[Offer]) -> list[Offer]:
    """Return the cheapest machines, and machines with a known network.

    A machine is the cheapest on demand, or on spot, of its provider, GPU and GPU count.
    """
    groups: dict[tuple[str, str, int], list[Offer]] = {}
    for offer in offers:
        groups.setdefault((offer.provider, offer.gpu, offer.num_gpus), []).append(_without_odd_spot(offer))
    chosen: dict[tuple[object, ...], Offer] = {}
    for group in groups.values():
        cheapest = min(group, key=lambda one: one.usd_per_hour)
        on_spot = min((one for one in group if one.spot_usd_per_hour), key=_spot_price, default=cheapest)
        machines = [one for one in sorted(group, key=lambda one: -one.usd_per_hour) if find_machine(one.instance)]
        known = {one.instance: one for one in machines}.values()  # the cheapest region of each machine
        for one in (cheapest, on_spot, *known):
            chosen.setdefault((one.provider, one.instance, one.gpu, one.num_gpus, one.region), one)
    return list(chosen.values())


def _without_odd_spot(offer: Offer) -> Offer:
    """Remove a spot price that exceeds the on-demand price."""
    spot = offer.spot_usd_per_hour
    return replace(offer, spot_usd_per_hour=None) if spot is not None and spot > offer.usd_per_hour else offer


def _spot_price(offer: Offer) -> float:
    return offer.usd_per_hour if offer.spot_usd_per_hour is None else offer.spot_usd_per_hour


def write_prices(path: Path, offers: Iterable[Offer]) -> None:
    """Write offers to a JSON file that `load_offers` reads. The offers must have on-demand prices."""

    def heading(offer: Offer) -> tuple[str, str, str, str]:
        return offer.provider, offer.date, offer.source, offer.region or ""

    lists = []
    for (provider, date, source, region), group in itertools.groupby(sorted(offers, key=heading), heading):
        place = {"region": region} if region else {}
        rows = [_row(offer) for offer in group]
        lists.append({"provider": provider, "date": date, "source": source, **place, "offers": rows})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"price_list": lists}, indent=1).encode() + b"\n")


def _row(offer: Offer) -> dict[str, object]:
    row = {name: getattr(offer, name) for name in ("instance", "gpu", "num_gpus", "usd_per_hour")}
    spot = offer.spot_usd_per_hour
    return row if spot is None else row | {"spot_usd_per_hour": spot}
