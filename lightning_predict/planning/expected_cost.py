"""Expected cost of a plan and the probability of each deadline, if actual times differ from the predicted times.

The times of each job are drawn from the distribution that its interval describes. The plan keeps its placements and the
order of jobs on each machine, and a job starts later if the previous one on its GPUs ends later. All plans of a problem
are evaluated with the same draws.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_predict.base.interval import NORMAL_95
from lightning_predict.planning.objective import ELSEWHERE
from lightning_predict.planning.problem import (
    Configuration,
    Job,
    MachineType,
    Plan,
    PlanningProblem,
    PlanOutlook,
    PlanState,
    Rental,
    Segment,
    rental_usd,
)
from lightning_predict.reports.format import share

DRAWS: Final = 200  # Number of draws. The standard error of a probability of 90 % is then 2 %.
SAME_MOMENT_SECONDS: Final = 1e-3  # Times that differ by at most this many seconds count as the same event of the plan
Draws = npt.NDArray[np.float64]  # One value per draw


def time_draws(problem: PlanningProblem, since: PlanState | None) -> Mapping[str, Mapping[Configuration, Draws]]:
    """Draw the ratio of actual to predicted time, by job and configuration.

    The logarithm of a ratio is normal on either side of the prediction, with the ends of the interval at 5 and 95 %.
    The share `ELSEWHERE` of the variance is common to all GPUs of a job. A job has its own seed, so its draws do not
    depend on other jobs. On GPUs on which the job's progress was measured, the ratio is 1.
    """
    gpus = {machine.name: machine.gpu for machine in problem.machines}
    count = DRAWS if any(is_uncertain(job) for job in problem.jobs) else 1
    return {job.name: _job_draws(job, gpus, since, count) for job in problem.jobs}


def is_uncertain(job: Job) -> bool:
    """Return whether a job's time has an interval."""
    return bool(job.spreads) or job.low_factor < 1 < job.high_factor


def _job_draws(job: Job, gpus: Mapping[str, str], since: PlanState | None, count: int) -> dict[Configuration, Draws]:
    measured = {} if since is None else since.measured.get(job.name, {})
    known = {gpus[configuration.machine] for configuration in measured}
    random = np.random.default_rng(zlib.crc32(job.name.encode()))
    common = random.standard_normal(count)
    used = sorted({gpus[configuration.machine] for configuration in job.seconds})
    own = {gpu: random.standard_normal(count) for gpu in used}
    draws = {}
    for configuration, seconds in job.seconds.items():
        gpu, time = gpus[configuration.machine], job.time(configuration)
        normal = math.sqrt(ELSEWHERE) * common + math.sqrt(1 - ELSEWHERE) * own[gpu]
        ends = np.where(normal < 0, math.log(seconds / time.low), math.log(time.high / seconds))
        draws[configuration] = np.ones(count) if gpu in known else np.exp(ends * normal / NORMAL_95)
    return draws


def plan_outlook(
    plan: Plan, problem: PlanningProblem, draws: Mapping[str, Mapping[Configuration, Draws]]
) -> PlanOutlook:
    """Return the expected costs of a plan and the probability of each deadline, over all draws of `time_draws`."""
    machines = {machine.name: machine for machine in problem.machines}
    rented = _Rentals(plan, machines)
    ready: dict[str, tuple[float, Draws | float]] = {}
    for segment in plan.segments:
        configuration = segment.placement.configuration
        planned, actual = rented.free(segment)
        before, done = ready.get(segment.job, (-math.inf, -math.inf))
        enabled, latest = max(planned, before), np.maximum(actual, done)
        # A job that did not wait for another one starts at its planned time, not earlier.
        waited = segment.start_seconds - enabled <= SAME_MOMENT_SECONDS
        start = latest if waited else np.maximum(latest, segment.start_seconds)
        end = start + (segment.end_seconds - segment.start_seconds) * draws[segment.job][configuration]
        rented.occupy(segment, start, end)
        ready[segment.job] = (segment.end_seconds, end)
    tardiness, in_time = 0.0, {}
    for job in problem.jobs:
        if job.name in ready:
            late = np.maximum(0.0, ready[job.name][1] - job.deadline_seconds)
            in_time[job.name] = float(np.mean(late <= SAME_MOMENT_SECONDS))
            tardiness += rental_usd(seconds=float(np.mean(late)), usd_per_hour=job.tardiness_usd_per_hour)
    return PlanOutlook(machine_usd=rented.usd(), tardiness_usd=tardiness, in_time=in_time)


def missed_deadlines(plan: Plan, problem: PlanningProblem) -> tuple[str, ...]:
    """Return a message for each deadline that is met with less than the required probability."""
    chances = {} if plan.outlook is None else plan.outlook.in_time
    return tuple(
        f"{name} meets its deadline with a probability of {share(chance)}, below the {share(problem.probability)} "
        "asked for. Allow more machines or a larger budget, or move the deadline."
        for name, chance in sorted(chances.items())
        if chance < problem.probability
    )


class _Rentals:
    """Times at which each GPU of the rented machines becomes free, as planned and in every draw."""

    def __init__(self, plan: Plan, machines: Mapping[str, MachineType]) -> None:
        self._machines = machines
        self._rentals: dict[int, list[Rental]] = {}
        for rental in plan.rentals:
            self._rentals.setdefault(rental.node, []).append(rental)
        self._gpus: dict[Rental, list[tuple[float, Draws | float]]] = {}
        self._starts: dict[Rental, Draws | float] = {}

    def free(self, segment: Segment) -> tuple[float, Draws | float]:
        """Return when enough GPUs of the segment's machine are free, as planned and in every draw."""
        rental = self._rental(segment)
        chosen = sorted(self._of(rental), key=lambda gpu: gpu[0])[: segment.placement.configuration.num_gpus]
        actual: Draws | float = -math.inf
        for _, moment in chosen:
            actual = np.maximum(actual, moment)
        return max(planned for planned, _ in chosen), actual

    def occupy(self, segment: Segment, start: Draws | float, end: Draws) -> None:
        """Keep the same GPUs busy until the end of the segment."""
        rental = self._rental(segment)
        gpus = self._of(rental)
        gpus.sort(key=lambda gpu: gpu[0])
        count = segment.placement.configuration.num_gpus
        gpus[:count] = [(segment.end_seconds, end)] * count
        self._starts[rental] = np.minimum(self._starts.get(rental, math.inf), start)

    def usd(self) -> float:
        """Return the expected price of all rentals, each from the first start to the last end of a job."""
        total = 0.0
        for rentals in self._rentals.values():
            for rental in rentals:
                if rental not in self._starts:  # no job ran on this machine
                    total += rental.usd
                    continue
                price = self._machines[rental.machine].usd_per_hour
                idle = rental.end_seconds - max(planned for planned, _ in self._of(rental))
                end: Draws | float = rental.start_seconds
                for _, actual in self._of(rental):
                    end = np.maximum(end, actual)
                seconds = end - self._starts[rental] + max(0.0, idle)
                total += rental_usd(seconds=float(np.mean(seconds)), usd_per_hour=price)
        return total

    def _rental(self, segment: Segment) -> Rental:
        """Return the rental in which a segment runs."""
        rentals = self._rentals[segment.placement.node]
        begun = segment.start_seconds + SAME_MOMENT_SECONDS
        return next(rental for rental in reversed(rentals) if rental.start_seconds <= begun)

    def _of(self, rental: Rental) -> list[tuple[float, Draws | float]]:
        """Return when the GPUs of a rental become free; initially the end of the node's previous rental."""
        if rental not in self._gpus:
            rentals = self._rentals[rental.node]
            earlier = rentals[: rentals.index(rental)]
            planned: float = -math.inf
            actual: Draws | float = -math.inf
            for gpu in self._of(earlier[-1]) if earlier else ():
                planned, actual = max(planned, gpu[0]), np.maximum(actual, gpu[1])
            self._gpus[rental] = [(planned, actual)] * self._machines[rental.machine].num_gpus
        return self._gpus[rental]
