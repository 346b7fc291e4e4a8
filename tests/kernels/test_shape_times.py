from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lightning_predict.kernels  # noqa: F401  (registers the operations)
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware import gpu, gpu_names
from lightning_predict.kernels.families.convolution import as_matmul
from lightning_predict.kernels.models import BundledModels, kernel_models
from lightning_predict.kernels.operations import OperationShape, batch_shapes, operation_shape
from lightning_predict.kernels.roofline import SHORTEST_KERNEL_SECONDS, roofline_seconds
from lightning_predict.kernels.timing import compute_dtype_on, predict_operation_times, uses_float32_fallback
from lightning_predict.uncertainty import ASSUMED_SPREAD, FORMULA_SPREAD, SURROGATE_SPREAD
from tests.example_gpu import BIG, OLD, SMALL
from tests.hardware.kinds import one_of_each_kind
from tests.kernels.example_models import half_speed

LINEAR = operation_shape("linear", "float32", m=512, n=512, k=512)
ADD = operation_shape("add", "float32", rows=4096, cols=4096)


def test_model_serves_what_it_knows_the_roofline_the_rest_and_duplicates_agree() -> None:
    times = predict_operation_times([LINEAR, ADD], [SMALL, BIG], half_speed("linear/float32"))
    np.testing.assert_allclose(times.seconds[:, 0], 2 * roofline_seconds(batch_shapes([LINEAR]), [SMALL, BIG])[:, 0])
    expected = roofline_seconds(batch_shapes([ADD]), [SMALL, BIG])[:, 0] / 0.8 + SHORTEST_KERNEL_SECONDS
    np.testing.assert_allclose(times.seconds[:, 1], expected)
    np.testing.assert_array_equal(times.shares["mlp"], [[1, 0], [1, 0]])
    np.testing.assert_array_equal(times.shares["roofline"], [[0, 1], [0, 1]])
    np.testing.assert_allclose(times.interval.high[0] / times.seconds[0], [1.1, FORMULA_SPREAD])
    times = predict_operation_times([LINEAR, ADD], [SMALL], None)
    assert (times.shares["roofline"] == 1).all()
    times = predict_operation_times([LINEAR, ADD, LINEAR], [SMALL], half_speed("linear/float32"))
    assert times.seconds[0, 0] == times.seconds[0, 2] != times.seconds[0, 1]


def test_sibling_dtype_is_scaled_but_for_the_launch_with_a_wider_interval() -> None:
    item = operation_shape("linear", "tf32", m=4096, n=4096, k=4096)
    times = predict_operation_times([item], [SMALL], half_speed("linear/bfloat16"))
    # SMALL: tf32 at half of bfloat16's rate, so 2 x (2 · 4096³ / 4 TFLOP/s), but for a launch.
    np.testing.assert_allclose(times.seconds, [[2 * 2 * 4096**3 / 4e12]], rtol=1e-4)
    np.testing.assert_allclose(times.interval.high / times.seconds, 1.1 * SURROGATE_SPREAD, rtol=1e-4)
    assert times.shares["proxy"][0, 0] == 1
    tiny = operation_shape("linear", "tf32", m=8, n=8, k=8)
    times = predict_operation_times([tiny], [SMALL], half_speed("linear/bfloat16"))
    # Half speed doubles bfloat16's 0.96 ns (384 bytes at 400 GB/s); twice the bytes do not double a launch.
    np.testing.assert_allclose(times.seconds, [[1.92e-9]], rtol=0.06)


def test_gpus_without_a_dtype_take_float32s_rate_with_a_wide_interval() -> None:
    assert compute_dtype_on("tf32", OLD) == "float32"
    assert compute_dtype_on("tf32", SMALL) == "tf32"
    item = operation_shape("linear", "tf32", m=4096, n=4096, k=4096)
    both = [item, operation_shape("linear", "float32", m=4096, n=4096, k=4096)]
    times = predict_operation_times(both, [OLD, SMALL], half_speed("linear/float32", "linear/bfloat16"))
    assert times.seconds[0, 0] == times.seconds[0, 1]
    np.testing.assert_allclose(times.seconds[1, 1] / times.seconds[1, 0], 4, rtol=1e-4)
    models = half_speed("linear/float32", "linear/bfloat16")
    items = [operation_shape("linear", dtype, m=4096, n=4096, k=4096) for dtype in ("float32", "bfloat16")]
    slow = replace(OLD, peak_flops_per_second={**OLD.peak_flops_per_second, "bfloat16": 0.25e12})
    times = predict_operation_times(items, [OLD, SMALL, slow], models)
    single = 2 * 2 * 4096**3 / 1e12  # at half of 1 TFLOP/s
    # OLD emulates at float32's rate, SMALL has 8 TFLOP/s, and the last emulates at a quarter of float32's rate.
    np.testing.assert_allclose(times.seconds[:, 1], [single, single / 8, 2 * 4096**3 / 0.25e12])
    np.testing.assert_allclose(
        times.interval.high[:, 1] / times.seconds[:, 1], [1.1 * ASSUMED_SPREAD, 1.1, ASSUMED_SPREAD]
    )
    np.testing.assert_array_equal(times.shares["proxy"], [[0, 1], [0, 0], [0, 1]])
    # No lower than float32's units allow, for any rate of libraries.
    assert (times.interval.low[[0, 2], 1] >= 2 * 4096**3 / 1e12).all()
    assert (times.interval.low < times.seconds).all()
    p100 = gpu("P100-PCIe-16GB")
    assert uses_float32_fallback("float16", p100)
    assert uses_float32_fallback("bfloat16", gpu("T4"))
    assert not uses_float32_fallback("float16", gpu("T4"))
    assert not uses_float32_fallback("tf32", p100)  # float32 itself
    models = half_speed("linear/float32", "linear/float16")
    items = [operation_shape("linear", dtype, m=4096, n=4096, k=4096) for dtype in ("float16", "float32")]
    times = predict_operation_times(items, [p100], models)
    assert times.seconds[0, 0] == times.seconds[0, 1]
    # The reported rate of large products, 8.39 TFLOP/s, lies inside.
    assert times.interval.low[0, 0] < 2 * 4096**3 / 8.39e12 < times.interval.high[0, 0]


def test_float8_is_scaled_from_bfloat16_or_refused_without_units() -> None:
    eight = replace(SMALL, peak_flops_per_second={**SMALL.peak_flops_per_second, "float8": 16e12})
    assert compute_dtype_on("float8", eight) == "float8"
    words = {"m": 4096, "n": 4096, "k": 4096}
    items = [operation_shape("linear", "float8", **words), operation_shape("linear", "bfloat16", **words)]
    times = predict_operation_times(items, [eight], half_speed("linear/bfloat16"))
    np.testing.assert_allclose(times.seconds[0], [2 * 2 * 4096**3 / 16e12, 2 * 2 * 4096**3 / 8e12], rtol=2e-4)
    np.testing.assert_allclose(times.interval.high / times.seconds, [[1.1 * SURROGATE_SPREAD, 1.1]])
    with pytest.raises(InvalidArgumentError, match=r"^SMALL has no units for float8; expected .*Choose bfloat16 or"):
        compute_dtype_on("float8", SMALL)


def test_reductions_and_untrained_dtypes_widen_the_interval() -> None:
    item, forward = (
        operation_shape(name, "bfloat16", m=4096, n=4096, k=4096) for name in ("linear_backward", "linear")
    )
    times = predict_operation_times([item, forward], [SMALL], half_speed("linear/bfloat16"))
    np.testing.assert_allclose(times.seconds[0, 0], 2 * times.seconds[0, 1])
    np.testing.assert_allclose(times.interval.high[0, 0] / times.seconds[0, 0], 1.1 * SURROGATE_SPREAD)
    (known,) = predict_operation_times([LINEAR], [SMALL], half_speed("linear/float32")).interval.high[0]
    stranger = replace(half_speed("linear/float32"), served_as="proxy")
    times = predict_operation_times([LINEAR], [SMALL], stranger)
    assert times.shares["proxy"][0, 0] == 1
    assert times.interval.high[0, 0] == pytest.approx(SURROGATE_SPREAD * known)


def test_parts_through_other_operations_are_proxies_and_those_without_a_model_rooflines() -> None:
    nowhere = operation_shape("attention_backward", "float64", batch=1, heads=1, seq=64, head_dim=64)
    eager = operation_shape("eager_attention", "float32", batch=1, heads=1, seq=64, head_dim=64)
    times = predict_operation_times([nowhere, eager], [SMALL], half_speed("softmax/float32"))
    assert times.shares["roofline"][0, 0] == 1
    # The softmax through its model, two products and the scaling without one.
    assert 0 < times.shares["proxy"][0, 1] < 1
    assert times.shares["proxy"][0, 1] + times.shares["roofline"][0, 1] == pytest.approx(1)
    assert not times.shares["mlp"].any()


@given(m=st.integers(1, 10**6), n=st.integers(1, 10**5), k=st.integers(1, 10**5))
def test_nothing_is_faster_than_its_bound_and_intervals_hold_their_middle(m: int, n: int, k: int) -> None:
    items = [operation_shape("linear", "float32", m=m, n=n, k=k), operation_shape("gelu", "float16", rows=m, cols=n)]
    times = predict_operation_times(items, [SMALL, BIG, OLD], half_speed("linear/float32"))
    for column, item in enumerate(items):
        bound = roofline_seconds(batch_shapes([item]), [SMALL, BIG, OLD], least=True)[:, 0]
        assert np.all(times.interval.low[:, column] >= bound)
    assert np.all(times.interval.low <= times.seconds)
    assert np.all(times.seconds <= times.interval.high)
    assert np.all(np.isfinite(times.interval.high))


@pytest.fixture(scope="module")
def shipped() -> BundledModels:
    return kernel_models(gpu_names())


DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16")


def some_shapes(dtype: str, size: float) -> list[OperationShape]:
    """One of each kind of path: products, convolutions, attention, recurrent, norms, element-wise, copies."""
    side = 8 * size
    return [
        operation_shape("linear", dtype, m=side, n=side, k=side),
        operation_shape("bmm", dtype, b=4, m=side, n=side, k=side),
        operation_shape("linear_backward", dtype, m=side, n=side, k=side),
        operation_shape("conv2d", dtype, batch=4, in_channels=size, out_channels=size, kernel_size=3, image_size=14),
        operation_shape(
            "conv2d_backward_weight", dtype, batch=4, in_channels=size, out_channels=8, kernel_size=1, image_size=7
        ),
        operation_shape("attention", dtype, batch=1, heads=4, seq=side, head_dim=64),
        operation_shape("attention_backward", dtype, batch=1, heads=4, seq=side, head_dim=64),
        operation_shape("lstm", dtype, batch=4, steps=2, hidden=side),
        operation_shape("layer_norm", dtype, rows=side, cols=side),
        operation_shape("layer_norm_backward", dtype, rows=side, cols=side),
        operation_shape("batch_norm", dtype, rows=side, cols=side),
        operation_shape("gelu", dtype, rows=side, cols=side),
        operation_shape("embedding_bag", dtype, bags=side, rows=1000, dim=64),
        operation_shape("transfer", dtype, read_bytes=side * side, write_bytes=side),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 24, 512])
def test_no_interval_has_zero_width_on_any_gpu_in_any_dtype(shipped: BundledModels, dtype: str, size: int) -> None:
    gpus = [gpu(name) for name in gpu_names()] if size == 512 else one_of_each_kind()
    shapes = some_shapes(dtype, size)
    times = predict_operation_times(shapes, gpus, shipped)
    for row, column in np.argwhere((times.interval.low >= times.seconds) | (times.seconds >= times.interval.high)):
        pytest.fail(f"{gpus[row].name}, {shapes[column]}")
    np.testing.assert_allclose(sum(times.shares.values()), 1)


def test_shares_say_what_the_weights_were_trained_on(shipped: BundledModels) -> None:
    by_source = {
        "mlp": [
            operation_shape("linear", "bfloat16", m=512, n=512, k=512),
            operation_shape("linear", "float16", m=512, n=512, k=512),
            operation_shape("bmm", "float32", b=8, m=512, n=512, k=512),
            operation_shape(
                "conv2d", "float32", batch=8, in_channels=64, out_channels=64, kernel_size=3, image_size=28
            ),
            operation_shape("pow", "float32", rows=4096, cols=4096),
        ],
        "proxy": [
            operation_shape("linear", "tf32", m=512, n=512, k=512),  # no table has TF32
            operation_shape("bmm", "bfloat16", b=8, m=512, n=512, k=512),  # nor batches in bfloat16
            operation_shape("lstm", "float32", batch=8, steps=16, hidden=512),
            operation_shape("gelu", "bfloat16", rows=4096, cols=4096),
            operation_shape("softmax_backward", "float32", rows=4096, cols=4096),
            operation_shape("batch_norm", "float32", rows=4096, cols=4096),
            operation_shape("sort", "float32", rows=4096, cols=4096),
        ],
        "formula": [
            operation_shape("embedding_bag", "float32", bags=4096, rows=1000, dim=64),
            # Of tiles and bytes: no network knows them.
            operation_shape("attention", "float16", batch=8, heads=8, seq=512, head_dim=64),
            operation_shape("attention_backward", "bfloat16", batch=8, heads=8, seq=512, head_dim=64),
            operation_shape(
                "conv2d", "float16", batch=8, in_channels=64, out_channels=64, kernel_size=3, image_size=28
            ),
            operation_shape(
                "conv2d", "float32", batch=8, in_channels=64, out_channels=64, kernel_size=3, image_size=28, groups=4
            ),
            operation_shape(
                "conv3d", "float32", batch=8, in_channels=64, out_channels=64, kernel_size=3, image_size=28
            ),
        ],
        "bytes": [operation_shape("transfer", "float32", read_bytes=1e6, write_bytes=1e6)],
    }
    for source, shapes in by_source.items():
        times = predict_operation_times(shapes, [gpu("A100-SXM-80GB"), gpu("RTX-4090")], shipped)
        for method, shares in times.shares.items():
            np.testing.assert_allclose(shares, float(method == source), atol=1e-12, err_msg=f"{source}: {method}")
    # On GDDR, gelu's network gives its time. On HBM, the network's 89.0 us exceed the bound of a vectorized kernel:
    # 2 x 67.1 MB at 0.9 x 2.039 TB/s, and 2 us of any kernel, are 75.1 us.
    gelu = [operation_shape("gelu", "float32", rows=4096, cols=4096)]
    times = predict_operation_times(gelu, [gpu("A100-SXM-80GB"), gpu("RTX-4090")], shipped)
    np.testing.assert_allclose(times.shares["proxy"], [[1], [0]], atol=1e-12)
    np.testing.assert_allclose(times.shares["mlp"], [[0], [1]], atol=1e-12)
    assert times.seconds[0, 0] == pytest.approx(2 * 4 * 4096**2 / (0.9 * 2.039e12) + 2e-6)


def test_surrogate_estimates_have_wider_intervals(shipped: BundledModels) -> None:
    products = {"m": 4096, "n": 4096, "k": 4096}
    image = {"batch": 32, "in_channels": 128, "out_channels": 128, "kernel_size": 3, "image_size": 56, "padding": 1}
    rows = {"rows": 4096, "cols": 4096}
    pairs = [
        (operation_shape("linear", "bfloat16", **products), operation_shape("linear", "tf32", **products)),
        (operation_shape("linear", "bfloat16", **products), operation_shape("linear_backward", "bfloat16", **products)),
        (operation_shape("conv2d", "float32", **image), operation_shape("conv2d", "float16", **image)),
        (operation_shape("layer_norm", "float32", **rows), operation_shape("layer_norm", "bfloat16", **rows)),
        (operation_shape("layer_norm", "float32", **rows), operation_shape("layer_norm_backward", "float32", **rows)),
        (
            operation_shape("linear", "float32", **products),
            operation_shape("lstm", "float32", batch=64, steps=64, hidden=1024),
        ),
    ]
    gpus = [gpu(name) for name in ("A100-SXM-80GB", "H100-SXM-80GB", "L4", "RTX-4090")]
    for trained, proxy in pairs:
        times = predict_operation_times([trained, proxy], gpus, shipped)
        up = times.interval.high / times.seconds
        assert (up[:, 1] > up[:, 0]).all(), (trained, proxy, up)


def test_the_share_of_the_base_is_that_of_networks_that_never_saw_the_gpu(shipped: BundledModels) -> None:
    items = [operation_shape("linear", dtype, m=512, n=512, k=512) for dtype in ("float32", "float16")]
    times = predict_operation_times(items, [gpu("T4"), gpu("V100-PCIe-32GB"), gpu("RTX-4090")], shipped)
    # T4 and V100 have own weights in float32 alone, the RTX 4090 none.
    np.testing.assert_array_equal(times.extrapolated_share, [[0, 1], [0, 1], [1, 1]])


# The models that are shipped.


def test_a_convolution_of_an_unmeasured_gpu_is_no_slower_than_its_product() -> None:
    """The base calls filters of 1 x 1 on a V100 slower than the product that they are.

    The T4 has measured convolutions of its own and keeps them; so does Winograd's filter, faster than its product.
    """
    cards = [gpu("V100-SXM2-32GB"), gpu("T4")]
    models = kernel_models(tuple(card.name for card in cards))
    shape = {"batch": 32, "in_channels": 512, "out_channels": 2048, "image_size": 7}
    backward = operation_shape("conv2d_backward_input", "float32", kernel_size=1, **shape)
    product = as_matmul(backward)
    assert product is not None
    times = predict_operation_times([backward, product], cards, models)
    assert times.seconds[0, 0] == pytest.approx(times.seconds[0, 1])
    assert times.interval.low[0, 0] <= times.seconds[0, 0] < times.interval.high[0, 0]
    assert times.shares["proxy"][0, 0] == 1
    alone = models.estimate(batch_shapes([backward]), cards)
    assert alone.seconds[0, 0] > 1.05 * times.seconds[0, 1]
    assert times.seconds[1, 0] == pytest.approx(alone.seconds[1, 0])
    winograd = operation_shape("conv2d", "float32", kernel_size=3, padding=1, **shape | {"out_channels": 512})
    own = predict_operation_times([winograd], cards, models)
    np.testing.assert_allclose(own.seconds, models.estimate(batch_shapes([winograd]), cards).seconds)
