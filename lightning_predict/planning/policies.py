"""Planning policies by name, and the recommended plan: the cheapest after simulating each policy to the end.

A decision looks ahead only to the next events. The best freedom (sharing, pausing, moving) and horizon depend on the
jobs. With a busy queue, plans gain from shared machines and from moving jobs. A few long runs are cheaper with a long
horizon, because a shared machine is paid until its last job ends. All jobs are known, so each policy can be simulated
quickly and compared, also with the plans of `annealing.py`. Among plans of almost equal cost, the one with the fewest
moves is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Final

from lightning_predict.base.errors import InfeasiblePlanError, InvalidArgumentError
from lightning_predict.base.ties import NEGLIGIBLE, least
from lightning_predict.base.units import seconds_to_hours
from lightning_predict.planning.annealing import annealed_schedule
from lightning_predict.planning.expected_cost import DRAWS, is_uncertain, plan_outlook, time_draws
from lightning_predict.planning.milp import MilpPlanner
from lightning_predict.planning.objective import INTERVAL_PROBABILITY
from lightning_predict.planning.problem import (
    AbstractPolicy,
    Formulation,
    Plan,
    PlanningProblem,
    PlanOutlook,
    PlanState,
)
from lightning_predict.planning.queues import BASELINES, QUEUE_RULES
from lightning_predict.planning.simulator import simulate
from lightning_predict.planning.validation import check_problem

POLICIES: Final[dict[str, AbstractPolicy]] = {
    "milp": MilpPlanner(),
    **{rule.name.lower().replace(" ", "-"): rule for rule in QUEUE_RULES},
}


def policy(name: str) -> AbstractPolicy:
    """Return the policy with this name: `milp`, `fifo`, `edf`, `ps`, `fifo-shared`, `edf-shared`, `ps-shared`.

    Raises:
        InvalidArgumentError: The name is unknown.
    """
    if name not in POLICIES:
        raise InvalidArgumentError(f"There is no policy {name!r}; known: {', '.join(POLICIES)}.")
    return POLICIES[name]


HORIZON_FACTORS: Final = (0.25, 0.5, 1.0, 2.0)
"""Horizons to try in addition to the planner's own horizon, relative to the median run time of the jobs."""


PREDICTED_TIMES: Final = 0.5  # Probability at which a deadline is checked against the predicted times themselves
SAME_PROBABILITY: Final = 1 / DRAWS  # Probabilities within one draw count as equal
MANY_JOBS: Final = 200  # Jobs above which a plan is the best of four instead of twenty: 1,000 take a minute
HARD_DEADLINES: Final = 1000.0  # Weight of tardiness for plans that keep deadlines at any price
ONE_DECISION_SECONDS: Final = 1e9  # Time between decisions, if only a submission or the end of a job can change them


@dataclass(frozen=True, slots=True)
class PlanCandidate:
    """Planning method to try: a policy with its settings."""

    policy: AbstractPolicy
    formulation: Formulation
    horizon_seconds: float | None  # Horizon of the policy. If None, the horizon is derived from the events.

    def applied_to(self, problem: PlanningProblem) -> PlanningProblem:
        """Return the problem with the candidate's freedom and horizon."""
        return replace(problem, formulation=self.formulation, horizon_seconds=self.horizon_seconds)

    @property
    def name(self) -> str:
        """Name of the policy and its restrictions."""
        limits = [
            words
            for allowed, words in (
                (self.formulation.shares_gpus, "a machine a job"),
                (self.formulation.preempts or self.formulation.migrates, "no moves"),
                (self.horizon_seconds is None, f"{seconds_to_hours(self.horizon_seconds or 0.0):.2g} h ahead"),
            )
            if not allowed
        ]
        is_rule = self.policy in QUEUE_RULES
        return self.policy.name if is_rule or not limits else f"{self.policy.name} ({', '.join(limits)})"


def candidates(problem: PlanningProblem, method: str) -> tuple[PlanCandidate, ...]:
    """Return the planner with and without moves, and the queue rules; a queue rule alone if named."""
    most, own = problem.formulation, problem.horizon_seconds
    planner = policy(method)
    if planner in QUEUE_RULES:
        return (PlanCandidate(planner, most, own),)
    typical = median(job.fastest_seconds for job in problem.jobs)
    least = replace(most, preempts=False, migrates=False)
    rules = QUEUE_RULES if most.shares_gpus else BASELINES
    if len(problem.jobs) > MANY_JOBS:
        return (PlanCandidate(planner, least, own), *(PlanCandidate(rule, most, own) for rule in rules[-3:]))
    horizons = (own, *(factor * typical for factor in HORIZON_FACTORS))
    ways = [(formulation, horizon) for formulation in (most, least) for horizon in horizons]
    ways += [(replace(formulation, shares_gpus=False), own) for formulation in (most, least)]
    return (
        *(PlanCandidate(planner, formulation, horizon) for formulation, horizon in dict.fromkeys(ways)),
        *(PlanCandidate(rule, most, own) for rule in rules),
    )


def cheapest_plan(
    problem: PlanningProblem,
    *,
    method: str = "milp",
    since: PlanState | None = None,
    on_candidate: Callable[[], None] | None = None,
) -> Plan:
    """Return the cheapest plan within the budget. Among plans of nearly equal cost, the one with the fewest moves wins.

    Args:
        problem: Jobs, machines and limits.
        method: `milp`, or the name of a queue rule, which is then the only candidate.
        since: Progress of the plan. If None, plan from the beginning (see `simulate`).
        on_candidate: Called after each candidate, for a progress bar.

    Raises:
        InfeasiblePlanError: The problem has no plan, or none was found within the budget.
        InvalidArgumentError: The problem or the situation is malformed, or the method is unknown.
        MissingDependencyError: The method is `milp`, and SciPy is not installed.
    """
    check_problem(problem)
    outlook = partial(plan_outlook, problem=problem, draws=time_draws(problem, since))
    plans = []
    for candidate in candidates(problem, method):
        try:
            plan = simulate(candidate.applied_to(problem), candidate.policy, since=since)
        except InfeasiblePlanError:  # the budget was spent before all jobs had started
            plan = None
        if plan is not None:
            plans.append(replace(plan, policy=candidate.name, outlook=outlook(plan)))
        if on_candidate is not None:
            on_candidate()
    if policy(method) not in QUEUE_RULES and len(problem.jobs) <= MANY_JOBS:
        plans += _annealed_plans(problem, since, outlook)
    return _cheapest(problem, plans, spent_usd=0.0 if since is None else since.spent_usd)


def _annealed_plans(
    problem: PlanningProblem, since: PlanState | None, outlook: Callable[[Plan], PlanOutlook]
) -> list[Plan]:
    """Return plans of simulated annealing: by predicted times, by their upper ends, and with deadlines at any price."""
    ways = [(1.0, problem.probability)]
    if any(map(is_uncertain, problem.jobs)):
        ways.append((1.0, INTERVAL_PROBABILITY))
    if problem.probability > PREDICTED_TIMES:
        ways.append((HARD_DEADLINES, problem.probability))
    plans = []
    for factor, probability in ways:
        own = replace(problem, tardiness_factor=factor, probability=probability, period_seconds=ONE_DECISION_SECONDS)
        schedule = annealed_schedule(own, since)
        if schedule is not None:
            with suppress(InfeasiblePlanError):
                plan = simulate(own, schedule, since=since)
                plans.append(replace(plan, outlook=outlook(plan)))
    return plans


def _cheapest(problem: PlanningProblem, plans: Sequence[Plan], *, spent_usd: float) -> Plan:
    affordable = _affordable(problem, plans, spent_usd=spent_usd)
    if affordable:
        safe = _safest(affordable, problem.probability)
        enough = (1 + NEGLIGIBLE) * min(map(_usd, safe))
        good = [plan for plan in safe if _usd(plan) <= enough]
        fewest = min(len(plan.segments) for plan in good)
        early = sorted(good, key=lambda plan: sum(outcome.end_seconds for outcome in plan.outcomes))
        return least((plan for plan in early if len(plan.segments) == fewest), _usd)
    lowest = min((plan.machine_usd for plan in plans), default=None)
    cheapest = "none starts all jobs" if lowest is None else f"the cheapest that was found costs ${lowest:.2f}"
    raise InfeasiblePlanError(
        f"No plan keeps the budget of ${_budget(problem, spent_usd):g}: {cheapest}. Raise the budget, or take jobs out."
    )


def _affordable(problem: PlanningProblem, plans: Sequence[Plan], *, spent_usd: float) -> list[Plan]:
    return [plan for plan in plans if plan.machine_usd <= _budget(problem, spent_usd)]


def _budget(problem: PlanningProblem, spent_usd: float) -> float:
    return math.inf if problem.limits.budget_usd is None else problem.limits.budget_usd - spent_usd


def _usd(plan: Plan) -> float:
    return plan.total_usd if plan.outlook is None else plan.outlook.usd


def _safest(plans: Sequence[Plan], probability: float) -> list[Plan]:
    """Return the plans that meet all deadlines with the probability; if none does, the plans that come closest.

    A probability of 0.5 uses the predicted times, so tardiness only costs money.
    """
    if probability <= PREDICTED_TIMES:
        return list(plans)
    missing = [0.0 if plan.outlook is None else plan.outlook.shortfall(probability) for plan in plans]
    enough = min(missing) + SAME_PROBABILITY
    return [plan for plan, lacks in zip(plans, missing, strict=True) if lacks <= enough]
