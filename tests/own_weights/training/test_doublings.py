from dataclasses import replace

import numpy as np

from benchmarks.training.doublings import ShapeRange, doubling_pairs
from benchmarks.training.recipes import RECIPES
from lightning_predict.kernels.features import reference_seconds
from lightning_predict.kernels.models import log_utilisation_of
from lightning_predict.kernels.operations import Array, network_specs, shape_batch
from lightning_predict.own_weights.training.networks import TrainingPlan, collect_rows, train_network
from lightning_predict.own_weights.training.tables import Group
from lightning_predict.weights.records import NetworkWeights
from tests.example_gpu import BIG, SMALL

SINGLE = network_specs()["matmul_single"]
SIDES = {"m": (1.0, 4096.0), "n": (1.0, 4096.0), "k": (1.0, 4096.0)}
SHAPES = (ShapeRange(operation="linear", dtype="float32", sides=SIDES, fixed={}),)


def test_pairs_differ_by_one_doubled_side_of_shapes_that_their_family_serves() -> None:
    pairs = doubling_pairs(SINGLE, SHAPES, [SMALL, BIG], count=400, seed=0)
    assert len(pairs.smaller.features) == len(pairs.larger.features) == 400
    names = SINGLE.feature_names(shape_batch("linear", "float32", m=1, n=1, k=1), [SMALL])
    sides = [names.index(word) for word in ("rows", "cols", "depth")]
    growth = pairs.larger.features[:, sides] - pairs.smaller.features[:, sides]
    np.testing.assert_allclose(np.sort(growth, axis=1), np.tile([0.0, 0.0, 1.0], (400, 1)), atol=1e-5)
    assert (pairs.larger.log_reference >= pairs.smaller.log_reference).all()  # more work is never less
    for recipe in RECIPES.values():
        pairs = doubling_pairs(recipe.family, recipe.shapes, [SMALL], count=60, seed=0)
        assert np.isfinite(pairs.smaller.features).all()
        assert {shape.operation for shape in recipe.shapes} <= set(recipe.family.operations)
        learnt = {dtype for family in (recipe.family, *recipe.kin) for dtype in family.dtypes}
        assert {shape.dtype for shape in recipe.shapes} <= learnt


def test_training_with_pairs_undoes_most_drops_of_a_noisy_table() -> None:
    generator = np.random.default_rng(0)
    sizes = np.rint(2 ** generator.uniform(4, 12, size=(3, 400)))
    batch = shape_batch("linear", "float32", m=sizes[0], n=sizes[1], k=sizes[2])
    noisy = reference_seconds(batch, [SMALL])[0] / generator.uniform(0.1, 0.9, 400)
    rows = collect_rows(SINGLE, [Group("SMALL", "synthetic", batch, noisy, 0.0)], [SMALL])
    pairs = doubling_pairs(SINGLE, SHAPES, [SMALL], count=4000, seed=1)
    plan = TrainingPlan(steps=500, batch_rows=128, hidden=(64, 64))
    without = train_network(rows, rows, plan, seed=0)
    tamed = train_network(rows, rows, replace(plan, doubling_weight=5.0), seed=0, pairs=pairs)
    assert drops(tamed) < 0.5 * drops(without)


def drops(network: NetworkWeights) -> float:
    """Share of pairs, drawn afresh, whose larger shape is predicted more than 5 % faster."""
    pairs = doubling_pairs(SINGLE, SHAPES, [SMALL], count=4000, seed=2)

    def log_seconds(features: np.ndarray[tuple[int, ...], np.dtype[np.float32]], reference: Array) -> Array:
        seconds: Array = reference - log_utilisation_of(network, features[None])[0]
        return seconds

    smaller = log_seconds(pairs.smaller.features, pairs.smaller.log_reference)
    larger = log_seconds(pairs.larger.features, pairs.larger.log_reference)
    return float((larger < smaller - 0.05).mean())
