"""Loops of accelerate on two ranks: a budget ends both after the same step, and nothing of ours disturbs them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run

pytest.importorskip("accelerate")

from tests.integrations.accelerate_ranks import ALONE, AT_STEP, CASES, KILLED, STEPS

Seen = dict[str, list[dict[str, Any]]]
KEYS = ("weights", "random", "steps", "ended", "reason")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Return what both ranks saw of all cases."""
    folder = tmp_path_factory.mktemp("loops")
    for names in (CASES, ALONE):
        ran = run("-m", "tests.integrations.accelerate_ranks", folder, *names, variables={"OMP_NUM_THREADS": "1"})
        assert ran.returncode == 0, ran.stdout + ran.stderr
    names = CASES | ALONE
    return {name: [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in (0, 1)] for name in names}


@pytest.mark.parametrize("name", [name for name in CASES | ALONE if "over budget" not in name and name != "plain"])
def test_training_equals_a_loop_without_watch(seen: Seen, name: str) -> None:
    for watched, plain in zip(seen[name], seen["plain"], strict=True):
        assert [watched[key] for key in KEYS] == [plain[key] for key in KEYS]
        assert watched["steps"] == STEPS
    first, second = seen[name]
    if "alone" in name:
        (said,) = first["said"]
        assert "1 of 2 ranks did not answer within 3 s, so this process decides alone" in said
    elif "cannot" in name:  # a budget that is off on a rank is off on both
        assert all("no longer enforced" in rank["said"][-1] for rank in (first, second))
        assert all("ZeroDivisionError" in rank["said"][0] for rank in (first, second))
    elif "disk" in name:  # the launcher's store is a file, so the ranks cannot decide together
        assert any("File too large" in words for words in first["said"] + second["said"])
    else:
        assert (first["predicted"], second["predicted"]) == (True, True)
        assert first["said"] == second["said"] == []
    assert first["ranks"] == 2


@pytest.mark.parametrize("name", [name for name in CASES if "over budget" in name])
def test_a_budget_ends_both_ranks_after_the_same_step(seen: Seen, name: str) -> None:
    # Each rank stopped by its own clock before, and the other waited for its gradients.
    first, second = seen[name]
    assert first["steps"] == second["steps"] < STEPS
    assert first["weights"] == second["weights"]
    assert first["reason"] == second["reason"]
    assert "are used" in first["reason"] or "exceeds the budget" in first["reason"]
    assert first["ended"] == second["ended"] == ""


@pytest.mark.parametrize("rank", [0, 1])
def test_the_end_of_a_killed_rank_ends_the_other_as_without_a_watch(tmp_path: Path, rank: int) -> None:
    ends = []
    for name in (name for name in KILLED if name.startswith(f"rank {rank}")):
        ran = run("-m", "tests.integrations.accelerate_ranks", tmp_path, name, variables={"OMP_NUM_THREADS": "1"})
        assert ran.returncode not in (0, None)
        survivor = tmp_path / f"{name}.{1 - rank}.json"  # the launcher may end the other rank at once
        ends.append((ran.returncode, json.loads(survivor.read_text())["steps"] if survivor.exists() else AT_STEP))
    assert ends[0][0] == ends[1][0]
