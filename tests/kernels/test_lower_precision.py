"""A lower precision is never slower than float32 on the same GPU, for any operation on any kind of GPU."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lightning_predict as lp
import lightning_predict.kernels  # registers the operations
from lightning_predict.hardware import gpu, gpu_names
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.models import BundledModels, kernel_models
from lightning_predict.kernels.operations import (
    Array,
    OperationShape,
    batch_shapes,
    operation_names,
    operation_shape,
    operation_spec,
)
from lightning_predict.kernels.roofline import roofline_seconds
from lightning_predict.kernels.timing import explain, predict_operation_times, uses_float32_fallback
from lightning_predict.uncertainty import MEASURED_SPREAD, SURROGATE_SPREAD
from tests.hardware.kinds import one_of_each_kind

GPUS = [gpu(name) for name in gpu_names()]
KINDS = one_of_each_kind()
ON_EVERY_GPU = ("linear", "conv2d", "attention", "layer_norm", "gelu")
LOWER = ("tf32", "float16", "bfloat16", "float8")

# Values of shape words, three sizes of each operation; a word that is not here takes its default.
SIZES: dict[str, tuple[int, int, int]] = {
    "b": (1, 12, 192),
    "bags": (64, 1024, 8192),
    "batch": (1, 16, 64),
    "channels": (3, 64, 256),
    "cols": (32, 1024, 5000),
    "columns": (1, 64, 1024),
    "depth": (8, 8, 16),
    "dim": (16, 64, 128),
    "flops": (0, 10**6, 10**9),
    "head_dim": (32, 64, 128),
    "heads": (2, 12, 16),
    "height": (32, 56, 224),
    "hidden": (64, 512, 1024),
    "in_channels": (3, 64, 256),
    "k": (64, 511, 4096),
    "kernel_depth": (1, 3, 3),
    "kernel_height": (1, 3, 7),
    "kernel_size": (1, 3, 7),
    "kernel_width": (1, 3, 7),
    "length": (64, 1000, 8192),
    "m": (33, 512, 8192),
    "n": (64, 1001, 4096),
    "out_channels": (64, 64, 512),
    "parameters": (1000, 10**6, 10**8),
    "read_bytes": (4096, 10**6, 10**9),
    "rows": (33, 4096, 65536),
    "seq": (64, 512, 2048),
    "steps": (4, 25, 50),
    "write_bytes": (4096, 10**6, 10**9),
}


@pytest.fixture(scope="module")
def models() -> BundledModels:
    return kernel_models(tuple(gpu_names()))


def of_every_size(name: str) -> list[OperationShape]:
    words = operation_spec(name).shape
    return [
        operation_shape(name, "float32", **{word: SIZES[word][size] for word in words if word in SIZES})
        for size in range(3)
    ]


def rooflines(items: list[OperationShape], gpus: list[Gpu]) -> Array:
    """Seconds of each at full utilisation, (gpus, items)."""
    return np.stack([roofline_seconds(batch_shapes([item]), gpus)[:, 0] for item in items], axis=1)


def check(items: list[OperationShape], models: BundledModels, gpus: list[Gpu]) -> None:
    single = predict_operation_times(items, gpus, models)
    for dtype in LOWER:
        lower = [replace(item, dtype=dtype) for item in items]
        times = predict_operation_times(lower, gpus, models)
        # An emulated dtype may be slower, and by no more than its rate, which the catalogue has from measurements.
        emulated = np.array([[uses_float32_fallback(dtype, gpu)] for gpu in gpus])
        limit = np.where(emulated, np.maximum(single.seconds, MEASURED_SPREAD * rooflines(lower, gpus)), single.seconds)
        assert np.all(times.seconds <= limit * (1 + 1e-6)), dtype
        assert np.all(times.interval.low <= times.seconds)
        assert np.all(times.seconds <= times.interval.high)


@pytest.mark.parametrize(
    "name", [name for name in operation_names() if operation_spec(name).units in ("tensor", "vector")]
)
def test_no_operation_is_slower_in_fewer_bits(name: str, models: BundledModels) -> None:
    check(of_every_size(name), models, GPUS if name in ON_EVERY_GPU else KINDS)


@pytest.mark.parametrize("suffix", ["", "_backward_input", "_backward_weight"])
def test_no_convolution_with_groups_is_slower_in_fewer_bits(suffix: str, models: BundledModels) -> None:
    shapes = [
        {"in_channels": 96, "out_channels": 96, "groups": 96, "kernel_size": 7, "padding": 3},  # ConvNeXt
        {"in_channels": 144, "out_channels": 144, "groups": 144, "kernel_size": 3, "padding": 1},  # MobileNet
        {"in_channels": 128, "out_channels": 128, "groups": 32, "kernel_size": 3, "padding": 1},  # ResNeXt
    ]
    check(
        [operation_shape(f"conv2d{suffix}", "float32", batch=64, image_size=56, **shape) for shape in shapes],
        models,
        KINDS,
    )


@pytest.mark.parametrize("name", ["A100-SXM-40GB", "P100-PCIe-16GB"])
def test_what_took_many_times_as_long_takes_float32s_time(name: str) -> None:
    words: dict[str, Any] = {"in_channels": 96, "out_channels": 96, "groups": 96, "kernel_size": 7, "padding": 3}
    times = {
        dtype: lp.operator_seconds("conv2d", name, dtype=dtype, batch=64, image_size=56, **words)
        for dtype in ("float32", "tf32", "bfloat16", "float16")
    }
    assert max(times[dtype] for dtype in ("tf32", "float16")) <= times["float32"]
    # The P100's bfloat16 is emulated: its rate, 6.1 TFLOP/s of 9.3 in float32, may decide; memory does here.
    assert times["bfloat16"] <= times["float32"] * 9.34 / 6.11


def test_the_interval_reaches_down_as_far_as_the_dtypes_own_kernels_may(models: BundledModels) -> None:
    # Three channels fill no matrix unit, and results are converted back, so that float32's kernels are the faster ones.
    card = gpu("L40S")
    words = {"batch": 16, "in_channels": 3, "out_channels": 64, "kernel_size": 3, "height": 256, "width": 256}
    single, half = (
        predict_operation_times([operation_shape("conv2d", dtype, **words)], [card], models)
        for dtype in ("float32", "float16")
    )
    assert half.seconds[0, 0] == single.seconds[0, 0]
    # Half of the bytes, and bytes decide: its own kernels may gain as much, though never less than the bytes do.
    bound = roofline_seconds(batch_shapes([operation_shape("conv2d", "float16", **words)]), [card])
    expected = max(single.interval.low[0, 0] / SURROGATE_SPREAD / 2, bound[0, 0])
    assert half.interval.low[0, 0] == pytest.approx(expected, rel=0.05)
    assert half.shares["proxy"][0, 0] == 1
    assert half.interval.high[0, 0] == single.interval.high[0, 0] * SURROGATE_SPREAD


# Weights that fit in the L2 with 1 or 2 bytes an element and not with 2 or 4: the timed data comes from DRAM either
# way.
ROWS = np.array([16, 64, 256, 1024])


@pytest.mark.parametrize(("name", "n", "k"), [("H100-SXM-80GB", 3072, 8192), ("L40S", 4096, 8192)])
def test_tf32_takes_twice_as_long_as_16_bits_though_its_weights_leave_the_cache(name: str, n: int, k: int) -> None:
    assert n * k * 2 < gpu(name).l2_bytes < n * k * 4
    tf32, half = (lp.operator_seconds("linear", name, dtype=kind, m=ROWS, n=n, k=k) for kind in ("tf32", "bfloat16"))
    # Twice the bytes, half the rate, and on Hopper 8 % more.
    assert np.all(tf32 <= 2 * 1.08 * half)


def test_products_gain_at_most_twofold_in_float8_if_the_gpu_has_it() -> None:
    sides = np.array([1024, 2048, 4096, 8192])
    m, n, k = (side.ravel() for side in np.meshgrid(ROWS, sides, sides))
    for card in GPUS:
        if "float8" in card.peak_flops_per_second:
            eight, half = (
                lp.operator_seconds("linear", card.name, dtype=kind, m=m, n=n, k=k) for kind in ("float8", "bfloat16")
            )
            assert np.all(eight >= 0.48 * half), card.name
    # It was predicted in float32, 14 times as slow on an A100.
    cards, models = [gpu("A100-SXM-80GB"), gpu("H100-SXM-80GB"), gpu("T4")], kernel_models(())
    kinds = ("float8", "bfloat16", "float32")
    items = [operation_shape("linear", kind, m=4096, n=4096, k=4096) for kind in kinds]
    times = predict_operation_times(items, cards, models).seconds
    assert times[0, 0] == times[0, 1]
    assert times[1, 0] < 0.7 * times[1, 1]
    assert times[2, 0] == times[2, 2]  # a T4 has no units for bfloat16
    assert explain(items[0], cards[0], models).interval.middle == pytest.approx(times[0, 0])
