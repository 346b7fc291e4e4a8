from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.operations import Array, problem_batch
from lightning_predict.kernels.wave_scaling import many_wave_factors
from lightning_predict.training.blends import FEWEST_BLEND_ROWS, MeasuredGroup, PairRows, blend_of, pairs_of
from lightning_predict.training.tables import Group
from tests.example_gpu import BIG, SMALL

GPUS = {"SMALL": SMALL, "BIG": BIG}


def rows(origin: Array, target: Array) -> PairRows:
    """Wave scaling errs by a factor of 20, so that it is no choice."""
    return PairRows(origin, target, np.full_like(origin, 3.0))


def test_the_weight_is_the_part_of_the_origins_error_that_comes_back() -> None:
    origin = np.random.default_rng(0).normal(size=200)
    blend = blend_of([rows(origin, 0.25 * origin)])
    assert blend is not None
    assert blend.weight == pytest.approx(0.25)
    assert blend.half_width == 1e-3  # nothing is left: the least that an interval may be


@pytest.mark.parametrize(("returned", "weight"), [(2.0, 1.0), (-1.0, 0.0)])
def test_the_weight_stays_between_direct_and_ratio(returned: float, weight: float) -> None:
    origin = np.random.default_rng(0).normal(size=200)
    blend = blend_of([rows(origin, returned * origin)])
    assert blend is not None
    assert blend.weight == weight


def test_no_weight_between_is_better() -> None:
    draw = np.random.default_rng(1)
    common, origin, target = draw.normal(size=(3, 500))
    pair = rows(common + 0.5 * origin, common + target)
    blend = blend_of([pair])
    assert blend is not None
    losses = [np.abs(pair.target_error - w * pair.origin_error).mean() for w in np.linspace(0, 1, 201)]
    assert np.abs(pair.target_error - blend.weight * pair.origin_error).mean() <= min(losses) + 1e-12
    left = np.abs(pair.target_error - blend.weight * pair.origin_error)
    assert (left <= blend.half_width).mean() == pytest.approx(0.9, abs=0.01)


def test_a_pair_of_many_rows_counts_as_much_as_one_of_few() -> None:
    origin = np.ones(100)
    same, none, some = (rows(origin, share * origin) for share in (1.0, 0.0, 0.5))
    blend = blend_of([same, rows(np.ones(10_000), np.zeros(10_000)), some])
    assert blend is not None
    assert blend.weight == 0.5  # the median of 0, 0.5 and 1, not of the ten thousand
    assert blend_of([same, same, none]) == replace(blend, weight=1.0, half_width=1.0)


def test_an_origin_without_errors_leaves_the_direct_prediction() -> None:
    blend = blend_of([rows(np.zeros(100), np.full(100, 0.2))])
    assert blend is not None
    assert blend.weight == 0
    assert blend.half_width == pytest.approx(0.2)


def test_wave_scaling_is_chosen_where_it_leaves_less() -> None:
    draw = np.random.default_rng(2)
    origin, target = draw.normal(size=(2, 200))
    better, worse = (PairRows(origin, target, factor * target) for factor in (0.1, 2.0))
    chosen, refused = blend_of([better]), blend_of([worse])
    assert chosen is not None
    assert refused is not None
    assert (chosen.by_wave, refused.by_wave) == (True, False)
    assert chosen.half_width == pytest.approx(0.1 * np.quantile(np.abs(target), 0.9), rel=0.05)


def test_too_few_rows_teach_nothing() -> None:
    assert blend_of([]) is None
    assert blend_of([rows(np.ones(FEWEST_BLEND_ROWS - 1), np.ones(FEWEST_BLEND_ROWS - 1))]) is None


def measured(gpu: Gpu, sizes: list[int], *, build: str = "a", known: bool = True) -> MeasuredGroup:
    """Errors that tell the size and the GPU: size on SMALL, ten times as much on BIG; unseen ones are negative."""
    batch = problem_batch("linear", "float32", m=sizes, n=64, k=64)
    error = np.array(sizes, dtype=np.float64) * (10 if gpu is BIG else 1)
    group = Group(gpu.name, "synthetic", batch, np.full(len(sizes), 1e-3), 0.0, build)
    return MeasuredGroup(group, error if known else None, -error)


def test_a_pair_has_the_problems_that_both_ran_in_both_directions() -> None:
    pairs = pairs_of([measured(SMALL, [1, 2, 3, 4, 5, 9]), measured(BIG, [7, 5, 4, 3, 2, 1])], GPUS, (True, True))
    assert len(pairs) == 2
    there, back = pairs
    np.testing.assert_array_equal(np.sort(there.origin_error), [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(there.target_error, 10 * there.origin_error)
    np.testing.assert_array_equal(back.target_error, back.origin_error / 10)


def test_other_builds_and_too_few_problems_make_no_pair() -> None:
    one = measured(SMALL, [1, 2, 3, 4, 5])
    assert pairs_of([one, measured(BIG, [1, 2, 3, 4, 5], build="b")], GPUS, (True, True)) == []
    assert pairs_of([one, measured(BIG, [1, 2, 3, 4, 6])], GPUS, (True, True)) == []
    assert pairs_of([one, one], GPUS, (True, True)) == []  # a GPU is no pair with itself


def test_unseen_gpus_bring_the_errors_of_bases_that_never_saw_them() -> None:
    sizes = [1, 2, 3, 4, 5]
    both = [measured(SMALL, sizes), measured(BIG, sizes, known=False)]
    (pair,) = pairs_of(both, GPUS, (True, False))  # BIG has no weights of its own
    assert (pair.origin_error > 0).all()
    np.testing.assert_array_equal(pair.target_error, -10 * pair.origin_error)
    assert pairs_of(both, GPUS, (True, True)) == []
    assert len(pairs_of(both, GPUS, (False, False))) == 2


def test_wave_scaling_stands_beside_them() -> None:
    sizes = [64, 128, 256, 512, 1024]
    there, _ = pairs_of([measured(SMALL, sizes), measured(BIG, sizes)], GPUS, (True, True))
    batch = problem_batch("linear", "float32", m=sizes, n=64, k=64)
    # Both ran a millisecond: the error is that of the factor alone.
    factors = many_wave_factors(batch, origin=SMALL, destination=BIG)
    np.testing.assert_allclose(np.sort(there.wave_error), np.sort(np.log(factors)))
