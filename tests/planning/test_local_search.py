"""Improvement of a finished plan job by job."""

from dataclasses import replace
from pathlib import Path

import pytest

from lightning_predict.planning.expected_cost import plan_outlook, time_draws
from lightning_predict.planning.files import read_problem
from lightning_predict.planning.local_search import improved_plan
from lightning_predict.planning.policies import cheapest_plan, policy
from lightning_predict.planning.problem import (
    Formulation,
    Limits,
    MachineType,
    Placement,
    Plan,
    PlanningProblem,
    PlanState,
)
from lightning_predict.planning.simulator import simulate
from tests.planning.example import HOUR, crowd, on

pytest.importorskip("scipy")

EXAMPLES = Path(__file__).parents[2] / "examples"


def improved(problem: PlanningProblem, plan: Plan) -> Plan | None:
    draws = time_draws(problem, None)
    plan = replace(plan, outlook=plan_outlook(plan, problem, draws))
    return improved_plan(plan, problem, since=None, outlook=lambda other: plan_outlook(other, problem, draws))


def test_the_example_moves_a_job_to_all_gpus_of_its_machine() -> None:
    # bert takes two of the four GPUs for 1.7 h. resnet has done 1.7 / 2.2 of its work by then; the rest takes
    # 0.227 x 1.3 h on four GPUs, after a restart of a minute. The box costs $3 an hour.
    plan = cheapest_plan(read_problem(EXAMPLES / "jobs.yaml"))
    hours = 1.7 + (1 - 1.7 / 2.2) * 1.3 + 1 / 60
    assert plan.total_usd == pytest.approx(3 * hours, rel=1e-3)
    assert plan.makespan_seconds == pytest.approx(hours * HOUR, rel=1e-3)
    assert [segment.placement.configuration for segment in plan.segments if segment.job == "resnet"] == [
        on("box", 2),
        on("box", 4),
    ]


def test_job_without_a_checkpoint_does_not_move_and_a_budget_holds() -> None:
    problem = read_problem(EXAMPLES / "jobs.yaml")
    problem = replace(problem, jobs=tuple(replace(job, checkpoint=None) for job in problem.jobs))
    assert len(cheapest_plan(problem).segments) == len(problem.jobs)
    problem = crowd(4, 2, seed=1)
    budget = cheapest_plan(problem).machine_usd
    limited = replace(problem, limits=replace(problem.limits, budget_usd=budget))
    assert cheapest_plan(limited).machine_usd <= budget * (1 + 1e-9)


def test_a_wrong_machine_is_corrected() -> None:
    """FIFO in the order of names takes the cheapest GPU that is in time for each job alone, and pays two machines."""
    box = MachineType(name="box", gpu="A10", num_gpus=2, usd_per_hour=2.0)
    own = MachineType(name="own", gpu="A10", num_gpus=1, usd_per_hour=1.1)
    first = replace(crowd(2, 1, seed=0).jobs[0], name="a", seconds={on("box", 1): HOUR, on("own", 1): HOUR})
    first = replace(first, deadline_seconds=9 * HOUR, low_factor=1.0, high_factor=1.0, spreads={}, release_seconds=0.0)
    problem = PlanningProblem(
        jobs=(first, replace(first, name="b")), machines=(box, own), limits=Limits(nodes=2), formulation=Formulation()
    )
    plan = simulate(problem, policy("fifo"))
    assert plan.total_usd == pytest.approx(2.2)  # two machines of $1.1
    better = improved(problem, plan)
    # One change at a time: moving the first job alone to the box would cost $3.1, so only both together help.
    assert better is None
    mixed = replace(problem, jobs=(replace(first, seconds={on("box", 1): HOUR}), replace(first, name="b")))
    # The first job needs the box, whose second GPU is free: the second job joins it, for nothing.
    better = improved(mixed, simulate(mixed, policy("fifo")))
    assert better is not None
    assert better.total_usd == pytest.approx(2.0)


@pytest.mark.parametrize(
    "formulation",
    [Formulation(preempts=False, migrates=False), Formulation(migrates=False), Formulation(preempts=False)],
)
@pytest.mark.parametrize("running", [True, False])
def test_a_started_job_moves_only_if_the_formulation_lets_it(formulation: Formulation, running: bool) -> None:
    """A dear machine was chosen; all that is left would cost a tenth elsewhere."""
    dear = MachineType(name="dear", gpu="A10", num_gpus=1, usd_per_hour=10.0)
    cheap = MachineType(name="cheap", gpu="L4", num_gpus=1, usd_per_hour=1.0)
    own = replace(crowd(2, 1, seed=0).jobs[0], name="a", seconds={on("dear", 1): 9 * HOUR, on("cheap", 1): 9 * HOUR})
    own = replace(own, deadline_seconds=99 * HOUR, low_factor=1.0, high_factor=1.0, spreads={}, release_seconds=0.0)
    problem = PlanningProblem(jobs=(own,), machines=(dear, cheap), limits=Limits(nodes=1), formulation=formulation)
    place = Placement(node=0, configuration=on("dear", 1))
    since = PlanState(
        now_seconds=HOUR,
        remaining={"a": 0.9},
        running={"a": place} if running else {},
        started={"a": place.configuration},
    )
    plan = cheapest_plan(problem, since=since)
    moved = {segment.placement.configuration.machine for segment in plan.segments} == {"cheap"}
    assert moved == formulation.migrates


def test_no_deadline_gets_less_likely() -> None:
    problem = replace(crowd(6, 2, seed=3), probability=0.9)
    plan = simulate(problem, policy("edf"))
    before = plan_outlook(plan, problem, time_draws(problem, None))
    better = improved(problem, plan)
    assert better is not None
    assert better.outlook is not None
    assert better.outlook.usd < before.usd
    assert better.outlook.shortfall(0.9) <= before.shortfall(0.9)
