"""The user's own prices: a YAML file, a SkyPilot catalogue, or a machine that is already paid for.

The user's prices take precedence. GPUs without a user's price keep the prices of the package. A YAML file holds a list
of offers::

    - provider: Our cluster
      instance: dgx-2
      gpu: H100-SXM-80GB     # any name that the catalogue knows
      num_gpus: 8            # default: 1
      max_gpus: 8            # if single GPUs are rented at the same price each; default: the whole machine
      usd_per_hour: 12.40    # of the whole machine
      spot: false            # true for the price of an interruptible machine
      region: berlin         # optional
      in_stock: true         # whether a machine was available on the date; omit if unknown
      date: 2026-11-01
      source: contract 4711  # default: the file's name

A SkyPilot catalogue is the file `vms.csv` of one provider, with one row per machine and zone. The README of
github.com/skypilot-org/skypilot-catalog documents its columns: `InstanceType`, `AcceleratorName`, `AcceleratorCount`,
`Price`, `SpotPrice`, `Region` and usually `AvailabilityZone` and `GpuInfo`. We ignore the memory in `GpuInfo`, because
its unit (MiB or GB) and meaning (one GPU or all) vary. A catalogue has no date and no provider. The date is an argument
or the file's modification time; the provider is the name of the folder.

SkyPilot's GPU names lack the form factor, so we take the form factor from the machine's name or the card's name in
`GpuInfo`. Google's catalogue prices hosts and GPUs separately. If a machine family has one kind of GPU, we add the two
prices of a zone. GPUs that can be attached to any machine are omitted. Example::

    own = read_offer_file("our-prices.yaml").offers
    result = lp.predict(trace, gpus=["T4", "L4"], iterations=1000, offers=with_listed(own))

    >>> round(own_machine_offer("RTX-4090", watts=600, usd_per_kwh=0.30).usd_per_hour, 3)  # 0.6 kW x $0.30
    0.18
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date as calendar_date
from datetime import datetime, timezone
from pathlib import Path
from typing import Final, final

from lightning_predict.base.checked import DAY, MONTH, Checked, File, nearest, read_csv, read_yaml, shown
from lightning_predict.base.errors import CatalogueError, InvalidArgumentError, UnknownGpuError
from lightning_predict.base.units import watts_to_kilowatts
from lightning_predict.cost.offers import USER, Offer, cheapest_offer, load_offers
from lightning_predict.hardware import gpu as find_gpu

CURRENCY: Final = "USD"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OfferFile:
    """Contents of a price file.

    Attributes:
        offers: Offers of the file, in order.
        notes: Messages for the user about skipped entries and the reasons.
    """

    offers: tuple[Offer, ...]
    notes: tuple[str, ...] = ()


def _price(value: Checked) -> float:
    return value.parsed().positive("in US dollars per hour of the whole machine")


def _check_currency(value: Checked) -> None:
    """Raise an error for prices in another currency than US dollars."""
    if value.words().strip().upper() != CURRENCY:
        raise value.error(
            f"is {shown(value.value)}; prices are compared in US dollars only. Convert them, and leave this key out."
        )


def _gpu_name(value: Checked) -> str:
    """Return the catalogue name of a GPU; raise `UnknownGpuError` with the nearest names."""
    try:
        return find_gpu(_written(value)).name
    except UnknownGpuError as error:
        raise replace(value, file=replace(value.file, error=UnknownGpuError)).error(f"is unknown: {error}") from None


def _written(value: Checked) -> str:
    """Return a value that may be a string or a number as a non-blank string."""
    if isinstance(value.value, int | float) and not isinstance(value.value, bool):
        return str(value.value)
    return value.words().strip()


def _day(value: Checked) -> str:
    """Return a day or month as a string. YAML parses days as dates."""
    day = replace(value, value=str(value.value)) if isinstance(value.value, calendar_date | int) else value
    return day.matching("the day or month that the price holds for, like 2026-11 or 2026-11-21", MONTH, DAY)


REQUIRED_KEYS: Final = ("provider", "instance", "gpu", "usd_per_hour", "date")
OPTIONAL_KEYS: Final = ("num_gpus", "max_gpus", "spot", "spot_usd_per_hour", "region", "in_stock", "source", "currency")
LIST_KEY: Final = "offers"


def read_yaml_offers(path: Path) -> OfferFile:
    """Read offers from a YAML file.

    Args:
        path: A file with a list of offers, or with such a list under the key `offers`.

    Raises:
        CatalogueError: The file is not YAML, or an offer is invalid. The message names line and key.
        UnknownGpuError: The catalogue does not have an offer's GPU. The message names the line and the nearest GPUs.
    """
    document = read_yaml(path, CatalogueError)
    is_mapping = isinstance(document.value, dict)
    offers = document.member(LIST_KEY) if is_mapping else replace(document, place=LIST_KEY)
    if not isinstance(offers.value, list) or not offers.value:
        raise offers.unexpected(f"a list of offers that is not empty, each with {', '.join(REQUIRED_KEYS)}")
    return OfferFile(offers=tuple(_offer(row, path) for row in offers.items()))


def _offer(row: Checked, path: Path) -> Offer:
    if not isinstance(row.value, dict):
        raise row.unexpected(f"an offer with {', '.join(REQUIRED_KEYS)}")
    row.check_keys(set(REQUIRED_KEYS) - {"date"}, {"date", *OPTIONAL_KEYS})
    row.member("date", expected="the day or month that the price holds for")
    row.optional("currency", _check_currency, None)
    return Offer(
        provider=_written(row.member("provider")),
        instance=_written(row.member("instance")),
        gpu=_gpu_name(row.member("gpu")),
        num_gpus=row.optional("num_gpus", _count, 1),
        max_gpus=row.optional("max_gpus", _count, None),
        usd_per_hour=_price(row.member("usd_per_hour")),
        spot_usd_per_hour=row.optional("spot_usd_per_hour", _price, None),
        spot=row.optional("spot", Checked.flag, False),
        region=row.optional("region", _written, None),
        in_stock=row.optional("in_stock", Checked.flag, None),
        date=_day(row.member("date")),
        source=row.optional("source", _written, path.name),
    )


def _count(value: Checked) -> int:
    return value.parsed().integer(minimum=1)


REQUIRED_COLUMNS: Final = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")
ZONE: Final = "AvailabilityZone"
CURRENCY_COLUMN: Final = "Currency"
GENERIC_STEMS: Final = frozenset({"vms", "instances", "catalog"})
"""Generic file names of catalogues. For a file with such a name, the folder's name is the provider."""

ACCELERATOR_OF_HOST: Final[Mapping[str, str]] = {
    "a2-highgpu": "A100",
    "a2-megagpu": "A100",
    "a2-ultragpu": "A100-80GB",
    "a3-highgpu": "H100",
    "a3-edgegpu": "H100",
    "a3-megagpu": "H100-MEGA",
    "a3-ultragpu": "H200",
    "a4-highgpu": "B200",
    "a4x-highgpu": "GB200",
    "g2-standard": "L4",
}
"""SkyPilot's GPU name by Google machine family, for families with built-in GPUs
(https://cloud.google.com/compute/docs/accelerator-optimized-machines)."""

GPUS_OF_G2_VCPUS: Final[Mapping[int, int]] = {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}
"""Number of GPUs of a g2-standard machine by the number of vCPUs in its name (same page). Names of other families
contain the GPU count."""

FORMS: Final = (
    (re.compile(r"PCIE|Standard_NC\d+ads_A100", re.IGNORECASE), {
        "A100-SXM-40GB": "A100-PCIe-40GB",
        "A100-SXM-80GB": "A100-PCIe-80GB",
        "H100-SXM-80GB": "H100-PCIe-80GB",
    }),
    (re.compile(r"(?<![A-Za-z])NVL(?![A-Za-z])|Standard_NC\d+adi?s_H100"), {"H100-SXM-80GB": "H100-NVL-94GB"}),
)  # fmt: skip
"""Name patterns of machines or cards whose GPU has another form factor than SkyPilot's default, with the renamed
GPUs. For Azure's NC series see https://learn.microsoft.com/azure/virtual-machines/sizes/gpu-accelerated/nc-family."""

_ALONE = "GPUs priced without the machine that they are attached to"
_PART = "machines with a part of a GPU, or without a number of GPUs"
_UNPRICED = "machines without an on-demand price"
_REASONS = (_ALONE, _PART, _UNPRICED)

_CARD_NAME = re.compile(r"'Name': '([^']*)'")
_CONSUMER_CARD = re.compile(r"^\d+x-(RTX_\d{4}\w*)-")
"""Card name in Vast.ai's machine names: `2x-RTX_4060_Ti-32-65536`. The accelerator's name lacks the suffix `Ti`."""

_HOST = re.compile(r"(a2-\w+|a3-\w+|a4-\w+|a4x-\w+)-(\d+)g(?:-nolssd)?|(g2-standard)-(\d+)")


@final
@dataclass(frozen=True, slots=True)
class _Row:
    """One validated row of the CSV. Zero and empty prices are None."""

    instance: str
    accelerator: str
    count: float | None
    usd_per_hour: float | None
    spot_usd_per_hour: float | None
    region: str
    zone: str
    card: str


def read_sky_offers(path: Path, *, region: str | None = None, date: str | None = None) -> OfferFile:
    """Read the GPU machines of a SkyPilot catalogue, each at the price of its cheapest region.

    Args:
        path: The CSV file. Its name is the provider; for a generic name (`vms.csv`), the folder's name is the provider.
        region: Region whose prices are used; None for all regions.
        date: ISO day of the prices; None uses the file's modification time.

    Returns:
        The offers, and the number of skipped machines by reason.

    Raises:
        CatalogueError: The file is not a catalogue, a row is malformed, or the region is not listed.
    """
    rows = [_row(row) for row in read_csv(path, CatalogueError, name=path.name, columns=REQUIRED_COLUMNS)]
    left_out: Counter[str] = Counter()
    machines = [row for row in rows if row.instance and row.accelerator]
    machines += _with_hosts(rows, left_out)
    if region is not None:
        machines = _of_region(machines, region, path)
    stamp = datetime.fromtimestamp(path.stat().st_mtime, tz=timezone.utc).date().isoformat()
    valid_on = stamp if date is None else _day(Checked(date, File(path.name, CatalogueError), "date"))
    provider = _provider(path)
    offers = tuple(_offers(machines, provider, valid_on, path, left_out))
    return OfferFile(offers=offers, notes=tuple(_notes(path.name, left_out)))


def _row(row: Checked) -> _Row:
    cells: dict[str, str] = row.value
    if cells.get(CURRENCY_COLUMN):
        _check_currency(row.member(CURRENCY_COLUMN))
    return _Row(
        instance=cells["InstanceType"].strip(),
        accelerator=cells["AcceleratorName"].strip(),
        count=_amount(row.member("AcceleratorCount")),
        usd_per_hour=_amount(row.member("Price")),
        spot_usd_per_hour=_amount(row.member("SpotPrice")),
        region=cells["Region"].strip(),
        zone=cells.get(ZONE, "").strip(),
        card=" ".join(_CARD_NAME.findall(cells.get("GpuInfo", ""))),
    )


def _amount(cell: Checked) -> float | None:
    """Parse a positive number; return None if the cell is empty or 0, which means "not offered"."""
    if not cell.value.strip() or cell.value.strip().lower() == "nan" or cell.parsed().value == 0:
        return None
    return _price(cell)


def _with_hosts(rows: Sequence[_Row], left_out: Counter[str]) -> Iterable[_Row]:
    """Yield machines whose host and GPUs are priced separately, with the sum of both prices."""
    gpus_alone = {
        (row.accelerator, row.count, row.region, row.zone): row for row in rows if row.accelerator and not row.instance
    }
    used: set[tuple[str, float | None, str, str]] = set()
    for host in rows:
        match = None if host.accelerator else _HOST.fullmatch(host.instance)
        if match is None:
            continue
        family, size = (match[1], int(match[2])) if match[1] else (match[3], GPUS_OF_G2_VCPUS.get(int(match[4])))
        if family not in ACCELERATOR_OF_HOST:
            continue
        key: tuple[str, float | None, str, str] = (ACCELERATOR_OF_HOST[family], size, host.region, host.zone)
        if key in gpus_alone:
            used.add(key)
            alone = gpus_alone[key]
            yield replace(
                alone,
                instance=host.instance,
                usd_per_hour=_sum(host.usd_per_hour, alone.usd_per_hour),
                spot_usd_per_hour=_sum(host.spot_usd_per_hour, alone.spot_usd_per_hour),
            )
    with_machine = {key[:2] for key in used}
    for accelerator, _ in {key[:2] for key in gpus_alone} - with_machine:
        if _name_of(accelerator) is None:
            left_out[accelerator] += 1
        else:
            left_out[_ALONE] += 1


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def _of_region(machines: Sequence[_Row], region: str, path: Path) -> list[_Row]:
    chosen = [row for row in machines if row.region == region]
    if not chosen:
        raise CatalogueError(
            f"{path.name} has no GPU machine in region {region!r}. {nearest(region, (row.region for row in machines))}"
        )
    return chosen


def _offers(machines: Iterable[_Row], provider: str, date: str, path: Path, left_out: Counter[str]) -> Iterator[Offer]:
    groups: dict[tuple[str, str, float | None], list[_Row]] = {}
    for row in machines:
        groups.setdefault((row.instance, row.accelerator, row.count), []).append(row)
    for (instance, accelerator, number), group in groups.items():
        name = _name_of(accelerator, f"{instance} {group[0].card}")
        priced = [(row.usd_per_hour, row) for row in group if row.usd_per_hour is not None]
        if name is None:
            left_out[accelerator] += 1
        elif number is None or number != int(number):
            left_out[_PART] += 1
        elif not priced:
            left_out[_UNPRICED] += 1
        else:
            usd_per_hour, row = min(priced, key=lambda pair: (pair[0], pair[1].spot_usd_per_hour or math.inf))
            yield Offer(
                provider=provider,
                instance=instance,
                gpu=name,
                num_gpus=int(number),
                usd_per_hour=usd_per_hour,
                spot_usd_per_hour=row.spot_usd_per_hour,
                region=row.region or None,
                date=date,
                source=f"SkyPilot catalogue {'/'.join(path.parts[-2:])}",
            )


def _notes(file: str, left_out: Counter[str]) -> Iterator[str]:
    """Yield a note for each reason why machines were skipped, and a note that names unknown accelerators."""
    for reason in _REASONS:
        if left_out[reason]:
            yield f"{file}: left out {reason}: {left_out[reason]}."
    unknown = {name: number for name, number in sorted(left_out.items()) if name not in _REASONS}
    if unknown:
        listed = ", ".join(f"{name} ({number})" for name, number in unknown.items())
        yield f"{file}: left out machines whose accelerator is not in the catalogue: {listed}."


def _name_of(accelerator: str, hints: str = "") -> str | None:
    """Return the catalogue name of an accelerator; None if unknown (AMD, TPU, other NVIDIA cards)."""
    suffixed = _CONSUMER_CARD.search(hints)
    try:
        name = find_gpu(accelerator if suffixed is None else suffixed[1].replace("_", " ")).name
    except UnknownGpuError:
        return None
    return form_of(name, hints)


def form_of(name: str, hints: str) -> str:
    """Return the GPU with the form factor that the name of the machine or card implies."""
    return next((forms[name] for pattern, forms in FORMS if name in forms and pattern.search(hints)), name)


def _provider(path: Path) -> str:
    """Return the provider of a catalogue file: the file's name, or the folder's name if the file's name is generic."""
    named = path.resolve().parent.name if path.stem.lower() in GENERIC_STEMS else path.stem
    spelled = {offer.provider.casefold(): offer.provider for offer in load_offers()}
    return spelled.get(named.casefold(), named)


YAML_SUFFIXES: Final = (".yaml", ".yml")
CSV_SUFFIX: Final = ".csv"
OWN_MACHINE: Final = "own machine"


def read_offer_file(path: str | os.PathLike[str], *, region: str | None = None, date: str | None = None) -> OfferFile:
    """Read the offers of a price file, with notes on skipped entries.

    Args:
        path: A YAML file, as in this module's docstring, or a SkyPilot catalogue as CSV.
        region: Region whose offers are used; None for all regions.
        date: ISO day of the prices of a CSV file; None uses the file's modification time.

    Raises:
        CatalogueError: The file is missing, malformed or invalid. The message names line and column.
        UnknownGpuError: A YAML file names a GPU that is not in the catalogue. The message suggests the nearest names.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise CatalogueError(f"{os.fspath(path)} does not exist; give a YAML file of offers or a SkyPilot CSV.")
    if file.suffix.lower() in YAML_SUFFIXES:
        if date is not None:
            raise InvalidArgumentError(f"date={date!r} is for CSV files; each offer of {file.name} has its own date.")
        found = read_yaml_offers(file)
        return replace(found, offers=_in_region(found.offers, region, file))
    if file.suffix.lower() == CSV_SUFFIX:
        return read_sky_offers(file, region=region, date=date)
    raise CatalogueError(
        f"{file.name} is not YAML ({', '.join(YAML_SUFFIXES)}) or a SkyPilot catalogue ({CSV_SUFFIX}); give it the "
        "suffix of its format."
    )


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


def _in_region(offers: tuple[Offer, ...], region: str | None, file: Path) -> tuple[Offer, ...]:
    if region is None:
        return offers
    chosen = tuple(offer for offer in offers if offer.region in (region, None))
    if not chosen:
        regions = [offer.region for offer in offers if offer.region is not None]
        raise CatalogueError(f"{file.name} has no offer in region {region!r}. {nearest(region, regions)}")
    return chosen
