"""Collectives over a layout: inside a machine by measured curves, between machines by their network.

NCCL runs rings (or trees) that pass through every machine: the slower of the two fabrics sets the pace, and the
latencies add. Between machines a ring all-reduce of m bytes sends 2 (N - 1) / N x m through each machine's network,
all_gather and reduce_scatter half of it, and an all-to-all what goes to other machines. What a system has between its
machines is for the user to say (`Interconnect`); the figures here are those of the vendor's reference systems, and
100 Gbit/s Ethernet for machines without NVLink. Example::

    >>> from lightning_predict.gpus.layouts import layout_of
    >>> one, two = layout_of("8xA100-SXM-80GB"), layout_of("2x8xA100-SXM-80GB")
    >>> at_one, at_two = (float(collective("all_reduce", 1e9, one).seconds[0]) for one in (one, two))
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
from lightning_predict.kernels.collective import COLLECTIVES, UNFITTED_SPREAD, CollectiveCurves, bundled_curves
from lightning_predict.kernels.operations import Array, problem_batch
from lightning_predict.kernels.utilisation import Estimate
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

ETHERNET_BYTES_PER_SECOND: Final = gigabytes_to_bytes(12.5)
"""Network of one machine without NVLink: 100 Gbit/s, an assumption that holds for large cloud machines of such GPUs."""

NETWORK_SHARE: Final = 0.9
"""Share of a network's line rate that collectives reach. An assumption."""

HOP_SECONDS: Final = 10 * MICROSECOND
"""Latency that a step from one machine to another adds. An assumption, for RDMA; TCP takes several times as long."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """What a user knows of the links, in bytes per second; None where the catalogue's figures shall count.

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
    """Network of one machine of these GPUs, one direction, where nobody says."""
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
) -> Estimate:
    """Seconds of a collective over all GPUs of a layout.

    Args:
        operation: `all_reduce`, `all_gather`, `reduce_scatter`, `alltoall` or `broadcast`.
        message_bytes: The whole message (of all_gather: what every GPU holds in the end), one or several.
        layout: The GPUs that take part. A single one takes no time.
        interconnect: What is known of the links.
        groups_per_node: Such groups in each machine that communicate at once and share its network.

    Returns:
        Seconds with their 90 % interval, each of shape (messages,).

    Raises:
        InvalidArgumentError: A collective that is not known, or a message that is negative.
    """
    if operation not in COLLECTIVES:
        raise InvalidArgumentError(f"{operation!r} is not a collective; choose one of {', '.join(COLLECTIVES)}.")
    messages = np.atleast_1d(np.asarray(message_bytes, dtype=np.float64))
    if not (np.isfinite(messages).all() and (messages >= 0).all()):
        raise InvalidArgumentError(f"message_bytes={message_bytes!r}; expected sizes of at least 0 bytes.")
    zeros = np.zeros_like(messages)
    inside = Estimate(zeros, zeros, zeros)
    if layout.gpus_per_node > 1:
        inside = _inside(operation, messages, layout, interconnect)
    if layout.nodes == 1:
        return inside
    between = _between(operation, messages, layout, interconnect, groups_per_node)
    hops = HOP_SECONDS * math.log2(layout.nodes) * (2 if operation == "all_reduce" else 1)
    spread = np.exp(bundled_curves().half_width) * UNFITTED_SPREAD
    return Estimate(
        np.maximum(inside.seconds, between) + hops,
        np.maximum(inside.low_seconds, between / spread) + hops / spread,
        np.maximum(inside.high_seconds, between * spread) + hops * spread,
    )


def _inside(operation: str, messages: Array, layout: Layout, interconnect: Interconnect) -> Estimate:
    """Among the GPUs of one machine."""
    curves = bundled_curves()
    own = np.maximum(messages, 1.0)
    batch = problem_batch(operation, "float16", num_gpus=layout.gpus_per_node, message_bytes=own)
    bus = interconnect.intra_node_bytes_per_second
    if bus is None:
        found = curves.estimate(batch, [layout.gpu])
        return Estimate(found.seconds[0], found.low_seconds[0], found.high_seconds[0])
    seconds = _latency(curves, operation, layout) + bus_factor(operation, layout.gpus_per_node) * messages / bus
    spread = np.exp(curves.half_width)
    return Estimate(seconds, seconds / spread, seconds * spread)


def bus_factor(operation: str, count: int) -> float:
    """Bytes that pass each GPU's link over the bytes of the message (nccl-tests' "busbw" over "algbw")."""
    share = (count - 1) / count
    return {"all_reduce": 2 * share, "broadcast": 1.0}.get(operation, share)


def _latency(curves: CollectiveCurves, operation: str, layout: Layout) -> float:
    smallest = problem_batch(operation, "float16", num_gpus=layout.gpus_per_node, message_bytes=1.0)
    return float(curves.estimate(smallest, [layout.gpu]).seconds[0, 0])


def _between(
    operation: str, messages: Array, layout: Layout, interconnect: Interconnect, groups_per_node: int
) -> Array:
    """Time in the network of the machine that sends most."""
    network = interconnect.inter_node_bytes_per_second or NETWORK_SHARE * network_bytes_per_second(layout.gpu)
    sent = bus_factor(operation, layout.nodes)
    if operation == "alltoall":  # each GPU of the machine sends what is for other machines
        sent = layout.gpus_per_node * (layout.nodes - 1) / layout.nodes
    seconds: Array = sent * messages * groups_per_node / network
    return seconds
