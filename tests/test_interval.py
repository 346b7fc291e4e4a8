"""A value and its ends move together."""

from __future__ import annotations

from lightning_predict.interval import Interval

STEP = Interval(4.0, 5.0, 7.0)


def test_the_ends_are_scaled_and_moved_with_the_value() -> None:
    assert STEP.scaled(2.0) == Interval(8.0, 10.0, 14.0)
    assert STEP.added(1.0) == Interval(5.0, 6.0, 8.0)


def test_a_limit_caps_each_of_them() -> None:
    assert STEP.at_most(6.0) == Interval(4.0, 5.0, 6.0)
    assert STEP.at_most(3.0) == Interval(3.0, 3.0, 3.0)
    assert STEP.at_most(9.0) == STEP
