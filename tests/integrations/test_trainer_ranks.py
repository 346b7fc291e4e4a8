"""Two ranks of Hugging Face's Trainer: a budget ends both after the same step, and nothing of ours disturbs them."""

import json
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
def test_training_equals_a_run_without_the_callback(seen: Seen, name: str) -> None:
    for watched, plain in zip(seen[name], seen["plain"], strict=True):
        assert [watched[key] for key in ("weights", "random", "steps", "ended", "reason")] == [
            plain[key] for key in ("weights", "random", "steps", "ended", "reason")
        ]
        assert watched["steps"] == STEPS
    first, second = seen[name]
    assert (first["predicted"], second["predicted"]) == ("cannot" not in name, False)
    assert all("training goes on: ZeroDivisionError: by zero" in said for said in first["said"])
    assert bool(first["said"]) == ("cannot" in name)


@pytest.mark.parametrize("name", ["over budget", "over budget in dollars"])
def test_a_budget_ends_both_ranks_after_the_same_step(seen: Seen, name: str) -> None:
    # Rank zero alone stopped before, and the other rank waited for its gradients until torch ended both.
    first, second = seen[name]
    assert first["steps"] == second["steps"] == 1
    assert first["weights"] == second["weights"]
    assert first["reason"] == second["reason"]
    assert "are used" in first["reason"]
    assert first["ended"] == second["ended"] == ""
