from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from lightning_predict.gpus import gpu
from lightning_predict.kernels.blending import PAIR_KINDS, Blend, BlendTable, read_blends
from lightning_predict.training import blends as blending
from lightning_predict.training.blends import PairErrors, PairRows, errors_table, learn, main, pair_errors
from lightning_predict.training.networks import TrainingPlan
from lightning_predict.training.recipes import RECIPES
from lightning_predict.training.weights import train
from tests.training.example import write_matmul_table

PLAN = TrainingPlan(steps=60, batch_rows=128, hidden=(16,))
QUICK = {
    "matmul_single": replace(
        RECIPES["matmul_single"], start=None, base=PLAN, own=PLAN, fold=PLAN, folds=(("T4",), ("L4",))
    )
}


@dataclass(frozen=True)
class Learnt:
    tables: Path
    weights: Path
    table: BlendTable
    errors: tuple[PairErrors, ...]


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Learnt]:
    folder = tmp_path_factory.mktemp("blending")
    (folder / "tables").mkdir()
    write_matmul_table(folder / "tables" / "matmul.csv.gz", [gpu("T4"), gpu("L4")], rows=1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blending, "JOBS", 1)
        train(folder / "tables", folder / "weights", recipes=QUICK, console=Console(quiet=True))
        yield Learnt(
            folder / "tables",
            folder / "weights",
            *learn(folder / "tables", weights=folder / "weights", recipes=QUICK),
        )


def test_errors_are_those_of_each_way_to_predict() -> None:
    # On the target 20 % too slow, on the origin 10 %; half of that taken back; wave scaling at half of the time.
    pair = PairRows(*(np.full(4, math.log(factor)) for factor in (1.1, 1.2, 0.5)))
    errors = pair_errors("vector", "known to known", Blend(weight=0.5, half_width=0.1), [pair])
    assert errors.direct_error == pytest.approx(0.2)
    assert errors.ratio_error == pytest.approx(1.2 / 1.1 - 1)
    assert errors.blend_error == pytest.approx(1.2 / math.sqrt(1.1) - 1)
    assert errors.wave_error == pytest.approx(0.5)
    assert (errors.pairs, errors.rows) == (1, 4)
    assert errors.coverage == 0  # log(1.2) - log(1.1) / 2 = 0.135

    by_wave = pair_errors("vector", "known to known", Blend(weight=0.5, half_width=0.8, by_wave=True), [pair])
    assert by_wave.blend_error == by_wave.wave_error
    assert by_wave.coverage == 1  # |log(0.5)| = 0.69


def test_pairs_count_the_same_whatever_their_rows() -> None:
    good, bad = (PairRows(np.zeros(n), np.full(n, error), np.zeros(n)) for n, error in ((1000, 0.0), (10, 1.0)))
    errors = pair_errors("vector", "known to known", Blend(weight=0.0, half_width=0.5), [good, bad])
    assert errors.direct_error == pytest.approx((math.e - 1) / 2)
    assert errors.coverage == pytest.approx(0.5)


def test_learning_covers_every_kind_of_pair_and_can_be_read_back(learnt: Learnt, tmp_path: Path) -> None:
    table, errors = learnt.table, learnt.errors
    assert set(table.families["matmul_single"]) == set(PAIR_KINDS.values())
    assert [error.kind for error in errors] == list(PAIR_KINDS.values())
    known = errors[0]
    assert 0 < known.rows <= 2 * 1000
    assert 0.8 < known.coverage <= 1
    assert known.blend_error <= max(known.ratio_error, known.direct_error)
    assert table.split == {"seed": 0, "held_out_share": 0.15, "calibration_share": 0.08}
    (tmp_path / "blend.json").write_text(table.to_json())
    assert read_blends(tmp_path / "blend.json") == table


def test_learning_again_gives_the_same(learnt: Learnt) -> None:
    again, _ = learn(learnt.tables, weights=learnt.weights, recipes=QUICK)
    assert again.families == learnt.table.families


def test_the_command_writes_the_file_and_prints_the_errors(
    learnt: Learnt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(blending, "learn", lambda *arguments, **options: (learnt.table, learnt.errors))
    output = tmp_path / "out.json"
    assert main([str(learnt.tables), "--output", str(output)]) == 0
    assert read_blends(output) == learnt.table
    printed = capsys.readouterr().out
    assert "from one GPU's measurement to another's" in printed
    assert "unseen to known" in printed
    assert errors_table(learnt.errors).row_count == 4


def test_missing_tables_are_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--output", str(tmp_path / "out.json")]) == 1
    assert capsys.readouterr().err.startswith("error: No measurement table in")
    assert not (tmp_path / "out.json").exists()
