"""`lightning-predict accuracy`: published steps like a recorded one."""

from pathlib import Path

import pytest

from lightning_predict.cli import accuracy_commands
from lightning_predict.reports.published_cases import PublishedCase
from tests.cli.conftest import Run

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> tuple[PublishedCase, ...]:
    """A published step on another GPU, of a source that may be copied, and one of a source that may not."""
    shown = PublishedCase(
        model="vit_base train amp",
        kind="vision transformer",
        gpu="RTX-4090",
        precision="16 bits",
        source="a page",
        split="held out",
        steps=2,
        error=-0.08,
        absolute_error=0.08,
        inside=1,
        measured_ms=2500.0,
        predicted_ms=230.04,
    )
    hidden = PublishedCase(
        model="BERT",
        kind="language model",
        gpu="T4",
        precision="float32",
        source="a table",
        split="fitted",
        steps=4,
        error=None,
        absolute_error=0.12,
        inside=4,
    )
    monkeypatch.setattr(accuracy_commands, "read_published_cases", lambda: (shown, hidden))
    return shown, hidden


def test_nearest_published_steps_are_printed(cases: tuple[PublishedCase, ...], run: Run) -> None:
    ran = run("accuracy", "--like", EXAMPLES / "vit.json.gz", "--gpu", "L40S")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "Your step: vision transformer, float32, on L40S. The nearest published steps:"
    assert lines[4].split() == [
        *("vit_base", "train", "amp", "RTX-4090", "16", "bits", "2", "2.5", "s", "230", "ms", "-8%"),
        *("1", "of", "2", "a", "page"),
    ]
    assert lines[6:] == ["Median error of these: 8%.", "No such step was published for the L40S itself."]


def test_fitted_sources_other_kinds_and_shipped_cases_are_marked(cases: tuple[PublishedCase, ...], run: Run) -> None:
    ran = run("accuracy", "--like", EXAMPLES / "gpt2.json.gz", "--gpu", "T4")
    (row,) = [line for line in ran.out.splitlines() if line.startswith("BERT")]
    assert row.endswith("a table *")
    assert row.split()[3:7] == ["4", "-", "-", "±12%"]
    assert "*: some constants were chosen on this source, so expect larger errors on others." in ran.out
    assert "-: the licence of the source does not allow copies of its times." in ran.out
    assert "itself" not in ran.out
    ran = run("accuracy", "--like", EXAMPLES / "dlrm.json.gz", "--gpu", "T4", "--cases", "1")
    assert "No published step is of this kind of model: these are of other kinds." in ran.out
    answer = run("accuracy", "--like", EXAMPLES / "dlrm.json.gz", "--gpu", "T4", "--cases", "1", "--json").json
    assert (answer["gpu"], answer["kind"], len(answer["cases"])) == ("T4", "recommender", 1)
    assert answer["cases"][0]["absolute_error"] == 0.12


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpu", "T4"], "Give a recorded step and a GPU"),
        (["--like", "step.json.gz"], "Give a recorded step and a GPU"),
        (["--like", "step.json.gz", "--gpu", "T4", "--cases", "0"], "expected at least 1"),
    ],
)
def test_missing_option_is_an_error(words: list[str], message: str, run: Run) -> None:
    ran = run("accuracy", *words)
    assert ran.code != 0
    assert message in ran.err


def test_shipped_cases_match_an_example(run: Run) -> None:
    answer = run("accuracy", "--like", EXAMPLES / "gpt2.json.gz", "--gpu", "A100-SXM-80GB", "--json").json
    assert {case["kind"] for case in answer["cases"]} == {"language model"}
    assert answer["cases"][0]["gpu"] == "A100-SXM-80GB"
