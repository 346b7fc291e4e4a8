"""The commands, and their options: cyclopts, filled from each command's type hints and docstring.

Numbers can be written as `1e6`, `1,000` or `100k`. Option names can contain underscores. Example::

    >>> call = parsed("gpus", ["gpus", "H100", "--min-memory-gib", "80"])
    >>> call.arguments["min_memory_gib"], call.as_json
    (80.0, False)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_type_hints

from cyclopts import App, Parameter, Token
from cyclopts.help import DefaultFormatter, DescriptionRenderer, HelpPanel, NameRenderer

from lightning_predict.base import __version__
from lightning_predict.base.answers import CommandAnswer
from lightning_predict.base.model_options import ModelOptions
from lightning_predict.hardware.lookup import LISTING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

PROGRAM: Final = "lightning-predict"

_DESCRIPTION: Final = "Predict the time, memory and cost of a training run on the GPUs that you could rent."


def completion(shell: Literal["bash", "zsh", "fish"], /) -> CommandAnswer:
    """Print shell completion of commands and options.

    Add it to the shell's startup file: `lightning-predict completion bash >> ~/.bashrc`, `completion zsh >> ~/.zshrc`
    or `completion fish > ~/.config/fish/completions/lightning-predict.fish`.
    """
    text = application(COMMANDS).generate_completion(prog_name=PROGRAM, shell=shell)
    return CommandAnswer(data=lambda: {"shell": shell, "text": text}, show=lambda: print(text))


Command = Callable[..., CommandAnswer]  # Function of a command. Its type hints and docstring make its options.

COMMANDS: Final[Mapping[str, str]] = {
    "predict": "Predict time, cost and memory of a training step on GPUs, and which GPU to rent.",
    "run": "Run an unmodified training script with predictions.",
    "advise": "Recommend changes of a recorded step, with their gains.",
    "trace": "Check, anonymise, import or inspect a recorded step.",
    "history": "Compare predicted and actual times of earlier runs.",
    "regress": "Predict runs from the times of your own past runs.",
    "shard": "Find the fastest sharding of embedding tables over GPUs.",
    "parallel": "Find the fastest parallel strategies for many GPUs.",
    "curve": "Show time, cost and efficiency over the number of GPUs.",
    "accuracy": "Show published steps like yours, with the errors of their predictions.",
    "plan": "Plan the jobs of a team on machines to rent.",
    "gpus": "List GPUs, or show all data of one.",
    "offers": "List or refresh rental prices.",
    "measure": "Measure operations on this machine's GPU.",
    "first-hour": "Test recording and measure this machine's GPU, into one file for a report.",
    "train": "Tune the weights to your own GPU.",
    "cache": "Show or delete downloaded weights and recorded steps.",
    "completion": "Print shell completion.",
}
"""Commands in the order of the help, with a summary, so that the help imports none of them."""


def command_of(name: str) -> Command:
    """Import the function of a command. Each is imported alone, as some need scipy or torch."""
    command: Command
    match name:
        case "predict":
            from lightning_predict.cli.prediction_commands import predict as command
        case "run":
            from lightning_predict.cli.script_commands import run as command
        case "advise":
            from lightning_predict.advice.commands import advise as command
        case "trace":
            from lightning_predict.cli.trace_commands import trace as command
        case "history":
            from lightning_predict.cli.history_commands import history as command
        case "regress":
            from lightning_predict.regression.commands import regress as command
        case "shard":
            from lightning_predict.embeddings.commands import shard as command
        case "parallel":
            from lightning_predict.layout_search.commands import parallel as command
        case "curve":
            from lightning_predict.layout_search.commands import curve as command
        case "accuracy":
            from lightning_predict.cli.accuracy_commands import accuracy as command
        case "plan":
            from lightning_predict.planning.commands import plan as command
        case "gpus":
            from lightning_predict.cli.catalogue_commands import gpus as command
        case "offers":
            from lightning_predict.cli.catalogue_commands import offers as command
        case "measure":
            from lightning_predict.own_weights.commands import measure as command
        case "first-hour":
            from lightning_predict.own_weights.commands import first_hour as command
        case "train":
            from lightning_predict.own_weights.commands import train as command
        case "cache":
            from lightning_predict.cli.history_commands import cache as command
        case _:
            command = completion
    return command


@dataclass(frozen=True, slots=True)
class ParsedCommand:
    """A parsed command line."""

    run: Callable[[], CommandAnswer]
    arguments: Mapping[str, object]
    as_json: bool


def application(names: Collection[str]) -> App:
    """Return the parser of some commands; of the others, it knows only the names.

    It prints the requested help, or returns a `ParsedCommand`.
    """
    app = App(
        name=PROGRAM,
        help=_DESCRIPTION,
        version=f"{PROGRAM} {__version__}",
        help_format="plaintext",
        help_formatter=_Columns(),
        default_parameter=Parameter(negative=()),
        result_action="return_value",
    )
    for place, (name, summary) in enumerate(COMMANDS.items()):
        if name in names:
            app.command(_returning_call(command_of(name)), name=name, sort_key=place)
        else:
            app.command(App(name=name, help=summary, sort_key=place))
    return app


class _Columns(DefaultFormatter):
    """Prints each section of the help as two aligned columns, without frames."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:  # noqa: ARG002
        """Print one section."""
        from rich.table import Table

        if not panel.entries:
            return
        table, name, description = Table.grid(padding=(0, 2)), NameRenderer(), DescriptionRenderer()
        for entry in panel.entries:
            table.add_row(f"  {name(entry)}", description(entry))
        console.print(f"{panel.title}:", table, "", sep="\n")


def parsed(name: str | None, words: Sequence[str]) -> ParsedCommand | None:
    """Parse a command line; return None if it asks for help or the version, which is printed.

    Args:
        name: The command; None if the words do not begin with one.
        words: The command and its arguments.
    """
    parser = application([] if name is None else [name])
    call: ParsedCommand | None = parser(
        _separated(words) if name == "run" else words, exit_on_error=False, print_error=False
    )
    return call


def _returning_call(function: Command) -> Callable[..., ParsedCommand]:
    """Wrap the function of a command for cyclopts: the same options and `--json`, but parsing runs nothing yet."""
    hints, own = get_type_hints(ModelOptions) | get_type_hints(function), inspect.signature(function)
    parameters = [
        one.replace(annotation=Annotated[hints[one.name], _parameter(one)]) for one in _parameters(function).values()
    ]
    as_json = Annotated[bool, Parameter(help="Print JSON.", show_default=False)]
    parameters.append(inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=as_json))

    takes_model = _takes_model(own.parameters)

    def call(*words: object, json: bool = False, **options: Any) -> ParsedCommand:
        if takes_model:
            options[_MODEL] = ModelOptions(**{name: options.pop(name) for name in _MODEL_FIELDS if name in options})
        arguments = own.bind(*words, **options)
        arguments.apply_defaults()
        return ParsedCommand(lambda: function(*words, **options), arguments.arguments, json)

    text = inspect.getdoc(function) or ""
    if takes_model:
        text += inspect.getdoc(ModelOptions).partition("Attributes:")[2]  # type: ignore[union-attr]
    call.__doc__ = re.sub(r"(?<=\S)\n +(?! *\w+: )", " ", text)  # one line an argument
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__dict__["__signature__"] = inspect.Signature(parameters)
    return call


_MODEL: Final = "model"  # Parameter of commands that take a model by name; its fields are options

_MODEL_FIELDS: Final = tuple(field.name for field in fields(ModelOptions))


def _parameters(function: Command) -> dict[str, inspect.Parameter]:
    """Return the parameters of a command by name, with the fields of `ModelOptions` in place of its parameter."""
    own = dict(inspect.signature(function).parameters)
    if _takes_model(own):
        del own[_MODEL]
        own |= inspect.signature(ModelOptions).parameters
    return own


def _takes_model(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return _MODEL in parameters and parameters[_MODEL].annotation == ModelOptions.__name__


def _parameter(parameter: inspect.Parameter) -> Parameter:
    reader = {"int": _whole_number, "float": _number}.get(str(parameter.annotation).removesuffix(" | None"))
    return Parameter(converter=reader, show_default=parameter.default not in (None, False, parameter.empty))


def _separated(words: Sequence[str]) -> list[str]:
    """Separate the options of `run` from its script with `--`: what follows the script belongs to the script."""
    place = 1
    while place < len(words) and words[place].startswith("-"):
        place += 1 if "=" in words[place] or words[place] in ("--json", "--help", "-h") else 2
    return [*words[:place], "--", *words[place:]] if place < len(words) else [*words]


_GROUPED: Final = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")  # Number with commas between groups of three digits

_SUFFIXES: Final[Mapping[str, float]] = {"k": 1e3, "K": 1e3, "M": 1e6}


def _value(text: str) -> float | None:
    """Parse `1000`, `1,000`, `1_000`, `1e3` or `1k`; return None if the text is not a number."""
    plain = text.strip()
    if "," in plain:
        if not _GROUPED.fullmatch(plain):
            point, joined = plain.replace(",", "."), plain.replace(",", "")
            if point.count(".") == 1 and re.fullmatch(r"[+-]?\d+", joined):
                raise ValueError(
                    f"is {text!r}, which may be {point} or {int(joined)}. Write it with a point, or without the comma."
                )
            return None
        plain = plain.replace(",", "")
    factor = _SUFFIXES.get(plain[-1:], 1.0)
    try:
        return factor * float((plain[:-1] if factor > 1 else plain).replace("_", ""))
    except ValueError:
        return None


def _whole_number(_: object, tokens: Sequence[Token]) -> int:
    value = _value(tokens[0].value)
    if value is None or not value.is_integer():
        raise ValueError(f"is {tokens[0].value!r}, but expected a whole number, for example 1000, 1e6 or 100k.")
    return int(value)


def _number(_: object, tokens: Sequence[Token]) -> float:
    value = _value(tokens[0].value)
    if value is None:
        raise ValueError(f"is {tokens[0].value!r}, but expected a number.")
    return value


def option_of(parameter: str) -> str:
    """Return the option of a parameter: `--usd-per-hour` for `usd_per_hour`, `--try` for `try_`."""
    return f"--{parameter.rstrip('_').replace('_', '-')}"


def option_names(name: str) -> tuple[str, ...]:
    """Return the options of a command."""
    parameters = _parameters(command_of(name)).values()
    return (*(option_of(one.name) for one in parameters if one.kind is one.KEYWORD_ONLY), "--json")


def as_options(message: str, name: str) -> str:
    """Replace Python arguments in an error message by options: `usd_per_hour=-1` by `--usd-per-hour -1`."""
    message = message.replace(LISTING, f"{PROGRAM} gpus")
    for parameter in _parameters(command_of(name)):
        option = option_of(parameter)
        # In Python, --budget is `budget_usd`.
        message = re.sub(rf"(?<![\w.-]){parameter}(?:_usd)?=(?: |(?=\S))", f"{option} ", message)
        if "_" in parameter:
            message = _renamed(message, parameter, option)
    return message


def _renamed(message: str, parameter: str, option: str) -> str:
    """Replace a parameter name by its option, except in quotes, which contain the user's words."""
    return re.sub(rf"((?<!\w)'[^']*')|(?<![\w.-]){parameter}\b", lambda match: match[1] or option, message)
