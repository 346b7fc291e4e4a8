r"""Finds Megatron's arguments in a shell script: in arrays, over several lines, and with simple variables.

Example::

    >>> arguments_of_script('TP=8\nARGS=(--tensor-model-parallel-size $TP  # split\n)', "train.sh")
    '--tensor-model-parallel-size 8'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from lightning_predict.base.errors import InvalidArgumentError

# `TP=8`, `export NAME="a b"  # comment`
_ASSIGNED: Final = re.compile(r"^\s*(?:export\s+)?(\w+)=(\"[^\"]*\"|'[^']*'|[^\s;()]*)\s*(?:#.*)?;?\s*$", re.MULTILINE)
# `$TP`, `${TP}`, `${TP:-8}`
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_COMMENT: Final = re.compile(r"(^|\s)#.*")

LAUNCHER: Final = frozenset(
    "nproc_per_node nnodes node_rank master_addr master_port rdzv_id rdzv_backend rdzv_endpoint nproc-per-node "
    "master-addr master-port node-rank max_restarts".split()
)
"""Arguments of torchrun, which launches the training and does not belong to its own arguments."""


def arguments_of_script(text: str, path: str) -> str:
    """Return the arguments in a shell script, with variables replaced by their values.

    Raises:
        InvalidArgumentError: The script has no arguments, or a value is missing.
    """
    arguments = _without_launcher(_arguments_and_values(_words(text)))
    if not arguments:
        raise InvalidArgumentError(f"strategy={path!r} holds no arguments like --tensor-model-parallel-size 8.")
    variables = {name: value.strip("\"'") for name, value in _ASSIGNED.findall(text)}
    return " ".join(_with_values(word, variables) for word in arguments)


def _words(text: str) -> list[str]:
    """Split a script into words, without comments, parentheses, quotes and continued lines."""
    plain = _COMMENT.sub(r"\1", text.replace("\\\n", " "))
    words = (word for line in plain.splitlines() for word in line.replace("(", " ").replace(")", " ").split())
    return [word.strip("\"';") for word in words]


def _arguments_and_values(words: Iterable[str]) -> list[str]:
    """Keep the words that start with `--`, and the word after each if it is its value."""
    kept: list[str] = []
    may_be_value = False
    for word in words:
        is_argument = word.startswith("--")
        if is_argument or (may_be_value and word and not word.startswith("-")):
            kept.append(word)
        may_be_value = is_argument and "=" not in word
    return kept


def _without_launcher(arguments: Sequence[str]) -> list[str]:
    """Remove the arguments of torchrun with their values."""
    kept: list[str] = []
    is_kept = False
    for word in arguments:
        if word.startswith("--"):
            is_kept = word.lstrip("-").partition("=")[0] not in LAUNCHER
        if is_kept:
            kept.append(word)
    return kept


def _with_values(word: str, variables: dict[str, str]) -> str:
    """Replace variables by their values. Unknown variables stay, and cause an error where a number is expected."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return variables.get(name, match[2] if match[2] is not None else match[0])

    for _ in range(len(variables) + 1):  # a value can contain variables
        replaced = _VARIABLE.sub(value, word)
        if replaced == word:
            break
        word = replaced
    return word or "''"
