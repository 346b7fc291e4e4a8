"""The page of questions: each command prints what stands below it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.conftest import run as run  # the fixture

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "howto" / "questions.md"
ANSWER = re.compile(
    r"<!-- paragraphs: (?P<chosen>[-\d ]+) -->\n```bash\n(?P<command>lightning-predict [^\n]+)\n```\n"
    r"(?:\n```text\n(?P<shown>.*?)```\n)?",
    re.DOTALL,
)


def answers() -> dict[str, re.Match[str]]:
    """The commands of the page whose output it shows, each with the paragraphs that it shows."""
    return {found["command"]: found for found in ANSWER.finditer(PAGE.read_text(encoding="utf-8"))}


def test_a_dozen_questions_have_an_answer() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(answers()) >= 12
    assert text.count("```bash") == len(answers()) + text.count("<!-- not run here")
    assert len(re.findall(r"^## .*\?$", text, re.MULTILINE)) >= 12


@pytest.mark.parametrize("command", answers(), ids=lambda command: re.sub(r"\W+", "-", command.split(" ", 1)[1])[:60])
def test_the_answer_is_what_the_command_prints(
    command: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIGHTNING_PREDICT_HISTORY", str(tmp_path / "history.jsonl"))
    ran = run(*command.split()[1:])
    assert ran.code == 0, ran.err
    found = answers()[command]
    paragraphs = [part.strip("\n") for part in re.split(r"\n\n+", ran.out.strip("\n"))]
    numbers = [int(number) for number in found["chosen"].split()]
    chosen = [paragraphs[number - 1 if number > 0 else number] for number in numbers]
    printed = "\n\n".join("\n".join(line.rstrip() for line in part.splitlines()) for part in chosen) + "\n"
    if request.config.getoption("--overwrite-golden"):
        text = PAGE.read_text(encoding="utf-8")
        head = found[0].split("\n```text\n")[0].rstrip("\n")
        PAGE.write_text(text.replace(found[0], f"{head}\n\n```text\n{printed}```\n"), encoding="utf-8")
    assert answers()[command]["shown"] == printed
