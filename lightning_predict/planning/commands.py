"""Commands `plan` and `simulate`: schedule jobs on rented machines, and evaluate such a plan.

Example::

    lightning-predict plan jobs.yaml --output plan
    lightning-predict simulate jobs.yaml --replay plan/plan.json --off 0.8,1,1.5
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lightning_predict.base.answers import CommandAnswer, aligned, json_value
from lightning_predict.base.errors import InvalidArgumentError

if TYPE_CHECKING:
    from rich.console import Console

_WRITTEN: Final = ("plan.json", "gantt.html", "sky", "slurm")

FILE_WIDTH: Final = 120
"""Width of tables if the output is not a terminal."""


def plan(jobs: Path, *, output: Path | None = None, method: str = "milp", state: Path | None = None) -> CommandAnswer:
    """Plan the jobs of a team on machines to rent: lowest cost within deadlines and a budget.

    The file lists machines, limits and jobs. The time of a job is stated in the file, or predicted from a recorded
    step. The command needs the extra `planning`.

    Args:
        jobs: A YAML file of machines, limits and jobs.
        output: Folder to write the plan, its chart, SkyPilot tasks and Slurm scripts to.
        method: Planner: milp, or a queue rule such as fifo or edf.
        state: Progress of a running plan, whose remaining work is planned again: a YAML file, or a folder with progress
            files of RuntimePredictor.
    """
    from rich.console import Console

    from lightning_predict.planning.expected_cost import missed_deadlines
    from lightning_predict.planning.exports import plan_json
    from lightning_predict.planning.files import read_problem, read_progress_of, read_situation
    from lightning_predict.planning.gantt_chart import plan_table
    from lightning_predict.planning.plan_folder import write_plan
    from lightning_predict.planning.policies import candidates, cheapest_plan
    from lightning_predict.planning.problem import Plan

    notes: list[str] = []

    def planned(console: Console) -> Plan:
        problem = read_problem(jobs)
        since = None
        if state is not None:
            is_folder = state.is_dir()
            since = read_progress_of(state, problem, now=time.time()) if is_folder else read_situation(state, problem)
        with _progress(console, "ways to plan", len(candidates(problem, method))) as advance:
            result = cheapest_plan(problem, method=method, since=since, on_candidate=advance)
        console.print(plan_table(result))
        notes.extend(missed_deadlines(result, problem))
        notes.extend(note for job in problem.jobs for note in job.notes)
        for note in notes:
            console.print(note, highlight=False)
        if output is not None:
            refused = write_plan(result, problem, output, since)
            names = [one.name + "/" * one.is_dir() for one in sorted(output.iterdir()) if one.name in _WRITTEN]
            console.print(f"Written to {output}: {', '.join(names)}")
            for words in refused:
                console.print(words, style="yellow", highlight=False)
        return result

    return CommandAnswer(
        data=lambda: json.loads(plan_json(planned(Console(quiet=True)))) | {"notes": notes},
        show=lambda: _ignored(planned(_terminal())),  # the command prints while the planner runs
    )


def simulate(jobs: Path, *, replay: Path | None = None, off: str | None = None, again: int = 0) -> CommandAnswer:
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
    from lightning_predict.planning.exports import read_plan
    from lightning_predict.planning.files import read_problem
    from lightning_predict.planning.policies import cheapest_plan
    from lightning_predict.planning.replay import evenly, likely_factors, replay, slowed
    from lightning_predict.reports.format import duration, share, significant, usd

    problem, segments = read_problem(jobs), read_plan(plan_file)
    factors = likely_factors() if off is None else _factors(off)
    replanned = dict.fromkeys(evenly(segments, again), cheapest_plan)
    found = {
        factor: replay(segments, problem, slowed(problem, {job.name: factor for job in problem.jobs}), again=replanned)
        for factor in factors
    }
    headers = ["real / predicted", "machines", "late", "total", "deadlines kept", "work lost", "moves"]
    rows = [
        [
            significant(factor),
            usd(one.machine_usd),
            usd(one.tardiness_usd),
            usd(one.total_usd),
            share(one.kept_deadlines),
            duration(one.lost_seconds) if one.lost_seconds else "none",
            str(sum(job.moves for job in one.jobs)),
        ]
        for factor, one in found.items()
    ]
    late = {job.job: factor for factor, one in found.items() for job in one.jobs if not job.is_in_time}
    said = [f"{name} misses its deadline at {significant(factor)}." for name, factor in sorted(late.items())]
    lines = [aligned(headers, rows, right=range(len(headers))), *([""] if said else []), *said]
    return CommandAnswer(
        data=lambda: {"replays": [{"factor": factor, **json_value(one)} for factor, one in found.items()]},
        show=lambda: print("\n".join(lines)),
    )


def _factors(off: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in off.split(","))
    except ValueError:
        raise InvalidArgumentError(f"--off {off} is no list of factors; expected for example 0.8,1,1.5.") from None


@contextmanager
def _progress(console: Console, what: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar on a terminal, and yield a function that advances it by one."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def _terminal() -> Console:
    """Return a console for standard output, at least `FILE_WIDTH` wide if the output is not a terminal."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = FILE_WIDTH
    return console


def _ignored(_: object) -> None:
    """Ignore the result of a computation that has already printed its output."""
