import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base import units

VALUES = st.floats(1e-9, 1e12)


@pytest.mark.parametrize(
    ("given_value", "expected"),
    [
        (units.nanoseconds_to_seconds(5e8), 0.5),
        (units.seconds_to_milliseconds(0.25), 250),
        (units.seconds_to_microseconds(0.25), 250_000),
        (units.seconds_to_hours(5400), 1.5),
        (units.gibibytes_to_bytes(2), 2 * 1024**3),
        (units.mebibytes_to_bytes(2), 2 * 1024**2),
        (units.kibibytes_to_bytes(2), 2 * 1024),
        (units.teraflops_to_flops(1.5), 1.5e12),
        (units.gigabytes_to_bytes(1.5), 1.5e9),
        (units.megahertz_to_hertz(1.5), 1.5e6),
    ],
)
def test_conversions_by_hand(given_value: float, expected: float) -> None:
    assert given_value == expected


@given(VALUES)
def test_unit_conversions_are_inverse(value: float) -> None:
    assert math.isclose(units.milliseconds_to_seconds(units.seconds_to_milliseconds(value)), value)
    assert math.isclose(units.microseconds_to_seconds(units.seconds_to_microseconds(value)), value)
    assert math.isclose(units.hours_to_seconds(units.seconds_to_hours(value)), value)
    assert math.isclose(units.bytes_to_gibibytes(units.gibibytes_to_bytes(value)), value)
