from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from benchmarks.accuracy.report import goals_of
from benchmarks.accuracy.throughput import ThroughputReport, ratios_of
from benchmarks.accuracy.transformers import TransformerResult
from benchmarks.training.report import Goal, reach_table
from tests.accuracy.test_report import case, throughput


def test_every_goal_has_its_own_cases() -> None:
    # 500 ms measured: errors of -4 % and +2 % that are scored; a compiled case, 20 % off and outside, is not.
    good = TransformerResult(case(), 0.48, 0.4, 0.6)
    fair = replace(good, predicted_seconds=0.51)
    apart = TransformerResult(case(variant="fusion"), 0.6, 0.55, 0.65)
    rows = [throughput("T4", 100, 110), throughput("L4", 200, 280)]  # 10 % and 40 %, both inside their intervals
    goals = goals_of([good, fair, apart], ThroughputReport(tuple(rows), tuple(ratios_of(rows))))
    transformers, ratio, absolute, interval = goals
    assert (transformers.cases, transformers.is_held) == (2, True)
    assert transformers.reached == pytest.approx(0.03)
    # 280 · 100 / 110 = 254.5 of 200, and 110 · 200 / 280 = 78.6 of 100.
    assert (ratio.cases, ratio.is_held) == (2, False)
    assert ratio.reached == pytest.approx((280 / 220 - 1 + 1 - 220 / 280) / 2)
    assert (absolute.cases, absolute.is_held) == (2, False)
    assert absolute.reached == pytest.approx(0.25)
    assert (interval.cases, interval.is_held) == (5, False)
    assert interval.reached == pytest.approx(4 / 5)


def test_a_goal_is_held_from_its_figure_on() -> None:
    error = Goal(what="", cases=1, reached=0.05, reach=0.05)
    assert error.is_held
    assert not replace(error, reached=0.051).is_held
    share = Goal(what="", cases=1, reached=0.85, reach=0.85, is_error=False)
    assert share.is_held
    assert not replace(share, reached=0.849).is_held


def test_a_table_that_is_not_there_has_no_goals() -> None:
    assert goals_of((), None) == ()
    assert goals_of((), ThroughputReport((), ())) == ()


def test_the_goals_are_printed() -> None:
    out = io.StringIO()
    goals = [Goal(what="mean error", cases=31, reached=0.0364, reach=0.05)]
    Console(file=out, width=170).print(reach_table(goals))
    assert ["mean", "error", "31", "3.6", "at", "most", "5", "yes"] in [
        line.split() for line in out.getvalue().splitlines()
    ]
