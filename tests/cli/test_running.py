"""Parsing, help, errors in one line, and a start that loads nothing heavy."""

import gc
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import lightning_predict
from lightning_predict.base.answers import CommandAnswer, json_value
from lightning_predict.base.checked import read_toml
from lightning_predict.base.errors import CatalogueError, LightningPredictError
from lightning_predict.base.model_options import ModelOptions
from lightning_predict.cli import catalogue_commands, script_commands
from lightning_predict.cli.parsing import COMMANDS, option_names
from lightning_predict.hardware import gpu
from tests.cli.conftest import Run, arguments, python
from tests.processes import ROOT


def test_program_has_a_help_of_all_commands_a_version_and_20_options(run: Run) -> None:
    ran = run("--help")
    assert (ran.code, run().out) == (0, ran.out)
    assert re.findall(r"(?m)^  ([a-z-]+) ", ran.out)[: len(COMMANDS)] == [*COMMANDS]
    assert len(re.findall(r"(?m)^  (?:-\w, )?(--[a-z][a-z0-9-]*)", run("predict", "--help").out)) <= 20
    assert run("--version").out.strip() == f"lightning-predict {lightning_predict.__version__}"
    project = read_toml(Path(__file__).parents[2] / "pyproject.toml", CatalogueError).value
    assert project["project"]["scripts"] == {"lightning-predict": "lightning_predict.cli:main"}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_documents_every_option_in_short_sentences(name: str, run: Run) -> None:
    ran = run(name, "--help")
    described = re.split(r"(?m)^  (?=\S)|\n\n", ran.out)[1:]  # without the usage
    options = [text for text in described if text.startswith("--")]
    assert ran.code == 0
    assert {text.split()[0] for text in options} == set(option_names(name))
    assert all(re.search(r"[A-Z][\w ,;]+", text.partition("  ")[2]) for text in options)
    sentences = [sentence for text in described for sentence in re.split(r"(?<=[.:;])\s+|\n\n| \[", text)]
    assert not [sentence for sentence in sentences if len(sentence.split()) > 25]


@pytest.mark.parametrize("module", ["lightning_predict", "lightning_predict.cli"])
def test_package_runs_as_module(module: str) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-m", module, "gpus", "T4"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("T4\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gpsu", 'Unknown command "gpsu". Did you mean "gpus"?'),
        ("xyz", 'Unknown command "xyz". Available commands: predict, run, advise, trace, '),
        ("--nothing", 'Unknown command "--nothing". Available commands: predict, run, advise, '),
        ("regress", 'Command "regress" parameter RUNS requires an argument. See lightning-predict regress --help.'),
        ("predict x --iteratons 3", "Unknown option: --iteratons. Did you mean --iterations?"),
        ("predict x --zzz", "Unknown option: --zzz. See lightning-predict predict --help."),
        ("predict x --accumulate 8", "Unknown option: --accumulate. It is part of --strategy: --strategy acc"),
        ("curve x --kernels compile", "Unknown option: --kernels. It is part of --strategy: --strategy kernels=VALUE."),
        ("predict x --fsdp", "Unknown option: --fsdp. It is part of --strategy: --strategy fsdp."),
        ("predict x T4", "Unused Tokens: ['T4']. GPUs are named by --gpus: --gpus T4,8xL4."),
        ("predict train.py", "train.py is a script; `lightning-predict run train.py` runs it with predictions."),
        ("predict x --iterations many", "--iterations is 'many', but expected a whole number, for example 1000"),
        ("predict x --iterations=2.5", "--iterations is '2.5', but expected a whole number, for example"),
        ("predict x --iterations 1,5", "--iterations is '1,5', which may be 1.5 or 15. Write it with a point, or"),
        ("predict x --iterations 1000,000", "--iterations is '1000,000', which may be 1000.000 or 1000000. Write"),
        ("predict x --max-usd 2,50", "--max-usd is '2,50', which may be 2.50 or 250. Write it with a point, or"),
        ("predict x --deadline-hours soon", "--deadline-hours is 'soon', but expected a number."),
        ("predict x --quantization int8", 'Invalid value "int8" for --quantization. Choose from: "nf4", "nf4-double"'),
        ("cache clean", 'Invalid value "clean" for ACTION. Choose from: "show", "clear".'),
        ("trace top x --gpu L4", 'Invalid value "top" for ACTION. Choose from: "check", "anonymise", "import"'),
        ("predict x --iterations", 'Command "predict" parameter --iterations requires an argument. See lightning-'),
        ("predict no-such-trace.json", "No such file or directory: no-such-trace.json"),
        ("gpus H1000", "'H1000' is not a GPU of the catalogue. The nearest names are H100-SXM-80GB"),
    ],
)
def test_error_is_one_line_with_exit_code_2(words: str, message: str, run: Run) -> None:
    ran = run(*words.split())
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"lightning-predict: error: {message}")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "text"), [(LightningPredictError("two\n  lines"), "two lines"), (KeyboardInterrupt(), "interrupted")]
)
def test_error_inside_command_has_no_traceback(
    error: BaseException, text: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(search: str | None = None, /) -> CommandAnswer:
        raise error

    monkeypatch.setattr(catalogue_commands, "gpus", failing)
    ran = run("gpus")
    assert (ran.code, ran.err) == (2, f"lightning-predict: error: {text}\n")


def test_closed_pipe_or_output_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "lightning_predict.cli", "gpus", "--json"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
    without_output = f"{sys.executable} -m lightning_predict.cli gpus T4 >&-"
    ran = subprocess.run(["bash", "-c", without_output], capture_output=True, cwd=ROOT)
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_options_take_hyphens_and_records_are_json_values() -> None:
    parsed = arguments("predict", "a-b.json", "--usd_per_hour", "1", "--checkpointing", "--gpus=T4")
    assert (parsed["source"], parsed["usd_per_hour"], parsed["gpus"]) == ("a-b.json", "1", "T4")
    assert (parsed["model"], parsed["iterations"]) == (ModelOptions(checkpointing=True), None)
    assert arguments("cache", "clear")["action"] == "clear"
    assert arguments("gpus")["search"] is None
    row = json_value(gpu("T4"))
    assert (row["name"], row["compute_capability"], row["emulated_dtypes"]) == ("T4", [7, 5], ["bfloat16"])
    assert row["sources"]["*"][0]["url"].startswith("https://")
    assert json_value({"a": float("nan"), "b": Path("x")}) == {"a": None, "b": "x"}


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
def test_whole_numbers_have_several_spellings(text: str, number: int) -> None:
    assert arguments("predict", "x", "--iterations", text)["iterations"] == number


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completes_commands_and_options(shell: str, run: Run) -> None:
    text = run("completion", shell).out
    assert all(word in text for word in (*COMMANDS, "deadline-hours"))


@pytest.mark.parametrize("words", [["--help"], ["gpus"], ["gpus", "T4"], ["predict", "--help"]])
def test_simple_commands_load_no_prediction_code(words: list[str]) -> None:
    heavy = ("torch", "numpy", "lightning", "jsonargparse", "yaml", "matplotlib", "requests", "safetensors")
    ours = ("kernels", "timeline", "record", "layouts", "reports", "prediction", "weights")
    names = (*heavy, *(f"lightning_predict.{name}" for name in ours))
    code = f"from lightning_predict.cli import main; main({words!r}); import sys; print('\\n', *sys.modules)"
    loaded = set(python(code).splitlines()[-1].split())
    assert "lightning_predict.cli.parsing" in loaded
    assert [name for name in names if name in loaded] == []


@pytest.mark.parametrize(("module", "words"), [(catalogue_commands, ["gpus"]), (script_commands, ["run", "train.py"])])
def test_garbage_collection_is_rare_except_in_script(
    module: ModuleType, words: list[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, seen = gc.get_threshold(), list[tuple[int, int, int]]()

    def command(*_: str) -> CommandAnswer:
        seen.append(gc.get_threshold())
        return CommandAnswer(data=dict, show=lambda: None)

    monkeypatch.setattr(module, words[0], command)
    assert run(*words).code == 0
    assert (seen[0][0] > before[0]) == (words == ["gpus"])
    assert gc.get_threshold() == before


@pytest.mark.parametrize("flags", [["-OO"], ["-O"], ["-I"], ["-X", "utf8=0"], ["-W", "error"]])
def test_flags_of_the_interpreter_change_no_answer(flags: list[str]) -> None:
    command = [sys.executable, *flags, "-m", "lightning_predict.cli", "gpus", "T4"]
    plain = subprocess.run([sys.executable, "-m", "lightning_predict.cli", "gpus", "T4"], capture_output=True, cwd=ROOT)
    ran = subprocess.run(command, capture_output=True, cwd=ROOT)
    assert (ran.returncode, ran.stdout) == (0, plain.stdout), ran.stderr
