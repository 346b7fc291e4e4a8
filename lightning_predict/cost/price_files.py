"""The user's own prices: a YAML file, a SkyPilot catalogue, or a machine that is already paid for.

Own prices come first; GPUs that they do not name keep the prices that ship with the package. A YAML file holds a list
of offers, and each error names its line and key::

    - provider: Our cluster
      instance: dgx-2
      gpu: H100-SXM-80GB     # any name that the catalogue knows
      num_gpus: 8            # 1 where left out
      usd_per_hour: 12.40    # of the whole machine
      spot: false            # true: the price is that of an interruptible machine
      region: berlin         # may be left out
      date: 2026-11-01
      source: contract 4711  # the file's name where left out

A SkyPilot catalogue is read as it is: `vms.csv` of one provider, one row a machine and zone. Columns (documented in the
README of github.com/skypilot-org/skypilot-catalog): `InstanceType`, `AcceleratorName`, `AcceleratorCount`, `Price`,
`SpotPrice`, `Region` and, in most, `AvailabilityZone` and `GpuInfo` (whose memory is not read: providers fill it in MiB
or GB, for one GPU or for all). The files have no date and no provider: these come from the argument (else the file's
time) and the folder.

SkyPilot's names do not tell a card's form; where the machine's name (or the card's in `GpuInfo`) does, it decides.
Google's catalogue prices host and GPUs apart: hosts have no accelerator, GPUs no machine. Where a family of machines
carries one kind of GPU, the two are added up by zone; GPUs that a user attaches to a machine of choice are left out.
Example::

    own = read_offers("our-prices.yaml")
    result = lp.predict(trace, gpus=["T4", "L4"], iterations=1000, offers=with_listed(own))

    >>> round(own_machine_offer("RTX-4090", watts=600, usd_per_kwh=0.30).usd_per_hour, 3)  # 0.6 kW x $0.30
    0.18
"""

from __future__ import annotations

import csv
import difflib
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from datetime import date as calendar_date
from pathlib import Path
from typing import Final, final

import yaml

from lightning_predict.cost.offers import Offer, cheapest_offer, load_offers
from lightning_predict.errors import CatalogueError, InvalidArgumentError, UnknownGpuError
from lightning_predict.gpus import Gpu
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.units import watts_to_kilowatts

CURRENCY: Final = "USD"

DATE_PATTERN: Final = re.compile(r"\d{4}-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?")
"""A month or a day. A year alone would be too coarse for prices."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OfferFile:
    """What a price file holds.

    Attributes:
        offers: Its offers, in its order.
        notes: What was left out of them, and why, in words for the user.
    """

    offers: tuple[Offer, ...]
    notes: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Place:
    """Where in a file something stands.

    Attributes:
        file: Name of the file.
        line: Line, counted from 1; None where the whole file is meant.
        column: Name of the column or key; None where the whole line is meant.
    """

    file: str
    line: int | None = None
    column: str | None = None

    def __str__(self) -> str:
        line = "" if self.line is None else f", line {self.line}"
        return f"{self.file}{line}" + ("" if self.column is None else f", {self.column}")

    def error(self, problem: str) -> CatalogueError:
        """An error about this place, to be raised."""
        return CatalogueError(f"{self}: {problem}")


def price(place: Place, value: object) -> float:
    """A price above 0.

    Raises:
        CatalogueError: It is no number, or not above 0.
    """
    number = _number(value)
    if number is None or not (math.isfinite(number) and number > 0):
        raise place.error(
            f"is {_shown(value)}, but must be a number above 0, in US dollars per hour of the whole machine."
        )
    return number


def count(place: Place, value: object) -> int:
    """A whole number above 0.

    Raises:
        CatalogueError: It is something else.
    """
    number = _number(value)
    if number is None or number <= 0 or number != int(number):
        raise place.error(f"is {_shown(value)}, but must be a whole number above 0.")
    return int(number)


def day(place: Place, value: object) -> str:
    """An ISO day or month, as text.

    Raises:
        CatalogueError: It is something else, for example missing.
    """
    text = str(value)
    if value is None or not DATE_PATTERN.fullmatch(text):
        raise place.error(
            f"is {_shown(value)}, but every price needs the day or month that it holds for, like 2026-11 or 2026-11-21."
        )
    return text


def text(place: Place, value: object) -> str:
    """A text that is not blank; numbers are taken as they are written.

    Raises:
        CatalogueError: It is blank, missing or a list.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        raise place.error(f"is {_shown(value)}, but must be a text that is not blank.")
    return str(value).strip()


def dollars(place: Place, value: object) -> None:
    """Refuse prices in another currency: a rate of exchange is the user's to choose.

    Raises:
        CatalogueError: It is not USD.
    """
    if text(place, value).upper() != CURRENCY:
        raise place.error(
            f"is {_shown(value)}; prices are compared in US dollars only. Convert them, and leave this key out."
        )


def known_gpu(place: Place, value: object) -> Gpu:
    """The GPU of this name.

    Raises:
        UnknownGpuError: The catalogue does not hold it; the message names the nearest.
    """
    try:
        return find_gpu(text(place, value))
    except UnknownGpuError as error:
        raise UnknownGpuError(f"{place}: {error}") from None


def nearest(word: str, words: Iterable[str]) -> str:
    """A sentence that suggests the nearest of some words, or lists them all."""
    known = sorted(set(words))
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else f"Expected one of: {', '.join(known)}."


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def _shown(value: object) -> str:
    return "missing" if value is None else f"{value!r}" if isinstance(value, str) else f"{value}"


REQUIRED_KEYS: Final = ("provider", "instance", "gpu", "usd_per_hour", "date")
OPTIONAL_KEYS: Final = ("num_gpus", "spot", "spot_usd_per_hour", "region", "source", "currency")
LIST_KEY: Final = "offers"


def read_yaml_offers(path: Path) -> OfferFile:
    """Read offers from YAML.

    Args:
        path: A file with a list of offers, or with such a list under the key `offers`.

    Raises:
        CatalogueError: The file is not YAML, or an offer breaks a rule; with line and key.
        UnknownGpuError: An offer names a GPU that the catalogue does not hold; with line and nearest names.
    """
    loader = _Loader(path)
    return OfferFile(offers=tuple(_offer(loader, node, path) for node in loader.offers()))


class _Loader:
    """YAML as nodes, which know their lines, and as plain values."""

    def __init__(self, path: Path) -> None:
        self.file = path.name
        try:
            self._loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
            self._root = self._loader.get_single_node()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
            raise CatalogueError(f"{self.file}{where}: is not valid YAML: {error.problem or error.context}.") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise CatalogueError(f"{self.file}: is not valid YAML: {' '.join(str(error).split())}.") from None

    def place(self, node: yaml.Node, key: str | None = None) -> Place:
        """Where a node stands."""
        return Place(self.file, node.start_mark.line + 1, key)

    def value(self, node: yaml.Node, key: str) -> object:
        """The node under a key as a plain value."""
        try:
            value: object = self._loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError) as error:
            raise self.place(node, key).error(f"is not a value: {' '.join(str(error).split())}.") from None
        return value

    def offers(self) -> list[yaml.Node]:
        """The nodes of the offers."""
        root = self._root
        if isinstance(root, yaml.MappingNode):
            root = next((value for key, value in root.value if key.value == LIST_KEY), root)
        if not isinstance(root, yaml.SequenceNode) or not root.value:
            raise Place(self.file).error("must be a list of offers that is not empty, each with " + _keys() + ".")
        return list(root.value)

    def mapping(self, node: yaml.Node) -> dict[str, yaml.Node]:
        """The nodes of one offer by key, unknown and repeated keys refused."""
        if not isinstance(node, yaml.MappingNode):
            raise self.place(node).error(f"must be an offer with {_keys()}.")
        seen: set[str] = set()
        for key_node, _ in node.value:
            if str(key_node.value) in seen:
                raise self.place(key_node, key_node.value).error("stands twice in one offer; remove one of the two.")
            seen.add(str(key_node.value))
        try:
            self._loader.flatten_mapping(node)  # what is merged in by << comes first, so that own keys replace it
        except yaml.YAMLError as error:
            raise self.place(node, "<<").error(f"cannot be merged: {' '.join(str(error).split())}.") from None
        found: dict[str, yaml.Node] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if key not in REQUIRED_KEYS + OPTIONAL_KEYS:
                raise self.place(key_node, key).error(
                    f"is not a key of an offer. {nearest(key, REQUIRED_KEYS + OPTIONAL_KEYS)}"
                )
            found[key] = value_node
        return found


def _keys() -> str:
    return ", ".join(REQUIRED_KEYS)


def _offer(loader: _Loader, node: yaml.Node, path: Path) -> Offer:
    nodes = loader.mapping(node)
    for key in REQUIRED_KEYS:
        if key == "date" and key not in nodes:
            raise loader.place(node, key).error("is missing; a price needs the day or month that it holds for.")
        if key not in nodes:
            raise loader.place(node, key).error(f"is missing; an offer must state {_keys()}.")
    values = {key: loader.value(value, key) for key, value in nodes.items()}
    places = {key: loader.place(value, key) for key, value in nodes.items()}
    if "currency" in values:
        dollars(places["currency"], values["currency"])
    spot = values.get("spot", False)
    if not isinstance(spot, bool):
        raise places["spot"].error(f"is {spot!r}, but must be true or false.")
    return Offer(
        provider=text(places["provider"], values["provider"]),
        instance=text(places["instance"], values["instance"]),
        gpu=known_gpu(places["gpu"], values["gpu"]).name,
        num_gpus=count(places["num_gpus"], values["num_gpus"]) if "num_gpus" in values else 1,
        usd_per_hour=price(places["usd_per_hour"], values["usd_per_hour"]),
        spot_usd_per_hour=(
            price(places["spot_usd_per_hour"], values["spot_usd_per_hour"]) if "spot_usd_per_hour" in values else None
        ),
        spot=spot,
        region=text(places["region"], values["region"]) if "region" in values else None,
        date=day(places["date"], values["date"]),
        source=text(places["source"], values["source"]) if "source" in values else path.name,
    )


REQUIRED_COLUMNS: Final = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")
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
            missing = [column for column in REQUIRED_COLUMNS if column not in header]
            if missing:
                raise Place(path.name, line, missing[0]).error(
                    "is not a column of this file. A SkyPilot catalogue has " + ", ".join(REQUIRED_COLUMNS) + "."
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
        from lightning_predict.cost.price_files import read_yaml_offers

        if date is not None:
            raise InvalidArgumentError(f"date={date!r} is for CSV files; each offer of {file.name} has its own date.")
        found = read_yaml_offers(file)
        return replace(found, offers=_in_region(found.offers, region, file))
    if file.suffix.lower() == CSV_SUFFIX:
        from lightning_predict.cost.price_files import read_sky_offers

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
        from lightning_predict.cost.price_files import nearest

        regions = [offer.region for offer in offers if offer.region is not None]
        raise CatalogueError(f"{file.name} has no offer in region {region!r}. {nearest(region, regions)}")
    return chosen
