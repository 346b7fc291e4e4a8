"""Sentinels, slow tests and pictures: what moved is named, with what renews it, and they stay few."""

import json
import re
from pathlib import Path

import pytest

from tests.conftest import SLOW_TESTS, exists
from tests.kept import ROOT, TOLERANCE, kept_at
from tests.pictures import DOCS, MADE_OF, example, hashes, texts


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cost" / "golden" / "kept.json"
    path.parent.mkdir(parents=True)
    kept_at(path, overwrites=True)("prices", {"T4": [1.0, 2.0, "own"], "L4": 3.0})
    return path


def test_unchanged_and_rounded_numbers_pass_and_frozen_ones_are_few(file: Path) -> None:
    compare = kept_at(file, overwrites=False)
    compare("prices", {"T4": [1.0, 2.0, "own"], "L4": 3.0})
    compare("prices", {"T4": [1.0 + TOLERANCE / 2, 2.0, "own"], "L4": 3.0})
    kept_at(file, overwrites=True)("waits", {"T4": [0.0, 1.0]})
    kept_at(file, overwrites=False)("waits", {"T4": [3e-16, 1.0]})
    with pytest.raises(AssertionError, match=r"T4: \[0\] 0 -> 1e-06"):
        kept_at(file, overwrites=False)("waits", {"T4": [1e-6, 1.0]})
    count = sum(
        len(re.findall(r"\d+\.?\d*(?:e[-+]?\d+)?", file.read_text())) for file in ROOT.glob("tests/*/golden/kept.json")
    )
    assert count <= MOST, f"{count:,} numbers, those in names included: derive some, or keep totals instead of parts."


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


pytest_plugins = ["pytester"]


def test_every_line_names_a_test_that_is_there() -> None:
    names = SLOW_TESTS.read_text(encoding="utf-8").splitlines()
    assert names == sorted(set(names))
    assert [name for name in names if not exists(name)] == []


def test_a_listed_test_is_marked_and_the_list_is_renewed(pytester: pytest.Pytester) -> None:
    pytester.makeconftest((SLOW_TESTS.parent / "conftest.py").read_text(encoding="utf-8"))
    pytester.path.joinpath("slow_tests.txt").write_text("test_two.py::test_listed\n", encoding="utf-8")
    pytester.makepyfile(test_two="def test_listed():\n    pass\n\ndef test_other():\n    pass\n")
    pytester.makeini("[pytest]\nmarkers = slow")
    pytester.runpytest("-m", "not slow").assert_outcomes(passed=1, deselected=1)
    pytester.runpytest("--renew-slow").assert_outcomes(passed=2)
    assert pytester.path.joinpath("slow_tests.txt").read_text(encoding="utf-8") == ""  # neither takes a second


def test_no_picture_is_stale() -> None:
    predictions = example()
    assert json.loads(MADE_OF.read_text()) == hashes(predictions), "make pictures"
    assert all((DOCS / name).stat().st_size > 10_000 for name in hashes(predictions))


def test_texts_of_pictures_are_current() -> None:
    predictions = example()
    shown = texts(predictions)
    step = f"{1000 * predictions['RTX-4090'].iteration_seconds:.0f} ms"
    assert all("Rent an RTX-4090" in text for text in shown.values())  # the cheapest that the catalogue holds
    assert all(step in text for text in shown.values())
    assert "predict/RTX-4090/cost_usd" in shown["tensorboard.png"]
    assert "predict/T4/cost_usd" not in shown["tensorboard.png"]  # it does not decide
