"""Where weights come from: an explicit path, the user's cache, the files bundled with the package, a download.

Each file is taken from the first place that has it, in that order. The bundled files cover every GPU with public
measurements, so nothing is downloaded unless an address is configured (argument `url`, or
`LIGHTNING_PREDICT_WEIGHTS_URL`). A configured address is an instruction: its manifest is read first, and where it
names a file with another hash than the bundled one, or a GPU that is not bundled, that file is downloaded into the
cache; what it does not name comes from the bundled files. `offline=True` never touches the network and uses what
earlier downloads left. A GPU without a file anywhere is served by the base. Example::

    >>> weights = load_weights(["T4", "a-GPU-without-measurements"])
    >>> weights.base.gpu, list(weights.gpus)
    ('base', ['T4'])
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final, Protocol, final

import pooch

from lightning_predict.errors import WeightsFormatError, WeightsNotFoundError
from lightning_predict.weights.fetch import check_address, fetch_file, fetch_manifest
from lightning_predict.weights.files import read_weights
from lightning_predict.weights.manifest import MANIFEST_NAME, Manifest, file_name, parse_manifest
from lightning_predict.weights.records import BASE, GpuWeights, LoadedWeights

URL_VARIABLE: Final = "LIGHTNING_PREDICT_WEIGHTS_URL"
CACHE_VARIABLE: Final = "LIGHTNING_PREDICT_CACHE"
BUNDLED: Final = Path(__file__).parent / "files"


class AbstractPlace(Protocol):
    """A place that may have weights files."""

    def find(self, name: str) -> GpuWeights | None:
        """Read and check a file; None where this place does not have it."""
        ...

    def describe(self) -> str:
        """The place in words for the user."""
        ...


@final
@dataclass(frozen=True)
class FolderPlace:
    """A folder of weights files; where it has a manifest, each file must be in it and match its hash."""

    folder: Path
    title: str

    def find(self, name: str) -> GpuWeights | None:
        """See `AbstractPlace`."""
        path = self.folder / name
        if not path.is_file():
            return None
        manifest = read_manifest(self.folder)
        if manifest is None:
            return read_weights(path)
        entry = manifest.files.get(name)
        if entry is None:
            raise WeightsFormatError(
                f"Weights file {path} is not named in {self.folder / MANIFEST_NAME}, so it cannot be checked. Delete "
                "it, or write the manifest again."
            )
        return read_weights(path, expected_sha256=entry.sha256)

    def describe(self) -> str:
        """See `AbstractPlace`."""
        return f"{self.title} {self.folder}"


@final
@dataclass(frozen=True)
class FilePlace:
    """One weights file that the user named, whatever its name."""

    path: Path
    weights: GpuWeights

    def find(self, name: str) -> GpuWeights | None:
        """See `AbstractPlace`."""
        return self.weights if name == file_name(self.weights.gpu) else None

    def describe(self) -> str:
        """See `AbstractPlace`."""
        return f"file {self.path}"


@final
@dataclass(frozen=True)
class DownloadPlace:
    """A configured address whose manifest has been read; files with the hash of a bundled one are not fetched."""

    url: str
    manifest: Manifest
    bundled_hashes: Mapping[str, str]
    cache: Path

    def find(self, name: str) -> GpuWeights | None:
        """See `AbstractPlace`."""
        entry = self.manifest.files.get(name)
        if entry is None or self.bundled_hashes.get(name) == entry.sha256:
            return None
        path = fetch_file(self.url, name, entry.sha256, self.cache)
        return read_weights(path, expected_sha256=entry.sha256)

    def describe(self) -> str:
        """See `AbstractPlace`."""
        return f"address {self.url}"


def load_weights(
    gpu_names: Sequence[str],
    *,
    path: str | Path | None = None,
    url: str | None = None,
    cache_dir: str | Path | None = None,
    offline: bool = False,
) -> LoadedWeights:
    """Find, check and read the base and the own weights of these GPUs.

    Args:
        gpu_names: Catalogue names; those without a file anywhere are served by the base.
        path: A weights file, or a folder of them, that comes before all else.
        url: Address of a folder with a manifest; `LIGHTNING_PREDICT_WEIGHTS_URL` where None.
        cache_dir: Folder for downloads; `LIGHTNING_PREDICT_CACHE`, else the platform's cache folder, where None.
        offline: Use no network, whatever is configured.

    Raises:
        WeightsNotFoundError: `path` does not exist, or no place has the base.
        WeightsFormatError: A file is truncated or is not what its header or manifest says.
        WeightsHashError: A file's hash is not its manifest's.
        WeightsDownloadError: The configured address could not be read after the retries.
        InvalidArgumentError: The address is not http or https.
    """
    address = url if url is not None else os.environ.get(URL_VARIABLE)
    places = _places(path, None if offline or not address else check_address(address), cache_folder(cache_dir))
    origins: dict[str, str] = {}
    base = _first(file_name(BASE), places, origins)
    if base is None:
        searched = "; ".join(place.describe() for place in places)
        raise WeightsNotFoundError(
            f"No base weights ({file_name(BASE)}) at any place: {searched}. Reinstall the package, or give the folder "
            "that has them."
        )
    own = {name: _first(file_name(name), places, origins) for name in dict.fromkeys(gpu_names) if name != BASE}
    return LoadedWeights(base, {name: weights for name, weights in own.items() if weights is not None}, origins)


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """The folder of this release's downloads."""
    root = cache_dir or os.environ.get(CACHE_VARIABLE) or pooch.os_cache("lightning-predict")
    return Path(root).expanduser() / version("lightning-predict")


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder; None where it has none.

    Raises:
        WeightsFormatError: It is not a manifest.
    """
    path = folder / MANIFEST_NAME
    return parse_manifest(path.read_text(encoding="utf-8"), where=str(path)) if path.is_file() else None


def _places(path: str | Path | None, address: str | None, cache: Path) -> list[AbstractPlace]:
    places: list[AbstractPlace] = []
    if path is not None:
        places.append(_explicit(Path(path).expanduser()))
    if address is not None:
        manifest = fetch_manifest(address, cache)
        places.append(DownloadPlace(address, manifest, _bundled_hashes(), cache))
    elif (cache / MANIFEST_NAME).is_file():
        places.append(FolderPlace(cache, "cache"))
    places.append(FolderPlace(BUNDLED, "bundled files"))
    return places


def _bundled_hashes() -> Mapping[str, str]:
    manifest = read_manifest(BUNDLED)
    return {} if manifest is None else {name: entry.sha256 for name, entry in manifest.files.items()}


def _explicit(path: Path) -> AbstractPlace:
    if path.is_dir():
        return FolderPlace(path, "folder")
    if path.is_file():
        return FilePlace(path, read_weights(path))
    raise WeightsNotFoundError(
        f"Weights path {str(path)!r} does not exist; expected a .safetensors file or a folder of them."
    )


def _first(name: str, places: Sequence[AbstractPlace], origins: dict[str, str]) -> GpuWeights | None:
    for place in places:
        weights = place.find(name)
        if weights is None:
            continue
        if file_name(weights.gpu) != name:
            raise WeightsFormatError(
                f"{name} from {place.describe()} holds the weights of {weights.gpu!r}. Rename it to "
                f"{file_name(weights.gpu)!r}, or fetch it again."
            )
        origins[name] = place.describe()
        return weights
    return None
