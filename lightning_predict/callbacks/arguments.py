"""Checks of the callbacks' arguments. Each error names the given value, the expected value and a remedy.

Example::

    check_steps("warmup_steps", 0)   # InvalidArgumentError: warmup_steps=0 is not a number of steps; ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from os import PathLike
from pathlib import Path

from lightning_predict.assumptions import Assumptions
from lightning_predict.base.checked import positive_number, shown
from lightning_predict.base.errors import InvalidArgumentError, WeightsNotFoundError
from lightning_predict.base.units import seconds_to_hours
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.weights.source import AnyWeights, WeightsSource, weights_source

MetaStep = Callable[[int], Callable[[], object]]
"""Function that makes a step on the meta device from a batch size."""


def check_steps(name: str, steps: int) -> None:
    """Reject a number of steps below 1."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InvalidArgumentError(f"{name}={steps!r} is not a number of steps; expected a whole number of at least 1.")


def amount_of(name: str, amount: object) -> float:
    """Convert a positive number (int, float, Decimal, Fraction or numpy number) to a float."""
    number = positive_number(amount)
    if number is None:
        raise InvalidArgumentError(f"{name}={shown(amount)} is not a limit; expected a number above 0, or None.")
    return number


def hours_of(name: str, hours: object) -> float:
    """Convert a number or a timedelta to hours."""
    if isinstance(hours, timedelta) and hours > timedelta(0):
        return seconds_to_hours(hours.total_seconds())
    return amount_of(name, hours)


def check_name(name: str, text: object, example: str) -> None:
    """Reject a name that is not a string. None means that there is no name."""
    if text is not None and not isinstance(text, str):
        raise InvalidArgumentError(f"{name}={shown(text)} is not a name; expected a string, for example {example!r}.")


def check_epoch(batches_per_epoch: int | None) -> None:
    """Reject an epoch length below 1."""
    length = batches_per_epoch
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
        raise InvalidArgumentError(
            f"batches_per_epoch={length!r} is not a length; expected a whole number of at least 1."
        )


def checked_assumptions(assumptions: Assumptions | None) -> Assumptions:
    """Return the assumptions, or the defaults. Reject a missing file or folder of weights, and fields that have no use.

    Raises:
        InvalidArgumentError: `assumptions` is of another type, or has a strategy or a history.
        WeightsNotFoundError: The weights do not exist.
    """
    found = Assumptions() if assumptions is None else assumptions
    if not isinstance(found, Assumptions):
        raise InvalidArgumentError(
            f"assumptions={shown(found)} is not an Assumptions; expected, for example, "
            "lightning_predict.assumptions.Assumptions(host='fast')."
        )
    if found.strategy != Strategy() or found.history:
        raise InvalidArgumentError(
            "RuntimePredictor ignores strategy and history of its assumptions; give strategy=..., and leave out the "
            "history, which comes from earlier runs."
        )
    if found.cores_per_node is not None:
        check_steps("cores_per_node", found.cores_per_node)
    return replace(found, weights=check_weights(found.weights))


def check_weights(weights: AnyWeights) -> WeightsSource:
    """Reject a missing file or folder of weights. None means the weights of the package."""
    source = weights_source(weights)
    if source.path is not None and not Path(source.path).expanduser().exists():
        raise WeightsNotFoundError(
            f"weights={source.path!r} does not exist; give a file or folder of weights, or leave it out for the "
            "weights that come with the package."
        )
    return source


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


def future_time(name: str, time: object) -> datetime:
    """Parse a time in the future. A time without a time zone is local time.

    Args:
        name: Name of the argument, for errors.
        time: An ISO text, for example `2030-01-31T18:00` or `2030-01-31T18:00+01:00`, or a datetime.
    """
    try:
        if not isinstance(time, str | datetime):
            raise ValueError("not a string or a datetime")
        given = time if isinstance(time, datetime) else datetime.fromisoformat(time)
        found = datetime.fromtimestamp(given.timestamp(), timezone.utc).astimezone()  # also for an hour left out
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidArgumentError(
            f"{name}={shown(time)} is not a time; expected ISO format, for example '2030-01-31T18:00', or a datetime."
        ) from error
    if found <= datetime.now().astimezone():
        raise InvalidArgumentError(f"{name}={shown(time)} has passed; expected a time in the future.")
    return found
