from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from lightning_predict.observe.budget import Ledger, hours_limit, limits_of_fit, usd_limit


def test_dollars_are_used_at_the_price() -> None:
    limit = usd_limit(10.0, per_second=0.01, before=1.0)
    assert limit.used(100.0) == 2.0
    assert limit.show(limit.total) == "$10.00"
    assert limit.reached_seconds(0.8) == pytest.approx(700.0)  # 8 - 1 dollars at a cent a second


def test_hours_are_used_by_hours() -> None:
    limit = hours_limit("hours", 2.0, before=0.5)
    assert limit.used(1800.0) == 1.0
    assert limit.show(limit.total) == "2 h"


def ledger(**values: float) -> Ledger:
    made = Ledger(lambda: 0.0)
    for name, value in values.items():
        setattr(made, name, value)
    return made


def test_the_limits_of_a_fit_count_what_was_used_before() -> None:
    dollars, hours = limits_of_fit(
        ledger(usd_per_second=0.5, usd_before=3.0, seconds_before=7200.0), usd=10.0, hours=5.0, deadline=None
    )
    assert (dollars.name, dollars.total, dollars.before, dollars.per_second) == ("usd", 10.0, 3.0, 0.5)
    assert (hours.name, hours.total, hours.before) == ("hours", 5.0, 2.0)


def test_dollars_without_a_price_are_no_limit() -> None:
    assert limits_of_fit(ledger(), usd=10.0, hours=None, deadline=None) == ()


def test_a_deadline_counts_from_the_beginning_of_the_fit() -> None:
    deadline = datetime.now(timezone.utc) + timedelta(hours=3)
    (limit,) = limits_of_fit(ledger(seconds_before=7200.0), usd=None, hours=None, deadline=deadline)
    assert limit.name == "deadline"
    assert limit.total == pytest.approx(3.0, abs=1e-3)
    assert limit.before == 0.0  # earlier use does not bring it nearer
