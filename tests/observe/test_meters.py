"""What a run uses up: rates, limits, ledgers and their files, for each quantity."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import InvalidArgumentError, UnknownOfferError
from lightning_predict.base.interval import Interval
from lightning_predict.cost.offers import Offer, load_offers, offers_for
from lightning_predict.hardware import gpu
from lightning_predict.observe import meters
from lightning_predict.observe.budget import GO_ON, check_forecast, check_use
from lightning_predict.observe.meters import (
    Ledger,
    Meter,
    Quantity,
    Rate,
    RentedMachine,
    Terms,
    Use,
    future_time,
    gpu_name_in_use,
    named_offer,
    price_rate,
)
from lightning_predict.reports.format import usd
from lightning_predict.testing import Clock

CPU = RentedMachine("cpu")
EIGHT = Offer(provider="A", instance="big", gpu="T4", num_gpus=8, usd_per_hour=16.0, date="2026-01-01", source="here")
DOLLARS = Meter(name="usd", limit=10.0, rate=0.01, words=usd, before=1.0)
"""$10, $1 of it was spent before; a cent a second."""


def t4(processes: int = 1, nodes: int = 1) -> RentedMachine:
    return RentedMachine("T4", processes, nodes, "T4")


# --- Checks of meters


def test_meter_adds_earlier_use_and_the_limit_that_stops_comes_first() -> None:
    assert DOLLARS.used(100.0) == 1.0 + 100 * 0.01
    assert DOLLARS.reached_seconds(0.8) == pytest.approx(700.0)  # 8 - 1 dollars at a cent a second
    tight = Meter(name="hours", limit=1.0, rate=1.0, words=str)
    verdict = check_forecast([DOLLARS, tight], 100.0, Interval(799.0, 801.0, 2000.0))
    assert verdict.action == "stop"
    assert "exceeds the budget of 1.0 (hours; " in verdict.reason


@pytest.mark.parametrize(
    ("forecast", "action"),
    [  # $1 before, $1 so far: $8 are left, 800 s
        (Interval(700.0, 799.0, 2000.0), "go on"),
        (Interval(799.0, 801.0, 2000.0), "warn"),
        (Interval(900.0, 1000.0, 1900.0), "stop"),
    ],
)
def test_forecast_warns_by_its_middle_and_stops_by_its_low_end(forecast: Interval[float], action: str) -> None:
    verdict = check_forecast([DOLLARS], 100.0, forecast)
    assert verdict.action == action
    assert (verdict is GO_ON) == (action == "go on")
    assert action != "stop" or verdict.reason == (
        "forecast $12.00 ($11.00 to $21.00) exceeds the budget of $10.00 (usd; $2.00 used, 16 min 40 s left)"
    )


@pytest.mark.parametrize(
    ("elapsed_seconds", "action"),
    [(699.0, "go on"), (700.0, "warn"), (899.0, "warn"), (900.0, "stop"), (5000.0, "stop")],
)
def test_use_warns_at_80_percent_and_stops_at_100(elapsed_seconds: float, action: str) -> None:
    # $1 + 700 s x $0.01 = $8, which is 80 % of $10.
    assert check_use([DOLLARS], elapsed_seconds).action == action


# --- Terms: limits, rates and words of a fit that begins


@pytest.mark.parametrize(
    ("arguments", "name", "limit", "rate", "words"),
    [
        ({"usd": 10.0, "usd_per_hour": 3.6}, "usd", 10.0, 0.001, "$10.00; it counts $3.60/h (your own price)"),
        ({"hours": 2.0}, "hours", 2.0, 1 / 3600, "2 h"),
        ({"hours": timedelta(minutes=90)}, "hours", 1.5, 1 / 3600, "1 h 30 min"),
        (  # 3 kW x 1.2 at 1000 g/kWh are 3.6 kg an hour
            {"kg_co2": 1, "grid": 1000, "watts": 3000, "pue": 1.2},
            "kg_co2",
            1.0,
            0.001,
            "1.00 kg CO2; it counts 3,000 W, times 1.2 for the data centre at 1000 g/kWh",
        ),
    ],
)
def test_limit_of_each_quantity_has_rate_and_words(
    arguments: dict[str, Any], name: str, limit: float, rate: float, words: str
) -> None:
    ledger = Ledger(Clock())
    allowed = Terms.checked(**arguments).start(CPU, ledger)
    (meter,) = allowed.meters
    assert (meter.name, meter.limit) == (name, limit)
    assert meter.rate == pytest.approx(rate)
    assert allowed.sentence == words
    assert ledger.rates == {name: pytest.approx(rate)}


@pytest.mark.parametrize(
    ("arguments", "warning"),
    [
        ({"usd": 10.0}, "the price of this machine is unknown, so usd has no effect; give usd_per_hour or an offer"),
        ({"kg_co2": 1, "grid": 400}, "the power of this machine is unknown, so kg_co2 has no effect; give watts"),
    ],
)
def test_limit_without_rate_has_no_effect_and_warns(arguments: dict[str, Any], warning: str) -> None:
    allowed = Terms.checked(hours=2.0, **arguments).start(CPU, Ledger(Clock()))
    assert [meter.name for meter in allowed.meters] == ["hours"]
    assert allowed.warnings == (warning,)


def test_deadline_is_a_limit_in_hours_from_the_start_of_the_fit() -> None:
    soon = (datetime.now() + timedelta(hours=3)).isoformat()
    ledger = Ledger(Clock())
    ledger.resume(Use(7200.0))
    (meter,) = Terms.checked(deadline=soon).start(CPU, ledger).meters
    assert meter.name == "deadline"
    assert 2.9 < meter.limit <= 3.0
    assert meter.before == 0.0  # earlier use does not bring it nearer


@pytest.mark.parametrize("time", ["2999-01-31T18:00", "2999-01-31T18:00+09:00"])
def test_time_without_zone_is_local(time: str) -> None:
    expected = datetime.fromisoformat(time)
    assert future_time("deadline", time) == (expected if expected.tzinfo else expected.astimezone())
    past = (datetime.now(timezone.utc) - timedelta(seconds=1)).isoformat()
    with pytest.raises(InvalidArgumentError, match="has passed; expected a time in the future"):
        future_time("deadline", past)


def test_new_quantity_needs_only_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"kwh": Quantity(words="{:g} kWh".format, rate=lambda terms, machine: Rate(3.6, "3.6 kW"))}
    monkeypatch.setattr(meters, "QUANTITIES", meters.QUANTITIES | rows)
    monkeypatch.setitem(meters.BudgetArguments.__annotations__, "kwh", "float | None")
    clock = Clock()
    ledger = Ledger(clock)
    ledger.open(forget=False)
    arguments: Any = {"kwh": 2.0}
    allowed = Terms.checked(**arguments).start(CPU, ledger)
    clock.advance(100.0)
    assert allowed.sentence == "2 kWh; it counts 3.6 kW"
    assert allowed.meters[0].used(ledger.elapsed_seconds) == pytest.approx(0.1)  # 3.6 kW are 1 Wh a second
    saved = ledger.use.plain()
    assert saved["kwh"] == pytest.approx(0.1)
    assert Use.parse(saved) == Use.parse(ledger.use.plain())
    resumed = Ledger(clock)
    resumed.resume(Use.parse(saved))
    assert Terms.checked(**arguments).start(CPU, resumed).meters[0].before == pytest.approx(0.1)


# --- Prices


@pytest.mark.parametrize(
    ("terms", "machine", "usd_per_hour", "source"),
    [
        (Terms(usd_per_hour=3.0, offer=EIGHT), t4(16), 3.0, "$3.00/h (your own price)"),  # for all machines
        *(  # of a named offer, whole machines are paid
            (
                Terms(offer=EIGHT),
                t4(processes, nodes),
                16.0 * machines,
                f"${16.0 * machines:.2f}/h (A big (2026-01-01))",
            )
            for processes, nodes, machines in [(1, 1, 1), (8, 1, 1), (9, 1, 2), (16, 2, 2), (2, 2, 2)]
        ),
        (Terms(), t4(3), 6.0, "$6.00/h (A big (2026-01-01))"),  # the only listed price
    ],
)
def test_price_comes_from_the_user_then_the_named_offer_then_the_list(
    terms: Terms, machine: RentedMachine, usd_per_hour: float, source: str
) -> None:
    assert price_rate(terms, machine, [EIGHT]) == Rate(usd_per_hour, source)


def test_highest_of_several_listed_prices_counts_or_none_with_a_warning() -> None:
    highest = max(offer.usd_per_gpu_hour for offer in offers_for("T4"))
    rate = price_rate(Terms(), t4(2))
    assert rate.per_hour == 2 * highest
    assert str(rate.warning).startswith("T4 prices range from $")
    assert "choose another with offer=... or usd_per_hour" in str(rate.warning)
    rate = price_rate(Terms(), RentedMachine("P600", gpu="P600"), [EIGHT])
    assert rate == Rate(None, warning="no price of P600 is listed, so usd has no effect; give usd_per_hour")


def test_offer_is_found_with_and_without_its_provider() -> None:
    assert named_offer("g5.xlarge").gpu == "A10G"
    assert named_offer("AWS g5.xlarge") == named_offer("g5.xlarge")
    newer = replace(EIGHT, date="2026-02-01")
    assert named_offer("big", [newer, EIGHT]) is newer
    with pytest.raises(UnknownOfferError, match=r"offer='g5.xlarg' is not listed. Nearest: g5.xlarge.*usd_per_hour"):
        named_offer("g5.xlarg")
    with pytest.raises(UnknownOfferError, match="offer='big' is listed by A and B; say 'A big' or 'B big'"):
        named_offer("big", [EIGHT, replace(EIGHT, provider="B")])


def test_whole_machines_of_a_listed_offer_are_charged() -> None:
    offer = next(offer for offer in load_offers() if offer.num_gpus == 8)
    terms = Terms.checked(usd=1.0, offer=f"{offer.provider} {offer.instance}")
    assert terms.offer is not None
    ledger = Ledger(Clock())
    terms.start(RentedMachine("cpu", world_size=terms.offer.num_gpus + 1), ledger)
    assert ledger.rates["usd"] == pytest.approx(2 * terms.offer.usd_per_hour / 3600)


@pytest.mark.parametrize(("name", "listed_name"), [("Tesla T4", "T4"), ("Voodoo 2", None)])
def test_gpu_in_use_is_looked_up_in_the_catalogue(
    monkeypatch: pytest.MonkeyPatch, name: str, listed_name: str | None
) -> None:
    properties = SimpleNamespace(name=name, total_memory=gpu("T4").memory_bytes)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert gpu_name_in_use(torch.device("cuda", 0)) == listed_name
    assert gpu_name_in_use(torch.device("cpu")) is None
    assert str(RentedMachine.of(torch.device("cuda", 0), world_size=2)) == f"2 x {listed_name or 'cuda'}"


# --- Ledger


class Fits:
    """Fits of one run after another, by a clock of its own."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.clock = Clock()
        self.ledger = ledger or Ledger(self.clock)

    def fit(self, seconds: float, rates: dict[str, float], *, forget: bool = False) -> None:
        self.ledger.open(forget=forget)
        self.ledger.rates = rates
        self.clock.advance(seconds)

    def used(self, name: str, rate: float = 0.0) -> tuple[float, float]:
        return self.ledger.use.seconds, self.ledger.use.amount(name, rate)


def test_time_between_fits_is_not_used() -> None:
    run = Fits()
    assert (run.used("usd"), run.ledger.elapsed_seconds) == ((0.0, 0.0), 0.0)
    run.fit(10.0, {"usd": 0.5})
    assert (run.used("usd"), run.ledger.elapsed_seconds) == ((10.0, 5.0), 10.0)
    run.ledger.close()
    run.clock.advance(1000.0)
    run.ledger.close()
    assert (run.used("usd"), run.ledger.elapsed_seconds) == ((10.0, 5.0), 0.0)


@pytest.mark.parametrize(
    ("fits", "rate", "used"),
    [
        ([(10.0, {"usd": 0.5}), (10.0, {"usd": 2.0})], 2.0, (20.0, 25.0)),  # each fit at its own price
        ([(10.0, {"usd": 0.5}), (10.0, {})], 0.0, (20.0, 5.0)),
        ([(10.0, {}), (10.0, {"usd": 2.0})], 2.0, (20.0, 40.0)),  # an unknown price: the present one
        ([(10.0, {"kg_co2": 1.0}), (10.0, {"usd": 2.0})], 2.0, (20.0, 40.0)),
    ],
)
def test_use_of_each_fit_keeps_its_rate(
    fits: list[tuple[float, dict[str, float]]], rate: float, used: tuple[float, float]
) -> None:
    run = Fits()
    for seconds, rates in fits:
        run.fit(seconds, rates)
    assert run.used("usd", rate) == used
    run.fit(3.0, {}, forget=True)
    assert run.used("usd") == (3.0, 0.0)


amounts = st.floats(0, 1e6)


@given(amounts, amounts, amounts, amounts)
def test_checkpoint_never_reduces_the_measured_use(seconds: float, usd: float, saved: float, saved_usd: float) -> None:
    ledger = Ledger(Clock())
    ledger.before = Use(seconds, {"usd": (usd, seconds)})
    ledger.resume(Use.parse({"seconds": saved, "usd": saved_usd}))
    assert (ledger.use.seconds, ledger.use.amount("usd")) == (max(seconds, saved), max(usd, saved_usd))


@pytest.mark.parametrize(
    ("state", "kilograms"),
    [
        ({"seconds": 3600.0, "usd": 0.0}, 0.028),  # before CO2 was stored: the present power counts
        # Ten hours at 2.24 kg/h (8 H100), resumed at 0.028 kg/h (a T4), which would make 0.28 kg of them.
        ({"seconds": 36_000.0, "usd": 0.0, "kg_co2": 22.4, "kg_co2_seconds": 36_000.0}, 22.4),
    ],
)
def test_state_of_an_earlier_version_counts(state: dict[str, float], kilograms: float) -> None:
    ledger = Ledger(Clock())
    ledger.resume(Use.parse(state))
    terms = Terms.checked(kg_co2=30.0, grid=28, watts=1000.0)  # 0.028 kg/h
    (meter,) = terms.start(CPU, ledger).meters
    assert meter.used(0.0) == pytest.approx(kilograms)
    assert meter.used(3600.0) == pytest.approx(kilograms + 0.028)
