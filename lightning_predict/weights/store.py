"""Finds and loads weights: from an explicit path, a download address, the user's cache, or the package's own files.

Each file comes from the first of these places that has the file. The bundled files cover every GPU with public
measurements, and nothing is downloaded unless an address is configured (see `source`).

If an address is configured, its manifest is read first. A file is downloaded if it is not bundled, or if its checksum
differs from the bundled file. Bundled files are used for files that the manifest does not list. All downloads are
verified before any of them is used. The cache names files by their checksum, so files always match the manifest. If the
download fails, files of an earlier download or bundled files are used, and `notes` report the failure. A GPU without
its own file uses the base weights. Example::

    >>> weights = load_weights(["T4", "a-GPU-without-measurements"])
    >>> weights.cross_gpu_model.gpu, list(weights.gpus)
    ('base', ['T4'])
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from lightning_predict.base.checked import shown
from lightning_predict.base.errors import InvalidArgumentError, WeightsError, WeightsFormatError, WeightsNotFoundError
from lightning_predict.base.files import cache_folder
from lightning_predict.weights.files import (
    MANIFEST_NAME,
    MAX_MANIFEST,
    Manifest,
    ManifestEntry,
    file_name,
    parse_manifest,
    parse_weights,
    read_weights,
)
from lightning_predict.weights.records import CROSS_GPU, GpuWeights, LoadedWeights
from lightning_predict.weights.source import URL_VARIABLE, AnyWeights, WeightsSource, weights_source

BUNDLED: Final = Path(__file__).parent / "files"


class AbstractPlace(Protocol):
    """A place that may have weights files."""

    def find(self, name: str) -> GpuWeights | None:
        """Read and verify a file; return None if this place does not have the file."""
        ...

    def describe(self) -> str:
        """Return the name of the place, for messages."""
        ...


@dataclass(frozen=True)
class FolderPlace:
    """A folder of weights files. If the folder has a manifest, the manifest must list each file with its checksum."""

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


@dataclass(frozen=True)
class FilePlace:
    """A weights file that the user gave. The file's name does not matter."""

    path: Path
    weights: GpuWeights

    def find(self, name: str) -> GpuWeights | None:
        """See `AbstractPlace`."""
        return self.weights if name == file_name(self.weights.gpu) else None

    def describe(self) -> str:
        """See `AbstractPlace`."""
        return f"file {self.path}"


@dataclass(frozen=True)
class DownloadPlace:
    """Verified downloads from a configured address. Files that equal bundled files are not downloaded."""

    title: str
    weights: Mapping[str, GpuWeights]

    def find(self, name: str) -> GpuWeights | None:
        """See `AbstractPlace`."""
        return self.weights.get(name)

    def describe(self) -> str:
        """See `AbstractPlace`."""
        return f"address {self.title}"


@dataclass(frozen=True)
class CachePlace:
    """Earlier downloads with their manifest. Files are named by checksum. Damaged files count as missing."""

    folder: Path
    damaged: list[str] = field(default_factory=list)

    def find(self, name: str) -> GpuWeights | None:
        """See `AbstractPlace`."""
        manifest = self.manifest()
        entry = None if manifest is None else manifest.files.get(name)
        return None if entry is None else self.weights(entry)

    def describe(self) -> str:
        """See `AbstractPlace`."""
        return f"cache {self.folder}"

    def is_there(self) -> bool:
        """Return whether the cache has a manifest. An unreadable folder is noted as damaged."""
        try:
            return (self.folder / MANIFEST_NAME).is_file()
        except OSError as error:
            self._note(error)
            return False

    def manifest(self) -> Manifest | None:
        """Return the manifest of the last download; None if it is missing or unreadable."""
        try:
            return read_manifest(self.folder)
        except (WeightsError, OSError, UnicodeDecodeError) as error:
            self._note(error)
            return None

    def weights(self, entry: ManifestEntry) -> GpuWeights | None:
        """Return the weights of a manifest entry; None if the file is missing or damaged."""
        path = self.path(entry.sha256)
        try:
            return read_weights(path, expected_sha256=entry.sha256) if path.is_file() else None
        except (WeightsError, OSError) as error:
            self._note(error)
            return None

    def path(self, sha256: str) -> Path:
        """Return the path of the file with a checksum."""
        return self.folder / f"{sha256}.safetensors"

    def keep(self, manifest: Manifest, contents: Mapping[str, bytes]) -> None:
        """Write files, and then the manifest that lists the files. Each write is atomic."""
        for sha256, content in contents.items():
            _write_atomically(self.path(sha256), content)
        _write_atomically(self.folder / MANIFEST_NAME, manifest.to_json().encode())

    def _note(self, error: Exception) -> None:
        self.damaged.append(f"{type(error).__name__} in {self.folder}")


def load_weights(
    gpu_names: Sequence[str], weights: AnyWeights = None, *, optional_gpus: Sequence[str] = ()
) -> LoadedWeights:
    """Find, verify and read the base weights and the weights of GPUs.

    Args:
        gpu_names: Catalogue names. A GPU without a file uses the base weights.
        weights: A weights file, a folder, an address, or a WeightsSource; None uses the configuration.
        optional_gpus: Further GPUs, whose weights are loaded only if this needs no download.
    """
    notes: list[str] = []
    places = _places(weights_source(weights), [CROSS_GPU, *gpu_names], notes)
    base = _first(file_name(CROSS_GPU), places)
    if base is None:
        searched = "; ".join(place.describe() for place in places)
        raise WeightsNotFoundError(
            f"No base weights ({file_name(CROSS_GPU)}) at any place: {searched}. Reinstall the package, or give the "
            "folder "
            "that has them."
        )
    names = [name for name in dict.fromkeys([*gpu_names, *optional_gpus]) if name != CROSS_GPU]
    own = {name: _first(file_name(name), places) for name in names}
    damaged = [words for place in places if isinstance(place, CachePlace) for words in place.damaged]
    if damaged:
        notes.append(
            f"Of the cache of weights, {len(damaged)} file(s) could not be used ({damaged[0]}); others took their "
            "place. Delete that folder, or load again from its address."
        )
    loaded = {name: weights for name, weights in own.items() if weights is not None}
    return LoadedWeights(base, loaded, tuple(notes))


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None if the folder has no manifest."""
    path = folder / MANIFEST_NAME
    if not path.is_file():
        return None
    with path.open(encoding="utf-8") as file:  # another process may have written anything into the cache
        content = file.read(MAX_MANIFEST + 1)
    if len(content) > MAX_MANIFEST:
        raise WeightsFormatError(f"{path} is larger than {MAX_MANIFEST:,} characters, so it is no manifest. Delete it.")
    return parse_manifest(content, where=str(path))


def _places(source: WeightsSource, wanted: Sequence[str], notes: list[str]) -> list[AbstractPlace]:
    """Return the places to search, in order; failures are added to `notes`."""
    places: list[AbstractPlace] = []
    if source.path is not None:
        places.append(_explicit(Path(source.path).expanduser()))
    cache = CachePlace(cache_folder(source.cache_dir))
    if not source.offline:
        configured = source if source.url is not None else _configured(source, notes)
        if configured is not None:
            try:
                places.append(_download(configured, [file_name(name) for name in wanted], cache, notes))
            except WeightsError as error:
                notes.append(f"{error} Until then, weights of the cache or the bundled ones serve.")
    if cache.is_there() or cache.damaged:
        places.append(cache)
    places.append(FolderPlace(BUNDLED, "bundled files"))
    return places


def _configured(source: WeightsSource, notes: list[str]) -> WeightsSource | None:
    """Return the source with the address from the environment; None if the variable is unset or invalid."""
    url = os.environ.get(URL_VARIABLE)
    if not url:
        return None
    configured = replace(source, url=url)
    try:
        _ = configured.address
    except InvalidArgumentError as error:
        notes.append(f"{error} It comes from {URL_VARIABLE}, which is left aside.")
        return None
    return configured


def _download(source: WeightsSource, wanted: Sequence[str], cache: CachePlace, notes: list[str]) -> DownloadPlace:
    """Download the wanted files that are neither bundled nor cached. If all are valid, add them to the cache."""
    from lightning_predict.weights.fetch import Download  # slow import, needed only here

    address = source.address
    download = Download(address, seconds=source.deadline_seconds, allow_http=source.allow_http)
    manifest, bundled = download.manifest(), _bundled_hashes()
    contents: dict[str, bytes] = {}
    weights: dict[str, GpuWeights] = {}
    for name in dict.fromkeys(wanted):
        entry = manifest.files.get(name)
        if entry is None or bundled.get(name) == entry.sha256:
            continue
        known = cache.weights(entry)
        if known is None:
            contents[entry.sha256] = download.file(name, entry)
            known = parse_weights(contents[entry.sha256], f"{address.shown}/{name}")
        weights[name] = known
        _check_gpu(name, known, address.shown)
    cache.damaged.clear()  # damaged files were downloaded again
    try:
        cache.keep(manifest, contents)
    except OSError as error:
        notes.append(f"Weights of {address.shown} cannot be kept in the cache {cache.folder}: {error}")
    return DownloadPlace(address.shown, weights)


def _write_atomically(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise


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


def _first(name: str, places: Sequence[AbstractPlace]) -> GpuWeights | None:
    for place in places:
        weights = place.find(name)
        if weights is None:
            continue
        _check_gpu(name, weights, place.describe())
        return weights
    return None


def _check_gpu(name: str, weights: GpuWeights, where: str) -> None:
    if file_name(weights.gpu) != name:
        raise WeightsFormatError(
            f"{name} from {where} holds the weights of {shown(weights.gpu)}. Rename it to "
            f"{shown(file_name(weights.gpu))}, or fetch it again."
        )
