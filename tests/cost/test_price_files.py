"""The user's own prices: files of four formats, with the line of each error in YAML; own machines."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import CatalogueError, UnknownGpuError
from lightning_predict.cost.offers import Offer, cheapest_offer, load_offers, read_offers
from lightning_predict.cost.price_files import (
    at_spot_prices,
    outdated,
    with_listed,
    with_spot_prices,
)
from lightning_predict.hardware import gpu_names

TWO_OFFERS = """\
# our prices
- provider: Our cluster
  instance: dgx-2
  gpu: NVIDIA H100 80GB HBM3
  num_gpus: 8
  usd_per_hour: 12.40
  region: berlin
  date: 2026-11-01
  source: contract 4711
- {provider: Our cluster, instance: 7, gpu: L4, usd_per_hour: 0.2, spot: true, date: 2026-10}
"""


def written(folder: Path, text: str, name: str = "prices.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_yaml_offers_are_read_with_names_of_any_spelling(tmp_path: Path) -> None:
    first, second = read_offers(written(tmp_path, TWO_OFFERS))
    assert first == Offer(
        provider="Our cluster",
        instance="dgx-2",
        gpu="H100-SXM-80GB",
        num_gpus=8,
        usd_per_hour=12.40,
        date="2026-11-01",
        source="contract 4711",
        region="berlin",
    )
    assert first.usd_per_gpu_hour == 1.55  # 12.40 / 8
    assert (second.gpu, second.instance, second.num_gpus, second.date) == ("L4", "7", 1, "2026-10")
    assert (second.source, second.label) == ("prices.yaml", "Our cluster 7 spot (2026-10)")


def test_yaml_may_use_merged_defaults_and_an_unknown_gpu_names_the_nearest(tmp_path: Path) -> None:
    text = (
        "offers:\n  - &mine {provider: Us, instance: a, gpu: T4, usd_per_hour: 1, date: 2026-01-01}\n"
        "  - {<<: *mine, instance: b}\n"
    )
    assert [offer.instance for offer in read_offers(written(tmp_path, text))] == ["a", "b"]
    with pytest.raises(
        UnknownGpuError,
        match=r"prices\.yaml, line 3: offers\['i'\]\.gpu is unknown: 'T44' is not a GPU .* nearest names are T4",
    ):
        read_offers(written(tmp_path, GOOD.replace("T4", "T44")))


def test_a_region_leaves_offers_of_other_regions_out(tmp_path: Path) -> None:
    path = written(tmp_path, TWO_OFFERS)
    assert [offer.gpu for offer in read_offers(path, region="berlin")] == ["H100-SXM-80GB", "L4"]  # L4: in all
    assert [offer.gpu for offer in read_offers(path, region="paris")] == ["L4"]
    only_berlin = written(tmp_path, TWO_OFFERS.split("- {")[0], "one.yaml")
    with pytest.raises(CatalogueError, match=r"one\.yaml has no offer in region 'berlni'\. Did you mean 'berlin'\?"):
        read_offers(only_berlin, region="berlni")


GOOD = "- provider: P\n  instance: i\n  gpu: T4\n  usd_per_hour: 1.5\n  date: 2026-11-01\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1.5", "-1.5", "line 4: offers['i'].usd_per_hour is -1.5; expected a finite number above 0, in US dollars"),
        ("1.5", "0", "line 4: offers['i'].usd_per_hour is 0; expected a finite number above 0, in US dollars"),
        ("1.5", ".inf", "line 4: offers['i'].usd_per_hour is inf; expected a finite number above 0, in US dollars"),
        ("1.5", "cheap", "line 4: offers['i'].usd_per_hour is 'cheap'; expected a finite number above 0"),
        ("1.5", "true", "line 4: offers['i'].usd_per_hour is True; expected a finite number above 0"),
        ("  date: 2026-11-01\n", "", "line 1: offers['i'].date is missing; expected the day or month that the price"),
        ("2026-11-01", "2026", "line 5: offers['i'].date is '2026'; expected the day or month that the price holds"),
        ("2026-11-01", "", "line 5: offers['i'].date is None; expected the day or month that the price holds"),
        ("2026-11-01", "2026-11-31", "line 5: [0].date is not a value: day is out of range for month. Correct it"),
        (r"\Z", "  currency: EUR\n", "line 6: offers['i'].currency is 'EUR'; prices are compared in US dollars only."),
        (r"\Z", "  usd_per_huor: 2\n", "line 6: offers['i'] has the field 'usd_per_huor'; expected only"),
        (r"\Z", "  gpu: L4\n", "line 6: [0].gpu stands twice; remove one of the two."),
        (r"\Z", "  num_gpus: 1.5\n", "line 6: offers['i'].num_gpus is 1.5; expected an integer of at least 1."),
        (r"\Z", "  spot: maybe\n", "line 6: offers['i'].spot is 'maybe'; expected true or false."),
        (r"\Z", "  in_stock: no idea\n", "line 6: offers['i'].in_stock is 'no idea'; expected true or false."),
        (r"\Z", "  region: [a]\n", "line 6: offers['i'].region is ['a']; expected a text that is not blank."),
        (r"[\s\S]+", "- provider: P\n", "line 1: offers[0].usd_per_hour is missing; expected it in every such file."),
        (r"[\s\S]+", "- {<<: 3}\n", "line 1: [0].<< cannot be merged; expected keys and values."),
        (r"[\s\S]+", "- {? [a] : 3}\n", "line 1: [0] has a key that is not a plain value; expected one."),
        (r"[\s\S]+", "- 5\n", "line 1: offers[0] is 5; expected an object of keys and values."),
        (r"[\s\S]+", "offers: 3\n", "line 1: offers is 3; expected a list that is not empty, of offers with provider"),
        (r"[\s\S]+", "- provider: [a\n- b: c", "line 2, column 4 is not valid YAML: expected ',' or ']', but got ':'."),
    ],
)
def test_error_names_line_of_yaml(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(CatalogueError) as caught:
        read_offers(written(tmp_path, re.sub(old, lambda _: new, GOOD, count=1)))
    assert str(caught.value).startswith(f"prices.yaml, {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "prices.yaml: offers is None; expected a list that is not empty, of offers with provider,"),
        ("- a: \x00", "prices.yaml is not valid YAML: unacceptable character #x0000: special characters are not"),
    ],
)
def test_error_without_line_names_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CatalogueError, match=re.escape(message)):
        read_offers(written(tmp_path, text))


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "provider": st.text(min_size=1).filter(lambda text: text.strip() != ""),
                "instance": st.from_regex(r"[a-z0-9 :#-]{0,8}[a-z]", fullmatch=True),
                "gpu": st.sampled_from(gpu_names()),
                "usd_per_hour": st.floats(min_value=1e-3, max_value=1e5),
                "date": st.dates().filter(lambda day: day.year >= 1000),
            },
            optional={"num_gpus": st.integers(1, 16), "spot": st.booleans()},
        ),
        min_size=1,
        max_size=4,
        unique_by=lambda entry: str(entry["instance"]),
    )
)
def test_yaml_offers_round_trip(tmp_path_factory: pytest.TempPathFactory, entries: list[dict[str, object]]) -> None:
    path = written(tmp_path_factory.mktemp("yaml"), yaml.safe_dump(entries, allow_unicode=True))
    for offer, entry in zip(read_offers(path), entries, strict=True):
        assert (offer.gpu, offer.usd_per_hour, offer.date) == (entry["gpu"], entry["usd_per_hour"], str(entry["date"]))
        assert offer.num_gpus == entry.get("num_gpus", 1)


@given(st.text(max_size=60))
def test_any_text_raises_only_own_errors(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("any")
    for name in ("a.yaml", "a.csv"):
        path = folder / name
        path.write_text(text, encoding="utf-8", errors="surrogatepass" if text.isprintable() else "replace")
        with pytest.raises((CatalogueError, UnknownGpuError)):
            read_offers(path)


ROW = {"provider": "P", "instance": "i", "gpu": "T4", "usd_per_hour": 1.5, "date": "2026-11-01", "spot": True}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("o.json", json.dumps({"offers": [ROW]})),
        ("o.json", json.dumps({"provider": "Q", "date": "2026-11", "currency": "usd", "offers": [ROW]})),
        ("o.yml", yaml.safe_dump({"price_list": [{"provider": "Q", "offers": [ROW]}]})),
        ("o.toml", "[[offers]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in ROW.items())),
        ("o.csv", f"{','.join(ROW)},region,num_gpus\n{','.join(map(str, ROW.values()))},,1\n"),
    ],
)
def test_formats_hold_the_same_offer(name: str, text: str, tmp_path: Path) -> None:
    (offer,) = read_offers(written(tmp_path, text, name))
    assert offer == Offer(
        provider="P", instance="i", gpu="T4", num_gpus=1, usd_per_hour=1.5, date="2026-11-01", source=name, spot=True
    )


CSV_OFFERS = (
    "provider,instance,gpu,usd_per_hour,date,num_gpus,in_stock\nUs,a,L4,0.5,2026-11,4,true\nUs,b,T4,1,2026-11,,\n"
)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("nowhere.yaml", None, r"nowhere\.yaml does not exist; give a file of offers"),
        ("prices.txt", "x", r"prices\.txt has another ending than \.yaml, \.yml, \.toml, \.json, \.csv"),
        ("o.csv", "provider,instance\nP,i\n", r"o\.csv: offers\['i'\]\.usd_per_hour is missing"),
        ("o.csv", "InstanceType,Price\ng5,1\n", r"o\.csv: offers\[0\] has the field 'InstanceType'; expected only"),
        ("o.csv", "", r"o\.csv: offers is \[\]; expected a list that is not empty"),
    ],
)
def test_file_without_offers_is_rejected(name: str, text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / name if text is None else written(tmp_path, text, name)
    with pytest.raises(CatalogueError, match=message):
        read_offers(path)


def test_own_prices_come_first_unless_outdated(tmp_path: Path) -> None:
    own = read_offers(written(tmp_path, GOOD.replace("1.5", "99")))  # of a T4, dearer than any listed
    table = with_listed(own)
    assert cheapest_offer("T4", table) == own[0]
    assert cheapest_offer("L4", table) == cheapest_offer("L4")
    assert len(table) == 1 + sum(offer.gpu != "T4" for offer in load_offers())
    own = read_offers(written(tmp_path, GOOD + GOOD.replace("T4", "L4").replace("2026-11-01", "2021-05-01")))
    assert cheapest_offer("L4", with_listed(own)) is None
    (note,) = outdated(own)
    assert note.startswith("L4: the newest of your prices is of 2021-05-01, too old")


def test_spot_prices_and_stock_of_a_file_are_in_the_label(tmp_path: Path) -> None:
    text = GOOD + GOOD.replace("T4", "L4") + "  spot_usd_per_hour: 0.4\n"
    (spot,) = at_spot_prices(read_offers(written(tmp_path, text)))  # only the L4 has one
    assert (spot.gpu, spot.usd_per_hour, spot.spot_usd_per_hour, spot.spot) == ("L4", 0.4, None, True)
    assert " spot (" in spot.label
    assert at_spot_prices([spot]) == (spot,)
    first, second = read_offers(written(tmp_path, TWO_OFFERS.replace("  region: berlin", "  in_stock: false")))
    assert (first.in_stock, second.in_stock) == (False, None)
    assert first.label == "Our cluster dgx-2 (2026-11-01, sold out)"
    assert replace(first, in_stock=True).label == "Our cluster dgx-2 (2026-11-01, in stock)"


def test_spot_prices_keep_on_demand_machines_that_may_cost_less() -> None:
    def offer(provider: str, usd_per_hour: float, spot: float | None = None) -> Offer:
        return Offer(
            provider=provider,
            instance="a",
            gpu="T4",
            num_gpus=1,
            usd_per_hour=usd_per_hour,
            spot_usd_per_hour=spot,
            date="2026-11",
            source="https://example.com",
        )

    dear, cheap = offer("Dear", 4.0, spot=2.2), offer("Cheap", 1.99)
    listed = with_spot_prices([dear, cheap])
    assert [(offer.provider, offer.usd_per_hour, offer.spot) for offer in listed] == [
        ("Dear", 2.2, True),
        ("Cheap", 1.99, False),
    ]
    assert cheapest_offer("T4", listed) == cheap
    best = cheapest_offer("T4", with_spot_prices([dear, replace(cheap, usd_per_hour=2.5)]))
    assert best is not None
    assert best.label == "Dear a spot (2026-11)"
