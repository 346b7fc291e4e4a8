"""Safe reading and writing of files during training.

A path may be on a hanging network drive, or be a pipe without a reader. Training must not hang, so a file is used in a
thread with a timeout, and only if it is a regular file. Files are written atomically.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, TypeVar

import platformdirs

from lightning_predict.base import __version__
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.timeout import PATIENCE_SECONDS, run_unless_hanging

Result = TypeVar("Result")


def user_folder(kind: Literal["data", "cache"]) -> Path:
    """Return the user's folder for data or downloads; without a home directory, a path that cannot exist."""
    try:
        folder = {"data": platformdirs.user_data_dir, "cache": platformdirs.user_cache_dir}[kind]("lightning-predict")
    except RuntimeError:  # a user in a container without a home directory
        folder = "~"
    return Path(os.devnull, "no-home-directory") if folder.startswith("~") else Path(folder)


CACHE_VARIABLE: Final = "LIGHTNING_PREDICT_CACHE"  # Folder of downloaded weights and of steps recorded by name


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """Return the folder in which this release caches."""
    root = cache_dir or os.environ.get(CACHE_VARIABLE) or user_folder("cache")
    return Path(root).expanduser() / __version__


_EXAMPLES: Final = tuple(Path(__file__).parents[levels] / "examples" for levels in (1, 2))
"""Folders of the examples: in the installed package, and in a clone."""

_ENDINGS: Final = (".json.gz", ".yaml", ".csv")  # Suffixes of examples, which their names leave out


def named_file(path: str | Path) -> Path:
    """Return a path, or the file of an example: `example:gpt2`.

    Raises:
        InvalidArgumentError: There is no such example.
    """
    prefix, _, name = str(path).partition(":")
    if prefix != "example":
        return Path(path)
    files = {file.name: file for folder in _EXAMPLES for end in _ENDINGS for file in folder.glob(f"*{end}")}
    known = {file.removesuffix(end): files[file] for file in files for end in _ENDINGS if file.endswith(end)}
    if name not in known:
        raise InvalidArgumentError(f"{path} is no example; expected example: and one of {', '.join(sorted(known))}.")
    return known[name]


HISTORY_VARIABLE: Final = "LIGHTNING_PREDICT_HISTORY"
"""Environment variable with the path of the history file, or of a folder that a team shares."""


def history_path(path: str | Path | None = None) -> Path:
    """Return the history file or folder: `path`, else `LIGHTNING_PREDICT_HISTORY`, else the platform's default."""
    named = path or os.environ.get(HISTORY_VARIABLE)
    return Path(named) if named else user_folder("data") / "history.jsonl"


def in_hook(path: str | os.PathLike[str], work: Callable[[], Result], *, seconds: float = PATIENCE_SECONDS) -> Result:
    """Run `work` on a file with a timeout; return its result or raise its error.

    Raises:
        OSError: The path exists and is not a regular file, or `work` raised this error.
        TimeoutError: `work` did not finish in time, or an earlier use of the file still hangs.
    """

    def use() -> Result:
        reject_irregular(path)
        return work()

    return run_unless_hanging(seconds, os.fspath(path), use)


def reject_irregular(path: str | os.PathLike[str]) -> None:
    """Raise an error for a pipe, a device or a socket, which may block forever.

    Raises:
        OSError: The path is a pipe, a device or a socket.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):  # does not exist
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "not a regular file; name one", os.fspath(path))


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file atomically. An existing file is replaced; a symbolic link stays a link.

    Raises:
        OSError: The file cannot be written.
    """
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    # The name is random and must not exist: two machines with equal process ids write different files, and a symbolic
    # link that an attacker put there is not followed.
    part = os.path.join(folder, f".{name}.{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb") as file:
            with suppress(OSError):  # a private file stays private, from its first byte
                shutil.copymode(target, part)
            file.write(content)
        os.replace(part, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise


STOPPED_VARIABLE: Final = "LIGHTNING_PREDICT_STOPPED"
PREDICTED_VARIABLE: Final = "LIGHTNING_PREDICT_PREDICTED"
"""Environment variables with paths of files, created if a budget stops training, and with the first prediction."""


def mark(variable: str) -> None:
    """Create the file of a variable, which tells `lightning-predict run` what happened in the script."""
    with suppress(OSError, KeyError):
        Path(os.environ[variable]).touch()
