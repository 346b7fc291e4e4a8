"""Improves a finished plan job by job: another machine, another number of GPUs, an earlier start, or one more move.

At every event, a policy knows only the submitted jobs, and looks ahead only to the next events. The search changes
one job of the whole plan, simulates the plan again, and keeps the change if the expected cost falls. The search ends
when no change helps, or after a number of simulations that depends only on the number of jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from lightning_predict.base.errors import InfeasiblePlanError
from lightning_predict.base.ties import clearly_less
from lightning_predict.planning.expected_cost import SAME_MOMENT_SECONDS
from lightning_predict.planning.problem import (
    Configuration,
    Job,
    Plan,
    PlanningProblem,
    PlanOutlook,
    PlanState,
    RunningJobs,
    Segment,
)
from lightning_predict.planning.queues import serve_queue
from lightning_predict.planning.simulator import simulate

JOBS_TO_SIMULATE: Final = 4000  # Effort of a search: jobs in all simulations. A plan of 10 jobs is simulated 400 times.
ONE_DECISION_SECONDS: Final = 1e9  # Time between decisions, if only a submission or the end of a job can change them


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStage:
    """Part of a job's run on one configuration."""

    configuration: Configuration  # Machine type and number of GPUs
    after: str | None = None  # Job whose end starts this stage; None: the job starts as soon as a node is free
    earliest_seconds: float = 0.0  # Earliest start of this stage, the submission of another job


JobStages = Mapping[str, tuple[JobStage, ...]]  # Stages of each job by name, in the order in which waiting jobs start


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSchedule:
    """Policy that runs each job in given stages, and starts waiting jobs in a given order."""

    stages: JobStages
    shares_gpus: bool

    @property
    def name(self) -> str:
        """Name of the policy in tables."""
        return "MILP, improved job by job"

    def decide(self, problem: PlanningProblem, situation: PlanState) -> RunningJobs:
        """Move jobs that enter another stage, keep other running jobs, and start waiting jobs while a node is free.

        A moving job may find no free node and wait, so jobs move only if the formulation allows both.
        """
        ended = {job.name for job in problem.jobs if job.release_seconds <= situation.now_seconds}
        ended -= situation.remaining.keys()
        jobs = {job.name: job for job in problem.jobs}
        wanted: dict[str, Configuration] = {}
        for name, stages in self.stages.items():
            begun = [
                stage.configuration
                for stage in stages
                if stage.earliest_seconds <= situation.now_seconds and (stage.after is None or stage.after in ended)
            ]
            if begun:  # otherwise, the job waits for another job
                wanted[name] = begun[-1]
        running = {
            name: placement
            for name, placement in situation.running.items()
            if wanted.get(name, placement.configuration) == placement.configuration
            or not (jobs[name].can_move and _may_move(problem))
        }
        return serve_queue(
            [jobs[name] for name in sorted(wanted, key=lambda name: name not in situation.running)],
            lambda job: () if job.name in running else (wanted[job.name],),
            problem,
            replace(situation, running=running),
            shares_gpus=self.shares_gpus,
            method=self.name,
        )


def _may_move(problem: PlanningProblem) -> bool:
    """Return whether the formulation allows a job to move, and to wait on the way."""
    return problem.formulation.preempts and problem.formulation.migrates


def improved_plan(
    plan: Plan,
    problem: PlanningProblem,
    *,
    since: PlanState | None,
    outlook: Callable[[Plan], PlanOutlook],
    stages: JobStages | None = None,
) -> Plan | None:
    """Return a plan with a lower expected cost, or None if the search finds none.

    `outlook` evaluates plans with the same draws as `plan.outlook`. Without `stages`, they are derived from the
    segments of the plan, which do not show for what a job waited.
    """
    stages = stages or _stages(plan)
    if stages is None or plan.outlook is None:
        return None
    jobs = {job.name: job for job in problem.jobs}
    simulations = JOBS_TO_SIMULATE // len(jobs)
    best, improved = plan, None
    is_better = True
    while is_better:
        is_better = False
        for change in _changes(stages, best, jobs, problem):
            if simulations == 0:
                return improved
            simulations -= 1
            changed = simulated_stages(change, problem, since, outlook)
            if changed is not None and _is_cheaper(changed, best, problem):
                best, improved, stages, is_better = changed, changed, change, True
                break
    return improved


def changed_plans(plan: Plan, problem: PlanningProblem, outlook: Callable[[Plan], PlanOutlook]) -> Iterator[Plan]:
    """Yield the plans that differ from a plan in one job; none if a job pauses."""
    stages, jobs = _stages(plan), {job.name: job for job in problem.jobs}
    for change in () if stages is None else _changes(stages, plan, jobs, problem):
        changed = simulated_stages(change, problem, None, outlook)
        if changed is not None:
            yield changed


def started_earlier(
    plan: Plan, problem: PlanningProblem, *, since: PlanState | None, outlook: Callable[[Plan], PlanOutlook]
) -> Plan:
    """Return the plan with every job started as early as costs nothing. Arguments as in `improved_plan`."""
    stages, starts = _stages(plan), {outcome.job: outcome.start_seconds for outcome in plan.outcomes}
    if stages is None or plan.outlook is None:
        return plan
    freed: set[str] = set()
    for names in [list(starts), *([name] for name in list(starts)[: JOBS_TO_SIMULATE // len(problem.jobs)])]:
        changed = simulated_stages(
            {
                name: own if name in freed or name in names else (_held(own[0], starts[name]), *own[1:])
                for name, own in stages.items()
            },
            problem,
            since,
            outlook,
        )
        if changed is not None and _ends_earlier_for_nothing(changed, plan, problem):
            plan, freed = replace(changed, policy=plan.policy), {*freed, *names}
            if len(freed) == len(starts):
                break
    return plan


def _held(stage: JobStage, start_seconds: float) -> JobStage:
    return replace(stage, earliest_seconds=start_seconds - SAME_MOMENT_SECONDS)


def _ends_earlier_for_nothing(plan: Plan, other: Plan, problem: PlanningProblem) -> bool:
    """Return whether jobs end earlier, at no higher expected cost, probability to be late or number of moves."""
    if plan.outlook is None or other.outlook is None:
        return False
    ends = [sum(outcome.end_seconds for outcome in candidate.outcomes) for candidate in (plan, other)]
    return (
        ends[0] < ends[1] - SAME_MOMENT_SECONDS
        and len(plan.segments) <= len(other.segments)
        and plan.outlook.shortfall(problem.probability) <= other.outlook.shortfall(problem.probability)
        and not clearly_less(other.outlook.usd, plan.outlook.usd)
    )


def _stages(plan: Plan) -> JobStages | None:
    """Return the stages of a plan; None if a job pauses, or moves at a moment at which no other job ends."""
    ends = {outcome.job: outcome.end_seconds for outcome in plan.outcomes}
    stages: dict[str, tuple[JobStage, ...]] = {}
    last: dict[str, Segment] = {}
    for segment in plan.segments:
        name, start = segment.job, segment.start_seconds
        after = None
        if name in last:
            before = (job for job, end in ends.items() if abs(end - start) <= SAME_MOMENT_SECONDS)
            after = next(before, None)
            if after is None or start - last[name].end_seconds > SAME_MOMENT_SECONDS:
                return None
        stages[name] = (*stages.get(name, ()), JobStage(configuration=segment.placement.configuration, after=after))
        last[name] = segment
    return stages


def _changes(stages: JobStages, plan: Plan, jobs: Mapping[str, Job], problem: PlanningProblem) -> Iterator[JobStages]:
    """Yield stages that differ from those of a plan in one job: a configuration, a move, or the place in the queue."""
    for name, own in stages.items():
        for place, stage in enumerate(own):
            for configuration in sorted(jobs[name].seconds):
                if configuration != stage.configuration:
                    changed = replace(stage, configuration=configuration)
                    yield {**stages, name: (*own[:place], changed, *own[place + 1 :])}
        for place in range(1, len(own)):
            yield {**stages, name: (*own[:place], *own[place + 1 :])}
    yield from _waits(stages, plan)
    if _may_move(problem):
        yield from _moves(stages, plan, jobs)
    order = list(stages)
    for place, name in enumerate(order):
        for earlier in range(place):
            names = [*order[:earlier], name, *order[earlier:place], *order[place + 1 :]]
            yield {job: stages[job] for job in names}


def _waits(stages: JobStages, plan: Plan) -> Iterator[JobStages]:
    """Yield stages in which one job waits for the end of a job that runs when it starts, or no longer waits."""
    spans = {outcome.job: (outcome.start_seconds, outcome.end_seconds) for outcome in plan.outcomes}
    for name, (first, *later) in stages.items():
        if first.after is not None:
            yield {**stages, name: (replace(first, after=None), *later)}
        for other, (start, end) in sorted(spans.items()):
            if name in spans and other != name and start <= spans[name][0] < end:
                yield {**stages, name: (replace(first, after=other), *later)}


def _moves(stages: JobStages, plan: Plan, jobs: Mapping[str, Job]) -> Iterator[JobStages]:
    """Yield stages in which one job has one more move, at the end of a job during its last stage."""
    last = {segment.job: segment for segment in plan.segments}
    for name, own in stages.items():
        if not jobs[name].can_move:
            continue
        for outcome in plan.outcomes:
            if last[name].start_seconds < outcome.end_seconds < last[name].end_seconds:
                for configuration in sorted(jobs[name].seconds):
                    if configuration != own[-1].configuration:
                        yield {**stages, name: (*own, JobStage(configuration=configuration, after=outcome.job))}


def simulated_stages(
    stages: JobStages, problem: PlanningProblem, since: PlanState | None, outlook: Callable[[Plan], PlanOutlook]
) -> Plan | None:
    """Return the plan with its outlook; None if a quota excludes a configuration, or the budget is exceeded."""
    policy = FixedSchedule(stages=stages, shares_gpus=problem.formulation.shares_gpus)
    try:
        plan = simulate(replace(problem, period_seconds=ONE_DECISION_SECONDS), policy, since=since)
    except InfeasiblePlanError:
        return None
    spent, budget = 0.0 if since is None else since.spent_usd, problem.limits.budget_usd
    if budget is not None and plan.machine_usd + spent > budget:
        return None
    return replace(plan, outlook=outlook(plan))


def _is_cheaper(plan: Plan, other: Plan, problem: PlanningProblem) -> bool:
    """Return whether the expected cost is clearly lower, and no deadline's probability is missed by more."""
    if plan.outlook is None or other.outlook is None:
        return False
    missing = plan.outlook.shortfall(problem.probability), other.outlook.shortfall(problem.probability)
    return missing[0] <= missing[1] and bool(clearly_less(plan.outlook.usd, other.outlook.usd))
