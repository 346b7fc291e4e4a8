"""Compare plans with the optimum of CP-SAT (OR-tools) on random problems: the difference, and the lower bound.

The jobs have exact times and no checkpoint, so no plan moves a job. CP-SAT and simulated annealing know all jobs in
advance, and can hold a job back for a later one. The MILP and the queue rules know the submitted jobs only. In a second
set of the same jobs, all are submitted at the start. Needs `pip install ortools`. Example::

    python -m benchmarks.planning.optimum --problems 50 --seconds 4
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.planning.study import random_problem
from benchmarks.result_files import ResultConsole, write_run
from benchmarks.training.report import report_table
from lightning_predict.planning.policies import POLICIES, cheapest_plan
from lightning_predict.planning.problem import Configuration, Job, Limits, PlanningProblem
from lightning_predict.planning.queues import QUEUE_RULES

JOBS: Final = (2, 3, 4, 5, 6, 8, 12, 20)  # Numbers of jobs of the problems, one after another

FIRST_SEED: Final = 100
"""Seed of the first problem. The temperatures of simulated annealing were chosen on problems of lower seeds."""

MOST_AT_ONCE: Final = 6  # Most jobs of a problem whose jobs are all submitted at the start
USD_UNITS: Final = 10_000_000  # CP-SAT counts in integers: ten-millionths of a dollar

RULE_NAMES: Final = tuple(name for name, rule in POLICIES.items() if rule in QUEUE_RULES)

HOUR: Final = 3600

WIDTH: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Costs of one problem in dollars."""

    jobs: int  # Number of jobs
    is_at_once: bool  # Whether all jobs are submitted at the start
    plan_usd: float  # Cost of the recommended plan
    rule_usd: float  # Cost of the cheapest queue rule
    found_usd: float  # Cost of the best plan that either found
    bound_usd: float  # Lower bound: CP-SAT's bound, or the cost of all jobs without idle GPUs.
    seconds: float  # Time that the planner took

    @property
    def is_proven(self) -> bool:
        """Whether CP-SAT proved its plan to be optimal, to 0.1 %."""
        return self.found_usd <= 1.001 * self.bound_usd


def problems(number: int) -> Iterator[PlanningProblem]:
    """Yield random problems with exact times, whose jobs cannot move."""
    for seed in range(FIRST_SEED, FIRST_SEED + number):
        jobs = JOBS[seed % len(JOBS)]
        nodes = 1 + seed % 3
        whole = random_problem(nodes=max(nodes, -(-jobs // 10)), mean_gap_seconds=2000, seed=seed, setting="clouds")
        kept = tuple(replace(job, checkpoint=None) for job in whole.jobs[:jobs])
        yield replace(whole, jobs=kept, limits=Limits(nodes=nodes))


def at_once(problem: PlanningProblem) -> PlanningProblem:
    """Return the problem with all jobs submitted at the start, each with the same time until its deadline."""
    jobs = (replace(job, release_seconds=0.0, deadline_seconds=_time_left(job)) for job in problem.jobs)
    return replace(problem, jobs=tuple(jobs))


def _time_left(job: Job) -> float:
    return job.deadline_seconds - job.release_seconds


def optimum(problem: PlanningProblem, *, seconds: float) -> tuple[float, float]:
    """Return the cost of the best plan that CP-SAT finds, and the lower bound that it proves, in dollars.

    The cost is infinite if CP-SAT finds no plan.

    Each rental is named after the first of its jobs. Times are rounded down to whole seconds.

    Args:
        problem: A problem with exact times, shared machines, no moves and no quotas.
        seconds: Time limit.

    Raises:
        ImportError: OR-tools is not installed.
    """
    from ortools.sat.python import cp_model

    model: Any = cp_model.CpModel()
    jobs = problem.jobs
    end = int(max(job.release_seconds for job in jobs) + sum(max(job.seconds.values()) for job in jobs)) + 1
    spans = [(model.new_int_var(int(job.release_seconds), end, ""), model.new_int_var(0, end, "")) for job in jobs]
    choices: list[dict[tuple[int, Configuration], Any]] = [{} for _ in jobs]
    cost, rentals = [], []
    for first in range(len(jobs)):
        usd, rental = _add_rental(model, problem, first, spans, choices, end)
        cost += usd
        rentals.append(rental)
    for own in choices:
        model.add_exactly_one(own.values())
    model.add_cumulative(rentals, [1] * len(rentals), problem.limits.nodes)
    for job, (_, over) in zip(jobs, spans, strict=True):
        late = model.new_int_var(0, end, "")
        model.add(late >= over - int(job.deadline_seconds) - 1)
        cost.append(_units(problem.tardiness_factor * job.tardiness_usd_per_hour) * late)
    model.minimize(sum(cost))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    has_plan = solver.solve(model) in {cp_model.OPTIMAL, cp_model.FEASIBLE}
    best = solver.objective_value / USD_UNITS if has_plan else math.inf
    return best, solver.best_objective_bound / USD_UNITS


def _add_rental(
    model: Any,
    problem: PlanningProblem,
    first: int,
    spans: Sequence[tuple[Any, Any]],
    choices: Sequence[dict[tuple[int, Configuration], Any]],
    end: int,
) -> tuple[list[Any], Any]:
    """Add a rental whose first job has the index `first`; return its costs, by machine type, and its interval."""
    opens, closes, length = (model.new_int_var(0, end, "") for _ in range(3))
    is_rented = model.new_bool_var("")
    is_type = [model.new_bool_var("") for _ in problem.machines]
    model.add(sum(is_type) == is_rented)
    of_first, costs = [], []
    for machine, is_machine in zip(problem.machines, is_type, strict=True):
        price = _units(machine.usd_per_hour)
        intervals, sizes, work = [], [], []
        for index in range(first, len(problem.jobs)):
            start, over = spans[index]
            for configuration, took in sorted(problem.jobs[index].seconds.items()):
                if configuration.machine == machine.name:
                    here = model.new_bool_var("")
                    intervals.append(model.new_optional_interval_var(start, int(took), over, here, ""))
                    sizes.append(configuration.num_gpus)
                    work.append(price * configuration.num_gpus * int(took) * here)
                    model.add_implication(here, is_machine)
                    model.add(opens <= start).only_enforce_if(here)
                    model.add(closes >= over).only_enforce_if(here)
                    choices[index][first, configuration] = here
                    of_first += [here] if index == first else []
        model.add_cumulative(intervals, sizes, machine.num_gpus)
        costs.append(model.new_int_var(0, end * price, ""))
        model.add(machine.num_gpus * costs[-1] >= sum(work))  # implied; it raises the lower bound
        model.add(costs[-1] >= price * length).only_enforce_if(is_machine)
    model.add(sum(of_first) == is_rented)
    return costs, model.new_optional_interval_var(opens, length, closes, is_rented, "")


def _units(usd_per_hour: float) -> int:
    return math.floor(usd_per_hour / HOUR * USD_UNITS)


def work_usd(problem: PlanningProblem) -> float:
    """Return the cost of all jobs without idle GPUs, each on its cheapest configuration: no plan costs less."""
    machines = {machine.name: machine for machine in problem.machines}
    rates = {name: machine.usd_per_hour / machine.num_gpus / HOUR for name, machine in machines.items()}
    return sum(
        min(seconds * one.num_gpus * rates[one.machine] for one, seconds in job.seconds.items()) for job in problem.jobs
    )


def compared(problem: PlanningProblem, *, seconds: float) -> Comparison:
    """Return the costs of one problem."""
    started = time.perf_counter()
    plan = cheapest_plan(problem)
    took = time.perf_counter() - started
    rules = [cheapest_plan(problem, method=name) for name in RULE_NAMES]
    best, proven = optimum(problem, seconds=seconds)
    return Comparison(
        jobs=len(problem.jobs),
        is_at_once=all(job.release_seconds == 0 for job in problem.jobs),
        plan_usd=plan.total_usd,
        rule_usd=min(rule.total_usd for rule in rules),
        found_usd=min(best, plan.total_usd),
        bound_usd=max(proven, work_usd(problem)),
        seconds=took,
    )


def report(found: Sequence[Comparison]) -> Table:
    """Return the table of differences to the optimum, by number of jobs."""
    table = report_table(
        "Cost of the plan above the best that was found, and above the lower bound of CP-SAT",
        ("problems",),
        ("n", "proven", "median %", "mean %", "worst %", "above the bound, mean %", "best rule, mean %", "seconds"),
    )
    later, start = ([row for row in found if row.is_at_once is known] for known in (False, True))
    groups = [(f"{jobs} jobs", [row for row in later if row.jobs == jobs]) for jobs in JOBS]
    for name, rows in (("later", later), ("at once", start)):
        groups += [(f"{name}, proven", [row for row in rows if row.is_proven]), (f"{name}, all", rows)]
    for name, rows in groups:
        if rows:
            above = [100 * (row.plan_usd / row.found_usd - 1) for row in rows]
            table.add_row(
                name,
                str(len(rows)),
                str(sum(row.is_proven for row in rows)),
                *(f"{of(above):.1f}" for of in (statistics.median, statistics.mean, max)),
                f"{statistics.mean(100 * (row.plan_usd / row.bound_usd - 1) for row in rows):.1f}",
                f"{statistics.mean(100 * (row.rule_usd / row.found_usd - 1) for row in rows):.1f}",
                f"{statistics.mean(row.seconds for row in rows):.1f}",
            )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.planning.optimum", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--problems", type=int, default=50, help="number of problems (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="time limit of CP-SAT (default: %(default)s)")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    console = ResultConsole(width=WIDTH)
    rows = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        later = list(problems(options.problems))
        start = [at_once(problem) for problem in later if len(problem.jobs) <= MOST_AT_ONCE]
        for problem in progress.track([*later, *start]):
            rows.append(compared(problem, seconds=options.seconds))  # noqa: PERF401 - one progress step each
    console.print(report(rows))
    write_run(console, "optimum", options.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
