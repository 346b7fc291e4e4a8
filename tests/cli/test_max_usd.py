"""`--max-usd`: a limit for CI, and the workflow among the examples that uses it."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Run, arguments

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / "examples" / "predict_cost.yml"


def test_exit_code_is_1_above_the_limit_or_for_an_unknown_cost(trace: Path, run: Run, tmp_path: Path) -> None:
    words = ("predict", trace, "--gpus", "T4,L4", "--iterations", "1e8", "--usd-per-hour", "1")
    cost = min(prediction["cost_usd"] for prediction in run(*words, "--json").json["predictions"])
    assert run(*words, "--max-usd", f"{cost * 1.01:.6f}").code == 0
    ran = run(*words, "--max-usd", f"{cost * 0.99:.6f}", "--output", tmp_path / "cost.md")
    assert ran.code == 1
    assert re.search(r"The cheapest GPU, \w+, costs \$[\d,.]+, more than --max-usd \$[\d,.]+\.", ran.err)
    assert "cheapest" in (tmp_path / "cost.md").read_text()  # written all the same, for the comment
    ran = run("predict", trace, "--gpus", "M60", "--iterations", "1000", "--max-usd", "100")
    assert ran.code == 1
    assert "The cost is unknown, so it cannot be compared with --max-usd $100.00." in ran.err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--max-usd", "5"], "--max-usd is a limit for the whole run; give its length with --iterations."),
        (["--max-usd", "0", "--iterations", "9"], "--max-usd 0 is no limit; expected US dollars above 0."),
        (["--max-usd", "2,50", "--iterations", "9"], "which may be 2.50 or 250"),
    ],
)
def test_invalid_limit_is_rejected(options: list[str], problem: str, trace: Path, run: Run) -> None:
    ran = run("predict", trace, "--gpus", "T4", *options)
    assert ran.code == 2
    assert problem in ran.err


@pytest.fixture
def workflow() -> dict[Any, Any]:
    document: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    return document


def test_workflow_is_valid_for_github_actions(workflow: dict[Any, Any]) -> None:
    assert set(workflow) == {"name", True, "permissions", "env", "jobs"}  # `on` is a Boolean of YAML 1.1
    assert set(workflow[True]) == {"pull_request"}
    assert workflow["permissions"] == {"contents": "read", "pull-requests": "write"}
    assert all(isinstance(value, str) for value in workflow["env"].values())
    (job,) = workflow["jobs"].values()
    assert set(job) <= {"runs-on", "timeout-minutes", "steps"}
    for step in job["steps"]:
        assert ("uses" in step) != ("run" in step)
        assert set(step) <= {"name", "uses", "with", "run", "if", "env"}
        assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step.get("uses", "a/b@v1"))
    text = WORKFLOW.read_text(encoding="utf-8")
    expressions = re.findall(r"\$\{\{(.*?)\}\}", text)
    assert len(expressions) == text.count("${{") == text.count("}}")
    for expression in expressions:
        assert set(re.findall(r"[a-z_]+(?=[.(])", expression.replace("github.event.", "github."))) <= {
            *("github", "cancelled", "pull_request", "head", "repo")
        }


def test_workflow_commands_run(workflow: dict[Any, Any], run: Run, tmp_path: Path) -> None:
    (job,) = workflow["jobs"].values()
    (command,) = (step["run"] for step in job["steps"] if step.get("name") == "Predict")
    for name, value in workflow["env"].items():
        command = command.replace(f'"${name}"', shlex.quote(value))
    program, name, *words = shlex.split(command)
    assert (program, name) == ("lightning-predict", "predict")
    given = arguments("predict", *words)
    assert (given["max_usd"], given["iterations"]) == (20.0, 50_000)
    body = tmp_path / "cost.md"
    ran = run("predict", *(str(body) if word == "cost.md" else word for word in words))
    assert ran.code == 0, ran.err
    assert "| L40S" in body.read_text()
    (comment,) = (step["run"] for step in job["steps"] if step.get("name") == "Comment the table")
    assert "--body-file cost.md" in comment
    assert "cancelled()" in next(step["if"] for step in job["steps"] if "if" in step)  # also after a failure
