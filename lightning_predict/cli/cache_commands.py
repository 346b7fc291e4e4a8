"""Command `cache`: shows or deletes downloaded weights and steps recorded by name.

Example::

    lightning-predict cache clear
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from lightning_predict.base.answers import CommandAnswer, aligned
from lightning_predict.base.units import bytes_to_mebibytes

_OURS: Final = ("*.safetensors*", "manifest.json*", "steps/*.json.gz")
"""File name patterns of downloaded weights, including unfinished downloads, and of steps recorded by name."""


def cache(action: Literal["show", "clear"] = "show", /, *, folder: Path | None = None) -> CommandAnswer:
    """Show downloaded weights and steps recorded by name, or delete them; what ships with the package stays.

    The action comes directly after the command: `cache clear`.

    Args:
        action: What to do.
        folder: Folder of downloads (default: LIGHTNING_PREDICT_CACHE, otherwise the system's cache folder).
    """
    from lightning_predict.base.files import cache_folder

    place = cache_folder(folder)
    files = sorted({path for pattern in _OURS for path in place.glob(pattern) if path.is_file()})
    sizes = {path.name: path.stat().st_size for path in files}
    if action == "clear":
        for path in files:
            path.unlink()
    data = {"folder": str(place), "action": action, "bytes": sum(sizes.values()), "files": sizes}
    return CommandAnswer(data=lambda: data, show=lambda: print(_cache_text(place, action, sizes)))


def _cache_text(place: Path, action: str, sizes: dict[str, int]) -> str:
    total = f"{bytes_to_mebibytes(sum(sizes.values())):.1f} MiB"
    if not sizes:
        return f"{place} holds no downloaded weights and no steps."
    if action == "clear":
        return f"Removed {len(sizes)} files ({total}) from {place}."
    rows = [[name, f"{bytes_to_mebibytes(size):.2f}"] for name, size in sizes.items()]
    return "\n".join([aligned(["file", "MiB"], rows, right={1}), "", f"{len(sizes)} files ({total}) in {place}."])
