"""The total of a run in real fits: uneven batches, short windows, checkpoints, waits for the loader, unknown lengths.

Under the fixture `readings` a batch takes a second and so does the wait for the next.
"""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_predict.callbacks import RuntimePredictor
from lightning_predict.callbacks.trainer_state import resumes_data
from lightning_predict.run.workload import Batches
from tests.callbacks.conftest import RENEW, Call
from tests.callbacks.small import BATCH_SIZE, FEATURES, Small
from tests.callbacks.test_remaining_in_fits import stopping_after
from tests.known import known

pytestmark = pytest.mark.usefixtures("readings")


def fit(small: Small, folder: Path, loader: Any, *, predictor: Any = None, model: Any = None, **options: Any) -> Any:
    """A fit with the predictor, which records the third step; returns the Trainer."""
    callbacks = [predictor or RuntimePredictor(["T4"], warmup_steps=2), *options.pop("callbacks", [])]
    validation = options.pop("validation", None)
    trainer = small.trainer(folder, callbacks=callbacks, **options)
    trainer.fit(model or small.model(validates=validation is not None), loader, validation)
    return trainer


def uneven(samples: int, **options: Any) -> Any:
    return torch.utils.data.DataLoader(torch.randn(samples, FEATURES), batch_size=BATCH_SIZE, **options)  # type: ignore[arg-type]


def test_a_smaller_last_batch_counts_by_its_samples(small: Small, tmp_path: Path, calls: list[Call]) -> None:
    # 17 samples are four batches of 4 and one of 1; twice, of which 3 are done.
    fit(small, tmp_path, uneven(17), max_epochs=2)
    assert calls[0].workload.training == Batches(
        optimizer_steps=10 - 3, batches=10 - 3, partial_batches=2, partial_share=0.25
    )
    assert calls[0].workload.epoch == Batches(optimizer_steps=5, batches=5, partial_batches=1, partial_share=0.25)


@pytest.mark.parametrize(("options", "limit"), [({"drop_last": True}, 1.0), ({}, 4)])
def test_dropped_last_batch_is_not_counted(
    small: Small, tmp_path: Path, calls: list[Call], options: dict[str, Any], limit: float
) -> None:
    fit(small, tmp_path, uneven(17, **options), max_epochs=2, limit_train_batches=limit)
    assert calls[0].workload.training == Batches(optimizer_steps=8 - 3, batches=8 - 3)


def test_a_smaller_batch_is_not_the_one_that_is_recorded(small: Small, tmp_path: Path, calls: list[Call]) -> None:
    # Batches of 4, 4 and 1 samples: the third would be recorded, and the fourth is instead.
    fit(small, tmp_path, uneven(9), max_epochs=3)
    assert calls[0].trace.samples == BATCH_SIZE
    assert calls[0].workload.training == Batches(
        optimizer_steps=9 - 4, batches=9 - 4, partial_batches=2, partial_share=0.25
    )


def test_short_windows_are_not_whole_ones(small: Small, tmp_path: Path, calls: list[Call]) -> None:
    # Windows of 3 and of 1 batches; after the first two of three epochs the third epoch's remain.
    fit(small, tmp_path, small.loader(4), max_epochs=4, accumulate_grad_batches=3)
    assert calls[0].workload.training_iterations == 8 - 5
    assert calls[0].workload.training == Batches(optimizer_steps=8 - 5, batches=16 - 4 - 4 - 3)


def checkpoint(small: Small, folder: Path, **options: Any) -> Any:
    return small.lightning.callbacks.ModelCheckpoint(folder, **({"save_top_k": -1} | options))


@pytest.mark.parametrize(
    ("saving", "options"),
    [
        ({}, {"max_epochs": 3}),
        ({"every_n_epochs": 2}, {"max_epochs": 5}),
        ({"every_n_train_steps": 3}, {"max_epochs": 3}),
        ({"every_n_train_steps": 5}, {"max_epochs": 3}),
        ({"every_n_train_steps": 2}, {"max_epochs": 4, "accumulate_grad_batches": 2}),
        ({}, {"max_steps": 10}),
        ({"save_last": True}, {"max_epochs": 3}),
        ({"save_top_k": 0}, {"max_epochs": 3}),
        ({}, {"max_epochs": 3, "validates": True}),
        ({}, {"max_epochs": 3, "validates": True, "val_check_interval": 2}),
        ({"every_n_train_steps": 4}, {"max_epochs": 3, "validates": True}),
        ({"save_on_train_epoch_end": False}, {"max_epochs": 3, "validates": True}),
        ({}, {"max_epochs": 5, "validates": True, "check_val_every_n_epoch": 2}),
        # It waits for a validation that never comes.
        ({}, {"max_epochs": 5, "check_val_every_n_epoch": 2}),
        ({"save_on_train_epoch_end": False}, {"max_epochs": 3}),
    ],
)
def test_number_of_remaining_checkpoints(
    small: Small, tmp_path: Path, calls: list[Call], saving: dict[str, Any], options: dict[str, Any]
) -> None:
    written: list[bool] = []

    class Count(small.lightning.Callback):  # type: ignore[misc,name-defined]
        def on_save_checkpoint(self, *args: Any) -> None:
            written.append(bool(calls))

    callbacks = [checkpoint(small, tmp_path, **saving), Count()]
    options = {"validation": small.loader(2) if options.get("validates") else None, **options}
    options.pop("validates", None)
    fit(small, tmp_path, small.loader(4), callbacks=callbacks, enable_checkpointing=True, **options)
    assert calls[0].workload.checkpoints.count == sum(written)


def test_a_checkpoint_that_was_timed_before_counts(small: Small, tmp_path: Path, calls: list[Call]) -> None:
    saving = checkpoint(small, tmp_path, every_n_train_steps=1)
    fit(small, tmp_path, small.loader(8), max_epochs=1, callbacks=[saving], enable_checkpointing=True)
    checkpoints = calls[0].workload.checkpoints
    assert (checkpoints.count, checkpoints.is_estimated) == (8 - 3 + 1, False)  # the third step's still remains
    assert checkpoints.seconds is not None


def test_the_size_of_the_state_is_the_estimate(small: Small, tmp_path: Path, calls: list[Call]) -> None:
    fit(
        small,
        tmp_path,
        small.loader(8),
        max_epochs=1,
        callbacks=[checkpoint(small, tmp_path)],
        enable_checkpointing=True,
    )
    # 8 x 16 + 16 + 16 x 2 + 2 = 178 parameters of 4 bytes, as many twice in Adam's state with its 4 step counters.
    checkpoints = calls[0].workload.checkpoints
    assert checkpoints.is_estimated
    assert checkpoints.seconds == pytest.approx((3 * 178 * 4 + 4 * 4) / 500e6)


def steps_of_texts(folder: str, tag: str) -> list[int]:
    """The steps at which a text was logged to TensorBoard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder, size_guidance={"tensors": 0})
    events.Reload()
    return [event.step for event in events.Tensors(f"{tag}/text_summary")]


def test_a_checkpoint_that_matters_is_timed_and_predicted_with_again(
    lightning: Small, tmp_path: Path, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A slow disk: the estimate is an hour a file, of a run of seconds.
    monkeypatch.setattr("lightning_predict.observe.run_session.RunSession.renew", RENEW)
    monkeypatch.setattr("lightning_predict.observe.remaining.WRITING_BYTES_PER_SECOND", 1e-3)
    saving = checkpoint(lightning, tmp_path / "saved")
    logger = lightning.lightning.loggers.TensorBoardLogger(tmp_path / "logs")
    fit(
        lightning,
        tmp_path,
        lightning.loader(6),
        max_epochs=3,
        callbacks=[saving],
        enable_checkpointing=True,
        logger=logger,
    )
    assert steps_of_texts(logger.log_dir, "predict/ranking") == steps_of_texts(logger.log_dir, "predict/table")
    assert len(steps_of_texts(logger.log_dir, "predict/ranking")) > 1
    estimated, timed, *_ = calls
    assert (estimated.workload.checkpoints.is_estimated, timed.workload.checkpoints.is_estimated) == (True, False)
    assert timed.workload.training_iterations == 2 * 6  # said before the first batch of the second epoch
    assert timed.workload.checkpoints.count == 2
    assert 0 < known(timed.workload.checkpoints.seconds) < 10


def test_checkpoints_by_the_clock_are_left_out_and_it_is_said(lightning: Small, tmp_path: Path) -> None:
    from datetime import timedelta

    predictor = RuntimePredictor(["T4"])
    saving = checkpoint(lightning, tmp_path, train_time_interval=timedelta(hours=1))
    fit(
        lightning,
        tmp_path,
        lightning.loader(8),
        predictor=predictor,
        max_epochs=1,
        callbacks=[saving],
        enable_checkpointing=True,
    )
    assert predictor.predictions is not None
    assert predictor.predictions["T4"].checkpoint_seconds is None
    assert "checkpoints are not included" in str(predictor.predictions)


def test_waits_for_the_loader_count_on_every_gpu(small: Small, tmp_path: Path, calls: list[Call]) -> None:
    predictor = RuntimePredictor(["T4", "L4"])
    fit(small, tmp_path, small.loader(8), predictor=predictor, max_epochs=1)
    loader = calls[0].workload.loader
    assert loader.seconds_per_batch == 1.0
    assert loader.spread[0] < 1 < loader.spread[1]
    assert not loader.is_reliable  # two waits call no loader a limit
    assert predictor.predictions is not None
    for prediction in predictor.predictions.values():
        assert prediction.remaining_seconds == pytest.approx(4 * (1.0 + prediction.iteration_seconds), rel=1e-2)
    assert "The loader" not in str(predictor.predictions.ranking())


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({"max_epochs": 3}, 3 * 4 - 3),
        ({"max_steps": 10}, 10 - 3),
        ({"max_epochs": 2, "stream": 4}, None),
        ({"max_steps": 5, "stream": 9}, 5 - 3),
        ({"max_epochs": -1, "stream": 9}, None),
        ({"max_epochs": 2, "limit_train_batches": 7, "stream": 9}, 2 * 7 - 3),
        # Windows of 3 and of 1 batches: the second full one, which ends at the seventh batch, is recorded. The first
        # epoch ended with two readings of the clock, of a second each, and so will the second.
        ({"max_epochs": 2, "accumulate_grad_batches": 3}, 2 * 4 - 7 + 2),
    ],
)
def test_the_total_of_every_way_to_say_how_long(
    small: Small, tmp_path: Path, options: dict[str, Any], seconds: int | None
) -> None:
    """A second of waiting for each batch, and next to nothing for the step on a GPU."""
    predictor = RuntimePredictor(["T4"], warmup_steps=2)
    settings = dict(options)
    stream = settings.pop("stream", None)
    loader = small.loader(4) if stream is None else small.stream(stream)
    fit(small, tmp_path, loader, predictor=predictor, callbacks=[stopping_after(small, 20)], **settings)
    total = known(predictor.predictions)["T4"]
    if seconds is None:
        assert (total.remaining_seconds, total.cost_usd) == (None, None)
        assert_a_thousand_steps_take_1000_seconds(predictor)
        return
    assert total.remaining_seconds == pytest.approx(seconds, rel=1e-2)
    assert total.cost_usd == pytest.approx((total.remaining_seconds or 0) / 3600 * (total.usd_per_hour or 0))


def test_the_total_of_a_trainer_that_was_told_nothing(small: Small, tmp_path: Path) -> None:
    predictor = RuntimePredictor(["T4"], warmup_steps=2)
    with pytest.warns(UserWarning, match="Setting it to 1000 epochs"):
        fit(small, tmp_path, small.loader(4), predictor=predictor, callbacks=[stopping_after(small, 6)])
    assert known(predictor.predictions)["T4"].remaining_seconds == pytest.approx(1000 * 4 - 3, rel=1e-2)


@pytest.mark.parametrize("options", [{}, {"max_epochs": 10**6}])
def test_a_time_limit_is_the_total_where_it_comes_first(small: Small, tmp_path: Path, options: dict[str, Any]) -> None:
    predictor = RuntimePredictor(["T4", "L4"], warmup_steps=2)
    stop = stopping_after(small, 6)
    fit(small, tmp_path, small.loader(4), predictor=predictor, callbacks=[stop], max_time="00:02:00:00", **options)
    assert predictor.predictions is not None
    for prediction in predictor.predictions.values():
        assert 7100 < known(prediction.remaining_seconds) <= 7200  # less what has gone by
        assert prediction.is_cut_off
        assert prediction.at_most
    text = " ".join(str(predictor.predictions).split())
    assert "The time limit ends the run. Steps until then, without validation: T4 7," in text  # a second a step
    assert "1,000 steps" not in text


def test_loaders_that_resume() -> None:
    class Stateful:
        def state_dict(self) -> dict[str, int]:
            return {}

        def load_state_dict(self, state: dict[str, int]) -> None:
            """Nothing."""

    assert resumes_data(SimpleNamespace(train_dataloader=[Stateful()]))
    assert not resumes_data(SimpleNamespace(train_dataloader=[Stateful(), uneven(8)]))


def test_a_named_length_gives_a_total(small: Small, tmp_path: Path, calls: list[Call]) -> None:
    predictor = RuntimePredictor(["T4"], warmup_steps=2, batches_per_epoch=9)
    assert fit(small, tmp_path, small.stream(9), predictor=predictor, max_epochs=2).global_step == 2 * 9
    assert calls[0].workload.training_iterations == 2 * 9 - 3
    assert "Assumed: 9 batches per epoch, as given" in str(predictor.predictions)


def assert_a_thousand_steps_take_1000_seconds(predictor: RuntimePredictor) -> None:
    text = str(predictor.predictions)
    assert " 1,000 steps " in text
    (row,) = (line for line in text.splitlines() if line.startswith("T4 "))
    assert re.search(r" 16 min 4[01] s ", row), text


def test_an_unknown_length_says_what_steps_and_an_epoch_take(lightning: Small, tmp_path: Path) -> None:
    predictor = RuntimePredictor(["T4"], warmup_steps=2)
    fit(lightning, tmp_path, lightning.stream(9), predictor=predictor, max_epochs=2)
    # A second and a little for each step and the wait for its batch.
    assert_a_thousand_steps_take_1000_seconds(predictor)
    assert "An epoch" not in str(predictor.predictions)

    predictor = RuntimePredictor(["T4"], warmup_steps=2, batches_per_epoch=100)
    stop = stopping_after(lightning, 6)
    fit(lightning, tmp_path, lightning.stream(9), predictor=predictor, max_epochs=-1, callbacks=[stop])
    assert_a_thousand_steps_take_1000_seconds(predictor)
    assert "Time of a training epoch: T4 1 min 40 s." in str(predictor.predictions)
