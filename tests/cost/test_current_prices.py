"""`offers --refresh`: current prices of all providers from gpuhunt; later predictions use them without the network."""

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
from lightning_predict.cost.offers import Offer, cheapest_offer, load_offers, read_offers
from tests.cli.conftest import Run, run  # noqa: F401 (a fixture)

TODAY = "2026-11-27"  # as conftest.py says


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
    spot: bool = False


ITEMS = [
    Item("aws", "g5.xlarge", "us-east-1", 1.006, 1, "A10G", 24.0),
    Item("aws", "g5.xlarge", "eu-west-1", 1.123, 1, "A10G", 24.0),
    Item("aws", "g5.xlarge", "eu-west-1", 0.45, 1, "A10G", 24.0, spot=True),
    Item("aws", "g5.xlarge", "us-east-1", 0.51, 1, "A10G", 24.0, spot=True),
    Item("azure", "Standard_NC24ads_A100_v4", "eastus", 3.7, 1, "A100", 80.0),
    Item("azure", "Standard_NC40ads_H100_v5", "eastus", 7.0, 1, "H100", 94.0),
    Item("lambdalabs", "gpu_1x_a100_sxm4", "us-east-1", 1.99, 1, "A100", 40.0),
    Item("runpod", "NVIDIA A100 80GB PCIe", "US-KS-2", 1.39, 1, "A100", 80.0),
    Item("nebius", "gpu-l40s-a", "eu-north1", 1.5484, 1, "L40S", 48.0),
    Item("nebius", "gpu-l40s-a large", "eu-north1", 1.7468, 1, "L40S", 48.0),
    Item("gcp", "ct5lp", "us-central1", 1.2, 1, "v5litepod-1", None),
    Item("oci", "BM.GPU.MI300X.8", "us-ashburn-1", 48.0, 8, "MI300X", 192.0),
]


@pytest.fixture(autouse=True)
def hunted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Item]:
    """Items of a gpuhunt of our own; `test_gpuhunt_package_is_read` uses the package itself."""
    items = list(ITEMS)

    class Catalog:
        def __init__(self, *, auto_reload: bool) -> None:
            assert not auto_reload

        def load(self) -> None:
            pass

        def query(self, *, min_gpu_count: int) -> list[Item]:
            return [item for item in items if item.gpu_count >= min_gpu_count]

    module = types.ModuleType("gpuhunt")
    module.Catalog = Catalog  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gpuhunt", module)
    monkeypatch.setattr(current_prices, "find_spec", lambda name: sys.modules.get(name))
    monkeypatch.setenv("LIGHTNING_PREDICT_PRICES", str(tmp_path / "prices" / "current.json"))
    return items


def of(found: tuple[Offer, ...], provider: str) -> dict[str, Offer]:
    return {f"{offer.num_gpus}x{offer.gpu}": offer for offer in found if offer.provider == provider}


def test_cheapest_machines_of_all_providers_are_kept(tmp_path: Path) -> None:
    refreshed = refresh_prices()
    assert refreshed.path == tmp_path / "prices" / "current.json"
    assert {offer.date for offer in refreshed.offers} == {TODAY}
    aws = [offer for offer in refreshed.offers if offer.provider == "AWS"]
    assert {(offer.region, offer.usd_per_hour, offer.spot_usd_per_hour) for offer in aws} == {
        ("us-east-1", 1.006, 0.51),  # the cheapest on demand
        ("eu-west-1", 1.123, 0.45),  # the cheapest on spot
    }
    assert set(of(refreshed.offers, "Lambda")) == {"1xA100-SXM-40GB"}
    assert set(of(refreshed.offers, "RunPod")) == {"1xA100-PCIe-80GB"}
    assert set(of(refreshed.offers, "Azure")) == {"1xA100-PCIe-80GB", "1xH100-NVL-94GB"}  # by the machine's name
    assert set(of(refreshed.offers, "Oracle Cloud")) == {"8xMI300X"}
    assert of(refreshed.offers, "Nebius")["1xL40S"].usd_per_hour == 1.5484  # not 1.7468 for more processors
    assert not of(refreshed.offers, "GCP")  # a TPU


def test_later_predictions_use_fetched_prices() -> None:
    before = cheapest_offer("L40S")
    assert before is not None
    assert before.date < TODAY
    refresh_prices()
    offer = cheapest_offer("L40S")
    assert offer is not None
    assert (offer.provider, offer.usd_per_hour, offer.date) == ("Nebius", 1.5484, TODAY)  # $1.09 is 63 days older
    trace = lp.Trace.load("examples/gpt2.json.gz")
    ranking = lp.predict(trace, gpus=["L40S"], iterations=50_000, history=False).ranking()
    assert f"Nebius gpu-l40s-a ({TODAY})" in str(ranking)
    assert "days old" not in str(ranking)


def test_provider_that_is_not_fetched_keeps_earlier_prices(hunted: list[Item], monkeypatch: pytest.MonkeyPatch) -> None:
    refresh_prices()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1796385600")  # a week later
    hunted[:] = [item for item in ITEMS if item.provider == "lambdalabs"]
    refreshed = refresh_prices()
    dates = {offer.provider: offer.date for offer in refreshed.offers}
    assert dates == dict.fromkeys(("AWS", "Azure", "RunPod", "Nebius", "Oracle Cloud"), TODAY) | {
        "Lambda": "2026-12-04"
    }
    assert refreshed.notes[0].startswith("Not fetched; earlier prices are kept: AWS (2026-11-27), Azure (2026-11-27),")


@pytest.mark.parametrize("failure", ["no prices", "no route"])
def test_failure_keeps_stored_prices(failure: str, hunted: list[Item], monkeypatch: pytest.MonkeyPatch) -> None:
    path = refresh_prices().path
    kept = path.read_bytes()

    def broken() -> None:
        raise OSError(failure)

    if failure == "no route":
        monkeypatch.setattr(current_prices, "_gpuhunt_items", broken)
    hunted.clear()
    with pytest.raises(CatalogueError, match=r"nothing was changed"):
        refresh_prices()
    assert path.read_bytes() == kept


def test_release_ships_fetched_prices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = refresh_prices().path.rename(tmp_path / "release.json")
    monkeypatch.setattr(offers, "RELEASE_FILE", path)
    offers._shipped_offers.cache_clear()
    try:
        assert set(read_offers(path)) < set(load_offers())
    finally:
        offers._shipped_offers.cache_clear()


def test_command_counts_fetched_prices(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    ran = run("offers", "--refresh")
    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"8 offers of 6 GPUs from 6 providers, read on {TODAY}: "), ran.out
    assert "Predictions use them from now on, without the network." in ran.out
    assert "Nebius" in run("offers", "--gpu", "L40S").out
    assert "--refresh takes no other option" in run("offers", "--refresh", "--gpu", "L4").err
    monkeypatch.setitem(sys.modules, "gpuhunt", None)
    assert "Current prices need gpuhunt, which is not installed: pip install" in run("offers", "--refresh").err


GPUHUNT_COLUMNS = (
    "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,flags,cpu_arch,"
    "provider_data"
)


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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves sockets of refusals open
def test_gpuhunt_package_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert of(refreshed.offers, "AWS")["1xA10G"].usd_per_hour == 1.006
