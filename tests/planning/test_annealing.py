"""Simulated annealing over plans without moves."""

from dataclasses import replace
from pathlib import Path

import pytest

from lightning_predict.planning.annealing import Entry, ScheduleCosts, annealed_schedule
from lightning_predict.planning.files import read_problem
from lightning_predict.planning.policies import ONE_DECISION_SECONDS, cheapest_plan
from lightning_predict.planning.problem import (
    Formulation,
    Job,
    Limits,
    MachineType,
    Placement,
    PlanningProblem,
    PlanState,
)
from lightning_predict.planning.simulator import simulate
from tests.planning.example import HOUR, crowd, on

pytest.importorskip("scipy")

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


def simulated_usd(problem: PlanningProblem, since: PlanState | None = None) -> float:
    """Return the cost of the annealed plan in the simulator."""
    schedule = annealed_schedule(problem, since)
    assert schedule is not None
    return simulate(replace(problem, period_seconds=ONE_DECISION_SECONDS), schedule, since=since).total_usd


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
    found = annealed_schedule(problem, None)
    assert found is not None
    costs = ScheduleCosts(problem)
    index = {one.name: number for number, one in enumerate(problem.jobs)}
    releases = {one.release_seconds: number for number, one in enumerate(problem.jobs)}
    schedule = tuple(
        Entry(
            index[name],
            costs.configurations[index[name]].index(start.configuration),
            -1 if start.after is None else index[start.after],
            releases[start.earliest_seconds] if start.earliest_seconds else -1,
        )
        for name, start in found.starts.items()
    )
    assert costs.usd(schedule) == pytest.approx(simulated_usd(problem), rel=1e-6)


def test_running_jobs_keep_their_gpus_and_the_rest_of_their_time() -> None:
    # a runs on a GPU of the only box for half an hour more. c takes two hours on the other GPU, and b an hour after a:
    # the box is rented for 2 h. In the other order, c starts when a ends, and the box is rented for 2.5 h.
    problem = problem_of(job("a"), job("b"), job("c", 2.0), job("d"), nodes=1)
    since = PlanState(
        now_seconds=HOUR,
        remaining={"a": 0.5, "b": 1.0, "c": 1.0},
        running={"a": Placement(node=0, configuration=on("box", 1))},
        started={"a": on("box", 1)},
    )
    found = annealed_schedule(problem, since)
    assert found is not None
    assert sorted(found.starts) == ["b", "c"]  # d has ended
    assert simulated_usd(problem, since) == pytest.approx(2 * 2.0)
    costs = ScheduleCosts(problem, since)
    box = costs.configurations[1].index(on("box", 1))
    assert costs.usd((Entry(2, box), Entry(1, box))) == pytest.approx(2 * 2.0)
    assert costs.usd((Entry(1, box), Entry(2, box))) == pytest.approx(2 * 2.5)
    alone = replace(since, remaining={"a": 0.5})
    assert simulated_usd(problem, alone) == pytest.approx(2 * 0.5)  # nothing waits


def test_limits_hold() -> None:
    """One node, and machines of two nodes: the jobs run one after another on one machine."""
    problem = problem_of(job("a"), job("b"), nodes=1, machines=(PAIR, OWN, replace(BOX, usd_per_hour=9.0)))
    assert simulated_usd(problem) == pytest.approx(2.2)
    quota = replace(problem, limits=Limits(nodes=2, quotas={"own": 1}))
    assert simulated_usd(quota) == pytest.approx(2.2)


def test_late_entries_and_dear_schedules_cost_infinitely_much() -> None:
    schedules = ScheduleCosts(problem_of(job("a"), job("b")))
    assert schedules.usd((Entry(0, 0, after=1), Entry(1, 0, after=0))) == float("inf")
    assert schedules.usd((Entry(0, 0), Entry(1, 0, after=0))) == pytest.approx(4.0)
    schedule = (Entry(0, 1), Entry(1, 1))
    assert schedules.usd(schedule, 2.3) == pytest.approx(2.2)
    assert schedules.usd(schedule, 2.1) == float("inf")


EXAMPLES = Path(__file__).parents[2] / "examples"


def test_example_gains_from_a_move_and_a_budget_holds() -> None:
    # The box of $3 an hour takes both jobs in 2.2 h. A job that moves makes it cheaper.
    problem = read_problem(EXAMPLES / "jobs.yaml")
    plan = cheapest_plan(problem)
    assert len(plan.segments) > len(problem.jobs)
    assert plan.total_usd < 3 * 2.2
    still = replace(problem, jobs=tuple(replace(one, checkpoint=None) for one in problem.jobs))
    assert cheapest_plan(still).total_usd == pytest.approx(3 * 2.2)
    assert len(cheapest_plan(still).segments) == len(problem.jobs)
    problem = crowd(4, 2, seed=1)
    budget = cheapest_plan(problem).machine_usd
    limited = replace(problem, limits=replace(problem.limits, budget_usd=budget))
    assert cheapest_plan(limited).machine_usd <= budget * (1 + 1e-9)


@pytest.mark.parametrize(
    "formulation",
    [Formulation(preempts=False, migrates=False), Formulation(migrates=False), Formulation(preempts=False)],
)
@pytest.mark.parametrize("is_running", [True, False])
def test_a_started_job_moves_only_if_the_formulation_lets_it(formulation: Formulation, *, is_running: bool) -> None:
    """A dear machine was chosen; all that is left would cost a tenth elsewhere."""
    dear = MachineType(name="dear", gpu="A10", num_gpus=1, usd_per_hour=10.0)
    cheap = MachineType(name="cheap", gpu="L4", num_gpus=1, usd_per_hour=1.0)
    own = replace(job("a", due=99.0), seconds={on("dear", 1): 9 * HOUR, on("cheap", 1): 9 * HOUR}, checkpoint="/shared")
    problem = PlanningProblem(jobs=(own,), machines=(dear, cheap), limits=Limits(nodes=1), formulation=formulation)
    place = Placement(node=0, configuration=on("dear", 1))
    since = PlanState(
        now_seconds=HOUR,
        remaining={"a": 0.9},
        running={"a": place} if is_running else {},
        started={"a": place.configuration},
    )
    plan = cheapest_plan(problem, since=since)
    moved = {segment.placement.configuration.machine for segment in plan.segments} == {"cheap"}
    assert moved == formulation.migrates


def test_promised_deadlines_are_kept_at_any_price() -> None:
    # Lateness costs a cent an hour, so that only the probability makes the job take the faster, dearer machine.
    fast = MachineType(name="fast", gpu="A100", num_gpus=1, usd_per_hour=9.0)
    own = replace(job("a", due=1.0, late=0.01), seconds={on("own", 1): 2 * HOUR, on("fast", 1): HOUR / 2})
    problem = replace(problem_of(own, machines=(OWN, fast)), probability=0.9)
    assert cheapest_plan(problem).total_usd == pytest.approx(4.5)
    assert cheapest_plan(replace(problem, probability=0.5)).total_usd == pytest.approx(2.2 + 0.01)
