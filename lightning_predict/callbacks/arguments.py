"""Checks of the callbacks' arguments. Each error names the given value, the expected value and a remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from lightning_predict.assumptions import Assumptions
from lightning_predict.base.checked import shown
from lightning_predict.base.errors import InvalidArgumentError, WeightsNotFoundError
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.weights.source import weights_source


def check_steps(name: str, steps: int, *, what: str = "a number of steps") -> None:
    """Reject a number of steps, or of other things, below 1."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InvalidArgumentError(f"{name}={steps!r} is not {what}; expected a whole number of at least 1.")


def checked_assumptions(assumptions: Assumptions | None) -> Assumptions:
    """Return the assumptions, or the defaults; reject missing weights, and fields that have no use."""
    given = Assumptions() if assumptions is None else assumptions
    if not isinstance(given, Assumptions):
        raise InvalidArgumentError(
            f"assumptions={shown(given)} is not an Assumptions; expected, for example, "
            "lightning_predict.assumptions.Assumptions(host='fast')."
        )
    if given.strategy != Strategy() or given.history:
        raise InvalidArgumentError(
            "RuntimePredictor ignores strategy and history of its assumptions; give strategy=..., and leave out the "
            "history, which comes from earlier runs."
        )
    if given.cores_per_node is not None:
        check_steps("cores_per_node", given.cores_per_node, what="a number of cores")
    source = weights_source(given.weights)
    if source.path is not None and not Path(source.path).expanduser().exists():
        raise WeightsNotFoundError(
            f"weights={source.path!r} does not exist; give a file or folder of weights, or leave it out for the "
            "weights that come with the package."
        )
    return replace(given, weights=source)


def check_file(
    name: str, path: str | PathLike[str] | None, *, endings: tuple[str, ...] = (".json", ".json.gz"), example: str
) -> None:
    """Reject a path that cannot be an output file. None means no file; missing folders are allowed."""
    if path is None:
        return
    if not isinstance(path, (str, PathLike)):
        raise InvalidArgumentError(f"{name}={path!r} is not a path; expected a file, for example {example!r}.")
    file = Path(path)
    if not file.name.endswith(endings):
        raise InvalidArgumentError(f"{name}={str(path)!r} does not end in {' or '.join(endings)}, as its files do.")
    if "://" in str(path):
        raise InvalidArgumentError(f"{name}={str(path)!r} is a remote address; expected a local file, as {example}.")
    if file.is_dir():
        raise InvalidArgumentError(f"{name}={str(path)!r} is a folder; expected a file in it, for example {example}.")
    above = next((folder for folder in file.absolute().parents if folder.exists()), None)
    if above is not None and not above.is_dir():
        raise InvalidArgumentError(f"{name}={str(path)!r} lies below {str(above)!r}, which is a file, not a folder.")


def check_choice(name: str, choice: str, choices: Sequence[str]) -> None:
    """Reject a value that is not one of the choices."""
    if not isinstance(choice, str) or choice not in choices:
        raise InvalidArgumentError(f"{name}={choice!r} is not known; expected one of {', '.join(map(repr, choices))}.")
