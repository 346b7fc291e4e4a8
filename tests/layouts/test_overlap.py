"""Segments of a simulated step, and intervals of collectives."""

import math

import numpy as np
import pytest

from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.interconnect import CATALOGUE, RING_HOP_SECONDS, Interconnect, collective_seconds
from lightning_predict.layouts.overlap import (
    OVERLAP_COSTS,
    Links,
    StepSplitter,
    Transfer,
    WorkSegment,
    events_of,
    overlap_transfers,
)
from lightning_predict.timeline.host import HostModel
from lightning_predict.timeline.simulation import HostOperation, launch_schedule, simulate_timeline
from lightning_predict.uncertainty import ASSUMED_SPREAD

H100 = gpu("H100-SXM-80GB")
SECONDS = (1.0, 2.0, 3.0, 4.0)
WORK = [HostOperation(name="aten::mm", phase="forward", seconds=np.array([[each]]), streams=(0,)) for each in SECONDS]
STEP = simulate_timeline(launch_schedule(WORK, gpus=1), HostModel())
ENDS = np.array([0.5, 1.0, 2.0])


def test_segments_lie_between_cuts_and_grow_by_exposed_collectives() -> None:
    segments = StepSplitter(STEP, 0, ENDS).segments([1, 3])
    assert [segment[1] for segment in segments] == pytest.approx([1, 5, 4], abs=1e-3)
    assert segments[1] == pytest.approx(5 * ENDS, abs=1e-3)
    assert StepSplitter(STEP, 0, ENDS).busy(2) == pytest.approx(7 * ENDS)
    (whole,) = StepSplitter(STEP, 0, ENDS).segments([])
    assert whole == pytest.approx(10 * ENDS, abs=1e-3)
    (longer,) = StepSplitter(STEP, 0, ENDS, exposed=np.array([1.0, 2.0, 3.0])).segments([])
    assert longer == pytest.approx(10 * ENDS + [1.0, 2.0, 3.0], abs=2e-3)
    # Three seconds over segments of one and five seconds: a half and two and a half more.
    segments = StepSplitter(STEP, 0, np.ones(3), exposed=np.full(3, 3.0)).segments([1, 3])
    assert [segment[1] for segment in segments] == pytest.approx([1.5, 7.5, 4], abs=1e-3)


def test_collectives_have_intervals_and_groups_share_the_network() -> None:
    layout = Layout(H100, 8)
    alone = collective_seconds("all_reduce", [1e8], layout)
    (times,) = Links(layout, CATALOGUE, slowdown=2.0).collective("all_reduce", [1e8])
    assert times[1] == 2 * alone.middle[0]
    # The machine of the catalogue was not measured; a user's bandwidth is taken as given.
    assert times[2] == pytest.approx(2 * alone.high[0] * ASSUMED_SPREAD)
    said = Interconnect(intra_node_bytes_per_second=1e9)
    (exact,) = Links(layout, said, slowdown=1.0).collective("all_reduce", [1e8])
    assert exact[2] == collective_seconds("all_reduce", [1e8], layout, interconnect=said).high[0]
    assert Links(layout, CATALOGUE, slowdown=1.0).collective("all_reduce", []) == []
    said = Interconnect(inter_node_bytes_per_second=1e8)
    links = Links(Layout(H100, 1, 2), said, slowdown=1.0, groups_per_node=4)
    # 100 MB to the other machine and as much back in a ring of two: 1 s; four groups at once.
    (one,) = Links(Layout(H100, 1, 2), said, slowdown=1.0).collective("all_reduce", [1e8])
    (shared,) = links.collective("all_reduce", [1e8])
    hops = 2 * RING_HOP_SECONDS
    assert (one[1], shared[1]) == pytest.approx((1 + hops, 4 + hops))


def test_mean_speeds_differ_less_over_long_steps() -> None:
    # At a moment they differ by the whole spread; over a hundred times the time in which a pace is forgotten, by
    # sqrt(2 / 100 x (1 - 1 / 100)) of it.
    long = 100 * OVERLAP_COSTS.straggler_seconds
    moment, mean = OVERLAP_COSTS.speed_deviation(np.array([1e-4 * OVERLAP_COSTS.straggler_seconds, long]))
    assert moment == pytest.approx(OVERLAP_COSTS.straggler_spread, rel=1e-3)
    assert mean == pytest.approx(OVERLAP_COSTS.straggler_spread * math.sqrt(0.02 * 0.99), rel=1e-6)


def test_events_and_transfers_before_critical_ones_are_critical() -> None:
    # 6 s, then 1 s that waits for the second transfer: 4 s behind the first piece. 6 + 4 + 1; the first one is hidden.
    segments = [WorkSegment(np.array([6.0]), name="backward"), WorkSegment(np.array([1.0]), waits_for=1, name="update")]
    transfers = [Transfer(np.array([3.0]), after=0, name="early"), Transfer(np.array([4.0]), after=1, name="late")]
    events = events_of(segments, transfers, 0)
    assert [
        (event.name, event.is_transfer, event.start_seconds, event.seconds, event.is_critical) for event in events
    ] == [
        ("backward", False, 0.0, 6.0, True),
        ("early", True, 0.0, 3.0, False),
        ("late", True, 6.0, 4.0, True),
        ("update", False, 10.0, 1.0, True),
    ]
    assert (
        sum(event.seconds for event in events if event.is_critical) == overlap_transfers(segments, transfers).seconds[0]
    )
    segments = [WorkSegment(np.array([1.0]), name="only")]
    transfers = [Transfer(np.array([3.0]), after=0, name="first"), Transfer(np.array([4.0]), after=1, name="second")]
    events = events_of(segments, transfers, 0)
    assert [event.name for event in events if event.is_critical] == ["first", "second"]
