from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.accuracy.transformers import evaluate_in_groups


def test_equal_keys_share_one_call_and_results_keep_the_order_of_the_cases() -> None:
    calls: list[list[str]] = []

    def evaluate(group: Sequence[str]) -> list[str]:
        calls.append(list(group))
        return [word.upper() for word in group]

    assert evaluate_in_groups(["b1", "a1", "b2"], key=lambda word: word[0], evaluate=evaluate, jobs=1) == (
        "B1",
        "A1",
        "B2",
    )
    assert calls == [["b1", "b2"], ["a1"]]


def test_a_result_too_few_is_noticed() -> None:
    with pytest.raises(ValueError, match="shorter"):
        evaluate_in_groups([1, 2], key=lambda _: 0, evaluate=lambda group: list(group)[:1], jobs=1)
