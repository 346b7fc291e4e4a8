"""Reads and writes weights files (safetensors, never pickle), and verifies their checksum (SHA-256) and content.

The file's metadata has one entry, `lightning_predict`, a JSON object (see `write_weights`). The tensors of family `f`
are `f/mean`, `f/scale`, `f/low`, `f/high` and, for layer i, `f/layer<i>/weight` (members, inputs, outputs) and
`f/layer<i>/bias` (members, outputs). Weights are float16, and all other tensors float32. All are used as float32. The
file has a weight's bytes apart, as `high/f/layer<i>/weight` and `low/f/layer<i>/weight`, since bytes of one kind
compress better (the wheel by 0.5 MB); earlier files have them together.

`manifest.json` in the folder of the files has their checksums, sizes, training data and held-out errors. Example::

    write_weights(weights, "T4.safetensors")
    read_weights("T4.safetensors").families["matmul_single"].features

    >>> parse_manifest('{"format_version": 1, "files": {}}', where="a test").files
    {}
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from lightning_predict.base.checked import Checked, File, parse_json, shown
from lightning_predict.base.errors import WeightsFormatError, WeightsHashError
from lightning_predict.base.files import reject_irregular
from lightning_predict.weights.records import Float32Array, GpuWeights, Layer, MeasuredFactor, NetworkWeights

MANIFEST_NAME: Final = "manifest.json"
MAX_MANIFEST: Final = 1 << 24  # Maximum size of a manifest; the bundled one has 70 KB

FILE_NAME: Final = re.compile(r"[A-Za-z0-9.-]+\.safetensors")
"""Allowed file names. They contain no folder, so a download cannot write outside its folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutError:
    """Errors on held-out measurements of one operation and dtype."""

    rows: int  # Number of held-out measurements
    mean: float  # Mean of |predicted / measured - 1|
    median: float  # Median of |predicted / measured - 1|
    coverage: float  # Share of the measurements inside the 90 % interval


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """A weights file in the manifest."""

    sha256: str  # Checksum (SHA-256) of the file
    bytes: int
    gpu: str  # Name of the GPU that the weights are for, or `base`
    operations: tuple[str, ...]
    dtypes: tuple[str, ...]
    trained_on: tuple[str, ...]  # Sources of the measurements, with their licences
    rows: int
    # Errors by "operation/dtype"; for the base weights by "operation/dtype/GPU", with weights trained without this GPU
    held_out_error: Mapping[str, HeldOutError]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All weights files of one release."""

    recipe: str
    seed: int
    files: Mapping[str, ManifestEntry]

    def to_json(self) -> str:
        """Return the text of `manifest.json`. Equal manifests give equal texts."""
        return json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, indent=1, sort_keys=True) + "\n"


def file_name(gpu: str) -> str:
    """Return the file name of the weights of a GPU, or of the base weights."""
    return f"{gpu}.safetensors"


@lru_cache(maxsize=8)  # the manifest is needed again for each of its files
def parse_manifest(text: str, *, where: str) -> Manifest:
    """Parse a manifest."""
    document = parse_json(text.encode(), File(f"The manifest at {where}", WeightsFormatError))
    version = document.mapping().get("format_version")
    if version != FORMAT_VERSION:
        raise WeightsFormatError(
            f"The manifest at {where} has format version {shown(version)}; this release reads {FORMAT_VERSION}. Use "
            "the weights of this release."
        )
    return Manifest(
        recipe=document.optional("recipe", Checked.text, ""),
        seed=document.optional("seed", Checked.integer, 0),
        files={name: _entry(name, entry) for name, entry in document.member("files").members().items()},
    )


def _entry(name: str, entry: Checked) -> ManifestEntry:
    if FILE_NAME.fullmatch(name) is None:
        raise entry.error("is not the name of a weights file; expected [A-Za-z0-9.-] and .safetensors.")
    errors = entry.member("held_out_error").members()
    operations, dtypes, trained_on = (
        tuple(item.text() for item in entry.member(key).items()) for key in ("operations", "dtypes", "trained_on")
    )
    return ManifestEntry(
        sha256=entry.member("sha256").matching("a SHA-256", re.compile("[0-9a-f]{64}")),
        bytes=entry.member("bytes").integer(),
        gpu=entry.member("gpu").text(),
        operations=operations,
        dtypes=dtypes,
        trained_on=trained_on,
        rows=entry.member("rows").integer(),
        held_out_error={key: _held_out_error(value) for key, value in errors.items()},
    )


def _held_out_error(value: Checked) -> HeldOutError:
    value.check_keys(HeldOutError.__dataclass_fields__)
    mean, median, coverage = (value.member(key).number() for key in ("mean", "median", "coverage"))
    return HeldOutError(rows=value.member("rows").integer(), mean=mean, median=median, coverage=coverage)


FORMAT_VERSION: Final = 1

MAX_BYTES: Final = 1 << 27  # Maximum size of a weights file, 100 times the largest shipped; of its header, a hundredth

METADATA_KEY: Final = "lightning_predict"
VECTORS: Final = ("mean", "scale", "low", "high")

_ADVICE: Final = (
    f"Expected a file written by `lightning-predict train` (format version {FORMAT_VERSION}). Delete it, so that it is "
    "fetched again or the bundled file is used."
)
_Tensors = dict[str, np.ndarray[Any, np.dtype[Any]]]


_BYTES: Final = ("low", "high")  # Bytes of a float16, in a little-endian file's order
ZERO_BITS: Final = 3  # Last bits of a stored weight, which are zero: 0.9 MB less, predictions move by less than 0.1 %


def as_stored(weight: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float16]:
    """Round a weight to what a file holds: float16 with its last bits zero."""
    bits = weight.astype(np.float16).view(np.uint16).astype(np.uint32)
    to_even = (1 << (ZERO_BITS - 1)) - 1 + (bits >> ZERO_BITS & 1)
    return (bits + to_even >> ZERO_BITS << ZERO_BITS).astype(np.uint16).view(np.float16)


def sha256(content: bytes) -> str:
    """Return the checksum (SHA-256) as hexadecimal text."""
    return hashlib.sha256(content).hexdigest()


def write_weights(weights: GpuWeights, path: Path) -> None:
    """Write a weights file. Equal weights give equal bytes."""
    tensors: _Tensors = {}
    families: dict[str, object] = {}
    for name, network in sorted(weights.families.items()):
        for vector in VECTORS:
            tensors[f"{name}/{vector}"] = np.ascontiguousarray(getattr(network, vector), dtype=np.float32)
        for index, layer in enumerate(network.layers):
            pairs = as_stored(layer.weight)[..., None].view(np.uint8)
            for place, part in enumerate(_BYTES):
                tensors[f"{part}/{name}/layer{index}/weight"] = np.ascontiguousarray(pairs[..., place])
            tensors[f"{name}/layer{index}/bias"] = np.ascontiguousarray(layer.bias, dtype=np.float32)
        families[name] = _describe(network)
    header = {
        "format_version": FORMAT_VERSION,
        "gpu": weights.gpu,
        "recipe": weights.recipe,
        "seed": weights.seed,
        "sources": list(weights.sources),
        "families": families,
    }
    if weights.factors:  # absent in files of earlier releases
        header["factors"] = {key: asdict(factor) for key, factor in weights.factors.items()}
    content = safetensors.numpy.save(tensors, {METADATA_KEY: json.dumps(header, sort_keys=True)})
    path.write_bytes(content)


def read_weights(path: Path, *, expected_sha256: str | None = None) -> GpuWeights:
    """Read and check a weights file."""
    reject_irregular(path)
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise _unusable(path, f"it has more than {MAX_BYTES:,} bytes")
    if expected_sha256 is not None and sha256(content) != expected_sha256:
        raise WeightsHashError(
            f"Weights file {path} has SHA-256 {sha256(content)}; expected {expected_sha256} (the manifest's). It was "
            "changed or damaged: delete it, so that it is fetched again or the bundled file is used."
        )
    return parse_weights(content, path)


def parse_weights(content: bytes, path: Path | str) -> GpuWeights:
    """Parse and validate the content of a weights file."""
    header = _header(content, path)
    try:
        tensors: _Tensors = safetensors.numpy.load(content)
    except safetensors.SafetensorError as error:
        raise _unusable(path, f"it is truncated or not a safetensors file ({error})") from None
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise _unusable(path, f"numpy has no such dtype or shape ({error})") from None
    _join_bytes(tensors, path)
    descriptions = header.member("families").members()
    families = {name: _network(name, description, tensors, path) for name, description in descriptions.items()}
    if tensors:
        raise _unusable(path, f"it has tensors that its header does not name: {sorted(tensors)}")
    return GpuWeights(
        header.member("gpu").text(),
        families,
        header.member("recipe").text(),
        header.member("seed").integer(),
        tuple(source.text() for source in header.member("sources").items()),
        {key: _factor(factor) for key, factor in header.optional("factors", Checked.members, {}).items()},
    )


def _join_bytes(tensors: _Tensors, path: Path | str) -> None:
    """Replace the bytes of each weight by the weight."""
    low, high = (
        {key.removeprefix(f"{part}/"): tensors.pop(key) for key in sorted(tensors) if key.startswith(f"{part}/")}
        for part in _BYTES
    )
    if {(key, array.dtype, array.shape) for key, array in low.items()} != {
        (key, np.dtype(np.uint8), array.shape) for key, array in high.items()
    }:
        raise _unusable(path, "the low and the high bytes of its weights are not of the same shapes")
    tensors |= {key: np.stack((low[key], high[key]), -1).view(np.float16)[..., 0] for key in low}


def _factor(value: Checked) -> MeasuredFactor:
    return MeasuredFactor(
        factor=value.member("factor").positive(),
        half_width=value.member("half_width").positive(),
        rows=value.member("rows").integer(minimum=1),
    )


def _describe(network: NetworkWeights) -> dict[str, object]:
    return {
        "trained": sorted(list(pair) for pair in network.trained),
        "features": list(network.features),
        "layers": [layer.outputs for layer in network.layers],
        "members": network.layers[0].members,
        "lowest_utilisation": network.lowest_utilisation,
        "interval": dict(network.interval),
    }


def _unusable(path: Path | str, why: str) -> WeightsFormatError:
    return WeightsFormatError(f"Weights file {path} cannot be used: {why}. {_ADVICE}")


def _header(content: bytes, path: Path | str) -> Checked:
    length = int.from_bytes(content[:8], "little")
    if length > MAX_BYTES // 100:  # JSON takes 40 times its length in memory
        raise _unusable(path, f"its header has {length:,} bytes; expected at most {MAX_BYTES // 100:,}")
    if len(content) < 8 + length:
        raise _unusable(path, f"it is truncated: {len(content)} bytes, and its header alone needs {8 + length}")
    file = File(f"Weights file {path} cannot be used: its header", WeightsFormatError, _ADVICE)
    metadata = parse_json(content[8 : 8 + length], file).member("__metadata__")
    header = parse_json(metadata.member(METADATA_KEY).text().encode(), file)
    version = header.mapping().get("format_version")
    if version != FORMAT_VERSION:
        raise _unusable(path, f"its format version is {shown(version)}")
    return header


def _network(name: str, description: Checked, tensors: _Tensors, path: Path | str) -> NetworkWeights:
    """Build the network of a family, and remove its tensors from `tensors`."""
    features = tuple(feature.text() for feature in description.member("features").items())
    widths = [width.integer(minimum=1) for width in description.member("layers").items()]
    members = description.member("members").integer(minimum=1)
    lowest = description.member("lowest_utilisation")
    if not 0 < lowest.any_number() < 1:
        raise lowest.unexpected("a share between 0 and 1")
    description.member("interval").member("*")
    interval = {key: width.positive() for key, width in description.member("interval").members().items()}
    if not widths or widths[-1] != 1:
        raise description.member("layers").unexpected("layers of which the last has one output")
    vectors = {vector: _take(tensors, f"{name}/{vector}", (len(features),), path) for vector in VECTORS}
    pairs = (pair.items(length=2) for pair in description.member("trained").items())
    layers = []
    for index, (inputs, outputs) in enumerate(zip([len(features), *widths], widths, strict=False)):
        weight = _take(tensors, f"{name}/layer{index}/weight", (members, inputs, outputs), path)
        bias = _take(tensors, f"{name}/layer{index}/bias", (members, outputs), path)
        layers.append(Layer(weight, bias))
    return NetworkWeights(
        family=name,
        trained=frozenset((one.text(), other.text()) for one, other in pairs),
        features=features,
        lowest_utilisation=lowest.any_number(),
        layers=tuple(layers),
        interval=interval,
        **vectors,
    )


def _take(tensors: _Tensors, key: str, shape: tuple[int, ...], path: Path | str) -> Float32Array:
    tensor = tensors.pop(key, None)
    if tensor is None:
        raise _unusable(path, f"tensor {key!r} is missing; its header promises shape {shape}")
    if tensor.shape != shape:
        raise _unusable(path, f"tensor {key!r} has shape {tensor.shape}; its header promises {shape}")
    if not np.isfinite(tensor).all():
        raise _unusable(path, f"tensor {key!r} holds values that are not finite")
    return tensor.astype(np.float32)
