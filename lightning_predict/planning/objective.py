"""The objective of a decision: dollars of every job on every configuration.

Once a job's configuration is chosen, its end, its tardiness and its price are numbers. With time `t` left on the
configuration `(v, g)`, price `c_v` of a machine of `G_v` GPUs, deadline `d`, tardiness weight `ω`, the moment `now` and
the time `h` until machines are used otherwise:

    machines now       c_v · h            for each machine that is rented
    afterwards (ours)  c_v · g/G_v · max(0, t − h)                the job's share of its machine from then on
    tardiness          ρ · ω · max(0, now + t − d)
    postponed          ρ̂ · ω · max(0, now + h + t_worst − d)      the worst case of a job that waits
    and (ours)         min over (v, g) of c_v · (h + g/G_v · max(0, t − h)): its cheapest run later, started alone
    restarts (ours)    c_v · g/G_v · r · (h / gap − 1)            on top of the time r that a job loses when it moves

After Jahani et al., "Optimizing on-demand GPUs in the Cloud for Deep Learning Applications Training" (ICCCS 2019), who
count machines until the next event and waiting until the period `H` is over. Ours: `h` is three mean gaps between
events so far, at most `H`. Without the two further rows of machines, waiting would look free, and slow configurations
of cheap machines would look cheap. What a move gains is counted for `h`, so its loss is counted as often as there are
events in `h`. Between equals, the choice that gets work done wins: waiting costs a thousandth more. `t_worst` is the
slowest configuration worth renting, that is, one that no other beats in both time and price; the slowest of all is
often so slow that it drowns everything else. Example::

    options = options_of(problem, Situation(now_seconds=0.0, remaining={"resnet": 1.0}))
    options.cost_usd  # (jobs, configurations) in US dollars; infinite where a job cannot run
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lightning_predict.planning.problem import (
    Configuration,
    Formulation,
    Job,
    MachineType,
    Placement,
    Problem,
    Situation,
    usd,
)

HORIZON_GAPS: Final = 3.0
"""Events after which a machine is likely to be used otherwise. In the comparison with queue rules (a job every 45 s,
two seeds), 1 costs 3 % more because GPUs stay idle, 5 as much, and the whole period 2 % more because jobs wait to fill
machines."""

TIE: Final = 1e-3
"""By this share waiting is made dearer, so that of equals the choice that gets work done wins."""


def run_seconds(job: Job, configuration: Configuration, problem: Problem, situation: Situation) -> float:
    """Return predicted time until the job's end, if it runs on this configuration from now on.

    A job that moves, or that goes on after a pause, first loses `restart_seconds`.
    """
    seconds = situation.remaining[job.name] * job.seconds[configuration]
    return seconds + lost_seconds(job, configuration, problem, situation)


def horizon_seconds(problem: Problem, situation: Situation) -> float:
    """Find how long a machine that is rented now is counted: a few mean gaps between events, at most the period."""
    if problem.horizon_seconds is not None:
        return problem.horizon_seconds
    if situation.mean_gap_seconds is None:
        return problem.period_seconds
    return min(problem.period_seconds, HORIZON_GAPS * situation.mean_gap_seconds)


def lost_seconds(job: Job, configuration: Configuration, problem: Problem, situation: Situation) -> float:
    """Give the time that the job loses if it goes on with this configuration: none if it stays or has not run yet."""
    current = situation.running.get(job.name)
    stays = current is not None and current.configuration == configuration
    return 0.0 if stays or job.name not in situation.started else problem.restart_seconds


def tardiness_usd(job: Job, end_seconds: float) -> float:
    """Cost an end at this time: 0 until the deadline, then the job's weight for each hour."""
    return usd(seconds=max(0.0, end_seconds - job.deadline_seconds), usd_per_hour=job.tardiness_usd_per_hour)


def worth_renting(
    seconds: Mapping[Configuration, float], cost_usd: Mapping[Configuration, float]
) -> set[Configuration]:
    """List configurations that no other beats in time and in cost (of equals, all)."""
    return {
        one
        for one in seconds
        if not any(
            seconds[other] <= seconds[one]
            and cost_usd[other] <= cost_usd[one]
            and (seconds[other], cost_usd[other]) != (seconds[one], cost_usd[one])
            for other in seconds
        )
    }


def share(machine: MachineType, configuration: Configuration, formulation: Formulation) -> float:
    """Return the part of the machine that a job on this configuration takes away from others."""
    return configuration.num_gpus / machine.num_gpus if formulation.shares_gpus else 1.0


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """A job on a configuration.

    Attributes:
        cost_usd: What it costs beside the machine until the horizon.
        machine_usd: Its share of the machine until its end, for the budget.
    """

    cost_usd: float
    machine_usd: float


@final
@dataclass(frozen=True, slots=True)
class Row:
    """All choices of a job.

    Attributes:
        cells: By configuration that it may have.
        postponed_usd: What waiting costs; infinite where it must not wait.
        reserved_usd: What the budget keeps for it while it waits.
    """

    cells: Mapping[Configuration, Cell]
    postponed_usd: float
    reserved_usd: float


def row_of(job: Job, problem: Problem, situation: Situation) -> Row:
    """Return one job's row of the table."""
    machines = {machine.name: machine for machine in problem.machines}
    horizon = horizon_seconds(problem, situation)
    seconds = {item: run_seconds(job, item, problem, situation) for item in _allowed(job, problem, situation)}
    price = {item: machines[item.machine].usd_per_hour for item in seconds}
    part = {item: share(machines[item.machine], item, problem.formulation) for item in seconds}
    shared_usd = {item: usd(seconds=t, usd_per_hour=price[item] * part[item]) for item, t in seconds.items()}
    cells = {}
    for item, t in seconds.items():
        later = usd(seconds=max(0.0, t - horizon), usd_per_hour=price[item] * part[item])
        tardiness = problem.tardiness_factor * tardiness_usd(job, situation.now_seconds + t)
        lost = usd(seconds=lost_seconds(job, item, problem, situation), usd_per_hour=price[item] * part[item])
        again = lost * (horizon / min(horizon, situation.mean_gap_seconds or horizon) - 1)
        cells[item] = Cell(later + tardiness + again, shared_usd[item])
    worst = horizon + max(seconds[item] for item in worth_renting(seconds, shared_usd))
    run_later = min(
        usd(seconds=horizon + part[item] * max(0.0, t - horizon), usd_per_hour=price[item])
        for item, t in seconds.items()
    )
    tardiness = problem.postponement_factor * tardiness_usd(job, situation.now_seconds + worst)
    must_run = job.name in situation.running and not problem.formulation.preempts
    alone_usd = min(usd(seconds=t, usd_per_hour=price[item]) for item, t in seconds.items())
    return Row(cells, math.inf if must_run else run_later * (1 + TIE) + tardiness, alone_usd)


def _allowed(job: Job, problem: Problem, situation: Situation) -> list[Configuration]:
    """Find where the job may run: everywhere, or, without migration, where it has started."""
    started = situation.started.get(job.name)
    if started is not None and not problem.formulation.migrates:
        return [started]
    return sorted(job.seconds)


def cheapest_usd(job: Job, machines: Iterable[MachineType]) -> float:
    """Cost the cheapest whole run of a job that has its machine alone."""
    prices = {machine.name: machine.usd_per_hour for machine in machines}
    return min(usd(seconds=seconds, usd_per_hour=prices[item.machine]) for item, seconds in job.seconds.items())


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
    """Return the table of one decision."""
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
    """Cost machines until the next event, the share afterwards, and the tardiness of the jobs that stay."""
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
    """Return the budget without what is spent, what the fixed jobs will take and what later jobs will need."""
    if problem.limits.budget_usd is None:
        return math.inf
    left = problem.limits.budget_usd - situation.spent_usd
    for name in sorted(fixed):
        row = row_of(by_name[name], problem, situation)
        left -= row.cells[fixed[name].configuration].machine_usd
    later = (job for job in by_name.values() if job.release_seconds > situation.now_seconds)
    return left - sum(cheapest_usd(job, machines) for job in sorted(later, key=lambda job: job.name))
