"""The README's examples are real: its code runs, its output is the program's own."""

import re
from pathlib import Path

import pytest

import lightning_predict as lp
from lightning_predict.cli import main
from lightning_predict.cost.priced_gpus import layouts_to_predict
from tests.processes import run

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
OUTPUT = re.compile(r"(<!-- the output of examples/gpt2\.py -->\n```text\n)(.*?)(```\n)", re.DOTALL)


def code_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("block", code_blocks(), ids=lambda block: block.splitlines()[0])
def test_code_runs(block: str, tmp_path: Path) -> None:
    done = run(block, folder=tmp_path)
    assert done.returncode == 0, done.stderr


def commands() -> list[str]:
    """The commands of the README, without the model that needs libraries of its own."""
    matches = re.findall(r"^lightning-predict [^#\n]*", README.read_text(), re.MULTILINE)
    assert len(matches) == 13
    return [command.strip() for command in matches]


@pytest.mark.parametrize("command", commands())
def test_command_runs_in_an_empty_folder(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIGHTNING_PREDICT_HISTORY", str(tmp_path / "history.jsonl"))
    assert main(command.split()[1:]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out


def test_readme_shows_the_output_of_the_example(tmp_path: Path, overwrites: bool) -> None:
    recommendation, heading, table, *_ = example("gpt2", tmp_path).split("\n\n")  # notes follow
    assert heading.startswith("50,000 steps")
    printed = f"{recommendation}\n\n{heading}\n\n{table}\n"
    if overwrites:
        README.write_text(OUTPUT.sub(lambda match: match[1] + printed + match[3], README.read_text()))
    shown = OUTPUT.search(README.read_text())
    assert shown is not None
    assert shown[2] == printed


ADVICE = re.compile(r"(\$ lightning-predict advise (\S+) --gpus (\S+) --iterations (\d+)\n)(.*?)(```)", re.DOTALL)


def test_the_advice_on_the_page_is_what_its_command_prints(overwrites: bool) -> None:
    page = ROOT / "docs" / "howto" / "advice.md"
    shown = ADVICE.search(page.read_text())
    assert shown is not None
    trace = lp.Trace.load(str(ROOT / shown[2]))
    printed = f"{lp.advise(trace, shown[3].split(','), iterations=int(shown[4]))}\n"
    if overwrites:
        page.write_text(ADVICE.sub(lambda match: match[1] + printed + match[6], page.read_text()))
        shown = ADVICE.search(page.read_text())
        assert shown is not None
    assert shown[5] == printed


def example(name: str, folder: Path) -> str:
    """What an example prints on a machine that records without a pause."""
    path = ROOT / "examples" / f"{name}.py"
    code = (
        "import runpy, sys, lightning_predict.record.pauses as pauses; "
        "pauses.SHORTEST_PAUSE_SECONDS = float('inf'); "
        f"sys.path.insert(0, {str(path.parent)!r}); runpy.run_path({str(path)!r}, run_name='__main__')"
    )
    done = run(code, variables={"COLUMNS": "110", "TERM": "dumb"}, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_demo_trains_and_recommends_a_gpu(tmp_path: Path) -> None:
    printed = example("quickstart", tmp_path)
    lines = [line.rstrip() for line in printed.splitlines()]
    heading = next(line for line in lines if line.startswith("Rest of this run: "))
    assert re.search(r"steps × batch 128, float32, recorded on this CPU at step \d", heading)  # noqa: RUF001
    below = lines[lines.index(heading) :]
    first = next(place for place, line in enumerate(below) if line.startswith("this CPU  "))
    names = {layout.name for layout in layouts_to_predict("all")}
    assert below[first + 1].split()[0] in names  # the best of the GPUs with a current price
    left = next(line for line in lines if " left on this CPU: too short to move the run." in line)
    # A minute or less, or a cent's worth, is too little for any advice; on a busy machine the same steps take minutes.
    is_trivial = " min" not in left.partition(" left on")[0].rpartition("steps: ")[2].partition(" (")[0]
    assert any(line.startswith("For a longer run") for line in lines) == is_trivial
    assert (tmp_path / "logs" / "digits").is_dir()
    assert (tmp_path / "logs" / "digits_csv").is_dir()


def test_readme_names_existing_commands_and_pictures_of_its_repository() -> None:
    from lightning_predict.cli.parsing import COMMANDS

    shown = {command.split()[1] for command in commands()}
    assert shown <= set(COMMANDS)
    assert {"predict", "plan", "regress", "shard", "gpus", "offers"} <= shown
    # Its page knows no files of the repository.
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", README.read_text())
    assert pictures
    for picture in pictures:
        assert picture.startswith("https://raw.githubusercontent.com/"), picture
        assert (ROOT / "docs" / picture.rpartition("/")[2]).exists()


def test_links_of_the_readme_are_absolute_and_exist() -> None:
    text = README.read_text()
    definitions = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", text, re.MULTILINE))
    assert set(re.findall(r"\]\[([^\]]+)\]", text)) == set(definitions)
    links = [*definitions.values(), *re.findall(r"(?<!!)\[[^\]]+\]\(([^)]+)\)", text)]
    repository = re.compile(r"https://github\.com/lightning-predict/lightning-predict/(?:blob|tree)/main/([^#]+)")
    named = [match[1] for link in links if (match := repository.match(link))]
    assert len(named) >= 8
    assert all(link.startswith("https://") for link in links)
    assert all((ROOT / path).exists() for path in named)


@pytest.mark.parametrize(
    "name", ["large_model_without_a_gpu", "gan_manual_optimization", "recommendation", "tensorboard_and_wandb"]
)
def test_examples_run(name: str, tmp_path: Path) -> None:
    variables = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "COLUMNS": "110"}
    done = run(ROOT / "examples" / f"{name}.py", variables=variables, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert any(layout.name in done.stdout for layout in layouts_to_predict("all"))


def test_common_models_are_recorded_in_seconds(tmp_path: Path) -> None:
    # The longer ones (LoRA, ResNet) are next to it as they were recorded.
    done = run(
        ROOT / "examples" / "what_people_train.py", "--save", "packed", "graph", "tabular", folder=tmp_path, seconds=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Rent a") + done.stdout.count("too short to rent a machine") == 3
    assert {path.name for path in tmp_path.iterdir()} == {"packed.json.gz", "graph.json.gz", "tabular.json.gz"}


def test_the_example_of_past_runs_predicts_and_compares(tmp_path: Path) -> None:
    done = run(ROOT / "examples" / "past_runs.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("seconds per iteration = ")
    assert "batch size 128 is 2 times the largest of the past runs (64)" in done.stdout
