"""Collectives over machines: by hand where the user says the bandwidths, relations where the curves say them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout, in_domains, layout_of
from lightning_predict.kernels.interconnect import (
    CATALOGUE,
    CHUNK_SECONDS,
    ETHERNET_BYTES_PER_SECOND,
    NETWORK_SHARE,
    PCIE_MACHINES,
    RING_HOP_SECONDS,
    SOCKET_SHARE,
    STEP_SECONDS,
    TREE_HOP_SECONDS,
    Interconnect,
    bus_factor,
    collective_seconds,
    interconnect_of,
    link_assumption_notes,
    network_bytes_per_second,
)
from lightning_predict.kernels.operations import COLLECTIVES

EIGHT = layout_of("8xH100-SXM-80GB")


def seconds(operation: str, size: float, layout: Layout, interconnect: Interconnect | None = None) -> float:
    return float(collective_seconds(operation, size, layout, interconnect=interconnect or Interconnect()).middle[0])


def chunks(shorter: float) -> float:
    """Add the time of the best number of chunks of a message to pass the faster of two fabrics."""
    return 2 * math.sqrt(CHUNK_SECONDS * shorter)


def test_measured_curve_counts_in_a_machine_and_chunks_between_machines() -> None:
    # 8 H100, 536,870,912 bytes: 2.11 ms in three builds of NVIDIA's aiconfigurator tables (NCCL 2.27).
    assert seconds("all_reduce", 536_870_912, EIGHT) == pytest.approx(2.11e-3, rel=0.05)
    # nccl-tests over two machines of eight H200 (RoCE, eight adapters of 400 Gbit/s): us at 4, 64 and 512 MiB.
    for mebibytes, microseconds in ((4, 106.1), (64, 461.0), (512, 2327.1)):
        duration = seconds("all_reduce", mebibytes * 2**20, layout_of("2x8xH200-SXM-141GB"))
        assert duration == pytest.approx(microseconds * 1e-6, rel=0.15)
    assert seconds("all_reduce", 1e9, layout_of("T4")) == 0


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
    duration = seconds(operation, 80e9, EIGHT, Interconnect(intra_node_bytes_per_second=10e9))
    assert duration == pytest.approx(8 * factor, rel=1e-4)


def test_between_machines_the_network_of_a_machine_decides_where_it_is_the_slower() -> None:
    # A tree over two machines: 2 (2 - 1) / 2 x 10 GB = 10 GB through a network of 1 GB/s, and two hops of
    # 8.5 us. A ring of 16 GPUs would send 2 x 15 / 16 x 10 GB.
    slow = Interconnect(inter_node_bytes_per_second=1e9)
    tree = 10 + 2 * TREE_HOP_SECONDS + chunks(seconds("all_reduce", 10e9, EIGHT))
    assert seconds("all_reduce", 10e9, layout_of("2x8xH100"), slow) == pytest.approx(tree, rel=1e-6)
    # There is no tree for all_gather: 15 / 16 of the message passes every link of the ring.
    ring = 9.375 + RING_HOP_SECONDS + 7 * STEP_SECONDS + chunks(seconds("all_gather", 10e9, EIGHT))
    assert seconds("all_gather", 10e9, layout_of("2x8xH100"), slow) == pytest.approx(ring, rel=1e-6)
    # An all-to-all sends 8 GPUs x 1/2 of 10 GB.
    assert seconds("alltoall", 10e9, layout_of("2x8xH100"), slow) == pytest.approx(
        40 + RING_HOP_SECONDS + chunks(seconds("alltoall", 10e9, EIGHT))
    )
    # Groups of one GPU of each machine, eight at once, share the network; a ring of two sends as much as a tree.
    shared = collective_seconds("all_reduce", 10e9, Layout(EIGHT.gpu, 1, 2), interconnect=slow, groups_per_node=8)
    assert float(shared.middle[0]) == pytest.approx(80 + 2 * RING_HOP_SECONDS)


def test_small_messages_over_many_machines_cost_the_latency_of_every_step() -> None:
    # 128 machines of eight: a ring takes 127 x (4 us + 7 x 2 us) = 2.3 ms more than a machine alone; a tree, which
    # all_reduce may choose, 2 x 7 x 8.5 us = 119 us more.
    fast = Interconnect(inter_node_bytes_per_second=1e24)
    many = layout_of("128x8xH100")
    gathered = seconds("all_gather", 1e3, many, fast) - seconds("all_gather", 1e3, EIGHT)
    assert gathered == pytest.approx(127 * (4e-6 + 7 * 2e-6), rel=1e-6)
    added = seconds("all_reduce", 1e3, many, fast) - seconds("all_reduce", 1e3, EIGHT)
    assert added == pytest.approx(119e-6, rel=1e-6)


def test_a_gpu_sends_through_its_own_rail() -> None:
    # Eight adapters of 400 Gbit/s, one a GPU: 9 of 10 bytes of its 50 GB/s. A ring of 16 GPUs, one in each machine,
    # passes 15/16 of 48 GB through each rail: 1 s, whether the other seven GPUs are silent or send as well.
    alone = layout_of("16x1xH100-SXM-80GB")
    assert seconds("all_gather", 48e9, alone) == pytest.approx(1.0, rel=0.01)
    together = float(collective_seconds("all_gather", 48e9, alone, groups_per_node=8).middle[0])
    assert together == pytest.approx(seconds("all_gather", 48e9, alone))
    # Two such groups on four rails do not wait for each other; sixteen on eight rails would take twice as long.
    pairs = layout_of("16x4xH100-SXM-80GB")
    assert float(collective_seconds("all_gather", 48e9, pairs, groups_per_node=2).middle[0]) == pytest.approx(
        seconds("all_gather", 48e9, pairs)
    )
    assert float(collective_seconds("all_gather", 48e9, alone, groups_per_node=16).middle[0]) == pytest.approx(
        2, rel=0.01
    )
    # GPUs reach the network bandwidth that a user states, however many they are.
    said = Interconnect(inter_node_bytes_per_second=45e9)
    assert seconds("all_gather", 48e9, alone, said) == pytest.approx(1.0, rel=0.01)


def test_networks_by_generation_machine_and_rdma() -> None:
    assert network_bytes_per_second(layout_of("2x8xH100-SXM-80GB")) == 400e9  # eight adapters of 400 Gbit/s
    assert network_bytes_per_second(layout_of("2x8xL4")) == ETHERNET_BYTES_PER_SECOND
    assert seconds("all_gather", 1e9, layout_of("2x1xL4")) == pytest.approx(
        0.5e9 / (NETWORK_SHARE * ETHERNET_BYTES_PER_SECOND) + RING_HOP_SECONDS
    )
    # p4d's eight GPUs share four adapters, so that four reach half of them; p3dn has one, which four may fill.
    for machine, part in (("p4d.24xlarge", 2.0), ("p3dn.24xlarge", 1.0)):
        whole = layout_of(f"2x{machine}")
        half = replace(whole, gpus_per_node=4)
        sent = 7 / 8 * 10e9 * part / (0.9 * network_bytes_per_second(whole))  # ring of eight: 7 / 8 of the message
        assert seconds("all_gather", 10e9, half) == pytest.approx(sent, rel=0.1)
    plain = layout_of("2xa2-highgpu-8g")  # 100 Gbit/s through TCP
    assert seconds("all_gather", 10e9, plain) == pytest.approx(10 * 15 / 16 / (SOCKET_SHARE * 12.5), rel=1e-3)
    fast = Interconnect(inter_node_bytes_per_second=1e15)
    inside = seconds("all_reduce", 10e9, EIGHT)
    added = 2 * TREE_HOP_SECONDS + chunks(10e9 / 1e15)
    assert seconds("all_reduce", 10e9, layout_of("2x8xH100"), fast) == pytest.approx(inside + added, rel=1e-6)


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
    times = collective_seconds(operation, [2.0**exponent, 2.0 ** (exponent + 1)], layout)
    assert np.isfinite(times.middle).all()
    assert times.middle[0] <= times.middle[1] * (1 + 1e-6)
    assert (times.low <= times.middle * (1 + 1e-12)).all()
    assert (times.middle <= times.high * (1 + 1e-12)).all()
    assert (times.middle > 0).all() == (layout.count > 1)


def test_a_named_machine_brings_its_network() -> None:
    """400 Gbit/s join p4d.24xlarge, where eight A100 of a reference system have 1,600."""
    named, reference = layout_of("4xp4d.24xlarge"), layout_of("4x8xA100-SXM-40GB")
    assert network_bytes_per_second(named) == network_bytes_per_second(reference) / 4 == 50e9
    assert seconds("all_gather", 10e9, named) == pytest.approx(4 * seconds("all_gather", 10e9, reference), rel=0.03)
    # Two such machines reached 57 GB/s of bus bandwidth (nccl-tests, 1 GiB, 16 GPUs).
    size = 2**30
    bus = bus_factor("all_reduce", 16) * size / seconds("all_reduce", size, layout_of("2xp4d.24xlarge"))
    assert bus == pytest.approx(57.2e9, rel=0.5)
    # The user's value takes precedence.
    said = Interconnect(inter_node_bytes_per_second=45e9)
    assert seconds("all_gather", 10e9, named, said) == pytest.approx(10 * 31 / 32 / 45 + hops(4), rel=0.01)
    assert link_assumption_notes(named, CATALOGUE) == (
        "Network: 400 Gbit/s between machines, as in p4d.24xlarge (EFA v1, 4x100; "
        "https://github.com/stas00/ml-engineering).",
    )
    assert link_assumption_notes(reference, CATALOGUE) == (
        "Assumed: 1,600 Gbit/s between machines. Set another value with network_gbps.",
    )
    assert link_assumption_notes(named, said) == link_assumption_notes(EIGHT, CATALOGUE) == ()


def hops(nodes: int) -> float:
    """Latency of a ring over machines of eight."""
    return (nodes - 1) * (RING_HOP_SECONDS + 7 * STEP_SECONDS)


@pytest.mark.parametrize("kind", PCIE_MACHINES)
def test_cards_without_nvlink_reach_what_their_kind_of_machine_does(kind: str) -> None:
    four = layout_of("4xRTX-4090")
    times = collective_seconds("all_reduce", 2**30, four, interconnect=Interconnect(pcie=kind))
    bus = 1.5 * 2**30 / times.middle[0]
    assert bus == pytest.approx(PCIE_MACHINES[kind].share * 32e9, rel=0.01)
    assert times.high[0] / times.low[0] == pytest.approx(PCIE_MACHINES[kind].spread ** 2)
    assert times.high[0] / times.low[0] <= 4  # twice up and down at most
    assert link_assumption_notes(four, Interconnect(pcie=kind)) == ()


@pytest.mark.parametrize("name", ["T4", "L40S", "RTX-2080-Ti", "RTX-3090", "RTX-5090", "A10G", "RTX-PRO-6000-Server"])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_unknown_pcie_machine_is_bounded_by_the_link_with_a_wide_interval(name: str, count: int) -> None:
    layout = Layout(gpu(name), count)
    times = collective_seconds("all_reduce", 2**30, layout)
    bus = bus_factor("all_reduce", count) * 2**30 / times.middle[0]
    assert 0.05 <= bus / layout.gpu.pcie_bytes_per_second <= 0.8
    assert times.high[0] / times.low[0] == pytest.approx(4.0)
    (note,) = link_assumption_notes(layout, CATALOGUE)
    assert f"{name} in one machine: assumed" in note
    assert "pcie: switch, root, host or virtual" in note
    assert "busbw" in note


def test_a_card_of_a_faster_link_is_no_slower_and_more_cards_never_gain() -> None:
    for size in (2.0**20, 2.0**30):
        times = [seconds("all_reduce", size, Layout(gpu("RTX-3090"), count)) for count in (2, 4, 8)]
        assert times == sorted(times)
        assert seconds("all_reduce", size, Layout(gpu("RTX-5090"), 8)) <= times[2]


def test_trays_of_one_rack_are_one_machine() -> None:
    """NVLink joins up to 72 GB200, in trays of four."""
    for words in ("16x4xGB200", "8x8xGB200", "2x32xGB200"):
        assert in_domains(layout_of(words)) == in_domains(layout_of("64xGB200")) == layout_of("64xGB200")
        assert seconds("all_reduce", 2**30, layout_of(words)) == seconds("all_reduce", 2**30, layout_of("64xGB200"))
    assert in_domains(layout_of("32x4xGB200")).name == "2x64xGB200"  # 18 trays would not divide 32
    assert in_domains(layout_of("2x72xGB200")).name == "2x72xGB200"
    assert in_domains(layout_of("2x8xH100")).name == "2x8xH100-SXM-80GB"
    # Each of the 16 trays of a domain has four adapters of 400 Gbit/s.
    assert network_bytes_per_second(in_domains(layout_of("32x4xGB200"))) == 16 * 4 * 50e9
    assert network_bytes_per_second(in_domains(layout_of("32xa4x-highgpu-4g"))) == 16 * 4 * 50e9


@pytest.mark.parametrize(
    ("name", "note"),
    [
        (
            "16xH100",
            "A cloud's machine has 8 H100-SXM-80GB at most. 16 in one machine are predicted anyway; use "
            "2x8xH100-SXM-80GB for several machines.",
        ),
        (
            "12xH100",
            "A cloud's machine has 8 H100-SXM-80GB at most. 12 in one machine are predicted anyway; use "
            "2x6xH100-SXM-80GB for several machines.",
        ),
        (
            "80xGB200",
            "NVLink joins 72 GB200 at most. 80 in one machine are predicted anyway; use 2x40xGB200 for several "
            "machines.",
        ),
        ("16xA100-SXM-40GB", None),  # GCP's a2-megagpu-16g
        ("8xH100", None),
        ("72xGB200", None),
        ("10xRTX-5090", None),  # no cloud of the catalogue has a machine of them
    ],
)
def test_machine_larger_than_any_measured_gets_a_note(name: str, note: str | None) -> None:
    said = link_assumption_notes(layout_of(name), Interconnect(intra_node_bytes_per_second=1e9))
    assert said == (() if note is None else (note,))


def test_unknown_kind_of_pcie_machine_is_rejected() -> None:
    with pytest.raises(
        InvalidArgumentError, match="pcie='riser' is not a kind of machine; expected one of switch, root, host, virtual"
    ):
        Interconnect(pcie="riser")
    assert interconnect_of() is None
    assert interconnect_of(network_gbps=100, busbw=20, pcie="host") == Interconnect(
        intra_node_bytes_per_second=20e9, inter_node_bytes_per_second=12.5e9, pcie="host"
    )


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_invalid_bandwidth_is_rejected(value: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"inter_node_bytes_per_second=.* is not a bandwidth; expected"):
        Interconnect(inter_node_bytes_per_second=value)


def test_unknown_collectives_negative_messages_and_several_slices_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'gossip' is not a collective; choose one of all_reduce"):
        collective_seconds("gossip", 1.0, EIGHT)
    with pytest.raises(InvalidArgumentError, match="expected sizes of at least 0 bytes"):
        collective_seconds("all_reduce", -1.0, EIGHT)
    piece = "A100-SXM-80GB-MIG-3g.40gb"
    with pytest.raises(InvalidArgumentError, match=rf"has 2 slices in a machine, which NCCL does not join.*'{piece}'"):
        collective_seconds("all_reduce", 1e6, layout_of(f"2x{piece}"))
    # One a machine is a rank like others.
    assert float(collective_seconds("all_reduce", 1e6, layout_of(f"2x1x{piece}")).middle[0]) > 0
