"""Read how others say what GPUs share: Megatron's and NeMo's arguments, as words of `strategy_of`.

Each argument becomes an option, or is refused where no option says it: nothing is left out in silence. Example::

    >>> strategy_of_arguments("--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --sequence-parallel")
    'ddp,tensor=8,pipeline=4,sequence=true,overlap_grad_reduce=false'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lightning_predict.errors import InvalidArgumentError

_NUMBERS: Final[Mapping[str, str]] = {
    "tensor-model-parallel-size": "tensor",
    "pipeline-model-parallel-size": "pipeline",
    "context-parallel-size": "context",
    "expert-model-parallel-size": "expert",
    "moe-expert-capacity-factor": "capacity",
    "virtual-pipeline-model-parallel-size": "virtual",
}
"""Options with a number, by Megatron's name."""

_FLAGS: Final[Mapping[str, str]] = {
    "sequence-parallel": "sequence=true",
    "overlap-param-gather": "overlap_param_gather=true",
    "tp-comm-overlap": "overlap_tensor=true",
    "optimizer-cpu-offload": "offload=optimizer",
}
"""Options that are there or not. `overlap-grad-reduce` is the default here and not there."""

_CHOICES: Final[Mapping[str, Mapping[str, str]]] = {
    "recompute-granularity": {"full": "recompute=full", "selective": "recompute=selective"},
    "fp8-recipe": {"tensorwise": "fp8=tensorwise", "delayed": "fp8=tensorwise", "blockwise": "fp8=blockwise"},
}


def strategy_of_arguments(text: str) -> str:
    """Translate arguments, separated by spaces, into the words of a strategy.

    Args:
        text: As `--tensor-model-parallel-size 8 --sequence-parallel`; `=` may stand between name and value, and
            underscores for hyphens, as NeMo writes them.

    Raises:
        InvalidArgumentError: An argument that no option says, or a value that is missing or not expected.
    """
    words, options, data, overlaps = text.replace("=", " ").split(), list[str](), "ddp", False
    while words:
        name = words.pop(0)
        known = name.removeprefix("--").replace("_", "-")
        if known in _NUMBERS:
            number = _value(name, words)
            options += [] if number in ("1", "1.0") else [f"{_NUMBERS[known]}={number}"]
        elif known in _CHOICES:
            value = _value(name, words)
            if value not in _CHOICES[known]:
                raise InvalidArgumentError(
                    f"strategy: {name} {value}; expected {' or '.join(_CHOICES[known])}, which have a word here."
                )
            options.append(_CHOICES[known][value])
        elif known in _FLAGS:
            options.append(_FLAGS[known])
        elif known == "use-distributed-optimizer":
            data = "zero1"
        elif known == "overlap-grad-reduce":
            overlaps = True
        else:
            understood = ", ".join((*_NUMBERS, *_CHOICES, *_FLAGS, "use-distributed-optimizer", "overlap-grad-reduce"))
            raise InvalidArgumentError(
                f"strategy: the argument {name} says nothing here; leave out what is not about sharing. Understood "
                f"are {understood}."
            )
    options += [] if overlaps else ["overlap_grad_reduce=false"]
    return ",".join([data, *options])


def _value(name: str, words: list[str]) -> str:
    """Take the value of an argument.

    Raises:
        InvalidArgumentError: It has none.
    """
    if not words or words[0].startswith("--"):
        raise InvalidArgumentError(f"strategy: {name} has no value; expected one behind it.")
    return words.pop(0)
