"""`main`: parses the arguments, runs one command, prints its answer. An error becomes one line and exit code 2.

Example::

    >>> main(["gpus", "T4", "--json"])  # doctest: +SKIP
    0
"""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Final

from lightning_predict.base import __version__
from lightning_predict.base.answers import CommandAnswer
from lightning_predict.base.errors import LightningPredictError
from lightning_predict.base.escaping import escaped_streams, terminal_text
from lightning_predict.cli.parsing import ALIASES, COMMANDS, PROGRAM, as_options, help_text, parsed, unknown_command

EXIT_ERROR = 2

_IMMEDIATE_OPTIONS: Final[Mapping[str, Callable[[], str]]] = {
    "--help": help_text,
    "-h": help_text,
    "--version": lambda: f"{PROGRAM} {__version__}",
}


def main(
    arguments: Sequence[str] | None = None, commands: Mapping[str, Callable[..., CommandAnswer]] = COMMANDS
) -> int:
    """Run a command and return the exit code of the program.

    Args:
        arguments: Arguments after the program's name; None for `sys.argv`.
        commands: Functions of the commands, by name.

    Returns:
        0 on success; 2 on an error, which is printed as one line to stderr; for `run`, the script's exit code.
    """
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # the shell closed the stream (`>&-`)
            setattr(sys, stream, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    argv = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    problem = unknown_command(argv)
    if problem is None and argv[0].startswith("-") and argv[0] not in _IMMEDIATE_OPTIONS:
        problem = f"{argv[0]!r} stands before a command. Commands: {', '.join(COMMANDS)}."
    if problem is not None:
        return _print_error(problem)
    name, *options = [*ALIASES.get(argv[0], (argv[0],)), *argv[1:]]
    try:
        if argv[0] in _IMMEDIATE_OPTIONS:
            print(_IMMEDIATE_OPTIONS[argv[0]]())
            sys.stdout.flush()
            return 0
        with escaped_streams(sys.stdout, sys.stderr):
            return _run(name, options, commands)
    except LightningPredictError as error:
        return _print_error(as_options(str(error), name))
    except BrokenPipeError:  # the reader, for example `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _print_error(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
    except KeyboardInterrupt:
        return _print_error("interrupted")


def _run(name: str, argv: Sequence[str], commands: Mapping[str, Callable[..., CommandAnswer]]) -> int:
    try:
        options = parsed(name, argv)
    except SystemExit:  # --help, already printed
        return 0
    as_json = options.pop("json")
    with nullcontext() if name == "run" else _rare_collections():  # a script that runs keeps its own
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            answer = commands[name](**options)
        if as_json:
            print(json.dumps(answer.data(), indent=2, allow_nan=False))
        else:
            answer.show()
    sys.stdout.flush()
    return answer.exit_code


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect garbage rarely, because each collection visits the many objects of a recorded step."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"{PROGRAM}: note: {' '.join(str(message).split())}", file=sys.stderr)


def _print_error(problem: str) -> int:
    print(terminal_text(f"{PROGRAM}: error: {' '.join(problem.split())}"), file=sys.stderr)
    return EXIT_ERROR
