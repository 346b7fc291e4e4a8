"""Manifest of weights files: checksums (SHA-256), sizes, training data and held-out errors.

`manifest.json` is in the same folder as the files that it lists::

    {"format_version": 1, "files": {"T4.safetensors": {"sha256": "...", "bytes": 12345, "gpu": "T4", ...}}}

Example::

    >>> manifest = parse_manifest('{"format_version": 1, "files": {}}', where="a test")
    >>> manifest.files
    {}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Final

from lightning_predict.base.checked import Checked, File, parse_json, shown
from lightning_predict.base.errors import WeightsFormatError
from lightning_predict.weights.files import FORMAT_VERSION

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
