"""Past runs from files of Hugging Face's Trainer, TensorBoard and W&B."""

import json
from pathlib import Path

import pytest

from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.regression.runs import read_runs

GPU = {"gpu": "L4"}


def write_state(folder: Path, *, seconds: float | None, steps: int, batch: int) -> Path:
    """Write the files that the Trainer saves."""
    folder.mkdir(parents=True, exist_ok=True)
    history = [{"loss": 2.0, "step": 10}, *([] if seconds is None else [{"train_runtime": seconds, "step": steps}])]
    file = folder / "trainer_state.json"
    state = {"global_step": steps, "train_batch_size": batch, "log_history": history}
    file.write_text(json.dumps(state), encoding="utf-8")
    return file


def test_the_state_of_a_trainer_is_a_run(tmp_path: Path) -> None:
    (run,) = read_runs(write_state(tmp_path, seconds=50.0, steps=100, batch=8), values=GPU).runs
    assert (run.seconds, run.setting.iterations, run.setting.batch_size, run.setting.gpu) == (50.0, 100, 8, "L4")


def test_a_folder_has_a_run_in_each_subfolder(tmp_path: Path) -> None:
    for batch in (8, 16, 32):
        write_state(tmp_path / f"batch{batch}", seconds=10.0 * batch, steps=100, batch=batch)
    write_state(tmp_path / "checkpoint-50", seconds=1.0, steps=50, batch=8)  # a part of a run
    assert [run.seconds for run in read_runs(tmp_path, values=GPU).runs] == [160.0, 320.0, 80.0]


def test_a_run_that_did_not_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasurementTableError, match="has no train_runtime: the run did not end"):
        read_runs(write_state(tmp_path, seconds=None, steps=100, batch=8), values=GPU)


def test_the_gpu_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(MeasurementTableError, match="has no column 'gpu' or 'gflops'"):
        read_runs(write_state(tmp_path, seconds=5.0, steps=100, batch=8))


def test_event_files_have_the_time_between_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))
    for step in (10, 20, 50):
        writer.add_scalar("loss", 1.0, step, walltime=1000.0 + 0.5 * step)
    writer.close()
    (file,) = tmp_path.glob("events.out.tfevents*")
    for place in (file, tmp_path):
        (run,) = read_runs(place, values=GPU | {"batch_size": "4"}).runs
        assert run.setting.iterations == 40
        assert run.seconds == pytest.approx(20.0)


def test_an_event_file_of_one_step_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))
    writer.add_scalar("loss", 1.0, 1)
    writer.close()
    with pytest.raises(MeasurementTableError, match="has the scalars of fewer than two steps"):
        read_runs(tmp_path, values=GPU | {"batch_size": "4"})


def test_the_summary_of_wandb_has_its_configuration_and_machine(tmp_path: Path) -> None:
    files = tmp_path / "run-1" / "files"
    files.mkdir(parents=True)
    summary = {"_runtime": 120.5, "_step": 7, "train/global_step": 700, "loss": float("nan"), "table": {"a": 1}}
    (files / "wandb-summary.json").write_text(json.dumps(summary).replace("NaN", "null"), encoding="utf-8")
    (files / "config.yaml").write_text("per_device_train_batch_size:\n  value: 16\n", encoding="utf-8")
    (files / "wandb-metadata.json").write_text('{"gpu": "NVIDIA L4", "gpu_count": 2}', encoding="utf-8")
    (run,) = read_runs(tmp_path).runs
    assert (run.seconds, run.setting.iterations, run.setting.batch_size) == (120.5, 700, 16)
    assert (run.setting.gpu, run.setting.num_gpus) == ("L4", 2)
