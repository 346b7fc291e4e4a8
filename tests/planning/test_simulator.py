import re
from dataclasses import dataclass, replace
from typing import Any

import pytest

from benchmarks.planning.study import random_actual_seconds, random_problem
from lightning_predict.base.errors import InfeasiblePlanError, InvalidArgumentError
from lightning_predict.planning.milp import MilpPlanner
from lightning_predict.planning.problem import (
    AbstractPolicy,
    Formulation,
    Limits,
    Placement,
    PlanningProblem,
    PlanState,
    RunningJobs,
)
from lightning_predict.planning.queues import BASELINES, FIFO, SHARING_BASELINES
from lightning_predict.planning.simulator import simulate
from tests.planning.example import HOUR, LARGE, ONE_EVENT, SMALL, TWO_JOBS, Script, assert_allowed, at, job, on


def test_costs_of_two_jobs_by_hand() -> None:
    script = Script(({"a": at(0, "large", 4), "b": at(1, "small", 1)},))
    plan = simulate(ONE_EVENT, script)
    # a: 1 h of large; b: 2 h of small; both in time.
    assert {rental.machine: rental.usd for rental in plan.rentals} == pytest.approx({"large": 6.0, "small": 2.0})
    assert plan.machine_usd == pytest.approx(8.0)
    assert plan.tardiness_usd == 0.0
    assert plan.makespan_seconds == pytest.approx(2 * HOUR)
    assert [situation.now_seconds for situation in script.seen] == pytest.approx([0.0, HOUR])
    assert script.seen[1].remaining == pytest.approx({"b": 0.5})
    assert script.seen[1].spent_usd == pytest.approx(7.0)
    assert script.seen[1].mean_gap_seconds == pytest.approx(HOUR)


def test_tardiness_is_paid_and_a_period_without_events_is_an_event() -> None:
    script = Script(({"a": at(0, "small", 1), "b": at(1, "small", 1)},))
    plan = simulate(ONE_EVENT, script)
    assert plan.tardiness_usd == pytest.approx(6.0)  # a ends at 4 h, 2 h late, 3 $/h
    (late,) = (outcome for outcome in plan.outcomes if outcome.tardiness_seconds)
    assert late.job == "a"
    assert late.tardiness_seconds == pytest.approx(2 * HOUR)
    script = Script(({"a": at(0, "small", 1), "b": at(1, "small", 1)},))
    simulate(replace(TWO_JOBS, period_seconds=HOUR), script)
    assert [situation.now_seconds / HOUR for situation in script.seen] == pytest.approx([0, 1, 2, 3])


def test_a_job_that_is_paused_goes_on_where_it_stopped_and_loses_the_restart() -> None:
    jobs = (
        job("long", hours={on("small", 1): 2.0}, deadline=9.0),
        job("late", hours={on("small", 1): 1.0}, deadline=9.0, release=1.0),
    )
    problem = replace(ONE_EVENT, jobs=jobs, limits=Limits(nodes=1), restart_seconds=360.0)
    script = Script(({"long": at(0, "small", 1)}, {"late": at(0, "small", 1)}, {"long": at(0, "small", 1)}))
    plan = simulate(problem, script)
    # 1 h of long, 1 h of late, 0.1 h of restart, 1 h of long.
    assert [item.job for item in plan.segments] == ["long", "late", "long"]
    assert [item.start_seconds / HOUR for item in plan.segments] == pytest.approx([0.0, 1.0, 2.0])
    assert [item.end_seconds / HOUR for item in plan.segments] == pytest.approx([1.0, 2.0, 3.1])
    assert plan.machine_usd == pytest.approx(3.1)  # one rental, never given back in between
    assert len(plan.rentals) == 1


def test_jobs_on_one_machine_share_its_price_and_unstarted_ones_are_named() -> None:
    jobs = (
        job("one", hours={on("large", 1): 1.0}, deadline=9.0),
        job("two", hours={on("large", 2): 1.0}, deadline=9.0),
    )
    script = Script(({"one": at(0, "large", 1), "two": at(0, "large", 2)},))
    plan = simulate(replace(ONE_EVENT, jobs=jobs), script)
    assert {outcome.job: outcome.machine_usd for outcome in plan.outcomes} == pytest.approx({"one": 2.0, "two": 4.0})
    assert plan.machine_usd == pytest.approx(6.0)
    with pytest.raises(InfeasiblePlanError, match=r"'script' starts none of the jobs 'a', 'b'.*number of nodes \(2\)"):
        simulate(TWO_JOBS, Script(({},)))
    with pytest.raises(InfeasiblePlanError, match=r"the budget: \$0.00 of \$50.00 are spent"):
        simulate(replace(TWO_JOBS, limits=Limits(nodes=2, budget_usd=50.0)), Script(({},)))


def test_jobs_take_their_real_times_and_tell_them_after_a_minute() -> None:
    script = Script(({"a": at(0, "large", 4), "b": at(1, "small", 1)},))
    actual = {"a": {on("large", 4): 1.5 * HOUR}, "b": {on("small", 1): 2 * HOUR}}
    assert simulate(ONE_EVENT, script, actual_seconds=actual).machine_usd == pytest.approx(1.5 * 6 + 2)
    script = Script(({"a": at(0, "large", 4), "b": at(1, "small", 1)},))
    simulate(replace(TWO_JOBS, period_seconds=59.0), script, actual_seconds=actual)
    known = {"a": {on("large", 4): 1.5 * HOUR}, "b": {on("small", 1): 2 * HOUR}}
    assert [situation.measured for situation in script.seen[:3]] == [{}, {}, known]  # at 0, 59 and 118 s
    assert script.seen[-1].measured.keys() == {"b"}  # a has ended


def test_a_plan_from_a_state_takes_the_speed_that_was_measured() -> None:
    here = at(0, "large", 4)
    since = PlanState(
        now_seconds=0.0,
        remaining={"a": 0.5},
        running={"a": here},
        started={"a": here.configuration},
        measured={"a": {here.configuration: 3 * HOUR}},
    )
    script = Script(({"a": here},))
    plan = simulate(replace(ONE_EVENT, jobs=ONE_EVENT.jobs[:1]), script, since=since)
    assert plan.makespan_seconds == pytest.approx(1.5 * HOUR)
    assert script.seen[0].measured == since.measured


SPOT = replace(SMALL, name="spot", interruptions_per_hour=0.2)
ON_SPOT = replace(
    ONE_EVENT,
    jobs=(job("a", hours={on("spot", 1): 4.0}, deadline=9.0),),
    machines=(SPOT,),
    restart_seconds=360.0,
    checkpoint_seconds=HOUR,
)


def test_expected_interruptions_lengthen_a_job() -> None:
    # 0.2 interruptions and a checkpoint an hour, a restart of 0.1 h: 4 h take 4 (e^0.2 - 1) e^0.02 / 0.2 = 4.517 h.
    assert simulate(ON_SPOT, FIFO).makespan_seconds == pytest.approx(4.517 * HOUR, rel=1e-3)


def test_fifo_gives_each_job_the_cheapest_machine_that_is_in_time() -> None:
    plan = simulate(TWO_JOBS, FIFO)
    assert {item.job: item.placement.configuration for item in plan.segments} == {
        "a": on("large", 4),
        "b": on("small", 1),
    }
    late = replace(TWO_JOBS, jobs=(replace(TWO_JOBS.jobs[0], deadline_seconds=0.5 * HOUR),))
    # Nothing is in time: the fastest.
    assert [item.placement.configuration for item in simulate(late, FIFO).segments] == [on("large", 4)]
    relaxed = replace(TWO_JOBS, jobs=(replace(TWO_JOBS.jobs[0], deadline_seconds=9 * HOUR),))
    # Everything is: 4 h × 1 $ instead of 1 h × 6 $.
    assert [item.placement.configuration for item in simulate(relaxed, FIFO).segments] == [on("small", 1)]


@pytest.mark.parametrize(
    ("rule", "order"),
    [(0, ["first", "urgent", "heavy"]), (1, ["urgent", "heavy", "first"]), (2, ["heavy", "first", "urgent"])],
)
def test_queue_rules_serve_in_their_order(rule: int, order: list[str]) -> None:
    hours = {on("small", 1): 1.0}
    jobs = (
        job("blocks", hours=hours, deadline=0.1),
        job("first", hours=hours, deadline=9.0, weight=2.0, release=0.1),
        job("urgent", hours=hours, deadline=2.0, weight=1.0, release=0.2),
        job("heavy", hours=hours, deadline=5.0, weight=5.0, release=0.3),
    )
    plan = simulate(PlanningProblem(jobs=jobs, machines=(SMALL,), limits=Limits(nodes=1)), BASELINES[rule])
    assert [item.job for item in plan.segments] == ["blocks", *order]


def test_queues_fill_open_machines_first_and_keep_quotas() -> None:
    jobs = tuple(job(name, hours={on("large", 2): 1.0}, deadline=2.0) for name in "abc")
    problem = PlanningProblem(jobs=jobs, machines=(LARGE,), limits=Limits(nodes=2))
    shared, alone = simulate(problem, SHARING_BASELINES[0]), simulate(problem, BASELINES[0])
    assert len(shared.rentals) == 2
    assert shared.machine_usd == pytest.approx(12.0)
    assert alone.machine_usd == pytest.approx(18.0)
    assert alone.makespan_seconds == pytest.approx(2 * HOUR)  # the third waits for a node
    problem = replace(TWO_JOBS, limits=Limits(nodes=2, quotas={"large": 0}))
    assert {item.placement.configuration.machine for item in simulate(problem, FIFO).segments} == {"small"}


@dataclass(frozen=True)
class Watched:
    """Checks every decision of another policy."""

    policy: AbstractPolicy
    before: list[dict[str, Placement]]

    @property
    def name(self) -> str:
        return self.policy.name

    def decide(self, problem: PlanningProblem, situation: PlanState) -> RunningJobs:
        decision = self.policy.decide(problem, situation)
        assert_allowed(problem, decision.placements)
        assert set(decision.placements) <= set(situation.remaining)
        for name, placement in situation.running.items():
            if problem.formulation.fixes_running_jobs:
                assert decision.placements[name] == placement
            elif not problem.formulation.preempts:
                assert name in decision.placements
        if not problem.formulation.migrates:
            for name, placement in decision.placements.items():
                assert placement.configuration == situation.started.get(name, placement.configuration)
        self.before.append(dict(decision.placements))
        return decision


@pytest.mark.parametrize("shares_gpus", [True, False])
@pytest.mark.parametrize("preempts", [True, False])
@pytest.mark.parametrize("migrates", [True, False])
def test_every_formulation_is_kept_in_every_decision(shares_gpus: bool, preempts: bool, migrates: bool) -> None:
    formulation = Formulation(shares_gpus=shares_gpus, preempts=preempts, migrates=migrates)
    problem = random_problem(nodes=1, mean_gap_seconds=60.0, seed=0, restart_seconds=20.0)
    problem = replace(problem, formulation=formulation)
    problem = replace(problem, limits=Limits(nodes=2, quotas={"In-house server 2": 1}))
    watched = Watched(MilpPlanner(), [])
    plan = simulate(problem, watched)
    assert len(watched.before) == plan.decisions > 10
    assert {outcome.job for outcome in plan.outcomes} == {item.name for item in problem.jobs}
    assert all(outcome.start_seconds >= outcome.release_seconds for outcome in plan.outcomes)


@pytest.mark.parametrize("policy", [FIFO, MilpPlanner()], ids=["fifo", "milp"])
def test_money_and_work_are_conserved(policy: AbstractPolicy) -> None:
    problem = random_problem(nodes=2, mean_gap_seconds=60.0, seed=1, error=0.2, restart_seconds=0.0)
    actual = random_actual_seconds(problem, seed=1)
    plan = simulate(problem, policy, actual_seconds=actual)
    assert sum(outcome.machine_usd for outcome in plan.outcomes) == pytest.approx(plan.machine_usd)
    for item in problem.jobs:
        done = sum(
            (segment.end_seconds - segment.start_seconds) / actual[item.name][segment.placement.configuration]
            for segment in plan.segments
            if segment.job == item.name
        )
        assert done == pytest.approx(1.0, abs=1e-6)


def test_the_order_of_the_input_does_not_matter() -> None:
    problem = random_problem(nodes=1, mean_gap_seconds=30.0, seed=2, error=0.1)
    turned = replace(problem, jobs=problem.jobs[::-1], machines=problem.machines[::-1])
    for policy in (*BASELINES, MilpPlanner()):
        first = simulate(problem, policy, actual_seconds=random_actual_seconds(problem, seed=0))
        second = simulate(turned, policy, actual_seconds=random_actual_seconds(turned, seed=0))
        assert (first.segments, first.rentals, first.outcomes) == (second.segments, second.rentals, second.outcomes)


@dataclass(frozen=True)
class Seen:
    """Keeps every situation that another policy decides in."""

    policy: AbstractPolicy
    situations: list[PlanState]
    name: str = "seen"

    def decide(self, problem: PlanningProblem, situation: PlanState) -> RunningJobs:
        self.situations.append(situation)
        return self.policy.decide(problem, situation)


def test_from_any_moment_the_rest_is_as_it_would_have_been() -> None:
    # A fixed horizon, as the mean gap between events is not known from a situation.
    problem = replace(
        random_problem(nodes=1, mean_gap_seconds=60.0, seed=0, restart_seconds=20.0),
        limits=Limits(nodes=2),
        horizon_seconds=120.0,
    )
    seen = Seen(MilpPlanner(), [])
    whole = simulate(problem, seen)
    assert len(seen.situations) > 15
    for since in seen.situations[4::5]:
        rest = simulate(problem, MilpPlanner(), since=since)
        assert {item.job for item in rest.outcomes} == {
            item.job for item in whole.outcomes if item.end_seconds > since.now_seconds
        }
        ends = {item.job: item.end_seconds for item in whole.outcomes}
        assert {item.job: item.end_seconds for item in rest.outcomes} == pytest.approx(
            {item.job: ends[item.job] for item in rest.outcomes}
        )
        assert rest.machine_usd + since.spent_usd == pytest.approx(whole.machine_usd)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"remaining": {"a": 0.5, "c": 1.0}}, "The state has a job 'c', which the problem does not list"),
        ({"remaining": {"a": 1.5}}, "Job 'a' has 1.5 of its work left; expected above 0 and at most 1"),
        ({"running": {"a": at(2, "small", 1)}}, "Job 'a' runs on node 2; nodes=2 are numbered from 0"),
        ({"started": {"a": on("large", 4)}}, "Job 'a' runs on one configuration and has last started on another"),
        (
            {"started": {"a": on("small", 1), "b": on("large", 1)}},
            "'b' has run on 1 GPUs of 'large', where it has no time",
        ),
        (
            {
                "running": {"a": at(0, "small", 1), "b": at(0, "small", 1)},
                "started": {"a": on("small", 1), "b": on("small", 1)},
            },
            "Jobs on node 0 have 2 GPUs; 'small' has 1",
        ),
        (
            {
                "running": {"a": at(0, "large", 4), "b": at(0, "small", 1)},
                "started": {"a": on("large", 4), "b": on("small", 1)},
            },
            "Node 0 is both 'large' and 'small'; a node is one",
        ),
    ],
)
def test_a_situation_that_cannot_be_is_refused(changed: dict[str, Any], message: str) -> None:
    here = at(0, "small", 1)
    since = PlanState(
        now_seconds=0.0, remaining={"a": 0.5, "b": 1.0}, running={"a": here}, started={"a": here.configuration}
    )
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        simulate(TWO_JOBS, FIFO, since=replace(since, **changed))
