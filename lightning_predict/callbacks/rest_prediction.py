"""Predicts the rest of a fit from its measured steps, on other GPUs and on the machine in use.

Example::

    question = PredictionRequest(layouts=layouts_of(["T4", "L4"]))
    answer = predict_rest(trainer, question, trace, validation=None, window_size=WindowSize(), observer=observer)
    answer.predictions["T4"].total_seconds, answer.expected.total_seconds
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, final

from lightning_predict.assumptions import Assumptions
from lightning_predict.base.errors import LightningPredictError
from lightning_predict.base.files import FILE_SECONDS, history_path, in_hook
from lightning_predict.base.guard import own_error
from lightning_predict.base.timeout import run_with_timeout
from lightning_predict.callbacks.lightning_packages import warn
from lightning_predict.callbacks.trainer_state import forecast_inputs
from lightning_predict.hardware.layouts import Layout
from lightning_predict.layouts.strategy import DataStrategy, GatheredDtype, Strategy
from lightning_predict.observe.forecast import RestOfRun, rough_note
from lightning_predict.observe.optimizer_steps import WindowSize
from lightning_predict.observe.predicted_vs_actual import Expected, expected_outcome, with_current_step_time
from lightning_predict.observe.rank_agreement import wait_seconds
from lightning_predict.observe.remaining import HookMoment
from lightning_predict.observe.run_observer import RunObserver
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.trace import Trace
from lightning_predict.reports.predictions import Predictions
from lightning_predict.run.history import HistoryRecord, read_history
from lightning_predict.run.workload import Workload

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


PREDICTION_SECONDS: Final = 60.0
"""Maximum seconds by which a prediction delays the training. A shorter timeout of collectives reduces this time."""

_BY_CLASS: Final[dict[str, DataStrategy]] = {"FSDPStrategy": "fsdp", "ModelParallelStrategy": "fsdp"}
"""Sharding by the class name of the strategy. Some classes cannot be imported without an extra."""

_ZERO_STAGES: Final[dict[int, DataStrategy]] = {0: "ddp", 1: "zero1", 2: "zero2", 3: "fsdp"}


_MIXED_PRECISIONS: Final[dict[str, GatheredDtype]] = {"bf16-mixed": "bfloat16", "16-mixed": "float16"}
"""Dtype in which Lightning's FSDP gathers float32 parameters, by the Trainer's precision."""


def load_prediction() -> None:
    """Import the modules that a prediction needs, so that no step of the fit waits for the import."""
    for name in ("lightning_predict.prediction", "lightning_predict.kernels.families"):
        import_module(name)


def strategy_of_trainer(trainer: Any) -> Strategy:
    """Return the strategy that the Trainer would use on several GPUs; DDP if it trains on one GPU."""
    strategy = trainer.strategy
    names = [parent.__name__ for parent in type(strategy).__mro__]
    if "DeepSpeedStrategy" in names:
        zero = (getattr(strategy, "config", None) or {}).get("zero_optimization", {})
        data = _ZERO_STAGES.get(zero.get("stage", 2), "zero2")
        is_offloaded = data != "ddp" and (zero.get("offload_optimizer") or {}).get("device") == "cpu"
        return Strategy(data=data, offload="optimizer" if is_offloaded else "none")
    for name, data in _BY_CLASS.items():
        if name in names:
            return Strategy(
                data="hybrid" if _is_hybrid(strategy) else data,
                tensor=_degree(strategy),
                param_dtype=_MIXED_PRECISIONS.get(str(getattr(trainer, "precision", None))),
            )
    options = getattr(strategy, "_ddp_kwargs", {})
    return Strategy(bucket_cap_mb=options.get("bucket_cap_mb") or Strategy().bucket_cap_mb)


def _is_hybrid(strategy: Any) -> bool:
    sharding = getattr(strategy, "sharding_strategy", None)
    return "HYBRID" in str(getattr(sharding, "name", sharding)).upper()


def _degree(strategy: Any) -> int:
    """Return the tensor-parallel degree of a strategy; 1 without tensor parallelism."""
    degree = getattr(strategy, "_tensor_parallel_size", 1)
    return degree if isinstance(degree, int) else 1


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRequest:
    """Request of the user to RuntimePredictor.

    Attributes:
        layouts: GPUs and layouts to predict.
        assumptions: Assumptions of the user. Strategy and history are added for each prediction.
        batches_per_epoch: Number of batches per epoch, for a loader without a length; None if not given.
        uses_history: Whether to use earlier runs of the same model.
        strategy: How several GPUs share the work; None for the Trainer's strategy.
    """

    layouts: tuple[Layout, ...]
    assumptions: Assumptions = field(default_factory=Assumptions)
    batches_per_epoch: int | None = None
    uses_history: bool = True
    strategy: Strategy | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RestPrediction:
    """Predictions for the rest of a fit, with their inputs.

    Attributes:
        predictions: Predictions for the GPUs.
        expected: Expected time on the machine in use; None if no step was timed.
        rest: Measured times and remaining numbers.
        batches_per_epoch: Number of batches per epoch that the user gave; None if the loader has a length.
    """

    predictions: Predictions
    expected: Expected | None
    rest: RestOfRun
    batches_per_epoch: int | None = None


def predict_rest(
    trainer: Trainer,
    request: PredictionRequest,
    trace: Trace,
    *,
    validation: Trace | None,
    window_size: WindowSize,
    observer: RunObserver,
    moment: HookMoment = "batch end",
    is_renewed: bool = False,
    is_rough: bool = False,
) -> RestPrediction:
    """Predict the rest of a fit. `is_rough` means that a recommendation needs more steps."""
    given = _batches_per_epoch(trainer, request)
    inputs = forecast_inputs(
        trainer, window_size=window_size, moment=moment, batches_per_epoch=given or observer.batches_per_epoch
    )
    rest = observer.rest(inputs, batches_per_window=trace.batches, samples=trace.samples)
    work = rest.workload
    trace = with_current_step_time(trace, rest.batch_times).changed(lambda step: with_world_size(step, trainer))
    assumptions = replace(
        request.assumptions,
        strategy=strategy_of_trainer(trainer) if request.strategy is None else request.strategy,
        history=earlier_runs(trainer, request, trace, is_renewed=is_renewed),
    )

    from lightning_predict.prediction import predict_workload

    def work_out() -> Predictions:
        return predict_workload(
            trace, request.layouts, work, assumptions, validation=validation, forecast=rest.forecast
        )

    longest = wait_seconds(trainer, PREDICTION_SECONDS)
    try:
        predictions = run_with_timeout(longest, work_out)
    except TimeoutError as error:
        own_error(error)
        raise LightningPredictError(
            f"the prediction took more than {longest:g} s, the limit during training. Ask for fewer "
            "GPUs, or predict later from the recorded step (save_trace=...)"
        ) from None
    predictions = replace(
        predictions,
        notes=(*predictions.notes, *_notes(trainer, given, observer, work), *rough_note(rest, is_rough=is_rough)),
        heading=_heading(predictions, steps_done(trainer, observer)),
        is_running=True,
    )
    return RestPrediction(
        predictions=predictions,
        expected=expected_outcome(trace, rest, predictions, num_gpus=trainer.world_size),
        rest=rest,
        batches_per_epoch=given,
    )


def steps_done(trainer: Trainer, observer: RunObserver) -> int:
    """Return the number of finished steps. `global_step` counts the updates of each optimizer, so it is divided."""
    return round(trainer.global_step / observer.windows.window_size.steps_per_window)


def _heading(predictions: Predictions, steps: int) -> str | None:
    if predictions.heading is None:
        return None
    what, _, place = predictions.heading.partition(", recorded on ")
    subject = "Rest of this run: " if any(one.iterations is not None for one in predictions.values()) else ""
    return f"{subject}{what}, recorded on this {place} at step {steps:,}"


def with_world_size(step: Trace, trainer: Trainer) -> Trace:
    """Return the step with the Trainer's numbers of processes and machines."""
    return replace(step, world_size=trainer.world_size, num_nodes=trainer.num_nodes)


def earlier_runs(
    trainer: Trainer, question: PredictionRequest, trace: Trace, *, is_renewed: bool
) -> Sequence[HistoryRecord]:
    """Read earlier runs of the model. Runs on the layout in use correct only the first prediction."""
    if not question.uses_history:
        return ()
    try:
        records = in_hook(history_path(), read_history, seconds=wait_seconds(trainer, FILE_SECONDS))
    except OSError as error:
        own_error(error)
        if not is_renewed:  # warned already otherwise
            warn(f"RuntimePredictor predicts without earlier runs: {type(error).__name__}: {error}")
        return ()
    from lightning_predict.step_predictor import layout_in_use

    origin = gpu_in_use(trace) if is_renewed else None
    used = None if origin is None else layout_in_use(trace, origin).name
    return tuple(one for one in records if one.layout != used)


def _batches_per_epoch(trainer: Trainer, request: PredictionRequest) -> int | None:
    """Return the user's number of batches per epoch, if the loader has no length."""
    return request.batches_per_epoch if math.isinf(trainer.num_training_batches) else None


def _notes(trainer: Trainer, given: int | None, observer: RunObserver, work: Workload) -> tuple[str, ...]:
    """Return notes about the basis of the total, and about costs that the total lacks."""
    notes = []
    if given is not None:
        notes.append(f"The loader has no length. Assumed: {given:,} batches per epoch, as given.")
    elif math.isinf(trainer.num_training_batches) and observer.batches_per_epoch is not None:
        seen = observer.batches_per_epoch
        notes.append(f"The loader has no length. Assumed: {seen:,} batches per epoch, as in the last epoch.")
    if work.training_iterations is not None and work.checkpoints.total_seconds is None:
        notes.append("Total: checkpoints are not included, because their number or size is unknown.")
    if trainer.world_size > 1:
        notes.append(f"Recorded on one of {trainer.world_size} processes.")
    return tuple(notes)
