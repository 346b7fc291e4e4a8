import io
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.reports import format as formats

SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(text: str) -> float:
    """The time that a printed duration stands for."""
    parts = re.findall(r"([\d.,]+(?:e-\d+)?) (ms|s|min|h|d)", text)
    assert " ".join(f"{number} {unit}" for number, unit in parts) == text, f"not a duration: {text!r}"
    return sum(float(number.replace(",", "")) * SECONDS[unit] for number, unit in parts)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.01234, "0.0123"),
        (1.0, "1.00"),
        (9.996, "10.0"),  # rounding carries into another digit
        (12.34, "12.3"),
        (999.6, "1,000"),
        (1234.5, "1,230"),
        (-12.34, "-12.3"),
        (math.inf, "inf"),
        (1.234e-6, "0.00000123"),
        (1.234e-7, "1.23e-07"),
        (1.234e11, "123,000,000,000"),
        (1.234e12, "1.23e+12"),
    ],
)
def test_three_digits_are_significant(value: float, text: str) -> None:
    assert formats.significant(value) == text


@given(st.floats(min_value=1e-6, max_value=9e11))
def test_a_printed_number_is_within_half_of_its_third_digit(value: float) -> None:
    text = formats.significant(value)
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.005)  # half of 1 in 100
    digits = text.replace(",", "").replace(".", "").lstrip("0")
    assert len(digits.rstrip("0")) <= 3 <= len(digits)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.0821, "82.1 ms"),
        (0.9996, "1.00 s"),
        (12.34, "12.3 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (725.0, "12 min 5 s"),
        (3599.7, "1 h"),  # 3,600 whole seconds, which are 60 min, which are 1 h
        (11_520.0, "3 h 12 min"),
        (86_399.0, "1 d"),
        (442_800.0, "5 d 3 h"),  # 5 × 86,400 + 3 × 3,600
        (86_400_000.0, "1,000 d"),
        (math.inf, "inf"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, text: str) -> None:
    assert formats.duration(seconds) == text


@given(st.floats(min_value=1e-6, max_value=1e10))
def test_a_printed_duration_is_within_its_smaller_unit(seconds: float) -> None:
    # The worst is 1 d 0 h 30 min, printed to the hour: half an hour of a day is 2.1 %.
    assert seconds_of(formats.duration(seconds)) == pytest.approx(seconds, rel=0.021)


@given(st.floats(min_value=0, max_value=1e10), st.floats(min_value=0, max_value=1e10))
def test_a_longer_time_never_prints_as_a_shorter_one(first: float, other: float) -> None:
    shorter, longer = sorted((first, other))
    assert seconds_of(formats.duration(shorter)) <= seconds_of(formats.duration(longer)) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.0, "0 %"), (0.009, "<1 %"), (0.01, "1 %"), (0.918, "92 %"), (0.99, "99 %"), (0.991, ">99 %"), (1.0, "100 %")],
)
def test_share_is_not_rounded_to_0_or_100_percent(fraction: float, text: str) -> None:
    assert formats.share(fraction) == text


@given(st.floats(min_value=0, max_value=1))
def test_0_and_100_percent_are_exact(fraction: float) -> None:
    assert (formats.share(fraction) == "0 %") == (fraction == 0)
    assert (formats.share(fraction) == "100 %") == (fraction == 1)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0.01234, "$0.01"),
        (0.0049, "<$0.01"),
        (0.0, "$0"),
        (0.996, "$1.00"),
        (12.344, "$12.34"),
        (999.6, "$1,000"),
        (1234.4, "$1,234"),
    ],
)
def test_dollars(amount: float, text: str) -> None:
    assert formats.usd(amount) == text


@pytest.mark.parametrize(
    ("price", "text"), [(0.35, "$0.35/h"), (98.32, "$98.32/h"), (1234.5, "$1,234.50/h"), (0.0125, "$0.0125/h")]
)
def test_a_price_is_printed_as_it_is_listed(price: float, text: str) -> None:
    assert formats.usd_per_hour(price) == text


def test_units_are_in_the_header_and_dollars_of_steps_keep_their_digits() -> None:
    assert formats.milliseconds(0.0123) == "12.3"
    assert formats.milliseconds_interval(0.0112, 0.0138) == "11.2–13.8"  # noqa: RUF001 (an en dash is meant)
    assert formats.gibibytes(7.81 * 2**30) == "7.81"
    assert formats.gibibytes(0.0178 * 2**30) == "<0.1"
    assert formats.gibibytes(0) == "0"
    assert formats.usd_of_steps(0.004667) == "$0.00467"
    assert formats.usd_of_steps(12.344) == "$12.34"


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ((0.9, 1.0, 1.12), "± 12 %"),
        ((0.9, 1.0, 1.21), "−10/+21 %"),  # noqa: RUF001
        ((1.0, 1.0, 1.0), "± 1 %"),  # nothing is known better
        ((0.1, 1.0, 12.0), "up to 12.0 times"),
        ((0.1, 1.0, 1000.0), "up to 1,000 times"),
        ((0.1, 1.0, 1001.0), "over 1,000 times"),
        ((0.0, 0.0, 1.0), ""),
    ],
)
def test_relative_intervals(ends: tuple[float, float, float], text: str) -> None:
    assert formats.relative_interval(*ends) == text


class Output:
    """Standard output that is a terminal, or is not."""

    def __init__(self, *, is_terminal: bool) -> None:
        self.isatty = lambda: is_terminal


def test_text_is_as_wide_as_its_terminal_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, width in (("80", 80), ("200", 120)):
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setattr("sys.stdout", Output(is_terminal=True))
        assert formats.width_at_hand() == width
        monkeypatch.setattr("sys.stdout", Output(is_terminal=False))
        assert formats.width_at_hand() == 120  # a file has room
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed, object()):  # as under pythonw, after a daemon let go of it, a program's own
        monkeypatch.setattr("sys.stdout", stream)
        assert not formats.is_terminal()
