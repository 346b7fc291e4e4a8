"""Objective of a decision: the cost of every job on every configuration, in dollars.

Once a job's configuration is chosen, its end, its tardiness and its price are constants. The symbols are: time `t` left
on the configuration `(v, g)`, price `c_v` of a machine with `G_v` GPUs, deadline `d`, tardiness weight `ω`, the current
time `now`, and the horizon `h` until machines are used otherwise::

    machines now       c_v · h            for each rented machine
    afterwards (ours)  c_v · g/G_v · max(0, t − h)                the job's share of its machine from then on
    tardiness          ρ · ω · max(0, now + q·t − d)             q: for deadlines to be kept with a probability
    postponed          ρ̂ · ω · max(0, now + h + t_worst − d)      the worst case of a job that waits
    and (ours)         min over (v, g) of c_v · (h + g/G_v · max(0, t − h)): its cheapest run later, started alone
    restarts (ours)    t includes m more restarts of duration r for a job that moves or is paused

After Jahani et al., "Optimizing on-demand GPUs in the Cloud for Deep Learning Applications Training" (ICCCS 2019), who
count machines until the next event, and waiting until the end of the period `H`.

Our additions: `h` is three mean gaps between events so far or two restarts, whichever is longer, at most `H`. Without
the two further cost terms of machines, waiting would look free, and slow configurations of cheap machines would look
cheap. A paused job needs a restart, so waiting costs it one. At equal cost, running is preferred: waiting costs 0.1 %
more.

`t_worst` is the time on the cheapest configuration, which is the slowest one not beaten in both time and price. The
slowest of all is often so slow that it would dominate all other costs. The cheapest price and `t_worst` may belong to
different configurations. Waiting therefore costs at least the price and tardiness of the best single configuration;
otherwise a job might wait forever. Example::

    options = options_of(problem, PlanState(now_seconds=0.0, remaining={"resnet": 1.0}))
    options.cost_usd  # (jobs, configurations) in US dollars; infinite if a job cannot run
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lightning_predict.extensions.planning.problem import (
    Configuration,
    Formulation,
    Job,
    MachineType,
    Placement,
    PlanningProblem,
    PlanState,
    rental_usd,
)
from lightning_predict.units import seconds_to_hours

HORIZON_GAPS: Final = 3.0
"""Number of events after which a machine is likely to be used otherwise. In the comparison with queue rules (a job
every 45 s, two seeds), 1 costs 3 % more because GPUs stay idle, and 5 as much as 3. The whole period costs 2 % more,
because jobs wait to fill machines."""

TIE: Final = 1e-3
"""Relative surcharge on waiting, so that at equal cost running is preferred."""


MOVES_TO_COME: Final = 1.0
"""Number of further restarts counted with each move, because a job that moves is likely to move again. Chosen together
with `HORIZON_RESTARTS` on two of the study's instances (ten nodes, a job every 30 s, seeds 0 and 1). At 60 s a restart,
0 costs 3 % more, 2 costs 7 % more."""

HORIZON_RESTARTS: Final = 2.0
"""Minimum horizon in restarts: giving a machine back sooner would cost its jobs a restart."""


def horizon_seconds(problem: PlanningProblem, situation: PlanState) -> float:
    """Return the horizon over which a rented machine is counted: some gaps between events or some restarts.

    At most the period.
    """
    if problem.horizon_seconds is not None:
        return problem.horizon_seconds
    if situation.mean_gap_seconds is None:
        return problem.period_seconds
    gaps = HORIZON_GAPS * situation.mean_gap_seconds
    return min(problem.period_seconds, max(gaps, HORIZON_RESTARTS * problem.restart_seconds))


def restart_seconds(job: Job, problem: PlanningProblem, situation: PlanState) -> float:
    """Return the time that the job loses when it starts now; 0 before its first start."""
    return problem.restart_seconds if job.name in situation.started else 0.0


ELSEWHERE: Final = 0.24
"""Exponent that carries a job's measured slowdown on one GPU over to other GPUs: the share of models in the variance of
measured over predicted whole steps. It depends on the tables: 0.10 for the tables behind
`weights/files/whole_steps.json`, 0.48 without modules of a few operations. 0.24 is in between, and was the value of all
tables when it was chosen."""


def working_seconds(job: Job, problem: PlanningProblem, situation: PlanState) -> Mapping[Configuration, float]:
    """Return the time of a job's whole run without interruptions: predicted, then corrected by its progress.

    Other configurations of a measured GPU have the same factor. The run's overhead outside the steps does not depend on
    the GPU and applies to every GPU, as in `run_correction`. Other GPUs get a power of the remaining factor.
    """
    measured = situation.measured.get(job.name)
    if not measured:
        return job.seconds
    gpus = {machine.name: machine.gpu for machine in problem.machines}
    factors = {gpus[item.machine]: seconds / job.seconds[item] for item, seconds in measured.items()}
    mean = math.prod(factors.values()) ** (1 / len(factors))
    predicted = sum(job.seconds[item] for item in measured) / len(measured)
    of_any_gpu = min(1.0 + situation.overhead_seconds.get(job.name, 0.0) / predicted, max(mean, 1.0))
    elsewhere = of_any_gpu * (mean / of_any_gpu) ** ELSEWHERE
    return {
        item: measured.get(item, seconds * factors.get(gpus[item.machine], elsewhere))
        for item, seconds in job.seconds.items()
    }


INTERVAL_PROBABILITY: Final = 0.95
"""Probability that a time is below the upper end of its 90 % interval."""


def late_factor(high_factor: float, probability: float) -> float:
    """Return the factor on a predicted time so that it is kept with a probability.

    Logs of measured over predicted times are assumed normal, with the upper end of the interval at 95 %.

    Args:
        high_factor: Upper end of the time's interval, relative to the middle.
        probability: The required probability.
    """
    normal = NormalDist()
    return float(high_factor ** (normal.inv_cdf(probability) / normal.inv_cdf(INTERVAL_PROBABILITY)))


def late_factors(job: Job, problem: PlanningProblem, situation: PlanState) -> Mapping[Configuration, float]:
    """Return that factor by configuration: 1 on GPUs that the job was measured on, whose time is known."""
    gpus = {machine.name: machine.gpu for machine in problem.machines}
    known = {gpus[item.machine] for item in situation.measured.get(job.name, ())}
    late = late_factor(job.high_factor, problem.probability)
    own = {item: late_factor(spread.high, problem.probability) for item, spread in job.spreads.items()}
    return {item: 1.0 if gpus[item.machine] in known else own.get(item, late) for item in job.seconds}


def behind_share(job: Job, problem: PlanningProblem, situation: PlanState) -> float:
    """Return the share of the work done only according to the prediction, and missing if the job were late.

    Without it, a plan that moves a job late in its run would treat the time until then as certain.
    """
    share_done = situation.unproven.get(job.name, 0.0)
    if not share_done:
        return 0.0
    return share_done * (1.0 - 1.0 / late_factors(job, problem, situation)[situation.started[job.name]])


def interruption_factor(machine: MachineType, problem: PlanningProblem) -> float:
    """Return the expected slowdown of work on a machine type by interruptions.

    A checkpoint is written after every C of work. Interruptions come at a constant rate λ. Each loses the work since
    the last checkpoint and a restart R, which may be interrupted, too. Working off C then takes (e^(λC) − 1) e^(λR) / λ
    (Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
    Systems 22, 2006).
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
    """Return the expected time until the job's end, by the configuration on which it starts now on a new node."""
    remaining, restart = situation.remaining[job.name], restart_seconds(job, problem, situation)
    return {item: remaining * seconds + restart for item, seconds in expected_seconds(job, problem, situation).items()}


def stay_seconds(job: Job, problem: PlanningProblem, situation: PlanState) -> float:
    """Return the expected time until the end of a running job that stays, including the rest of a restart."""
    whole = expected_seconds(job, problem, situation)[situation.running[job.name].configuration]
    return situation.remaining[job.name] * whole + situation.restarting.get(job.name, 0.0)


def tardiness_usd(job: Job, end_seconds: float) -> float:
    """Return the tardiness cost of an end at this time: 0 until the deadline, then the job's weight per hour."""
    return rental_usd(seconds=max(0.0, end_seconds - job.deadline_seconds), usd_per_hour=job.tardiness_usd_per_hour)


def machine_share(machine: MachineType, configuration: Configuration, formulation: Formulation) -> float:
    """Return the share of the machine that a job on this configuration takes away from others."""
    return configuration.num_gpus / machine.num_gpus if formulation.shares_gpus else 1.0


def cheapest_usd(job: Job, problem: PlanningProblem) -> float:
    """Return the cost of the cheapest whole run of a job that has its machine alone."""
    rates = {machine.name: machine.usd_per_hour * interruption_factor(machine, problem) for machine in problem.machines}
    return min(rental_usd(seconds=seconds, usd_per_hour=rates[item.machine]) for item, seconds in job.seconds.items())


Table = npt.NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Options:
    """One decision as arrays; jobs, machines and configurations are sorted by name.

    Attributes:
        jobs: Jobs to decide about (J of them).
        machines: Machine types (M).
        configurations: Possible configurations of jobs (K).
        machine_of: Machine index of each configuration, (K,).
        size_of: GPUs of a machine that each configuration takes, (K,): all of them if machines are not shared.
        cost_usd: Cost of starting a job on a configuration, without the machine's price until the next event, (J, K).
            It is infinite if it cannot start, or if fewer GPUs of the same machine cost no more.
        machine_usd: Part of it, and of the price until the next event, that counts towards the budget, (J, K).
        running: Current placement of each job, (J,); None if it does not run.
        stay_usd: Cost of leaving it there, (J,); infinite if it does not run.
        stay_machine_usd: The part that counts towards the budget, (J,).
        postponed_usd: Cost of letting a job wait, (J,); infinite if it must not.
        reserved_usd: Budget reserved for a job that waits: its cheapest run, alone on its machine, (J,).
        period_usd: Price of a machine until the next event at the latest, (M,).
        nodes: Maximum number of machines at one time.
        quotas: Maximum number of machines of each type at one time, (M,); for a type of several machines, of the single
            type.
        budget_usd: Remaining budget; infinite without a budget.
    """

    jobs: tuple[str, ...]
    machines: tuple[MachineType, ...]
    configurations: tuple[Configuration, ...]
    machine_of: npt.NDArray[np.int64]
    size_of: npt.NDArray[np.int64]
    cost_usd: Table
    machine_usd: Table
    running: tuple[Placement | None, ...]
    stay_usd: Table
    stay_machine_usd: Table
    postponed_usd: Table
    reserved_usd: Table
    period_usd: Table
    nodes: int
    quotas: npt.NDArray[np.int64]
    budget_usd: float


def options_of(problem: PlanningProblem, situation: PlanState) -> Options:
    """Return the arrays of one decision."""
    machines = tuple(sorted(problem.machines, key=lambda machine: machine.name))
    index = {machine.name: number for number, machine in enumerate(machines)}
    by_name = {job.name: job for job in problem.jobs}
    jobs = [by_name[name] for name in sorted(situation.remaining)]
    configurations = tuple(sorted({configuration for job in jobs for configuration in job.seconds}))
    column_of = {configuration: column for column, configuration in enumerate(configurations)}
    machine_of = np.array([index[item.machine] for item in configurations], dtype=np.int64)  # (K,)
    usd_per_second = np.array(
        [rental_usd(seconds=1.0, usd_per_hour=machine.usd_per_hour) for machine in machines]
    )  # (M,)
    machine_rate = usd_per_second[machine_of]  # (K,); job_rate is the job's share of it
    job_rate = machine_rate * [
        machine_share(machines[index[item.machine]], item, problem.formulation) for item in configurations
    ]

    now, horizon = situation.now_seconds, horizon_seconds(problem, situation)
    running = tuple(situation.running.get(job.name) for job in jobs)
    runs = np.array([place is not None for place in running], dtype=bool)  # (J,)
    deadlines = np.array([job.deadline_seconds for job in jobs])
    weights = np.array([rental_usd(seconds=1.0, usd_per_hour=job.tardiness_usd_per_hour) for job in jobs])
    again = MOVES_TO_COME * np.array([restart_seconds(job, problem, situation) for job in jobs])  # (J,)
    times = [run_seconds(job, problem, situation) for job in jobs]
    seconds = np.array([[row.get(item, math.nan) for item in configurations] for row in times])  # (J, K)
    seconds = seconds.reshape(len(jobs), len(configurations))
    factors = [late_factors(job, problem, situation) for job in jobs]
    doubt = np.array([[row.get(item, 1.0) for item in configurations] for row in factors])  # (J, K)
    doubt = doubt.reshape(len(jobs), len(configurations))
    # Remaining work if the part that is done only according to the prediction were late, too.
    behind = np.array([behind_share(job, problem, situation) for job in jobs])  # (J,)
    whole = [expected_seconds(job, problem, situation) for job in jobs]
    missing = np.array([[row.get(item, math.nan) for item in configurations] for row in whole])  # (J, K)
    missing = (missing.reshape(len(jobs), len(configurations)) * doubt).T * behind  # (K, J)
    # The cost of a move is certain; it pays off only if the other GPU is as fast as predicted.
    gpu_of = np.array([machines[number].gpu for number in machine_of])  # (K,)
    gpus_now = np.array(["" if place is None else gpu_of[column_of[place.configuration]] for place in running])  # (J,)
    moves = runs[:, np.newaxis] & (gpus_now[:, np.newaxis] != gpu_of)
    seconds = np.where(moves, seconds * doubt, seconds)
    doubt = np.where(moves, 1.0, doubt)
    if not problem.formulation.migrates:
        for row, job in enumerate(jobs):
            if job.name in situation.started:
                seconds[row, np.arange(len(configurations)) != column_of[situation.started[job.name]]] = math.nan
    stay, stay_rate = np.full(len(jobs), math.nan), np.full(len(jobs), math.nan)  # (J,)
    stay_doubt, stay_behind = np.ones(len(jobs)), np.zeros(len(jobs))
    for row, (job, place) in enumerate(zip(jobs, running, strict=True)):
        if place is not None:
            stay[row], stay_rate[row] = stay_seconds(job, problem, situation), job_rate[column_of[place.configuration]]
            stay_doubt[row] = factors[row][place.configuration]
            stay_behind[row] = behind[row] * whole[row][place.configuration] * stay_doubt[row]

    def tardiness(end: Table) -> Table:  # jobs are the first axis
        late: Table = np.maximum(0.0, end.T - deadlines) * weights
        return late.T

    paid = seconds * job_rate  # (J, K)
    later = job_rate * (np.maximum(0.0, seconds - horizon).T + again).T
    cost_usd = later + problem.tardiness_factor * tardiness((now + (seconds * doubt).T + missing + again).T)
    stays_late = problem.tardiness_factor * tardiness(now + stay * stay_doubt + stay_behind)  # (J,)
    stays_usd = stay_rate * np.maximum(0.0, stay - horizon) + stays_late
    run_later = (1 + TIE) * (machine_rate * horizon + later)  # (J, K)
    late = problem.postponement_factor * tardiness((now + horizon + (seconds * doubt).T + missing + again).T)
    is_cheapest = paid == np.nanmin(paid, axis=1, keepdims=True)
    postponed_usd = np.maximum(
        np.nanmin(run_later, axis=1) + np.nanmin(np.where(is_cheapest, late, math.nan), axis=1),
        np.nanmin(run_later + late, axis=1),
    )
    no_start = np.isnan(seconds) | (runs[:, np.newaxis] & problem.formulation.fixes_running_jobs)
    cost_usd, machine_usd = np.where(no_start, math.inf, cost_usd), np.where(no_start, math.inf, paid)
    cost_usd[_needless(cost_usd, machine_usd, machine_of)] = math.inf
    sizes = [item.num_gpus for item in configurations]
    return Options(
        jobs=tuple(job.name for job in jobs),
        machines=machines,
        configurations=configurations,
        machine_of=machine_of,
        size_of=np.array(sizes, dtype=np.int64)
        if problem.formulation.shares_gpus
        else np.array([machine.num_gpus for machine in machines], dtype=np.int64)[machine_of],
        cost_usd=cost_usd,
        machine_usd=machine_usd,
        running=running,
        stay_usd=np.where(runs, stays_usd, math.inf),
        stay_machine_usd=np.where(runs, stay_rate * stay, math.inf),
        postponed_usd=np.where(runs & (not problem.formulation.preempts), math.inf, postponed_usd),
        reserved_usd=np.nanmin(seconds * machine_rate, axis=1),
        period_usd=usd_per_second * horizon,
        nodes=problem.limits.nodes,
        quotas=np.array(
            [problem.limits.quotas.get(machine.kind, problem.limits.nodes) for machine in machines], dtype=np.int64
        ),
        budget_usd=_budget_left(problem, situation, by_name.values()),
    )


def _needless(cost_usd: Table, machine_usd: Table, machine_of: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return a mask (J, K) of dominated cells: a cell with fewer GPUs of the same machine costs no more in any way.

    Configurations of a machine are adjacent, the smallest first.
    """
    needless = np.zeros(cost_usd.shape, dtype=bool)
    for column in range(1, cost_usd.shape[1]):
        fewer = (machine_of == machine_of[column]) & (np.arange(cost_usd.shape[1]) < column)
        # (J, fewer)
        beaten = (cost_usd[:, fewer] <= cost_usd[:, [column]]) & (machine_usd[:, fewer] <= machine_usd[:, [column]])
        needless[:, column] = np.isfinite(cost_usd[:, column]) & beaten.any(axis=1)
    return needless


def _budget_left(problem: PlanningProblem, situation: PlanState, jobs: Iterable[Job]) -> float:
    """Return the budget minus the money spent and the reserve for jobs that are not submitted yet."""
    if problem.limits.budget_usd is None:
        return math.inf
    later = sorted((job for job in jobs if job.release_seconds > situation.now_seconds), key=lambda job: job.name)
    return problem.limits.budget_usd - situation.spent_usd - sum(cheapest_usd(job, problem) for job in later)
