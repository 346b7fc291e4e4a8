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
from functools import partial
from typing import TYPE_CHECKING, Any

from lightning_predict.base.errors import CaptureError, InvalidArgumentError, MissingDependencyError
from lightning_predict.base.guard import log_exceptions, log_warning
from lightning_predict.base.interval import Interval
from lightning_predict.cost.priced_gpus import ALL, layouts_to_predict
from lightning_predict.observe.budget import batches_between_checks
from lightning_predict.observe.forecast import ForecastInputs
from lightning_predict.observe.memory_risks import MemoryFacts, MemoryRisk, longest_sequence, recorded_length
from lightning_predict.observe.rank_agreement import (
    TIMEOUT_SHARE,
    WAIT_SECONDS,
    Decision,
    JointStop,
    agreement_of_ranks,
)
from lightning_predict.observe.remaining import CheckpointSchedule, Position, Validation
from lightning_predict.observe.watched_loop import WatchedRun
from lightning_predict.reports.loggers import metrics

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingDependencyError(
        "RuntimePredictorCallback is for Hugging Face's Trainer, which is not installed: pip install transformers. For "
        "a Trainer of Lightning, take lightning_predict.callbacks.RuntimePredictor."
    ) from error

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from lightning_predict.observe.predicted_vs_actual import Outcome
    from lightning_predict.record.trace import Trace
    from lightning_predict.reports.predictions import Predictions


class RuntimePredictorCallback(TrainerCallback):
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
        usd: Budget in US dollars; training stops if it is exceeded.
        hours: Budget in hours; training stops if it is exceeded, on all processes after the same step.
        run_usd_per_hour: Your price of all machines of this run, for the budget `usd`; None uses the listed offers.

    Attributes:
        predictions: The predictions; None before the first prediction.
        trace: The recorded step; None before a step is recorded.
        outcome: Predicted and actual time; None before the end of training.
        stopping_reason: Why the budget stopped the run; None if the run was not stopped.

    Raises:
        UnknownGpuError: The catalogue does not have a named GPU.
        InvalidArgumentError: `gpus` is empty, or `warmup_steps` is below 1.
    """

    _run: WatchedRun | None = None
    _joint: JointStop | None = None
    _failure: str | None = None
    _evaluation: Any = None
    _memory_risks: tuple[MemoryRisk, ...] = ()

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
        hours: float | None = None,
        run_usd_per_hour: float | None = None,
    ) -> None:
        if warmup_steps < 1:
            raise InvalidArgumentError(f"warmup_steps={warmup_steps}; expected at least 1, as the first step is cold.")
        layouts = layouts_to_predict(gpus)  # raises here for an unknown name
        self.gpus = gpus if isinstance(gpus, str) else tuple(layout.name for layout in layouts)
        self.warmup_steps = warmup_steps
        self.deadline_hours = deadline_hours
        self.usd_per_hour = usd_per_hour
        self.print_table = print_table
        self.verbose = verbose
        self.usd, self.hours, self.run_usd_per_hour = usd, hours, run_usd_per_hour
        self.predictions: Predictions | None = None
        self.trace: Trace | None = None
        self.outcome: Outcome | None = None
        self.stopping_reason: str | None = None

    @log_exceptions
    def on_train_begin(
        self, /, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Reset the callback for a new run; only the main process predicts."""
        self._deactivate()
        self.predictions = self.trace = self.outcome = self.stopping_reason = None
        self._evaluation, self._memory_risks, self._failure = None, (), None
        self._joint = joint_stop(args) if args.world_size > 1 and (self.usd or self.hours) else None
        if not state.is_world_process_zero:
            return
        run = self._run = WatchedRun(
            total_steps=state.max_steps if state.max_steps > 0 else None,
            usd=self.usd,
            hours=self.hours,
            gpus=self.gpus,
            model=kwargs["model"],
            optimizers=(),
            device=args.device,
            usd_per_hour=self.run_usd_per_hour,
            raises=False,
            warmup_steps=self.warmup_steps,
            samples=args.per_device_train_batch_size * args.gradient_accumulation_steps,
            show=print if self.print_table else None,
        )
        run.facts = lambda steps: facts_of(args, state, self._evaluation, steps)
        run.memory_facts = lambda: memory_facts(args, run, kwargs.get("train_dataloader"))
        run.prices, run.deadline_hours, run.verbose = self.usd_per_hour, self.deadline_hours, self.verbose
        run.notes = lambda: notes_of(args, self._evaluation)
        run.batches_per_step = args.gradient_accumulation_steps
        run.world_size, run.on_prediction, run.on_failure = args.world_size, partial(self._tell, state), self.give_up
        run.__enter__()

    @log_exceptions
    def on_step_begin(self, /, *_: Any, **kwargs: Any) -> None:
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
        joint, self._joint = self._joint, None  # an error in the exchange is the last one
        reason = self._decide()["reason"] if joint is None else joint.reason(self._decide, self._failure)
        self._joint = joint
        if reason is not None:
            self.stopping_reason, control.should_training_stop = reason, True

    def _decide(self) -> Decision:
        """Return why to stop, and the number of steps until the next decision of several ranks."""
        run = self._run
        return {
            "reason": None if run is None else run.stopping_reason,
            "batches": 1 if run is None else batches_between_checks(run.observer),
        }

    @log_exceptions
    def on_prediction_step(self, /, *_: Any, **kwargs: Any) -> None:
        """Time an evaluation batch. The Trainer reports only the end of a batch."""
        if self._run is not None:
            self._run.observer.on_validation_start(is_check=False)
            self._run.observer.validation.on_batch_end()
            self._run.observer.validation.on_batch_start()

    @log_exceptions
    def on_evaluate(self, /, *_: Any, **kwargs: Any) -> None:
        """Exclude the evaluation from the loader's waiting time."""
        self._evaluation = kwargs.get("eval_dataloader")  # absent before the first evaluation
        if self._run is not None:
            self._run.observer.on_validation_end()

    @log_exceptions
    def on_save(self, /, *_: Any, **kwargs: Any) -> None:
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
        self.outcome = run.outcome
        self._deactivate()
        if self.predictions is None:
            raise CaptureError(
                f"the run ended after {state.global_step} steps, before one was recorded; expected more than "
                f"warmup_steps={self.warmup_steps}."
            )

    @property
    def remaining(self) -> Interval[float] | None:
        """Remaining seconds on the machine in use, with their 90 % interval; None if unknown or after the end."""
        return None if self._run is None else self._run.remaining

    @property
    def memory_risks(self) -> tuple[MemoryRisk, ...]:
        """Later parts of the run that may not fit into the memory of the GPU in use. Each risk is also logged."""
        return self._memory_risks if self._run is None else self._run.memory_risks

    def give_up(self, error: Exception) -> None:
        """Stop recording and report the error once; training continues."""
        self._deactivate()
        if self._failure is not None:
            return
        self._failure = f"{type(error).__name__}: {error}"
        words = f"RuntimePredictorCallback stopped, training goes on: {self._failure}"
        try:
            warnings.warn(words, stacklevel=2)
        except Warning:  # if warnings are errors
            log_warning(words)

    def _tell(self, state: TrainerState, predictions: Predictions) -> None:
        """Store the predictions, and add them to the Trainer's log history."""
        self.predictions, self.trace = predictions, None if self._run is None else self._run.trace
        state.log_history.append({"step": state.global_step, **metrics(predictions)})

    def _deactivate(self) -> None:
        """End the recording. The callback then does nothing until the next run."""
        run, self._run = self._run, None
        if run is not None:
            self._memory_risks = run.memory_risks
            run.stop()


def joint_stop(args: TrainingArguments) -> JointStop:
    """Return the exchange that lets all processes stop after the same step; call it on each.

    Raises:
        InvalidArgumentError: The processes share no store, so that only one of them would stop.
    """
    seconds = min(WAIT_SECONDS, TIMEOUT_SHARE * args.ddp_timeout)
    agreement = agreement_of_ranks(args.process_index, args.world_size, seconds)
    if agreement is None:
        raise InvalidArgumentError("a budget of several processes needs torch.distributed, which is not initialized")
    return JointStop(agreement)


def memory_facts(args: TrainingArguments, run: WatchedRun, loader: Any) -> MemoryFacts:
    """Return the properties of later parts of the run (validation, longer batches) that may need more memory."""
    assert run.trace is not None
    length = recorded_length(run.trace)
    evaluates = _when(args.eval_strategy) != "no"
    return MemoryFacts(
        validation_samples=args.per_device_eval_batch_size if evaluates else None,
        length=length,
        longest=None if length is None else longest_sequence(loader),
    )


def _when(strategy: Any) -> str:
    """Return the evaluation strategy as a word (`no`, `steps`, `epoch`), from a string or an enumeration member."""
    return str(strategy).rpartition(".")[2].lower()


def notes_of(args: TrainingArguments, evaluation: Any) -> tuple[str, ...]:
    """Return a note that totals omit evaluations, if the length of an evaluation is not known yet."""
    is_asked = _when(args.eval_strategy) != "no"
    return ("Total: evaluations are left out until the first was timed.",) if is_asked and evaluation is None else ()


def facts_of(args: TrainingArguments, state: TrainerState, evaluation: Any, steps: int) -> ForecastInputs:
    """Return the inputs of a forecast. A batch is a whole step here, because the Trainer reports only whole steps."""
    done = max(state.global_step, steps)
    every = {"steps": state.eval_steps, "epoch": max(1, round(state.max_steps / max(1, state.num_train_epochs)))}
    interval = every.get(_when(args.eval_strategy))
    validation = None
    if interval and evaluation is not None:
        # The Trainer does not report the start of an evaluation: its first batch counts as part of the gap before it.
        validation = Validation(batches=len(evaluation) - 1, every_batches=float(interval), every_epochs=None)
    save = {"steps": state.save_steps, "epoch": every["epoch"]}.get(_when(args.save_strategy))
    return ForecastInputs(
        position=Position(
            epoch=0,
            batches_done=done,
            batches_per_epoch=None,
            optimizer_steps_done=done,
            max_steps=state.max_steps if state.max_steps > 0 else None,
            accumulation={0: 1},
            validation=validation,
        ),
        checkpoint_schedules=[] if not save else [CheckpointSchedule(every_steps=int(save))],
        workers=args.dataloader_num_workers,
        has_workers=args.dataloader_num_workers > 0,
        validation_batches=0,
    )
