from dataclasses import replace

import numpy as np
import pytest

from lightning_predict.kernels.measured_scaling import RATIO_EXPONENTS, predict_work_times
from lightning_predict.record.trace import Trace
from lightning_predict.timeline.host import LIBRARY_SECONDS, HostModel
from lightning_predict.timeline.same_gpu_check import SameGpuCheck, corrected_iterations, same_gpu_check
from lightning_predict.uncertainty import SURROGATE_SPREAD
from tests.example_gpu import BIG, SMALL
from tests.known import known
from tests.timeline.example_host import work_by_ratio
from tests.timeline.test_step_prediction import LARGE, MODELS, TINY, measured_trace, product

EXPONENT = RATIO_EXPONENTS["same units"]

PREDICTED = 2 * 2 * 4096**3 / 1e12  # A product of 4096 in float32 at half of SMALL's 1 TFLOP/s


def cuda_trace(*steps: float, sizes: int = 1) -> Trace:
    """A step on CUDA whose kernels could not be measured."""
    return Trace(operations=(product(LARGE),) * sizes, device="cuda", recorder="profiler", step_seconds=steps)


def test_check_predicts_gpu_in_use_from_shapes_alone_or_not_at_all() -> None:
    check = known(same_gpu_check(cuda_trace(0.3, 0.25, 0.35), SMALL, MODELS))
    assert (check.gpu, check.measured_seconds, check.bound_by) == ("SMALL", 0.3, "device")
    assert check.predicted_seconds == pytest.approx(PREDICTED)
    assert check.error == pytest.approx(PREDICTED / 0.3 - 1)
    check = known(same_gpu_check(measured_trace(0.51), SMALL, MODELS))
    assert check.predicted_seconds == pytest.approx(PREDICTED)
    trace = cuda_trace(0.3)
    assert same_gpu_check(trace, None, MODELS) is None
    assert same_gpu_check(replace(trace, step_seconds=()), SMALL, MODELS) is None
    assert same_gpu_check(replace(trace, compiled=True), SMALL, MODELS) is None


def test_device_is_corrected_by_part_of_the_error_and_the_host_by_all() -> None:
    trace = cuda_trace(2 * PREDICTED)
    check = known(same_gpu_check(trace, SMALL, MODELS))
    assert check.device_factor == pytest.approx(2**EXPONENT)
    assert check.host_factor == 1
    work = predict_work_times(trace, [SMALL, BIG], origin=SMALL, models=MODELS)
    own, other = corrected_iterations(trace, work, [SMALL, BIG], origin=SMALL, check=check)
    assert own.seconds == 2 * PREDICTED  # measured
    assert own.notes == ()
    # BIG has twice the peak.
    assert other.seconds == pytest.approx(PREDICTED / 2 * 2**EXPONENT)
    assert other.low_seconds < other.seconds < other.high_seconds
    assert other.notes == (
        f"Other GPUs: the device's time is corrected by a factor of {2**EXPONENT:.2f}, as the step takes "
        "2.00 times as long on SMALL as predicted.",
    )
    expected = 100 * HostModel().overheads("forward", None, LIBRARY_SECONDS["aten::mm"]).total_seconds(launches=1)
    trace = replace(cuda_trace(3 * expected), operations=(product(TINY),) * 100)
    check = known(same_gpu_check(trace, SMALL, MODELS))
    assert check.bound_by == "host"
    assert check.device_factor == 1
    assert check.host_factor == pytest.approx(3)
    work = work_by_ratio(trace, [BIG], origin=SMALL, models=MODELS)
    (other,) = corrected_iterations(trace, work, [BIG], origin=SMALL, check=check)
    assert other.seconds == pytest.approx(3 * expected)
    assert other.high_seconds == pytest.approx(SURROGATE_SPREAD * 3 * expected)
    assert other.notes[0].startswith("Other GPUs: the host's time is corrected by a factor of 3.00, as the step takes")


def test_measured_kernels_and_steps_without_a_check_are_not_corrected() -> None:
    trace = measured_trace(0.51)
    check = same_gpu_check(trace, SMALL, MODELS)
    work = work_by_ratio(trace, [BIG], origin=SMALL, models=MODELS)
    (other,) = corrected_iterations(trace, work, [BIG], origin=SMALL, check=check)
    assert other.seconds == pytest.approx(0.26, rel=1e-3)  # half of the kernel's 0.5, and the 10 ms beyond it
    assert not any(note.startswith("Other GPUs") for note in other.notes)
    trace = cuda_trace()
    work = predict_work_times(trace, [BIG], origin=None, models=MODELS)
    (other,) = corrected_iterations(trace, work, [BIG], origin=None, check=None)
    assert other.seconds == pytest.approx(PREDICTED / 2)
    np.testing.assert_allclose(work.seconds, PREDICTED / 2)


@pytest.mark.parametrize(("measured", "factor"), [(1.0, 1.0), (1.1, 1.1**0.75), (0.8, 0.8**0.75)])
def test_correction_factor_of_longer_and_shorter_steps(measured: float, factor: float) -> None:
    check = SameGpuCheck(gpu="T4", measured_seconds=measured, predicted_seconds=1.0, bound_by="device")
    assert check.device_factor == pytest.approx(factor)


def test_python_work_is_not_an_error_of_the_device() -> None:
    # Kernels could not be measured; the profiler saw 30 ms between the step's start and its product.
    timed = replace(product(LARGE), host_start_seconds=0.03, host_seconds=1e-5)
    trace = replace(cuda_trace(0.03 + 2 * PREDICTED), operations=(timed,))
    check = known(same_gpu_check(trace, SMALL, MODELS))
    assert check.predicted_seconds == pytest.approx(0.03 + PREDICTED, rel=1e-3)
    assert check.device_factor == pytest.approx(2**EXPONENT, rel=1e-3)
    work = work_by_ratio(trace, [BIG], origin=SMALL, models=MODELS)
    (other,) = corrected_iterations(trace, work, [BIG], origin=SMALL, check=check)
    assert other.seconds == pytest.approx(0.03 + PREDICTED / 2 * 2**EXPONENT, rel=1e-3)
