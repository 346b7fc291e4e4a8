"""Where a fit stands and what limits it, read from a Trainer through its public attributes.

Example::

    left = remaining(position_of(trainer, batches_done=trainer.fit_loop.batch_idx + 1, pace=Pace()))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from lightning_predict.callbacks.bases import ACCUMULATION_SCHEDULERS, TIMERS
from lightning_predict.callbacks.recorders import Pace
from lightning_predict.callbacks.remaining import Position, Validation
from lightning_predict.errors import LightningPredictError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

Answer = TypeVar("Answer")


def position_of(
    trainer: Trainer,
    *,
    batches_done: int,
    pace: Pace,
    validation_is_due: bool = True,
) -> Position:
    """Where the fit stands; to be called in the hooks around a training batch, when all of it is known.

    Args:
        trainer: A Trainer that is fitting.
        batches_done: Batches of this epoch that are done.
        pace: How windows went by so far.
        validation_is_due: The validation after the last batch done, if any, has not run yet.
    """
    return Position(
        epoch=trainer.current_epoch,
        batches_done=batches_done,
        batches_per_epoch=_finite(trainer.num_training_batches),
        max_epochs=_limit(trainer.max_epochs),
        optimizer_steps_done=trainer.global_step,
        max_steps=_limit(trainer.max_steps),
        accumulation=_accumulation(trainer) if pace.batches_per_window is None else {0: pace.batches_per_window},
        steps_per_window=pace.steps_per_window,
        validation=_validation(trainer, is_due=validation_is_due),
        may_end_earlier=bool(trainer.early_stopping_callbacks) or seconds_left(trainer) is not None,
    )


def callbacks_of(trainer: Any) -> list[Any]:
    """`trainer.callbacks`, which Lightning sets where type checkers do not see it."""
    return list(trainer.callbacks)


def reason_for_no_extras(trainer: Any) -> str | None:
    """The mode of the Trainer in which callbacks should keep still; None in an ordinary run."""
    if trainer.fast_dev_run:
        return f"fast_dev_run={trainer.fast_dev_run}"
    return "barebones=True" if trainer.barebones else None


def unmet_minimums(trainer: Trainer) -> str:
    """The settings of the Trainer that make it train on when it is asked to stop now; empty where there are none."""
    minimums = []
    if trainer.min_epochs is not None and trainer.min_epochs > trainer.current_epoch:
        minimums.append(f"min_epochs={trainer.min_epochs}")
    if trainer.min_steps is not None and trainer.min_steps > trainer.global_step:
        minimums.append(f"min_steps={trainer.min_steps}")
    return " and ".join(minimums)


def answer_of_rank_zero(trainer: Trainer, ask: Callable[[], Answer]) -> Answer:
    """What rank zero answers, on every rank; to be called by all of them, as each waits for the answer.

    Args:
        trainer: The Trainer that is fitting.
        ask: Called on rank zero.

    Raises:
        LightningPredictError: `ask` failed on rank zero; raised on every rank, so that they stay alike.
    """
    answer, problem = None, None
    if trainer.is_global_zero:
        try:
            answer = ask()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
    answer, problem = trainer.strategy.broadcast((answer, problem))
    if problem is not None:
        raise LightningPredictError(problem)
    return cast(Answer, answer)


def seconds_left(trainer: Trainer) -> float | None:
    """Seconds until the time limit of the fit (`max_time` or a Timer); None without one."""
    timers = (callback for callback in callbacks_of(trainer) if isinstance(callback, TIMERS))
    left = [seconds for timer in timers if (seconds := timer.time_remaining()) is not None]
    return max(0.0, min(left)) if left else None


def device_clock(device: torch.device) -> Callable[[], float]:
    """A clock in seconds that first waits for the device to finish, so that what it times is done and not just queued.

    Args:
        device: The device that trains.
    """
    if device.type != "cuda":
        return perf_counter

    def synchronized() -> float:
        torch.cuda.synchronize(device)
        return perf_counter()

    return synchronized


def _finite(number: float) -> int | None:
    return None if math.isinf(number) else int(number)


def _limit(number: int | None) -> int | None:
    """A limit as Lightning spells it: -1 is none."""
    return None if number is None or number < 0 else number


def _accumulation(trainer: Trainer) -> Mapping[int, int]:
    for callback in callbacks_of(trainer):
        if isinstance(callback, ACCUMULATION_SCHEDULERS):
            return {0: 1} | dict(callback.scheduling)
    return {0: trainer.accumulate_grad_batches}


def _validation(trainer: Trainer, *, is_due: bool) -> Validation | None:
    if not trainer.enable_validation:
        return None
    # Empty before the first validation where no sanity check ran and the first epochs are not validated.
    batches = trainer.num_val_batches
    return Validation(
        batches=_finite(sum(batches)) if batches else None,
        every_batches=trainer.val_check_batch,
        every_epochs=trainer.check_val_every_n_epoch,
        is_due=is_due,
    )
