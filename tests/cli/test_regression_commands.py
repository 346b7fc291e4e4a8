"""`regress` on tables whose times are made from known coefficients."""

import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from lightning_predict.record.trace import Operation, TensorInfo
from lightning_predict.run.history import append_record
from tests.cli.conftest import Run
from tests.regression.test_layers import FITTED, matrix_product, step
from tests.run.test_history import RECORD


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """For each iteration 20 ms, 1 ms a sample on a T4, and 20 ms x (1 - 1 / GPUs)."""
    lines = ["model,gpu,num_gpus,batch_size,iterations,seconds"]
    for size, gpus in product((8, 16, 32, 64), (1, 2, 4)):
        lines.append(f"net,T4,{gpus},{size},100,{100 * (0.02 + 0.001 * size + 0.02 * (1 - 1 / gpus))}")
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_table_of_predictions_is_printed_and_in_json(table: Path, run: Run, golden: Callable[[str, str], None]) -> None:
    # No time lies on the edge between two rounded ones: 9, 9.8, 28.6 and 29.4 s.
    ran = run("regress", table, "--batch-sizes", "60,256", "--num-gpus", "2,10")
    assert (ran.code, ran.err) == (0, "")
    golden("regress.txt", ran.out.rstrip())
    answer = run("regress", table, "--batch-sizes", "256", "--num-gpus", "8", "--iterations", "100", "--json").json
    (prediction,) = answer["predictions"]
    # 0.02 + 0.001 x 256 + 0.02 x 7/8 seconds an iteration.
    assert prediction["seconds"] == pytest.approx(100 * 0.2935)
    assert prediction["setting"]["gpu"] == "T4"
    assert prediction["notes"] == [
        "batch size 256 is 4 times the largest of the past runs (64)",
        "number of GPUs 8 is 2 times the largest of the past runs (4)",
    ]
    assert answer["coefficients"] == {"batch_size": pytest.approx(0.001), "1 / num_gpus": pytest.approx(-0.02)}
    assert (answer["runs"], answer["model"]) == (12, "net")
    assert answer["left_out_error"] == pytest.approx(0, abs=1e-9)


def test_regressions_without_settings_from_history_or_without_scipy(
    table: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run("regress", table)
    assert ran.out.startswith("12 past runs of net: seconds per iteration = 0.04 ")
    assert "interval" not in ran.out
    assert run("regress", table, "--json").json["predictions"] == []
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.delitem(sys.modules, "lightning_predict.regression.stepwise", raising=False)
    assert "pip install lightning-predict[fitting]" in run("regress", table).err


def test_columns_values_and_other_gpus(table: Path, run: Run) -> None:
    table.write_text(table.read_text().replace("batch_size", "params.bs").replace("gpu,", "card,", 1))
    words = ["--columns", "batch_size=params.bs", "--values", "gpu=T4", "--batch-sizes", "8", "--num-gpus", "1"]
    (prediction,) = run("regress", table, *words, "--gflops", "8141", "--json").json["predictions"]
    assert prediction["seconds"] == pytest.approx(2.8)
    assert prediction["setting"]["gpu"] is None
    assert "8.14e+12 FLOP/s" in run("regress", table, *words, "--gflops", "8141").out


def test_layout_name_gives_number_of_gpus(table: Path, run: Run) -> None:
    predictions = run("regress", table, "--batch-sizes", "8", "--gpus", "4xT4,2xT4", "--json").json["predictions"]
    assert [(one["setting"]["gpu"], one["setting"]["num_gpus"]) for one in predictions] == [("T4", 4), ("T4", 2)]
    table.write_text(table.read_text().replace("T4,2,", "2xT4,,"))  # in the table, too
    again = run("regress", table, "--batch-sizes", "8", "--gpus", "4xT4,2xT4", "--json").json["predictions"]
    assert [one["seconds"] for one in again] == pytest.approx([prediction["seconds"] for prediction in predictions])


def test_history_is_read_and_a_time_that_falls_to_0_is_a_dash(run: Run, tmp_path: Path) -> None:
    for samples in (8, 16, 32):
        append_record(replace(RECORD, model="m", samples=samples, step_seconds=0.1 + 0.01 * samples))
    answer = run("regress", "history", "--batch-sizes", "64", "--iterations", "1000", "--json").json
    assert answer["predictions"][0]["seconds"] == pytest.approx(740)
    path = tmp_path / "runs.csv"
    rows = "".join(f"T4,{n},8,1,{10 - 15 / n}\n" for n in range(2, 9))  # at one GPU, 10 - 15 < 0
    path.write_text(f"gpu,num_gpus,batch_size,iterations,seconds\n{rows}")
    ran = run("regress", path, "--num-gpus", "3,1")
    assert "A dash: the regression falls to 0 or below, so far from the past runs." in ran.out
    assert next(line for line in ran.out.splitlines() if line.startswith("2 ")).split()[-2:] == ["-", "-"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--batch-sizes", "many"], "--batch-sizes has 'many'; expected numbers, separated by commas."),
        (["--columns", "batch_size"], "--columns has 'batch_size'; expected pairs like batch_size=params.bs."),
        (["--batch-sizes", "8"], "The past runs have 3 values of --num-gpus; say with --num-gpus which to"),
        (
            ["--num-gpus", "1"],
            "The past runs have 4 values of batch_size; say with --batch-sizes which to predict for.",
        ),
        (["--gpus", "T4", "--gflops", "1"], "Give one of --gpus and --gflops."),
        (["--gpus", "2xT4", "--num-gpus", "1"], "--gpus says how many GPUs already; leave --num-gpus out, or the numb"),
        (["--gpus", "T44", "--num-gpus", "1", "--batch-sizes", "1"], "'T44' is not a GPU of the catalogue."),
        (["--num-gpus", "0", "--batch-sizes", "1"], "--num-gpus 0; expected a whole number of at least 1."),
        (["--model", "nest"], "0 past runs of 'nest' (there are runs of net); a regression needs at least 3."),
    ],
)
def test_regress_rejects_invalid_options(words: list[str], problem: str, table: Path, run: Run) -> None:
    ran = run("regress", table, *words)
    assert ran.code == 2
    assert ran.err.startswith(f"lightning-predict: error: {problem}")


def test_the_command_predicts_a_network_from_recorded_layers(tmp_path: Path, run: Run) -> None:
    FITTED.save(str(tmp_path / "one.json"))
    step(matrix_product(300), matrix_product(600)).save(str(tmp_path / "two.json"))
    step(
        matrix_product(768), Operation(name="aten::sigmoid", phase="forward", inputs=(TensorInfo((9,), "float32"),))
    ).save(str(tmp_path / "net.json"))
    ran = run("regress", tmp_path / "net.json", "--layers", f"{tmp_path / 'one.json'},{tmp_path / 'two.json'}")
    assert (ran.code, ran.err) == (0, "")
    assert "linear (float32, forward)" in ran.out
    assert "on T4; " in ran.out
    assert "were recorded." in ran.out
    assert "Left out, as no recording has it: vectorized (forward), 1 calls." in ran.out
    answer = run("regress", tmp_path / "net.json", "--layers", tmp_path / "one.json", "--json").json
    assert answer["prediction"]["seconds"] == pytest.approx(1e-6 + 1e-12 * 2 * 768**3, rel=1e-6)
    step(matrix_product(256), gpu="NVIDIA L4").save(str(tmp_path / "l4.json"))
    ran = run("regress", tmp_path / "net.json", "--layers", f"{tmp_path / 'one.json'},{tmp_path / 'l4.json'}")
    assert ran.code != 0
    assert "recordings of several GPUs (L4, T4)" in ran.err


def test_a_network_without_known_layers_is_refused(tmp_path: Path, run: Run) -> None:
    FITTED.save(str(tmp_path / "one.json"))
    sigmoid = Operation(name="aten::sigmoid", phase="forward", inputs=(TensorInfo((9,), "float32"),))
    step(sigmoid).save(str(tmp_path / "other.json"))
    ran = run("regress", tmp_path / "other.json", "--layers", tmp_path / "one.json")
    assert ran.code == 2
    assert "has no layer whose kind the recordings of --layers hold: it has vectorized (forward)." in ran.err
    step(Operation(name="aten::mm", phase="forward")).save(str(tmp_path / "shapeless.json"))
    ran = run("regress", tmp_path / "shapeless.json", "--layers", tmp_path / "one.json")
    assert ran.code == 2
    assert "its operations have no shapes." in ran.err
