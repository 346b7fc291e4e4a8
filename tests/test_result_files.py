"""Results of benchmark commands, written and read back."""

from pathlib import Path

import pytest
from rich.table import Table

from benchmarks.accuracy.case import Case, Step
from benchmarks.accuracy.score import Scored
from benchmarks.published import published_cases
from benchmarks.result_files import (
    Figure,
    Result,
    ResultConsole,
    ResultTable,
    distinct,
    read_result,
    table_of,
    write_result,
    write_run,
)
from benchmarks.runs import RUNS, Run, main
from benchmarks.training.report import report_table
from lightning_predict.reports.published_cases import StepDescription

ROOT = Path(__file__).parent.parent
STEP = StepDescription(kind="language model", precision="16 bits")


def errors_table() -> Table:
    table = report_table("Errors of\nsteps", ("GPU", "model"), ("n", "median %", "measured ms"))
    table.add_row("T4", "[bold]BERT[/bold]", "12", "3.4", "7")
    table.add_row("all", "", "1,012", "5.6", "8")
    return table


def scored(*, measured: float, gpu: str = "T4", model: str = "BERT") -> Scored:
    """A step predicted to take a second, between half a second and two."""
    step = Step(name="bert", record=lambda: pytest.fail("nothing is recorded"))
    case = Case(source="a page", model=model, gpu=gpu, step=step, measured=measured)
    return Scored(case=case, predicted=(0.5, 1.0, 2.0), description=STEP)


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    console = ResultConsole(width=100)
    console.print(errors_table())
    console.print("left out: 3 rows")
    result = console.result(RUNS["lin"], published=published_cases([scored(measured=0.8)], RUNS["lin"]))
    assert write_result(result, tmp_path) == tmp_path / "lin.json"
    assert read_result("lin", tmp_path) == result
    assert result.command == "python -m benchmarks.accuracy lin --data DATA"
    assert (result.cases, result.split) == (1, "fitted")
    assert result.sentences == ("left out: 3 rows",)


def test_file_contains_the_printed_tables(capsys: pytest.CaptureFixture[str]) -> None:
    console = ResultConsole(width=100)
    console.print(errors_table())
    printed = capsys.readouterr().out
    (table,) = console.result(RUNS["lin"]).tables
    assert table.title == "Errors of steps"
    assert table.rows == (("T4", "BERT", "12", "3.4", "7"), ("all", "", "1,012", "5.6", "8"))
    assert all(cell in printed for cells in table.rows for cell in cells)
    assert console.result(RUNS["lin"]).cases == 1012  # of the column n


def test_single_figures_are_printed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console = ResultConsole(width=100)
    console.print_figures("Speed", [Figure(name="one call", value="0.30", unit="s")])
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("Speed", "one call", "0.30", "s"))
    write_run(console, "speed-prediction", None)
    write_run(console, "speed-prediction", tmp_path)
    (path,) = tmp_path.iterdir()
    result = read_result(path.stem, tmp_path)
    assert result.figure("one call") == Figure(name="one call", value="0.30", unit="s")
    assert result.cases == 1


def test_measured_values_that_may_not_be_copied_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    console = ResultConsole(width=100, keeps_measurements=False)
    console.print(errors_table())
    (table,) = console.result(RUNS["sia"]).tables
    assert table.columns == ("GPU", "model", "n", "median %")
    assert table.rows[1] == ("all", "", "1,012", "5.6")
    assert "1,012" in capsys.readouterr().out
    (case,) = published_cases([scored(measured=0.8)], RUNS["sia"])
    assert (case.measured_ms, case.predicted_ms, case.error) == (None, None, 0.25)


def test_a_figure_is_found_by_table_row_and_column() -> None:
    result = Result(
        name="lin",
        command="python",
        date="2026-11-27",
        commit="unknown",
        split="fitted",
        figures=(Figure(name="worst", value="9", unit="%"),),
        tables=(table_of(errors_table()), ResultTable(title="Others", columns=("GPU",), names=1, rows=(("T4",),))),
    )
    assert result.figure("Errors / T4, BERT / median %") == Figure(
        name="Errors / T4, BERT / median %", value="3.4", unit="%"
    )
    assert result.figure("worst").value == "9"
    for name, words in (("best", "no figure"), ("s / all / n", "2 tables"), ("Errors / L4 / n", "0 rows")):
        with pytest.raises(KeyError, match=words):
            result.figure(name)


def test_steps_of_one_model_and_gpu_are_one_published_case() -> None:
    steps = [scored(measured=0.8), scored(measured=1.0), scored(measured=4.0), scored(measured=1.0, gpu="8xL4")]
    first, second = published_cases(steps, RUNS["lin"])
    # Errors of 25, 0 and -75 %; four seconds are outside the interval.
    assert (first.gpu, first.steps, first.inside, first.error, first.absolute_error) == ("T4", 3, 2, 0.0, 0.25)
    assert (first.measured_ms, first.predicted_ms, first.source) == (1000, 1000, "Lin et al. (2022)")
    assert (second.gpu, second.steps, second.generation) == ("8xL4", 1, "ada")


def test_runs_without_data_are_skipped_and_repeated_headings_numbered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--data", str(tmp_path), "--results", str(tmp_path), "--only", "lin"]) == 0
    assert "lin: skipped" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--data", str(tmp_path), "--only", "line"])
    assert "no run is named line" in capsys.readouterr().err
    headings = ["n", "mean %", "median %", "roofline mean %", "median %"]
    assert distinct(headings) == ("n", "mean %", "median %", "roofline mean %", "roofline median %")


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_every_run_names_a_module_that_is_there(run: Run) -> None:
    path = ROOT / Path(*run.module.split("."))
    assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
    words = run.arguments(Path("data"), Path("results"))
    assert words[:2] == ("-m", run.module)
    assert words[-2:] == ("--result", "results")
    assert run.command == f"python -m {run.module} {' '.join(run.words)}".rstrip()
    assert run.split == "held out" or run.fitted
