"""The tables of promised deadlines, and the next cheaper plan."""

from __future__ import annotations

import pytest

from benchmarks.planning.promises import (
    PROBABILITY,
    Promise,
    deadlines,
    decisions,
    next_cheaper,
    problem_of,
    promise_of,
    tightness,
)
from benchmarks.result_files import table_of
from lightning_predict.planning.policies import cheapest_plan


def promise(asked: float, cheaper: float | None) -> Promise:
    return Promise(
        plan_usd=1.0,
        rule_usd={},
        in_time={"a": asked - 0.01},
        asked={"a": asked},
        cheaper=None if cheaper is None else {"a": cheaper},
        falls_short=cheaper is not None and cheaper < PROBABILITY,
    )


def test_a_deadline_decides_if_the_next_cheaper_plan_misses_it() -> None:
    found = {"costs money": [promise(0.92, 0.8), promise(1.0, None), promise(0.95, 0.93), promise(0.5, None)]}
    assert table_of(deadlines(found["costs money"])).rows == (("promised, of 4", "3", "94.7", "91.0", "0"),)
    rows = {row[1]: row[2:] for row in table_of(decisions(found)).rows}
    assert rows["all"] == ("3", "94.7", "91.0", "0")
    assert rows["missed by the next cheaper plan"] == ("1", "91.0", "91.0", "0")
    assert rows["no plan is cheaper"] == ("1", "99.0", "99.0", "0")
    assert rows["kept by the next cheaper plan, too"] == ("1", "94.0", "94.0", "0")
    assert table_of(tightness(found)).rows == (("costs money", "3", "1", "1", "0", "1"),)


@pytest.mark.parametrize("seed", [0, 6])
def test_no_cheaper_plan_keeps_the_deadlines_as_often(seed: int) -> None:
    problem = problem_of(seed, is_lateness_cheap=True)
    plan = cheapest_plan(problem)
    cheaper = next_cheaper(problem, plan)
    assert plan.outlook is not None
    assert cheaper is None or cheaper.shortfall(PROBABILITY) > plan.outlook.shortfall(PROBABILITY)
    assert promise_of(problem, rules=()).falls_short is (cheaper is not None)
