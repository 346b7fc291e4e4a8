import re
from typing import Any

import pytest

from lightning_predict.base.errors import InvalidArgumentError, UnknownGpuError
from lightning_predict.hardware import gpu
from lightning_predict.regression.runs import PastRun, RunSetting

SETTING = RunSetting(iterations=1000, batch_size=64, gpu="Tesla T4", num_gpus=2)


def test_the_catalogue_gives_the_name_and_the_computing_power() -> None:
    assert SETTING.gpu == "T4"
    # What its large products sustain (4.35e12), half of the peak; and what its memory gives.
    assert SETTING.flops_per_second == gpu("T4").measured_flops_per_second["float32"]
    assert SETTING.flops_per_second < 0.6 * gpu("T4").peak_flops_per_second["float32"]
    assert SETTING.bytes_per_second == gpu("T4").dram_bytes_per_second


def test_a_given_computing_power_needs_no_gpu_of_the_catalogue() -> None:
    assert RunSetting(iterations=1, batch_size=1, gpu="Quadro of mine", flops_per_second=1e12).value(
        "flops_per_second"
    ) == pytest.approx(1e12)


def test_a_layout_is_a_gpu_and_a_number() -> None:
    for layout, number in (("8xT4", 1), ("8xT4", 8), ("T4", 8), ("2x4xT4", 1)):
        setting = RunSetting(iterations=1, batch_size=1, gpu=layout, num_gpus=number)
        assert (setting.gpu, setting.num_gpus) == ("T4", 8)


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


def test_an_unknown_gpu_without_its_power() -> None:
    with pytest.raises(UnknownGpuError, match="'T44' is not a GPU of the catalogue"):
        RunSetting(iterations=10, batch_size=4, gpu="T44")


def test_a_run_takes_time() -> None:
    with pytest.raises(InvalidArgumentError, match=r"seconds=0\.0; expected a number above 0\."):
        PastRun(model="net", setting=SETTING, seconds=0.0)
