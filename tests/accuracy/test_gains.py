"""The study of gains: spreads are fitted on other families than they are judged on."""

from __future__ import annotations

import math

import pytest
from rich.console import Console

from benchmarks.accuracy.gains import Pair, fitted_spread, left_out, print_report


def pair(family: str, foretold: float, measured: float) -> Pair:
    return Pair(kind="compile infer", family=family, gpu="L4", model=family, measured=measured, foretold=foretold)


def test_a_model_that_sees_two_thirds_of_a_gain_is_told_its_power() -> None:
    pairs = [pair(family, gain, gain**1.5) for family in "abc" for gain in (0.8, 1.1, 1.5, 2.0)]
    spread = fitted_spread(pairs)
    assert spread.power == pytest.approx(1.5)
    assert spread.shift == 0.0  # three families are too few for one
    assert spread.gain(pairs[2]) == pytest.approx(1.5**1.5)
    assert all(spread.holds(one) for one in pairs)


def test_what_every_family_gains_beside_is_a_shift() -> None:
    pairs = [pair(family, gain, 1.02 * gain) for family in "abcdefghij" for gain in (0.9, 1.1, 1.2)]
    assert fitted_spread(pairs).gain(pairs[0]) == pytest.approx(1.02 * 0.9, rel=2e-3)


def test_nine_in_ten_are_held_and_no_wider() -> None:
    errors = [0.01 * step for step in range(1, 21)]
    pairs = [pair("a", 1.0, math.exp(error)) for error in errors]
    spread = fitted_spread(pairs)
    assert sum(spread.holds(one) for one in pairs) == 18
    assert spread.least == pytest.approx(0.18)


def test_a_family_is_judged_by_the_others() -> None:
    pairs = [*(pair("calm", 1.0, 1.02) for _ in range(10)), *(pair("wild", 1.0, 3.0) for _ in range(10))]
    judged = left_out(pairs)
    assert not any(own.holds(one) for one, own, _ in judged if one.family == "wild")
    assert [constant for one, _, constant in judged if one.family == "calm"] == [3.0] * 10


def test_the_report_counts_harm() -> None:
    console = Console(record=True, width=300)
    print_report([pair("a", 0.5, 0.5), pair("b", 1.5, 0.9), pair("c", 1.5, 1.5)], console)
    row = next(line for line in console.export_text().splitlines() if "inference in float32" in line)
    assert "3 / 3" in row  # pairs and families
    assert "50 / 100 % of 2" in row  # 0.5 and 0.9 are harm; of these one was foreseen, and no other
    assert row.split()[-1] == "yes"
