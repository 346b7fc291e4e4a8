"""Two processes that train together: rank zero alone predicts and logs, and both end at the same batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_predict.callbacks.cost_budget import CHECKPOINT_NAME
from lightning_predict.callbacks.lightning_packages import PACKAGES
from tests.callbacks.ranks import launched


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the observations of each rank and fit."""
    folder = tmp_path_factory.mktemp("fits")
    for ran in launched("tests.callbacks.two_processes", folder, world_size=2, folder=folder):
        assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder


def fitted(folder: Path) -> list[dict[str, Any]]:
    """What each rank saw."""
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("package", PACKAGES)
def test_rank_zero_predicts_and_logs_once(package: str, folder: Path) -> None:
    first, second = fitted(folder / package)
    assert (first["predicted"], second["predicted"]) == ([True], [False])
    assert first["predictions_logged"] >= 1
    assert second["predictions_logged"] == 0
    assert first["layouts_logged"] == ["predict/2x8xT4/iteration_ms", "predict/8xT4/iteration_ms"]
    assert second["layouts_logged"] == []
    # Believed at the half: 8 of 16 steps of each of two processes are left, 16 for one GPU, 16 / 8 and 16 / 16.
    assert first["steps"] == [[16, 2, 1]]
    assert (first["budgets_logged"], second["budgets_logged"]) == (2, 0)  # at the half, and at the end
    assert first["reasons"] == second["reasons"] == [None]
    assert first["batches"] == second["batches"] == 2 * 16 // 2
    assert first["weights"] == second["weights"]
    assert first["warned"] == second["warned"] == []


def test_weights_and_random_numbers_of_both_are_those_of_a_fit_without_callbacks(folder: Path) -> None:
    for watched, plain in zip(fitted(folder / "lightning.pytorch"), fitted(folder / "without"), strict=True):
        assert watched["weights"] == plain["weights"]
        assert watched["random"] == plain["random"]
        assert watched["batches"] == plain["batches"]


def test_both_stop_together(folder: Path) -> None:
    first, second = fitted(folder / "over")
    assert first["batches"] == second["batches"] == 1
    assert first["reasons"] == second["reasons"]
    assert "(usd) are used" in first["reasons"][0]
    assert (first["budgets_logged"], second["budgets_logged"]) == (1, 0)
    assert second["warned"] == []
    assert (folder / "over" / CHECKPOINT_NAME).exists()
