"""The user's own prices in YAML: a list of offers, each error with its line and key.

Example of a file::

    - provider: Our cluster
      instance: dgx-2
      gpu: H100-SXM-80GB     # any name that the catalogue knows
      num_gpus: 8            # 1 where left out
      usd_per_hour: 12.40    # of the whole machine
      spot: false            # true: the price is that of an interruptible machine
      region: berlin         # may be left out
      date: 2026-11-01
      source: contract 4711  # the file's name where left out
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from lightning_predict.cost.records import Offer
from lightning_predict.cost.user_offers_rows import (
    OfferFile,
    Place,
    count,
    day,
    dollars,
    known_gpu,
    nearest,
    price,
    text,
)
from lightning_predict.errors import CatalogueError

REQUIRED: Final = ("provider", "instance", "gpu", "usd_per_hour", "date")
OPTIONAL: Final = ("num_gpus", "spot", "spot_usd_per_hour", "region", "source", "currency")
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
            if key not in REQUIRED + OPTIONAL:
                raise self.place(key_node, key).error(f"is not a key of an offer. {nearest(key, REQUIRED + OPTIONAL)}")
            found[key] = value_node
        return found


def _keys() -> str:
    return ", ".join(REQUIRED)


def _offer(loader: _Loader, node: yaml.Node, path: Path) -> Offer:
    nodes = loader.mapping(node)
    for key in REQUIRED:
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
