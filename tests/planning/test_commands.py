import importlib.util
import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from benchmarks.planning.__main__ import main as study
from lightning_predict.cli import main
from tests.planning.test_files import DOCUMENT, written

STUDY = {"nodes": [1], "mean_gap_seconds": [60], "seeds": [0], "policies": ["edf", "milp"]}


def quiet() -> Console:
    return Console(file=StringIO(), width=160)


def test_plan_prints_the_table_and_writes_all_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    still = DOCUMENT | {"formulation": {"preempts": False, "migrates": False}}
    assert main(["plan", str(written(tmp_path, still)), "--output", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "node 0: 4 GPUs of large" in out
    # It cannot be carried out, and says why, before anybody rents a machine for a script that ends at once.
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["plan.json"]
    assert "Written to" in out
    assert "Nothing is written for SkyPilot: a names no command" in " ".join(out.split())
    jobs = written(tmp_path, still | {"jobs": [job | {"command": "python train.py"} for job in DOCUMENT["jobs"]]})
    assert main(["plan", str(jobs), "--output", str(tmp_path / "out")]) == 0
    names = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())
    engines = ["sky/a.yaml", "sky/node-0-large.yaml", "sky/schedule.txt", "slurm/a.sh", "slurm/schedule.txt"]
    assert names == ["plan.json", *engines]
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["total_usd"] == pytest.approx(6.0)  # 1 h of large


def test_the_study_prints_the_comparison_and_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(STUDY), encoding="utf-8")
    assert study([str(path), "--output", str(tmp_path / "out"), "--workers", "1"]) == 0
    document = json.loads((tmp_path / "out" / "study.json").read_text())
    assert {run["policy"] for run in document["runs"]} == {"edf", "milp"}
    assert [row["policy"] for row in document["comparisons"]] == ["edf", "milp"]
    assert document["study"]["restart_seconds"] == [60.0]
    assert (tmp_path / "out" / "study.svg").read_text(encoding="utf-8").rstrip().endswith("</svg>")
    out = capsys.readouterr().out
    assert "milp" in out
    assert max(map(len, out.splitlines())) <= 120


def test_plan_of_many_jobs_prints_its_lower_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_predict.planning.commands.MANY_JOBS", 0)
    assert main(["plan", str(written(tmp_path, DOCUMENT)), "--method", "edf"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "$6.00: the best of 1 plans, for more than 0 jobs." in out
    # In the 2 h until the deadline, half on one GPU of large (3 h and $4.50) and half on four (1 h and $6).
    assert "No plan costs less than $5.25, a gap of at most 12%." in out


def test_plan_without_a_folder_writes_nothing_and_an_error_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(written(tmp_path, DOCUMENT)), "--method", "edf"]) == 0
    assert "Plan by EDF" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.yaml"]
    assert main(["plan", str(written(tmp_path, DOCUMENT | {"budget_usd": 0}))]) == 2
    assert capsys.readouterr().err.startswith("lightning-predict: error: The budget of $0.00 is too small: job 'a'")


def example(name: str) -> Any:
    specification = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "examples" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_example_of_a_team_saves_against_queues_and_keeps_its_budget(tmp_path: Path) -> None:
    console = quiet()
    example("plan_team_jobs").main(tmp_path, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    costs = {name: float(usd) for name, usd in re.findall(r"^(\S+): \$([\d.]+),", text, re.MULTILINE)}
    assert costs.keys() == {"planned", "FIFO", "EDF", "PS"}
    assert costs["planned"] < min(costs["FIFO"], costs["EDF"], costs["PS"])
    assert costs["planned"] <= 100  # the budget
    # A script for each stretch of each job: five jobs, some of which move.
    segments = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))["segments"]
    assert len(list((tmp_path / "slurm").glob("*.sh"))) == len(segments) >= 5


def test_online_planning_example_starts_only_new_jobs(tmp_path: Path) -> None:
    console = quiet()
    example("plan_online").main(tmp_path, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("Plan by") == 3
    commands = re.findall(r" 0.000 h .* sky exec --detach-run (\S+) (\S+)", text)
    assert commands == [
        ("node-0-g5.12xlarge", "ranking.yaml"),
        ("node-1-g5.12xlarge", "urgent.yaml"),
    ]  # speech runs all the time
