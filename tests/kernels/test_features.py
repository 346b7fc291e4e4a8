from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.hardware import gpu
from lightning_predict.kernels.families.convolution import convolution_features
from lightning_predict.kernels.families.elementwise import vector_features
from lightning_predict.kernels.families.matmul import HALF_PRECISION, canonical_shape, matmul_features
from lightning_predict.kernels.features import (
    LAUNCH_SECONDS,
    MACHINE_FEATURES,
    alignment,
    clock_features,
    machine_features,
    reference_seconds,
    tile_features,
    wave_quantisation,
)
from lightning_predict.kernels.operations import ShapeBatch, network_spec, network_specs, operation_spec, shape_batch
from tests.example_gpu import BIG, OLD, SMALL

CONVOLUTIONS = {
    "batch": [1, 64],
    "in_channels": [1, 512],
    "out_channels": [1, 512],
    "kernel_size": [3, 3],
    "image_size": [1, 56],
}
EXAMPLES = {
    "matmul_single": shape_batch("bmm", "float32", b=[1, 64], m=[1, 4096], n=[3, 512], k=[7, 1e6]),
    "matmul_half": shape_batch("linear", "bfloat16", b=1, m=[1, 4096], n=[3, 512], k=[7, 1e6]),
    "convolution": shape_batch("conv2d", "float32", **CONVOLUTIONS),
    "convolution_tensor": shape_batch("conv2d_backward_input", "tf32", **CONVOLUTIONS),
    "vector": shape_batch("layer_norm", "float32", rows=[1, 1e6], cols=[1, 4096]),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_matrix_has_one_finite_column_a_name(name: str) -> None:
    family, batch, gpus = network_specs()[name], EXAMPLES[name], [SMALL, BIG, OLD]
    matrix = family.feature_matrix(batch, gpus)
    assert matrix.shape == (3, 2, len(family.feature_names(batch, gpus)))
    assert matrix.dtype == np.float32
    assert np.isfinite(matrix).all()


@pytest.mark.parametrize("name", EXAMPLES)
def test_features_of_one_gpu_do_not_depend_on_its_neighbours(name: str) -> None:
    family, batch = network_specs()[name], EXAMPLES[name]
    together = family.feature_matrix(batch, [SMALL, BIG])
    np.testing.assert_array_equal(together[1:], family.feature_matrix(batch, [BIG]))


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_operation_of_a_family_has_the_same_features(name: str) -> None:
    family = network_specs()[name]
    expected = family.feature_names(EXAMPLES[name], [SMALL])
    for operation in family.operations:
        is_by_bytes = "read_bytes" in operation_spec(operation).shape  # transfers and vectorized kernels
        words = {"read_bytes": 4096.0, "write_bytes": 4096.0} if is_by_bytes else None
        batch = (
            shape_batch(operation, family.dtypes[0], **words)
            if words
            else ShapeBatch(operation, family.dtypes[0], EXAMPLES[name].columns)
        )
        assert family.feature_names(batch, [SMALL]) == expected
        for dtype in family.dtypes:
            assert network_spec(operation, dtype) is family


def test_features_by_hand() -> None:
    # 200 x 100 in tiles of 64 x 64: 4 x 2 = 8 blocks a copy, 16 for two, on 10 SMs: 1.6 waves take the time of 2.
    named = tile_features(np.array([200.0]), np.array([100.0]), np.array([2.0]), [SMALL], [(64, 64)])
    assert named["waves_64x64"][0, 0] == pytest.approx(np.log2(1.6))
    assert named["tail_64x64"][0, 0] == pytest.approx(np.log2(0.8))
    assert named["filled_64x64"][0, 0] == pytest.approx(np.log2(200 * 100 / (256 * 128)))
    values = np.array([1.0, 12, 64, 4096, 100.0])
    assert alignment(values).tolist() == [[0, 2, 6, 7, 2]]  # 4096 counts as 128
    words = {"b": 4, "m": 16, "n": 32, "k": 64}
    assert [int(x[0]) for x in canonical_shape(shape_batch("linear", "float32", **words))] == [1, 64, 32, 64]
    assert [int(x[0]) for x in canonical_shape(shape_batch("bmm", "float32", **words))] == [4, 16, 32, 64]
    machine = matmul_features(EXAMPLES["matmul_half"], [SMALL])
    # 8 TFLOP/s over 10 SMs at 1 GHz: 800 a clock; 100 GB/s over the same: 10 bytes a clock.
    assert machine["flops_per_clock"][0, 0] == pytest.approx(np.log2(800))
    assert machine["memory_bytes_per_clock"][0, 0] == pytest.approx(np.log2(10))
    assert [machine[flag][0, 0] for flag in ("ampere_or_later", "hopper_or_later")] == [1, 0]
    assert network_spec("linear", "tf32") is None
    assert network_spec("host_copy", "float32") is None


@given(st.floats(1, 1e6), st.floats(1, 200))
def test_the_tail_is_a_share(blocks: float, slots: float) -> None:
    waves, tail = wave_quantisation(np.array([blocks]), np.array([slots]))
    assert waves[0] == blocks / slots
    assert 0 < tail[0] <= 1


def test_reference_is_launch_and_the_longer_of_computing_and_moving() -> None:
    # 2 x 1000^3 FLOPs at 1 TFLOP/s = 2 ms; 12 MB: 30 us from the L2 at 400 GB/s, (12 - 1) MB / 100 GB/s = 110 us.
    batch = shape_batch("bmm", "float32", b=1, m=1000, n=1000, k=1000)
    assert reference_seconds(batch, [SMALL])[0, 0] == pytest.approx(LAUNCH_SECONDS + 2e-3)
    # 12 bytes x 1e6 elements: 10 FLOPs cannot hide it.
    add = shape_batch("add", "float32", rows=1000, cols=1000)
    assert reference_seconds(add, [SMALL])[0, 0] == pytest.approx(LAUNCH_SECONDS + 11e6 / 100e9)
    elements = 1e6 / 12  # the L2 of SMALL, in elements of an add
    batch = shape_batch("add", "float32", rows=1, cols=[np.floor(elements), np.floor(elements) + 1])
    inside, outside = reference_seconds(batch, [SMALL])[0]
    assert outside == pytest.approx(inside, rel=1e-4)
    words = {"batch": 64, "in_channels": 256, "out_channels": 256, "image_size": 56}
    three = shape_batch("conv2d", "float32", kernel_size=3, padding=1, **words)
    seconds = reference_seconds(three, [SMALL])[0, 0] - LAUNCH_SECONDS
    assert seconds == pytest.approx(three.flops[0] / 2.25 / 1e12)


@pytest.mark.parametrize(("base_clock_hz", "shortage"), [(0.9e9, 0.0), (0.6e9, 0.0), (0.3e9, -1.0)])
def test_a_base_clock_far_below_the_boost_clock_is_a_shortage(base_clock_hz: float, shortage: float) -> None:
    # The boost clock is 1 GHz; 0.6 of it is enough, and half of that is short by one doubling.
    card = replace(SMALL, base_clock_hz=base_clock_hz)
    assert clock_features([card])["clock_shortage"][0, 0] == pytest.approx(shortage, abs=1e-9)


def test_features_tell_half_dtypes_apart_but_not_elementwise_operations() -> None:
    words = {"m": 64, "n": 64, "k": 64}
    flags = [
        matmul_features(shape_batch("linear", dtype, **words), [SMALL])["float16"][0, 0]
        for dtype in HALF_PRECISION.dtypes
    ]
    assert flags == [1, 0]
    relu = shape_batch("relu", "float16", rows=1000, cols=1000)
    copy = shape_batch("transfer", "float32", read_bytes=2e6, write_bytes=2e6, flops=1e6)
    for name, values in vector_features(relu, [SMALL]).items():
        np.testing.assert_allclose(vector_features(copy, [SMALL])[name], values, err_msg=name)
    named = machine_features(EXAMPLES["matmul_half"], [SMALL, OLD])
    assert tuple(named) == MACHINE_FEATURES
    assert all(values.shape == (2, 1) for values in named.values())


def test_a_backward_pass_is_the_matrix_product_it_computes() -> None:
    words = {"batch": 2, "in_channels": 4, "out_channels": 8, "kernel_size": 3, "image_size": 16, "padding": 1}

    def sizes(operation: str) -> list[float]:
        named = convolution_features(shape_batch(operation, "float32", **words), [SMALL])
        return [2 ** named[name][0, 0] for name in ("rows", "cols", "depth")]

    positions = 2 * 16 * 16
    assert sizes("conv2d") == pytest.approx([positions, 8, 4 * 9])
    assert sizes("conv2d_backward_input") == pytest.approx([positions, 4, 8 * 9])
    assert sizes("conv2d_backward_weight") == pytest.approx([8, 4 * 9, positions])


@pytest.mark.parametrize(
    ("name", "stacked"), [("H100-SXM-80GB", 1), ("A100-PCIe-40GB", 1), ("T4", 0), ("RTX-PRO-6000-Server", 0)]
)
def test_memory_is_stacked_on_the_large_dies_alone(name: str, stacked: int) -> None:
    assert vector_features(EXAMPLES["vector"], [gpu(name)])["stacked_memory"][0, 0] == stacked
