"""Commands `history` and `cache`: earlier runs with their predictions, and downloads.

Example::

    lightning-predict history                # the latest runs, and the corrections by model and GPU
    lightning-predict history --gpu T4 --json
    lightning-predict history forget --gpu T4
    lightning-predict cache clear            # deletes downloaded weights and steps recorded by name
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, Literal

from lightning_predict.base.answers import CommandAnswer, aligned
from lightning_predict.base.files import cache_folder, history_path, write_atomically
from lightning_predict.base.units import bytes_to_mebibytes
from lightning_predict.reports.format import duration
from lightning_predict.run.history import HistoryRecord, history_files, read_history

MODEL_DIGITS: Final = 8  # Number of shown digits of a model's fingerprint; enough to distinguish the models of a team


def history(
    action: Literal["show", "forget"] = "show",
    /,
    *,
    file: Path | None = None,
    gpu: str | None = None,
    model: str | None = None,
    count: int = 20,
) -> CommandAnswer:
    """Compare predicted and actual times of earlier runs, with the learned corrections; or delete runs.

    RuntimePredictor stores runs on GPUs of the catalogue, and no runs on CPUs. A team can share its history in a folder
    (LIGHTNING_PREDICT_HISTORY=/shared/history). Each machine writes its own file there, and every file is read. The
    action comes directly after the command.

    Args:
        action: show the runs, or forget those selected by --gpu and --model (all if neither is given).
        file: The file or folder (default: LIGHTNING_PREDICT_HISTORY, otherwise the user's own).
        gpu: Only runs on this GPU or layout, for example T4 or 8xL4.
        model: Only runs of this model, by the digits shown in the table.
        count: Number of latest runs to print; JSON has all.
    """

    def is_meant(record: HistoryRecord) -> bool:
        return gpu in (None, record.layout) and (model is None or (record.model or "").startswith(model))

    if action == "forget":
        forgotten = 0
        for path in history_files(file):
            records = read_history(path)
            kept = [record for record in records if not is_meant(record)]
            forgotten += len(records) - len(kept)
            write_atomically(path, "".join(json.dumps(asdict(record)) + "\n" for record in kept).encode())
        where = history_path(file)
        return CommandAnswer(
            data=lambda: {"forgotten": forgotten, "path": str(where)},
            show=lambda: print(f"{_runs(forgotten)} forgotten in {where}."),
        )
    selected = [record for record in read_history(file) if is_meant(record)]
    return CommandAnswer(
        data=lambda: {"runs": [asdict(record) for record in selected], "learnt": _learnt(selected)},
        show=lambda: print("\n".join(_lines(selected, count, history_path(file)))),
    )


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _learnt(records: Sequence[HistoryRecord]) -> list[dict[str, object]]:
    """Return the median ratio of actual to predicted time, by model and GPU."""
    groups: dict[tuple[str | None, str], list[float]] = {}
    for record in records:
        ratio = record.actual_seconds / record.predicted_seconds
        groups.setdefault((record.model, record.layout), []).append(ratio)
    return [
        {"model": model, "gpu": gpu, "runs": len(ratios), "real_over_predicted": statistics.median(ratios)}
        for (model, gpu), ratios in groups.items()
    ]


def _lines(records: Sequence[HistoryRecord], count: int, path: Path) -> list[str]:
    if not records:
        return [
            f"No runs in {path}: RuntimePredictor stores a run there when it ends, if it ran on a GPU of the catalogue."
        ]

    def off(ratio: float) -> str:
        return f"{100 * (ratio - 1):+.0f} %"

    rows = [
        [
            record.date,
            (record.model or "-")[:MODEL_DIGITS],
            record.layout,
            "-" if record.samples is None else str(record.samples),
            duration(record.step_seconds),
            duration(record.predicted_seconds),
            duration(record.actual_seconds),
            off(record.actual_seconds / record.predicted_seconds),
        ]
        for record in records[-count:]
    ]
    lines = [
        aligned(["date", "model", "GPU", "batch", "step", "predicted", "real", "off"], rows, right=range(3, 8)),
        "",
    ]
    if len(records) > count:
        lines.append(f"The latest {count} of {_runs(len(records))}; --count shows more.")
    for entry in _learnt(records):
        named = str(entry["model"] or "a model without parameters")[:MODEL_DIGITS]
        ratio = float(str(entry["real_over_predicted"]))
        lines.append(f"{named} on {entry['gpu']}: {off(ratio)} from predictions ({_runs(int(str(entry['runs'])))}).")
    return [*lines, f"From {path}."]


_DOWNLOADED: Final = ("*.safetensors*", "manifest.json*", "steps/*.json.gz")
"""File name patterns of downloaded weights, including unfinished downloads, and of steps recorded by name."""


def cache(action: Literal["show", "clear"] = "show", /, *, folder: Path | None = None) -> CommandAnswer:
    """Show downloaded weights and steps recorded by name, or delete them; what ships with the package stays.

    The action comes directly after the command: `cache clear`.

    Args:
        action: What to do.
        folder: Folder of downloads (default: LIGHTNING_PREDICT_CACHE, otherwise the system's cache folder).
    """
    place = cache_folder(folder)
    files = sorted({path for pattern in _DOWNLOADED for path in place.glob(pattern) if path.is_file()})
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
