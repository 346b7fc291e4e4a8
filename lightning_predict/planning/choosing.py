"""The plan to recommend: every way to plan is simulated to the end, and the cheapest plan within the budget wins.

A decision looks ahead as far as the next events; which formulation that serves best depends on the jobs. A busy queue
gains from shared machines and from moving jobs; a few long runs that nothing follows are better off alone, because a
shared machine is paid to the end of its last job. With all jobs known, simulating each is quick, and tells. Example::

    plan = cheapest_plan(problem)
    plan.policy, plan.total_usd
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

from lightning_predict.errors import InfeasiblePlanError
from lightning_predict.planning.baselines import BASELINES, SHARING_BASELINES
from lightning_predict.planning.plans import Plan
from lightning_predict.planning.policies import PLANNERS, policy
from lightning_predict.planning.records import AbstractPolicy, Formulation, Problem
from lightning_predict.planning.simulation import simulate
from lightning_predict.planning.validation import check_problem


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to plan: a policy, and the freedom that it is given."""

    policy: AbstractPolicy
    formulation: Formulation

    @property
    def name(self) -> str:
        """The policy, and what it may not do."""
        limits = [
            words
            for allowed, words in (
                (self.formulation.shares_gpus, "a machine a job"),
                (self.formulation.preempts or self.formulation.migrates, "no moves"),
            )
            if not allowed
        ]
        is_rule = self.policy in (*BASELINES, *SHARING_BASELINES)
        return self.policy.name if is_rule or not limits else f"{self.policy.name} ({', '.join(limits)})"


def candidates(problem: Problem, planner: str) -> tuple[Candidate, ...]:
    """The planner with all, less and least of the freedom that the problem allows, and the queue rules.

    Args:
        problem: Whose formulation is the most that is allowed.
        planner: `milp` or `heuristic`.
    """
    most = problem.formulation
    formulations = [
        replace(most, shares_gpus=shares, preempts=moves and most.preempts, migrates=moves and most.migrates)
        for shares in (most.shares_gpus, False)
        for moves in (True, False)
    ]
    rules = (*BASELINES, *SHARING_BASELINES) if most.shares_gpus else BASELINES
    return (
        *(Candidate(policy(planner), formulation) for formulation in dict.fromkeys(formulations)),
        *(Candidate(rule, most) for rule in rules),
    )


def cheapest_plan(problem: Problem, *, method: str = "milp", on_candidate: Callable[[], None] | None = None) -> Plan:
    """The cheapest of all candidates' plans that keeps the budget; of equals, the first.

    Args:
        problem: Jobs, machines and limits.
        method: `milp` or `heuristic`; or a queue rule, which is then the only candidate.
        on_candidate: Called after each candidate, for a progress bar.

    Raises:
        InfeasiblePlanError: The problem has no plan, or none was found within the budget.
        InvalidArgumentError: The problem is malformed, or there is no such method.
        MissingDependencyError: `milp` without SciPy.
    """
    check_problem(problem)
    plans = []
    for candidate in candidates_of(problem, method):
        try:
            plan = simulate(replace(problem, formulation=candidate.formulation), candidate.policy)
        except InfeasiblePlanError:  # its budget was spent before all jobs had started
            plan = None
        if plan is not None:
            plans.append(replace(plan, policy=candidate.name))
        if on_candidate is not None:
            on_candidate()
    return _cheapest(problem, plans)


def candidates_of(problem: Problem, method: str) -> tuple[Candidate, ...]:
    """All candidates of a planner; a queue rule is the only one of its method."""
    return candidates(problem, method) if method in PLANNERS else (Candidate(policy(method), problem.formulation),)


def _cheapest(problem: Problem, plans: Sequence[Plan]) -> Plan:
    budget = problem.limits.budget_usd
    affordable = [plan for plan in plans if budget is None or plan.machine_usd <= budget]
    if affordable:
        return min(affordable, key=lambda plan: plan.total_usd)
    found = min((plan.machine_usd for plan in plans), default=None)
    least = "none starts all jobs" if found is None else f"the cheapest that was found costs ${found:.2f}"
    raise InfeasiblePlanError(f"No plan keeps the budget of ${budget}: {least}. Raise the budget, or take jobs out.")
