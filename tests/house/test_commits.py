"""`make check` refuses long subjects and changes of the package without a reason."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "commits"


def git(folder: Path, *arguments: str) -> None:
    settings = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *settings, *arguments], cwd=folder, check=True, capture_output=True)


def checked(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", ".ci/commits", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A branch next to main, without commits of its own."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / "lightning_predict").mkdir()
    shutil.copy(SCRIPT, tmp_path / ".ci")
    git(tmp_path, "init", "--initial-branch", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "x" * 100)  # before the branch: not checked
    git(tmp_path, "checkout", "-b", "change")
    return tmp_path


def commit(folder: Path, path: str, *messages: str) -> None:
    (folder / path).write_text(messages[0])
    git(folder, "add", path)
    git(folder, "commit", *(part for message in messages for part in ("-m", message)))


def test_messages_as_asked_pass(repository: Path) -> None:
    commit(repository, "notes.md", "Docs: " + "x" * 66)
    commit(repository, "lightning_predict/step_predictor.py", "Fix a step", "It was 3 % too long; now 0.1 %.")
    ran = checked(repository)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_a_long_subject_and_a_missing_body_are_refused(repository: Path) -> None:
    commit(repository, "notes.md", "Docs: " + "x" * 67)
    commit(repository, "lightning_predict/step_predictor.py", "Fix a step")
    ran = checked(repository)
    assert ran.returncode == 1
    assert "the subject has 73 characters; expected at most 72: Docs: x" in ran.stderr
    assert "changes lightning_predict/ without a body; say why, with figures before and after: Fix a step" in ran.stderr


def test_without_a_base_branch_nothing_is_checked(repository: Path) -> None:
    commit(repository, "notes.md", "Docs: " + "x" * 67)
    git(repository, "branch", "-D", "main")
    ran = checked(repository)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
