from __future__ import annotations

import math
from datetime import date

import pytest

from lightning_predict.cost.quotes import check_price, offer_for, quote_of
from lightning_predict.cost.records import Offer
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus import gpu
from lightning_predict.gpus.layouts import Layout
from lightning_predict.scaling.records import Run

T4 = Layout(gpu("T4"))
TWO_HOURS = Run(
    gpu="T4",
    cycle_seconds=1,
    training_seconds=7200,
    validation_seconds=0,
    total_seconds=7200,
    total_low_seconds=7000,
    total_high_seconds=7500,
)
UNKNOWN = Run(
    gpu="T4",
    cycle_seconds=1,
    training_seconds=None,
    validation_seconds=None,
    total_seconds=None,
    total_low_seconds=None,
    total_high_seconds=None,
)
OFFER = Offer(
    provider="P", instance="four", gpu="T4", num_gpus=4, usd_per_hour=2.0, date="2026-01-01", source="https://p.example"
)


def test_a_run_costs_its_hours_times_the_price_of_the_whole_machine() -> None:
    quote = quote_of(TWO_HOURS, T4, memory_bytes=1e9, offers=[OFFER])
    assert (quote.usd_per_hour, quote.cost_usd) == (2.0, 4.0)
    assert quote.fits is True


def test_the_users_price_comes_first() -> None:
    assert quote_of(TWO_HOURS, T4, memory_bytes=None, offers=[OFFER], usd_per_hour=3.0).cost_usd == 6.0
    by_name = quote_of(TWO_HOURS, T4, memory_bytes=None, offers=[OFFER], usd_per_hour={"T4": 4.0})
    assert by_name.cost_usd == 8.0
    assert by_name.offer is not None
    assert by_name.offer.label == f"user own price ({date.today().isoformat()})"


def test_a_price_for_another_gpu_leaves_the_listed_offer() -> None:
    offer = offer_for(T4, offers=[OFFER], usd_per_hour={"L4": 4.0})
    assert offer is OFFER


def test_without_an_offer_or_a_length_the_cost_is_unknown() -> None:
    nothing = quote_of(TWO_HOURS, T4, memory_bytes=None, offers=[])
    assert (nothing.usd_per_hour, nothing.cost_usd, nothing.offer, nothing.fits) == (None, None, None, None)
    assert quote_of(UNKNOWN, T4, memory_bytes=None, offers=[OFFER]).cost_usd is None


@pytest.mark.parametrize("price", [0.0, -1.0, math.inf, math.nan, {"T4": -2.0}])
def test_a_price_must_be_above_zero(price: float | dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"is not a price; expected US dollars per hour above 0\."):
        check_price(price)
    check_price(None)
    check_price({"T4": 0.3})
