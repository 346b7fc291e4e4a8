"""`known`: a value that a test needs, of an attribute that may also be None."""

from typing import TypeVar

Value = TypeVar("Value")


def known(value: Value | None) -> Value:
    """Return a value, which must not be None."""
    assert value is not None
    return value
