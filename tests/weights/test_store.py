import json
from pathlib import Path

import pytest

from lightning_predict.base.errors import (
    InvalidArgumentError,
    WeightsFormatError,
    WeightsHashError,
    WeightsNotFoundError,
)
from lightning_predict.hardware import gpu_names
from lightning_predict.weights import store
from lightning_predict.weights.files import MANIFEST_NAME
from lightning_predict.weights.records import GpuWeights
from lightning_predict.weights.store import load_weights, read_manifest
from tests.weights.example import publish


@pytest.fixture(autouse=True)
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small bundle in place of the real one."""
    publish(tmp_path / "bundled", "base", "T4", bias=1.0)
    monkeypatch.setattr(store, "BUNDLED", tmp_path / "bundled")
    return tmp_path / "bundled"


def bias(weights: GpuWeights) -> float:
    """Tells the files apart: each place is published with a bias of its own."""
    return float(weights.families["toy"].layers[-1].bias[0, 0])


def test_bundled_files_are_the_default_and_need_a_base(bundled: Path) -> None:
    loaded = load_weights(["T4", "L4"])
    assert bias(loaded.cross_gpu_model) == 1.0
    assert list(loaded.gpus) == ["T4"]
    (bundled / "base.safetensors").unlink()
    with pytest.raises(WeightsNotFoundError, match=r"No base weights \(base.safetensors\) in .*bundled\. Reinstall"):
        load_weights(["T4"])


def test_explicit_folder_or_file_comes_before_the_bundle(tmp_path: Path) -> None:
    publish(tmp_path / "mine", "T4", bias=2.0)
    loaded = load_weights(["T4"], tmp_path / "mine")
    assert (bias(loaded.gpus["T4"]), bias(loaded.cross_gpu_model)) == (2.0, 1.0)
    with pytest.raises(WeightsNotFoundError, match=r"does not exist; expected a \.safetensors file or a folder"):
        load_weights(["T4"], tmp_path / "nowhere")
    with pytest.raises(InvalidArgumentError, match="weights=5 is not a file or a folder"):
        load_weights(["T4"], 5)  # type: ignore[arg-type]


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


def test_damaged_bundled_file_is_refused(tmp_path: Path, bundled: Path) -> None:
    publish(tmp_path / "other", "T4", bias=9.0)
    (bundled / "T4.safetensors").write_bytes((tmp_path / "other" / "T4.safetensors").read_bytes())
    with pytest.raises(WeightsHashError, match=r"T4\.safetensors has SHA-256"):
        load_weights(["T4"])


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
