from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lightning_predict.kernels  # noqa: F401  (registers the operations)
from lightning_predict.hardware import gpu, gpu_names
from lightning_predict.hardware.records import NVIDIA, Gpu
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import batch_shapes, operation_shape, shape_batch
from lightning_predict.kernels.roofline import compute_peak, roofline_seconds
from lightning_predict.kernels.timing import predict_operation_times
from tests.example_gpu import BIG, OLD, SMALL

SIZES = st.integers(1, 8192)


def test_bound_is_compute_dram_l2_or_the_link_by_hand() -> None:
    batch = shape_batch("linear", "float32", m=4096, n=4096, k=4096)
    # 2 · 4096³ FLOPs over 1 TFLOP/s; the 201 MB take 2 ms.
    np.testing.assert_allclose(roofline_seconds(batch, [SMALL]), [[2 * 4096**3 / 1e12]])
    batch = shape_batch("add", "float32", rows=[1000, 10], cols=1000)
    # 12 MB over 100 GB/s; 120 kB fit the 1 MB cache: over 400 GB/s.
    np.testing.assert_allclose(roofline_seconds(batch, [SMALL]), [[12e6 / 100e9, 120e3 / 400e9]])
    batch = shape_batch("add", "float32", rows=4096, cols=4096)
    seconds = roofline_seconds(batch, [SMALL, BIG])
    np.testing.assert_allclose(seconds[0], 3 * seconds[1])
    batch = shape_batch("linear", "float8", m=4096, n=4096, k=4096)
    np.testing.assert_allclose(roofline_seconds(batch, [OLD]), [[2 * 4096**3 / 1e12]])
    batch = shape_batch("host_copy", "uint8", size_bytes=1e9)
    np.testing.assert_allclose(roofline_seconds(batch, [SMALL, BIG]), [[0.1], [0.1]])
    words = {"batch": 64, "in_channels": 256, "out_channels": 256, "image_size": 56, "kernel_size": 3, "padding": 1}
    batch = shape_batch("conv2d", "float32", **words)
    ratio = roofline_seconds(batch, [SMALL]) / roofline_seconds(batch, [SMALL], least=True)
    np.testing.assert_allclose(ratio, 2.25)
    batch = shape_batch("add", "float32", rows=10, cols=1000)  # 120 kB
    fits, does_not = (replace(SMALL, l2_bytes=size) for size in (120e3, 120e3 - 1))
    np.testing.assert_allclose(roofline_seconds(batch, [fits, does_not]), [[120e3 / 400e9], [120e3 / 100e9]])


def test_lanes_compute_in_float32_and_double_precision_without_tensor_cores() -> None:
    product = {"m": 4096, "n": 4096, "k": 4096}
    half = roofline_seconds(shape_batch("linear", "float16", **product), [SMALL])
    single = roofline_seconds(shape_batch("linear", "float32", **product), [SMALL])
    np.testing.assert_allclose(single, 8 * half)
    # pow needs 40 FLOPs an element: 40 / 1 TFLOP/s = 40 ps against 6 bytes / 100 GB/s = 60 ps in half precision.
    lanes = roofline_seconds(shape_batch("pow", "float16", rows=1e4, cols=1e4), [SMALL])
    np.testing.assert_allclose(lanes, [[6e8 / 100e9]])
    # 40 FLOPs an element over 2 x 10 multiprocessors x 20 lanes x 1 GHz = 0.4 TFLOP/s: 100 ps; 24 bytes take 240 ps.
    power = shape_batch("pow", "float64", rows=1e4, cols=1e4)
    np.testing.assert_allclose(compute_peak(power, [SMALL]), [[0.4e12]])
    np.testing.assert_allclose(roofline_seconds(power, [SMALL]), [[1e8 * 240e-12]])
    # A product may use them: 0.5 TFLOP/s.
    np.testing.assert_allclose(compute_peak(shape_batch("linear", "float64", **product), [SMALL]), [[0.5e12]])


@given(m=SIZES, n=SIZES, k=SIZES)
def test_a_gpu_better_in_every_figure_is_never_slower(m: int, n: int, k: int) -> None:
    seconds = roofline_seconds(shape_batch("linear", "float16", m=m, n=n, k=k), [SMALL, BIG])
    assert seconds[1, 0] <= seconds[0, 0]
    assert seconds[1, 0] > 0


GPUS = [card for card in map(gpu, gpu_names()) if card.vendor == NVIDIA]
IMAGES: dict[str, float] = {
    "batch": 64,
    "in_channels": 256,
    "out_channels": 256,
    "image_size": 56,
    "kernel_size": 3,
    "padding": 1,
}
POINTS: dict[str, float] = {"batch": 64, "in_channels": 512, "out_channels": 512, "image_size": 28, "kernel_size": 1}
PRODUCTS: dict[str, list[tuple[str, dict[str, float]]]] = {
    "linear": [("linear", {"m": 8192, "n": 8192, "k": 8192}), ("linear", {"m": 8191, "n": 4099, "k": 4097})],
    "bmm": [("bmm", {"b": 96, "m": 1024, "n": 1024, "k": 64})],
    "convolutions": [(f"conv2d{half}", shape) for half in ("", "_backward_weight") for shape in (IMAGES, POINTS)],
    "attention": [("attention", {"batch": 16, "heads": 16, "seq": 4096, "head_dim": 128, "causal": 0})],
}
DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16")


def highest_rate(card: Gpu, operation: str, dtype: str) -> float:
    """FLOP/s of the fastest units at the highest clock. cuDNN uses no tensor cores for convolutions in float64."""
    has_units = dtype != "float64" or not operation.startswith("conv")
    return card.overclock * max(card.lanes_peak(dtype), (card.peak(dtype) or 0.0) if has_units else 0.0)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, dtype) for kind in PRODUCTS for dtype in DTYPES if (kind, dtype) != ("attention", "tf32")],
)
def test_no_product_is_faster_than_its_units(kind: str, dtype: str) -> None:
    shapes = [operation_shape(operation, dtype, **shape) for operation, shape in PRODUCTS[kind]]
    times = predict_operation_times(shapes, GPUS, kernel_models(tuple(card.name for card in GPUS))).seconds
    batches = [batch_shapes([shape]) for shape in shapes]
    # Winograd's algorithm saves multiplications, but not in float64.
    work = [float((batch.flops if dtype == "float64" else batch.minimum_flops)[0]) for batch in batches]
    for card, row in zip(GPUS, times, strict=True):
        for one, flops, seconds in zip(shapes, work, row, strict=True):
            rate = highest_rate(card, one.operation, dtype)
            assert flops / seconds <= 1.001 * rate, (card.name, one, flops / seconds / 1e12, rate / 1e12)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("operation", ["add", "relu", "softmax", "layer_norm", "gelu"])
def test_nothing_moves_faster_than_the_memory(operation: str, dtype: str) -> None:
    shape = operation_shape(operation, dtype, rows=262144, cols=8192)  # 4 to 8 GiB: no cache holds them
    times = predict_operation_times([shape], GPUS, kernel_models(tuple(card.name for card in GPUS))).seconds[:, 0]
    moved = float(batch_shapes([shape]).bytes_moved[0])
    bandwidths = np.array([card.dram_bytes_per_second for card in GPUS])
    too_fast = [card.name for card, rate in zip(GPUS, moved / times / bandwidths, strict=True) if rate > 1.001]
    assert not too_fast
