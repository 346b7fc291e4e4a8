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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from lightning_predict.base.checked import shown
from lightning_predict.base.errors import InvalidArgumentError, WeightsError, WeightsFormatError, WeightsNotFoundError
from lightning_predict.base.files import cache_folder, write_atomically
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
from lightning_predict.weights.source import Address, AnyWeights, weights_source

BUNDLED: Final = Path(__file__).parent / "files"

Value = TypeVar("Value")
Find = Callable[[str], GpuWeights | None]  # Function that returns the weights of a GPU, or of the base, if it has them


def load_weights(
    gpu_names: Sequence[str], weights: AnyWeights = None, *, optional_gpus: Sequence[str] = ()
) -> LoadedWeights:
    """Find, verify and read the base weights and the weights of GPUs.

    Args:
        gpu_names: Catalogue names. A GPU without a file uses the base weights.
        weights: A weights file, a folder, an address, or a WeightsSource; None uses the configuration.
        optional_gpus: Further GPUs, whose weights are loaded only if this needs no download.
    """
    source, notes, cache = weights_source(weights), list[str](), _Cache(cache_folder())
    places: list[Find] = [] if source.path is None else [_explicit(Path(source.path).expanduser())]
    try:
        address = source.address
        if address is not None:
            places.append(_download(address, [CROSS_GPU, *gpu_names], cache, notes).get)
    except (WeightsError, InvalidArgumentError) as error:  # the address of the environment may be wrong
        notes.append(f"{error} Until then, weights of the cache or the bundled ones serve.")
    places += [cache.find, partial(_in_folder, BUNDLED)]

    def first(gpu: str) -> GpuWeights | None:
        return next((found for find in places if (found := find(gpu)) is not None), None)

    base = first(CROSS_GPU)
    if base is None:
        raise WeightsNotFoundError(
            f"No base weights ({file_name(CROSS_GPU)}) at any place, {BUNDLED} included. Reinstall the package, or "
            "give the folder that has them."
        )
    names = [name for name in dict.fromkeys([*gpu_names, *optional_gpus]) if name != CROSS_GPU]
    own = {name: found for name in names if (found := first(name)) is not None}
    if cache.damaged:
        notes.append(
            f"Of the cache of weights, {len(cache.damaged)} file(s) could not be used ({cache.damaged[0]}); others "
            "took their place. Delete that folder, or load again from its address."
        )
    return LoadedWeights(base, own, tuple(notes))


def _explicit(path: Path) -> Find:
    """Return how to find weights in a folder or a file that the user gave. The file's name does not matter."""
    if path.is_dir():
        return partial(_in_folder, path)
    if path.is_file():
        weights = read_weights(path)
        return {weights.gpu: weights}.get
    raise WeightsNotFoundError(
        f"Weights path {str(path)!r} does not exist; expected a .safetensors file or a folder of them."
    )


def _in_folder(folder: Path, gpu: str) -> GpuWeights | None:
    """Read and verify a file. If the folder has a manifest, the manifest must list each file with its checksum."""
    path = folder / file_name(gpu)
    if not path.is_file():
        return None
    manifest = read_manifest(folder)
    entry = None if manifest is None else manifest.files.get(path.name)
    if manifest is not None and entry is None:
        raise WeightsFormatError(
            f"Weights file {path} is not named in {folder / MANIFEST_NAME}, so it cannot be checked. Delete it, or "
            "write the manifest again."
        )
    return _of_gpu(gpu, read_weights(path, expected_sha256=None if entry is None else entry.sha256), str(path))


def _of_gpu(gpu: str, weights: GpuWeights, where: str) -> GpuWeights:
    if weights.gpu != gpu:
        raise WeightsFormatError(
            f"{where} holds the weights of {shown(weights.gpu)}. Rename it to {shown(file_name(weights.gpu))}, or "
            "fetch it again."
        )
    return weights


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


@dataclass(frozen=True)
class _Cache:
    """Earlier downloads with their manifest. Files are named by checksum. Damaged files count as missing."""

    folder: Path
    damaged: list[str] = field(default_factory=list)

    def find(self, gpu: str) -> GpuWeights | None:
        """Return the weights of a GPU."""
        manifest = self._unless_damaged(lambda: read_manifest(self.folder))
        entry = None if manifest is None else manifest.files.get(file_name(gpu))
        return None if entry is None else self.weights(entry)

    def weights(self, entry: ManifestEntry) -> GpuWeights | None:
        """Return the weights of a manifest entry; None if the file is missing or damaged."""
        path = self.path(entry)
        return self._unless_damaged(
            lambda: read_weights(path, expected_sha256=entry.sha256) if path.is_file() else None
        )

    def path(self, entry: ManifestEntry) -> Path:
        """Return the path of an entry's file."""
        return self.folder / file_name(entry.sha256)

    def _unless_damaged(self, read: Callable[[], Value]) -> Value | None:
        try:
            return read()
        except (WeightsError, OSError, UnicodeDecodeError) as error:
            self.damaged.append(f"{type(error).__name__} in {self.folder}")
            return None


def _download(address: Address, gpus: Sequence[str], cache: _Cache, notes: list[str]) -> Mapping[str, GpuWeights]:
    """Download the files that are neither bundled nor cached. If all are valid, add them to the cache."""
    from lightning_predict.weights.fetch import Download  # slow import, needed only here

    download = Download(address)
    manifest, bundled = download.manifest(), read_manifest(BUNDLED)
    contents: dict[Path, bytes] = {}
    weights: dict[str, GpuWeights] = {}
    for gpu in dict.fromkeys(gpus):
        name = file_name(gpu)
        entry = manifest.files.get(name)
        shipped = None if bundled is None else bundled.files.get(name)
        if entry is None or (shipped is not None and shipped.sha256 == entry.sha256):
            continue
        known, where = cache.weights(entry), f"{address.shown}/{name}"
        if known is None:
            contents[cache.path(entry)] = download.file(name, entry)
            known = parse_weights(contents[cache.path(entry)], where)
        weights[gpu] = _of_gpu(gpu, known, where)
    cache.damaged.clear()  # damaged files were downloaded again
    try:
        cache.folder.mkdir(parents=True, exist_ok=True)
        for path, content in contents.items():
            write_atomically(path, content)
        write_atomically(cache.folder / MANIFEST_NAME, manifest.to_json().encode())
    except OSError as error:
        notes.append(f"Weights of {address.shown} cannot be kept in the cache {cache.folder}: {error}")
    return weights
