"""The one door for files that are read or written while somebody trains.

A file may lie on a network home that hangs, or be a pipe that nobody reads: it is used in a thread that is waited for
only so long, and only if it is a regular file. What is written appears whole, or not at all. Example::

    in_hook(path, lambda: write_whole(path, b"..."), seconds=60.0)
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from lightning_predict.deadline import answered

Result = TypeVar("Result")

FILE_SECONDS: Final = 60.0
"""Longest wait of a hook for a file or a logger."""


def in_hook(path: str | os.PathLike[str], work: Callable[[], Result], *, seconds: float = FILE_SECONDS) -> Result:
    """Return what some work on a file returns, or raise its error.

    Args:
        path: The file, which need not exist.
        work: Reads or writes it.
        seconds: Longest wait for it.

    Raises:
        OSError: It is there and no regular file, or what the work raises.
        TimeoutError: It did not answer in time, or has not answered since it was used before.
    """

    def use() -> Result:
        refuse_irregular(path)
        return work()

    return answered(seconds, os.fspath(path), use)


def refuse_irregular(path: str | os.PathLike[str]) -> None:
    """Raise where a path names a pipe, a device or a socket, which may wait forever; a folder fails by itself.

    Raises:
        OSError: It does.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):  # nothing is there
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "not a regular file; name one", os.fspath(path))


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file, whole or not at all: an older one is replaced, and a link stays a link.

    Raises:
        OSError: It cannot be written.
    """
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    part = os.path.join(folder, f".{name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(content)
        os.replace(part, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise
