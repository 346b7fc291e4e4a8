"""A row's readers: what they take, and how they refuse the rest. The catalogue's tests show the same through TOML."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.errors import CatalogueError
from lightning_predict.gpus.rows import Row, read_document


def row(value: object) -> Row:
    return Row("file.toml", "table", {"key": value})


@given(st.one_of(st.floats(), st.integers(-5, 5), st.booleans(), st.text(), st.none(), st.lists(st.integers())))
def test_a_number_is_finite_and_above_zero_or_refused(value: object) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    if good:
        assert isinstance(value, int | float)
        assert row(value).number("key") == float(value)
    else:
        with pytest.raises(CatalogueError, match=r"^file.toml: \[table\] key: is "):
            row(value).number("key")


@given(st.dates())
def test_every_iso_date_and_its_month_and_year_are_dates(day: object) -> None:
    text = str(day)
    for date in (text, text[:7], text[:4]):
        assert row(date).date("key") == date


@pytest.mark.parametrize("date", ["2025-3", "25-03", "2025-00", "2025-03-32", "2025-03-01T00:00", "today"])
def test_other_dates_are_refused(date: str) -> None:
    with pytest.raises(CatalogueError, match="but must read like 2025, 2025-03 or 2025-03-31"):
        row(date).date("key")


def test_lists_and_tables_may_be_absent() -> None:
    empty = Row("file.toml", "table", {})
    assert empty.texts("key") == ()
    assert empty.child("key", "child").table == {}


def test_a_document_is_read_or_its_path_named(tmp_path: Path) -> None:
    path = tmp_path / "good.toml"
    path.write_text("a = 1\n", encoding="utf-8")
    assert read_document(path) == Row("good.toml", "top", {"a": 1})
    path.write_bytes(b"a = '\xff'\n")
    with pytest.raises(CatalogueError, match=r"good.toml is not valid TOML: .* Correct it there"):
        read_document(path)
