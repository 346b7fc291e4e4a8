"""What each choice costs a job: the formulas of a decision.

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

    row = row_of(job, problem, situation)
    row.cells[configuration].cost_usd, row.postponed_usd
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, final

from lightning_predict.planning.records import Configuration, Formulation, Job, MachineType, Problem, Situation, usd

HORIZON_GAPS: Final = 3.0
"""Events after which a machine is likely to be used otherwise. In the comparison with queue rules (a job every 45 s,
two seeds), 1 costs 3 % more because GPUs stay idle, 5 as much, and the whole period 2 % more because jobs wait to fill
machines."""

TIE: Final = 1e-3
"""By this share waiting is made dearer, so that of equals the choice that gets work done wins."""


def run_seconds(job: Job, configuration: Configuration, problem: Problem, situation: Situation) -> float:
    """Predicted time until the job's end, if it runs on this configuration from now on.

    A job that moves, or that goes on after a pause, first loses `restart_seconds`.
    """
    seconds = situation.remaining[job.name] * job.seconds[configuration]
    return seconds + lost_seconds(job, configuration, problem, situation)


def horizon_seconds(problem: Problem, situation: Situation) -> float:
    """How long a machine that is rented now is counted: a few mean gaps between events, at most the period."""
    if problem.horizon_seconds is not None:
        return problem.horizon_seconds
    if situation.mean_gap_seconds is None:
        return problem.period_seconds
    return min(problem.period_seconds, HORIZON_GAPS * situation.mean_gap_seconds)


def lost_seconds(job: Job, configuration: Configuration, problem: Problem, situation: Situation) -> float:
    """Time that the job loses if it goes on with this configuration: none where it stays or has not run yet."""
    current = situation.running.get(job.name)
    stays = current is not None and current.configuration == configuration
    return 0.0 if stays or job.name not in situation.started else problem.restart_seconds


def tardiness_usd(job: Job, end_seconds: float) -> float:
    """Cost of an end at this time: 0 until the deadline, then the job's weight for each hour."""
    return usd(seconds=max(0.0, end_seconds - job.deadline_seconds), usd_per_hour=job.tardiness_usd_per_hour)


def worth_renting(
    seconds: Mapping[Configuration, float], cost_usd: Mapping[Configuration, float]
) -> set[Configuration]:
    """Configurations that no other beats in time and in cost (of equals, all)."""
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
    """Part of the machine that a job on this configuration takes away from others."""
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
    """One job's row of the table."""
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
    """Where the job may run: everywhere, or, without migration, where it has started."""
    started = situation.started.get(job.name)
    if started is not None and not problem.formulation.migrates:
        return [started]
    return sorted(job.seconds)


def cheapest_usd(job: Job, machines: Iterable[MachineType]) -> float:
    """Cost of the cheapest whole run of a job that has its machine alone."""
    prices = {machine.name: machine.usd_per_hour for machine in machines}
    return min(usd(seconds=seconds, usd_per_hour=prices[item.machine]) for item, seconds in job.seconds.items())
