from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_predict.errors import MissingDependencyError
from lightning_predict.planning.milp import MilpPlanner
from lightning_predict.planning.objective import Options, options_of
from lightning_predict.planning.placement import WAITS, nodes_needed
from lightning_predict.planning.problem import Formulation, Limits, Placement, Problem, Situation
from tests.planning.example import HOUR, LARGE, SMALL, TWO_JOBS, assert_allowed, at_start, crowd, job, on

FOUR_TYPES = frozenset({"Standard NC24", "Standard NV24", "In-house server 2", "In-house server 3"})
HOURLY = replace(TWO_JOBS, horizon_seconds=HOUR)


def test_two_jobs_by_hand() -> None:
    decision = MilpPlanner().decide(HOURLY, at_start(HOURLY))
    # a on large: 6 $ for the horizon and nothing else; on small 1 $ + 9 $. b on small: 1 $ + 1 $, to wait 2.002 $.
    assert {name: item.configuration for name, item in decision.placements.items()} == {
        "a": on("large", 4),
        "b": on("small", 1),
    }
    assert decision.objective_usd == pytest.approx(6.0 + 2.0)
    assert decision.gap == pytest.approx(0.0, abs=1e-6)
    assert decision.postponed == ()


def test_one_node_goes_to_the_job_that_loses_most_by_waiting() -> None:
    problem = replace(HOURLY, limits=Limits(nodes=1))
    decision = MilpPlanner().decide(problem, at_start(problem))
    # a waits: 13.004 $ and b runs: 2 $. b waits: 2.002 $ and a runs: 6 $.
    assert (set(decision.placements), decision.postponed) == ({"a"}, ("b",))
    assert decision.objective_usd == pytest.approx(6.0 + 2.0 * 1.001)


def test_a_quota_is_kept() -> None:
    problem = replace(HOURLY, limits=Limits(nodes=2, quotas={"large": 0}))
    decision = MilpPlanner().decide(problem, at_start(problem))
    assert decision.placements["a"].configuration == on("small", 1)


def test_the_budget_is_kept() -> None:
    # Both alone: 6 $ + 2 $ = 8 $, a on small 4 $ + 2 $ = 6 $. With 7 $ only the latter is left.
    problem = replace(HOURLY, limits=Limits(nodes=2, budget_usd=7.0))
    assert MilpPlanner().decide(problem, at_start(problem)).placements["a"].configuration == on("small", 1)
    problem = replace(HOURLY, limits=Limits(nodes=2, budget_usd=8.1))
    assert MilpPlanner().decide(problem, at_start(problem)).placements["a"].configuration == on("large", 4)


def test_jobs_share_a_machine_only_where_that_is_allowed() -> None:
    jobs = tuple(job(name, hours={on("large", 2): 1.0}, deadline=1.0, weight=50.0) for name in "abc")
    problem = replace(HOURLY, jobs=jobs, limits=Limits(nodes=2))
    together = MilpPlanner().decide(problem, at_start(problem))
    assert len({item.node for item in together.placements.values()}) == 2
    assert together.postponed == ()
    alone = replace(problem, formulation=Formulation(shares_gpus=False))
    decision = MilpPlanner().decide(alone, at_start(alone))
    assert len(decision.postponed) == 1
    assert_allowed(alone, decision.placements)


def brute_force_usd(options: Options) -> float:
    """The least objective over all choices, with the packing of `placement.py` (exact for machines of 1 and 4 GPUs)."""
    best = math.inf
    columns = range(WAITS, len(options.configurations))
    for choice in itertools.product(columns, repeat=len(options.jobs)):
        total, counts = 0.0, [[0] * machine.num_gpus for machine in options.machines]
        for number, item in enumerate(choice):
            total += options.postponed_usd[number] if item == WAITS else options.cost_usd[number, item]
            if item != WAITS:
                counts[options.machine_of[item]][options.size_of[item] - 1] += 1
        opened = [
            nodes_needed(tuple(number), capacity=machine.num_gpus)
            for number, machine in zip(counts, options.machines, strict=True)
        ]
        if sum(opened) <= len(options.free_nodes) and np.all(np.array(opened) <= options.quotas):
            best = min(best, total + float(np.dot(opened, options.period_usd)))
    return best


@st.composite
def small_problems(draw: st.DrawFn) -> Problem:
    number = draw(st.integers(1, 4))
    hours = st.floats(0.1, 5.0)
    places = [on("small", 1), on("large", 1), on("large", 2), on("large", 3), on("large", 4)]
    jobs = []
    for index in range(number):
        chosen = draw(st.lists(st.sampled_from(places), min_size=1, max_size=4, unique=True))
        jobs.append(
            job(
                f"job{index}",
                hours={place: draw(hours) for place in chosen},
                deadline=draw(st.floats(0.1, 6.0)),
                weight=draw(st.floats(0.0, 9.0)),
            )
        )
    return Problem(
        jobs=tuple(jobs),
        machines=(SMALL, LARGE),
        limits=Limits(nodes=draw(st.integers(1, 3))),
        formulation=Formulation(shares_gpus=draw(st.booleans())),
        horizon_seconds=draw(st.sampled_from([None, HOUR])),
    )


@given(small_problems())
@settings(max_examples=40, deadline=None)
def test_no_choice_is_cheaper(problem: Problem) -> None:
    decision = MilpPlanner().decide(problem, at_start(problem))
    assert_allowed(problem, decision.placements)
    assert decision.objective_usd == pytest.approx(
        brute_force_usd(options_of(problem, at_start(problem))), rel=1e-5, abs=1e-7
    )
    assert set(decision.placements) | set(decision.postponed) == {item.name for item in problem.jobs}


@pytest.mark.parametrize("seed", range(3))
def test_ten_jobs_and_four_types_are_solved_to_the_optimum_in_seconds(seed: int) -> None:
    problem = crowd(10, 4, seed=seed, machines=FOUR_TYPES)
    decision = MilpPlanner().decide(problem, at_start(problem))
    assert decision.gap is not None
    assert decision.gap <= 1e-6
    assert decision.solve_seconds < 10
    assert_allowed(problem, decision.placements)


def test_a_running_job_that_is_fixed_keeps_its_node_and_others_fill_it_up() -> None:
    jobs = (
        job("runs", hours={on("large", 3): 2.0}, deadline=9.0),
        job("waits", hours={on("large", 1): 2.0}, deadline=2.0, weight=5.0),
    )
    problem = replace(
        HOURLY, jobs=jobs, limits=Limits(nodes=2), formulation=Formulation(preempts=False, migrates=False)
    )
    here = Placement(node=1, configuration=on("large", 3))
    situation = Situation(
        now_seconds=0.0,
        remaining={"runs": 1.0, "waits": 1.0},
        running={"runs": here},
        started={"runs": here.configuration},
    )
    decision = MilpPlanner().decide(problem, situation)
    assert decision.placements == {"runs": here, "waits": Placement(node=1, configuration=on("large", 1))}
    # The node until the horizon and 3/4 of it for an hour more, which are fixed; 1/4 of 6 $ for the other job's hour.
    assert decision.objective_usd == pytest.approx(6.0 + 4.5 + 1.5)


def test_a_job_that_may_not_wait_keeps_running() -> None:
    problem = replace(HOURLY, limits=Limits(nodes=1), formulation=Formulation(preempts=False))
    here = Placement(node=0, configuration=on("small", 1))
    situation = Situation(
        now_seconds=0.0, remaining={"a": 1.0, "b": 1.0}, running={"b": here}, started={"b": here.configuration}
    )
    assert "b" in MilpPlanner().decide(problem, situation).placements


def test_out_of_time_a_plan_still_comes_back() -> None:
    problem = crowd(40, 10, seed=0)
    decision = MilpPlanner(time_limit_seconds=1e-3).decide(problem, at_start(problem))
    assert decision.placements
    assert decision.objective_usd is not None
    assert_allowed(problem, decision.placements)


def test_without_scipy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(MissingDependencyError, match=r"pip install lightning-predict\[planning\]"):
        MilpPlanner().decide(TWO_JOBS, at_start(TWO_JOBS))


def test_nothing_to_decide() -> None:
    problem = replace(TWO_JOBS, formulation=Formulation(preempts=False, migrates=False))
    here = Placement(node=0, configuration=on("small", 1))
    situation = Situation(now_seconds=0.0, remaining={"b": 1.0}, running={"b": here}, started={"b": here.configuration})
    assert MilpPlanner().decide(problem, situation).placements == {"b": here}
