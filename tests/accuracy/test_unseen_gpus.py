from __future__ import annotations

import math
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.step_calibration import StepCase
from benchmarks.accuracy.unseen_gpus import (
    CHIPS,
    UnseenResult,
    anchored,
    boards_of,
    evaluate_unseen,
    models_without,
    spread_apart,
    unknown_half_width,
    unseen_table,
)
from benchmarks.training.recipes import RECIPES
from benchmarks.training.tables import read_tables
from lightning_predict.base.interval import Interval
from lightning_predict.hardware import gpu
from lightning_predict.kernels.operations import ShapeBatch, problem
from lightning_predict.kernels.timing import predict_operation_times
from lightning_predict.own_weights.training.networks import TrainingPlan
from lightning_predict.uncertainty import StepSpread
from tests.accuracy.test_report import TRANSFORMERS
from tests.own_weights.training.example import write_matmul_table

PLAN = TrainingPlan(steps=60, batch_rows=128, hidden=(16,))
QUICK = {"matmul_single": replace(RECIPES["matmul_single"], kin=(), start=None, base=PLAN, own=PLAN, fold=PLAN)}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    write_matmul_table(folder / "matmul.csv.gz", [gpu("V100-PCIe-32GB"), gpu("L4")], rows=400)
    return folder


def test_all_boards_of_a_chip_are_left_out_with_it() -> None:
    assert {"V100-PCIe-32GB", "V100-SXM2-16GB", "V100-SXM2-32GB"} < set(boards_of("V100"))
    assert boards_of("T4") == ("T4",)
    assert all(map(boards_of, CHIPS))


def test_a_chip_that_is_left_out_has_no_weights_and_taught_nothing(tables: Path) -> None:
    groups = read_tables(tables)
    both, without = (models_without(boards, groups, QUICK) for boards in ((), boards_of("V100")))
    product = problem("linear", "float32", m=512, n=512, k=512)
    seconds = [
        predict_operation_times([product], [gpu("V100-PCIe-32GB")], models).seconds[0, 0] for models in (both, without)
    ]
    assert both.has_own_weights("V100-PCIe-32GB", "linear", "float32")
    assert not without.has_own_weights("V100-PCIe-32GB", "linear", "float32")
    assert without.has_own_weights("L4", "linear", "float32")
    assert seconds[0] != seconds[1]
    # The base saw both GPUs or one: it is another network.
    stranger = gpu("RTX-2080-Ti")
    times = [predict_operation_times([product], [stranger], models).seconds[0, 0] for models in (both, without)]
    assert np.isfinite(times).all()
    assert times[0] != times[1]


def test_steps_of_a_chip_are_predicted_with_it_and_without(tables: Path, tmp_path: Path) -> None:
    (tmp_path / "transformers_fp32.csv").write_text(TRANSFORMERS, encoding="utf-8")
    found = evaluate_unseen(tmp_path, tables, cache=tmp_path / "steps", recipes=QUICK, jobs=1)
    assert {one.chip for one in found} == {"V100"}  # of the A100 and all others the tables have no measurement
    for one in found:
        assert one.seen.gpu == "V100-PCIe-32GB"
        assert one.seen.measured_seconds == one.unseen.measured_seconds
        assert one.seen.predicted.middle != one.unseen.predicted.middle
    assert evaluate_unseen(tmp_path, tables, cache=tmp_path / "steps", chips=("A100",), recipes=QUICK, jobs=1) == ()


def test_anchors_are_read_off_large_products(tables: Path) -> None:
    groups = read_tables(tables)
    own, models = gpu("V100-PCIe-32GB"), models_without((), groups, QUICK)
    assert anchored(gpu("T4"), groups, models) is None  # nothing was measured on it
    (products,) = [one for one in groups if one.gpu == own.name and one.batch.operation == "linear"]
    sides = {word: np.full(len(products.seconds), 8192.0) for word in ("m", "n", "k")}
    large = ShapeBatch("linear", "float32", {**products.batch.columns, **sides})
    # All of one rate, which is the anchor then; nothing streams in these tables, and memory stays as it is.
    found = anchored(own, [replace(products, batch=large, seconds=large.flops / 9e12)], models)
    assert found is not None
    assert found.name == own.name
    assert found.measured_flops_per_second["float32"] == pytest.approx(9e12)
    assert found.dram_bytes_per_second == own.dram_bytes_per_second


def test_the_table_gives_errors_with_and_without() -> None:
    def case(predicted: float) -> StepCase:
        interval = Interval(predicted / 1.5, predicted, predicted * 1.5)
        return StepCase(
            table="made up", source="", gpu="T4", model="", measured_seconds=1.0, predicted=interval, shares={}
        )

    text = StringIO()
    rows = [UnseenResult("T4", case(1.1), case(0.5), case(0.9)), UnseenResult("L40S", case(1.3), case(0.8), case(1.2))]
    Console(file=text, width=300).print(unseen_table(rows))
    lines = [line.split()[2:] for line in text.getvalue().splitlines() if "made up" in line]
    # 1.5 up and down hold 10 and 30 % too slow and 20 % too fast (1 / 0.8 = 1.25), and not half the time.
    assert lines == [
        ["T4", "1", "10.0", "+10.0", "100", "2.25", "50.0", "-50.0", "0", "2.25", "10.0", "-10.0", "100", "2.25"],
        ["L40S", "1", "30.0", "+30.0", "100", "2.25", "20.0", "-20.0", "100", "2.25", "20.0", "+20.0", "100", "2.25"],
        ["all", "2", "20.0", "+20.0", "100", "2.25", "35.0", "-35.0", "50", "2.25", "15.0", "+5.0", "100", "2.25"],
    ]


def test_each_chip_is_widened_by_what_the_others_say() -> None:
    def result(board: str, log_ratio: float, *, is_model: bool = True) -> UnseenResult:
        case = StepCase(
            table="made up",
            source="",
            gpu=board,
            model="",
            measured_seconds=math.exp(log_ratio),
            predicted=Interval(1.0, 1.0, 1.0),
            shares={},
            is_model=is_model,
        )
        return UnseenResult(board.partition("-")[0], case, case, case)

    # Two rows of one board count as their mean, 0.1; modules say more of themselves than of the chip.
    rows = [result("T4", 0.05), result("T4", 0.15), result("T4", 3.0, is_model=False), result("V100-PCIe-32GB", -0.2)]
    spread = StepSpread(operations_factor=1.0, new_source=0.1)
    by_v100, by_t4 = (math.sqrt((1.645 * deviation) ** 2 - 0.1**2) for deviation in (0.2, 0.1))
    assert unknown_half_width([one.unseen for one in rows[3:]], spread) == pytest.approx(by_v100)
    found = spread_apart(rows, spread)
    assert [math.log(one.seen.predicted.high) for one in found] == pytest.approx([0.1] * 4)
    expected = [math.hypot(0.1, besides) for besides in (by_v100, by_v100, by_v100, by_t4)]
    for cases in ([one.unseen for one in found], [one.anchored for one in found]):
        assert [math.log(case.predicted.high) for case in cases] == pytest.approx(expected)
    # Of one chip alone nothing else tells: what ships stands.
    (alone,) = spread_apart(rows[3:], replace(spread, new_chip=0.24))
    assert math.log(alone.unseen.predicted.high) == pytest.approx(math.hypot(0.1, 0.24))
    # What all steps have in common may explain all of it.
    assert unknown_half_width([one.unseen for one in rows[3:]], replace(spread, new_source=0.5)) == 0


def test_the_report_says_which_tables_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--of", "unseen"]) == 1
    assert "name the measurement tables with --tables" in capsys.readouterr().err
