"""Past runs from files that trainers write: `trainer_state.json`, TensorBoard event files, W&B's summary.

Each file is one row of texts. Fields that the file lacks (often the GPU) are given by `values`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lightning_predict.base.checked import Checked, File, read_json, read_yaml
from lightning_predict.base.errors import MeasurementTableError, MissingDependencyError

TRAINER_STATE: Final = "trainer_state.json"

EVENTS: Final = "events.out.tfevents"
"""Name prefix of TensorBoard event files."""

WANDB_SUMMARY: Final = "wandb-summary.json"


def is_trainer_file(path: Path) -> bool:
    """Return whether a path is a file that a trainer wrote, or a folder with such a file."""
    return bool(_files(path))


def trainer_rows(path: Path) -> Iterator[Checked]:
    """Yield a row of texts for each file."""
    for file in _files(path):
        if file.name == TRAINER_STATE:
            row = _of_state(file)
        elif file.name == WANDB_SUMMARY:
            row = _of_wandb(file)
        else:
            row = _of_events(file)
        yield Checked(row, File(str(file), MeasurementTableError))


def _files(path: Path) -> list[Path]:
    """Return the files of runs at a path: a file, the files of a folder, or of its subfolders, without checkpoints."""
    if path.is_file():
        return [path] if path.name in (TRAINER_STATE, WANDB_SUMMARY) or path.name.startswith(EVENTS) else []
    patterns = (TRAINER_STATE, WANDB_SUMMARY, f"files/{WANDB_SUMMARY}", f"{EVENTS}*")
    for depth in ("", "*/"):
        found = [one for pattern in patterns for one in path.glob(depth + pattern) if _is_of_a_run(one)]
        if found:
            return sorted(found)
    return []


def _is_of_a_run(file: Path) -> bool:
    return file.is_file() and not file.parent.name.startswith("checkpoint-")


def _of_state(file: Path) -> dict[str, str]:
    """Read the time and the steps of a run from the last entry of Hugging Face's state."""
    state = read_json(file, MeasurementTableError)
    entries = state.member("log_history").items()
    ended = [entry for entry in entries if entry.has("train_runtime")]
    if not ended:
        raise MeasurementTableError(
            f"{file} has no train_runtime: the run did not end. Give the file that trainer.save_state() writes."
        )
    last = ended[-1]
    row = {
        "seconds": str(last.member("train_runtime").positive("in seconds")),
        "iterations": str(state.member("global_step").integer(minimum=1)),
    }
    if state.has("train_batch_size"):
        row["batch_size"] = str(state.member("train_batch_size").integer(minimum=1))
    return row


def _of_wandb(file: Path) -> dict[str, str]:
    """Read W&B's summary of a run, and the configuration in the same folder."""
    summary = read_json(file, MeasurementTableError).mapping()
    row = {str(key): str(value) for key, value in summary.items() if _is_plain(value)}
    machine = file.with_name("wandb-metadata.json")
    if machine.is_file():
        known = read_json(machine, MeasurementTableError).mapping()
        row |= {name: str(known[key]) for key, name in _MACHINE.items() if _is_plain(known.get(key))}
    config = file.with_name("config.yaml")
    if config.is_file():
        for key, one in read_yaml(config, MeasurementTableError).mapping().items():
            value = one.get("value") if isinstance(one, dict) else one
            if _is_plain(value):
                row[f"config.{key}"] = str(value)
    return row


_MACHINE: Final = {"gpu": "gpu_name", "gpu_count": "gpus"}
"""Fields by the key in W&B's metadata."""


def _is_plain(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | int) and not isinstance(value, bool)


def _of_events(file: Path) -> dict[str, str]:
    """Read the number of steps, and the time between the first and the last training step, from an event file."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise MissingDependencyError(f"{file.name} needs TensorBoard: pip install tensorboard") from error
    events = EventAccumulator(str(file), size_guidance={"scalars": 0})
    events.Reload()
    times: dict[int, float] = {}
    for tag in events.Tags()["scalars"]:
        for one in events.Scalars(tag):
            times[one.step] = max(times.get(one.step, -math.inf), one.wall_time)
    first, last = min(times, default=0), max(times, default=0)
    if first == last:
        raise MeasurementTableError(f"{file} has the scalars of fewer than two steps; expected a training's.")
    return {"seconds": str(times[last] - times[first]), "iterations": str(last - first)}
