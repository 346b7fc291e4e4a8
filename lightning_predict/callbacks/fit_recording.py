"""`FitRecording`: records the training step and one validation batch of a fit.

`FitRecording` calls the two recorders, which do not depend on a Trainer, from a Trainer's hooks. Example::

    recording = FitRecording(trainer, pl_module, clock=device_clock(device))
    recording.on_train_start(trainer, pl_module, warmup_steps=3, capture_steps=1, count=observer.windows)
    recording.on_batch_start(trainer, batch)
    # ... the batch is trained ...
    trace = recording.on_batch_end(batch)   # None before the last step was recorded
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any, final

from torch import nn

from lightning_predict.base.errors import CaptureError
from lightning_predict.callbacks.lightning_packages import rank_zero_info, samples_of, shapes_of
from lightning_predict.callbacks.trainer_state import position_of
from lightning_predict.observe.clock import host_clock
from lightning_predict.observe.optimizer_steps import StepCounter, WindowSize
from lightning_predict.observe.recorder import Session, StepRecorder, ValidationRecorder
from lightning_predict.observe.remaining import remaining
from lightning_predict.record.environment import autograd_nodes, compilations, frames_compiled, has_compiled_code
from lightning_predict.record.session import CaptureSession
from lightning_predict.record.trace import Trace

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


@final
class FitRecording:
    """Recorders of one fit: a recorder of the training step, and a recorder of a validation batch.

    Attributes:
        window_size: Size of the accumulation windows, as observed when the last trace was returned; before that, the
            default.
    """

    def __init__(self, trainer: Trainer, pl_module: LightningModule, *, clock: Callable[[], float]) -> None:
        self.window_size = WindowSize()
        self._clock = clock
        self._compiled_before = compilations()
        if trainer.strategy.root_device.type == "cuda":
            import_module("lightning_predict.record.kineto")  # imported now, so that no step waits
        self._steps: StepRecorder | None = None
        self._validation: ValidationRecorder | None = ValidationRecorder(
            clock=clock,
            new_session=lambda: self._session(trainer, pl_module),
            records_first=not has_compiled_code(pl_module, since=self._compiled_before),
            prefers_first=trainer.strategy.root_device.type == "cpu",
        )

    def _session(self, trainer: Trainer, pl_module: LightningModule, optimizers: Sequence[Any] = ()) -> Session:
        device, before = trainer.strategy.root_device, self._compiled_before
        return CaptureSession(
            device=device,
            model=pl_module,
            optimizers=optimizers,
            compiled_before=before,
            resident=modules_of_callbacks(trainer),
        )

    @property
    def validation_is_done(self) -> bool:
        """Whether a validation batch was recorded."""
        return self._validation is not None and self._validation.is_done

    def on_train_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        *,
        warmup_steps: int,
        capture_steps: int = 1,
        count: StepCounter,
    ) -> None:
        """Create the step recorder.

        `on_train_epoch_start` is unsuitable, because a run that resumes within an epoch skips this hook.
        """
        self._steps = StepRecorder(
            warmup_steps=warmup_steps,
            capture_steps=capture_steps,
            clock=self._clock,
            host_clock=None if trainer.strategy.root_device.type == "cpu" else host_clock(),
            new_session=lambda: self._session(trainer, pl_module, trainer.optimizers),
            optimizers=[optimizer for optimizer in trainer.optimizers if _can_update(optimizer)],
            autograd_nodes=autograd_nodes,
            compilations=frames_compiled,
            count=count,
        )

    def pause(self) -> None:
        """Exclude the time until the next batch, because this time is no loader wait."""
        if self._steps is not None:
            self._steps.pause()

    def checkpoint_is_collected(self) -> None:
        """Stop timing the batch.

        Another callback may write a checkpoint before this recorder sees the end of the batch.
        """
        if self._steps is not None:
            self._steps.checkpoint_is_collected()

    @property
    def is_active(self) -> bool:
        """Whether further steps are timed, recorded or checked for new kinds."""
        return self._steps is not None

    def starts_known(self) -> bool:
        """Begin a batch that is only compared with the recorded steps. Return whether this is such a batch."""
        return self._steps is not None and self._steps.starts_known()

    def ends_known(self) -> bool:
        """End a batch. Return whether its step was like a recorded one, so that nothing is left to do."""
        steps = self._steps
        if steps is None or not steps.ends_known():
            return False
        if steps.is_finished:
            self._steps = None
        return True

    def on_batch_start(self, trainer: Trainer, batch: Any) -> bool:
        """Time or record the next batch.

        Returns:
            Whether the batch is recorded. A recorded batch takes longer than others.
        """
        if self._steps is None:
            return False
        position = position_of(trainer, batches_done=trainer.fit_loop.batch_idx, window_size=self._steps.window_size)
        full_windows, is_short = remaining(position).full_windows, position.next_window_is_short
        after = full_windows if full_windows is None or is_short else full_windows - 1
        self._steps.on_batch_start(full_windows_after=after, next_is_short=is_short, shapes=lambda: shapes_of(batch))
        return self._steps.is_recording

    def optimizer_steps(self, optimizer: object) -> None:
        """Record that an optimizer is to update parameters."""
        if self._steps is not None:
            self._steps.optimizer_steps(optimizer)

    def on_batch_end(self, batch: Any) -> Trace | None:
        """End the batch. Return the trace when every kind of step is recorded, and again if a new kind occurs later."""
        if self._steps is None:
            return None
        trace = self._steps.on_batch_end(samples=None if self._steps.is_idle else samples_of(batch))
        if trace is not None:
            self.window_size = self._steps.window_size
        if self._steps.is_finished:
            self._steps = None
        return trace

    def rest(self) -> Trace | None:
        """Return the trace if training ended before all kinds of steps were recorded; None if already returned."""
        trace = None if self._steps is None else self._steps.unreturned_trace()
        if trace is not None and self._steps is not None:
            self.window_size = self._steps.window_size
        return trace

    def on_validation_start(self) -> None:
        """Record that a validation run or the sanity check begins."""
        self.pause()
        if self._validation is not None:
            self._validation.on_run_start()

    def on_validation_batch_start(self, trainer: Trainer) -> bool:
        """Record a batch of the sanity check, or of the first validation without a sanity check.

        Returns:
            Whether the batch is recorded. A recorded batch takes longer than others.
        """
        if self._validation is None:
            return False
        batches = trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches
        self._validation.on_batch_start(batches_in_run=sum(batches))
        return self._validation.is_recording

    def on_validation_batch_end(self, batch: Any) -> None:
        """Stop recording a validation batch."""
        if self._validation is not None:
            self._validation.on_batch_end(samples=samples_of(batch))

    def validation_trace(self) -> Trace | None:
        """Return the recorded validation batch; None without a recording, in which case validation is estimated."""
        if self._validation is None or not self._validation.is_done:
            return None
        try:
            return self._validation.trace()
        except CaptureError as error:
            self._validation = None
            rank_zero_info(f"RuntimePredictor could not record validation and estimates it: {error}")
            return None

    def forget_validation(self) -> None:
        """Stop recording validation for the rest of the fit."""
        self._validation = None

    def unfinished_steps(self) -> tuple[int, int] | None:
        """Return the numbers of batches and steps seen without a recording; None if a step was recorded."""
        if self._steps is None or self._steps.has_returned_trace:
            return None
        return self._steps.count.batches, self._steps.count.windows

    def stop(self) -> None:
        """Stop and discard all recordings in progress."""
        recorders = (self._steps, self._validation)
        self._steps = self._validation = None
        with ExitStack() as parts:  # each recorder stops, even if the other raises an error
            for recorder in recorders:
                if recorder is not None:
                    parts.callback(recorder.stop)


def _can_update(optimizer: Any) -> bool:
    return any(parameter.requires_grad for group in optimizer.param_groups for parameter in group["params"])


def modules_of_callbacks(trainer: Trainer) -> list[nn.Module]:
    """Return the modules in the attributes of callbacks, such as an EMA's copy of the model."""
    callbacks: Sequence[object] = getattr(trainer, "callbacks", ())
    return [value for one in callbacks for value in vars(one).values() if isinstance(value, nn.Module)]
