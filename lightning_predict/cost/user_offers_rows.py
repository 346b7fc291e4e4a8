"""What both forms of a user's price file share: a place to complain about, and the checks of single values.

Example::

    >>> place = Place("prices.yaml", line=3, column="usd_per_hour")
    >>> price(place, -1)
    Traceback (most recent call last):
    lightning_predict.errors.CatalogueError: prices.yaml, line 3, usd_per_hour: is -1, but must be a number above 0, \
in US dollars per hour of the whole machine.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from lightning_predict.cost.records import Offer
from lightning_predict.errors import CatalogueError, UnknownGpuError
from lightning_predict.gpus import Gpu
from lightning_predict.gpus import gpu as find_gpu

CURRENCY: Final = "USD"

DATE_PATTERN: Final = re.compile(r"\d{4}-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?")
"""A month or a day. A year alone would be too coarse for prices."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OfferFile:
    """What a price file holds.

    Attributes:
        offers: Its offers, in its order.
        notes: What was left out of them, and why, in words for the user.
    """

    offers: tuple[Offer, ...]
    notes: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Place:
    """Where in a file something stands.

    Attributes:
        file: Name of the file.
        line: Line, counted from 1; None where the whole file is meant.
        column: Name of the column or key; None where the whole line is meant.
    """

    file: str
    line: int | None = None
    column: str | None = None

    def __str__(self) -> str:
        line = "" if self.line is None else f", line {self.line}"
        return f"{self.file}{line}" + ("" if self.column is None else f", {self.column}")

    def error(self, problem: str) -> CatalogueError:
        """An error about this place, to be raised."""
        return CatalogueError(f"{self}: {problem}")


def price(place: Place, value: object) -> float:
    """A price above 0.

    Raises:
        CatalogueError: It is no number, or not above 0.
    """
    number = _number(value)
    if number is None or not (math.isfinite(number) and number > 0):
        raise place.error(
            f"is {_shown(value)}, but must be a number above 0, in US dollars per hour of the whole machine."
        )
    return number


def count(place: Place, value: object) -> int:
    """A whole number above 0.

    Raises:
        CatalogueError: It is something else.
    """
    number = _number(value)
    if number is None or number <= 0 or number != int(number):
        raise place.error(f"is {_shown(value)}, but must be a whole number above 0.")
    return int(number)


def day(place: Place, value: object) -> str:
    """An ISO day or month, as text.

    Raises:
        CatalogueError: It is something else, for example missing.
    """
    text = str(value)
    if value is None or not DATE_PATTERN.fullmatch(text):
        raise place.error(
            f"is {_shown(value)}, but every price needs the day or month that it holds for, like 2026-11 or 2026-11-21."
        )
    return text


def text(place: Place, value: object) -> str:
    """A text that is not blank; numbers are taken as they are written.

    Raises:
        CatalogueError: It is blank, missing or a list.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        raise place.error(f"is {_shown(value)}, but must be a text that is not blank.")
    return str(value).strip()


def dollars(place: Place, value: object) -> None:
    """Refuse prices in another currency: a rate of exchange is the user's to choose.

    Raises:
        CatalogueError: It is not USD.
    """
    if text(place, value).upper() != CURRENCY:
        raise place.error(
            f"is {_shown(value)}; prices are compared in US dollars only. Convert them, and leave this key out."
        )


def known_gpu(place: Place, value: object) -> Gpu:
    """The GPU of this name.

    Raises:
        UnknownGpuError: The catalogue does not hold it; the message names the nearest.
    """
    try:
        return find_gpu(text(place, value))
    except UnknownGpuError as error:
        raise UnknownGpuError(f"{place}: {error}") from None


def nearest(word: str, words: Iterable[str]) -> str:
    """A sentence that suggests the nearest of some words, or lists them all."""
    known = sorted(set(words))
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else f"Expected one of: {', '.join(known)}."


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def _shown(value: object) -> str:
    return "missing" if value is None else f"{value!r}" if isinstance(value, str) else f"{value}"
