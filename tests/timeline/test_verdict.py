"""Verdicts on the steps of `test_simulation.py` (T1 to T5 in microseconds; an operation takes the host 10)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.ties import NOTICEABLE
from lightning_predict.timeline.simulation import HostOperation, launch_schedule, simulate_timeline
from lightning_predict.timeline.verdict import (
    COMPARED_SPEED,
    MAX_PARTS,
    OTHERS,
    Verdict,
    module_groups,
    verdicts,
)
from tests.timeline.example_host import HOST
from tests.timeline.test_simulation import work


def verdict(*operations: HostOperation) -> Verdict:
    """Of a running loop."""
    step, faster = (
        simulate_timeline(launch_schedule(operations, gpus=1), HOST, speed=speed) for speed in (1, COMPARED_SPEED)
    )
    (found,) = verdicts(operations, step, faster)
    return found


def in_module(operation: HostOperation, module: str | None) -> HostOperation:
    return replace(operation, module=module)


def test_short_kernels_leave_the_step_to_the_host_and_a_faster_gpu_gains_nothing() -> None:
    # The host takes 10 for each operation; the device works for 2 of the 20.
    found = verdict(work(1), work(1))
    assert found.bound_by == "host"
    assert found.gain == pytest.approx(0)
    assert found.idle_share == pytest.approx(0.9)
    assert found.sentence == "bound by the host: a GPU twice as fast gains 0 %"


def test_long_kernels_bound_the_step_and_a_gpu_twice_as_fast_halves_it() -> None:
    # 130 on the device; at twice the speed 65, and the host's 20 stay hidden.
    found = verdict(work(100), work(30))
    assert found.bound_by == "device"
    assert found.idle_share == pytest.approx(0)
    assert found.gain == pytest.approx(0.5)
    assert found.sentence == "bound by the device: a GPU twice as fast gains 50 %"


def test_a_faster_gpu_gains_until_the_host_is_the_longer_one() -> None:
    # 15 + 15 = 30 on the device; at twice the speed 15, which is less than the host's 20: 30 becomes 20.
    found = verdict(work(15), work(15))
    assert found.bound_by == "device"
    assert found.gain == pytest.approx(1 / 3)


def test_what_waits_for_the_device_gains_only_the_devices_part() -> None:
    # Every step starts its kernel at 10 and waits for the device until 110; at twice the speed until 60.
    found = verdict(work(100, waits=True))
    assert found.gain == pytest.approx(50 / 110)
    assert found.idle_share == pytest.approx(10 / 110)


def test_the_critical_path_of_a_busy_device_is_the_devices_time_by_module() -> None:
    found = verdict(in_module(work(100), "net.a"), in_module(work(30), "net.b"), in_module(work(70), "net.a"))
    assert found.critical_path == {"a": pytest.approx(170 / 200), "b": pytest.approx(30 / 200)}
    assert list(found.critical_path) == ["a", "b"]


def test_the_critical_path_of_a_waiting_device_is_what_it_waits_for() -> None:
    # Launches are made at 8, 18 and 28 of a step of 30; each kernel of 1 ends 9 before the next launch is made. So each
    # operation has 10 of the 30, for any kernel time: `a` two of the three.
    found = verdict(in_module(work(1), "net.a"), in_module(work(1), "net.b"), in_module(work(1), "net.a"))
    assert found.critical_path == {"a": pytest.approx(2 / 3), "b": pytest.approx(1 / 3)}


def test_what_no_module_calls_is_told_by_its_phase() -> None:
    found = verdict(in_module(work(60), "net.a"), replace(work(40), phase="optimizer"))
    assert found.critical_path == {"net.a": pytest.approx(0.6), "(optimizer)": pytest.approx(0.4)}


def test_a_step_without_kernels_has_no_critical_path() -> None:
    found = verdict(work())
    assert (found.bound_by, found.gain, found.idle_share) == ("host", 0, 1)
    assert found.critical_path == {}


def test_nothing_at_all_is_no_share_of_anything() -> None:
    assert verdict() == Verdict(bound_by="device", idle_share=0, gain=0, critical_path={})


def test_gpus_have_verdicts_of_their_own() -> None:
    both = HostOperation(name="op", phase="forward", seconds=np.array([[100e-6], [1e-6]]), streams=(0,))
    step, faster = (
        simulate_timeline(launch_schedule([both], gpus=2), HOST, speed=speed) for speed in (1, COMPARED_SPEED)
    )
    assert [one.bound_by for one in verdicts([both], step, faster)] == ["device", "host"]


def alike(*names: str) -> dict[str, float]:
    return dict.fromkeys(names, 1.0)


def test_modules_are_named_without_what_all_share() -> None:
    names = module_groups(alike("model.features", "model.head"))
    assert names == {"model.features": "features", "model.head": "head"}


def test_a_few_numbered_layers_are_told_apart_and_many_are_one() -> None:
    few = module_groups(alike(*(f"layers.{n}" for n in range(MAX_PARTS - 1)), "head"))
    assert set(few.values()) == {"head", *(f"layers.{n}" for n in range(MAX_PARTS - 1))}
    many = module_groups(alike(*(f"layers.{n}" for n in range(MAX_PARTS)), "head"))
    assert set(many.values()) == {"head", "layers.*"}


def test_the_longest_part_is_split_first() -> None:
    parts = ("norm", "attention.query", "attention.key", "attention.value", "attention.output", "mlp.up", "mlp.down")
    seconds = alike(*(f"net.blocks.{n}.{part}" for n in range(12) for part in parts)) | {"net.embedding.words": 20.0}
    groups = module_groups(seconds)
    # 84 in the blocks, so they are split: 48 of them attention, which makes 4; mlp would make a ninth of the 2 + 4 + 1.
    assert set(groups.values()) == {
        "blocks.*.norm",
        *(f"blocks.*.attention.{part}" for part in ("query", "key", "value", "output")),
        "blocks.*.mlp.up",
        "blocks.*.mlp.down",
        "embedding.words",
    }
    assert groups["net.blocks.7.attention.key"] == "blocks.*.attention.key"


def test_small_parts_are_shown_together() -> None:
    groups = module_groups({"a": 1.0, "b": NOTICEABLE / 2, "c": NOTICEABLE / 3})
    assert groups == {"a": "a", "b": OTHERS, "c": OTHERS}
    assert module_groups({"a": 1.0, "b": NOTICEABLE / 2}) == {"a": "a", "b": "b"}  # one alone keeps its name


def test_a_module_that_contains_the_others_keeps_its_name() -> None:
    assert module_groups(alike("net", "net.head")) == {"net": "net", "net.head": "head"}
    assert module_groups(alike("net")) == {"net": "net"}
    assert module_groups({}) == {}


NAMES = st.lists(st.sampled_from(["a", "b", "0", "1"]), min_size=1, max_size=4).map(".".join)


@given(st.dictionaries(NAMES, st.floats(0, 10), min_size=1, max_size=40))
def test_every_module_has_a_part_and_there_are_as_few_as_can_be_read(seconds: dict[str, float]) -> None:
    groups = module_groups(seconds)
    assert set(groups) == set(seconds)
    assert all(groups.values())
    large = {
        group
        for group in set(groups.values())
        if sum(own for module, own in seconds.items() if groups[module] == group) > NOTICEABLE * sum(seconds.values())
    }
    assert len(large - {OTHERS}) <= MAX_PARTS


KERNELS = st.lists(st.floats(0.1, 500), max_size=3)


@given(st.lists(st.tuples(KERNELS, st.booleans(), st.sampled_from(["a", "b", None])), min_size=1, max_size=20))
def test_shares_are_shares(steps: list[tuple[list[float], bool, str | None]]) -> None:
    found = verdict(*(in_module(work(*kernels, waits=waits), module) for kernels, waits, module in steps))
    assert 0 <= found.gain <= 0.5 + 1e-9  # at twice the speed no more than half is saved
    assert 0 <= found.idle_share <= 1
    if any(kernels for kernels, _, _ in steps):
        assert sum(found.critical_path.values()) == pytest.approx(1)
        assert list(found.critical_path.values()) == sorted(found.critical_path.values(), reverse=True)
    else:
        assert found.critical_path == {}
