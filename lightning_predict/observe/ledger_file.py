"""The ledger on disk, and the rule that decides whether two runs are the same.

The used time and money of a run are saved every minute, so that a killed run loses little. A checkpoint contains the
amounts at the time when the checkpoint was written. The ledger file in the Trainer's `default_root_dir` contains the
later amounts. A new run continues the ledger of an unfinished run if the new run resumes a checkpoint of that run, or
if Slurm or torchrun restarted the job. Runs that share a folder get separate files::

    place = find_ledger("runs", run="a1b2", resumed_seconds=0.0)
    place.kept                   # amounts of the same run, killed earlier; None otherwise
    place.checkpoint             # runs/lightning_predict_budget.ckpt
    save_ledger(place.ledger, kept)
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeGuard, final

from lightning_predict.base.checked import Checked, File, parse_json, read_json
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.files import write_atomically
from lightning_predict.observe.meters import Use

LEDGER_STEM: Final = "lightning_predict_budget"
LEDGER_NAME: Final = f"{LEDGER_STEM}.json"
"""File name of the first run in a folder."""

_RUN: Final = re.compile(r"\w[\w-]{0,63}")
"""Pattern of the name of a run, which is a part of file names."""

LEDGER_SECONDS: Final = 60.0
"""Seconds between two saves, which is also the maximum loss."""

_RESTARTS: Final = {"SLURM_JOB_ID": "SLURM_RESTART_COUNT", "TORCHELASTIC_RUN_ID": "TORCHELASTIC_RESTART_COUNT"}
"""Environment variables with the ID of a job, and with the number of its restarts.

An equal ID does not prove that two runs are the same: a job may run a whole sweep, and some launchers give unrelated
runs the same ID."""


def is_run_name(value: object) -> TypeGuard[str]:
    """Return whether a value from a checkpoint is the name of a run, and can be a part of a file name."""
    return isinstance(value, str) and _RUN.fullmatch(value) is not None


def jobs_in_use() -> dict[str, int]:
    """Return the jobs to which this process belongs, with the number of restarts of each job."""
    jobs = {}
    for name, count in _RESTARTS.items():
        value = os.environ.get(name)
        if value:
            agent = f" {socket.gethostname()}:{os.getppid()}" if value == "none" else ""  # torchrun's default
            restarts = os.environ.get(count, "0")
            jobs[f"{name}={value}{agent}"] = int(restarts) if restarts.isdecimal() else 0
    return jobs


def command_in_use() -> str:
    """Return a hash of this process's command line, which differs between the runs of a sweep."""
    return hashlib.sha256("\0".join(sys.argv).encode(errors="surrogateescape")).hexdigest()[:16]


def _process_in_use() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SavedLedger:
    """Contents of the ledger file.

    Attributes:
        run: Name of the run, as in its checkpoints.
        use: What the run has used over all its fits.
        date: Time at which the file was written (ISO 8601).
        jobs: Jobs that trained the run, with their restarts.
        command: Hash of the run's command line.
        process: Host name and ID of the run's process.
        ended: Whether the last fit ended without an error.
        saved_seconds: Used seconds in the budget's own checkpoint; None without a checkpoint.
    """

    run: str
    use: Use
    date: str
    jobs: Mapping[str, int] = field(default_factory=jobs_in_use)
    command: str = field(default_factory=command_in_use)
    process: str = field(default_factory=_process_in_use)
    ended: bool = False
    saved_seconds: float | None = None

    def is_continued_by(self, run: str) -> bool:
        """Return whether a run that begins in this process continues the saved run.

        Args:
            run: Run name in the checkpoint that the process resumes, otherwise a new name.
        """
        if self.ended or self._runs_now:
            return False
        jobs = jobs_in_use()
        was_restarted = any(jobs.get(name, 0) > restarts for name, restarts in self.jobs.items())
        return self.run == run or (was_restarted and self.command == command_in_use())

    @property
    def _runs_now(self) -> bool:
        """Whether another process on this machine trains the run."""
        host, _, number = self.process.rpartition(":")
        if os.name != "posix" or host != socket.gethostname() or not number.isdecimal() or int(number) == os.getpid():
            return False
        try:
            os.kill(int(number), 0)
        except (ProcessLookupError, OverflowError):
            return False
        except OSError:  # a process of another user
            return True
        return True


@final
@dataclass(frozen=True, slots=True)
class LedgerPlace:
    """Files of a run.

    Attributes:
        ledger: Path or URL of the ledger.
        checkpoint: Path or URL of the budget's own checkpoint.
        kept: Saved ledger of the run; None without a saved ledger.
    """

    ledger: str
    checkpoint: str
    kept: SavedLedger | None = None

    @staticmethod
    def of(folder: str, stem: str, kept: SavedLedger | None = None) -> LedgerPlace:
        """Return the files with this name in a folder."""
        path = os.path.join(folder, stem)
        return LedgerPlace(f"{path}.json", f"{path}.ckpt", kept)


def find_ledger(folder: str, *, run: str, resumed_seconds: float) -> LedgerPlace:
    """Find the files of a run that begins. Files of other runs are not overwritten.

    Args:
        folder: The Trainer's `default_root_dir`, a path or a URL.
        run: Run name in the checkpoint that the process resumes, otherwise a new name.
        resumed_seconds: Used seconds in the resumed checkpoint; 0 without a checkpoint.

    Raises:
        InvalidArgumentError: A ledger is damaged.
        OSError: A file cannot be read.
    """
    names = _names(folder)
    stems = sorted({name.rpartition(".")[0] for name in names} | {LEDGER_STEM})
    places = [LedgerPlace.of(folder, stem, read_ledger(f"{os.path.join(folder, stem)}.json")) for stem in stems]
    for place in places:
        if place.kept is not None and place.kept.is_continued_by(run):
            is_free = _is_free(place, names, run, resumed_seconds)
            return place if is_free else LedgerPlace.of(folder, f"{LEDGER_STEM}-{run[:8]}", place.kept)
    free = (place for place in places if _is_free(place, names, run, resumed_seconds))
    found = next(free, LedgerPlace.of(folder, f"{LEDGER_STEM}-{run[:8]}"))
    return LedgerPlace(found.ledger, found.checkpoint)


def _is_free(place: LedgerPlace, names: Iterable[str], run: str, resumed_seconds: float) -> bool:
    """Return whether a run may write the files: no other run needs them, or the run resumes their checkpoint."""
    kept = place.kept
    if os.path.basename(place.checkpoint) in names:
        return kept is not None and kept.run == run and kept.saved_seconds == resumed_seconds
    return kept is None or kept.ended or kept.is_continued_by(run)


def save_ledger(path: str | os.PathLike[str], kept: SavedLedger) -> None:
    """Write the file atomically.

    Raises:
        OSError: The file cannot be written.
    """
    values = {item.name: getattr(kept, item.name) for item in fields(kept) if item.name != "use"}
    content = json.dumps(values | kept.use.plain()).encode() + b"\n"
    if is_url(path):
        system, place = _file_system(path)
        system.pipe_file(place, content)
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


def read_ledger(path: str | os.PathLike[str]) -> SavedLedger | None:
    """Read the file; None if it does not exist.

    Raises:
        InvalidArgumentError: The file is damaged.
        OSError: The file cannot be read.
    """
    try:
        record = _read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    record.check_keys(
        ("run", "seconds", "date"), ("jobs", "command", "process", "ended", "saved_seconds", "job", *Use.names())
    )
    names = [name for name in ("seconds", *Use.names()) if record.has(name)]
    return SavedLedger(
        run=record.member("run").matching("the name of a run, of letters, digits and hyphens", _RUN),
        use=Use.parse({name: record.member(name).number() for name in names}),
        date=record.member("date").text(),
        jobs=record.optional(
            "jobs", lambda jobs: {name: one.integer() for name, one in jobs.members().items()}, dict[str, int]()
        ),
        command=record.optional("command", Checked.text, ""),
        process=record.optional("process", Checked.text, ""),
        ended=record.optional("ended", Checked.flag, False),
        saved_seconds=record.member("saved_seconds").number() if record.has("saved_seconds") else None,
    )


def _read(path: str | os.PathLike[str]) -> Checked:
    if not is_url(path):
        return read_json(path, InvalidArgumentError)
    system, place = _file_system(path)
    return parse_json(system.cat_file(place), File(os.fspath(path), InvalidArgumentError))


def _names(folder: str) -> set[str]:
    """List the files of budgets in a folder."""
    if is_url(folder):
        system, place = _file_system(folder)
        found = system.ls(place, detail=False) if system.isdir(place) else []
    else:
        found = os.listdir(folder) if os.path.isdir(folder) else []
    names = {os.path.basename(str(path).rstrip("/")) for path in found}
    return {name for name in names if name.startswith(LEDGER_STEM) and name.endswith((".json", ".ckpt"))}


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is on a remote file system, such as `s3://bucket/runs`."""
    return "://" in os.fspath(path)


def _file_system(path: str | os.PathLike[str]) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it, from fsspec, which Lightning uses for its own files."""
    found: tuple[Any, str] = import_module("fsspec.core").url_to_fs(os.fspath(path))
    return found
