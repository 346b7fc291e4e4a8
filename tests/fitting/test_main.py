from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lightning_predict.fitting import __main__ as command
from lightning_predict.fitting.__main__ import evaluate, gpus_of, main, train
from lightning_predict.fitting.recipes import RECIPES
from lightning_predict.fitting.training import TrainingPlan
from lightning_predict.gpus import gpu
from lightning_predict.weights.store import load_weights, read_manifest
from tests.example_gpu import SMALL
from tests.fitting.example import group, write_matmul_table

PLAN = TrainingPlan(steps=60, batch_rows=128, hidden=(16,))
QUICK = {"matmul_single": replace(RECIPES["matmul_single"], base=PLAN, own=PLAN, fold=PLAN, folds=(("T4",), ("L4",)))}


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    folder = tmp_path / "tables"
    folder.mkdir()
    write_matmul_table(folder / "matmul.csv.gz", [gpu("T4"), gpu("L4")], rows=800)
    return folder


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "JOBS", 1)


def test_training_writes_files_that_load_and_score_alike(tables: Path, tmp_path: Path) -> None:
    console = Console(width=120, file=(tmp_path / "printed").open("w"))
    scores = train(tables, tmp_path / "weights", recipes=QUICK, console=console)
    console.file.close()
    assert "[1/1] matmul_single: base and 2 GPUs in" in (tmp_path / "printed").read_text()
    assert [(score.gpu, score.own_weights) for score in scores] == [("L4", True), ("T4", True)]
    assert evaluate(tables, weights=tmp_path / "weights") == scores
    loaded = load_weights(["T4", "L4"], path=tmp_path / "weights", offline=True)
    assert set(loaded.gpus) == {"T4", "L4"}
    assert loaded.base.sources == ("synthetic",)
    manifest = read_manifest(tmp_path / "weights")
    assert manifest is not None
    entry = manifest.files["T4.safetensors"]
    assert (entry.gpu, entry.operations, entry.dtypes) == ("T4", ("linear",), ("float32",))
    assert entry.bytes == (tmp_path / "weights" / "T4.safetensors").stat().st_size
    assert entry.held_out_error["linear/float32"].mean == pytest.approx(scores[1].mean, abs=1e-4)
    card = (tmp_path / "weights" / "MODEL_CARD.md").read_text()
    assert "- synthetic" in card
    assert "| linear | float32 | T4 | own |" in card
    assert f"| linear | float32 | L4 | {scores[0].rows} |" in card  # as a GPU that a base never saw


def test_a_rerun_gives_the_same_hashes(tables: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        train(tables, tmp_path / name, recipes=QUICK, console=Console(quiet=True))
    assert (tmp_path / "one" / "manifest.json").read_text() == (tmp_path / "two" / "manifest.json").read_text()


def test_a_gpu_that_the_catalogue_does_not_know_by_that_name_is_left_out() -> None:
    known, bare, made_up = group(gpu("T4"), 5), group(SMALL, 5), group(replace(SMALL, name="V100"), 5)
    assert set(gpus_of([known, bare, made_up])) == {"T4"}  # a bare V100 is an alias: its form factor is not known


def test_a_missing_folder_is_one_clear_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([str(tmp_path / "nowhere"), "--output", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("error: No measurement table in")
    assert "sitar-lab/NeuSight" in printed
    assert not (tmp_path / "out").exists()


def test_evaluate_prints_the_table(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tables, tmp_path / "weights", recipes=QUICK, console=Console(quiet=True))
    assert main(["--evaluate", str(tables), "--weights", str(tmp_path / "weights")]) == 0
    printed = capsys.readouterr().out
    assert "Errors on held-out problems" in printed
    assert "T4" in printed
