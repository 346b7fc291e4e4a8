"""`PredictionFit`: `RuntimePredictor` in one fit. Records steps and a validation batch, and lets a session predict.

The session (`observe.run_session`) predicts, updates the forecast and compares it with the actual time. This module
connects it with the Trainer's events. Example::

    fit = PredictionFit(trainer, pl_module, request, options, results)
    fit.starts_training()
    fit.batch_starts(batch)
    # ... the batch is trained ...
    fit.batch_ends(batch)        # predicts after the last step that is to be recorded
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lightning_predict.base.errors import CaptureError
from lightning_predict.base.files import PREDICTED_VARIABLE, mark
from lightning_predict.callbacks.hooks import FitPart
from lightning_predict.callbacks.lightning_packages import rank_zero_info, samples_of, shapes_of, warn
from lightning_predict.callbacks.output import write_file
from lightning_predict.callbacks.trainer_loop import PredictionOptions, TrainerLoop, sequence_length
from lightning_predict.callbacks.trainer_state import position_of
from lightning_predict.observe.clock import device_clock, host_clock
from lightning_predict.observe.recorder import StepRecorder, ValidationRecorder
from lightning_predict.observe.remaining import HookMoment, remaining
from lightning_predict.observe.run_observer import RunObserver, observer_of
from lightning_predict.observe.run_session import PredictionRequest, RunResults, RunSession
from lightning_predict.record.environment import autograd_nodes, compilations, frames_compiled, has_compiled_code
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.session import CaptureSession
from lightning_predict.record.trace import Trace

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from lightning_predict.callbacks.advice_output import DataFlowRecorder
    from lightning_predict.callbacks.progress_bar import ShownInBar


class PredictionFit(FitPart):
    """`RuntimePredictor` in one fit, on rank zero."""

    observer: RunObserver
    ends_with_training = True

    def __init__(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        request: PredictionRequest,
        options: PredictionOptions,
        results: RunResults,
    ) -> None:
        self._trainer = trainer
        self._module, self._options, self._results = pl_module, options, results
        device = trainer.strategy.root_device
        self.observer = observer_of(trainer, device=device)
        self._loop = TrainerLoop(trainer, self.observer, request, options)
        self.session = RunSession(self._loop, request, self.observer, results)
        self._clock = device_clock(device)
        self._compiled_before = compilations()
        if device.type == "cuda":
            import_module("lightning_predict.record.kineto")  # imported now, so that no step waits
        self._validation: ValidationRecorder | None = ValidationRecorder(
            clock=self._clock,
            new_session=self._new_session,
            records_first=not has_compiled_code(pl_module, since=self._compiled_before),
            prefers_first=device.type == "cpu",
        )
        # Before these, steps are only timed, and compared with the recorded ones.
        self._quiet_batches: float = 0
        self._quiet_until = 0.0
        self._data_flow: DataFlowRecorder | None = None
        self._bar: ShownInBar | None = None

    def _new_session(self, optimizers: Sequence[Any] = ()) -> CaptureSession:
        return CaptureSession(
            device=self._trainer.strategy.root_device,
            model=self._module,
            optimizers=optimizers,
            compiled_before=self._compiled_before,
            resident=modules_of_callbacks(self._trainer),
        )

    # --- Hooks

    def starts_training(self) -> None:
        """Start to time steps. A run that resumes within an epoch skips `on_train_epoch_start`."""
        super().starts_training()
        trainer = self._trainer
        self.steps = StepRecorder(
            warmup_steps=self._options.warmup_steps,
            clock=self._clock,
            host_clock=None if trainer.strategy.root_device.type == "cpu" else host_clock(),
            new_session=lambda: self._new_session(trainer.optimizers),
            optimizers=[optimizer for optimizer in trainer.optimizers if _can_update(optimizer)],
            autograd_nodes=autograd_nodes,
            compilations=frames_compiled,
            count=self.observer.windows,
        )

    def epoch_starts(self) -> None:
        """Exclude the start of the epoch from the wait for a batch."""
        super().epoch_starts()
        self._pause()

    def epoch_ends(self) -> None:
        """Exclude the end of the epoch from the wait for a batch."""
        super().epoch_ends()
        self._pause()

    def _pause(self) -> None:
        if self.steps is not None:
            self.steps.pause()

    def checkpoint_is_collected(self, checkpoint: object) -> None:
        """Stop timing the batch. Another callback may write a checkpoint before the recorder sees the batch end."""
        if self.steps is not None:
            self.steps.checkpoint_is_collected()
        super().checkpoint_is_collected(checkpoint)

    def batch_starts_quietly(self) -> bool:
        """Time the start of a batch. Return whether nothing else is to be done."""
        observer, steps = self.observer, self.steps
        observer.on_batch_start()
        if self._quiet_batches == 0 or observer.is_milestone:
            return False
        return steps is None or steps.starts_known()

    def batch_starts(self, batch: object) -> None:
        """Time or record the next batch."""
        observer, following = self.observer, self._data_flow
        if observer.is_milestone:
            self.session.renew("batch start")
        is_recorded = self._record(batch)
        if following is not None and not is_recorded:
            following.on_batch_start(batch)
        if is_recorded or following is not None:
            observer.batch_is_recorded()

    def batch_ends_quietly(self) -> bool:
        """Time the end of a batch. Return whether nothing else is to be done."""
        observer, steps = self.observer, self.steps
        observer.on_batch_end(self._steps_done)
        if observer.windows.batches >= self._quiet_batches or observer.ended >= self._quiet_until:
            return False
        if steps is not None:
            if not steps.ends_known():
                return False
            if steps.is_finished:
                self.steps = None
        return True

    def batch_ends(self, batch: object) -> None:
        """End the batch. Predict when every kind of step is recorded."""
        session, steps = self.session, self.steps
        if session.is_due():
            session.renew()
        if self._data_flow is not None and self._data_flow.on_batch_end():
            self._print_advice(self._data_flow)
        if steps is not None:
            trace = steps.on_batch_end(samples=None if steps.is_idle else samples_of(batch))
            if trace is not None:
                self._predict_recorded(steps, trace, batch)
            if steps.is_finished:
                self.steps = None
        if self._bar is not None and self.observer.batches >= session.batches_at_end:
            self._bar.remove()  # no batch is left
        self._quiet_batches, self._quiet_until = (0, 0.0) if self._data_flow is not None else session.nothing_until()

    def validation_starts(self) -> None:
        """Warn about the memory of validation, whose loaders may exist only now."""
        super().validation_starts()
        self._pause()
        if self._validation is not None:
            self._validation.on_run_start()
        self.session.warn_of_memory()

    def validation_batch_starts(self, *_: object) -> None:
        """Record a batch of the sanity check, or of the first validation without a sanity check."""
        super().validation_batch_starts()  # first, so that the recording's start is no wait
        if self._validation is None:
            return
        trainer = self._trainer
        batches = trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches
        self._validation.on_batch_start(batches_in_run=sum(batches))
        if self._validation.is_recording:
            self.observer.validation.batch_is_recorded()

    def validation_batch_ends(self, outputs: object, batch: object, *_: object) -> None:
        """Stop recording a validation batch."""
        super().validation_batch_ends(outputs, batch)
        if self._validation is not None:
            self._validation.on_batch_end(samples=samples_of(batch))
            self.observer.validation.recording_has_ended()

    def validation_ends(self) -> None:
        """Predict again if validation was only estimated before, and has now been recorded."""
        super().validation_ends()
        if self.session.rest is not None and self._validation is not None and self._validation.is_done:
            self._predict(moment="validation end", reason="Predicted again, now that validation was timed:")

    def ends_training(self) -> None:
        """Compare the times. After an early end, predict from what was recorded; warn if the run was too short."""
        steps, warmup_steps = self.steps, self._options.warmup_steps
        trace = None if steps is None else steps.unreturned_trace()
        if steps is not None and trace is not None:
            self._predict_recorded(steps, trace)
        if steps is not None and not steps.has_returned_trace:
            warn(
                f"RuntimePredictor recorded nothing: training ended after {steps.count.batches} batches "
                f"({steps.count.windows} steps). warmup_steps={warmup_steps} needs {warmup_steps + 1} uninterrupted "
                "steps. Train longer, or set a lower value."
            )
        if self._data_flow is not None:
            self._print_advice(self._data_flow)
        self.session.compare_outcome()

    def closes(self, *, ended: bool) -> None:
        """Stop all recordings and restore the progress bar."""
        with ExitStack() as parts:  # each part stops, even if another raises an error
            for part in (self._validation, self.steps, self._data_flow):
                if part is not None:
                    parts.callback(part.stop)
            if self._bar is not None:
                parts.callback(self._bar.remove)
            self.steps = self._validation = self._data_flow = None

    # --- Recording and predicting

    def _record(self, batch: object) -> bool:
        """Time or record the next batch. Return whether the batch is recorded, which takes longer than others."""
        steps, trainer = self.steps, self._trainer
        if steps is None:
            return False
        position = position_of(trainer, batches_done=trainer.fit_loop.batch_idx, window_size=steps.window_size)
        full_windows, is_short = remaining(position).full_windows, position.next_window_is_short
        after = full_windows if full_windows is None or is_short else full_windows - 1
        steps.on_batch_start(full_windows_after=after, next_is_short=is_short, shapes=lambda: shapes_of(batch))
        return steps.is_recording

    def _predict_recorded(self, steps: StepRecorder, trace: Trace, batch: object = None) -> None:
        """Store a recorded step, and predict from it."""
        self._loop.window_size = steps.window_size
        if batch is not None and gpu_in_use(trace) is not None:
            self._loop.sequence_length = sequence_length(batch)
        self._predict(trace)
        self._save_trace()

    def _predict(
        self, trace: Trace | None = None, *, moment: HookMoment = "batch end", reason: str | None = None
    ) -> None:
        """Predict, and stop all recordings except of a validation that is still to be recorded."""
        trainer, options, session = self._trainer, self._options, self.session
        validation = self._validation_trace()
        session.predict(trace, validation=validation, moment=moment, reason=reason)
        mark(PREDICTED_VARIABLE)
        if options.advice and self._results.advice is None and self._data_flow is None and self._results.trace:
            from lightning_predict.callbacks.advice_output import DataFlowRecorder

            following = DataFlowRecorder(trainer, self._module, self._results.trace, self.observer.windows)
            if following.is_useful(self._results.trace) and moment == "batch end":
                self._data_flow = following
            else:
                self._print_advice(following)
        session.warn_of_memory()
        if options.progress_bar and self._bar is None and trainer.progress_bar_callback is not None:
            from lightning_predict.callbacks.progress_bar import show_in_bar

            self._bar = show_in_bar(trainer, self._left_in_words, clock=self.observer.now)
        session.exclude_display_time()
        if validation is not None or not trainer.enable_validation:
            self._validation = None

    def _left_in_words(self) -> str | None:
        """Format the remaining time and cost of the run on this machine; None if unknown."""
        from lightning_predict.callbacks.progress_bar import left_in_words

        session = self.session
        at_most = session.rest is not None and session.rest.counts.at_most
        return left_in_words(self.observer.remaining, usd_per_hour=session.usd_per_hour, at_most=at_most)

    def _validation_trace(self) -> Trace | None:
        """Return the recorded validation batch; None without a recording, in which case validation is estimated."""
        try:
            return None if self._validation is None else self._validation.trace()
        except CaptureError as error:
            self._validation = None
            rank_zero_info(f"RuntimePredictor could not record validation and estimates it: {error}")
            return None

    def _save_trace(self) -> None:
        """Write the recorded step, if requested. Warn once if it cannot be written."""
        path, trace = self._options.save_trace, self._results.trace
        if path is None or trace is None:
            return

        def save() -> None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            trace.save(path)

        write_file(self._trainer, path, save, what=f"save_trace={path!r}")

    def _print_advice(self, following: DataFlowRecorder) -> None:
        """Add the data flow to the recorded step, and print the advice."""
        from lightning_predict.callbacks.advice_output import print_advice

        following.stop()
        self._data_flow = None
        if following.trace is not self._results.trace:
            self._results.trace = following.trace
            self._save_trace()
        self._results.advice = print_advice(self._trainer, following.trace, self.session)


def _can_update(optimizer: Any) -> bool:
    with torch._C.DisableTorchFunction():  # reading an attribute would call the code of a tensor subclass
        return any(parameter.requires_grad for group in optimizer.param_groups for parameter in group["params"])


def modules_of_callbacks(trainer: Trainer) -> list[nn.Module]:
    """Return the modules in the attributes of callbacks, such as an EMA's copy of the model."""
    callbacks: Sequence[object] = getattr(trainer, "callbacks", ())
    return [value for callback in callbacks for value in vars(callback).values() if isinstance(value, nn.Module)]
