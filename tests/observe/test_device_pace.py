"""Cycles of a host whose device works behind a launch queue of a known depth."""

import random

import pytest

from lightning_predict.observe.device_pace import LAUNCH_QUEUE, STEADY_CYCLES, DevicePace


def cycles(host: float, device: float, *, queue: float, count: int, noise: float = 0.0, seed: int = 0) -> list[float]:
    """Cycles of a host that may be `queue` batches ahead of the device and starts with an idle device."""
    draw = random.Random(seed)
    now = free = 0.0
    passed = []
    for _ in range(count):
        began = now
        now += host * (1 + noise * draw.uniform(-1, 1))
        free = max(free, now) + device
        now = max(now, free - queue * device)
        passed.append(now - began)
    return passed


def pace_of(seconds: float, values: list[float], *, launches: int = 10) -> DevicePace:
    pace = DevicePace()
    pace.measured(seconds, launches=launches, batches=8)
    for value in values:
        pace.add(value)
    return pace


def middle(pace: DevicePace) -> float:
    estimate = pace.estimate()
    assert estimate is not None
    return estimate.mean.middle


def test_steady_cycles_count_from_the_fourth_on_or_all_without_a_measurement() -> None:
    pace = DevicePace()
    assert pace.estimate() is None
    for _ in range(8):
        pace.add(0.5)
    assert (middle(pace), pace.count) == (0.5, 8)
    for number in range(STEADY_CYCLES):
        assert pace_of(0.03, [0.04] * number).count == 8
    assert pace_of(0.03, [0.04] * STEADY_CYCLES).count == STEADY_CYCLES


def test_measured_pace_counts_until_the_device_shows_otherwise() -> None:
    pace = pace_of(0.03, [])
    assert (middle(pace), pace.count) == (0.03, 8)
    single = DevicePace()
    single.measured(0.03, launches=10, batches=1)
    narrow, wide = pace.estimate(), single.estimate()
    assert narrow is not None
    assert wide is not None
    assert wide.mean.low < narrow.mean.low < 0.03 < narrow.mean.high < wide.mean.high
    # Measured at 30 ms, 10 ms in truth: after b batches the backlog is 20 ms * b, and the queue holds at most
    # LAUNCH_QUEUE / launches batches of 30 ms.
    launches = 400
    largest = 0.030 * LAUNCH_QUEUE / launches
    needed = int(largest / 0.020) + 1
    before, after = (pace_of(0.03, [0.01] * n, launches=launches) for n in (needed - 1, needed + 20))
    assert middle(before) == 0.03
    assert middle(after) == pytest.approx(0.01)
    assert after.seconds is None
    pace = pace_of(0.03, cycles(0.01, 0.03, queue=10, count=100))
    assert pace.drain() == pytest.approx(10 * 0.03, rel=0.15)
    for value in cycles(0.01, 0.03, queue=10, count=14):  # the next epoch: the host is ahead once more
        pace.add(value)
    assert middle(pace) == pytest.approx(0.03, rel=0.01)


@pytest.mark.parametrize("queue", [1.5, 4.0, 10.0, 100.0, 200.0])
@pytest.mark.parametrize("host", [0.001, 0.010, 0.025])
@pytest.mark.parametrize("seen", [1, 5, 40, 400])
def test_a_host_that_runs_ahead_does_not_shorten_the_estimate(queue: float, host: float, seen: int) -> None:
    pace = pace_of(0.03, cycles(host, 0.03, queue=queue, count=seen))
    assert middle(pace) == pytest.approx(0.03, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_a_host_that_sets_the_pace_counts_with_all_of_its_noise(seed: int) -> None:
    values = cycles(0.05, 0.03, queue=10, count=200, noise=0.3, seed=seed)
    pace = pace_of(0.05, values)
    assert middle(pace) == pytest.approx(sum(values) / len(values), rel=0.05)
    assert pace.count > 150
