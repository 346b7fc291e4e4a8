"""Ranks that train together: after any failure on one of them, all decide alike, and none waits beyond the bound."""

import re
from typing import Any, Final

import pytest

from tests.callbacks.ranks import BATCHES, SCENARIOS, start

EPOCHS: Final = 2

Seen = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What both ranks saw of all scenarios; the last ends one of them."""
    return start(tmp_path_factory.mktemp("ranks"), 2, list(SCENARIOS))


ENDS: Final = {  # What rank zero says where training goes on to its end: a pattern for each message
    "ok": "",
    "warn": "are used",
    "rank 0 has no limits": "off, .* rank 0: ZeroDivisionError: by zero",
    "rank 0 cannot count": "off, .* rank 0: ZeroDivisionError: by zero",
    "rank 0 cannot count later": "off, .* rank 0: ZeroDivisionError: by zero",
    "rank 0 cannot judge": "cannot forecast this run, and checks used amounts only: ZeroDivisionError: by zero",
    "rank 0 cannot judge the use": "cannot forecast this run, .*; off, .* rank 0: ZeroDivisionError: by zero",
    "rank 0 cannot log": "off, .* rank 0: ZeroDivisionError: by zero",
    "rank 0 cannot begin": "off, .* rank 0: ZeroDivisionError: by zero",
    "rank 0 has no clock": "off, .* rank 0: ZeroDivisionError: by zero",
    "rank 1 cannot open its ledger": "off, .* rank 1: ZeroDivisionError: by zero",
    "rank 1 cannot count": "off, .* 1 of 2 ranks did not answer within 3 s",
    "rank 1 cannot meet": "off, .* 1 of 2 ranks did not answer within 3 s",
    "rank 1 watches nothing": "",
    "warnings are errors": "are used",
}


@pytest.mark.parametrize("scenario", ENDS)
def test_training_goes_on_on_all_ranks(seen: Seen, scenario: str) -> None:
    first, second = seen[scenario]
    assert first["batches"] == second["batches"] == EPOCHS * BATCHES
    assert first["weights"] == second["weights"] == seen["ok"][0]["weights"]
    assert (first["ended"], second["ended"]) == ("", "")
    assert first["reason"] is second["reason"] is None
    said = [words for words in first["said"] if "CostBudget" in words]
    patterns = list(filter(None, ENDS[scenario].split("; ")))
    for words, pattern in zip(said, patterns, strict=True):
        assert re.search(pattern, words)
    assert second["said"] == [
        words
        for words in ["CostBudget was off at the end of this fit: ZeroDivisionError: by zero"]
        if scenario == "rank 1 cannot count"
    ]


@pytest.mark.parametrize("scenario", ["stop", "raise", "disk full on rank 0", "rank 1 cannot collect the checkpoint"])
def test_all_ranks_end_after_the_same_batch_for_the_same_reason(seen: Seen, scenario: str) -> None:
    first, second = seen[scenario]
    assert first["batches"] == second["batches"] == 1
    assert first["weights"] == second["weights"] == seen["stop"][0]["weights"]
    assert first["reason"] == second["reason"]
    assert "(hours) are used" in first["reason"]
    assert first["ended"] == second["ended"]
    assert first["ended"].startswith("BudgetExceededError: CostBudget: " if scenario == "raise" else "")
    if "rank" in scenario:
        (said,) = first["said"]
        assert "could not write" in said
        assert ("rank 0: OSError: [Errno 28]" if "disk" in scenario else "rank 1: ZeroDivisionError: by zero") in said


def test_how_far_apart_ranks_decide_is_said_once(seen: Seen) -> None:
    first, second = seen["ok"]
    assert first["informed"] == [
        "CostBudget allows 41 d 16 h.",
        "CostBudget: 2 ranks decide together every 0 ms (or every batch, if longer). The run may exceed its budget by "
        "that much.",
    ]
    assert second["informed"] == []


def test_settings_of_rank_zero_apply_on_all_ranks_with_a_message(seen: Seen) -> None:
    first, second = seen["ranks are set differently"]
    assert first["batches"] == second["batches"] == 1
    assert first["weights"] == second["weights"]
    assert (first["ended"], second["ended"]) == ("", "")
    assert first["reason"] == second["reason"]
    assert second["said"] == [
        "CostBudget: this rank got on_exceed='raise', warmup_steps=3, but rank zero got on_exceed='stop', "
        "warmup_steps=4. Rank zero's values apply on all ranks."
    ]
    assert first["said"] == []


def test_a_validation_that_uses_the_budget_up_ends_all_ranks(seen: Seen) -> None:
    first, second = seen["validation uses the budget up"]
    assert first["batches"] == second["batches"] == EPOCHS * BATCHES
    # The first validation measures a batch; in the second, the hook of the batch that ends it is left out.
    assert (first["validated"], second["validated"]) == (3 + 1, 3 + 1)
    assert first["reason"] == second["reason"] == "it is used up"
    assert first["ended"] == second["ended"] == ""  # a stop never raises
    assert first["said"] == second["said"] == []


def test_a_rank_that_dies_ends_the_others_by_their_own_collectives(seen: Seen) -> None:
    first, second = seen["rank 1 dies"]
    assert second == {}
    assert first["ended"]  # what torch says of the lost connection


def test_only_a_rank_that_does_not_come_is_waited_for_in_vain_and_once(seen: Seen) -> None:
    waits = {scenario: [outcome["given_up"] for outcome in seen[scenario]] for scenario in ENDS}
    assert waits.pop("rank 1 cannot count") == [1, 0]
    assert waits.pop("rank 1 cannot meet") == [1, 0]
    assert set(map(tuple, waits.values())) == {(0, 0)}
