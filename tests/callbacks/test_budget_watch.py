from __future__ import annotations

import pytest

from lightning_predict.callbacks.budget import CHECK_SECONDS, BudgetWatch, Ledger, hours_limit
from lightning_predict.callbacks.recorders import Pace
from lightning_predict.interval import Interval


class Run:
    """A watch over batches of one second each, and no wait between them."""

    def __init__(self, *, hours: float = 1.0, ranks_agree: bool = False) -> None:
        self.seconds = 0.0
        self.batches = 0
        ledger = Ledger(lambda: self.seconds)
        ledger.open(forget=True)
        self.watch = BudgetWatch(
            [hours_limit("hours", hours)],
            ledger,
            warmup_steps=2,
            clock=lambda: self.seconds,
            optimizer_steps_done=0,
            ranks_agree=ranks_agree,
        )

    def batch(self, *, accumulates: int = 1, steps: int = 1) -> str | None:
        self.watch.batch_starts()
        self.seconds += 1.0
        self.batches += 1
        if self.watch.batch_passes_quietly():
            return None
        return self.watch.batch_ends(optimizer_steps_done=steps * (self.batches // accumulates))


def seconds(middle: float) -> Interval[float]:
    """A forecast of which all ends are alike."""
    return Interval(middle, middle, middle)


def test_alone_it_asks_after_the_warmup_and_at_every_window_once_it_gets_narrow() -> None:
    # 80 % are 8 s, and two windows less are 6; the sixth batch may lie within a window.
    run = Run(hours=10 / 3600)
    assert [run.batch() for _ in range(9)] == [None, "forecast", None, None, None, None, "use", "use", "use"]


def test_a_batch_that_wakes_it_within_a_window_is_not_the_end_of_one() -> None:
    # Windows of 2 batches: 80 % are 16 s, less two windows 12; at 13 s the clock is looked at within a window.
    run = Run(hours=20 / 3600)
    for _ in range(4):
        run.batch(accumulates=2)
    run.seconds += 0.5
    questions = [run.batch(accumulates=2) for _ in range(12)]
    assert [number for number, question in enumerate(questions, start=5) if question] == [14, 16]


def test_once_a_minute_it_asks_for_another_forecast() -> None:
    run = Run()
    questions = [run.batch() for _ in range(2 + 2 * 60)]
    # Due at 2 + 60 s, at the next window; until somebody asks for the forecast.
    assert [number for number, question in enumerate(questions, start=1) if question == "use"] == list(range(63, 123))
    run, asked = Run(), []
    for number in range(1, 126):
        if run.batch() == "use":
            run.watch.judge_forecast(seconds(200.0 - number))
            asked.append(number)
    assert asked == [63, 63 + 60 + 1]


def test_never_within_a_window() -> None:
    run = Run(hours=5 / 3600)
    questions = [run.batch(accumulates=2) for _ in range(8)]
    assert questions == [None, None, None, "forecast", None, "use", None, "use"]


def test_several_ranks_agree_every_half_minute() -> None:
    run = Run(ranks_agree=True)
    questions = [run.batch() for _ in range(2 + 2 * int(CHECK_SECONDS))]
    assert questions[1] == "forecast"
    assert [number for number, question in enumerate(questions, start=1) if question == "use"] == [2 + 30, 2 + 60]


def test_what_is_left_is_judged_with_what_was_used() -> None:
    run = Run(hours=10 / 3600)
    run.batch()
    run.batch()
    assert run.watch.judge_forecast(seconds(8.0)).action == "go on"
    assert run.watch.judge_forecast(seconds(9.0)).action == "stop"
    assert run.watch.forecast == seconds(9.0)


def test_without_a_forecast_there_is_nothing_to_judge_but_the_use() -> None:
    run = Run(hours=2 / 3600)
    run.batch()
    run.batch()
    assert run.watch.judge_forecast(None).action == "go on"
    assert run.watch.judge_use().reason == "2.00 s of 2.00 s (hours) are used"
    assert run.watch.forecast is None


def test_batches_of_the_warmup_are_timed_without_those_that_compile() -> None:
    run = Run()
    run.seconds += 30.0
    run.watch.batch_starts()
    run.seconds += 30.0
    run.watch.batch_ends(optimizer_steps_done=1)
    run.batches += 1
    run.batch()
    assert run.watch.batch_seconds == (1.0,)


@pytest.mark.parametrize(
    ("is_manual", "pace"), [(False, Pace()), (True, Pace(batches_per_window=2, steps_per_window=3))]
)
def test_the_pace_is_seen_in_manual_optimization(is_manual: bool, pace: Pace) -> None:
    run = Run()
    for _ in range(4):
        run.batch(accumulates=2, steps=3)
    assert run.watch.pace(is_manual=is_manual) == pace
