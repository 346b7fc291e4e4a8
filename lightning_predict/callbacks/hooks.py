"""`FitCallback`: the hooks of both callbacks, written once. What a callback does in one fit is a `FitPart`.

A hook calls the part's method, which first reports the event to the observer that all callbacks of a Trainer share.
Errors become one warning (`base.guard`). Most steps end in `batch_starts_quietly` and `batch_ends_quietly`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from lightning_predict.base.guard import log_exceptions, log_exceptions_unless
from lightning_predict.callbacks.lightning_packages import LIGHTNINGS_OWN, Callback
from lightning_predict.observe.run_observer import RunObserver

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from lightning_predict.observe.recorder import StepRecorder


class FitPart:
    """What a callback does in one fit. Each method is called in the hook of this name.

    Attributes:
        observer: Observer of the fit; None outside a fit, on ranks that observe nothing, and after an error.
        steps: Recorder of steps; None if no step is to be recorded.
        ends_with_training: Whether the part closes at the end of training, instead of the end of the fit.
    """

    observer: RunObserver | None = None
    steps: StepRecorder | None = None
    ends_with_training = False
    _trainer: Trainer

    def _steps_done(self) -> int:
        return self._trainer.global_step

    def _tell(self, event: Callable[[RunObserver], object]) -> None:
        if self.observer is not None:
            event(self.observer)

    def sanity_check_starts(self) -> None:
        """Time the start of the validation loader's worker processes."""
        self._tell(RunObserver.on_sanity_check_start)

    def starts_training(self) -> None:
        """Start to count optimizer steps."""
        if self.observer is not None:
            trainer = self._trainer
            is_manual = not trainer.lightning_module.automatic_optimization
            self.observer.windows.start_training(optimizer_steps_done=trainer.global_step, is_manual=is_manual)

    def epoch_starts(self) -> None:
        """Exclude the start of worker processes from the wait for a batch."""
        self._tell(RunObserver.on_epoch_start)

    def epoch_ends(self) -> None:
        """Exclude the end of an epoch from the wait for a batch, and time the gap between two epochs."""
        self._tell(RunObserver.on_epoch_end)

    def checkpoint_is_collected(self, _checkpoint: object) -> None:
        """Exclude a checkpoint from the wait for a batch, and time its writing."""
        self._tell(methodcaller("on_checkpoint", self))

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
        """Exclude validation, or the sanity check, from the wait for the loader, because it is timed separately."""
        self._tell(lambda observer: observer.on_validation_start(is_check=self._trainer.sanity_checking))

    def validation_batch_starts(self, *_: object) -> None:
        """Start to time a validation batch."""
        self._tell(lambda observer: observer.validation.on_batch_start())

    def validation_batch_ends(self, _outputs: object, batch: object, *_: object) -> None:
        """Stop to time a validation batch."""
        self._tell(lambda observer: observer.validation.on_batch_end())

    def validation_ends(self) -> None:
        """Use the time of this validation in forecasts."""
        self._tell(RunObserver.on_validation_end)

    def ends_training(self) -> None:
        """End the training, without an error."""

    def closes(self, *, ended: bool) -> None:
        """Release everything. `ended` is False after an error."""


NO_FIT: Final = FitPart()  # Part outside a fit, and on ranks that do nothing


def _hook(method: Callable[..., None]) -> Callable[..., None]:
    """Return the hook that calls a method of the part."""

    @log_exceptions
    def hook(self: FitCallback, _: Trainer, __: LightningModule, /, *arguments: object, **named: object) -> None:
        getattr(self._fit, method.__name__)(*arguments, *named.values())

    hook.__doc__ = method.__doc__
    return hook


class FitCallback(Callback):
    """Base of the callbacks. A subclass calls `_follow` in `setup`."""

    _fit: FitPart = NO_FIT
    _starts_quietly: Callable[[], bool] = NO_FIT.batch_starts_quietly
    _ends_quietly: Callable[[], bool] = NO_FIT.batch_ends_quietly

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for copying and pickling, without those that only a running fit has."""
        left_out = LIGHTNINGS_OWN | {"_fit", "_starts_quietly", "_ends_quietly"}
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def _follow(self, fit: FitPart) -> None:
        """Begin a fit, or end it with `NO_FIT`. Most steps call the two quiet methods only, without a call between."""
        self._fit = fit
        self._starts_quietly, self._ends_quietly = fit.batch_starts_quietly, fit.batch_ends_quietly

    def give_up(self, error: Exception) -> None:
        """Do nothing until the next fit."""
        self._follow(NO_FIT)

    on_sanity_check_start = _hook(FitPart.sanity_check_starts)
    on_train_start = _hook(FitPart.starts_training)
    on_train_epoch_start = _hook(FitPart.epoch_starts)
    on_train_epoch_end = _hook(FitPart.epoch_ends)
    on_save_checkpoint = _hook(FitPart.checkpoint_is_collected)
    on_validation_start = _hook(FitPart.validation_starts)
    on_validation_batch_start = _hook(FitPart.validation_batch_starts)
    on_validation_batch_end = _hook(FitPart.validation_batch_ends)
    on_validation_end = _hook(FitPart.validation_ends)

    @log_exceptions_unless(methodcaller("_starts_quietly"))
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Time the start of the batch; record or predict if this is due."""
        self._fit.batch_starts(batch)

    @log_exceptions_unless(methodcaller("_ends_quietly"))
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Time the end of the batch; predict, or check the budget, if this is due."""
        self._fit.batch_ends(batch)

    @log_exceptions
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the actual time with the prediction."""
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
        self._follow(NO_FIT)
        fit.closes(ended=ended)
