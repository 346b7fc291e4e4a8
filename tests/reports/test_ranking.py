"""The ranking: cheapest, fastest, in time; nothing that does not fit; nothing invented where little is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.interval import Interval
from lightning_predict.cost.prediction import Prediction
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import (
    Ranking,
    alternatives_text,
    frontier,
    lines_of_run,
    rank,
    ranking_lines,
    ranking_markdown,
    with_article,
)
from lightning_predict.testing import example_machine, with_values
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


@pytest.mark.parametrize(
    ("fresh_days", "today", "said"),
    [
        (60, "2026-11-30", "price"),  # 60 days after 2026-10-01
        (60, "2026-12-01", "price 61 days old"),
        (14, "2026-10-15", "price"),
        (14, "2026-10-16", "price 15 days old"),
        (60, "2028-06-01", "price 20 months old"),
    ],
)
def test_the_sentence_that_recommends_a_gpu_says_the_age_of_its_price(fresh_days: int, today: str, said: str) -> None:
    t4 = replace(T4, price=replace(T4.price, priced_on="2026-10-01", fresh_days=fresh_days))
    first, *rest = ranking_lines(rank(replace(FULL, items_in_order=(H100, t4, K80), made_on=today)), width=200)
    age = "" if said == "price" else f", {said}"
    assert f"($0.35/h, Google n1-standard-4 (2026-10-01){age}): cheapest" in first
    assert "days old" not in " ".join(rest)


def test_the_gpu_within_a_deadline_says_the_age_of_its_price_too() -> None:
    h100 = replace(H100, price=replace(H100.price, priced_on="2026-09-01", fresh_days=60))
    predictions = replace(FULL, items_in_order=(h100, T4, K80), made_on="2026-11-27")
    text = " ".join(ranking_lines(rank(predictions, deadline_hours=1), width=200))
    assert "Within 1 h: H100-SXM-80GB, 24 min, $1.20, price 87 days old." in text


def test_a_gpu_on_which_the_run_does_not_fit_is_never_recommended() -> None:
    tempting = with_values(with_total(K80, 1.0), cost_usd=0.001, usd_per_hour=3.6)
    assert tempting.fits is False
    ranking = rank(Predictions((tempting, T4)), deadline_hours=10)
    assert names(ranking) == ("T4", "T4", "T4")
    assert "K80" not in [one.gpu for one in ranking.frontier]


def test_a_gpu_on_which_it_fits_narrowly_is_recommended_with_a_remark() -> None:
    narrow = with_values(T4, memory_fit="tight", memory_free_bytes=0.25 * GIBIBYTE)
    ranking = rank(Predictions((narrow, H100)))
    assert names(ranking) == ("T4", "H100-SXM-80GB", None)
    assert ranking.tight == ("T4",)
    assert ranking.as_dict()["tight"] == ["T4"]
    lines = ranking_lines(ranking)
    assert "Memory is tight on T4: run a few steps before you rent for long." in lines
    assert rank(FULL).tight == ()


def test_where_it_fits_nowhere_nothing_is_recommended() -> None:
    ranking = rank(Predictions((K80,)), deadline_hours=1)
    assert names(ranking) == (None, None, None)
    assert ranking_lines(ranking) == (
        "Within 1 h: none.",
        "No GPU can be recommended: the run does not fit on any of them.",
        "Not recommended (does not fit): K80.",
    )


def test_without_prices_the_fastest_is_still_known() -> None:
    free = Predictions(tuple(with_values(one, usd_per_hour=None, cost_usd=None, offer=None) for one in (T4, H100)))
    ranking = rank(free, deadline_hours=1)
    assert names(ranking) == (None, "H100-SXM-80GB", "H100-SXM-80GB")
    assert ranking.without_price == ("T4", "H100-SXM-80GB")
    assert ranking.frontier == ()


def test_without_a_length_one_iteration_is_compared() -> None:
    each = [with_values(one, total=None, cost_usd=None, cycle_seconds=one.iteration_seconds) for one in (T4, H100)]
    ranking = rank(Predictions(tuple(each)), deadline_hours=1)
    assert ranking.per_iteration
    assert names(ranking) == ("T4", "H100-SXM-80GB", None)
    assert ranking.cheapest is not None
    assert ranking.cheapest.cost_usd == pytest.approx(0.048 / 3600 * 0.35)  # seconds x $ per hour
    # A thousand iterations: 48 s, and 48 / 3600 h x $0.35.
    assert ranking_lines(ranking)[0].endswith(": cheapest (48.0 s, $0.00467 for 1,000 steps).")
    assert "Within 1 h: unknown, because the length of the run is unknown." in ranking_lines(ranking)


def test_unknown_memory_is_said() -> None:
    assert "Memory unknown: whether the run fits was not checked." in ranking_lines(rank(BARE))
    assert not rank(FULL).memory_unknown


def test_lines_and_markdown(golden: Callable[[str, str], None]) -> None:
    texts = []
    for name, predictions in {"full": FULL, "bare": BARE, "at_most": AT_MOST, "ten": TEN}.items():
        ranking = rank(predictions, deadline_hours=3.3)
        lines = ranking_lines(ranking)
        assert max(map(len, lines)) <= 120
        texts.append(f"=== {name}\n" + "\n".join(lines) + "\n\n" + ranking_markdown(ranking))
    golden("ranking.txt", "\n\n".join(texts))


def test_a_deadline_that_the_upper_end_breaks_is_said() -> None:
    # T4: 10,800 to 12,480 s; 3.3 h are 11,880 s.
    text = "\n".join(ranking_lines(rank(FULL, deadline_hours=3.3)))
    assert "Within 3 h 18 min: T4, 3 h 12 min, $1.12; may take up to 3 h 28 min." in text
    assert "may take up to" not in "\n".join(ranking_lines(rank(FULL, deadline_hours=3.5)))


def test_the_ranking_as_json_values() -> None:
    assert rank(FULL, deadline_hours=1).as_dict() == {
        "per_iteration": False,
        "cheapest": "T4",
        "fastest": "H100-SXM-80GB",
        "as_fast": [],
        "perhaps_cheapest": [],
        "perhaps_fastest": [],
        "limit": "host",
        "deadline_hours": 1,
        "within_deadline": "H100-SXM-80GB",
        "frontier": ["H100-SXM-80GB", "T4"],
        "group": None,
        "compared": 2,
        "does_not_fit": ["K80"],
        "tight": [],
        "without_price": [],
    }


@pytest.mark.parametrize("hours", [0.0, -1.0, float("nan"), float("inf")])
def test_a_deadline_must_be_above_zero(hours: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"deadline_hours=.* is not a deadline; expected hours above 0"):
        rank(FULL, deadline_hours=hours)


runs = st.builds(
    with_values,
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
    dear, cheap = with_values(T4, gpu="Dear", cost_usd=2.0), with_values(T4, gpu="Cheap", cost_usd=1.0)
    ranking = rank(Predictions((dear, cheap)))
    assert [one.gpu for one in ranking.frontier] == ["Cheap"]
    assert frontier([]) == ()


def run(name: str, seconds: float, cost: float | None) -> Prediction:
    return with_values(with_total(T4, seconds), gpu=name, cost_usd=cost, usd_per_hour=cost)


def test_of_gpus_that_are_as_fast_to_one_percent_the_cheapest_is_named() -> None:
    # 1,000 to 1,010 s are equal, 1,011 s are not.
    runs = [run("B200", 1000, 4.0), run("H200", 1005, 2.0), run("L40S", 1011, 1.0), run("H100", 1010, 3.0)]
    ranking = rank(Predictions(tuple(runs)))
    assert names(ranking) == ("L40S", "H200", None)
    assert ranking.as_fast == ("B200", "H100")
    assert [one.gpu for one in ranking.frontier] == ["H200", "L40S"]
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


def sure(name: str, seconds: float, cost: float | None, spread: float = 0.01, **values: object) -> Prediction:
    """A run whose 90 % interval is as wide as `spread` on either side."""
    total = Interval(seconds / (1 + spread), seconds, seconds * (1 + spread))
    return with_values(T4, layout=name, total=total, cost_usd=cost, usd_per_hour=cost, measured_seconds=None, **values)


def test_where_intervals_overlap_widely_no_single_gpu_is_the_cheapest() -> None:
    # Both 30 % wide: 5 % apart either may be the cheaper. Half as dear is cheaper for certain.
    close = [sure("L40S", 1000, 1.00, 0.3), sure("A10G", 2000, 1.05, 0.3), sure("T4", 4000, 2.00, 0.3)]
    ranking = rank(Predictions(tuple(close)))
    assert names(ranking)[0] == "L40S"
    assert ranking.perhaps_cheapest == ("A10G",)
    assert str(ranking).startswith("Rent an L40S or A10G (first: $1.00/h, ")
    assert rank(Predictions((close[0], close[2]))).perhaps_cheapest == ()
    # The same 5 %, known to 1 %: one winner.
    known = [sure("L40S", 1000, 1.00), sure("A10G", 2000, 1.05)]
    assert rank(Predictions(tuple(known))).perhaps_cheapest == ()


def test_the_one_that_looks_dearer_is_named_where_it_is_the_cheaper_in_a_third_of_the_cases() -> None:
    # Both spread by s = ln(1.3 ** 2) / 3.29 = 0.1595, together 0.2256; a third is 0.4307 standard deviations:
    # exp(0.0972) = 1.102.
    for dearer, expected in ((1.10, ("A10G",)), (1.105, ())):
        runs_of_two = (sure("L40S", 1000, 1.0, 0.3), sure("A10G", 1500, dearer, 0.3))
        assert rank(Predictions(runs_of_two)).perhaps_cheapest == expected


def test_what_is_faster_for_more_money_is_said_with_what_it_saves_and_adds() -> None:
    fast, middling, cheap = sure("H100-SXM-80GB", 3600, 3.0), sure("L40S", 7200, 2.5), sure("L4", 14_400, 2.0)
    text = " ".join(str(rank(Predictions((fast, middling, cheap)))).split())
    assert text.startswith("Rent an L4 ($2.00/h, ")
    assert "L40S is 2 h sooner for $0.50 more. H100-SXM-80GB is 3 h sooner for $1.00 more." in text
    # 3 % sooner is not worth naming.
    near = rank(Predictions((sure("L40S", 13_968, 2.5), cheap)))
    assert "sooner" not in str(near)


def test_the_machine_in_use_is_compared_with() -> None:
    runs_of_two = (sure("A100-SXM-80GB", 3600, 2.0), sure("L4", 14_400, 5.0))
    running = Predictions(runs_of_two, used_gpu="L4", is_running=True)
    assert str(rank(running)).startswith("Rent an A100-SXM-80GB (")
    assert "cheapest (1 h, $2.00). It is 4 times as fast as this L4." in " ".join(str(rank(running)).split())
    stays = Predictions((sure("A100-SXM-80GB", 3600, 9.0), sure("L4", 14_400, 5.0)), used_gpu="L4", is_running=True)
    assert str(rank(stays)).startswith("Stay on this L4: no GPU is cheaper (4 h, $5.00).")
    processor = example_machine("CPU", 1.0, total=Interval(36_000.0, 36_000.0, 36_000.0))
    asked = rank(Predictions(runs_of_two, machine=processor, is_running=True))
    assert "It is 10 times as fast as this CPU." in " ".join(str(asked).split())
    slow = example_machine("CPU", 1.0, total=Interval(1800.0, 1800.0, 1800.0))
    assert "It takes 2 times as long as this CPU. It saves no time." in " ".join(
        str(rank(Predictions(runs_of_two, machine=slow, is_running=True))).split()
    )


@pytest.mark.parametrize("is_running", [True, False])
@given(
    hours=st.lists(st.floats(0.5, 50), min_size=3, max_size=3),
    dollars=st.lists(st.floats(0.1, 100), min_size=3, max_size=3),
    own=st.floats(0.5, 50),
)
def test_nobody_is_told_to_rent_a_gpu_slower_than_the_one_in_use(
    is_running: bool, hours: list[float], dollars: list[float], own: float
) -> None:
    offered = {
        name: sure(name, 3600 * time, cost, spread=0.0)
        for name, time, cost in zip(("T4", "L4", "A100-SXM-80GB"), hours, dollars, strict=True)
    }
    total = Interval(3600 * own, 3600 * own, 3600 * own)
    machine = example_machine("MI300X", 1.0, total=total)
    ranking = rank(Predictions(tuple(offered.values()), machine=machine, is_running=is_running))
    assert ranking.cheapest is not None
    lines = ranking_lines(ranking)
    # The MI300X's price is unknown: a GPU that is as fast may cost more.
    assert lines[0].startswith("Rent ") == (1.05 * ranking.cheapest.seconds <= total.middle)
    sooner = " ".join(line for line in lines if " sooner for " in line)
    assert not any(
        f"{name} is" in sooner for name, one in offered.items() if (one.total_seconds or 0) > 1.01 * total.middle
    )


def test_what_is_left_may_be_too_little_to_move() -> None:
    machine = example_machine("CPU", 0.1, total=Interval(11.0, 12.0, 13.0))
    ranking = rank(Predictions((sure("L4", 6, 0.01),), machine=machine, is_running=True))
    assert ranking_lines(ranking) == (
        "12.0 s (11.0 s to 13.0 s) left on this CPU: too short to move the run.",
        "For a longer run (early estimate): cheapest and fastest L4.",
    )
    two = Predictions((sure("L4", 6, 0.01), sure("H100", 1, 0.02)), machine=machine, is_running=True)
    assert ranking_lines(rank(two))[1].endswith("(early estimate): cheapest L4, fastest H100-SXM-80GB.")


def test_a_run_that_ends_before_a_machine_would_be_ready_is_not_worth_renting_one() -> None:
    """Five minutes, on one GPU as on many, for any recording GPU."""
    assert ranking_lines(rank(Predictions((sure("8xA100-SXM-80GB", 0.36, 0.001), sure("L4", 300, 0.06))))) == (
        "The run takes 360 ms, <$0.01 on 8xA100-SXM-80GB: too short to rent a machine.",
        "For a longer run: cheapest and fastest 8xA100-SXM-80GB.",
    )
    recorded_there = example_machine("CPU", 0.1, total=Interval(11.0, 12.0, 13.0))
    assert str(rank(Predictions((sure("L4", 6, 0.01),), machine=recorded_there))).startswith("The run takes 6.00 s")
    assert str(rank(Predictions((sure("L4", 301, 0.06),)))).startswith("Rent an L4")
    # A dear GPU may take less: the cheapest counts.
    slow_and_cheap = Predictions((sure("T4", 301, 0.06), sure("H100-SXM-80GB", 30, 0.2)))
    assert str(rank(slow_and_cheap)).startswith("Rent a T4")


def test_nobody_is_told_to_rent_for_a_few_minutes() -> None:
    machine = example_machine("CPU", 0.1, total=Interval(100.0, 120.0, 130.0), at_most=True)
    lines = ranking_lines(rank(Predictions((sure("L4", 60, 0.02),), machine=machine, is_running=True)))
    assert lines[0] == "2 min (1 min 40 s to 2 min 10 s) at most left on this CPU: too short to move the run."
    assert lines[1].startswith("For a longer run")
    assert len(lines) == 2


def test_nobody_is_told_to_rent_for_the_minutes_until_a_time_limit() -> None:
    # Under a time limit GPUs are compared by their steps; the remainder is the same on all of them.
    def lines(seconds: float) -> tuple[str, ...]:
        left = Interval(seconds, seconds, seconds)
        machine = example_machine("CPU", 0.1, total=left, is_cut_off=True)
        one = with_values(sure("L4", seconds, 0.02), iteration=Interval(0.01, 0.01, 0.01), is_cut_off=True)
        return ranking_lines(rank(Predictions((one,), machine=machine, is_running=True)))

    assert lines(120.0)[0] == "2 min left on this CPU: too short to move the run."
    assert lines(3600.0)[0].startswith("Rent an L4")


@pytest.mark.parametrize(("seconds", "first"), [(120.0, "After 16 steps: 2 min left on"), (400.0, "News.")])
def test_what_is_left_of_a_run_that_goes_on_is_said_once(seconds: float, first: str) -> None:
    machine = example_machine("CPU", 0.1, total=Interval(seconds, seconds, seconds))
    ranking = rank(Predictions((sure("L4", 60, 0.02),), machine=machine, is_running=True))
    lines = lines_of_run(ranking, when="After 16 steps: ", news="News.")
    assert lines[0].startswith(first)
    assert sum(" left on" in line for line in lines) == (seconds < 300)
    assert any(line.startswith("Rent an L4") for line in lines) == (seconds > 300)


def test_without_a_length_all_are_compared_with_their_waits_for_the_loader() -> None:
    # A step of 0.1 s with a wait of 0.25 s on the CPU, and of 0.01 s with the same wait on the L4: 0.35 to 0.26 s.
    machine = example_machine("CPU", 0.1, cycle_seconds=0.35)
    one = with_values(sure("L4", 6, 0.01), total=None, iteration=Interval(0.01, 0.01, 0.01), cycle_seconds=0.26)
    ranking = rank(Predictions((one,), machine=machine, is_running=True))
    assert ranking.in_use is not None
    assert ranking.fastest is not None
    assert ranking.in_use.seconds / ranking.fastest.seconds == pytest.approx(0.35 / 0.26)


def test_under_a_time_limit_gpus_are_ranked_by_the_steps_that_they_do() -> None:
    # All take the hour that is left: the T4 does a step in 2 s, the H100 in 0.1 s for ten times the price.
    slow, fast = (
        with_values(sure(name, 3600, cost), is_cut_off=True, iteration=Interval(step, step, step), cycle_seconds=step)
        for name, cost, step in (("T4", 0.35, 2.0), ("H100-SXM-80GB", 3.5, 0.1))
    )
    ranking = rank(Predictions((slow, fast)))
    assert ranking.per_iteration
    assert names(ranking)[:2] == ("H100-SXM-80GB", "H100-SXM-80GB")


def test_a_run_that_the_loader_or_the_host_bounds_is_told_what_would_help() -> None:
    waiting = rank(Predictions((sure("L4", 3600, 2.0, loader_seconds=0.1),)))
    assert waiting.limit == "loader"
    assert "The loader takes 100 ms per step on any GPU. Use more workers or preprocessed data" in str(waiting)
    launching = rank(Predictions((sure("L4", 3600, 2.0, host_seconds=0.06),)))
    assert launching.limit == "host"
    assert "Try a larger batch, torch.compile or CUDA graphs" in " ".join(str(launching).split())
    assert rank(Predictions((sure("L4", 3600, 2.0),))).limit is None


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ((), "L4"),
        (("T4",), "L4 or T4"),
        (("T4", "A10"), "L4, T4 or A10"),
        (("T4", "A10", "P4"), "L4, T4 or any of 2 others"),
    ],
)
def test_gpus_that_stand_for_each_other(others: tuple[str, ...], words: str) -> None:
    assert alternatives_text("L4", others) == words


@pytest.mark.parametrize(
    ("name", "word"),
    [
        *(("A100-SXM-40GB", "an"), ("T4", "a"), ("8xL4", ""), ("2x8xH100-SXM-80GB", ""), ("p4d.24xlarge", "a")),
        *(("Quadro-P4000", "a"), ("MyL4", "a"), ("MI300X", "an"), ("Own-L4", "an"), ("RTX-4090", "an"), ("GB200", "a")),
    ],
)
def test_a_name_takes_the_article_of_its_sound(name: str, word: str) -> None:
    assert with_article(name) == f"{word} {name}".strip()


@pytest.mark.parametrize("is_running", [True, False])
def test_a_rival_slower_than_the_machine_in_use_is_not_named_beside_the_cheapest(is_running: bool) -> None:
    """The A10G may as well be the cheapest, at twice the time of the machine in use."""
    offered = (sure("L40S", 3600, 2.00, spread=0.3), sure("A10G", 4 * 3600, 2.05, spread=0.3))
    assert rank(Predictions(offered)).perhaps_cheapest == ("A10G",)
    machine = example_machine("MI300X", 1.0, total=Interval(7200.0, 7200.0, 7200.0))
    ranking = rank(Predictions(offered, machine=machine, is_running=is_running))
    assert ranking.perhaps_cheapest == ()
    assert ranking_lines(ranking)[0].startswith("Rent an L40S (")


def test_a_prompt_and_a_notebook_show_what_print_shows() -> None:
    ranking = rank(FULL)
    assert (repr(ranking), repr(FULL)) == (str(ranking), str(FULL))
