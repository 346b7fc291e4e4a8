from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.run.batch_size import LARGEST, StraightLine, largest_power_of_two, line_through


@given(constant=st.floats(0, 1e9), per_sample=st.floats(0, 1e9), sizes=st.sets(st.integers(1, 4096), min_size=2))
def test_the_line_is_found_again(constant: float, per_sample: float, sizes: set[int]) -> None:
    line = line_through({size: constant + per_sample * size for size in sizes})
    for size in sizes:
        assert line.at(size) == pytest.approx(constant + per_sample * size, rel=1e-6, abs=1e-3)


def test_of_three_the_least_squares_line_counts() -> None:
    # Deviations from the means 2 and 2: slope (1 x 1 + 1 x 1) / 2 = 1; the middle one is 0.6 too high.
    line = line_through({1: 0.8, 2: 2.4, 3: 2.8})
    assert (line.constant, line.per_sample) == pytest.approx((0.0, 1.0))


def test_what_would_fall_is_flat() -> None:
    assert line_through({8: 2.0, 16: 1.0}) == StraightLine(1.5, 0.0)


@pytest.mark.parametrize("values", [{}, {8: 1.0}, {0: 1.0, 8: 1.0}])
def test_two_sizes_are_needed(values: dict[int, float]) -> None:
    with pytest.raises(InvalidArgumentError, match="expected at least two different ones, each at least 1"):
        line_through(values)


@given(constant=st.floats(0, 1e9), per_sample=st.floats(1e-3, 1e9), available=st.floats(1, 1e12))
def test_it_fits_and_the_next_does_not(constant: float, per_sample: float, available: float) -> None:
    line = StraightLine(constant, per_sample)
    size = largest_power_of_two(line, available)
    if size is None:
        assert line.at(1) > available
    else:
        assert line.at(size) <= available
        assert size == LARGEST or line.at(2 * size) > available


def test_exact_powers() -> None:
    assert largest_power_of_two(StraightLine(100.0, 1.0), 164.0) == 64
    assert largest_power_of_two(StraightLine(100.0, 1.0), 163.9) == 32
    assert largest_power_of_two(StraightLine(100.0, 1.0), 101.0) == 1
    assert largest_power_of_two(StraightLine(100.0, 1.0), 100.5) is None
    assert largest_power_of_two(StraightLine(100.0, 0.0), 100.5) == LARGEST
