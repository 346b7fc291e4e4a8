"""A newer price list is taken over as it is, from a file or a server of this machine, or nothing is changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightning_predict.base.errors import CatalogueError, InvalidArgumentError
from lightning_predict.cost import price_update
from lightning_predict.cost.offers import cheapest_offer
from lightning_predict.cost.price_files import read_offer_file, with_listed
from lightning_predict.cost.price_update import prices_folder, update_prices
from lightning_predict.weights import fetch
from tests.cli.conftest import Run, run  # noqa: F401 (a fixture)
from tests.weights.example import serving

CATALOGUE = """\
InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Price,SpotPrice,Region,AvailabilityZone
g6.xlarge,4,16,L4,1,,0.20,0.05,us-east-1,us-east-1a
g4dn.xlarge,4,16,T4,1,,0.10,,us-east-1,us-east-1a
m5.large,2,8,,,,0.096,0.03,us-east-1,us-east-1a
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_data_dir", lambda name: str(tmp_path / "data" / name))
    monkeypatch.setattr(fetch, "PAUSE_SECONDS", 0.001)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "aws" / "vms.csv"
    path.parent.mkdir()
    path.write_text(CATALOGUE, encoding="utf-8")
    os.utime(path, (1_790_000_000, 1_790_000_000))  # 2026-09-21, 14:13 UTC
    return path


def test_a_file_is_kept_under_its_provider_with_its_day(source: Path, tmp_path: Path) -> None:
    updated = update_prices(source)
    assert updated.path == prices_folder() / "aws.csv" == tmp_path / "data" / "lightning-predict" / "prices" / "aws.csv"
    assert updated.path.read_bytes() == source.read_bytes()
    l4, t4 = updated.file.offers
    assert (l4.provider, l4.gpu, l4.usd_per_hour, l4.spot_usd_per_hour) == ("AWS", "L4", 0.20, 0.05)
    assert l4.date == t4.date == "2026-09-21"
    assert [path.name for path in prices_folder().iterdir()] == ["aws.csv"]  # no other file is next to it


def test_later_predictions_take_the_prices(source: Path) -> None:
    offers = with_listed(read_offer_file(update_prices(source).path).offers)
    cheapest = cheapest_offer("L4", offers)
    assert cheapest is not None
    assert (cheapest.instance, cheapest.usd_per_hour) == ("g6.xlarge", 0.20)


def test_a_day_that_is_given_is_that_of_the_prices(source: Path) -> None:
    assert {offer.date for offer in update_prices(source, date="2026-11-01").file.offers} == {"2026-11-01"}


def test_a_server_of_this_machine_serves_it(source: Path) -> None:
    with serving(source.rename(source.with_name("aws.csv")).parent) as server:
        updated = update_prices(f"{server.url}/aws.csv")
    assert updated.path.name == "aws.csv"
    assert updated.path.read_bytes() == CATALOGUE.encode()
    assert updated.file.offers[0].provider == "AWS"


def test_a_newer_list_replaces_the_older_and_a_broken_one_does_not(source: Path) -> None:
    path = update_prices(source).path
    source.write_text(CATALOGUE.replace("0.20", "0.25"), encoding="utf-8")
    assert update_prices(source).file.offers[0].usd_per_hour == 0.25
    source.write_text("no,catalogue\n1,2\n", encoding="utf-8")
    with pytest.raises(CatalogueError, match="InstanceType is not a column of this file"):
        update_prices(source)
    assert read_offer_file(path).offers[0].usd_per_hour == 0.25
    assert [one.name for one in prices_folder().iterdir()] == ["aws.csv"]


def test_a_list_without_a_known_gpu_is_refused(source: Path) -> None:
    source.write_text("".join(CATALOGUE.splitlines(keepends=True)[i] for i in (0, 3)), encoding="utf-8")
    with pytest.raises(CatalogueError, match="offers no machine with a GPU of the catalogue; nothing was changed"):
        update_prices(source)
    assert list(prices_folder().iterdir()) == []


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("http://example.org/aws/vms.csv", "Price address 'http://example.org/aws/vms.csv' is not encrypted"),
        (
            "ftp://example.org/aws/vms.csv",
            "Price address 'ftp://example.org/aws/vms.csv' is not usable; expected",
        ),
        ("https://example.org/aws/vms.yaml", "is not a CSV file; expected a SkyPilot catalogue, like .../aws/vms.csv"),
        ("https://example.org/vms.csv", "names no provider; expected .../PROVIDER/vms.csv or PROVIDER.csv"),
    ],
)
def test_addresses_that_cannot_be_trusted_or_named_are_refused(given: str, problem: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        update_prices(given)
    assert problem in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"vms\.csv does not exist; give the CSV file of a SkyPilot catalogue"):
        update_prices(tmp_path / "vms.csv")


def test_a_list_that_is_too_long_or_not_there_is_refused(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(source.parent) as server:
        with pytest.raises(CatalogueError, match=r"none\.csv in 1 attempt: status 404\. .*download the file yourself"):
            update_prices(f"{server.url}/none.csv")
        monkeypatch.setattr(price_update, "MAX_PRICE_BYTES", 100)
        source = source.rename(source.with_name("aws.csv"))
        with pytest.raises(CatalogueError, match="it has more than the 100 bytes that it may have"):
            update_prices(f"{server.url}/aws.csv")
    with pytest.raises(CatalogueError, match="expected at most 100"):
        update_prices(source)
    assert not prices_folder().exists()


def test_a_list_that_takes_too_long_is_given_up(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(price_update, "DEADLINE_SECONDS", 0.0)
    with serving(source.parent.parent) as server, pytest.raises(CatalogueError, match="it took more than the 0 s"):
        update_prices(f"{server.url}/aws/vms.csv")


def test_the_command_says_where_it_lies_and_what_to_give(source: Path, run: Run) -> None:  # noqa: F811
    ran = run("offers", "--update", source)
    path = prices_folder() / "aws.csv"
    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"2 offers of 2 GPUs, of 2026-09-21: {path}\n")
    assert f"lightning-predict predict step.json.gz --offers {path}\n" in ran.out
    assert run("offers", "--update", source, "--json").json["written"] == str(path)
    refused = run("offers", "--update", source, "--gpu", "L4")
    assert refused.code != 0
    assert "--update takes --date alone with it" in refused.err
