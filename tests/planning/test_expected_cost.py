"""Expected cost of plans under uncertain times, and moves that need a checkpoint."""

from dataclasses import replace

import numpy as np
import pytest

from lightning_predict.base.interval import Interval
from lightning_predict.planning.expected_cost import DRAWS, plan_outlook, time_draws
from lightning_predict.planning.milp import MilpPlanner
from lightning_predict.planning.policies import candidates, cheapest_plan
from lightning_predict.planning.problem import Job, Limits, MachineType, Placement, PlanningProblem, PlanState, Rental
from lightning_predict.planning.simulator import simulate
from tests.planning.example import HOUR, SMALL, TWO_JOBS, crowd, on

pytest.importorskip("scipy")

L4 = MachineType(name="l4", gpu="L4", num_gpus=1, usd_per_hour=0.2)
A100 = MachineType(name="a100", gpu="A100", num_gpus=1, usd_per_hour=3.0)
DOUBTFUL = Job(  # The L4 is in time by its predicted time, and in about 80 % of cases; an hour late costs $2
    name="vit",
    seconds={on("l4", 1): 7.32 * HOUR, on("a100", 1): 2.09 * HOUR},
    spreads={on("l4", 1): Interval(6.32 / 7.32, 1.0, 9.70 / 7.32), on("a100", 1): Interval(0.9, 1.0, 2.83 / 2.09)},
    deadline_seconds=8.51 * HOUR,
    tardiness_usd_per_hour=2.0,
)


def doubtful(probability: float) -> PlanningProblem:
    return PlanningProblem(jobs=(DOUBTFUL,), machines=(L4, A100), limits=Limits(nodes=1), probability=probability)


def test_probability_or_price_of_lateness_decides_between_machines() -> None:
    # L4: 7.32 h at $0.2, and some lateness; A100: 2.09 h at $3 = $6.27. Late by at most an hour or two at $2, the L4
    # is cheaper in expectation.
    cheap = cheapest_plan(doubtful(0.5))
    assert {segment.placement.configuration.machine for segment in cheap.segments} == {"l4"}
    assert cheap.outlook is not None
    assert 0.7 < cheap.outlook.in_time["vit"] < 0.9
    assert cheap.outlook.usd > cheap.total_usd  # being late costs, being early does not pay
    for probability in (0.9, 0.99):
        safe = cheapest_plan(doubtful(probability))
        assert {segment.placement.configuration.machine for segment in safe.segments} == {"a100"}
        assert safe.outlook is not None
        assert safe.outlook.in_time["vit"] >= probability
        assert safe.outcomes[0].start_seconds == 0.0  # waiting costs nothing here, and gains nothing
    # At $200 an hour late, the expected lateness of the L4 costs more than the A100.
    costly = replace(doubtful(0.5), jobs=(replace(DOUBTFUL, tardiness_usd_per_hour=200.0),))
    plan = cheapest_plan(costly)
    assert {segment.placement.configuration.machine for segment in plan.segments} == {"a100"}


@pytest.mark.parametrize("seed", range(2))
def test_expected_cost_is_the_plans_without_uncertainty_and_no_candidates_is_lower(seed: int) -> None:
    problem = crowd(5, 2, seed=seed)
    certain = tuple(replace(job, low_factor=1.0, high_factor=1.0, spreads={}) for job in problem.jobs)
    problem = replace(problem, jobs=certain)
    draws = time_draws(problem, None)
    for candidate in candidates(problem, "milp"):
        plan = simulate(candidate.applied_to(problem), candidate.policy)
        outlook = plan_outlook(plan, problem, draws)
        assert outlook.machine_usd == pytest.approx(plan.machine_usd), candidate.name
        assert outlook.tardiness_usd == pytest.approx(plan.tardiness_usd), candidate.name
        late = {outcome.job for outcome in plan.outcomes if outcome.tardiness_seconds > 1e-3}
        assert {name for name, chance in outlook.in_time.items() if chance < 0.5} == late
    best = cheapest_plan(problem)
    assert best.outlook is not None
    draws = time_draws(problem, None)
    for candidate in candidates(problem, "milp"):
        other = plan_outlook(simulate(candidate.applied_to(problem), candidate.policy), problem, draws)
        assert best.outlook.usd <= 1.01 * other.usd


def test_late_job_delays_the_next_one_and_an_unused_rental_costs_its_price() -> None:
    first = replace(DOUBTFUL, name="first", spreads={}, low_factor=0.5, high_factor=2.0)
    second = replace(first, name="second", low_factor=1.0, high_factor=1.0)
    problem = PlanningProblem(jobs=(first, second), machines=(L4,), limits=Limits(nodes=1))
    only = {on("l4", 1): 2 * HOUR}
    problem = replace(
        problem, jobs=tuple(replace(job, seconds=only, deadline_seconds=4 * HOUR) for job in problem.jobs)
    )
    plan = cheapest_plan(problem, method="fifo")
    draws = time_draws(problem, None)
    outlook = plan_outlook(plan, problem, draws)
    # The second job ends 2 h after the first: it is in time where the first takes no longer than predicted.
    assert outlook.in_time["second"] == pytest.approx(np.mean(draws["first"][on("l4", 1)] <= 1.0))
    assert outlook.machine_usd == pytest.approx(0.2 * (2 * float(np.mean(draws["first"][on("l4", 1)])) + 2))
    # A spot machine may be taken away before the job on it starts; its rental has no segment.
    plan = cheapest_plan(doubtful(0.5))
    unused = Rental(node=1, machine="a100", start_seconds=0.0, end_seconds=60.0, usd=0.05)
    draws = time_draws(doubtful(0.5), None)
    before = plan_outlook(plan, doubtful(0.5), draws).machine_usd
    more = plan_outlook(replace(plan, rentals=(*plan.rentals, unused)), doubtful(0.5), draws)
    assert more.machine_usd == pytest.approx(before + 0.05)


def test_draws_follow_the_interval_and_stop_where_a_job_was_measured() -> None:
    draws = time_draws(doubtful(0.9), None)["vit"][on("l4", 1)]
    assert draws.shape == (DRAWS,)
    # The ends of the interval hold 5 % of the draws each, up to the standard error of 200 draws (1.5 %).
    assert np.mean(draws > 9.70 / 7.32) == pytest.approx(0.05, abs=0.04)
    assert np.mean(draws < 6.32 / 7.32) == pytest.approx(0.05, abs=0.04)
    measured = PlanState(
        now_seconds=HOUR,
        remaining={"vit": 0.8},
        running={"vit": Placement(node=0, configuration=on("l4", 1))},
        started={"vit": on("l4", 1)},
        measured={"vit": {on("l4", 1): 7.0 * HOUR}},
    )
    after = time_draws(doubtful(0.9), measured)["vit"]
    assert np.all(after[on("l4", 1)] == 1.0)
    assert np.std(after[on("a100", 1)]) > 0


def test_a_running_job_without_a_checkpoint_stays_where_it_is() -> None:
    """Half done on small after 2 of 4 h; on large it would end in 0.5 h and be in time, but lose its work."""
    (job, _) = TWO_JOBS.jobs
    running = PlanState(
        now_seconds=1.4 * HOUR,
        remaining={"a": 0.5},
        running={"a": Placement(node=0, configuration=on("small", 1))},
        started={"a": on("small", 1)},
    )
    urgent = replace(job, tardiness_usd_per_hour=100.0)
    problem = replace(TWO_JOBS, jobs=(urgent,))
    assert MilpPlanner().decide(problem, running).placements["a"].configuration == on("large", 4)
    fixed = replace(problem, jobs=(replace(urgent, checkpoint=None),))
    assert MilpPlanner().decide(fixed, running).placements == running.running
    plan = cheapest_plan(fixed, since=running)
    assert [segment.placement.configuration for segment in plan.segments] == [on("small", 1)]
    assert SMALL.name in {rental.machine for rental in plan.rentals}
