"""Progress file of a run, rewritten every minute, so that a plan can be recomputed while its jobs run.

The scripts of an exported plan set environment variables with the path of the progress file and with the job's place in
the plan. `RuntimePredictor` writes the file. `lightning-predict plan --state FOLDER` reads all progress files of a
folder.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from lightning_predict.base.checked import Checked, File, read_json
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.files import write_atomically

PROGRESS_PREFIX: Final = "lightning_predict_progress"  # Name prefix of progress files

PLACE_VARIABLE: Final = "LIGHTNING_PREDICT_PLACE"
"""Environment variable with the job's place in a plan, as JSON: job, node, machine, num_gpus."""

RENEWED_SECONDS: Final = 60.0  # Seconds between two writes, and of training before the speed of the run is estimated


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSlot:
    """A job of a plan, and the machine that runs the job."""

    job: str
    node: int
    machine: str
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Contents of a progress file."""

    place: PlanSlot | None  # The job's place in the plan; None outside a plan
    done: float  # Completed share of the work, from 0 to 1
    has_ended: bool
    whole_seconds: float | None  # Time of the whole run at this process's speed; None until it is known
    # Part of `whole_seconds` outside training steps (waits for data, validation, checkpoints); None if no step was
    # timed
    beside_seconds: float | None
    began: float  # Start of training in this process, as Unix time
    written: float  # Time of this write, as Unix time


def place_in_use() -> PlanSlot | None:
    """Return the job's place in the plan from the environment; None if the variable is not set."""
    text = os.environ.get(PLACE_VARIABLE)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{PLACE_VARIABLE}={text} is not JSON: {error}") from None
    return _place(Checked(value, File(PLACE_VARIABLE, InvalidArgumentError)))


def read_progress(path: Path) -> Progress:
    """Read a progress file."""
    row = read_json(path, InvalidArgumentError)
    row.check_keys({"place", "done", "has_ended", "whole_seconds", "began", "written"}, {"beside_seconds"})
    done = row.member("done").number()
    if not 0 <= done <= 1:
        raise row.member("done").unexpected("a share from 0 to 1")
    place, whole = row.member("place"), row.member("whole_seconds")
    return Progress(
        place=None if place.value is None else _place(place),
        done=done,
        has_ended=row.member("has_ended").flag(),
        whole_seconds=None if whole.value is None else whole.positive(),
        beside_seconds=row.member("beside_seconds").number() if row.has("beside_seconds") else None,
        began=row.member("began").number(),
        written=row.member("written").number(),
    )


def write_progress(path: Path, progress: Progress) -> None:
    """Write a progress file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(asdict(progress)).encode() + b"\n")


@dataclass(slots=True, kw_only=True)
class ProgressKeeper:
    """Tracks the progress of a run and decides when to write the progress file."""

    batches: int | None  # Number of batches of the whole run; None if unknown, in which case no file is written
    place: PlanSlot | None
    clock: Callable[[], float] = time.monotonic  # Returns seconds of a monotonic clock
    wall_clock: Callable[[], float] = time.time  # Returns Unix time in seconds
    _began: float = 0.0
    _first: tuple[float, int] | None = None
    _written_at: float | None = None

    def __post_init__(self) -> None:
        self._began = self.wall_clock()

    def after(
        self, batches_done: int, *, has_ended: bool = False, batch_seconds: Callable[[], float | None] = lambda: None
    ) -> Progress | None:
        """Return the progress to write after a batch; None if the last write was less than `RENEWED_SECONDS` ago.

        Args:
            batches_done: Batches done in the whole run, including those before a resume.
            has_ended: Whether training has completed.
            batch_seconds: Function that returns the time of a batch without waits; None before a batch was timed.
        """
        if not self.batches:
            return None
        now = self.clock()
        first_at, first_batches = self._first = self._first or (now, batches_done)
        if not has_ended and self._written_at is not None and now - self._written_at < RENEWED_SECONDS:
            return None
        self._written_at = now
        done = 1.0 if has_ended else min(1.0, batches_done / self.batches)
        since, trained = now - first_at, batches_done - first_batches
        pace = since / trained if trained > 0 and since >= RENEWED_SECONDS else None
        within = None if pace is None else batch_seconds()
        return Progress(
            place=self.place,
            done=done,
            has_ended=has_ended,
            whole_seconds=None if pace is None else pace * self.batches,
            beside_seconds=None if pace is None or within is None else max(0.0, pace - within) * self.batches,
            began=self._began,
            written=self.wall_clock(),
        )


def _place(row: Checked) -> PlanSlot:
    row.check_keys({"job", "node", "machine", "num_gpus"})
    return PlanSlot(
        job=row.member("job").words(),
        node=row.member("node").integer(),
        machine=row.member("machine").words(),
        num_gpus=row.member("num_gpus").integer(minimum=1),
    )
