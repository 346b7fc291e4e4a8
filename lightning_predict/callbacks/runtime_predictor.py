"""`RuntimePredictor`: callback that predicts time and cost of the running fit on other GPUs, after its first steps.

The first steps are timed, and one step is recorded. Before the next batch, predictions are printed and logged. Later,
the callback only updates the forecast, and compares the forecast with the actual time at the end. Example::

    from lightning.pytorch import Trainer
    from lightning_predict.callbacks import RuntimePredictor

    predictor = RuntimePredictor(gpus=["H100-SXM-80GB", "L4", "T4"])
    Trainer(max_epochs=10, callbacks=[predictor]).fit(model)
    predictor.predictions["T4"].total_seconds
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from lightning_predict.assumptions import Assumptions
from lightning_predict.base.checked import shown
from lightning_predict.base.errors import InvalidArgumentError, TraceFormatError
from lightning_predict.base.files import FILE_SECONDS, PREDICTED_VARIABLE, PROGRESS_VARIABLE, in_hook, mark
from lightning_predict.base.guard import log_exceptions, log_exceptions_unless, own_error
from lightning_predict.base.interval import Interval
from lightning_predict.callbacks.arguments import (
    MetaStep,
    check_epoch,
    check_file,
    check_steps,
    checked_assumptions,
    hours_of,
)
from lightning_predict.callbacks.fit_recording import FitRecording
from lightning_predict.callbacks.forecast_updates import ForecastUpdates
from lightning_predict.callbacks.lightning_packages import LIGHTNINGS_OWN, rank_zero_info, warn
from lightning_predict.callbacks.observing import ObservingCallback
from lightning_predict.callbacks.output import OutputOptions, print_predictions
from lightning_predict.callbacks.rest_prediction import PredictionRequest, load_prediction, with_world_size
from lightning_predict.callbacks.trainer_state import callbacks_of, inactive_mode
from lightning_predict.cost.prediction import UserPrice
from lightning_predict.cost.priced_gpus import ALL, layouts_to_predict
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.layouts.strategy import LightningStrategy, Strategy, parse_strategy
from lightning_predict.observe.clock import device_clock
from lightning_predict.observe.predicted_vs_actual import Outcome
from lightning_predict.observe.rank_agreement import wait_seconds
from lightning_predict.observe.remaining import HookMoment
from lightning_predict.observe.run_observer import observer_of
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.trace import Trace
from lightning_predict.reports.predictions import Predictions

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from lightning_predict.advice.advice_text import Advice
    from lightning_predict.advice.largest_batch import LargestBatch
    from lightning_predict.callbacks.advice_output import DataFlowRecorder
    from lightning_predict.callbacks.memory_warnings import MemoryWarnings
    from lightning_predict.callbacks.progress import ProgressFile
    from lightning_predict.callbacks.progress_bar import ShownInBar


@final
class _Fit:
    """State of one fit, on rank zero. A part is None before it begins, after it ends, or if it was not requested.

    Attributes:
        is_recorded: Whether no further step is recorded or compared with the recorded ones.
        quiet_batches: Number of batches before which steps are only timed, and compared until `is_recorded`.
        quiet_until: Time of the observer for which this holds.
    """

    def __init__(self, trainer: Trainer, updates: ForecastUpdates, recording: FitRecording) -> None:
        self.updates, self.recording = updates, recording
        self.observer = updates.observer
        self.optimizer_steps_done: Callable[[], int] = lambda: trainer.global_step
        self.is_recorded = False
        self.quiet_batches: float = 0
        self.quiet_until = 0.0
        self.memory_ahead: MemoryWarnings | None = None
        self.following: DataFlowRecorder | None = None
        self.in_bar: ShownInBar | None = None
        self.progress_file: ProgressFile | None = None

    def ends(self) -> None:
        """Stop all recordings and restore the progress bar."""
        if self.in_bar is not None:
            self.in_bar.remove()
        if self.following is not None:
            self.following.stop()
        self.recording.stop()


class RuntimePredictor(ObservingCallback):
    """Predict this run's time and cost on GPUs, once, after its first steps.

    A step is everything between two optimizer updates: one batch, or several batches with gradient accumulation. If
    steps of several kinds alternate (a generator that steps every fifth batch, lazy regularisation), one step of each
    kind is recorded within the first 64 batches, and the mean over kinds is predicted. Training is not changed: weights
    and random numbers are the same with and without this callback. If the callback has an error, it shows one warning.

    Args:
        gpus: `all`, `datacenter` or `consumer` for every NVIDIA GPU of this group with a current price; the table shows
            the best of these GPUs. Otherwise names of GPUs: catalogue names, torch's names or names of cloud providers.
        warmup_steps: Number of steps to time before a step is recorded. The callback increases the number if step times
            are not steady, and decreases the number for a short run or for the warm-up of a CostBudget.
        assumptions: Other assumptions, such as `Assumptions(weights="folder", host="fast")`. None uses the defaults.
        usd_per_hour: Your own price of one GPU, for all GPUs or by name. None uses that of `assumptions`, or offers.
        print_table: Whether to print the table of predictions, and the ranking below it.
        verbose: Whether to print also methods, sources of prices and every note, and to log every quantity (intervals,
            memory) of every GPU. By default, only step, total and cost are logged. If there are more than three GPUs,
            only these are logged: the one in use, the cheapest, the fastest, and the best within the deadline.
        json_file: File for all predictions as JSON (`.json`), rewritten with each prediction; None writes no file.
        deadline_hours: Maximum hours (or a timedelta) for the rest of the run. The ranking names the cheapest GPU
            within this time.
        batches_per_epoch: Number of batches per epoch on one process, if the loader has no length.
        learn_from_history: Whether to correct predictions by earlier runs of the same model on the same GPU, and to
            store this run (in the file `LIGHTNING_PREDICT_HISTORY`, or in the platform's data folder).
        strategy: How the GPUs of a layout share the work (`ddp`, `fsdp`, `zero2`, ...); None uses the Trainer's
            strategy.
        meta_step: Function that makes a training step on the meta device from a batch size (see
            `callbacks/batch_sizes.py`). The callback then finds the largest batch size that fits on each GPU. None
            skips this.
        save_trace: File for the recorded step (`.json` or `.json.gz`), to predict later or elsewhere with
            `lp.Trace.load` and the command line. Rank zero writes the file after the capture. None writes no file.
        gpus_file: TOML file with your own GPUs (see `gpus/user_gpus.py`).
        advice: Whether to print at most three lines of optimization advice with predicted gains below the first table,
            and to log the gains. Advice takes a few seconds. On a GPU, another step is recorded with its data flow.
        progress_bar: Whether to show the remaining time and cost of the whole run in the Trainer's progress bar. Logged
            values are not affected.

    Attributes:
        progress_file: File for the progress and speed of the run (`.json`), updated every minute, which
            `lightning-predict plan --state` reads. Set it before the fit. If None, the environment variable
            `LIGHTNING_PREDICT_PROGRESS` names the file, which the scripts of an exported plan set.
        advice: Advice for the recorded step, as from `lp.advise`; None before the capture, or if not requested.
        predictions: Predictions; None before the capture.
        trace: Recorded step, with other kinds of steps in `other_steps`; None before the capture.
        batch_sizes: Largest batch size on each GPU; empty before the capture, and without `meta_step`.
        outcome: Comparison of predicted and actual time; None before the end of training.

    Raises:
        UnknownGpuError: The catalogue does not contain one of the names.
        InvalidArgumentError: There are no GPUs, a number of steps is below 1, the method is unknown, a price or a
            deadline is not positive, two lengths of an epoch are given, or `save_trace` or `json_file` cannot be the
            name of a file.
        WeightsNotFoundError: `weights` does not exist.
    """

    _fit: _Fit | None = None

    @property
    def remaining_seconds(self) -> float | None:
        """Remaining seconds of the fit on the machine in use; None before the capture and after the fit."""
        left = self.remaining
        return None if left is None else left.middle

    @property
    def remaining(self) -> Interval[float] | None:
        """Remaining seconds of the fit on the machine in use, with their 90 % interval; None if unknown.

        The seconds are an upper bound if early stopping or a loader without a length may end the fit earlier.
        """
        return None if self._fit is None else self._fit.updates.remaining

    def __init__(
        self,
        gpus: str | Sequence[str] = ALL,
        *,
        warmup_steps: int = 3,
        assumptions: Assumptions | None = None,
        usd_per_hour: UserPrice = None,
        print_table: bool = True,
        verbose: bool = False,
        json_file: str | PathLike[str] | None = None,
        deadline_hours: float | Decimal | Fraction | timedelta | None = None,
        batches_per_epoch: int | None = None,
        learn_from_history: bool = True,
        strategy: str | Strategy | LightningStrategy | None = None,
        meta_step: MetaStep | None = None,
        save_trace: str | PathLike[str] | None = None,
        gpus_file: str | PathLike[str] | None = None,
        advice: bool = False,
        progress_bar: bool = True,
    ) -> None:
        if gpus_file is not None:
            from lightning_predict.hardware.user_gpus import add_gpus

            add_gpus(gpus_file)
        check_steps("warmup_steps", warmup_steps)
        check_epoch(batches_per_epoch)
        assumptions = checked_assumptions(assumptions)
        check_file("save_trace", save_trace, example="step.json.gz")
        check_file("json_file", json_file, endings=(".json",), example="predictions.json")
        if meta_step is not None and not callable(meta_step):
            raise InvalidArgumentError(
                f"meta_step={shown(meta_step)} is not a function; expected one that makes a step from a batch size."
            )
        if isinstance(usd_per_hour, Mapping):
            usd_per_hour = {layout_of(name).name: price for name, price in usd_per_hour.items()}
        if usd_per_hour is None:
            usd_per_hour = assumptions.usd_per_hour
        layouts = layouts_to_predict(gpus, usd_per_hour=usd_per_hour)
        self.gpus = gpus if isinstance(gpus, str) else tuple(layout.name for layout in layouts)
        self.warmup_steps = warmup_steps
        self.usd_per_hour = usd_per_hour
        self._output_options = OutputOptions(
            with_table=print_table,
            verbose=verbose,
            deadline_hours=None if deadline_hours is None else hours_of("deadline_hours", deadline_hours),
            logs_in_full=verbose,
            json_file=None if json_file is None else fspath(json_file),
        )
        self.meta_step = meta_step
        self.progress_file: str | None = None
        self.save_trace = None if save_trace is None else fspath(save_trace)
        self._request = PredictionRequest(
            layouts=layouts,
            assumptions=replace(assumptions, usd_per_hour=usd_per_hour),
            batches_per_epoch=batches_per_epoch,
            uses_history=learn_from_history,
            strategy=None if strategy is None else parse_strategy(strategy),
        )
        self.batch_sizes: tuple[LargestBatch, ...] = ()
        self.predictions: Predictions | None = None
        self.trace: Trace | None = None
        self.outcome: Outcome | None = None
        self.asks_advice = advice
        self.progress_bar = progress_bar
        self.advice: Advice | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return arguments and results for copying and pickling, without the state of a running fit."""
        return {name: value for name, value in vars(self).items() if name not in LIGHTNINGS_OWN | {"_fit"}}

    @log_exceptions
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Reset for a new fit. Do nothing in this fit if there is nothing to predict."""
        if stage != "fit":
            return
        self._deactivate()
        self.predictions = self.outcome = self.trace = None
        self.batch_sizes = ()
        mode = inactive_mode(trainer)
        if mode is not None:
            warn(f"RuntimePredictor does nothing under Trainer({mode}); leave that out to get predictions.")
        elif self._is_second(trainer):
            rank_zero_info("This Trainer has two RuntimePredictors; only the first one is active.")
        elif trainer.is_global_zero:
            device = trainer.strategy.root_device
            load_prediction()
            self._fit = _Fit(
                trainer,
                ForecastUpdates(self._request, observer_of(trainer, device=device), self._output_options),
                FitRecording(trainer, pl_module, clock=device_clock(device)),
            )

    @log_exceptions
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start to time steps."""
        fit = self._fit
        if fit is None:
            return
        windows = fit.observer.windows
        windows.start_training(optimizer_steps_done=trainer.global_step, is_manual=not pl_module.automatic_optimization)
        if self.progress_file is not None or os.environ.get(PROGRESS_VARIABLE):
            from lightning_predict.callbacks.progress import ProgressFile

            fit.progress_file = ProgressFile.wanted(self.progress_file, trainer)
        fit.recording.on_train_start(trainer, pl_module, warmup_steps=self.warmup_steps, count=windows)

    def _pauses(self) -> None:
        if self._fit is not None:
            self._fit.recording.pause()

    @log_exceptions
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Exclude a checkpoint from the wait for a batch, and time its writing."""
        if self._fit is not None:
            self._fit.recording.checkpoint_is_collected()
            self._fit.observer.on_checkpoint(self)

    def _is_start_done(self) -> bool:
        """Time the start of a batch. Return whether nothing else is to be done."""
        fit = self._fit
        if fit is None:
            return True
        fit.observer.on_batch_start()
        if fit.quiet_batches == 0 or fit.observer.epochs_doubled:
            return False
        return fit.is_recorded or fit.recording.starts_known()

    @log_exceptions_unless(_is_start_done)
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Time or record the next batch."""
        fit = self._fit
        if fit is None:
            return
        if fit.observer.epochs_doubled:
            self.predictions = fit.updates.renew(trainer, moment="batch start") or self.predictions
        is_recorded = fit.recording.on_batch_start(trainer, batch)
        if fit.following is not None and not is_recorded:
            fit.following.on_batch_start(batch)
        if is_recorded or fit.following is not None:
            fit.observer.batch_is_recorded()

    def _is_recorded(self) -> bool:
        return self._fit is None or self._fit.is_recorded

    @log_exceptions_unless(_is_recorded)
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Store which optimizers update parameters in the same step."""
        if self._fit is not None:
            self._fit.recording.optimizer_steps(optimizer)

    def _is_end_done(self) -> bool:
        """Time the end of a batch. Return whether nothing else is to be done."""
        fit = self._fit
        if fit is None:
            return True
        fit.observer.on_batch_end(fit.optimizer_steps_done)
        if fit.observer.windows.batches >= fit.quiet_batches or fit.observer.ended >= fit.quiet_until:
            return False
        return fit.is_recorded or fit.recording.ends_known()

    @log_exceptions_unless(_is_end_done)
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the batch. Predict when every kind of step is recorded."""
        fit = self._fit
        if fit is None:
            return
        if fit.progress_file is not None:
            fit.progress_file.on_batch_end(trainer, fit.observer)
        if fit.updates.is_due():
            self.predictions = fit.updates.renew(trainer, moment="batch end") or self.predictions
        if fit.following is not None and fit.following.on_batch_end():
            self._tell_advice(trainer, fit, fit.following)
        trace = fit.recording.on_batch_end(batch)
        if trace is not None:
            is_first = self.trace is None
            self._predict_recorded(trainer, pl_module, fit, trace, batch)
            if self.meta_step is not None and is_first:
                from lightning_predict.callbacks.batch_sizes import show_batch_sizes, try_batch_sizes

                options = try_batch_sizes(self.meta_step, trace, self._request)
                show_batch_sizes(options, trainer, with_table=self._output_options.with_table)
                self.batch_sizes = options
        fit.is_recorded = not fit.recording.is_active
        is_busy = fit.following is not None or fit.progress_file is not None
        fit.quiet_batches, fit.quiet_until = (0, 0.0) if is_busy else fit.updates.nothing_until()

    @log_exceptions
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Exclude validation from the wait for a batch."""
        fit = self._fit
        if fit is None:
            return
        fit.observer.on_validation_start(is_check=trainer.sanity_checking)
        fit.recording.on_validation_start()
        if fit.memory_ahead is not None and self.trace is not None:  # its loaders may exist only now
            fit.memory_ahead.warn(trainer, self.trace)

    @log_exceptions
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Record a batch of the sanity check, or of the first validation without a sanity check."""
        fit = self._fit
        if fit is None:
            return
        is_recorded = fit.recording.on_validation_batch_start(trainer)
        fit.observer.validation.on_batch_start()
        if is_recorded:
            fit.observer.validation.batch_is_recorded()

    @log_exceptions
    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Stop recording a validation batch."""
        if self._fit is not None:
            self._fit.observer.validation.on_batch_end()
            self._fit.recording.on_validation_batch_end(batch)

    @log_exceptions
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Predict again if validation was only estimated before, and has now been recorded."""
        fit = self._fit
        if fit is None:
            return
        fit.observer.on_validation_end()
        if fit.updates.has_predicted and fit.recording.validation_is_done:
            self._predict(trainer, pl_module, fit, "validation end")

    @log_exceptions
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the times. After an early end, predict from what was recorded; warn if the run was too short."""
        fit = self._fit
        if fit is None:
            return
        trace = fit.recording.rest()
        if trace is not None:
            self._predict_recorded(trainer, pl_module, fit, trace)
        unfinished = fit.recording.unfinished_steps()
        if unfinished is not None:
            batches, windows = unfinished
            warn(
                f"RuntimePredictor recorded nothing: training ended after {batches} batches ({windows} steps). "
                f"warmup_steps={self.warmup_steps} needs {self.warmup_steps + 1} uninterrupted steps. Train longer, "
                "or set a lower value."
            )
        if fit.following is not None:
            self._tell_advice(trainer, fit, fit.following)
        if fit.progress_file is not None:
            fit.progress_file.on_batch_end(trainer, fit.observer, has_ended=True)
        self.outcome = fit.updates.compare_outcome(trainer)
        self._deactivate()

    @log_exceptions
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close the profiler after an error, because `teardown` is not called then."""
        self._deactivate()

    @log_exceptions
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Close the profiler."""
        self._deactivate()

    def give_up(self, error: Exception) -> None:
        """Stop everything, warn once, and do nothing until the next fit."""
        with contextlib.suppress(Exception):  # an error while stopping is a consequence of the first error
            self._deactivate()
        warn(f"RuntimePredictor is off, and training goes on: {type(error).__name__}: {error}")

    def _predict_recorded(
        self, trainer: Trainer, pl_module: LightningModule, fit: _Fit, trace: Trace, batch: Any = None
    ) -> None:
        """Store a recorded step, and predict from it."""
        if gpu_in_use(trace) is not None:
            from lightning_predict.callbacks.memory_warnings import MemoryWarnings

            fit.memory_ahead = fit.memory_ahead or MemoryWarnings()
            if batch is not None:
                fit.memory_ahead.batch_was_recorded(batch)
        self.trace = trace.changed(lambda step: with_world_size(step, trainer))
        self._save(trainer)
        self._predict(trainer, pl_module, fit, "batch end", trace=trace, window_size=fit.recording.window_size)

    def _save(self, trainer: Trainer) -> None:
        """Write the recorded step, if requested. Warn once if it cannot be written."""
        path, trace = self.save_trace, self.trace
        if path is None or trace is None:
            return

        def save() -> None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            trace.save(path)

        try:
            in_hook(path, save, seconds=wait_seconds(trainer, FILE_SECONDS))
        except (OSError, TraceFormatError) as error:
            own_error(error)
            warn(f"RuntimePredictor could not write save_trace={path!r}: {type(error).__name__}: {error}")

    def _predict(
        self, trainer: Trainer, pl_module: LightningModule, fit: _Fit, moment: HookMoment, **given: Any
    ) -> None:
        """Predict, show the predictions, and stop all recordings except of a validation still to be recorded."""
        updates, validation = fit.updates, fit.recording.validation_trace()
        self.predictions = updates.predict(trainer, validation=validation, moment=moment, **given)
        reason = "Predicted again, now that validation was timed:" if moment == "validation end" else None
        print_predictions(
            self.predictions, trainer, output_options=self._output_options, reason=reason, advises=updates.advises
        )
        mark(PREDICTED_VARIABLE)
        if self.asks_advice and self.advice is None and fit.following is None and self.trace is not None:
            from lightning_predict.callbacks.advice_output import DataFlowRecorder

            following = DataFlowRecorder(trainer, pl_module, self.trace, fit.observer.windows)
            if following.is_useful(self.trace) and moment == "batch end":
                fit.following = following
            else:
                self._tell_advice(trainer, fit, following)
        if fit.memory_ahead is not None and self.trace is not None:
            fit.memory_ahead.warn(trainer, self.trace, validation=validation)
        if self.progress_bar and fit.in_bar is None and trainer.progress_bar_callback is not None:
            from lightning_predict.callbacks.progress_bar import show_in_bar

            fit.in_bar = show_in_bar(trainer, updates.left_in_words, clock=fit.observer.now)
        updates.exclude_display_time()
        if validation is not None or not trainer.enable_validation:
            fit.recording.forget_validation()

    def _tell_advice(self, trainer: Trainer, fit: _Fit, following: DataFlowRecorder) -> None:
        """Add the data flow to the recorded step, and print the advice."""
        from lightning_predict.callbacks.advice_output import print_advice

        following.stop()
        fit.following = None
        if following.trace is not self.trace:
            self.trace = following.trace
            self._save(trainer)
        left = None if self.predictions is None else next(iter(self.predictions.values())).iterations
        self.advice = print_advice(trainer, following.trace, self._request, iterations=left)
        if self.advice is not None:
            fit.updates.predicted_gains = self.advice.foretold()

    def _is_second(self, trainer: Trainer) -> bool:
        """Return whether an earlier callback of this class exists, for example one added by the environment."""
        # A callback that forwards its hooks to this callback may be in the Trainer's list in its place.
        return next((one for one in callbacks_of(trainer) if isinstance(one, RuntimePredictor)), self) is not self

    def _deactivate(self) -> None:
        """Discard the state of the fit and stop all recording."""
        fit, self._fit = self._fit, None
        if fit is not None:
            fit.ends()
