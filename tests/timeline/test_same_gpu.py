from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.record.trace import Trace
from lightning_predict.timeline.host import LIBRARY_SECONDS, HostModel
from lightning_predict.timeline.same_gpu_check import (
    CORRECTION_EXPONENT,
    SameGpuCheck,
    corrected_iterations,
    same_gpu_check,
)
from lightning_predict.uncertainty import SURROGATE_SPREAD
from tests.example_gpu import BIG, SMALL
from tests.timeline.test_step_prediction import LARGE, MODELS, TINY, measured_trace, product

PREDICTED = 2 * 2 * 4096**3 / 1e12
"""A product of 4096 in float32 at half of SMALL's 1 TFLOP/s."""


def cuda_trace(*steps: float, sizes: int = 1) -> Trace:
    """A step on CUDA whose kernels could not be measured."""
    return Trace(operations=(product(LARGE),) * sizes, device="cuda", recorder="profiler", step_seconds=steps)


def test_the_check_predicts_the_gpu_in_use_from_shapes_alone() -> None:
    check = same_gpu_check(cuda_trace(0.3, 0.25, 0.35), SMALL, MODELS)
    assert check is not None
    assert (check.gpu, check.measured_seconds, check.bound_by) == ("SMALL", 0.3, "device")
    assert check.predicted_seconds == pytest.approx(PREDICTED)
    assert check.error == pytest.approx(PREDICTED / 0.3 - 1)


def test_measured_kernels_do_not_enter_the_check() -> None:
    check = same_gpu_check(measured_trace(0.51), SMALL, MODELS)
    assert check is not None
    assert check.predicted_seconds == pytest.approx(PREDICTED)


def test_there_is_no_check_without_a_known_gpu_a_timed_step_or_readable_code() -> None:
    trace = cuda_trace(0.3)
    assert same_gpu_check(trace, None, MODELS) is None
    assert same_gpu_check(replace(trace, step_seconds=()), SMALL, MODELS) is None
    assert same_gpu_check(replace(trace, compiled=True), SMALL, MODELS) is None


def test_the_device_is_corrected_by_a_part_of_the_error() -> None:
    trace = cuda_trace(2 * PREDICTED)
    check = same_gpu_check(trace, SMALL, MODELS)
    assert check is not None
    assert check.device_factor == pytest.approx(2**CORRECTION_EXPONENT)
    assert check.host_factor == 1
    work = predict_work_times(trace, [SMALL, BIG], origin=SMALL, models=MODELS)
    own, other = corrected_iterations(trace, work, [SMALL, BIG], origin=SMALL, check=check)
    assert own.seconds == 2 * PREDICTED  # measured
    assert own.notes == ()
    # BIG has twice the peak.
    assert other.seconds == pytest.approx(PREDICTED / 2 * 2**CORRECTION_EXPONENT)
    assert other.low_seconds < other.seconds < other.high_seconds
    assert other.notes == (
        f"Other GPUs: the device's time is corrected by a factor of {2**CORRECTION_EXPONENT:.2f}, as the step takes "
        "2.00 times as long on SMALL as predicted.",
    )


def test_the_host_is_the_same_on_other_gpus_so_its_time_is_corrected_in_full() -> None:
    expected = 100 * HostModel().overheads("forward", None, LIBRARY_SECONDS["aten::mm"]).total_seconds(launches=1)
    trace = replace(cuda_trace(3 * expected), operations=(product(TINY),) * 100)
    check = same_gpu_check(trace, SMALL, MODELS)
    assert check is not None
    assert check.bound_by == "host"
    assert check.device_factor == 1
    assert check.host_factor == pytest.approx(3)
    work = predict_work_times(trace, [BIG], origin=SMALL, models=MODELS)
    (other,) = corrected_iterations(trace, work, [BIG], origin=SMALL, check=check)
    assert other.seconds == pytest.approx(3 * expected)
    assert other.high_seconds == pytest.approx(SURROGATE_SPREAD * 3 * expected)
    assert other.notes[0].startswith("Other GPUs: the host's time is corrected by a factor of 3.00, as the step takes")


def test_kernels_that_were_measured_are_not_corrected_twice() -> None:
    trace = measured_trace(0.51)
    check = same_gpu_check(trace, SMALL, MODELS)
    work = predict_work_times(trace, [BIG], origin=SMALL, models=MODELS, method="mlp")
    (other,) = corrected_iterations(trace, work, [BIG], origin=SMALL, check=check)
    assert other.seconds == pytest.approx(0.26, rel=1e-3)  # half of the kernel's 0.5, and the 10 ms beyond it
    assert not any(note.startswith("Other GPUs") for note in other.notes)


def test_without_a_check_nothing_is_corrected() -> None:
    trace = cuda_trace()
    work = predict_work_times(trace, [BIG], origin=None, models=MODELS)
    (other,) = corrected_iterations(trace, work, [BIG], origin=None, check=None)
    assert other.seconds == pytest.approx(PREDICTED / 2)
    np.testing.assert_allclose(work.seconds, PREDICTED / 2)


@pytest.mark.parametrize(("measured", "factor"), [(1.0, 1.0), (1.1, 1.1**0.75), (0.8, 0.8**0.75)])
def test_a_correction_goes_both_ways(measured: float, factor: float) -> None:
    check = SameGpuCheck(gpu="T4", measured_seconds=measured, predicted_seconds=1.0, bound_by="device")
    assert check.device_factor == pytest.approx(factor)


def test_python_work_is_no_error_of_the_devices_prediction() -> None:
    # Kernels could not be measured; the profiler saw 30 ms between the step's start and its product.
    timed = replace(product(LARGE), host_start_seconds=0.03, host_seconds=1e-5)
    trace = replace(cuda_trace(0.03 + 2 * PREDICTED), operations=(timed,))
    check = same_gpu_check(trace, SMALL, MODELS)
    assert check is not None
    assert check.predicted_seconds == pytest.approx(0.03 + PREDICTED, rel=1e-3)
    assert check.device_factor == pytest.approx(2**CORRECTION_EXPONENT, rel=1e-3)
    work = predict_work_times(trace, [BIG], origin=SMALL, models=MODELS)
    (other,) = corrected_iterations(trace, work, [BIG], origin=SMALL, check=check)
    assert other.seconds == pytest.approx(0.03 + PREDICTED / 2 * 2**CORRECTION_EXPONENT, rel=1e-3)
