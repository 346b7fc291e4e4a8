"""Time of NCCL collectives over a layout of GPUs: measured curves inside a machine, a formula between machines.

NCCL has two algorithms between machines, a ring and a tree; the time of the faster algorithm is used. A ring passes
through all n = N x g GPUs. For all_gather and reduce_scatter, a ring sends (n - 1) / n of the message through the
network adapters of each machine, in n - 1 steps. For all_reduce, both figures double. A tree connects the machines,
only for all_reduce. A tree sends 2 (N - 1) / N of the message, in 2 log2 N steps.

The slower link (inside or between machines) determines the bandwidth. The faster link adds the time of one chunk. The
latencies of all steps add up, and dominate with many machines and small messages. Groups that communicate at the same
time share the adapters of a machine. Each GPU is limited to its rail, which is its part of the adapters. An all-to-all
sends only the data for other machines.

If the user names a cloud's machine, or if a cloud's offer prices the machine, the cloud's bandwidth applies. Otherwise
the user can give values (`Interconnect`). The default is the bandwidth of the vendor's reference systems, and 100
Gbit/s Ethernet for machines without NVLink. Without NVLink, the bandwidth between GPUs depends more on the machine than
on the card; `PCIE_MACHINES` lists kinds of machines. Up to 72 GPUs of a rack of GB200 or GB300 form one NVLink domain,
over any number of trays. Example::

    >>> from lightning_predict.hardware.layouts import layout_of
    >>> one, two = layout_of("8xA100-SXM-80GB"), layout_of("2x8xA100-SXM-80GB")
    >>> at_one, at_two = (float(collective_seconds("all_reduce", 1e9, one).middle[0]) for one in (one, two))
    >>> at_one < at_two
    True
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import bytes_to_gigabits, gigabits_to_bytes, gigabytes_to_bytes
from lightning_predict.hardware.layouts import MACHINE_GPUS, NVLINK_DOMAINS, Layout, in_domains, largest_machine
from lightning_predict.hardware.records import NVIDIA, Gpu
from lightning_predict.hardware.slices import BETWEEN, is_slice
from lightning_predict.kernels.operations import COLLECTIVES, Array, shape_batch
from lightning_predict.uncertainty import ASSUMED_SPREAD, FORMULA_SPREAD, SURROGATE_SPREAD

if TYPE_CHECKING:
    from lightning_predict.kernels.families.collective import CollectiveCurves

NETWORK_BYTES_PER_SECOND: Final = {
    "pascal": gigabytes_to_bytes(50),
    "volta": gigabytes_to_bytes(50),
    "ampere": gigabytes_to_bytes(200),
    "hopper": gigabytes_to_bytes(400),
    "blackwell": gigabytes_to_bytes(400),
}
"""Network bandwidth of one machine with NVLink, in one direction, by architecture.

NVIDIA's data sheets list four adapters of 100 Gbit/s for the DGX-1, eight of 200 Gbit/s for the DGX A100, and eight
of 400 Gbit/s for the DGX H100 and B200."""

ETHERNET_BYTES_PER_SECOND: Final = 12_500_000_000.0  # Network bandwidth of one machine without NVLink
NETWORK_SHARE: Final = 0.9  # Share of the network's line rate that collectives reach
SOCKET_SHARE: Final = 0.5  # Share of the line rate that collectives reach with TCP sockets; the CPU copies each byte


@dataclass(frozen=True, slots=True)
class PcieMachine:
    """Kind of machine whose GPUs are connected only by PCIe."""

    words: str  # Description of the connection, for a note
    share: float  # Bus bandwidth of a large message, relative to the PCIe line rate of a card in one direction
    spread: float  # Factor from the middle to either end of an interval that covers 90 % of such machines


PCIE_MACHINES: Final[Mapping[str, PcieMachine]] = {
    "switch": PcieMachine("cards that reach each other's memory through PCIe switches", 0.62, SURROGATE_SPREAD),
    "root": PcieMachine("cards that reach each other's memory through the processor", 0.68, SURROGATE_SPREAD),
    "host": PcieMachine("no access to each other's memory, so that each byte passes the host's", 0.48, FORMULA_SPREAD),
    "virtual": PcieMachine(
        "no access to each other's memory in a virtual machine or a container, or one link that all share",
        0.1,
        ASSUMED_SPREAD,
    ),
}
"""Kinds of PCIe machines, by the keyword of `Interconnect`.

The shares come from published nccl-tests of large messages (these are training data):

* 0.61 to 0.64 behind switches (RTX PRO 6000).
* 0.59 to 0.79 through the processor (RTX 4090 and 5090 with a patched driver, RTX PRO 6000).
* 0.47 if NCCL used host memory (RTX PRO 6000).
* 0.07 to 0.12 in containers (RTX 4090).
* 0.05 to 0.16 among four and eight L40S of a machine without peer access.
* 0.08 implied by Sia's steps of eight 2080 Ti."""


PCIE_4_BYTES_PER_SECOND: Final = 32_000_000_000.0  # Line rate of PCIe 4 with 16 lanes in one direction


def pcie_machine(gpu: Gpu, word: str | None = None) -> PcieMachine:
    """Return the kind of PCIe machine for cards without NVLink.

    Args:
        gpu: GPU without NVLink.
        word: A key of `PCIE_MACHINES`; None assumes a kind from the card's properties, with a wide interval.
    """
    if word is not None:
        return PCIE_MACHINES[word]
    if gpu.has_peer_access:
        return PcieMachine("cards that reach each other's memory", 0.62, ASSUMED_SPREAD)
    if gpu.pcie_bytes_per_second < PCIE_4_BYTES_PER_SECOND:  # a PCIe 3 machine, where several cards share a link
        return PCIE_MACHINES["virtual"]
    return PcieMachine("no direct link between the cards", 0.5, ASSUMED_SPREAD)


RING_HOP_SECONDS: Final = 4e-06
TREE_HOP_SECONDS: Final = 8.5e-06
STEP_SECONDS: Final = 2e-06  # Latency of a ring or tree step over RDMA, and of a step inside a machine

CHUNK_SECONDS: Final = TREE_HOP_SECONDS
"""Latency of a chunk between a machine and the network.

A message passes both links in pipelined chunks. With n chunks, the faster link adds 1 / n of its own time, plus n
latencies. At the best n, this sum is 2 sqrt(time x latency). On two published curves of all_reduce over two machines
(1 MiB to 2 GiB; eight H200 with RoCE, eight A100 of OCI), the median errors are 8 and 11 %. Without this time, they
are 25 and 14 %, always too fast. The value was not fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """Bandwidths of the links as given by the user, in bytes per second; None uses the catalogue."""

    intra_node_bytes_per_second: float | None = None  # Bus bandwidth in one machine, as in nccl-tests ("busbw")
    inter_node_bytes_per_second: float | None = None  # Network bandwidth of one machine, in one direction
    pcie: str | None = None  # Connection of cards without NVLink (`PCIE_MACHINES`): `switch`, `root`, `host`, `virtual`

    def __post_init__(self) -> None:
        for name in ("intra_node_bytes_per_second", "inter_node_bytes_per_second"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InvalidArgumentError(f"{name}={value!r} is not a bandwidth; expected bytes per second above 0.")
        if self.pcie is not None and self.pcie not in PCIE_MACHINES:
            raise InvalidArgumentError(
                f"pcie={self.pcie!r} is not a kind of machine; expected one of {', '.join(PCIE_MACHINES)}."
            )


CATALOGUE: Final = Interconnect()


def interconnect_of(
    *, network_gbps: float | None = None, busbw: float | None = None, pcie: str | None = None
) -> Interconnect | None:
    """Return the user's values for the links, converted from Gbit/s and GB/s; None if no value is given.

    Args:
        network_gbps: Network bandwidth of one machine in one direction, in Gbit/s.
        busbw: Bus bandwidth among the GPUs of one machine, in GB/s, as printed by nccl-tests.
        pcie: A key of `PCIE_MACHINES`.
    """
    if network_gbps is None and busbw is None and pcie is None:
        return None
    for name, value, unit in (("network_gbps", network_gbps, "Gbit/s"), ("busbw", busbw, "GB/s")):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InvalidArgumentError(f"{name}={value:g} is not a bandwidth; expected {unit} above 0.")
    return Interconnect(
        intra_node_bytes_per_second=None if busbw is None else gigabytes_to_bytes(busbw),
        inter_node_bytes_per_second=None if network_gbps is None else gigabits_to_bytes(network_gbps),
        pcie=pcie,
    )


def network_bytes_per_second(layout: Layout) -> float:
    """Return the line rate of the network of one machine in one direction: the cloud's value or a default."""
    if layout.network is not None:
        return layout.network.bytes_per_second
    if layout.gpu.nvlink_bytes_per_second is None:
        return ETHERNET_BYTES_PER_SECOND
    reference = NETWORK_BYTES_PER_SECOND[layout.gpu.architecture]
    # Each GPU of a tray has its own adapter, and a domain has several trays.
    return reference * layout.gpus_per_node / MACHINE_GPUS if layout.gpu.name in NVLINK_DOMAINS else reference


def link_assumption_notes(layout: Layout, interconnect: Interconnect) -> tuple[str, ...]:
    """Return notes on assumptions about a layout's links, and the options that change these assumptions."""
    notes = []
    each = layout.gpus_per_node
    most = NVLINK_DOMAINS.get(layout.gpu.name) or largest_machine(layout.gpu)
    if most is not None and each > most:
        part = max(count for count in range(1, most + 1) if each % count == 0)
        several = replace(layout, gpus_per_node=part, nodes=layout.nodes * each // part).name
        who = "NVLink joins" if layout.gpu.name in NVLINK_DOMAINS else "A cloud's machine has"
        notes.append(
            f"{who} {most} {layout.gpu.name} at most. {each} in one machine are predicted anyway; use {several} for "
            "several machines."
        )
    if layout.gpus_per_node > 1 and layout.gpu.nvlink_bytes_per_second is None:
        known = interconnect.pcie is not None or interconnect.intra_node_bytes_per_second is not None
        machine = pcie_machine(layout.gpu)
        if not known:
            notes.append(
                f"{layout.gpu.name} in one machine: assumed {machine.words}. Set the PCIe type (pcie: switch, root, "
                "host or virtual) or the bandwidth from nccl-tests (busbw)."
            )
    if layout.nodes > 1 and interconnect.inter_node_bytes_per_second is None:
        gbits = bytes_to_gigabits(network_bytes_per_second(layout))
        if layout.network is None:
            notes.append(f"Assumed: {gbits:,.0f} Gbit/s between machines. Set another value with network_gbps.")
        else:
            own = layout.network
            whose = own.machine if layout.machine is not None else f"{own.machine}, whose price is used,"
            notes.append(f"Network: {gbits:,g} Gbit/s between machines, as in {whose} ({own.kind}; {own.source}).")
    return tuple(notes)


def check_communication(layout: Layout) -> None:
    """Reject a layout of several GPUs that cannot communicate, or whose communication cannot be predicted.

    Other vendors' GPUs have neither measurements nor published figures. MIG slices cannot access each other's memory,
    CUDA gives a process only one slice, and NCCL cannot connect slices of one machine (NVIDIA/nccl, issue 1716, 2025).
    """
    if layout.gpus_per_node > 1 and is_slice(layout.gpu):
        whole = layout.gpu.name.partition(BETWEEN)[0]
        raise InvalidArgumentError(
            f"{layout.name} has {layout.gpus_per_node} slices in a machine, which NCCL does not join. Ask for one, "
            f"{layout.gpu.name!r}, or for whole GPUs, '{layout.gpus_per_node}x{whole}'."
        )
    if layout.count > 1 and layout.gpu.vendor != NVIDIA:
        raise InvalidArgumentError(
            f"{layout.name} has {layout.count} GPUs of {layout.gpu.vendor}'s; collectives are known of NVIDIA's alone "
            f"(NCCL over NVLink, PCIe and networks). Ask for one: {layout.gpu.name!r}."
        )


def collective_seconds(
    operation: str,
    message_bytes: float | Sequence[float] | Array,
    layout: Layout,
    *,
    interconnect: Interconnect = CATALOGUE,
    groups_per_node: int = 1,
) -> Interval[Array]:
    """Predict the time of a collective over all GPUs of a layout.

    Args:
        operation: `all_reduce`, `all_gather`, `reduce_scatter`, `alltoall` or `broadcast`.
        message_bytes: Sizes of the whole message (for all_gather: of the result of each GPU).
        layout: The participating GPUs. A single GPU takes no time.
        interconnect: Bandwidths given by the user.
        groups_per_node: Number of groups per machine that communicate at the same time and share its network adapters.

    Returns:
        Seconds, arrays of shape (messages,).
    """
    check_communication(layout)
    if operation not in COLLECTIVES:
        raise InvalidArgumentError(f"{operation!r} is not a collective; choose one of {', '.join(COLLECTIVES)}.")
    messages = np.atleast_1d(np.asarray(message_bytes, dtype=np.float64))
    if not (np.isfinite(messages).all() and (messages >= 0).all()):
        raise InvalidArgumentError(f"message_bytes={message_bytes!r}; expected sizes of at least 0 bytes.")
    layout = in_domains(layout)
    inside = Interval.from_factor(np.zeros_like(messages), 1.0)
    if layout.gpus_per_node > 1:
        inside = _inside(operation, messages, layout, interconnect)
    if layout.nodes == 1:
        return inside
    from lightning_predict.kernels.families.collective import bundled_curves

    spread = math.exp(bundled_curves().half_width) * FORMULA_SPREAD
    paths = [_path(operation, messages, layout, interconnect, groups_per_node, is_tree=False)]
    if operation == "all_reduce":
        paths.append(_path(operation, messages, layout, interconnect, groups_per_node, is_tree=True))

    def least(inside_seconds: Array, factor: float) -> Array:
        """Return the time of the fastest algorithm if the time between machines is multiplied by `factor`."""
        each = [
            np.maximum(inside_seconds, sent * factor)
            + 2 * np.sqrt(CHUNK_SECONDS * np.minimum(inside_seconds, sent * factor))
            + hops * factor
            for sent, hops in paths
        ]
        shortest: Array = np.min(each, axis=0)
        return shortest

    return inside.map(least, Interval.from_factor(1.0, spread))


def _inside(operation: str, messages: Array, layout: Layout, interconnect: Interconnect) -> Interval[Array]:
    """Return the time of a collective among the GPUs of one machine."""
    from lightning_predict.kernels.families.collective import bundled_curves

    curves = bundled_curves()
    own = np.maximum(messages, 1.0)
    batch = shape_batch(operation, "float16", num_gpus=layout.gpus_per_node, message_bytes=own)
    bus, spread = interconnect.intra_node_bytes_per_second, math.exp(curves.half_width)
    if bus is None and layout.gpu.nvlink_bytes_per_second is None:
        kind = pcie_machine(layout.gpu, interconnect.pcie)
        bus, spread = kind.share * layout.gpu.pcie_bytes_per_second, kind.spread
    if bus is None:
        return curves.estimate(batch, [layout.gpu]).interval.map(lambda seconds: seconds[0])
    seconds = _latency(curves, operation, layout) + bus_factor(operation, layout.gpus_per_node) * messages / bus
    return Interval.from_factor(seconds, spread)


def bus_factor(operation: str, count: int) -> float:
    """Return bytes per GPU link divided by bytes of the message (nccl-tests' "busbw" over "algbw")."""
    share = (count - 1) / count
    return {"all_reduce": 2 * share, "broadcast": 1.0}.get(operation, share)


def _latency(curves: CollectiveCurves, operation: str, layout: Layout) -> float:
    smallest = shape_batch(operation, "float16", num_gpus=layout.gpus_per_node, message_bytes=1.0)
    return float(curves.estimate(smallest, [layout.gpu]).seconds[0, 0])


def _path(
    operation: str, messages: Array, layout: Layout, interconnect: Interconnect, groups_per_node: int, *, is_tree: bool
) -> tuple[Array, float]:
    """Return the seconds of the data in a machine's network, and the latency of all steps between machines."""
    share = SOCKET_SHARE if layout.network is not None and not layout.network.has_rdma else NETWORK_SHARE
    network = interconnect.inter_node_bytes_per_second or share * network_bytes_per_second(layout)
    nodes, per_node = layout.nodes, layout.gpus_per_node
    passes = 2 if operation == "all_reduce" else 1
    if operation == "alltoall":  # each GPU of the machine sends only the data for other machines
        sent, hops = per_node * (nodes - 1) / nodes, RING_HOP_SECONDS * math.log2(nodes)
    elif is_tree:
        sent, hops = bus_factor(operation, nodes), TREE_HOP_SECONDS * passes * math.log2(nodes)
    else:
        sent = bus_factor(operation, layout.count)
        hops = passes * (nodes - 1) * (RING_HOP_SECONDS + (per_node - 1) * STEP_SECONDS)
    return sent * messages * max(groups_per_node, _rail_limit(layout, interconnect)) / network, hops


def _rail_limit(layout: Layout, interconnect: Interconnect) -> float:
    """Return a machine's network bandwidth divided by the bandwidth of the rails that the layout uses.

    A bandwidth given by the user applies to the GPUs in use. Machines without NVLink have one adapter for all GPUs.
    """
    if interconnect.inter_node_bytes_per_second is not None or layout.gpu.nvlink_bytes_per_second is None:
        return 1.0
    if layout.gpu.name in NVLINK_DOMAINS:
        return 1.0
    if layout.network is None:
        return max(MACHINE_GPUS / layout.gpus_per_node, 1.0)
    return max(min(layout.network.gpus / layout.gpus_per_node, layout.network.adapters), 1.0)
