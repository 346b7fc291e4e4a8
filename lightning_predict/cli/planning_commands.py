"""`plan` and `simulate`: which job runs where and when, and how good that is.

Example::

    lightning-predict plan jobs.yaml --output plan
    lightning-predict simulate study.yaml --output study --workers -1
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lightning_predict.cli.answers import Answer, json_value

if TYPE_CHECKING:
    from rich.console import Console

FILE_WIDTH: Final = 120
"""Columns of tables that are not printed on a terminal."""


def plan(jobs: Path, *, output: Path | None = None, method: str = "milp", state: Path | None = None) -> Answer:
    """Plan the jobs of a team on machines to rent: cheapest within deadlines and a budget.

    The file lists machines, limits and jobs, whose times are stated or come from a recorded step each. Needs the extra
    `planning`.

    Args:
        jobs: A YAML file of machines, limits and jobs.
        output: Folder to write the plan, its chart, SkyPilot tasks and Slurm scripts to.
        method: How to plan: milp, or a queue rule such as fifo or edf.
        state: A YAML file that says how far a running plan is; what comes next is planned again.
    """
    from rich.console import Console

    from lightning_predict.planning.commands import plan as plan_jobs
    from lightning_predict.planning.exports import plan_json
    from lightning_predict.planning.plan import Plan

    def planned(console: Console) -> Plan:
        return plan_jobs(jobs, output=output, method=method, state=state, console=console)

    return Answer(
        data=lambda: json.loads(plan_json(planned(Console(quiet=True)))),
        show=lambda: _ignored(planned(_terminal())),  # it prints while it runs
    )


def simulate(study: Path, *, output: Path | None = None, workers: int | None = None) -> Answer:
    """Compare ways of planning on random jobs, with real times that differ from the predicted ones.

    Needs the extra `planning`.

    Args:
        study: A YAML file of settings; an empty one takes the defaults.
        output: Folder to write all runs and the figure to.
        workers: Processes, -1 for all cores.
    """
    from rich.console import Console

    from lightning_predict.planning.commands import simulate as run_study
    from lightning_predict.planning.study import StudyRun, compare

    def simulated(console: Console) -> tuple[StudyRun, ...]:
        return run_study(study, output=output, workers=workers, console=console)

    def data() -> object:
        runs = simulated(Console(quiet=True))
        return {"comparisons": json_value(compare(runs)), "runs": json_value(runs)}

    return Answer(data=data, show=lambda: _ignored(simulated(_terminal())))


def _terminal() -> Console:
    """Open the standard output, wide enough for the tables where it is a file."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = FILE_WIDTH
    return console


def _ignored(_: object) -> None:
    """Drop a value that was only wanted for what it printed on the way."""
