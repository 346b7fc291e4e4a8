"""Weights of a user's own GPU: tuned from the shipped weights, scored before and after, and nothing else is lost."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.hardware import gpu
from lightning_predict.own_weights.training.networks import TrainingPlan
from lightning_predict.own_weights.training.tuning import MIN_OWN_ROWS, OwnScore, tune_weights
from lightning_predict.weights.records import CROSS_GPU
from lightning_predict.weights.source import WeightsSource
from lightning_predict.weights.store import load_weights, read_manifest
from tests.example_gpu import SMALL
from tests.own_weights.training.example import write_own_table

briefly = partial(tune_weights, plan=TrainingPlan(steps=120, batch_rows=256, learning_rate=1e-3), jobs=1)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[OwnScore, ...]]:
    """Weights tuned to made-up products of a GPU with networks of its own, and of one without."""
    folder = tmp_path_factory.mktemp("own")
    write_own_table(folder, [gpu("T4"), gpu("RTX-4090")], rows=900)
    return folder / "weights", briefly(folder, folder / "weights")


def test_the_error_on_rows_that_no_fit_saw_falls(tuned: tuple[Path, tuple[OwnScore, ...]]) -> None:
    # The made-up law, a utilisation of 0.2 to 0.8 by size, belongs to no real GPU.
    assert {score.gpu for score in tuned[1]} == {"T4", "RTX-4090"}
    for score in tuned[1]:
        assert (score.operation, score.dtype) == ("linear", "float32")
        assert 0.1 * 900 < score.rows < 0.2 * 900  # 15 % are held out
        assert score.before is not None
        assert score.after < 0.5 * score.before
        assert score.coverage > 0.75


def test_unmeasured_families_keep_shipped_weights(tuned: tuple[Path, tuple[OwnScore, ...]]) -> None:
    mine = load_weights(["T4", "RTX-4090", "L4"], WeightsSource(path=str(tuned[0]), offline=True))
    shipped = load_weights(["T4", "RTX-4090", "L4"])
    assert set(mine.gpus["T4"].families) == set(shipped.gpus["T4"].families)
    assert mine.gpus["T4"].families["vector"].interval == shipped.gpus["T4"].families["vector"].interval
    assert "RTX-4090" not in shipped.gpus
    assert set(mine.gpus["RTX-4090"].families) == {"matmul_single"}
    assert mine.gpus["L4"] is shipped.gpus["L4"] or mine.gpus["L4"].recipe == shipped.gpus["L4"].recipe
    assert mine.cross_gpu_model.recipe == shipped.cross_gpu_model.recipe
    assert mine.cross_gpu_model.gpu == CROSS_GPU


def test_manifest_lists_measured_operations(tuned: tuple[Path, tuple[OwnScore, ...]]) -> None:
    manifest = read_manifest(tuned[0])
    assert manifest is not None
    entry = manifest.files["RTX-4090.safetensors"]
    assert entry.trained_on == ("one's own measurements",)
    (score,) = (score for score in tuned[1] if score.gpu == "RTX-4090")
    assert entry.held_out_error["linear/float32"].mean == pytest.approx(score.after, abs=1e-4)
    assert entry.rows > MIN_OWN_ROWS


def test_too_few_rows_say_what_to_measure(tmp_path: Path) -> None:
    write_own_table(tmp_path, [gpu("T4")], rows=5)
    with pytest.raises(MeasurementTableError, match=r"Most rows are of matmul_single: \d. Measure more"):
        briefly(tmp_path, tmp_path / "weights")


def test_a_gpu_that_the_catalogue_does_not_have_is_named(tmp_path: Path) -> None:
    write_own_table(tmp_path, [SMALL], rows=10)
    with pytest.raises(MeasurementTableError, match=r"is in the catalogue by its name: SMALL"):
        briefly(tmp_path, tmp_path / "weights")


def test_a_folder_without_tables_of_ones_own_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MeasurementTableError, match=r"`lightning-predict measure`.*python -m benchmarks.training"):
        briefly(tmp_path, tmp_path / "weights")
