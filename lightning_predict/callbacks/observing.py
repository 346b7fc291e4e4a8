"""`ObservingCallback`: reports the events of a fit to the observer that all callbacks of a Trainer share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning_predict.base.guard import log_exceptions
from lightning_predict.callbacks.lightning_packages import Callback
from lightning_predict.observe.run_observer import RunObserver

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class ObservingCallback(Callback):
    """Base of the callbacks. Its hooks report the events between steps; subclasses report steps and validation."""

    _fit: Any = None
    """State of the fit, with an `observer`; None outside a fit, and on ranks that observe nothing."""

    @property
    def _observer(self) -> RunObserver | None:
        found: RunObserver | None = None if self._fit is None else self._fit.observer
        return found

    def give_up(self, error: Exception) -> None:
        """Do nothing until the next fit."""
        self._fit = None

    def _pauses(self) -> None:
        """Do what a callback needs when the time until the next batch is no wait for it."""

    @log_exceptions
    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Time the start of the validation loader's worker processes."""
        if (observer := self._observer) is not None:
            observer.on_sanity_check_start()

    @log_exceptions
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Exclude the start of worker processes from the wait for a batch."""
        if (observer := self._observer) is not None:
            observer.on_epoch_start()
            self._pauses()

    @log_exceptions
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Exclude the end of an epoch from the wait for a batch, and time the gap between two epochs."""
        if (observer := self._observer) is not None:
            observer.on_epoch_end()
            self._pauses()

    @log_exceptions
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Exclude a checkpoint from the wait for a batch, and time its writing."""
        if (observer := self._observer) is not None:
            observer.on_checkpoint(self)
