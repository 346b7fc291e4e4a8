"""The published prototype, played again: two nodes, four types of machines, JJ1 to JJ6 submitted one every 300 s.

Its jobs' true lengths are not published: times are from the study (`job_times.toml`), real ones off by up to 10 %,
deadlines and weights drawn as in the study. A slot lasts from one decision to the next. Example::

    plans = played_prototype(seed=2)
    sum(slot_costs(plans.predicted)), sum(slot_costs(plans.real))
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from benchmarks.planning.deadlines import SLACK, WEIGHTS, due_job
from benchmarks.planning.study import job_seconds, random_actual_seconds, study_job_kinds, study_machines
from lightning_predict.planning.policies import policy
from lightning_predict.planning.problem import Limits, Plan, PlanningProblem
from lightning_predict.planning.simulator import simulate

MACHINES: Final = ("Standard NC6", "Standard NV6", "Standard NV12", "Standard NV24")
NODES: Final = 2
GAP_SECONDS: Final = 300.0
ERROR: Final = 0.1


@dataclass(frozen=True, slots=True)
class PlayedPrototype:
    """Expected and actual outcome."""

    predicted: Plan
    real: Plan

    @property
    def deviation(self) -> float:
        """Predicted over real cost of the machines, less one."""
        return self.predicted.machine_usd / self.real.machine_usd - 1


def prototype_problem(seed: int) -> PlanningProblem:
    """Return its jobs and machines, with deadlines and weights drawn."""
    random = np.random.default_rng([seed, 6])
    machines = tuple(machine for machine in study_machines() if machine.name in MACHINES)
    jobs = tuple(
        due_job(
            f"{number}-{kind}",
            job_seconds(kind, machines),
            release_seconds=number * GAP_SECONDS,
            slack=float(random.uniform(*SLACK)),
            weight=float(random.uniform(*WEIGHTS)),
            error=ERROR,
        )
        for number, kind in enumerate(study_job_kinds())
    )
    return PlanningProblem(jobs=jobs, machines=machines, limits=Limits(nodes=NODES))


def played_prototype(seed: int, method: str = "milp") -> PlayedPrototype:
    """Play it with the predicted times, and with real ones.

    Args:
        seed: Of deadlines, weights and real times.
        method: What decides: a name of `policies.py`.
    """
    problem = prototype_problem(seed)
    actual = random_actual_seconds(problem, seed=seed)
    return PlayedPrototype(simulate(problem, policy(method)), simulate(problem, policy(method), actual_seconds=actual))


def slot_costs(plan: Plan) -> tuple[float, ...]:
    """Price the machines of each slot, in dollars; a slot ends where a job comes, starts, moves or ends."""
    moments = {moment for segment in plan.segments for moment in (segment.start_seconds, segment.end_seconds)}
    moments |= {outcome.release_seconds for outcome in plan.outcomes}
    return tuple(
        sum(
            rental.usd
            * max(0.0, min(end, rental.end_seconds) - max(begin, rental.start_seconds))
            / (rental.end_seconds - rental.start_seconds)
            for rental in plan.rentals
            if rental.end_seconds > rental.start_seconds
        )
        for begin, end in pairwise(sorted(moments))
    )
