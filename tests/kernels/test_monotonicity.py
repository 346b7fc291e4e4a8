from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lightning_predict as lp
from lightning_predict.hardware import gpu
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.features import reference_seconds
from lightning_predict.kernels.models import MIN_SHARE, clamp_to_larger_shapes
from lightning_predict.kernels.operations import Array, BoolArray, ShapeBatch, network_spec, shape_batch
from tests.example_gpu import BIG, SMALL

PRODUCT = shape_batch("linear", "float32", m=64, n=64, k=64)


def hold(
    batch: ShapeBatch, gpus: Sequence[Gpu], seconds: Array, timed: Callable[[ShapeBatch, BoolArray], Array]
) -> Array:
    family = network_spec(batch.operation, batch.dtype)
    assert family is not None
    return clamp_to_larger_shapes(family, batch, gpus, seconds, timed)


def on_both(seconds: Callable[[Array], Array]) -> Callable[[ShapeBatch, BoolArray], Array]:
    """Seconds by the FLOPs of a problem, the same on every GPU."""

    def timed(batch: ShapeBatch, wanted: BoolArray) -> Array:
        return np.broadcast_to(seconds(batch.flops), wanted.shape)[wanted]

    return timed


def test_a_slow_product_takes_no_longer_than_a_doubled_one_allows() -> None:
    times = {1: 1.0, 2: 0.5, 4: 0.5}  # by how many times the FLOPs have grown

    def timed(flops: Array) -> Array:
        return np.array([times[int(value)] for value in flops / PRODUCT.flops])

    held = hold(PRODUCT, [SMALL], np.array([[1.0]]), on_both(timed))
    assert held[0, 0] == pytest.approx(0.5 / MIN_SHARE)
    times |= {2: 0.9, 4: 0.25}  # two drops, one after the other: 0.25 counts for both
    assert hold(PRODUCT, [SMALL], np.array([[1.0]]), on_both(timed))[0, 0] == pytest.approx(0.25 / MIN_SHARE**2)


def test_a_product_that_grows_as_it_should_is_left_alone() -> None:
    held = hold(PRODUCT, [SMALL, BIG], np.array([[1.0], [0.7]]), on_both(lambda flops: flops / PRODUCT.flops))
    assert held.tolist() == [[1.0], [0.7]]


def test_neighbours_that_cannot_undercut_are_not_computed() -> None:
    asked: list[float] = []

    def timed(batch: ShapeBatch, wanted: BoolArray) -> Array:
        asked.append(float(batch.flops[0] / PRODUCT.flops[0]))
        return np.full(int(wanted.sum()), 9.0)

    reference = reference_seconds(PRODUCT, [SMALL])
    hold(PRODUCT, [SMALL], reference, timed)  # at full utilisation already
    assert asked == []
    hold(PRODUCT, [SMALL], 3.5 * reference, timed)
    assert set(asked) == {2.0}  # 3.5 x 0.72 x 0.6 leaves room for one doubling, 3.5 x 0.72² x 0.6 for none


def test_only_products_are_held() -> None:
    def never(batch: ShapeBatch, wanted: BoolArray) -> Array:
        raise AssertionError("nothing else may be timed")

    slow = np.array([[1.0]])
    batch = shape_batch("softmax", "float32", rows=64, cols=64)
    np.testing.assert_array_equal(hold(batch, [gpu("A100-SXM-80GB")], slow, never), slow)


def test_a_product_of_odd_size_stays_slower_than_the_next_even_one() -> None:
    odd, even = (
        lp.operator_seconds("linear", "A100-SXM-80GB", dtype="bfloat16", m=8192, n=n, k=1024) for n in (50257, 50304)
    )
    assert odd > 2 * even


@given(st.dictionaries(st.tuples(*[st.integers(0, 3)] * 3), st.floats(MIN_SHARE**2, 1.0)))
def test_no_doubling_is_thirty_per_cent_faster_whatever_the_model_says(drops: dict[tuple[int, ...], float]) -> None:
    """For any times within a factor of 0.72² of each other on a grid of 2 x 2 x 2 shapes and those around it."""

    def timed(batch: ShapeBatch, wanted: BoolArray) -> Array:
        powers = [np.rint(np.log2(batch.columns[side] / 64)).astype(int).tolist() for side in ("m", "n", "k")]
        times = [drops.get(place, 1.0) for place in zip(*powers, strict=True)]
        return np.broadcast_to(np.array(times), wanted.shape)[wanted]

    sides = [64.0, 128.0]
    m, n, k = (axis.ravel() for axis in np.meshgrid(sides, sides, sides, indexing="ij"))
    batch = shape_batch("bmm", "float32", b=1, m=m, n=n, k=k)
    raw = timed(batch, np.ones((1, 8), dtype=np.bool_))
    held = hold(batch, [SMALL], raw[None, :], timed).reshape(2, 2, 2)
    for axis in range(3):
        small, large = np.take(held, 0, axis), np.take(held, 1, axis)
        assert (large >= MIN_SHARE * small * (1 - 1e-6)).all()
    assert (held <= raw.reshape(2, 2, 2)).all()
