"""The ledger on disk: what a run has used so far, renewed each minute, so that what a killed run used is not lost.

A checkpoint says what was used until it was written. What came after it is in this file, beside the Trainer's other
files; whichever of the two saw more of the same run counts. Runs are the same where their checkpoints name the same
run, or where one job of a cluster, which starts a run again after it was killed, trained both. Example::

    keep(path, Kept(run="a1b2", job=None, seconds=3600.0, usd=4.1, date="2026-11-23T12:00:00+00:00"))
    kept = read_kept(path)     # after `kill -9`
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
from lightning_predict.files import write_whole

LEDGER_NAME: Final = "lightning_predict_budget.json"
"""Its name, in the Trainer's `default_root_dir`."""

LEDGER_SECONDS: Final = 60.0
"""Time from one writing to the next: what is lost at most."""

_JOBS: Final = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PBS_JOBID", "LSB_JOBID", "JOB_COMPLETION_INDEX")
"""Environment variables in which a cluster names the job, which stays the same where it starts the job again."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the file holds.

    Attributes:
        run: Name of the run, as its checkpoints have it.
        job: The job of a cluster that trained it; None outside of one.
        seconds: What it used, over all its fits.
        usd: The same in dollars.
        date: When it was written (ISO 8601).
    """

    run: str
    job: str | None
    seconds: float
    usd: float
    date: str

    def is_of(self, run: str, *, job: str | None) -> bool:
        """Return whether it is of this run."""
        return self.run == run or (job is not None and self.job == job)


def job_in_use() -> str | None:
    """Name the job of the cluster that this process runs in; None outside of one."""
    found = [f"{name}={os.environ[name]}" for name in _JOBS if os.environ.get(name)]
    return found[0] if found else None


def keep(path: Path, kept: Kept) -> None:
    """Write the file, whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(asdict(kept)).encode() + b"\n")


def read_kept(path: Path) -> Kept | None:
    """Read the file; None if there is none.

    Raises:
        InvalidArgumentError: It is damaged.
        OSError: It cannot be read.
    """
    if not path.exists():
        return None
    record = read_json(path, InvalidArgumentError)
    record.check_keys(("run", "job", "seconds", "usd", "date"))
    amounts = {name: record.member(name).number() for name in ("seconds", "usd")}
    for name, amount in amounts.items():
        if amount < 0:
            raise record.member(name).wrong("a number of at least 0")
    job = record.member("job")
    return Kept(
        run=record.member("run").text(),
        job=None if job.value is None else job.text(),
        date=record.member("date").text(),
        **amounts,
    )
