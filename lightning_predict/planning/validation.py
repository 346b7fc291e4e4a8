"""Validates planning problems and states. Each error names the job and the violated constraint.

Example::

    >>> from lightning_predict.planning.problem import Configuration
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
from lightning_predict.planning.objective import expected_seconds, runs_alone
from lightning_predict.planning.problem import Job, Limits, MachineType, PlanningProblem, PlanState


def check_problem(problem: PlanningProblem) -> None:
    """Reject a problem that has no plan or is inconsistent."""
    if not problem.machines:
        raise InfeasiblePlanError("There are no offers: list at least one machine type that jobs can run on.")
    if not problem.jobs:
        raise InfeasiblePlanError("There are no jobs: list at least one.")
    for what, items in (("machine types", problem.machines), ("jobs", problem.jobs)):
        repeated = sorted(name for name, count in Counter(item.name for item in items).items() if count > 1)
        _expect(
            not repeated,
            f"Two {what} have the name {''.join(repeated[:1])!r}; names must be unique. Rename one of them.",
        )
    for machine in problem.machines:
        _check_machine(machine)
    _check_limits(problem.limits, problem.machines)
    _check_settings(problem)
    machines = {machine.name: machine for machine in problem.machines}
    for job in sorted(problem.jobs, key=lambda job: job.name):
        _check_job(job, machines, problem.limits)
    _check_budget(problem)


def check_situation(situation: PlanState, problem: PlanningProblem) -> None:
    """Reject a state that contradicts the problem."""
    jobs = {job.name: job for job in problem.jobs}
    for name in sorted({*situation.remaining, *situation.running, *situation.started, *situation.measured}):
        _expect(name in jobs, f"The state has a job {name!r}, which the problem does not list; known: {sorted(jobs)}.")
    for name in sorted({*situation.remaining, *situation.running}):
        remaining = situation.remaining.get(name, 0.0)
        _expect(
            0 < remaining <= 1,
            f"Job {name!r} has {remaining:g} of its work left; expected above 0 and at most 1 of a job that has not "
            "ended.",
        )
    for name, (machine, num_gpus) in situation.started.items():
        _expect(
            (machine, num_gpus) in jobs[name].seconds,
            f"Job {name!r} has run on {num_gpus} GPUs of {machine!r}, where it has no time; state one.",
        )
    for name, measured in sorted(situation.measured.items()):
        for (machine, num_gpus), seconds in measured.items():
            _expect(
                _is_positive(seconds) and (machine, num_gpus) in jobs[name].seconds,
                f"Job {name!r} was measured to take {seconds:g} s on {num_gpus} GPUs of {machine!r}; expected seconds "
                "above 0 where it has a predicted time.",
            )
    _check_nodes(situation, problem)


def _check_nodes(situation: PlanState, problem: PlanningProblem) -> None:
    machines = {machine.name: machine for machine in problem.machines}
    nodes = problem.limits.nodes
    types: dict[int, str] = {}
    used: Counter[int] = Counter()
    for name, placement in sorted(situation.running.items()):
        node, (machine, num_gpus) = placement.node, placement.configuration
        _expect(
            situation.started.get(name) == placement.configuration,
            f"Job {name!r} runs on one configuration and has last started on another.",
        )
        _expect(0 <= node < nodes, f"Job {name!r} runs on node {node}; nodes={nodes} are numbered from 0.")
        known = types.setdefault(node, machine)
        _expect(known == machine, f"Node {node} is both {known!r} and {machine!r}; a node is one.")
        used[node] += num_gpus
        count = sum(machines[name].nodes for name in types.values())
        _expect(count <= nodes, f"Jobs run on {count} machines; nodes={nodes}.")
        capacity = machines[machine].num_gpus
        _expect(used[node] <= capacity, f"Jobs on node {node} have {used[node]} GPUs; {machine!r} has {capacity}.")


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidArgumentError(message)


def _is_positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _is_amount(value: float) -> bool:
    return math.isfinite(value) and value >= 0


def _check_machine(machine: MachineType) -> None:
    who, rate = f"Machine type {machine.name!r}", machine.interruptions_per_hour
    _expect(
        machine.nodes >= 1 and machine.num_gpus % machine.nodes == 0,
        f"{who} is {machine.nodes} machines with {machine.num_gpus} GPUs in all; expected at least 1, each with as "
        "many GPUs.",
    )
    _expect(machine.num_gpus >= 1, f"{who} has num_gpus={machine.num_gpus}; expected 1 or more.")
    _expect(
        _is_amount(machine.usd_per_hour),
        f"{who} has usd_per_hour={machine.usd_per_hour}; expected a price of 0 or more.",
    )
    _expect(
        rate is None or _is_amount(rate),
        f"{who} has interruptions_per_hour={rate}; expected 0 or more, such as 0.05 for one in twenty hours, or None "
        "where it cannot be taken away.",
    )


def _check_limits(limits: Limits, machines: Iterable[MachineType]) -> None:
    if limits.nodes < 1:
        raise InfeasiblePlanError(f"nodes={limits.nodes} leaves no job a place to run; allow at least 1.")
    names = sorted(machine.name for machine in machines)
    for name, quota in sorted(limits.quotas.items()):
        _expect(name in names, f"There is a quota for {name!r}, which is not a machine type; known: {names}.")
        _expect(quota >= 0, f"The quota of {name!r} is {quota}; expected 0 or more.")
    _expect(
        limits.budget_usd is None or _is_amount(limits.budget_usd),
        f"budget_usd={limits.budget_usd} is not a budget; expected dollars, or None for no budget.",
    )


def _check_settings(problem: PlanningProblem) -> None:
    _expect(
        _is_positive(problem.period_seconds),
        f"period_seconds={problem.period_seconds} is not a period; expected seconds above 0.",
    )
    horizon, checkpoint = problem.horizon_seconds, problem.checkpoint_seconds
    _expect(
        horizon is None or _is_positive(horizon),
        f"horizon_seconds={horizon} is not a horizon; expected seconds above 0, or None.",
    )
    spot = [machine.name for machine in problem.machines if machine.interruptions_per_hour is not None]
    _expect(
        not spot or checkpoint is not None,
        f"{''.join(spot[:1])!r} may be interrupted, and checkpoint_seconds is not given; set it, because work after "
        "the last checkpoint is lost.",
    )
    _expect(
        checkpoint is None or _is_positive(checkpoint), f"checkpoint_seconds={checkpoint}; expected seconds above 0."
    )
    _expect(
        0.5 <= problem.probability < 1,
        f"probability={problem.probability}; expected at least 0.5 (times as predicted) and less than 1.",
    )
    for name in ("tardiness_factor", "restart_seconds"):
        value = getattr(problem, name)
        _expect(_is_amount(value), f"{name}={value}; expected a number of 0 or more.")


def _check_job(job: Job, machines: dict[str, MachineType], limits: Limits) -> None:
    who = f"Job {job.name!r}"
    _expect(_is_amount(job.release_seconds), f"{who} is released at {job.release_seconds} s; expected 0 or later.")
    _expect(
        _is_amount(job.tardiness_usd_per_hour),
        f"{who} has tardiness_usd_per_hour={job.tardiness_usd_per_hour}; expected 0 or more.",
    )
    if not math.isfinite(job.deadline_seconds) or job.deadline_seconds <= job.release_seconds:
        raise InfeasiblePlanError(
            f"{who} has its deadline at {job.deadline_seconds:g} s, which is in the past at its release at "
            f"{job.release_seconds:g} s. Give a later deadline; a job that is late already can have a deadline just "
            "after its release and a tardiness weight."
        )
    spreads = {"s": (job.low_factor, job.high_factor)}
    for (name, num_gpus), spread in job.spreads.items():
        spreads[f" on {num_gpus} GPUs of {name!r}"] = (spread.low, spread.high)
    for where, (low, high) in spreads.items():
        _expect(
            0 < low <= 1 <= high < math.inf,
            f"{who} has the interval [{low:g}, {high:g}] around its time{where}; expected factors with 0 < low ≤ 1 ≤ "
            "high.",
        )
    for (name, num_gpus), seconds in sorted(job.seconds.items()):
        _expect(
            name in machines, f"{who} has a time on {name!r}, which is not a machine type; known: {sorted(machines)}."
        )
        most = machines[name].num_gpus
        _expect(1 <= num_gpus <= most, f"{who} has a time on {num_gpus} GPUs of {name!r}, which has {most}.")
        _expect(
            _is_positive(seconds),
            f"{who} takes {seconds} s on {num_gpus} GPUs of {name!r}; expected seconds above 0. Leave the entry out "
            "where the job cannot run.",
        )
    possible = [machines[configuration.machine] for configuration in job.seconds]
    if not any(one.nodes <= min(limits.nodes, limits.quotas.get(one.kind, limits.nodes)) for one in possible):
        reason = (
            f"every machine type that it could use is more than the quotas or nodes={limits.nodes} allow"
            if job.seconds
            else "it has a time on no machine type"
        )
        raise InfeasiblePlanError(
            f"{who} fits nowhere: {reason}. Machine types: {sorted(machines)}. Add one that it fits on, or take the "
            "job out."
        )


def _check_budget(problem: PlanningProblem) -> None:
    """Reject a budget that is below the cost of the cheapest runs, each of which only pays for its own GPUs."""
    budget, needed = problem.limits.budget_usd, 0.0
    for job in sorted(problem.jobs, key=lambda job: (job.release_seconds, job.name)) if budget is not None else ():
        begin = PlanState(now_seconds=0.0, remaining={job.name: 1.0})
        needed += min(usd for _, _, usd in runs_alone(problem, expected_seconds(job, problem, begin)))
        if budget is not None and needed > budget:
            raise InfeasiblePlanError(
                f"The budget of ${budget:.2f} is too small: job {job.name!r} brings the cheapest runs of the jobs, "
                f"without idle GPUs, to ${needed:.2f}. Raise the budget or take jobs out."
            )
