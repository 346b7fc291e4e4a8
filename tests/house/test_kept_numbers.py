"""Sentinels: what moved is named, by how much, and with what renews it; they stay few."""

import re
from pathlib import Path

import pytest

from tests.kept import ROOT, TOLERANCE, kept_at


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cost" / "golden" / "kept.json"
    path.parent.mkdir(parents=True)
    kept_at(path, overwrites=True)("prices", {"T4": [1.0, 2.0, "own"], "L4": 3.0})
    return path


def test_unchanged_numbers_pass(file: Path) -> None:
    compare = kept_at(file, overwrites=False)
    compare("prices", {"T4": [1.0, 2.0, "own"], "L4": 3.0})
    compare("prices", {"T4": [1.0 + TOLERANCE / 2, 2.0, "own"], "L4": 3.0})


def test_rounding_near_zero_passes(file: Path) -> None:
    kept_at(file, overwrites=True)("waits", {"T4": [0.0, 1.0]})
    kept_at(file, overwrites=False)("waits", {"T4": [3e-16, 1.0]})
    with pytest.raises(AssertionError, match=r"T4: \[0\] 0 -> 1e-06"):
        kept_at(file, overwrites=False)("waits", {"T4": [1e-6, 1.0]})


def test_changed_numbers_are_named(file: Path) -> None:
    values = {"T4": [1.0, 2.5, "listed"], "L40": 3.0}
    with pytest.raises(AssertionError) as error:
        kept_at(file, overwrites=False)("prices", values)
    assert str(error.value).splitlines()[:4] == [
        "3 values of cost, prices, moved. If they were meant to: make renew",
        "T4: [1] 2 -> 2.5 (+25.00%), [2] own -> listed",
        "L4: gone",
        "L40: new",
    ]


MOST = 1300


def test_frozen_numbers_are_few() -> None:
    count = sum(
        len(re.findall(r"\d+\.?\d*(?:e[-+]?\d+)?", file.read_text())) for file in ROOT.glob("tests/*/golden/kept.json")
    )
    assert count <= MOST, f"{count:,} numbers, those in names included: derive some, or keep totals instead of parts."
