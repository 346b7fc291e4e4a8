"""Validates planning problems and states. Each error names the job and the violated constraint.

Example::

    >>> t4 = MachineType(name="g4dn.xlarge", gpu="T4", num_gpus=1, usd_per_hour=0.53)
    >>> on_t4 = Configuration(machine="g4dn.xlarge", num_gpus=1)
    >>> bert = Job(name="bert", seconds={on_t4: 7200.0}, deadline_seconds=10800.0, tardiness_usd_per_hour=2.0)
    >>> check_problem(PlanningProblem(jobs=(bert,), machines=(t4,), limits=Limits(nodes=0)))
    Traceback (most recent call last):
    lightning_predict.base.errors.InfeasiblePlanError: nodes=0 leaves no job a place to run; allow at least 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from lightning_predict.base.errors import InfeasiblePlanError, InvalidArgumentError
from lightning_predict.planning.objective import expected_seconds, machine_share
from lightning_predict.planning.problem import (
    Configuration,
    Job,
    Limits,
    MachineType,
    PlanningProblem,
    PlanState,
    rental_usd,
)


def check_problem(problem: PlanningProblem) -> None:
    """Reject a problem that has no plan or is inconsistent.

    Raises:
        InvalidArgumentError: A number is out of its range, or a name is duplicate or unknown.
        InfeasiblePlanError: No plan can satisfy a job or a limit.
    """
    if not problem.machines:
        raise InfeasiblePlanError("There are no offers: list at least one machine type that jobs can run on.")
    if not problem.jobs:
        raise InfeasiblePlanError("There are no jobs: list at least one.")
    _check_unique("machine types", (machine.name for machine in problem.machines))
    _check_unique("jobs", (job.name for job in problem.jobs))
    for machine in problem.machines:
        _check_machine(machine)
    _check_limits(problem.limits, problem.machines)
    _check_settings(problem)
    machines = {machine.name: machine for machine in problem.machines}
    for job in sorted(problem.jobs, key=lambda job: job.name):
        _check_job(job, machines, problem.limits)
    _check_budget(problem)


def check_situation(situation: PlanState, problem: PlanningProblem) -> None:
    """Reject a state that contradicts the problem.

    Raises:
        InvalidArgumentError: A job or configuration is unknown, a share is out of its range, or a node has too many
            GPUs.
    """
    jobs = {job.name: job for job in problem.jobs}
    for name in sorted({*situation.remaining, *situation.running, *situation.started, *situation.measured}):
        if name not in jobs:
            raise InvalidArgumentError(
                f"The state has a job {name!r}, which the problem does not list; known: {sorted(jobs)}."
            )
    for name in sorted({*situation.remaining, *situation.running}):
        remaining = situation.remaining.get(name, 0.0)
        if not 0 < remaining <= 1:
            raise InvalidArgumentError(
                f"Job {name!r} has {remaining:g} of its work left; expected above 0 and at most 1 of a job that has "
                "not ended."
            )
    for name, configuration in situation.started.items():
        if configuration not in jobs[name].seconds:
            raise InvalidArgumentError(
                f"Job {name!r} has run on {configuration.num_gpus} GPUs of {configuration.machine!r}, where it has no "
                "time; state one."
            )
    for name, measured in sorted(situation.measured.items()):
        for configuration, seconds in measured.items():
            if not (math.isfinite(seconds) and seconds > 0) or configuration not in jobs[name].seconds:
                raise InvalidArgumentError(
                    f"Job {name!r} was measured to take {seconds:g} s on {configuration.num_gpus} GPUs of "
                    f"{configuration.machine!r}; expected seconds above 0 where it has a predicted time."
                )
    _check_nodes(situation, problem)


def _check_nodes(situation: PlanState, problem: PlanningProblem) -> None:
    machines = {machine.name: machine for machine in problem.machines}
    types: dict[int, str] = {}
    used: Counter[int] = Counter()
    for name, placement in sorted(situation.running.items()):
        node, configuration = placement.node, placement.configuration
        if situation.started.get(name) != configuration:
            raise InvalidArgumentError(f"Job {name!r} runs on one configuration and has last started on another.")
        if not 0 <= node < problem.limits.nodes:
            raise InvalidArgumentError(
                f"Job {name!r} runs on node {node}; nodes={problem.limits.nodes} are numbered from 0."
            )
        if types.setdefault(node, configuration.machine) != configuration.machine:
            raise InvalidArgumentError(
                f"Node {node} is both {types[node]!r} and {configuration.machine!r}; a node is one."
            )
        used[node] += configuration.num_gpus
        count = sum(machines[name].nodes for name in types.values())
        if count > problem.limits.nodes:
            raise InvalidArgumentError(f"Jobs run on {count} machines; nodes={problem.limits.nodes}.")
        if used[node] > machines[configuration.machine].num_gpus:
            raise InvalidArgumentError(
                f"Jobs on node {node} have {used[node]} GPUs; {configuration.machine!r} has "
                f"{machines[configuration.machine].num_gpus}."
            )


def _check_unique(what: str, names: Iterable[str]) -> None:
    twice = sorted(name for name, number in Counter(names).items() if number > 1)
    if twice:
        raise InvalidArgumentError(f"Two {what} have the name {twice[0]!r}; names must be unique. Rename one of them.")


def _check_machine(machine: MachineType) -> None:
    if machine.nodes < 1 or machine.num_gpus % max(machine.nodes, 1):
        raise InvalidArgumentError(
            f"Machine type {machine.name!r} is {machine.nodes} machines with {machine.num_gpus} GPUs in all; expected "
            "at least 1, each with as many GPUs."
        )
    if machine.num_gpus < 1:
        raise InvalidArgumentError(
            f"Machine type {machine.name!r} has num_gpus={machine.num_gpus}; expected 1 or more."
        )
    if not (math.isfinite(machine.usd_per_hour) and machine.usd_per_hour >= 0):
        raise InvalidArgumentError(
            f"Machine type {machine.name!r} has usd_per_hour={machine.usd_per_hour}; expected a price of 0 or more."
        )
    rate = machine.interruptions_per_hour
    if rate is not None and not (math.isfinite(rate) and rate >= 0):
        raise InvalidArgumentError(
            f"Machine type {machine.name!r} has interruptions_per_hour={rate}; expected 0 or more, such as 0.05 for "
            "one in twenty hours, or None where it cannot be taken away."
        )


def _check_limits(limits: Limits, machines: Iterable[MachineType]) -> None:
    if limits.nodes < 1:
        raise InfeasiblePlanError(f"nodes={limits.nodes} leaves no job a place to run; allow at least 1.")
    names = sorted(machine.name for machine in machines)
    for name, quota in sorted(limits.quotas.items()):
        if name not in names:
            raise InvalidArgumentError(f"There is a quota for {name!r}, which is not a machine type; known: {names}.")
        if quota < 0:
            raise InvalidArgumentError(f"The quota of {name!r} is {quota}; expected 0 or more.")
    if limits.budget_usd is not None and not (math.isfinite(limits.budget_usd) and limits.budget_usd >= 0):
        raise InvalidArgumentError(
            f"budget_usd={limits.budget_usd} is not a budget; expected dollars, or None for no budget."
        )


def _check_settings(problem: PlanningProblem) -> None:
    if not (math.isfinite(problem.period_seconds) and problem.period_seconds > 0):
        raise InvalidArgumentError(
            f"period_seconds={problem.period_seconds} is not a period; expected seconds above 0."
        )
    if problem.horizon_seconds is not None and not (
        math.isfinite(problem.horizon_seconds) and problem.horizon_seconds > 0
    ):
        raise InvalidArgumentError(
            f"horizon_seconds={problem.horizon_seconds} is not a horizon; expected seconds above 0, or None."
        )
    spot = [machine.name for machine in problem.machines if machine.interruptions_per_hour is not None]
    if spot and problem.checkpoint_seconds is None:
        raise InvalidArgumentError(
            f"{spot[0]!r} may be interrupted, and checkpoint_seconds is not given; set it, because work after the "
            "last checkpoint is lost."
        )
    if problem.checkpoint_seconds is not None and not (
        math.isfinite(problem.checkpoint_seconds) and problem.checkpoint_seconds > 0
    ):
        raise InvalidArgumentError(f"checkpoint_seconds={problem.checkpoint_seconds}; expected seconds above 0.")
    if not 0.5 <= problem.probability < 1:
        raise InvalidArgumentError(
            f"probability={problem.probability}; expected at least 0.5 (times as predicted) and less than 1."
        )
    for name in ("tardiness_factor", "postponement_factor", "restart_seconds"):
        value = getattr(problem, name)
        if not (math.isfinite(value) and value >= 0):
            raise InvalidArgumentError(f"{name}={value}; expected a number of 0 or more.")


def _check_job(job: Job, machines: dict[str, MachineType], limits: Limits) -> None:
    if not (math.isfinite(job.release_seconds) and job.release_seconds >= 0):
        raise InvalidArgumentError(f"Job {job.name!r} is released at {job.release_seconds} s; expected 0 or later.")
    if not (math.isfinite(job.tardiness_usd_per_hour) and job.tardiness_usd_per_hour >= 0):
        raise InvalidArgumentError(
            f"Job {job.name!r} has tardiness_usd_per_hour={job.tardiness_usd_per_hour}; expected 0 or more."
        )
    if not math.isfinite(job.deadline_seconds) or job.deadline_seconds <= job.release_seconds:
        raise InfeasiblePlanError(
            f"Job {job.name!r} has its deadline at {job.deadline_seconds:g} s, which is in the past at its release at "
            f"{job.release_seconds:g} s. Give a later deadline; a job that is late already can have a deadline just "
            "after its release and a tardiness weight."
        )
    if not 0 < job.low_factor <= 1 <= job.high_factor < math.inf:
        raise InvalidArgumentError(
            f"Job {job.name!r} has the interval [{job.low_factor:g}, {job.high_factor:g}] around its times; expected "
            "factors with 0 < low ≤ 1 ≤ high."
        )
    for configuration, seconds in sorted(job.seconds.items()):
        _check_time(job, configuration, seconds, machines)
    for configuration, spread in job.spreads.items():
        if not 0 < spread.low <= 1 <= spread.high < math.inf:
            raise InvalidArgumentError(
                f"Job {job.name!r} has the interval [{spread.low:g}, {spread.high:g}] around its time on "
                f"{configuration.num_gpus} GPUs of {configuration.machine!r}; expected factors with 0 < low ≤ 1 ≤ high."
            )
    possible = [machines[configuration.machine] for configuration in job.seconds]
    if not any(one.nodes <= min(limits.nodes, limits.quotas.get(one.kind, limits.nodes)) for one in possible):
        reason = (
            f"every machine type that it could use is more than the quotas or nodes={limits.nodes} allow"
            if job.seconds
            else "it has a time on no machine type"
        )
        raise InfeasiblePlanError(
            f"Job {job.name!r} fits nowhere: {reason}. Machine types: {sorted(machines)}. Add one that it fits on, or "
            "take the job out."
        )


def _check_time(job: Job, configuration: Configuration, seconds: float, machines: dict[str, MachineType]) -> None:
    machine = machines.get(configuration.machine)
    if machine is None:
        raise InvalidArgumentError(
            f"Job {job.name!r} has a time on {configuration.machine!r}, which is not a machine type; known: "
            f"{sorted(machines)}."
        )
    if not 1 <= configuration.num_gpus <= machine.num_gpus:
        raise InvalidArgumentError(
            f"Job {job.name!r} has a time on {configuration.num_gpus} GPUs of {machine.name!r}, which has "
            f"{machine.num_gpus}."
        )
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidArgumentError(
            f"Job {job.name!r} takes {seconds} s on {configuration.num_gpus} GPUs of {machine.name!r}; expected "
            "seconds above 0. Leave the entry out where the job cannot run."
        )


def _check_budget(problem: PlanningProblem) -> None:
    """Reject a budget that is below the cost of the cheapest runs without idle GPUs."""
    budget = problem.limits.budget_usd
    if budget is None:
        return
    needed = 0.0
    for job in sorted(problem.jobs, key=lambda job: (job.release_seconds, job.name)):
        needed += _least_usd(job, problem)
        if needed > budget:
            raise InfeasiblePlanError(
                f"The budget of ${budget:.2f} is too small: job {job.name!r} brings the cheapest runs of the jobs, "
                f"without idle GPUs, to ${needed:.2f}. Raise the budget or take jobs out."
            )


def _least_usd(job: Job, problem: PlanningProblem) -> float:
    """Return the cost of a job's cheapest run if it only pays for its own GPUs."""
    machines = {machine.name: machine for machine in problem.machines}
    begin = PlanState(now_seconds=0.0, remaining={job.name: 1.0})
    return min(
        rental_usd(seconds=seconds, usd_per_hour=machines[one.machine].usd_per_hour)
        * machine_share(machines[one.machine], one, problem.formulation)
        for one, seconds in expected_seconds(job, problem, begin).items()
    )
