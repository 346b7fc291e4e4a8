import importlib.metadata
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lightning_predict import __version__
from lightning_predict.base.errors import (
    InvalidArgumentError,
    WeightsFormatError,
    WeightsHashError,
    WeightsNotFoundError,
)
from lightning_predict.base.files import CACHE_VARIABLE, cache_folder
from lightning_predict.hardware import gpu_names
from lightning_predict.weights import fetch, store
from lightning_predict.weights.files import MANIFEST_NAME
from lightning_predict.weights.records import GpuWeights
from lightning_predict.weights.source import URL_VARIABLE, WeightsSource
from lightning_predict.weights.store import load_weights, read_manifest
from tests.weights.example import publish, serving


@pytest.fixture(autouse=True)
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small bundle in place of the real one; no cache and no address of the person who runs the tests."""
    publish(tmp_path / "bundled", "base", "T4", bias=1.0)
    monkeypatch.setattr(store, "BUNDLED", tmp_path / "bundled")
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "bundled"


def bias(weights: GpuWeights) -> float:
    """Tells the files apart: each place is published with a bias of its own."""
    return float(weights.families["toy"].layers[-1].bias[0, 0])


def test_bundled_files_are_the_default_and_need_a_base(bundled: Path) -> None:
    loaded = load_weights(["T4", "L4"])
    assert bias(loaded.cross_gpu_model) == 1.0
    assert list(loaded.gpus) == ["T4"]
    (bundled / "base.safetensors").unlink()
    with pytest.raises(WeightsNotFoundError, match=r"No base weights \(base.safetensors\) at any place"):
        load_weights(["T4"])


def test_explicit_folder_or_file_comes_before_the_bundle(tmp_path: Path) -> None:
    publish(tmp_path / "mine", "T4", bias=2.0)
    loaded = load_weights(["T4"], tmp_path / "mine")
    assert (bias(loaded.gpus["T4"]), bias(loaded.cross_gpu_model)) == (2.0, 1.0)
    with pytest.raises(WeightsNotFoundError, match=r"does not exist; expected a \.safetensors file or a folder"):
        load_weights(["T4"], tmp_path / "nowhere")
    with pytest.raises(InvalidArgumentError, match="The address of weights is not usable"):
        load_weights(["T4"], WeightsSource(url="somewhere"))


def test_an_explicit_file_serves_the_gpu_it_was_trained_for_whatever_its_name(tmp_path: Path) -> None:
    publish(tmp_path / "mine", "L4", bias=3.0)
    path = (tmp_path / "mine" / "L4.safetensors").rename(tmp_path / "my-weights")
    loaded = load_weights(["T4", "L4"], str(path))
    assert (bias(loaded.gpus["L4"]), bias(loaded.gpus["T4"])) == (3.0, 1.0)


def test_folder_without_a_manifest_or_with_an_older_releases_blends_is_read(tmp_path: Path) -> None:
    publish(tmp_path / "mine", "T4", bias=2.0)
    (tmp_path / "mine" / MANIFEST_NAME).unlink()
    assert bias(load_weights(["T4"], tmp_path / "mine").gpus["T4"]) == 2.0
    (tmp_path / "mine" / "blend.json").write_text('{"format_version": 1, "families": {}}')
    assert bias(load_weights(["T4"], tmp_path / "mine").gpus["T4"]) == 2.0


def test_unnamed_files_and_weights_of_another_gpu_are_refused(tmp_path: Path) -> None:
    publish(tmp_path / "mine", "T4", "L4")
    publish(tmp_path / "mine", "T4")  # the manifest now names T4 alone
    with pytest.raises(WeightsFormatError, match=r"L4\.safetensors is not named in .*manifest\.json"):
        load_weights(["L4"], tmp_path / "mine")
    publish(tmp_path / "mine", "T4")
    (tmp_path / "mine" / MANIFEST_NAME).unlink()
    (tmp_path / "mine" / "T4.safetensors").rename(tmp_path / "mine" / "L4.safetensors")
    with pytest.raises(WeightsFormatError, match="holds the weights of 'T4'"):
        load_weights(["L4"], tmp_path / "mine")


def test_a_configured_address_wins_over_the_bundle_and_fills_the_cache(tmp_path: Path) -> None:
    publish(tmp_path / "served", "T4", "L4", bias=4.0)
    with serving(tmp_path / "served") as server:
        loaded = load_weights(["T4", "L4"], server.url + "/")
    assert [bias(loaded.gpus[name]) for name in ("T4", "L4")] == [4.0, 4.0]
    assert bias(loaded.cross_gpu_model) == 1.0  # the address does not name it
    again = load_weights(["T4", "L4"])  # the server is gone: the verified cache serves
    assert bias(again.gpus["L4"]) == 4.0


def test_bundled_file_is_not_downloaded_again_but_refused_if_changed(tmp_path: Path, bundled: Path) -> None:
    with serving(bundled) as server:
        load_weights(["T4"], server.url)
    assert server.requests == [MANIFEST_NAME]
    publish(bundled.parent / "other", "T4", bias=9.0)
    (bundled / "T4.safetensors").write_bytes((bundled.parent / "other" / "T4.safetensors").read_bytes())
    with pytest.raises(WeightsHashError, match=r"T4\.safetensors has SHA-256"):
        load_weights(["T4"])


def test_the_environment_configures_the_address_and_offline_overrules_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path / "served", "T4", bias=5.0)
    with serving(tmp_path / "served") as server:
        monkeypatch.setenv(URL_VARIABLE, server.url)
        assert bias(load_weights(["T4"], WeightsSource(offline=True)).gpus["T4"]) == 1.0
        assert server.requests == []
        assert bias(load_weights(["T4"]).gpus["T4"]) == 5.0


def cached_file(folder: Path) -> Path:
    (path,) = folder.glob("*.safetensors")
    return path


def test_a_damaged_file_in_the_cache_is_fetched_again_or_left_out(tmp_path: Path) -> None:
    publish(tmp_path / "served", "L4", bias=6.0)
    with serving(tmp_path / "served") as server:
        load_weights(["L4"], server.url)
        damaged = cached_file(cache_folder())
        damaged.write_bytes(damaged.read_bytes()[:-1])
        offline = load_weights(["L4"], WeightsSource(offline=True))
        assert list(offline.gpus) == []  # the base serves
        (note,) = offline.notes
        assert "1 file(s) could not be used (WeightsHashError in" in note
        again = load_weights(["L4"], server.url)
        assert (bias(again.gpus["L4"]), again.notes) == (6.0, ())


@pytest.mark.parametrize("broken", ["", "{", '{"format_version": 9}', "\udcff"])
def test_a_damaged_manifest_in_the_cache_is_left_out(tmp_path: Path, broken: str) -> None:
    cache_folder().mkdir(parents=True)
    (cache_folder() / MANIFEST_NAME).write_text(broken, encoding="utf-8", errors="surrogateescape")
    loaded = load_weights(["T4"])
    assert bias(loaded.gpus["T4"]) == 1.0
    assert "could not be used" in loaded.notes[0]


def test_manifest_of_gigabytes_in_the_cache_is_left_out(tmp_path: Path) -> None:
    cache_folder().mkdir(parents=True)
    (cache_folder() / MANIFEST_NAME).touch()
    os.truncate(cache_folder() / MANIFEST_NAME, 3 << 30)  # sparse: it takes no space on the disk
    loaded = load_weights(["T4"])
    assert bias(loaded.gpus["T4"]) == 1.0
    assert "could not be used (WeightsFormatError" in loaded.notes[0]


def served_and_down(tmp_path: Path, *gpus: str) -> str:
    """An address that has served these GPUs once, and is gone."""
    publish(tmp_path / "served", *gpus, bias=7.0)
    with serving(tmp_path / "served") as server:
        load_weights(gpus, server.url)
        return server.url


def test_a_server_that_is_down_leaves_what_it_served_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PAUSES", (0.001, 0.001, None))
    url = served_and_down(tmp_path, "L4")
    loaded = load_weights(["L4", "T4"], url)
    assert (bias(loaded.gpus["L4"]), bias(loaded.gpus["T4"])) == (7.0, 1.0)
    (note,) = loaded.notes
    assert note.startswith(f"Could not download {url}/manifest.json: ConnectionError.")
    assert note.endswith("weights of the cache or the bundled ones serve.")


def test_a_manifest_newer_than_its_files_changes_nothing(tmp_path: Path) -> None:
    publish(tmp_path / "served", "L4", "T4", bias=8.0)
    with serving(tmp_path / "served") as server:
        load_weights(["L4", "T4"], server.url)
        publish(tmp_path / "served", "T4", bias=9.0)
        l4 = (tmp_path / "served" / "L4.safetensors").read_bytes()
        publish(tmp_path / "served", "L4", "T4", bias=9.0)
        (tmp_path / "served" / "L4.safetensors").write_bytes(l4)
        loaded = load_weights(["L4", "T4"], server.url)
    assert [bias(loaded.gpus[name]) for name in ("L4", "T4")] == [8.0, 8.0]  # both of the release before
    assert "does not have the SHA-256" in loaded.notes[0]
    assert bias(load_weights(["T4"], WeightsSource(offline=True)).gpus["T4"]) == 8.0


def test_only_requested_files_are_fetched(tmp_path: Path) -> None:
    publish(tmp_path / "served", "T4", "L4", "L40S", bias=4.0)
    with serving(tmp_path / "served") as server:
        loaded = load_weights(["L4"], server.url, optional_gpus=["T4", "L40S"])
    assert server.requests == [MANIFEST_NAME, "L4.safetensors"]
    assert {name: bias(weights) for name, weights in loaded.gpus.items()} == {"L4": 4.0, "T4": 1.0}


def test_the_release_in_the_cache_serves_what_was_not_fetched_again(tmp_path: Path) -> None:
    publish(tmp_path / "served", "T4", "L4", bias=4.0)
    with serving(tmp_path / "served") as server:
        load_weights(["L4"], server.url)
        assert bias(load_weights(["T4"], server.url).gpus["T4"]) == 4.0
        load_weights(["T4", "L4"], server.url)
    assert server.requests == [MANIFEST_NAME, "L4.safetensors", MANIFEST_NAME, "T4.safetensors", MANIFEST_NAME]
    assert bias(load_weights(["T4"], WeightsSource(offline=True)).gpus["T4"]) == 4.0


@pytest.mark.parametrize("kind", ["a file", "read-only"])
def test_a_cache_that_cannot_be_written_does_not_matter(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "a file":
        (tmp_path / "cache").write_text("in the way")
    else:  # root may write anywhere, so the disk refuses

        def full(*args: object, **options: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.replace", full)
    publish(tmp_path / "served", "L4", bias=4.0)
    with serving(tmp_path / "served") as server:
        loaded = load_weights(["L4"], server.url)
    assert bias(loaded.gpus["L4"]) == 4.0
    assert "cannot be kept in the cache" in loaded.notes[0]


def test_many_processes_share_one_cache(tmp_path: Path) -> None:
    gpus = ["T4", "L4", "L40S"]
    publish(tmp_path / "served", *gpus, bias=4.0)
    with serving(tmp_path / "served") as server, ThreadPoolExecutor(8) as threads:
        loads = list(threads.map(lambda _: load_weights(gpus, server.url), range(16)))
    assert all(bias(load.gpus[name]) == 4.0 and load.notes == () for load in loads for name in gpus)
    left = sorted(path.name for path in cache_folder().iterdir())
    assert len(left) == 1 + len(gpus)
    assert not [name for name in left if name.startswith(".")]


def test_an_address_of_the_environment_that_cannot_be_used_is_left_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL_VARIABLE, "http://user:secret@example.org/weights")
    loaded = load_weights(["T4"])
    assert bias(loaded.gpus["T4"]) == 1.0
    (note,) = loaded.notes
    assert "is not encrypted" in note
    assert "secret" not in note


def test_cache_folder_is_one_per_release_and_needs_no_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_folder(tmp_path).parent == tmp_path
    assert cache_folder().parent == tmp_path / "cache"
    monkeypatch.delenv(CACHE_VARIABLE)
    assert cache_folder().parent.name == "lightning-predict"

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert load_weights(["T4"]).gpus
    assert cache_folder(tmp_path) == tmp_path / __version__


REAL = Path(store.__file__).parent / "files"


def test_shipped_files_match_the_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BUNDLED", REAL)
    manifest = read_manifest(REAL)
    assert manifest is not None
    assert {path.name for path in REAL.glob("*.safetensors")} == set(manifest.files)
    assert sum(entry.bytes for entry in manifest.files.values()) < 10_000_000
    names = [entry.gpu for entry in manifest.files.values() if entry.gpu != "base"]
    assert set(names) <= set(gpu_names())
    loaded = load_weights(names)  # checks every hash, header and tensor
    assert set(loaded.gpus) == set(names)
    assert all("(MIT)" in source or "(Apache-2.0)" in source for source in loaded.cross_gpu_model.sources)
    for entry in manifest.files.values():
        assert entry.trained_on
        assert json.loads(manifest.to_json())["files"]
