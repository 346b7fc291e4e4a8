from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_predict.planning.heuristic import (
    HeuristicPlanner,
    SearchState,
    greedy,
    improve_one,
    improve_pairs,
    relink,
)
from lightning_predict.planning.milp import MilpPlanner
from lightning_predict.planning.objective import options_of
from lightning_predict.planning.placement import WAITS
from lightning_predict.planning.problem import Formulation, Limits, Placement, Situation
from tests.planning.example import HOUR, TWO_JOBS, assert_allowed, at_start, crowd, on

CLOUD_TYPES = frozenset({"Standard NC6", "Standard NV6", "Standard NV12", "Standard NV24"})


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("jobs", "nodes"), [(10, 2), (10, 4), (40, 4), (40, 10)])
@pytest.mark.parametrize("machines", [None, CLOUD_TYPES])
@pytest.mark.parametrize("shares_gpus", [True, False])
def test_within_five_per_cent_of_the_optimum(
    jobs: int, nodes: int, seed: int, machines: frozenset[str] | None, shares_gpus: bool
) -> None:
    problem = crowd(jobs, nodes, seed=seed, machines=machines, formulation=Formulation(shares_gpus=shares_gpus))
    optimum = MilpPlanner().decide(problem, at_start(problem)).objective_usd
    found = HeuristicPlanner().decide(problem, at_start(problem))
    assert optimum is not None
    assert found.objective_usd is not None
    assert optimum * (1 - 1e-5) <= found.objective_usd <= optimum * 1.05
    assert_allowed(problem, found.placements)


def test_a_hundred_nodes_and_450_jobs_take_seconds() -> None:
    problem = crowd(450, 100, seed=0)
    decision = HeuristicPlanner().decide(problem, at_start(problem))
    assert decision.solve_seconds < 30
    assert_allowed(problem, decision.placements)


@given(st.permutations(range(8)), st.permutations(range(9)))
@settings(max_examples=15, deadline=None)
def test_the_order_of_jobs_and_machines_does_not_matter(job_order: list[int], machine_order: list[int]) -> None:
    problem = crowd(8, 2, seed=1)
    shuffled = replace(
        problem,
        jobs=tuple(problem.jobs[index] for index in job_order),
        machines=tuple(problem.machines[index] for index in machine_order),
    )
    for planner in (HeuristicPlanner(), MilpPlanner()):
        first = planner.decide(problem, at_start(problem))
        second = planner.decide(shuffled, at_start(shuffled))
        assert (first.placements, first.postponed) == (second.placements, second.postponed)


def test_quotas_and_budget_are_kept() -> None:
    problem = replace(TWO_JOBS, horizon_seconds=HOUR, limits=Limits(nodes=2, quotas={"large": 0}))
    assert HeuristicPlanner().decide(problem, at_start(problem)).placements["a"].configuration == on("small", 1)
    problem = replace(TWO_JOBS, horizon_seconds=HOUR, limits=Limits(nodes=2, budget_usd=7.0))
    assert HeuristicPlanner().decide(problem, at_start(problem)).placements["a"].configuration == on("small", 1)
    problem = replace(TWO_JOBS, horizon_seconds=HOUR, limits=Limits(nodes=2, budget_usd=8.1))
    assert HeuristicPlanner().decide(problem, at_start(problem)).placements["a"].configuration == on("large", 4)


def test_a_job_that_may_not_wait_keeps_running() -> None:
    problem = replace(TWO_JOBS, limits=Limits(nodes=1), formulation=Formulation(preempts=False))
    here = Placement(node=0, configuration=on("small", 1))
    situation = Situation(
        now_seconds=0.0, remaining={"a": 1.0, "b": 1.0}, running={"b": here}, started={"b": here.configuration}
    )
    assert "b" in HeuristicPlanner().decide(problem, situation).placements


def test_every_step_makes_the_plan_cheaper_or_leaves_it() -> None:
    problem = crowd(20, 3, seed=2)
    options = options_of(problem, at_start(problem))
    random = np.random.default_rng(0)
    state, other = greedy(options, 0.0, random), greedy(options, 5.0, random)
    costs = [state.total_usd()]
    improve_one(state, random)
    costs.append(state.total_usd())
    improve_pairs(state, random, pairs=50)
    costs.append(state.total_usd())
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < costs[0]
    better = relink(state, other)
    assert better.total_usd() <= min(state.total_usd(), other.total_usd())


def test_prices_are_the_differences_of_totals() -> None:
    problem = crowd(10, 2, seed=3)
    options = options_of(problem, at_start(problem))
    state = greedy(options, 1.0, np.random.default_rng(0))
    for number in range(len(options.jobs)):
        state.set(number, WAITS)
        waiting = state.total_usd()
        prices = state.prices(number)
        for item in np.flatnonzero(np.isfinite(prices)):
            state.set(number, int(item))
            assert state.total_usd() - waiting == pytest.approx(prices[item])
            assert sum(state.opened) <= 2
            state.set(number, WAITS)


def test_a_copy_is_independent() -> None:
    problem = crowd(5, 2, seed=4)
    state = SearchState(options_of(problem, at_start(problem)))
    total = state.total_usd()
    other = state.copy()
    other.set(0, int(np.argmin(other.prices(0))))
    assert state.total_usd() == total
    assert other.total_usd() != total
