"""Factors of operations without a network: measured over predicted times."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lightning_predict as lp
from lightning_predict.base.errors import WeightsFormatError
from lightning_predict.hardware import gpu
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import ShapeBatch, shape_batch
from lightning_predict.own_weights.measuring import run
from lightning_predict.own_weights.measuring.run import measure
from lightning_predict.own_weights.training.factors import factor_of, measured_factors
from lightning_predict.own_weights.training.tables import Group
from lightning_predict.own_weights.training.tuning import tune_weights
from lightning_predict.weights.files import parse_weights, read_weights, write_weights
from lightning_predict.weights.records import MeasuredFactor
from tests.own_weights.measuring.test_measuring import by_graph
from tests.own_weights.training.example import write_unchanged_steps
from tests.weights.example import weights as example_weights

T4 = gpu("T4")
ROWS = 2.0 ** np.arange(8, 20)


def group_times(factor: float, scatter: float = 0.0) -> Group:
    """Sorts that take a multiple of their prediction."""
    batch = shape_batch("sort", "float32", rows=ROWS, cols=np.full(len(ROWS), 256.0))
    predicted = np.array([lp.operator_seconds("sort", "T4", rows=rows, cols=256.0) for rows in ROWS])
    noise = np.exp(scatter * np.random.default_rng(1).permutation(np.linspace(-1, 1, len(ROWS))))
    assert isinstance(batch, ShapeBatch)
    return Group("T4", "own", batch, factor * predicted * noise, 0.0)


def test_factor_that_all_rows_share_is_shrunk_and_needs_many_long_rows() -> None:
    (fitted,) = measured_factors([group_times(3.0)], T4, kernel_models(("T4",)), seed=0).values()
    assert fitted.factor == pytest.approx(3.0 ** (fitted.rows / (fitted.rows + 1)))
    assert fitted.half_width == pytest.approx(math.log(3.0) / (fitted.rows + 1))  # the shrunk value
    assert 6 <= fitted.rows < len(ROWS)  # some are held out
    assert measured_factors([group_times(1.0, scatter=0.4)], T4, kernel_models(("T4",)), seed=0) == {}
    few = group_times(3.0).take(np.arange(len(ROWS)) < 5)
    assert measured_factors([few], T4, kernel_models(("T4",)), seed=0) == {}
    group = replace(group_times(1.0), seconds=np.where(np.arange(len(ROWS)) < 9, 2e-6, 1e-3))
    residuals = np.where(np.arange(len(ROWS)) < 9, 2.0, 0.0)  # only the short ones are slower
    assert factor_of(residuals, group).factor == 1.0


def test_train_writes_factors_that_predictions_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "time_call", by_graph)  # 1 ms each
    measure(
        tmp_path / "tables", operations=["sort"], dtypes=["float32"], shapes=20, device="cpu", gpu="T4", is_trial=True
    )
    write_unchanged_steps(tmp_path / "tables", [T4])
    scores = tune_weights(tmp_path / "tables", tmp_path / "weights")
    factor = read_weights(tmp_path / "weights" / "T4.safetensors").factors["sort/float32"]
    before = float(lp.operator_seconds("sort", "T4", rows=4096, cols=512))
    after = float(lp.operator_seconds("sort", "T4", weights=str(tmp_path / "weights"), rows=4096, cols=512))
    assert after == pytest.approx(factor.factor * before, rel=1e-6)
    assert factor.factor != 1.0
    other = float(lp.operator_seconds("sort", "L4", weights=str(tmp_path / "weights"), rows=4096, cols=512))
    assert other == pytest.approx(float(lp.operator_seconds("sort", "L4", rows=4096, cols=512)))
    assert {score.operation for score in scores} <= {"sort"}


def test_a_weights_file_holds_factors_and_one_without_reads_as_before(tmp_path: Path) -> None:
    plain = example_weights("T4")
    write_weights(plain, tmp_path / "plain.safetensors")
    assert read_weights(tmp_path / "plain.safetensors").factors == {}
    assert b"factors" not in (tmp_path / "plain.safetensors").read_bytes()
    factors = {"sort/float32": MeasuredFactor(factor=2.5, half_width=0.3, rows=9)}
    write_weights(replace(plain, factors=factors), tmp_path / "with.safetensors")
    assert read_weights(tmp_path / "with.safetensors").factors == factors
    broken = (tmp_path / "with.safetensors").read_bytes().replace(b"2.5", b"-25")
    with pytest.raises(WeightsFormatError, match="a finite number above 0"):
        parse_weights(broken, "broken")
