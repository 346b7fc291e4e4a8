"""The clock of a run, told of events at times of the tests' own."""

from dataclasses import replace

import pytest
import torch

from lightning_predict.base.interval import Interval
from lightning_predict.observe.clock import device_clock
from lightning_predict.observe.forecast import BatchTimes
from lightning_predict.observe.optimizer_steps import WindowSize
from lightning_predict.observe.run_observer import RunObserver, observer_of
from lightning_predict.record.trace import Kernel, Operation, Trace
from tests.known import known


class Fit:
    """A clock and the events of a fit, in the order in which a Trainer tells them."""

    def __init__(self, *, is_asynchronous: bool = False) -> None:
        self.seconds = 0.0
        self.clock = RunObserver(lambda: self.seconds, is_asynchronous=is_asynchronous)

    def passes(self, seconds: float) -> None:
        self.seconds += seconds

    def batch(self, seconds: float = 1.0, *, wait: float = 0.25, is_recorded: bool = False, steps: int = 0) -> bool:
        self.passes(wait)
        self.clock.on_batch_start()
        is_new = self.clock.is_milestone
        if is_recorded:
            self.clock.batch_is_recorded()
        self.passes(seconds)
        self.clock.on_batch_end(lambda: steps)
        return is_new

    def validate(self, batches: list[float], *, start: float = 0.0, wait: float = 0.0, is_check: bool = False) -> None:
        if is_check:
            self.clock.on_sanity_check_start()
        self.clock.on_validation_start(is_check=is_check)
        self.passes(start)
        for number, seconds in enumerate(batches):
            self.passes(wait if number else 0.0)
            self.clock.validation.on_batch_start()
            self.passes(seconds)
            self.clock.validation.on_batch_end()
        self.clock.on_validation_end()

    def batch_times(self, *, workers: int = 0, together: int = 1) -> BatchTimes:
        return known(self.clock.batch_times(batches_per_window=together, workers=workers))


def test_steps_and_waits_are_timed_from_the_first_batch_on_but_recorded_ones_are_not() -> None:
    assert RunObserver().batch_times(batches_per_window=1) is None
    assert RunObserver().validation.times() is None
    assert RunObserver().training_seconds == 0.0
    fit = Fit()
    for seconds in (9.0, 2.0, 2.0):
        fit.batch(seconds)
    times = fit.batch_times()
    assert (times.step_seconds, times.wait_seconds) == (2.0, 0.25)
    assert (times.values, times.waits) == (3, 2)  # the first batch was not waited for
    assert fit.clock.training_seconds == 9.0 + 2.0 + 2.0 + 2 * 0.25
    fit = Fit()
    for number in range(6):
        fit.batch(50.0 if number == 3 else 1.0, wait=30.0 if number == 4 else 0.25, is_recorded=number == 3)
    times = fit.batch_times()
    assert (times.step.middle, times.step.high < 3.0, times.wait_seconds) == (1.0, True, 0.25)
    assert fit.clock.batches == 6


def test_waits_after_predictions_and_longer_than_a_step_show_what_is_in_store() -> None:
    fit = Fit()
    fit.clock.buffered = 4
    for _ in range(8):
        fit.batch(wait=0.5)
    fit.clock.exclude_interruption()
    fit.passes(100.0)
    for _ in range(4):
        fit.batch(wait=0.0)
    for _ in range(20):
        fit.batch(wait=0.5)
    times = fit.batch_times(workers=2)
    assert times.waits == 7 + 20
    assert times.wait_seconds == pytest.approx(0.5)
    # Four may be in store, but the second has to be waited for: what follows counts, here one wait of 2 s for each two.
    fit = Fit()
    fit.clock.buffered = 4
    for _ in range(2):
        fit.batch()
    fit.clock.exclude_interruption()
    fit.batch(wait=0.0)
    fit.batch(wait=1.5)
    for _ in range(4):
        fit.batch(wait=0.0)
        fit.batch(wait=2.0)
    assert fit.batch_times(workers=2).waits == 1 + 8
    assert fit.batch_times(workers=2).wait_seconds == pytest.approx(1.0)


@pytest.mark.parametrize("first", [1, 3])
def test_first_batches_after_the_first_validation_and_after_doubled_epochs_are_milestones(first: int) -> None:
    fit, milestones = Fit(), list[int]()
    for epoch in range(7):
        fit.clock.on_epoch_start()
        is_milestone, *others = [fit.batch() for _ in range(3)]
        assert not any(others)
        if is_milestone:
            milestones.append(epoch)
        if epoch + 1 >= first:
            fit.validate([1.0])
        fit.clock.on_epoch_end()
    # After 1, 2 and 4 epochs, and after the third, if it has the first validation.
    assert milestones == sorted({1, 2, 4, first})


def test_waits_of_the_first_epoch_last_as_long_as_prefetched_batches() -> None:
    fit = Fit()
    fit.clock.buffered = 4
    fit.clock.on_epoch_start()
    fit.batch(wait=8.0)  # two workers start, and each makes a batch
    for _ in range(3):
        fit.batch(wait=0.0)
    assert fit.batch_times(workers=2).wait == Interval(0.0, 0.0, 4.0)
    for _ in range(8):
        fit.batch(wait=0.0)
    assert fit.batch_times(workers=2).wait.high < 0.1
    fit = Fit()
    fit.clock.on_epoch_start()
    for _ in range(21):
        fit.batch(wait=0.5)
    times = fit.batch_times()
    assert times.wait.middle == 0.5
    assert times.later_wait.low == pytest.approx(times.wait.low / 3)
    assert times.later_wait.middle == 0.5
    fit.clock.on_epoch_end()
    fit.clock.on_epoch_start()
    for _ in range(40):
        fit.batch(wait=0.5)
    assert fit.batch_times().later_wait == fit.batch_times().wait
    assert fit.batch_times().wait.middle == pytest.approx(0.5)


def test_device_works_through_waits_and_the_end_of_an_epoch() -> None:
    # Steps of 1 s for the device; the host is done with one after 0.2 s, waits 0.3 s for the loader, and then for the
    # device: from batch to batch a second passes, the wait adds nothing.
    fit = Fit(is_asynchronous=True)
    fit.clock.device.measured(1.0)
    for _ in range(40):
        fit.batch(0.7, wait=0.3)
    assert fit.batch_times().step_seconds == pytest.approx(1.0)
    assert fit.batch_times().wait_seconds == pytest.approx(0.0)
    fit.clock.device.measured(0.6)  # the loader is the slower: of a second the device computes 0.6 s
    for _ in range(40):
        fit.batch(0.7, wait=0.3)
    assert (fit.batch_times().step_seconds, fit.batch_times().wait_seconds) == pytest.approx((0.6, 0.4))
    # A device of 1 s a batch, a host of 0.2 s that is 4 s of work ahead after five batches, when the queue is full. At
    # the end of the epoch it waits these 4 s for the device, and then 2 s for its workers.
    fit = Fit(is_asynchronous=True)
    fit.clock.device.measured(1.0, launches=100, batches=8)
    for _ in range(2):
        fit.clock.on_epoch_start()
        for number in range(24):
            fit.batch(0.2 if number < 5 else 1.0, wait=0.0)
        fit.clock.on_epoch_end()
        fit.passes(4.0 + 2.0)
    fit.clock.on_epoch_start()
    fit.batch(0.2, wait=0.0)
    assert fit.batch_times().step_seconds == pytest.approx(1.0)
    assert fit.clock.pause(starts_workers=True).middle == pytest.approx(2.0)


@pytest.mark.parametrize("kernels", [0, 3])
def test_a_step_recorded_without_kernels_launches_one_an_operation(kernels: int) -> None:
    # 4,096 operations of a batch of 1 s: the queue holds 2 batches, so a backlog of more than 2 s shows a device faster
    # than measured. With three launches a batch, thousands of batches fit.
    plain = Operation(name="aten::mm", phase="forward", inputs=(), outputs=())
    launched = [
        Kernel(
            name="gemm",
            seconds=1e-3,
            grid=(1, 1, 1),
            block=(32, 1, 1),
            registers_per_thread=32,
            shared_memory_bytes=0,
            stream=7,
            start_seconds=place,
            launch_start_seconds=place,
        )
        for place in range(kernels)
    ]
    operations = tuple(replace(plain, kernels=tuple(launched[place : place + 1])) for place in range(4096))
    fit = Fit(is_asynchronous=True)
    fit.clock.step_is_measured(Trace(operations=operations, device="cuda", recorder="dispatch", step_seconds=(1.0,)))
    for _ in range(20):
        fit.batch(0.75, wait=0.0)
    assert fit.batch_times().step_seconds == pytest.approx(1.0 if kernels else 0.75)


def test_two_callbacks_tell_it_as_one_does() -> None:
    fit = Fit()
    for _ in range(10):
        fit.passes(0.5)
        fit.clock.on_batch_start()
        fit.passes(0.1)
        fit.clock.on_batch_start()
        fit.passes(0.9)
        fit.clock.on_batch_end()
        fit.passes(0.1)
        fit.clock.on_batch_end()
    assert fit.clock.batches == 10
    assert fit.batch_times().step_seconds == pytest.approx(1.0)
    assert fit.batch_times().wait_seconds == pytest.approx(0.6)


def test_pauses_exclude_validation_checkpoints_and_the_first_epoch() -> None:
    fit, caller = Fit(), object()
    for _ in range(10):
        fit.batch()
    fit.validate([2.0, 2.0], start=7.0)
    fit.clock.on_epoch_end()
    fit.clock.on_checkpoint(caller)
    fit.clock.on_checkpoint(object())  # The same file, told by another callback.
    fit.passes(30.0)
    fit.clock.on_epoch_start()
    fit.passes(4.0)  # Workers start.
    assert fit.batch()
    assert fit.clock.pause(starts_workers=False).middle == pytest.approx(4.0)
    assert fit.clock.checkpoints.seconds == 30.0
    assert fit.batch_times().waits == 9  # none of these is one
    fit = Fit()
    fit.validate([1.0, 1.0], is_check=True)
    fit.passes(3.0)  # The loader's workers start before training does.
    fit.clock.on_epoch_start()
    fit.batch(wait=1.0)
    fit.batch(wait=0.5)
    seconds = 3.0 + 1.0 - 0.5
    assert fit.clock.pause(starts_workers=True) == Interval(0.0, seconds, 1.5 * seconds)
    # Without workers, most of the first start is cold: a later one takes about as long as a wait.
    assert fit.clock.pause(starts_workers=False) == Interval(0.0, 0.5, 1.5 * seconds)


def test_the_sanity_check_gives_a_batch_of_validation_without_its_first_or_a_recorded_one() -> None:
    fit = Fit()
    fit.validate([9.0, 2.0], start=5.0, wait=0.5, is_check=True)
    times = known(fit.clock.validation.times(wait=Interval(0.1, 0.125, 0.2)))
    assert times.batch is not None
    # The first fetch of 5 s was cold. The only wait may have been: the geometric mean of 0.5 s and 0.125 s.
    assert times.overhead == Interval(0.0, 0.125, 7.5)
    assert (times.wait.middle, times.batch.middle) == (0.25, 2.0)
    workers = fit.clock.validation.times(has_workers=True)
    assert known(workers).overhead.middle == 5.0  # each run starts workers
    assert times.batch.low < 1.0  # it was cold
    assert times.batch.high > 2.0

    fit = Fit()
    fit.clock.on_validation_start(is_check=True)
    for seconds in (6.0, 9.0):
        fit.clock.validation.on_batch_start()
        if seconds == 9.0:
            fit.clock.validation.batch_is_recorded()
        fit.passes(seconds)
        fit.clock.validation.on_batch_end()
    fit.clock.on_validation_end()
    times = known(fit.clock.validation.times())
    assert times.batch is not None
    assert times.batch.middle == 6.0  # Both are too long; the shorter is nearer.

    # Recording a batch delays the next one, which is no wait.
    fit = Fit()
    fit.clock.on_validation_start(is_check=True)
    for is_recorded in (True, False):
        fit.clock.validation.on_batch_start()
        if is_recorded:
            fit.clock.validation.batch_is_recorded()
        fit.passes(1.0)
        fit.clock.validation.on_batch_end()
        if is_recorded:
            fit.passes(60.0)
            fit.clock.validation.recording_has_ended()
            fit.passes(0.2)
    fit.clock.on_validation_end()
    times = known(fit.clock.validation.times(wait=Interval(0.1, 0.2, 0.3)))
    assert times.wait.middle == pytest.approx(0.2)
    assert times.wait.high == pytest.approx(0.3)


def test_validation_runs_are_timed_whole_and_long_sanity_checks_doubted() -> None:
    fit = Fit()
    fit.validate([4.0, 4.0], is_check=True)
    times = known(fit.clock.validation.times(batch_seconds=1.0))
    assert times.batch is not None
    assert times.batch.middle == 2.0  # the geometric mean
    assert times.batch.contains(4.0)
    assert times.batch.contains(0.4)
    fit = Fit()
    fit.validate([9.0, 9.0], is_check=True)
    for batches in ([2.0, 2.0], [2.0, 2.0]):
        fit.batch()
        fit.passes(1.5)  # Its workers start before any event is reported.
        fit.validate(batches, start=0.5, wait=0.25)
    times = known(fit.clock.validation.times())
    assert (times.overhead.middle, times.wait.middle) == (2.0, 0.125)  # a wait of 0.25 s for two batches
    assert known(times.batch).middle == 2.0


def test_steps_are_read_only_while_somebody_asks_for_windows() -> None:
    def refuse() -> int:
        raise AssertionError("nobody asked")

    fit = Fit()
    fit.clock.windows.start_training(optimizer_steps_done=0, is_manual=False)
    fit.clock.on_batch_start()
    fit.clock.on_batch_end(refuse)
    fit.clock.windows.is_followed = True
    fit.batch(steps=1)
    assert (fit.clock.batches, fit.clock.windows.windows) == (2, 1)
    fit.clock.windows.stop_following()
    fit.clock.on_batch_start()
    fit.clock.on_batch_end(refuse)
    assert fit.clock.batches == 3


@pytest.mark.parametrize("before", [0, 30])
def test_windows_are_counted_for_those_who_step_their_optimizers_themselves(before: int) -> None:
    fit = Fit()
    fit.clock.windows.start_training(
        optimizer_steps_done=before, is_manual=True
    )  # a run that is resumed goes on counting
    for number in range(1, 7):
        fit.batch(steps=before + 3 * (number // 2))
    assert fit.clock.windows.window_size == WindowSize(batches_per_window=2, steps_per_window=3)
    fit.clock.windows.start_training(optimizer_steps_done=before, is_manual=False)
    assert fit.clock.windows.window_size == WindowSize()


def test_callbacks_of_one_trainer_share_a_clock_until_a_fit_has_begun() -> None:
    class Trainer:
        pass

    trainer, device = Trainer(), torch.device("cpu")
    clock = observer_of(trainer, device=device)
    assert observer_of(trainer, device=device) is clock
    clock.on_batch_start()
    assert observer_of(trainer, device=device) is not clock


def test_the_clock_of_a_gpu_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    clock = device_clock(torch.device("cuda", 1))
    assert clock() <= clock()
    assert waited == [torch.device("cuda", 1)] * 2
