import pytest

from lightning_predict.base.interval import Interval
from lightning_predict.observe.budget import GO_ON, Limit, check_forecast, check_use
from lightning_predict.reports.format import usd

DOLLARS = Limit(name="usd", total=10.0, per_second=0.01, show=usd, before=1.0)
"""$10, $1 of it was spent before; a cent a second."""


def test_use_is_what_was_before_and_the_time_at_its_price() -> None:
    assert DOLLARS.used(100.0) == 1.0 + 100 * 0.01


def test_it_goes_on_while_the_middle_fits() -> None:
    # $1 before, $1 so far: $8 are left, 800 s. The high end may be over.
    assert check_forecast([DOLLARS], 100.0, Interval(700.0, 799.0, 2000.0)) is GO_ON


def test_it_warns_where_the_middle_breaks_it() -> None:
    assert check_forecast([DOLLARS], 100.0, Interval(799.0, 801.0, 2000.0)).action == "warn"


def test_it_stops_where_the_low_end_breaks_it_and_says_why() -> None:
    verdict = check_forecast([DOLLARS], 100.0, Interval(900.0, 1000.0, 1900.0))
    assert verdict.action == "stop"
    assert verdict.reason == (
        "forecast $12.00 ($11.00 to $21.00) exceeds the budget of $10.00 (usd; $2.00 used, 16 min 40 s left)"
    )


def test_a_limit_that_stops_beats_one_that_warns() -> None:
    tight = Limit(name="hours", total=1.0, per_second=1.0, show=str)
    verdict = check_forecast([DOLLARS, tight], 100.0, Interval(799.0, 801.0, 2000.0))
    assert verdict.action == "stop"
    assert "exceeds the budget of 1.0 (hours; " in verdict.reason


@pytest.mark.parametrize(
    ("elapsed_seconds", "action"),
    [(699.0, "go on"), (700.0, "warn"), (899.0, "warn"), (900.0, "stop"), (5000.0, "stop")],
)
def test_actual_use_warns_at_80_percent_and_stops_at_100(elapsed_seconds: float, action: str) -> None:
    # $1 + 700 s x $0.01 = $8, which is 80 % of $10.
    assert check_use([DOLLARS], elapsed_seconds).action == action


def test_the_reason_of_actual_use() -> None:
    assert check_use([DOLLARS], 900.0).reason == "$10.00 of $10.00 (usd) are used"
