"""Weights of a user's own GPU: tuned from the shipped weights, scored before and after, and nothing else is lost."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.hardware import gpu
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import operation_shape, shape_batch
from lightning_predict.kernels.roofline import SHORTEST_KERNEL_SECONDS
from lightning_predict.kernels.timing import predict_operation_times
from lightning_predict.own_weights.measuring import typical_steps
from lightning_predict.own_weights.training import tuning
from lightning_predict.own_weights.training.networks import TrainingPlan
from lightning_predict.own_weights.training.tables import LONGEST_REPLAY_SECONDS, STEPS_FOLDER, read_own_tables
from lightning_predict.own_weights.training.tuning import MIN_OWN_ROWS, OwnScore, tune_weights
from lightning_predict.weights.records import CROSS_GPU, MeasuredFactor
from lightning_predict.weights.source import WeightsSource
from lightning_predict.weights.store import load_weights, read_manifest
from tests.example_gpu import SMALL
from tests.known import known
from tests.own_weights.training.example import measured, recorded_step, write_own_table

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
        assert score.after < 0.5 * known(score.before)
        assert score.coverage > 0.75


def test_unmeasured_families_keep_weights_and_the_manifest_lists_the_measured(
    tuned: tuple[Path, tuple[OwnScore, ...]],
) -> None:
    mine = load_weights(["T4", "RTX-4090", "L4"], WeightsSource(path=str(tuned[0]), offline=True))
    shipped = load_weights(["T4", "RTX-4090", "L4"])
    assert set(mine.gpus["T4"].families) == set(shipped.gpus["T4"].families)
    assert mine.gpus["T4"].families["vector"].interval == shipped.gpus["T4"].families["vector"].interval
    assert "RTX-4090" not in shipped.gpus
    assert set(mine.gpus["RTX-4090"].families) == {"matmul_single"}
    assert mine.gpus["L4"] is shipped.gpus["L4"] or mine.gpus["L4"].recipe == shipped.gpus["L4"].recipe
    assert mine.cross_gpu_model.recipe == shipped.cross_gpu_model.recipe
    assert mine.cross_gpu_model.gpu == CROSS_GPU
    entry = known(read_manifest(tuned[0])).files["RTX-4090.safetensors"]
    assert entry.trained_on == ("one's own measurements",)
    (score,) = (score for score in tuned[1] if score.gpu == "RTX-4090")
    assert entry.held_out_error["linear/float32"].mean == pytest.approx(score.after, abs=1e-4)
    assert entry.rows > MIN_OWN_ROWS


def test_tables_without_enough_rows_of_a_known_gpu_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasurementTableError, match=r"`lightning-predict measure`.*python -m benchmarks.training"):
        briefly(tmp_path, tmp_path / "weights")
    write_own_table(tmp_path, [gpu("T4")], rows=5)
    with pytest.raises(MeasurementTableError, match=r"Most rows are of matmul_single: \d. Measure more"):
        briefly(tmp_path, tmp_path / "weights")
    write_own_table(tmp_path, [SMALL], rows=10)
    with pytest.raises(MeasurementTableError, match=r"is in the catalogue by its name: SMALL"):
        briefly(tmp_path, tmp_path / "weights")


@pytest.mark.parametrize(("is_as_shipped", "refused"), [(True, "a recorded step gets worse"), (False, None)])
def test_network_that_makes_a_recorded_step_worse_is_refused(
    tmp_path: Path, is_as_shipped: bool, refused: str | None
) -> None:
    write_own_table(tmp_path, [gpu("T4")], rows=900)
    shape = operation_shape("linear", "float32", m=2048, n=2048, k=2048)
    shipped = float(predict_operation_times([shape], [gpu("T4")], kernel_models(("T4",))).seconds[0, 0])
    by_law = float(measured(gpu("T4"), shape_batch("linear", "float32", b=1, m=2048, n=2048, k=2048))[0])
    assert abs(shipped / by_law - 1) > 0.1
    recorded_step("aten::mm", shipped if is_as_shipped else by_law, gpu("T4")).save(
        tmp_path / STEPS_FOLDER / "product.json.gz"
    )
    (score,) = briefly(tmp_path, tmp_path / "weights")
    assert score.refused == refused
    assert ("T4.safetensors" in known(read_manifest(tmp_path / "weights")).files) == (refused is None)


def test_manifest_leaves_refused_rows_out_and_replays_are_subtracted(tmp_path: Path) -> None:
    write_own_table(tmp_path, [gpu("T4")], rows=900)
    shipped = load_weights(["T4"])
    (refused,) = tuning._tasks(gpu("T4"), read_own_tables(tmp_path), shipped, 0)
    factors = {"T4": {"relu/float32": MeasuredFactor(factor=1.1, half_width=0.1, rows=12)}}
    tuning._write({"T4": {}}, factors, [refused], [], shipped, tmp_path / "weights", 0)
    assert known(read_manifest(tmp_path / "weights")).files["T4.safetensors"].rows == 12
    write_own_table(tmp_path, [gpu("T4")], rows=200)
    (table,) = read_own_tables(tmp_path)
    written = np.sort(measured(gpu("T4"), table.batch))
    replay = min(max(written[0] - SHORTEST_KERNEL_SECONDS, 0.0), LONGEST_REPLAY_SECONDS)
    np.testing.assert_allclose(np.sort(table.seconds), written - replay, rtol=1e-4)


def test_measure_records_its_steps_once_and_names_those_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []

    def maker(name: str) -> Callable[[torch.device], Callable[[], None]]:
        def make(device: torch.device) -> Callable[[], None]:
            def step() -> None:
                runs.append(name)
                torch.ones(3, device=device).sum()

            return step

        return make

    def too_large(device: torch.device) -> Callable[[], None]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nAnd more.")

    steps = {"a": maker("a"), "large": too_large, "b": maker("b")}
    monkeypatch.setattr(typical_steps, "TYPICAL_STEPS", steps)
    monkeypatch.setattr(typical_steps, "CHECKED", tuple(steps))
    for _ in range(2):
        failures = typical_steps.record_steps(tmp_path / STEPS_FOLDER, torch.device("cpu"))
        assert failures == ("The step of large could not be recorded: CUDA out of memory. Tried to allocate 2.00 GiB.",)
        assert {path.name for path in (tmp_path / STEPS_FOLDER).iterdir()} == {"a.json.gz", "b.json.gz"}
        assert runs.count("a") == runs.count("b") == typical_steps.RECORDED_AFTER + 1


def test_weights_that_no_step_checks_are_refused(tmp_path: Path) -> None:
    write_own_table(tmp_path, [gpu("T4")], rows=900)
    shutil.rmtree(tmp_path / STEPS_FOLDER)
    with pytest.raises(
        MeasurementTableError, match=r"no step recorded on T4\. .* `lightning-predict measure` into this"
    ):
        briefly(tmp_path, tmp_path / "weights")
