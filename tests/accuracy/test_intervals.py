from __future__ import annotations

import io

from rich.console import Console

from benchmarks.accuracy.studies import (
    CORRELATIONS,
    Held,
    interval_study,
    least_correlation,
    study_table,
)


def held_from(family: str, least: float) -> Held:
    """A case that the interval holds from this correlation on."""
    return Held(family, {value: value >= least for value in CORRELATIONS})


def test_the_least_correlation_that_holds_nine_in_ten_is_chosen() -> None:
    nine = [held_from("a", 0.0)] * 8 + [held_from("a", 0.5)] + [held_from("a", 2.0)]
    assert least_correlation(nine) == 0.5  # 8 of 10 before, 9 of 10 from there on
    assert least_correlation([held_from("a", 0.0)]) == 0
    assert least_correlation([held_from("a", 2.0)]) == 1  # none is enough
    assert least_correlation([]) == 0


def test_each_family_is_judged_by_the_others_choice() -> None:
    easy, hard = held_from("easy", 0.0), held_from("hard", 0.75)
    first, second = interval_study([easy, hard, hard])
    assert (first.family, first.cases, first.correlation, first.held) == ("easy", 1, 0.75, 1.0)
    assert (second.family, second.cases, second.correlation, second.held) == ("hard", 2, 0.0, 0.0)
    assert second.held_by == {0.0: 0.0, 0.25: 0.0, 0.5: 0.0, 0.75: 1.0, 1.0: 1.0}


def test_the_study_is_printed() -> None:
    out = io.StringIO()
    study = interval_study([held_from("easy", 0.0), held_from("hard", 0.75), held_from("hard", 0.75)])
    Console(file=out, width=120).print(study_table(study))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert ["hard", "2", "0", "0", "0", "0", "0", "100", "100"] in lines
    assert ["all", "3", "33", "33", "33", "33", "100", "100"] in lines
