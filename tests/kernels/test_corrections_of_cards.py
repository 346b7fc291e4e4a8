from __future__ import annotations

import math

import numpy as np
import pytest

from lightning_predict.hardware import gpu, gpu_names
from lightning_predict.kernels.corrections import GPU_BIAS, gpu_bias_factor
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.record.trace import Operation, TensorInfo, Trace


def test_two_sources_that_agree_move_a_gpu_by_two_thirds_of_what_they_say() -> None:
    assert gpu_bias_factor("RTX-4090") == pytest.approx(math.exp(-0.12 * 2 / 3))
    assert gpu_bias_factor("A100-SXM-80GB") == 1


@pytest.mark.parametrize("name", GPU_BIAS)
def test_no_gpu_is_moved_by_one_source_or_by_two_that_disagree(name: str) -> None:
    said = list(GPU_BIAS[name].values())
    assert name in gpu_names()
    assert len(said) >= 2
    assert all(value < -0.03 for value in said) or all(value > 0.03 for value in said)


def test_a_gpus_effect_scales_its_times_and_leaves_others() -> None:
    x = TensorInfo((4096, 4096), "float32")
    step = Trace(
        operations=(Operation(name="aten::relu", phase="forward", inputs=(x,), outputs=(x,)),),
        device="meta",
        recorder="dispatch",
    )
    names = ("RTX-4090", "L4")
    times = predict_work_times(step, [gpu(name) for name in names], origin=None, models=None)
    alone = predict_work_times(step, [gpu("L4")], origin=None, models=None)
    np.testing.assert_allclose(times.seconds[1], alone.seconds[0])
    # 2 x 64 MiB at four fifths of 1,008 GB/s, and 2 µs.
    without = 2 * 4096 * 4096 * 4 / (0.8 * gpu("RTX-4090").dram_bytes_per_second) + 2e-6
    assert times.seconds[0, 0] == pytest.approx(without * gpu_bias_factor("RTX-4090"), rel=1e-6)
