"""Find the GPUs of a machine that a cloud rents out under a name of its own, such as `p4d.24xlarge`.

`catalogue/machines.toml` lists them, by provider. Case, spaces, hyphens and underscores do not count, and neither does
`Standard_` before Azure's names. Example::

    >>> machine("Standard_ND96isr_H100_v5").gpus
    '8xH100-SXM-80GB'
    >>> machine("T4") is None
    True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, final

from lightning_predict.checked import Checked, read_toml
from lightning_predict.errors import CatalogueError
from lightning_predict.gpus.catalogue import CATALOGUE_FOLDER
from lightning_predict.gpus.lookup import normalise
from lightning_predict.units import gigabits_to_bytes

MACHINES_FILE: Final = "machines.toml"

AZURE_PREFIX: Final = "standard"


@final
@dataclass(frozen=True, slots=True)
class Network:
    """What joins a cloud's machines.

    Attributes:
        bytes_per_second: Of one machine, one direction.
        kind: What carries it, in the provider's words.
        has_rdma: Adapters read and write memory by themselves; else a processor's stack of TCP carries it.
        gpus: GPUs of a machine, which share it.
        source: Page that says so.
    """

    bytes_per_second: float
    kind: str
    has_rdma: bool
    gpus: int
    source: str


@final
@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that can be rented.

    Attributes:
        name: The provider's name for it.
        provider: Who rents it out.
        gpus: Its GPUs, as the layout `<GPUs>x<GPU>`.
        network: What joins it to others; None if no source says.
    """

    name: str
    provider: str
    gpus: str
    network: Network | None = None


def machine(name: str) -> Machine | None:
    """Return the machine of this name; None if no provider of the catalogue has one."""
    return _machines().get(_key(name))


def is_same_machine(name: str, other: str) -> bool:
    """Return whether two names are one, up to case, separators and Azure's prefix."""
    return _key(name) == _key(other)


def _key(name: str) -> str:
    return normalise(name).removeprefix(AZURE_PREFIX)


@cache
def _machines() -> Mapping[str, Machine]:
    document = read_toml(CATALOGUE_FOLDER / MACHINES_FILE, CatalogueError)
    document.check_keys({"provider"})
    found: dict[str, Machine] = {}
    for provider, table in document.member("provider").members().items():
        table.check_keys({"source", "date", "machines"}, optional={"networks"})
        table.member("source").url()
        table.member("date").date()
        networks = table.optional("networks", Checked.members, {})
        for name, row in table.member("machines").members().items():
            gpus = row.words()
            found[_key(name)] = Machine(name, provider, gpus, _network(networks.get(name), int(gpus.partition("x")[0])))
    return found


def _network(row: Checked | None, gpus: int) -> Network | None:
    if row is None:
        return None
    row.check_keys({"gbit_per_s", "kind", "rdma", "source"})
    row.member("source").url()
    return Network(
        gigabits_to_bytes(row.member("gbit_per_s").positive("in Gbit/s")),
        row.member("kind").words(),
        row.member("rdma").flag(),
        gpus,
        row.member("source").words(),
    )
