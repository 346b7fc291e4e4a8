"""`PastRun`: a finished run as input of the regression, with readers of CSV files and of what trainers log.

Variables follow Gianniti, Zhang and Ardagna (CLOSER 2019): iterations, batch size, computing power, number of GPUs,
threads and disk delay. "Inner modules" is the number of repeated modules, which differs between the networks of a
family. We add memory bandwidth, because without it a GPU like the L4 looks three times as fast as it is.

A table is a CSV file, written by hand or exported by MLflow or Weights & Biases. Columns are found by the names in
`FIELDS`, with or without a tracker's prefix (`params.batch_size`, `metrics.seconds`, `Runtime`), or by names that the
user gives. A file of Hugging Face's Trainer or W&B is one row; `values` gives the fields that it lacks,
often the GPU. Example::

    >>> setting = RunSetting(iterations=1000, batch_size=64, gpu="T4")
    >>> round(setting.value("flops_per_second") / 1e12, 2)  # sustained in float32, of a peak of 8.1
    4.35
    >>> PastRun(model="ResNet-50", setting=setting, seconds=210.0).seconds_per_iteration
    0.21

    read_runs("runs.csv", columns={"batch_size": "config.loader.bs"}, values={"gpu": "T4"}).runs[0].setting.batch_size
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, get_args

from lightning_predict.base.checked import Checked, File, read_csv, read_json, read_yaml
from lightning_predict.base.errors import (
    InvalidArgumentError,
    MeasurementTableError,
    UnknownGpuError,
)
from lightning_predict.base.units import gigaflops_to_flops
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.kernels.roofline import sustained_flops
from lightning_predict.run.history import HistoryRecord, read_history

Variable = Literal[
    "iterations",
    "batch_size",
    "flops_per_second",
    "bytes_per_second",
    "num_gpus",
    "threads",
    "disk_seconds",
    "inner_modules",
    "sequence_length",
    "flops_per_byte",
]

VARIABLES: Final[tuple[Variable, ...]] = tuple(name for name in get_args(Variable) if name != "flops_per_byte")
"""Variables of the regression, in display order. `flops_per_byte` is not a regression variable: it only detects GPUs
whose ratio exceeds the ratio of all past runs (extrapolation)."""

WORDS: Final[dict[Variable, str]] = {  # Display names of the variables
    "iterations": "iterations",
    "batch_size": "batch size",
    "flops_per_second": "FLOP/s",
    "bytes_per_second": "memory bandwidth",
    "num_gpus": "number of GPUs",
    "threads": "threads",
    "disk_seconds": "disk delay",
    "inner_modules": "inner modules",
    "sequence_length": "sequence length",
    "flops_per_byte": "FLOP/s for each byte/s of memory",
}

POWER_DTYPE: Final = "float32"
"""A GPU's computing power is its sustained rate for large matmuls in this dtype. On the L4, the sustained rate is
less than half of the peak (`kernels/roofline.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetting:
    """Settings of a run.

    Raises:
        InvalidArgumentError: A value is out of range, `gpu` and `flops_per_second` are both missing, or `num_gpus`
            contradicts the count in `gpu`.
        UnknownGpuError: The catalogue does not have the GPU, and no computing power is given.
    """

    iterations: int  # Number of training iterations
    batch_size: int  # Number of samples per iteration on one GPU
    # Name of the GPU, optionally with a count (`8xL4`); stored as catalogue name without the count. None if only the
    # computing power is known.
    gpu: str | None = None
    flops_per_second: float | None = None  # Computing power of one GPU; None uses the sustained float32 rate of `gpu`
    bytes_per_second: float | None = None  # Memory bandwidth of one GPU; None uses the catalogue's bandwidth of `gpu`
    num_gpus: int = 1  # Total number of GPUs. A count in `gpu` sets this number.
    threads: int | None = None  # Number of CPU threads of the loaders; None if unknown
    disk_seconds: float | None = None  # Delay of the disk; None if unknown
    inner_modules: int | None = None  # Number of repeated modules, for networks of a family; None for a single one
    sequence_length: int | None = None  # Tokens (or other positions) of a sample; None for samples of one size

    def __post_init__(self) -> None:
        for name in ("iterations", "batch_size", "num_gpus", "threads", "inner_modules", "sequence_length"):
            count = getattr(self, name)
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
                raise InvalidArgumentError(f"{name}={count!r}; expected a whole number of at least 1.")
        _check("flops_per_second", self.flops_per_second, above=True)
        _check("bytes_per_second", self.bytes_per_second, above=True)
        _check("disk_seconds", self.disk_seconds, above=False)
        if self.flops_per_second is None:
            if self.gpu is None:
                raise InvalidArgumentError("A run needs its GPU's name or its computing power (flops_per_second).")
            layout = layout_of(self.gpu)
            if layout.count > 1 and self.num_gpus not in (1, layout.count):
                raise InvalidArgumentError(
                    f"gpu={self.gpu!r} is {layout.count} GPUs and num_gpus={self.num_gpus}; leave one of them out."
                )
            object.__setattr__(self, "gpu", layout.gpu.name)
            object.__setattr__(self, "num_gpus", max(self.num_gpus, layout.count))
            object.__setattr__(self, "flops_per_second", sustained_flops(layout.gpu, POWER_DTYPE))
            object.__setattr__(self, "bytes_per_second", self.bytes_per_second or layout.gpu.dram_bytes_per_second)

    @property
    def flops_per_byte(self) -> float | None:
        """Computing power divided by memory bandwidth; None if either is unknown."""
        if self.flops_per_second is None or self.bytes_per_second is None:
            return None
        return self.flops_per_second / self.bytes_per_second

    def value(self, variable: Variable) -> float | None:
        """Return a variable as a number; None if unknown."""
        value = getattr(self, variable)
        return None if value is None else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """A finished run. `model` names a model, or a family of models that differ in `inner_modules`.

    Raises:
        InvalidArgumentError: The time is not above 0.
    """

    model: str
    setting: RunSetting
    seconds: float

    def __post_init__(self) -> None:
        _check("seconds", self.seconds, above=True)

    @property
    def seconds_per_iteration(self) -> float:
        """Mean time of an iteration."""
        return self.seconds / self.setting.iterations


def _check(name: str, value: float | None, *, above: bool) -> None:
    if value is None:
        return
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value < 0 or (above and value == 0):
        expected = "a number above 0" if above else "a number of at least 0"
        raise InvalidArgumentError(f"{name}={value!r}; expected {expected}.")


FIELDS: Final[Mapping[str, tuple[str, ...]]] = {  # Fields of a run, with the column names that trackers use for them
    "seconds": ("Runtime", "_runtime", "duration_seconds"),
    "iterations": ("global_step", "trainer/global_step", "train/global_step", "max_steps"),
    "batch_size": ("per_device_train_batch_size",),
    "model": ("model_name",),
    "gpu": ("gpu_name",),
    "gflops": (),
    "num_gpus": ("gpus", "devices"),
    "threads": ("num_workers",),
    "disk_delay_seconds": (),
    "inner_modules": (),
    "sequence_length": (),
}

REQUIRED: Final = ("seconds", "iterations", "batch_size")

PREFIXES: Final = ("", "params.", "metrics.", "tags.", "config.", "config/", "summary.", "summary/")

STATES: Final[Mapping[str, str]] = {"status": "FINISHED", "State": "finished"}
"""Columns in which MLflow and W&B store the final state of a run, and the value that means finished."""


@dataclass(frozen=True, slots=True)
class RunTable:
    """Past runs in the order of a table, with notes on excluded runs."""

    runs: tuple[PastRun, ...]
    notes: tuple[str, ...] = ()


def read_table(
    path: Path, *, columns: Mapping[str, str] | None = None, values: Mapping[str, str] | None = None
) -> RunTable:
    """Read past runs from a CSV file (gzip if the name ends in `.gz`).

    Args:
        path: The file.
        columns: Column of each field whose column name is not a default name.
        values: Values of fields without a column, equal for all runs.
    """
    return runs_of_rows(read_csv(path, MeasurementTableError), str(path), columns=columns, values=values)


def runs_of_rows(
    rows: Iterable[Checked],
    source: str,
    *,
    columns: Mapping[str, str] | None = None,
    values: Mapping[str, str] | None = None,
) -> RunTable:
    """Convert rows of texts to past runs; arguments and errors as in `read_table`."""
    kept, notes = _ended(tuple(rows))
    if not kept:
        raise MeasurementTableError(f"{source} holds no run that has ended.")
    present = list(dict.fromkeys(column for row in kept for column in row.value))
    mapping = _columns(source, present, columns or {}, values or {})
    default_model = Path(source).name.removesuffix(".gz").removesuffix(".csv")
    runs = tuple(_run(row, mapping, values or {}, default_model) for row in kept)
    return RunTable(runs, notes)


def _ended(rows: tuple[Checked, ...]) -> tuple[tuple[Checked, ...], tuple[str, ...]]:
    """Return the finished runs, and a note about other runs."""
    kept = tuple(
        row
        for row in rows
        if all(row.value[column] == word for column, word in STATES.items() if row.value.get(column))
    )
    gone = len(rows) - len(kept)
    return kept, ((f"{gone} of {len(rows)} runs did not run to their end, and are left out.",) if gone else ())


def _columns(source: str, present: list[str], columns: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each field that has a column."""
    strangers = [name for name in (*columns, *values) if name not in FIELDS]
    if strangers:
        raise InvalidArgumentError(f"{strangers[0]!r} is not a field of a run. There are: {', '.join(FIELDS)}.")
    missing = [f"{column!r} (for {field})" for field, column in columns.items() if column not in present]
    usual = {
        field: next((p + name for name in (field, *others) for p in PREFIXES if p + name in present), None)
        for field, others in FIELDS.items()
    }
    mapping = {field: columns.get(field) or usual[field] for field in FIELDS if field not in values}
    timed = "start_time" in present and "end_time" in present
    missing += [
        f"{field!r}"
        for field in REQUIRED
        if field not in values and not mapping[field] and (field != "seconds" or not timed)
    ]
    if not (mapping.get("gpu") or mapping.get("gflops") or "gpu" in values or "gflops" in values):
        missing.append("'gpu' or 'gflops'")
    if missing:
        raise MeasurementTableError(
            f"{source} has no column {', '.join(missing)}. Name it (columns), or give one value for all runs (values). "
            f"Columns found: {', '.join(present) or 'none'}."
        )
    return {field: column for field, column in mapping.items() if column}


def _cell(row: Checked, field: str, columns: Mapping[str, str], values: Mapping[str, str]) -> Checked:
    """Return a field of a run: the value that is given for all runs, or the cell of the row."""
    if field in values:
        cell = Checked(values[field], row.file, f"the value of {field}", row.line)
    elif field in columns:
        column = columns[field]
        cell = row.member(column) if column in row.value else replace(row, value="", place=column)
    else:
        cell = replace(row, value="", place=field)
    return replace(cell, value=cell.value.strip())


def _run(row: Checked, columns: Mapping[str, str], values: Mapping[str, str], model: str) -> PastRun:
    def text(field: str) -> str | None:
        return _cell(row, field, columns, values).value or None

    def number(field: str) -> float:
        return _cell(row, field, columns, values).parsed().any_number()

    def optional(field: str) -> float | None:
        return None if text(field) is None else number(field)

    def count(field: str) -> int | None:
        # RunSetting rejects fractions with an error message.
        return optional(field)  # type: ignore[return-value]

    is_timed = "seconds" in columns or "seconds" in values
    gflops, num_gpus = optional("gflops"), count("num_gpus")
    try:
        setting = RunSetting(
            iterations=number("iterations"),  # type: ignore[arg-type]
            batch_size=number("batch_size"),  # type: ignore[arg-type]
            gpu=text("gpu"),
            flops_per_second=None if gflops is None else gigaflops_to_flops(gflops),
            num_gpus=1 if num_gpus is None else num_gpus,
            threads=count("threads"),
            disk_seconds=optional("disk_delay_seconds"),
            inner_modules=count("inner_modules"),
            sequence_length=count("sequence_length"),
        )
        return PastRun(
            model=text("model") or model, setting=setting, seconds=number("seconds") if is_timed else _elapsed(row)
        )
    except (InvalidArgumentError, UnknownGpuError) as error:
        raise row.error(f"is not a past run: {error}") from error


def _elapsed(row: Checked) -> float:
    """Return the seconds from `start_time` to `end_time`, which MLflow exports as dates."""
    moments = []
    for column in ("start_time", "end_time"):
        cell = replace(row, value=row.value.get(column, "").strip(), place=column)
        try:
            moments.append(datetime.fromisoformat(cell.value).timestamp())
        except (ValueError, OverflowError):
            raise cell.unexpected("a date and time") from None
    return moments[1] - moments[0]


def read_runs(
    path: Path, *, columns: Mapping[str, str] | None = None, values: Mapping[str, str] | None = None
) -> RunTable:
    """Read past runs from any supported source.

    Args:
        path: A CSV file, a history file (`.jsonl`), `trainer_state.json`, W&B's `wandb-summary.json`, or a folder that
            contains such a file.
        columns: Column of each field whose column name is not a default name.
        values: Values of fields without a column, equal for all runs.
    """
    if files := _trainer_files(path):
        return runs_of_rows(map(_trainer_row, files), str(path), columns=columns, values=values)
    if path.is_dir():
        raise MeasurementTableError(f"{path} holds no {TRAINER_STATE} or {WANDB_SUMMARY}, nor do its folders.")
    if path.suffix == ".jsonl":
        if columns or values:
            raise InvalidArgumentError(f"{path} is a history, whose columns are known; leave columns and values out.")
        return runs_of_history(read_history(path), str(path))
    return read_table(path, columns=columns, values=values)


def runs_of_history(records: tuple[HistoryRecord, ...], source: str) -> RunTable:
    """Convert the history to past runs of one iteration each; the model's name is its fingerprint.

    Records without a number of samples or a model fingerprint are excluded, with a note.
    """
    known = [record for record in records if record.samples is not None and record.model is not None]
    if not known:
        raise MeasurementTableError(f"{source} holds no run with its model and batch size.")
    gone = len(records) - len(known)
    return RunTable(
        tuple(
            PastRun(
                model=str(one.model),
                setting=RunSetting(iterations=1, batch_size=one.samples or 1, gpu=one.gpu, num_gpus=one.num_gpus),
                seconds=one.step_seconds,
            )
            for one in known
        ),
        (f"{gone} of {len(records)} runs do not say their model or batch size, and are left out.",) if gone else (),
    )


# --- Files that trainers write

TRAINER_STATE: Final = "trainer_state.json"

WANDB_SUMMARY: Final = "wandb-summary.json"


def _trainer_row(file: Path) -> Checked:
    """Return the run of a file as a row of texts."""
    row = _of_state(file) if file.name == TRAINER_STATE else _of_wandb(file)
    return Checked(row, File(str(file), MeasurementTableError))


def _trainer_files(path: Path) -> list[Path]:
    """Return the files of runs at a path: a file, the files of a folder, or of its subfolders, without checkpoints."""
    if path.is_file():
        return [path] if path.name in (TRAINER_STATE, WANDB_SUMMARY) else []
    patterns = (TRAINER_STATE, WANDB_SUMMARY, f"files/{WANDB_SUMMARY}")
    for depth in ("", "*/"):
        files = [file for pattern in patterns for file in path.glob(depth + pattern) if _is_of_a_run(file)]
        if files:
            return sorted(files)
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
        for key, entry in read_yaml(config, MeasurementTableError).mapping().items():
            value = entry.get("value") if isinstance(entry, dict) else entry
            if _is_plain(value):
                row[f"config.{key}"] = str(value)
    return row


_MACHINE: Final = {"gpu": "gpu_name", "gpu_count": "gpus"}  # Fields by the key in W&B's metadata


def _is_plain(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | int) and not isinstance(value, bool)
