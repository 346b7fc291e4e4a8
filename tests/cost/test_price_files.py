"""The user's own prices: YAML with the line of each error, SkyPilot catalogues as they are, own machines."""

from __future__ import annotations

import csv
import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import CatalogueError, InvalidArgumentError, UnknownGpuError
from lightning_predict.cost.offers import Offer, cheapest_offer, load_offers
from lightning_predict.cost.price_files import (
    at_spot_prices,
    outdated,
    own_machine_offer,
    read_offer_file,
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


def read_offers(path: Path, *, region: str | None = None, date: str | None = None) -> tuple[Offer, ...]:
    return read_offer_file(path, region=region, date=date).offers


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
    assert second.source == "prices.yaml"
    assert second.label == "Our cluster 7 spot (2026-10)"


def test_the_list_may_stand_under_a_key_and_use_merged_defaults(tmp_path: Path) -> None:
    text = (
        "offers:\n  - &mine {provider: Us, instance: a, gpu: T4, usd_per_hour: 1, date: 2026-01-01}\n"
        "  - {<<: *mine, instance: b}\n"
    )
    assert [offer.instance for offer in read_offers(written(tmp_path, text))] == ["a", "b"]


def test_a_region_leaves_offers_of_other_regions_out(tmp_path: Path) -> None:
    path = written(tmp_path, TWO_OFFERS)
    assert [offer.gpu for offer in read_offers(path, region="berlin")] == ["H100-SXM-80GB", "L4"]  # L4: in all
    assert [offer.gpu for offer in read_offers(path, region="paris")] == ["L4"]
    only_berlin = written(tmp_path, TWO_OFFERS.split("- {")[0], "one.yaml")
    with pytest.raises(CatalogueError, match=r"one\.yaml has no offer in region 'berlni'\. Did you mean 'berlin'\?"):
        read_offers(only_berlin, region="berlni")


GOOD = "- provider: P\n  instance: i\n  gpu: T4\n  usd_per_hour: 1.5\n  date: 2026-11-01\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            GOOD.replace("1.5", "-1.5"),
            "prices.yaml, line 4: offers[0].usd_per_hour is -1.5; expected a finite number above 0, in US",
        ),
        (
            GOOD.replace("1.5", "0"),
            "prices.yaml, line 4: offers[0].usd_per_hour is 0; expected a finite number above 0, in US",
        ),
        (
            GOOD.replace("1.5", ".inf"),
            "prices.yaml, line 4: offers[0].usd_per_hour is inf; expected a finite number above 0, in US",
        ),
        (
            GOOD.replace("1.5", "cheap"),
            "prices.yaml, line 4: offers[0].usd_per_hour is 'cheap'; expected a finite number above 0, in",
        ),
        (
            GOOD.replace("1.5", "true"),
            "prices.yaml, line 4: offers[0].usd_per_hour is True; expected a finite number above 0, in US",
        ),
        (
            GOOD.replace("  date: 2026-11-01\n", ""),
            "prices.yaml, line 1: offers[0].date is missing; expected the day or month that the price holds",
        ),
        (
            GOOD.replace("2026-11-01", "2026"),
            "prices.yaml, line 5: offers[0].date is '2026'; expected the day or month that the price holds",
        ),
        (
            GOOD.replace("2026-11-01", ""),
            "prices.yaml, line 5: offers[0].date is None; expected the day or month that the price holds",
        ),
        (
            GOOD.replace("2026-11-01", "2026-11-31"),
            "prices.yaml, line 5: [0].date is not a value: day is out of range for month. Correct it there.",
        ),
        (
            GOOD + "  currency: EUR\n",
            "prices.yaml, line 6: offers[0].currency is 'EUR'; prices are compared in US dollars only.",
        ),
        (GOOD + "  usd_per_huor: 2\n", "prices.yaml, line 6: offers[0] has the field 'usd_per_huor'; expected only"),
        (GOOD + "  gpu: L4\n", "prices.yaml, line 6: [0].gpu stands twice; remove one of the two."),
        (
            GOOD + "  num_gpus: 1.5\n",
            "prices.yaml, line 6: offers[0].num_gpus is 1.5; expected an integer of at least 1.",
        ),
        (GOOD + "  spot: maybe\n", "prices.yaml, line 6: offers[0].spot is 'maybe'; expected true or false."),
        (
            GOOD + "  region: [a]\n",
            "prices.yaml, line 6: offers[0].region is ['a']; expected a text that is not blank.",
        ),
        ("- provider: P\n", "prices.yaml, line 1: offers[0].gpu is missing; expected it in every such file."),
        ("- {<<: 3}\n", "prices.yaml, line 1: [0].<< cannot be merged; expected keys and values."),
        ("- {? [a] : 3}\n", "prices.yaml, line 1: [0] has a key that is not a plain value; expected one."),
        ("- 5\n", "prices.yaml, line 1: offers[0] is 5; expected an offer with provider, instance, gpu,"),
        ("", "prices.yaml: offers is None; expected a list of offers that is not empty, each with provider,"),
        (
            "offers: 3\n",
            "prices.yaml, line 1: offers is 3; expected a list of offers that is not empty, each with provider,",
        ),
        (
            "- provider: [a\n- b: c",
            "prices.yaml, line 2, column 4 is not valid YAML: expected ',' or ']', but got ':'. Correct it",
        ),
        ("- a: \x00", "prices.yaml is not valid YAML: unacceptable character #x0000: special characters are not"),
    ],
)
def test_what_is_wrong_in_yaml_is_said_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(CatalogueError) as caught:
        read_offers(written(tmp_path, text))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_yaml_with_an_unknown_gpu_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        UnknownGpuError,
        match=r"prices\.yaml, line 3: offers\[0\]\.gpu is unknown: 'T44' is not a GPU .* nearest names are T4",
    ):
        read_offers(written(tmp_path, GOOD.replace("T4", "T44")))


def test_dollars_may_be_stated(tmp_path: Path) -> None:
    assert len(read_offers(written(tmp_path, GOOD + "  currency: usd\n"))) == 1


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
    )
)
def test_what_yaml_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, entries: list[dict[str, object]]
) -> None:
    path = written(tmp_path_factory.mktemp("yaml"), yaml.safe_dump(entries, allow_unicode=True))
    for offer, entry in zip(read_offers(path), entries, strict=True):
        assert (offer.gpu, offer.usd_per_hour, offer.date) == (entry["gpu"], entry["usd_per_hour"], str(entry["date"]))
        assert offer.num_gpus == entry.get("num_gpus", 1)


@given(st.text(max_size=60))
def test_no_text_brings_anything_but_our_errors(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("any")
    for name in ("a.yaml", "vms.csv"):
        path = folder / name
        path.write_text(text, encoding="utf-8", errors="surrogatepass" if text.isprintable() else "replace")
        with pytest.raises((CatalogueError, UnknownGpuError)):
            read_offers(path)


HEADER = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone"
CATALOGUE = f"""\
{HEADER}
cpu.large,,,2.0,4.0,,0.1,0.02,us-east-1,a
g5.xlarge,A10G,1.0,4.0,16.0,"{{'Gpus': [{{'Name': 'A10G', 'Count': 1}}]}}",1.2,0.5,eu-west-1,a
g5.xlarge,A10G,1.0,4.0,16.0,"{{'Gpus': [{{'Name': 'A10G', 'Count': 1}}]}}",1.0,0.6,us-east-1,a
g5.xlarge,A10G,1.0,4.0,16.0,"{{'Gpus': [{{'Name': 'A10G', 'Count': 1}}]}}",1.0,0.4,us-east-1,b
p3.16xlarge,V100,8.0,64.0,488.0,,24.48,,us-east-1,a
vast-1,RTX4090,2,16,32,,0.8,0.00,"Oslo, NO",
frac,L4,0.125,1,4,,0.2,0.1,us-east-1,a
amd,MI100,8,8,8,,16.0,8.0,us-east-1,a
amd2,MI100,1,8,8,,2.0,1.0,us-east-1,a
unpriced,T4,1,8,8,,,0.1,us-east-1,a
"""


def catalogue(folder: Path, text: str = CATALOGUE, provider: str = "aws") -> Path:
    return written(folder, text, f"{provider}/vms.csv")


def test_a_sky_catalogue_gives_each_machine_in_its_cheapest_region(tmp_path: Path) -> None:
    found = read_offer_file(catalogue(tmp_path), date="2026-11-01")
    shown = [(o.instance, o.gpu, o.num_gpus, o.usd_per_hour, o.spot_usd_per_hour, o.region) for o in found.offers]
    assert shown == [
        ("g5.xlarge", "A10G", 1, 1.0, 0.4, "us-east-1"),  # cheapest; of the two zones, the one with the cheaper spot
        ("p3.16xlarge", "V100-SXM2-16GB", 8, 24.48, None, "us-east-1"),
        ("vast-1", "RTX-4090", 2, 0.8, None, "Oslo, NO"),  # a spot price of 0.00 means no price
    ]
    assert {offer.provider for offer in found.offers} == {"AWS"}  # as the shipped lists spell the folder's name
    assert {offer.date for offer in found.offers} == {"2026-11-01"}
    assert {offer.source for offer in found.offers} == {"SkyPilot catalogue aws/vms.csv"}


def test_what_a_catalogue_has_that_we_cannot_use_is_counted_and_said(tmp_path: Path) -> None:
    assert read_offer_file(catalogue(tmp_path)).notes == (
        "vms.csv: left out machines with a part of a GPU, or without a number of GPUs: 1.",
        "vms.csv: left out machines without an on-demand price: 1.",
        "vms.csv: left out machines whose accelerator is not in the catalogue: MI100 (2).",
    )


def test_without_a_date_prices_are_of_the_day_of_the_file(tmp_path: Path) -> None:
    path = catalogue(tmp_path)
    os.utime(path, (1_767_225_600, 1_767_225_600))  # 2026-01-01, 00:00 UTC
    assert read_offers(path)[0].date == "2026-01-01"


def test_a_region_of_a_catalogue(tmp_path: Path) -> None:
    path = catalogue(tmp_path)
    assert [(offer.instance, offer.usd_per_hour) for offer in read_offers(path, region="eu-west-1")] == [
        ("g5.xlarge", 1.2)
    ]
    with pytest.raises(CatalogueError, match=r"no GPU machine in region 'us-est-1'\. Did you mean 'us-east-1'\?"):
        read_offers(path, region="us-est-1")


def test_the_provider_is_the_files_name_where_that_says_something(tmp_path: Path) -> None:
    (offer, *_) = read_offers(written(tmp_path, CATALOGUE, "v8/RUNPOD.csv"))
    assert offer.provider == "RunPod"
    (offer, *_) = read_offers(catalogue(tmp_path, provider="some-cloud"))
    assert offer.provider == "some-cloud"


def test_hosts_and_gpus_that_are_priced_apart_are_added_up_by_zone(tmp_path: Path) -> None:
    rows = f"""\
{HEADER}
a2-highgpu-2g,,,24,170,,1.5,0.75,us-central1,us-central1-a
a2-highgpu-2g,,,24,170,,1.9,0.83,asia-east1,asia-east1-a
g2-standard-96,,,96,384,,3.0,1.0,us-central1,us-central1-a
n1-standard-4,,,4,15,,0.19,0.04,us-central1,us-central1-a
,A100,2,,,,5.9,2.3,us-central1,us-central1-a
,A100,1,,,,2.9,1.1,us-central1,us-central1-a
,L4,8,,,,4.5,,us-central1,us-central1-a
,T4,1,,,,0.35,0.11,us-central1,us-central1-a
,T4,1,,,,0.35,0.11,us-central1,us-central1-b
,tpu-v4-8,1,,,,12.88,5.0,us-central2,us-central2-b
"""
    found = read_offer_file(catalogue(tmp_path, rows, "gcp"))
    shown = [(o.provider, o.instance, o.gpu, o.num_gpus, o.usd_per_hour, o.spot_usd_per_hour) for o in found.offers]
    assert shown == [
        ("GCP", "a2-highgpu-2g", "A100-SXM-40GB", 2, pytest.approx(7.4), pytest.approx(3.05)),  # 1.5 + 5.9, 0.75 + 2.3
        ("GCP", "g2-standard-96", "L4", 8, 7.5, None),  # 3.0 + 4.5; no spot price of the GPUs
    ]
    assert found.notes == (
        "vms.csv: left out GPUs priced without the machine that they are attached to: 2.",  # T4, and one lone A100
        "vms.csv: left out machines whose accelerator is not in the catalogue: tpu-v4-8 (1).",
    )


@pytest.mark.parametrize(
    ("instance", "accelerator", "info", "name"),
    [
        ("Standard_ND96amsr_A100_v4", "A100-80GB", "", "A100-SXM-80GB"),
        ("Standard_NC24ads_A100_v4", "A100-80GB", "", "A100-PCIe-80GB"),
        ("Standard_NC40ads_H100_v5", "H100", "", "H100-NVL-94GB"),
        ("1x-H100_NVL-32-65536", "H100", "", "H100-NVL-94GB"),
        ("1x-H100_SXM-32-65536", "H100", "", "H100-SXM-80GB"),
        ("1x_A100-80GB_SECURE", "A100-80GB", "{'Gpus': [{'Name': 'A100 PCIe', 'Count': 1}]}", "A100-PCIe-80GB"),
        ("8x_H100", "H100-NVLINK", "", "H100-SXM-80GB"),
    ],
)
def test_the_form_of_a_card_follows_the_machine(
    tmp_path: Path, instance: str, accelerator: str, info: str, name: str
) -> None:
    row = f'{HEADER}\n{instance},{accelerator},1,4,16,"{info}",1,,r,z\n'
    assert read_offers(catalogue(tmp_path, row))[0].gpu == name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            CATALOGUE.replace("24.48", "-24.48"),
            "vms.csv, line 6: Price is -24.48; expected a finite number above 0, in US dollars per hour of",
        ),
        (CATALOGUE.replace("24.48", "nan,"), "vms.csv, line 6 has 11 cells; expected the 10 of line 1."),
        (
            CATALOGUE.replace("24.48", "24 USD"),
            "vms.csv, line 6: Price is '24 USD'; expected a finite number above 0, in US dollars per hour",
        ),
        (
            CATALOGUE.replace("24.48", "inf"),
            "vms.csv, line 6: Price is inf; expected a finite number above 0, in US dollars per hour of the",
        ),
        (
            CATALOGUE.replace("SpotPrice", "Spot"),
            "vms.csv, line 1: SpotPrice is not a column of this file; expected InstanceType,",
        ),
        ("", "vms.csv, line 1: InstanceType is not a column of this file; expected InstanceType,"),
        (
            CATALOGUE.replace("24.48,,us-east-1,a", '24.48,,us-east-1,"a'),
            "vms.csv, line 6 is not valid CSV: ',' expected after '\"'. Correct it there.",
        ),
        (
            CATALOGUE.replace("AvailabilityZone", "Currency").replace("us-east-1,a", "us-east-1,EUR"),
            "vms.csv, line 2: Currency is 'EUR'; prices are compared in US dollars only. Convert them, and",
        ),
    ],
)
def test_what_is_wrong_in_a_catalogue_is_said_with_line_and_column(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(CatalogueError) as caught:
        read_offers(catalogue(tmp_path, text))
    assert words in str(caught.value)


def test_a_catalogue_that_is_not_text(tmp_path: Path) -> None:
    path = catalogue(tmp_path)
    path.write_bytes(HEADER.encode() + b"\n\xff\xfe\n")
    with pytest.raises(
        CatalogueError, match=r"vms\.csv, line 2 is not UTF-8 text: invalid start byte\. Save it as UTF-8\."
    ):
        read_offers(path)


@given(prices=st.lists(st.floats(0.01, 100), min_size=1, max_size=8), count=st.integers(1, 16))
def test_the_cheapest_of_many_regions(
    tmp_path_factory: pytest.TempPathFactory, prices: list[float], count: int
) -> None:
    path = tmp_path_factory.mktemp("many") / "cloud.csv"
    with path.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(HEADER.split(","))
        rows.writerows(["m", "T4", count, 1, 1, "", price, "", f"r{number}", ""] for number, price in enumerate(prices))
    (offer,) = read_offers(path)
    assert offer.usd_per_hour == min(prices)
    assert offer.region == f"r{prices.index(min(prices))}"
    assert offer.num_gpus == count


def test_files_that_are_neither(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"nowhere\.yaml does not exist; give a YAML file"):
        read_offers(tmp_path / "nowhere.yaml")
    with pytest.raises(CatalogueError, match=r"prices\.txt is not YAML \(\.yaml, \.yml\) or a SkyPilot catalogue"):
        read_offers(written(tmp_path, "x", "prices.txt"))
    with pytest.raises(InvalidArgumentError, match=r"each offer of prices\.yaml has its own date"):
        read_offers(written(tmp_path, TWO_OFFERS), date="2026-11-01")
    with pytest.raises(
        CatalogueError,
        match=r"vms\.csv: date is 'today'; expected the day or month that the price holds for, like 2026-11 or",
    ):
        read_offers(catalogue(tmp_path), date="today")


def test_own_prices_come_first_and_others_keep_the_listed_ones(tmp_path: Path) -> None:
    own = read_offers(written(tmp_path, GOOD.replace("1.5", "99")))  # of a T4, dearer than any listed
    table = with_listed(own)
    assert cheapest_offer("T4", table) == own[0]
    assert cheapest_offer("L4", table) == cheapest_offer("L4")
    assert len(table) == 1 + sum(offer.gpu != "T4" for offer in load_offers())


def test_own_prices_that_are_too_old_are_said(tmp_path: Path) -> None:
    own = read_offers(written(tmp_path, GOOD + GOOD.replace("T4", "L4").replace("2026-11-01", "2021-05-01")))
    assert cheapest_offer("L4", with_listed(own)) is None
    (note,) = outdated(own)
    assert note.startswith("L4: the newest of your prices is of 2021-05-01, too old")


def test_spot_prices(tmp_path: Path) -> None:
    on_demand = read_offers(catalogue(tmp_path))
    (spot,) = at_spot_prices(on_demand)  # only the A10G has one
    assert (spot.gpu, spot.usd_per_hour, spot.spot_usd_per_hour, spot.spot) == ("A10G", 0.4, None, True)
    assert " spot (" in spot.label
    assert at_spot_prices([spot]) == (spot,)


def test_machines_without_a_spot_price_are_there_on_demand_as_they_may_cost_less() -> None:
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
    assert [(one.provider, one.usd_per_hour, one.spot) for one in listed] == [
        ("Dear", 2.2, True),
        ("Cheap", 1.99, False),
    ]
    assert cheapest_offer("T4", listed) == cheap
    best = cheapest_offer("T4", with_spot_prices([dear, replace(cheap, usd_per_hour=2.5)]))
    assert best is not None
    assert best.label == "Dear a spot (2026-11)"


def test_a_price_says_whether_it_was_in_stock_where_the_file_does(tmp_path: Path) -> None:
    first, second = read_offers(written(tmp_path, TWO_OFFERS.replace("  region: berlin", "  in_stock: false")))
    assert (first.in_stock, second.in_stock) == (False, None)
    assert first.label == "Our cluster dgx-2 (2026-11-01, sold out)"
    assert replace(first, in_stock=True).label == "Our cluster dgx-2 (2026-11-01, in stock)"
    text = TWO_OFFERS.replace("  region: berlin", "  in_stock: no idea")
    with pytest.raises(CatalogueError, match=r"offers\[0\].in_stock is 'no idea'; expected true or false."):
        read_offers(written(tmp_path, text))


def test_own_machines() -> None:
    by_price = own_machine_offer("rtx 4090", usd_per_hour=0.5, num_gpus=2, date="2026-11-01")
    assert (by_price.gpu, by_price.usd_per_gpu_hour, by_price.label) == (
        "RTX-4090",
        0.25,
        "your own machine (2026-11-01)",
    )
    by_watts = own_machine_offer("RTX-4090", watts=600, usd_per_kwh=0.30)
    assert by_watts.usd_per_hour == pytest.approx(0.18)  # 0.6 kW x $0.30
    assert by_watts.instance == "own machine, 600 W at $0.3/kWh"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "give either usd_per_hour, or watts and usd_per_kwh together"),
        ({"watts": 300.0}, "give either usd_per_hour, or watts and usd_per_kwh together"),
        ({"usd_per_hour": 1.0, "usd_per_kwh": 0.3}, "give either usd_per_hour, or watts"),
        ({"usd_per_hour": 1.0, "watts": 300.0, "usd_per_kwh": 0.3}, "give either usd_per_hour"),
        ({"usd_per_hour": -1.0}, "usd_per_hour=-1.0 must be a finite number above 0"),
        ({"watts": 0.0, "usd_per_kwh": 0.3}, "watts=0.0 must be a finite number above 0"),
        ({"usd_per_hour": 1.0, "num_gpus": 0}, "num_gpus=0 must be a finite number above 0"),
    ],
)
def test_own_machines_without_a_price(arguments: dict[str, float], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        own_machine_offer("T4", **arguments)  # type: ignore[arg-type]


def test_a_machine_of_ones_own_has_one_gpu_where_nothing_else_is_said() -> None:
    assert own_machine_offer("L4", usd_per_hour=0.5).num_gpus == 1
    assert own_machine_offer("L4", usd_per_hour=0.5, num_gpus=4).num_gpus == 4
