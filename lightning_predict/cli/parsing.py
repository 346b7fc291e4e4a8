"""The parser: jsonargparse reads each command's type hints and docstring.

Three conveniences are added, before it sees the arguments: options may be written with hyphens, as they are printed in
the help; a flag needs no `true` (`--spot`); and the one word after `gpus` or `cache` needs no option. Example::

    >>> rewritten(["gpus", "H100", "--json"])
    ['gpus', '--search=H100', '--json']
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from lightning_predict import __version__
from lightning_predict.cli.answers import Answer
from lightning_predict.cli.catalogue_commands import gpus, offers
from lightning_predict.cli.parallel_commands import curve, parallel
from lightning_predict.cli.planning_commands import plan, simulate
from lightning_predict.cli.prediction_commands import predict
from lightning_predict.cli.regression_commands import regress
from lightning_predict.cli.sharding_commands import shard
from lightning_predict.cli.trace_commands import trace
from lightning_predict.cli.weights_commands import cache, evaluate, measure, train
from lightning_predict.errors import MissingDependencyError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

PROGRAM: Final = "lightning-predict"

COMMANDS: Final[Mapping[str, Callable[..., Answer]]] = {
    function.__name__: function
    for function in (
        predict,
        trace,
        regress,
        shard,
        parallel,
        curve,
        plan,
        simulate,
        gpus,
        offers,
        measure,
        train,
        evaluate,
        cache,
    )
}

ALIASES: Final[Mapping[str, Sequence[str]]] = {"report": ("predict", "--output=report.html")}
"""What an older name of a command stands for; options that follow it replace its own."""

WORD_AFTER: Final[Mapping[str, str]] = {"gpus": "search", "cache": "action"}
"""The option that a word directly after the command stands for."""

_DESCRIPTION: Final = "How long a training run takes, and what it costs, on the GPUs that you could rent."


def parser() -> ArgumentParser:
    """Return the parser of all commands.

    Raises:
        MissingDependencyError: jsonargparse is not installed.
    """
    try:
        from jsonargparse import ArgumentParser, DefaultHelpFormatter
    except ImportError as error:
        raise MissingDependencyError(
            "The command line needs jsonargparse, which is not installed: pip install lightning-predict[cli]"
        ) from error

    class HyphenFormatter(DefaultHelpFormatter):  # the base class is known only once it is installed
        """Prints options with hyphens, and flags without the `true` that they may leave out."""

        def format_help(self) -> str:
            text: str = super().format_help()
            return _tidied(text)

    top = ArgumentParser(
        prog=PROGRAM,
        description=_DESCRIPTION,
        version=__version__,
        formatter_class=HyphenFormatter,
        exit_on_error=False,
    )
    subcommands = top.add_subcommands(dest="command", metavar="COMMAND", title="commands")
    for name, function in COMMANDS.items():
        summary, _, details = inspect.getdoc(function).partition("\n")  # type: ignore[union-attr]
        description = "\n\n".join([summary, *_paragraphs(details)])
        command = ArgumentParser(description=description, formatter_class=HyphenFormatter, exit_on_error=False)
        command.add_function_arguments(function, as_group=False, as_positional=True, fail_untyped=True)
        command.add_argument("--json", action="store_true", help="Print JSON.")
        subcommands.add_subcommand(name, command, help=summary)
    return top


def rewritten(arguments: Sequence[str]) -> list[str]:
    """Rewrite the arguments as jsonargparse wants them."""
    if arguments and arguments[0] in ALIASES:
        arguments = [*ALIASES[arguments[0]], *arguments[1:]]
    if not arguments or arguments[0] not in COMMANDS:
        return list(arguments)
    name, *words = arguments
    if words and name in WORD_AFTER and not words[0].startswith("-"):
        words[0] = f"--{WORD_AFTER[name]}={words[0]}"
    flags = _flags(COMMANDS[name])
    found = [name]
    for word, following in pairwise([*words, ""]):
        option, equals, value = word.partition("=")
        if option.startswith("--"):
            option = "--" + option[2:].replace("-", "_")
        if option[2:] in flags and option.startswith("--") and not equals and following not in ("true", "false"):
            equals, value = "=", "true"
        found.append(option + equals + value)
    return found


def unknown_command(arguments: Sequence[str]) -> str | None:
    """Say what is wrong where the first word is no command; None if it is one, or an option."""
    if not arguments or arguments[0] in (*COMMANDS, *ALIASES) or arguments[0].startswith("-"):
        return None
    near = difflib.get_close_matches(arguments[0], [*COMMANDS, *ALIASES], n=1)
    meant = f"Did you mean {near[0]!r}?" if near else f"Commands: {', '.join(COMMANDS)}."
    return f"{arguments[0]!r} is not a command of {PROGRAM}. {meant}"


def in_words(problem: str, name: str) -> str:
    """Say what jsonargparse says is wrong with a command's arguments, in one sentence and with what is near.

    Args:
        problem: Its message.
        name: The command.
    """
    hints = inspect.get_annotations(COMMANDS[name])
    wrong_type = re.search(r'Parser key "(\w+)":.*(?:Given|Got) value: (.*?)$', problem, re.DOTALL)
    if wrong_type is not None and wrong_type[1] in hints:
        expected = str(hints[wrong_type[1]]).removesuffix(" | None")
        if expected.startswith("Literal"):
            expected = "one of " + ", ".join(re.findall(r"['\"](\w+)['\"]", expected))
        option = wrong_type[1].replace("_", "-")
        return f"--{option} is {wrong_type[2].strip()!r}, but expected {expected}."
    unknown = re.search(r"[Uu]nrecognized arguments: --(\w+)", problem)
    if unknown is not None:
        near = difflib.get_close_matches(unknown[1], [*hints, "json"], n=1)
        meant = f"Did you mean --{near[0]}?" if near else f"See {PROGRAM} {name} --help."
        return f"--{unknown[1]} is not an option of {name}. {meant}".replace("_", "-")
    problem = problem.replace(f"{name}.", "").rstrip(".")
    return f"{problem}. See {PROGRAM} {name} --help."


def _flags(function: Callable[..., Answer]) -> set[str]:
    hints: dict[str, Any] = inspect.get_annotations(function, eval_str=True)
    return {name for name, hint in hints.items() if hint is bool}


def _tidied(text: str) -> str:
    """Return the help as people type it."""
    text = re.sub(r"(?m)^  (--\w+) \{true,false\}\s+", lambda match: f"  {match[1]:<20}  ", text)
    text = text.replace(" {true,false}", "").replace("<class 'Path'>", "Path")
    return re.sub(r"--\w+", _hyphens, text)


def _hyphens(match: re.Match[str]) -> str:
    return "--" + match[0][2:].replace("_", "-")


def _paragraphs(details: str) -> list[str]:
    """Return the paragraphs of a docstring before its sections."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in details.split("\n\n")]
    sections = [number for number, text in enumerate(paragraphs) if text.startswith(("Args:", "Raises:", "Returns:"))]
    return [text for text in paragraphs[: min(sections, default=len(paragraphs))] if text]
