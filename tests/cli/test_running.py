"""Parsing, help, errors in one line, and a start that loads nothing heavy."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import lightning_predict
from lightning_predict.base.answers import CommandAnswer, aligned, json_value
from lightning_predict.base.checked import read_toml
from lightning_predict.base.errors import CatalogueError, LightningPredictError
from lightning_predict.cli import main
from lightning_predict.cli.parsing import COMMANDS, parsed
from lightning_predict.hardware import gpu
from tests.cli.conftest import Run, python
from tests.processes import ROOT


def test_the_help_of_the_program(run: Run, golden: Callable[[str, str], None]) -> None:
    ran = run("--help")
    assert ran.code == 0
    golden("help.txt", ran.out.rstrip())
    assert run().out == ran.out  # without a word, too


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_each_command(name: str, run: Run, golden: Callable[[str, str], None]) -> None:
    ran = run(name, "--help")
    assert ran.code == 0
    golden(f"help_{name}.txt", ran.out.rstrip())


def test_a_short_help_shows_the_most_used_options(run: Run) -> None:
    few, all_options = (re.findall(r"(?m)^  (--[\w-]+)", run("predict", word).out) for word in ("-h", "--help"))
    assert len(few) == 18
    assert set(few) < set(all_options)
    others = len(set(all_options) - {*few, "--help"})
    assert run("predict", "-h").out.rstrip().endswith(f"predict --help shows {others} more options.")
    assert "h" not in parsed("predict", ["run.json"])
    assert run("gpus", "-h").out == run("gpus", "--help").out  # all of a command with few


@pytest.mark.parametrize("name", COMMANDS)
def test_no_sentence_of_the_help_is_longer_than_25_words(name: str, run: Run) -> None:
    described = re.split(r"(?m)^  (?=\S)|\n\n", run(name, "--help").out)[1:]  # without the usage
    sentences = [one for text in described for one in re.split(r"(?<=[.:;])\s+|\n\n", text)]
    assert not [one for one in sentences if len(one.split()) > 25]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented_and_printed_with_hyphens(name: str, run: Run) -> None:
    text = run(name, "--help").out
    options = re.findall(r"(?m)^  (--[\w-]+)", text)
    assert "--json" in options
    assert not any("_" in option for option in options)
    described = re.split(r"(?m)^  (?=--)", text)[1:]
    assert all(re.search(r"[A-Z][\w ,;]+", part.partition(" ")[2]) for part in described)


def test_the_version(run: Run) -> None:
    assert run("--version").out.strip() == f"lightning-predict {lightning_predict.__version__}"


def test_the_program_is_installed_under_its_name() -> None:
    project = read_toml(Path(__file__).parents[2] / "pyproject.toml", CatalogueError).value
    assert project["project"]["scripts"] == {"lightning-predict": "lightning_predict.cli:main"}


@pytest.mark.parametrize("module", ["lightning_predict", "lightning_predict.cli"])
def test_it_runs_as_a_module(module: str) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-m", module, "gpus", "T4"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("T4\n")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["gpsu"], "'gpsu' is not a command of lightning-predict. Did you mean 'gpus'?"),
        (["xyz"], "'xyz' is not a command of lightning-predict. Commands: predict, run, advise, trace, "),
        (["predict"], "Give one of a recorded step (predict run.json) and --model."),
        (["regress"], "the following arguments are required: runs. See lightning-predict regress --help."),
        (["predict", "x", "--iteratons", "3"], "--iteratons is not an option of predict. Did you mean --iterations?"),
        (["predict", "x", "--zzz"], "--zzz is not an option of predict. See lightning-predict predict --help."),
        (["predict", "x", "--iterations", "many"], "--iterations is 'many', but expected a whole number, for example"),
        (["predict", "x", "--deadline-hours", "soon"], "--deadline-hours is 'soon', but expected a number."),
        (["predict", "x", "--method", "magic"], "--method is 'magic', but expected one of auto, mlp, wave."),
        (["cache", "clean"], "The word after cache is 'clean', but expected one of show, clear."),
        (
            ["trace", "--gpu", "L4", "top", "x"],
            "The word after trace is 'top', but expected one of check, anonymise, import, view, explain, layers,",
        ),
        (["predict", "x", "--iterations=2.5"], "--iterations is '2.5', but expected a whole number, for example"),
        (["predict", "x", "--iterations"], "--iterations: expected one argument. See lightning-predict predict --help"),
        (["--nothing"], "'--nothing' stands before a command. Commands: predict, run, advise, trace, "),
        (["predict", "no-such-trace.json"], "No such file or directory: no-such-trace.json"),
        (["gpus", "H1000"], "'H1000' is not a GPU of the catalogue. The nearest names are H100-SXM-80GB"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(words: list[str], problem: str, run: Run) -> None:
    ran = run(*words)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith(f"lightning-predict: error: {problem}")
    assert ran.err.count("\n") == 1


def test_an_error_within_a_command_has_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(**_: object) -> CommandAnswer:
        raise LightningPredictError("two\n  lines")

    assert main(["gpus"], {"gpus": refuse}) == 2
    assert capsys.readouterr().err == "lightning-predict: error: two lines\n"


def test_an_interruption_ends_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(**_: object) -> CommandAnswer:
        raise KeyboardInterrupt

    assert main(["gpus"], {"gpus": interrupted}) == 2
    assert capsys.readouterr().err == "lightning-predict: error: interrupted\n"


def test_a_reader_that_stops_reading_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "lightning_predict.cli", "gpus", "--json"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_options_are_taken_with_hyphens_or_underscores_and_flags_without_a_value() -> None:
    found = parsed("predict", ["a-b.json", "--usd_per_hour", "1", "--spot", "--gpus=T4"])
    assert (found["trace"], found["usd_per_hour"], found["spot"], found["gpus"]) == (Path("a-b.json"), 1.0, True, "T4")
    assert (found["offline"], found["iterations"]) == (False, None)
    assert parsed("cache", ["clear"])["action"] == "clear"
    assert parsed("gpus", [])["search"] is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1000", 1000),
        ("1e6", 10**6),
        ("1,000", 1000),
        ("1,234,567", 1_234_567),
        ("2_000", 2000),
        ("100k", 100_000),
        ("2M", 2 * 10**6),
        ("1.5k", 1500),
    ],
)
def test_whole_numbers_as_people_write_them(text: str, number: int) -> None:
    assert parsed("predict", ["x", "--iterations", text])["iterations"] == number


@pytest.mark.parametrize(
    ("option", "text", "readings"),
    [
        ("--storage-usd", "2,50", "2.50 or 250"),
        ("--usd-per-hour", "0,5", "0.5 or 5"),
        ("--iterations", "1,5", "1.5 or 15"),
        ("--iterations", "1000,000", "1000.000 or 1000000"),
    ],
)
def test_a_comma_that_may_be_a_point_is_refused_with_both_readings(
    option: str, text: str, readings: str, run: Run
) -> None:
    error = run("predict", "x", option, text).err
    assert f"{option} is '{text}', which may be {readings}. Write it with a point, or without the comma." in error


def test_problems_are_told_in_the_words_of_the_command_line(run: Run, trace: Path) -> None:
    ran = run("predict", trace, "--iterations", "10", "--deadline-hours", "-1")
    assert ran.err.startswith("lightning-predict: error: --deadline-hours -1.0 is not a deadline")
    ran = run("predict", trace, "--usd-per-hour", "-2")
    assert ran.err.startswith("lightning-predict: error: --usd-per-hour -2.0 is not a price")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands_options_and_gpus(shell: str, run: Run) -> None:
    text = run("completion", shell).out
    for word in (*COMMANDS, "deadline-hours", "H100-SXM-80GB"):
        assert word in text


def test_bash_completes(run: Run) -> None:
    script = run("completion", "bash").out
    words = "COMP_WORDS=(lightning-predict predict run.json --dead) COMP_CWORD=3; _lightning_predict"
    done = subprocess.run(
        ["bash", "-c", f'{script}\n{words}; echo "${{COMPREPLY[@]}}"'], capture_output=True, text=True, check=True
    )
    assert done.stdout == "--deadline-hours\n"


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    heavy = ("torch", "numpy", "lightning", "jsonargparse", "rich", "yaml", "matplotlib")
    loaded = python(f"import sys, lightning_predict.cli; print(*[name for name in {heavy} if name in sys.modules])")
    assert loaded.split() == []


@pytest.mark.parametrize("words", [["--help"], ["gpus"], ["gpus", "T4"], ["predict", "--help"], ["completion", "bash"]])
def test_what_needs_no_prediction_loads_nothing_that_predicts(words: list[str]) -> None:
    heavy = ("torch", "numpy", "lightning", "rich", "yaml", "matplotlib", "requests", "safetensors")
    ours = ("kernels", "timeline", "record", "layouts", "reports", "prediction", "weights")
    names = (*heavy, *(f"lightning_predict.{name}" for name in ours))
    code = f"from lightning_predict.cli import main; main({words!r}); import sys; print('\\n', *sys.modules)"
    loaded = set(python(code).splitlines()[-1].split())
    assert "lightning_predict.cli.parsing" in loaded
    assert [name for name in names if name in loaded] == []


def test_aligned_columns() -> None:
    assert aligned(["a", "bb"], [["ccc", "1"]], right={1}) == "a    bb\n---  --\nccc   1"


def test_garbage_is_collected_rarely_except_in_a_script_that_runs() -> None:
    seen = dict[str, tuple[int, int, int]]()

    def command(name: str) -> Callable[[], CommandAnswer]:
        def noted(**_: object) -> CommandAnswer:
            seen[name] = gc.get_threshold()
            return CommandAnswer(data=dict, show=lambda: None)

        return noted

    before = gc.get_threshold()
    commands = {name: command(name) for name in ("gpus", "run")}
    assert main(["gpus"], commands) == main(["run", "train.py"], commands) == 0
    assert seen["gpus"][0] > before[0]
    assert seen["run"] == gc.get_threshold() == before


def test_records_as_json_values() -> None:
    row = json_value(gpu("T4"))
    assert (row["name"], row["compute_capability"], row["emulated_dtypes"]) == ("T4", [7, 5], ["bfloat16"])
    assert row["sources"]["*"][0]["url"].startswith("https://")
    assert json_value({"a": float("nan"), "b": Path("x")}) == {"a": None, "b": "x"}


@pytest.mark.parametrize("flags", [["-OO"], ["-O"], ["-I"], ["-X", "utf8=0"], ["-W", "error"]])
def test_flags_of_the_interpreter_change_no_answer(flags: list[str]) -> None:
    command = [sys.executable, *flags, "-m", "lightning_predict.cli", "gpus", "T4"]
    plain = subprocess.run([sys.executable, "-m", "lightning_predict.cli", "gpus", "T4"], capture_output=True, cwd=ROOT)
    ran = subprocess.run(command, capture_output=True, cwd=ROOT)
    assert (ran.returncode, ran.stdout) == (0, plain.stdout), ran.stderr


def test_a_closed_output_is_no_error() -> None:
    command = f"{sys.executable} -m lightning_predict.cli gpus T4 >&-"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, cwd=ROOT)
    assert (ran.returncode, ran.stderr) == (0, b"")
