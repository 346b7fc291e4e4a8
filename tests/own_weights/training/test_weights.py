from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks.training.families import Training, train_families
from benchmarks.training.recipes import RECIPES
from benchmarks.training.scores import Score
from benchmarks.training.weights import evaluate, train
from lightning_predict.hardware import gpu
from lightning_predict.hardware.records import Gpu
from lightning_predict.own_weights.training.networks import TrainingPlan
from lightning_predict.own_weights.training.tables import Group
from lightning_predict.own_weights.training.tuning import gpus_of
from lightning_predict.weights.source import WeightsSource
from lightning_predict.weights.store import load_weights, read_manifest
from tests.example_gpu import SMALL
from tests.own_weights.training.example import group, measured, products, write_matmul_table

PLAN = TrainingPlan(steps=60, batch_rows=128, hidden=(16,))
QUICK = {
    "matmul_single": replace(
        RECIPES["matmul_single"], start=None, base=PLAN, own=PLAN, fold=PLAN, folds=(("T4",), ("L4",))
    )
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    write_matmul_table(folder / "matmul.csv.gz", [gpu("T4"), gpu("L4")], rows=800)
    return folder


train_alone = partial(train, jobs=1)  # Train in this process, which is fastest for small networks


@pytest.fixture(scope="module")
def trained(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[Score, ...], str]:
    """Weights that were trained on the tables, their scores, and the printed output."""
    folder = tmp_path_factory.mktemp("trained")
    console = Console(width=120, file=(folder / "printed").open("w"))
    scores = train_alone(tables, folder / "weights", recipes=QUICK, console=console)
    console.file.close()
    return folder / "weights", scores, (folder / "printed").read_text()


def test_training_writes_files_that_load_and_score_alike(
    tables: Path, trained: tuple[Path, tuple[Score, ...], str]
) -> None:
    weights, scores, printed = trained
    assert "[1/1] matmul_single: base and 2 GPUs" in printed
    assert "Training" in printed  # the bar
    assert "Collectives" not in printed
    assert [(score.gpu, score.own_weights) for score in scores] == [("L4", True), ("T4", True)]
    assert all("raw network" in score.baselines for score in scores)
    assert evaluate(tables, weights=weights, baselines=True, console=Console(quiet=True)) == scores
    loaded = load_weights(["T4", "L4"], WeightsSource(path=str(weights), offline=True))
    assert set(loaded.gpus) == {"T4", "L4"}
    assert loaded.cross_gpu_model.sources == ("synthetic",)
    manifest = read_manifest(weights)
    assert manifest is not None
    entry = manifest.files["T4.safetensors"]
    assert (entry.gpu, entry.operations, entry.dtypes) == ("T4", ("linear",), ("float32",))
    assert entry.bytes == (weights / "T4.safetensors").stat().st_size
    assert entry.held_out_error["linear/float32"].mean == pytest.approx(scores[1].mean, abs=1e-4)
    card = (weights / "MODEL_CARD.md").read_text()
    assert "- synthetic" in card
    assert "| linear | float32 | T4 | own |" in card
    assert f"| linear | float32 | L4 | {scores[0].rows} |" in card  # as a GPU that a base never saw
    unseen = manifest.files["base.safetensors"].held_out_error
    assert set(unseen) == {"linear/float32/L4", "linear/float32/T4"}
    assert unseen["linear/float32/L4"].rows == scores[0].rows
    assert manifest.files["base.safetensors"].rows == sum(manifest.files[f"{n}.safetensors"].rows for n in ("L4", "T4"))


def test_a_rerun_in_more_processes_gives_the_same_hashes(
    tables: Path, trained: tuple[Path, tuple[Score, ...], str], tmp_path: Path
) -> None:
    train(tables, tmp_path, recipes=QUICK, console=Console(quiet=True), jobs=2)
    for file in ("manifest.json", "MODEL_CARD.md"):
        assert (tmp_path / file).read_text() == (trained[0] / file).read_text()


def test_families_that_are_kin_learn_from_each_other_and_share_a_base(tmp_path: Path) -> None:
    half, single = RECIPES["matmul_half"], RECIPES["matmul_single"]
    recipes = [replace(one, start=None, base=PLAN, own=PLAN, fold=PLAN, folds=(("T4",),)) for one in (half, single)]
    cards = [gpu("T4"), gpu("L4")]
    groups = [timed_products(card, dtype) for card in cards for dtype in ("float32", "bfloat16")]
    trained: list[Training] = []
    results = train_families(recipes, groups, {card.name: card for card in cards}, done=trained.append)
    # A base and one without the T4 for both, and a network of each family and GPU.
    assert [(len(training.families), training.left_out, training.own) for training in trained] == [
        (2, (), None),
        (2, ("T4",), None),
        *((1, (), name) for name in ("L4", "T4", "L4", "T4")),
    ]
    bases = [result.base for result in results.values()]
    np.testing.assert_array_equal(bases[0].layers[0].weight, bases[1].layers[0].weight)
    assert [base.family for base in bases] == ["matmul_half", "matmul_single"]
    assert set(bases[0].interval) == {"linear/bfloat16", "*"}  # of its own operations and dtypes alone
    assert set(results["matmul_single"].own["T4"].trained) == {("linear", "float32")}


def timed_products(card: Gpu, dtype: str) -> Group:
    batch = products(1000, dtype=dtype)
    return Group(card.name, "synthetic", batch, measured(card, batch), 0.0)


def test_a_gpu_that_the_catalogue_does_not_know_by_that_name_is_left_out() -> None:
    known, bare, made_up = group(gpu("T4"), 5), group(SMALL, 5), group(replace(SMALL, name="V100"), 5)
    assert set(gpus_of([known, bare, made_up])) == {"T4"}  # a bare V100 is an alias: its form factor is not known
