"""`Checked`: a JSON value that knows where it stands, for reading files that others wrote.

Each method returns the value as the asked type or raises an error that names the place, what was found and what was
expected. Example::

    >>> Checked({"batches": -1}, "run.json").member("batches").integer(minimum=1)
    Traceback (most recent call last):
    ...
    lightning_predict.errors.TraceFormatError: run.json: batches is -1; expected an integer of at least 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

from lightning_predict.errors import TraceFormatError

Value = TypeVar("Value")
Choice = TypeVar("Choice", bound=str)


@final
@dataclass(frozen=True, slots=True)
class Checked:
    """A JSON value and its place.

    Attributes:
        value: What the JSON parser returned.
        source: The file.
        place: Path of fields within the file, for example `operations[3].phase`; empty for the whole.
    """

    value: Any
    source: str
    place: str = ""

    def wrong(self, expected: str) -> TraceFormatError:
        """The error that says what stands here and what was expected."""
        shown = repr(self.value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return TraceFormatError(f"{self.source}: {self.place or 'the whole file'} is {shown}; expected {expected}.")

    def mapping(self) -> dict[str, Any]:
        """An object, as it is."""
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        return self.value

    def member(self, name: str) -> Checked:
        """A field that must be there."""
        mapping = self.mapping()
        place = f"{self.place}.{name}" if self.place else name
        if name not in mapping:
            raise TraceFormatError(f"{self.source}: {place} is missing; expected it in every such file.")
        return Checked(mapping[name], self.source, place)

    def optional(self, name: str, read: Callable[[Checked], Value], default: Value) -> Value:
        """A field that may be left out; `read` turns it into its value."""
        return read(self.member(name)) if name in self.mapping() else default

    def refuse_unknown(self, names: frozenset[str]) -> None:
        """Raise where the object has a field that `names` does not list."""
        strangers = sorted(set(self.mapping()) - names)
        if strangers:
            place = self.place or "the whole file"
            raise TraceFormatError(
                f"{self.source}: {place} has the field {strangers[0]!r}; expected only {', '.join(sorted(names))}."
            )

    def items(self, *, length: int | None = None) -> list[Checked]:
        """The elements of an array."""
        if not isinstance(self.value, list):
            raise self.wrong("an array")
        if length is not None and len(self.value) != length:
            raise self.wrong(f"an array of {length}")
        return [Checked(item, self.source, f"{self.place}[{index}]") for index, item in enumerate(self.value)]

    def text(self) -> str:
        """A string."""
        if not isinstance(self.value, str):
            raise self.wrong("a string")
        return self.value

    def choice(self, options: Sequence[Choice]) -> Choice:
        """One of some strings."""
        for option in options:
            if self.value == option:
                return option
        raise self.wrong(f"one of {', '.join(options)}")

    def flag(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            raise self.wrong("true or false")
        return self.value

    def integer(self, *, minimum: int = 0, maximum: int | None = None) -> int:
        """A whole number within bounds."""
        bounds = f"an integer of at least {minimum}" + ("" if maximum is None else f" and at most {maximum}")
        if not isinstance(self.value, int) or isinstance(self.value, bool) or self.value < minimum:
            raise self.wrong(bounds)
        if maximum is not None and self.value > maximum:
            raise self.wrong(bounds)
        return self.value

    def any_number(self) -> float:
        """A finite number."""
        if not isinstance(self.value, int | float) or isinstance(self.value, bool) or not math.isfinite(self.value):
            raise self.wrong("a finite number")
        return self.value

    def number(self) -> float:
        """A finite number that is not negative."""
        value = self.any_number()
        if value < 0:
            raise self.wrong("a number of at least 0")
        return value
