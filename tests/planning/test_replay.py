"""A plan carried out against other times than the predicted ones: its cost, and that no work is lost."""

from dataclasses import replace

import pytest

from benchmarks.planning.study import random_problem
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.planning.exports import IDLE_MINUTES
from lightning_predict.planning.milp import MilpPlanner
from lightning_predict.planning.problem import Plan, PlanningProblem, PlanState
from lightning_predict.planning.replay import evenly, likely_factors, replay, slowed
from lightning_predict.planning.simulator import simulate
from tests.planning.example import HOUR, MOVED, ONE_EVENT, PLAN, TWO_JOBS, Script, at, job, on

IDLE = IDLE_MINUTES * 60


def kept(problem: PlanningProblem) -> PlanningProblem:
    """Give every job a checkpoint."""
    return replace(problem, jobs=tuple(replace(one, checkpoint="/shared") for one in problem.jobs))


def test_with_the_predicted_times_it_is_the_plan_and_the_idle_minutes_of_each_machine() -> None:
    replayed = replay(PLAN.segments, kept(TWO_JOBS), slowed(TWO_JOBS, {}))
    assert {outcome.job: outcome.end_seconds for outcome in replayed.jobs} == {
        outcome.job: pytest.approx(outcome.end_seconds) for outcome in PLAN.outcomes
    }
    # a: an hour of large at $6; b: two hours of small at $1; each machine waits a quarter of an hour for another job.
    assert replayed.machine_usd == pytest.approx(6 * (1 + IDLE / HOUR) + 1 * (2 + IDLE / HOUR))
    assert (replayed.tardiness_usd, replayed.kept_deadlines, replayed.lost_seconds) == (0.0, 1.0, 0.0)


def test_late_job_moves_with_its_work_and_ends_later() -> None:
    problem = kept(TWO_JOBS)
    (a, _) = replay(MOVED.segments, problem, slowed(problem, {"a": 2.0})).jobs
    # After an hour on small, where a whole run really takes 8 h, an eighth is done; on large 7/8 of 2 h are left.
    assert a.end_seconds == pytest.approx(HOUR + 7 / 8 * 2 * HOUR)
    assert (a.moves, a.lost_seconds) == (1, 0.0)
    # Without a checkpoint, which no exported plan does, the hour would be lost.
    lost = replace(TWO_JOBS, jobs=tuple(replace(one, checkpoint=None) for one in TWO_JOBS.jobs))
    (bare, _) = replay(MOVED.segments, lost, slowed(lost, {"a": 2.0})).jobs
    assert bare.lost_seconds == pytest.approx(HOUR)
    assert bare.end_seconds == pytest.approx(HOUR + 2 * HOUR)


def test_job_that_ends_before_it_would_move_stays_and_others_wait_for_its_gpus() -> None:
    replayed = replay(MOVED.segments, kept(TWO_JOBS), slowed(TWO_JOBS, {"a": 0.2}))  # 4 h on small take 48 min
    assert replayed.jobs[0].end_seconds == pytest.approx(0.8 * HOUR)
    assert replayed.jobs[0].moves == 0
    # Large is never rented: 48 min and two hours of small, each with its idle minutes.
    assert replayed.machine_usd == pytest.approx(0.8 + 2 + 2 * IDLE / HOUR)
    jobs = (job("a", hours={on("small", 1): 1.0}, deadline=1.5), job("b", hours={on("small", 1): 1.0}, deadline=2.5))
    problem = replace(ONE_EVENT, jobs=jobs, period_seconds=HOUR)
    plan = simulate(problem, Script(({"a": at(0, "small", 1)}, {"b": at(0, "small", 1)})))
    replayed = replay(plan.segments, problem, slowed(problem, {"a": 2.0}))
    assert [outcome.end_seconds for outcome in replayed.jobs] == [pytest.approx(2 * HOUR), pytest.approx(3 * HOUR)]
    assert [outcome.is_in_time for outcome in replayed.jobs] == [False, False]
    assert replayed.tardiness_usd == pytest.approx(0.5 + 0.5)  # half an hour each, at $1


@pytest.mark.parametrize("factor", likely_factors())
def test_no_work_is_lost_for_any_actual_times(factor: float) -> None:
    problem = kept(random_problem(nodes=1, mean_gap_seconds=120.0, seed=3))
    plan = simulate(problem, MilpPlanner(time_limit_seconds=2.0))
    replayed = replay(plan.segments, problem, slowed(problem, {one.name: factor for one in problem.jobs}))
    assert replayed.lost_seconds == 0.0
    # No job ends before all of its work is done on the fastest configuration that it has.
    for outcome in replayed.jobs:
        fastest = next(item.fastest_seconds for item in problem.jobs if item.name == outcome.job)
        assert outcome.end_seconds >= 0.999 * factor * fastest


def test_it_is_planned_again_from_how_far_everything_is() -> None:
    problem = kept(TWO_JOBS)
    seen: list[PlanState] = []

    def elsewhere(problem: PlanningProblem, *, since: PlanState) -> Plan:
        seen.append(since)
        return simulate(problem, Script(({"a": at(0, "large", 4), "b": at(1, "small", 1)},)), since=since)

    plan = simulate(ONE_EVENT, Script(({"a": at(0, "small", 1), "b": at(1, "small", 1)},)))
    replayed = replay(plan.segments, problem, slowed(problem, {"a": 2.0, "b": 0.25}), again={HOUR: elsewhere})
    # After an hour b, which really takes half of one, has ended; a has done an eighth of 8 h, as its progress shows.
    (situation,) = seen
    assert situation.remaining == {"a": pytest.approx(7 / 8)}
    assert situation.running == {"a": at(0, "small", 1)}
    assert situation.measured == {"a": {on("small", 1): 8 * HOUR}}
    assert situation.spent_usd == pytest.approx(1 + 0.5 + 2 * IDLE / HOUR)
    (a, b) = replayed.jobs
    assert (a.moves, a.lost_seconds) == (1, 0.0)
    assert a.end_seconds == pytest.approx(HOUR + 7 / 8 * 2 * HOUR)
    assert b.end_seconds == pytest.approx(HOUR / 2)


def test_job_that_a_new_plan_keeps_has_no_restart() -> None:
    problem = replace(kept(TWO_JOBS), restart_seconds=600.0)

    def same(problem: PlanningProblem, *, since: PlanState) -> Plan:
        return simulate(problem, Script((dict(since.running),)), since=since)

    plan = simulate(ONE_EVENT, Script(({"a": at(0, "small", 1), "b": at(1, "small", 1)},)))
    replayed = replay(plan.segments, problem, slowed(problem, {}), again=dict.fromkeys(evenly(plan.segments, 3), same))
    assert [outcome.moves for outcome in replayed.jobs] == [0, 0]
    assert [outcome.end_seconds for outcome in replayed.jobs] == [pytest.approx(4 * HOUR), pytest.approx(2 * HOUR)]
    # Each machine is paid once to its end, and for its idle minutes.
    assert replayed.machine_usd == pytest.approx(4 + 2 + 2 * IDLE / HOUR)


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"The plan has the jobs \['a', 'b'\] and the file \['a'\]"):
        replay(PLAN.segments, replace(TWO_JOBS, jobs=TWO_JOBS.jobs[:1]), slowed(TWO_JOBS, {}))
    with pytest.raises(InvalidArgumentError, match=r"'c' takes 2\.0 times as long as predicted; expected one of"):
        slowed(TWO_JOBS, {"c": 2.0})
    with pytest.raises(InvalidArgumentError, match="a factor above 0"):
        slowed(TWO_JOBS, {"a": 0.0})
