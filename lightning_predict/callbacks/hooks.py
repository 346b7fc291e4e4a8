"""`FitCallback`: the hooks of both callbacks, written once. What a callback does in one fit is a `FitPart`.

A hook reports its event to the observer that all callbacks of a Trainer share, and then calls the part's method. Errors
become one warning (`base.guard`). Most steps end in `batch_starts_quietly` and `batch_ends_quietly`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from lightning_predict.base.guard import log_exceptions, log_exceptions_unless
from lightning_predict.callbacks.lightning_packages import LIGHTNINGS_OWN, Callback
from lightning_predict.observe.run_observer import RunObserver

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class FitPart:
    """What a callback does in one fit. Each method is called in the hook of this name; by default, it does nothing.

    Attributes:
        observer: Observer of the fit; None on ranks that observe nothing, and after an error.
        ends_with_training: Whether the part closes at the end of training, instead of the end of the fit.
    """

    observer: RunObserver | None = None
    ends_with_training = False

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def _steps_done(self) -> int:
        return self._trainer.global_step

    def starts_training(self) -> None:
        """Begin the training."""

    def pauses(self) -> None:
        """Continue after a pause (the start or end of an epoch), which is no wait for a batch."""

    def collects_checkpoint(self) -> None:
        """Continue after the state of a checkpoint was collected."""

    def batch_starts_quietly(self) -> bool:
        """Time the start of a batch, as fast as possible. Return whether nothing else is to be done."""
        return True

    def batch_starts(self, batch: object) -> None:
        """Do the rest at the start of a batch."""

    def batch_ends_quietly(self) -> bool:
        """Time the end of a batch, as fast as possible. Return whether nothing else is to be done."""
        return True

    def batch_ends(self, batch: object) -> None:
        """Do the rest at the end of a batch."""

    def validation_starts(self) -> None:
        """Begin a validation run or the sanity check."""

    def validation_batch_starts(self) -> bool:
        """Begin a validation batch. Return whether it is recorded, which takes longer than others."""
        return False

    def validation_batch_ends(self, batch: object) -> None:
        """End a validation batch, after its timer has stopped."""

    def validation_ends(self) -> None:
        """End a validation run or the sanity check."""

    def ends_training(self) -> None:
        """End the training, without an error."""

    def closes(self, *, ended: bool) -> None:
        """Release everything. `ended` is False after an error."""


def _is_quiet() -> bool:
    return True


class FitCallback(Callback):
    """Base of the callbacks. A subclass calls `_follow` in `setup`."""

    _fit: FitPart | None = None  # State of the fit; None outside a fit, and on ranks that do nothing

    _starts_quietly: Callable[[], bool] = staticmethod(_is_quiet)
    _ends_quietly: Callable[[], bool] = staticmethod(_is_quiet)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for copying and pickling, without those that only a running fit has."""
        left_out = LIGHTNINGS_OWN | {"_fit", "_starts_quietly", "_ends_quietly"}
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def _follow(self, fit: FitPart | None) -> None:
        """Begin a fit, or end it with None. Most steps call the two quiet methods only, without a call between."""
        self._fit = fit
        self._starts_quietly = _is_quiet if fit is None else fit.batch_starts_quietly
        self._ends_quietly = _is_quiet if fit is None else fit.batch_ends_quietly

    @property
    def _observer(self) -> RunObserver | None:
        return None if self._fit is None else self._fit.observer

    def give_up(self, error: Exception) -> None:
        """Do nothing until the next fit."""
        self._follow(None)

    @log_exceptions
    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Time the start of the validation loader's worker processes."""
        if (observer := self._observer) is not None:
            observer.on_sanity_check_start()

    @log_exceptions
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start to count optimizer steps, and start the training of the part."""
        if (observer := self._observer) is not None:
            is_manual = not pl_module.automatic_optimization
            observer.windows.start_training(optimizer_steps_done=trainer.global_step, is_manual=is_manual)
        if self._fit is not None:
            self._fit.starts_training()

    @log_exceptions
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Exclude the start of worker processes from the wait for a batch."""
        if self._fit is not None and self._fit.observer is not None:
            self._fit.observer.on_epoch_start()
            self._fit.pauses()

    @log_exceptions
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Exclude the end of an epoch from the wait for a batch, and time the gap between two epochs."""
        if self._fit is not None and self._fit.observer is not None:
            self._fit.observer.on_epoch_end()
            self._fit.pauses()

    @log_exceptions
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Exclude a checkpoint from the wait for a batch, and time its writing."""
        if self._fit is not None and self._fit.observer is not None:
            self._fit.collects_checkpoint()
            self._fit.observer.on_checkpoint(self)

    @log_exceptions_unless(methodcaller("_starts_quietly"))
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Time the start of the batch; record or predict if this is due."""
        if self._fit is not None:
            self._fit.batch_starts(batch)

    @log_exceptions_unless(methodcaller("_ends_quietly"))
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Time the end of the batch; predict, or check the budget, if this is due."""
        if self._fit is not None:
            self._fit.batch_ends(batch)

    @log_exceptions
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Exclude validation from the wait for the loader, because it is timed separately."""
        if (observer := self._observer) is not None:
            observer.on_validation_start(is_check=trainer.sanity_checking)
        if self._fit is not None:
            self._fit.validation_starts()

    @log_exceptions
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Start to time a validation batch, and record one."""
        if self._fit is not None and self._fit.observer is not None:
            self._fit.observer.validation.on_batch_start()  # first, so that the recording's start is no wait
            if self._fit.validation_batch_starts():
                self._fit.observer.validation.batch_is_recorded()

    @log_exceptions
    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Stop to time a validation batch. A budget may end the run here."""
        if (observer := self._observer) is not None:
            observer.validation.on_batch_end()
        if self._fit is not None:
            self._fit.validation_batch_ends(batch)

    @log_exceptions
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Use the time of this validation in forecasts. A budget may end the run here."""
        if (observer := self._observer) is not None:
            observer.on_validation_end()
        if self._fit is not None:
            self._fit.validation_ends()

    @log_exceptions
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the actual time with the prediction."""
        if self._fit is not None:
            self._fit.ends_training()
            if self._fit.ends_with_training:
                self._close(ended=True)

    @log_exceptions
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End the fit after an error, because `teardown` is not called then."""
        self._close(ended=False)

    @log_exceptions
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the fit."""
        self._close(ended=True)

    def _close(self, *, ended: bool) -> None:
        fit = self._fit
        self._follow(None)
        if fit is not None:
            fit.closes(ended=ended)
