"""`RuntimePredictorCallback`: predictions while Hugging Face's `Trainer` trains.

Example::

    from lightning_predict.integrations.transformers import RuntimePredictorCallback

    predictor = RuntimePredictorCallback(gpus=["L4", "H100-SXM-80GB"])
    Trainer(model=model, args=arguments, train_dataset=data, callbacks=[predictor]).train()
    predictor.predictions["L4"].total_seconds
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from lightning_predict.assumptions import Assumptions
from lightning_predict.base.errors import CaptureError, InvalidArgumentError, MissingDependencyError
from lightning_predict.base.guard import keeps_random_state, log_exceptions, log_warning
from lightning_predict.base.interval import Interval
from lightning_predict.base.timeout import PATIENCE_SECONDS
from lightning_predict.cost.priced_gpus import ALL, layouts_to_predict
from lightning_predict.observe.forecast import ForecastInputs
from lightning_predict.observe.memory_risks import MemoryFacts
from lightning_predict.observe.meters import BudgetArguments, Terms
from lightning_predict.observe.rank_agreement import TIMEOUT_SHARE
from lightning_predict.observe.remaining import CheckpointSchedule, HookMoment, Position, Validation
from lightning_predict.observe.run_session import Loop, PredictionRequest, Predicts, RunResults
from lightning_predict.observe.watched_loop import WatchedRun
from lightning_predict.record.trace import Trace
from lightning_predict.reports.loggers import metrics
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import Ranking
from lightning_predict.run.workload import Workload

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingDependencyError(
        "RuntimePredictorCallback is for Hugging Face's Trainer, which is not installed: pip install transformers. For "
        "a Trainer of Lightning, take lightning_predict.callbacks.RuntimePredictor."
    ) from error

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


class RuntimePredictorCallback(Predicts, TrainerCallback):
    """Predict the rest of a run on other GPUs, stop the run at a budget, and compare its time with the prediction.

    A step is the work between two optimizer updates. After `warmup_steps` steps, the callback records a step and prints
    a table on the main process. The predictions are added to the Trainer's `state.log_history`, and thus to
    `trainer_state.json`. A recommendation follows after more steps. An error in the callback becomes one warning, and
    training continues.

    Args:
        gpus: `all`, `datacenter`, `consumer`, or names of the GPUs or layouts to predict, as for `predict`.
        warmup_steps: Number of steps before the recorded step.
        deadline_hours: Maximum time of the rest of the run. The ranking names the cheapest GPU that meets the deadline.
        usd_per_hour: Your own price of one GPU, for all GPUs or by name; None uses the listed offers.
        print_table: Print the table of predictions, followed by the ranking.
        verbose: Also print the prediction methods, the sources of prices and every note.
        usd: Budget in US dollars; training stops if it is exceeded, on all processes after the same step.
        run_usd_per_hour: Your price of all machines of this run, for the budget `usd`; None uses the listed offers.
        **limits: Further limits: `hours`, `deadline`, `kg_co2`, ..., as for `CostBudget`.

    Raises:
        UnknownGpuError: The catalogue does not have a named GPU.
        InvalidArgumentError: `gpus` is empty, `warmup_steps` is below 1, or a limit is invalid.
    """

    _run: WatchedRun | None = None

    def __init__(
        self,
        gpus: str | Sequence[str] = ALL,
        *,
        warmup_steps: int = 3,
        deadline_hours: float | None = None,
        usd_per_hour: float | dict[str, float] | None = None,
        print_table: bool = True,
        verbose: bool = False,
        usd: float | None = None,
        run_usd_per_hour: float | None = None,
        **limits: Unpack[BudgetArguments],
    ) -> None:
        if warmup_steps < 1:
            raise InvalidArgumentError(f"warmup_steps={warmup_steps}; expected at least 1, as the first step is cold.")
        layouts = layouts_to_predict(gpus)  # raises here for an unknown name
        self.gpus = gpus if isinstance(gpus, str) else tuple(layout.name for layout in layouts)
        self.warmup_steps = warmup_steps
        self.print_table, self.verbose = print_table, verbose
        self._request = PredictionRequest(
            layouts=layouts, assumptions=Assumptions(usd_per_hour=usd_per_hour), deadline_hours=deadline_hours
        )
        self._terms = Terms.checked(usd=usd, usd_per_hour=run_usd_per_hour, **limits)
        self._results = RunResults()
        self.stopping_reason: str | None = None  # Why the budget stopped the run; None if the run was not stopped

    @log_exceptions
    def on_train_begin(
        self, /, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Reset the callback for a new run. Only the main process predicts; with a budget, all of them decide."""
        self._deactivate()
        self._results, self.stopping_reason = RunResults(), None
        is_main = state.is_world_process_zero
        if not (is_main or self._terms.description):
            return
        loop = TransformersLoop(args, state, verbose=self.verbose, shows=self.print_table and is_main)
        loop.loader = kwargs.get("train_dataloader")
        run = self._run = WatchedRun(
            loop,
            self._request,
            self._terms,
            model=kwargs["model"],
            device=args.device,
            warmup_steps=self.warmup_steps,
            samples=args.per_device_train_batch_size * args.gradient_accumulation_steps,
            records=is_main,
            wait_seconds=min(PATIENCE_SECONDS, TIMEOUT_SHARE * args.ddp_timeout),
        )
        self._results = run.session.results
        run.__enter__()

    @log_exceptions
    def on_step_begin(self, /, *_: object, **kwargs: object) -> None:
        """Start to time or record the next step."""
        if self._run is not None:
            self._run.start_step()

    @log_exceptions
    def on_step_end(
        self, /, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the step. After the recorded step, predict; then check the budget, on all processes together."""
        if self._run is not None:
            self._run.end_step()
            if self._run.should_stop:
                self.stopping_reason, control.should_training_stop = self._run.stopping_reason, True

    @log_exceptions
    def on_prediction_step(self, /, *_: object, **kwargs: object) -> None:
        """Time an evaluation batch. The Trainer reports only the end of a batch."""
        if self._run is not None:
            self._run.observer.on_validation_start(is_check=False)
            self._run.observer.validation.on_batch_end()
            self._run.observer.validation.on_batch_start()

    @log_exceptions
    def on_evaluate(self, /, *_: object, **kwargs: object) -> None:
        """Exclude the evaluation from the loader's waiting time."""
        if self._run is not None:
            loop = self._run.session.loop
            if isinstance(loop, TransformersLoop):
                loop.evaluation = kwargs.get("eval_dataloader")  # absent before the first evaluation
            self._run.observer.on_validation_end()

    @log_exceptions
    def on_save(self, /, *_: object, **kwargs: object) -> None:
        """Exclude the checkpoint from the loader's waiting time."""
        if self._run is not None:
            self._run.observer.exclude_interruption()

    @log_exceptions
    def on_train_end(
        self, /, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Compare the run with its prediction, or warn if the run was too short to record a step."""
        run = self._run
        if run is None:
            return
        run.__exit__(None, None, None)
        self._deactivate()
        if self.predictions is None and state.is_world_process_zero and not run.has_failed:
            raise CaptureError(
                f"the run ended after {state.global_step} steps, before one was recorded; expected more than "
                f"warmup_steps={self.warmup_steps}."
            )

    @property
    def remaining(self) -> Interval[float] | None:
        """Remaining seconds on the machine in use, with their 90 % interval; None if unknown or after the end."""
        return None if self._run is None else self._run.remaining

    def give_up(self, error: Exception) -> None:
        """Report the error, and do nothing more. Other processes that wait for a decision read the error."""
        if self._run is not None:
            self._run.give_up(error)
        else:
            _warn_off(error)

    def _deactivate(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.stop()


class TransformersLoop(Loop):
    """Training loop of Hugging Face's Trainer. A batch is a whole step: the Trainer reports only whole steps."""

    name = "RuntimePredictor"
    decides_alone = False

    def __init__(self, args: TrainingArguments, state: TrainerState, *, verbose: bool, shows: bool) -> None:
        super().__init__(
            state.max_steps if state.max_steps > 0 else None, show=print if shows else None, verbose=verbose
        )
        self._args, self._state = args, state
        self.evaluation: Any = None  # Loader of evaluations; None before the first evaluation
        self.world_size, self.batches_per_step = args.world_size, args.gradient_accumulation_steps

    @keeps_random_state
    def inputs(self, moment: HookMoment) -> ForecastInputs:
        """Return the inputs of a forecast, from the Trainer's state and arguments."""
        done = max(self._state.global_step, self.steps)
        every = {
            "steps": self._state.eval_steps,
            "epoch": max(1, round(self._state.max_steps / max(1, self._state.num_train_epochs))),
        }
        interval = every.get(_when(self._args.eval_strategy))
        validation = None
        if interval and self.evaluation is not None:
            # The Trainer does not report the start of an evaluation: its first batch counts to the gap before it.
            validation = Validation(batches=len(self.evaluation) - 1, every_batches=float(interval), every_epochs=None)
        save = {"steps": self._state.save_steps, "epoch": every["epoch"]}.get(_when(self._args.save_strategy))
        return ForecastInputs(
            position=Position(
                epoch=0,
                batches_done=done,
                batches_per_epoch=None,
                optimizer_steps_done=done,
                max_steps=self._state.max_steps if self._state.max_steps > 0 else None,
                accumulation={0: 1},
                validation=validation,
            ),
            checkpoint_schedules=[] if not save else [CheckpointSchedule(every_steps=int(save))],
            workers=self._args.dataloader_num_workers,
            has_workers=self._args.dataloader_num_workers > 0,
            validation_batches=0,
        )

    def memory_facts(self, trace: Trace) -> MemoryFacts:
        """Return the properties of later parts of the run (validation, longer batches) that may need more memory."""
        samples = self._args.per_device_eval_batch_size if self._evaluates else None
        return replace(super().memory_facts(trace), validation_samples=samples)

    def notes(self, work: Workload) -> tuple[str, ...]:
        """Return a note that totals omit evaluations, if the length of an evaluation is not known yet."""
        is_missing = self._evaluates and self.evaluation is None
        return ("Total: evaluations are left out until the first was timed.",) if is_missing else ()

    def publish(self, predictions: Predictions, ranking: Ranking) -> None:
        """Add the predictions to the Trainer's log history."""
        self._state.log_history.append({"step": self._state.global_step, **metrics(predictions)})

    def fails(self, error: Exception) -> None:
        """Warn about an error, after which nothing is predicted any more."""
        _warn_off(error)

    @property
    def _evaluates(self) -> bool:
        return _when(self._args.eval_strategy) != "no"


def _warn_off(error: Exception) -> None:
    words = f"RuntimePredictorCallback stopped, training goes on: {type(error).__name__}: {error}"
    try:
        warnings.warn(words, stacklevel=2)
    except Warning:  # if warnings are errors
        log_warning(words)


def _when(strategy: object) -> str:
    """Return the evaluation strategy as a word (`no`, `steps`, `epoch`), from a string or an enumeration member."""
    return str(strategy).rpartition(".")[2].lower()
