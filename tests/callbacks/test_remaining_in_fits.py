"""Forecast of the rest of a fit, against the actual rest: real Trainers run to their end and are counted."""

import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lightning_predict.callbacks import RuntimePredictor
from tests.callbacks.conftest import Call
from tests.callbacks.small import Small

pytestmark = pytest.mark.usefixtures("readings")

WARMUP = 2  # The third step is recorded; the remainder is counted from there


def run(small: Small, folder: Path, *, stream: bool = False, batches: int = 4, **options: Any) -> tuple[Any, Any]:
    """A fit with 4 batches an epoch, and 2 of validation where there is one; returns the Trainer and the model."""
    validates = options.pop("validates", False)
    ckpt_path = options.pop("ckpt_path", None)
    callbacks = [RuntimePredictor(["T4"], warmup_steps=WARMUP), *options.pop("callbacks", [])]
    model = small.model(validates=validates)
    trainer = small.trainer(folder, callbacks=callbacks, **options)
    loader = small.stream(batches) if stream else small.loader(batches)
    trainer.fit(model, loader, small.loader(2) if validates else None, ckpt_path=ckpt_path)
    return trainer, model


def stopping_after(small: Small, batches: int) -> Any:
    """A callback that ends a fit that would go on forever."""

    class Stop(small.lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            trainer.should_stop = trainer.fit_loop.total_batch_idx + 1 >= batches

    return Stop()


@pytest.mark.parametrize(
    ("options", "total", "recorded"),
    [
        ({"max_epochs": 3}, 3 * 4, 3),
        ({"max_steps": 10}, 10, 3),
        ({"max_epochs": 3, "max_steps": 10}, 10, 3),
        ({"max_epochs": 2, "max_steps": 10}, 2 * 4, 3),
        ({"max_epochs": 3, "limit_train_batches": 0.5}, 3 * 2, 3),
        ({"max_epochs": 3, "overfit_batches": 3}, 3 * 3, 3),
        ({"max_steps": 5, "stream": True}, 5, 3),
        ({"max_epochs": 2, "limit_train_batches": 7, "stream": True, "batches": 9}, 2 * 7, 3),
        ({"max_epochs": 3, "accumulate_grad_batches": 2}, 3 * 2, 3),
        # Optimizer steps, not batches: windows of 3 and of 1. The short ones are passed over; of the two full ones of
        # this run the first is timed and the second recorded, of three the third.
        ({"max_epochs": 2, "accumulate_grad_batches": 3}, 2 * 2, 3),
        ({"max_steps": 5, "accumulate_grad_batches": 3}, 5, 5),
    ],
)
def test_known_lengths(
    small: Small, tmp_path: Path, calls: list[Call], options: dict[str, Any], total: int, recorded: int
) -> None:
    trainer, _ = run(small, tmp_path, **options)
    assert trainer.global_step == total
    (call,) = calls
    assert call.workload.training_iterations == total - recorded
    assert not call.workload.at_most


def test_early_stopping_and_time_limits_make_it_at_most(small: Small, tmp_path: Path, calls: list[Call]) -> None:
    stopping = small.lightning.callbacks.EarlyStopping("val_loss", patience=100)
    timer = small.lightning.callbacks.Timer(timedelta(hours=1))
    for callback in (stopping, timer):
        run(small, tmp_path, max_epochs=3, validates=True, callbacks=[callback])
        assert calls[-1].workload.training_iterations == 12 - 3
        assert calls[-1].workload.at_most


@pytest.mark.parametrize(
    "options",
    [
        {"max_epochs": 3},
        {"max_epochs": 3, "val_check_interval": 0.5},
        {"max_epochs": 3, "val_check_interval": 3},
        {"max_epochs": 5, "check_val_every_n_epoch": 2},
        {"max_epochs": 5, "val_check_interval": 3, "check_val_every_n_epoch": None},
        {"max_epochs": 3, "limit_val_batches": 1},
        {"max_epochs": 3, "limit_val_batches": 0},
        {"max_steps": 10},
        {"max_steps": 9, "val_check_interval": 2},
        {"max_epochs": 2, "limit_train_batches": 7, "stream": True, "batches": 9},
        {"max_epochs": -1, "max_steps": 9, "val_check_interval": 2, "stream": True, "batches": 99},
    ],
)
def test_validation_batches(small: Small, tmp_path: Path, calls: list[Call], options: dict[str, Any]) -> None:
    validated: list[int] = []

    class Count(small.lightning.Callback):  # type: ignore[misc,name-defined]
        def on_validation_batch_end(self, trainer: Any, *args: Any) -> None:
            if not trainer.sanity_checking:
                validated.append(trainer.global_step)

    run(small, tmp_path, validates=True, callbacks=[Count()], **options)
    (call,) = calls
    # The third batch is recorded; a validation that follows it directly still remains then.
    assert call.workload.validation_iterations == sum(1 for step in validated if step >= 3)


def test_validation_by_the_clock_is_unknown(lightning: Small, tmp_path: Path, calls: list[Call]) -> None:
    run(lightning, tmp_path, validates=True, max_epochs=3, val_check_interval="00:01:00:00")
    assert calls[0].workload.validation_iterations is None
    assert calls[0].workload.training_iterations == 12 - 3


@pytest.mark.parametrize("stopped_after", [4, 6])
def test_resume_subtracts_finished_batches(small: Small, tmp_path: Path, calls: list[Call], stopped_after: int) -> None:
    def saving() -> Any:
        return small.lightning.callbacks.ModelCheckpoint(tmp_path, filename="at", every_n_train_steps=stopped_after)

    run(small, tmp_path, max_steps=stopped_after, callbacks=[saving()], enable_checkpointing=True)
    calls.clear()
    options: dict[str, Any] = {"max_epochs": 4, "callbacks": [saving()], "enable_checkpointing": True}
    with warnings.catch_warnings():
        # Lightning warns that the data order begins anew within the epoch, and that the folder is in use.
        warnings.filterwarnings("ignore", ".*dataloader is not resumable|.*exists and is not empty", UserWarning)
        trainer, model = run(small, tmp_path, ckpt_path=str(tmp_path / "at.ckpt"), **options)
    assert trainer.global_step == 16
    assert model.batches_trained == 16 - stopped_after
    assert calls[0].workload.training_iterations == 16 - stopped_after - 3


def test_several_validation_loaders_are_added_up(lightning: Small, tmp_path: Path, calls: list[Call]) -> None:
    model = lightning.model()
    model.validation_step = lambda batch, batch_idx, dataloader_idx: batch.sum()
    trainer = lightning.trainer(tmp_path, max_epochs=3, callbacks=RuntimePredictor(["T4"], warmup_steps=WARMUP))
    loaders = [lightning.loader(2), lightning.loader(3)]
    trainer.fit(model, lightning.loader(4), loaders)
    assert calls[0].workload.validation_iterations == 3 * (2 + 3)
