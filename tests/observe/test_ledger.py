from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.observe.budget import Ledger


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_fit_is_paid_by_the_second() -> None:
    clock = Clock()
    ledger = Ledger(clock)
    assert (ledger.seconds, ledger.usd, ledger.elapsed_seconds) == (0.0, 0.0, 0.0)
    ledger.open(forget=False)
    ledger.usd_per_second = 0.5
    clock.seconds += 10
    assert (ledger.seconds, ledger.usd, ledger.elapsed_seconds) == (10.0, 5.0, 10.0)
    ledger.close()
    clock.seconds += 1000
    ledger.close()
    assert (ledger.seconds, ledger.usd, ledger.elapsed_seconds) == (10.0, 5.0, 0.0)


def test_a_second_fit_is_added_at_its_own_price() -> None:
    clock = Clock()
    ledger = Ledger(clock)
    for price in (0.5, 2.0):
        ledger.open(forget=False)
        ledger.usd_per_second = price
        clock.seconds += 10
        ledger.close()
    assert (ledger.seconds, ledger.usd) == (20.0, 10 * 0.5 + 10 * 2.0)


def test_each_fit_can_count_alone() -> None:
    clock = Clock()
    ledger = Ledger(clock)
    ledger.open(forget=True)
    clock.seconds += 10
    ledger.open(forget=True)
    clock.seconds += 3
    assert ledger.seconds == 3.0


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_checkpoint_never_takes_away_what_was_seen(seen: float, saved: float) -> None:
    ledger = Ledger(lambda: 0.0)
    ledger.seconds_before = seen
    ledger.resume(seconds=saved, usd=saved)
    assert ledger.seconds_before == max(seen, saved)
    assert ledger.usd_before == saved


def test_a_fit_that_opens_anew_has_no_price_until_it_is_told() -> None:
    clock = Clock()
    ledger = Ledger(clock)
    ledger.open(forget=False)
    ledger.usd_per_second = 0.5
    clock.seconds += 10
    ledger.open(forget=False)
    clock.seconds += 10
    assert (ledger.seconds, ledger.usd) == (20.0, 10 * 0.5)
