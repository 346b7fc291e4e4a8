"""The clock of a run, told of hooks at times of the tests' own."""

from __future__ import annotations

import pytest
import torch

from lightning_predict.callbacks.run_clock import BLOCKS, Blocks, RunClock, Tempo, device_clock, mean_without_accident
from lightning_predict.interval import Interval


class Fit:
    """A clock and the hooks of a fit, in the order in which a Trainer calls them."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.device_readings = 0
        self.clock = RunClock(lambda: self.seconds, self.device_clock)

    def device_clock(self) -> float:
        self.device_readings += 1
        return self.seconds

    def passes(self, seconds: float) -> None:
        self.seconds += seconds

    def batch(self, seconds: float = 1.0, *, wait: float = 0.25) -> bool:
        self.passes(wait)
        self.clock.batch_starts()
        self.passes(seconds)
        return self.clock.batch_ends()

    def validate(self, batches: list[float], *, start: float = 0.0, wait: float = 0.0, is_check: bool = False) -> None:
        if is_check:
            self.clock.sanity_check_starts()
        self.clock.validation_starts(is_check=is_check)
        self.passes(start)
        for number, seconds in enumerate(batches):
            self.passes(wait if number else 0.0)
            self.clock.validation_batch_starts()
            self.passes(seconds)
            self.clock.validation_batch_ends()
        self.clock.validation_ends()

    def tempo(self, *, overlaps: bool = False) -> Tempo:
        found = self.clock.tempo(batches_per_window=1, overlaps=overlaps)
        assert found is not None
        return found


def test_before_a_step_was_timed_nothing_is_known() -> None:
    assert RunClock().tempo(batches_per_window=1) is None
    assert RunClock().validation_tempo() is None


def test_of_few_early_steps_the_first_is_left_out_and_the_lower_median_counts() -> None:
    fit = Fit()
    fit.clock.settle((9.0, 3.0, 2.0), batches_per_window=1)
    assert fit.tempo() == Tempo(step=Interval(2.0, 2.0, 3.0), wait_seconds=0.0)
    fit.clock.settle((9.0,), batches_per_window=1)
    assert fit.tempo().step_seconds == 9.0  # There is no other.


def test_a_batch_takes_its_share_of_a_window() -> None:
    fit = Fit()
    fit.clock.settle((8.0, 4.0), batches_per_window=4)
    assert fit.tempo().step_seconds == 1.0


def test_steps_since_count_once_there_are_eight_without_the_first_quarter() -> None:
    fit = Fit()
    fit.clock.settle((5.0, 5.0), batches_per_window=1)
    for _ in range(7):
        fit.batch(2.0)
    assert fit.tempo().step_seconds == 5.0
    fit.batch(1.0)
    # The first two of eight are left out, 5 x 2 s and 1 s remain.
    assert fit.tempo().step_seconds == pytest.approx(11 / 6)


def test_one_long_step_is_an_accident_and_two_are_not() -> None:
    assert mean_without_accident([1.0, 1.0, 9.0, 1.0]) == 1.0
    assert mean_without_accident([1.0, 9.0, 9.0, 1.0]) == 5.0
    assert mean_without_accident([3.0]) == 3.0


def test_a_prediction_is_no_wait_and_what_workers_have_in_store_after_it_neither() -> None:
    fit = Fit()
    fit.clock.settle((1.0, 1.0), batches_per_window=1, buffered=4)
    fit.passes(100.0)  # the prediction
    fit.batch(wait=0.0)
    for _ in range(4):
        fit.batch(wait=0.0)
    for _ in range(20):
        fit.batch(wait=0.5)
    assert fit.tempo(overlaps=True).wait_seconds == 0.5


def test_of_the_first_waits_for_workers_the_later_half_counts() -> None:
    # They hand over what they made while they started.
    fit = Fit()
    for wait in (0.0, 0.0, 0.0, 0.4, 0.6):
        fit.batch(wait=wait)
    fit.clock.settle((1.0, 1.0), batches_per_window=1)
    assert fit.tempo(overlaps=True).wait_seconds == pytest.approx((0.4 + 0.6) / 2)
    assert fit.tempo().wait_seconds == pytest.approx((0.4 + 0.6) / 4)  # The first batch was not waited for.


def test_on_a_gpu_a_wait_that_the_device_works_through_is_not_added() -> None:
    # Steps of 1 s for the device; the host is done with one after 0.2 s, waits 0.3 s for the loader, and then for
    # the device: in the 1.0 s from batch to batch, the wait adds nothing.
    fit = Fit()
    fit.clock.settle((1.0, 1.0), batches_per_window=1, is_asynchronous=True)
    for _ in range(40):
        fit.batch(0.7, wait=0.3)
    assert fit.tempo().step_seconds == pytest.approx(1.0)
    assert fit.tempo().wait_seconds == pytest.approx(0.0)


def test_after_some_steps_a_renewal_is_due_and_the_device_is_waited_for() -> None:
    fit = Fit()
    for _ in range(4):
        fit.batch()
    fit.clock.settle((2.0, 2.0), batches_per_window=2, marks=(1, 3, 5))  # the first has passed
    due = [fit.batch() for _ in range(8)]
    assert [number for number, is_due in enumerate(due, start=5) if is_due] == [6, 10]
    assert fit.device_readings == 2


def test_two_callbacks_tell_it_as_one_does() -> None:
    fit = Fit()
    fit.clock.settle((1.0, 1.0), batches_per_window=1)
    for _ in range(10):
        fit.passes(0.5)
        fit.clock.batch_starts()
        fit.passes(0.1)
        fit.clock.batch_starts()
        fit.passes(0.9)
        fit.clock.batch_ends()
        fit.passes(0.1)
        fit.clock.batch_ends()
    assert fit.clock.batches == 10
    assert fit.tempo().step_seconds == pytest.approx(1.0)
    assert fit.tempo().wait_seconds == pytest.approx(0.6)


def test_an_epoch_costs_what_lies_between_beside_validation_checkpoints_and_the_wait() -> None:
    fit, caller = Fit(), object()
    fit.clock.settle((1.0, 1.0), batches_per_window=1)
    for _ in range(10):
        fit.batch()
    fit.validate([2.0, 2.0], start=7.0)
    fit.clock.epoch_ends()
    fit.clock.checkpoint_is_collected(caller)
    fit.clock.checkpoint_is_collected(object())  # The same file, told by another callback.
    fit.passes(30.0)
    fit.clock.epoch_starts()
    fit.passes(4.0)  # Workers start.
    fit.passes(0.25)
    assert fit.clock.batch_starts()
    assert fit.clock.epoch_seconds(starts_workers=False) == pytest.approx(4.0)
    assert fit.clock.checkpoints.seconds == 30.0
    assert fit.tempo().wait_seconds == 0.25


def test_before_an_epoch_has_ended_the_first_start_of_workers_tells_of_the_next() -> None:
    fit = Fit()
    fit.validate([1.0, 1.0], is_check=True)
    fit.passes(3.0)  # The loader's workers start before training does.
    fit.clock.epoch_starts()
    fit.batch(wait=1.0)
    fit.batch(wait=0.5)
    assert fit.clock.epoch_seconds(starts_workers=True) == pytest.approx(3.0 + 1.0 - 0.5)
    assert fit.clock.epoch_seconds(starts_workers=False) == 0.0


def test_the_sanity_check_gives_a_batch_of_validation_without_its_first_or_a_recorded_one() -> None:
    fit = Fit()
    fit.validate([9.0, 2.0], start=5.0, wait=0.5, is_check=True)
    found = fit.clock.validation_tempo()
    assert found is not None
    assert (found.start_seconds, found.wait_seconds, found.batch_seconds) == (5.0, 0.5, 2.0)

    fit = Fit()
    fit.clock.validation_starts(is_check=True)
    for seconds in (6.0, 9.0):
        fit.clock.validation_batch_starts()
        if seconds == 9.0:
            fit.clock.validation_batch_is_recorded()
        fit.passes(seconds)
        fit.clock.validation_batch_ends()
    fit.clock.validation_ends()
    found = fit.clock.validation_tempo()
    assert found is not None
    assert found.batch_seconds == 6.0  # Both are too long; the shorter is nearer.


def test_validation_runs_are_summed_up_whole() -> None:
    fit = Fit()
    fit.clock.settle((1.0, 1.0), batches_per_window=1)
    fit.validate([9.0, 9.0], is_check=True)
    for batches in ([2.0, 2.0], [4.0, 4.0]):
        fit.batch()
        fit.passes(1.5)  # Its workers start before any hook is called.
        fit.validate(batches, start=0.5, wait=0.25)
    found = fit.clock.validation_tempo()
    assert found is not None
    assert (found.start_seconds, found.wait_seconds) == (2.0, 0.125)  # 0.5 s of waits for four batches
    assert found.batch_seconds == pytest.approx(12.0 / 4)


def test_blocks_keep_the_mean_of_any_number_of_values() -> None:
    blocks = Blocks()
    for number in range(8 * BLOCKS):
        blocks.add(float(number % 2))
    assert blocks.count == 8 * BLOCKS
    assert len(blocks.settled()) < BLOCKS
    assert set(blocks.settled()) == {0.5}


def test_the_clock_of_a_gpu_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    clock = device_clock(torch.device("cuda", 1))
    assert clock() <= clock()
    assert waited == [torch.device("cuda", 1)] * 2
