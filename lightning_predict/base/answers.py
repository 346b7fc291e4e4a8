"""Results of commands, as JSON values and as text.

Example::

    >>> print(aligned(["GPU", "GiB"], [["T4", "16"], ["H200", "141"]], right={1}))
    GPU   GiB
    ----  ---
    T4     16
    H200  141
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lightning_predict.base.interval import Interval

GAP: Final = 2  # Spaces between two columns
NAMES_SHOWN: Final = 5  # Maximum number of names that a message lists
TEXT_WIDTH: Final = 120  # Maximum width of printed text, and of a terminal that shows all columns


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAnswer:
    """Result of a command as two functions: one returns JSON values, the other prints text. Only one is called."""

    data: Callable[[], object]
    show: Callable[[], None]
    exit_code: int = 0  # Exit code of the command: 0, except after a failed script or if `--max-usd` is exceeded


def aligned(headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """Return a text table with aligned columns.

    Args:
        headers: Column headers.
        rows: Texts, one list per row.
        right: Indices of the right-aligned columns.
    """
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    lines = [headers, ["-" * width for width in widths], *rows]
    return "\n".join((" " * GAP).join(_cells(line, widths, right)).rstrip() for line in lines)


def sentences(texts: Iterable[str]) -> list[str]:
    """Wrap each sentence to `TEXT_WIDTH` characters."""
    return [line for text in texts for line in textwrap.wrap(text, TEXT_WIDTH, subsequent_indent="  ") or [""]]


def json_value(value: object) -> Any:
    """Convert to JSON: dataclasses to objects, sets to sorted lists, infinite and NaN numbers to null."""
    if is_dataclass(value) and not isinstance(value, type):
        values: dict[str, Any] = {}
        for field in fields(value):
            own = getattr(value, field.name)
            values |= _ends(own) if field.name == "time" else {field.name: json_value(own)}
        return values
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(json_value(item) for item in value)
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _ends(time: Interval[float] | None) -> dict[str, float | None]:
    """Return the middle and the ends of a time interval under flat names; None values if the time is unknown."""
    ends = (None, None, None) if time is None else (time.middle, time.low, time.high)
    return dict(zip(("seconds", "low_seconds", "high_seconds"), map(json_value, ends), strict=True))


def _cells(line: Sequence[str], widths: Sequence[int], right: Collection[int]) -> list[str]:
    return [
        text.rjust(width) if number in right else text.ljust(width)
        for number, (text, width) in enumerate(zip(line, widths, strict=True))
    ]
