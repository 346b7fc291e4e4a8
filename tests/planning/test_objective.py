import math
from dataclasses import replace

import numpy as np
import pytest

from lightning_predict.planning.objective import (
    ELSEWHERE,
    HORIZON_GAPS,
    HORIZON_RESTARTS,
    horizon_seconds,
    interruption_factor,
    late_factor,
    options_of,
    run_seconds,
    stay_seconds,
    working_seconds,
)
from lightning_predict.planning.problem import Formulation, Placement, PlanState
from tests.planning.example import HOUR, SMALL, TWO_JOBS, at_start, job, on

HOURLY = replace(TWO_JOBS, horizon_seconds=HOUR)  # A horizon of one hour makes the sums easy


def test_cells_and_waiting_cost_their_share_after_the_horizon_and_tardiness() -> None:
    options = options_of(HOURLY, at_start(HOURLY))
    assert options.jobs == ("a", "b")
    assert options.configurations == (on("large", 4), on("small", 1))
    # a on large: 1 h, all of it within the horizon. On small: 3 h × 1 $ afterwards, 2 h late × 3 $ = 9 $.
    assert options.cost_usd[0] == pytest.approx([0.0, 9.0])
    # b on small: 1 h × 1 $ afterwards, in time; it cannot run on large.
    assert options.cost_usd[1] == pytest.approx([math.inf, 1.0])
    assert options.period_usd == pytest.approx([6.0, 1.0])
    # a: on large for the horizon 6 $, on small 1 $ + 3 $ = 4 $: the cheapest is 4 $. On small (slower and cheaper, so
    # worth renting) it would end at 1 h + 4 h, 3 h late: 9 $. b: 1 $ + 1 $, ends at 3 h, in time.
    assert options.postponed_usd == pytest.approx([4.0 * 1.001 + 9.0, 2.0 * 1.001])
    problem = replace(HOURLY, tardiness_factor=2.0)
    options = options_of(problem, at_start(problem))
    assert options.cost_usd[0, 1] == pytest.approx(3.0 + 2 * 6.0)


def test_unshared_machines_are_paid_in_full_and_useless_gpus_are_no_option() -> None:
    shared = replace(HOURLY, jobs=(job("a", hours={on("large", 2): 3.0}, deadline=9.0),))
    alone = replace(shared, formulation=Formulation(shares_gpus=False))
    # 2 h after the horizon: half of 6 $/h, or all of it.
    assert options_of(shared, at_start(shared)).cost_usd[0, 0] == pytest.approx(6.0)
    assert options_of(alone, at_start(alone)).cost_usd[0, 0] == pytest.approx(12.0)
    assert options_of(alone, at_start(alone)).size_of.tolist() == [4]
    # In time with one GPU: two do the same work for as much money (1 h of 2/4 of 6 $), three for more.
    a = job("a", hours={on("large", 1): 2.0, on("large", 2): 1.0, on("large", 3): 1.0}, deadline=9.0)
    problem = replace(HOURLY, jobs=(a,), horizon_seconds=0.0)
    assert np.isfinite(options_of(problem, at_start(problem)).cost_usd).tolist() == [[True, False, False]]
    late = replace(problem, jobs=(replace(a, deadline_seconds=0.5 * HOUR),))
    assert np.isfinite(options_of(late, at_start(late)).cost_usd).tolist() == [[True, True, False]]


def test_a_job_that_moves_loses_time_and_one_that_stays_does_not() -> None:
    problem = replace(TWO_JOBS, restart_seconds=60.0)
    a = problem.jobs[0]
    here = Placement(node=0, configuration=on("small", 1))
    running = PlanState(now_seconds=HOUR, remaining={"a": 0.5}, running={"a": here}, started={"a": here.configuration})
    assert stay_seconds(a, problem, running) == 2 * HOUR
    assert stay_seconds(a, problem, replace(running, restarting={"a": 20.0})) == 2 * HOUR + 20
    elsewhere = {on("small", 1): 2 * HOUR + 60, on("large", 4): 0.5 * HOUR + 60}
    assert run_seconds(a, problem, running) == elsewhere
    assert run_seconds(a, problem, replace(running, running={})) == elsewhere
    assert run_seconds(a, problem, at_start(problem)) == {on("small", 1): 4 * HOUR, on("large", 4): HOUR}


def test_measured_time_corrects_other_configurations() -> None:
    a = job("a", hours={on("small", 1): 4.0, on("large", 2): 2.0, on("large", 4): 1.0}, deadline=9.0)
    problem = replace(TWO_JOBS, jobs=(a,))
    situation = replace(at_start(problem), measured={"a": {on("large", 2): 3.0 * HOUR}})
    # Half as slow again on two A10; so it is on four, and on a T4 by 1.5 to the power of a quarter or so.
    assert working_seconds(a, problem, situation) == pytest.approx(
        {on("large", 2): 3.0 * HOUR, on("large", 4): 1.5 * HOUR, on("small", 1): 4.0 * 1.5**ELSEWHERE * HOUR}
    )
    assert pytest.approx(0.148**2 / (0.041**2 + 0.148**2 + 0.263**2), abs=0.005) == ELSEWHERE
    both = replace(situation, measured={"a": {on("large", 2): 3.0 * HOUR, on("small", 1): 2.0 * HOUR}})
    assert working_seconds(a, problem, both)[on("small", 1)] == 2.0 * HOUR
    assert run_seconds(a, problem, replace(both, remaining={"a": 0.5}))[on("large", 4)] == pytest.approx(0.75 * HOUR)


def test_interruptions_lose_work_and_spot_machines_are_worth_their_price_until_late() -> None:
    spot = replace(SMALL, interruptions_per_hour=1.0)
    problem = replace(TWO_JOBS, machines=(spot,), checkpoint_seconds=HOUR)
    # An hour without an interruption has the chance 1/e. Until one comes, e − 1 hours pass on average.
    assert interruption_factor(spot, problem) == pytest.approx(math.e - 1)
    # A restart of six minutes must pass without one, too.
    slow = replace(problem, restart_seconds=360.0)
    assert interruption_factor(spot, slow) == pytest.approx((math.e - 1) * math.exp(0.1))
    # Rare ones: each loses half the time between two checkpoints and the restart, 0.5 h + 0.1 h.
    rare = replace(spot, interruptions_per_hour=0.001)
    assert interruption_factor(rare, slow) == pytest.approx(1 + 0.001 * 0.6, abs=1e-6)
    assert interruption_factor(replace(spot, interruptions_per_hour=0.0), slow) == interruption_factor(SMALL, slow) == 1
    spot = replace(SMALL, name="spot", usd_per_hour=0.5, interruptions_per_hour=1.0)
    a = job("a", hours={on("small", 1): 2.0, on("spot", 1): 2.0}, deadline=3.0, weight=2.0)
    problem = replace(HOURLY, jobs=(a,), machines=(SMALL, spot), checkpoint_seconds=HOUR)
    options = options_of(problem, at_start(problem))
    hours = 2 * (math.e - 1)  # 3.44 of wall time, 0.44 late
    assert options.configurations == (on("small", 1), on("spot", 1))
    assert options.cost_usd[0] == pytest.approx([1.0, 0.5 * (hours - 1) + 2 * (hours - 3)])
    assert options.machine_usd[0] == pytest.approx([2.0, 0.5 * hours])
    assert options.reserved_usd == pytest.approx([0.5 * hours])


def test_the_horizon_is_some_gaps_between_events_and_at_most_the_period() -> None:
    situation = at_start(TWO_JOBS)
    assert horizon_seconds(TWO_JOBS, situation) == 300.0
    assert horizon_seconds(TWO_JOBS, replace(situation, mean_gap_seconds=20.0)) == HORIZON_GAPS * 20.0
    assert horizon_seconds(TWO_JOBS, replace(situation, mean_gap_seconds=HOUR)) == 300.0
    moving = replace(TWO_JOBS, restart_seconds=60.0)
    assert horizon_seconds(moving, replace(situation, mean_gap_seconds=20.0)) == HORIZON_RESTARTS * 60.0
    assert horizon_seconds(HOURLY, situation) == HOUR


def test_without_preemption_or_migration_a_running_job_does_not_wait_or_change() -> None:
    here = Placement(node=0, configuration=on("small", 1))
    running = PlanState(
        now_seconds=0.0, remaining={"a": 0.5, "b": 1.0}, running={"a": here}, started={"a": here.configuration}
    )
    stays = replace(TWO_JOBS, formulation=Formulation(preempts=False))
    assert math.isinf(options_of(stays, running).postponed_usd[0])
    fixed_type = replace(TWO_JOBS, formulation=Formulation(migrates=False))
    assert options_of(fixed_type, running).cost_usd[0].tolist()[0] == math.inf
    here = Placement(node=1, configuration=on("large", 3))
    a = job("a", hours={on("large", 3): 2.0, on("large", 4): 1.0}, deadline=9.0)
    problem = replace(HOURLY, jobs=(a,), formulation=Formulation(preempts=False, migrates=False))
    situation = PlanState(now_seconds=0.0, remaining={"a": 1.0}, running={"a": here}, started={"a": here.configuration})
    options = options_of(problem, situation)
    assert options.running == (here,)
    assert options.cost_usd.tolist() == [[math.inf, math.inf]]
    assert options.postponed_usd.tolist() == [math.inf]
    assert options.stay_usd == pytest.approx([4.5])  # three quarters of a machine for the hour after the horizon


def test_a_deadline_is_kept_with_a_probability_as_far_as_the_interval_says() -> None:
    wide = replace(TWO_JOBS.jobs[0], high_factor=2.0)
    assert late_factor(2.0, 0.5) == 1.0
    assert late_factor(2.0, 0.95) == pytest.approx(2.0)  # the upper end of an interval that holds 90 %
    # The 90 % quantile of a normal distribution lies at 1.2816 deviations, the 95 % one at 1.6449.
    assert late_factor(2.0, 0.9) == pytest.approx(2 ** (1.2816 / 1.6449), rel=1e-4)
    problem = replace(TWO_JOBS, jobs=(wide, TWO_JOBS.jobs[1]), probability=0.95)
    sure = options_of(problem, at_start(problem))
    middle = options_of(TWO_JOBS, at_start(TWO_JOBS))
    column = sure.configurations.index(on("large", 4))
    # a takes an hour on large, due in two: in time as predicted, and at the upper end, two hours, just so.
    assert sure.cost_usd[0, column] == pytest.approx(middle.cost_usd[0, column])
    column = sure.configurations.index(on("small", 1))
    # On small it takes four hours, two late; at the upper end eight, six late, at $3 an hour.
    assert sure.cost_usd[0, column] - middle.cost_usd[0, column] == pytest.approx(3 * (6 - 2))


def test_move_to_another_gpu_must_pay_at_the_upper_end_unless_measured() -> None:
    here = Placement(node=0, configuration=on("small", 1))
    wide = replace(TWO_JOBS.jobs[0], high_factor=2.0, deadline_seconds=100 * HOUR)
    problem = replace(TWO_JOBS, jobs=(wide,), probability=0.95)
    running = PlanState(now_seconds=0.0, remaining={"a": 0.5}, running={"a": here}, started={"a": here.configuration})
    options = options_of(problem, running)
    large = options.configurations.index(on("large", 4))
    # Half the run is half an hour on large as predicted, an hour at the upper end: the possible gain of a move.
    assert options.machine_usd[0, large] == pytest.approx(6.0)
    seen = replace(running, measured={"a": {on("large", 4): HOUR}})
    assert options_of(problem, seen).machine_usd[0, large] == pytest.approx(3.0)
