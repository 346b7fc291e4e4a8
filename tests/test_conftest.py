"""The order of the test files that `--random-files` draws."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.conftest import pytest_collection_modifyitems

TESTS = [(f"tests/test_{file}.py", name) for file in range(8) for name in ("one", "two")]


def drawn(seed: str | None) -> list[tuple[str, str]]:
    config: Any = SimpleNamespace(getoption={"--random-files": seed, "--overwrite-golden": False}.__getitem__)
    items: list[Any] = [SimpleNamespace(location=(file, None, name)) for file, name in TESTS]
    pytest_collection_modifyitems(config, items)
    return [(item.location[0], item.location[2]) for item in items]


def test_a_seed_draws_the_order_of_files_and_leaves_that_of_their_tests() -> None:
    assert drawn(None) == TESTS
    assert drawn("1") == drawn("1")
    assert len({tuple(drawn(seed)) for seed in (None, "1", "2")}) == 3
    assert sorted(drawn("1")) == TESTS
    assert [name for _, name in drawn("1")] == ["one", "two"] * 8
