"""SkyPilot's price catalogues, read as they are: `vms.csv` of one provider, one row a machine and zone.

Columns (documented in the README of github.com/skypilot-org/skypilot-catalog): `InstanceType`, `AcceleratorName`,
`AcceleratorCount`, `Price`, `SpotPrice`, `Region` and, in most, `AvailabilityZone` and `GpuInfo` (whose memory is not
read: providers fill it in MiB or GB, for one GPU or for all). The files have no date and no provider: these come from
the argument (else the file's time) and the folder.

SkyPilot's names do not tell a card's form; where the machine's name (or the card's in `GpuInfo`) does, it decides.
Google's catalogue prices host and GPUs apart: hosts have no accelerator, GPUs no machine. Where a family of machines
carries one kind of GPU, the two are added up by zone; GPUs that a user attaches to a machine of choice are left out.
Example::

    >>> read_sky_offers(Path("v8/lambda/vms.csv"), date="2026-11-01").offers[0].label  # doctest: +SKIP
    'Lambda gpu_8x_v100_n (2026-11-01)'
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, final

from lightning_predict.cost.offers import load_offers
from lightning_predict.cost.records import Offer
from lightning_predict.cost.user_offers_rows import OfferFile, Place, day, dollars, nearest, price
from lightning_predict.errors import CatalogueError, UnknownGpuError
from lightning_predict.gpus import gpu as find_gpu

REQUIRED: Final = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")
ZONE: Final = "AvailabilityZone"
CURRENCY_COLUMN: Final = "Currency"
GENERIC_STEMS: Final = frozenset({"vms", "instances", "catalog"})
"""Names of files that say nothing of the provider, whose folder does."""

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
"""Google's families of machines with GPUs built in, by SkyPilot's name of the GPU
(https://cloud.google.com/compute/docs/accelerator-optimized-machines)."""

GPUS_OF_G2_VCPUS: Final[Mapping[int, int]] = {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}
"""GPUs of a g2-standard machine by the vCPUs in its name (same page); other families name the GPUs themselves."""

FORMS: Final = (
    (re.compile(r"PCIE|Standard_NC\d+ads_A100", re.IGNORECASE), {
        "A100-SXM-40GB": "A100-PCIe-40GB",
        "A100-SXM-80GB": "A100-PCIe-80GB",
        "H100-SXM-80GB": "H100-PCIe-80GB",
    }),
    (re.compile(r"(?<![A-Za-z])NVL(?![A-Za-z])|Standard_NC\d+adi?s_H100"), {"H100-SXM-80GB": "H100-NVL-94GB"}),
)  # fmt: skip
"""What in the name of a machine or card says that it is another form than SkyPilot's name stands for, and which
(Azure's NC series: https://learn.microsoft.com/azure/virtual-machines/sizes/gpu-accelerated/nc-family)."""

_ALONE = "GPUs priced without the machine that they are attached to"
_PART = "machines with a part of a GPU, or without a number of GPUs"
_UNPRICED = "machines without an on-demand price"
_REASONS = (_ALONE, _PART, _UNPRICED)

_CARD_NAME = re.compile(r"'Name': '([^']*)'")
_HOST = re.compile(r"(a2-\w+|a3-\w+|a4-\w+|a4x-\w+)-(\d+)g(?:-nolssd)?|(g2-standard)-(\d+)")


@final
@dataclass(frozen=True, slots=True)
class _Row:
    """One row of the CSV, checked; prices of 0 and empty ones are None."""

    instance: str
    accelerator: str
    count: float | None
    usd_per_hour: float | None
    spot_usd_per_hour: float | None
    region: str
    zone: str
    card: str


def read_sky_offers(path: Path, *, region: str | None = None, date: str | None = None) -> OfferFile:
    """Read the GPU machines of a SkyPilot catalogue, each in its cheapest region.

    Args:
        path: The CSV file; the provider is the name of its folder, or its own where that says more than `vms`.
        region: Take prices of this region only.
        date: ISO day of the prices; the day of the file's last change where None.

    Returns:
        The offers, and how many machines were left out for which reason.

    Raises:
        CatalogueError: Not a catalogue, a malformed row (with line and column), or a region that it does not list.
    """
    rows = list(_rows(path))
    left_out: Counter[str] = Counter()
    machines = [row for row in rows if row.instance and row.accelerator]
    machines += _with_hosts(rows, left_out)
    if region is not None:
        machines = _of_region(machines, region, path)
    stamp = datetime.fromtimestamp(path.stat().st_mtime, tz=UTC).date().isoformat()
    valid_on = stamp if date is None else day(Place(path.name, column="date"), date)
    provider = _provider(path)
    offers = tuple(_offers(machines, provider, valid_on, path, left_out))
    return OfferFile(offers=offers, notes=tuple(_notes(path.name, left_out)))


def _rows(path: Path) -> Iterator[_Row]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, strict=True)
        line = 1  # on which a row begins; a quoted field may span several
        try:
            header = next(reader, [])
            missing = [column for column in REQUIRED if column not in header]
            if missing:
                raise Place(path.name, line, missing[0]).error(
                    "is not a column of this file. A SkyPilot catalogue has " + ", ".join(REQUIRED) + "."
                )
            line = reader.line_num + 1
            for fields in reader:
                if len(fields) != len(header):
                    raise Place(path.name, line).error(
                        f"has {len(fields)} fields, but the header names {len(header)} columns."
                    )
                yield _row(dict(zip(header, fields, strict=True)), path.name, line)
                line = reader.line_num + 1
        except csv.Error as error:
            raise Place(path.name, line).error(f"is not valid CSV: {error}.") from None
        except UnicodeDecodeError as error:
            raise Place(path.name, line).error(f"is not UTF-8 text: {error.reason}.") from None


def _row(fields: Mapping[str, str], file: str, line: int) -> _Row:
    if fields.get(CURRENCY_COLUMN):
        dollars(Place(file, line, CURRENCY_COLUMN), fields[CURRENCY_COLUMN])
    return _Row(
        instance=fields["InstanceType"].strip(),
        accelerator=fields["AcceleratorName"].strip(),
        count=_amount(fields["AcceleratorCount"], Place(file, line, "AcceleratorCount")),
        usd_per_hour=_amount(fields["Price"], Place(file, line, "Price")),
        spot_usd_per_hour=_amount(fields["SpotPrice"], Place(file, line, "SpotPrice")),
        region=fields["Region"].strip(),
        zone=fields.get(ZONE, "").strip(),
        card=" ".join(_CARD_NAME.findall(fields.get("GpuInfo", ""))),
    )


def _amount(written: str, place: Place) -> float | None:
    """A number above 0; None where the catalogue leaves it empty or writes 0 for what is not on offer."""
    if not written.strip() or written.strip().lower() == "nan":
        return None
    try:
        if float(written) == 0:
            return None
    except ValueError:
        pass  # The check below says what is wrong with it.
    return price(place, written)


def _with_hosts(rows: Sequence[_Row], left_out: Counter[str]) -> Iterable[_Row]:
    """Machines whose host and GPUs are priced apart, with both prices added up."""
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
    """What was left out, each reason once; accelerators that the catalogue does not hold with their names."""
    for reason in _REASONS:
        if left_out[reason]:
            yield f"{file}: left out {reason}: {left_out[reason]}."
    unknown = {name: number for name, number in sorted(left_out.items()) if name not in _REASONS}
    if unknown:
        listed = ", ".join(f"{name} ({number})" for name, number in unknown.items())
        yield f"{file}: left out machines whose accelerator is no GPU of the catalogue: {listed}."


def _name_of(accelerator: str, hints: str = "") -> str | None:
    """Our name of an accelerator; None where the catalogue does not hold it (AMD, TPU, other NVIDIA cards)."""
    try:
        name = find_gpu(accelerator).name
    except UnknownGpuError:
        return None
    return next((forms[name] for pattern, forms in FORMS if name in forms and pattern.search(hints)), name)


def _provider(path: Path) -> str:
    """The file's name, or its folder's where the file has a generic one, spelled as in the shipped price lists."""
    named = path.resolve().parent.name if path.stem.lower() in GENERIC_STEMS else path.stem
    spelled = {offer.provider.casefold(): offer.provider for offer in load_offers()}
    return spelled.get(named.casefold(), named)
