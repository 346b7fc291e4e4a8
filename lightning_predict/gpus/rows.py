"""`Row`: one table of a TOML file that names file, row and key in whatever it complains about.

Example::

    >>> row = Row("volta.toml", "gpu.V100", {"power_watts": -300})
    >>> row.number("power_watts")
    Traceback (most recent call last):
    lightning_predict.errors.CatalogueError: volta.toml: [gpu.V100] power_watts: is -300, but must be a finite number \
above 0 in the unit that the key names.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from lightning_predict.errors import CatalogueError

DATE_PATTERN: Final = re.compile(r"\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?")


@final
@dataclass(frozen=True, slots=True)
class Row:
    """One table and where it stands.

    Attributes:
        file: Name of the TOML file.
        name: The table's heading, or words that single the row out.
        table: Its keys and values, as tomllib gives them.
    """

    file: str
    name: str
    table: Mapping[str, Any]

    def error(self, key: str, problem: str) -> CatalogueError:
        """An error about one key, to be raised."""
        return CatalogueError(f"{self.file}: [{self.name}] {key}: {problem}")

    def child(self, key: str, name: str) -> Row:
        """The table under a key as a row of its own, empty where the key is absent."""
        value = self.table.get(key, {})
        if not isinstance(value, Mapping):
            raise self.error(key, f"is {value!r}, but must be a table of keys and values.")
        return Row(self.file, name, value)

    def check_keys(self, required: frozenset[str], optional: frozenset[str] = frozenset()) -> None:
        """Refuse missing keys and keys that nobody reads, such as misspelt ones."""
        for key in sorted(required - self.table.keys()):
            raise self.error(key, "is missing; this table must state it.")
        for key in sorted(self.table.keys() - required - optional):
            known = ", ".join(sorted(required | optional))
            raise self.error(key, f"is not a key of this table; correct its spelling or remove it. Keys: {known}.")

    def number(self, key: str) -> float:
        """A finite number above 0."""
        value = self.table[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
            raise self.error(key, f"is {value!r}, but must be a finite number above 0 in the unit that the key names.")
        return float(value)

    def count(self, key: str) -> int:
        """A whole number above 0."""
        value = self.table[key]
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.error(key, f"is {value!r}, but must be a whole number above 0.")
        return value

    def text(self, key: str) -> str:
        """A text that is not blank."""
        value = self.table[key]
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, f"is {value!r}, but must be a text that is not blank.")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of different texts, empty where the key is absent."""
        value = self.table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
            raise self.error(key, f"is {value!r}, but must be a list of texts.")
        if len(set(value)) < len(value):
            raise self.error(key, f"is {value!r}, which says something twice; remove the repetition.")
        return tuple(value)

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self.table[key]
        if not isinstance(value, bool):
            raise self.error(key, f"is {value!r}, but must be true or false.")
        return value

    def url(self, key: str) -> str:
        """An address that starts with https://."""
        value = self.text(key)
        if not value.startswith("https://"):
            raise self.error(key, f"is {value!r}, but must start with https://.")
        return value

    def date(self, key: str) -> str:
        """An ISO year, month or day, as text."""
        value = self.text(key)
        if not DATE_PATTERN.fullmatch(value):
            raise self.error(key, f"is {value!r}, but must read like 2025, 2025-03 or 2025-03-31.")
        return value


def read_document(path: Path) -> Row:
    """A whole TOML file as one row.

    Raises:
        CatalogueError: The file is missing or is not TOML.
    """
    try:
        return Row(path.name, "top", tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise CatalogueError(f"{path} does not exist; give the path of a table that does.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CatalogueError(f"{path} is not valid TOML: {error}. Correct it there.") from error
