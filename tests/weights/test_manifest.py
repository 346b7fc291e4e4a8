import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lightning_predict.base.errors import WeightsFormatError
from lightning_predict.weights.files import MANIFEST_NAME, parse_manifest
from lightning_predict.weights.store import BUNDLED
from tests.weights.example import network, publish


def test_manifest_reads_back_and_text_that_is_not_json_is_refused(tmp_path: Path) -> None:
    manifest = publish(tmp_path, "base", "T4")
    assert parse_manifest((tmp_path / MANIFEST_NAME).read_text(), where="here") == manifest
    assert manifest.files["T4.safetensors"].held_out_error["linear/float32"].mean == 0.1
    with pytest.raises(
        WeightsFormatError, match=r"manifest at https://example\.org is not JSON: it begins with '<html>'"
    ):
        parse_manifest("<html>", where="https://example.org")


@pytest.mark.parametrize("text", ['{"format_version": 99, "files": {}}', "{}"])
def test_another_version_is_refused(text: str) -> None:
    with pytest.raises(WeightsFormatError, match="this release reads 1"):
        parse_manifest(text, where="here")


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("../escape.safetensors", {}, "is not the name of a weights file"),
        ("T4.pickle", {}, "is not the name of a weights file"),
        ("T4.safetensors", {"sha256": "short"}, r"files\.T4\.safetensors\.sha256 is 'short'; expected a SHA-256"),
        ("T4.safetensors", {"bytes": "many"}, "bytes is 'many'; expected an integer"),
        ("T4.safetensors", {"held_out_error": {"linear/float32": {"rows": 1}}}, "coverage is missing"),
    ],
)
def test_a_wrong_entry_is_refused(tmp_path: Path, name: str, changes: dict[str, object], words: str) -> None:
    publish(tmp_path, "T4")
    document = json.loads((tmp_path / MANIFEST_NAME).read_text())
    document["files"] = {name: document["files"]["T4.safetensors"] | changes}
    with pytest.raises(WeightsFormatError, match=words):
        parse_manifest(json.dumps(document), where="here")


def test_the_readme_lists_each_bundled_file_with_its_size_and_hash() -> None:
    manifest = parse_manifest((BUNDLED / MANIFEST_NAME).read_text(), where="the package")
    readme = (Path(__file__).parents[2] / "weights" / "README.md").read_text(encoding="utf-8")
    rows = {f"| `{name}` | {file.bytes:,} | `{file.sha256[:16]}` |" for name, file in manifest.files.items()}
    assert {line for line in readme.splitlines() if ".safetensors` |" in line} == rows


def test_a_network_knows_shapes_that_agree_in_what_all_trained_ones_had_in_common() -> None:
    plain = network()
    low, high = plain.low.copy(), plain.high.copy()
    low[0] = high[0] = 3.0  # the same in all that it was trained on
    tuned = replace(plain, low=low, high=high)
    rows = np.zeros((3, len(plain.features)), np.float32)
    rows[:, 0] = [3.0, 3.0 + 1e-6, 3.5]
    rows[:, 1] = [0.0, 50.0, 0.0]  # far outside of what varied: that is clipped, not unknown
    assert tuned.matches_constant_features(rows).tolist() == [True, True, False]
    assert plain.matches_constant_features(rows).all()
