"""Simulated annealing over plans without moves."""

from dataclasses import replace

import pytest

from lightning_predict.planning.annealing import Entry, ListSchedules, annealed_stages
from lightning_predict.planning.local_search import ONE_DECISION_SECONDS, FixedSchedule
from lightning_predict.planning.policies import cheapest_plan
from lightning_predict.planning.problem import Formulation, Job, Limits, MachineType, PlanningProblem
from lightning_predict.planning.simulator import simulate
from tests.planning.example import HOUR, crowd, on

BOX = MachineType(name="box", gpu="A10", num_gpus=2, usd_per_hour=2.0)
OWN = MachineType(name="own", gpu="A10", num_gpus=1, usd_per_hour=1.1)
PAIR = MachineType(name="pair", gpu="A10", num_gpus=2, usd_per_hour=1.0, nodes=2)


def job(name: str, hours: float = 1.0, *, release: float = 0.0, due: float = 9.0, late: float = 1.0) -> Job:
    return Job(
        name=name,
        seconds={on("box", 1): hours * HOUR, on("own", 1): hours * HOUR},
        release_seconds=release * HOUR,
        deadline_seconds=due * HOUR,
        tardiness_usd_per_hour=late,
        low_factor=1.0,
        high_factor=1.0,
    )


def problem_of(*jobs: Job, nodes: int = 2, machines: tuple[MachineType, ...] = (BOX, OWN)) -> PlanningProblem:
    return PlanningProblem(jobs=jobs, machines=machines, limits=Limits(nodes=nodes), formulation=Formulation())


def simulated_usd(problem: PlanningProblem) -> float:
    """Return the cost of the annealed plan in the simulator."""
    stages = annealed_stages(problem)
    assert stages is not None
    policy = FixedSchedule(stages=stages, shares_gpus=problem.formulation.shares_gpus)
    return simulate(replace(problem, period_seconds=ONE_DECISION_SECONDS), policy).total_usd


def test_jobs_move_together_or_wait_for_each_other_where_that_is_cheaper() -> None:
    # Two machines cost $2.2. A box for one job costs $2, too, so only both jobs together make it worthwhile.
    assert cheapest_plan(problem_of(job("a"), job("b"))).total_usd == pytest.approx(2.0)
    # Half an hour late costs $0.05. Two boxes, or one box for 1.5 h, cost $3 or more; two own machines cost $2.2.
    plan = cheapest_plan(problem_of(job("a", due=1.0, late=0.1), job("b", release=0.5)))
    assert plan.total_usd == pytest.approx(2.0 + 0.05)
    assert {segment.start_seconds for segment in plan.segments} == {0.5 * HOUR}


@pytest.mark.parametrize("shares_gpus", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_costs_are_the_simulators(seed: int, *, shares_gpus: bool) -> None:
    problem = crowd(5, 2, seed=seed)
    exact = tuple(replace(one, low_factor=1.0, high_factor=1.0, spreads={}) for one in problem.jobs)
    problem = replace(problem, jobs=exact, formulation=Formulation(shares_gpus=shares_gpus))
    stages = annealed_stages(problem)
    assert stages is not None
    schedules = ListSchedules(problem)
    names = [one.name for one in problem.jobs]
    index = {name: number for number, name in enumerate(names)}
    releases = {one.release_seconds: number for number, one in enumerate(problem.jobs)}
    schedule = tuple(
        Entry(
            index[name],
            schedules.configurations[index[name]].index(stage.configuration),
            -1 if stage.after is None else index[stage.after],
            releases[stage.earliest_seconds] if stage.earliest_seconds else -1,
        )
        for name, (stage,) in stages.items()
    )
    assert schedules.usd(schedule) == pytest.approx(simulated_usd(problem), rel=1e-6)


def test_limits_hold() -> None:
    """One node, and machines of two nodes: the jobs run one after another on one machine."""
    problem = problem_of(job("a"), job("b"), nodes=1, machines=(PAIR, OWN, replace(BOX, usd_per_hour=9.0)))
    assert simulated_usd(problem) == pytest.approx(2.2)
    quota = replace(problem, limits=Limits(nodes=2, quotas={"own": 1}))
    assert simulated_usd(quota) == pytest.approx(2.2)


def test_late_entries_and_dear_schedules_cost_infinitely_much() -> None:
    schedules = ListSchedules(problem_of(job("a"), job("b")))
    assert schedules.usd((Entry(0, 0, after=1), Entry(1, 0, after=0))) == float("inf")
    assert schedules.usd((Entry(0, 0), Entry(1, 0, after=0))) == pytest.approx(4.0)
    schedule = (Entry(0, 1), Entry(1, 1))
    assert schedules.usd(schedule, 2.3) == pytest.approx(2.2)
    assert schedules.usd(schedule, 2.1) == float("inf")
