"""Comparisons of predicted numbers that ignore differences due to floating-point rounding.

Neural networks compute in float32, and BLAS kernels add in different orders, so the same prediction differs by about
1e-7 between processors. Two GPUs can have the same predicted time, for example if the CPU limits both; rounding must
not decide their order. Numbers within `TIE` of each other count as equal, and the first of several equal items wins::

    >>> times = {"L4": 2.0000001, "A10": 2.0, "T4": 3.0}
    >>> least(times, times.__getitem__), ordered(times, times.__getitem__, reverse=True)
    ('L4', ['T4', 'L4', 'A10'])
    >>> clearly_less(times["A10"], times["L4"]), clearly_less(times["A10"], times["T4"])
    (False, True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

T = TypeVar("T")

TIE: Final = 1e-5  # Relative difference below which two predictions are equal: a hundred rounding errors of float32
NEGLIGIBLE: Final = 0.01  # Share of a whole below which parts and differences count as nothing; predictions err by more
NOTICEABLE: Final = 0.02  # Share of a whole from which a part or a gain is worth a line


def clearly_less(value: Any, other: Any) -> Any:
    """Return whether a number is less than another by more than `TIE`; elementwise for arrays."""
    return value + TIE * abs(value) < other


def least(items: Iterable[T], value: Callable[[T], float]) -> T:
    """Return the item with the least value, or the first of several within `TIE`.

    Raises:
        ValueError: There are no items.
    """
    pairs = [(value(item), item) for item in items]
    smallest = min(number for number, _ in pairs)
    return next(item for number, item in pairs if not clearly_less(smallest, number))


def greatest(items: Iterable[T], value: Callable[[T], float]) -> T:
    """Return the item with the greatest value, or the first of several within `TIE`.

    Raises:
        ValueError: There are no items.
    """
    pairs = [(value(item), item) for item in items]
    largest = max(number for number, _ in pairs)
    return next(item for number, item in pairs if not clearly_less(number, largest))


def ordered(items: Iterable[T], value: Callable[[T], float], *, reverse: bool = False) -> list[T]:
    """Sort items by a value. Items within `TIE` keep their order.

    Args:
        items: The items to sort.
        value: Function that returns the sort key of an item.
        reverse: Whether the greatest value comes first.
    """
    pairs = [(value(item), place, item) for place, item in enumerate(items)]
    pairs.sort(key=lambda pair: pair[0], reverse=reverse)
    groups: list[list[tuple[float, int, T]]] = []
    for pair in pairs:
        if groups and not clearly_less(groups[-1][0][0], pair[0]) and not clearly_less(pair[0], groups[-1][0][0]):
            groups[-1].append(pair)
        else:
            groups.append([pair])
    return [item for group in groups for _, _, item in sorted(group, key=lambda pair: pair[1])]
