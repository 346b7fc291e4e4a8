from __future__ import annotations

import math

import numpy as np
import pytest

from lightning_predict.errors import MeasurementTableError
from lightning_predict.fitting.families import train_family
from lightning_predict.fitting.intervals import UNMEASURED_HALF_WIDTH, interval_of, log_errors, weighted_quantile
from lightning_predict.fitting.recipes import RECIPES
from lightning_predict.fitting.splits import split_rows
from lightning_predict.fitting.tables import Group
from lightning_predict.kernels.features import reference_seconds
from lightning_predict.kernels.operations import problem_batch
from lightning_predict.kernels.utilisation import FAMILIES
from tests.example_gpu import SMALL
from tests.fitting.example import GPUS, group, products
from tests.kernels.example_networks import constant_network

RECIPE = RECIPES["matmul_single"]
HALF = constant_network("matmul_single", utilisation=0.5, interval=1.0)


def spread_group(rows: int, width: float, *, operation: str = "linear") -> Group:
    """Kernels whose log-utilisation is spread evenly by `width` on both sides of one half."""
    sizes = products(rows).columns
    batch = problem_batch(operation, "float32", b=1, m=sizes["m"], n=sizes["n"], k=sizes["k"])
    offset = np.random.default_rng(1).uniform(-width, width, rows)
    return Group("SMALL", "synthetic", batch, reference_seconds(batch, [SMALL])[0] * 2 * np.exp(offset), 0.0)


def test_the_error_is_that_of_the_network() -> None:
    timed = spread_group(50, 0.0)
    np.testing.assert_allclose(log_errors(FAMILIES["matmul_single"], HALF, timed, SMALL), 0.0, atol=1e-5)


def test_the_half_width_holds_nine_tenths_of_rows_that_it_never_saw() -> None:
    timed = spread_group(20_000, 0.4)
    width = interval_of({"SMALL": (HALF, [timed])}, RECIPE, GPUS, seed=0)["linear/float32"]
    assert width == pytest.approx(0.36, abs=0.01)  # 90 % of |uniform(-0.4, 0.4)|
    held_out = timed.take(split_rows(timed.batch.columns, seed=0).held_out)
    inside = np.abs(log_errors(RECIPE.family, HALF, held_out, SMALL)) <= width
    assert inside.mean() == pytest.approx(0.9, abs=0.02)


def test_an_operation_with_few_rows_takes_the_width_of_the_family_where_that_is_wider() -> None:
    many, few = spread_group(20_000, 0.4), spread_group(300, 0.01, operation="bmm")
    widths = interval_of({"SMALL": (HALF, [many, few])}, RECIPE, GPUS, seed=0)
    assert widths["bmm/float32"] > 0.2  # its own rows alone would say less than 0.01
    assert widths["*"] == max(widths["bmm/float32"], widths["linear/float32"])
    wild = spread_group(300, 2.0, operation="bmm")
    assert interval_of({"SMALL": (HALF, [many, wild])}, RECIPE, GPUS, seed=0)["bmm/float32"] > 1.0


def test_without_calibration_rows_the_interval_says_so() -> None:
    assert interval_of({}, RECIPE, GPUS, seed=0) == {"*": UNMEASURED_HALF_WIDTH}


def test_the_conformal_quantile_counts_one_more_row_as_an_error() -> None:
    errors, weights = np.arange(1, 100) / 100, np.ones(99)
    # 99 rows: the 90th of 100, because the next row may be the worst.
    assert weighted_quantile(errors, weights) == pytest.approx(0.9)
    assert weighted_quantile(np.array([0.5]), np.ones(1)) == 0.5
    heavy = np.where(errors < 0.5, 99.0, 1e-9)  # the small errors have all the weight
    assert weighted_quantile(errors, heavy) < 0.5


def test_too_few_rows_for_a_family_are_named() -> None:
    with pytest.raises(MeasurementTableError, match=r"have 20 rows for 'matmul_single' .* at least 300.*linear, bmm"):
        train_family(RECIPE, [group(SMALL, 20)], GPUS)
    assert math.isfinite(UNMEASURED_HALF_WIDTH)
