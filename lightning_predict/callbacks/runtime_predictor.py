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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from os import PathLike, fspath
from typing import TYPE_CHECKING

from lightning_predict.assumptions import Assumptions
from lightning_predict.base.guard import keeps_random_state, log_exceptions, log_exceptions_unless
from lightning_predict.base.interval import Interval
from lightning_predict.callbacks.arguments import check_file, check_steps, checked_assumptions
from lightning_predict.callbacks.hooks import FitCallback
from lightning_predict.callbacks.lightning_packages import rank_zero_info, warn
from lightning_predict.callbacks.prediction_fit import PredictionFit
from lightning_predict.callbacks.trainer_loop import PredictionOptions
from lightning_predict.callbacks.trainer_state import callbacks_of, inactive_mode
from lightning_predict.cost.prediction import UserPrice
from lightning_predict.cost.priced_gpus import ALL, layouts_to_predict
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.layouts.strategy import LightningStrategy, Strategy, parse_strategy
from lightning_predict.observe.meters import hours_of
from lightning_predict.observe.run_session import PredictionRequest, Predicts, RunResults

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from lightning_predict.advice.advice_text import Advice


class RuntimePredictor(Predicts, FitCallback):
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
        save_trace: File for the recorded step (`.json` or `.json.gz`), to predict later or elsewhere with
            `lp.Trace.load` and the command line. Rank zero writes the file after the capture. None writes no file.
        gpus_file: TOML file with your own GPUs (see `hardware/user_gpus.py`).
        advice: Whether to print at most three lines of optimization advice with predicted gains below the first table,
            and to log the gains. Advice takes a few seconds. On a GPU, another step is recorded with its data flow.
        progress_bar: Whether to show the remaining time and cost of the whole run in the Trainer's progress bar. Logged
            values are not affected.

    Raises:
        UnknownGpuError: The catalogue does not contain one of the names.
        InvalidArgumentError: There are no GPUs, a number of steps is below 1, a price or a
            deadline is not positive, two lengths of an epoch are given, or `save_trace` or `json_file` cannot be the
            name of a file.
        WeightsNotFoundError: `weights` does not exist.
    """

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
        return None if self._fit.observer is None else self._fit.observer.remaining

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
        save_trace: str | PathLike[str] | None = None,
        gpus_file: str | PathLike[str] | None = None,
        advice: bool = False,
        progress_bar: bool = True,
    ) -> None:
        if gpus_file is not None:
            from lightning_predict.hardware.user_gpus import add_gpus

            add_gpus(gpus_file)
        check_steps("warmup_steps", warmup_steps)
        if batches_per_epoch is not None:
            check_steps("batches_per_epoch", batches_per_epoch, what="a length")
        assumptions = checked_assumptions(assumptions)
        check_file("save_trace", save_trace, example="step.json.gz")
        check_file("json_file", json_file, endings=(".json",), example="predictions.json")
        if isinstance(usd_per_hour, Mapping):
            usd_per_hour = {layout_of(name).name: price for name, price in usd_per_hour.items()}
        if usd_per_hour is None:
            usd_per_hour = assumptions.usd_per_hour
        layouts = layouts_to_predict(gpus, usd_per_hour=usd_per_hour)
        self.gpus = gpus if isinstance(gpus, str) else tuple(layout.name for layout in layouts)
        self.warmup_steps = warmup_steps
        self.usd_per_hour = usd_per_hour
        self._options = PredictionOptions(
            warmup_steps=warmup_steps,
            with_table=print_table,
            verbose=verbose,
            json_file=None if json_file is None else fspath(json_file),
            save_trace=None if save_trace is None else fspath(save_trace),
            advice=advice,
            progress_bar=progress_bar,
        )
        self._request = PredictionRequest(
            layouts=layouts,
            assumptions=replace(assumptions, usd_per_hour=usd_per_hour),
            batches_per_epoch=batches_per_epoch,
            reads_history=learn_from_history,
            writes_history=learn_from_history,
            strategy=None if strategy is None else parse_strategy(strategy),
            deadline_hours=None if deadline_hours is None else hours_of("deadline_hours", deadline_hours),
        )
        self._results = RunResults()

    @property
    def advice(self) -> Advice | None:
        """Advice for the recorded step, as from `lp.advise`; None before the capture, or if not requested."""
        return self._results.advice

    @log_exceptions
    @keeps_random_state
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Reset for a new fit. Do nothing in this fit if there is nothing to predict."""
        if stage != "fit":
            return
        self._close(ended=False)
        self._results = RunResults()
        mode = inactive_mode(trainer)
        if mode is not None:
            warn(f"RuntimePredictor does nothing under Trainer({mode}); leave that out to get predictions.")
        elif self._is_second(trainer):
            rank_zero_info("This Trainer has two RuntimePredictors; only the first one is active.")
        elif trainer.is_global_zero:
            for name in ("lightning_predict.prediction", "lightning_predict.kernels.families"):
                import_module(name)  # now, so that no step of the fit waits for the import
            self._follow(PredictionFit(trainer, pl_module, self._request, self._options, self._results))

    def _is_recorded(self) -> bool:
        return self._fit.steps is None

    @log_exceptions_unless(_is_recorded)
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: object) -> None:
        """Store which optimizers update parameters in the same step."""
        if self._fit.steps is not None:
            self._fit.steps.optimizer_steps(optimizer)

    def give_up(self, error: Exception) -> None:
        """Stop everything, warn once, and do nothing until the next fit."""
        with contextlib.suppress(Exception):  # an error while stopping is a consequence of the first error
            self._close(ended=False)
        warn(f"RuntimePredictor is off, and training goes on: {type(error).__name__}: {error}")

    def _is_second(self, trainer: Trainer) -> bool:
        """Return whether an earlier callback of this class exists, for example one added by the environment."""
        # A callback that forwards its hooks to this callback may be in the Trainer's list in its place.
        predictors = (each for each in callbacks_of(trainer) if isinstance(each, RuntimePredictor))
        return next(predictors, self) is not self
