"""Unit conversions. All other modules compute in SI units, and names contain the unit. Files may use other units.

Example::

    >>> seconds_to_milliseconds(0.25)
    250.0
    >>> gibibytes_to_bytes(80.0)
    85899345920.0
"""

from __future__ import annotations

from typing import Final

KILO: Final = 1e3
MEGA: Final = KILO**2
GIGA: Final = KILO**3
TERA: Final = KILO**4
KIBIBYTE: Final = 2**10
MEBIBYTE: Final = KIBIBYTE**2
GIBIBYTE: Final = KIBIBYTE**3
SECONDS_PER_MINUTE: Final = 60.0
SECONDS_PER_HOUR: Final = SECONDS_PER_MINUTE**2
MICROSECOND: Final = 1 / MEGA


def seconds_to_milliseconds(seconds: float) -> float:
    """Convert seconds to milliseconds."""
    return seconds * KILO


def milliseconds_to_seconds(milliseconds: float) -> float:
    """Convert milliseconds to seconds."""
    return milliseconds / KILO


def seconds_to_microseconds(seconds: float) -> float:
    """Convert seconds to microseconds."""
    return seconds * MEGA


def nanoseconds_to_seconds(nanoseconds: float) -> float:
    """Convert nanoseconds to seconds."""
    return nanoseconds / GIGA


def microseconds_to_seconds(microseconds: float) -> float:
    """Convert microseconds to seconds."""
    return microseconds / MEGA


def seconds_to_hours(seconds: float) -> float:
    """Convert seconds to hours."""
    return seconds / SECONDS_PER_HOUR


def minutes_to_seconds(minutes: float) -> float:
    """Convert minutes to seconds."""
    return minutes * SECONDS_PER_MINUTE


def hours_to_seconds(hours: float) -> float:
    """Convert hours to seconds."""
    return hours * SECONDS_PER_HOUR


def bytes_to_gibibytes(size_bytes: float) -> float:
    """Convert bytes to GiB (2**30 bytes)."""
    return size_bytes / GIBIBYTE


def gibibytes_to_bytes(gibibytes: float) -> float:
    """Convert GiB (2**30 bytes) to bytes."""
    return gibibytes * GIBIBYTE


def mebibytes_to_bytes(mebibytes: float) -> float:
    """Convert MiB (2**20 bytes) to bytes."""
    return mebibytes * MEBIBYTE


def kibibytes_to_bytes(kibibytes: float) -> float:
    """Convert KiB (2**10 bytes) to bytes."""
    return kibibytes * KIBIBYTE


def teraflops_to_flops(teraflops: float) -> float:
    """Convert TFLOP/s to FLOP/s."""
    return teraflops * TERA


def gigaflops_to_flops(gigaflops: float) -> float:
    """Convert GFLOP/s to FLOP/s."""
    return gigaflops * GIGA


def gigabits_to_bytes(gigabits: float) -> float:
    """Convert Gbit/s to bytes per second."""
    return gigabits * GIGA / 8


def bytes_to_gigabits(size_bytes: float) -> float:
    """Convert bytes per second to Gbit/s."""
    return size_bytes * 8 / GIGA


def gigabytes_to_bytes(gigabytes: float) -> float:
    """Convert GB (10**9 bytes) to bytes."""
    return gigabytes * GIGA


def megahertz_to_hertz(megahertz: float) -> float:
    """Convert MHz to Hz."""
    return megahertz * MEGA


def watts_to_kilowatts(watts: float) -> float:
    """Convert watts to kilowatts."""
    return watts / KILO


def grams_to_kilograms(grams: float) -> float:
    """Convert grams to kilograms."""
    return grams / KILO


def flops_to_teraflops(flops: float) -> float:
    """Convert FLOP/s to TFLOP/s."""
    return flops / TERA


def bytes_to_gigabytes(size_bytes: float) -> float:
    """Convert bytes to GB (10**9 bytes)."""
    return size_bytes / GIGA


def bytes_to_mebibytes(size_bytes: float) -> float:
    """Convert bytes to MiB (2**20 bytes)."""
    return size_bytes / MEBIBYTE


def hertz_to_megahertz(hertz: float) -> float:
    """Convert Hz to MHz."""
    return hertz / MEGA


def kilograms_to_grams(kilograms: float) -> float:
    """Convert kilograms to grams."""
    return kilograms * KILO
