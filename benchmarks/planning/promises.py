"""Check the promises of plans on random problems with uncertain times: expected cost, and probability of deadlines.

Each plan is evaluated with times that were not drawn for planning. Machines and numbers of GPUs are few, so a plan may
keep a deadline more often than was asked. Example::

    python -m benchmarks.planning.promises --problems 100
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.planning.optimum import RULE_NAMES
from benchmarks.planning.study import random_problem
from benchmarks.result_files import ResultConsole, write_run
from benchmarks.training.report import report_table
from lightning_predict.planning.expected_cost import Draws, plan_outlook, time_draws
from lightning_predict.planning.policies import PREDICTED_TIMES, cheapest_plan
from lightning_predict.planning.problem import Configuration, Limits, PlanningProblem

JOBS: Final = (2, 3, 4, 5, 6, 8)  # Numbers of jobs of the problems, one after another
ERROR: Final = 0.3  # Half width of the 90 % interval of each job's times, as a share of the predicted time
PROBABILITY: Final = 0.9  # Requested probability of each deadline

FRESH: Final = " (fresh draws)"

WIDTH: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Results of one problem, with fresh draws."""

    plan_usd: float  # Expected cost of the plan without a required probability
    rule_usd: Mapping[str, float]  # Expected cost of each queue rule, by name
    in_time: Mapping[str, float]  # Probability of each deadline
    asked: Mapping[str, float]  # The plan's own probability of each deadline

    @property
    def kept(self) -> tuple[float, ...]:
        """Probability, with fresh draws, of the deadlines that the plan promises."""
        return tuple(chance for name, chance in self.in_time.items() if self.asked[name] >= PROBABILITY)


def problem_of(seed: int) -> PlanningProblem:
    """Return a random problem with uncertain times."""
    whole = random_problem(nodes=1, mean_gap_seconds=2000, seed=1000 + seed, error=ERROR, setting="clouds")
    jobs = whole.jobs[: JOBS[seed % len(JOBS)]]
    return replace(whole, jobs=jobs, limits=Limits(nodes=1 + seed % 3), probability=PROBABILITY)


def fresh_draws(problem: PlanningProblem) -> dict[str, Mapping[Configuration, Draws]]:
    """Return draws of other random numbers than the planner's, whose seed is the name of the job."""
    renamed = replace(problem, jobs=tuple(replace(job, name=job.name + FRESH) for job in problem.jobs))
    return {name.removesuffix(FRESH): own for name, own in time_draws(renamed, None).items()}


def promise_of(problem: PlanningProblem) -> Promise:
    """Plan a problem, and evaluate the plan and the queue rules with fresh draws."""
    draws, plan = fresh_draws(problem), cheapest_plan(problem)
    by_cost = replace(problem, probability=PREDICTED_TIMES)  # deadlines only cost money
    assert plan.outlook is not None
    return Promise(
        plan_usd=plan_outlook(cheapest_plan(by_cost), problem, draws).usd,
        rule_usd={name: plan_outlook(cheapest_plan(by_cost, method=name), problem, draws).usd for name in RULE_NAMES},
        in_time=plan_outlook(plan, problem, draws).in_time,
        asked=plan.outlook.in_time,
    )


def report(found: Sequence[Promise]) -> Table:
    """Return the table of expected costs relative to each rule, and of kept deadlines."""
    table = report_table(
        "Plans by expected cost, evaluated with fresh draws",
        ("compared with",),
        ("n", "dearer by over 1 %", "mean saving %", "least saving %"),
    )
    for name in RULE_NAMES:
        ratios = [plan.plan_usd / plan.rule_usd[name] for plan in found]
        table.add_row(
            name,
            str(len(ratios)),
            str(sum(ratio > 1.01 for ratio in ratios)),
            f"{100 * (1 - statistics.mean(ratios)):.1f}",
            f"{100 * (1 - max(ratios)):+.1f}",
        )
    return table


def deadlines(found: Sequence[Promise]) -> Table:
    """Return the table of deadlines."""
    every = sum(len(plan.in_time) for plan in found)
    table = report_table(
        "Deadlines that plans promise with 90 %", ("deadlines",), ("n", "mean chance %", "least %", "below 85 %")
    )
    table.add_row(f"promised, of {every}", *_cells([chance for plan in found for chance in plan.kept]))
    return table


def _cells(chances: Sequence[float]) -> tuple[str, ...]:
    if not chances:
        return ("0", "-", "-", "-")
    late = sum(chance < 0.85 for chance in chances)
    return (str(len(chances)), f"{100 * statistics.mean(chances):.1f}", f"{100 * min(chances):.1f}", str(late))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.planning.promises", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--problems", type=int, default=100, help="number of problems (default: %(default)s)")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    console = ResultConsole(width=WIDTH)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        promises = [promise_of(problem_of(seed)) for seed in progress.track(range(options.problems))]
        console.print(report(promises))
        console.print(deadlines(promises))
    write_run(console, "promises", options.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
