"""Checks of what users hand to the callbacks: each says what was given, what was expected and what to do.

Example::

    check_steps("warmup_steps", 0)   # InvalidArgumentError: warmup_steps=0 is not a number of steps; ...
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from os import PathLike
from pathlib import Path

from lightning_predict.errors import InvalidArgumentError, WeightsNotFoundError


def check_steps(name: str, steps: int) -> None:
    """Refuse a number of steps that is not at least 1.

    Args:
        name: The argument.
        steps: Its value.

    Raises:
        InvalidArgumentError: It is not.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InvalidArgumentError(f"{name}={steps!r} is not a number of steps; expected a whole number of at least 1.")


def check_amount(name: str, amount: float | None) -> None:
    """Refuse a limit that is not a positive number; None is no limit.

    Args:
        name: The argument.
        amount: Its value.

    Raises:
        InvalidArgumentError: It is not.
    """
    if amount is not None and not (math.isfinite(amount) and amount > 0):
        raise InvalidArgumentError(f"{name}={amount!r} is not a limit; expected a number above 0, or None.")


def check_epoch(batches_per_epoch: int | None, samples_per_epoch: int | None) -> None:
    """Refuse lengths of an epoch that are not at least 1, and two of them.

    Args:
        batches_per_epoch: Batches; None where not given.
        samples_per_epoch: Samples; None where not given.

    Raises:
        InvalidArgumentError: It is so.
    """
    for name, length in (("batches_per_epoch", batches_per_epoch), ("samples_per_epoch", samples_per_epoch)):
        if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
            raise InvalidArgumentError(f"{name}={length!r} is not a length; expected a whole number of at least 1.")
    if batches_per_epoch is not None and samples_per_epoch is not None:
        raise InvalidArgumentError(
            f"batches_per_epoch={batches_per_epoch} and samples_per_epoch={samples_per_epoch} both say how long an "
            "epoch is; give one of them."
        )


def check_weights(weights: str | None) -> None:
    """Refuse a file or folder of weights that does not exist; None takes those that come with the package.

    Args:
        weights: Where they are.

    Raises:
        WeightsNotFoundError: It does not exist.
    """
    if weights is not None and not Path(weights).exists():
        raise WeightsNotFoundError(
            f"weights={weights!r} does not exist; give a file or folder of weights, or leave it out for the weights "
            "that come with the package."
        )


def check_trace_file(name: str, path: str | PathLike[str] | None) -> None:
    """Refuse what cannot name the file of a trace; None is no file. Folders that do not exist will be made.

    Args:
        name: The argument.
        path: Its value.

    Raises:
        InvalidArgumentError: It is no path, does not end in `.json` or `.json.gz`, or lies where no file can be.
    """
    if path is None:
        return
    if not isinstance(path, (str, PathLike)):
        raise InvalidArgumentError(f"{name}={path!r} is not a path; expected a file, for example 'step.json.gz'.")
    file = Path(path)
    if not file.name.endswith((".json", ".json.gz")):
        raise InvalidArgumentError(f"{name}={str(path)!r} does not end in .json or .json.gz, as a trace's file does.")
    if file.is_dir():
        raise InvalidArgumentError(f"{name}={str(path)!r} is a folder; expected a file in it, for example step.json.gz.")
    above = next((folder for folder in file.absolute().parents if folder.exists()), None)
    if above is not None and not above.is_dir():
        raise InvalidArgumentError(f"{name}={str(path)!r} lies below {str(above)!r}, which is a file and no folder.")


def check_choice(name: str, choice: str, choices: Sequence[str]) -> None:
    """Refuse what is not among the choices.

    Args:
        name: The argument.
        choice: Its value.
        choices: What it may be.

    Raises:
        InvalidArgumentError: It is none of them.
    """
    if choice not in choices:
        raise InvalidArgumentError(f"{name}={choice!r} is not known; expected one of {', '.join(map(repr, choices))}.")


def future_time(name: str, text: str) -> datetime:
    """The time that an ISO text names, local where it has no zone.

    Args:
        name: The argument.
        text: Its value, for example `2030-01-31T18:00` or `2030-01-31T18:00+01:00`.

    Raises:
        InvalidArgumentError: It cannot be read, or has passed.
    """
    try:
        time = datetime.fromisoformat(text).astimezone()
    except ValueError as error:
        raise InvalidArgumentError(
            f"{name}={text!r} is not a time; expected ISO format, for example '2030-01-31T18:00'."
        ) from error
    if time <= datetime.now().astimezone():
        raise InvalidArgumentError(f"{name}={text!r} has passed; expected a time in the future.")
    return time
