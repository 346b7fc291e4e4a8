"""Which measurements a recipe takes, and that own convolutions can be trained."""

from dataclasses import replace

import numpy as np

from benchmarks.training.recipes import RECIPES
from lightning_predict.kernels.features import reference_seconds
from lightning_predict.kernels.models import UtilisationModels
from lightning_predict.kernels.operations import ShapeBatch, network_specs, shape_batch
from lightning_predict.own_weights.training.networks import TrainingPlan
from lightning_predict.own_weights.training.tables import Group
from lightning_predict.weights.records import CROSS_GPU, GpuWeights, LoadedWeights
from tests.example_gpu import BIG, SMALL
from tests.own_weights.training.example import GPUS, train_family


def convolutions(rows: int, dtype: str = "bfloat16") -> ShapeBatch:
    generator = np.random.default_rng(0)
    batch, channels, filters, image = np.rint(2 ** generator.uniform(3, 8, size=(4, rows)))
    return shape_batch(
        "conv2d", dtype, batch=batch, in_channels=channels, out_channels=filters, kernel_size=3, image_size=image
    )


def measured(rows: int, *, source: str = "own", dtype: str = "bfloat16") -> Group:
    """Convolutions at a third of the roofline."""
    batch = convolutions(rows, dtype)
    return Group("SMALL", source, batch, 3 * reference_seconds(batch, [SMALL])[0], 0.0)


def test_recipe_takes_its_operations_dtypes_and_sources_and_has_its_kin() -> None:
    tensor, single = RECIPES["convolution_tensor"], RECIPES["convolution"]
    assert tensor.serves(measured(1))
    assert tensor.serves(measured(1, dtype="tf32"))
    assert not tensor.serves(measured(1, source="deepbench"))  # old libraries on old GPUs
    assert not tensor.serves(measured(1, dtype="float32"))
    assert single.serves(measured(1, source="deepbench", dtype="float32"))
    assert not single.serves(measured(1))
    assert set(RECIPES) == set(network_specs())
    for name, recipe in RECIPES.items():
        assert recipe.family is network_specs()[name]
        assert all(kin.describe is recipe.family.describe for kin in recipe.kin)


def test_own_convolutions_on_tensor_cores_are_trained() -> None:
    plan = TrainingPlan(steps=300, batch_rows=128, hidden=(16,))
    recipe = replace(RECIPES["convolution_tensor"], base=plan, own=plan, fold=plan)
    result = train_family(recipe, [measured(800)], GPUS, seed=0)
    weights = LoadedWeights(
        GpuWeights(CROSS_GPU, {"convolution_tensor": result.base}, "r", 0, ()),
        {"SMALL": GpuWeights("SMALL", {"convolution_tensor": result.own["SMALL"]}, "r", 0, ())},
    )
    models = UtilisationModels(weights)
    assert models.supports("conv2d", "bfloat16")
    assert not models.supports("conv2d", "float32")
    assert models.has_own_weights("SMALL", "conv2d", "bfloat16")
    batch = convolutions(50)
    estimate = models.estimate(batch, [SMALL, BIG])
    np.testing.assert_allclose(estimate.seconds[0], 3 * reference_seconds(batch, [SMALL])[0], rtol=0.1)
    # Nothing could be left out, so the base's predictions for other GPUs are uncertain.
    assert (estimate.interval.high[1] / estimate.seconds[1] > estimate.interval.high[0] / estimate.seconds[0]).all()
