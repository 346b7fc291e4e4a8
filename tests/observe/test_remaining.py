import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.observe.remaining import Position, RemainingCounts, Validation, remaining, workload

START = Position(epoch=0, batches_done=0, batches_per_epoch=4, max_epochs=3, accumulation={0: 1})


def at(**changes: Any) -> RemainingCounts:
    return remaining(replace(START, **changes))


def simulated(position: Position) -> tuple[int, int, int]:
    """Batches, windows and validation runs from `position` on, by walking through the fit as the Trainer does."""
    batches = windows = validations = 0
    assert position.batches_per_epoch is not None
    epoch, done, in_window = position.epoch, position.batches_done, 0
    steps = position.optimizer_steps_done
    check = position.validation
    total = epoch * position.batches_per_epoch + done
    while (position.max_epochs is None or epoch < position.max_epochs) and (
        position.max_steps is None or steps < position.max_steps
    ):
        if done == position.batches_per_epoch:
            epoch, done = epoch + 1, 0
            continue
        size = position.accumulation[max(start for start in position.accumulation if start <= epoch)]
        batches, done, total = batches + 1, done + 1, total + 1
        in_window += 1
        if done % size == 0 or done == position.batches_per_epoch:
            windows, in_window, steps = windows + 1, 0, steps + 1
        if check is not None and check.every_batches is not None:
            if check.every_epochs is None:
                validations += total % check.every_batches == 0
            elif (epoch + 1) % check.every_epochs == 0:
                validations += done % min(check.every_batches, position.batches_per_epoch) == 0
    return batches, windows, validations


def test_epochs_and_steps_limit_the_batches_or_nothing_does() -> None:
    left = at()
    assert (left.batches, left.windows, left.windows_per_epoch) == (3 * 4, 12, 4)
    assert left.validation_batches == 0
    assert not left.at_most
    # 10 optimizer steps over epochs of 4 batches: 2 epochs and a half.
    assert at(max_epochs=None, max_steps=10).batches == 10
    assert at(max_epochs=None, max_steps=10, epoch=1, batches_done=1, optimizer_steps_done=5).windows == 5
    left = at(max_epochs=None)
    assert left.batches is left.windows is left.full_windows is None
    assert left.windows_per_epoch == 4
    # 10 optimizer steps are 5 batches of a GAN.
    assert at(max_epochs=None, max_steps=10, steps_per_window=2.0).windows == 5
    assert at(max_epochs=None, max_steps=10, steps_per_window=2.0, optimizer_steps_done=4).windows == 3
    assert at(may_end_earlier=True).at_most


def test_accumulation_counts_short_windows_at_the_end_of_an_epoch() -> None:
    # Epochs of 4 batches in windows of 3: one of 3 and one of 1.
    left = at(max_epochs=2, accumulation={0: 3})
    assert (left.batches, left.windows, left.full_windows, left.windows_per_epoch) == (8, 4, 2, 2)
    # Windows alike in each epoch are counted as they come, the short ones, too: not as 8 batches in windows of 3.
    position = replace(START, max_epochs=2, accumulation={0: 3})
    assert workload(left, position, batches_per_window=3, samples=24).training_iterations == 4
    position = replace(START, accumulation={0: 10})
    assert position.batches_per_window == 4
    assert not position.next_window_is_short
    assert remaining(position).windows == remaining(position).full_windows == 3
    position = replace(START, accumulation={0: 3}, batches_done=3)
    assert position.next_window_is_short
    assert not replace(position, batches_done=0).next_window_is_short


def test_accumulation_may_change_and_a_loader_may_have_no_length() -> None:
    # Epoch 0: 4 windows of 1; epochs 1 and 2: 2 windows of 2 each.
    left = at(accumulation={0: 1, 1: 2})
    assert (left.batches, left.windows) == (12, 4 + 2 + 2)
    # Divided into windows like the recorded one, of 1 batch.
    assert (
        workload(left, replace(START, accumulation={0: 1, 1: 2}), batches_per_window=1, samples=8).training_iterations
        == 12
    )
    endless = {"batches_per_epoch": None}
    assert at(**endless).windows is None  # max_epochs=2 and an unknown length
    by_steps = at(**endless, max_epochs=None, max_steps=5)
    assert (by_steps.windows, by_steps.at_most, by_steps.windows_per_epoch) == (5, False, None)
    # Epochs may end it before the steps do.
    assert at(**endless, max_epochs=2, max_steps=5).at_most
    assert at(**endless, max_epochs=None).windows is None
    assert at(**endless, max_epochs=None, max_steps=5, accumulation={0: 2}).batches == 10


def validated(
    *,
    batches_done: int = 0,
    max_epochs: int | None = 3,
    max_steps: int | None = None,
    batches_per_epoch: int | None = 4,
    batches: int | None = 10,
    every_batches: float | None = 4,
    every_epochs: int | None = 1,
    is_due: bool = True,
) -> int | None:
    """Validation batches that are left."""
    validation = Validation(batches=batches, every_batches=every_batches, every_epochs=every_epochs, is_due=is_due)
    return at(
        batches_done=batches_done,
        max_epochs=max_epochs,
        max_steps=max_steps,
        batches_per_epoch=batches_per_epoch,
        validation=validation,
    ).validation_batches


def test_validation_counts_after_the_batch_that_is_done_and_in_streams() -> None:
    assert validated(batches_done=4) == 30  # The one of this epoch still remains ...
    assert validated(batches_done=4, is_due=False) == 20  # ... and here it has run.
    assert validated(batches_per_epoch=None, max_epochs=None, max_steps=9, every_batches=4) == 20


@pytest.mark.parametrize(
    "options",
    [
        {"batches": None},
        {"every_batches": None},  # by the clock
        {"max_epochs": None},
        {"batches_per_epoch": None, "every_batches": math.inf, "max_steps": 8},
        {"batches_per_epoch": None, "every_epochs": 2, "max_steps": 8},
    ],
)
def test_validation_that_cannot_be_known(options: dict[str, Any]) -> None:
    assert validated(**options) is None


def test_workload_has_the_inputs_of_a_prediction() -> None:
    left = at(max_epochs=2, accumulation={0: 2}, may_end_earlier=True)
    wanted = workload(left, replace(START, accumulation={0: 2}), batches_per_window=2, samples=64)
    assert wanted.training_iterations == 4
    assert wanted.epoch is not None
    assert (wanted.epoch.optimizer_steps, wanted.samples_per_iteration) == (2, 64)
    assert wanted.validation_iterations == 0
    assert wanted.at_most


@st.composite
def positions(draw: st.DrawFn) -> Position:
    per_epoch = draw(st.integers(1, 7))
    accumulation = {0: draw(st.integers(1, 4))}
    if draw(st.booleans()):
        accumulation[draw(st.integers(1, 3))] = draw(st.integers(1, 4))
    max_epochs = draw(st.none() | st.integers(0, 6))
    max_steps = draw(st.none() | st.integers(0, 30)) if max_epochs is not None else draw(st.integers(0, 30))
    every_epochs = draw(st.none() | st.integers(1, 3))
    every = draw(st.integers(1, per_epoch) if every_epochs else st.integers(1, 12))
    return Position(
        epoch=0,
        batches_done=0,
        batches_per_epoch=per_epoch,
        max_epochs=max_epochs,
        max_steps=max_steps,
        accumulation=accumulation,
        validation=Validation(batches=1, every_batches=every, every_epochs=every_epochs),
    )


@given(positions())
def test_it_agrees_with_walking_through_the_fit(position: Position) -> None:
    left = remaining(position)
    assert (left.batches, left.windows, left.validation_batches) == simulated(position)
