"""The ledger on disk, and the rule that decides whether two runs are the same.

The used time and money of a run are saved every minute, so that a killed run loses little. A checkpoint contains the
amounts at the time when the checkpoint was written. The ledger file in the Trainer's `default_root_dir` contains the
later amounts. A new run continues the ledger of an unfinished run if the new run resumes a checkpoint of that run, or
if Slurm or torchrun restarted the job. No run writes a file that another run has created::

    found, unread = find_ledger("runs", run="a1b2")      # amounts of the same run, killed earlier; None otherwise
    place = save_own("runs", saved, place=found)         # creates a file, or replaces its own
    place.checkpoint                                     # runs/lightning_predict_budget.ckpt
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeGuard

from lightning_predict.base.checked import Checked, File, parse_json, read_json
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.files import write_atomically
from lightning_predict.observe.meters import Use

LEDGER_STEM: Final = "lightning_predict_budget"
LEDGER_NAME: Final = f"{LEDGER_STEM}.json"  # File name of the first run in a folder
_RUN: Final = re.compile(r"\w[\w-]{0,63}")  # Pattern of the name of a run, which is a part of file names
LEDGER_SECONDS: Final = 60.0  # Seconds between two saves, which is also the maximum loss, and between two forecasts

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


def start_of(process: int) -> str:
    """Return the start of a process in clock ticks since the boot, from field 22 of Linux's `stat`; empty elsewhere."""
    try:
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedLedger:
    """Contents of the ledger file."""

    run: str
    use: Use  # What the run has used over all its fits
    date: str  # Time at which the file was written (ISO 8601)
    jobs: Mapping[str, int] = field(default_factory=jobs_in_use)  # Jobs that trained the run, with their restarts
    command: str = field(default_factory=command_in_use)  # Hash of the run's command line
    process: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")  # Host and ID of the process
    ended: bool = False  # Whether the last fit ended without an error
    saved_seconds: float | None = None  # Used seconds in the budget's own checkpoint; None without a checkpoint
    owner: str = ""  # Random name of the fit that writes the file, in one process
    # Start of the process, which tells it from a later process with the same ID; empty if unknown
    started: str = field(default_factory=lambda: start_of(os.getpid()))

    @property
    def content(self) -> bytes:
        """The ledger as a line of JSON."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "use"}
        return json.dumps(values | self.use.plain()).encode() + b"\n"

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
            pass
        return not self.started or start_of(int(number)) in ("", self.started)


@dataclass(frozen=True, slots=True)
class LedgerPlace:
    """Files of a run."""

    ledger: str
    checkpoint: str
    kept: SavedLedger | None = None

    @staticmethod
    def of(folder: str, stem: str, kept: SavedLedger | None = None) -> LedgerPlace:
        """Return the files with this name in a folder."""
        path = os.path.join(folder, stem)
        return LedgerPlace(f"{path}.json", f"{path}.ckpt", kept)


def find_ledger(folder: str, *, run: str) -> tuple[LedgerPlace | None, list[str]]:
    """Find the ledger that a run continues. Of several, for example of branches, the one with the most seconds counts.

    Args:
        folder: The Trainer's `default_root_dir`, a path or a URL.
        run: Run name in the checkpoint that the process resumes, otherwise a new name.

    Returns:
        The files of the continued run, and an error for each ledger that cannot be read.
    """
    continued, unread = dict[str, SavedLedger](), list[str]()
    for stem in sorted(_stems(folder)):
        path = LedgerPlace.of(folder, stem).ledger
        try:
            kept = read_ledger(path)
        except (OSError, InvalidArgumentError) as error:  # of this run or of another one: nobody knows
            unread.append(f"{path}: {error}")
            continue
        if kept is not None and kept.is_continued_by(run):
            continued[stem] = kept
    if not continued:
        return None, unread
    most = max(continued, key=lambda stem: continued[stem].use.seconds)
    return LedgerPlace.of(folder, most, continued[most]), unread


def save_own(
    folder: str, saved: SavedLedger, *, place: LedgerPlace | None, has_checkpoint: bool = False
) -> LedgerPlace:
    """Write a ledger to a file that its fit has created, or creates now, and return the fit's files.

    Args:
        folder: The Trainer's `default_root_dir`, a path or a URL.
        saved: The ledger, with its owner.
        place: Files of this fit, or of the killed run that this fit continues; None for the first name in the folder.
        has_checkpoint: Whether this fit has written the checkpoint of `place`.
    """
    place = place or LedgerPlace.of(folder, LEDGER_STEM)
    own = own_place(folder, saved.owner)
    if not _save_as(place, saved, has_checkpoint=has_checkpoint):
        place = own
        if not _save_as(own, saved, has_checkpoint=has_checkpoint):
            raise FileExistsError(errno.EEXIST, "belongs to another run", own.ledger)
    return LedgerPlace(place.ledger, place.checkpoint)


def own_place(folder: str, owner: str) -> LedgerPlace:
    """Return files that no other fit has."""
    return LedgerPlace.of(folder, f"{LEDGER_STEM}-{owner}")


def _save_as(place: LedgerPlace, saved: SavedLedger, *, has_checkpoint: bool) -> bool:
    """Write a ledger, unless the files are of another run. Return whether it was written."""
    try:
        now = read_ledger(place.ledger)
    except InvalidArgumentError:
        return False
    except OSError:
        if saved.owner in place.ledger:  # no other name is left
            raise
        return False
    if now is not None and now.owner == saved.owner:
        save_ledger(place.ledger, saved)
        return True
    if not has_checkpoint and _exists(place.checkpoint):
        return False
    if now is None:
        return _create(place.ledger, saved.content)
    return now == place.kept and _take_over(place, saved)


def _take_over(place: LedgerPlace, saved: SavedLedger) -> bool:
    """Replace the ledger of a killed run by the ledger of the run that continues it; of several runs, one succeeds."""
    lock = f"{place.ledger}.lock"
    if not _create(lock, b""):
        return False
    try:
        is_same = read_ledger(place.ledger) == place.kept
        if is_same:
            save_ledger(place.ledger, saved)
        return is_same
    finally:
        _remove(lock)


def remove_own(place: LedgerPlace, owner: str) -> None:
    """Remove the ledger of a fit, unless another run has written it."""
    saved = read_ledger(place.ledger)
    if saved is not None and saved.owner == owner:
        _remove(place.ledger)


def save_ledger(path: str | os.PathLike[str], saved: SavedLedger) -> None:
    """Write the file atomically."""
    if is_url(path):
        system, place = _file_system(path)
        system.pipe_file(place, saved.content)
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, saved.content)


def read_ledger(path: str | os.PathLike[str]) -> SavedLedger | None:
    """Read the file; None if it does not exist."""
    try:
        record = _read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    record.check_keys(
        ("run", "seconds", "date"),
        ("jobs", "command", "process", "ended", "saved_seconds", "job", "owner", "started", *Use.names()),
    )
    names = [name for name in ("seconds", *Use.names()) if record.has(name)]
    return SavedLedger(
        run=record.member("run").matching("the name of a run, of letters, digits and hyphens", _RUN),
        use=Use.parse({name: record.member(name).number() for name in names}),
        date=record.member("date").text(),
        jobs=record.optional(
            "jobs", lambda jobs: {name: job.integer() for name, job in jobs.members().items()}, dict[str, int]()
        ),
        command=record.optional("command", Checked.text, ""),
        process=record.optional("process", Checked.text, ""),
        ended=record.optional("ended", Checked.flag, False),
        owner=record.optional("owner", Checked.text, ""),
        started=record.optional("started", Checked.text, ""),
        saved_seconds=record.member("saved_seconds").number() if record.has("saved_seconds") else None,
    )


def _read(path: str | os.PathLike[str]) -> Checked:
    if not is_url(path):
        return read_json(path, InvalidArgumentError)
    system, place = _file_system(path)
    return parse_json(system.cat_file(place), File(os.fspath(path), InvalidArgumentError))


def _stems(folder: str) -> set[str]:
    """List the ledgers in a folder, without their suffix."""
    if is_url(folder):
        system, place = _file_system(folder)
        paths = system.ls(place, detail=False) if system.isdir(place) else []
    else:
        paths = os.listdir(folder) if os.path.isdir(folder) else []
    names = {os.path.basename(str(path).rstrip("/")) for path in paths}
    return {name.removesuffix(".json") for name in names if name.startswith(LEDGER_STEM) and name.endswith(".json")}


def _create(path: str, content: bytes) -> bool:
    """Create a file. Return False if it exists."""
    try:
        if is_url(path):
            system, place = _file_system(path)
            if system.exists(place):
                return False
            system.pipe_file(place, content, mode="create")
        else:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with open(path, "xb") as file:
                try:
                    file.write(content)
                    file.flush()
                except OSError:  # a full disk: a later run could not read what there is
                    _remove(path)
                    raise
    except FileExistsError:
        return False
    return True


def _exists(path: str) -> bool:
    if is_url(path):
        system, place = _file_system(path)
        return bool(system.exists(place))
    return os.path.lexists(path)


def _remove(path: str) -> None:
    if is_url(path):
        system, place = _file_system(path)
        system.rm_file(place)
    else:
        os.unlink(path)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is on a remote file system, such as `s3://bucket/runs`."""
    return "://" in os.fspath(path)


def _file_system(path: str | os.PathLike[str]) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it, from fsspec, which Lightning uses for its own files."""
    place: tuple[Any, str] = import_module("fsspec.core").url_to_fs(os.fspath(path))
    return place
