from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus import gpu
from lightning_predict.kernels.blending import Blend
from lightning_predict.kernels.choice import MEASURED_SPREAD, WAVE_SPREAD, timed_work
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import batch_of, problem
from lightning_predict.kernels.roofline import roofline_seconds
from lightning_predict.tracing.records import Flags, Kernel, Operation, TensorInfo, Trace
from tests.example_gpu import BIG, SMALL
from tests.kernels.example_models import HalfSpeed, half_speed

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


def blending(weight: float, half_width: float = 0.2) -> HalfSpeed:
    return replace(MODELS, blended=Blend(weight=weight, half_width=half_width))


def test_a_blend_lies_between_the_ratio_and_the_direct_prediction() -> None:
    product = problem("linear", "float32", m=4096, n=4096, k=4096)
    direct = 2 * roofline_seconds(batch_of([product]), [BIG])[0, 0]
    expected = {0.0: direct, 1.0: 0.25, 0.5: math.sqrt(direct * 0.25), 0.1: direct**0.9 * 0.25**0.1}
    for weight, seconds in expected.items():
        timed = timed_work(trace(measured=True), [BIG], origin=SMALL, models=blending(weight))
        assert timed.seconds[0, 0] == pytest.approx(seconds)
        # Its interval is the one that was learnt; what no model knows keeps wave scaling and its interval.
        spread = [math.exp(0.2), WAVE_SPREAD, WAVE_SPREAD]
        np.testing.assert_allclose(timed.high_seconds[0] / timed.seconds[0], spread)
        np.testing.assert_allclose(timed.seconds[0] / timed.low_seconds[0], spread)


def test_wave_scaling_serves_where_it_was_learnt_to_err_less() -> None:
    models = replace(MODELS, blended=Blend(weight=0.5, half_width=0.4, by_wave=True))
    timed = timed_work(trace(measured=True), [BIG], origin=SMALL, models=models)
    wave = timed_work(trace(measured=True), [BIG], origin=SMALL, models=models, method="wave")
    np.testing.assert_array_equal(timed.seconds, wave.seconds)
    np.testing.assert_array_equal(timed.shares["wave"], [[1, 1, 1]])
    np.testing.assert_allclose(timed.high_seconds[0] / timed.seconds[0], [math.exp(0.4), WAVE_SPREAD, WAVE_SPREAD])


@pytest.mark.parametrize("method", ["mlp", "wave"])
def test_the_methods_of_the_paper_blend_nothing(method: str) -> None:
    plain = timed_work(trace(measured=True), [BIG], origin=SMALL, models=MODELS, method=method)
    blended = timed_work(trace(measured=True), [BIG], origin=SMALL, models=blending(0.0), method=method)
    np.testing.assert_array_equal(blended.seconds, plain.seconds)
    np.testing.assert_array_equal(blended.high_seconds, plain.high_seconds)


def test_a_blend_leaves_the_measurement_alone_on_the_origin() -> None:
    timed = timed_work(trace(measured=True), [SMALL], origin=SMALL, models=blending(0.0))
    np.testing.assert_allclose(timed.seconds[0], [0.5, 0.003, 0.006])


@given(weight=st.floats(0, 1), slower=st.floats(1, 10), method=st.sampled_from(["auto", "mlp", "wave"]))
def test_a_longer_measurement_never_makes_a_prediction_shorter(weight: float, slower: float, method: str) -> None:
    before = trace(measured=True)
    operations = tuple(
        replace(operation, kernels=tuple(replace(k, seconds=k.seconds * slower) for k in operation.kernels))
        for operation in before.operations
    )
    after = replace(before, operations=operations)
    models = blending(weight)
    short, long = (timed_work(one, [BIG, SMALL], origin=SMALL, models=models, method=method) for one in (before, after))
    assert (long.seconds >= short.seconds * (1 - 1e-12)).all()
    assert (long.high_seconds >= short.high_seconds * (1 - 1e-12)).all()


# The models that are shipped.


def measured_product(dtype: str, *, columns: int = 4096) -> Trace:
    left, right = TensorInfo((4096, 4096), dtype), TensorInfo((4096, columns), dtype)
    product = Operation(name="aten::mm", phase="forward", inputs=(left, right), kernels=(kernel(1.0),))
    return Trace(operations=(product,), device="cuda", recorder="profiler", gpu_reported_name="NVIDIA H100 80GB HBM3")


def test_shipped_weights_blend_what_the_tables_show_and_take_the_ratio_alone_elsewhere() -> None:
    origin, target = gpu("H100-SXM-80GB"), gpu("L40S")
    models = kernel_models((origin.name, target.name))

    def power(measured: Trace) -> float:
        """Weight of the measurement: how the prediction grows when it is e times as long."""
        kernels = (
            replace(
                kernel(math.e),
            ),
        )
        longer = replace(measured, operations=(replace(measured.operations[0], kernels=kernels),))
        one, other = (timed_work(t, [target], origin=origin, models=models).seconds[0, 0] for t in (measured, longer))
        return float(np.log(other / one))

    known = models.blends.of("matmul_half", origin_known=True, target_known=True)
    unseen = models.blends.of("matmul_half", origin_known=False, target_known=False)
    assert known is not None
    assert unseen is not None
    assert power(measured_product("bfloat16")) == pytest.approx(known.weight)
    assert power(measured_product("bfloat16", columns=4097)) == pytest.approx(1)  # odd sizes: no table has them
    assert power(measured_product("float64")) == pytest.approx(1)  # a sibling dtype: no table has it
    assert models.blend(problem("linear", "bfloat16", m=8, n=8, k=8), gpu("A30"), gpu("RTX-4090")) == unseen


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
