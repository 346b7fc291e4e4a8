from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planning.study import random_problem
from lightning_predict.base.errors import InfeasiblePlanError, InvalidArgumentError
from lightning_predict.planning import milp, policies
from lightning_predict.planning.objective import least_usd
from lightning_predict.planning.policies import candidates, cheapest_plan
from lightning_predict.planning.problem import Formulation, Limits
from lightning_predict.planning.queues import BASELINES, QUEUE_RULES
from lightning_predict.planning.simulator import simulate
from tests.planning.example import SMALL, TWO_JOBS, at_start, crowd, job, on

STAYING = replace(TWO_JOBS, formulation=Formulation(preempts=False, migrates=False))


def test_the_plan_is_never_dearer_than_a_queue_rule() -> None:
    plan = cheapest_plan(STAYING)
    assert plan.total_usd == pytest.approx(8.0)  # a on large 6 $, b on small 2 $: nothing in time is cheaper
    assert all(plan.total_usd <= simulate(STAYING, rule).total_usd + 1e-9 for rule in BASELINES)


@given(
    st.integers(0, 99),
    st.sampled_from([0.0, 60.0, 300.0, 3600.0]),
    st.booleans(),
    st.sampled_from(["published", "clouds"]),
)
@settings(max_examples=8, deadline=None)
def test_no_queue_rule_is_cheaper_for_any_restart_time(seed: int, restart: float, shares: bool, setting: str) -> None:
    # A queue rule starts each job once, so that among near equals no plan with fewer moves can be preferred to it.
    problem = random_problem(nodes=1, mean_gap_seconds=60.0, seed=seed, setting=setting, restart_seconds=restart)
    formulation = Formulation(shares_gpus=shares)
    problem = replace(problem, jobs=problem.jobs[:5], limits=Limits(nodes=2), formulation=formulation)
    rules = QUEUE_RULES if shares else BASELINES
    best = min(simulate(problem, rule).total_usd for rule in rules)
    round_off = 1e-9  # both sum the same prices in another order
    assert least_usd(problem, {job.name: job.seconds for job in problem.jobs}) <= best + round_off
    assert cheapest_plan(problem).total_usd <= best + round_off


def test_a_job_that_may_move_is_moved_where_that_is_cheaper_and_in_time() -> None:
    # a: 4/3 h on small do a third of the work, 2/3 h on large the rest, at the deadline of 2 h: 1.33 $ + 4 $, not 6 $.
    assert cheapest_plan(TWO_JOBS).total_usd == pytest.approx(4 / 3 + 4 + 2, rel=0.01)


def test_jobs_that_fill_a_machine_together_share_it() -> None:
    jobs = tuple(job(name, hours={on("large", 2): 2.0}, deadline=2.5, weight=9.0) for name in "ab")
    plan = cheapest_plan(replace(TWO_JOBS, jobs=jobs))
    assert plan.total_usd == pytest.approx(12.0)  # 2 h of one large machine
    assert len({segment.placement.node for segment in plan.segments}) == 1


def test_candidates_never_have_more_freedom_than_the_problem() -> None:
    formulation = Formulation(shares_gpus=False, preempts=True, migrates=False)
    found = candidates(replace(TWO_JOBS, formulation=formulation), "milp")
    assert len(found) == len(set(found))
    assert all(not policy.formulation.shares_gpus and not policy.formulation.migrates for policy in found)
    assert {policy.name for policy in found} >= {
        "MILP (a machine a job)",
        "MILP (a machine a job, no moves)",
        "FIFO",
        "EDF",
    }
    assert not any("shared" in policy.name for policy in found)


def test_the_budget_decides_between_plans() -> None:
    # In time costs 8 $; with less, a goes on small, is 2 h late and costs 6 $ + 6 $.
    assert cheapest_plan(replace(STAYING, limits=Limits(nodes=2, budget_usd=8.0))).machine_usd == pytest.approx(8.0)
    plan = cheapest_plan(replace(STAYING, limits=Limits(nodes=2, budget_usd=7.0)))
    assert plan.machine_usd == pytest.approx(6.0)
    assert plan.tardiness_usd == pytest.approx(6.0)


def test_rule_beyond_the_budget_and_an_unknown_method_are_refused() -> None:
    with pytest.raises(InfeasiblePlanError, match=r"No plan keeps the budget of \$7.*costs \$8.00"):
        cheapest_plan(replace(STAYING, limits=Limits(nodes=2, budget_usd=7.0)), method="fifo")
    with pytest.raises(InvalidArgumentError, match="no policy 'best'; known: milp, fifo, edf, ps, fifo-shared"):
        cheapest_plan(TWO_JOBS, method="best")


def test_progress_is_reported_for_each_candidate() -> None:
    told: list[None] = []
    cheapest_plan(TWO_JOBS, method="milp", on_candidate=lambda: told.append(None))
    assert len(told) == len(candidates(TWO_JOBS, "milp"))


def test_near_equals_are_decided_by_moves() -> None:
    # Where nothing is late, staying on the cheapest machine is best and moving gains nothing.
    relaxed = replace(TWO_JOBS, jobs=tuple(replace(item, deadline_seconds=1e6) for item in TWO_JOBS.jobs))
    plan = cheapest_plan(relaxed)
    assert plan.total_usd == pytest.approx(6.0)  # 4 h and 2 h of small
    assert len(plan.segments) == 2


def test_plan_of_many_jobs_is_best_of_four_and_above_the_lower_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = crowd(30, 3, seed=2)
    full = cheapest_plan(problem)
    monkeypatch.setattr(policies, "MANY_JOBS", 29)
    monkeypatch.setattr(milp, "MOST_WAITING", 10)
    ways = candidates(problem, "milp")
    assert [way.policy.name for way in ways] == ["MILP", *(rule.name for rule in QUEUE_RULES[-3:])]
    plan = cheapest_plan(problem)
    assert len(plan.outcomes) == 30
    assert least_usd(problem) < full.total_usd <= 1.01 * plan.total_usd  # one percent is what fewer moves may cost
    assert plan.total_usd <= min(simulate(problem, rule).total_usd for rule in QUEUE_RULES[-3:]) * 1.01


def test_of_waiting_jobs_the_dearest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    # An hour of work each on the only node, all due at once: the one of $9 an hour late goes first.
    monkeypatch.setattr(milp, "MOST_WAITING", 1)
    jobs = tuple(job(name, hours={on("small", 1): 1.0}, deadline=0.0, weight=w) for name, w in {"a": 1, "b": 9}.items())
    problem = replace(STAYING, jobs=jobs, machines=(SMALL,), limits=Limits(nodes=1))
    decision = milp.MilpPlanner().decide(problem, at_start(problem))
    assert set(decision.placements) == {"b"}
