"""The only place where units are converted; everywhere else values are SI and names bear the unit.

Example::

    >>> seconds_to_milliseconds(0.25)
    250.0
    >>> gibibytes_to_bytes(80.0)
    85899345920.0
"""

from __future__ import annotations

from typing import Final

KILO: Final = 1e3
MEGA: Final = 1e6
GIGA: Final = 1e9
TERA: Final = 1e12
KIBIBYTE: Final = 2**10
MEBIBYTE: Final = 2**20
GIBIBYTE: Final = 2**30
SECONDS_PER_HOUR: Final = 3600.0
SECONDS_PER_MINUTE: Final = 60.0
MICROSECOND: Final = 1e-6


def seconds_to_milliseconds(seconds: float) -> float:
    """Milliseconds in this many seconds."""
    return seconds * KILO


def milliseconds_to_seconds(milliseconds: float) -> float:
    """Return the seconds in this many milliseconds."""
    return milliseconds / KILO


def seconds_to_microseconds(seconds: float) -> float:
    """Microseconds in this many seconds."""
    return seconds * MEGA


def microseconds_to_seconds(microseconds: float) -> float:
    """Return the seconds in this many microseconds."""
    return microseconds / MEGA


def nanoseconds_to_seconds(nanoseconds: float) -> float:
    """Return the seconds in this many nanoseconds."""
    return nanoseconds / GIGA


def seconds_to_hours(seconds: float) -> float:
    """Hours in this many seconds."""
    return seconds / SECONDS_PER_HOUR


def hours_to_seconds(hours: float) -> float:
    """Return the seconds in this many hours."""
    return hours * SECONDS_PER_HOUR


def bytes_to_gibibytes(size_bytes: float) -> float:
    """GiB (2**30 bytes) in this many bytes."""
    return size_bytes / GIBIBYTE


def gibibytes_to_bytes(gibibytes: float) -> float:
    """Return the bytes in this many GiB (2**30 bytes)."""
    return gibibytes * GIBIBYTE


def mebibytes_to_bytes(mebibytes: float) -> float:
    """Return the bytes in this many MiB (2**20 bytes)."""
    return mebibytes * MEBIBYTE


def kibibytes_to_bytes(kibibytes: float) -> float:
    """Return the bytes in this many KiB (2**10 bytes)."""
    return kibibytes * KIBIBYTE


def teraflops_to_flops(teraflops: float) -> float:
    """FLOP/s in this many TFLOP/s."""
    return teraflops * TERA


def gigaflops_to_flops(gigaflops: float) -> float:
    """FLOP/s in this many GFLOP/s."""
    return gigaflops * GIGA


def gigabytes_to_bytes(gigabytes: float) -> float:
    """Return the bytes in this many GB (10**9 bytes)."""
    return gigabytes * GIGA


def megahertz_to_hertz(megahertz: float) -> float:
    """Hz in this many MHz."""
    return megahertz * MEGA


def watts_to_kilowatts(watts: float) -> float:
    """Kilowatts in this many watts."""
    return watts / KILO


def grams_to_kilograms(grams: float) -> float:
    """Kilograms in this many grams."""
    return grams / KILO


def flops_to_teraflops(flops: float) -> float:
    """TFLOP/s in this many FLOP/s."""
    return flops / TERA


def bytes_to_gigabytes(size_bytes: float) -> float:
    """GB (10**9 bytes) in this many bytes."""
    return size_bytes / GIGA


def bytes_to_mebibytes(size_bytes: float) -> float:
    """MiB (2**20 bytes) in this many bytes."""
    return size_bytes / MEBIBYTE


def hertz_to_megahertz(hertz: float) -> float:
    """MHz in this many Hz."""
    return hertz / MEGA
