from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.observe.budget import Ledger, limits_of_fit


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


def test_co2_is_counted_at_the_power_of_the_machine_that_emitted_it() -> None:
    # Ten hours at 2.24 kg/h (8 H100), resumed at 0.028 kg/h (a T4), counted as 0.28 kg.
    clock = Clock()
    ledger = Ledger(clock)
    ledger.open(forget=False)
    ledger.kg_co2_per_second = 2.24 / 3600
    clock.seconds += 36_000
    ledger.close()
    ledger.open(forget=False)
    ledger.kg_co2_per_second = 0.028 / 3600
    (limit,) = limits_of_fit(ledger, usd=None, hours=None, deadline=None, kg_co2=30.0)
    assert round(limit.used(0.0), 9) == 22.4
    resumed = Ledger(clock)
    resumed.open(forget=False)
    resumed.resume(seconds=ledger.seconds, usd=0.0, kg_co2=ledger.kg_co2, kg_co2_seconds=ledger.kg_co2_seconds)
    resumed.kg_co2_per_second = 0.028 / 3600
    (limit,) = limits_of_fit(resumed, usd=None, hours=None, deadline=None, kg_co2=30.0)
    assert round(limit.used(3600.0), 9) == 22.428


def test_seconds_of_unknown_power_are_counted_at_the_present_power() -> None:
    clock = Clock()
    ledger = Ledger(clock)
    ledger.open(forget=False)
    ledger.resume(seconds=3600.0, usd=0.0)  # of a checkpoint before this was stored
    ledger.kg_co2_per_second = 0.028 / 3600
    (limit,) = limits_of_fit(ledger, usd=None, hours=None, deadline=None, kg_co2=30.0)
    assert round(limit.used(0.0), 9) == 0.028
