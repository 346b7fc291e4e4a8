"""Queue rules (scheduling baselines): first in first out, earliest deadline first, priority.

The rules are baselines for the planner, and the fallback if the planner finds no decision in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lightning_predict.base.ties import clearly_less, ordered
from lightning_predict.planning.objective import machine_share, run_seconds
from lightning_predict.planning.problem import (
    Configuration,
    Formulation,
    Job,
    MachineType,
    Placement,
    PlanningProblem,
    PlanState,
    RunningJobs,
    rental_usd,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRule:
    """Rule that starts waiting jobs in a fixed order and never moves a running job.

    Each job gets its own machine. The machine type is chosen by the predicted times: the cheapest type that meets the
    deadline, otherwise the fastest. So a rule uses the same times and prices as the planner. A rule does not share
    GPUs, preempt jobs or consider all jobs together, and it cannot keep a budget. Jobs with equal keys of `order` are
    sorted by name.
    """

    name: str
    order: Callable[[Job], float]
    shares_gpus: bool = False

    def decide(self, problem: PlanningProblem, situation: PlanState) -> RunningJobs:
        """Keep running jobs, and start waiting jobs in order as long as a node is free."""
        waiting = [job for job in problem.jobs if job.name not in situation.running]
        return serve_queue(
            sorted(waiting, key=lambda job: (self.order(job), job.name)),
            lambda job: self._preferences(job, problem, situation),
            problem,
            situation,
            shares_gpus=self.shares_gpus,
        )

    def _preferences(self, job: Job, problem: PlanningProblem, situation: PlanState) -> list[Configuration]:
        """Sort configurations: first those that meet the deadline, by cost, then the others, by time."""
        machines = {machine.name: machine for machine in problem.machines}
        formulation = Formulation(shares_gpus=self.shares_gpus)
        seconds_on = run_seconds(job, problem, situation)

        def cost(configuration: Configuration) -> float:
            machine = machines[configuration.machine]
            price = machine.usd_per_hour * machine_share(machine, configuration, formulation)
            return rental_usd(seconds=seconds_on[configuration], usd_per_hour=price)

        configurations = sorted(job.seconds)
        by_time, by_cost = ordered(configurations, seconds_on.__getitem__), ordered(configurations, cost)
        left = job.deadline_seconds - situation.now_seconds
        late = {configuration for configuration in configurations if clearly_less(left, seconds_on[configuration])}
        return [
            *(configuration for configuration in ordered(by_time, cost) if configuration not in late),
            *(configuration for configuration in ordered(by_cost, seconds_on.__getitem__) if configuration in late),
        ]


FIFO: Final = QueueRule(name="FIFO", order=lambda job: job.release_seconds)
EARLIEST_DEADLINE_FIRST: Final = QueueRule(name="EDF", order=lambda job: job.deadline_seconds)
PRIORITY: Final = QueueRule(name="PS", order=lambda job: -job.tardiness_usd_per_hour)

BASELINES: Final = (FIFO, EARLIEST_DEADLINE_FIRST, PRIORITY)  # Queue rules to compare the planner with

SHARING_BASELINES: Final = tuple(replace(rule, name=f"{rule.name} shared", shares_gpus=True) for rule in BASELINES)
"""Queue rules with shared machines to compare the planner with."""

QUEUE_RULES: Final = (*BASELINES, *SHARING_BASELINES)


def serve_queue(
    queue: Sequence[Job],
    configurations: Callable[[Job], Sequence[Configuration]],
    problem: PlanningProblem,
    situation: PlanState,
    *,
    shares_gpus: bool,
) -> RunningJobs:
    """Keep running jobs, and start each waiting job on the first of its configurations that has a free node.

    Without migration, a job that ran before continues on its last configuration. Jobs of the queue that are not
    submitted or have ended are skipped. `configurations` returns a job's configurations, the best first.
    """
    started = time.perf_counter()
    placements = dict(situation.running)
    nodes = _Nodes(problem, placements, shares_gpus=shares_gpus)
    fixed = {} if problem.formulation.migrates else situation.started
    for job in queue:
        if nodes.are_full:
            break
        wanted = configurations(job) if job.name in situation.remaining else ()
        for configuration in (fixed[job.name],) if wanted and job.name in fixed else wanted:
            node = nodes.take(configuration)
            if node is not None:
                placements[job.name] = Placement(node=node, configuration=configuration)
                break
    return RunningJobs(
        placements=dict(sorted(placements.items())),
        objective_usd=None,
        bound_usd=None,
        solve_seconds=time.perf_counter() - started,
    )


class _Nodes:
    """Free GPUs while a queue is served."""

    def __init__(self, problem: PlanningProblem, placements: dict[str, Placement], *, shares_gpus: bool) -> None:
        self._machines: dict[str, MachineType] = {machine.name: machine for machine in problem.machines}
        self._limits = problem.limits
        self._shares_gpus = shares_gpus
        self._type: dict[int, str] = {}
        self._free: dict[int, int] = {}
        for placement in placements.values():
            self._occupy(placement.node, placement.configuration)

    @property
    def are_full(self) -> bool:
        """Whether no rented node has a free GPU, and no node of any type can be rented."""
        return not any(self._free.values()) and all(self._unused(machine) is None for machine in self._machines)

    def take(self, configuration: Configuration) -> int | None:
        """Return a node for this configuration: the fullest node with enough free GPUs, or a new node; else None."""
        open_nodes = [
            node
            for node, machine in self._type.items()
            if machine == configuration.machine and self._free[node] >= configuration.num_gpus
        ]
        node = min(open_nodes, key=lambda node: (self._free[node], node), default=self._unused(configuration.machine))
        if node is not None:
            self._occupy(node, configuration)
        return node

    def _unused(self, machine: str) -> int | None:
        own, rented = self._machines[machine], [self._machines[name] for name in self._type.values()]
        alike = sum(other.nodes for other in rented if other.kind == own.kind)
        if alike + own.nodes > self._limits.quotas.get(own.kind, self._limits.nodes):
            return None
        if sum(other.nodes for other in rented) + own.nodes > self._limits.nodes:
            return None
        return next((node for node in range(self._limits.nodes) if node not in self._type), None)

    def _occupy(self, node: int, configuration: Configuration) -> None:
        if node not in self._type:
            self._type[node] = configuration.machine
            self._free[node] = self._machines[configuration.machine].num_gpus
        self._free[node] = self._free[node] - configuration.num_gpus if self._shares_gpus else 0
