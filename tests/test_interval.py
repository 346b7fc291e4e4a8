"""A value and its ends move together."""

from __future__ import annotations

import numpy as np

from lightning_predict.interval import Interval

STEP = Interval(4.0, 5.0, 7.0)


def test_the_ends_are_scaled_and_moved_with_the_value() -> None:
    assert STEP.scaled(2.0) == Interval(8.0, 10.0, 14.0)
    assert STEP.added(1.0) == Interval(5.0, 6.0, 8.0)


def test_values_that_err_together_add_up_end_by_end() -> None:
    assert STEP.added(Interval(1.0, 2.0, 4.0)) == Interval(5.0, 7.0, 11.0)


def test_arrays_are_changed_number_by_number() -> None:
    both = Interval(np.array([1.0, 4.0]), np.array([2.0, 5.0]), np.array([3.0, 7.0]))
    limited = both.scaled(np.array([1.0, 2.0])).added(1.0).at_least(3.0).at_most(9.0)
    # The first: 1, 2, 3 -> 2, 3, 4 -> 3, 3, 4. The second: 8, 10, 14 -> 9, 11, 15 -> 9, 9, 9.
    assert [end.tolist() for end in (limited.low, limited.middle, limited.high)] == [[3, 9], [3, 9], [4, 9]]


def test_a_value_is_inside_or_not() -> None:
    assert STEP.holds(4.0)
    assert not STEP.holds(7.1)


def test_a_limit_caps_each_of_them() -> None:
    assert STEP.at_most(6.0) == Interval(4.0, 5.0, 6.0)
    assert STEP.at_most(3.0) == Interval(3.0, 3.0, 3.0)
    assert STEP.at_most(9.0) == STEP
    assert STEP.at_least(4.5) == Interval(4.5, 5.0, 7.0)


def test_a_factor_makes_an_interval_and_widens_one() -> None:
    assert Interval.around(10.0, 2.0) == Interval(5.0, 10.0, 20.0)
    assert Interval(4.0, 10.0, 30.0).widened(2.0) == Interval(2.0, 10.0, 60.0)


def test_a_function_combines_intervals_end_by_end() -> None:
    assert Interval(1.0, 2.0, 3.0).each(max, Interval.around(2.0, 2.0)) == Interval(1.0, 2.0, 4.0)
