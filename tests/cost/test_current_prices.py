"""`offers --refresh`: all providers in one go, from recorded catalogues on the loopback; later predictions use them."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import threading
import types
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import lightning_predict as lp
from lightning_predict.base.errors import CatalogueError
from lightning_predict.cost import current_prices, offers
from lightning_predict.cost.current_prices import refresh_prices
from lightning_predict.cost.offers import Offer, cheapest_offer, kind_of_provider, load_offers
from lightning_predict.weights import fetch
from tests.cli.conftest import Run, run  # noqa: F401 (a fixture)

CATALOGUES = Path(__file__).with_name("catalogues")
TODAY = "2026-11-27"  # as conftest.py says


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name)
        pass


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder on the loopback, and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def _own_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_PREDICT_PRICES", str(tmp_path / "prices" / "current.json"))
    monkeypatch.setattr(fetch, "PAUSE_SECONDS", 0.001)
    monkeypatch.setitem(sys.modules, "gpuhunt", None)  # not installed, unless a test says so
    monkeypatch.setattr(current_prices, "find_spec", lambda name: sys.modules.get(name))


@pytest.fixture
def sky(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving(CATALOGUES / "skypilot") as url:
        monkeypatch.setenv("LIGHTNING_PREDICT_PRICES_URL", url)
        yield url


def of(found: tuple[Offer, ...], provider: str) -> dict[str, Offer]:
    return {f"{one.num_gpus}x{one.gpu}": one for one in found if one.provider == provider}


def test_all_providers_are_fetched_and_dated_today(sky: str, tmp_path: Path) -> None:
    refreshed = refresh_prices()
    assert refreshed.path == tmp_path / "prices" / "current.json"
    assert {one.provider for one in refreshed.offers} == {"Lambda", "RunPod", "Nebius", "Vast.ai"}
    assert {one.date for one in refreshed.offers} == {TODAY}
    assert refreshed.sources == ("SkyPilot's catalogue",)
    missing = next(note for note in refreshed.notes if note.startswith("Not fetched: "))
    assert missing.startswith("Not fetched: aws, azure,")
    assert missing.endswith("(status 404).")


def test_the_cheapest_machine_of_each_gpu_is_kept_with_its_spot_price(sky: str) -> None:
    found = refresh_prices().offers
    nebius = of(found, "Nebius")
    assert nebius["1xL40S"].usd_per_hour == 1.5484  # not 1.7468 for more processors
    assert (nebius["8xH100-SXM-80GB"].usd_per_hour, nebius["8xH100-SXM-80GB"].spot_usd_per_hour) == (23.6, 10.0)
    assert nebius["1xH100-SXM-80GB"].region == "eu-north1"
    assert of(found, "RunPod")["2xA100-PCIe-80GB"].usd_per_hour == 2.78


def test_providers_are_spelled_as_in_the_list_of_their_kinds() -> None:
    spelled = {name: current_prices._spelled(name) for name in current_prices.SKY_PROVIDERS}
    assert (spelled["vast"], spelled["verda"], spelled["do"]) == ("Vast.ai", "Verda", "DigitalOcean")
    unknown = {name for name, provider in spelled.items() if kind_of_provider(provider) is None}
    assert unknown == {"hyperbolic", "mithril", "primeintellect", "seeweb", "spheron", "yotta"}  # named without a kind


def test_cards_whose_name_a_catalogue_shortens_are_told_by_their_machine(sky: str) -> None:
    vast = of(refresh_prices().offers, "Vast.ai")
    assert set(vast) == {
        "1xRTX-4090",
        "1xRTX-4060-Ti",
        "2xRTX-3060-Ti",
    }  # no RTX 4070 for the 4070S Ti


def test_later_predictions_use_them_without_the_network(sky: str) -> None:
    before = cheapest_offer("L40S")
    assert before is not None
    assert before.date < TODAY
    refresh_prices()
    offer = cheapest_offer("L40S")
    assert offer is not None
    assert (offer.provider, offer.usd_per_hour, offer.date) == ("Nebius", 1.5484, TODAY)  # $1.09 is 63 days older
    trace = lp.Trace.load("examples/gpt2.json.gz")
    ranking = lp.predict(trace, gpus=["L40S"], iterations=50_000, history=False).ranking()
    assert f"Nebius gpu-l40s-a_1gpu-8vcpu-32gb ({TODAY})" in str(ranking)
    assert "days old" not in str(ranking)


def test_a_provider_that_is_not_reached_keeps_its_earlier_prices(
    sky: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh_prices()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1796385600")  # a week later
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "lambda").symlink_to(CATALOGUES / "skypilot" / "lambda")
    with serving(tmp_path / "mirror") as url:
        monkeypatch.setenv("LIGHTNING_PREDICT_PRICES_URL", url)
        found = refresh_prices().offers
    assert {one.provider: one.date for one in found} == {
        "Lambda": "2026-12-04",
        "RunPod": TODAY,
        "Nebius": TODAY,
        "Vast.ai": TODAY,
    }


def test_nothing_changes_if_no_provider_is_reached(sky: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = refresh_prices().path
    kept = path.read_bytes()
    with serving(tmp_path) as url:
        monkeypatch.setenv("LIGHTNING_PREDICT_PRICES_URL", url)
        with pytest.raises(
            CatalogueError, match=r"No current prices were fetched, and nothing was changed.*status 404"
        ):
            refresh_prices()
    assert path.read_bytes() == kept


def test_a_release_ships_what_the_command_wrote(sky: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = refresh_prices().path.rename(tmp_path / "release.json")
    monkeypatch.setattr(offers, "RELEASE_FILE", path)
    offers._shipped_offers.cache_clear()
    try:
        assert set(load_offers(path)) < set(load_offers())
    finally:
        offers._shipped_offers.cache_clear()


def test_the_command_says_how_many_prices_there_are(sky: str, run: Run) -> None:  # noqa: F811
    ran = run("offers", "--refresh")
    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"11 offers of 8 GPUs from 4 providers, read on {TODAY} from SkyPilot's catalogue: "), (
        ran.out
    )
    assert "Predictions use them from now on, without the network." in ran.out
    assert "gpuhunt is not installed" in ran.out
    assert "Nebius" in run("offers", "--gpu", "L40S").out
    assert "--refresh takes no other option" in run("offers", "--refresh", "--gpu", "L4").err


@dataclass
class Item:
    """The fields of gpuhunt's `CatalogItem` that we read."""

    provider: str
    instance_name: str
    location: str
    price: float
    gpu_count: int
    gpu_name: str | None
    gpu_memory: float | None
    spot: bool


ITEMS = [
    Item("aws", "g5.xlarge", "us-east-1", 1.006, 1, "A10G", 24.0, spot=False),
    Item("aws", "g5.xlarge", "eu-west-1", 1.123, 1, "A10G", 24.0, spot=False),
    Item("aws", "g5.xlarge", "eu-west-1", 0.45, 1, "A10G", 24.0, spot=True),
    Item("aws", "g5.xlarge", "us-east-1", 0.51, 1, "A10G", 24.0, spot=True),
    Item("lambdalabs", "gpu_1x_a100_sxm4", "us-east-1", 1.99, 1, "A100", 40.0, spot=False),
    Item("runpod", "NVIDIA A100 80GB PCIe", "US-KS-2", 1.39, 1, "A100", 80.0, spot=False),
    Item("gcp", "ct5lp", "us-central1", 1.2, 1, "v5litepod-1", None, spot=False),
    Item("oci", "BM.GPU.MI300X.8", "us-ashburn-1", 48.0, 8, "MI300X", 192.0, spot=False),
]


@pytest.fixture
def hunted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gpuhunt that has these items; `test_the_real_gpuhunt` uses the package itself."""

    class Catalog:
        def __init__(self, *, auto_reload: bool) -> None:
            assert not auto_reload

        def load(self) -> None:
            pass

        def query(self, *, min_gpu_count: int) -> list[Item]:
            return [item for item in ITEMS if item.gpu_count >= min_gpu_count]

    module = types.ModuleType("gpuhunt")
    module.Catalog = Catalog  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gpuhunt", module)


def test_gpuhunt_comes_first_and_skypilot_adds_the_rest(hunted: None, sky: str) -> None:
    refreshed = refresh_prices()
    assert refreshed.sources == ("gpuhunt", "SkyPilot's catalogue")
    aws = [one for one in refreshed.offers if one.provider == "AWS"]
    assert {(one.region, one.usd_per_hour, one.spot_usd_per_hour) for one in aws} == {
        ("us-east-1", 1.006, 0.51),  # the cheapest on demand
        ("eu-west-1", 1.123, 0.45),  # the cheapest on spot
    }
    assert set(of(refreshed.offers, "Lambda")) == {"1xA100-SXM-40GB"}  # gpuhunt's; SkyPilot's are not mixed in
    assert set(of(refreshed.offers, "RunPod")) == {"1xA100-PCIe-80GB"}
    assert set(of(refreshed.offers, "Oracle Cloud")) == {"8xMI300X"}
    assert of(refreshed.offers, "Nebius")
    assert not of(refreshed.offers, "GCP")  # a TPU


def test_a_gpuhunt_that_fails_leaves_skypilots_catalogue(
    hunted: None, sky: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise OSError("no route")

    monkeypatch.setattr(current_prices, "_gpuhunt_items", broken)
    refreshed = refresh_prices()
    assert refreshed.sources == ("SkyPilot's catalogue",)
    assert "gpuhunt failed (OSError); SkyPilot's catalogue is used alone." in refreshed.notes


GPUHUNT_COLUMNS = (
    "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,flags,cpu_arch,"
    "provider_data"
)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves sockets of refusals open
def test_the_real_gpuhunt(sky: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gpuhunt")
    pytest.importorskip("gpuhunt")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as packed:
        rows = ["g5.xlarge,us-east-1,1.006,4,16.0,1,A10G,24.0,False,,nvidia,,x86,{}"]
        packed.writestr("aws.csv", "\n".join([GPUHUNT_COLUMNS, *rows]) + "\n")
    folder = tmp_path / "hunt" / "aws" / "20261127-1"
    folder.mkdir(parents=True)
    (folder.parent / "version").write_text("20261127-1")
    (folder / "catalog.zip").write_bytes(content.getvalue())
    with serving(tmp_path / "hunt") as url:
        monkeypatch.setenv("GPUHUNT_CATALOG_URL", url)
        refreshed = refresh_prices()
    assert refreshed.sources == ("gpuhunt", "SkyPilot's catalogue")
    assert of(refreshed.offers, "AWS")["1xA10G"].usd_per_hour == 1.006
