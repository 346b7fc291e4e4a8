"""Budget ledger on disk: used time and money of a run, saved every minute so that a killed run loses little.

A checkpoint has the amounts up to its writing. This file, next to the Trainer's other files, also has later amounts.
The larger of the two counts. Two runs are the same if their checkpoints name the same run, or if the same cluster job
trained both. A cluster restarts a killed job under the same ID. Example::

    save_ledger(path, SavedLedger(run="a1b2", job=None, seconds=3600.0, usd=4.1, date="2026-11-23T12:00:00+00:00"))
    kept = read_ledger(path)     # after `kill -9`
    kept.is_of("a1b2", job=None)
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, final

from lightning_predict.checked import read_json
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.files import write_atomically

LEDGER_NAME: Final = "lightning_predict_budget.json"
"""File name, in the Trainer's `default_root_dir`."""

LEDGER_SECONDS: Final = 60.0
"""Seconds between two saves, which is also the maximum loss."""

_JOBS: Final = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PBS_JOBID", "LSB_JOBID", "JOB_COMPLETION_INDEX")
"""Environment variables with the ID of a cluster job. The ID stays the same after a restart."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SavedLedger:
    """Contents of the ledger file.

    Attributes:
        run: Name of the run, as in its checkpoints.
        job: Cluster job that trained the run; None outside a cluster.
        seconds: Used seconds, over all fits of the run.
        usd: Used dollars, over all fits of the run.
        date: Time at which the file was written (ISO 8601).
    """

    run: str
    job: str | None
    seconds: float
    usd: float
    date: str

    def is_of(self, run: str, *, job: str | None) -> bool:
        """Return whether the file belongs to this run."""
        return self.run == run or (job is not None and self.job == job)


def job_in_use() -> str | None:
    """Return the ID of this process's cluster job; None outside a cluster."""
    found = [f"{name}={os.environ[name]}" for name in _JOBS if os.environ.get(name)]
    return found[0] if found else None


def save_ledger(path: Path, kept: SavedLedger) -> None:
    """Write the file atomically.

    Raises:
        OSError: The file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(asdict(kept)).encode() + b"\n")


def read_ledger(path: Path) -> SavedLedger | None:
    """Read the file; None if it does not exist.

    Raises:
        InvalidArgumentError: The file is damaged.
        OSError: The file cannot be read.
    """
    if not path.exists():
        return None
    record = read_json(path, InvalidArgumentError)
    record.check_keys(("run", "job", "seconds", "usd", "date"))
    amounts = {name: record.member(name).number() for name in ("seconds", "usd")}
    for name, amount in amounts.items():
        if amount < 0:
            raise record.member(name).unexpected("a number of at least 0")
    job = record.member("job")
    return SavedLedger(
        run=record.member("run").text(),
        job=None if job.value is None else job.text(),
        date=record.member("date").text(),
        **amounts,
    )
