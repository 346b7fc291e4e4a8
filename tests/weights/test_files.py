import json
import os
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from lightning_predict.base.errors import WeightsFormatError, WeightsHashError
from lightning_predict.weights.files import MAX_BYTES, METADATA_KEY, as_stored, read_weights, sha256, write_weights
from lightning_predict.weights.store import BUNDLED
from tests.weights.example import weights


def test_weights_round_trip_also_with_their_bytes_together_and_rounded(tmp_path: Path) -> None:
    path = tmp_path / "T4.safetensors"
    written = weights("T4", bias=0.5)
    write_weights(written, path)
    read = read_weights(path, expected_sha256=sha256(path.read_bytes()))
    assert (read.gpu, read.recipe, read.seed, read.sources) == ("T4", "toy-1", 0, ("a source (MIT)",))
    before, after = written.families["toy"], read.families["toy"]
    assert (after.trained, after.features, after.lowest_utilisation) == (before.trained, before.features, 0.01)
    assert after.half_width("linear", "float32") == 0.1
    assert after.half_width("bmm", "float32") == 0.2  # not trained: the widest
    for one, other in zip(before.layers, after.layers, strict=True):
        np.testing.assert_array_equal(one.weight, other.weight)  # 0.5 and 0.25 are exact in float16
        np.testing.assert_array_equal(one.bias, other.bias)
        assert other.weight.dtype == np.float32

    def together(tensors: dict[str, Any]) -> None:  # as files were before 0.1.0
        for key in [name.removeprefix("low/") for name in tensors if name.startswith("low/")]:
            low, high = tensors.pop(f"low/{key}").astype(np.uint16), tensors.pop(f"high/{key}").astype(np.uint16)
            tensors[key] = (high << 8 | low).view(np.float16)

    earlier = read_weights(rewritten(tmp_path / "T4.safetensors", tensors=together)).families["toy"]
    for one, other in zip(weights("T4").families["toy"].layers, earlier.layers, strict=True):
        np.testing.assert_array_equal(one.weight, other.weight)
    # Seven bits of the mantissa stay: steps of 1/128 between 1 and 2.
    values = np.array([1.0, 1 + 1 / 512, 1 + 1 / 256, 1 + 3 / 256, -1 - 1 / 200], dtype=np.float32)
    assert as_stored(values).tolist() == [1.0, 1.0, 1.0, 1 + 2 / 128, -1 - 1 / 128]


def test_same_weights_have_the_same_bytes_and_a_wrong_hash_is_named(tmp_path: Path) -> None:
    write_weights(weights("T4"), tmp_path / "one")
    write_weights(weights("T4"), tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    path = tmp_path / "T4.safetensors"
    write_weights(weights("T4"), path)
    with pytest.raises(WeightsHashError, match=rf"expected {'0' * 64} \(the manifest's\).*delete it"):
        read_weights(path, expected_sha256="0" * 64)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.6, 0.95, 0.999])
def test_truncated_weights_file_is_rejected_at_every_length(tmp_path: Path, share: float) -> None:
    path = tmp_path / "T4.safetensors"
    write_weights(weights("T4"), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(WeightsFormatError, match=r"T4\.safetensors cannot be used.*Delete it"):
        read_weights(path)


def rewritten(
    path: Path,
    *,
    header: Callable[[dict[str, Any]], None] = lambda header: None,
    tensors: Callable[[dict[str, Any]], None] = lambda tensors: None,
) -> Path:
    """A valid file whose header or tensors were changed afterwards."""
    write_weights(weights("T4"), path)
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    promised = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][METADATA_KEY])
    held = safetensors.numpy.load(content)
    header(promised)
    tensors(held)
    path.write_bytes(safetensors.numpy.save(held, {METADATA_KEY: json.dumps(promised)}))
    return path


LIES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "version": (lambda h: h.update(format_version=9), "its format version is 9"),
    "no families": (lambda h: h.pop("families"), "its header: families is missing; .* Delete it"),
    "features": (
        lambda h: h["families"]["toy"].update(features=["a", "b", "c", "d"]),
        r"'toy/mean' has shape \(3,\); its header promises \(4,\)",
    ),
    "members": (
        lambda h: h["families"]["toy"].update(members=3),
        r"'toy/layer0/weight' has shape \(2, 3, 4\); its header promises \(3, 3, 4\)",
    ),
    "depth": (lambda h: h["families"]["toy"].update(layers=[4, 4, 1]), r"'toy/layer1/weight' has shape"),
    "two outputs": (
        lambda h: h["families"]["toy"].update(layers=[4, 2]),
        r"layers is \[4, 2\]; expected layers of which the last has one output",
    ),
    "utilisation": (
        lambda h: h["families"]["toy"].update(lowest_utilisation=0),
        "lowest_utilisation is 0; expected a share between 0 and 1",
    ),
    "no interval": (lambda h: h["families"]["toy"].update(interval={}), r"interval\.\* is missing"),
    "field": (lambda h: h["families"]["toy"].pop("trained"), r"toy\.trained is missing"),
}


@pytest.mark.parametrize(("lie", "words"), LIES.values(), ids=LIES)
def test_a_header_that_lies_is_refused(tmp_path: Path, lie: Callable[[dict[str, Any]], None], words: str) -> None:
    path = rewritten(tmp_path / "T4.safetensors", header=lie)
    with pytest.raises(WeightsFormatError, match=words):
        read_weights(path)


TENSOR_LIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "missing": (
        lambda t: t.pop("toy/layer1/bias"),
        r"'toy/layer1/bias' is missing; its header promises shape \(2, 1\)",
    ),
    "extra": (lambda t: t.update(other=np.zeros(3, np.float32)), r"tensors that its header does not name: \['other'\]"),
    "half a weight": (lambda t: t.pop("low/toy/layer0/weight"), "low and the high bytes .* not of the same shapes"),
    "no bytes": (
        lambda t: t.update({f"{part}/other": np.zeros(3, np.float16) for part in ("low", "high")}),
        "low and the high bytes .* not of the same shapes",
    ),
    "nan": (lambda t: t["toy/mean"].fill(np.nan), "'toy/mean' holds values that are not finite"),
}


@pytest.mark.parametrize(("lie", "words"), TENSOR_LIES.values(), ids=TENSOR_LIES)
def test_tensors_that_differ_from_the_header_are_refused(
    tmp_path: Path, lie: Callable[[dict[str, Any]], None], words: str
) -> None:
    path = rewritten(tmp_path / "T4.safetensors", tensors=lie)
    with pytest.raises(WeightsFormatError, match=words):
        read_weights(path)


def test_pipe_and_file_of_another_program_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    path.write_bytes(safetensors.numpy.save({"x": np.zeros(2, np.float32)}))
    with pytest.raises(WeightsFormatError, match="its header: __metadata__ is missing"):
        read_weights(path)
    path = tmp_path / "T4.safetensors"
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        read_weights(path)


def _entry(text: str, **changes: Any) -> str:
    """Change the entry of the first tensor in a header."""
    header = json.loads(text)
    next(entry for name, entry in header.items() if name != "__metadata__").update(changes)
    return json.dumps(header)


HOSTILE_HEADERS: dict[str, tuple[Callable[[str], str], str]] = {
    "offsets below zero": (lambda text: _entry(text, data_offsets=[-4, 4]), "not a safetensors file"),
    "offsets that overlap": (lambda text: _entry(text, data_offsets=[4, 16]), "not a safetensors file"),
    "offsets that fall": (lambda text: _entry(text, data_offsets=[12, 0]), "not a safetensors file"),
    "offsets beyond the file": (lambda text: _entry(text, data_offsets=[0, 2**62]), "not a safetensors file"),
    "offsets that are no numbers": (lambda text: _entry(text, data_offsets=[float("nan")] * 2), "NaN is not JSON"),
    "a shape below zero": (lambda text: _entry(text, shape=[-1]), "not a safetensors file"),
    "a shape that overflows": (lambda text: _entry(text, shape=[2**40, 2**40]), "not a safetensors file"),
    "200 dimensions": (lambda text: _entry(text, shape=[1] * 200 + [3]), "no such dtype or shape .*found 201"),
    "8-bit floats": (lambda text: _entry(text, dtype="F8_E4M3", shape=[12]), r"no such dtype or shape \('F8_E4M3'\)"),
    "bfloat16": (lambda text: _entry(text, dtype="BF16", shape=[6]), r"no such dtype or shape \('BF16'\)"),
    "an unknown dtype": (lambda text: _entry(text, dtype="nonsense"), "not a safetensors file"),
    "100,000 brackets": (lambda text: "[" * 100_000, "nested 100,000 levels deep"),
    "a name twice": (
        lambda text: text.rstrip()[:-1] + ', "toy/high": {"dtype": "F32", "shape": [3], "data_offsets": [12, 24]}}',
        "not a safetensors file",
    ),
    "metadata twice": (
        lambda text: text.rstrip()[:-1] + ', "__metadata__": {}}',
        "__metadata__.lightning_predict is missing",
    ),
    "metadata of a terminal": (
        lambda text: json.dumps(json.loads(text) | {"__metadata__": {METADATA_KEY: "\x1b[2J\x1b]0;x\x07"}}),
        r"begins with '\\x1b\[2J",
    ),
    "a name of a terminal": (
        lambda text: text.rstrip()[:-1] + ', "\\u001b[2J": {"dtype": "F32", "shape": [0], "data_offsets": [116, 116]}}',
        "cannot be used",
    ),
    "not UTF-8": (lambda text: "{\udcff}", "not valid JSON"),
    "garbage behind": (lambda text: text + " x", "not valid JSON"),
}


@pytest.mark.parametrize(("change", "words"), HOSTILE_HEADERS.values(), ids=HOSTILE_HEADERS)
def test_a_hostile_header_is_refused_in_plain_text(tmp_path: Path, change: Callable[[str], str], words: str) -> None:
    path = tmp_path / "T4.safetensors"
    write_weights(weights("T4"), path)
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    text = change(content[8 : 8 + length].decode()).encode(errors="surrogateescape")
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    with pytest.raises(WeightsFormatError, match=words) as refused:
        read_weights(path)
    assert str(refused.value).isprintable()


ENTRY = '"{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
LONG_HEADERS = {
    "many entries": "{" + ",".join(map(ENTRY.format, range(30_000))) + "}",
    "many lists": '{"x":[' + "[]," * 500_000 + "[]]}",
    "a long name": '{"' + "x" * 1_500_000 + '":1}',
}


@pytest.mark.parametrize("text", LONG_HEADERS.values(), ids=LONG_HEADERS)
@pytest.mark.parametrize("promised", [None, 2**63, 2**64 - 1])
def test_a_long_header_is_not_parsed(tmp_path: Path, text: str, promised: int | None) -> None:
    # 100 million entries would be more bytes than any weights file may have. Parsed, 2 million took 29 s and 1.2 GiB.
    path = tmp_path / "T4.safetensors"
    path.write_bytes(struct.pack("<Q", promised or len(text)) + text.encode())
    tracemalloc.start()
    try:
        start = time.process_time()
        with pytest.raises(WeightsFormatError, match=r"its header has [\d,]+ bytes; expected at most 1,342,177"):
            read_weights(path)
        assert time.process_time() - start < 1
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES + 2**20  # the read buffer
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("path", sorted(BUNDLED.glob("*.safetensors")), ids=lambda path: path.stem)
def test_shipped_weights_end_in_zero_bits_which_the_wheel_packs(path: Path) -> None:
    for name, tensor in safetensors.numpy.load_file(path).items():
        assert not name.startswith("low/") or not (tensor & 0b111).any(), name
    layers = [layer.weight for family in read_weights(path).families.values() for layer in family.layers]
    assert all(np.array_equal(as_stored(weight), weight) for weight in layers)
