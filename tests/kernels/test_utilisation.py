import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_predict.base.errors import UnknownOperationError, WeightsFormatError
from lightning_predict.hardware import gpu, gpu_names
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.features import LAUNCH_SECONDS, machine_features, reference_seconds
from lightning_predict.kernels.models import UtilisationModels, log_utilisation_of
from lightning_predict.kernels.operations import Array, ShapeBatch, shape_batch
from lightning_predict.kernels.roofline import (
    HEADROOM,
    roofline_seconds,
    sustained_flops,
    sustained_rate_uncertainty,
    with_sustained_peaks,
)
from lightning_predict.weights.records import GpuWeights, Layer, LoadedWeights
from lightning_predict.weights.source import WeightsSource
from lightning_predict.weights.store import load_weights
from tests.example_gpu import BIG, OLD, SMALL
from tests.hardware.kinds import one_of_each_kind
from tests.kernels.example_networks import LOWEST, constant_network, constant_weights, with_own

LINEAR = shape_batch("linear", "float32", m=1000, n=1000, k=[1000, 2000])
KINDS = one_of_each_kind()


def spread_of(card: Gpu, of_the_base: float) -> float:
    """Factor of the interval around a float32 product that the base times on a GPU."""
    return math.exp(math.hypot(math.log(of_the_base), sustained_rate_uncertainty(card, "float32")))


def test_seconds_are_the_reference_over_the_utilisation() -> None:
    models = UtilisationModels(constant_weights("matmul_single", utilisation=0.5, interval=math.log(1.25)))
    estimate = models.estimate(LINEAR, [SMALL])
    # 2 x 1000^3 FLOPs at the most that SMALL reaches of its 1 TFLOP/s; twice that at half utilisation.
    most = HEADROOM * sustained_flops(SMALL, "float32")
    assert estimate.seconds[0] == pytest.approx(
        [2 * (2e9 / most + LAUNCH_SECONDS), 2 * (4e9 / most + LAUNCH_SECONDS)], rel=1e-5
    )
    spread = spread_of(SMALL, 1.25)
    assert estimate.interval.high[0] == pytest.approx(estimate.seconds[0] * spread)
    assert estimate.interval.low[0] == pytest.approx(estimate.seconds[0] / spread)


def test_own_weights_serve_their_gpu_and_what_they_were_trained_on_and_the_base_all_else() -> None:
    base = constant_weights("matmul_single", utilisation=0.5, interval=math.log(2))
    models = UtilisationModels(
        with_own(base, "BIG", "matmul_single", utilisation=0.25, trained=(("linear", "float32"),))
    )
    assert models.has_own_weights("BIG", "linear", "float32")
    assert not models.has_own_weights("BIG", "bmm", "float32")
    assert not models.has_own_weights("SMALL", "linear", "float32")
    assert not models.has_own_weights("BIG", "relu", "tf32")
    estimate = models.estimate(LINEAR, [SMALL, BIG, OLD])
    utilisation = (
        reference_seconds(LINEAR, [with_sustained_peaks(SMALL), BIG, with_sustained_peaks(OLD)]) / estimate.seconds
    )
    np.testing.assert_allclose(utilisation, np.array([[0.5] * 2, [0.25] * 2, [0.5] * 2]), rtol=1e-5)
    spread = estimate.interval.high / estimate.seconds
    np.testing.assert_allclose(spread, np.array([[spread_of(SMALL, 2)] * 2, [1.05] * 2, [spread_of(OLD, 2)] * 2]))


@pytest.mark.parametrize("own", [0.2, 0.35, 0.5])
def test_what_a_gpus_products_in_one_16_bit_dtype_say_is_carried_to_the_other(own: float) -> None:
    base = constant_weights("matmul_half", utilisation=0.5, interval=math.log(2))
    loaded = with_own(base, "L40S", "matmul_half", utilisation=own, trained=(("linear", "bfloat16"),))
    cards = [gpu("L40S"), gpu("L20")]
    batch = shape_batch("linear", "float16", m=16384, n=8192, k=8192)

    def said(dtype: str) -> Array:
        return np.log(
            UtilisationModels(loaded).estimate(replace(batch, dtype=dtype), cards).seconds
            / UtilisationModels(base).estimate(replace(batch, dtype=dtype), cards).seconds
        )[:, 0]

    measured, carried = said("bfloat16"), said("float16")
    assert measured[1] == carried[1] == 0  # its products were never measured
    # Of x, x^2 / (x^2 + 0.15^2) is trusted: half of 0.15, nearly all of larger values; nothing of a gain.
    slower = max(measured[0], 0.0)
    assert carried[0] == pytest.approx(slower**3 / (slower**2 + 0.15**2), abs=1e-6)


def of_three_by_three(weights: GpuWeights) -> GpuWeights:
    """The same weights, fitted to filters of 3 x 3 alone."""
    (network,) = weights.families.values()
    taps = network.features.index("kernel_taps")
    low, high = network.low.copy(), network.high.copy()
    low[taps] = high[taps] = np.log2(9)
    return replace(weights, families={network.family: replace(network, low=low, high=high)})


def convolution_weights() -> LoadedWeights:
    """A base of utilisation 0.5 with an interval of a factor 2, and SMALL's own of 0.25 and 1.05 for 3 x 3 alone."""
    base = constant_weights("convolution", utilisation=0.5, interval=math.log(2))
    loaded = with_own(base, "SMALL", "convolution", utilisation=0.25, trained=(("conv2d", "float32"),))
    return replace(loaded, gpus={"SMALL": of_three_by_three(loaded.gpus["SMALL"])})


def test_shapes_unlike_what_own_weights_saw_are_served_by_the_base_if_it_knows_them() -> None:
    models = UtilisationModels(convolution_weights())
    batch = shape_batch(
        "conv2d", "float32", batch=64, in_channels=256, out_channels=256, kernel_size=[3, 1, 5], image_size=56
    )
    estimate = models.estimate(batch, [BIG, SMALL])
    # The base sees the rates that the GPUs sustain, and doubts them without measurements.
    by_base = reference_seconds(batch, [with_sustained_peaks(BIG), with_sustained_peaks(SMALL)]) / estimate.seconds
    by_own = reference_seconds(batch, [SMALL]) / estimate.seconds[1]
    np.testing.assert_allclose(by_base[[0, 0, 0, 1, 1], [0, 1, 2, 1, 2]], 0.5, rtol=1e-5)
    assert by_own[0, 0] == pytest.approx(0.25)
    doubted = np.exp(np.hypot(math.log(2), [sustained_rate_uncertainty(one, "float32") for one in (BIG, SMALL)]))
    width = np.array([doubted[[0, 0, 0]], [1.05, doubted[1], doubted[1]]])
    np.testing.assert_allclose(estimate.interval.high / estimate.seconds, width)
    loaded = convolution_weights()
    models = UtilisationModels(replace(loaded, cross_gpu_model=of_three_by_three(loaded.cross_gpu_model)))
    batch = shape_batch("conv2d", "float32", batch=64, in_channels=256, out_channels=256, kernel_size=1, image_size=56)
    estimate = models.estimate(batch, [SMALL])
    assert reference_seconds(batch, [SMALL])[0, 0] / estimate.seconds[0, 0] == pytest.approx(0.25, rel=1e-5)


def test_unknown_operations_and_weights_of_other_features_are_refused() -> None:
    models = UtilisationModels(constant_weights("matmul_single", utilisation=0.5, interval=0.1))
    assert models.supports("linear", "float32")
    assert not models.supports("linear", "tf32")
    assert not models.supports("relu", "float32")  # a family without weights
    with pytest.raises(UnknownOperationError, match=r"serves 'relu' in 'float32'\. Families: .*vector \(add"):
        models.estimate(shape_batch("relu", "float32", rows=1, cols=1), [SMALL])
    network = constant_network("matmul_single", utilisation=0.5, interval=0.1)
    other = replace(network, features=("x", *network.features[1:]))
    models = UtilisationModels(LoadedWeights(GpuWeights("base", {"matmul_single": other}, "r", 0, ()), {}))
    with pytest.raises(WeightsFormatError, match=r"weights of 'base' for 'matmul_single' expect \d+ features"):
        models.estimate(LINEAR, [SMALL])
    models = UtilisationModels(constant_weights("matmul_single", utilisation=0.9, interval=math.log(10)))
    estimate = models.estimate(LINEAR, [SMALL])
    np.testing.assert_array_equal(estimate.interval.low, roofline_seconds(LINEAR, [SMALL], least=True))


def test_networks_are_the_sum_that_they_say_and_ensembles_a_logarithmic_mean() -> None:
    network = replace(
        constant_network("matmul_single", utilisation=0.5, interval=0.1),
        mean=np.array([1, 0], np.float32),
        scale=np.array([2, 1], np.float32),
        low=np.array([-9, -9], np.float32),
        high=np.array([9, 3], np.float32),
        layers=(
            Layer(np.array([[[1.0, -1.0], [2.0, 0.0]]], np.float32), np.array([[0.5, 0.0]], np.float32)),
            Layer(np.array([[[0.1], [7.0]]], np.float32), np.array([[-0.25]], np.float32)),
        ),
    )
    features = np.array([[[5.0, 8.0]]], np.float32)
    # Inputs: (5 - 1) / 2 = 2 and min(8, 3) = 3. Hidden: relu(2 + 6 + 0.5) = 8.5 and relu(-2) = 0.
    z = 0.1 * 8.5 - 0.25
    assert log_utilisation_of(network, features)[0, 0] == pytest.approx(math.log(LOWEST) / (1 + math.exp(-z)))
    one = constant_network("matmul_single", utilisation=0.5, interval=0.1)
    other = constant_network("matmul_single", utilisation=0.125, interval=0.1)
    both = tuple(
        Layer(np.concatenate([a.weight, b.weight]), np.concatenate([a.bias, b.bias]))
        for a, b in zip(one.layers, other.layers, strict=True)
    )
    features = np.zeros((1, 1, len(one.features)), np.float32)
    expected = math.log(0.5 * 0.125) / 2  # the geometric mean, 0.25
    assert log_utilisation_of(replace(one, layers=both), features)[0, 0] == pytest.approx(expected, rel=1e-5)


# From here on: the weights that are shipped.


@pytest.fixture(scope="module")
def shipped() -> UtilisationModels:
    return UtilisationModels(load_weights(gpu_names(), WeightsSource(offline=True)))


def test_a_large_bfloat16_product_on_h100_is_what_was_measured(shipped: UtilisationModels) -> None:
    batch = shape_batch("linear", "bfloat16", b=1, m=4096, n=4096, k=4096)
    seconds = shipped.estimate(batch, [gpu("H100-SXM-80GB")]).seconds[0, 0]
    measured = (0.178462e-3 + 0.166026e-3) / 2  # two software builds of the public measurements
    assert abs(seconds / measured - 1) < 0.1


def test_the_catalogue_still_says_what_the_weights_were_trained_with() -> None:
    """Own weights know one value of each machine feature; another one means that the weights must be trained again."""
    weights = load_weights(gpu_names(), WeightsSource(offline=True))
    assert weights.gpus
    for name, own in weights.gpus.items():
        for network in own.families.values():
            operation, dtype = sorted(network.trained)[0]
            machine = machine_features(ShapeBatch(operation, dtype, {"any": np.ones(1)}), [gpu(name)])
            for feature, value in machine.items():
                index = network.features.index(feature)
                trained = (float(network.low[index]), float(network.high[index]))
                assert trained[0] - 1e-3 <= value[0, 0] <= trained[1] + 1e-3, (name, network.family, feature)


SIZES = st.floats(0, 20).map(lambda power: float(round(2**power)))
SHORT = st.floats(0, 11).map(lambda power: float(round(2**power)))
SHAPES = st.one_of(
    st.builds(
        lambda op, dtype, b, m, n, k: shape_batch(op, dtype, b=b, m=m, n=n, k=k),
        st.sampled_from(["linear", "bmm"]),
        st.sampled_from(["float32", "float16", "bfloat16"]),
        SHORT,
        SIZES,
        SIZES,
        SIZES,
    ),
    st.builds(
        lambda op, b, i, o, k, s, t: shape_batch(
            op, "float32", batch=b, in_channels=i, out_channels=o, kernel_size=k, image_size=s + k, stride=t
        ),
        st.sampled_from(["conv2d", "conv2d_backward_input", "conv2d_backward_weight"]),
        SHORT,
        SHORT,
        SHORT,
        st.integers(1, 31),
        SHORT,
        st.integers(1, 4),
    ),
    st.builds(
        lambda op, dtype, r, c: shape_batch(op, dtype, rows=r, cols=c),
        st.sampled_from(["add", "gelu", "softmax", "layer_norm", "softmax_backward", "dropout"]),
        st.sampled_from(["float32", "bfloat16"]),
        SIZES,
        SIZES,
    ),
    st.builds(
        lambda r, w, f: shape_batch("transfer", "float32", read_bytes=r, write_bytes=w, flops=f), SIZES, SIZES, SIZES
    ),
)


@settings(max_examples=60, deadline=None)
@given(SHAPES)
def test_no_prediction_breaks_the_bound_on_any_kind_of_gpu(shipped: UtilisationModels, batch: ShapeBatch) -> None:
    gpus = KINDS
    estimate = shipped.estimate(batch, gpus)
    bound = roofline_seconds(batch, gpus, least=True)
    for values in (estimate.interval.low, estimate.seconds, estimate.interval.high):
        assert np.isfinite(values).all()
        assert (values >= bound).all()
        assert (values > 0).all()
    assert (estimate.interval.low <= estimate.seconds).all()
    assert (estimate.seconds <= estimate.interval.high).all()


@pytest.mark.parametrize(
    ("operation", "dtype", "b"),
    [("linear", "float32", 1), ("linear", "float16", 1), ("linear", "bfloat16", 1), ("bmm", "float32", 64)],
)
def test_doubling_a_side_of_a_product_is_rarely_faster_on_any_gpu(
    shipped: UtilisationModels, operation: str, dtype: str, b: int
) -> None:
    sides = 8.0 ** np.arange(0, 6) if operation == "linear" else 8.0 ** np.arange(0, 5)
    m, n, k = (axis.ravel() for axis in np.meshgrid(sides, sides, sides, indexing="ij"))
    gpus = [gpu(name) for name in gpu_names()]

    def seconds(**words: Array) -> Array:
        return shipped.estimate(
            shape_batch(operation, dtype, **({"b": b, "m": m, "n": n, "k": k} | words)), gpus
        ).seconds

    before = seconds()
    ratios = np.stack([seconds(m=2 * m), seconds(n=2 * n), seconds(k=2 * k)]) / before
    assert (ratios < 0.95).mean() <= 0.02
    by_gpu = (ratios < 0.95).mean(axis=(0, 2))
    # Most on boards that a greater one of their chip holds where its own network is the slower.
    assert by_gpu.max() <= 0.045, gpus[int(by_gpu.argmax())].name
    assert ratios.min() > 0.55  # networks alone
