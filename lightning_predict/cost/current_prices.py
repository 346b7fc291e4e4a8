"""Fetch the current prices of all providers with gpuhunt, and store them for later predictions.

For each provider, GPU and GPU count, we keep the cheapest on-demand and spot machines. We also keep machines with a
known network. A provider that gpuhunt could not fetch keeps its earlier prices, with their date.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lightning_predict.base.errors import CatalogueError, MissingDependencyError, UnknownGpuError
from lightning_predict.base.files import write_atomically
from lightning_predict.base.timeout import run_with_timeout
from lightning_predict.base.units import bytes_to_gibibytes
from lightning_predict.cost.offers import KINDS, Offer, current_prices_file, load_offers, read_offers, today
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.layouts import find_machine

if TYPE_CHECKING:
    from gpuhunt import CatalogItem

GPUHUNT: Final = "gpuhunt"
GPUHUNT_URL: Final = "https://github.com/dstackai/gpuhunt"

SPELLINGS: Final[Mapping[str, str]] = {  # Providers whose name in gpuhunt differs from the package's price lists
    "cudo": "Cudo Compute",
    "lambdalabs": "Lambda",
    "oci": "Oracle Cloud",
    "vastai": "Vast.ai",
}

FORMS: Final = (
    (re.compile(r"PCIE|Standard_NC\d+ads_A100", re.IGNORECASE), {
        "A100-SXM-40GB": "A100-PCIe-40GB",
        "A100-SXM-80GB": "A100-PCIe-80GB",
        "H100-SXM-80GB": "H100-PCIe-80GB",
    }),
    (re.compile(r"(?<![A-Za-z])NVL(?![A-Za-z])|Standard_NC\d+adi?s_H100"), {"H100-SXM-80GB": "H100-NVL-94GB"}),
)  # fmt: skip
"""Name patterns of machines whose GPU has another form factor than the default, with the renamed GPUs. For Azure's NC
series see https://learn.microsoft.com/azure/virtual-machines/sizes/gpu-accelerated/nc-family."""

REFRESH_SECONDS: Final = 180.0  # Time limit in seconds

MEMORY_TOLERANCE: Final = 0.125
"""Memory sizes within this relative difference count as equal, because providers round and mix GB and GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshedPrices:
    """Fetched prices, and the file that stores them."""

    path: Path
    offers: tuple[Offer, ...]
    notes: tuple[str, ...]


def refresh_prices() -> RefreshedPrices:
    """Fetch the current prices of all providers, and store them for later predictions."""
    if find_spec(GPUHUNT) is None:
        raise MissingDependencyError(
            "Current prices need gpuhunt, which is not installed: pip install lightning-predict[prices]"
        )
    try:
        items = run_with_timeout(REFRESH_SECONDS, _gpuhunt_items)
    except Exception as error:  # providers in gpuhunt raise many types
        raise CatalogueError(
            f"gpuhunt failed ({type(error).__name__}: {error}), and nothing was changed. Check the connection."
        ) from error
    fetched = _chosen(_offers(items, today().isoformat()))
    if not fetched:
        raise CatalogueError("gpuhunt returned no price of a known GPU, and nothing was changed. Try again later.")
    path = current_prices_file()
    providers = {offer.provider for offer in fetched}
    earlier = [offer for offer in (read_offers(path) if path.is_file() else ()) if offer.provider not in providers]
    write_prices(path, (*fetched, *earlier))
    kept = sorted({f"{offer.provider} ({offer.date})" for offer in earlier})
    notes = (f"Not fetched; earlier prices are kept: {', '.join(kept)}.",) if kept else ()
    return RefreshedPrices(path=path, offers=read_offers(path), notes=notes)


def _gpuhunt_items() -> Sequence[CatalogItem]:
    """Download gpuhunt's catalogues, without providers that need an account."""
    import gpuhunt

    logger = logging.getLogger(GPUHUNT)
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # gpuhunt logs a missing provider as an error; here, a note says so
    try:
        catalog = gpuhunt.Catalog(auto_reload=False)
        catalog.load()
        items: Sequence[CatalogItem] = catalog.query(min_gpu_count=1)
    finally:
        logger.setLevel(level)
    return items


def _offers(items: Sequence[CatalogItem], date: str) -> Iterator[Offer]:
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
            gpu = find_gpu(text)
        except UnknownGpuError:
            continue
        forms = (names[gpu.name] for form, names in FORMS if gpu.name in names and form.search(instance))
        gpu = find_gpu(next(forms, gpu.name))
        if gibibytes is None or abs(gibibytes / bytes_to_gibibytes(gpu.memory_bytes) - 1) <= MEMORY_TOLERANCE:
            return gpu.name
    return None


def _spelled(provider: str) -> str:
    """Return a provider's name as spelled in the package's price lists."""
    names = itertools.chain((offer.provider for offer in load_offers()), *KINDS.values())
    known = {name.casefold(): name for name in names}
    return SPELLINGS.get(provider.casefold()) or known.get(provider.casefold()) or provider.capitalize()


def _chosen(offers: Iterable[Offer]) -> list[Offer]:
    """Return machines with a known network, and the cheapest, on demand or spot, by provider, GPU and count."""
    groups: dict[tuple[str, str, int], list[Offer]] = {}
    for offer in offers:
        groups.setdefault((offer.provider, offer.gpu, offer.num_gpus), []).append(_without_odd_spot(offer))
    chosen: dict[tuple[object, ...], Offer] = {}
    for group in groups.values():
        cheapest = min(group, key=lambda offer: offer.usd_per_hour)
        on_spot = min(group, key=lambda offer: (offer.spot_usd_per_hour or math.inf, offer.usd_per_hour))
        machines = [offer for offer in sorted(group, key=lambda one: -one.usd_per_hour) if find_machine(offer.instance)]
        known = {offer.instance: offer for offer in machines}.values()  # the cheapest region of each machine
        for picked in (cheapest, on_spot, *known):
            chosen.setdefault((picked.provider, picked.instance, picked.gpu, picked.num_gpus, picked.region), picked)
    return list(chosen.values())


def _without_odd_spot(offer: Offer) -> Offer:
    """Remove a spot price that exceeds the on-demand price."""
    spot = offer.spot_usd_per_hour
    return replace(offer, spot_usd_per_hour=None) if spot is not None and spot > offer.usd_per_hour else offer


def write_prices(path: Path, offers: Iterable[Offer]) -> None:
    """Write offers to a JSON file that `read_offers` reads. The offers must have on-demand prices."""

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
