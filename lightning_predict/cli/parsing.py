"""Argument parser: argparse, filled from each command's type hints and docstring.

Type hints are read as strings and never evaluated, so `--help` does not import a command's dependencies. Numbers can be
written as `1e6`, `1,000` or `100k`. Option names can contain underscores. Example::

    >>> parsed("gpus", ["H100", "--min-memory-gib", "80"])["search"]
    'H100'
    >>> parsed("predict", ["run.json", "--iterations", "1e6"])["iterations"]
    1000000
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

from lightning_predict.base.answers import CommandAnswer
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.cli.completion import completion_text
from lightning_predict.hardware.lookup import LISTING, gpu_names

PROGRAM: Final = "lightning-predict"


def completion(shell: Literal["bash", "zsh", "fish"]) -> CommandAnswer:
    """Print shell completion of commands, options and names of GPUs.

    Add it to the shell's startup file: `lightning-predict completion bash >> ~/.bashrc`, `completion zsh >> ~/.zshrc`
    or `completion fish > ~/.config/fish/completions/lightning-predict.fish`.

    Args:
        shell: The shell.
    """
    text = completion_text(shell, {name: option_names(name) for name in COMMANDS}, gpu_names())
    return CommandAnswer(data=lambda: {"shell": shell, "text": text}, show=lambda: print(text, end=""))


Command = Callable[..., CommandAnswer]
"""Function of a command. Its type hints and docstring make its options."""

_NAMES: Final = (
    "predict run advise trace history regress shard parallel curve accuracy plan simulate gpus offers measure "
    "first-hour train cache completion"
).split()
"""Commands in the order of the help."""


def _load(name: str) -> Command:
    """Import the function of a command. Each is imported alone, as some need scipy or torch."""
    match name:
        case "predict":
            from lightning_predict.cli.prediction_commands import predict

            return predict
        case "run":
            from lightning_predict.cli.script_commands import run

            return run
        case "advise":
            from lightning_predict.advice.commands import advise

            return advise
        case "trace":
            from lightning_predict.cli.trace_commands import trace

            return trace
        case "history":
            from lightning_predict.cli.history_commands import history

            return history
        case "regress":
            from lightning_predict.regression.commands import regress

            return regress
        case "shard":
            from lightning_predict.embeddings.commands import shard

            return shard
        case "parallel":
            from lightning_predict.layout_search.commands import parallel

            return parallel
        case "curve":
            from lightning_predict.layout_search.commands import curve

            return curve
        case "accuracy":
            from lightning_predict.cli.accuracy_commands import accuracy

            return accuracy
        case "plan":
            from lightning_predict.planning.commands import plan

            return plan
        case "simulate":
            from lightning_predict.planning.commands import simulate

            return simulate
        case "gpus":
            from lightning_predict.cli.catalogue_commands import gpus

            return gpus
        case "offers":
            from lightning_predict.cli.catalogue_commands import offers

            return offers
        case "measure":
            from lightning_predict.own_weights.commands import measure

            return measure
        case "first-hour":
            from lightning_predict.own_weights.commands import first_hour

            return first_hour
        case "train":
            from lightning_predict.own_weights.commands import train

            return train
        case "cache":
            from lightning_predict.cli.cache_commands import cache

            return cache
        case "completion":
            return completion
    raise KeyError(name)


class Commands(Mapping[str, Command]):
    """Mapping from command names to functions. A function is imported on first access."""

    def __getitem__(self, name: str) -> Command:
        return _load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


COMMANDS: Final = Commands()

ALIASES: Final[Mapping[str, Sequence[str]]] = {"report": ("predict", "--output=report.html")}
"""Older command names with their replacement. Options after the name override the options given here."""

WORD_AFTER: Final[Mapping[str, str]] = {"predict": "trace", "gpus": "search", "cache": "action", "history": "action"}
"""Commands with an optional positional parameter: a word directly after the command sets this parameter."""

GROUPS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "predict": {
        "a model by name": (
            *("model", "batch_size", "length", "image_size", "precision", "lora", "lora_targets"),
            *("quantization", "checkpointing", "optimizer"),
        ),
        "what surrounds a step": ("loader_seconds", "loader_samples_per_second", "evaluation_seconds"),
        "the machines": ("strategy", "network_gbps", "busbw", "pcie", "host", "release", "measured_tflops"),
        "prices and energy": (
            *("max_usd", "usd_per_hour", "offers", "region", "spot", "providers"),
            *("setup_minutes", "storage_usd", "minimum_minutes", "grid", "pue"),
        ),
        "how it is predicted": ("method", "skew", "weights", "offline"),
        "what is shown": ("columns", "verbose", "output", "json"),
    }
}
"""Headings in the help of commands with many options, with their parameters. Other parameters come before the
headings."""

FEW: Final[Mapping[str, Sequence[str]]] = {
    "predict": (
        "gpus iterations deadline_hours model batch_size length precision lora strategy max_usd usd_per_hour spot "
        "providers grid columns verbose output json"
    ).split()
}
"""Options that `-h` shows of a command with many options, by parameter. `--help` shows all options."""

_DESCRIPTION: Final = "Predict the time, memory and cost of a training run on the GPUs that you could rent."

_WIDEST: Final = 100
"""Maximum width of help texts, in characters."""


_GROUPED: Final = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")
"""Pattern of a number with commas between groups of three digits."""

_SUFFIXES: Final[Mapping[str, float]] = {"k": 1e3, "K": 1e3, "M": 1e6}


def _value(text: str) -> float | None:
    """Parse `1000`, `1,000`, `1_000`, `1e3` or `1k`; return None if the text is not a number."""
    plain = text.strip()
    if "," in plain:
        if not _GROUPED.fullmatch(plain):
            point, joined = plain.replace(",", "."), plain.replace(",", "")
            if point.count(".") == 1 and re.fullmatch(r"[+-]?\d+", joined):
                raise argparse.ArgumentTypeError(
                    f"is {text!r}, which may be {point} or {int(joined)}. Write it with a point, or without the comma."
                )
            return None
        plain = plain.replace(",", "")
    factor = _SUFFIXES.get(plain[-1:], 1.0)
    try:
        return factor * float((plain[:-1] if factor > 1 else plain).replace("_", ""))
    except ValueError:
        return None


def _whole_number(text: str) -> int:
    value = _value(text)
    if value is None or not value.is_integer():
        raise argparse.ArgumentTypeError(f"is {text!r}, but expected a whole number, for example 1000, 1e6 or 100k.")
    return int(value)


def _number(text: str) -> float:
    value = _value(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"is {text!r}, but expected a number.")
    return value


def _prices(text: str) -> float | dict[str, float]:
    """Parse one price (`0.5`), or prices by GPU or layout (`L4=0.5,H100=2`)."""
    from lightning_predict.base.errors import LightningPredictError
    from lightning_predict.hardware.layouts import layouts_of

    if "=" not in text:
        return _number(text)
    found = {}
    for pair in filter(None, re.split(r",(?=[^,]*=)", text)):
        name, _, price = pair.partition("=")
        try:
            (layout,) = layouts_of([name.strip()])
        except (LightningPredictError, ValueError) as error:
            raise argparse.ArgumentTypeError(f"is {text!r}: {error}") from None
        found[layout.name] = _number(price)
    return found


def _one_of(choices: Sequence[str]) -> Callable[[str], str]:
    def choice(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"is {text!r}, but expected one of {', '.join(choices)}.")
        return text

    return choice


_THE_REST: Final = "Sequence[str]"
"""Type hint of a parameter that takes all remaining arguments unchanged."""

_TYPES: Final[Mapping[str, Callable[[str], Any]]] = {
    "str": str,
    "Path": Path,
    "int": _whole_number,
    "float": _number,
    "float | dict[str, float]": _prices,
}


def _reader(hint: str) -> tuple[Callable[[str], Any], tuple[str, ...]]:
    """Return the function that parses an argument with this type hint, and the choices of a Literal."""
    hint = hint.removesuffix(" | None")
    choices = tuple(re.findall(r"['\"](.*?)['\"]", hint)) if hint.startswith("Literal[") else ()
    return (_one_of(choices), choices) if choices else (_TYPES[hint], ())


class _Parser(argparse.ArgumentParser):
    """Argument parser that raises InvalidArgumentError instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise InvalidArgumentError(message)


class _FewOptions(argparse.Action):
    """Prints the help with the options in `FEW`, and exits."""

    def __call__(self, made: argparse.ArgumentParser, *_: object) -> NoReturn:
        hidden = [action for action in made._actions if action.option_strings and action.dest not in self.const]
        for action in hidden:
            action.help = argparse.SUPPRESS
        made.epilog = f"{made.prog} --help shows {len(hidden) - 2} more options."
        made.print_help()
        made.exit()


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, width=min(shutil.get_terminal_size().columns, _WIDEST), max_help_position=26)


def parser(name: str) -> argparse.ArgumentParser:
    """Return the argument parser of one command."""
    function = COMMANDS[name]
    documentation = inspect.getdoc(function) or ""
    summary, _, details = documentation.partition("\n")
    made = _Parser(
        prog=f"{PROGRAM} {name}",
        description=" ".join([summary, *_paragraphs(details)]),
        formatter_class=_formatter,
        allow_abbrev=False,
        add_help=name not in FEW,
    )
    made._optionals.title = "options"
    if name in FEW:
        made.add_argument(
            "-h",
            nargs=0,
            action=_FewOptions,
            dest=argparse.SUPPRESS,
            default=argparse.SUPPRESS,
            const=FEW[name],
            help="Show the most used options and exit.",
        )
        made.add_argument("--help", action="help", help="Show all options and exit.")
    words = _documented(documentation)
    below = {one: heading for heading, names in GROUPS.get(name, {}).items() for one in names}
    groups = {heading: made.add_argument_group(heading) for heading in GROUPS.get(name, {})}
    for parameter in inspect.signature(function).parameters.values():
        group = groups[below[parameter.name]] if parameter.name in below else made
        _add(group, name, parameter, words.get(parameter.name, ""))
    last = groups[below["json"]] if "json" in below else made
    last.add_argument("--json", action="store_true", help="Print JSON.")
    return made


def _add(made: argparse._ActionsContainer, name: str, parameter: inspect.Parameter, words: str) -> None:
    words = words.replace("%", "%%")
    if parameter.annotation == _THE_REST:
        made.add_argument(parameter.name, nargs=argparse.REMAINDER, help=words)
        return
    if parameter.annotation == "bool":
        made.add_argument(option_of(parameter.name), dest=parameter.name, action="store_true", help=words)
        return
    reader, choices = _reader(parameter.annotation)
    shown = "{" + ",".join(choices) + "}" if choices else None
    default = parameter.default
    if default is parameter.empty:
        made.add_argument(parameter.name, type=reader, metavar=shown, help=words)
        return
    if default is not None and "default" not in words:
        words = f"{words.removesuffix('.')} (default: {default})."
    if WORD_AFTER.get(name) == parameter.name or parameter.kind is not parameter.KEYWORD_ONLY:
        made.add_argument(parameter.name, nargs="?", type=reader, default=default, metavar=shown, help=words)
        return
    unit = parameter.name.rstrip("_").partition("_per_")[0]  # USD for usd_per_hour
    metavar = shown or unit.rpartition("_")[2].upper()
    made.add_argument(
        option_of(parameter.name), dest=parameter.name, type=reader, default=default, metavar=metavar, help=words
    )


def option_of(parameter: str) -> str:
    """Return the option of a parameter: `--usd-per-hour` for `usd_per_hour`, `--try` for `try_`."""
    return f"--{parameter.rstrip('_').replace('_', '-')}"


def option_names(name: str) -> tuple[str, ...]:
    """Return the options of a command."""
    parameters = inspect.signature(COMMANDS[name]).parameters.values()
    own = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and WORD_AFTER.get(name) != one.name]
    return (*map(option_of, own), "--json", "--help")


def parsed(name: str, words: Sequence[str]) -> dict[str, Any]:
    """Parse the arguments of a command.

    Args:
        name: The command.
        words: The arguments after the command.

    Raises:
        InvalidArgumentError: An argument is invalid. The message suggests the nearest valid option.
        SystemExit: Help was requested and printed.
    """
    try:
        found = vars(parser(name).parse_args(_joined_gpus([_hyphens(word) for word in words])))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(_in_words(str(error), name)) from None
    rest = [one.name for one in inspect.signature(COMMANDS[name]).parameters.values() if one.annotation == _THE_REST]
    return found | {one: list(words[len(words) - len(found[one]) :]) for one in rest}  # keeps underscores


def _joined_gpus(words: Sequence[str]) -> list[str]:
    """Join GPU names that are separated by spaces: `--gpus L4 H100` becomes `--gpus L4,H100`."""
    found: list[str] = []
    for place, word in enumerate(words):
        follows = len(found) > 1 and found[-2] == "--gpus" and place > 1 and words[place - 1] in found[-1].split(",")
        if follows and not word.startswith("-") and _is_layout(word):
            found[-1] = f"{found[-1]},{word}"
        else:
            found.append(word)
    return found


def _is_layout(word: str) -> bool:
    from lightning_predict.base.errors import LightningPredictError
    from lightning_predict.hardware.layouts import layout_of

    try:
        layout_of(word)
    except LightningPredictError:
        return False
    return True


def _hyphens(word: str) -> str:
    option, equals, value = word.partition("=")
    return option.replace("_", "-") + equals + value if option.startswith("--") else word


def _in_words(problem: str, name: str) -> str:
    """Rephrase an error message of argparse as a sentence, with the nearest valid option."""
    wrong = re.match(r"argument (?:(--[\w-]+)|(\S+)): (is .*)", problem, re.DOTALL)
    if wrong is not None:
        return f"{wrong[1] or f'The word after {name}'} {wrong[3]}"
    unknown = re.match(r"unrecognized arguments: (--[\w-]+)", problem)
    if unknown is not None:
        near = difflib.get_close_matches(unknown[1], option_names(name), n=1)
        meant = f"Did you mean {near[0]}?" if near else f"See {PROGRAM} {name} --help."
        return f"{unknown[1]} is not an option of {name}. {meant}"
    return f"{problem.removeprefix('argument ').rstrip('.')}. See {PROGRAM} {name} --help."


def unknown_command(arguments: Sequence[str]) -> str | None:
    """Return an error message if the first argument is neither a command nor an option; otherwise None."""
    if not arguments or arguments[0] in (*COMMANDS, *ALIASES) or arguments[0].startswith("-"):
        return None
    near = difflib.get_close_matches(arguments[0], [*COMMANDS, *ALIASES], n=1)
    meant = f"Did you mean {near[0]!r}?" if near else f"Commands: {', '.join(COMMANDS)}."
    return f"{arguments[0]!r} is not a command of {PROGRAM}. {meant}"


def as_options(problem: str, name: str) -> str:
    """Replace Python arguments in an error message by options: `usd_per_hour=-1` by `--usd-per-hour -1`.

    Args:
        problem: The error message.
        name: The command that failed.
    """
    problem = problem.replace(LISTING, f"{PROGRAM} gpus")
    for parameter in inspect.signature(COMMANDS[name]).parameters:
        option = option_of(parameter)
        problem = re.sub(rf"(?<![\w.-]){parameter}=(?: |(?=\S))", f"{option} ", problem)
        if "_" in parameter:
            problem = _renamed(problem, parameter, option)
    return problem


def _renamed(problem: str, parameter: str, option: str) -> str:
    """Replace a parameter name by its option, except in quotes, which contain the user's words."""
    return re.sub(rf"((?<!\w)'[^']*')|(?<![\w.-]){parameter}\b", lambda found: found[1] or option, problem)


def help_text() -> str:
    """Return the help of the program: usage, and each command with a sentence."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    column = max(map(len, COMMANDS)) + 4
    lines = [f"usage: {PROGRAM} COMMAND ...", "", *textwrap.wrap(_DESCRIPTION, width), "", "commands:"]
    for name, function in COMMANDS.items():
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        lines += textwrap.wrap(summary, width, initial_indent=f"  {name:<{column - 2}}", subsequent_indent=" " * column)
    lines += ["", f"{PROGRAM} COMMAND --help shows the options of a command, --version the version."]
    return "\n".join(lines)


def _documented(documentation: str) -> dict[str, str]:
    """Parse the `Args:` section of a docstring: return the description of each parameter."""
    _, _, section = documentation.partition("\nArgs:\n")
    section = section.split("\n\n")[0]
    return dict(_entries(section))


def _entries(section: str) -> Iterator[tuple[str, str]]:
    for entry in re.split(r"\n(?=    \w+: )", section):
        name, _, words = entry.strip().partition(": ")
        yield name, " ".join(words.split())


def _paragraphs(details: str) -> list[str]:
    """Return the paragraphs of a docstring that come before its sections."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in details.split("\n\n")]
    sections = [number for number, text in enumerate(paragraphs) if text.startswith(("Args:", "Raises:", "Returns:"))]
    return [text for text in paragraphs[: min(sections, default=len(paragraphs))] if text]
