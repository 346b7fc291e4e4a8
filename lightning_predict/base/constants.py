"""Empirical constants of predictions: measured, fitted, assumed, or taken from a library's documentation.

`constants.toml` has one table per constant, with value, unit, kind, date, description and evidence. A module requests
its constants by name and unit, so a wrong name or unit fails at import. Example::

    >>> constants_of("kernels.roofline").number("LINK_SHARE", "share")
    0.8
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Final, final

FILE: Final = Path(__file__).parent / "constants.toml"

_ROW: Final = re.compile(r'^\[([\w.]+)\]\nvalue = (.+)\nunit = "(.*)"$', re.MULTILINE)
"""Pattern of the first lines of a table, in this order. A complete TOML parser would take several times as long at
each start."""


@cache
def _rows() -> dict[str, tuple[str, str]]:
    return {name: (value, unit) for name, value, unit in _ROW.findall(FILE.read_text(encoding="utf-8"))}


@final
class Constants:
    """Constants of one module.

    Args:
        module: Name of the module below the package.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def number(self, name: str, unit: str) -> float:
        """Return a constant that is a number."""
        return float(self._text(name, unit))

    def count(self, name: str, unit: str) -> int:
        """Return a constant that is an integer."""
        return int(self._text(name, unit))

    def numbers(self, name: str, unit: str) -> tuple[float, ...]:
        """Return a constant that is a list of numbers."""
        return tuple(json.loads(self._text(name, unit)))

    def _text(self, name: str, unit: str) -> str:
        row = _rows().get(f"{self._module}.{name}")
        if row is None:
            raise LookupError(f"{FILE.name} has no {self._module}.{name}; correct the name or add its table.")
        if row[1] != unit:
            raise LookupError(f"{self._module}.{name} of {FILE.name} is in {row[1]!r}, not in {unit!r}.")
        return row[0]


def constants_of(module: str) -> Constants:
    """Return the constants of a module, such as `kernels.roofline` or `lightning_predict.kernels.roofline`."""
    return Constants(module.removeprefix("lightning_predict."))
