import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from lightning_predict.hardware import gpu, gpu_names
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.models import (
    UtilisationModels,
    dominates,
    dominates_same_chip,
    is_lesser_board,
    upper_bound_from_dominated_gpus,
)
from lightning_predict.kernels.operations import Array, ShapeBatch, shape_batch
from lightning_predict.kernels.roofline import sustained_rate_uncertainty
from lightning_predict.weights.source import WeightsSource
from lightning_predict.weights.store import load_weights
from tests.example_gpu import BIG, OLD, SMALL
from tests.kernels.example_networks import constant_weights, with_own

LINEAR = shape_batch("linear", "float32", m=1000, n=1000, k=[1000, 2000])


def improved(card: Gpu, factor: float, name: str) -> Gpu:
    """Every figure times the factor."""
    return replace(
        card,
        name=name,
        streaming_multiprocessors=round(card.streaming_multiprocessors * factor),
        base_clock_hz=card.base_clock_hz * factor,
        boost_clock_hz=card.boost_clock_hz * factor,
        highest_clock_hz=card.highest_clock_hz * factor,
        peak_flops_per_second={dtype: factor * peak for dtype, peak in card.peak_flops_per_second.items()},
        measured_flops_per_second={dtype: factor * rate for dtype, rate in card.measured_flops_per_second.items()},
        dram_bytes_per_second=card.dram_bytes_per_second * factor,
        l2_bytes=card.l2_bytes * factor,
        l2_bytes_per_second=card.l2_bytes_per_second * factor,
        power_watts=card.power_watts * factor,
    )


def test_a_gpu_beats_another_in_every_figure_or_not_at_all() -> None:
    assert dominates(BIG, SMALL, "float32")
    assert not dominates(SMALL, BIG, "float32")
    assert dominates(SMALL, SMALL, "float32")  # equal figures are not worse
    assert not dominates(replace(BIG, power_watts=99.0), SMALL, "float32")
    assert not dominates(replace(BIG, l2_bytes=0.9e6), SMALL, "float32")
    assert dominates(SMALL, OLD, "bfloat16")
    assert not dominates(OLD, SMALL, "float32")  # of an older architecture
    slow = replace(BIG, measured_flops_per_second={"float32": 0.5e12})
    assert not dominates(slow, SMALL, "float32")  # by its data sheet alone


def test_lesser_boards_set_the_limit_of_those_that_beat_them() -> None:
    high = np.array([[3.0, 1.0], [2.0, 4.0]])
    longest = upper_bound_from_dominated_gpus([BIG, OLD], [SMALL, OLD], high, "float32")
    assert longest.tolist() == [[2.0, 1.0], [2.0, 4.0]]  # BIG beats both, OLD itself alone
    assert upper_bound_from_dominated_gpus([OLD], [SMALL], high[:1], "float32").tolist() == [[math.inf, math.inf]]
    assert is_lesser_board(gpu("H100-SXM-96GB"), gpu("H100-SXM-80GB"), "bfloat16")  # 500 of 700 W, 2.4 of 3.35 TB/s
    assert not is_lesser_board(gpu("H100-SXM-80GB"), gpu("H100-SXM-96GB"), "bfloat16")
    assert not is_lesser_board(gpu("H100-PCIe-80GB"), gpu("A100-PCIe-80GB"), "bfloat16")  # another chip
    assert not is_lesser_board(BIG, BIG, "float32")  # itself


def test_measured_and_unmeasured_gpus_keep_to_the_interval_of_lesser_ones() -> None:
    # The base knows nothing good: 2 % utilisation; the T4's own weights reach 50 %, within 5 %.
    base = constant_weights("matmul_single", utilisation=0.02, interval=math.log(2))
    models = UtilisationModels(with_own(base, "T4", "matmul_single", utilisation=0.5, trained=(("linear", "float32"),)))
    t4 = models.estimate(LINEAR, [gpu("T4")])
    better, other = improved(gpu("T4"), 1.5, "better"), gpu("L4")  # the L4's L2 bandwidth or clock may beat, not all
    estimate = models.estimate(LINEAR, [better, other, gpu("T4")])
    np.testing.assert_allclose(estimate.seconds[0], t4.interval.high[0])
    np.testing.assert_allclose(estimate.seconds[2], t4.seconds[0])
    alone = UtilisationModels(base).estimate(LINEAR, [better, other])
    assert (estimate.seconds[0] < alone.seconds[0]).all()
    spread = math.exp(math.hypot(math.log(2), sustained_rate_uncertainty(better, "float32")))
    np.testing.assert_allclose(estimate.interval.high[0], spread * estimate.seconds[0])  # as wide as before
    if not dominates(other, gpu("T4"), "float32"):
        np.testing.assert_array_equal(estimate.seconds[1], alone.seconds[1])
    # Large products alone draw the power that the GB200 of the public tables did not have.
    models = UtilisationModels(load_weights(("B200-SXM-180GB", "GB200"), WeightsSource()))
    lower, higher = gpu("B200-SXM-180GB"), gpu("GB200")
    assert dominates_same_chip(higher, lower, "bfloat16")
    assert not dominates_same_chip(lower, higher, "bfloat16")
    assert not dominates_same_chip(gpu("H200-SXM-141GB"), gpu("H100-SXM-80GB"), "bfloat16")  # of one peak
    assert not dominates_same_chip(higher, gpu("H100-SXM-80GB"), "bfloat16")  # another chip
    sizes = [1024, 2048, 4096, 8192, 16384]
    batch = shape_batch("linear", "bfloat16", m=sizes, n=sizes, k=sizes)
    both = models.estimate(batch, [lower, higher])
    assert (both.seconds[1] <= both.seconds[0]).all()
    assert both.held["a measured GPU of lesser figures"][1].tolist() == [False, False, False, True, True]
    own = both.interval.high[1] / both.seconds[1]
    assert own[-1] > own[0]  # its own measurement stays inside


def drawn(seed: int = 0, count: int = 40) -> dict[str, ShapeBatch]:
    """Shapes of all families, even in the logarithm."""
    draw = np.random.default_rng(seed)

    def sizes(largest: float, unit: int = 1) -> Array:
        return np.asarray(np.rint(2 ** draw.uniform(0, largest, count)) * unit, dtype=np.float64)

    batches = {
        f"linear/{dtype}": shape_batch("linear", dtype, m=sizes(16), n=sizes(13, 8), k=sizes(13, 8))
        for dtype in ("float32", "float16", "bfloat16")
    }
    batches["bmm/float32"] = shape_batch("bmm", "float32", b=sizes(10), m=sizes(12), n=sizes(9, 8), k=sizes(9, 8))
    batches["conv2d/float32"] = shape_batch(
        "conv2d", "float32", batch=sizes(8), in_channels=sizes(11), out_channels=sizes(11), kernel_size=3,
        image_size=sizes(5, 8), padding=1,
    )  # fmt: skip
    for name in ("add", "softmax", "gelu"):
        batches[f"{name}/float32"] = shape_batch(name, "float32", rows=sizes(16), cols=sizes(13))
    return batches


@pytest.fixture(scope="module")
def models() -> UtilisationModels:
    return UtilisationModels(load_weights(gpu_names(), WeightsSource(offline=True)))


@pytest.mark.parametrize("name", list(drawn()))
def test_a_gpu_better_in_every_figure_is_not_slower_by_more_than_the_interval(
    name: str, models: UtilisationModels
) -> None:
    batch = drawn()[name]
    cards = [gpu(card_name) for card_name in gpu_names()]
    plain = models.estimate(batch, cards)
    for factor, allowed in ((1.5, 0.0), (1.1, 0.005)):
        better = models.estimate(batch, [improved(card, factor, f"{card.name}-better") for card in cards])
        slower = better.seconds > plain.interval.high * (1 + 1e-6)
        measured = np.array([models.has_own_weights(card.name, batch.operation, batch.dtype) for card in cards])
        assert not slower[measured].any()
        assert slower[~measured].mean() <= allowed, [cards[row].name for row in np.flatnonzero(slower.any(axis=1))]


@pytest.mark.parametrize("name", list(drawn()))
def test_a_lesser_board_of_a_chip_is_no_faster_than_a_greater_one_that_was_measured(
    name: str, models: UtilisationModels
) -> None:
    """Over all pairs of the catalogue: the same chip with no more clocks, multiprocessors, bandwidth and power."""
    batch = drawn()[name]
    cards = [gpu(card_name) for card_name in gpu_names()]
    seconds = models.estimate(batch, cards).seconds
    measured = [models.has_own_weights(card.name, batch.operation, batch.dtype) for card in cards]
    pairs = [
        (lesser, greater)
        for lesser, greater in permutations(range(len(cards)), 2)
        if measured[greater] and not measured[lesser]
        # Of a board whose rate in products people measured, that is trusted.
        if batch.operation not in ("linear", "bmm") or batch.dtype not in cards[lesser].measured_flops_per_second
        if is_lesser_board(cards[lesser], cards[greater], batch.dtype)
    ]
    assert pairs
    for lesser, greater in pairs:
        words = f"{cards[lesser].name} beside {cards[greater].name}"
        assert (seconds[lesser] >= seconds[greater] * (1 - 1e-6)).all(), words
