"""Estimate of a mean time from the measured values."""

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.observe.steady_state import MAX_VALUES, MeanEstimate, TimingSamples, estimate_mean
from tests.known import known


def believed(values: list[float], **options: int) -> MeanEstimate:
    evidence = TimingSamples()
    for value in values:
        evidence.add(value)
    return known(evidence.estimate(**options))


def test_slow_beginnings_are_left_out_and_falling_values_are_not_settled() -> None:
    assert TimingSamples().estimate() is None
    assert believed([9.0]).mean.middle == 9.0
    assert believed([9.0, 2.0]).mean.middle == 2.0
    assert believed([9.0, 3.0, 2.0, 2.0, *[1.0] * 12]).mean.middle == pytest.approx(1.0)
    assert believed([2.0] * 20 + [1.0] * 20).mean.middle == pytest.approx(1.0, rel=0.05)
    assert estimate_mean([0.25] * 7).mean.middle == statistics.fmean([0.25] * 7)
    falling = [1.0 + 0.9**number for number in range(12)]  # to 1
    mean = believed(falling)
    assert not mean.is_settled
    assert mean.mean.low < 1.0 < mean.mean.middle < falling[-1]
    assert believed([1.0] * 12).is_settled


def test_noise_may_hide_a_fall_which_the_low_end_admits() -> None:
    # The halves differ by 0.1, less than 1.2 standard errors: settled. The same values in another order fall nowhere.
    falling, level = [1.3, 0.9] * 8 + [1.2, 0.8] * 8, [1.3, 0.8] * 8 + [1.2, 0.9] * 8
    first, other = estimate_mean(falling), estimate_mean(level)
    assert first.is_settled
    assert first.mean.middle == pytest.approx(other.mean.middle, rel=0.01)
    assert first.mean.low < other.mean.low - 0.005


def test_slow_values_count_half_once_and_whole_twice_periodic_or_rare() -> None:
    once, twice = [1.0] * 21, [1.0] * 21
    once[10] = twice[5] = twice[12] = 11.0
    assert believed(once).mean.middle == pytest.approx(1 + 10 / 20 / 2)
    assert believed(once).mean.low < 1.0  # it may never come again
    assert believed(twice).mean.middle == pytest.approx(1 + 2 * 10 / 20)
    values = [5.0 if number % 10 == 9 else 1.0 for number in range(200)]
    for number in (45, 49, 50, 55):
        mean = believed(values[:number]).mean
        assert mean.middle == pytest.approx(1.4)
        # It comes once in ten, or in nine to eleven, and by as much as values themselves scatter less or more.
        assert mean.low > 1.3
    # Three slow ones, two and one apart, and none in the 40 that follow: three of 44, not two of three.
    values = [1.0, 1.0, 3.0, 1.0, 3.0, 3.0, *[1.0] * 40]
    assert believed(values).mean.middle == pytest.approx(1 + 2 * 3 / 45, rel=0.01)
    # 16 alike: one in 25 that takes ten times as long would make 1.36.
    assert believed([1.0] * 17).mean.contains(1.35)
    assert not believed([1.0] * 400).mean.contains(1.1)


def test_batches_of_a_window_or_of_workers_are_one_value_together() -> None:
    # Windows of 1 + 1 + 1 + 3 s: 1.5 s a batch, without a spread.
    values = [1.0, 1.0, 1.0, 3.0] * 8
    assert believed(values, group_size=4).mean.middle == 1.5
    # Two workers, a second for each batch: every other wait takes it, and half a second is the mean.
    assert believed([0.0, 1.0, 0.0], group_size=2, min_groups=1).mean.middle == 0.5
    assert believed([0.0, 1.0, 0.0]).mean.middle < 0.5


@pytest.mark.parametrize("number", [8, 32, 128])
def test_the_interval_holds_the_mean_of_noise(number: int) -> None:
    draws = random.Random(number)
    held = 0
    for _ in range(200):
        values = [draws.gauss(1.0, 0.2) for _ in range(number)]
        held += estimate_mean(values).mean.contains(1.0)
    assert held >= 0.9 * 200


@pytest.mark.parametrize("ahead", [4, 32, 128])
def test_interval_contains_the_mean_of_the_remaining_values(ahead: int) -> None:
    draws = random.Random(ahead)
    held = 0
    for _ in range(200):
        values = [draws.gauss(1.0, 0.2) for _ in range(128)]
        to_come = statistics.fmean(draws.gauss(1.0, 0.2) for _ in range(ahead))
        held += estimate_mean(values, remaining=ahead).mean.contains(to_come)
    assert held >= 0.9 * 200


def test_intervals_narrow_with_values_and_allow_one_event_more_or_less() -> None:
    # Every tenth takes five times as long, so that the next ten may hold two of them or none: 1.8 or 1.0.
    every_tenth = [5.0 if number % 10 == 9 else 1.0 for number in range(200)]
    mean = estimate_mean(every_tenth, remaining=10).mean
    assert mean.contains(1.01)
    assert mean.contains(1.79)
    assert not estimate_mean(every_tenth, remaining=1000).mean.contains(1.79)
    draws = random.Random(1)
    values = [draws.gauss(1.0, 0.1) for _ in range(512)]
    widths = [mean.high / mean.low for mean in (estimate_mean(values[:number]).mean for number in (4, 16, 64, 256))]
    assert widths == sorted(widths, reverse=True)
    evidence = TimingSamples()
    for number in range(8 * MAX_VALUES):
        evidence.add(float(number % 2))
    assert evidence.count == 8 * MAX_VALUES
    assert len(evidence._means) < MAX_VALUES
    assert known(evidence.estimate()).mean.middle == pytest.approx(0.5)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=60), st.floats(1e-3, 1e3))
def test_the_ends_lie_around_the_middle_and_a_unit_changes_nothing(values: list[float], unit: float) -> None:
    first, other = estimate_mean(values), estimate_mean([value * unit for value in values])
    assert 0 <= first.mean.low <= first.mean.middle <= first.mean.high
    assert min(values) * 0.2 <= first.mean.middle <= max(values) * 1.001
    assert first.values == other.values
    assert other.mean.middle == pytest.approx(unit * first.mean.middle)
