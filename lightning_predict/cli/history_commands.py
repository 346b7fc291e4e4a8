"""Command `history`: predicted and actual times of earlier runs, and corrections learned from these runs.

Example::

    lightning-predict history                # the latest runs, and the corrections by model and GPU
    lightning-predict history --gpu T4 --json
    lightning-predict history forget --gpu T4
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, Literal

from lightning_predict.base.answers import CommandAnswer, aligned
from lightning_predict.base.files import history_path, write_atomically
from lightning_predict.reports.format import duration
from lightning_predict.run.history import HistoryRecord, history_files, read_history

MODEL_DIGITS: Final = 8
"""Number of shown digits of a model's fingerprint; enough to distinguish the models of a team."""


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
            _rewrite(path, kept)
        where = history_path(file)
        return CommandAnswer(
            data=lambda: {"forgotten": forgotten, "path": str(where)},
            show=lambda: print(f"{_runs(forgotten)} forgotten in {where}."),
        )
    found = [record for record in read_history(file) if is_meant(record)]
    return CommandAnswer(
        data=lambda: {"runs": [asdict(record) for record in found], "learnt": _learnt(found)},
        show=lambda: print("\n".join(_lines(found, count, history_path(file)))),
    )


def _rewrite(path: Path, records: Sequence[HistoryRecord]) -> None:
    write_atomically(path, "".join(json.dumps(asdict(record)) + "\n" for record in records).encode())


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
            one.date,
            (one.model or "-")[:MODEL_DIGITS],
            one.layout,
            "-" if one.samples is None else str(one.samples),
            duration(one.step_seconds),
            duration(one.predicted_seconds),
            duration(one.actual_seconds),
            off(one.actual_seconds / one.predicted_seconds),
        ]
        for one in records[-count:]
    ]
    lines = [
        aligned(["date", "model", "GPU", "batch", "step", "predicted", "real", "off"], rows, right=range(3, 8)),
        "",
    ]
    if len(records) > count:
        lines.append(f"The latest {count} of {_runs(len(records))}; --count shows more.")
    for one in _learnt(records):
        named = str(one["model"] or "a model without parameters")[:MODEL_DIGITS]
        ratio = float(str(one["real_over_predicted"]))
        lines.append(f"{named} on {one['gpu']}: {off(ratio)} from predictions ({_runs(int(str(one['runs'])))}).")
    return [*lines, f"From {path}."]
