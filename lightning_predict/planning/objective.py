"""A decision as a table: what the MILP, the heuristics and the tests share.

A row a job, a column a configuration, dollars in each cell (`costs.py` has the formulas), and a column for waiting.
What is left to decide is which cells to take so that the jobs fit on the nodes. Example::

    options = options_of(problem, Situation(now_seconds=0.0, remaining={"resnet": 1.0}))
    options.cost_usd  # (jobs, configurations) in US dollars; infinite where a job cannot run
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from lightning_predict.planning.costs import cheapest_usd, horizon_seconds, row_of
from lightning_predict.planning.records import (
    Configuration,
    Formulation,
    Job,
    MachineType,
    Placement,
    Problem,
    Situation,
    usd,
)

Table = npt.NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OpenNode:
    """A node whose running jobs stay, with GPUs to spare.

    Attributes:
        node: Its number.
        machine: Index of its machine type in `Options.machines`.
        free_gpus: GPUs that no running job has.
    """

    node: int
    machine: int
    free_gpus: int


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Options:
    """One decision as numbers; jobs, machines and configurations are sorted by name.

    Attributes:
        jobs: Jobs to decide about (J of them).
        machines: Machine types (M).
        configurations: What jobs can run on (K).
        machine_of: Machine index of each configuration, (K,).
        size_of: GPUs of a machine that each configuration takes away, (K,): all of them where machines are not shared.
        cost_usd: Cost of running a job on a configuration, without the machine's price until the next event, (J, K);
            infinite where it cannot run.
        machine_usd: Part of it, and of the price until the next event, that the budget counts, (J, K).
        postponed_usd: Cost of letting a job wait, (J,); infinite where it must not.
        reserved_usd: What the budget keeps for a job that waits: its cheapest run, alone on its machine, (J,).
        period_usd: Price of a machine until the next event at the latest, (M,).
        open_nodes: Nodes whose running jobs are not up for decision.
        fixed: Those jobs and where they stay.
        fixed_usd: What they cost; part of every decision.
        free_nodes: Numbers of the nodes that can be given any type.
        quotas: How many further machines of each type may be rented, (M,).
        budget_usd: What may still be spent; infinite without a budget.
    """

    jobs: tuple[str, ...]
    machines: tuple[MachineType, ...]
    configurations: tuple[Configuration, ...]
    machine_of: npt.NDArray[np.int64]
    size_of: npt.NDArray[np.int64]
    cost_usd: Table
    machine_usd: Table
    postponed_usd: Table
    reserved_usd: Table
    period_usd: Table
    open_nodes: tuple[OpenNode, ...]
    fixed: Mapping[str, Placement]
    fixed_usd: float
    free_nodes: tuple[int, ...]
    quotas: npt.NDArray[np.int64]
    budget_usd: float


def options_of(problem: Problem, situation: Situation) -> Options:
    """The table of one decision."""
    machines = tuple(sorted(problem.machines, key=lambda machine: machine.name))
    by_name = {job.name: job for job in problem.jobs}
    fixed = dict(situation.running) if problem.formulation.fixes_running_jobs else {}
    jobs = [by_name[name] for name in sorted(situation.remaining.keys() - fixed.keys())]
    configurations = tuple(sorted({configuration for job in jobs for configuration in job.seconds}))
    rows = [row_of(job, problem, situation) for job in jobs]
    cells = [[row.cells.get(configuration) for configuration in configurations] for row in rows]
    shape = (len(jobs), len(configurations))
    open_nodes = _open_nodes(fixed, machines, problem.formulation)
    return Options(
        jobs=tuple(job.name for job in jobs),
        machines=machines,
        configurations=configurations,
        machine_of=np.array([_index(machines, item.machine) for item in configurations], dtype=np.int64),
        size_of=np.array([_size(machines, item, problem.formulation) for item in configurations], dtype=np.int64),
        cost_usd=np.array([[c.cost_usd if c else math.inf for c in row] for row in cells]).reshape(shape),
        machine_usd=np.array([[c.machine_usd if c else math.inf for c in row] for row in cells]).reshape(shape),
        postponed_usd=np.array([row.postponed_usd for row in rows], dtype=float),
        reserved_usd=np.array([row.reserved_usd for row in rows], dtype=float),
        period_usd=np.array(
            [
                usd(seconds=horizon_seconds(problem, situation), usd_per_hour=machine.usd_per_hour)
                for machine in machines
            ]
        ),
        open_nodes=open_nodes,
        fixed=fixed,
        fixed_usd=_fixed_usd(problem, situation, fixed, by_name, machines),
        free_nodes=tuple(sorted(set(range(problem.limits.nodes)) - {item.node for item in open_nodes})),
        quotas=_quotas_left(problem, machines, open_nodes),
        budget_usd=_budget_left(problem, situation, fixed, by_name, machines),
    )


def _index(machines: tuple[MachineType, ...], name: str) -> int:
    return next(index for index, machine in enumerate(machines) if machine.name == name)


def _size(machines: tuple[MachineType, ...], configuration: Configuration, formulation: Formulation) -> int:
    machine = machines[_index(machines, configuration.machine)]
    return configuration.num_gpus if formulation.shares_gpus else machine.num_gpus


def _open_nodes(
    fixed: Mapping[str, Placement], machines: tuple[MachineType, ...], formulation: Formulation
) -> tuple[OpenNode, ...]:
    taken: dict[tuple[int, int], int] = {}
    for placement in fixed.values():
        key = (placement.node, _index(machines, placement.configuration.machine))
        taken[key] = taken.get(key, 0) + _size(machines, placement.configuration, formulation)
    return tuple(
        OpenNode(node=node, machine=machine, free_gpus=machines[machine].num_gpus - gpus)
        for (node, machine), gpus in sorted(taken.items())
    )


def _quotas_left(
    problem: Problem, machines: tuple[MachineType, ...], open_nodes: tuple[OpenNode, ...]
) -> npt.NDArray[np.int64]:
    return np.array(
        [
            problem.limits.quotas.get(machine.name, problem.limits.nodes)
            - sum(node.machine == index for node in open_nodes)
            for index, machine in enumerate(machines)
        ],
        dtype=np.int64,
    )


def _fixed_usd(
    problem: Problem,
    situation: Situation,
    fixed: Mapping[str, Placement],
    by_name: Mapping[str, Job],
    machines: tuple[MachineType, ...],
) -> float:
    """Machines until the next event, the share afterwards, and the tardiness of the jobs that stay."""
    rented = {(item.node, item.configuration.machine) for item in fixed.values()}
    total = sum(
        usd(seconds=horizon_seconds(problem, situation), usd_per_hour=machines[_index(machines, name)].usd_per_hour)
        for _, name in sorted(rented)
    )
    for name in sorted(fixed):
        row = row_of(by_name[name], problem, situation)
        total += row.cells[fixed[name].configuration].cost_usd
    return total


def _budget_left(
    problem: Problem,
    situation: Situation,
    fixed: Mapping[str, Placement],
    by_name: Mapping[str, Job],
    machines: tuple[MachineType, ...],
) -> float:
    """The budget without what is spent, what the fixed jobs will take and what later jobs will need."""
    if problem.limits.budget_usd is None:
        return math.inf
    left = problem.limits.budget_usd - situation.spent_usd
    for name in sorted(fixed):
        row = row_of(by_name[name], problem, situation)
        left -= row.cells[fixed[name].configuration].machine_usd
    later = (job for job in by_name.values() if job.release_seconds > situation.now_seconds)
    return left - sum(cheapest_usd(job, machines) for job in sorted(later, key=lambda job: job.name))
