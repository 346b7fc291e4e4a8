"""`Layout`: a number of identical GPUs in one or more identical machines, and its text notation ("2x8xH100").

`"T4"` is one GPU, `"8xL4"` (or `"L4:8"`) a machine with eight GPUs, `"2x8xH100-SXM-80GB"` two such machines, and
`"2xp4d.24xlarge"` two cloud instances of this type. Layout names are keys of predictions, so they are canonical:
`"1x8xL4"` becomes `8xL4`, and `"1xT4"` becomes `T4`. `catalogue/machines.toml` lists instance types by provider.
Matching ignores case, spaces, hyphens, underscores and Azure's `Standard_` prefix. Example::

    >>> layout = layout_of("2x8xH100")
    >>> layout.name, layout.nodes, layout.gpus_per_node, layout.count
    ('2x8xH100-SXM-80GB', 2, 8, 16)
    >>> layout_of("1xT4").name
    'T4'
    >>> layout_of("g5.48xlarge").name
    '8xA10G'
    >>> find_machine("Standard_ND96isr_H100_v5").gpus
    '8xH100-SXM-80GB'
    >>> find_machine("T4") is None
    True
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

from lightning_predict.base.checked import Checked, plain_number, read_toml, shown
from lightning_predict.base.errors import CatalogueError, InvalidArgumentError, UnknownGpuError
from lightning_predict.base.units import gigabits_to_bytes
from lightning_predict.hardware.catalogue import CATALOGUE_FOLDER
from lightning_predict.hardware.lookup import gpu as find_gpu
from lightning_predict.hardware.lookup import normalise, other_forms
from lightning_predict.hardware.records import Gpu

# --- Layouts and their names

_GRAMMAR: Final = re.compile(r"\s*(?:(?P<nodes>\d+)\s*[xX*]\s*)?(?P<per_node>\d+)\s*[xX*]\s*(?P<gpu>.*\S)\s*")

_SUFFIX: Final = re.compile(r"\s*(?P<gpu>.*\S)\s*:\s*(?P<per_node>\d+)\s*")  # SkyPilot's and Slurm's notation: `H100:8`

_TIMES: Final = re.compile(r"\s*(?P<gpu>.*\S)\s*[xX*]\s*(?P<per_node>\d+)\s*")
"""Reversed notation: `H100x8` means `8xH100`, unless the text is the name of a GPU or a machine."""

MAX_GPUS: Final = 65_536  # Maximum number of GPUs in a layout. A larger number is probably a typing error.


@dataclass(frozen=True, slots=True)
class Layout:
    """A number of identical GPUs in one or more identical machines."""

    gpu: Gpu  # The GPU
    gpus_per_node: int = 1  # Number of GPUs used per machine
    nodes: int = 1  # Number of machines
    machine: str | None = None  # Instance type that the user requested, which then determines the price; otherwise None
    requested_name: str | None = field(default=None, compare=False)  # GPU name as typed, if it is ambiguous; else None
    # Network between the machines, as stated by the provider. If None, predictions use the network of the priced cloud
    # machine (`cost.prediction.on_offered_network`), otherwise of the vendor's reference system.
    network: Network | None = None

    @property
    def count(self) -> int:
        """Total number of GPUs."""
        return self.gpus_per_node * self.nodes

    @property
    def name(self) -> str:
        """Shortest name in the layout notation."""
        if self.nodes > 1:
            return f"{self.nodes}x{self.gpus_per_node}x{self.gpu.name}"
        return f"{self.gpus_per_node}x{self.gpu.name}" if self.gpus_per_node > 1 else self.gpu.name


def layout_of(name: str | Gpu | Layout, *, num_nodes: int = 1) -> Layout:
    """Parse the name of a layout.

    Args:
        name: A GPU by any of its names, `<GPUs>x<GPU>`, `<GPU>:<GPUs>` or `<machines>x<GPUs>x<GPU>`; an instance type,
            optionally with the prefix `<machines>x`; or a `Gpu` or `Layout`.
        num_nodes: Number of machines, if the name does not include it.
    """
    count = plain_number(num_nodes)  # numbers of NumPy and torch, too
    if count is None or count < 1 or count % 1:
        raise InvalidArgumentError(f"num_nodes={shown(num_nodes)}; a layout has at least one whole machine.")
    num_nodes = int(count)
    if isinstance(name, Layout):
        return name
    if isinstance(name, Gpu):
        return Layout(name, 1, num_nodes)
    if not isinstance(name, str):
        raise InvalidArgumentError(
            f"{shown(name)} is not a layout; expected a name such as 'T4' or '8xL4', a Gpu or a Layout."
        )
    parts = _GRAMMAR.fullmatch(_SUFFIX.sub(r"\g<per_node>x\g<gpu>", name))
    turned = None if parts is not None or _is_gpu(name) or find_machine(name) else _TIMES.fullmatch(name)
    if turned is not None and _is_gpu(turned["gpu"]):
        parts = _GRAMMAR.fullmatch(f"{turned['per_node']}x{turned['gpu']}")
    if parts is None or _is_gpu(name):
        return _machines_of(name, num_nodes) or _layout(name, 1, num_nodes)
    per_node = int(parts["per_node"])
    nodes = num_nodes if parts["nodes"] is None else int(parts["nodes"])
    example = f"'8x{parts['gpu']}' (one machine of eight) or '2x8x{parts['gpu']}' (two of them)"
    if per_node < 1 or nodes < 1 or per_node * nodes > MAX_GPUS:
        raise InvalidArgumentError(
            f"The layout {name!r} has {nodes} machine(s) of {per_node} GPU(s); expected between 1 and {MAX_GPUS:,} "
            f"GPUs, for example {example}."
        )
    if parts["nodes"] is not None and num_nodes not in (1, nodes):
        raise InvalidArgumentError(
            f"The layout {name!r} has {nodes} machine(s), but num_nodes={num_nodes}; state it in only one place."
        )
    if parts["nodes"] is None and (machines := _machines_of(parts["gpu"], per_node)) is not None:
        if num_nodes not in (1, per_node):
            raise InvalidArgumentError(
                f"{name!r} asks for {per_node} machine(s), but num_nodes={num_nodes}; state it in only one place."
            )
        return machines
    try:
        return _layout(parts["gpu"], per_node, nodes)
    except UnknownGpuError as error:
        raise UnknownGpuError(
            f"In the layout {name!r}: {error} A layout reads '<GPUs>x<GPU>' or '<machines>x<GPUs>x<GPU>'."
        ) from None


def _layout(name: str, gpus_per_node: int, nodes: int) -> Layout:
    """Return the layout of a named GPU, with `requested_name` set if the name is ambiguous."""
    gpu = find_gpu(name)
    return Layout(gpu, gpus_per_node, nodes, requested_name=name.strip() if other_forms(name, gpu) else None)


def layouts_of(names: Sequence[str | Gpu | Layout], *, num_nodes: int = 1) -> tuple[Layout, ...]:
    """Parse layout names, in order and without duplicates.

    Args:
        names: Names of GPUs or layouts, such as `L4` or `2x8xH100-SXM-80GB`, `Gpu` or `Layout` objects.
        num_nodes: Number of machines, for layouts whose name does not include it.
    """
    if isinstance(names, str):
        raise InvalidArgumentError(f"gpus={names!r} is one string; give a list of names, for example [{names!r}].")
    if not isinstance(names, Iterable):
        raise InvalidArgumentError(f"gpus={shown(names)} is not a list of names; expected for example ['T4'].")
    names = tuple(names)
    if not names:
        raise InvalidArgumentError("gpus is empty; name at least one GPU, for example ['T4'].")
    layouts: dict[str, Layout] = {}
    for layout in (layout_of(name, num_nodes=num_nodes) for name in names):
        other = layouts.setdefault(layout.name, layout)
        if layout.nodes > 1 and other.network != layout.network:
            ways = " and ".join(f"{way.nodes}x{way.machine}" if way.machine else way.name for way in (other, layout))
            raise InvalidArgumentError(
                f"{ways} are both {layout.name} here, with networks that differ; ask for one of them at a time."
            )
        layouts[layout.name] = layout
    return tuple(layouts.values())


def _machines_of(name: str, nodes: int) -> Layout | None:
    """Return the layout of `nodes` cloud instances; None if `name` is not an instance type."""
    machine = find_machine(name)
    if machine is None:
        return None
    count, gpu_name = machine.gpus.split("x", 1)
    return Layout(find_gpu(gpu_name), int(count), nodes, machine.name, network=machine.network)


def _is_gpu(name: str) -> bool:
    """Return whether a text that looks like a layout is the name of a GPU."""
    try:
        find_gpu(name)
    except UnknownGpuError:
        return False
    return True


# --- Racks of trays

NVLINK_DOMAINS: Final = {"GB200": 72, "GB300": 72}
"""Number of GPUs per NVLink domain (a rack of 18 trays), for GPUs whose NVLink connects several machines."""

MACHINE_GPUS: Final = 8  # GPUs of the usual machine with several
TRAY_GPUS: Final = 4  # Number of GPUs per tray. Trays of a rack are rented separately.


def in_domains(layout: Layout) -> Layout:
    """Merge machines of an NVLink domain into one machine: `16x4xGB200` becomes `64xGB200`."""
    size = NVLINK_DOMAINS.get(layout.gpu.name)
    if size is None or layout.nodes == 1:
        return layout
    most = max(size // layout.gpus_per_node, 1)
    joined = max(each for each in range(1, layout.nodes + 1) if layout.nodes % each == 0 and each <= most)
    network = layout.network
    if network is not None:
        network = replace(network, bytes_per_second=joined * network.bytes_per_second, gpus=joined * network.gpus)
    return replace(layout, gpus_per_node=joined * layout.gpus_per_node, nodes=layout.nodes // joined, network=network)


def in_trays(layout: Layout) -> Layout:
    """Split an NVLink domain into trays, which are the rented machines: `64xGB200` becomes `16x4xGB200`."""
    trays, rest = divmod(layout.gpus_per_node, TRAY_GPUS)
    if layout.gpu.name not in NVLINK_DOMAINS or rest or trays == 1:
        return layout
    return replace(layout, gpus_per_node=TRAY_GPUS, nodes=trays * layout.nodes)


# --- Instance types of clouds

MACHINES_FILE: Final = "machines.toml"

AZURE_PREFIX: Final = "standard"


@dataclass(frozen=True, slots=True)
class Network:
    """Network between the machines of a cloud's instance type."""

    bytes_per_second: float  # Bandwidth per machine in one direction
    machine: str
    kind: str  # Provider's name of the network technology
    has_rdma: bool  # Whether network adapters access memory directly (RDMA). Otherwise, the CPU runs a TCP stack.
    gpus: int  # Number of GPUs per machine, which share the network
    # Number of network adapters, each for an equal share of the GPUs. With one adapter, a single GPU can use the full
    # bandwidth.
    adapters: int
    source: str  # URL of the page that states these figures


@dataclass(frozen=True, slots=True)
class Machine:
    """A cloud instance type."""

    name: str
    provider: str
    gpus: str
    network: Network | None = None


def find_machine(name: str) -> Machine | None:
    """Return the instance type with this name; None if the catalogue does not have it."""
    return _machines().get(_key(name))


def largest_machine(gpu: Gpu) -> int | None:
    """Return the largest number of these GPUs in one instance type; None if no instance type has the GPU."""
    counts = (machine.gpus.partition("x") for machine in _machines().values())
    return max((int(count) for count, _, name in counts if name == gpu.name), default=None)


def is_same_machine(name: str, other: str) -> bool:
    """Return whether two instance type names are equal, ignoring case, separators and Azure's prefix."""
    return _key(name) == _key(other)


def _key(name: str) -> str:
    return normalise(name).removeprefix(AZURE_PREFIX)


@cache
def _machines() -> Mapping[str, Machine]:
    document = read_toml(CATALOGUE_FOLDER / MACHINES_FILE, CatalogueError)
    document.check_keys({"provider"})
    machines: dict[str, Machine] = {}
    for provider, table in document.member("provider").members().items():
        table.check_keys({"source", "date", "machines"}, optional={"networks"})
        table.member("source").url()
        table.member("date").date()
        networks = table.optional("networks", Checked.members, {})
        for name, row in table.member("machines").members().items():
            gpus = row.words()
            machines[_key(name)] = Machine(name, provider, gpus, _network(networks.get(name), name, gpus))
    return machines


def _network(row: Checked | None, machine: str, gpus: str) -> Network | None:
    if row is None:
        return None
    row.check_keys({"gbit_per_s", "kind", "rdma", "source"}, optional={"adapters"})
    row.member("source").url()
    return Network(
        bytes_per_second=gigabits_to_bytes(row.member("gbit_per_s").positive("in Gbit/s")),
        machine=machine,
        kind=row.member("kind").words(),
        has_rdma=row.member("rdma").flag(),
        gpus=int(gpus.partition("x")[0]),
        adapters=row.optional("adapters", lambda value: value.integer(minimum=1), 1),
        source=row.member("source").words(),
    )
