"""`Fields`: one mapping of a YAML file (or row of a CSV) that names its place in whatever it complains about.

Example::

    >>> Fields("jobs.yaml", "job 'bert'", {"deadline_hours": "soon"}).number("deadline_hours")
    Traceback (most recent call last):
    lightning_predict.errors.PlanningFormatError: jobs.yaml: job 'bert': deadline_hours is 'soon'; expected a number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import yaml

from lightning_predict.errors import PlanningFormatError


@final
@dataclass(frozen=True, slots=True)
class Fields:
    """Keys and values, and where they stand.

    Attributes:
        file: Name of the file.
        place: Words that single the mapping out.
        values: What it holds.
    """

    file: str
    place: str
    values: Mapping[str, Any]

    def error(self, problem: str) -> PlanningFormatError:
        """An error about this mapping, to be raised."""
        return PlanningFormatError(f"{self.file}: {self.place}: {problem}")

    def check_keys(self, required: frozenset[str], optional: frozenset[str] = frozenset()) -> None:
        """Refuse missing keys and keys that nobody reads, such as misspelt ones."""
        for key in sorted(required - self.values.keys()):
            raise self.error(f"{key} is missing.")
        for key in sorted(str(key) for key in self.values.keys() - required - optional):
            known = ", ".join(sorted(required | optional))
            raise self.error(f"{key} is unknown; correct its spelling or remove it. Keys: {known}.")

    def has(self, key: str) -> bool:
        """Whether the key is there, with a value."""
        return self.values.get(key) is not None

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number; the default where the key is absent and there is one."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(f"{key} is {value!r}; expected a number.")
        return float(value)

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number above 0."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(f"{key} is {value!r}; expected a whole number above 0.")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} is {value!r}; expected true or false.")
        return value

    def text(self, key: str) -> str:
        """A text that is not blank."""
        value = self.values.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.error(f"{key} is {value!r}; expected a text.")
        return value

    def child(self, key: str, place: str) -> Fields:
        """A mapping under a key, empty where the key is absent."""
        value = self.values.get(key, {})
        if not isinstance(value, Mapping):
            raise self.error(f"{key} is {value!r}; expected keys and values.")
        return Fields(self.file, place, value)

    def items(self, key: str) -> list[Any]:
        """A list."""
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self.error(f"{key} is {value!r}; expected a list.")
        return value

    def children(self, key: str, what: str) -> list[Fields]:
        """A list of mappings, each placed by its name or its number."""
        children = []
        for number, item in enumerate(self.items(key), start=1):
            if not isinstance(item, Mapping):
                raise self.error(f"{what} {number} of {key} is {item!r}; expected keys and values.")
            name = item.get("name")
            children.append(Fields(self.file, f"{what} {number}" if name is None else f"{what} {name!r}", item))
        return children


def read_yaml(path: Path) -> Fields:
    """A whole YAML file.

    Raises:
        PlanningFormatError: It is missing, not YAML, or not a mapping at its top.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PlanningFormatError(f"{path} does not exist; give the path of a YAML file.") from None
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise PlanningFormatError(f"{path} is not a YAML file that can be read: {error}") from error
    if not isinstance(document, Mapping):
        raise PlanningFormatError(f"{path}: the top is {type(document).__name__}; expected keys and values.")
    return Fields(path.name, "top", document)
