import numpy as np
import pytest

from lightning_predict.hardware import gpu
from lightning_predict.kernels.corrections import ADA_WITHOUT_ECC_TIME
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.record.trace import Operation, TensorInfo, Trace


def test_ada_boards_without_ecc_are_faster_than_measured_ones() -> None:
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
    assert times.seconds[0, 0] == pytest.approx(without * ADA_WITHOUT_ECC_TIME, rel=1e-6)
