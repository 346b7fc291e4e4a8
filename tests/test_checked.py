"""Error message for a wrong value in a file."""

import gzip
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base import checked
from lightning_predict.base.checked import Checked, File, read_csv, read_json, read_toml, read_yaml
from lightning_predict.base.errors import CatalogueError, TraceFormatError

FILE = File("file", TraceFormatError)


@pytest.mark.parametrize(
    ("value", "read", "message"),
    [
        ({"a": 1}, lambda c: c.member("b"), r"file: b is missing; expected it in every such file"),
        ({"a": {"b": "x"}}, lambda c: c.member("a").member("b").integer(), r"file: a\.b is 'x'; expected an integer"),
        ({"a": [1, True]}, lambda c: c.member("a").integers(), r"a\[1\] is True; expected an"),
        ({"a": -1}, lambda c: c.member("a").integer(minimum=1), "a is -1; expected an integer of at least 1"),
        ({"a": 7}, lambda c: c.member("a").integer(maximum=3), "a is 7; expected .* at least 0 and at most 3"),
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
def test_wrong_value_error_names_its_place(value: Any, read: Callable[[Checked], object], message: str) -> None:
    with pytest.raises(TraceFormatError, match=message):
        read(Checked(value, FILE))


def test_valid_values_are_returned_unchanged() -> None:
    checked = Checked({"n": 3, "x": 0.5, "t": "word", "f": False, "l": [1, 2]}, FILE)
    assert checked.member("n").integer(maximum=3) == 3
    assert checked.member("n").number() == 3
    assert checked.member("x").number() == 0.5
    assert checked.member("t").choice(("other", "word")) == "word"
    assert checked.member("f").flag() is False
    assert [item.integer() for item in checked.member("l").items(length=2)] == [1, 2]
    assert checked.member("l").integers() == (1, 2)
    assert checked.optional("absent", Checked.integer, 9) == 9
    assert checked.optional("n", Checked.integer, 9) == 3


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_yaml_values_know_their_lines_through_merges_and_aliases(tmp_path: Path) -> None:
    text = "base: &base\n  price: -1\nmine:\n  <<: *base\n  gpus:\n    - 1\n    - two\n"
    document = read_yaml(written(tmp_path, "a.yaml", text), CatalogueError)
    assert document.value == {"base": {"price": -1}, "mine": {"price": -1, "gpus": [1, "two"]}}
    mine = document.member("mine")
    with pytest.raises(
        CatalogueError, match=r"^a\.yaml, line 2: mine\.price is -1; expected a number of at least 0\.$"
    ):
        mine.member("price").number()
    with pytest.raises(CatalogueError, match=r"^a\.yaml, line 7: mine\.gpus\[1\] is 'two'; expected an integer of"):
        mine.member("gpus").items()[1].integer()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2\n", "a.yaml, line 2: a stands twice; remove one of the two."),
        ("a: &a [*a]\n", "is nested deeper than 100 levels, or holds itself"),
        ("[" * 101 + "]" * 101, "a.yaml, line 1 is nested too deep; expected at most 100 levels"),
        ("\n".join(" " * level + "a:" for level in range(101)), "line 101 is nested too deep"),
        ("a: &a {b: 1}\nc: &c {<<: *a}\nd:\n  <<: 5", "line 4: d.<< cannot be merged; expected keys and values"),
        ("a: " + "9" * 101, "line 1: a has more than 100 digits"),
        ("a: !!bool maybe", "a.yaml, line 1: a is not a value: 'maybe'"),
        ("a: !!python/object:os.system {}", "line 1: a is not a value: could not determine a constructor for the tag"),
        ("a: \ud800".encode("utf-8", "surrogatepass"), "a.yaml is not valid YAML"),
    ],
)
def test_hostile_yaml_is_refused_in_words(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(CatalogueError, match=re.escape(words)):
        read_yaml(written(tmp_path, "a.yaml", text), CatalogueError)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * (1 << 19), "is nested too deep"),  # PyYAML alone: the square of the depth, 2 s for 5,000
        ("? " * (1 << 19), "is nested too deep"),
        ("a: 1" + ":59" * (1 << 16), "line 1: a has more than 100 digits"),  # in base 60: the square of the length
        # Each of 1,000 mappings holds the fields of the one before: half a million.
        (
            "a0: &a0 {k0: 0}\n" + "".join(f"a{n}: &a{n} {{<<: *a{n - 1}, k{n}: 0}}\n" for n in range(1, 1000)),
            "is merged into more than 100,000 fields; expected at most that.",
        ),
    ],
    ids=["brackets", "keys", "base 60", "merges"],
)
def test_yaml_reading_time_is_not_quadratic(tmp_path: Path, text: str, words: str) -> None:
    """Refused within seconds of the processor, where each would take minutes."""
    start = time.process_time()
    with pytest.raises(CatalogueError, match=re.escape(words)):
        read_yaml(written(tmp_path, "a.yaml", text), CatalogueError)
    assert time.process_time() - start < 20


def test_yaml_is_read_for_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(CatalogueError, match=r"^a\.yaml, line 1 takes longer than 0 s to read up to here; expected a"):
        read_yaml(written(tmp_path, "a.yaml", "a: 1"), CatalogueError)


def test_yaml_alias_is_not_expanded(tmp_path: Path) -> None:
    """Nine levels of nine aliases each would be 9^9 values, and their text gigabytes."""
    text = 'a0: &a0 "lol"\n' + "".join(
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 10)
    )
    document = read_yaml(written(tmp_path, "a.yaml", text), CatalogueError)
    with pytest.raises(CatalogueError) as caught:
        document.member("a9").number()
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[" * 101 + "]" * 101, "a.json is nested 101 levels deep; expected at most 100."),
        ('{"a": ' * 50_000, "is nested 50,000 levels deep"),
        ("9" * 101, "has a number of 101 characters; expected at most 100."),
        ("1." + "0" * 5000, "has a number of 5,002 characters"),
        ("[1,", "is not valid JSON"),
    ],
)
def test_hostile_json_is_refused_in_words(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(TraceFormatError, match=re.escape(words)):
        read_json(written(tmp_path, "a.json", content), TraceFormatError, name="a.json")


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000, '\\"[[[' * 50, "\\\\", ["[", {"]": "}"}] * 60])
def test_brackets_in_json_strings_are_not_nesting(tmp_path: Path, value: object) -> None:
    path = written(tmp_path, "a.json", json.dumps([value]))
    assert read_json(path, TraceFormatError).value == [value]


@pytest.mark.parametrize("name", ["a.json", "a.csv"])
def test_a_file_is_unpacked_up_to_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A megabyte of zeros packs to about a kilobyte."""
    monkeypatch.setattr(checked, "MAX_BYTES", 1 << 20)
    path = written(tmp_path, name, gzip.compress(b"0" * ((1 << 20) + 1)))
    assert path.stat().st_size < 2000
    read: Callable[..., Any] = read_json if name == "a.json" else read_csv
    with pytest.raises(TraceFormatError, match=r"is larger than 1 MiB once unpacked; expected at most that"):
        list(read(path, TraceFormatError))


@pytest.mark.parametrize("read", [read_yaml, read_toml])
def test_a_written_file_has_a_limit(tmp_path: Path, read: Callable[..., Checked]) -> None:
    path = written(tmp_path, "large", b"#" * (checked.MAX_WRITTEN_BYTES + 1))
    with pytest.raises(CatalogueError, match=r"^large is larger than 1 MiB; expected at most that"):
        read(path, CatalogueError)
    with pytest.raises(CatalogueError, match=r"nowhere does not exist; give the path of a (YAML|TOML) file"):
        read(tmp_path / "nowhere", CatalogueError)
    with pytest.raises(CatalogueError, match="cannot be read"):
        read(tmp_path, CatalogueError)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = " + "[" * 101 + "]" * 101, "is nested deeper than 100 levels"),
        ("a = " + "[" * 5000, "is nested too deep; expected at most 100 levels"),
        ("a." * 100 + "a = 1", "has a key that is nested deeper than 100 levels"),
        ("[" + "'a' . " * (1 << 16) + "a]", "has a key that is nested deeper than 100 levels"),  # minutes in tomllib
        ("a = " + "9" * 101, "has a number of more than 100 digits"),
        ("a = " + "9" * 5000, "is not valid TOML"),
        ("a = '\xff'".encode("latin-1"), "a.toml is not valid TOML"),
    ],
)
def test_hostile_toml_is_refused_in_words(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(CatalogueError, match=re.escape(words)):
        read_toml(written(tmp_path, "a.toml", text), CatalogueError)


def test_csv_row_knows_its_line_after_quoted_newlines(tmp_path: Path) -> None:
    first, second = read_csv(written(tmp_path, "a.csv", '\ufeffx,y\n1,"two\nlines"\n\n2.0,z\n'), CatalogueError)
    assert (first.value, first.line) == ({"x": "1", "y": "two\nlines"}, 2)
    assert (second.member("x").parsed().integer(), second.line) == (2, 5)  # 3 is within the quotes, 4 is blank
    with pytest.raises(CatalogueError, match=r"a\.csv, line 5: y is 'z'; expected a finite number\."):
        second.member("y").parsed().any_number()


def test_control_characters_of_a_file_never_reach_the_terminal(tmp_path: Path) -> None:
    value = Checked({"a\x1b[31m": "\x1b[2J", "b": {"\x1b": 1}}, File("x\x1b.json", TraceFormatError))
    for read in (
        lambda: value.member("a\x1b[31m").number(),
        lambda: value.member("b").number(),
        lambda: value.check_keys(optional={"b"}),
    ):
        with pytest.raises(TraceFormatError) as caught:
            read()
        assert str(caught.value).isprintable()


@given(st.one_of(st.floats(), st.integers(), st.booleans(), st.text(), st.none(), st.lists(st.integers())))
def test_a_positive_number_is_finite_and_above_zero_or_refused(value: object) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 < value < float("inf"):  # type: ignore[operator]
        assert Checked(value, FILE).positive() == value
    else:
        with pytest.raises(TraceFormatError, match=r"^file: the whole file is "):
            Checked(value, FILE).positive()


def test_a_number_that_no_float_holds_is_refused() -> None:
    for read in (Checked.any_number, Checked.number, Checked.positive, Checked.integer):
        with pytest.raises(TraceFormatError, match=r"expected a"):
            read(Checked(10**400, FILE))


@given(st.dates())
def test_every_iso_date_and_its_month_and_year_are_dates(day: object) -> None:
    text = str(day)
    for date in (text, text[:7], text[:4]):
        assert Checked(date, FILE).date() == date


@pytest.mark.parametrize("date", ["2025-3", "25-03", "2025-00", "2025-03-32", "2025-03-01T00:00", "today", 2025])
def test_other_dates_are_refused(date: object) -> None:
    with pytest.raises(TraceFormatError, match="expected a date like 2025, 2025-03 or 2025-03-31"):
        Checked(date, FILE).date()
