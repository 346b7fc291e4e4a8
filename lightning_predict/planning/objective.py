"""Objective function of a planning decision: the cost in dollars of every job on every configuration.

Once a job's configuration is chosen, its end, tardiness and price are constants. The symbols are: time `t` left on the
configuration `(v, g)`, price `c_v` of a machine with `G_v` GPUs, deadline `d`, tardiness weight `ω`, the current time
`now`, and the horizon `h`, until which a decision is expected to hold::

    machines now       c_v · h            for each rented machine
    afterwards (ours)  c_v · g/G_v · max(0, t − h)                the job's share of its machine from then on
    tardiness          ρ · ω · max(0, now + q·t − d)             q: factor to meet deadlines with a given probability
    postponed          ω · max(0, now + h + t_worst − d)      worst-case tardiness of a job that waits
    and (ours)         min over (v, g) of c_v · (h + g/G_v · max(0, t − h)): cheapest later run of that job
    restarts (ours)    t includes m more restarts of duration r, if the job moves or is paused

The model follows Jahani et al., "Optimizing on-demand GPUs in the Cloud for Deep Learning Applications Training" (ICCCS
2019). Their model counts the price of machines until the next event, and waiting until the end of the period `H`.

Lines with (ours) are our additions. The horizon `h` is three mean gaps between events so far, or two restarts if two
restarts take longer, but at most `H`. Without the two additional cost terms of machines, waiting would look free, and
slow configurations of cheap machines would look cheap. A paused job needs a restart, so waiting costs one restart. If
running and waiting cost the same, running is preferred, because waiting costs 0.1 % more.

`t_worst` is the time on the cheapest configuration: the slowest configuration that no other configuration beats in both
time and price. The slowest of all configurations is often so slow that it would dominate all other costs. The cheapest
price and `t_worst` may belong to different configurations. Therefore, waiting costs at least the price and tardiness of
the best single configuration. Otherwise a job might wait forever. Example::

    options = options_of(problem, PlanState(now_seconds=0.0, remaining={"resnet": 1.0}))
    options.cost_usd  # (jobs, configurations) in US dollars; infinite if a job cannot run
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_predict.base.interval import NORMAL_95, OUTSIDE
from lightning_predict.base.units import hours_to_seconds, seconds_to_hours
from lightning_predict.planning.problem import (
    Configuration,
    Formulation,
    Job,
    MachineType,
    Placement,
    PlanningProblem,
    PlanState,
    rental_usd,
)

HORIZON_GAPS: Final = 3.0  # Number of events after which a machine is likely to have other jobs
TIE: Final = 1e-3  # Relative surcharge on waiting, so that running is preferred at equal cost


MOVES_TO_COME: Final = 1.0  # Further restarts that count with each move: a job that moves is likely to move again
HORIZON_RESTARTS: Final = 2.0  # Minimum horizon as a number of restarts


def horizon_seconds(problem: PlanningProblem, situation: PlanState) -> float:
    """Return the horizon over which the cost of a rented machine is counted.

    The horizon is `HORIZON_GAPS` gaps between events or `HORIZON_RESTARTS` restarts, whichever is longer, but at most
    the period.
    """
    if problem.horizon_seconds is not None:
        return problem.horizon_seconds
    if situation.mean_gap_seconds is None:
        return problem.period_seconds
    gaps = HORIZON_GAPS * situation.mean_gap_seconds
    return min(problem.period_seconds, max(gaps, HORIZON_RESTARTS * problem.restart_seconds))


def restart_seconds(job: Job, problem: PlanningProblem, situation: PlanState) -> float:
    """Return the time that a job loses if it starts now; 0 for its first start."""
    return problem.restart_seconds if job.name in situation.started else 0.0


ELSEWHERE: Final = 0.24
"""Exponent with which a job's measured slowdown on one GPU is applied to other GPUs: the share of the variance of
measured over predicted step times that is explained by the neural network."""


def working_seconds(job: Job, problem: PlanningProblem, situation: PlanState) -> Mapping[Configuration, float]:
    """Return the time of a job's whole run without interruptions: predicted, then corrected by its measured progress.

    All configurations of the measured GPU get the same correction factor. Other GPUs get a power (`ELSEWHERE`) of it.
    """
    measured = situation.measured.get(job.name)
    if not measured:
        return job.seconds
    gpus = {machine.name: machine.gpu for machine in problem.machines}
    factors = {gpus[item.machine]: seconds / job.seconds[item] for item, seconds in measured.items()}
    elsewhere = math.prod(factors.values()) ** (ELSEWHERE / len(factors))
    return {
        item: measured.get(item, seconds * factors.get(gpus[item.machine], elsewhere))
        for item, seconds in job.seconds.items()
    }


INTERVAL_PROBABILITY: Final = 1 - OUTSIDE  # Probability that a time is below the upper end of its 90 % interval


def late_factor(high_factor: float, probability: float) -> float:
    """Return the factor on a predicted time that makes it an upper bound with the given probability.

    The logarithms of measured over predicted times are assumed to be normally distributed, with the upper end of the
    interval at 95 %.
    """
    return float(high_factor ** (NormalDist().inv_cdf(probability) / NORMAL_95))


def late_factors(job: Job, problem: PlanningProblem, situation: PlanState) -> Mapping[Configuration, float]:
    """Return `late_factor` by configuration; 1 on GPUs on which the job was measured, where its time is known."""
    gpus = {machine.name: machine.gpu for machine in problem.machines}
    known = {gpus[item.machine] for item in situation.measured.get(job.name, ())}
    late = late_factor(job.high_factor, problem.probability)
    own = {item: late_factor(spread.high, problem.probability) for item, spread in job.spreads.items()}
    return {item: 1.0 if gpus[item.machine] in known else own.get(item, late) for item in job.seconds}


def interruption_factor(machine: MachineType, problem: PlanningProblem) -> float:
    """Return the expected slowdown of work on a spot machine by interruptions.

    A checkpoint is written after every C seconds of work. Interruptions come at a constant rate λ. Each interruption
    loses the work since the last checkpoint and a restart of R seconds, which may be interrupted, too. The expected
    time of C seconds of work is then (e^(λC) − 1) e^(λR) / λ (Daly, "A higher order estimate of the optimum checkpoint
    interval for restart dumps", Future Generation Computer Systems 22, 2006).
    """
    if not machine.interruptions_per_hour or problem.checkpoint_seconds is None:
        return 1.0
    between = seconds_to_hours(problem.checkpoint_seconds) * machine.interruptions_per_hour
    restart = seconds_to_hours(problem.restart_seconds) * machine.interruptions_per_hour
    return math.expm1(between) * math.exp(restart) / between


def expected_seconds(job: Job, problem: PlanningProblem, situation: PlanState) -> Mapping[Configuration, float]:
    """Return the time of a job's whole run by configuration, including expected interruptions."""
    factors = {machine.name: interruption_factor(machine, problem) for machine in problem.machines}
    whole = working_seconds(job, problem, situation)
    return {item: seconds * factors[item.machine] for item, seconds in whole.items()}


def run_seconds(job: Job, problem: PlanningProblem, situation: PlanState) -> Mapping[Configuration, float]:
    """Return the expected time until the end of a job that starts now on a new node, by configuration."""
    remaining, restart = situation.remaining[job.name], restart_seconds(job, problem, situation)
    return {item: remaining * seconds + restart for item, seconds in expected_seconds(job, problem, situation).items()}


def stay_seconds(job: Job, problem: PlanningProblem, situation: PlanState) -> float:
    """Return the expected time until the end of a running job that stays where it is, with the rest of a restart."""
    whole = expected_seconds(job, problem, situation)[situation.running[job.name].configuration]
    return situation.remaining[job.name] * whole + situation.restarting.get(job.name, 0.0)


def tardiness_usd(job: Job, end_seconds: float) -> float:
    """Return the tardiness cost of ending at this time: 0 until the deadline, then the job's weight per hour."""
    return rental_usd(seconds=max(0.0, end_seconds - job.deadline_seconds), usd_per_hour=job.tardiness_usd_per_hour)


def machine_share(machine: MachineType, configuration: Configuration, formulation: Formulation) -> float:
    """Return the share of a machine that a job on this configuration occupies."""
    return configuration.num_gpus / machine.num_gpus if formulation.shares_gpus else 1.0


def cheapest_usd(job: Job, problem: PlanningProblem) -> float:
    """Return the cost of a job's cheapest whole run, with no other job on the machine."""
    rates = {machine.name: machine.usd_per_hour * interruption_factor(machine, problem) for machine in problem.machines}
    return min(rental_usd(seconds=seconds, usd_per_hour=rates[item.machine]) for item, seconds in job.seconds.items())


def runs_alone(problem: PlanningProblem, seconds: Mapping[Configuration, float]) -> list[tuple[float, float, float]]:
    """Return seconds, seconds of a whole machine and dollars of a run on each configuration, without idle GPUs."""
    machines, runs = {machine.name: machine for machine in problem.machines}, []
    for item, time in seconds.items():
        machine = machines[item.machine]
        busy = time * machine_share(machine, item, problem.formulation)
        runs.append((time, busy, rental_usd(seconds=busy, usd_per_hour=machine.usd_per_hour)))
    return runs


def least_usd(problem: PlanningProblem, seconds: Mapping[str, Mapping[Configuration, float]] | None = None) -> float:
    """Return a lower bound on the cost of any plan.

    Each job begins at its release and pays for no GPU that idles and no restart, on one configuration or, if that just
    keeps its deadline, with a part of its work on each of two: what machines cost is linear in the parts, and what
    tardiness costs has one bend.

    Args:
        problem: Jobs and machines.
        seconds: Real time of the whole run, by job and configuration; None uses the predicted times.
    """
    least = 0.0
    for job in problem.jobs:
        slack = job.deadline_seconds - job.release_seconds
        runs = runs_alone(problem, job.seconds if seconds is None else seconds[job.name])
        ways = [(time, cost) for time, _, cost in runs]
        alone = (cost + tardiness_usd(job, job.release_seconds + time) for time, cost in ways)
        mixed = (
            cheap + (dear - cheap) * (slow - slack) / (slow - fast)
            for slow, cheap in ways
            for fast, dear in ways
            if fast <= slack < slow
        )
        least += min([*alone, *mixed])
    return least


Table = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Options:
    """Inputs of one decision as arrays. Jobs, machines and configurations are sorted by name."""

    jobs: tuple[str, ...]  # Jobs to decide about (J of them)
    machines: tuple[MachineType, ...]  # Machine types (M)
    configurations: tuple[Configuration, ...]  # Configurations that jobs can use (K)
    machine_of: npt.NDArray[np.int64]  # Machine index of each configuration, (K,)
    size_of: npt.NDArray[np.int64]  # Machine's GPUs that each configuration uses, (K,); all, if not shared
    # Cost of starting a job on a configuration, without the machine's price until the next event, (J, K). It is
    # infinite if the job cannot start there, or if fewer GPUs of the same machine cost no more.
    cost_usd: Table
    # Part of the cost of starting, and of the machine's price until the next event, that counts towards the budget, (J,
    # K)
    machine_usd: Table
    running: tuple[Placement | None, ...]  # Current placement of each job, (J,); None if the job does not run
    stay_usd: Table  # Cost of leaving a job where it runs, (J,); infinite if the job does not run
    stay_machine_usd: Table  # Part of the cost of staying that counts towards the budget, (J,)
    postponed_usd: Table  # Cost of letting a job wait, (J,); infinite if the job must not wait
    reserved_usd: Table  # Budget reserved for a job that waits: the cost of its cheapest run, alone on a machine, (J,)
    period_usd: Table  # Price of a machine until the next event at the latest, (M,)
    nodes: int  # Maximum number of machines at one time
    # Maximum number of machines of each type at one time, (M,). For a type that combines several machines, it is the
    # quota of the single machine's type.
    quotas: npt.NDArray[np.int64]
    budget_usd: float  # Remaining budget; infinite without a budget


def options_of(problem: PlanningProblem, situation: PlanState) -> Options:
    """Return the arrays of one decision."""
    machines = tuple(sorted(problem.machines, key=lambda machine: machine.name))
    index = {machine.name: number for number, machine in enumerate(machines)}
    by_name = {job.name: job for job in problem.jobs}
    jobs = [by_name[name] for name in sorted(situation.remaining)]
    configurations = tuple(sorted({configuration for job in jobs for configuration in job.seconds}))
    column_of = {configuration: column for column, configuration in enumerate(configurations)}
    machine_of = np.array([index[item.machine] for item in configurations], dtype=np.int64)  # (K,)
    usd_per_second = np.array([machine.usd_per_hour for machine in machines]) / hours_to_seconds(1)  # (M,)
    machine_rate = usd_per_second[machine_of]  # (K,); job_rate is the job's share of it
    job_rate = machine_rate * [
        machine_share(machines[index[item.machine]], item, problem.formulation) for item in configurations
    ]

    now, horizon = situation.now_seconds, horizon_seconds(problem, situation)
    running = tuple(situation.running.get(job.name) for job in jobs)
    runs = np.array([place is not None for place in running], dtype=bool)  # (J,)
    can_move = np.array([job.can_move for job in jobs], dtype=bool)  # (J,)
    again = MOVES_TO_COME * np.array([restart_seconds(job, problem, situation) for job in jobs])  # (J,)
    seconds = _table([run_seconds(job, problem, situation) for job in jobs], configurations, math.nan)  # (J, K)
    doubt = _table([late_factors(job, problem, situation) for job in jobs], configurations, 1.0)  # (J, K)
    stay, stay_rate, stays_late = np.full((3, len(jobs)), math.nan)
    for row, (job, place) in enumerate(zip(jobs, running, strict=True)):
        if place is not None:
            column = column_of[place.configuration]
            stay[row], stay_rate[row] = stay_seconds(job, problem, situation), job_rate[column]
            end = now + stay[row] * doubt[row, column]
            stays_late[row] = problem.tardiness_factor * tardiness_usd(job, end)
    # The cost of a move is certain, but its benefit is not: it depends on the predicted speed of the other GPU.
    gpu_of = np.array([machines[number].gpu for number in machine_of])  # (K,)
    gpus_now = np.array(["" if place is None else gpu_of[column_of[place.configuration]] for place in running])  # (J,)
    moves = runs[:, np.newaxis] & (gpus_now[:, np.newaxis] != gpu_of)
    seconds, doubt = np.where(moves, seconds * doubt, seconds), np.where(moves, 1.0, doubt)
    if not problem.formulation.migrates:
        for row, job in enumerate(jobs):
            if job.name in situation.started:
                seconds[row, np.arange(len(configurations)) != column_of[situation.started[job.name]]] = math.nan

    paid = seconds * job_rate  # (J, K)
    later = job_rate * (np.maximum(0.0, seconds - horizon).T + again).T
    end = now + ((seconds * doubt).T + again).T
    cost_usd = later + problem.tardiness_factor * _tardiness_usd(jobs, end)
    no_start = np.isnan(seconds) | (runs & (problem.formulation.fixes_running_jobs | ~can_move))[:, np.newaxis]
    cost_usd, machine_usd = np.where(no_start, math.inf, cost_usd), np.where(no_start, math.inf, paid)
    cost_usd[_needless(cost_usd, machine_usd, machine_of)] = math.inf
    run_later = (1 + TIE) * (machine_rate * horizon + later)  # (J, K)
    late = _tardiness_usd(jobs, horizon + end)
    is_cheapest = paid == np.nanmin(paid, axis=1, keepdims=True)
    postponed_usd = np.maximum(
        np.nanmin(run_later, axis=1) + np.nanmin(np.where(is_cheapest, late, math.nan), axis=1),
        np.nanmin(run_later + late, axis=1),
    )
    sizes, quotas = [item.num_gpus for item in configurations], problem.limits.quotas
    if not problem.formulation.shares_gpus:
        sizes = [machines[number].num_gpus for number in machine_of]
    return Options(
        jobs=tuple(job.name for job in jobs),
        machines=machines,
        configurations=configurations,
        machine_of=machine_of,
        size_of=np.array(sizes, dtype=np.int64),
        cost_usd=cost_usd,
        machine_usd=machine_usd,
        running=running,
        stay_usd=np.where(runs, stay_rate * np.maximum(0.0, stay - horizon) + stays_late, math.inf),
        stay_machine_usd=np.where(runs, stay_rate * stay, math.inf),
        postponed_usd=np.where(runs & ~(problem.formulation.preempts & can_move), math.inf, postponed_usd),
        reserved_usd=np.nanmin(seconds * machine_rate, axis=1),
        period_usd=usd_per_second * horizon,
        nodes=problem.limits.nodes,
        quotas=np.array([quotas.get(machine.kind, problem.limits.nodes) for machine in machines], dtype=np.int64),
        budget_usd=_budget_left(problem, situation, by_name.values()),
    )


def _table(
    rows: Sequence[Mapping[Configuration, float]], configurations: Sequence[Configuration], missing: float
) -> Table:
    """Return values by job and configuration as an array (J, K)."""
    values = np.array([[row.get(item, missing) for item in configurations] for row in rows])
    return values.reshape(len(rows), len(configurations))


def _tardiness_usd(jobs: Sequence[Job], end_seconds: Table) -> Table:
    """Return `tardiness_usd` of each job, for ends of the shape (J, K)."""
    deadlines = np.array([job.deadline_seconds for job in jobs])
    weights = np.array([job.tardiness_usd_per_hour for job in jobs]) / hours_to_seconds(1)
    late: Table = np.maximum(0.0, end_seconds.T - deadlines) * weights
    return late.T


def _needless(cost_usd: Table, machine_usd: Table, machine_of: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return a mask (J, K) of dominated configurations: fewer GPUs of the same machine cost no more in any respect.

    Configurations of a machine are adjacent, and the smallest comes first.
    """
    needless = np.zeros(cost_usd.shape, dtype=bool)
    for column in range(1, cost_usd.shape[1]):
        fewer = (machine_of == machine_of[column]) & (np.arange(cost_usd.shape[1]) < column)
        # (J, fewer)
        beaten = (cost_usd[:, fewer] <= cost_usd[:, [column]]) & (machine_usd[:, fewer] <= machine_usd[:, [column]])
        needless[:, column] = np.isfinite(cost_usd[:, column]) & beaten.any(axis=1)
    return needless


def _budget_left(problem: PlanningProblem, situation: PlanState, jobs: Iterable[Job]) -> float:
    """Return the budget without the money already spent, and without a reserve for jobs that are not submitted yet."""
    if problem.limits.budget_usd is None:
        return math.inf
    later = sorted((job for job in jobs if job.release_seconds > situation.now_seconds), key=lambda job: job.name)
    return problem.limits.budget_usd - situation.spent_usd - sum(cheapest_usd(job, problem) for job in later)
