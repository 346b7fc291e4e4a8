r"""Processes of tests, forked from one that has imported torch, both Lightnings and this package already.

Importing them takes longer than most of what tests do in a process of their own. What must not be imported, or must be
imported by the process itself, is run by `subprocess` instead. Example::

    ran = run("import torch; print(torch.zeros(1))")
    assert ran.stdout == "tensor([0.])\n"
"""

import contextlib
import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

CONTEXT: Final = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch", "lightning.pytorch", "pytorch_lightning", "lightning_predict.callbacks", "lightning_predict.cli"]
)

ROOT: Final = Path(__file__).parents[1]


@dataclass(frozen=True)
class Ran:
    """A process that has ended."""

    returncode: int | None  # Its status
    stdout: str  # Standard output
    stderr: str  # Standard error


class Started:
    """A process under way.

    Args:
        program: Code; or `-m`, a module and its arguments; or the path of a script and its arguments.
        variables: Of the environment, in addition to this process's.
        folder: Where it runs; None: here.
    """

    def __init__(
        self, *program: str | Path, variables: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> None:
        self._place = tempfile.TemporaryDirectory()
        self._files = [Path(self._place.name, name) for name in ("stdout", "stderr")]
        environment = {**os.environ, **(variables or {})}
        # The process runs the command of a fork of the server: a daemon would be allowed no processes of its own.
        self._process = CONTEXT.Process(
            target=_begin,
            args=([str(word) for word in program], environment, str(folder or Path.cwd()), list(map(str, self._files))),
        )
        self._process.start()

    def wait(self, seconds: float) -> Ran:
        """Wait for its end, for so long; then end it."""
        with contextlib.closing(self._process), self._place:
            self._process.join(seconds)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            code = self._process.exitcode
            return Ran(code, *(path.read_text() if path.exists() else "" for path in self._files))


def run(
    *program: str | Path, variables: Mapping[str, str] | None = None, folder: Path | None = None, seconds: float = 1200
) -> Ran:
    """Run a program to its end; see `Started`. The limit is for one that hangs, on a machine with much else to do."""
    return Started(*program, variables=variables, folder=folder).wait(seconds)


def _begin(program: Sequence[str], environment: Mapping[str, str], folder: str, files: Sequence[str]) -> None:
    """Become the program, as far as a fork can."""
    for number, path in enumerate(files, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.stdout, sys.stderr = (os.fdopen(os.dup(number), "w", buffering=1) for number in (1, 2))
    sys.path.insert(0, str(ROOT))
    first, *rest = program
    if first == "-m":
        sys.argv = list(rest)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first.endswith(".py"):
        sys.argv = [first, *rest]
        sys.path.insert(0, str(Path(first).parent))
        runpy.run_path(first, run_name="__main__")
    else:
        sys.argv = ["-c", *rest]
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(first, "<string>", "exec"), names)
