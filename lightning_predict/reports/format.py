"""Format numbers for display: three significant digits, at most two units of time.

Example::

    >>> significant(12345.6), milliseconds(0.0123), usd(12.34), duration(11_520.0), share(0.918)
    ('12,300', '12.3', '$12.34', '3 h 12 min', '92 %')
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Final

from lightning_predict.base.answers import TEXT_WIDTH
from lightning_predict.base.escaping import terminal_text
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import (
    SECONDS_PER_HOUR,
    SECONDS_PER_MINUTE,
    bytes_to_gibibytes,
    seconds_to_milliseconds,
)

SAME_SIDES: Final = 10  # Intervals whose sides differ by at most this many percentage points have `±`, with the larger
TIMES_FROM: Final = 10.0  # The upper end of an interval is a factor, not a percentage, from this multiple of the middle
TIMES_TO: Final = 1000.0  # Above this multiple of the middle, the exact factor is not shown
CENTS_FROM: Final = 0.1  # Dollars from which amounts are rounded to the cent; smaller ones get three significant digits
MIN_USD: Final = 0.005  # Amounts below this number of dollars are shown as `<$0.01`
MIN_GIBIBYTES: Final = 0.1  # Sizes below this number of GiB are shown as `<0.1`

_DIGITS: Final = 3
FEW: Final = 3  # Items of a list that are shown unless all are asked for
_SMALLEST_EXPONENT: Final = -6
_LARGEST_EXPONENT: Final = 11
_SECONDS_PER_DAY: Final = 24 * SECONDS_PER_HOUR

_UNIT_PAIRS: Final = (
    (SECONDS_PER_MINUTE, "min", 1.0, "s", SECONDS_PER_HOUR),
    (SECONDS_PER_HOUR, "h", SECONDS_PER_MINUTE, "min", _SECONDS_PER_DAY),
    (_SECONDS_PER_DAY, "d", SECONDS_PER_HOUR, "h", math.inf),
)
"""Pairs of time units: the large unit in seconds and its name, the small unit in seconds and its name, and the time
in seconds from which the next pair applies."""


def width_at_hand() -> int:
    """Return the line width in characters: the number of columns of a narrow terminal, otherwise `TEXT_WIDTH`."""
    if not is_terminal():
        return TEXT_WIDTH
    return min(TEXT_WIDTH, shutil.get_terminal_size((TEXT_WIDTH, 1)).columns)


def is_terminal() -> bool:
    """Return whether standard output is an open terminal."""
    try:
        return sys.stdout is not None and sys.stdout.isatty()
    except (AttributeError, ValueError):  # a closed stream, or a replacement without the method
        return False


def encoding_at_hand() -> str:
    """Return the encoding of standard output; UTF-8 without a standard output."""
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def significant(value: float) -> str:
    """Format with three significant digits: `0.0123`, `12.0`, `12,300`; very large or small values get an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = f"{value:.{_DIGITS - 1}e}"
    exponent = int(rounded.partition("e")[2])
    if not _SMALLEST_EXPONENT <= exponent <= _LARGEST_EXPONENT:
        return rounded
    return f"{float(rounded):,.{max(_DIGITS - 1 - exponent, 0)}f}"


def milliseconds(seconds: float) -> str:
    """Format seconds as milliseconds, without the unit."""
    return significant(seconds_to_milliseconds(seconds))


def milliseconds_interval(low_seconds: float, high_seconds: float) -> str:
    """Format an interval in milliseconds, without the unit: `11.2–13.8`."""
    return f"{milliseconds(low_seconds)}–{milliseconds(high_seconds)}"  # noqa: RUF001 (an en dash is meant)


def relative_interval(low: float, middle: float, high: float) -> str:
    """Format an interval in percent of its middle: `± 12 %`, or `−20/+45 %` if the sides differ much."""
    if middle <= 0 or not math.isfinite(high / middle):
        return ""
    if high / middle > TIMES_TO:
        return f"over {significant(TIMES_TO)} times"
    if high / middle >= TIMES_FROM:
        return f"up to {significant(high / middle)} times"
    down, up = round(100 * max(0.0, 1 - low / middle)), round(100 * max(0.0, high / middle - 1))
    if abs(up - down) <= SAME_SIDES:
        return f"± {max(up, down, 1)} %"
    return f"−{down}/+{up} %"  # noqa: RUF001 (a minus sign is meant)


def gibibytes(size_bytes: float) -> str:
    """Format bytes as GiB, without the unit: `16.5`, `<0.1`."""
    amount = bytes_to_gibibytes(size_bytes)
    return f"<{MIN_GIBIBYTES:g}" if 0 < amount < MIN_GIBIBYTES else significant(amount)


def usd(amount: float) -> str:
    """Format US dollars: to the cent, or from $1,000 to the dollar: `<$0.01`, `$12.34`, `$1,234`."""
    if 0 < amount < MIN_USD:
        return "<$0.01"
    if not math.isfinite(amount) or amount == 0 or abs(amount) >= 1e9:
        return f"${significant(amount)}"
    return f"${amount:,.0f}" if abs(amount) >= 999.5 else f"${amount:,.2f}"


def usd_of_steps(amount: float) -> str:
    """Format the cost of a few steps, with enough digits to extrapolate to more steps: `$0.00467`, `$12.34`."""
    return usd(amount) if amount >= CENTS_FROM else f"${significant(amount)}"


def usd_per_hour(price: float) -> str:
    """Format a price per hour: `$0.35/h`, `$98.32/h`, `$0.0125/h`."""
    return f"${price:,.2f}/h" if price >= CENTS_FROM else f"{usd_of_steps(price)}/h"


def duration(seconds: float) -> str:
    """Format a time in at most two units: `820 ms`, `12.3 s`, `12 min 5 s`, `3 h 12 min`, `5 d 3 h`."""
    if not math.isfinite(seconds):
        return significant(seconds)
    # Compare the value as printed, so that 59.96 s becomes "1 min" and not "60.0 s".
    printed = float(f"{seconds:.{_DIGITS - 1}e}")
    if printed < 1:
        return f"{milliseconds(seconds)} ms"
    if printed < SECONDS_PER_MINUTE:
        return f"{significant(seconds)} s"
    large, large_name, small, small_name, _ = next(
        pair for pair in _UNIT_PAIRS if round(seconds / pair[2]) * pair[2] < pair[4]
    )
    whole, rest = divmod(round(seconds / small), round(large / small))
    return f"{whole:,} {large_name} {rest} {small_name}" if rest else f"{whole:,} {large_name}"


def duration_interval(seconds: Interval[float]) -> str:
    """Format a time and its interval: `3 h 12 min (2 h 50 min to 3 h 40 min)`."""
    middle, low, high = (duration(end) for end in (seconds.middle, seconds.low, seconds.high))
    return middle if low == high else f"{middle} ({low} to {high})"


def share(fraction: float) -> str:
    """Format a share in percent; `0 %` and `100 %` are reserved for exact values."""
    if 0 < fraction < 0.01:
        return "<1 %"
    if 0.99 < fraction < 1:
        return ">99 %"
    return f"{fraction:.0%}".replace("%", " %")


def listed(texts: Sequence[str], most: int = 3) -> str:
    """Join texts with commas; if there are more than `most` + 1, only count the others: `A, B, C and 5 more`."""
    if len(texts) <= most + 1:
        return ", ".join(texts)
    return f"{', '.join(texts[:most])} and {len(texts) - most} more"


def known_columns(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Drop columns in which every cell is empty; replace other empty cells with a dash."""
    known = [number for number in range(len(headers)) if any(row[number] for row in rows)]
    return [headers[number] for number in known], [[row[number] or "-" for number in known] for row in rows]


_ASCII: Final = str.maketrans({"≤": "<", "–": "-", "†": "+", "±": "~", "−": "-", "×": "x"})  # noqa: RUF001
"""ASCII replacements of one character each, so that columns stay aligned."""


def ascii_text(text: str) -> str:
    """Return the text with ASCII instead of the symbols of tables, of the same width."""
    return text.translate(_ASCII)


def print_text(text: Callable[[], str], write: Callable[[str], object] = print) -> str | None:
    """Print a text; replace characters that standard output does not support.

    Args:
        text: Function that returns the text. Its errors are returned, too.
        write: Prints the text.

    Returns:
        The error message if printing failed, for example because the pipe is closed; None on success.
    """
    try:
        encoding = encoding_at_hand()
        safe = terminal_text(text())
        characters = safe if encoding.lower().startswith("utf") else ascii_text(safe)
        write(characters.encode(encoding, "replace").decode(encoding))
    except Exception as error:
        from lightning_predict.base.guard import own_error

        own_error(error)
        return f"{type(error).__name__}: {error}"
    return None
