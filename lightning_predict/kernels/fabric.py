"""Time collectives over a layout: inside a machine by measured curves, between machines by their network.

NCCL has two algorithms between machines. A ring passes through all n = N x g GPUs: all_gather and reduce_scatter send
(n - 1) / n of the message through each machine's network, all_reduce twice that, in n - 1 steps (or twice as many). A
tree, for all_reduce alone, joins the machines: 2 (N - 1) / N of the message, in 2 log2 N steps; the faster of the two
counts. The slower of the two fabrics sets the pace, and the latencies of all steps add: with many machines and small
messages they are all there is. Groups that communicate at once share a machine's network, and each GPU has its rail, a
part of the adapters that it cannot exceed. An all-to-all sends what goes to other machines. What a system has between
its machines is for the user to say (`Interconnect`); the figures here are those of the vendor's reference systems, and
100 Gbit/s Ethernet for machines without NVLink. Example::

    >>> from lightning_predict.gpus.layouts import layout_of
    >>> one, two = layout_of("8xA100-SXM-80GB"), layout_of("2x8xA100-SXM-80GB")
    >>> at_one, at_two = (float(collective("all_reduce", 1e9, one).middle[0]) for one in (one, two))
    >>> at_one < at_two
    True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus.layouts import Layout
from lightning_predict.gpus.records import Gpu
from lightning_predict.interval import Interval
from lightning_predict.kernels.collective import COLLECTIVES, UNFITTED_SPREAD, CollectiveCurves, bundled_curves
from lightning_predict.kernels.operations import Array, problem_batch
from lightning_predict.units import MICROSECOND, gigabytes_to_bytes

NETWORK_BYTES_PER_SECOND: Final = {
    "pascal": gigabytes_to_bytes(50),
    "volta": gigabytes_to_bytes(50),
    "ampere": gigabytes_to_bytes(200),
    "hopper": gigabytes_to_bytes(400),
    "blackwell": gigabytes_to_bytes(400),
}
"""Network of one machine with NVLink, one direction, by architecture: four adapters of 100 Gbit/s (DGX-1), eight of 200
(DGX A100), eight of 400 (DGX H100 and B200), as NVIDIA's data sheets of these systems say."""

RAIL_GPUS: Final = 8
"""GPUs of those reference systems, which share the adapters evenly: each sends through its own part of them, its rail,
and reaches no more of the network where the other GPUs are silent, or not there (NCCL's rings stay on their rails)."""

ETHERNET_BYTES_PER_SECOND: Final = gigabytes_to_bytes(12.5)
"""Network of one machine without NVLink: 100 Gbit/s, an assumption that holds for large cloud machines of such GPUs."""

NETWORK_SHARE: Final = 0.9
"""Share of a network's line rate that collectives reach. An assumption."""

RING_HOP_SECONDS: Final = 4 * MICROSECOND
TREE_HOP_SECONDS: Final = 8.5 * MICROSECOND
NVLINK_STEP_SECONDS: Final = 1.9 * MICROSECOND
PCIE_STEP_SECONDS: Final = 2.5 * MICROSECOND
"""Latency of a step of a ring or a tree over RDMA, and of a step inside a machine: what NCCL itself reckons with when
it chooses an algorithm (its protocol LL128; src/graph/tuning.cc, hardware latencies). TCP takes several times as
long."""

TREE_SHARE: Final = 0.92
"""Bandwidth of a tree over that of a ring, from the same place."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """The links as a user knows them, in bytes per second; None if the catalogue's figures shall count.

    Attributes:
        intra_node_bytes_per_second: Bus bandwidth among the GPUs of one machine, as nccl-tests print it ("busbw").
        inter_node_bytes_per_second: Network of one machine, one direction.
    """

    intra_node_bytes_per_second: float | None = None
    inter_node_bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        for name in ("intra_node_bytes_per_second", "inter_node_bytes_per_second"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InvalidArgumentError(f"{name}={value!r} is not a bandwidth; expected bytes per second above 0.")


CATALOGUE: Final = Interconnect()


def network_bytes_per_second(gpu: Gpu) -> float:
    """Look up the network of one machine of these GPUs, one direction, by default."""
    if gpu.nvlink_bytes_per_second is None:
        return ETHERNET_BYTES_PER_SECOND
    return NETWORK_BYTES_PER_SECOND[gpu.architecture]


def collective(
    operation: str,
    message_bytes: float | Sequence[float] | Array,
    layout: Layout,
    *,
    interconnect: Interconnect = CATALOGUE,
    groups_per_node: int = 1,
) -> Interval[Array]:
    """Time a collective over all GPUs of a layout.

    Args:
        operation: `all_reduce`, `all_gather`, `reduce_scatter`, `alltoall` or `broadcast`.
        message_bytes: The whole message (of all_gather: what every GPU holds in the end), one or several.
        layout: The GPUs that take part. A single one takes no time.
        interconnect: What is known of the links.
        groups_per_node: Such groups in each machine that communicate at once and share its network.

    Returns:
        Seconds, arrays of shape (messages,).

    Raises:
        InvalidArgumentError: A collective that is not known, or a message that is negative.
    """
    if operation not in COLLECTIVES:
        raise InvalidArgumentError(f"{operation!r} is not a collective; choose one of {', '.join(COLLECTIVES)}.")
    messages = np.atleast_1d(np.asarray(message_bytes, dtype=np.float64))
    if not (np.isfinite(messages).all() and (messages >= 0).all()):
        raise InvalidArgumentError(f"message_bytes={message_bytes!r}; expected sizes of at least 0 bytes.")
    inside = Interval.around(np.zeros_like(messages), 1.0)
    if layout.gpus_per_node > 1:
        inside = _inside(operation, messages, layout, interconnect)
    if layout.nodes == 1:
        return inside
    spread = math.exp(bundled_curves().half_width) * UNFITTED_SPREAD
    paths = [_path(operation, messages, layout, interconnect, groups_per_node, is_tree=False)]
    if operation == "all_reduce":
        paths.append(_path(operation, messages, layout, interconnect, groups_per_node, is_tree=True))

    def least(inside_seconds: Array, factor: float) -> Array:
        """Time the fastest of the algorithms, whose network takes so many times as long."""
        each = [np.maximum(inside_seconds, sent * factor) + hops * factor for sent, hops in paths]
        shortest: Array = np.min(each, axis=0)
        return shortest

    return inside.each(least, Interval.around(1.0, spread))


def _inside(operation: str, messages: Array, layout: Layout, interconnect: Interconnect) -> Interval[Array]:
    """Time a collective among the GPUs of one machine."""
    curves = bundled_curves()
    own = np.maximum(messages, 1.0)
    batch = problem_batch(operation, "float16", num_gpus=layout.gpus_per_node, message_bytes=own)
    bus = interconnect.intra_node_bytes_per_second
    if bus is None:
        return curves.estimate(batch, [layout.gpu]).interval.each(lambda seconds: seconds[0])
    seconds = _latency(curves, operation, layout) + bus_factor(operation, layout.gpus_per_node) * messages / bus
    return Interval.around(seconds, math.exp(curves.half_width))


def bus_factor(operation: str, count: int) -> float:
    """Divide the bytes that pass each GPU's link by those of the message (nccl-tests' "busbw" over "algbw")."""
    share = (count - 1) / count
    return {"all_reduce": 2 * share, "broadcast": 1.0}.get(operation, share)


def _latency(curves: CollectiveCurves, operation: str, layout: Layout) -> float:
    smallest = problem_batch(operation, "float16", num_gpus=layout.gpus_per_node, message_bytes=1.0)
    return float(curves.estimate(smallest, [layout.gpu]).seconds[0, 0])


def _path(
    operation: str,
    messages: Array,
    layout: Layout,
    interconnect: Interconnect,
    groups_per_node: int,
    *,
    is_tree: bool,
) -> tuple[Array, float]:
    """Time the network of a machine, and the latency of all steps beyond those inside one machine."""
    network = interconnect.inter_node_bytes_per_second or NETWORK_SHARE * network_bytes_per_second(layout.gpu)
    nodes, per_node = layout.nodes, layout.gpus_per_node
    passes = 2 if operation == "all_reduce" else 1
    if operation == "alltoall":  # each GPU of the machine sends what is for other machines
        sent, hops = per_node * (nodes - 1) / nodes, RING_HOP_SECONDS * math.log2(nodes)
    elif is_tree:
        sent, hops = bus_factor(operation, nodes) / TREE_SHARE, TREE_HOP_SECONDS * passes * math.log2(nodes)
    else:
        has_nvlink = layout.gpu.nvlink_bytes_per_second is not None
        step = NVLINK_STEP_SECONDS if has_nvlink else PCIE_STEP_SECONDS
        sent = bus_factor(operation, layout.count)
        hops = passes * (nodes - 1) * (RING_HOP_SECONDS + (per_node - 1) * step)
    return sent * messages * max(groups_per_node, _rail_limit(layout, interconnect)) / network, hops


def _rail_limit(layout: Layout, interconnect: Interconnect) -> float:
    """Return how many times a machine's network exceeds what the rails of the layout's GPUs in it carry.

    Where a user says what a machine's network carries, that is what its GPUs reach; machines without NVLink have one
    adapter for all.
    """
    if interconnect.inter_node_bytes_per_second is not None or layout.gpu.nvlink_bytes_per_second is None:
        return 1.0
    return max(RAIL_GPUS / layout.gpus_per_node, 1.0)
