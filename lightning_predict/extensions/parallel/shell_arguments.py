r"""Finds Megatron's arguments in a shell script: in arrays, over several lines, and with simple variables.

Example::

    >>> arguments_of_script('TP=8\nARGS=(--tensor-model-parallel-size $TP  # split\n)', "train.sh")
    '--tensor-model-parallel-size 8'
"""

from __future__ import annotations

import re
from typing import Final

from lightning_predict.errors import InvalidArgumentError

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
    variables = {name: value.strip("\"'") for name, value in _ASSIGNED.findall(text)}
    plain = _COMMENT.sub(r"\1", text.replace("\\\n", " "))
    words = [word for line in plain.splitlines() for word in line.replace("(", " ").replace(")", " ").split()]
    found: list[str] = []
    # A word after an argument is its value, unless the argument already has one by `=`.
    for word in (one.strip("\"';") for one in words):
        is_value = bool(found) and found[-1].startswith("--") and "=" not in found[-1]
        if word.startswith("--") or (is_value and not word.startswith("-")):
            found.append(word)
        elif word:
            found.append("")  # end of an argument's values
    arguments = [word for word in found if word]
    kept: list[str] = []
    for number, word in enumerate(arguments):
        if word.startswith("--"):
            name = word.lstrip("-").partition("=")[0]
            own = arguments[number + 1] if number + 1 < len(arguments) else "--"
            kept += [] if name in LAUNCHER else [word, *([] if own.startswith("--") else [own])]
    if not kept:
        raise InvalidArgumentError(f"strategy={path!r} holds no arguments like --tensor-model-parallel-size 8.")
    return " ".join(_filled(word, variables) for word in kept)


def _filled(word: str, variables: dict[str, str]) -> str:
    """Replace variables by their values. Unknown variables stay, and cause an error where a number is expected."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return variables.get(name, match[2] if match[2] is not None else match[0])

    for _ in range(len(variables) + 1):
        filled = _VARIABLE.sub(value, word)
        if filled == word:
            break
        word = filled
    return word or "''"
