"""What a wrong value in a file is answered with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lightning_predict.checked import Checked, File
from lightning_predict.errors import TraceFormatError

FILE = File("file", TraceFormatError)


@pytest.mark.parametrize(
    ("value", "read", "message"),
    [
        ({"a": 1}, lambda c: c.member("b"), r"file: b is missing; expected it in every such file"),
        ({"a": {"b": "x"}}, lambda c: c.member("a").member("b").integer(), r"file: a\.b is 'x'; expected an integer"),
        (
            {"a": [1, True]},
            lambda c: [x.integer() for x in c.member("a").items()],
            r"a\[1\] is True; expected an",
        ),
        ({"a": -1}, lambda c: c.member("a").integer(minimum=1), "a is -1; expected an integer of at least 1"),
        (
            {"a": 7},
            lambda c: c.member("a").integer(maximum=3),
            "a is 7; expected .* at least 0 and at most 3",
        ),
        ({"a": -0.5}, lambda c: c.member("a").number(), r"a is -0\.5; expected a number of at least 0"),
        ({"a": float("inf")}, lambda c: c.member("a").any_number(), "a is inf; expected a finite number"),
        ({"a": True}, lambda c: c.member("a").any_number(), "a is True; expected a finite number"),
        ({"a": 1}, lambda c: c.member("a").text(), "a is 1; expected a string"),
        ({"a": 1}, lambda c: c.member("a").flag(), "a is 1; expected true or false"),
        ({"a": "z"}, lambda c: c.member("a").choice(("x", "y")), "a is 'z'; expected one of x, y"),
        ({"a": 1}, lambda c: c.member("a").items(), "a is 1; expected an array"),
        ({"a": [1]}, lambda c: c.member("a").items(length=2), r"a is \[1\]; expected an array of 2"),
        ([], lambda c: c.mapping(), r"the whole file is \[\]; expected an object of keys and values"),
        ({"z": 1}, lambda c: c.check_keys(optional={"a"}), "the whole file has the field 'z'; expected only a"),
        ({"a": "x" * 99}, lambda c: c.member("a").flag(), r"a is 'x{56}\.\.\.; expected"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(value: Any, read: Callable[[Checked], object], message: str) -> None:
    with pytest.raises(TraceFormatError, match=message):
        read(Checked(value, FILE))


def test_right_values_come_back_as_they_are() -> None:
    checked = Checked({"n": 3, "x": 0.5, "t": "word", "f": False, "l": [1, 2]}, FILE)
    assert checked.member("n").integer(maximum=3) == 3
    assert checked.member("n").number() == 3
    assert checked.member("x").number() == 0.5
    assert checked.member("t").choice(("other", "word")) == "word"
    assert checked.member("f").flag() is False
    assert [item.integer() for item in checked.member("l").items(length=2)] == [1, 2]
    assert checked.optional("absent", Checked.integer, 9) == 9
    assert checked.optional("n", Checked.integer, 9) == 3
