"""The ranking: cheapest, fastest, in time; nothing that does not fit; nothing invented where little is known."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.interval import NOTHING, Interval
from lightning_predict.cost.prediction import MachineInUse, Prediction
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import (
    Ranking,
    alternatives_text,
    lines_of_run,
    rank,
    ranking_lines,
    ranking_markdown,
    with_article,
)
from lightning_predict.testing import example_machine, with_values
from lightning_predict.timeline.verdict import Verdict
from tests.known import known
from tests.reports.example import AT_MOST, BARE, FULL, GIBIBYTE, H100, K80, T4, TEN, with_total


def names(ranking: Ranking) -> tuple[str | None, ...]:
    best = (ranking.cheapest, ranking.fastest, ranking.within_deadline)
    return tuple(None if ranked is None else ranked.gpu for ranked in best)


def lines_of(*predictions: Prediction, deadline_hours: float | None = None, **values: Any) -> str:
    """The sentences of a ranking as one line."""
    ranking = rank(Predictions(predictions, **values), deadline_hours=deadline_hours)
    return " ".join(" ".join(ranking_lines(ranking, width=200)).split())


def test_cheapest_and_fastest_gpu_of_those_that_fit() -> None:
    # T4: 3.2 h, $1.12. H100: 0.4 h, $1.196. K80 does not fit.
    ranking = rank(FULL, deadline_hours=1)
    assert [ranked.gpu for ranked in ranking.frontier] == ["H100-SXM-80GB", "T4"]
    assert ranking.as_dict() == {
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
    assert (repr(ranking), repr(FULL)) == (str(ranking), str(FULL))


@pytest.mark.parametrize(
    ("hours", "best"),
    [(4.0, "T4"), (3.2, "T4"), (3.19, "H100-SXM-80GB"), (0.4, "H100-SXM-80GB"), (0.39, None)],
)
def test_cheapest_gpu_within_deadline(hours: float, best: str | None) -> None:
    assert names(rank(FULL, deadline_hours=hours))[2] == best


@pytest.mark.parametrize("hours", [0.0, -1.0, float("nan"), float("inf")])
def test_deadline_must_be_above_zero(hours: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"deadline_hours=.* is not a deadline; expected hours above 0"):
        rank(FULL, deadline_hours=hours)


@pytest.mark.parametrize(
    ("fresh_days", "today", "age"),
    [
        (60, "2026-11-30", ""),  # 60 days after 2026-10-01
        (60, "2026-12-01", ", price 61 days old"),
        (14, "2026-10-15", ""),
        (14, "2026-10-16", ", price 15 days old"),
        (60, "2028-06-01", ", price 20 months old"),
    ],
)
def test_recommendation_states_age_of_old_price(fresh_days: int, today: str, age: str) -> None:
    t4, h100 = (
        replace(row, price=replace(row.price, priced_on="2026-10-01", fresh_days=fresh_days)) for row in (T4, H100)
    )
    text = lines_of(h100, t4, K80, made_on=today, used_gpu="T4", deadline_hours=1)
    assert f"($0.35/h, Google n1-standard-4 (2026-10-01){age}): cheapest" in text
    assert f"Within 1 h: H100-SXM-80GB, 24 min, $1.20{age}." in text


def test_gpu_without_enough_memory_is_not_recommended() -> None:
    tempting = with_values(with_total(K80, 1.0), cost_usd=0.001, usd_per_hour=3.6)
    ranking = rank(Predictions((tempting, T4)), deadline_hours=10)
    assert names(ranking) == ("T4", "T4", "T4")
    assert "K80" not in [ranked.gpu for ranked in ranking.frontier]
    nowhere = rank(Predictions((K80,)), deadline_hours=1)
    assert names(nowhere) == (None, None, None)
    assert ranking_lines(nowhere) == (
        "Within 1 h: none.",
        "No GPU can be recommended: the run does not fit on any of them.",
        "Not recommended (does not fit): K80.",
    )


def test_unknown_price_or_memory_leaves_the_fastest_gpu_with_a_remark() -> None:
    free = Predictions(tuple(with_values(row, usd_per_hour=None, cost_usd=None, offer=None) for row in (T4, H100)))
    ranking = rank(free, deadline_hours=1)
    assert names(ranking) == (None, "H100-SXM-80GB", "H100-SXM-80GB")
    assert (ranking.without_price, ranking.frontier) == (("T4", "H100-SXM-80GB"), ())
    assert "Memory unknown: whether the run fits was not checked." in ranking_lines(rank(BARE))
    assert not rank(FULL).memory_unknown
    narrow = with_values(T4, memory_fit="tight", memory_free_bytes=0.25 * GIBIBYTE, usable_bytes=8.06 * GIBIBYTE)
    ranking = rank(Predictions((narrow, H100)))
    assert names(ranking) == ("T4", "H100-SXM-80GB", None)
    assert ranking.as_dict()["tight"] == ["T4"]
    assert "Memory is tight on T4: run a few steps before you rent for long." in ranking_lines(ranking)


def test_unknown_lengths_and_time_limits_compare_steps_with_waits() -> None:
    each = [with_values(row, total=None, cost_usd=None, cycle_seconds=row.iteration_seconds) for row in (T4, H100)]
    ranking = rank(Predictions(tuple(each)), deadline_hours=1)
    assert ranking.per_iteration
    assert names(ranking) == ("T4", "H100-SXM-80GB", None)
    assert known(ranking.cheapest).cost_usd == pytest.approx(0.048 / 3600 * 0.35)  # seconds x $ per hour
    # A thousand iterations: 48 s, and 48 / 3600 h x $0.35.
    assert ranking_lines(ranking)[0].endswith(": cheapest (48.0 s, $0.00467 for 1,000 steps).")
    # 3,600 s of steps of 48 ms on the cheapest, and of 6 ms on the fastest.
    assert "Within 1 h: 75,000 steps on a T4 or 600,000 steps on an H100-SXM-80GB." in ranking_lines(ranking)
    # A step of 0.1 s with a wait of 0.25 s on the CPU, and of 0.01 s with the same wait on the L4: 0.35 to 0.26 s.
    in_use = example_machine("CPU", 0.1, cycle_seconds=0.35)
    row = with_values(sure("L4", 6, 0.01), total=None, iteration=Interval(0.01, 0.01, 0.01), cycle_seconds=0.26)
    ranking = rank(Predictions((row,), machine=in_use, is_running=True))
    assert known(ranking.in_use).seconds / known(ranking.fastest).seconds == pytest.approx(0.35 / 0.26)
    # All take the hour that is left: the T4 does a step in 2 s, the H100 in 0.1 s for ten times the price.
    slow, fast = (
        with_values(sure(name, 3600, cost), is_cut_off=True, iteration=Interval(step, step, step), cycle_seconds=step)
        for name, cost, step in (("T4", 0.35, 2.0), ("H100-SXM-80GB", 3.5, 0.1))
    )
    ranking = rank(Predictions((slow, fast)))
    assert ranking.per_iteration
    assert names(ranking)[:2] == ("H100-SXM-80GB", "H100-SXM-80GB")


def test_deadlines_that_are_too_short_or_may_be_missed_say_so() -> None:
    # 240,000 steps take 1,440 s on the H100: 360 s are 60,000 steps, or 6 epochs of 9,000 steps.
    lines = ranking_lines(rank(FULL, deadline_hours=0.1))
    end = "on an H100-SXM-80GB; the whole run takes 24 min on it, the fastest."
    assert f"Within 6 min: 60,000 steps {end}" in lines
    epochs = tuple(with_values(row, epoch_iterations=9000) for row in FULL.values())
    assert f"Within 6 min: 6 epochs (54,000 steps) {end}" in ranking_lines(
        rank(Predictions(epochs), deadline_hours=0.1)
    )
    # T4: 10,800 to 12,480 s; 3.3 h are 11,880 s.
    text = "\n".join(ranking_lines(rank(FULL, deadline_hours=3.3)))
    assert "Within 3 h 18 min: T4, 3 h 12 min, $1.12; may take up to 3 h 28 min." in text
    assert "may take up to" not in "\n".join(ranking_lines(rank(FULL, deadline_hours=3.5)))


def test_rankings_equal_their_golden_texts(golden: Callable[[str, str], None]) -> None:
    texts = []
    for name, predictions in {"full": FULL, "bare": BARE, "at_most": AT_MOST, "ten": TEN}.items():
        ranking = rank(predictions, deadline_hours=3.3)
        lines = ranking_lines(ranking)
        assert max(map(len, lines)) <= 120
        texts.append(f"=== {name}\n" + "\n".join(lines) + "\n\n" + ranking_markdown(ranking))
    golden("ranking.txt", "\n\n".join(texts))


runs = st.builds(
    with_values,
    st.sampled_from([T4, H100, K80]),
    gpu=st.from_regex(r"[A-Z][a-z0-9]{1,8}", fullmatch=True),
    total=st.builds(Interval, st.just(10_800.0), st.floats(1, 1e7), st.just(12_480.0)),
    cost_usd=st.none() | st.floats(0.01, 1e5),
    memory_fit=st.sampled_from(["fits", "exceeds", None]),
)


@given(st.lists(runs, min_size=1, max_size=8, unique_by=lambda row: row.gpu), st.floats(0.01, 3000))
def test_no_fitting_gpu_beats_the_recommended_ones(predictions: list[Prediction], hours: float) -> None:
    ranking = rank(Predictions(tuple(predictions)), deadline_hours=hours)
    fitting = [row for row in predictions if row.fits is not False]
    priced = [row for row in fitting if row.cost_usd is not None]
    assert (ranking.fastest is None) == (not fitting)
    if ranking.fastest is not None:
        assert ranking.fastest.seconds <= 1.01 * min(row.total_seconds or 0 for row in fitting)
    assert (ranking.cheapest is None) == (not priced)
    if ranking.cheapest is not None:
        assert (ranking.cheapest.cost_usd or 0) <= 1.01 * min(row.cost_usd or 0 for row in priced)
    if ranking.within_deadline is not None:
        assert ranking.within_deadline.seconds <= hours * 3600
    on_it = {ranked.gpu for ranked in ranking.frontier}
    for row in priced:
        beaten = any(
            other.seconds <= 1.01 * (row.total_seconds or 0) and (other.cost_usd or 0) <= 1.01 * (row.cost_usd or 0)
            for other in ranking.frontier
            if other.gpu != row.gpu
        )
        assert beaten or row.gpu in on_it
    for first, second in zip(ranking.frontier, ranking.frontier[1:], strict=False):
        assert first.seconds < second.seconds
        assert (first.cost_usd or 0) > 1.01 * (second.cost_usd or 0)


def run(name: str, seconds: float, cost: float | None) -> Prediction:
    return with_values(with_total(T4, seconds), gpu=name, cost_usd=cost, usd_per_hour=cost)


@pytest.mark.parametrize(
    ("runs", "cheapest", "fastest", "frontier"),
    [
        # 1,000 to 1,010 s are equal, 1,011 s are not.
        (
            [("B200", 1000, 4.0), ("H200", 1005, 2.0), ("L40S", 1011, 1.0), ("H100", 1010, 3.0)],
            *("L40S", "H200", ["H200", "L40S"]),
        ),
        ([("A", 1000, 2.0), ("B", 1000, 2.0)], "A", "A", ["A"]),  # equal in both: the first
        ([("A", 1000, None), ("B", 1009, 2.0)], "B", "B", ["B"]),  # a GPU without a price comes last
        # $1.000 and $1.009 are equal, and half of the time is not.
        ([("Slow", 2000, 1.0), ("Quick", 1000, 1.009)], "Quick", "Quick", ["Quick"]),
        ([("Dear", 1000, 1.009), ("Cheap", 1001, 1.0)], "Cheap", "Cheap", ["Cheap"]),  # as fast, too: the cheaper
        ([("Dear", 1000, 2.0), ("Cheap", 1000, 1.0)], "Cheap", "Cheap", ["Cheap"]),
    ],
)
def test_differences_below_1_percent_are_ties(
    runs: list[tuple[str, float, float | None]], cheapest: str, fastest: str, frontier: list[str]
) -> None:
    ranking = rank(Predictions(tuple(run(*values) for values in runs)))
    assert names(ranking)[:2] == (cheapest, fastest)
    assert [ranked.gpu for ranked in ranking.frontier] == frontier
    assert ranking.as_fast == (("B200", "H100") if len(runs) > 2 else ranking.as_fast)


def sure(name: str, seconds: float, cost: float | None, spread: float = 0.01, **values: Any) -> Prediction:
    """A run whose 90 % interval is as wide as `spread` on either side."""
    total = Interval(seconds / (1 + spread), seconds, seconds * (1 + spread))
    return with_values(T4, layout=name, total=total, cost_usd=cost, usd_per_hour=cost, measured_seconds=None, **values)


@pytest.mark.parametrize(
    ("runs", "rivals"),
    [
        # Both 30 % wide: 5 % apart either may be the cheaper. Half as dear is cheaper for certain.
        ([("L40S", 1000, 1.00, 0.3), ("A10G", 2000, 1.05, 0.3), ("T4", 4000, 2.00, 0.3)], ("A10G",)),
        ([("L40S", 1000, 1.00, 0.3), ("T4", 4000, 2.00, 0.3)], ()),
        ([("L40S", 1000, 1.00), ("A10G", 2000, 1.05)], ()),  # the same 5 %, known to 1 %
        # Both spread by s = ln(1.3 ** 2) / 3.29 = 0.1595, together 0.2256; a third is 0.4307 standard deviations:
        # exp(0.0972) = 1.102.
        ([("L40S", 1000, 1.0, 0.3), ("A10G", 1500, 1.10, 0.3)], ("A10G",)),
        ([("L40S", 1000, 1.0, 0.3), ("A10G", 1500, 1.105, 0.3)], ()),
    ],
)
def test_rival_is_named_if_cheaper_in_a_third_of_cases(
    runs: list[tuple[str, float, float, float]], rivals: tuple[str, ...]
) -> None:
    ranking = rank(Predictions(tuple(sure(*values) for values in runs)))
    assert (names(ranking)[0], ranking.perhaps_cheapest) == ("L40S", rivals)
    dollars = runs[1][2]
    both = "both about $1.00" if dollars == 1.0 else f"about $1.00 and ${dollars:.2f}"
    sentence = f"Rent an L40S ($1.00/h) or an A10G (${dollars:.2f}/h): {both}, the cheapest. L40S takes 16 min 40 s."
    assert str(ranking).startswith(sentence) == bool(rivals)


@pytest.mark.parametrize(("third", "words"), [(1.0, "all about $1.00"), (1.05, "about $1.00 to $1.05")])
def test_costs_of_unnamed_rivals_are_in_range(third: float, words: str) -> None:
    runs = (("L40S", 1000, 1.0), ("A10G", 2000, 1.0), ("T4", 4000, third))
    text = lines_of(*(sure(*values, spread=0.3) for values in runs))
    assert f"or an A10G ($1.00/h) or another: {words}, the cheapest." in text


def test_rival_is_not_named_for_doubts_that_all_gpus_share() -> None:
    # Pauses of 100 to 900 s on either GPU: 10 % between the GPUs is as certain as without the pauses.
    pauses = Interval(100.0, 500.0, 900.0)
    total = Interval(600.0, 1000.0, 1400.0)
    row, other = (
        with_values(sure(name, 1000, cost), total=total, beside=pauses) for name, cost in (("L40S", 1.0), ("A10G", 1.1))
    )
    assert rank(Predictions((row, other))).perhaps_cheapest == ()
    assert rank(Predictions((with_values(row, beside=NOTHING), other))).perhaps_cheapest == ("A10G",)


def test_faster_gpus_state_saved_time_and_extra_cost() -> None:
    fast, middling, cheap = sure("H100-SXM-80GB", 3600, 3.0), sure("L40S", 7200, 2.5), sure("L4", 14_400, 2.0)
    text = lines_of(fast, middling, cheap)
    assert text.startswith("Rent an L4 ($2.00/h, ")
    assert "L40S is 2 h sooner for $0.50 more. H100-SXM-80GB is 3 h sooner for $1.00 more." in text
    assert "sooner" not in lines_of(sure("L40S", 13_968, 2.5), cheap)  # 3 %
    perhaps = sure("A100-SXM-80GB", 3700, 9.0, spread=0.3)  # may be the fastest, but not for $1.00 more
    assert ". H100-SXM-80GB is 3 h sooner for $1.00 more." in lines_of(fast, middling, cheap, perhaps)


def machine(seconds: float, spread: float = 0.0, name: str = "CPU", **values: Any) -> MachineInUse:
    total = Interval(seconds - spread, seconds, seconds + spread)
    return example_machine(name, 0.1, total=total, **values)


def test_recommended_gpu_is_compared_with_machine_in_use() -> None:
    a100, l4 = sure("A100-SXM-80GB", 3600, 2.0), sure("L4", 14_400, 5.0)
    running = lines_of(a100, l4, used_gpu="L4", is_running=True)
    assert running.startswith("Rent an A100-SXM-80GB (")
    assert "cheapest (1 h, $2.00). It is 4 times as fast as this L4." in running
    stays = lines_of(sure("A100-SXM-80GB", 3600, 9.0), l4, used_gpu="L4", is_running=True)
    assert stays.startswith("Stay on this L4: no GPU is cheaper (4 h, $5.00).")
    asked = lines_of(a100, l4, machine=machine(36_000.0), is_running=True)
    assert "It is 10 times as fast as this CPU." in asked
    slower = lines_of(a100, l4, machine=machine(1800.0), is_running=True)
    assert "It takes 2 times as long as this CPU. Offer: Google n1-standard-4 (2026-10-01). It saves no time." in slower


@pytest.mark.parametrize("is_running", [True, False])
@given(
    hours=st.lists(st.floats(0.5, 50), min_size=3, max_size=3),
    dollars=st.lists(st.floats(0.1, 100), min_size=3, max_size=3),
    own=st.floats(0.5, 50),
)
def test_gpu_slower_than_machine_in_use_is_not_recommended(
    is_running: bool, hours: list[float], dollars: list[float], own: float
) -> None:
    offered = {
        name: sure(name, 3600 * time, cost, spread=0.0)
        for name, time, cost in zip(("T4", "L4", "A100-SXM-80GB"), hours, dollars, strict=True)
    }
    in_use = machine(3600 * own, name="MI300X")
    ranking = rank(Predictions(tuple(offered.values()), machine=in_use, is_running=is_running))
    lines = ranking_lines(ranking)
    # The MI300X's price is unknown: a GPU that is as fast may cost more.
    assert lines[0].startswith("Rent ") == (1.05 * known(ranking.cheapest).seconds <= 3600 * own)
    sooner = " ".join(line for line in lines if " sooner for " in line)
    assert not any(
        f"{name} is" in sooner for name, row in offered.items() if (row.total_seconds or 0) > 1.01 * 3600 * own
    )


@pytest.mark.parametrize(
    ("runs", "in_use", "is_running", "lines"),
    [
        (
            [("L4", 6, 0.01)],
            machine(12.0, 1.0),
            True,
            [
                "12.0 s (11.0 s to 13.0 s) left on this CPU: too short to move the run.",
                "For a longer run (early estimate): cheapest and fastest L4.",
            ],
        ),
        (
            [("L4", 6, 0.01), ("H100-SXM-80GB", 1, 0.02)],
            machine(120.0, 10.0, at_most=True),
            True,
            [
                "2 min (1 min 50 s to 2 min 10 s) at most left on this CPU: too short to move the run.",
                "For a longer run (early estimate): cheapest L4, fastest H100-SXM-80GB.",
            ],
        ),
        (
            [("8xA100-SXM-80GB", 0.36, 0.001), ("L4", 300, 0.06)],
            None,
            False,
            [
                "The run takes 360 ms, <$0.01 on 8xA100-SXM-80GB: too short to rent a machine.",
                "For a longer run: cheapest and fastest 8xA100-SXM-80GB.",
            ],
        ),
        ([("L4", 6, 0.01)], machine(12.0, 1.0), False, ["The run takes 6.00 s"]),  # recorded on this machine
        ([("L4", 301, 0.06)], None, False, ["Rent an L4"]),
        ([("T4", 301, 0.06), ("H100-SXM-80GB", 30, 0.2)], None, False, ["Rent a T4"]),  # the cheapest counts
    ],
)
def test_short_run_is_not_worth_renting(
    runs: list[tuple[str, float, float]], in_use: MachineInUse | None, is_running: bool, lines: list[str]
) -> None:
    """At most five minutes, the time until a machine is ready."""
    offered = tuple(sure(*values) for values in runs)
    said = ranking_lines(rank(Predictions(offered, machine=in_use, is_running=is_running)))
    assert all(line.startswith(start) for line, start in zip(said, lines, strict=False))
    assert len(said) == len(lines) or len(lines) == 1


@pytest.mark.parametrize(("seconds", "start"), [(120.0, "2 min left on this CPU: too short"), (3600.0, "Rent an L4")])
def test_time_limit_within_minutes_is_not_worth_renting(seconds: float, start: str) -> None:
    # Under a time limit GPUs are compared by their steps; the remainder is the same on all of them.
    row = with_values(sure("L4", seconds, 0.02), iteration=Interval(0.01, 0.01, 0.01), is_cut_off=True)
    in_use = machine(seconds, is_cut_off=True)
    assert ranking_lines(rank(Predictions((row,), machine=in_use, is_running=True)))[0].startswith(start)


@pytest.mark.parametrize(("seconds", "first"), [(120.0, "After 16 steps: 2 min left on"), (400.0, "News.")])
def test_remaining_time_of_running_fit_is_stated_once(seconds: float, first: str) -> None:
    ranking = rank(Predictions((sure("L4", 60, 0.02),), machine=machine(seconds), is_running=True))
    lines = lines_of_run(ranking, when="After 16 steps: ", news="News.")
    assert lines[0].startswith(first)
    assert sum(" left on" in line for line in lines) == (seconds < 300)
    assert any(line.startswith("Rent an L4") for line in lines) == (seconds > 300)


@pytest.mark.parametrize(
    ("values", "limit", "words"),
    [
        ({"loader_seconds": 0.1}, "loader", "The loader takes 100 ms per step on any GPU. Use more workers or"),
        ({"host_seconds": 0.06}, "host", "Try a larger batch, torch.compile or CUDA graphs"),
        (
            {"verdict": Verdict(bound_by="wait", idle_share=0.9, gain=0.0, critical_path={})},
            "wait",
            "On L4 the step mostly waits for something outside torch (an environment, a server), on any",
        ),
        ({}, None, "Rent an L4"),
    ],
)
def test_bottleneck_other_than_gpu_has_a_remedy(values: dict[str, Any], limit: str | None, words: str) -> None:
    row = sure("L4", 3600, 2.0, **values)
    assert rank(Predictions((row,))).limit == limit
    assert words in lines_of(row)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ((), "L4"),
        (("T4",), "L4 or T4"),
        (("T4", "A10"), "L4, T4 or A10"),
        (("T4", "A10", "P4"), "L4, T4 or any of 2 others"),
    ],
)
def test_alternatives_are_listed_or_counted(others: tuple[str, ...], words: str) -> None:
    assert alternatives_text("L4", others) == words


@pytest.mark.parametrize(
    ("name", "word"),
    [
        *(("A100-SXM-40GB", "an"), ("T4", "a"), ("8xL4", ""), ("2x8xH100-SXM-80GB", ""), ("p4d.24xlarge", "a")),
        *(("Quadro-P4000", "a"), ("MyL4", "a"), ("MI300X", "an"), ("Own-L4", "an"), ("RTX-4090", "an"), ("GB200", "a")),
    ],
)
def test_article_follows_pronunciation(name: str, word: str) -> None:
    assert with_article(name) == f"{word} {name}".strip()


@pytest.mark.parametrize("is_running", [True, False])
def test_rival_slower_than_machine_in_use_is_not_named(is_running: bool) -> None:
    """The A10G may as well be the cheapest, at twice the time of the machine in use."""
    offered = (sure("L40S", 3600, 2.00, spread=0.3), sure("A10G", 4 * 3600, 2.05, spread=0.3))
    assert rank(Predictions(offered)).perhaps_cheapest == ("A10G",)
    ranking = rank(Predictions(offered, machine=machine(7200.0, name="MI300X"), is_running=is_running))
    assert ranking.perhaps_cheapest == ()
    assert ranking_lines(ranking)[0].startswith("Rent an L40S (")
