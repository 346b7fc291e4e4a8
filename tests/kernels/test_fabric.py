"""Collectives over machines: by hand where the user says the bandwidths, relations where the curves say them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus import gpu
from lightning_predict.gpus.layouts import Layout, layout_of
from lightning_predict.kernels.collective import COLLECTIVES
from lightning_predict.kernels.fabric import (
    ETHERNET_BYTES_PER_SECOND,
    NETWORK_SHARE,
    NVLINK_STEP_SECONDS,
    RING_HOP_SECONDS,
    TREE_HOP_SECONDS,
    TREE_SHARE,
    Interconnect,
    bus_factor,
    collective,
    network_bytes_per_second,
)

EIGHT = layout_of("8xH100-SXM-80GB")


def seconds(operation: str, size: float, layout: Layout, interconnect: Interconnect | None = None) -> float:
    return float(collective(operation, size, layout, interconnect=interconnect or Interconnect()).middle[0])


def test_one_gpu_has_nothing_to_send() -> None:
    assert seconds("all_reduce", 1e9, layout_of("T4")) == 0


def test_in_one_machine_the_measured_curve_counts() -> None:
    # 8 H100, 536,870,912 bytes: 2.11 ms in three builds of NVIDIA's aiconfigurator tables (NCCL 2.27).
    assert seconds("all_reduce", 536_870_912, EIGHT) == pytest.approx(2.11e-3, rel=0.05)


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        ("all_reduce", 2 * 7 / 8),
        ("all_gather", 7 / 8),
        ("reduce_scatter", 7 / 8),
        ("alltoall", 7 / 8),
        ("broadcast", 1),
    ],
)
def test_a_bus_bandwidth_that_the_user_measured_decides(operation: str, factor: float) -> None:
    # 80 GB over 10 GB/s, times the bytes that pass a link over the message's: 8 s x factor; the latency is some 10 us.
    assert bus_factor(operation, 8) == factor
    found = seconds(operation, 80e9, EIGHT, Interconnect(intra_node_bytes_per_second=10e9))
    assert found == pytest.approx(8 * factor, rel=1e-4)


def test_between_machines_the_network_of_a_machine_decides_where_it_is_the_slower() -> None:
    # A tree over two machines: 2 (2 - 1) / 2 x 10 GB = 10 GB through 92 % of a network of 1 GB/s, and two hops of
    # 8.5 us. A ring of 16 GPUs would send 2 x 15 / 16 x 10 GB.
    slow = Interconnect(inter_node_bytes_per_second=1e9)
    tree = 10 / TREE_SHARE + 2 * TREE_HOP_SECONDS
    assert seconds("all_reduce", 10e9, layout_of("2x8xH100"), slow) == pytest.approx(tree, rel=1e-6)
    # There is no tree for all_gather: 15 / 16 of the message passes every link of the ring.
    ring = 9.375 + RING_HOP_SECONDS + 7 * NVLINK_STEP_SECONDS
    assert seconds("all_gather", 10e9, layout_of("2x8xH100"), slow) == pytest.approx(ring, rel=1e-6)
    # An all-to-all sends 8 GPUs x 1/2 of 10 GB.
    assert seconds("alltoall", 10e9, layout_of("2x8xH100"), slow) == pytest.approx(40 + RING_HOP_SECONDS)
    # Groups of one GPU of each machine, eight at once, share the network; a ring of two sends as much as a tree.
    shared = collective("all_reduce", 10e9, Layout(EIGHT.gpu, 1, 2), interconnect=slow, groups_per_node=8)
    assert float(shared.middle[0]) == pytest.approx(80 + 2 * RING_HOP_SECONDS)


def test_small_messages_over_many_machines_cost_the_latency_of_every_step() -> None:
    # 128 machines of eight: a ring takes 127 x (4 us + 7 x 1.9 us) = 2.2 ms more than a machine alone; a tree, which
    # all_reduce may choose, 2 x 7 x 8.5 us = 119 us more.
    fast = Interconnect(inter_node_bytes_per_second=1e15)
    many = layout_of("128x8xH100")
    gathered = seconds("all_gather", 1e3, many, fast) - seconds("all_gather", 1e3, EIGHT)
    assert gathered == pytest.approx(127 * (4e-6 + 7 * 1.9e-6), rel=1e-6)
    added = seconds("all_reduce", 1e3, many, fast) - seconds("all_reduce", 1e3, EIGHT)
    assert added == pytest.approx(119e-6, rel=1e-6)


def test_a_fast_network_leaves_the_links_inside_as_the_limit() -> None:
    fast = Interconnect(inter_node_bytes_per_second=1e15)
    inside = seconds("all_reduce", 10e9, EIGHT)
    hops = 2 * TREE_HOP_SECONDS
    assert seconds("all_reduce", 10e9, layout_of("2x8xH100"), fast) == pytest.approx(inside + hops, rel=1e-6)


def test_a_gpu_sends_through_its_own_rail() -> None:
    # Eight adapters of 400 Gbit/s, one a GPU: 9 of 10 bytes of its 50 GB/s. A ring of 16 GPUs, one in each machine,
    # passes 15/16 of 48 GB through each rail: 1 s, whether the other seven GPUs are silent or send as well.
    alone = layout_of("16x1xH100-SXM-80GB")
    assert seconds("all_gather", 48e9, alone) == pytest.approx(1.0, rel=0.01)
    together = float(collective("all_gather", 48e9, alone, groups_per_node=8).middle[0])
    assert together == pytest.approx(seconds("all_gather", 48e9, alone))
    # Two such groups on four rails do not wait for each other; sixteen on eight rails would take twice as long.
    pairs = layout_of("16x4xH100-SXM-80GB")
    assert float(collective("all_gather", 48e9, pairs, groups_per_node=2).middle[0]) == pytest.approx(
        seconds("all_gather", 48e9, pairs)
    )
    assert float(collective("all_gather", 48e9, alone, groups_per_node=16).middle[0]) == pytest.approx(2, rel=0.01)
    # What a user says of a machine's network, its GPUs reach, however many they are.
    said = Interconnect(inter_node_bytes_per_second=45e9)
    assert seconds("all_gather", 48e9, alone, said) == pytest.approx(1.0, rel=0.01)


def test_networks_by_generation() -> None:
    assert network_bytes_per_second(gpu("H100-SXM-80GB")) == 400e9  # eight adapters of 400 Gbit/s
    assert network_bytes_per_second(gpu("L4")) == ETHERNET_BYTES_PER_SECOND
    assert seconds("all_gather", 1e9, layout_of("2x1xL4")) == pytest.approx(
        0.5e9 / (NETWORK_SHARE * ETHERNET_BYTES_PER_SECOND) + RING_HOP_SECONDS
    )


@given(
    st.sampled_from(COLLECTIVES),
    st.sampled_from(["T4", "RTX-3090", "V100-SXM2-16GB", "A100-SXM-80GB", "L40S", "B200-SXM-180GB", "H100-PCIe-80GB"]),
    st.integers(1, 8),
    st.integers(1, 8),
    st.floats(0, 35),
)
def test_time_grows_with_bytes_and_is_inside_its_interval(
    operation: str, name: str, per_node: int, nodes: int, exponent: float
) -> None:
    layout = Layout(gpu(name), per_node, nodes)
    found = collective(operation, [2.0**exponent, 2.0 ** (exponent + 1)], layout)
    assert np.isfinite(found.middle).all()
    assert found.middle[0] <= found.middle[1] * (1 + 1e-9)
    assert (found.low <= found.middle * (1 + 1e-12)).all()
    assert (found.middle <= found.high * (1 + 1e-12)).all()
    assert (found.middle > 0).all() == (layout.count > 1)


@given(st.floats(16, 33))
def test_without_peer_access_more_gpus_never_gain_and_a_faster_card_gains_nothing_beyond_two(exponent: float) -> None:
    size = 2.0**exponent
    times = [seconds("all_reduce", size, Layout(gpu("RTX-3090"), count)) for count in (2, 4, 8)]
    assert times == sorted(times)
    faster = seconds("all_reduce", size, Layout(gpu("RTX-5090"), 8))  # twice the link
    assert faster == pytest.approx(times[2], rel=0.02)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_bandwidth_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"inter_node_bytes_per_second=.* is not a bandwidth; expected"):
        Interconnect(inter_node_bytes_per_second=value)


def test_unknown_collectives_and_negative_messages_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'gossip' is not a collective; choose one of all_reduce"):
        collective("gossip", 1.0, EIGHT)
    with pytest.raises(InvalidArgumentError, match="expected sizes of at least 0 bytes"):
        collective("all_reduce", -1.0, EIGHT)
