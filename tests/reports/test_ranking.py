"""The ranking: cheapest, fastest, in time; nothing that does not fit; nothing invented where little is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.cost.prediction import Prediction
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.interval import Interval
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import Ranking, frontier, rank, ranking_lines, ranking_markdown
from lightning_predict.testing import changed
from tests.reports.example import AT_MOST, BARE, FULL, GIBIBYTE, H100, K80, T4, TEN, with_total


def names(ranking: Ranking) -> tuple[str | None, ...]:
    best = (ranking.cheapest, ranking.fastest, ranking.within_deadline)
    return tuple(None if one is None else one.gpu for one in best)


def test_cheapest_and_fastest() -> None:
    # T4: 3.2 h, $1.12. H100: 0.4 h, $1.196. K80 does not fit.
    ranking = rank(FULL)
    assert names(ranking) == ("T4", "H100-SXM-80GB", None)
    assert [one.gpu for one in ranking.frontier] == ["H100-SXM-80GB", "T4"]
    assert ranking.does_not_fit == ("K80",)
    assert not ranking.per_iteration


@pytest.mark.parametrize(
    ("hours", "best"),
    [(4.0, "T4"), (3.2, "T4"), (3.19, "H100-SXM-80GB"), (0.4, "H100-SXM-80GB"), (0.39, None)],
)
def test_the_cheapest_that_meets_a_deadline(hours: float, best: str | None) -> None:
    assert names(rank(FULL, deadline_hours=hours))[2] == best


def test_a_gpu_on_which_the_run_does_not_fit_is_never_recommended() -> None:
    tempting = changed(with_total(K80, 1.0), cost_usd=0.001, usd_per_hour=3.6)
    assert tempting.fits is False
    ranking = rank(Predictions((tempting, T4)), deadline_hours=10)
    assert names(ranking) == ("T4", "T4", "T4")
    assert "K80" not in [one.gpu for one in ranking.frontier]


def test_a_gpu_on_which_it_fits_narrowly_is_recommended_with_a_remark() -> None:
    narrow = changed(T4, memory_fit="tight", memory_free_bytes=0.25 * GIBIBYTE)
    ranking = rank(Predictions((narrow, H100)))
    assert names(ranking) == ("T4", "H100-SXM-80GB", None)
    assert ranking.tight == ("T4",)
    assert ranking.as_dict()["tight"] == ["T4"]
    lines = ranking_lines(ranking)
    # 7.81 + 0.25 GiB
    assert lines[0].startswith("Cheapest   T4: 3 h 12 min, $1.12; fits narrowly, 7.81 of 8.06 GiB; price: Google")
    assert "The memory is narrow on T4: try a few steps before you rent for long." in lines
    assert rank(FULL).tight == ()


def test_where_it_fits_nowhere_nothing_is_recommended() -> None:
    ranking = rank(Predictions((K80,)), deadline_hours=1)
    assert names(ranking) == (None, None, None)
    assert ranking_lines(ranking) == (
        "Best within 1 h  none",
        "No GPU can be recommended: the run fits on none of them.",
        "Not recommended, as the run does not fit: K80.",
    )


def test_without_prices_the_fastest_is_still_known() -> None:
    free = Predictions(tuple(changed(one, usd_per_hour=None, cost_usd=None, offer=None) for one in (T4, H100)))
    ranking = rank(free, deadline_hours=1)
    assert names(ranking) == (None, "H100-SXM-80GB", "H100-SXM-80GB")
    assert ranking.without_price == ("T4", "H100-SXM-80GB")
    assert ranking.frontier == ()


def test_without_a_length_one_iteration_is_compared() -> None:
    steps = Predictions(tuple(changed(one, total=None, cost_usd=None) for one in (T4, H100)))
    ranking = rank(steps, deadline_hours=1)
    assert ranking.per_iteration
    assert names(ranking) == ("T4", "H100-SXM-80GB", None)
    assert ranking.cheapest is not None
    assert ranking.cheapest.cost_usd == pytest.approx(0.048 / 3600 * 0.35)  # seconds x $ per hour
    assert ranking_lines(ranking)[0].startswith(
        "Cheapest         T4: 48.0 ms, $0.00000467 an iteration; fits, 7.81 of 14.1 GiB; price: Google"
    )
    assert (
        next(line for line in ranking_lines(ranking) if line.startswith("Best"))
        == "Best within 1 h  not known, as the length of the run is not"
    )


def test_unknown_memory_is_said() -> None:
    assert "Memory is not known: whether the run fits was not checked." in ranking_lines(rank(BARE))
    assert not rank(FULL).memory_unknown


@pytest.mark.parametrize("name", ["full", "bare", "at_most", "ten"])
def test_lines_and_markdown(name: str, golden: Callable[[str, str], None]) -> None:
    predictions = {"full": FULL, "bare": BARE, "at_most": AT_MOST, "ten": TEN}[name]
    ranking = rank(predictions, deadline_hours=3.3)
    lines = ranking_lines(ranking)
    assert max(map(len, lines)) <= 120
    golden(f"ranking_{name}.txt", "\n".join(lines) + "\n\n" + ranking_markdown(ranking))


def test_a_deadline_that_the_upper_end_breaks_is_said() -> None:
    # T4: 10,800 to 12,480 s; 3.3 h are 11,880 s.
    text = "\n".join(ranking_lines(rank(FULL, deadline_hours=3.3)))
    assert "; may take up to 3 h 28 min" in text.replace("\n" + " " * len("Best within 3 h 18 min  "), " ")
    assert "may take up to" not in "\n".join(ranking_lines(rank(FULL, deadline_hours=3.5)))


def test_the_ranking_as_json_values() -> None:
    assert rank(FULL, deadline_hours=1).as_dict() == {
        "per_iteration": False,
        "cheapest": "T4",
        "fastest": "H100-SXM-80GB",
        "as_fast": [],
        "deadline_hours": 1,
        "within_deadline": "H100-SXM-80GB",
        "frontier": ["H100-SXM-80GB", "T4"],
        "does_not_fit": ["K80"],
        "tight": [],
        "without_price": [],
    }


@pytest.mark.parametrize("hours", [0.0, -1.0, float("nan"), float("inf")])
def test_a_deadline_must_be_above_zero(hours: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"deadline_hours=.* is no deadline; expected hours above 0"):
        rank(FULL, deadline_hours=hours)


runs = st.builds(
    changed,
    st.sampled_from([T4, H100, K80]),
    gpu=st.from_regex(r"[A-Z][a-z0-9]{1,8}", fullmatch=True),
    total=st.builds(Interval, st.just(10_800.0), st.floats(1, 1e7), st.just(12_480.0)),
    cost_usd=st.none() | st.floats(0.01, 1e5),
    memory_fit=st.sampled_from(["fits", "exceeds", None]),
)


@given(st.lists(runs, min_size=1, max_size=8, unique_by=lambda one: one.gpu), st.floats(0.01, 3000))
def test_nothing_that_fits_beats_what_is_recommended(predictions: list[Prediction], hours: float) -> None:
    ranking = rank(Predictions(tuple(predictions)), deadline_hours=hours)
    fitting = [one for one in predictions if one.fits is not False]
    priced = [one for one in fitting if one.cost_usd is not None]
    assert (ranking.fastest is None) == (not fitting)
    if ranking.fastest is not None:
        assert ranking.fastest.seconds <= 1.01 * min(one.total_seconds or 0 for one in fitting)
    assert (ranking.cheapest is None) == (not priced)
    if ranking.cheapest is not None:
        assert (ranking.cheapest.cost_usd or 0) <= 1.01 * min(one.cost_usd or 0 for one in priced)
    if ranking.within_deadline is not None:
        assert ranking.within_deadline.seconds <= hours * 3600
    on_it = {one.gpu for one in ranking.frontier}
    for one in priced:
        beaten = any(
            other.seconds <= 1.01 * (one.total_seconds or 0) and (other.cost_usd or 0) <= 1.01 * (one.cost_usd or 0)
            for other in ranking.frontier
            if other.gpu != one.gpu
        )
        assert beaten or one.gpu in on_it
    for first, second in zip(ranking.frontier, ranking.frontier[1:], strict=False):
        assert first.seconds < second.seconds
        assert (first.cost_usd or 0) > 1.01 * (second.cost_usd or 0)


def test_of_two_that_take_the_same_the_cheaper_is_on_the_frontier() -> None:
    dear, cheap = changed(T4, gpu="Dear", cost_usd=2.0), changed(T4, gpu="Cheap", cost_usd=1.0)
    ranking = rank(Predictions((dear, cheap)))
    assert [one.gpu for one in ranking.frontier] == ["Cheap"]
    assert frontier([]) == ()


def run(name: str, seconds: float, cost: float | None) -> Prediction:
    return changed(with_total(T4, seconds), gpu=name, cost_usd=cost, usd_per_hour=cost)


def test_of_gpus_that_are_as_fast_to_one_percent_the_cheapest_is_named() -> None:
    # 1,000 to 1,010 s are equal, 1,011 s are not.
    runs = [run("B200", 1000, 4.0), run("H200", 1005, 2.0), run("L40S", 1011, 1.0), run("H100", 1010, 3.0)]
    ranking = rank(Predictions(tuple(runs)))
    assert names(ranking) == ("L40S", "H200", None)
    assert ranking.as_fast == ("B200", "H100")
    assert [one.gpu for one in ranking.frontier] == ["H200", "L40S"]
    assert "; as fast: B200, H100" in " ".join(str(ranking).split())
    # Equal in both: the first asked. Without a price: behind those with one.
    assert names(rank(Predictions((run("A", 1000, 2.0), run("B", 1000, 2.0)))))[:2] == ("A", "A")
    assert names(rank(Predictions((run("A", 1000, None), run("B", 1009, 2.0)))))[:2] == ("B", "B")


def test_of_gpus_that_cost_as_much_to_one_percent_the_fastest_is_named() -> None:
    # $1.000 and $1.009 are equal, and half of the time is not.
    ranking = rank(Predictions((run("Slow", 2000, 1.0), run("Quick", 1000, 1.009))), deadline_hours=1)
    assert names(ranking) == ("Quick", "Quick", "Quick")
    assert [one.gpu for one in ranking.frontier] == ["Quick"]
    # As fast, too: the cheaper.
    assert names(rank(Predictions((run("Dear", 1000, 1.009), run("Cheap", 1001, 1.0)))))[:2] == ("Cheap", "Cheap")
