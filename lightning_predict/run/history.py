"""History of the user's finished runs, which corrects later predictions of the same model.

Each finished run appends a JSON line to the history file: a fingerprint of its step, the GPU, the measured step time,
and the predicted and actual time of the run. Example::

    append_record(record)                                     # after a run on a T4
    records = read_history()
    correction_for(records, fingerprint_of(trace), step)   # None without an earlier run of this step
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import statistics
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lightning_predict.base.checked import Checked, File, parse_json
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.files import history_path, reject_irregular
from lightning_predict.record.trace import Trace

if TYPE_CHECKING:
    from lightning_predict.timeline.step_prediction import StepPrediction


RUNS_THAT_COUNT: Final = 10  # A correction is the median over at most this number of latest runs of a model on a GPU
MAX_HISTORY_BYTES: Final = 16 << 20  # Maximum number of bytes to read, about 20,000 runs. More would delay a hook.


SHORTEST_STEP_SECONDS: Final = 1e-6  # Shortest step of a line that is not damaged: a single launch takes longer

MAX_RATIO: Final = 100.0
"""Maximum ratio of a run's time to its prediction, either way. Beyond it the machine was suspended, or the unit is
another one, which says nothing about the next run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRecord:
    """One finished run: a line of the history file."""

    fingerprint: str  # Fingerprint of the step's operations, from `fingerprint_of`
    gpu: str
    samples: int | None  # Number of samples of a step; None if unknown
    step_seconds: float  # Measured step time, without waits for the loader
    predicted_seconds: float
    actual_seconds: float
    date: str
    model: str | None = None  # Fingerprint of the model without the batch size (`model_fingerprint_of`); None: unknown
    num_gpus: int = 1

    @property
    def layout(self) -> str:
        """Name of the layout, as in predictions: `T4`, `8xT4`."""
        return self.gpu if self.num_gpus == 1 else f"{self.num_gpus}x{self.gpu}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Correction factors for a prediction, derived from earlier runs."""

    step: float  # Factor on the step time; 1 if the step was measured in this run
    run: float  # Factor on the run time, for effects outside a step (throttling, pauses); 1 without such effects
    runs: int  # Number of earlier runs that the factors are derived from
    run_spread: float = 1.0  # Factor between `run` and either end of its 90 % interval

    def note(self, gpu: str) -> str:
        """Return a sentence that describes the correction to the user."""
        runs = "1 earlier run" if self.runs == 1 else f"{self.runs} earlier runs"
        is_step = self.run == 1.0
        what, factor = ("step is", self.step) if is_step else ("total of every GPU is", self.run)
        return f"The {what} corrected by a factor of {factor:.2f}, from {runs} of this model on {gpu}."


def fingerprint_of(trace: Trace) -> str:
    """Return a hash of the shapes and dtypes of a step's operations and of the size of the optimizer state.

    Optimizer operations are excluded, because a GPU runs other operations than other devices.
    """
    digest = hashlib.sha256()
    for operation in trace.operations:
        if operation.phase in ("forward", "backward"):
            tensors = [(list(tensor.shape), tensor.dtype) for tensor in operation.inputs]
            digest.update(json.dumps([operation.name, operation.phase, tensors]).encode())
    parameters = [(list(parameter.shape), parameter.dtype, parameter.requires_grad) for parameter in trace.parameters]
    rest = [parameters, trace.samples, trace.batches, trace.memory.optimizer_state_bytes, trace.flags.autocast_dtype]
    digest.update(json.dumps(rest).encode())
    for other in trace.other_steps:
        digest.update(f"{other.share:.2f} {fingerprint_of(other.trace)}".encode())
    return digest.hexdigest()[:32]


def model_fingerprint_of(trace: Trace) -> str | None:
    """Return a hash of the model's parameters and precision, independent of batch size; None without parameters."""
    if not trace.parameters:
        return None
    parameters = [(list(parameter.shape), parameter.dtype, parameter.requires_grad) for parameter in trace.parameters]
    rest = [parameters, trace.batches, trace.flags.autocast_dtype, trace.flags.matmul_tf32, trace.compiled]
    return hashlib.sha256(json.dumps(rest).encode()).hexdigest()[:32]


def append_record(record: HistoryRecord, path: str | Path | None = None) -> Path:
    """Append a run to the history file in a single write, so that runs ending at the same time do not mix lines.

    Returns:
        Path of the file.
    """
    target = history_path(path)
    reject_irregular(target)
    if target.is_dir():  # one file per machine, because appends over a network file system are not atomic
        target = target / f"{platform.node() or 'unnamed'}.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(asdict(record)).encode() + b"\n"
    descriptor = os.open(target, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        is_whole = size == 0 or _last_byte(descriptor, size) == b"\n"
        os.write(descriptor, line if is_whole else b"\n" + line)  # a truncated line must not corrupt the next one
    finally:
        os.close(descriptor)
    return target


def read_history(path: str | Path | None = None) -> tuple[HistoryRecord, ...]:
    """Read the runs in a history file, or in all files of a folder, oldest first; empty without a history.

    Damaged lines are skipped with a warning. At most `MAX_HISTORY_BYTES` are read.
    """
    files = history_files(path)
    limit = MAX_HISTORY_BYTES // max(1, len(files))
    records = [record for file in files for record in _records(file, limit)]
    return tuple(records if len(files) < 2 else sorted(records, key=lambda record: record.date))


def history_files(path: str | Path | None = None) -> tuple[Path, ...]:
    """Return the history files: one file, or all files of a shared folder; empty without a history."""
    source = history_path(path)
    reject_irregular(source)
    if source.is_dir():
        return tuple(sorted(source.glob("*.jsonl")))
    return (source,) if source.exists() else ()


def correction_for(records: Sequence[HistoryRecord], fingerprint: str, step: StepPrediction) -> Correction | None:
    """Return a correction from earlier runs of exactly this step on its layout; None without such runs."""
    alike = [record for record in records if (record.layout, record.fingerprint) == (step.gpu, fingerprint)]
    if not (latest := alike[-RUNS_THAT_COUNT:]):
        return None
    factor = statistics.median(record.step_seconds for record in latest) / step.seconds
    return Correction(step=factor, run=1.0, runs=len(latest))


def run_correction(records: Sequence[HistoryRecord], fingerprint: str, layout: str) -> Correction | None:
    """Return the ratio of actual to predicted run time in earlier runs of this step; None without such runs.

    Time outside the steps (pauses, other programs, slow disks) does not depend on the GPU, so the factor applies to all
    GPUs. The factor is the median of the runs' ratios and a ratio of 1, so a single unusual run counts half. The spread
    is the standard error of their mean.
    """
    alike = [record for record in records if record.layout == layout and record.fingerprint == fingerprint]
    logarithms = [math.log(record.actual_seconds / record.predicted_seconds) for record in alike]
    plausible = [ratio for ratio in logarithms if abs(ratio) <= math.log(MAX_RATIO)][-RUNS_THAT_COUNT:]
    if not plausible:
        return None
    ratios = [0.0, *plausible]
    from lightning_predict.uncertainty import spread_of_mean

    run = math.exp(statistics.median(ratios))
    return Correction(step=1.0, run=run, runs=len(plausible), run_spread=spread_of_mean(ratios))


_SECONDS: Final = ("step_seconds", "predicted_seconds", "actual_seconds")
_REQUIRED: Final = frozenset(
    row.name for row in fields(HistoryRecord) if row.default is MISSING and row.default_factory is MISSING
)
_OPTIONAL: Final = frozenset(row.name for row in fields(HistoryRecord)) - _REQUIRED
_FORMER: Final = frozenset({"architecture", "settings", "foretold"})  # Fields of earlier versions, which are ignored


def _records(source: Path, limit: int) -> Iterator[HistoryRecord]:
    """Yield the records in the last `limit` bytes of a file."""
    with source.open("rb") as file:
        skipped = max(0, os.fstat(file.fileno()).st_size - limit)
        if skipped:
            file.seek(skipped - 1)
            file.readline(limit)  # skip the rest of a line that began earlier
        lines = file.read(limit).splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{source}, line {number}{' of the last ones' if skipped else ''}"
        try:
            yield _record_of(parse_json(line.decode(errors="replace").encode(), File(place, InvalidArgumentError)))
        except InvalidArgumentError as error:
            warnings.warn(f"{error} The line is skipped.", stacklevel=2)


def _record_of(record: Checked) -> HistoryRecord:
    """Return a run from its JSON object; raises the file's error for another one."""
    record.check_keys(_REQUIRED, _OPTIONAL | _FORMER)
    seconds = {key: record.member(key).positive("in seconds") for key in _SECONDS}
    if seconds["step_seconds"] < SHORTEST_STEP_SECONDS:
        raise record.member("step_seconds").unexpected(f"at least {SHORTEST_STEP_SECONDS:g}")
    return HistoryRecord(
        fingerprint=record.member("fingerprint").text(),
        gpu=record.member("gpu").text(),
        samples=None if record.member("samples").value is None else record.member("samples").integer(),
        date=record.member("date").text(),
        model=record.member("model").text() if record.has("model") else None,
        num_gpus=record.optional("num_gpus", lambda value: value.integer(minimum=1), 1),
        **seconds,
    )


def _last_byte(descriptor: int, size: int) -> bytes:
    os.lseek(descriptor, size - 1, os.SEEK_SET)
    return os.read(descriptor, 1)
