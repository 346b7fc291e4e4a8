"""Fields that `defer` postpones are computed once, on first use, and never change an instance otherwise."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import pytest

from lightning_predict.base.fields import Deferred, defer


@dataclass(frozen=True, slots=True)
class Size(Deferred):
    """A length, and an area that takes long to compute."""

    width: int
    area: int


COPIES: Final[list[Callable[[Size], Size]]] = [copy.deepcopy, lambda size: pickle.loads(pickle.dumps(size)), replace]


def postponed(width: int) -> tuple[Size, list[int]]:
    calls: list[int] = []

    def complete() -> Size:
        calls.append(width)
        return Size(width, width**2)

    return defer(Size(width, 0), complete, "area"), calls


def test_field_is_computed_once_on_first_use_also_by_another_thread() -> None:
    size, calls = postponed(3)
    assert (size.width, calls) == (3, [])
    assert (size.area, size.area, calls) == (9, 9, [3])
    assert size.area == 9
    # Python has called this for a slot without a value, and meanwhile the other thread has filled the slot.
    assert Size.__getattr__(size, "area") == 9  # type: ignore[attr-defined]
    assert calls == [3]


@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_has_the_computed_field(copied: Callable[[Size], Size]) -> None:
    size, _ = postponed(3)
    assert copied(size) == Size(3, 9) == size
    assert repr(copied(size)) == "Size(width=3, area=9)"


def test_unknown_attributes_and_failed_computations_are_errors() -> None:
    size, calls = postponed(3)
    with pytest.raises(AttributeError, match="'Size' object has no attribute 'volume'"):
        size.volume  # type: ignore[attr-defined]  # noqa: B018
    assert calls == []
    answers: list[ZeroDivisionError | Size] = [ZeroDivisionError(), Size(3, 9)]

    def complete() -> Size:
        answer = answers.pop(0)
        if isinstance(answer, ZeroDivisionError):
            raise answer
        return answer

    size = defer(Size(3, 0), complete, "area")
    with pytest.raises(ZeroDivisionError):
        size.area  # noqa: B018
    assert size.area == 9
