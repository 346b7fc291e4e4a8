"""Verdicts on the steps of `test_simulation.py` (T1 to T5 in microseconds; an operation takes the host 10)."""

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


def verdicts_of(*operations: HostOperation, gpus: int = 1) -> tuple[Verdict, ...]:
    """Return the verdicts of a running loop."""
    step, faster = (
        simulate_timeline(launch_schedule(operations, gpus=gpus), HOST, speed=speed) for speed in (1, COMPARED_SPEED)
    )
    return verdicts(operations, step, faster)


@pytest.mark.parametrize(
    ("operations", "bound_by", "gain", "idle_share"),
    [
        ([work(1), work(1)], "host", 0, 0.9),  # the host takes 20; the device works for 2
        ([work(100), work(30)], "device", 0.5, 0),  # 130 on the device, then 65; the host's 20 stay hidden
        ([work(15), work(15)], "device", 1 / 3, 0),  # 30 becomes 20, the host's time, not 15
        ([work(100, waits=True)], "device", 50 / 110, 10 / 110),  # starts at 10, waits until 110 or 60
        ([work()], "host", 0, 1),
        ([], "device", 0, 0),
    ],
)
def test_verdict_by_hand(operations: list[HostOperation], bound_by: str, gain: float, idle_share: float) -> None:
    (verdict,) = verdicts_of(*operations)
    assert verdict.bound_by == bound_by
    assert (verdict.gain, verdict.idle_share) == pytest.approx((gain, idle_share))
    assert verdict.sentence == f"bound by the {bound_by}: a GPU twice as fast gains {100 * gain:.0f} %"


def test_bottleneck_is_a_long_wait_or_differs_by_gpu() -> None:
    (own,) = verdicts_of(work(100), work(30))
    shorter, longer = own.with_wait(100e-6, 130e-6), own.with_wait(390e-6, 130e-6)
    assert (shorter.bound_by, longer.bound_by) == ("device", "wait")
    assert (longer.gain, longer.idle_share) == pytest.approx((own.gain / 4, 0.75))
    assert longer.critical_path["(wait)"] == 0.75
    assert sum(longer.critical_path.values()) == pytest.approx(1)
    assert longer.sentence == "bound by the wait: a GPU twice as fast gains 12 %"
    both = HostOperation(name="op", phase="forward", seconds=np.array([[100e-6], [1e-6]]), streams=(0,))
    assert [verdict.bound_by for verdict in verdicts_of(both, gpus=2)] == ["device", "host"]


@pytest.mark.parametrize(
    ("kernels", "shares"),
    [
        # A busy device: the device's time.
        ([(100, "net.a"), (30, "net.b"), (70, "net.a")], {"a": 170 / 200, "b": 30 / 200}),
        # A waiting device: each operation takes 10 of the 30, for any kernel time.
        ([(1, "net.a"), (1, "net.b"), (1, "net.a")], {"a": 2 / 3, "b": 1 / 3}),
        # Without a module: the phase.
        ([(60, "net.a"), (40, None)], {"net.a": 0.6, "(optimizer)": 0.4}),
        ([], {}),
    ],
)
def test_critical_path_by_hand(kernels: list[tuple[float, str | None]], shares: dict[str, float]) -> None:
    operations = [
        replace(work(kernel), module=module, phase="forward" if module else "optimizer") for kernel, module in kernels
    ]
    (verdict,) = verdicts_of(*operations)
    assert verdict.critical_path == pytest.approx(shares)
    assert list(verdict.critical_path) == list(shares)


LAYERS = [f"layers.{n}" for n in range(MAX_PARTS)]
PARTS = ("norm", "attention.query", "attention.key", "attention.value", "attention.output", "mlp.up", "mlp.down")
BLOCKS = [f"net.blocks.{n}.{part}" for n in range(12) for part in PARTS]


@pytest.mark.parametrize(
    ("seconds", "groups"),
    [
        ({"model.features": 1, "model.head": 1}, {"features", "head"}),  # without the common prefix
        (dict.fromkeys([*LAYERS[:-1], "head"], 1), {"head", *LAYERS[:-1]}),
        (dict.fromkeys([*LAYERS, "head"], 1), {"head", "layers.*"}),
        # 84 in the blocks, so they are split: 48 of them attention, which makes 4; mlp would make a ninth.
        (
            dict.fromkeys(BLOCKS, 1) | {"net.embedding.words": 20},
            {*(f"blocks.*.{part}" for part in PARTS), "embedding.words"},
        ),
        ({"a": 1, "b": NOTICEABLE / 2, "c": NOTICEABLE / 3}, {"a", OTHERS}),
        ({"a": 1, "b": NOTICEABLE / 2}, {"a", "b"}),  # a single small part keeps its name
        ({"net": 1, "net.head": 1}, {"net", "head"}),
        ({"net": 1}, {"net"}),
        ({}, set()),
    ],
)
def test_modules_are_grouped_into_few_parts(seconds: dict[str, float], groups: set[str]) -> None:
    assert set(module_groups(seconds).values()) == groups


def test_module_belongs_to_group_of_its_name() -> None:
    groups = module_groups(dict.fromkeys(BLOCKS, 1.0) | {"net.embedding.words": 20.0})
    assert groups["net.blocks.7.attention.key"] == "blocks.*.attention.key"


NAMES = st.lists(st.sampled_from(["a", "b", "0", "1"]), min_size=1, max_size=4).map(".".join)


@given(st.dictionaries(NAMES, st.floats(0, 10), min_size=1, max_size=40))
def test_every_module_has_a_group_and_few_groups_are_large(seconds: dict[str, float]) -> None:
    groups = module_groups(seconds)
    assert set(groups) == set(seconds)
    assert all(groups.values())
    sizes = {group: sum(seconds[module] for module in groups if groups[module] == group) for group in groups.values()}
    large = {group for group, size in sizes.items() if size > NOTICEABLE * sum(seconds.values())}
    assert len(large - {OTHERS}) <= MAX_PARTS


KERNELS = st.lists(st.floats(0.1, 500), max_size=3)


@given(st.lists(st.tuples(KERNELS, st.booleans(), st.sampled_from(["a", "b", None])), min_size=1, max_size=20))
def test_shares_of_a_verdict_are_within_bounds(steps: list[tuple[list[float], bool, str | None]]) -> None:
    (verdict,) = verdicts_of(*(replace(work(*own, waits=waits), module=module) for own, waits, module in steps))
    assert 0 <= verdict.gain <= 0.5 + 1e-9  # at twice the speed no more than half is saved
    assert 0 <= verdict.idle_share <= 1
    shares = list(verdict.critical_path.values())
    assert sum(shares) == pytest.approx(1 if any(own for own, _, _ in steps) else 0)
    assert shares == sorted(shares, reverse=True)
