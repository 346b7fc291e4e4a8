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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from cyclopts import CoercionError, CycloptsError, UnknownOptionError, UnusedCliTokensError

from lightning_predict.base.errors import LightningPredictError
from lightning_predict.base.escaping import escaped_streams, terminal_text
from lightning_predict.cli.parsing import COMMANDS, PROGRAM, as_options, option_names, parsed

EXIT_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code of the program.

    Args:
        arguments: Arguments after the program's name; None for `sys.argv`.

    Returns:
        0 on success; 2 on an error, which is printed as one line to stderr; for `run`, the script's exit code.
    """
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # the shell closed the stream (`>&-`)
            setattr(sys, stream, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    name = words[0] if words[0] in COMMANDS else None
    try:
        with escaped_streams(sys.stdout, sys.stderr):
            return _run(name, words)
    except CycloptsError as error:
        return _print_error(_in_words(error, name))
    except LightningPredictError as error:
        return _print_error(str(error) if name is None else as_options(str(error), name))
    except BrokenPipeError:  # the reader, for example `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _print_error(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
    except KeyboardInterrupt:
        return _print_error("interrupted")


def _run(name: str | None, words: Sequence[str]) -> int:
    call = parsed(name, words)
    if call is None:  # help or the version, already printed
        sys.stdout.flush()
        return 0
    with nullcontext() if name == "run" else _rare_collections():  # a script that runs keeps its own
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            answer = call.run()
        if call.as_json:
            print(json.dumps(answer.data(), indent=2, allow_nan=False))
        else:
            answer.show()
    sys.stdout.flush()
    return answer.exit_code


def _in_words(error: CycloptsError, name: str | None) -> str:
    """Return an error message of the parser, with the next thing to do."""
    if isinstance(error, CoercionError) and error.msg and error.argument is not None:
        return f"{error.argument.name} {error.msg}"
    message = str(error)
    options = () if name is None else option_names(name)
    if isinstance(error, UnusedCliTokensError) and "--gpus" in options:
        return f"{message} GPUs are named by --gpus: --gpus T4,8xL4."
    if isinstance(error, UnknownOptionError) and "--strategy" in options:
        from lightning_predict.layouts.strategy import DATA_STRATEGIES, Strategy

        word = str(error.token.keyword).lstrip("-").replace("-", "_")
        option = Strategy.__dataclass_fields__.get(word)
        if word in DATA_STRATEGIES or option is not None:
            told = word if option is None else f"{word}={'8' if 'int' in str(option.type) else 'VALUE'}"
            return f"Unknown option: {error.token.keyword}. It is part of --strategy: --strategy {told}."
    if "Did you mean" in message or "Choose from" in message:
        return message
    return f"{message} See {PROGRAM} {'--help' if name is None else f'{name} --help'}."


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


def _print_error(message: str) -> int:
    print(terminal_text(f"{PROGRAM}: error: {' '.join(message.split())}"), file=sys.stderr)
    return EXIT_ERROR
