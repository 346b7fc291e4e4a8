"""Remaining time of a run on the machine in use, in real fits whose time the tests let pass: predicted, and again."""

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_predict.base.files import history_path
from lightning_predict.base.interval import Interval
from lightning_predict.callbacks import CostBudget, RuntimePredictor
from lightning_predict.observe.forecast import ForecastInputs
from lightning_predict.observe.remaining import Position
from lightning_predict.observe.run_observer import RunObserver
from lightning_predict.record.session import recordings_on
from lightning_predict.run.history import append_record, read_history
from lightning_predict.testing import Clock
from tests.callbacks.conftest import Call
from tests.callbacks.small import Small, our_rows
from tests.callbacks.test_cost_budget import timed_model
from tests.known import known


class Watching:
    """A fit that notes, after some steps, the remaining time that was then predicted."""

    def __init__(self, small: Small, steps: tuple[int, ...], predictor: RuntimePredictor | None = None) -> None:
        self.small = small
        self.predictor = predictor or RuntimePredictor(["T4"], print_table=False)
        self.left: dict[int, float | None] = {}
        watching = self

        class Watch(small.lightning.Callback):  # type: ignore[misc,name-defined]
            def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
                if trainer.global_step in steps:
                    watching.left[trainer.global_step] = watching.predictor.remaining_seconds

        self.watch = Watch()

    def fit(
        self, folder: Path, model: Any, batches: int, *, validation: int = 0, callbacks: Any = (), **options: Any
    ) -> Any:
        options = {"max_epochs": 1} | options
        trainer = self.small.trainer(folder, callbacks=[self.predictor, *callbacks, self.watch], **options)
        trainer.fit(model, self.small.loader(batches), self.small.loader(validation) if validation else None)
        return trainer


def test_once_enough_was_seen_the_rest_and_the_advice_are_said_and_later_only_what_has_changed(
    small: Small, tmp_path: Path, time: Clock, calls: list[Call], capsys: pytest.CaptureFixture[str]
) -> None:
    # 4 steps of 2 s, the last of which is recorded, then 396 of 1 s: believed after 16 steps.
    logger = small.lightning.loggers.CSVLogger(tmp_path)
    watching = Watching(small, (4, 16, 50), RuntimePredictor(["T4"]))
    watching.fit(tmp_path, timed_model(small, time, [2.0] * 4 + [1.0]), 400, logger=logger)
    assert watching.left == {4: 396 * 2.0, 16: pytest.approx(384.0, rel=0.05), 50: pytest.approx(350.0, rel=0.05)}
    assert len(calls) == 2
    assert calls[1].workload.training_iterations == 384
    assert calls[1].trace.step_seconds == pytest.approx((1.0, 1.0), rel=0.05)
    table, _, advice = capsys.readouterr().out.partition("RuntimePredictor, after 16 steps: ")
    assert "Rent" not in table
    assert "Rough first estimate (3 steps)" in " ".join(table.split())
    assert re.match(
        r"6 min \d+ s \(\d min \d+ s to \d min \d+ s\) left on this machine\. On a T4: ", " ".join(advice.split("\n  "))
    )
    assert "Rent a T4" in advice
    rows = [row for row in our_rows(logger) if row["predict/T4/total_hours"]]
    assert [row["step"] for row in rows] == ["3", "15"]  # from 0, as the Trainer's


def test_early_stopping_makes_it_the_most_that_is_left(
    lightning: Small, tmp_path: Path, time: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    stopping = lightning.lightning.callbacks.EarlyStopping("val_loss", patience=100)
    model = timed_model(lightning, time, [1.0], validates=True)
    watching = Watching(lightning, (), RuntimePredictor(["T4"]))
    watching.fit(tmp_path, model, 500, validation=1, callbacks=[stopping], num_sanity_val_steps=0)
    printed = " ".join(capsys.readouterr().out.split())
    assert "steps: at most 8 min" in printed
    assert re.search(r"this CPU 1\.00 s ≤ 8 min", printed)


def test_run_later_than_predicted_is_reported(
    lightning: Small, tmp_path: Path, time: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    # 24 s were left after 16 steps; sixteen steps later 160 s have passed, and eight of 10 s are left.
    with caplog.at_level(logging.INFO):
        Watching(lightning, ()).fit(tmp_path, timed_model(lightning, time, [1.0] * 16 + [10.0]), 40)
    (line,) = [message for message in caplog.messages if " left on this machine" in message]
    assert "after 32 steps" in line
    assert " left on this machine, later than predicted. On a T4: " in line


def test_total_within_the_printed_interval_is_not_predicted_again(
    lightning: Small, tmp_path: Path, time: Clock, calls: list[Call]
) -> None:
    watching = Watching(lightning, (70,))
    watching.fit(tmp_path, timed_model(lightning, time, [1.0] * 20 + [1.04]), 100)
    assert len(calls) == 2  # at the capture, and once it was believed
    assert watching.left[70] == pytest.approx(30 * 1.04, rel=0.03)  # it is known all the same


def test_rest_is_recounted_at_each_doubling_before_it_is_printed(
    lightning: Small, tmp_path: Path, time: Clock, calls: list[Call]
) -> None:
    # 40 steps are over within 3 s, too soon to advise; of 5 ms at the capture, and later of 10 ms.
    watching = Watching(lightning, (4, 17, 40))
    watching.fit(tmp_path, timed_model(lightning, time, [0.005] * 5 + [0.01]), 200)
    assert watching.left[4] == pytest.approx(196 * 0.005)
    assert watching.left[17] == pytest.approx(183 * 0.01, rel=0.25)  # from the first 16, 5 of them of 5 ms
    assert watching.left[40] == pytest.approx(160 * 0.01, rel=0.1)
    assert len(calls) == 2  # at the capture, and at half of the run


def test_validation_counts_as_the_sanity_check_took_and_then_as_it_takes(
    lightning: Small, tmp_path: Path, time: Clock, calls: list[Call]
) -> None:
    # Of the sanity check's batches the first, which is recorded, takes 50 s and the second 5 s; later they take 3 s.
    model = timed_model(lightning, time, validates=True)
    check, seconds = model.validation_step, iter([50.0, 5.0])

    def validation_step(batch: torch.Tensor, batch_idx: int) -> None:
        time.advance(next(seconds, 3.0))
        check(batch, batch_idx)

    model.validation_step = validation_step
    watching = Watching(lightning, (4, 11))
    watching.fit(tmp_path, model, 10, validation=4, max_epochs=3)
    # A check that takes longer than training is doubted: the geometric mean of 5 s and 1 s.
    assert watching.left[4] == pytest.approx(26 * 1.0 + 3 * 4 * 5.0**0.5)
    # After the first epoch: 19 batches and two validation runs. It is predicted again then, and after half of the run.
    assert [call.workload.training.batches for call in calls if call.workload.training] == [26, 20, 15]
    assert watching.left[11] == pytest.approx(19 * 1.0 + 2 * 4 * 3.0)


def test_what_lies_between_epochs_counts_on_every_gpu(
    lightning: Small, tmp_path: Path, time: Clock, calls: list[Call]
) -> None:
    class Between(lightning.lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_epoch_end(self, *args: Any) -> None:
            time.advance(20.0)

    watching = Watching(lightning, (11,))
    watching.fit(tmp_path, timed_model(lightning, time), 10, max_epochs=4, callbacks=[Between()])
    # Of the second epoch nine batches are left, and two epochs more: all three end as the first did.
    assert watching.left[11] == 29 * 1.0 + 3 * 20.0
    assert calls[1].workload.between.middle == 3 * 20.0
    assert known(known(watching.predictor.predictions)["T4"].total_seconds) > 60.0


def test_the_budget_judges_the_same_number(lightning: Small, tmp_path: Path, time: Clock) -> None:
    # Of the rest validation is 8 batches of some 2 s: the second of the sanity check took 5, a batch of training 1 s.
    logger = lightning.lightning.loggers.CSVLogger(tmp_path)
    model = timed_model(lightning, time, [2.0, 2.0, 1.0], validates=True)
    check = model.validation_step

    def validation_step(batch: torch.Tensor, batch_idx: int) -> None:
        time.advance(5.0)
        check(batch, batch_idx)

    model.validation_step = validation_step
    watching = Watching(lightning, (16, 32, 64))
    watching.fit(tmp_path, model, 100, validation=8, callbacks=[CostBudget(hours=10.0)], logger=logger)
    rows = [row for row in our_rows(logger) if row["run_budget/hours_forecast"]]
    assert [row["step"] for row in rows][:2] == ["15", "31"]  # from 0, as the Trainer's
    for row in rows:
        left = watching.left[int(row["step"]) + 1]
        needed, used = (3600 * float(row[f"run_budget/hours_{name}"]) for name in ("forecast", "used"))
        assert needed - used == pytest.approx(known(left))


def test_earlier_runs_correct_the_first_prediction_alone(lightning: Small, tmp_path: Path, time: Clock) -> None:
    watching = Watching(lightning, ())
    with recordings_on("T4"):
        watching.fit(tmp_path, timed_model(lightning, time), 40)
    (record,) = read_history()
    history_path().unlink()
    append_record(replace(record, predicted_seconds=10.0, actual_seconds=15.0))

    watching = Watching(lightning, ())
    again = watching.predictor
    totals = {}

    class Note(lightning.lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            if again.predictions is not None and trainer.global_step in (4, 16):
                totals[trainer.global_step] = again.predictions["T4"].remaining_seconds

    with recordings_on("T4"):
        watching.fit(tmp_path, timed_model(lightning, time), 40, callbacks=[Note()])
    # The earlier run took 1.5 times its prediction. A single run counts half: sqrt(1.5).
    assert totals == {4: pytest.approx(1.5**0.5 * 36.0, rel=0.01), 16: pytest.approx(24.0, rel=0.01)}


def streamed(small: Small, folder: Path, time: Clock, batches: int, **options: Any) -> tuple[dict[int, Any], Any]:
    """Predicted remaining time after some steps of 1 s, with a loader that does not tell its length."""
    watching = Watching(small, (16, 59, 61, 100), RuntimePredictor(["T4"], learn_from_history=False))
    trainer = small.trainer(folder, callbacks=[watching.predictor, watching.watch], **options)
    trainer.fit(timed_model(small, time, [1.0]), small.stream(batches))
    return watching.left, watching.predictor.predictions


def test_a_loader_without_a_length_has_one_after_its_first_epoch(
    small: Small, tmp_path: Path, time: Clock, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        left, predictions = streamed(small, tmp_path, time, 60, max_epochs=3)
    # Steps of 1 s; 2 epochs of 60 were left after the first.
    assert left == {16: None, 59: None, 61: pytest.approx(119.0, rel=0.02), 100: pytest.approx(80.0, rel=0.02)}
    assert any("Assumed: 60 batches per epoch, as in the last epoch" in note for note in predictions.notes)
    said = " ".join(capsys.readouterr().out.split())
    assert "after 16 steps: 1,000 steps take 16 min 40 s (" in said
    assert "on this machine (3,600 steps per hour). The number of remaining steps is unknown." in said
    assert "RuntimePredictor, after 60 steps: 2 min" in caplog.text


def test_a_loader_without_a_length_goes_on_until_the_limit_that_there_is(
    small: Small, tmp_path: Path, time: Clock
) -> None:
    left, _ = streamed(small, tmp_path, time, 200, max_epochs=-1, max_steps=120)
    assert left == {16: 104.0, 59: 61.0, 61: 59.0, 100: 20.0}


def test_a_time_limit_is_how_long_a_loader_without_a_length_goes_on() -> None:
    time = Clock()
    clock = RunObserver(time)
    for _ in range(20):
        clock.on_batch_start()
        time.advance(1.0)
        clock.on_batch_end()
    position = Position(epoch=0, batches_done=20, batches_per_epoch=None, accumulation={0: 1})
    endless = clock.rest(ForecastInputs(position=position, time_limit_seconds=300.0))
    assert endless.forecast == Interval(300.0, 300.0, 300.0)
    # The loader may be at its end before.
    alone = clock.rest(ForecastInputs(position=replace(position, max_epochs=1), time_limit_seconds=300.0))
    assert alone.forecast == Interval(0.0, 300.0, 300.0)
