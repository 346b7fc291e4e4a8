"""The list of slow tests, which `make test` leaves out."""

import pytest

from tests.conftest import SLOW_TESTS, exists

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
