import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from lightning_predict.base.errors import (
    InfeasiblePlanError,
    InvalidArgumentError,
    LightningPredictError,
    PlanningError,
)
from lightning_predict.planning.problem import Job, Limits, PlanningProblem
from lightning_predict.planning.validation import check_problem
from tests.planning.example import HOUR, SMALL, TWO_JOBS, on

FIRST, SECOND = TWO_JOBS.jobs


def with_job(job: Job) -> PlanningProblem:
    return replace(TWO_JOBS, jobs=(job, SECOND))


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (replace(TWO_JOBS, machines=()), "There are no offers"),
        (replace(TWO_JOBS, jobs=()), "There are no jobs"),
        (replace(TWO_JOBS, limits=Limits(nodes=0)), "nodes=0 leaves no job a place"),
        (
            with_job(replace(FIRST, seconds={})),
            r"Job 'a' fits nowhere: it has a time on no machine type.*'large', 'small'",
        ),
        (
            replace(TWO_JOBS, limits=Limits(nodes=2, quotas={"small": 0})),
            "Job 'b' fits nowhere: every machine type that it could use is more than the quotas or nodes=2 allow",
        ),
        (with_job(replace(FIRST, deadline_seconds=-1.0)), "Job 'a' has its deadline at -1 s, which is in the past"),
        (
            with_job(replace(FIRST, release_seconds=3 * HOUR)),
            "Job 'a' has its deadline at 7200 s, which is in the past at its release at 10800 s",
        ),
        # a: 4 $ on small, b: 2 $.
        (replace(TWO_JOBS, limits=Limits(nodes=2, budget_usd=0.0)), r"budget of \$0.00 is too small: job 'a'.*\$4.00"),
        (replace(TWO_JOBS, limits=Limits(nodes=2, budget_usd=5.0)), r"budget of \$5.00 is too small: job 'b'.*\$6.00"),
    ],
)
def test_infeasible_problems_say_which_job_and_which_constraint(problem: PlanningProblem, words: str) -> None:
    with pytest.raises(InfeasiblePlanError, match=words) as raised:
        check_problem(problem)
    assert isinstance(raised.value, PlanningError)
    assert isinstance(raised.value, LightningPredictError)


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (replace(TWO_JOBS, jobs=(FIRST, FIRST)), "Two jobs have the name 'a'"),
        (replace(TWO_JOBS, machines=(SMALL, SMALL)), "Two machine types have the name 'small'"),
        (replace(TWO_JOBS, machines=(replace(SMALL, num_gpus=0),)), "'small' has num_gpus=0"),
        (replace(TWO_JOBS, machines=(replace(SMALL, usd_per_hour=-1.0),)), "'small' has usd_per_hour=-1.0"),
        (replace(TWO_JOBS, machines=(replace(SMALL, interruptions_per_hour=-1.0),)), "interruptions_per_hour=-1.0"),
        (
            replace(TWO_JOBS, machines=(replace(SMALL, interruptions_per_hour=0.1),)),
            "'small' may be interrupted, and checkpoint_seconds is not given; set it, because work",
        ),
        (replace(TWO_JOBS, checkpoint_seconds=0.0), "checkpoint_seconds=0.0; expected seconds above 0"),
        (replace(TWO_JOBS, limits=Limits(nodes=1, quotas={"tiny": 1})), "for 'tiny', which is not a machine type"),
        (replace(TWO_JOBS, limits=Limits(nodes=1, quotas={"small": -1})), "quota of 'small' is -1"),
        (replace(TWO_JOBS, limits=Limits(nodes=1, budget_usd=math.nan)), "budget_usd=nan is not a budget"),
        (replace(TWO_JOBS, period_seconds=0.0), "period_seconds=0.0 is not a period"),
        (replace(TWO_JOBS, horizon_seconds=0.0), "horizon_seconds=0.0 is not a horizon"),
        (with_job(replace(FIRST, release_seconds=-1.0)), "Job 'a' is released at -1.0 s"),
        (with_job(replace(FIRST, tardiness_usd_per_hour=-1.0)), "Job 'a' has tardiness_usd_per_hour=-1.0"),
        (with_job(replace(FIRST, low_factor=1.2)), r"Job 'a' has the interval \[1.2, 1\]"),
        (
            with_job(replace(FIRST, seconds={on("tiny", 1): 1.0})),
            "Job 'a' has a time on 'tiny', which is not a machine type",
        ),
        (
            with_job(replace(FIRST, seconds={on("small", 2): 1.0})),
            "Job 'a' has a time on 2 GPUs of 'small', which has 1",
        ),
        (with_job(replace(FIRST, seconds={on("small", 1): 0.0})), "Job 'a' takes 0.0 s on 1 GPUs of 'small'"),
    ],
)
def test_malformed_problem_error_has_given_and_expected_values(problem: PlanningProblem, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        check_problem(problem)


@pytest.mark.parametrize("name", ["tardiness_factor", "restart_seconds"])
def test_settings_below_zero_are_refused(name: str) -> None:
    change: Mapping[str, Any] = {name: -1.0}
    with pytest.raises(InvalidArgumentError, match=f"{name}=-1.0; expected a number of 0 or more"):
        check_problem(replace(TWO_JOBS, **change))


def test_a_problem_that_keeps_all_rules_passes() -> None:
    check_problem(TWO_JOBS)
    check_problem(replace(TWO_JOBS, limits=Limits(nodes=1, quotas={"large": 0}, budget_usd=6.0)))
