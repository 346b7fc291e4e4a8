import math

import numpy as np
import pytest

from benchmarks.result_files import Result, ResultTable
from benchmarks.training.families import UNMEASURED_HALF_WIDTH, interval_of
from benchmarks.training.recipes import RECIPES
from benchmarks.training.step_spread import StepError, coverage, deviations, half_width, left_out, step_errors
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.kernels.features import reference_seconds
from lightning_predict.kernels.operations import network_specs, shape_batch
from lightning_predict.own_weights.training.tables import Group, split_rows
from lightning_predict.own_weights.training.tuning import log_errors, weighted_quantile
from tests.example_gpu import SMALL
from tests.kernels.example_networks import constant_network
from tests.own_weights.training.example import GPUS, group, products, train_family

RECIPE = RECIPES["matmul_single"]
HALF = constant_network("matmul_single", utilisation=0.5, interval=1.0)


def spread_group(rows: int, width: float, *, operation: str = "linear") -> Group:
    """Kernels whose log-utilisation is spread evenly by `width` on both sides of one half."""
    sizes = products(rows).columns
    batch = shape_batch(operation, "float32", b=1, m=sizes["m"], n=sizes["n"], k=sizes["k"])
    offset = np.random.default_rng(1).uniform(-width, width, rows)
    return Group("SMALL", "synthetic", batch, reference_seconds(batch, [SMALL])[0] * 2 * np.exp(offset), 0.0)


def test_error_is_the_networks_and_its_quantile_counts_one_row_more() -> None:
    timed = spread_group(50, 0.0)
    np.testing.assert_allclose(log_errors(network_specs()["matmul_single"], HALF, timed, SMALL), 0.0, atol=1e-5)
    errors, weights = np.arange(1, 100) / 100, np.ones(99)
    # 99 rows: the 90th of 100, because the next row may be the worst.
    assert weighted_quantile(errors, weights) == pytest.approx(0.9)
    assert weighted_quantile(np.array([0.5]), np.ones(1)) == 0.5
    heavy = np.where(errors < 0.5, 99.0, 1e-9)  # the small errors have all the weight
    assert weighted_quantile(errors, heavy) < 0.5
    with pytest.raises(MeasurementTableError, match=r"have 20 rows for 'matmul_single' .* at least 300.*linear, bmm"):
        train_family(RECIPE, [group(SMALL, 20)], GPUS)
    assert math.isfinite(UNMEASURED_HALF_WIDTH)


def test_width_holds_nine_tenths_of_unseen_rows_unless_calibration_is_harder() -> None:
    timed = spread_group(20_000, 0.4)
    width = interval_of({"SMALL": (HALF, [timed])}, RECIPE, GPUS, seed=0)["linear/float32"]
    assert width == pytest.approx(0.36, abs=0.01)  # 90 % of |uniform(-0.4, 0.4)|
    held_out = timed.take(split_rows(timed.batch.columns, seed=0).held_out)
    inside = np.abs(log_errors(RECIPE.family, HALF, held_out, SMALL)) <= width
    assert inside.mean() == pytest.approx(0.9, abs=0.02)
    easy = with_calibration_spread(spread_group(20_000, 0.4), 0.01)
    width = interval_of({"SMALL": (HALF, [easy])}, RECIPE, GPUS, seed=0)["linear/float32"]
    assert width == pytest.approx(0.36, abs=0.01)  # 90 % of |uniform(-0.4, 0.4)|; the calibration rows say 0.0036
    hard = with_calibration_spread(spread_group(20_000, 0.4), 2.0)
    width = interval_of({"SMALL": (HALF, [hard])}, RECIPE, GPUS, seed=0)["linear/float32"]
    assert width == pytest.approx(0.72, abs=0.02)
    hard = with_calibration_spread(spread_group(20_000, 0.4), 2.0)
    width = interval_of({"SMALL": (HALF, [hard])}, RECIPE, GPUS, seed=0, are_strangers=True)["linear/float32"]
    # One row in nine is spread by 0.8 and the others by 0.4: 0.9 = 8/9 min(w / 0.4, 1) + 1/9 w / 0.8 holds at w = 0.38.
    assert width == pytest.approx(0.38, abs=0.01)


def with_calibration_spread(group: Group, width: float) -> Group:
    """The same rows, but the calibration rows lie within `width` of the network's prediction."""
    right = reference_seconds(group.batch, [SMALL])[0] * 2
    offset = np.log(group.seconds / right)
    calibration = split_rows(group.batch.columns, seed=0).calibration
    return Group(group.gpu, group.source, group.batch, right * np.exp(np.where(calibration, width, 1) * offset), 0.0)


def test_operations_have_their_own_width_and_gpus_count_alike() -> None:
    wide, narrow = spread_group(20_000, 0.4), spread_group(300, 0.01, operation="bmm")
    widths = interval_of({"SMALL": (HALF, [wide, narrow])}, RECIPE, GPUS, seed=0)
    assert widths["bmm/float32"] == pytest.approx(0.009, abs=0.001)
    assert widths["*"] == widths["linear/float32"]
    many, few = spread_group(20_000, 0.4), spread_group(2000, 0.0)
    tested = {"SMALL": (HALF, [many]), "BIG": (constant_network("matmul_single", utilisation=0.5, interval=1.0), [few])}
    width = interval_of(tested, RECIPE, GPUS, seed=0)["linear/float32"]
    # Half of the weight has no error: the 90 % quantile of all is the 80 % quantile of the other half.
    assert width == pytest.approx(0.8 * 0.4, abs=0.02)


def result(name: str, *rows: tuple[str, str]) -> Result:
    """A table of steps with their settings and errors."""
    columns = ("model", "GPU", "setting", "error %", "inside", "width")
    table = ResultTable(
        title=f"{name}: time, each",
        columns=columns,
        names=3,
        rows=tuple(("ResNet-50", "T4", setting, error, "yes", "1.50") for setting, error in rows),
    )
    return Result(name=name, command="", date="2026-11-29", commit="0123456", split="held out", tables=(table,))


def test_a_source_deviates_by_the_median_of_its_steps() -> None:
    fused = [("fsdp, ran compile", "+50.0"), ("ran transformer_engine", "+50.0"), ("ran compile", "+60.0")]
    page = result("page", ("", "+10.0"), ("ddp", "-20.0"), ("", "+12.0"), ("data loader", "-60.0"), *fused)
    few = result("few", ("", "+10.0"))
    assert deviations(step_errors([page, few], fused=False)) == {"page": pytest.approx(math.log(1.1))}
    assert deviations(step_errors([page, few], fused=True)) == {"page": pytest.approx(math.log(1.5))}


def test_source_is_compared_with_the_others_without_the_worst() -> None:
    # sqrt((0.1² + 0.1²) / 2) = 0.1, times 1.645
    assert half_width([0.1, -0.1, 2.0]) == pytest.approx(0.1645, rel=1e-3)
    # The half width of three sources at 0.1 is 0.1645; of 0.1, 0.1 and -0.329 it is the same, the worst left out.
    far = left_out({"a": 0.1, "b": 0.1, "c": 0.1, "far": -0.329})
    assert far == {"a": 0.61, "b": 0.61, "c": 0.61, "far": -2.0}
    # Three steps at 0.1 inside exp(2 x 0.12); without the shipped part of 0.1, their own is sqrt(0.12² - 0.1²) = 0.066.
    # The others' medians of 0.05 select 1.645 x 0.05 = 0.082, together 0.106: still inside. At 0.11, it is outside.
    others = {name: [StepError(0.05, 0.12)] * 3 for name in ("a", "b", "c")}
    own = [StepError(0.1, 0.12), StepError(0.1, 0.12), StepError(0.11, 0.12)]
    row = next(iter(coverage({"own": own, **others}, 0.1)))
    assert row == ["own", "3", "100", f"{math.exp(0.24):.2f}", "67", f"{math.exp(2 * 0.1057):.2f}"]
