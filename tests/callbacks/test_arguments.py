from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.callbacks.arguments import amount_of, check_choice, check_steps, future_time


@pytest.mark.parametrize("steps", [0, -1, True, 1.0, "3"])
def test_numbers_of_steps(steps: int) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"steps=.* is not a number of steps; expected a whole number of at least"
    ):
        check_steps("steps", steps)
    check_steps("steps", 1)


@pytest.mark.parametrize("amount", [0, -1.0, float("nan"), float("inf")])
def test_amounts(amount: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"usd=.* is not a limit; expected a number above 0, or None"):
        amount_of("usd", amount)
    assert amount_of("usd", 1e-9) == 1e-9


def test_choices() -> None:
    check_choice("scope", "run", ("run", "all"))
    with pytest.raises(InvalidArgumentError, match="scope='none' is not known; expected one of 'run', 'all'"):
        check_choice("scope", "none", ("run", "all"))


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2999, 1, 31, 18).astimezone()
    assert future_time("deadline", "2999-01-31T18:00") == local


def test_a_time_with_a_zone_keeps_it() -> None:
    expected = datetime(2999, 1, 31, 18, tzinfo=timezone(timedelta(hours=9)))
    assert future_time("deadline", "2999-01-31T18:00+09:00") == expected


def test_times_that_cannot_be_used() -> None:
    with pytest.raises(
        InvalidArgumentError, match="deadline='soon' is not a time; expected ISO format, for example '20"
    ):
        future_time("deadline", "soon")
    past = (datetime.now(timezone.utc) - timedelta(seconds=1)).isoformat()
    with pytest.raises(InvalidArgumentError, match="has passed; expected a time in the future"):
        future_time("deadline", past)
