"""Commands `plan` and `simulate`: schedule jobs on rented machines, and evaluate such a plan.

Example::

    lightning-predict plan jobs.yaml --output plan
    lightning-predict simulate jobs.yaml --replay plan/plan.json --off 0.8,1,1.5
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lightning_predict.base.answers import TEXT_WIDTH, CommandAnswer, aligned, json_value
from lightning_predict.base.errors import InvalidArgumentError, MissingDependencyError
from lightning_predict.base.files import named_file
from lightning_predict.planning.expected_cost import missed_deadlines
from lightning_predict.planning.exports import plan_json, read_plan, write_plan
from lightning_predict.planning.files import read_problem, read_situation
from lightning_predict.planning.gantt_chart import plan_table
from lightning_predict.planning.milp import least_usd_of_nodes
from lightning_predict.planning.objective import least_usd
from lightning_predict.planning.policies import MANY_JOBS, candidates, cheapest_plan
from lightning_predict.planning.problem import Plan
from lightning_predict.planning.replay import evenly, likely_factors, replay, slowed
from lightning_predict.reports.format import duration, share, significant, usd

_WRITTEN: Final = ("plan.json", "gantt.html", "sky", "slurm")


def plan(
    jobs: Path, /, *, output: Path | None = None, method: str = "milp", state: Path | None = None
) -> CommandAnswer:
    """Plan the jobs of a team on machines to rent: lowest cost within deadlines and a budget.

    The file lists machines, limits and jobs. The time of a job is stated in the file, or predicted from a recorded
    step. The command needs the extra `planning`.

    Args:
        jobs: A YAML file of machines, limits and jobs.
        output: Folder to write the plan, its chart, SkyPilot tasks and Slurm scripts to.
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
            with suppress(MissingDependencyError):  # queue rules work without SciPy
                least = max(least, least_usd_of_nodes(problem))
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


def simulate(jobs: Path, /, *, replay: Path | None = None, off: str | None = None, again: int = 0) -> CommandAnswer:
    """Simulate a plan with actual times that differ from the predicted times.

    The command needs the extra `planning`.

    Args:
        jobs: The YAML file of machines, limits and jobs that the plan was made from.
        replay: The plan.json that `plan --output` wrote for these jobs.
        off: Ratio of actual to predicted time, for all jobs; several values separated by commas (default: typical
            prediction errors).
        again: Number of times to plan the remaining work again, at equal intervals, as `plan --state` would.
    """
    if replay is None:
        raise InvalidArgumentError(
            "simulate carries out a plan: name it with --replay plan/plan.json. Studies that compare planners on "
            "random jobs are python -m benchmarks.planning STUDY.yaml, in a clone of the repository."
        )
    return _replayed(jobs, replay, off, again)


def _replayed(jobs: Path, plan_file: Path, off: str | None, again: int) -> CommandAnswer:
    """Simulate a plan once per factor, which applies to all jobs, and return the outcomes."""
    if again < 0:
        raise InvalidArgumentError(f"--again {again} cannot be; expected 0 or more times.")
    problem, segments = read_problem(named_file(jobs)), read_plan(plan_file)
    replanned = dict.fromkeys(evenly(segments, again), cheapest_plan)
    try:
        factors = likely_factors() if off is None else [float(word) for word in off.split(",")]
    except ValueError:
        raise InvalidArgumentError(f"--off {off} is no list of factors; expected for example 0.8,1,1.5.") from None
    replays = {
        factor: replay(segments, problem, slowed(problem, {job.name: factor for job in problem.jobs}), again=replanned)
        for factor in factors
    }
    headers = ["real / predicted", "machines", "late", "total", "deadlines kept", "work lost", "moves"]
    rows = [
        [
            significant(factor),
            usd(outcome.machine_usd),
            usd(outcome.tardiness_usd),
            usd(outcome.total_usd),
            share(outcome.kept_deadlines),
            duration(outcome.lost_seconds) if outcome.lost_seconds else "none",
            str(sum(job.moves for job in outcome.jobs)),
        ]
        for factor, outcome in replays.items()
    ]
    late = {job.job: factor for factor, outcome in replays.items() for job in outcome.jobs if not job.is_in_time}
    missed = [f"{name} misses its deadline at {significant(factor)}." for name, factor in sorted(late.items())]
    lines = [aligned(headers, rows, right=range(len(headers))), *([""] if missed else []), *missed]
    return CommandAnswer(
        data=lambda: {"replays": [{"factor": factor, **json_value(outcome)} for factor, outcome in replays.items()]},
        show=lambda: print("\n".join(lines)),
    )
