"""Reads the progress and the limits of a fit from a Trainer's public attributes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, ref

from torch.utils.data import DataLoader, IterableDataset

from lightning_predict.base.guard import keeps_random_state
from lightning_predict.callbacks.lightning_packages import lightning_classes
from lightning_predict.observe.forecast import ForecastInputs
from lightning_predict.observe.memory_risks import leaves_of
from lightning_predict.observe.optimizer_steps import StepCounter, WindowSize
from lightning_predict.observe.remaining import CheckpointSchedule, HookMoment, Position, Validation

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


def forecast_inputs(
    trainer: Trainer, *, window_size: WindowSize, moment: HookMoment = "batch end", batches_per_epoch: int | None = None
) -> ForecastInputs:
    """Read the inputs of a forecast from a Trainer. `position_of` describes the arguments."""
    validation = sum(trainer.num_val_batches) if trainer.enable_validation and trainer.num_val_batches else 0
    loaders, has_workers = leaves_of(trainer.train_dataloader), _have_workers(trainer.train_dataloader)
    is_known = bool(loaders) and all(hasattr(loader, "num_workers") for loader in loaders)
    return ForecastInputs(
        position=position_of(
            trainer,
            batches_done=trainer.fit_loop.batch_idx + (moment != "batch start"),
            window_size=window_size,
            moment=moment,
            batches_per_epoch=batches_per_epoch,
        ),
        checkpoint_schedules=checkpoint_schedules(trainer),
        workers=sum(int(each.num_workers) for each in loaders) if is_known else None,
        has_workers=has_workers,
        validation_has_workers=bool(validation) and _have_workers(trainer.val_dataloaders),
        starts_workers=has_workers and not all(getattr(each, "persistent_workers", False) for each in loaders),
        validation_batches=_finite(validation) or 0,
        time_limit_seconds=seconds_left(trainer),
    )


def logger_step(trainer: Trainer) -> int:
    """Return the step that the Trainer would log now: a metric `step` of the user, or the batches that stepped.

    `global_step` is further: it counts the batch at whose end a callback is called, and each optimizer.
    """
    # The public `logged_metrics` computes metrics, which may need the other ranks.
    own = getattr(trainer._logger_connector, "_logged_metrics", {}).get("step")
    stepped = getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", trainer.global_step)
    return int(stepped if own is None else own)


def position_of(
    trainer: Trainer,
    *,
    batches_done: int,
    window_size: WindowSize,
    moment: HookMoment = "batch end",
    batches_per_epoch: int | None = None,
) -> Position:
    """Read the progress of the fit. Call this only in the batch-start and batch-end hooks, where every value is known.

    `batches_per_epoch` was observed, for a loader without a length.
    """
    length = _finite(trainer.num_training_batches)
    return Position(
        epoch=trainer.current_epoch,
        batches_done=batches_done,
        batches_per_epoch=batches_per_epoch if length is None else length,
        max_epochs=_limit(trainer.max_epochs),
        optimizer_steps_done=trainer.global_step,
        max_steps=_limit(trainer.max_steps),
        accumulation=_accumulation(trainer)
        if window_size.batches_per_window is None
        else {0: window_size.batches_per_window},
        steps_per_window=window_size.steps_per_window,
        validation=_validation(trainer, is_due=moment == "batch end"),
        moment=moment,
        last_batch_share=_last_batch_share(trainer),
        may_end_earlier=bool(trainer.early_stopping_callbacks) or seconds_left(trainer) is not None,
    )


def batches_of_fit(trainer: Trainer) -> int | None:
    """Estimate the total batches of the fit when it begins. Later changes of gradient accumulation are ignored."""
    per_epoch, epochs, steps = (
        _finite(trainer.num_training_batches),
        _limit(trainer.max_epochs),
        _limit(trainer.max_steps),
    )
    ends = [] if steps is None else [steps * trainer.accumulate_grad_batches]
    if per_epoch is not None and epochs is not None:
        ends.append(per_epoch * epochs)
    return min(ends, default=None)


def batches_without_step(trainer: Trainer, step_counter: StepCounter) -> int:
    """Count the batches since the last optimizer step, whose gradients a checkpoint lacks, at the end of a batch."""
    if step_counter.is_followed or not step_counter.batches:
        return step_counter.batches_in_window
    return 0 if trainer.is_last_batch else (trainer.fit_loop.batch_idx + 1) % trainer.accumulate_grad_batches


def callbacks_of(trainer: Any) -> list[Any]:
    """Return `trainer.callbacks`, an attribute that type checkers do not know."""
    return list(trainer.callbacks)


def inactive_mode(trainer: Any) -> str | None:
    """Return the Trainer's mode in which callbacks should do nothing; None in an ordinary run."""
    if trainer.fast_dev_run:
        return f"fast_dev_run={trainer.fast_dev_run}"
    return "barebones=True" if trainer.barebones else None


def minimums_preventing_stop(trainer: Trainer) -> str:
    """List the Trainer's settings that prevent a stop now; empty if the Trainer can stop."""
    minimums = []
    if trainer.min_epochs is not None and trainer.min_epochs > trainer.current_epoch:
        minimums.append(f"min_epochs={trainer.min_epochs}")
    if trainer.min_steps is not None and trainer.min_steps > trainer.global_step:
        minimums.append(f"min_steps={trainer.min_steps}")
    return " and ".join(minimums)


def checkpoint_schedules(trainer: Trainer) -> list[CheckpointSchedule]:
    """Return the schedules of the ModelCheckpoint callbacks."""
    kinds = lightning_classes("ModelCheckpoint")
    return [_saving(trainer, callback) for callback in trainer.checkpoint_callbacks if isinstance(callback, kinds)]


def resumes_data(trainer: Any) -> bool:
    """Return whether every loader can resume within an epoch, with `state_dict` and `load_state_dict`."""
    return all(
        hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        for loader in leaves_of(trainer.train_dataloader)
    )


def seconds_left(trainer: Trainer) -> float | None:
    """Return the seconds until the time limit of the fit (`max_time` or a Timer); None without a time limit."""
    kinds = lightning_classes("Timer")
    timers = (callback for callback in callbacks_of(trainer) if isinstance(callback, kinds))
    left = [seconds for timer in timers if (seconds := timer.time_remaining()) is not None]
    return max(0.0, min(left)) if left else None


def _finite(number: float) -> int | None:
    return None if math.isinf(number) else int(number)


def _saving(trainer: Trainer, callback: Any) -> CheckpointSchedule:
    """Read the schedule of a ModelCheckpoint from its attributes, which have these names since Lightning 1.6."""
    is_validated = trainer.enable_validation and sum(trainer.num_val_batches) != 0
    # This is ModelCheckpoint's own rule. A checkpoint that waits for a validation is never written without validation.
    at_validation = trainer.check_val_every_n_epoch != 1 or (is_validated and trainer.val_check_interval != 1.0)
    own_choice, best = callback._save_on_train_epoch_end, callback.save_top_k != 0
    return CheckpointSchedule(
        every_steps=callback._every_n_train_steps,
        every_epochs=callback._every_n_epochs,
        at_validation=at_validation if own_choice is None else not own_choice,
        by_time=callback._train_time_interval is not None,
        files=int(best) + int(callback.save_last is True or (bool(callback.save_last) and not best)),  # or a link
    )


def _have_workers(loaders: object) -> bool:
    each = leaves_of(loaders)
    return bool(each) and all(getattr(loader, "num_workers", 0) > 0 for loader in each)


def prefetched_batches(trainer: Trainer) -> int:
    """Return the number of batches that the workers prefetch. After a pause, these batches need no wait."""
    loaders = leaves_of(trainer.train_dataloader) if _have_workers(trainer.train_dataloader) else []
    return max((each.num_workers * (getattr(each, "prefetch_factor", None) or 1) for each in loaders), default=0)


def _last_batch_share(trainer: Trainer) -> float:
    """Return the size of an epoch's last batch relative to the other batches; 1 unless it is known to be smaller."""
    loaders = leaves_of(trainer.train_dataloader)
    if len(loaders) != 1 or not isinstance(loaders[0], DataLoader):
        return 1.0
    (loader,) = loaders
    if (
        loader.batch_size is None
        or not isinstance(loader.sampler, Sized)
        or loader.drop_last
        or isinstance(loader.dataset, IterableDataset)
    ):
        return 1.0
    known = _LENGTHS.get(trainer)
    if known is None or known[0]() is not loader:
        known = _LENGTHS[trainer] = ref(loader), keeps_random_state(len)(loader.sampler)
    samples = known[1]
    if samples < loader.batch_size or trainer.num_training_batches != math.ceil(samples / loader.batch_size):
        return 1.0  # the only batch of an epoch is not smaller than others, or the limit cuts off the last batch
    return samples % loader.batch_size / loader.batch_size or 1.0


_LENGTHS: Final[WeakKeyDictionary[Any, tuple[ref[Any], int]]] = WeakKeyDictionary()
"""Number of samples of a Trainer's loader. It is read once for each loader, because it is code of the user."""


def _limit(number: int | None) -> int | None:
    """Convert a limit of Lightning: -1 means no limit."""
    return None if number is None or number < 0 else number


def _accumulation(trainer: Trainer) -> Mapping[int, int]:
    kinds = lightning_classes("GradientAccumulationScheduler")
    for callback in callbacks_of(trainer):
        if isinstance(callback, kinds):
            return {0: 1} | dict(callback.scheduling)
    return {0: trainer.accumulate_grad_batches}


def _validation(trainer: Trainer, *, is_due: bool) -> Validation | None:
    if not trainer.enable_validation:
        return None
    # The list is empty before the first validation, if no sanity check ran and the first epochs have no validation.
    batches = trainer.num_val_batches
    return Validation(
        batches=_finite(sum(batches)) if batches else None,
        every_batches=trainer.val_check_batch,
        every_epochs=trainer.check_val_every_n_epoch,
        is_due=is_due,
    )
