"""Command `plan`: schedules jobs on rented machines.

Example::

    lightning-predict plan jobs.yaml --output plan
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lightning_predict.base.answers import TEXT_WIDTH, CommandAnswer
from lightning_predict.base.files import named_file
from lightning_predict.planning.expected_cost import missed_deadlines
from lightning_predict.planning.exports import plan_json, write_plan
from lightning_predict.planning.files import read_problem, read_situation
from lightning_predict.planning.objective import least_usd
from lightning_predict.planning.plan_table import plan_table
from lightning_predict.planning.policies import MANY_JOBS, candidates, cheapest_plan
from lightning_predict.planning.problem import Plan
from lightning_predict.reports.format import usd

_WRITTEN: Final = ("plan.json", "sky", "slurm")


def plan(
    jobs: Path, /, *, output: Path | None = None, method: str = "milp", state: Path | None = None
) -> CommandAnswer:
    """Plan the jobs of a team on machines to rent: lowest cost within deadlines and a budget.

    The file lists machines, limits and jobs. The time of a job is stated in the file, or predicted from a recorded
    step. The command needs the extra `planning`.

    Args:
        jobs: A YAML file of machines, limits and jobs.
        output: Folder to write the plan, SkyPilot tasks and Slurm scripts to.
        method: Planner: milp, or a queue rule such as fifo or edf.
        state: YAML file with the progress of a running plan, whose remaining work is planned again.
    """
    notes: list[str] = []

    def planned(console: Console) -> Plan:
        problem, since = read_problem(named_file(jobs)), None
        if state is not None:
            since = read_situation(state, problem)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("ways to plan", total=len(candidates(problem, method)))
            result = cheapest_plan(problem, method=method, since=since, on_candidate=lambda: progress.advance(task))
        console.print(plan_table(result))
        notes.extend(missed_deadlines(result, problem))
        if since is None and len(problem.jobs) > MANY_JOBS:
            least = least_usd(problem)
            notes.append(
                f"{usd(result.total_usd)}: the best of {len(candidates(problem, method))} plans, for more than "
                f"{MANY_JOBS} jobs. No plan costs less than {usd(least)}, a gap of at most "
                f"{1 - least / result.total_usd if result.total_usd else 0:.0%}."
            )
        notes.extend(note for job in problem.jobs for note in job.notes)
        for note in notes:
            console.print(note, highlight=False)
        if output is not None:
            refused = write_plan(result, problem, output, since)
            names = [path.name + "/" * path.is_dir() for path in sorted(output.iterdir()) if path.name in _WRITTEN]
            console.print(f"Written to {output}: {', '.join(names)}")
            for message in refused:
                console.print(message, style="yellow", highlight=False)
        return result

    def show() -> None:
        console = Console()
        if not console.is_terminal:
            console.width = TEXT_WIDTH
        planned(console)  # prints while the planner runs

    return CommandAnswer(data=lambda: json.loads(plan_json(planned(Console(quiet=True)))) | {"notes": notes}, show=show)
