"""Remaining time of a run, from facts of a trainer and measured times."""

from dataclasses import replace

import pytest

from lightning_predict.observe.forecast import STALL_SHARE, ForecastInputs, ForecastSchedule, RestOfRun
from lightning_predict.observe.remaining import Position, Validation
from lightning_predict.observe.run_observer import RunObserver
from tests.known import known

FACTS = ForecastInputs(  # 80 of 100 batches are left, 30 of them in this epoch
    position=Position(epoch=0, batches_done=20, batches_per_epoch=50, max_epochs=2, accumulation={0: 1}), workers=0
)


def clock(*, step: float = 1.0, wait: float = 0.0, batches: int = 20, check: float | None = None) -> RunObserver:
    seconds = 0.0
    made = RunObserver(lambda: seconds)
    if check is not None:
        made.on_validation_start(is_check=True)
        for _ in range(2):
            made.validation.on_batch_start()
            seconds += check
            made.validation.on_batch_end()
        made.on_validation_end()
    made.on_epoch_start()
    for _ in range(batches):
        seconds += wait
        made.on_batch_start()
        seconds += step
        made.on_batch_end()
    return made


def middle(rest: RestOfRun) -> float:
    return known(rest.forecast).middle


def test_remaining_steps_take_the_measured_time_until_a_limit() -> None:
    rest = RunObserver().rest(FACTS)
    assert (rest.counts.batches, rest.forecast, rest.run) == (80, None, None)
    assert rest.workload.training_iterations == 80
    rest = clock().rest(FACTS)
    assert middle(rest) == pytest.approx(80.0)
    assert known(rest.run).total_seconds == pytest.approx(80.0)
    assert rest.forecast is not None
    assert 60 < rest.forecast.low < 80 < rest.forecast.high < 120
    assert rest.steps == 20
    rest = clock().rest(replace(FACTS, time_limit_seconds=50.0))
    assert rest.forecast is not None
    assert (rest.forecast.middle, rest.forecast.high) == (50.0, 50.0)


def test_validation_and_waits_of_later_epochs_count_as_believed() -> None:
    run = clock(wait=0.5)
    waits = 30 * 0.5 + 50 * known(run.batch_times(batches_per_window=1)).later_wait.middle
    rest = run.rest(FACTS)
    assert middle(rest) == pytest.approx(80.0 + waits)
    loader = rest.workload.loader
    assert loader.seconds_per_batch == pytest.approx(waits / 80)
    assert loader.spread[0] < 1 < loader.spread[1]
    assert loader.is_reliable  # 19 waits
    assert not clock(wait=0.5, batches=10).rest(FACTS).workload.loader.is_reliable
    moments = ForecastSchedule(batches_per_window=4)
    due = [(batch, moments.has_started) for batch in range(1, 300) if moments.is_due(batch, 0.5 * batch)]
    # 60 batches of half a second are 30 s, before 16 windows of 4 are over.
    assert due == [*((2**power, False) for power in range(1, 6)), (60, True), (120, True), (240, True)]


def test_validation_counts_as_its_sanity_check_or_as_forward_passes() -> None:
    position = replace(FACTS.position, validation=Validation(batches=10, every_batches=50))
    rest = clock(check=0.5).rest(replace(FACTS, position=position, validation_batches=10))
    assert middle(rest) == pytest.approx(80.0 + 2 * 10 * 0.5)
    assert rest.end_seconds == pytest.approx(10 * 0.5)
    position = replace(FACTS.position, validation=Validation(batches=30, every_batches=50))
    rest, plain = clock().rest(replace(FACTS, position=position)), clock().rest(FACTS)
    assert middle(rest) == pytest.approx(80.0 + 2 * 30 / 3)
    assert rest.forecast is not None
    assert rest.forecast.low < known(plain.forecast).middle
    assert rest.forecast.high > 80.0 + 2 * 30


def test_workers_that_keep_up_only_hand_over_and_others_make_a_batch_in_a_step_and_its_wait() -> None:
    facts = replace(FACTS, has_workers=True, workers=2)
    assert not clock(wait=0.9 * STALL_SHARE).rest(facts).workload.loader.overlaps
    slow = clock(wait=0.6).rest(facts).workload.loader
    assert slow.overlaps
    assert 1.0 < slow.seconds_per_batch <= 1.6 + 1e-9


def test_batch_time_excludes_small_last_batches() -> None:
    # Epochs of 3 batches of 2 s and one of half the samples, which takes 1 s: 7 s. Of 8 epochs, 4 are left.
    seconds = 0.0
    run = RunObserver(lambda: seconds)
    for number in range(16):
        run.on_batch_start()
        seconds += 1.0 if number % 4 == 3 else 2.0
        run.on_batch_end()
    position = Position(
        epoch=3, batches_done=4, batches_per_epoch=4, max_epochs=8, accumulation={0: 1}, last_batch_share=0.5
    )
    assert middle(run.rest(ForecastInputs(position=position))) == pytest.approx(
        4 * 7.0, rel=0.02
    )  # the first is left out


def test_batches_of_validation_may_have_been_made_before_a_sanity_check_asked_for_them() -> None:
    # A batch of training comes each 1.5 s, including 0.5 s of waits: its workers are too slow. Validation of 10 batches
    # of 0.1 s takes 15 s if its own are as slow, and the check, which found two ready, says 1 s.
    position = replace(FACTS.position, validation=Validation(batches=10, every_batches=50))
    facts = replace(FACTS, position=position, has_workers=True, workers=1)
    run = clock(wait=0.5, check=0.1)
    hidden, shown = run.rest(replace(facts, validation_has_workers=True)), run.rest(facts)
    assert middle(hidden) - middle(shown) == pytest.approx(2 * 10 * (1.5 - 0.1))
    # Where training does not wait, theirs are as fast as that at least: the middle stays, and the high end admits it.
    run = clock(check=0.1)
    hidden, shown = run.rest(replace(facts, validation_has_workers=True)), run.rest(facts)
    assert middle(hidden) == middle(shown)
    assert known(hidden.forecast).high > middle(shown) + 2 * 10 * (1.0 - 0.1)
