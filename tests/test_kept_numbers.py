"""Sentinels: what moved is named, by how much, and with what renews it; they stay few."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lightning_predict.base.interval import Interval
from tests.kept import ROOT, SHOWN, TOLERANCE, ends, kept_at, numbers, overall


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cost" / "golden" / "kept.json"
    path.parent.mkdir(parents=True)
    kept_at(path, overwrites=True)("prices", {"T4": [1.0, 2.0, "own"], "L4": 3.0})
    return path


def test_what_did_not_move_passes(file: Path) -> None:
    compare = kept_at(file, overwrites=False)
    compare("prices", {"T4": [1.0, 2.0, "own"], "L4": 3.0})
    compare("prices", {"T4": [1.0 + TOLERANCE / 2, 2.0, "own"], "L4": 3.0})


def test_a_rounded_zero_did_not_move(file: Path) -> None:
    kept_at(file, overwrites=True)("waits", {"T4": [0.0, 1.0]})
    kept_at(file, overwrites=False)("waits", {"T4": [3e-16, 1.0]})
    with pytest.raises(AssertionError, match=r"T4: \[0\] 0 -> 1e-06"):
        kept_at(file, overwrites=False)("waits", {"T4": [1e-6, 1.0]})


def test_what_moved_is_named(file: Path) -> None:
    values = {"T4": [1.0, 2.5, "listed"], "L40": 3.0}
    with pytest.raises(AssertionError) as error:
        kept_at(file, overwrites=False)("prices", values)
    assert str(error.value).splitlines()[:4] == [
        "3 values of cost, prices, moved. If they were meant to: make renew",
        "T4: [1] 2 -> 2.5 (+25.00%), [2] own -> listed",
        "L4: gone",
        "L40: new",
    ]


def test_a_long_list_is_cut(file: Path) -> None:
    with pytest.raises(AssertionError, match=f"\\.\\.\\. and {30 + 2 - SHOWN} more"):
        kept_at(file, overwrites=False)("prices", {str(number): 1.0 for number in range(30)})


def test_another_count_is_said(file: Path) -> None:
    with pytest.raises(AssertionError, match="T4: 3 values became 1"):
        kept_at(file, overwrites=False)("prices", {"T4": [1.0], "L4": 3.0})


def test_other_parts_stay(file: Path) -> None:
    kept_at(file, overwrites=True)("energy", {"T4": 70.0})
    kept_at(file, overwrites=False)("prices", {"T4": [1.0, 2.0, "own"], "L4": 3.0})


def test_numbers_of_a_value() -> None:
    assert numbers({"a": Interval(1.0, 2.0, 3.0), "b": [None, (4, "word")]}) == [
        "a",
        1.0,
        2.0,
        3.0,
        "b",
        None,
        4,
        "word",
    ]


def test_ends_and_one_number_for_many() -> None:
    assert ends(Interval(1.0, 2.0, 3.0)) == [1.0, 2.0, 3.0]
    assert overall([2.0, 8.0, 0.0]) == pytest.approx(4.0)
    assert overall([]) == 1.0


MOST = 1300


def test_they_stay_few() -> None:
    count = sum(
        len(re.findall(r"\d+\.?\d*(?:e[-+]?\d+)?", file.read_text())) for file in ROOT.glob("tests/*/golden/kept.json")
    )
    assert count <= MOST, f"{count:,} numbers, those in names included: derive some, or keep totals instead of parts."
