"""Check the promises of plans on random problems with uncertain times: expected cost, and probability of deadlines.

Each plan is evaluated with times that were not drawn for planning. Machines and numbers of GPUs are few, so a plan may
keep a deadline more often than was asked. The next cheaper plan, which differs in one job, tells whether it must: a
deadline decides if that plan keeps it less often than asked. Example::

    python -m benchmarks.planning.promises --problems 100
    python -m benchmarks.planning.promises --cheaper --problems 40
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
from lightning_predict.planning.local_search import changed_plans
from lightning_predict.planning.policies import PREDICTED_TIMES, cheapest_plan
from lightning_predict.planning.problem import Configuration, Limits, Plan, PlanningProblem, PlanOutlook

JOBS: Final = (2, 3, 4, 5, 6, 8)  # Numbers of jobs of the problems, one after another
ERROR: Final = 0.3  # Half width of the 90 % interval of each job's times, as a share of the predicted time
PROBABILITY: Final = 0.9  # Requested probability of each deadline

CHEAP_USD_PER_HOUR: Final = 0.01
"""Cost of lateness of each job, so small that a plan keeps a deadline only because of the requested probability."""

CHEAPER: Final = 0.999  # A plan is cheaper if its expected cost is below this share of the other plan's

FRESH: Final = " (fresh draws)"

WIDTH: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Results of one problem, with fresh draws."""

    plan_usd: float  # Expected cost of the plan without a required probability
    rule_usd: Mapping[str, float]  # Expected cost of each queue rule, by name
    in_time: Mapping[str, float]  # Probability of each deadline
    asked: Mapping[str, float]  # The plan's own probability of each deadline
    # Own probability of each deadline in the next cheaper plan; None if no plan is cheaper
    cheaper: Mapping[str, float] | None = None
    falls_short: bool = False  # Whether the next cheaper plan misses the requested probabilities by more than the plan

    @property
    def promised(self) -> tuple[str, ...]:
        """Names of the jobs whose deadlines the plan promises."""
        return tuple(name for name in self.in_time if self.asked[name] >= PROBABILITY)

    @property
    def deciding(self) -> tuple[str, ...]:
        """Promised deadlines that the next cheaper plan does not keep as often as asked."""
        return tuple(name for name in self.promised if self.cheaper is not None and self.cheaper[name] < PROBABILITY)

    @property
    def kept(self) -> tuple[float, ...]:
        """Probability, with fresh draws, of the deadlines that the plan promises."""
        return tuple(self.in_time[name] for name in self.promised)


def problem_of(seed: int, *, is_lateness_cheap: bool = False) -> PlanningProblem:
    """Return a random problem with uncertain times. If lateness is cheap, only the probability keeps deadlines."""
    whole = random_problem(nodes=1, mean_gap_seconds=2000, seed=1000 + seed, error=ERROR, setting="clouds")
    jobs = whole.jobs[: JOBS[seed % len(JOBS)]]
    if is_lateness_cheap:
        jobs = tuple(replace(job, tardiness_usd_per_hour=CHEAP_USD_PER_HOUR) for job in jobs)
    return replace(whole, jobs=jobs, limits=Limits(nodes=1 + seed % 3), probability=PROBABILITY)


def fresh_draws(problem: PlanningProblem) -> dict[str, Mapping[Configuration, Draws]]:
    """Return draws of other random numbers than the planner's, whose seed is the name of the job."""
    renamed = replace(problem, jobs=tuple(replace(job, name=job.name + FRESH) for job in problem.jobs))
    return {name.removesuffix(FRESH): own for name, own in time_draws(renamed, None).items()}


def promise_of(problem: PlanningProblem, rules: Sequence[str] = RULE_NAMES) -> Promise:
    """Plan a problem, and evaluate the plan and the queue rules with fresh draws."""
    draws, plan = fresh_draws(problem), cheapest_plan(problem)
    by_cost = replace(problem, probability=PREDICTED_TIMES)  # deadlines only cost money
    cheaper = next_cheaper(problem, plan)
    return Promise(
        plan_usd=plan_outlook(cheapest_plan(by_cost) if rules else plan, problem, draws).usd,
        rule_usd={name: plan_outlook(cheapest_plan(by_cost, method=name), problem, draws).usd for name in rules},
        in_time=plan_outlook(plan, problem, draws).in_time,
        asked=_own(plan).in_time,
        cheaper=None if cheaper is None else cheaper.in_time,
        falls_short=cheaper is not None and cheaper.shortfall(PROBABILITY) > _own(plan).shortfall(PROBABILITY),
    )


def next_cheaper(problem: PlanningProblem, plan: Plan) -> PlanOutlook | None:
    """Return the outlook of the dearest of the cheaper plans that differ in one job; None without."""
    draws = time_draws(problem, None)
    others = map(_own, changed_plans(plan, problem, lambda other: plan_outlook(other, problem, draws)))
    cheaper = [other for other in others if other.usd < CHEAPER * _own(plan).usd]
    return max(cheaper, key=lambda other: other.usd, default=None)


def _own(plan: Plan) -> PlanOutlook:
    assert plan.outlook is not None
    return plan.outlook


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


def decisions(found: Mapping[str, Sequence[Promise]]) -> Table:
    """Return the table of promised deadlines by the chance of the next cheaper plan, and by the cost of lateness."""
    table = report_table(
        "Promised deadlines, by the next cheaper plan",
        ("lateness", "deadlines"),
        ("n", "mean chance %", "least %", "below 85 %"),
    )
    for lateness, own in found.items():
        free = [plan.in_time[name] for plan in own if plan.cheaper is None for name in plan.promised]
        deciding = [plan.in_time[name] for plan in own for name in plan.deciding]
        rest = [plan.in_time[name] for plan in own if plan.cheaper for name in set(plan.promised) - set(plan.deciding)]
        for name, chances in (
            ("all", [chance for plan in own for chance in plan.kept]),
            ("no plan is cheaper", free),
            ("missed by the next cheaper plan", deciding),
            ("kept by the next cheaper plan, too", rest),
        ):
            table.add_row(lateness, name, *_cells(chances))
        table.add_section()
    return table


def _cells(chances: Sequence[float]) -> tuple[str, ...]:
    if not chances:
        return ("0", "-", "-", "-")
    late = sum(chance < 0.85 for chance in chances)
    return (str(len(chances)), f"{100 * statistics.mean(chances):.1f}", f"{100 * min(chances):.1f}", str(late))


def tightness(found: Mapping[str, Sequence[Promise]]) -> Table:
    """Return the table of plans: how many have a cheaper plan, and how many of these keep no promise with it."""
    table = report_table(
        "Plans that promise deadlines, and the next cheaper plan",
        ("lateness",),
        ("plans", "no plan is cheaper", "misses a promise", "misses another deadline more", "keeps as much"),
    )
    for lateness, own in found.items():
        plans = [plan for plan in own if plan.promised]
        cheaper = [plan for plan in plans if plan.cheaper is not None]
        missed = sum(bool(plan.deciding) for plan in cheaper)
        more = sum(plan.falls_short and not plan.deciding for plan in cheaper)
        numbers = (len(plans), len(plans) - len(cheaper), missed, more, len(cheaper) - missed - more)
        table.add_row(lateness, *map(str, numbers))
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.planning.promises", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--problems", type=int, default=100, help="number of problems (default: %(default)s)")
    parser.add_argument("--cheaper", action="store_true", help="compare with the next cheaper plan, without the rules")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    console = ResultConsole(width=WIDTH)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        if options.cheaper:
            plans = {
                lateness: [
                    promise_of(problem_of(seed, is_lateness_cheap=is_cheap), rules=())
                    for seed in progress.track(range(options.problems), description=lateness)
                ]
                for lateness, is_cheap in (("costs money", False), ("is cheap", True))
            }
            console.print(decisions(plans))
            console.print(tightness(plans))
        else:
            promises = [promise_of(problem_of(seed)) for seed in progress.track(range(options.problems))]
            console.print(report(promises))
            console.print(deadlines(promises))
    write_run(console, "promises-cheaper" if options.cheaper else "promises", options.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
