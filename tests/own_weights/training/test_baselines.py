from __future__ import annotations

import numpy as np
import pytest

from benchmarks.training.scores import baseline_errors, memory_bandwidth_of, peak_of, ratio_errors
from lightning_predict.kernels.operations import shape_batch
from lightning_predict.own_weights.training.tables import Group
from tests.own_weights.training.example import GPUS


def timed(gpu: str, dtype: str, depths: list[int], seconds: list[float]) -> Group:
    batch = shape_batch("linear", dtype, m=64, n=64, k=np.array(depths))
    return Group(gpu, "synthetic", batch, np.array(seconds), 0.0)


@pytest.mark.parametrize(
    ("figure", "dtype", "scale"),
    [
        (peak_of, "float32", 2.0),  # BIG has 2 TFLOP/s, SMALL 1
        (peak_of, "bfloat16", 2.0),  # 16 and 8
        (memory_bandwidth_of, "float32", 3.0),  # 300 GB/s and 100
    ],
)
def test_a_ratio_scales_the_time_of_the_same_problem(figure: object, dtype: str, scale: float) -> None:
    mine = timed("SMALL", dtype, [16, 32, 48], [1.0, 2.0, 3.0])
    other = timed("BIG", dtype, [64, 48, 16], [9.0, 2.0, 0.5])  # 32 is missing, 64 was not requested
    errors = ratio_errors(mine, [mine, other], GPUS, figure)  # type: ignore[arg-type]
    assert sorted(errors) == pytest.approx(sorted([scale * 0.5 / 1.0 - 1, scale * 2.0 / 3.0 - 1]))


def test_a_baseline_that_says_nothing_is_absent() -> None:
    mine = timed("SMALL", "float32", [16, 32], [1.0, 2.0])
    stranger = timed("BIG", "float32", [17, 33], [1.0, 2.0])
    found = baseline_errors([mine], [mine, stranger], GPUS, None)
    assert list(found) == ["roofline"]
    assert found["roofline"].predictions == 2
    assert found["roofline"].mean == pytest.approx(1.0, abs=1e-6)  # microseconds where seconds were measured


def test_every_other_gpu_that_measured_a_problem_counts() -> None:
    mine = timed("SMALL", "float32", [16, 32], [1.0, 1.0])
    twice = [timed("BIG", "float32", [16, 32], [0.5, 0.75]), timed("BIG", "float32", [16], [1.0])]
    error = baseline_errors([mine], [mine, *twice], GPUS, None)["peak ratio"]
    # 2 x 0.5, 2 x 0.75 and 2 x 1 where 1 was measured.
    assert error.predictions == 3
    assert error.median == pytest.approx(0.5)
    assert error.mean == pytest.approx(0.5)
