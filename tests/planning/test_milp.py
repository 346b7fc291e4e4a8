import ctypes
import itertools
import math
import os
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_predict.base.errors import MissingDependencyError
from lightning_predict.planning.milp import MilpPlanner, fillings
from lightning_predict.planning.objective import options_of
from lightning_predict.planning.problem import Formulation, Limits, Placement, PlanningProblem, PlanState
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


def test_number_of_nodes_and_budget_are_kept() -> None:
    problem = replace(HOURLY, limits=Limits(nodes=1))
    decision = MilpPlanner().decide(problem, at_start(problem))
    # a waits: 13.004 $ and b runs: 2 $. b waits: 2.002 $ and a runs: 6 $.
    assert set(decision.placements) == {"a"}
    assert decision.objective_usd == pytest.approx(6.0 + 2.0 * 1.001)
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
    assert len(together.placements) == 3
    alone = replace(problem, formulation=Formulation(shares_gpus=False))
    decision = MilpPlanner().decide(alone, at_start(alone))
    assert len(decision.placements) == 2
    assert_allowed(alone, decision.placements)


def brute_force_usd(problem: PlanningProblem, situation: PlanState) -> float:
    """The least objective over all ways to let each job wait, or to put it on any node in any configuration."""
    options = options_of(problem, situation)
    best = math.inf
    places = [None, *itertools.product(range(problem.limits.nodes), range(len(options.configurations)))]
    for choice in itertools.product(places, repeat=len(options.jobs)):
        total = 0.0
        types: dict[int, set[int]] = {}
        used: dict[int, int] = {}
        for job_index, place in enumerate(choice):
            if place is None:
                total += options.postponed_usd[job_index]
                continue
            node, item = place
            placement = Placement(node=node, configuration=options.configurations[item])
            stays = placement == options.running[job_index]
            total += options.stay_usd[job_index] if stays else options.cost_usd[job_index, item]
            types.setdefault(node, set()).add(int(options.machine_of[item]))
            used[node] = used.get(node, 0) + int(options.size_of[item])
        if all(len(of) == 1 for of in types.values()):
            machines = {node: next(iter(of)) for node, of in types.items()}
            if all(used[node] <= options.machines[machine].num_gpus for node, machine in machines.items()):
                best = min(best, total + sum(options.period_usd[machine] for machine in machines.values()))
    return best


@st.composite
def small_problems(draw: st.DrawFn) -> PlanningProblem:
    number = draw(st.integers(1, 3))
    hours = st.floats(0.1, 5.0)
    places = [on("small", 1), on("large", 1), on("large", 2), on("large", 3), on("large", 4)]
    jobs = []
    for index in range(number):
        chosen = draw(st.lists(st.sampled_from(places), min_size=1, max_size=3, unique=True))
        jobs.append(
            job(
                f"job{index}",
                hours={place: draw(hours) for place in chosen},
                deadline=draw(st.floats(0.1, 6.0)),
                weight=draw(st.floats(0.0, 9.0)),
            )
        )
    return PlanningProblem(
        jobs=tuple(jobs),
        machines=(SMALL, LARGE),
        limits=Limits(nodes=draw(st.integers(1, 2))),
        formulation=Formulation(
            shares_gpus=draw(st.booleans()), preempts=draw(st.booleans()), migrates=draw(st.booleans())
        ),
        restart_seconds=draw(st.sampled_from([0.0, 60.0, HOUR])),
        horizon_seconds=draw(st.sampled_from([None, HOUR])),
    )


@given(small_problems(), st.floats(0.1, 0.9))
@settings(max_examples=40, deadline=None)
def test_no_choice_is_cheaper_at_the_start_or_later(problem: PlanningProblem, remaining: float) -> None:
    for situation in (start := at_start(problem), later(problem, start, remaining)):
        decision = MilpPlanner().decide(problem, situation)
        assert_allowed(problem, decision.placements)
        assert decision.objective_usd == pytest.approx(brute_force_usd(problem, situation), rel=1e-5, abs=1e-7)
        assert set(decision.placements) <= {item.name for item in problem.jobs}


def later(problem: PlanningProblem, situation: PlanState, remaining: float) -> PlanState:
    """Half an hour after the decision: what runs has as much left."""
    placements = MilpPlanner().decide(problem, situation).placements
    return PlanState(
        now_seconds=HOUR / 2,
        remaining={item.name: remaining if item.name in placements else 1.0 for item in problem.jobs},
        running=placements,
        started={name: placement.configuration for name, placement in placements.items()},
        mean_gap_seconds=HOUR / 2,
    )


@given(st.permutations(range(8)), st.permutations(range(9)))
@settings(max_examples=15, deadline=None)
def test_the_order_of_jobs_and_machines_does_not_matter(job_order: list[int], machine_order: list[int]) -> None:
    problem = crowd(8, 2, seed=1)
    shuffled = replace(
        problem,
        jobs=tuple(problem.jobs[index] for index in job_order),
        machines=tuple(problem.machines[index] for index in machine_order),
    )
    first = MilpPlanner().decide(problem, at_start(problem))
    second = MilpPlanner().decide(shuffled, at_start(shuffled))
    assert first.placements == second.placements


def test_restarts_count_for_moves_waits_and_jobs_that_stay() -> None:
    # Two machines of 4 GPUs, half full, for 2 h more: 1 h within the horizon, 6 $ each, and 2 x 3 $ for the shares
    # after it: 18 $. On one of them: 6 $ + 6 $, and the restart that one job needs, which counts twice (it may have to
    # move again): 2 r at 3 $/h. So moving pays up to r = 1 h.
    jobs = tuple(job(name, hours={on("large", 2): 2.0}, deadline=9.0) for name in "ab")
    apart = {name: Placement(node=node, configuration=on("large", 2)) for node, name in enumerate("ab")}
    situation = PlanState(
        now_seconds=0.0, remaining={"a": 1.0, "b": 1.0}, running=apart, started={name: on("large", 2) for name in "ab"}
    )
    for restart_hours, nodes in ((0.9, 1), (1.1, 2)):
        problem = replace(HOURLY, jobs=jobs, restart_seconds=restart_hours * HOUR)
        decision = MilpPlanner().decide(problem, situation)
        assert len({item.node for item in decision.placements.values()}) == nodes
    assert decision.objective_usd == pytest.approx(18.0)
    # b runs and has an hour left; a comes, and to run at once is worth 1 $ to it. Were pausing b free, a would run.
    jobs = tuple(
        job(name, hours={on("small", 1): 1.0}, deadline=1.0, weight=weight) for name, weight in (("a", 2.0), ("b", 1.0))
    )
    here = Placement(node=0, configuration=on("small", 1))
    situation = PlanState(
        now_seconds=0.0, remaining={"a": 1.0, "b": 1.0}, running={"b": here}, started={"b": here.configuration}
    )
    for restart_seconds, first in ((0.0, "a"), (HOUR, "b")):
        problem = replace(HOURLY, jobs=jobs, limits=Limits(nodes=1), restart_seconds=restart_seconds)
        assert list(MilpPlanner().decide(problem, situation).placements) == [first]
    job_a = job("a", hours={on("small", 1): 1.0}, deadline=0.0, weight=1.0)
    here = Placement(node=0, configuration=on("small", 1))
    problem = replace(HOURLY, jobs=(job_a,), restart_seconds=HOUR)
    situation = PlanState(
        now_seconds=0.0,
        remaining={"a": 1.0},
        running={"a": here},
        started={"a": here.configuration},
        restarting={"a": HOUR / 4},
    )
    # 1.25 h: 1 $ for the horizon, 0.25 $ after it, and 1.25 $ of tardiness.
    assert MilpPlanner().decide(problem, situation).objective_usd == pytest.approx(2.5)


def test_fillings_of_a_node_leave_no_room_for_another_job() -> None:
    ways = fillings(tuple(range(8, 0, -1)), 8)
    assert len(ways) == len(set(ways)) == 22  # the partitions of 8
    assert all(sum(size * count for size, count in zip(range(8, 0, -1), way, strict=True)) == 8 for way in ways)
    assert set(fillings((3, 2), 4)) == {(1, 0), (0, 2)}
    assert fillings((4,), 3) == ()


@pytest.mark.parametrize("seed", range(3))
def test_ten_jobs_and_four_types_are_solved_to_the_optimum_in_seconds(seed: int) -> None:
    problem = crowd(10, 4, seed=seed, machines=FOUR_TYPES)
    decision = MilpPlanner().decide(problem, at_start(problem))
    assert decision.gap is not None
    assert decision.gap <= 1e-6
    assert decision.solve_seconds < 10
    assert_allowed(problem, decision.placements)


def test_running_jobs_that_are_fixed_or_may_not_wait_keep_their_node() -> None:
    jobs = (
        job("runs", hours={on("large", 3): 2.0}, deadline=9.0),
        job("waits", hours={on("large", 1): 2.0}, deadline=2.0, weight=5.0),
    )
    problem = replace(
        HOURLY, jobs=jobs, limits=Limits(nodes=2), formulation=Formulation(preempts=False, migrates=False)
    )
    here = Placement(node=1, configuration=on("large", 3))
    situation = PlanState(
        now_seconds=0.0,
        remaining={"runs": 1.0, "waits": 1.0},
        running={"runs": here},
        started={"runs": here.configuration},
    )
    decision = MilpPlanner().decide(problem, situation)
    assert decision.placements == {"runs": here, "waits": Placement(node=1, configuration=on("large", 1))}
    # The node until the horizon and 3/4 of it for an hour more, which are fixed; 1/4 of 6 $ for the other job's hour.
    assert decision.objective_usd == pytest.approx(6.0 + 4.5 + 1.5)
    problem = replace(HOURLY, limits=Limits(nodes=1), formulation=Formulation(preempts=False))
    here = Placement(node=0, configuration=on("small", 1))
    situation = PlanState(
        now_seconds=0.0, remaining={"a": 1.0, "b": 1.0}, running={"b": here}, started={"b": here.configuration}
    )
    assert "b" in MilpPlanner().decide(problem, situation).placements


def test_time_limit_falls_back_to_a_queue_and_keeps_running_jobs() -> None:
    problem = crowd(40, 10, seed=0)
    first = problem.jobs[0]
    here = Placement(node=3, configuration=min(first.seconds))
    situation = replace(at_start(problem), running={first.name: here}, started={first.name: here.configuration})
    decision = MilpPlanner(time_limit_seconds=0.0).decide(problem, situation)
    assert decision.placements[first.name] == here
    assert len(decision.placements) > 1
    assert decision.objective_usd is None
    assert_allowed(problem, decision.placements)
    frugal = replace(problem, limits=replace(problem.limits, budget_usd=1e6))  # a queue does not keep it
    assert MilpPlanner(time_limit_seconds=0.0).decide(frugal, situation).placements == {first.name: here}


def test_without_scipy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(MissingDependencyError, match=r"pip install lightning-predict\[planning\]"):
        MilpPlanner().decide(TWO_JOBS, at_start(TWO_JOBS))


@pytest.mark.skipif(os.name != "posix", reason="redirects file descriptors as POSIX has them")
def test_solver_output_is_suppressed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    import scipy.optimize

    solve = scipy.optimize.milp

    def talks(*arguments: object, **options: object) -> object:
        ctypes.CDLL(None).printf(b"tmpSolver.run();\n")
        return solve(*arguments, **options)

    monkeypatch.setattr(scipy.optimize, "milp", talks)
    MilpPlanner().decide(HOURLY, at_start(HOURLY))
    print("after it")
    out, err = capfd.readouterr()
    assert (out, err) == ("after it\n", "")


def test_a_late_job_with_the_cluster_for_itself_starts_at_once() -> None:
    # A horizon of 0.5 h. On small 2 h for 2 $, on one of four GPUs of large 0.5 h for 3 $, without sharing; each
    # hour of tardiness costs 1 $. Small's price with large's time, 2 $ + 1 $ from 0.5 h on, would be less than to start
    # on large now, 3 $ + 0.5 $, and is not to be had.
    a = job("a", hours={on("small", 1): 2.0, on("large", 1): 0.5}, deadline=1.0, weight=1.0)
    problem = replace(TWO_JOBS, jobs=(a,), horizon_seconds=0.5 * HOUR)
    for late in (1.0, 2.0, 20.0):
        situation = replace(at_start(problem), now_seconds=late * HOUR)
        assert MilpPlanner().decide(problem, situation).placements["a"].configuration == on("large", 1)
