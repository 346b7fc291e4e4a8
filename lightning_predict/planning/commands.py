"""The two commands as plain functions: plan a team's jobs, and run the study.

Example::

    plan(Path("jobs.yaml"), output=Path("plan"))        # table; plan/plan.json, gantt.html, sky/, slurm/
    simulate(Path("study.yaml"), output=Path("study"))  # table; study/study.json, study.svg
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lightning_predict.planning.exports import plan_json, skypilot_tasks, slurm_scripts
from lightning_predict.planning.files import read_problem, read_situation
from lightning_predict.planning.pictures import (
    comparison_figure,
    comparison_table,
    gantt_page,
    plan_table,
)
from lightning_predict.planning.plan import Plan
from lightning_predict.planning.policies import candidates_of, cheapest_plan
from lightning_predict.planning.problem import Problem, Situation
from lightning_predict.planning.study import StudyRun, compare, read_study, run_study


def plan(
    jobs: Path,
    *,
    output: Path | None = None,
    method: str = "milp",
    state: Path | None = None,
    console: Console | None = None,
) -> Plan:
    """Plan the jobs of a file: print the table, and write chart, JSON, SkyPilot tasks and Slurm scripts.

    Args:
        jobs: `jobs.yaml`, see `files.py`.
        state: `state.yaml`, how far a running plan is (see `read_situation`); None starts at the beginning.
        output: Folder to write; None writes nothing.
        method: `milp`, or a queue rule (see `policies.py`).
        console: Where to print; None is the terminal.

    Raises:
        PlanningFormatError: The file is malformed.
        InvalidArgumentError: A number out of its range, or an unknown method.
        InfeasiblePlanError: A job or a limit that no plan can satisfy.
        MissingDependencyError: SciPy (for the MILP) is not installed.
    """
    console = Console() if console is None else console
    problem = read_problem(jobs)
    since = None if state is None else read_situation(state, problem)
    with _progress(console) as progress:
        task = progress.add_task("ways to plan", total=len(candidates_of(problem, method)))
        result = cheapest_plan(problem, method=method, since=since, on_candidate=lambda: progress.advance(task))
    console.print(plan_table(result))
    if output is not None:
        _write_plan(result, problem, output, since)
        console.print(f"Written to {output}: plan.json, gantt.html, sky/, slurm/")
    return result


def simulate(
    study: Path, *, output: Path | None = None, workers: int | None = None, console: Console | None = None
) -> tuple[StudyRun, ...]:
    """Run a study: print the comparison, and write it with its figure.

    Args:
        study: `study.yaml`, see `study.py`.
        output: Folder to write; None writes nothing.
        workers: Processes, -1 for all cores; None follows `joblib.parallel_config`.
        console: Where to print; None is the terminal.

    Raises:
        PlanningFormatError: The file is malformed.
        InvalidArgumentError: A number out of its range, or an unknown policy.
        MissingDependencyError: SciPy (for the MILP) or matplotlib (for the figure) is not installed.
    """
    console = Console() if console is None else console
    settings = read_study(study)
    with _progress(console) as progress:
        task = progress.add_task("instances simulated", total=len(settings.runs))
        runs = run_study(settings, workers=workers, on_run=lambda _: progress.advance(task))
    comparisons = compare(runs)
    console.print(comparison_table(comparisons))
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        document = {
            "version": 1,
            "study": asdict(settings),
            "runs": [asdict(run) for run in runs],
            "comparisons": [asdict(item) for item in comparisons],
        }
        (output / "study.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        comparison_figure(comparisons).savefig(output / "study.svg")
        console.print(f"Written to {output}: study.json, study.svg")
    return runs


def _write_plan(result: Plan, problem: Problem, output: Path, since: Situation | None) -> None:
    output.mkdir(parents=True, exist_ok=True)
    (output / "plan.json").write_text(plan_json(result) + "\n", encoding="utf-8")
    (output / "gantt.html").write_text(gantt_page(result, problem.machines), encoding="utf-8")
    for folder, files in (
        ("sky", skypilot_tasks(result, problem, since)),
        ("slurm", slurm_scripts(result, problem, since)),
    ):
        (output / folder).mkdir(exist_ok=True)
        for name, text in files.items():
            (output / folder / name).write_text(text, encoding="utf-8")


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)
