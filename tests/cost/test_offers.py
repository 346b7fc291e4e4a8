"""Prices: dated, sourced, of GPUs that exist; the cheapest is current; bad rows are refused by name."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import CatalogueError
from lightning_predict.cost.offers import Offer, cheapest_offer, load_offers, machine_offer, offers_for, read_offers
from lightning_predict.cost.prediction import offer_for
from lightning_predict.cost.price_files import with_spot_prices
from lightning_predict.hardware import gpu_names
from lightning_predict.hardware.layouts import layout_of
from tests.known import known


def make_offer(
    usd_per_hour: float,
    date: str,
    *,
    provider: str = "P",
    instance: str = "i",
    gpu: str = "T4",
    num_gpus: int = 1,
    region: str | None = None,
) -> Offer:
    return Offer(
        provider=provider,
        instance=instance,
        gpu=gpu,
        num_gpus=num_gpus,
        usd_per_hour=usd_per_hour,
        date=date,
        source="https://example.com",
        region=region,
    )


def test_offers_are_many_dated_consistent_and_change() -> None:
    offers = load_offers()
    assert len(offers) >= 80
    assert {"AWS", "Azure", "GCP", "Lambda", "RunPod"} <= {offer.provider for offer in offers}
    for offer in offers:
        assert re.fullmatch(r"20\d\d-\d\d(-\d\d)?", offer.date)
        assert offer.source.startswith("https://")
        assert offer.gpu in gpu_names()
        assert 1 <= offer.num_gpus <= 16
        assert 0.05 < offer.usd_per_gpu_hour < 30
        assert offer.spot_usd_per_hour is None or offer.spot_usd_per_hour <= offer.usd_per_hour
    # A slip of a digit shows as a machine that is cheaper than every machine of the same list with fewer GPUs.
    lists: dict[tuple[str, str, str, str | None], list[Offer]] = {}
    for offer in offers:
        lists.setdefault((offer.provider, offer.gpu, offer.date, offer.region), []).append(offer)
    compared = 0
    for listed in lists.values():
        for offer in listed:
            smaller = [other.usd_per_hour for other in listed if other.num_gpus < offer.num_gpus]
            assert not smaller or offer.usd_per_hour > min(smaller)
            compared += bool(smaller)
    assert compared > 50
    # What `reports.table.OLD_DAYS` says of this table.
    machines: dict[tuple[str, str, int], dict[str, float]] = {}
    for offer in load_offers():
        prices = machines.setdefault((offer.provider, offer.instance, offer.num_gpus), {})
        prices[offer.date] = offer.usd_per_hour
    twice = [prices for prices in machines.values() if len(prices) > 1]
    assert {(min(prices)[:4], max(prices)[:4]) for prices in twice} == {("2025", "2026")}
    changes = sorted(prices[max(prices)] / prices[min(prices)] - 1 for prices in twice)
    # p5.48xlarge 55.04/98.32, p4de.24xlarge 27.45/40.97, p4d.24xlarge 21.96/32.77, ND96amsr A100 v4 32.77/37.18
    assert changes[:4] == pytest.approx([-0.440, -0.330, -0.330, -0.119], abs=0.001)
    assert changes[4:12] == pytest.approx([0.0] * 8, abs=0.01)
    assert changes[12:] == pytest.approx([0.267, 0.286], abs=0.001)  # RunPod L40S 1.09/0.86, Nebius H200 4.5/3.5


@pytest.mark.parametrize("name", ["T4", "V100-SXM2-16GB", "L4", "A10G", "L40S", "A100-SXM-80GB", "H100-SXM-80GB"])
def test_every_common_gpu_has_two_offers_and_a_current_price(name: str) -> None:
    assert len(offers_for(name)) >= 2
    assert known(cheapest_offer(name)).date >= "2025"


def test_old_consumer_and_large_machines_have_their_listed_prices() -> None:
    listed = Counter(offer.gpu for offer in load_offers() if offer.date == "2019-10")
    assert listed == {"K80": 3, "M60": 3, "Quadro-P600": 2, "GTX-1080-Ti": 1}
    assert offers_for("M60")[0].usd_per_gpu_hour == 0.62  # NV6; NV12 and NV24 cost as much per GPU
    assert cheapest_offer("M60") is None
    assert {offer.provider for offer in offers_for("RTX-4090")} == {"RunPod", "RunPod Community", "OpenRelay", "Akash"}
    assert all(cheapest_offer(name) is not None for name in ("RTX-3090", "RTX-4090", "RTX-5090"))
    eight = {offer.provider: offer for offer in offers_for("L4") if offer.num_gpus == 8}
    half = next(offer for offer in offers_for("L4") if offer.instance == "g2-standard-48")
    assert eight["GCP"].usd_per_hour == pytest.approx(2 * half.usd_per_hour)
    assert eight["AWS"].usd_per_hour == 13.3504


def test_newest_price_of_a_machine_in_a_region_counts() -> None:
    p5 = [offer for offer in load_offers() if offer.instance == "p5.48xlarge"]
    assert {offer.usd_per_hour for offer in p5} == {98.32, 55.04}  # 2025-04 and 2026-09
    assert [offer.usd_per_hour for offer in offers_for("H100-SXM-80GB", p5)] == [55.04]
    west = make_offer(2.0, "2025-01", region="west")
    east = make_offer(1.0, "2026-01", region="east")
    assert offers_for("T4", [west, east]) == (east, west)
    anywhere = make_offer(1.5, "2026-02")
    assert offers_for("T4", [west, east, anywhere]) == (anywhere,)


def test_offers_are_ordered_by_the_price_of_one_gpu_and_the_cheapest_is_a_whole_machine() -> None:
    eight = make_offer(16.0, "2026-01", num_gpus=8)  # 2 a GPU
    one = make_offer(3.0, "2026-01", instance="j")
    other = make_offer(0.1, "2026-01", gpu="L4")
    assert offers_for("T4", [one, eight, other]) == (eight, one)
    assert cheapest_offer("T4", [one, eight, other]) == one  # 3 an hour for one GPU, not 16 for eight


def test_fresh_prices_on_demand_and_on_spot_beat_older_ones() -> None:
    old, fresh = make_offer(1.0, "2026-07-01", instance="old"), make_offer(2.0, "2026-09-01", instance="fresh")
    assert cheapest_offer("T4", [old, fresh]) == fresh  # 62 days apart
    assert cheapest_offer("T4", [replace(old, date="2026-07-03"), fresh]) == replace(old, date="2026-07-03")  # 60
    assert cheapest_offer("T4", [old, replace(fresh, in_stock=False)]) == old  # a machine that there is
    assert cheapest_offer("T4", [old, fresh, make_offer(0.1, "2026-09-01", gpu="L4")]) == fresh
    assert cheapest_offer("T4", [old, fresh], num_gpus=1) == fresh
    spot = replace(make_offer(0.5, "2026-08-17", instance="spot"), spot=True)
    newer = replace(make_offer(0.6, "2026-09-01", instance="newer"), spot=True)  # 15 days later
    assert cheapest_offer("T4", [spot, newer]) == newer
    assert cheapest_offer("T4", [replace(spot, date="2026-08-18"), newer]) == replace(spot, date="2026-08-18")
    assert cheapest_offer("T4", [spot, make_offer(1.0, "2026-09-01")]) == spot  # on demand, the other kind
    # Of 2025-03 there is one for $0.39, which once decided a recommendation.
    offer = known(cheapest_offer("A10G", with_spot_prices(load_offers())))
    assert (offer.instance, offer.usd_per_hour, offer.date[:4]) == ("g5.xlarge", 0.636, "2026")


def test_gpu_without_offers_or_with_offers_over_two_years_old_has_no_price() -> None:
    newest = make_offer(9.0, "2026-09-17", gpu="L4")
    old = make_offer(1.0, "2024-09-16")
    still_good = make_offer(2.0, "2024-09-17", instance="j")
    assert cheapest_offer("T4", [newest, old, still_good]) == still_good
    assert cheapest_offer("T4", [newest, old]) is None
    assert offers_for("T4", [newest, old]) == (old,)
    assert offers_for("Quadro-GP100") == ()
    assert cheapest_offer("Quadro-GP100") is None
    assert cheapest_offer("T4", []) is None


@given(
    st.lists(
        st.builds(
            make_offer,
            st.floats(0.01, 100),
            st.sampled_from(["2024-01", "2025-06", "2026-03-01", "2026-09"]),
            instance=st.sampled_from("ijk"),
            num_gpus=st.sampled_from([1, 8]),
            region=st.sampled_from([None, "east"]),
        )
    )
)
def test_the_cheapest_is_never_beaten_by_a_newest_current_price(offers: list[Offer]) -> None:
    cheapest = cheapest_offer("T4", offers)
    newest_date = max((offer.date for offer in offers), default="")
    for offer in offers:
        if offer.date == newest_date:  # nothing replaces it, and it is current
            assert known(cheapest).usd_per_hour <= offer.usd_per_hour


GOOD = """
[[price_list]]
provider = "P"
date = "2026-05"
source = "https://example.com"
offers = [
    { instance = "i", gpu = "T4", num_gpus = 2, usd_per_hour = 1.5, spot_usd_per_hour = 0.5, in_stock = true },
]
"""


def load(folder: Path, text: str) -> tuple[Offer, ...]:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return read_offers(path)


def test_price_list_file_is_read_and_a_duplicate_rejected(tmp_path: Path) -> None:
    (offer,) = load(tmp_path, GOOD)
    assert (offer.usd_per_gpu_hour, offer.spot_usd_per_hour) == (0.75, 0.5)
    assert offer.region is None
    assert offer.label == "P i (2026-05, in stock)"
    (offer,) = load(tmp_path, GOOD.replace('date = "2026-05"', 'date = "2026-05"\nregion = "east"'))
    assert offer.region == "east"
    line = GOOD.splitlines()[6]
    with pytest.raises(
        CatalogueError,
        match=r"mine\.toml: price_list\['P 2026-05'\]\.offers\['i'\] is listed twice for one date; remove one of the",
    ):
        load(tmp_path, GOOD.replace(line, line + "\n" + line))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("= 1.5", "= 0", "offers['i'].usd_per_hour is 0; expected a finite number"),
        ("= 0.5", "= 1.6", "offers['i'].spot_usd_per_hour is 1.6, above the on-demand"),
        ("num_gpus = 2", "num_gpus = 0", "offers['i'].num_gpus is 0; expected an integer of at least"),
        ("usd_per_hour = 1.5, ", "", "offers['i'].usd_per_hour is missing; expected it in every such"),
        ('instance = "i", ', "", "offers[0].instance is missing; expected it in every such"),
        ("spot_usd", "sport_usd", "offers['i'] has the field 'sport_usd_per_hour'; expected"),
        ('"2026-05"', '"soon"', "date is 'soon'; expected the day or month that"),
        ("    { instance", '    "x", { instance', "offers[0] is 'x'; expected an object of keys and values."),
    ],
)
def test_invalid_offer_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    date = "soon" if "soon" in new else "2026-05"
    with pytest.raises(CatalogueError, match=re.escape(f"mine.toml: price_list['P {date}'].{message}")):
        load(tmp_path, GOOD.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('date = "2026-05"\n', "", "offers['i'].date is missing; expected the day or month that the price"),
        ('provider = "P"', 'provider = ""', "provider is ''; expected a text that is not blank."),
        ("[[price_list]]", "[price_list]", "price_list is {'date': '2026-05', 'offers': [{'gpu': 'T4', 'in_stock': "),
        ("[[price_list]]", "[[offers]]", "mine.toml: offers[0] has the field 'offers'; expected only"),
    ],
)
def test_invalid_price_list_is_rejected(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(CatalogueError, match=re.escape(message)):
        load(tmp_path, GOOD.replace(old, new))


def test_machine_by_name_has_its_own_price_or_the_cheapest_of_its_gpus() -> None:
    named = known(offer_for(layout_of("p5.48xlarge")))
    cheapest = offer_for(layout_of("8xH100-SXM-80GB"))
    assert (named.provider, named.instance) == ("AWS", "p5.48xlarge")
    assert known(cheapest).usd_per_hour < named.usd_per_hour
    assert machine_offer("g6.24xlarge", "L4") is None
    assert offer_for(layout_of("g6.24xlarge")) == offer_for(layout_of("4xL4"))


def test_single_gpu_rental_scales_with_number_of_gpus() -> None:
    single = replace(make_offer(1.5, "2026-11", provider="Pods", instance="1x T4"), max_gpus=4, spot_usd_per_hour=0.5)
    whole = make_offer(11.0, "2026-11", provider="Racks", instance="rack-8", num_gpus=8)
    table = [single, whole]
    assert [cheapest_offer("T4", table, num_gpus=count).usd_per_hour for count in (1, 2, 3, 4)] == [1.5, 3.0, 4.5, 6.0]  # type: ignore[union-attr]
    two = known(cheapest_offer("T4", table, num_gpus=2))
    assert (two.label, two.num_gpus, two.usd_per_gpu_hour, two.spot_usd_per_hour) == (
        "Pods 2x T4 (2026-11)",
        2,
        1.5,
        1.0,
    )
    # Five GPUs are more than such a machine has: the rack of eight is paid whole.
    assert cheapest_offer("T4", table, num_gpus=5) == whole
    assert cheapest_offer("T4", table, num_gpus=9) is None
    assert whole.with_gpus(2) == whole


def test_sold_out_machine_is_the_last_choice_and_shipped_prices_state_no_stock() -> None:
    sold_out = replace(make_offer(1.0, "2026-11", provider="Pods", instance="1x T4"), max_gpus=4, in_stock=False)
    free = replace(make_offer(1.2, "2026-11", provider="Racks", instance="rack"), in_stock=True)
    assert cheapest_offer("T4", [sold_out, free]) == free
    assert cheapest_offer("T4", [sold_out]) == sold_out
    # Where one is sold out, so are two; one that is free says nothing of two.
    assert [replace(sold_out, in_stock=one).with_gpus(2).in_stock for one in (False, True, None)] == [False, None, None]  # type: ignore[union-attr]
    assert {offer.in_stock for offer in load_offers()} == {None}


@pytest.mark.parametrize("name", ["A100-SXM-80GB", "H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "L40S"])
def test_two_and_four_gpus_cost_no_more_each_than_twice_one(name: str) -> None:
    # A price of two, four or eight that is another provider's shows as a jump of the price of each.
    one = cheapest_offer(name)
    for count in (2, 4, 8):
        several = known(cheapest_offer(name, num_gpus=count))
        assert several.usd_per_gpu_hour < 2 * known(one).usd_per_gpu_hour, (name, count, several.label)
