"""Two ranks of Hugging Face's Trainer: a budget ends both after the same step, and nothing of ours disturbs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.callbacks.ranks import launched
from tests.integrations.trainer_ranks import CASES, STEPS

Seen = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Return what both ranks saw of all cases."""
    folder = tmp_path_factory.mktemp("trainers")
    for ran in launched("tests.integrations.trainer_ranks", folder, *CASES, world_size=2, folder=folder):
        assert ran.returncode == 0, ran.stdout + ran.stderr
    return {name: [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in (0, 1)] for name in CASES}


@pytest.mark.parametrize("name", [name for name in CASES if "over budget" not in name and name != "plain"])
def test_training_is_that_of_a_run_without_the_callback(seen: Seen, name: str) -> None:
    for one, plain in zip(seen[name], seen["plain"], strict=True):
        assert [one[key] for key in ("weights", "random", "steps", "ended", "reason")] == [
            plain[key] for key in ("weights", "random", "steps", "ended", "reason")
        ]
        assert one["steps"] == STEPS
    first, second = seen[name]
    assert (first["predicted"], second["predicted"]) == ("cannot" not in name, False)
    is_off = "RuntimePredictorCallback stopped, training goes on: "
    for said in first["said"], second["said"]:
        assert all(one.startswith(is_off) and "ZeroDivisionError: by zero" in one for one in said)
    if "cannot" in name:
        assert first["said"]
        assert len(second["said"]) == 1  # a budget that is off on rank zero is off on all
        assert "rank 0: ZeroDivisionError" in second["said"][0]
    else:
        assert first["said"] == second["said"] == []


@pytest.mark.parametrize("name", ["over budget", "over budget in dollars"])
def test_a_budget_ends_both_ranks_after_the_same_step(seen: Seen, name: str) -> None:
    # Rank zero alone stopped before, and the other rank waited for its gradients until torch ended both.
    first, second = seen[name]
    assert first["steps"] == second["steps"] == 1
    assert first["weights"] == second["weights"]
    assert first["reason"] == second["reason"]
    assert "are used" in first["reason"]
    assert first["ended"] == second["ended"] == ""


@pytest.mark.parametrize("rank", [0, 1])
def test_the_end_of_a_killed_rank_ends_the_other_as_without_the_callback(tmp_path: Path, rank: int) -> None:
    ends = []
    for how in ("plain", "watched"):
        name = f"rank {rank} is killed, {how}"
        ran = launched("tests.integrations.trainer_ranks", tmp_path, name, world_size=2, folder=tmp_path)
        assert ran[rank].returncode == -9
        survivor = json.loads((tmp_path / f"{name}.{1 - rank}.json").read_text())
        ends.append((ran[1 - rank].returncode, survivor["ended"], survivor["steps"]))
    assert ends[0] == ends[1]
    assert ends[0][1] != ""
