import json
import re
from pathlib import Path
from typing import Any

import pytest

from lightning_predict.base.errors import InvalidArgumentError, MeasurementTableError, UnknownGpuError
from lightning_predict.hardware import gpu
from lightning_predict.regression.runs import PastRun, RunSetting, read_runs

SETTING = RunSetting(iterations=1000, batch_size=64, gpu="Tesla T4", num_gpus=2)


def test_gpu_is_one_of_the_catalogue_or_its_computing_power_is_given() -> None:
    assert SETTING.gpu == "T4"
    # What its large products sustain (4.35e12), half of the peak; and what its memory gives.
    assert SETTING.flops_per_second == gpu("T4").measured_flops_per_second["float32"]
    assert SETTING.flops_per_second < 0.6 * gpu("T4").peak_flops_per_second["float32"]
    assert SETTING.bytes_per_second == gpu("T4").dram_bytes_per_second
    assert RunSetting(iterations=1, batch_size=1, gpu="Quadro of mine", flops_per_second=1e12).value(
        "flops_per_second"
    ) == pytest.approx(1e12)
    with pytest.raises(UnknownGpuError, match="'T44' is not a GPU of the catalogue"):
        RunSetting(iterations=10, batch_size=4, gpu="T44")
    for layout, number in (("8xT4", 1), ("8xT4", 8), ("T4", 8), ("2x4xT4", 1)):
        setting = RunSetting(iterations=1, batch_size=1, gpu=layout, num_gpus=number)
        assert (setting.gpu, setting.num_gpus) == ("T4", 8)
    with pytest.raises(InvalidArgumentError, match=r"seconds=0\.0; expected a number above 0\."):
        PastRun(model="net", setting=SETTING, seconds=0.0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"batch_size": 0}, "batch_size=0; expected a whole number of at least 1."),
        ({"iterations": 1.5}, "iterations=1.5; expected a whole number of at least 1."),
        ({"num_gpus": True}, "num_gpus=True; expected a whole number of at least 1."),
        ({"threads": -1}, "threads=-1; expected a whole number of at least 1."),
        ({"disk_seconds": -0.1}, "disk_seconds=-0.1; expected a number of at least 0."),
        ({"flops_per_second": 0.0}, "flops_per_second=0.0; expected a number above 0."),
        ({"flops_per_second": float("inf")}, "flops_per_second=inf; expected a number above 0."),
        ({"gpu": "8xT4", "num_gpus": 4}, "gpu='8xT4' is 8 GPUs and num_gpus=4; leave one of them out."),
        ({"gpu": None}, "A run needs its GPU's name or its computing power (flops_per_second)."),
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{re.escape(words)}$"):
        RunSetting(**{"iterations": 10, "batch_size": 4, "gpu": "T4", **wrong})


GPU = {"gpu": "L4"}


def write_state(folder: Path, *, seconds: float | None, steps: int, batch: int) -> Path:
    """Write the files that the Trainer saves."""
    folder.mkdir(parents=True, exist_ok=True)
    history = [{"loss": 2.0, "step": 10}, *([] if seconds is None else [{"train_runtime": seconds, "step": steps}])]
    file = folder / "trainer_state.json"
    state = {"global_step": steps, "train_batch_size": batch, "log_history": history}
    file.write_text(json.dumps(state), encoding="utf-8")
    return file


def test_state_of_a_trainer_needs_an_end_and_a_gpu(tmp_path: Path) -> None:
    for batch in (8, 16, 32):
        write_state(tmp_path / f"batch{batch}", seconds=10.0 * batch, steps=100, batch=batch)
    write_state(tmp_path / "checkpoint-50", seconds=1.0, steps=50, batch=8)  # a part of a run
    assert [run.seconds for run in read_runs(tmp_path, values=GPU).runs] == [160.0, 320.0, 80.0]
    (run,) = read_runs(write_state(tmp_path, seconds=50.0, steps=100, batch=8), values=GPU).runs
    assert (run.seconds, run.setting.iterations, run.setting.batch_size, run.setting.gpu) == (50.0, 100, 8, "L4")
    with pytest.raises(MeasurementTableError, match="has no train_runtime: the run did not end"):
        read_runs(write_state(tmp_path, seconds=None, steps=100, batch=8), values=GPU)
    with pytest.raises(MeasurementTableError, match="has no column 'gpu' or 'gflops'"):
        read_runs(write_state(tmp_path, seconds=5.0, steps=100, batch=8))


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
