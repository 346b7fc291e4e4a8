"""A rank that stalls, is killed or has a full disk, under DDP and FSDP: training goes on, or ends, as without us."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from tests.callbacks.rank_surroundings import AT_BATCH, BATCHES, CASES, TIMEOUT
from tests.callbacks.ranks import launched

Seen = dict[str, list[dict[str, Any]]]

STRATEGIES: Final = ("ddp", "fsdp")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Return what both ranks saw of all cases."""
    folder = tmp_path_factory.mktemp("ranks")
    for ran in launched("tests.callbacks.rank_surroundings", folder, *CASES, world_size=2, folder=folder):
        assert ran.returncode == 0, ran.stdout + ran.stderr
    return {name: [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in (0, 1)] for name in CASES}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "case", ["watched", "rank 0 stalls", "rank 1 stalls", "the disk of rank 0 is full", "the disk of rank 1 is full"]
)
def test_training_equals_a_run_without_callbacks(seen: Seen, strategy: str, case: str) -> None:
    for watched, plain in zip(seen[f"{strategy} {case}"], seen[f"{strategy} plain"], strict=True):
        assert [watched[name] for name in ("weights", "random", "batches", "ended")] == [
            plain[name] for name in ("weights", "random", "batches", "ended")
        ]
        assert watched["batches"] == 2 * BATCHES
        assert watched["reason"] is None
    first, second = seen[f"{strategy} {case}"]
    assert (first["predicted"], second["predicted"]) == (True, False)
    assert second["said"] == []
    failed = {said.split(":")[0].rpartition("/")[2].strip("'") for said in first["said"]}
    files = {"lightning_predict_budget.json", "predictions.json", "trace.json"}
    assert failed == (files if "rank 0 is full" in case else set())
    assert set(first["files"]) == files - failed


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_budget_ends_both_ranks_alike_whichever_disk_is_full(seen: Seen, strategy: str) -> None:
    for name in ("over budget", "over budget, the disk of rank 0 is full", "over budget, the disk of rank 1 is full"):
        first, second = seen[f"{strategy} {name}"]
        assert first["batches"] == second["batches"] == 1
        assert first["weights"] == second["weights"] == seen[f"{strategy} over budget"][0]["weights"]
        assert first["reason"] == second["reason"]
        assert "(hours) are used" in first["reason"]
        assert first["ended"] == second["ended"] == ""  # a stop never raises
        lost = [said for said in first["said"] if re.search(r"lightning_predict_budget(-\w+)?\.ckpt: rank", said)]
        # Under DDP rank zero alone writes the checkpoint; under FSDP each rank writes its part.
        assert len(lost) == ("full" in name and (strategy == "fsdp" or "rank 0" in name))
        assert all("[Errno 27] File too large" in said for said in lost)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_end_of_a_killed_rank_ends_the_other_as_without_callbacks(tmp_path: Path, strategy: str, rank: int) -> None:
    ends = {}
    for name in (f"{strategy}, rank {rank} is killed, {how}" for how in ("plain", "watched")):
        ran = launched("tests.callbacks.rank_surroundings", tmp_path, name, world_size=2, folder=tmp_path)
        assert ran[rank].returncode == -9
        survivor = tmp_path / f"{name}.{1 - rank}.json"
        ends[name] = json.loads(survivor.read_text()), ran[1 - rank].returncode
    (plain, plain_code), (watched, code) = ends.values()
    assert watched["ended"] == plain["ended"] != ""
    assert code == plain_code
    assert watched["batches"] == plain["batches"] == AT_BATCH + 1
    # A joint decision waits a third of the timeout for a rank, and twice as long for rank zero.
    assert watched["seconds"] < plain["seconds"] + 2 / 3 * TIMEOUT.total_seconds() + 20
