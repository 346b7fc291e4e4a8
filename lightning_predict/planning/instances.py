"""Random problems for the comparison: jobs that arrive like customers, from a fixed mix, with deadlines and weights.

    arrivals     exponential gaps of a given mean (a Poisson process)
    jobs         10 × nodes, of a kind drawn evenly from JJ1 to JJ6
    deadline     release + U(1.5, 4) × the job's fastest time
    weight       U(1, 5) US dollars per hour of tardiness

The same seed gives the same instance. Example::

    problem = random_problem(nodes=10, mean_gap_seconds=30.0, seed=0)
    actual = random_actual_seconds(problem, seed=0)
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lightning_predict.planning.job_times import job_seconds, study_job_kinds, study_machines
from lightning_predict.planning.records import Formulation, Job, Limits, Problem
from lightning_predict.planning.simulation import ActualSeconds

JOBS_PER_NODE: Final = 10

WITH_ALL_FREEDOM: Final = Formulation()


def random_problem(
    *,
    nodes: int,
    mean_gap_seconds: float,
    seed: int,
    error: float = 0.0,
    formulation: Formulation = WITH_ALL_FREEDOM,
    restart_seconds: float = 0.0,
) -> Problem:
    """An instance of the fixed setting: ρ = 1, H = 300 s.

    Args:
        nodes: Machines at one time.
        mean_gap_seconds: Mean time between two arrivals.
        seed: Of the random numbers.
        error: Half width of the interval of the times: 0.1 is ±10 %.
        formulation: Freedom of the planner.
        restart_seconds: Time that a job loses when it moves or goes on after a pause.
    """
    random = np.random.default_rng([seed, nodes])
    number = JOBS_PER_NODE * nodes
    releases = np.cumsum(random.exponential(mean_gap_seconds, size=number))
    kinds = random.choice(study_job_kinds(), size=number)
    slack = random.uniform(1.5, 4.0, size=number)
    weights = random.uniform(1.0, 5.0, size=number)
    digits = len(str(number - 1))
    jobs = []
    for index in range(number):
        seconds = job_seconds(str(kinds[index]), study_machines())
        job = Job(
            name=f"{index:0{digits}d}-{kinds[index]}",
            seconds=seconds,
            release_seconds=float(releases[index]),
            deadline_seconds=float(releases[index] + slack[index] * min(seconds.values())),
            tardiness_usd_per_hour=float(weights[index]),
            low_factor=1.0 - error,
            high_factor=1.0 + error,
        )
        jobs.append(job)
    return Problem(
        jobs=tuple(jobs),
        machines=study_machines(),
        limits=Limits(nodes=nodes),
        formulation=formulation,
        restart_seconds=restart_seconds,
    )


def random_actual_seconds(problem: Problem, *, seed: int) -> ActualSeconds:
    """Real times: each time of each job off by a factor drawn evenly from the job's interval.

    Jobs are drawn by name, so the order of `problem.jobs` does not matter.
    """
    random = np.random.default_rng([seed, 1])
    return {
        job.name: {
            configuration: job.seconds[configuration] * float(random.uniform(job.low_factor, job.high_factor))
            for configuration in sorted(job.seconds)
        }
        for job in sorted(problem.jobs, key=lambda job: job.name)
    }
