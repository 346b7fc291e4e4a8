"""Lines over layers, from kernels whose times are made from known coefficients."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.kernels.translation import work_items
from lightning_predict.record.trace import Kernel, Operation, TensorInfo, Trace
from lightning_predict.regression.layers import TimedLayer, fit_layers, layers_of


def kernel(seconds: float) -> Kernel:
    return Kernel(
        name="k",
        seconds=seconds,
        grid=(1, 1, 1),
        block=(1, 1, 1),
        registers_per_thread=0,
        shared_memory_bytes=0,
        stream=7,
        start_seconds=0.0,
    )


def matrix_product(side: int, *, gpu: bool = True) -> Operation:
    """A product of square matrices that takes 1 us and 1 ps a FLOP."""
    matrix = TensorInfo((side, side), "float32")
    kernels = (kernel(1e-6 + 1e-12 * 2 * side**3),) if gpu else ()
    return Operation(name="aten::mm", phase="forward", inputs=(matrix, matrix), kernels=kernels)


def relu(elements: int, *, gpu: bool = True) -> Operation:
    """Element-wise work that takes 2 us and 3 ps a byte, four read and four written."""
    kernels = (kernel(2e-6 + 3e-12 * 8 * elements),) if gpu else ()
    return Operation(name="aten::relu", phase="forward", inputs=(TensorInfo((elements,), "float32"),), kernels=kernels)


def step(*operations: Operation, device: str = "cuda", gpu: str | None = "Tesla T4") -> Trace:
    return Trace(operations=operations, device=device, recorder="profiler", gpu_reported_name=gpu)


FITTED = step(matrix_product(256), matrix_product(512), matrix_product(1024), relu(1000), relu(4_000_000))


def test_network_is_the_sum_of_its_layers_and_biases_make_no_kind() -> None:
    regression = fit_layers(layers_of(FITTED))
    other = step(
        matrix_product(768, gpu=False), matrix_product(2048, gpu=False), relu(9000, gpu=False), device="cpu", gpu=None
    )
    prediction = regression.predict(other)
    flops = 2 * (768**3 + 2048**3)
    assert prediction.seconds == pytest.approx(2e-6 + 1e-12 * flops + 2e-6 + 3e-12 * 8 * 9000, rel=1e-6)
    assert (prediction.layers, prediction.unknown) == (3, {})
    ((kind, times),) = prediction.beyond.items()
    assert kind == "linear (float32, forward)"
    assert times == pytest.approx(8)  # 2,048 is twice 1,024, to the third power
    with torch.device("meta"):
        models = [nn.Conv2d(3, 8, 3, bias=bias) for bias in (False, True)]
        images = torch.empty(2, 3, 32, 32)
    kinds = []
    for model in models:

        def trained(model: nn.Module = model) -> None:
            model(images).sum().backward()

        trace = lp.capture(trained)
        kinds.append({layer.kind for layer in layers_of(trace, [1.0] * len(work_items(trace))) if "conv" in layer.kind})
    assert kinds[0] == kinds[1] == {"conv2d (tf32, forward)", "conv2d (tf32, backward)"}


def test_kinds_without_a_recording_are_counted_per_dtype_and_phase() -> None:
    prediction = fit_layers(layers_of(step(matrix_product(256), matrix_product(512)))).predict(FITTED)
    assert (prediction.layers, prediction.unknown) == (3, {"relu (forward)": 2})
    # Float16 on tensor cores predicted float32.
    half = replace(matrix_product(256, gpu=False), inputs=(TensorInfo((256, 256), "float16"),) * 2)
    prediction = fit_layers(layers_of(FITTED)).predict(step(half))
    assert (prediction.layers, prediction.unknown) == (0, {"linear (float16, forward)": 1})


def test_layers_of_one_size_give_a_mean_rate_and_products_wait_for_bytes_and_flops() -> None:
    kind = "linear (float32, forward)"
    fitted = fit_layers(layers_of(step(matrix_product(512), matrix_product(512)))).lines[kind]
    assert fitted.intercept == 0.0
    assert fitted.per_flop == pytest.approx((1e-6 + 1e-12 * 2 * 512**3) / (2 * 512**3))
    line = fit_layers(layers_of(step(matrix_product(256), matrix_product(512)), [2.0, 1.0])).lines[kind]
    small, large = 2 * 256**3, 2 * 512**3  # least squares through the origin: the sum of c t over the sum of c squared
    assert line.intercept == 0.0
    assert line.per_flop == pytest.approx((small * 2 + large) / (small**2 + large**2))
    # A line over FLOPs alone had the rate of small batches, which read the weights, for large batches, too.
    layers = [
        TimedLayer("linear", moved, 1e-6 + 1e-9 * moved + 1e-12 * flops, flops)
        for moved, flops in ((1e3, 2e6), (1e6, 4e6), (2e3, 8e6), (2e6, 9e6))
    ]
    line = fit_layers(layers).lines["linear"]
    assert (line.intercept, line.per_byte, line.per_flop) == pytest.approx((1e-6, 1e-9, 1e-12), rel=1e-6)
    assert line.seconds(TimedLayer("linear", 1e3, 0.0, 1e12)) == pytest.approx(1.0, rel=1e-5)


def test_falling_or_negative_lines_take_another_slope_or_go_through_the_origin() -> None:
    # Small layers with falling times gave seconds per byte: a large layer of the kind took thousands of its time.
    small = [TimedLayer("add", 8.0, 3e-6), TimedLayer("add", 16.0, 2e-6)]
    large = [TimedLayer("relu", work, 2e-6 + 3e-12 * work) for work in (1e6, 1e8)]
    line = fit_layers([*small, *large]).lines["add"]
    assert line.per_byte == pytest.approx(3e-12, rel=0.01)
    assert line.intercept == pytest.approx(2.5e-6, rel=0.01)
    # Layers below the smallest fitted one took 0 s.
    layers = [TimedLayer("add", 1e6, 1e-6), TimedLayer("add", 2e6, 3e-6)]
    line = fit_layers(layers).lines["add"]
    assert line.intercept == 0.0
    assert line.per_byte == pytest.approx(7e-12 / 5)


def test_recorded_calls_of_a_cpu_are_layers_but_calls_without_kernels_are_not() -> None:
    calls = [replace(matrix_product(side, gpu=False), host_seconds=1e-10 * side**3) for side in (64, 128)]
    (small, large) = layers_of(step(*calls, device="cpu", gpu=None))
    assert [small.seconds, large.seconds] == [1e-10 * 64**3, 1e-10 * 128**3]
    with pytest.raises(InvalidArgumentError, match="holds no kernels of operations with shapes"):
        layers_of(step(matrix_product(256, gpu=False)))
