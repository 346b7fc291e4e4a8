"""`main`: parse, run one command, print its answer; what is wrong becomes one line and exit code 2.

Example::

    >>> main(["gpus", "T4", "--json"])  # doctest: +SKIP
    0
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from lightning_predict.cli.answers import Answer
from lightning_predict.cli.parsing import COMMANDS, PROGRAM, in_words, parser, rewritten, unknown_command
from lightning_predict.errors import LightningPredictError

EXIT_ERROR = 2


def main(arguments: Sequence[str] | None = None, commands: Mapping[str, Callable[..., Answer]] = COMMANDS) -> int:
    """Run the command line.

    Args:
        arguments: Words after the program's name; those of the process if None.
        commands: What the names of commands run.

    Returns:
        0 where it worked, 2 where something is wrong, which is then one line on standard error.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    problem = unknown_command(words)
    if problem is not None:
        return _refused(problem)
    try:
        return _run(words or ["--help"], commands)
    except LightningPredictError as error:
        return _refused(str(error))
    except BrokenPipeError:  # the reader, for example `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _refused(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
    except KeyboardInterrupt:
        return _refused("interrupted")


def _run(words: Sequence[str], commands: Mapping[str, Callable[..., Answer]]) -> int:
    top = parser()
    from jsonargparse import ArgumentError

    words = rewritten(words)
    try:
        chosen = top.parse_args(words)
    except SystemExit:  # --help or --version, already printed
        return 0
    except ArgumentError as error:
        return _refused(in_words(str(error), words[0]) if words[0] in COMMANDS else str(error))
    options = chosen[chosen.command].as_dict()
    as_json = options.pop("json")
    answer = commands[chosen.command](**options)
    if as_json:
        print(json.dumps(answer.data(), indent=2, allow_nan=False))
    else:
        answer.show()
    sys.stdout.flush()
    return 0


def _refused(problem: str) -> int:
    print(f"{PROGRAM}: error: {' '.join(problem.split())}", file=sys.stderr)
    return EXIT_ERROR
