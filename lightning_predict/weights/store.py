"""Finds and loads weights: from a given file or folder, or else from the package's own files.

The bundled files cover every GPU with public measurements. A GPU without its own file uses the base weights. If a
folder has a manifest, it must list each file with its checksum. Example::

    >>> weights = load_weights(["T4", "a-GPU-without-measurements"])
    >>> weights.cross_gpu_model.gpu, list(weights.gpus)
    ('base', ['T4'])
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lightning_predict.base.checked import shown
from lightning_predict.base.errors import WeightsFormatError, WeightsNotFoundError
from lightning_predict.weights.files import MANIFEST_NAME, Manifest, file_name, parse_manifest, read_weights
from lightning_predict.weights.records import CROSS_GPU, GpuWeights, LoadedWeights
from lightning_predict.weights.source import AnyWeights, check_weights

BUNDLED: Final = Path(__file__).parent / "files"


def load_weights(gpu_names: Sequence[str], weights: AnyWeights = None) -> LoadedWeights:
    """Find, verify and read the base weights and the weights of GPUs.

    Args:
        gpu_names: Catalogue names. A GPU without a file uses the base weights.
        weights: A weights file or a folder of them, which takes precedence over the bundled files; None for these.
    """
    check_weights(weights)
    given = None if weights is None else Path(weights).expanduser()
    if given is not None and not given.exists():
        raise WeightsNotFoundError(
            f"Weights path {str(given)!r} does not exist; expected a .safetensors file or a folder of them."
        )
    single = read_weights(given) if given is not None and given.is_file() else None
    folders = [folder for folder in (given, BUNDLED) if folder is not None and folder.is_dir()]

    def find(gpu: str) -> GpuWeights | None:
        if single is not None and single.gpu == gpu:  # whatever the name of the file
            return single
        return next((found for folder in folders if (found := _in_folder(folder, gpu)) is not None), None)

    base = find(CROSS_GPU)
    if base is None:
        raise WeightsNotFoundError(
            f"No base weights ({file_name(CROSS_GPU)}) in {' or '.join(map(str, folders))}. Reinstall the package, or "
            "give the folder that has them."
        )
    own = {name: find(name) for name in dict.fromkeys(gpu_names) if name != CROSS_GPU}
    return LoadedWeights(base, {name: found for name, found in own.items() if found is not None})


def _in_folder(folder: Path, gpu: str) -> GpuWeights | None:
    """Read and verify the weights of a GPU; return None if the folder has no such file."""
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
    weights = read_weights(path, expected_sha256=None if entry is None else entry.sha256)
    if weights.gpu != gpu:
        raise WeightsFormatError(
            f"{path} holds the weights of {shown(weights.gpu)}. Rename it to {shown(file_name(weights.gpu))}."
        )
    return weights


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None if the folder has no manifest."""
    path = folder / MANIFEST_NAME
    return parse_manifest(path.read_text(encoding="utf-8"), where=str(path)) if path.is_file() else None
