"""The page of questions: each command prints what stands below it."""

import re
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
    return {answer["command"]: answer for answer in ANSWER.finditer(PAGE.read_text(encoding="utf-8"))}


def test_a_dozen_questions_have_an_answer() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(answers()) >= 12
    assert text.count("```bash") == len(answers()) + text.count("<!-- not run here")
    assert len(re.findall(r"^## .*\?$", text, re.MULTILINE)) >= 12


@pytest.mark.parametrize("command", answers())
def test_answer_equals_command_output(
    command: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrites: bool
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIGHTNING_PREDICT_HISTORY", str(tmp_path / "history.jsonl"))
    ran = run(*command.split()[1:])
    assert ran.code == 0, ran.err
    found = answers()[command]
    paragraphs = [part.strip("\n") for part in re.split(r"\n\n+", ran.out.strip("\n"))]
    chosen = [paragraphs[place - 1 if place > 0 else place] for place in map(int, found["chosen"].split())]
    printed = "\n\n".join("\n".join(line.rstrip() for line in part.splitlines()) for part in chosen) + "\n"
    if overwrites:
        head = found[0].split("\n```text\n")[0].rstrip("\n")
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(text.replace(found[0], f"{head}\n\n```text\n{printed}```\n"), encoding="utf-8")
    assert overwrites or printed == found["shown"], "To write what the command prints now: make renew"


@pytest.mark.parametrize(
    ("model", "gpus", "published", "flops_per_token", "peak"),
    [
        # Tokens a second and GPU of the runs that docs/accuracy/many_gpus.md names; six operations for a parameter that
        # a token visits, twelve for each layer, width and token of attention; dense peaks in 16-bit.
        ("llama3-8b", 8, 7000 / 4 * 7.6 / 8.0, 6 * 7.50e9 + 12 * 32 * 4096 * 2048, 165.2e12),
        ("llama3-70b", 64, 71235 / 64, 6 * 69.5e9 + 12 * 80 * 8192 * 8192, 989e12),
        ("mixtral-8x7b", 16, 468e12 / (6 * 12.7e9 + 12 * 32 * 4096 * 4096), 6 * 12.7e9 + 12 * 32 * 4096 * 4096, 989e12),
    ],
)
def test_large_models_lie_near_published_runs(
    model: str, gpus: int, published: float, flops_per_token: float, peak: float
) -> None:
    (shown,) = (answer["shown"] for command, answer in answers().items() if f"/{model}." in command)
    headers, _, row = (re.split(r"\s{2,}", line.strip()) for line in shown.split("\n\n")[1].splitlines())
    each = float(row[headers.index("tokens/s")].replace(",", "")) / gpus
    assert each == pytest.approx(published, rel=0.3)
    assert 0.25 < each * flops_per_token / peak < 0.6
