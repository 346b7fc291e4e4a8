from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.kernels.choice import MEASURED_SPREAD, WAVE_SPREAD, timed_work
from lightning_predict.kernels.operations import batch_of, problem
from lightning_predict.kernels.roofline import roofline_seconds
from lightning_predict.tracing.records import Flags, Kernel, Operation, TensorInfo, Trace
from tests.example_gpu import BIG, SMALL
from tests.kernels.example_models import half_speed

MODELS = half_speed("linear/float32")
LEFT = TensorInfo((4096, 4096), "float32")


def kernel(seconds: float, blocks: int = 10**6) -> Kernel:
    return Kernel(
        name="k",
        seconds=seconds,
        grid=(blocks, 1, 1),
        block=(256, 1, 1),
        registers_per_thread=16,
        shared_memory_bytes=0,
        stream=7,
        start_seconds=0.0,
    )


def trace(*, measured: bool) -> Trace:
    """A product, an addition, and a fused kernel of unknown work."""
    product = Operation(name="aten::mm", phase="forward", inputs=(LEFT, LEFT), outputs=(LEFT,))
    addition = Operation(name="aten::add", phase="backward", inputs=(LEFT, LEFT), outputs=(LEFT,))
    if not measured:
        return Trace(operations=(product, addition), device="cpu", recorder="dispatch", flags=Flags())
    fused = Operation(name="triton::fused", phase="forward", kernels=(kernel(0.006),))
    operations = (replace(product, kernels=(kernel(0.5),)), replace(addition, kernels=(kernel(0.003),)), fused)
    return Trace(operations=operations, device="cuda", recorder="profiler", gpu_reported_name="Test SMALL")


def test_without_measurements_each_item_is_predicted_directly() -> None:
    timed = timed_work(trace(measured=False), [SMALL, BIG], origin=None, models=MODELS)
    item = problem("linear", "float32", m=4096, n=4096, k=4096)
    np.testing.assert_allclose(timed.seconds[:, 0], 2 * roofline_seconds(batch_of([item]), [SMALL, BIG])[:, 0])
    np.testing.assert_array_equal(timed.shares["mlp"], [[1, 0], [1, 0]])
    np.testing.assert_array_equal(timed.shares["roofline"], [[0, 1], [0, 1]])
    assert timed.families == ("linear", "add")
    assert timed.phases == ("forward", "backward")


def test_auto_takes_the_models_ratio_where_it_knows_and_wave_scaling_elsewhere() -> None:
    timed = timed_work(trace(measured=True), [BIG], origin=SMALL, models=MODELS)
    # BIG has twice the FLOP/s: half of the measured 0.5 s. The others are bound by memory: a third.
    assert np.isclose(timed.seconds[0, 0], 0.25)
    assert 0.003 / 3 * 0.99 < timed.seconds[0, 1] < 0.003 / 3 * 1.2  # gamma is just below 1
    assert np.isclose(timed.seconds[0, 2], 0.002)  # unknown work: gamma 1
    np.testing.assert_array_equal(timed.shares["mlp"][0], [1, 0, 0])
    np.testing.assert_array_equal(timed.shares["wave"][0], [0, 1, 1])
    np.testing.assert_allclose(timed.high_seconds[0] / timed.seconds[0], [1.1, WAVE_SPREAD, WAVE_SPREAD])


def test_wave_scales_everything_and_mlp_nothing_that_it_can_time() -> None:
    wave = timed_work(trace(measured=True), [BIG], origin=SMALL, models=MODELS, method="wave")
    np.testing.assert_array_equal(wave.shares["wave"][0], [1, 1, 1])
    ratio = timed_work(trace(measured=True), [BIG], origin=SMALL, models=MODELS, method="mlp")
    np.testing.assert_array_equal(ratio.shares["mlp"][0], [1, 0, 0])
    np.testing.assert_array_equal(ratio.shares["roofline"][0], [0, 1, 0])
    np.testing.assert_array_equal(ratio.shares["wave"][0], [0, 0, 1])  # nothing but its kernel is known


def test_on_the_origin_the_measurement_stands() -> None:
    timed = timed_work(trace(measured=True), [BIG, SMALL], origin=SMALL, models=MODELS)
    np.testing.assert_allclose(timed.seconds[1], [0.5, 0.003, 0.006])
    np.testing.assert_array_equal(timed.shares["measured"], [[0, 0, 0], [1, 1, 1]])
    np.testing.assert_allclose(timed.high_seconds[1] / timed.seconds[1], MEASURED_SPREAD)


@pytest.mark.parametrize("method", ["auto", "mlp", "wave"])
def test_shares_add_up_to_one(method: str) -> None:
    timed = timed_work(trace(measured=True), [BIG, SMALL], origin=SMALL, models=MODELS, method=method)
    np.testing.assert_allclose(sum(timed.shares.values()), np.ones((2, 3)))


def test_wave_scaling_needs_measured_kernels() -> None:
    with pytest.raises(InvalidArgumentError, match=r"method='wave' scales measured kernels, and this trace .*'cpu'"):
        timed_work(trace(measured=False), [BIG], origin=None, models=MODELS, method="wave")


def test_an_unknown_method_lists_the_known_ones() -> None:
    with pytest.raises(InvalidArgumentError, match=r"method='magic' is not known; choose one of 'auto', 'mlp', 'wave'"):
        timed_work(trace(measured=False), [BIG], origin=None, models=MODELS, method="magic")


def test_an_empty_trace_takes_no_time() -> None:
    empty = Trace(operations=(), device="cpu", recorder="dispatch")
    assert timed_work(empty, [BIG], origin=None, models=MODELS).seconds.shape == (1, 0)
